"""What a call costs: the hub beside a direct call and a bare relay, and a gate on the cost of its parts.

`python -m bench` measures real processes over real sockets (minutes). `python -m bench.gate` measures parts
of the hub inside one process (seconds) and compares them with `baseline.json`. Nothing in the hub imports
this package.
"""
