"""The bus between machines: NATS, by nats-py (`pip install isthmus[cluster]`).

NATS carries frames and may lose, repeat and reorder them; `cluster.sessions` notices. Subjects below the prefix:

- `{prefix}.b.{from}`: to all nodes: heartbeats with `Hello`, and published messages.
- `{prefix}.n.{to}.{epoch of to}.{from}`: to one life of one node.

Ids are base32 in subjects, so no id can be a wildcard or another subject. The sender is part of the subject, so that
permissions of NATS can let a node publish only as itself. The sender's epoch comes before each frame: frames of another
epoch than the one it presents itself with are ignored.

Each connection to NATS is one life of this node: when it is lost, all sessions end and a new epoch begins. So nats-py
never reconnects by itself. It would send what it had buffered before, and wait without end to close a connection whose
server stands still.

nats-py connects, authenticates, subscribes and answers pings. Frames do not pass through it: they are written to its
socket, and `MessageReader` takes them out of what arrives. That is cheaper, what waits to be sent stays here, where it
can be told from what has left, and nothing is dropped when a queue is full. A node that reads too slowly is
disconnected by the server. For this, two internals of nats-py are used, and `pyproject.toml` caps its version.
"""

from __future__ import annotations

import asyncio
import base64
import random
import re
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import structlog

from isthmus.cluster.bus import Bus, NodeId
from isthmus.cluster.frames import (
    CHUNK_BYTES,
    HEADER,
    HEADER_BYTES,
    MORE,
    Hello,
    Kind,
    decode_hello,
    encode_hello,
    encode_reason,
)
from isthmus.cluster.sessions import (
    PEERS_MAX,
    PIPE_BYTES_HIGH,
    PIPE_BYTES_MAX,
    BaseBus,
    FramePipe,
    PeerSession,
    jittered,
)
from isthmus.cluster.settings import BusSettings
from isthmus.transport.flow_control import ReadQuota

if TYPE_CHECKING:
    from nats.aio.client import Client

EPOCH: Final = struct.Struct("<Q")

OVERHEAD_BYTES: Final = EPOCH.size + HEADER_BYTES

PAYLOAD_BYTES_MIN: Final = 16 * 1024
"""The least `max_payload` of a NATS server that is enough: a `Hello` with its attributes must fit."""

SOCKET_BYTES_HIGH: Final = 128 * 1024
"""With more than this in the socket's buffer, frames wait in the line of the bus."""

LINE_BYTES_MAX: Final = 64 * 1024
"""The longest line of a NATS server: INFO names all servers of its cluster."""

RETRY_SECONDS: Final = 0.25
RETRY_SECONDS_MAX: Final = 2.0
"""The pause between attempts doubles up to this, with jitter. A server that returns is found within it."""

CLOSE_SECONDS: Final = 1.0

SERVERS_MAX: Final = 64
"""Addresses of servers, with those that the cluster of NATS servers tells of."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """Where NATS is, and how this node proves who it is."""

    servers: tuple[str, ...]
    """URLs: `nats://host:4222`, `tls://host:4222`, with user and password or a token if the server wants them."""
    prefix: str = "isthmus"
    """The beginning of all subjects. Clusters that share a NATS server need different ones."""
    credentials: Path | None = None
    """A credentials file (`.creds`: a JWT and an nkey seed)."""
    tls: ssl.SSLContext | None = None
    """The context of `tls://` servers, and of others that require TLS; None is the system's default."""
    connect_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("nats needs at least one server")
        for server in self.servers:
            if urlsplit(server).scheme not in {"nats", "tls"} or not urlsplit(server).hostname:
                raise ValueError("the URL of a NATS server begins with nats:// or tls:// and names a host")
        parts = self.prefix.split(".")
        if not all(part and part.isascii() and part.replace("-", "").replace("_", "").isalnum() for part in parts):
            raise ValueError(
                f"the prefix has letters, digits, - and _, in parts separated by dots, not {self.prefix!r}"
            )


class NatsUnusable(Exception):
    """The connection to NATS cannot be made or kept; the message says why."""


def in_subject(id: str) -> str:
    """An id as one token of a subject."""
    return base64.b32encode(id.encode()).decode().rstrip("=").lower()


def from_subject(token: str) -> str | None:
    """The id of a token; None if it is not one."""
    try:
        return base64.b32decode(token.upper() + "=" * (-len(token) % 8)).decode()
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class NatsCredentials:
    """What a credentials file has: a JWT, and the seed of the key that it names."""

    jwt: bytes = field(repr=False)
    seed: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> NatsCredentials:
        """Read a credentials file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not one.
        """
        found = re.findall(r"-----BEGIN ([A-Z ]+)-----\s+(\S+)\s+-+END", path.read_text("ascii"))
        parts = dict(found)
        try:
            encoded = parts["USER NKEY SEED"]
            # Two bytes say that it is a user's seed, two are a checksum.
            seed = base64.b32decode(encoded + "=" * (-len(encoded) % 8))[2:-2]
            credentials = cls(parts["NATS USER JWT"].encode(), seed)
            credentials.sign("")
        except (KeyError, ValueError):
            raise ValueError(f"{str(path)!r} is not a credentials file of NATS") from None
        return credentials

    def sign(self, nonce: str) -> bytes:
        """The signature of a server's nonce."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - slow to load

        return base64.b64encode(Ed25519PrivateKey.from_private_bytes(self.seed).sign(nonce.encode()))


class NatsPipe:
    """Carries frames to one life of one node. All pipes share the line of the bus."""

    __slots__ = ("_bus", "_subject", "chunk_bytes")

    def __init__(self, bus: NatsBus, subject: bytes, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self._bus = bus
        self._subject = subject

    @property
    def written_bytes(self) -> int:
        """See `FramePipe`."""
        return self._bus.written_bytes

    def write(self, header: bytes, payload: bytes | memoryview) -> None:
        """See `FramePipe`."""
        self._bus.write(self._subject, header, payload)

    def left_bytes(self) -> int:
        """See `FramePipe`. What the socket's buffer holds may have left."""
        return self._bus.left_bytes

    def buffered_bytes(self) -> int:
        """See `FramePipe`."""
        return self._bus.written_bytes - self._bus.left_bytes

    def call_when_writable(self, session: PeerSession) -> None:
        """See `FramePipe`."""
        self._bus.waiting[session] = None


class NatsBus(BaseBus):
    """See `bus.Bus`. `start` makes one."""

    def __init__(self, nats: NatsSettings, node: NodeId, attributes: Mapping[str, str], settings: BusSettings) -> None:
        super().__init__(node, attributes, settings, "nats bus")
        self.epoch_bytes = b""
        self.written_bytes = self.left_bytes = 0
        self.waiting: dict[PeerSession, None] = {}
        """Sessions that wait until less is buffered."""
        self._nats = nats
        self._all_subject = f"{nats.prefix}.b.{in_subject(node)}".encode()
        self._inbox_subject = ""
        self._discovered: list[str] = []
        self._line: deque[bytes] = deque()
        """Commands that do not fit into the socket's buffer."""
        self._socket: asyncio.StreamWriter | None = None
        self._is_filled = asyncio.Event()
        self._chunk_bytes = CHUNK_BYTES
        self._by_subject: dict[bytes, tuple[PeerSession, bytes]] = {}
        """Sessions and the epochs of their frames, by the subject on which they arrive."""
        self._expired: set[tuple[NodeId, int]] = set()
        """Lives of peers whose lease has expired here, though they may live on."""
        self._client: Client | None = None
        self._lost: asyncio.Future[str] | None = None
        """Done, with the reason, when the current connection has ended."""
        self._complaint = ""
        self._first: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def start(
        cls,
        nats: NatsSettings,
        node: NodeId,
        attributes: Mapping[str, str] | None = None,
        settings: BusSettings | None = None,
        prepare: Callable[[Bus], None] | None = None,
    ) -> NatsBus:
        """Connect, and find the other nodes. If NATS is away, `state` says so, and the bus tries again for ever.

        `prepare` registers services before any node can see this one: a quick peer would be refused otherwise.

        Raises:
            ImportError: nats-py is not installed.
            ValueError: the node id or the credentials file cannot be used.
            OSError: the credentials file cannot be read.
        """
        _client_class()
        if nats.credentials is not None:
            NatsCredentials.read(nats.credentials)
        bus = cls(nats, node, attributes or {}, settings or BusSettings())
        if prepare is not None:
            prepare(bus)
        bus.background.spawn("connection", bus._run())
        bus.start_ticking()
        await bus._first
        return bus

    # -- one connection after the other ------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = RETRY_SECONDS
        while True:
            servers = [*self._nats.servers, *self._discovered]
            random.shuffle(servers)
            for server in servers:
                lived, reason = await self._live(server)
                self.set_state(is_connected=False, reason=reason)
                if not self._first.done():
                    self._first.set_result(None)
                if lived > RETRY_SECONDS_MAX:  # a server that only took long to refuse is followed by the next one
                    pause = RETRY_SECONDS
                    break
            await asyncio.sleep(jittered(pause))
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _live(self, server: str) -> tuple[float, str]:
        """Connect; return how long the connection lasted, 0 if it could not be made, and why it has ended."""
        self._lost = lost = self._loop.create_future()
        url = urlsplit(server)
        where = f"{url.hostname}:{url.port or 4222}"
        client = _client_class()(wants_tls=url.scheme == "tls" or self._nats.tls is not None)
        tasks: list[asyncio.Task[Any]] = []
        try:
            async with asyncio.timeout(2 * self._nats.connect_seconds):
                await self._open(client, server)
        except TimeoutError:
            return 0.0, f"no answer from NATS at {where} within {2 * self._nats.connect_seconds:g} s"
        except Exception as error:  # noqa: BLE001 - nats-py raises what it likes for a server that is not as it should be
            return 0.0, f"NATS at {where}: {str(error) or type(error).__name__}"
        else:
            began = self.now()
            logger.info("connected to NATS", server=where, epoch=self.epoch)
            tasks = [
                self.background.spawn("writer", self._write_line()),
                self.background.spawn("watcher", self._watch(client)),
            ]
            self.set_state(is_connected=True, reason=self._complaint)
            if not self._first.done():
                self._first.set_result(None)
            reason = f"NATS at {where}: {await lost}"
            logger.warning("connection to NATS lost", reason=reason)
            return self.now() - began, reason
        finally:
            for task in tasks:
                task.cancel()
            self._client = self._socket = None
            for session in list(self.sessions.values()):
                self.leave(session, "the connection to NATS was lost")
            self._forget_line()
            await _discard(client)

    async def _open(self, client: Client, server: str) -> None:
        credentials = None if self._nats.credentials is None else NatsCredentials.read(self._nats.credentials)

        self._complaint = ""
        is_connecting = True

        async def on_error(error: Exception) -> None:
            if is_connecting:  # it must not try again by itself
                raise NatsUnusable(str(error) or type(error).__name__)
            self._on_error(error)

        async def on_closed() -> None:
            self._end_life(str(client.last_error or "the connection was closed"))

        await client.connect(
            [server],
            error_cb=on_error,
            closed_cb=on_closed,
            name=f"isthmus {self._node}",
            allow_reconnect=False,
            connect_timeout=self._nats.connect_seconds,  # type: ignore[arg-type]
            reconnect_time_wait=0,
            max_reconnect_attempts=1,
            ping_interval=3600,  # `_watch` does it
            no_echo=True,
            skip_subject_validation=True,
            tls=self._nats.tls,
            user_jwt_cb=None if credentials is None else lambda: bytearray(credentials.jwt),
            signature_cb=None if credentials is None else credentials.sign,
        )
        is_connecting = False
        socket = _socket_of(client)
        if socket is None:
            raise NatsUnusable("the connection was lost")
        transport = cast("asyncio.Transport", socket.transport)
        transport.set_protocol(MessageReader(transport, self._receive, self._end_life))
        if client.max_payload < PAYLOAD_BYTES_MIN:
            least = f"at least {PAYLOAD_BYTES_MIN} are needed"
            raise NatsUnusable(f"it allows messages of {client.max_payload} bytes (max_payload), and {least}")
        # Later than the last one, also if the clock was set back.
        self.epoch = max(self.epoch + 1, time.time_ns() // 1000)
        self.epoch_bytes = EPOCH.pack(self.epoch)
        self._chunk_bytes = min(CHUNK_BYTES, client.max_payload - OVERHEAD_BYTES)
        self._discovered = [url.geturl() for url in client.discovered_servers][:SERVERS_MAX]
        prefix = self._nats.prefix
        self._inbox_subject = f"{prefix}.n.{in_subject(self._node)}.{self.epoch}"
        for subject in (f"{self._inbox_subject}.*", f"{prefix}.b.*"):
            await client.subscribe(subject)
        await client.flush()
        self._client = client
        self._socket = socket
        self._present(wants_reply=True)

    def _on_error(self, error: Exception) -> None:
        from nats.errors import StaleConnectionError  # noqa: PLC0415 - only clusters need it

        if isinstance(error, StaleConnectionError | OSError):
            self._end_life(str(error) or type(error).__name__)
        else:  # such as a violation of permissions
            logger.error("NATS reported an error", error=str(error))
            self._complain(str(error))

    def _complain(self, reason: str) -> None:
        """Something is wrong, although NATS is there."""
        self._complaint = reason
        if self._state.is_connected:
            self.set_state(is_connected=True, reason=reason)

    def _end_life(self, reason: str) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    async def _watch(self, client: Client) -> None:
        """Ping NATS with each heartbeat: a server that stands still is noticed within a lease.

        The wait is cut into pieces, because this process may have stood still itself.
        """
        piece = self.settings.silence_seconds / 16
        while True:
            answer = self.background.spawn("ping", client.flush(timeout=3600))
            for _ in range(8):
                await asyncio.wait({answer}, timeout=piece)
                if answer.done():
                    break
            else:
                answer.cancel()
                self._end_life(f"it did not answer a ping within {8 * piece:g} s")
                return
            if answer.cancelled() or answer.exception() is not None or not client.is_connected:
                self._end_life("the connection does not work")
                return
            await asyncio.sleep(self.settings.beat_seconds)

    # -- out ---------------------------------------------------------------------------------------------------------

    def write(self, subject: bytes, header: bytes, payload: bytes | memoryview) -> None:
        """Send a frame, or line it up; without a connection it is dropped."""
        socket = self._socket
        if socket is None:
            return
        size = len(payload) + OVERHEAD_BYTES
        command = b"".join((b"PUB %b %d\r\n" % (subject, size), self.epoch_bytes, header, payload, b"\r\n"))
        self.written_bytes += len(command)
        transport = socket.transport
        if not self._line and transport.get_write_buffer_size() <= SOCKET_BYTES_HIGH:
            self.left_bytes += len(command)
            transport.write(command)
        else:
            self._line.append(command)
            self._is_filled.set()

    async def _write_line(self) -> None:
        line, socket = self._line, self._socket
        assert socket is not None
        while True:
            await self._is_filled.wait()
            try:
                await socket.drain()
            except OSError as error:
                self._end_life(str(error))
                return
            while line and socket.transport.get_write_buffer_size() <= SOCKET_BYTES_HIGH:
                command = line.popleft()
                self.left_bytes += len(command)
                socket.transport.write(command)
            if not line:
                self._is_filled.clear()
            if self.waiting and self.written_bytes - self.left_bytes < PIPE_BYTES_HIGH // 2:
                waiting, self.waiting = self.waiting, {}
                for session in waiting:
                    session.pump()

    def _forget_line(self) -> None:
        self._line.clear()
        self.left_bytes = self.written_bytes
        self.waiting.clear()
        self._by_subject.clear()
        self._expired.clear()

    def broadcast(self, kind: int, id: int, message: bytes) -> None:
        """Send a one-shot message to all peers, once for all."""
        if self.written_bytes - self.left_bytes > PIPE_BYTES_MAX:
            return
        size = self._chunk_bytes
        for number, at in enumerate(range(0, len(message), size)):
            flags = MORE if at + size < len(message) else 0
            header = HEADER.pack(kind, flags, id, number)
            self.write(self._all_subject, header, message[at : at + size])

    def beat(self, now: float) -> None:
        """Renew this node's lease at all peers."""
        if self._client is not None:
            self._present(wants_reply=False)
            for session in list(self.sessions.values()):
                session.beat(now, must_write=False)

    def announce_now(self) -> None:
        """Tell all peers the new attributes."""
        self._present(wants_reply=False)

    def _present(self, *, wants_reply: bool) -> None:
        hello = encode_hello(self.hello(epoch=self.epoch, wants_reply=wants_reply))
        self.write(self._all_subject, HEADER.pack(Kind.HELLO, 0, 0, 0), hello)

    # -- in ----------------------------------------------------------------------------------------------------------

    def _receive(self, subject: bytes, data: bytes) -> None:
        found = self._by_subject.get(subject)
        if len(data) < OVERHEAD_BYTES:
            return
        if found is None or data[:8] != found[1] or data[8] <= Kind.BYE:
            self._receive_other(subject, data)
            return
        try:
            found[0].receive(memoryview(data)[8:])
        except Exception:  # a defect must not keep the other peers from being read
            logger.exception("frame of a peer could not be handled")
            self.leave(found[0], "a frame could not be handled")

    def _receive_other(self, subject: bytes, data: bytes) -> None:
        """Handle a HELLO or BYE, or a frame from a life of a node that has no session."""
        (epoch,) = EPOCH.unpack_from(data)
        frame = memoryview(data)[8:]
        token = subject.rpartition(b".")[2].decode("ascii", "replace")
        id = from_subject(token)
        if id is None or in_subject(id) != token or self._client is None:
            return
        node = NodeId(id)
        session = self.sessions.get(node)
        kind, _, frame_id, number = HEADER.unpack_from(frame)
        if kind == Kind.HELLO:
            hello = decode_hello(frame[HEADER_BYTES:])
            if hello is not None and hello.node == node and hello.epoch == epoch:
                self._greeted(node, token, hello)
        elif session is not None and session.peer.epoch >= epoch:
            if kind == Kind.BYE and session.peer.epoch == epoch:
                self.leave(session, "it left")
        elif kind == Kind.OPEN or (kind == Kind.REQUEST and number == 0):
            answer = HEADER.pack(Kind.REFUSED if kind == Kind.REQUEST else Kind.REJECT, 0, frame_id, 0)
            self.write(self._subject_of(token, epoch), answer, encode_reason("it has not seen this node yet"))

    def _greeted(self, node: NodeId, token: str, hello: Hello) -> None:
        if node == self._node:
            if hello.boot != self.boot:
                self._complain(f"another process uses the node id {node!r}, too")
            return
        session = self.sessions.get(node)
        if session is not None and hello.epoch < session.peer.epoch:
            return  # it came late
        if session is not None and hello.epoch == session.peer.epoch:
            self.refresh(session, hello)
        elif self.has_room():
            session = self.join(hello, NatsPipe(self, self._subject_of(token, hello.epoch), self._chunk_bytes))
            if (node, hello.epoch) in self._expired:
                self._expired.discard((node, hello.epoch))
                session.write(Kind.RESET)
        if session is not None and hello.wants_reply:
            session.write(Kind.HELLO, payload=encode_hello(self.hello(epoch=self.epoch)))

    def _subject_of(self, token: str, epoch: int) -> bytes:
        return f"{self._nats.prefix}.n.{token}.{epoch}.{in_subject(self._node)}".encode()

    def _subjects_from(self, node: str) -> tuple[bytes, bytes]:
        """The subjects on which a node's frames arrive."""
        token = in_subject(node)
        return f"{self._inbox_subject}.{token}".encode(), f"{self._nats.prefix}.b.{token}".encode()

    def join(self, hello: Hello, pipe: FramePipe) -> PeerSession:
        """A peer is here, in a new epoch: begin a session."""
        session = super().join(hello, pipe)
        for subject in self._subjects_from(session.node):
            self._by_subject[subject] = session, EPOCH.pack(hello.epoch)
        return session

    def leave(self, session: PeerSession, reason: str) -> None:
        """A peer is gone."""
        for subject in self._subjects_from(session.node):
            if subject in self._by_subject and self._by_subject[subject][0] is session:
                del self._by_subject[subject]
        super().leave(session, reason)

    def lost_lease(self, session: PeerSession, seconds: float) -> None:
        """A peer was silent for too long. It may live on and not know that its session has ended here."""
        if len(self._expired) >= PEERS_MAX:
            self._expired.clear()
        self._expired.add((session.node, session.peer.epoch))
        super().lost_lease(session, seconds)

    async def aclose(self) -> None:
        """See `bus.Bus`."""
        if self.is_closed:
            return
        client = self._client
        if client is not None:
            self.write(self._all_subject, HEADER.pack(Kind.BYE, 0, 0, 0), b"")
            with suppress(Exception):  # leaving in silence costs the others a lease
                async with asyncio.timeout(CLOSE_SECONDS):
                    await client.flush()
        await super().aclose()


# -- nats-py -----------------------------------------------------------------------------------------------------------


def _socket_of(client: Client) -> asyncio.StreamWriter | None:
    writer: asyncio.StreamWriter | None = getattr(client._transport, "_io_writer", None)
    return writer


async def _discard(client: Client) -> None:
    """Close a client at once: what it holds must not be sent later, and a server that stands still must not hold it."""
    socket = _socket_of(client)
    if socket is not None:
        socket.transport.abort()
    with suppress(Exception):  # nats-py may raise whatever its broken connection raises
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()


@cache
def _client_class() -> Any:
    from nats.aio.client import Client  # noqa: PLC0415 - only clusters need it

    class StrictClient(Client):
        """A client that sends nothing over a plain connection where TLS was requested."""

        def __init__(self, *, wants_tls: bool) -> None:
            super().__init__()
            self._wants_tls = wants_tls

        async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002 - as nats-py calls it
            # nats-py would go on without TLS, and send the credentials in clear text.
            if initial_connection and self._wants_tls and not info.get("tls_required"):
                raise NatsUnusable("it does not offer TLS")
            await super()._process_info(info, initial_connection)

    return StrictClient


class MessageReader(asyncio.Protocol):
    """Takes messages out of what a NATS server sends, and passes all other lines on to nats-py's own protocol."""

    def __init__(
        self,
        transport: asyncio.Transport,
        receive: Callable[[bytes, bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        """`receive` gets the subject and the payload of each message."""
        inner = transport.get_protocol()
        assert isinstance(inner, asyncio.Protocol)
        self._inner = inner
        self._transport = transport
        self._receive = receive
        self._ended = ended
        self._rest = b""
        self._quota = ReadQuota(self._read, pause=transport.pause_reading, resume=self._read_on)

    def data_received(self, data: bytes) -> None:
        self._quota.feed(data)

    def eof_received(self) -> bool | None:
        self._quota.finish()
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._quota.finish()
        self._inner.connection_lost(exc)
        self._ended("the connection was lost" if exc is None else str(exc))

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _read(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at = 0
        while at < len(data):
            line_end = data.find(b"\r\n", at, at + LINE_BYTES_MAX)
            if line_end < 0:
                if len(data) - at >= LINE_BYTES_MAX:
                    self._give_up()
                    return
                break
            next_at = line_end + 2
            if data.startswith((b"MSG ", b"HMSG "), at):
                words = data[at:line_end].split()
                if len(words) < 4 or not words[-1].isdigit() or len(words[-1]) > 8:
                    self._give_up()
                    return
                payload_at = next_at
                next_at += int(words[-1]) + 2
                if next_at > len(data):
                    break
                if words[0] == b"MSG":  # nodes send no headers
                    self._receive(words[1], data[payload_at : next_at - 2])
            else:
                self._inner.data_received(data[at:next_at])
            at = next_at
        self._rest = data[at:]

    def _give_up(self) -> None:
        self._rest = b""
        self._quota.stop()
        self._transport.abort()
        self._ended("it does not speak the protocol of NATS")
