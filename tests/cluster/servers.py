"""A NATS server of the tests' own, and a proxy in front of it that loses, repeats and reorders messages."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

PROGRAM = Path(sys.executable).with_name("nats-server")
SECONDS = 20.0

BUSY = 1.0 if os.environ.get("ISTHMUS_QUIET") else 8.0
"""Multiplies the promised times: other tests use the same cores. `ISTHMUS_QUIET=1` asserts the times themselves."""


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


class NatsServer:
    """A server that can be killed, stopped and started again on the same port."""

    def __init__(self, folder: Path, config: str = "", *, scheme: str = "nats") -> None:
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / f"nats-{self.port}.conf"
        self._config.write_text(f'host: "127.0.0.1"\nport: {self.port}\n{config}\n')
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        self._process = subprocess.Popen(
            [str(PROGRAM), "-c", str(self._config)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:  # another process, which cannot wake us
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                connection.settimeout(SECONDS)
                if connection.recv(4) == b"INFO":
                    return self
            assert self._process.poll() is None, "nats-server ended"
            time.sleep(0.02)
        raise TimeoutError("nats-server did not start")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


Change = Callable[[bytes, bytes], list[bytes]]
"""Receives the subject and the whole message to a client; returns what the client gets instead."""

_MESSAGE = re.compile(rb"MSG (\S+) \S+ (?:\S+ )?(\d+)\r\n")


class Proxy:
    """Stands between clients and a server, and changes messages on their way to the clients."""

    def __init__(self, port: int) -> None:
        self.change: Change = lambda _subject, message: [message]
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for work in (self._copy(reader, upstream_writer), self._to_client(upstream_reader, writer)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError), closing(writer):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    async def _to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError), closing(writer):
            while line := await reader.readline():
                found = _MESSAGE.fullmatch(line)
                if found is None:
                    writer.write(line)
                else:
                    whole = line + await reader.readexactly(int(found[2]) + 2)
                    writer.writelines(self.change(found[1], whole))
                await writer.drain()
