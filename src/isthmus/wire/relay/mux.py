"""Several servers on one WebSocket: the frames of `isthmus.mux.v1`.

Every text message is `<channel> <message>`: the number of a channel, a space, and one message of its server. Channel 0
controls the connection: the dialling side opens channels and announces that it is leaving, the hub confirms, and
either side closes a channel. Each channel has its own messages, so that request ids of two servers never collide.

This module does no I/O: `upstream.dialin.mux` and `app.dial_sessions` do.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeAlias

import msgspec

from isthmus.wire import jsonrpc

CHANNELS_MAX = 256
"""Channels that may be open at once on one connection."""

NUMBER_MAX = 2**31 - 1
NUMBER_DIGITS_MAX = 10

HEAD_BYTES_MAX = NUMBER_DIGITS_MAX + 1
"""The longest prefix of a frame before its message."""

CONTROL_BYTES_MAX = 16 * 1024
"""Control messages are short."""

SERVER_ID_LENGTH_MAX = 64
NAME_LENGTH_MAX = 128
REASON_LENGTH_MAX = 300


class ChannelMessage(msgspec.Struct, frozen=True):
    """One message on a channel, as it was received."""

    channel: int
    message: bytes


class OpenChannel(msgspec.Struct, frozen=True):
    """The dialling side offers a server to the hub."""

    channel: int
    server_id: str | None = None
    """The id of the server within its agent; None uses the name that the server reports."""
    name: str | None = None
    """The name of the server where it runs; for display."""


class ChannelOpened(msgspec.Struct, frozen=True):
    """The hub has accepted a channel."""

    channel: int
    server: str | None = None
    """The name of the server in the hub, once it is known."""
    limit: int | None = None
    """The most bytes of a message to the hub: a longer one closes the connection."""
    grace: float | None = None
    """How many seconds calls wait in the hub for a server that is away."""


class ChannelLeaving(msgspec.Struct, frozen=True):
    """The dialling side is about to close a channel: it finishes running requests and accepts no new ones."""

    channel: int


class ChannelClosed(msgspec.Struct, frozen=True):
    """A channel is closed; `code` is a WebSocket close code."""

    channel: int
    code: int = 1000
    reason: str = ""


class IgnoredControl(msgspec.Struct, frozen=True):
    """An unknown control message, perhaps of a later version."""


class BadFrame(msgspec.Struct, frozen=True):
    """An invalid frame, with the reason."""

    reason: str


Frame: TypeAlias = (
    ChannelMessage | OpenChannel | ChannelOpened | ChannelLeaving | ChannelClosed | IgnoredControl | BadFrame
)

_IGNORED = IgnoredControl()


def write_message(channel: int, message: bytes) -> bytes:
    """Write one message of a channel."""
    # Joined: `%` grows its buffer step by step, which costs 600 µs a megabyte instead of 25.
    return b"".join((b"%d " % channel, message))


def write_open(word: OpenChannel) -> bytes:
    """Write an `open` message."""
    return _control({"open": word.channel, "server_id": word.server_id, "name": word.name})


def write_opened(word: ChannelOpened) -> bytes:
    """Write an `opened` message."""
    return _control({"opened": word.channel, "server": word.server, "limit": word.limit, "grace": word.grace})


def write_leaving(word: ChannelLeaving) -> bytes:
    """Write a `leaving` message."""
    return _control({"leaving": word.channel})


def write_closed(word: ChannelClosed) -> bytes:
    """Write a `closed` message."""
    return _control({"closed": word.channel, "code": word.code, "reason": word.reason[:REASON_LENGTH_MAX]})


def _control(members: dict[str, object]) -> bytes:
    return b"0 " + msgspec.json.encode({key: value for key, value in members.items() if value is not None})


def read(frame: bytes) -> Frame:
    """Read one frame. It never raises: an invalid frame is a `BadFrame`."""
    digits, space, message = frame[:HEAD_BYTES_MAX].partition(b" ")
    # A channel has one spelling only: ASCII digits without leading zeros.
    if not space or not digits.isdigit() or (digits != b"0" and digits.startswith(b"0")):
        return BadFrame("a frame must begin with the number of a channel and a space")
    channel = int(digits)
    message = frame[len(digits) + 1 :]
    if channel:
        return ChannelMessage(channel, message) if channel <= NUMBER_MAX else _bad_number(channel)
    return _read_control(message)


def _bad_number(channel: object) -> BadFrame:
    return BadFrame(f"a channel must be a number from 1 to {NUMBER_MAX}, not {str(channel)[:20]!r}")


def _read_control(text: bytes) -> Frame:
    if len(text) > CONTROL_BYTES_MAX:
        return BadFrame(f"a control message may have at most {CONTROL_BYTES_MAX} bytes, not {len(text)}")
    if not isinstance(jsonrpc.decode_object(text), msgspec.Raw):
        return BadFrame("a control message must be a JSON object without repeated members")
    try:
        members: dict[str, object] = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return BadFrame("a control message has a number out of range")
    verbs = [verb for verb in _READERS if verb in members]
    if not verbs:
        return _IGNORED
    if len(verbs) > 1:
        return BadFrame(f"a control message must have one verb, not {' and '.join(verbs)}")
    channel = members[verbs[0]]
    if not isinstance(channel, int) or isinstance(channel, bool) or not 0 < channel <= NUMBER_MAX:
        return _bad_number(channel)
    return _READERS[verbs[0]](channel, members)


def _read_open(channel: int, members: dict[str, object]) -> OpenChannel | BadFrame:
    server_id, name = members.get("server_id"), members.get("name")
    if server_id is not None and not _is_label(server_id, SERVER_ID_LENGTH_MAX):
        return BadFrame(f"server_id must be 1 to {SERVER_ID_LENGTH_MAX} printable characters")
    if name is not None and not _is_label(name, NAME_LENGTH_MAX):
        return BadFrame(f"name must be 1 to {NAME_LENGTH_MAX} printable characters")
    assert server_id is None or isinstance(server_id, str)
    assert name is None or isinstance(name, str)
    return OpenChannel(channel, server_id, name)


def _read_opened(channel: int, members: dict[str, object]) -> ChannelOpened | BadFrame:
    server, limit, grace = members.get("server"), members.get("limit"), members.get("grace")
    if server is not None and not _is_label(server, NAME_LENGTH_MAX):
        return BadFrame(f"server must be 1 to {NAME_LENGTH_MAX} printable characters")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        return BadFrame("limit must be a number of bytes")
    if grace is not None and (not isinstance(grace, int | float) or isinstance(grace, bool) or not 0 <= grace < inf):
        return BadFrame("grace must be a number of seconds")
    assert server is None or isinstance(server, str)
    return ChannelOpened(channel, server, limit, grace)


def _read_closed(channel: int, members: dict[str, object]) -> ChannelClosed | BadFrame:
    code, reason = members.get("code", 1000), members.get("reason", "")
    if not isinstance(code, int) or isinstance(code, bool) or not 1000 <= code <= 4999:
        return BadFrame("code must be a WebSocket close code, 1000 to 4999")
    if not isinstance(reason, str):
        return BadFrame("reason must be text")
    return ChannelClosed(channel, code, reason[:REASON_LENGTH_MAX])


_READERS: dict[str, Callable[[int, dict[str, object]], Frame]] = {
    "open": _read_open,
    "opened": _read_opened,
    "leaving": lambda channel, _: ChannelLeaving(channel),
    "closed": _read_closed,
}


def _is_label(value: object, length: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= length and value.isprintable()
