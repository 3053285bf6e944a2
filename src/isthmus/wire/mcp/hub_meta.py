"""Members of `_meta` that hubs exchange with each other; other programs ignore them.

- `isthmus/hubs`, in the response to `initialize` or `server/discover`: the hubs behind an address and their distance.
  A hub that finds itself there breaks the loop (`upstream.reconnector`).
- `isthmus/conversation`, in calls to a client that dialled in: which caller and session a call belongs to, without
  names. That client runs one server for many callers and must not mix up their questions (`upstream.dialin`,
  `app.dial_talk`).
- `isthmus/missing`, in lists: servers that are not connected. So a client can tell a tool whose server is away from
  one that does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from isthmus.wire.jsonrpc import Payload

HUBS_KEY = "isthmus/hubs"

HUBS_MAX = 256
"""The nearest are sent. A list with more is ignored."""

NO_HUBS: Mapping[str, int] = {}

HUB_ID_LENGTH_MAX = 64
STEPS_MAX = 100
"""Longer than any chain of hubs. Larger distances are sent as this one, because a larger number is ignored."""


class _HubsMeta(msgspec.Struct):
    hubs: dict[
        Annotated[str, msgspec.Meta(max_length=HUB_ID_LENGTH_MAX)], Annotated[int, msgspec.Meta(ge=0, le=STEPS_MAX)]
    ] = msgspec.field(name=HUBS_KEY, default_factory=dict)


def read_hubs(meta: Payload) -> dict[str, int]:
    """The distances of the hubs that a `_meta` names, by id; empty if it names none or is invalid."""
    try:
        hubs = msgspec.json.decode(meta, type=_HubsMeta).hubs
    except msgspec.MsgspecError:
        return {}
    return hubs if len(hubs) <= HUBS_MAX else {}


def write_hubs(hubs: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The member of `_meta` that names these hubs; empty if there are none."""
    nearest = sorted(hubs.items(), key=lambda entry: entry[1])[:HUBS_MAX]
    return {HUBS_KEY: {id: min(steps, STEPS_MAX) for id, steps in nearest}} if nearest else {}


CONVERSATION_KEY = "isthmus/conversation"

MARK_LENGTH_MAX = 64


class ConversationMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identifies a caller and its session, without their names, while the hub runs."""

    caller: str
    session: str = ""
    """Empty for calls without a session; two such calls may come from two programs."""
    shares: bool = False
    """See `Call.shares_link`."""


_MARK = msgspec.json.Decoder(ConversationMark)


def read_mark(raw: msgspec.Raw | None) -> ConversationMark | None:
    """Read the member of `_meta`; None if it is missing or invalid."""
    if raw is None:
        return None
    try:
        mark = _MARK.decode(raw)
    except msgspec.MsgspecError:
        return None
    return mark if 0 < len(mark.caller) <= MARK_LENGTH_MAX and len(mark.session) <= MARK_LENGTH_MAX else None


MISSING_KEY = "isthmus/missing"

MISSING_MAX = 1_000
"""A list with more servers is ignored."""

SERVER_LENGTH_MAX = 128
REASON_LENGTH_MAX = 300
"""A longer reason is truncated."""


class UnavailableServer(msgspec.Struct, frozen=True):
    """A server that is not connected; `listed` if its last known tools are in the list."""

    state: str
    reason: str | None
    listed: bool = False


class _MissingMeta(msgspec.Struct):
    missing: dict[Annotated[str, msgspec.Meta(min_length=1, max_length=SERVER_LENGTH_MAX)], UnavailableServer] = (
        msgspec.field(name=MISSING_KEY, default_factory=dict)
    )


def read_missing(meta: Payload) -> dict[str, str]:
    """The missing servers in a list's `_meta`, with reasons; empty if there are none or it is invalid."""
    try:
        missing = msgspec.json.decode(meta, type=_MissingMeta).missing
    except msgspec.MsgspecError:
        return {}
    if len(missing) > MISSING_MAX:
        return {}
    reasons: dict[str, str] = {}
    for server, each in missing.items():
        if server.isprintable():
            printable = "".join(letter for letter in each.reason or "" if letter.isprintable())
            reasons[server] = printable[:REASON_LENGTH_MAX] or "it is away"
    return reasons


def write_missing(missing: Mapping[str, UnavailableServer]) -> bytes:
    """A list's `_meta` that names these servers."""
    return msgspec.json.encode({MISSING_KEY: missing})
