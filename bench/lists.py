"""`python -m bench.lists`: what long lists cost the hub, and whether a call costs more beside them.

For each number of tools a hub starts with one server that lists so many, in 200 pages, with descriptions of 300 bytes.
The table has the processor time and the memory of the hub until the list is read, and then for each use of it (MCP,
REST, search, agent card) the processor time and the longest turn of the event loop; last, the processor time of one
call. Ends with 1 when a turn took longer than is promised.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec
import uvloop

from bench.load import drive
from bench.messages import VERSIONS, asks, modern_meta
from bench.processes import PORT_LOGGED, Program

COUNTS = (10, 1_000, 10_000)
PROMISED_TURN_MILLISECONDS = 20.0
"""No turn of the event loop takes longer, whatever is listed."""

DESCRIBED_BYTES = 300
READY_SECONDS = 120.0
CALL_SECONDS = 2.0
ROUNDS = 3
SEARCHED = {"tools": ["*"], "expose": "search"}
QUERY = {"query": "document line"}
LIMITS = {"tools_per_server": 100_000, "listing_seconds": 0.1}
HUB = "tests.security.measured_hub"
RAW_SERVER = str(Path(__file__).resolve().parents[1] / "tests" / "peers")


class Hub:
    """A running hub whose turns are measured."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.port = program.port(PORT_LOGGED)

    def get(self, path: str) -> bytes:
        """The body of a response, which must be good."""
        return self._request("GET", path, None, {})

    def ask(self, method: str, params: dict[str, object], path: str = "/mcp") -> msgspec.Raw:
        """The result of a modern request."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": modern_meta()}}
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSIONS["modern"],
            "Mcp-Method": method,
            **({"Mcp-Name": str(params["name"])} if "name" in params else {}),
        }
        content = self._request("POST", path, msgspec.json.encode(body), headers)
        answer = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        if "result" not in answer:
            raise RuntimeError(f"{method}: {bytes(answer['error'])!r}")
        return answer["result"]

    def longest_milliseconds(self) -> float:
        """The longest turn since the last look."""
        figures = msgspec.json.decode(self.get("/v1/hub"))
        return float(figures["event_loop"]["turns"]["longest"]) * 1e3

    def _request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READY_SECONDS)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{method} {path}: HTTP {response.status} {content[:300]!r}")
        return content


class _Page(msgspec.Struct, rename="camel"):
    tools: list[msgspec.Raw]
    next_cursor: str | None = None


def list_everything(hub: Hub) -> int:
    """List over MCP page by page; the number of tools."""
    params: dict[str, object] = {}
    count = 0
    while True:
        page = msgspec.json.decode(hub.ask("tools/list", params), type=_Page)
        count += len(page.tools)
        if page.next_cursor is None:
            return count
        params = {"cursor": page.next_cursor}


def until_listed(hub: Hub, count: int) -> None:
    """Wait until the server's list is read."""
    give_up = time.monotonic() + READY_SECONDS
    listed: list[int] = []
    while time.monotonic() < give_up:
        servers = msgspec.json.decode(hub.get("/v1/servers"))["servers"]
        listed = [server["tools"] for server in servers if server["name"] == "many" and server["state"] == "ready"]
        if listed and listed[0] >= count:
            return
        time.sleep(0.05)
    raise RuntimeError(f"the hub lists {listed} tools instead of {count}")


def measure(count: int, seconds: float) -> tuple[list[str], float]:
    """A row for so many tools, and the longest turn in it."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "isthmus.json"
        mode = f"many:{count},described:{DESCRIBED_BYTES}"
        entry = {"command": sys.executable, "args": [RAW_SERVER, "raw_server", "--mode", mode]}
        tables = {
            "hub": {"state": str(Path(folder) / "state")},
            "sets": {"found": SEARCHED},
            "limits": LIMITS,
        }
        config.write_bytes(msgspec.json.encode({"servers": {"many": entry}, **tables}))
        with Program(HUB, "serve", "--config", str(config), "--port", "0") as program:
            hub = Hub(program)
            hub.get("/v1/servers")
            hub.longest_milliseconds()  # of loading modules; the server has not started yet
            until_listed(hub, count)
            program_cpu, memory = program.cpu_seconds(), program.memory_bytes()
            held = [hub.longest_milliseconds()]
            row = [f"{count:,}", f"{program_cpu:.2f}", f"{memory / 2**20:.0f}", f"{held[0]:.1f}"]
            uses: Sequence[Callable[[], object]] = (
                lambda: list_everything(hub),
                lambda: hub.get("/v1/tools"),
                lambda: hub.ask("tools/call", {"name": "search_tools", "arguments": QUERY}, "/mcp/found"),
                lambda: hub.get("/a2a/.well-known/agent-card.json"),
            )
            for use in uses:
                before = program.cpu_seconds()
                use()
                took = (program.cpu_seconds() - before) * 1e3
                held.append(hub.longest_milliseconds())
                row.append(f"{took:.0f} / {held[-1]:.1f}")
            calls = asks("/mcp", "many.echo", "modern", {}, first_id=1, count=64)
            costs = []
            for _ in range(ROUNDS):
                before = program.cpu_seconds()
                served = uvloop.run(drive(hub.port, [calls], seconds))
                costs.append((program.cpu_seconds() - before) / served.calls * 1e6)
            held.append(hub.longest_milliseconds())
            row += [f"{median(costs):.0f}", f"{program.memory_bytes() / 2**20:.0f}"]
            return row, max(held)


HEADINGS = (
    "tools",
    "s of CPU until listed",
    "MiB",
    "longest turn, ms",
    "MCP list: ms of CPU / longest turn",
    "REST list",
    "search",
    "agent card",
    "µs of CPU for a call",
    "MiB at the end",
)


def main() -> int:
    """Measure and print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=COUNTS, help="numbers of tools")
    parser.add_argument("--seconds", type=float, default=CALL_SECONDS, help="of calls, in each of three rounds")
    options = parser.parse_args()
    print(f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|", sep="\n", flush=True)
    longest = 0.0
    for count in options.counts:
        row, held = measure(count, options.seconds)
        print(f"| {' | '.join(row)} |", flush=True)
        longest = max(longest, held)
    if longest > PROMISED_TURN_MILLISECONDS:
        print(f"A turn of the event loop took {longest:.1f} ms, over the {PROMISED_TURN_MILLISECONDS:g} ms promised.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
