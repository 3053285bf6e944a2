"""`make conformance`: the protocol's conformance suite against the hub, in both of its roles.

As a server: each cell is a revision and a server behind the hub, which has a key, limits and a log; the suite is run
against the fixture, against nothing, and through the hub. A server of the revision's own era must lose nothing; one of
the other era shows what joining the eras can do. As a client: the suite plays the server, and `client` calls the hub
in front of it. Ends with 1 when a check is lost that is no known gap, or a known gap is none any more, and with 2 when
the suite could not be run.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tests.conformance.suite import (
    CLIENT_CHECKS,
    ClientRevision,
    Findings,
    NotRun,
    Revision,
    run_client_scenario,
    run_client_suite,
    run_suite,
)
from tests.conformance.verdict import GAPS_FILE, Gap, Verdict, failures, judge, judge_client, read_gaps
from tests.hubs import META, NODES, HubProcess, Raw, serving, stdio
from tests.peers.launch import CHECKOUT, listening_peer
from tests.peers.serving import MODERN_VERSION, Era

Server = Literal["legacy-http", "legacy-stdio", "modern-http", "modern-stdio"]
Role = Literal["server", "client"]

REVISIONS: tuple[Revision, ...] = get_args(Revision)
CLIENT_REVISIONS: tuple[ClientRevision, ...] = get_args(ClientRevision)
SERVERS: tuple[Server, ...] = get_args(Server)
ROLES: tuple[Role, ...] = get_args(Role)
LIMITS = {"listing_seconds": 30.0, "call_seconds": 20.0, "max_calls": 16, "max_queued": 32}
CLIENT = ["env", "TEST_NODES=1", sys.executable, "-m", "tests.conformance.client"]
"""Always one process: to the suite's server, several nodes are several clients."""
ASKABLE = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
"""The envelope of a modern caller whom one can ask."""
ONCE = {"placement": "one"} if NODES > 1 else {}
"""Of several nodes one runs a program with state: here its lists, which calls change."""
IDLE = ["true"]
"""A client that does nothing: what passes with it says nothing of the hub."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A caller's revision and the server behind the hub."""

    revision: Revision
    server: Server

    def __str__(self) -> str:
        return f"{self.revision} {self.server}"

    @property
    def is_crossed(self) -> bool:
        """Whether the server speaks the other era."""
        return (self.revision == MODERN_VERSION) != self.server.startswith("modern")


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that runs while the suite does."""

    folder: Path
    direct_url: str
    dead_url: str
    hub: HubProcess
    key: str

    async def direct(self, revision: Revision) -> Findings:
        """The suite against the fixture."""
        return await run_suite(self.direct_url, revision, self.folder / f"{revision} direct")

    async def dead(self, revision: Revision) -> Findings:
        """The suite against a port on which nobody listens."""
        return await run_suite(self.dead_url, revision, self.folder / f"{revision} dead")

    async def warm(self, cell: Cell) -> None:
        """Have a legacy process started for modern callers who can be asked: the suite gives its first call 0.6 s."""
        if cell.revision == MODERN_VERSION and cell.server == "legacy-stdio":
            method, name = "tools/call", "test_simple_text"
            params = {"name": name, "arguments": {}, "_meta": ASKABLE}
            headers = {"mcp-protocol-version": MODERN_VERSION, "mcp-method": method, "mcp-name": name}
            async with Raw(self.hub.url_of(cell.server), key=self.key) as raw:
                await raw.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headers)

    async def through(self, cell: Cell, scenario: str | None = None) -> Findings:
        """The suite against the hub, at the server's own address."""
        folder = self.folder / (f"{cell}, {scenario}" if scenario else str(cell))
        url = self.hub.url_of(cell.server)
        return await run_suite(url, cell.revision, folder, key=self.key, scenario=scenario)


async def conform(stage: Stage, cells: Sequence[Cell], gaps: Sequence[Gap]) -> list[Verdict]:
    """Run every cell, one after the other: the suite waits only half a second for some answers."""
    verdicts = []
    for revision in dict.fromkeys(cell.revision for cell in cells):
        direct, dead = await stage.direct(revision), await stage.dead(revision)
        if failed := failures(direct):
            raise NotRun(f"the fixture itself fails at {revision}: {', '.join(map(str, sorted(failed)))}")
        for cell in (cell for cell in cells if cell.revision == revision):
            await stage.warm(cell)
            through = await again_if_surprised(stage, cell, direct, await stage.through(cell), gaps)
            verdicts.append(judge(str(cell), direct, dead, through, gaps))
            show(verdicts[-1], through)
    return verdicts


async def again_if_surprised(
    stage: Stage, cell: Cell, direct: Findings, through: Findings, gaps: Sequence[Gap]
) -> Findings:
    """Give each scenario with an unknown loss a second chance, because a busy machine misses the suite's deadlines."""
    surprising = judge(str(cell), direct, {}, through, gaps).surprising
    findings = dict(through)
    for scenario in sorted({check.scenario for check in surprising}):
        print(f"{cell}: {scenario} once more")
        findings |= await stage.through(cell, scenario)
    return findings


async def conform_as_client(folder: Path, revisions: Sequence[ClientRevision], gaps: Sequence[Gap]) -> list[Verdict]:
    """Examine the hub as the client of each revision."""
    verdicts = []
    for revision in revisions:
        cell = f"{revision} client"
        idle = await run_client_suite(IDLE, revision, folder / f"{cell}, idle")
        through = dict(await run_client_suite(CLIENT, revision, folder / cell))
        surprising = judge_client(cell, CLIENT_CHECKS[revision], idle, through, gaps).surprising
        for scenario in sorted({check.scenario for check in surprising}):
            print(f"{cell}: {scenario} once more")
            kept = {check: finding for check, finding in through.items() if check.scenario != scenario}
            again = folder / f"{cell}, once more" / scenario
            through = {**kept, **await run_client_scenario(CLIENT, revision, scenario, again)}
        verdicts.append(judge_client(cell, CLIENT_CHECKS[revision], idle, through, gaps))
        show(verdicts[-1], through)
    return verdicts


def show(verdict: Verdict, through: Findings) -> None:
    """Print how a cell came out, and every check that is not as expected."""
    known = f"  ({len(verdict.lost & verdict.covered)} in known gaps)" if verdict.lost & verdict.covered else ""
    print(f"{verdict.cell:<26} {verdict.kept:>3} of {len(verdict.counted)}{known}", flush=True)
    for check in sorted(verdict.surprising):
        finding = through.get(check)
        print(f"    LOST {check}\n         {finding.message if finding else 'the suite did not come to it'}")
    for check in sorted(verdict.mended):
        print(f"    NO GAP ANY MORE, take it out of gaps.toml: {check}")


def show_gaps(verdicts: Sequence[Verdict], gaps: Sequence[Gap]) -> None:
    """Print by feature what is lost and known."""
    for gap in gaps:
        lost = {check for verdict in verdicts for check in verdict.lost if gap.covers(verdict.cell, check)}
        if lost:
            print(f"\n{gap.feature}{', impossible' if gap.impossible else ''} ({'; '.join(gap.cells)}): {gap.why}")
        for check in sorted(lost):
            print(f"    {check}")


def show_totals(verdicts: Sequence[Verdict], cells: Sequence[Cell]) -> None:
    """Print the figures that matter: servers of the caller's own era and of the other, and the hub as a client."""
    crossed = {str(cell): cell.is_crossed for cell in cells}
    for words, kind in (("own era", False), ("other era", True), ("as a client", None)):
        chosen = [verdict for verdict in verdicts if crossed.get(verdict.cell) is kind]
        if chosen:
            print(f"{words:<26} {sum(v.kept for v in chosen):>3} of {sum(len(v.counted) for v in chosen)}")


@asynccontextmanager
async def set_stage(folder: Path) -> AsyncIterator[Stage]:
    """Start the fixture in its three forms over HTTP, and the hub in front of it."""
    key = secrets.token_hex(32)
    async with (
        listening_peer(fixture("http", "both")) as both,
        listening_peer(fixture("http", "legacy")) as legacy,
        listening_peer(fixture("http", "modern")) as modern,
        serving(
            folder,
            {
                "legacy-http": {"url": legacy.url},
                "legacy-stdio": stdio(fixture("stdio", "legacy"), **ONCE),
                "modern-http": {"url": modern.url},
                "modern-stdio": stdio(fixture("stdio", "modern"), **ONCE),
            },
            callers={"suite": {"key": key, "allow": [f"{server}.*" for server in SERVERS]}},
            limits=LIMITS,
            log={"level": "info", "format": "json"},
        ) as hub,
    ):
        with deaf_port() as port:
            yield Stage(folder, both.url, f"http://127.0.0.1:{port}/mcp", hub, key)


def fixture(transport: Literal["http", "stdio"], era: Era) -> list[str]:
    """The words that start the fixture, from wherever it is started."""
    return [sys.executable, str(CHECKOUT / "tests" / "conformance"), "--transport", transport, "--era", era]


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port on which nobody listens, and nobody can begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def main(chosen: argparse.Namespace, folder: Path, gaps: Sequence[Gap]) -> int:
    """Run the chosen cells and say how the command ends."""
    cells = [Cell(revision, server) for revision in chosen.revision for server in chosen.server]
    cells.sort(key=lambda cell: (cell.revision, cell.is_crossed))
    verdicts: list[Verdict] = []
    if "server" in chosen.role:
        async with set_stage(folder) as stage:
            verdicts += await conform(stage, cells, gaps)
    if "client" in chosen.role:
        verdicts += await conform_as_client(folder, examined(chosen.revision), gaps)
    show_totals(verdicts, cells)
    show_gaps(verdicts, gaps)
    return 0 if all(verdict.is_as_expected for verdict in verdicts) else 1


def examined(revisions: Sequence[Revision]) -> Sequence[ClientRevision]:
    """What the hub is examined for as a client: all there is, or the chosen revisions."""
    return CLIENT_REVISIONS if set(revisions) == set(REVISIONS) else revisions


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--role", nargs="*", choices=ROLES, default=ROLES)
    parser.add_argument("--revision", nargs="*", choices=REVISIONS, default=REVISIONS)
    parser.add_argument("--server", nargs="*", choices=SERVERS, default=SERVERS)
    parser.add_argument("--keep", type=Path, help="a folder for everything that the suite wrote")
    return parser.parse_args(words)


if __name__ == "__main__":
    chosen, gaps = parse(), read_gaps(GAPS_FILE.read_text())
    with tempfile.TemporaryDirectory() as temporary:
        kept = chosen.keep or Path(temporary)
        kept.mkdir(parents=True, exist_ok=True)
        try:
            sys.exit(asyncio.run(main(chosen, kept.resolve(), gaps)))
        except NotRun as reason:
            print(f"not run: {reason}", file=sys.stderr)
            sys.exit(2)
