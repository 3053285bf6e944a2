"""Tasks: what a tool is run as when its result takes long, in the words of both eras.

Before 2026-07-28 the caller asks for one (`task` beside the arguments) and the result holds it; since then the server
decides, for callers that know the extension, and the result is it. Ids are renamed here, on the way to a caller and
back; what they mean is for others to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from isthmus.model.tasks import ServerTaskState
from isthmus.wire.jsonrpc import Payload, render
from isthmus.wire.mcp.messages import Members, read_seconds, read_string

EXTENSION = "io.modelcontextprotocol/tasks"
TASKS_CAPABILITY = f"extensions.{EXTENSION}"
"""The word of a caller's profile that says that it knows what to do with a task."""

REQUIRED = msgspec.json.encode({"requiredCapabilities": {"extensions": {EXTENSION: {}}}})
"""What is told, beside the error, to who asks about a task and does not know the extension."""

RELATED = "io.modelcontextprotocol/related-task"
"""The member of `_meta` that says to which task a message belongs."""

TASK = "task"
"""What asks for a task, what holds it in a result, and the type of a result that is one."""

ID = "taskId"

LIST = "tasks/list"
LEGACY_METHODS = frozenset({"tasks/get", "tasks/result", "tasks/cancel", LIST})
MODERN_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})

STATUS_NOTIFICATION = "notifications/tasks/status"
"""How a server of the earlier era tells by itself how a task stands."""

TASK_NOTIFICATION = "notifications/tasks"
"""The same since 2026-07-28, to who listens for it."""

ENDS = frozenset({"completed", "failed", "cancelled"})
STATUSES = ENDS | {"working", "input_required"}

ID_LENGTH_MAX = 1024
STATE_BYTES_MAX = 4096
"""How much of a task's state is remembered; of a larger one, only what the earlier era says that a task has."""

MEMBER_BYTES_MAX = 1024

POLL_MS = 1000
"""How often callers are told to ask after a task of the hub's own: it answers from memory."""

TASKS_VERSION = "2025-11-25"
"""The first in which a caller can ask for a task."""

_PLAIN = (ID, "status", "statusMessage", "createdAt", "lastUpdatedAt", "ttl", "pollInterval")

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_state(payload: Payload) -> ServerTaskState | None:
    """How a task stands, from a result or a notification; None if it does not say."""
    members = _read(payload)
    return state_of(_read(members[TASK]) if TASK in members else members)


def state_of(members: Members) -> ServerTaskState | None:
    """The same from the members that say it."""
    id, status = read_string(members.get(ID)), read_string(members.get("status"))
    if id is None or len(id) > ID_LENGTH_MAX or status not in STATUSES:
        return None
    ttl = members.get("ttl", members.get("ttlMs"))
    kept = {key: value.copy() for key, value in _remembered(members).items()}
    return ServerTaskState(id, status, status in ENDS, None if ttl is None else read_seconds(ttl), kept)


def _remembered(members: Members) -> Members:
    if sum(len(key) + len(memoryview(value)) for key, value in members.items()) <= STATE_BYTES_MAX:
        return members
    short = {key for key, value in members.items() if len(memoryview(value)) <= MEMBER_BYTES_MAX} | {ID}
    return {key: members[key] for key in _PLAIN if key in members and key in short}


class TaskSummary(msgspec.Struct, frozen=True):
    """How a task of the hub's own stands, in what both eras tell; moments are seconds of the epoch."""

    id: str
    status: str
    created: float
    updated: float
    ttl_seconds: float
    message: str = ""


def legacy_state(summary: TaskSummary) -> dict[str, Payload]:
    """How a task stands, as it was told before 2026-07-28."""
    return _state(summary, "ttl", "pollInterval")


def modern_state(summary: TaskSummary) -> dict[str, Payload]:
    """The same since then."""
    return _state(summary, "ttlMs", "pollIntervalMs")


def _state(summary: TaskSummary, ttl: str, poll: str) -> dict[str, Payload]:
    told: dict[str, object] = {ID: summary.id, "status": summary.status}
    if summary.message:
        told["statusMessage"] = summary.message
    told |= {"createdAt": _moment(summary.created), "lastUpdatedAt": _moment(summary.updated)}
    told |= {ttl: int(summary.ttl_seconds * 1000), poll: POLL_MS}
    return {key: msgspec.json.encode(value) for key, value in told.items()}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def related_to(id: str, members: Members) -> Members:
    """Members of a message that says to which task it relates."""
    meta = _read(members.get("_meta", msgspec.Raw(b"{}")))
    related = msgspec.Raw(msgspec.json.encode({ID: id}))
    return {**members, "_meta": msgspec.Raw(render({**meta, RELATED: related}))}


class _TaskRequest(msgspec.Struct):
    ttl: float | None = None


_WANTED = msgspec.json.Decoder(_TaskRequest)


def read_ttl(wanted: msgspec.Raw) -> float | str | None:
    """For how many seconds a caller wants its task to be kept, None if it does not say; or what is wrong with it."""
    try:
        ttl = _WANTED.decode(wanted).ttl
    except msgspec.MsgspecError:
        return "task must be an object, and its ttl a number of milliseconds"
    if ttl is None:
        return None
    return ttl / 1000 if 0 <= ttl < float("inf") else f"the ttl of a task must not be negative, and is {ttl:g}"


def is_task_required(execution: Payload) -> bool:
    """Whether a tool's `execution` says that the tool is run as a task and in no other way."""
    return read_string(_read(execution).get("taskSupport")) == "required"


def with_task_support(definition: Members) -> Members:
    """A tool's definition that says that the tool may be run as a task."""
    execution = _read(definition.get("execution", msgspec.Raw(b"{}")))
    return {**definition, "execution": msgspec.Raw(render({**execution, "taskSupport": b'"optional"'}))}


def read_poll_seconds(payload: Payload) -> float | None:
    """How long a server wants to be left alone before it is asked again how a task stands; None if it does not say."""
    told = _read(payload).get("pollIntervalMs")
    return None if told is None else read_seconds(told)


def list_result(states: Iterable[Payload], cursor: str | None) -> bytes:
    """A page of tasks; `cursor` leads to the next one."""
    members: dict[str, Payload] = {"tasks": b"[" + b",".join(states) + b"]"}
    if cursor is not None:
        members["nextCursor"] = msgspec.json.encode(cursor)
    return render(members)


def rename_related(members: Members, rename: Callable[[str], str | None]) -> Members:
    """Members of a message with the id renamed of the task to which it relates; a task without a name is left out."""
    meta = _read(members.get("_meta", msgspec.Raw(b"{}")))
    if RELATED not in meta:
        return members
    return {**members, "_meta": msgspec.Raw(render(rename_related_meta(meta, rename)))}


def rename_related_meta(meta: Members, rename: Callable[[str], str | None]) -> Members:
    """The same for the members of `_meta`."""
    related = _read(meta.get(RELATED, msgspec.Raw(b"{}")))
    id = read_string(related.get(ID))
    name = None if id is None else rename(id)
    if name is None:
        return {key: value for key, value in meta.items() if key != RELATED}
    return {**meta, RELATED: msgspec.Raw(render({**related, ID: msgspec.json.encode(name)}))}


def rename_ids(payload: Payload, rename: Callable[[str], str]) -> Payload:
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
