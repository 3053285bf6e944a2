"""The frames between two nodes, without I/O: the same over Unix sockets and over NATS.

A frame is a header of 18 bytes (kind, flags, id, number) and a payload. On a Unix socket its length comes before it, in
NATS the sender's epoch. All numbers are little-endian.

| kind | id | number | payload |
|---|---|---|---|
| HELLO | | | `Hello` as JSON |
| BYE | | | |
| SYNC | | of the SYNC | for each channel with news: id, frames sent, bytes granted |
| RESET | | | the session had ended on the sender's side: begin a new one |
| RESYNC | | | a SYNC was lost: report all channels |
| PUBLISH, REQUEST, RESPONSE | of the message | of the chunk | `one_shot_head` in the first chunk, then bytes |
| REFUSED, FAILED | of the request | | reason: it was not handled; it was, in vain |
| CANCEL | of the request | | |
| OPEN, ACCEPT | of the channel | the sender's window | service; nothing |
| REJECT | of the channel | | reason |
| DATA | of the channel | of the frame | bytes of a message |
| CREDIT | of the channel | bytes granted, from the beginning | |
| CLOSE | of the channel | frames sent | reason |
| BREAK | of the channel | | reason |
| CLOSED | of the channel | | |

CLOSE and BREAK are repeated until CLOSED confirms them. A CLOSE of channel 0, which never exists, is a ping. A receiver
ignores kinds that it does not know, so that a newer node may use them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import msgspec

HEADER: Final = struct.Struct("<BBQQ")
HEADER_BYTES: Final = HEADER.size
LENGTH: Final = struct.Struct("<I")
SYNC_ENTRY: Final = struct.Struct("<QQQ")
_ONE_SHOT: Final = struct.Struct("<IB")

MORE: Final = 1
"""The flag of a chunk that is not the last one of its message."""

VERSION: Final = 1
"""Nodes of another version are ignored. It changes only when frames of the old one would be misunderstood."""

CHUNK_BYTES: Final = 64 * 1024
"""The longest payload of a frame; longer messages are cut into chunks."""

REASON_LENGTH: Final = 300


class Kind(IntEnum):
    """What a frame is for."""

    HELLO = 1
    BYE = 2
    SYNC = 3
    PUBLISH = 4
    REQUEST = 5
    RESPONSE = 6
    REFUSED = 7
    FAILED = 8
    CANCEL = 9
    OPEN = 10
    ACCEPT = 11
    REJECT = 12
    DATA = 13
    CREDIT = 14
    CLOSE = 15
    BREAK = 16
    CLOSED = 17
    RESYNC = 18
    RESET = 19


class Hello(msgspec.Struct, frozen=True):
    """A node presents itself. `boot` is random for each process: it shows when two processes use one node id."""

    node: str
    epoch: int
    boot: str
    attributes: dict[str, str] = {}
    wants_reply: bool = False
    version: int = VERSION


_hello_encoder: Final = msgspec.json.Encoder()
_hello_decoder: Final = msgspec.json.Decoder(Hello)


def encode_hello(hello: Hello) -> bytes:
    """The payload of a HELLO."""
    return _hello_encoder.encode(hello)


def decode_hello(payload: bytes | memoryview) -> Hello | None:
    """The node that presents itself; None if it cannot be understood."""
    try:
        hello = _hello_decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return hello if hello.version == VERSION and hello.node else None


def one_shot_head(name: str, within: float = 0.0) -> bytes:
    """What comes first in a PUBLISH (name of the topic) or REQUEST (name of the service, seconds it may take)."""
    encoded = name.encode()
    return _ONE_SHOT.pack(min(max(int(within * 1000), 0), 0xFFFFFFFF), len(encoded)) + encoded


def split_one_shot(message: bytes) -> tuple[str, float, bytes] | None:
    """The name, the seconds and the rest of a PUBLISH or REQUEST; None if it cannot be understood."""
    try:
        milliseconds, length = _ONE_SHOT.unpack_from(message)
        name = message[_ONE_SHOT.size : _ONE_SHOT.size + length].decode()
    except (struct.error, UnicodeDecodeError):
        return None
    return name, milliseconds / 1000, message[_ONE_SHOT.size + length :]


def decode_reason(payload: bytes | memoryview) -> str:
    """A peer's reason, safe to show."""
    text = bytes(payload[: 4 * REASON_LENGTH]).decode("utf-8", "replace")[:REASON_LENGTH]
    return "".join(each if each.isprintable() else " " for each in text)


def encode_reason(reason: str) -> bytes:
    """A reason as the payload of a frame."""
    return reason[:REASON_LENGTH].encode("utf-8", "replace")


class FrameTooLong(Exception):
    """The peer announced a frame that no node sends: what follows cannot be understood."""


FRAME_BYTES_MAX: Final = HEADER_BYTES + CHUNK_BYTES


class FrameDecoder:
    """Cuts length-prefixed frames out of whatever chunks arrive. It holds at most one incomplete frame."""

    __slots__ = ("_rest", "_take")

    def __init__(self, take: Callable[[memoryview], None]) -> None:
        """`take` receives whole frames; it must not keep them."""
        self._take = take
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """Pass on the frames that are complete now.

        Raises:
            FrameTooLong: the peer does not speak this protocol.
        """
        if self._rest:
            self._rest += data
            whole: bytes | bytearray = self._rest
        else:
            whole = data
        at, end = 0, len(whole)
        with memoryview(whole) as view:
            while end - at >= 4:
                (length,) = LENGTH.unpack_from(view, at)
                if length > FRAME_BYTES_MAX or length < HEADER_BYTES:
                    raise FrameTooLong(f"it announced a frame of {length} bytes")
                if end - at - 4 < length:
                    break
                with view[at + 4 : at + 4 + length] as frame:
                    self._take(frame)
                at += 4 + length
        if whole is self._rest:
            del self._rest[:at]
        elif at < end:
            self._rest += data[at:] if at else data
