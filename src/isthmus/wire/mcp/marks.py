"""Whose call it is, as a hub tells the client that brought it a server: two marks in `_meta`, and no name.

The client keeps one server for many callers, and must not put what it asks in one's call to another. Written by
`upstream.dialin.marks`, read by `app.dial_talk`; to every other face it is a member that describes one hop.
"""

from __future__ import annotations

import msgspec

MARK_KEY = "isthmus/conversation"

LENGTH_MAX = 64


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The same for the same caller, and for the same conversation of its, as long as the hub runs."""

    caller: str
    session: str = ""
    """Empty for calls of no conversation, any two of which may be two programs'."""
    shares: bool = False
    """See `Call.shares_link`."""


_DECODER = msgspec.json.Decoder(Mark)


def read_mark(raw: msgspec.Raw | None) -> Mark | None:
    """What a member of `_meta` says; None if it is missing, or no mark."""
    if raw is None:
        return None
    try:
        mark = _DECODER.decode(raw)
    except msgspec.MsgspecError:
        return None
    return mark if 0 < len(mark.caller) <= LENGTH_MAX and len(mark.session) <= LENGTH_MAX else None
