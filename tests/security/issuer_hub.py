"""A hub that trusts one issuer on this machine and has one caller with a key, for tests of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.frontends.wire import until
from tests.hubs import PATIENT, TRUSTED, HubProcess, serving
from tests.issuer import Issuer, issuing

HUB = "https://hub.example"
KEY = "canary-0123456789-key-of-planner"


@asynccontextmanager
async def served(
    converse: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Accept connections on a local port, and yield the port; open connections end with the block."""
    conversations: set[asyncio.Task[None] | None] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversations.add(task := asyncio.current_task())
        try:
            await converse(reader, writer)
        finally:
            conversations.discard(task)
            writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        left = [task for task in conversations if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@dataclass
class Tap:
    """Passes bytes on to a server, and keeps those that it was sent."""

    port: int
    sent: bytearray = field(default_factory=bytearray)
    own_port: int = 0

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_kept: bool) -> None:
        while chunk := await reader.read(65536):
            if is_kept:
                self.sent += chunk
            writer.write(chunk)
        writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        ways = (self._pump(reader, back, is_kept=True), self._pump(there, writer, is_kept=False))
        try:
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            back.close()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Tap]:
        async with served(self._join) as self.own_port:
            yield self


@dataclass(frozen=True, slots=True)
class IssuerHub:
    """A running hub and the issuer that it trusts."""

    hub: HubProcess
    issuer: Issuer
    http: httpx2.AsyncClient
    public: str = ""
    """Its public URL, if that is another address."""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.hub.port}"

    def token(self, **claims: Any) -> str:
        """A token that the hub accepts, unless `claims` say otherwise."""
        return self.issuer.token(**{"aud": HUB, **claims})

    async def ask(self, token: str, path: str = "/v1/tools") -> httpx2.Response:
        """Send a request with a token."""
        return await self.http.get(self.base + path, headers={"authorization": f"Bearer {token}"})


@asynccontextmanager
async def issuer_hub(
    folder: Path,
    servers: Mapping[str, Any] | None = None,
    hub: Mapping[str, Any] | None = None,
    a2a: Mapping[str, Any] | None = None,
    **entry: Any,
) -> AsyncIterator[IssuerHub]:
    """Start both and wait until the hub has the issuer's keys; `entry` overrides the issuer's settings at the hub."""
    with issuing() as issuer:
        given = {"issuer": issuer.url, "audience": HUB, "allow": ["*"], **entry}
        corp = {key: value for key, value in given.items() if value is not None}
        callers = {"planner": {"key": KEY, "allow": ["*"]}}
        tables: dict[str, Any] = {
            "issuers": {"corp": corp},
            "callers": callers,
            "limits": PATIENT,
            "hub": dict(hub or {}),
            "a2a": dict(a2a or {}),
        }
        async with (
            serving(folder, servers, **tables) as running,
            httpx2.AsyncClient(verify=TRUSTED, timeout=30.0) as http,
        ):
            both = IssuerHub(running, issuer, http)

            async def has_keys() -> bool:
                # 503 means that the hub has no keys yet; any other answer will do.
                nodes = [IssuerHub(node, issuer, http) for node in running.each]
                return all([(await node.ask(node.token())).status_code != 503 for node in nodes])

            await until(has_keys)
            yield both
