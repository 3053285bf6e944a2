"""A push receiver: it accepts posted task updates, and answers as the test configures."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OK = "200 OK"
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Posted:
    """One request."""

    path: str
    headers: dict[str, str]
    body: Any

    @property
    def id(self) -> str:
        """What it is known by, however often it comes."""
        return self.headers["x-a2a-notification-id"]


class Receiver:
    """An HTTP server on a free port. A path without a word to answer with says yes; one that hangs says nothing."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        self.words: defaultdict[str, deque[str]] = defaultdict(deque)
        """What the next requests to a path are answered with: a status line, perhaps with headers behind it."""
        self.hanging: set[str] = set()
        self._news = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    def url(self, path: str) -> str:
        """An address here."""
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def allowed(self) -> dict[str, Any]:
        """The table of a configuration that allows pushes to it."""
        return {"allow": [f"http://127.0.0.1:{self.port}"]}

    def at(self, path: str) -> list[Posted]:
        """What came to a path."""
        return [each for each in self.posted if each.path == path]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until what came is as wanted."""
        async with asyncio.timeout(SECONDS), self._news:
            await self._news.wait_for(holds)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (posted := await _read(reader)) is not None:
                async with self._news:
                    self.posted.append(posted)
                    self._news.notify_all()
                if posted.path not in self.hanging:
                    word = self.words[posted.path].popleft() if self.words[posted.path] else OK
                    writer.write(f"HTTP/1.1 {word}\r\nContent-Length: 0\r\n\r\n".encode())
        finally:
            self._writers.discard(writer)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Posted | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        body = await reader.readexactly(int(headers["content-length"]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Posted(head[0].split(" ")[1], headers, json.loads(body))
