"""A connection to the hub that a test writes to byte by byte, and the requests that tests start from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.hubs import META, MODERN

SECONDS = 20.0
"""Longer than anything here takes: who waits for so long has found a hang."""

Headers = Iterable[tuple[str, str]]

BASE: tuple[tuple[str, str], ...] = (
    ("host", "localhost"),
    ("content-type", "application/json"),
    ("accept", "application/json, text/event-stream"),
)


class _Error(msgspec.Struct):
    code: int


class _Answer(msgspec.Struct):
    error: _Error | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer. `body` is the body without its chunking."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON; of a stream, its last message: a call of a session that takes its time becomes one."""
        if self.headers.get("content-type") == "text/event-stream":
            return self.events[-1]
        return json.loads(self.body)

    @property
    def closes(self) -> bool:
        """Whether the hub ends the connection after it."""
        return self.headers.get("connection") == "close"

    @property
    def id_text(self) -> str | None:
        """The id exactly as it was written; None if the body is no JSON-RPC answer."""
        prefix = b'{"jsonrpc":"2.0","id":'
        if not self.body.startswith(prefix):
            return None
        rest = self.body[len(prefix) :].decode()
        for end in (',"result":', ',"error":'):
            if end in rest:
                return rest.partition(end)[0]
        return None

    @property
    def code(self) -> int | None:
        """The JSON-RPC error code; None for a result or a body that is no JSON-RPC answer."""
        if not self.body.startswith(b'{"jsonrpc"'):
            return None
        received = msgspec.json.decode(self.body, type=_Answer).error  # an id may be longer than any number here
        return None if received is None else received.code

    @property
    def events(self) -> list[Any]:
        """The messages of an event stream that has ended."""
        data = [line[5:].strip() for line in self.body.split(b"\n") if line.startswith(b"data:")]
        return [json.loads(line) for line in data if line]


class Wire:
    """One connection, kept alive."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.writer.write(data)
        async with asyncio.timeout(SECONDS):
            await self.writer.drain()

    async def request(self, body: bytes, headers: Headers = BASE, *, method: str = "POST", path: str = "/mcp") -> Reply:
        """Send a request with a length and read its answer."""
        await self.say(rendered(method, path, [*headers, ("content-length", str(len(body)))], body))
        return await self.reply(is_bodiless=method == "HEAD")

    async def reply(self, *, is_bodiless: bool = False) -> Reply:
        """Read one answer to its end."""
        async with asyncio.timeout(SECONDS):
            status, headers = await self.head()
            if is_bodiless or status in (204, 304):
                return Reply(status, headers, b"")
            if headers.get("transfer-encoding") == "chunked":
                return Reply(status, headers, b"".join([chunk async for chunk in self.chunks()]))
            return Reply(status, headers, await self.reader.readexactly(int(headers["content-length"])))

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the head of an answer, after any interim one."""
        async with asyncio.timeout(SECONDS):
            while True:
                lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                status = int(lines[0].split()[1])
                if status != 100:
                    fields = (line.partition(": ") for line in lines[1:] if line)
                    return status, {name.lower(): value for name, _, value in fields}

    async def chunks(self) -> AsyncIterator[bytes]:
        """The pieces of a chunked body, to its end."""
        while size := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)

    async def is_closed(self) -> bool:
        """Whether the hub has ended the connection; waits for it to."""
        async with asyncio.timeout(SECONDS):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


def rendered(method: str, path: str, headers: Headers, body: bytes = b"") -> bytes:
    """A request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    """A connection to the hub."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it is so: servers start in the background and tell nobody outside of it."""
    async with asyncio.timeout(SECONDS):
        while not await is_so():  # noqa: ASYNC110 (another process changes, and cannot wake us)
            await asyncio.sleep(0.02)


def key_header(key: str | None) -> list[tuple[str, str]]:
    """How a caller shows its key."""
    return [] if key is None else [("authorization", f"Bearer {key}")]


def encoded(value: Any) -> bytes:
    """A value as JSON, as small as it goes."""
    return json.dumps(value, separators=(",", ":")).encode()


def legacy(method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1) -> dict[str, Any]:
    """A request of the legacy era; without an id it is a notification."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        body["id"] = id
    return body if params is None else {**body, "params": dict(params)}


def modern(method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1) -> dict[str, Any]:
    """A request of the modern era, with its envelope."""
    return legacy(method, {**(params or {}), "_meta": META}, id=id)


def modern_headers(method: str, name: str | None = None) -> list[tuple[str, str]]:
    """The headers that go with a modern request."""
    named = [] if name is None else [("mcp-name", name)]
    return [*BASE, ("mcp-protocol-version", MODERN), ("mcp-method", method), *named]


PING = encoded(legacy("ping", id="still there"))
PONG = b'{"jsonrpc":"2.0","id":"still there","result":{}}'
