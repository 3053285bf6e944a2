"""`python -m bench.partitions`: what callers are told, and how soon, while NATS or PostgreSQL fails or a cable is cut.

Two nodes, NATS, PostgreSQL and its standby run on machines of their own (network namespaces, so only root can). For
each fault, a few calls a second go to a server of node a: at node a itself, and at node b, from where they cross. As
many tasks are sent to node a, and tasks that node a works on are cancelled at node b. The table says what the slowest
of each took, and what they were told: `ok`, or `executed`. `healthy` is the time from the end of the fault until all of
these work again.

Fails if a call at the server's own node failed, if something else took longer than `TOLD_SECONDS`, if something ran
twice, or ran although its caller was told `no`, if the database has a write of a fenced node, or if anything was not
well `HEALTHY_SECONDS` after the fault. Names of faults as arguments choose some.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster_database.nodes import Node
from tests.cluster_database.test_database_faults import is_ready
from tests.cluster_hubs.namespaces import Network, missing_for_namespaces
from tests.cluster_hubs.nodes import stands
from tests.cluster_hubs.sites import Site, site
from tests.conftest import Ledger
from tests.faults.test_tasks_crash import SECONDS, task_message
from tests.faults.watching import eventually
from tests.hubs import Raw
from tests.relay.peers import Manner, RawServer, raw_server

TOLD_SECONDS = 1.0
HEALTHY_SECONDS = 5.0
EVERY_SECONDS = 0.15
"""The pause between two calls of a kind."""
FAULT_SECONDS = 4.0
"""Longer than the lease of the bus, so that calls are made before and after a node counts as away."""
AGENT = "measured"

NOT_NOW = "not now"
"""It did not run; whether an earlier message with its id ran, only the database knows."""

Told = tuple[float, float, str]
"""When something was asked after the fault began, how long it took, and what the caller was told."""


@dataclass
class Fault:
    """Something that fails, and comes back."""

    name: str
    begin: Callable[[Site], object]
    end: Callable[[Site], object]
    seconds: float = FAULT_SECONDS
    told: dict[str, list[Told]] = field(default_factory=dict)
    healthy: float = 0.0


def _cut(name: str, node: str, far: str, seconds: float = FAULT_SECONDS) -> Fault:
    return Fault(name, lambda all: all.cables[node, far].pull(), lambda all: all.cables[node, far].plug(), seconds)


def _kill_nats(all: Site) -> None:
    all.nats.kill()
    all.nats.wait()


def _read_only(all: Site) -> None:
    all.databases[0].psql("ALTER SYSTEM SET default_transaction_read_only = on")
    all.databases[0].psql("SELECT pg_reload_conf()")


def _writable(all: Site) -> None:
    all.databases[0].psql_writing("ALTER SYSTEM RESET default_transaction_read_only")
    all.databases[0].psql("SELECT pg_reload_conf()")


def _start_database(all: Site) -> None:
    with all.machines["db"].inside():
        all.databases[0].start()


def _lose_primary(all: Site) -> None:
    """The machine is lost: nothing says so to the nodes."""
    for node in "ab":
        all.cables[node, "db"].pull()
    all.databases[0].stop(signal.SIGKILL)


def _promote(all: Site) -> None:
    all.databases[1].promote()
    all.cluster.database = all.databases[1]


def faults() -> list[Fault]:
    """All faults; the last one changes the database."""
    return [
        Fault("nats-killed", _kill_nats, Site.start_nats),
        Fault(
            "nats-stopped",
            lambda all: all.nats.send_signal(signal.SIGSTOP),
            lambda all: all.nats.send_signal(signal.SIGCONT),
        ),
        _cut("nats-cut-from-owner", "a", "nats"),
        _cut("nats-cut-from-caller", "b", "nats"),
        _cut("database-cut", "a", "db"),
        _cut("database-cut-for-long", "a", "db", 14.0),
        Fault(
            "database-stopped",
            lambda all: all.databases[0].signal_all(signal.SIGSTOP),
            lambda all: all.databases[0].signal_all(signal.SIGCONT),
        ),
        Fault("database-read-only", _read_only, _writable),
        Fault("database-killed", lambda all: all.databases[0].stop(signal.SIGKILL), _start_database),
        Fault("database-failed-over", _lose_primary, _promote),
    ]


class Prober:
    """Makes calls, and notes what they were told."""

    def __init__(self, all: Site, server: RawServer, here: Raw, there: Raw, ledger: Ledger) -> None:
        self._all = all
        self._server = server
        self._here, self._there = here, there
        self._ledger = ledger
        self._clock = asyncio.get_running_loop().time
        self._number = 0
        self._held: list[str] = []
        """Tasks that node a works on."""
        self._expected: dict[str, str] = {}
        self.problems: list[str] = []

    async def measure(self, fault: Fault) -> None:
        """Make calls before, during and after a fault."""
        await eventually(self._is_healthy, "all is well at first", SECONDS)
        kinds: dict[str, Callable[[str], Awaitable[str]]]
        kinds = {"own call": self._own, "remote call": self._remote, "task": self._task}
        if "database" not in fault.name:
            self._held = [await self._hold() for _ in range(int(fault.seconds / EVERY_SECONDS) + 2)]
            kinds["cancel"] = self._cancel
        await asyncio.to_thread(fault.begin, self._all)
        began = self._clock()
        running: list[asyncio.Task[None]] = []
        while self._clock() < began + fault.seconds:
            for kind, ask in kinds.items():
                self._number += 1
                asking = self._ask(fault.told.setdefault(kind, []), began, ask, f"{kind[:1]}-{self._number}")
                running.append(asyncio.ensure_future(asking))
            await asyncio.sleep(EVERY_SECONDS)
        await asyncio.to_thread(fault.end, self._all)
        ended = self._clock()
        await eventually(self._is_healthy, "all is well again", SECONDS)
        fault.healthy = self._clock() - ended
        await asyncio.gather(*running)

    async def _ask(self, told: list[Told], began: float, ask: Callable[[str], Awaitable[str]], nonce: str) -> None:
        asked = self._clock()
        verdict = await ask(nonce)
        self._expected[nonce] = verdict
        told.append((asked - began, self._clock() - asked, verdict))

    async def _own(self, nonce: str) -> str:
        return _verdict(await self._here.call(f"{AGENT}_s1.echo", {"text": nonce}))

    async def _remote(self, nonce: str) -> str:
        return _verdict(await self._there.call(f"{AGENT}_s1.echo", {"text": nonce}))

    async def _task(self, nonce: str) -> str:
        return await _a2a(self._all.a, "SendMessage", {**task_message(nonce, "pay"), "configuration": {}})

    async def _hold(self) -> str:
        self._number += 1
        return str((await self._all.a.send(f"held-{self._number}", "hold"))["id"])

    async def _cancel(self, _: str) -> str:
        return await _a2a(self._all.b, "CancelTask", {"id": self._held.pop()})

    async def _is_healthy(self) -> bool:
        self._number += 1
        if await self._remote(f"health-{self._number}") != "ok":
            return False
        if not (await is_ready(self._all.a) and await is_ready(self._all.b)):
            return False
        return await self._task(f"well-{self._number}") == "ok"

    def check(self) -> None:
        """Compare what callers were told with what ran."""
        calls = [each["params"]["arguments"] for each in self._server.messages if each.get("method") == "tools/call"]
        ran = Counter(str(each["text"]) for each in calls) + Counter(self._ledger.ran())
        self.problems += [f"{nonce} ran {times} times" for nonce, times in ran.items() if times > 1]
        for nonce, verdict in self._expected.items():
            if nonce[0] != "c" and ran[nonce] != {"ok": 1, "no": 0, NOT_NOW: 0}.get(verdict, ran[nonce]):
                self.problems.append(f"{nonce} ran {ran[nonce]} times, and its caller was told {verdict!r}")


def _verdict(answer: dict[str, Any]) -> str:
    return "ok" if "result" in answer else str(answer["error"]["data"]["executed"])


async def _a2a(node: Node, method: str, params: dict[str, Any]) -> str:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = (await node.load._client.post("/a2a", json=body)).json()
    if "result" in answer:
        state = answer["result"].get("task", answer["result"])["status"]["state"]
        return "ok" if state != "TASK_STATE_FAILED" else "unknown"
    if "It did not run this time" in answer["error"]["message"]:
        return NOT_NOW
    return str(answer["error"]["data"][0]["metadata"]["executed"])


def report(fault: Fault) -> tuple[str, list[str]]:
    """A row of the table, and what was promised otherwise."""
    cells, problems = [fault.name], []
    for kind in ("own call", "remote call", "task", "cancel"):
        told = fault.told.get(kind, [])
        if not told:
            cells.append("")
            continue
        asked, slowest, _ = max(told, key=lambda each: each[1])
        verdicts = Counter(verdict for _, _, verdict in told)
        cells.append(f"{slowest:.2f} s: " + ", ".join(f"{count} {each}" for each, count in verdicts.items()))
        if kind == "own call" and set(verdicts) != {"ok"}:
            problems.append(f"{fault.name}: a call at the server's own node failed: {dict(verdicts)}")
        if slowest > TOLD_SECONDS:
            problems.append(f"{fault.name}: a {kind} that was made {asked:.2f} s after the fault took {slowest:.2f} s")
    cells.append(f"{fault.healthy:.2f} s")
    if fault.healthy > HEALTHY_SECONDS:
        problems.append(f"{fault.name}: all was well only {fault.healthy:.2f} s after")
    return "| " + " | ".join(cells) + " |", problems


HEADINGS = (
    "fault",
    "at the server's own node",
    "from another node",
    "task",
    "cancel of another node's task",
    "healthy after",
)


async def measure(names: list[str], network: Network, folder: Path) -> list[str]:
    """Print a table, and return what was promised otherwise."""
    ledger = Ledger(folder / "ledger.jsonl")
    async with (
        site(network, folder, ledger, has_standby=True) as all,
        raw_server(all.a.hub.port, AGENT, "s1", manner=Manner(tools=("echo",))) as server,
        Raw(all.a.hub.url) as here,
        Raw(all.b.hub.url) as there,
    ):
        await stands(all.b.hub, f"{AGENT}_s1", "ready")
        prober = Prober(all, server, here, there, ledger)
        print("| " + " | ".join(HEADINGS) + " |")
        print("|---" * len(HEADINGS) + "|")
        for fault in faults():
            if not names or fault.name in names:
                await prober.measure(fault)
                row, problems = report(fault)
                print(row, flush=True)
                prober.problems += problems
        prober.check()
        print(f"\n{all.cluster.check_history()} writes, none of a fenced node.")
    return prober.problems


def main(names: list[str]) -> int:
    """Measure, and return the exit status."""
    if (missing := missing_for_namespaces()) is not None:
        print(missing, file=sys.stderr)
        return 2
    network = Network()
    try:
        with tempfile.TemporaryDirectory(prefix="isthmus-", dir="/tmp") as folder:
            problems = asyncio.run(measure(names, network, Path(folder)))
    finally:
        network.close()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
