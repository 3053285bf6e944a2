"""The cells of the matrix, and the sessions of clients in them; each session runs once.

A place is an address of the hub. At `own` a client is at one server under the server's own names; at `all` and
`stdio` it reaches every server under canonical names, so one session calls several servers in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.choices import representative
from tests.fork_server import quick_isthmus
from tests.hubs import environment, write_config
from tests.matrix.field import KINDS, Field, Kind
from tests.matrix.in_process_clients import Connect, fastmcp_over_http, sdk2_over_http, sdk2_over_stdio
from tests.matrix.session_steps import (
    CLIENT_NAMES,
    MODES,
    SDK_CLIENT_NAMES,
    SPOKEN,
    ClientName,
    SessionRecord,
    run_session,
    session_steps,
)
from tests.peers.client_sdk2 import Mode
from tests.peers.sdk1_steps import Answer, Sdk1Client, Step, run_sdk1

Place = Literal["own", "all", "stdio"]

AT_ONCE = 5
"""Sessions at the same time: most of one is waiting, but each mcp 1.x client is a process that imports its SDK."""

SHARED_KINDS = (
    Kind("sdk1", "legacy", "stdio"),
    Kind("sdk2", "legacy", "stateful"),
    Kind("sdk2", "modern", "stdio"),
    Kind("fastmcp", "modern", "stateless"),
)
"""The servers called under canonical names: both eras and both transports."""

PATIENT = {"listing_seconds": 30}
"""Limits for a hub whose client cannot wait for a server to come up: its first listing waits instead."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One client at one server, by one way in."""

    place: Place
    client_name: ClientName
    kind: Kind

    def __str__(self) -> str:
        return f"{self.place}:{self.client_name}:{self.kind.name}"

    @property
    def prefix(self) -> str:
        """The prefix of tool names at this place."""
        return "" if self.place == "own" else f"{self.kind.name}."

    @property
    def token(self) -> str:
        """A word that no other session uses."""
        return f"{self.place}_{self.client_name}_{self.kind.name}"

    def steps(self) -> dict[str, Step]:
        """The steps of this cell."""
        return session_steps(self.token, prefix=self.prefix, listens=self.kind.announces)


def _facts(cell: Cell) -> Iterator[tuple[str, ...]]:
    """Each client with each era, carrier and program; each server with both eras of clients, and by each place."""
    yield cell.place, cell.client_name, cell.kind.era
    yield cell.client_name, cell.kind.carrier
    yield cell.client_name, cell.kind.program
    yield SPOKEN[cell.client_name], cell.kind.name
    yield cell.place, cell.kind.name


CELLS = representative(
    (
        *(Cell("own", client_name, kind) for client_name in CLIENT_NAMES for kind in KINDS),
        *(Cell("all", client_name, kind) for client_name in SDK_CLIENT_NAMES for kind in SHARED_KINDS),
        *(Cell("stdio", client_name, kind) for client_name in SDK_CLIENT_NAMES for kind in SHARED_KINDS),
    ),
    _facts,
)


class MatrixSessions:
    """Runs the session of a cell when a test first needs it, and remembers the answers."""

    def __init__(self, field: Field, folder: Path, sdk1: Sdk1Client) -> None:
        self.field = field
        self._sdk1 = sdk1
        self._config = write_config(folder, _shared(field), limits=PATIENT)
        self._records: dict[Cell, SessionRecord] = {}
        self._failed: dict[tuple[Place, ClientName], BaseException] = {}
        self._direct: dict[Kind, SessionRecord] = {}

    async def record(self, cell: Cell) -> SessionRecord:
        """The session of a cell; runs the sessions of all cells with the same client at the same place."""
        group = (cell.place, cell.client_name)
        if group in self._failed:
            raise self._failed[group]
        if cell not in self._records:
            try:
                await self._run_cells(*group)
            except BaseException as broken:
                self._failed[group] = broken  # every cell of the group says so, and the session is not repeated
                raise
        return self._records[cell]

    async def direct(self, kind: Kind) -> SessionRecord:
        """The answers of a server of this kind without a hub."""
        kind = kind.reference
        if kind not in self._direct:
            steps = session_steps("direct", listens=False)
            asked = {name: steps[name] for name in ("listed", "echoed", "added", "decorated", "failed", "raised")}
            mode: Mode = "legacy" if kind.era == "legacy" else "2026-07-28"
            answers = await run_session(asked, mode, sdk2_over_http(self.field.peers[kind.name].url))
            self._direct[kind] = SessionRecord("direct", "", answers)
        return self._direct[kind]

    async def _run_cells(self, place: Place, client_name: ClientName) -> None:
        cells = [cell for cell in CELLS if (cell.place, cell.client_name) == (place, client_name)]
        if place == "own":
            turn = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(self._run_session(client_name, [cell], turn) for cell in cells))
        else:
            await self._run_session(client_name, cells, asyncio.Semaphore())

    async def _run_session(self, client_name: ClientName, cells: list[Cell], turn: asyncio.Semaphore) -> None:
        """One session with the steps of these cells in turn."""
        steps = {f"{cell} {name}": step for cell in cells for name, step in cell.steps().items()}
        async with turn:
            answers = await self._run(client_name, cells[0], steps)
        for cell in cells:
            own = {name: answers[f"{cell} {name}"] for name in cell.steps()}
            self._records[cell] = SessionRecord(cell.token, cell.prefix, own)

    async def _run(self, client_name: ClientName, cell: Cell, steps: Mapping[str, Step]) -> dict[str, Answer]:
        frontend = quick_isthmus("stdio", "--config", str(self._config))
        url = self.field.hub.url_of(cell.kind.name) if cell.place == "own" else self.field.hub.url
        if client_name != "sdk1":
            connect = sdk2_over_stdio(frontend) if cell.place == "stdio" else _connects(client_name)(url)
            return await run_session(steps, MODES[client_name], connect)
        if cell.place == "stdio":
            answers = await run_sdk1(list(steps.values()), server=frontend, env=environment())
        else:
            answers = await self._sdk1.run(list(steps.values()), url=url)
        return dict(zip(steps, answers, strict=True))


def _connects(client_name: ClientName) -> Callable[[str], Connect]:
    return fastmcp_over_http if client_name.startswith("fastmcp") else sdk2_over_http


def _shared(field: Field) -> dict[str, object]:
    return {kind.name: field.entries[kind.name] for kind in SHARED_KINDS}
