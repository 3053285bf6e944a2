"""The field of the matrix: every official server in every era and carrier, and one hub in front of all of them.

`conftest` opens it once for all tests here. What a server does without a hub is learned from its program's HTTP
form, which stands beside the others: that is what the hub's callers are compared with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.conftest import POLL_SECONDS, Ledger
from tests.hubs import HubProcess, Raw, node_urls, serving, stdio
from tests.peers.launch import HttpPeer, http_peer, quick_command

Program = Literal["sdk1", "sdk2", "fastmcp"]
Era = Literal["legacy", "modern", "both"]
Carrier = Literal["stdio", "stateful", "stateless", "websocket"]

PROGRAMS: tuple[Program, ...] = ("sdk1", "sdk2", "fastmcp")
CARRIERS: tuple[Carrier, ...] = ("stdio", "stateful", "stateless")

READY_SECONDS = 60.0
"""For all servers to be up; each imports an SDK, and they share the machine's cores."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One server of the field."""

    program: Program
    era: Era
    carrier: Carrier

    @property
    def name(self) -> str:
        """What the hub calls it."""
        return f"{self.program}-{self.era}-{self.carrier}"

    @property
    def spoken(self) -> Literal["legacy", "modern"]:
        """The era in which the hub must speak to it: the newest that it offers."""
        return "legacy" if self.era == "legacy" else "modern"

    @property
    def reference(self) -> Kind:
        """The one whose answers without a hub are what this one's through the hub must be."""
        return Kind(self.program, self.spoken, "stateful" if self.spoken == "legacy" else "stateless")

    @property
    def announces(self) -> bool:
        """Whether its changes can be announced: without a session the SDK has no stream for notifications.

        FastMCP sends them on the stream of the request that made the change, and the hub reads that stream.
        """
        return (self.era, self.carrier) != ("legacy", "stateless") or self.program == "fastmcp"

    @property
    def words(self) -> tuple[str, list[str]]:
        """The peer and its options, without the carrier's address."""
        flags = {"stateless": ["--stateless"], "websocket": ["--transport", "websocket"]}.get(self.carrier, [])
        return f"server_{self.program}", ["--era", self.era, *flags]


# The modern era has no sessions, so it has one way over HTTP: `stateless`. A server that offers both eras has
# sessions for its legacy callers, and the hub must still find the modern way.
# Only mcp 1.x has servers over WebSocket.
KINDS: tuple[Kind, ...] = (
    *(Kind(program, "legacy", carrier) for program in PROGRAMS for carrier in CARRIERS),
    Kind("sdk1", "legacy", "websocket"),
    Kind("sdk2", "modern", "stdio"),
    Kind("sdk2", "modern", "stateless"),
    Kind("fastmcp", "modern", "stdio"),
    Kind("fastmcp", "modern", "stateless"),
    Kind("sdk2", "both", "stdio"),
    Kind("sdk2", "both", "stateful"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """All servers, running, and the hub in front of them."""

    hub: HubProcess
    peers: dict[str, HttpPeer]
    entries: dict[str, Any]
    """The servers as a configuration names them, for further hubs."""
    ledger: Ledger


@asynccontextmanager
async def open_field(folder: Path) -> AsyncIterator[Field]:
    """Start every server and the hub, and wait until the hub has all of them."""
    ledger = Ledger(folder / "ledger")
    async with AsyncExitStack() as stack:
        remote = [kind for kind in KINDS if kind.carrier != "stdio"]
        started = await asyncio.gather(*(_start(stack, kind, ledger) for kind in remote))
        peers = {kind.name: peer for kind, peer in zip(remote, started, strict=True)}
        entries = {kind.name: _entry(kind, peers, ledger) for kind in KINDS}
        hub = await stack.enter_async_context(serving(folder, entries))
        await until_complete(hub.url)
        yield Field(hub, peers, entries, ledger)


async def _start(stack: AsyncExitStack, kind: Kind, ledger: Ledger) -> HttpPeer:
    peer, options = kind.words
    return await stack.enter_async_context(http_peer(peer, *options, env=ledger.env))


def _entry(kind: Kind, peers: dict[str, HttpPeer], ledger: Ledger) -> dict[str, Any]:
    if kind.carrier != "stdio":
        remote = peers[kind.name]
        return {"url": remote.socket_url if kind.carrier == "websocket" else remote.url}
    peer, options = kind.words
    return stdio(quick_command(peer, *options), env=ledger.env)


async def until_complete(url: str, *, key: str | None = None) -> None:
    """Wait until a listing names no server that is missing, at every node.

    Raises:
        TimeoutError: Some server did not come up; the message says which, and why.
    """
    missing: object = None
    for each in node_urls(url):
        try:
            async with asyncio.timeout(READY_SECONDS), Raw(each, key=key) as raw:
                while missing := (await raw.ask("tools/list"))["result"].get("_meta", {}).get("isthmus/missing"):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"still missing: {missing}") from None
