"""WebSocket frames for the bench's own clients and servers: no more than thousands of them in one process can afford.

Used by `diallers` and `devices`. It knows whole messages and control frames of peers that are in order; what a peer in
disorder may send is the hub's to bear, and is tested elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA

KEY = b"YS1iZW5jaC1oYW5kc2hhaw=="
"""Sixteen bytes, as the handshake asks for; nothing between two processes on one machine has to be told apart."""

NO_MASK = bytes(4)
"""Clients must mask. By zeros that costs them nothing, and whoever reads has the same work as with any other mask."""

_FINAL, _MASKED = 0x80, 0x80
_IN_TWO_BYTES, _IN_EIGHT_BYTES = 126, 127
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class NotWebSocket(Exception):
    """The peer sent what this bench does not expect of it."""


def frame(opcode: int, payload: bytes, *, is_client: bool) -> bytes:
    """One whole frame."""
    size = len(payload)
    masked = _MASKED if is_client else 0
    if size < _IN_TWO_BYTES:
        head = bytes((_FINAL | opcode, masked | size))
    elif size < 1 << 16:
        head = bytes((_FINAL | opcode, masked | _IN_TWO_BYTES)) + size.to_bytes(2)
    else:
        head = bytes((_FINAL | opcode, masked | _IN_EIGHT_BYTES)) + size.to_bytes(8)
    return head + NO_MASK + payload if is_client else head + payload


class FrameReader:
    """Cuts frames out of whatever chunks arrive."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that are whole now: what each is, and what it holds.

        Raises:
            NotWebSocket: a message in several frames, or one that is masked in earnest.
        """
        data = self._rest + data if self._rest else data
        frames: list[tuple[int, bytes]] = []
        at = 0
        while (place := _payload_at(data, at)) is not None and place[1] <= len(data):
            start, end = place
            if not data[at] & _FINAL:
                raise NotWebSocket("a message came in several frames")
            frames.append((data[at] & 0x0F, data[start:end]))
            at = end
        self._rest = data[at:]
        return frames


def _payload_at(data: bytes, at: int) -> tuple[int, int] | None:
    """Where the payload of the frame that begins at `at` begins and ends; None if its head is not whole."""
    if len(data) < at + 2:
        return None
    size, start = data[at + 1] & 0x7F, at + 2
    if size >= _IN_TWO_BYTES:
        width = 2 if size == _IN_TWO_BYTES else 8
        size, start = int.from_bytes(data[start : start + width]), start + width
    if data[at + 1] & _MASKED:
        if any(data[start : start + 4]):
            raise NotWebSocket("a message was masked by something else than zeros")
        start += 4
    return None if len(data) < start else (start, start + size)


def request(port: int, target: str) -> bytes:
    """What a client asks for a WebSocket with."""
    return (
        f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY.decode()}\r\n\r\n"
    ).encode()


def welcome(head: bytes) -> bytes:
    """What a server opens the WebSocket with that this request head asks for."""
    key = _headers(head).get(b"sec-websocket-key", b"")
    accept = base64.b64encode(hashlib.sha1(key + _ACCEPT).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def _headers(head: bytes) -> Mapping[bytes, bytes]:
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return {name.lower(): value.strip() for name, _, value in pairs}
