"""What of a caller's request travels on to its server: all that is the caller's own to say.

Faces that make calls of MCP's requests share this filter. What the hub itself says to a server ends here, in whatever
spelling: to a server that ignores case, `ProgressToken` would name the progress of somebody else's call.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.wire.mcp.inputs import RESPONSES, STATE
from isthmus.wire.mcp.marks import MARK_KEY
from isthmus.wire.mcp.messages import PROGRESS_TOKEN, Members
from isthmus.wire.mcp.modern import OWN_KEYS
from isthmus.wire.mcp.tasks import RELATED, related_meta

ANSWERS = frozenset({RESPONSES, STATE})
"""What answers a modern server's questions, and the state it gave with them, which it would believe of anybody."""

_HOP_KEYS = frozenset(key.casefold() for key in (*OWN_KEYS, MARK_KEY, PROGRESS_TOKEN, RELATED))


def passed_meta(meta: Members, rename: Callable[[str], str | None]) -> Members:
    """Members of `_meta` that travel on; `rename` gives a server's own id for the task to which they relate, if any."""
    if meta.keys() <= OWN_KEYS:
        return {}
    passed = {key: value for key, value in meta.items() if key.casefold() not in _HOP_KEYS}
    related = related_meta({RELATED: meta[RELATED]}, rename) if RELATED in meta else {}
    return {**passed, **related}


def passed_extra(extra: Members, ours: frozenset[str], kept: frozenset[str] = frozenset()) -> Members:
    """Members beside those that the hub reads, without `ours`; of these, `kept` may stand in their own spelling."""
    spelt = {key.casefold() for key in ours}
    return {key: value for key, value in extra.items() if key in kept or key.casefold() not in spelt}
