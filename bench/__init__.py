"""What a call costs: the hub beside a direct call and a bare relay, and a gate on the cost of its parts.

`python -m bench` measures real processes over real sockets (minutes), as do `bench.agents` for tasks, `bench.relayed`
for the relay and `bench.crowd` for ten thousand servers that dialled in. `python -m bench.gate` measures parts
of the hub inside one process (seconds) and compares them with `baseline.json`. Nothing in the hub imports
this package.
"""
