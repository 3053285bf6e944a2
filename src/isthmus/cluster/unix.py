"""The bus between the workers of one machine: Unix sockets in a folder that only this user can enter.

Each node listens at `{folder}/{node}.sock`. Two nodes share one connection. The one whose file comes first in the
alphabet dials it, and the other one only pokes: it connects, presents itself and leaves, so that a node that has just
started is seen at once. All nodes also look into the folder once in a heartbeat. Presence is the connection: if a
process ends, the system closes it.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import structlog

from isthmus.cluster.bus import Bus, NodeId
from isthmus.cluster.frames import (
    CHUNK_BYTES,
    HEADER,
    HEADER_BYTES,
    LENGTH,
    FrameDecoder,
    FrameTooLong,
    Hello,
    Kind,
    decode_hello,
    encode_hello,
)
from isthmus.cluster.sessions import PIPE_BYTES_HIGH, BaseBus, PeerSession
from isthmus.cluster.settings import BusSettings
from isthmus.transport.flow_control import ReadQuota, cut

HANDSHAKE_SECONDS: Final = 2.0
"""The time for a connection's first frame."""

HANDSHAKES_MAX: Final = 64
"""Connections without a first frame; further ones are closed at once."""

CLOSE_SECONDS: Final = 0.5
CLOSE_TURNS: Final = 50
"""How long the last frames may take when this node leaves, and how often that is looked at."""

ACCEPT_TURNS: Final = 10
"""Turns of the event loop that asyncio takes to accept a connection. One may be under way when this node leaves, and
asyncio would lose its socket if the server were closed meanwhile."""

JOINED_BYTES: Final = 8 * 1024
"""A shorter payload is copied behind its header: one buffer is cheaper than two."""

PATH_BYTES_MAX: Final = 107
"""What a Unix socket's address can hold."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_ENCODED: Final = "="
"""Stands before the base32 of a node id that is not plain."""

logger = structlog.get_logger(__name__)


def socket_name(node: str) -> str:
    """The name of a node's socket in the folder."""
    if _PLAIN.fullmatch(node):
        return f"{node}.sock"
    return f"{_ENCODED}{base64.b32encode(node.encode()).decode().rstrip('=').lower()}.sock"


class UnixBus(BaseBus):
    """See `bus.Bus`. `start` makes one."""

    def __init__(self, folder: Path, node: NodeId, attributes: Mapping[str, str], settings: BusSettings) -> None:
        super().__init__(node, attributes, settings, "unix bus")
        self._folder = folder
        self._path = folder / socket_name(node)
        self.epoch = time.time_ns()
        self._server: asyncio.Server | None = None
        self.pipes: set[UnixPipe] = set()
        self.handshakes: set[UnixPipe] = set()
        self._dialling: set[str] = set()
        self._inode = 0

    @classmethod
    async def start(
        cls,
        folder: Path,
        node: NodeId,
        attributes: Mapping[str, str] | None = None,
        settings: BusSettings | None = None,
        prepare: Callable[[Bus], None] | None = None,
    ) -> UnixBus:
        """Listen, and find the other nodes. The folder is made if it is missing.

        `prepare` registers services before any node can see this one: a quick peer would be refused otherwise.

        Raises:
            ValueError: the node id or the folder cannot be used.
            OSError: the folder or the socket cannot be made, or another process listens there.
        """
        bus = cls(folder, node, attributes or {}, settings or BusSettings())
        if prepare is not None:
            prepare(bus)
        await bus._listen()
        bus.set_state(is_connected=True)
        bus.start_ticking()
        return bus

    async def _listen(self) -> None:
        if len(os.fsencode(self._path)) > PATH_BYTES_MAX:
            raise ValueError(f"the path of a Unix socket has at most {PATH_BYTES_MAX} bytes, not {str(self._path)!r}")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise ValueError(f"{str(self._folder)!r} must belong to this user and have mode 0700")
        if await self._is_answered():
            raise OSError(f"another process listens at {str(self._path)!r}")
        self._path.unlink(missing_ok=True)
        # Bound under another name: others see the socket only once it has its mode and somebody listens.
        hidden = self._path.with_suffix(f".{os.getpid():x}")
        hidden.unlink(missing_ok=True)
        self._server = await self._loop.create_unix_server(
            lambda: UnixPipe(self, dialled=None), str(hidden), backlog=256
        )
        hidden.chmod(0o600)
        hidden.rename(self._path)
        self._inode = self._path.stat().st_ino

    async def _is_answered(self) -> bool:
        try:
            transport, _ = await self._loop.create_unix_connection(asyncio.Protocol, str(self._path))
        except OSError:
            return False
        transport.abort()
        return True

    def beat(self, now: float) -> None:
        """Send heartbeats, and look for nodes."""
        super().beat(now)
        self.look_around()

    def look_around(self) -> None:
        """Dial the nodes of the folder that are not connected."""
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(".sock")]
        except OSError as error:
            self.set_state(is_connected=True, reason=f"the folder of sockets cannot be read: {error}")
            return
        connected = {socket_name(node) for node in self.sessions}
        for name in names:
            if name != self._path.name and name not in connected and name not in self._dialling and self.has_room():
                self._dialling.add(name)
                self.background.spawn(f"dial {name}", self._dial(name))

    async def _dial(self, name: str) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                is_mine = self._path.name < name
                _, pipe = await self._loop.create_unix_connection(
                    lambda: UnixPipe(self, dialled=name, is_poke=not is_mine), str(self._folder / name)
                )
                await pipe.shaken
        except (OSError, TimeoutError):
            pass  # nobody listens there, or not yet
        finally:
            self._dialling.discard(name)

    def announce_now(self) -> None:
        """Tell all peers the new attributes."""
        payload = encode_hello(self.hello(epoch=self.epoch))
        for session in self.sessions.values():
            session.write(Kind.HELLO, payload=payload)

    def greeted(self, pipe: UnixPipe, hello: Hello) -> PeerSession | None:
        """A connection's first frame: begin a session, unless it is a poke or makes no sense."""
        name = socket_name(hello.node)
        if hello.node == self.node or (pipe.dialled is not None and pipe.dialled != name) or not self.has_room():
            return None
        if hello.wants_reply:  # a poke
            if NodeId(hello.node) not in self.sessions:
                self.look_around()
            return None
        before = self.sessions.get(NodeId(hello.node))
        if before is not None and before.peer.epoch >= hello.epoch:
            return None
        return self.join(hello, pipe)

    async def aclose(self) -> None:
        """See `bus.Bus`."""
        if self.is_closed:
            return
        self.is_closed = True
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:  # a successor may have its own there already
                self._path.unlink()
        for session in self.sessions.values():
            session.write(Kind.BYE)
        for pipe in self.pipes:
            pipe.close()
        await super().aclose()
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()
        for _ in range(CLOSE_TURNS):
            if not self.pipes:
                return
            await asyncio.sleep(CLOSE_SECONDS / CLOSE_TURNS)
        for pipe in self.pipes:
            pipe.abort()


class UnixPipe(asyncio.Protocol):
    """One connection between two nodes. `dialled` is the name of the socket that this node dialled."""

    chunk_bytes = CHUNK_BYTES

    def __init__(self, bus: UnixBus, *, dialled: str | None, is_poke: bool = False) -> None:
        self.dialled = dialled
        self.written_bytes = 0
        self.shaken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the peer has presented itself, or the connection has ended."""
        self._bus = bus
        self._is_poke = is_poke
        self._session: PeerSession | None = None
        self._waiting: PeerSession | None = None
        self._transport: asyncio.Transport
        self._decoder = FrameDecoder(self._receive)
        self._timer: asyncio.TimerHandle | None = None
        self._is_done = False
        self._left: int | None = None

    # -- sessions.FramePipe ------------------------------------------------------------------------------------------

    def write(self, header: bytes, payload: bytes | memoryview) -> None:
        """See `FramePipe`."""
        if self._is_done:
            return
        size = len(payload)
        self.written_bytes += 4 + HEADER_BYTES + size
        prefix = LENGTH.pack(HEADER_BYTES + size)
        if size <= JOINED_BYTES:
            self._transport.write(b"".join((prefix, header, payload)))
        else:
            # Two buffers, which uvloop writes by one system call, and neither loop copies the second one.
            self._transport.write(prefix + header)
            self._transport.write(payload)

    def left_bytes(self) -> int:
        """See `FramePipe`."""
        return self.written_bytes - self._transport.get_write_buffer_size() if self._left is None else self._left

    def buffered_bytes(self) -> int:
        """See `FramePipe`."""
        return 0 if self._is_done else self._transport.get_write_buffer_size()

    def call_when_writable(self, session: PeerSession) -> None:
        """See `FramePipe`."""
        self._waiting = session

    # -- callbacks of the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are not asyncio's by class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=PIPE_BYTES_HIGH, low=PIPE_BYTES_HIGH // 4)
        self._quota = ReadQuota(self._read, pause=self._transport.pause_reading, resume=self._read_on)
        self._bus.pipes.add(self)
        if self._bus.is_closed or len(self._bus.handshakes) >= HANDSHAKES_MAX:
            self._end("too many connections")
            return
        self._bus.handshakes.add(self)
        self._timer = self._bus._loop.call_later(HANDSHAKE_SECONDS, self._end, "it did not present itself")
        if self.dialled is not None:
            self._greet()

    def _greet(self) -> None:
        hello = self._bus.hello(epoch=self._bus.epoch, wants_reply=self._is_poke)
        self.write(HEADER.pack(Kind.HELLO, 0, 0, 0), encode_hello(hello))

    def data_received(self, data: bytes) -> None:
        self._quota.feed(data)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def resume_writing(self) -> None:
        session, self._waiting = self._waiting, None
        if session is not None:
            session.pump()

    def eof_received(self) -> bool | None:
        self._quota.finish()
        self._end("its process closed the connection")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._bus.pipes.discard(self)
        self._quota.finish()
        self._end("the connection to it was lost" if exc is None else f"the connection to it broke ({exc})")

    # -- frames ------------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        if self._is_done:
            return
        try:
            self._decoder.feed(data)
        except FrameTooLong as error:
            self._end(str(error))
        except Exception:  # a defect must not keep the other peers from being read
            logger.exception("frame of a peer could not be handled")
            self._end("a frame could not be handled")

    def _receive(self, frame: memoryview) -> None:
        session = self._session
        if self._is_done:
            return
        if session is None:
            self._shake(frame)
        elif frame[0] == Kind.HELLO:
            hello = decode_hello(frame[HEADER_BYTES:])
            if hello is not None and hello.node == session.node:
                self._bus.refresh(session, hello)
        elif frame[0] == Kind.BYE:
            self._end("it left")
        else:
            session.receive(frame)

    def _shake(self, frame: memoryview) -> None:
        hello = decode_hello(frame[HEADER_BYTES:]) if frame[0] == Kind.HELLO else None
        if hello is None:
            self._end("it did not present itself")
            return
        if self.dialled is None and not hello.wants_reply:
            self._greet()
        self._session = self._bus.greeted(self, hello)
        if self._session is None:
            self._end("it is not wanted")
        else:
            self._handshake_done()

    def _handshake_done(self) -> None:
        self._bus.handshakes.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.shaken.done():
            self.shaken.set_result(None)

    def close(self) -> None:
        """End it after what was written; the session is ended by the bus."""
        self._left = self.left_bytes()
        self._is_done = True
        self._handshake_done()
        self._quota.stop()
        self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        self._transport.abort()

    def _end(self, reason: str) -> None:
        """End it: bytes that have not left must not leave later."""
        if self._is_done:
            return
        self._left = self.left_bytes()
        self._is_done = True
        self._handshake_done()
        self._quota.stop()
        cut(self._transport)
        if self._session is not None:
            self._bus.leave(self._session, reason)
