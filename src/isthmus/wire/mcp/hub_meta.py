"""Which hubs are behind an address, and how many steps away: a hub says so in `_meta` when it is greeted.

A pure reader and writer. Other programs pay no heed to it; what a hub does when it finds itself is the keeper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from isthmus.wire.jsonrpc import Payload

HUBS_KEY = "isthmus/hubs"

HUBS_MAX = 256
"""The nearest are told. Who names more than that is not believed at all."""

NO_HUBS: Mapping[str, int] = {}

HUB_ID_LENGTH_MAX = 64
STEPS_MAX = 100
"""No row of hubs is as long. One that is said to be further away is told as this far: else none would be believed."""


class _HubsMeta(msgspec.Struct):
    hubs: dict[
        Annotated[str, msgspec.Meta(max_length=HUB_ID_LENGTH_MAX)], Annotated[int, msgspec.Meta(ge=0, le=STEPS_MAX)]
    ] = msgspec.field(name=HUBS_KEY, default_factory=dict)


def read_hubs(meta: Payload) -> dict[str, int]:
    """The hubs that a greeting's `_meta` names, by their ids; none if it is no such thing."""
    try:
        hubs = msgspec.json.decode(meta, type=_HubsMeta).hubs
    except msgspec.MsgspecError:
        return {}
    return hubs if len(hubs) <= HUBS_MAX else {}


def write_hubs(hubs: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The member of `_meta` that says so; none if there is nothing to say."""
    nearest = sorted(hubs.items(), key=lambda entry: entry[1])[:HUBS_MAX]
    return {HUBS_KEY: {id: min(steps, STEPS_MAX) for id, steps in nearest}} if nearest else {}


CONVERSATION_KEY = "isthmus/conversation"

MARK_LENGTH_MAX = 64


class ConversationMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The same for the same caller, and for the same conversation of its, as long as the hub runs."""

    caller: str
    session: str = ""
    """Empty for calls of no conversation, any two of which may be two programs'."""
    shares: bool = False
    """See `Call.shares_link`."""


_MARK = msgspec.json.Decoder(ConversationMark)


def read_mark(raw: msgspec.Raw | None) -> ConversationMark | None:
    """What a member of `_meta` says; None if it is missing, or no mark."""
    if raw is None:
        return None
    try:
        mark = _MARK.decode(raw)
    except msgspec.MsgspecError:
        return None
    return mark if 0 < len(mark.caller) <= MARK_LENGTH_MAX and len(mark.session) <= MARK_LENGTH_MAX else None


MISSING_KEY = "isthmus/missing"

MISSING_MAX = 1_000
"""Who names more servers than that is not believed at all."""

SERVER_LENGTH_MAX = 128
REASON_LENGTH_MAX = 300
"""A longer reason is cut, as those of our own servers are."""


class MissingServer(msgspec.Struct, frozen=True):
    """A server that is not there; `listed` if its tools are in the list all the same, as it last told them."""

    state: str
    reason: str | None
    listed: bool = False


class _MissingMeta(msgspec.Struct):
    missing: dict[Annotated[str, msgspec.Meta(min_length=1, max_length=SERVER_LENGTH_MAX)], MissingServer] = (
        msgspec.field(name=MISSING_KEY, default_factory=dict)
    )


def read_missing(meta: Payload) -> dict[str, str]:
    """The servers that a list's `_meta` says are not there, and why; none if it says nothing of the kind."""
    try:
        missing = msgspec.json.decode(meta, type=_MissingMeta).missing
    except msgspec.MsgspecError:
        return {}
    if len(missing) > MISSING_MAX:
        return {}
    return {server: _why(told) for server, told in missing.items() if server.isprintable()}


def _why(missing: MissingServer) -> str:
    words = "".join(letter for letter in missing.reason or "" if letter.isprintable())[:REASON_LENGTH_MAX]
    return words or "it is away"


def write_missing(missing: Mapping[str, MissingServer]) -> bytes:
    """A list's `_meta` that says so."""
    return msgspec.json.encode({MISSING_KEY: missing})
