"""Tasks: what a tool is run as when its result takes long, in the words of both eras.

Before 2026-07-28 the caller asks for one (`task` beside the arguments) and the result holds it; since then the server
decides, for callers that know the extension, and the result is it. Ids are renamed here, on the way to a caller; what
they mean is for others to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from isthmus.wire.jsonrpc import Payload, render
from isthmus.wire.mcp.messages import read_string

EXTENSION = "io.modelcontextprotocol/tasks"
KNOWN = f"extensions.{EXTENSION}"
"""The word of a caller's profile that says that it knows what to do with a task."""

REQUIRED = msgspec.json.encode({"requiredCapabilities": {"extensions": {EXTENSION: {}}}})
"""What is told, beside the error, to who asks about a task and does not know the extension."""

RELATED = "io.modelcontextprotocol/related-task"
"""The member of `_meta` that says to which task a message belongs."""

TASK = "task"
"""What asks for a task, what holds it in a result, and the type of a result that is one."""

ID = "taskId"

LEGACY_METHODS = frozenset({"tasks/get", "tasks/result", "tasks/cancel"})
MODERN_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def with_ids(payload: Payload, rename: Callable[[str], str]) -> Payload:
    """A result, or the parameters of a message, with the id of its task renamed wherever it stands."""
    members = _read(payload)
    changed: dict[str, Payload] = {}
    if (id := _renamed(members, rename)) is not None:
        changed[ID] = id
    if TASK in members:
        changed[TASK] = _inside(members[TASK], rename)
    if "_meta" in members and RELATED in (meta := _read(members["_meta"])):
        changed["_meta"] = render({**meta, RELATED: _inside(meta[RELATED], rename)})
    return render({**members, **changed}) if changed else payload


def _inside(payload: msgspec.Raw, rename: Callable[[str], str]) -> Payload:
    members = _read(payload)
    id = _renamed(members, rename)
    return payload if id is None else render({**members, ID: id})


def _renamed(members: Mapping[str, msgspec.Raw], rename: Callable[[str], str]) -> bytes | None:
    own = read_string(members.get(ID))
    return None if own is None else msgspec.json.encode(rename(own))


def _read(payload: Payload) -> dict[str, msgspec.Raw]:
    try:
        return _MEMBERS.decode(payload)
    except msgspec.MsgspecError:
        return {}
