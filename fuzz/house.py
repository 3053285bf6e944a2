"""A whole hub in this process for fuzzing: its listener, every frontend, and a server with scripted answers.

It is opened once and used for every input. What goes wrong is noticed by what nobody should see: an answer that never
comes, a status of 500, an incident, or a line of the log that tells of a defect. Called by `fuzz.endpoints`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from collections.abc import Coroutine, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import structlog

from isthmus.app.serve import serve
from isthmus.config.load import load
from tests.relay.tokens import KEY

T = TypeVar("T")

PATIENCE_SECONDS = 10.0
"""What takes longer hangs."""
QUIET_SECONDS = 0.02
"""A stream that says nothing for so long says no more by itself."""
DEFECTS = ("error", "critical", "exception")


class Defect(AssertionError):
    """The hub did what no input may make it do."""


class Hang(Defect):
    """It did not answer."""


class Said:
    """A server's answer to the next call, as the input has it: a head and a body, or anything.

    In it `$ID` is the call's, and `$LEN` how long the body is.
    """

    def __init__(self) -> None:
        self.answer = b""

    def _filled(self, id: int) -> bytes:
        head, blank, body = self.answer.replace(b"$ID", str(id).encode()).partition(b"\r\n\r\n")
        return head.replace(b"$LEN", str(len(body)).encode()) + blank + body

    async def converse(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        """Answer one connection after another as an MCP server does, except to a call."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                body = await reader.readexactly(length)
                asked = msgspec.json.decode(body) if body else {}
                if asked.get("method") == "tools/call":
                    out.write(self._filled(asked["id"]))
                    out.close()
                    return
                out.write(_greeting(asked))
        except (asyncio.IncompleteReadError, ConnectionError):
            out.close()


def _greeting(asked: dict[str, Any]) -> bytes:
    info = {"name": "s", "version": "1"}
    told: dict[str, Any] = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info},
        "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
    }
    if "id" not in asked:
        return b"HTTP/1.1 %s\r\ncontent-length: 0\r\n\r\n" % (b"202 OK" if asked else b"405 No")
    body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": told.get(asked["method"], {})}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


class House:
    """The hub, its loop, and what it said of itself."""

    def __init__(self) -> None:
        """Open it; it stays open as long as the process."""
        self._loop = asyncio.new_event_loop()
        self._complaints: list[str] = []
        structlog.configure(processors=[self._listen], wrapper_class=structlog.BoundLogger)
        self.said = Said()
        self.port = self._loop.run_until_complete(asyncio.wait_for(self._open(), 60))

    def _listen(self, _: object, method: str, event: MutableMapping[str, Any]) -> Any:
        if method in DEFECTS:
            self._complaints.append(f"{event}")
        raise structlog.DropEvent

    async def _open(self) -> int:
        server = await asyncio.start_server(self.said.converse, "127.0.0.1", 0)
        folder = Path(tempfile.mkdtemp(prefix="isthmus-fuzz-"))
        config = folder / "isthmus.json"
        port = server.sockets[0].getsockname()[1]
        # Nothing here may open a breaker or wait for long: the next input is another one's.
        limits = {
            "breaker_failures": 10**9, "breaker_calls": 10**9, "listing_seconds": 10.0, "call_seconds": 1.0,
            "reply_bytes": 1 << 20, "lag_seconds": 2.0,
        }  # fmt: skip
        servers = {"s": {"url": f"http://127.0.0.1:{port}/mcp", "era": "legacy", "timeout": 1.0, "max_calls": 8}}
        tables = {"hub": {"state": str(folder / "state"), "port": 0}, "relay": {"key": KEY}}
        config.write_text(json.dumps({"servers": servers, "limits": limits, **tables}))
        opened: asyncio.Future[int] = self._loop.create_future()
        configuration = load(config, {}, folder, folder, port=0)
        hub = serve(configuration, {}, on_open=lambda origin: opened.set_result(urlsplit(origin).port or 0))
        self._hub = self._loop.create_task(hub)
        self._server = server
        port = await opened
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they are for the process, which lasts longer
            self._loop.remove_signal_handler(number)
        return port

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the house, and look afterwards whether it is well."""
        self._complaints.clear()
        try:
            found = self._loop.run_until_complete(asyncio.wait_for(work, PATIENCE_SECONDS))
        except TimeoutError:
            raise Hang("there was no answer") from None
        if self._hub.done():
            raise Defect("the hub has ended")
        if self._complaints:
            raise Defect("\n".join(self._complaints))
        return found

    async def knock(self, data: bytes, *, is_whole: bool) -> bytes:
        """Send bytes to the listener and take what is answered, until it closes or says no more.

        What is not known to be whole may be waited on by the hub, which then says nothing.
        """
        reader, out = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            out.write(data)
            return await _answer(reader, PATIENCE_SECONDS / 2 if is_whole else QUIET_SECONDS)
        except ConnectionError:
            return b""
        finally:
            out.transport.abort()


async def _answer(reader: asyncio.StreamReader, patience: float) -> bytes:
    told = b""
    while True:
        try:
            piece = await asyncio.wait_for(reader.read(1 << 16), QUIET_SECONDS if told else patience)
        except TimeoutError:
            if told or patience == QUIET_SECONDS:
                return told
            raise
        if not piece:
            return told
        told += piece


@cache
def house() -> House:
    """The one house of this process."""
    return House()
