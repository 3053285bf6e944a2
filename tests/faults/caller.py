"""A caller that costs little: keep-alive connections of its own, requests written by hand, both eras.

Fault tests make thousands of calls beside whatever they break, so this is an asyncio protocol and nothing more. It
never sends a request twice and never repairs a connection: what happened is what the test is told.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from socket import SO_LINGER, SOL_SOCKET
from types import TracebackType
from typing import Any, Literal, Self, cast

import msgspec

from tests.faults.oracle import Record, ReportedOutcome
from tests.hubs import META, MODERN

Era = Literal["legacy", "modern"]

ANSWER_SECONDS = 60.0
"""Longer than any deadline in these tests: who waits for so long has found a hang."""
_META = json.dumps(META, separators=(",", ":"))
_LEGACY = "2025-11-25"


class Envelope(msgspec.Struct):
    """A JSON-RPC answer with its id exactly as it was written."""

    id: msgspec.Raw = msgspec.Raw(b"null")
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request; the last message of it, if it was a stream."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> Envelope:
        """The JSON-RPC answer."""
        body = self.body
        if self.headers.get("content-type") == "text/event-stream":
            body = body.rstrip().rpartition(b"data: ")[2]
        assert body.startswith(b"{"), f"HTTP {self.status}: {body[:500]!r}"
        return msgspec.json.decode(body, type=Envelope)

    @property
    def text(self) -> str | None:
        """The first text of a tool's result; None if there is no result."""
        result = self.message.result
        return None if result is None else cast(str, result["content"][0]["text"])

    @property
    def error(self) -> tuple[int, str, str]:
        """An error's code, its `executed` and its reason."""
        error = self.message.error
        assert error is not None, self.body
        return error["code"], error["data"]["executed"], error["data"]["reason"]

    @property
    def reported(self) -> ReportedOutcome:
        """What this says of the call, in the oracle's words."""
        error = self.message.error
        return "ok" if error is None else cast(ReportedOutcome, error["data"]["executed"])


class Broken(Exception):
    """The connection ended before the answer did."""


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiter: asyncio.Future[Answer] | None = None
        self.transport: asyncio.Transport
        self.is_lost = False

    @property
    def is_hearing(self) -> bool:
        return bool(self._buffer)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._waiter is None or self._waiter.done():
            return
        answer = _parse(self._buffer)
        if answer is not None:
            self._buffer.clear()
            self._waiter.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Broken(f"after {bytes(self._buffer)!r}: {exc}"))

    async def exchange(self, request: bytes, seconds: float) -> Answer:
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        if self.is_lost:
            raise Broken("before the request")
        self.transport.write(request)
        return await asyncio.wait_for(waiter, seconds)


def _parse(buffer: bytearray) -> Answer | None:
    """A whole answer, or None while there is more to come."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = buffer[:end].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = bytes(buffer[end + 4 :])
    status = int(first.split(" ")[1])
    if "transfer-encoding" in headers:
        return Answer(status, headers, _unchunked(body)) if body.endswith(b"0\r\n\r\n") else None
    return Answer(status, headers, body) if len(body) >= int(headers.get("content-length", 0)) else None


def _unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        whole, body = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        if size == b"0":
            break
    return whole


class Caller:
    """One caller on up to as many connections as it has requests at once; entering opens nothing."""

    def __init__(
        self,
        port: int,
        *,
        path: str = "/mcp",
        key: str | None = None,
        era: Era = "modern",
        session: str | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.port = port
        self.path = path
        self.key = key
        self.era: Era = era
        self.session = session
        self._answer_seconds = answer_seconds
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()

    @property
    def is_connected(self) -> bool:
        """Whether the hub has left it a connection."""
        return any(not connection.is_lost for connection in self._open)

    @property
    def is_hearing(self) -> bool:
        """Whether an answer has begun that has not ended."""
        return any(connection.is_hearing for connection in self._open)

    def hang_up(self) -> None:
        """Reset every connection, whatever is on it."""
        for connection in self._open:
            if connection.is_lost:
                continue
            connection.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            connection.transport.abort()
        self._open.clear()
        self._idle.clear()

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, *, id: str = "1") -> Answer:
        """Call a tool; `id` is the JSON text of the request's id."""
        return await self.send(self.call_bytes(name, arguments, id=id))

    async def list_tools(self) -> dict[str, Any]:
        """The result of `tools/list`."""
        result = (await self.send(self.request_bytes("tools/list", {}, id="1"))).message.result
        assert result is not None
        return result

    async def initialize(self) -> None:
        """Open a legacy session, used from then on."""
        hello = {"protocolVersion": _LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = await self.send(self.request_bytes("initialize", hello, id="0"))
        self.session = answer.headers["mcp-session-id"]

    async def end_session(self) -> None:
        """End the legacy session."""
        lines = {"host": f"127.0.0.1:{self.port}", **self._state("", {})}
        answer = await self.send(_request_head("DELETE", self.path, lines))
        assert answer.status in (200, 202, 204), answer.status
        self.session = None

    def call_bytes(self, name: str, arguments: Mapping[str, Any] | None = None, *, id: str = "1") -> bytes:
        """A whole HTTP request that calls a tool."""
        return self.request_bytes("tools/call", {"name": name, "arguments": dict(arguments or {})}, id=id)

    def request_bytes(self, method: str, params: Mapping[str, Any], *, id: str | None) -> bytes:
        """A whole HTTP request; without an id, one that carries a notification."""
        members = json.dumps(params)[1:-1]
        if self.era == "modern":
            members += ("," if members else "") + f'"_meta":{_META}'
        asked = "" if id is None else f'"id":{id},'
        body = f'{{"jsonrpc":"2.0",{asked}"method":"{method}","params":{{{members}}}}}'.encode()
        lines = {
            "host": f"127.0.0.1:{self.port}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "content-length": str(len(body)),
            **self._state(method, params),
            **({} if self.key is None else {"authorization": f"Bearer {self.key}"}),
        }
        return _request_head("POST", self.path, lines) + body

    def _state(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        if self.era == "modern":
            named = {"mcp-name": params["name"]} if method == "tools/call" else {}
            return {"mcp-protocol-version": MODERN, "mcp-method": method, **named}
        return {} if self.session is None else {"mcp-session-id": self.session, "mcp-protocol-version": _LEGACY}

    async def send(self, request: bytes) -> Answer:
        """Send the bytes of a request on a free connection and wait for the answer.

        Raises:
            Broken: the connection ended without one.
            TimeoutError: there was none for very long.
        """
        connection = await self._take()
        try:
            answer = await connection.exchange(request, self._answer_seconds)
        except BaseException:
            connection.transport.abort()
            self._open.discard(connection)
            raise
        self._idle.append(connection)
        return answer

    async def _take(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_lost:
                return connection
            self._open.discard(connection)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, "127.0.0.1", self.port)
        self._open.add(connection)
        return connection


async def pay(caller: Caller, tool: str, nonce: str, *, mode: str = "", deadline: float = 30.0) -> Record:
    """Make one call that leaves a trace in a raw server's ledger, and record its outcome."""
    clock = asyncio.get_running_loop().time
    started = clock()
    try:
        answer = await caller.call(tool, {"nonce": nonce, "mode": mode})
    except Broken:
        return Record(nonce, "unknown", started=started, ended=clock(), deadline=deadline)
    except TimeoutError:
        return Record(nonce, None, started=started, ended=None, deadline=deadline)
    return Record(nonce, answer.reported, answer.text, started, clock(), deadline)


def _request_head(method: str, path: str, lines: Mapping[str, str]) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return head.encode() + b"\r\n"
