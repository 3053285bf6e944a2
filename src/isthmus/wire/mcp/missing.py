"""Which servers behind a hub are not there, and why: a hub says so in `_meta` of its lists.

A pure reader and writer. Other programs pay no heed to it; a program that has a running hub's tools can tell by it a
tool whose server is away from one that nobody has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from isthmus.wire.jsonrpc import Payload

MISSING_KEY = "isthmus/missing"

MISSING_MAX = 1_000
"""Who names more servers than that is not believed at all."""

NAME_LENGTH_MAX = 128
REASON_LENGTH_MAX = 300
"""A longer reason is cut, as those of our own servers are."""


class Missing(msgspec.Struct, frozen=True):
    """A server that is not there; `listed` if its tools are in the list all the same, as it last told them."""

    state: str
    reason: str | None
    listed: bool = False


class _Meta(msgspec.Struct):
    missing: dict[Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)], Missing] = msgspec.field(
        name=MISSING_KEY, default_factory=dict
    )


def read_missing(meta: Payload) -> dict[str, str]:
    """The servers that a list's `_meta` says are not there, and why; none if it says nothing of the kind."""
    try:
        missing = msgspec.json.decode(meta, type=_Meta).missing
    except msgspec.MsgspecError:
        return {}
    if len(missing) > MISSING_MAX:
        return {}
    return {server: _why(told) for server, told in missing.items() if server.isprintable()}


def _why(missing: Missing) -> str:
    words = "".join(letter for letter in missing.reason or "" if letter.isprintable())[:REASON_LENGTH_MAX]
    return words or "it is away"


def write_missing(missing: Mapping[str, Missing]) -> bytes:
    """A list's `_meta` that says so."""
    return msgspec.json.encode({MISSING_KEY: missing})
