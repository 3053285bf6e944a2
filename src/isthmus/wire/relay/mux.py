"""Several servers on one WebSocket: the frames of `isthmus.mux.v1`.

Every text message is `<channel> <message>`: the number of a channel, one space, and one whole message of its server.
Channel 0 is the connection's own: who dialled in opens channels on it and says when it is about to go, the hub says
what became of them, and either end closes one. Each channel is a stream of messages of its own, so that ids of two
servers never meet.

Nothing here reads, waits or keeps anything: `upstream.dialin.mux` and `app.dial_talk` do.
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
"""What a frame has before its message, at most."""

CONTROL_BYTES_MAX = 16 * 1024
"""Words on the connection itself are short."""

SERVER_ID_LENGTH_MAX = 64
NAME_LENGTH_MAX = 128
REASON_LENGTH_MAX = 300


class Said(msgspec.Struct, frozen=True):
    """One message on a channel, as it was written."""

    channel: int
    message: bytes


class Open(msgspec.Struct, frozen=True):
    """Who dialled in has a server for the hub."""

    channel: int
    server_id: str | None = None
    """What it is to be called under its agent; None leaves it to the name that the server gives itself."""
    name: str | None = None
    """What it is called where it runs; for people."""


class Opened(msgspec.Struct, frozen=True):
    """The hub uses a channel."""

    channel: int
    server: str | None = None
    """What the server is called in the hub, once that is known."""
    limit: int | None = None
    """How many bytes a message to the hub may have: a longer one would end the connection."""
    grace: float | None = None
    """For how many seconds calls wait in the hub for a server that is away."""


class Leaving(msgspec.Struct, frozen=True):
    """Who dialled in is about to close a channel: it still answers what it was asked, and is to be asked no more."""

    channel: int


class Closed(msgspec.Struct, frozen=True):
    """A channel carries nothing more; `code` is one of WebSocket's."""

    channel: int
    code: int = 1000
    reason: str = ""


class Ignored(msgspec.Struct, frozen=True):
    """A word on the connection that is not known here: a later version may have it."""


class Bad(msgspec.Struct, frozen=True):
    """What is no frame, and why in words."""

    reason: str


Frame: TypeAlias = Said | Open | Opened | Leaving | Closed | Ignored | Bad

_IGNORED = Ignored()


def said(channel: int, message: bytes) -> bytes:
    """Write one message of a channel."""
    # Joined: `%` grows its buffer step by step, which costs 600 µs a megabyte instead of 25.
    return b"".join((b"%d " % channel, message))


def opening(word: Open) -> bytes:
    """Write that a channel is to be opened."""
    return _control({"open": word.channel, "server_id": word.server_id, "name": word.name})


def opened(word: Opened) -> bytes:
    """Write that a channel is used."""
    return _control({"opened": word.channel, "server": word.server, "limit": word.limit, "grace": word.grace})


def leaving(word: Leaving) -> bytes:
    """Write that a channel is about to be closed."""
    return _control({"leaving": word.channel})


def closed(word: Closed) -> bytes:
    """Write that a channel carries nothing more."""
    return _control({"closed": word.channel, "code": word.code, "reason": word.reason[:REASON_LENGTH_MAX]})


def _control(members: dict[str, object]) -> bytes:
    return b"0 " + msgspec.json.encode({key: value for key, value in members.items() if value is not None})


def read(frame: bytes) -> Frame:
    """Read one frame; whatever the bytes are, the answer is a value and never an exception."""
    digits, space, message = frame[:HEAD_BYTES_MAX].partition(b" ")
    if not space or not _is_number(digits):
        return Bad("a frame must begin with the number of a channel and a space")
    channel = int(digits)
    message = frame[len(digits) + 1 :]
    if channel:
        return Said(channel, message) if channel <= NUMBER_MAX else _bad_number(channel)
    return _read_control(message)


def _is_number(digits: bytes) -> bool:
    # In one spelling only: `isdigit` of bytes knows ASCII alone, and a channel has no second name.
    return digits.isdigit() and (digits == b"0" or not digits.startswith(b"0"))


def _bad_number(channel: object) -> Bad:
    return Bad(f"a channel must be a number from 1 to {NUMBER_MAX}, not {str(channel)[:20]!r}")


def _read_control(text: bytes) -> Frame:
    if len(text) > CONTROL_BYTES_MAX:
        return Bad(f"a word on channel 0 may have {CONTROL_BYTES_MAX} bytes at most, not {len(text)}")
    if not isinstance(jsonrpc.decode_object(text), msgspec.Raw):
        return Bad("a word on channel 0 must be a JSON object that has no member twice")
    try:
        members: dict[str, object] = msgspec.json.decode(text)
    except msgspec.MsgspecError:  # a number that is larger than any
        return Bad("a word on channel 0 must have numbers that are some")
    verbs = [verb for verb in _READERS if verb in members]
    if not verbs:
        return _IGNORED
    if len(verbs) > 1:
        return Bad(f"a word on channel 0 must say one thing, not {' and '.join(verbs)}")
    channel = members[verbs[0]]
    if not isinstance(channel, int) or isinstance(channel, bool) or not 0 < channel <= NUMBER_MAX:
        return _bad_number(channel)
    return _READERS[verbs[0]](channel, members)


def _read_open(channel: int, members: dict[str, object]) -> Open | Bad:
    server_id, name = members.get("server_id"), members.get("name")
    if server_id is not None and not _is_label(server_id, SERVER_ID_LENGTH_MAX):
        return Bad(f"server_id must be 1 to {SERVER_ID_LENGTH_MAX} printable characters")
    if name is not None and not _is_label(name, NAME_LENGTH_MAX):
        return Bad(f"name must be 1 to {NAME_LENGTH_MAX} printable characters")
    assert server_id is None or isinstance(server_id, str)
    assert name is None or isinstance(name, str)
    return Open(channel, server_id, name)


def _read_opened(channel: int, members: dict[str, object]) -> Opened | Bad:
    server, limit, grace = members.get("server"), members.get("limit"), members.get("grace")
    if server is not None and not _is_label(server, NAME_LENGTH_MAX):
        return Bad(f"server must be 1 to {NAME_LENGTH_MAX} printable characters")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        return Bad("limit must be a number of bytes")
    if grace is not None and (not isinstance(grace, int | float) or isinstance(grace, bool) or not 0 <= grace < inf):
        return Bad("grace must be a number of seconds")
    assert server is None or isinstance(server, str)
    return Opened(channel, server, limit, grace)


def _read_leaving(channel: int, members: dict[str, object]) -> Leaving:
    return Leaving(channel)


def _read_closed(channel: int, members: dict[str, object]) -> Closed | Bad:
    code, reason = members.get("code", 1000), members.get("reason", "")
    if not isinstance(code, int) or isinstance(code, bool) or not 1000 <= code <= 4999:
        return Bad("code must be a close code of WebSocket, 1000 to 4999")
    if not isinstance(reason, str):
        return Bad("reason must be text")
    return Closed(channel, code, reason[:REASON_LENGTH_MAX])


_READERS: dict[str, Callable[[int, dict[str, object]], Frame]] = {
    "open": _read_open,
    "opened": _read_opened,
    "leaving": _read_leaving,
    "closed": _read_closed,
}


def _is_label(value: object, length: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= length and value.isprintable()
