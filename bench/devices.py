"""Devices of the relay in a closed loop: each keeps so many calls on the way, and checks every answer.

Called by `bench.crowd` and `bench.relayed`. The same device speaks to the hub's relay and, for comparison, straight to
the server's own WebSocket. As in `bench.load`, a wrong answer ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple, TypeVar, cast

import msgspec

from bench.frames import CLOSE, PING, PONG, TEXT, FrameReader, frame, request
from bench.load import DECODER, GRACE_SECONDS, Served, WrongAnswer
from bench.messages import CLIENT
from bench.tokens import token_for

DEVICES_PATH = "/mcp_endpoint/call/"

OPEN_SECONDS = 10.0
"""How long a device may wait until it is welcome; on loopback that takes milliseconds."""

HELLO = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": CLIENT},
    }
)
READY = b'{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}'
CALL = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"text":"echo number %d"}}}'


class Line(NamedTuple):
    """Where a device calls."""

    port: int
    target: str


def line_of(port: int, agent: str) -> Line:
    """Where the devices of an agent call at a hub."""
    return Line(port, f"{DEVICES_PATH}?token={token_for(agent)}")


class Device(asyncio.Protocol):
    """One device. `welcomed` ends when it may call, `ended` when its round has."""

    def __init__(self, line: Line, window: int) -> None:
        self._line = line
        self._window = window
        self._until = 0.0
        self._head = b""
        self._frames: FrameReader | None = None
        self._last_id = 1
        self._sent: dict[int, float] = {}
        self.latencies: list[float] = []
        loop = asyncio.get_running_loop()
        self.welcomed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def start(self, until: float) -> None:
        """Call from now on until then."""
        self._until = until
        self._transport.write(b"".join(self._next() for _ in range(self._window)))

    def close(self) -> None:
        """Disconnect a device that does not call."""
        for waited_for in (self.welcomed, self.ended):
            if not waited_for.done():
                waited_for.set_result(None)
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the WebSocket."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(request(*self._line))

    def data_received(self, data: bytes) -> None:
        """Shake hands, then take answers, and call again in one write for all of them."""
        if self._frames is None:
            self._head, found, data = (self._head + data).partition(b"\r\n\r\n")
            if not found:
                return
            if not self._head.startswith(b"HTTP/1.1 101"):
                self._fail(f"the answer to the handshake was {self._head[:60]!r}")
                return
            self._frames = FrameReader()
            self._transport.write(_text(HELLO))
        calls = [self._take(opcode, payload) for opcode, payload in self._frames.feed(data)]
        if whole := b"".join(calls):
            self._transport.write(whole)

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that goes before the round's end is a failure."""
        self._fail(f"the connection was lost ({exc or 'closed by the peer'})")

    def _take(self, opcode: int, payload: bytes) -> bytes:
        """Hear one frame; what is to be said to it."""
        if opcode == PING:
            return frame(PONG, payload, is_client=True)
        if opcode == CLOSE:
            self._fail(f"it was closed: {payload[2:].decode(errors='replace')}")
        if opcode != TEXT:
            return b""
        if not self.welcomed.done():
            self.welcomed.set_result(None)
            return _text(READY)
        return self._answered(payload)

    def _answered(self, payload: bytes) -> bytes:
        """Check an answer, note how long it took, and call again if there is time."""
        now = perf_counter()
        try:
            answer = DECODER.decode(payload)
        except msgspec.MsgspecError as error:
            self._fail(f"{error}: {payload[:300]!r}")
            return b""
        sent = self._sent.pop(answer.id, None)
        if sent is None or answer.result.content[0].text != f"echo number {answer.id}":
            self._fail(f"a call was answered with {payload[:300]!r}")
            return b""
        self.latencies.append(now - sent)
        return self._go_on(now)

    def _go_on(self, now: float) -> bytes:
        """What is to be said after an answer."""
        if now < self._until:
            return self._next()
        if not self._sent and not self.ended.done():
            self.ended.set_result(None)
            self._transport.close()
        return b""

    def _next(self) -> bytes:
        self._last_id += 1
        self._sent[self._last_id] = perf_counter()
        return _text(CALL % (self._last_id, self._last_id))

    def _fail(self, reason: str) -> None:
        for waited_for in (self.welcomed, self.ended):
            if not waited_for.done():
                waited_for.set_exception(WrongAnswer(reason))
        self._transport.abort()


D = TypeVar("D", bound=Device)


def _text(message: bytes) -> bytes:
    return frame(TEXT, message, is_client=True)


async def drive(lines: Sequence[Line], window: int, seconds: float) -> Served:
    """Call for `seconds`, one device on each line with `window` calls on the way.

    Raises:
        WrongAnswer: an answer was wrong, or a connection was lost or fell silent.
    """
    devices = [await connect(line, window, Device) for line in lines]
    await _all(devices, [device.welcomed for device in devices], OPEN_SECONDS)
    start = perf_counter()
    for device in devices:
        device.start(start + seconds)
    await _all(devices, [device.ended for device in devices], seconds + GRACE_SECONDS)
    latencies = sorted(latency for device in devices for latency in device.latencies)
    return Served(len(latencies), perf_counter() - start, latencies)


async def connect(line: Line, window: int, kind: type[D]) -> D:
    """One device that is connected, and may not be welcome yet."""
    made = partial(kind, line, window)
    _, device = await asyncio.get_running_loop().create_connection(made, "127.0.0.1", line.port)
    return device


async def _all(devices: Sequence[Device], waited_for: Sequence[asyncio.Future[None]], within: float) -> None:
    """Wait for all of them, and raise the first failure; what is left of a round that fails is nobody's."""
    done, silent = await asyncio.wait(waited_for, timeout=within)
    failed = next((future.exception() for future in done if future.exception() is not None), None)
    for device in devices:
        for future in (device.welcomed, device.ended):
            if future.done():
                future.exception()
    if failed is not None:
        raise failed
    if silent:
        raise WrongAnswer(f"{len(silent)} of {len(waited_for)} devices had no answer for {within:g} s")
