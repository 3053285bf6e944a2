"""Every form of a full server, one hub in front of all of them, and surveys of them by official clients.

A cell is one client at one server, by one way in. Its survey runs when a test first needs it, with those of all cells
of the same group. Two clients never use one server at once: a log line of a legacy server does not name its call, so
the hub would forward it to neither of them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

from mcp import Client

from tests.choices import representative
from tests.fork_server import quick_isthmus
from tests.hubs import HubProcess, environment, serving, stdio, write_config
from tests.matrix.field import until_complete
from tests.peers.client_sdk2 import client_over_http, client_over_sse, client_over_stdio
from tests.peers.forms import FORMS, Form
from tests.peers.launch import http_peer, quick_command
from tests.peers.sdk1_steps import Answer, Sdk1Client, Step, run_sdk1
from tests.peers.survey import AT_HOME, Place, Survey, changing, logging, looking
from tests.peers.surveyor import MessageListener, survey

Way = Literal["own", "all", "sse", "stdio"]
"""`own`: one server's address, under its own names. The others lead to all servers: by Streamable HTTP, by the old
HTTP+SSE transport, and by the hub as a command."""
ClientName = Literal["sdk1", "sdk2"]

AT_ONCE = 4
"""Surveys at the same time: most of one is waiting, but each mcp 1.x client is a process that imports its SDK."""

PATIENT = {"listing_seconds": 30}
"""Limits for a hub whose client cannot wait for a server to come up: its first listing waits instead."""

OLD_CARRIERS = ("stdio", "stateful", "websocket")
"""Where mcp 1.x calls every program that is there: with a stream for everything, and with one for each call."""

SHARED_FORMS = (
    Form("sdk1", "legacy", "stdio"),
    Form("sdk2", "legacy", "sse"),
    Form("fastmcp", "legacy", "stateful"),
    Form("sdk2", "modern", "stateless"),
)
"""The servers called where all meet: every program, carrier and era."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One client at one server, by one way in."""

    way: Way
    client_name: ClientName
    form: Form

    def __str__(self) -> str:
        return f"{self.way}:{self.client_name}:{self.form.name}"

    @property
    def place(self) -> Place:
        """The prefixes of names and addresses there; all servers have the same names, so no name is bare."""
        if self.way == "own":
            return AT_HOME
        return Place(f"{self.form.name}.", f"isthmus://hub/{self.form.name}/")

    def steps(self) -> dict[str, Step]:
        """The steps of this cell."""
        can, token = self.form.abilities, f"fresh_{self.way}_{self.client_name}_{self.form.name}"
        growing = changing(token, self.place, listens="announces" in can, updates="updates" in can)
        logs = logging(self.place)
        if self.form.era == "legacy":
            del logs["logged"]  # `test_levels` covers lines without a request; there no other client chooses a level
        return {**looking(self.place), **logs, **growing}


def _cells() -> list[Cell]:
    """The mcp 2.x client goes everywhere; mcp 1.x, a process each time, wherever the hub could tell the two apart."""
    new = [Cell("own", "sdk2", form) for form in FORMS]
    new += [Cell(way, "sdk2", form) for way in ("all", "sse") for form in SHARED_FORMS if way in ways_of(form)]
    new += [Cell("stdio", "sdk2", form) for form in (SHARED_FORMS[0], SHARED_FORMS[-1])]
    old = [Cell("own", "sdk1", form) for form in FORMS if form.era == "legacy" and form.carrier in OLD_CARRIERS]
    return [*new, *old, *(Cell(way, "sdk1", SHARED_FORMS[0]) for way in ways_of(SHARED_FORMS[0]))]


def ways_of(form: Form) -> tuple[Way, ...]:
    """The ways to all servers on which the era of a server is spoken; HTTP+SSE has the legacy era only."""
    return ("all", "sse", "stdio") if form.era == "legacy" else ("all", "stdio")


def _facts(cell: Cell) -> Iterator[tuple[str, ...]]:
    yield cell.way, cell.client_name, cell.form.era
    yield cell.client_name, cell.form.carrier
    yield cell.client_name, cell.form.program, cell.form.era
    yield cell.form.era, cell.form.carrier, cell.form.program
    yield cell.way, cell.form.carrier


CELLS = representative(_cells(), _facts)


class FullServerMatrix:
    """Runs the surveys and remembers their answers."""

    def __init__(self, hub: HubProcess, entries: Mapping[str, Any], folder: Path, sdk1: Sdk1Client) -> None:
        self.hub = hub
        self._sdk1 = sdk1
        self._config = write_config(folder, {form.name: entries[form.name] for form in SHARED_FORMS}, limits=PATIENT)
        self._found: dict[Cell, Survey | BaseException] = {}
        self._at: defaultdict[Form, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def survey(self, cell: Cell) -> Survey:
        """The survey of a cell; runs all cells of the same client by the same way."""
        if cell not in self._found:
            turn = asyncio.Semaphore(AT_ONCE)
            group = [other for other in CELLS if (other.way, other.client_name) == (cell.way, cell.client_name)]
            await asyncio.gather(*(self._run(other, turn) for other in group))
        found = self._found[cell]
        if isinstance(found, BaseException):
            raise found
        return found

    async def _run(self, cell: Cell, turn: asyncio.Semaphore) -> None:
        async with turn, self._at[cell.form]:
            try:
                self._found[cell] = Survey(await self._answers(cell), cell.place)
            except Exception as broken:  # noqa: BLE001 (the test of this cell reports it, and the others go on)
                self._found[cell] = broken

    async def _answers(self, cell: Cell) -> dict[str, Answer]:
        steps = cell.steps()
        if cell.client_name == "sdk2":
            return await survey(steps, lambda listener: self._connected(cell, listener))
        words = list(steps.values())
        if cell.way == "stdio":
            answers = await run_sdk1(words, server=self._command(), env=environment())
        else:
            answers = await self._sdk1.run(words, url=self._url(cell), sse=cell.way == "sse")
        return dict(zip(steps, answers, strict=True))

    def _connected(self, cell: Cell, listener: MessageListener) -> AbstractAsyncContextManager[Client]:
        mode: Literal["legacy", "auto"] = "legacy" if cell.form.era == "legacy" else "auto"
        match cell.way:
            case "own" | "all":
                return client_over_http(self._url(cell), mode=mode, listener=listener)
            case "sse":
                return client_over_sse(self._url(cell), listener=listener)
            case "stdio":
                return client_over_stdio(self._command(), mode=mode, env=environment(), listener=listener)
            case _:
                assert_never(cell.way)

    def _command(self) -> list[str]:
        return quick_isthmus("stdio", "--config", str(self._config))

    def _url(self, cell: Cell) -> str:
        match cell.way:
            case "own":
                return self.hub.url_of(cell.form.name)
            case "sse":
                return self.hub.url.removesuffix("/mcp") + "/sse"
            case _:
                return self.hub.url


@asynccontextmanager
async def open_full_servers(folder: Path, *, shared: Path) -> AsyncIterator[FullServerMatrix]:
    """Start every server and the hub, and wait until the hub has all of them."""
    async with AsyncExitStack() as stack:
        entries = dict(zip([form.name for form in FORMS], await _entries(stack), strict=True))
        hub = await stack.enter_async_context(serving(folder, entries))
        await until_complete(hub.url)
        yield FullServerMatrix(hub, entries, shared, await stack.enter_async_context(aclosing(Sdk1Client())))


async def _entries(stack: AsyncExitStack) -> list[dict[str, Any]]:
    return await asyncio.gather(*(_entry(stack, form) for form in FORMS))


async def _entry(stack: AsyncExitStack, form: Form) -> dict[str, Any]:
    """The server as a configuration names it; an address alone, so that the hub finds out what it is."""
    if form.carrier == "stdio":
        return stdio(quick_command(form.peer, *form.options))
    peer = await stack.enter_async_context(http_peer(form.peer, *form.options))
    return {"url": form.url(peer.port)}
