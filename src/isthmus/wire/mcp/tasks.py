"""Tasks, in the words of both eras.

In the legacy era the caller asks for a task (`task` beside the arguments) and the result contains it. In the modern
era the server decides, for callers with the extension, and the result is the task. Task ids are renamed here, on the
way to a caller and back; `frontends.mcp.tasks` defines them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from isthmus.model.tasks import ServerTaskState
from isthmus.wire.jsonrpc import Payload, render
from isthmus.wire.mcp.messages import TASKS_EXTENSION, Members, read_seconds, read_string

TASKS_CAPABILITY = f"extensions.{TASKS_EXTENSION}"
"""The client capability of callers that support tasks."""

REQUIRED = msgspec.json.encode({"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}})
"""The data of the error for a caller that uses tasks without the extension."""

RELATED = "io.modelcontextprotocol/related-task"
"""The member of `_meta` that names the task of a message."""

TASK = "task"
"""The member that asks for a task, the member of a result that contains it, and the type of a result that is one."""

ID = "taskId"

LIST = "tasks/list"
LEGACY_METHODS = frozenset({"tasks/get", "tasks/result", "tasks/cancel", LIST})
MODERN_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})

STATUS_NOTIFICATION = "notifications/tasks/status"
"""The legacy notification of a task's status."""

TASK_NOTIFICATION = "notifications/tasks"
"""The modern notification of a task's state, for subscribers."""

ENDS = frozenset({"completed", "failed", "cancelled"})
STATUSES = ENDS | {"working", "input_required"}

ID_LENGTH_MAX = 1024
STATE_BYTES_MAX = 4096
"""The largest stored state; of a larger one, only the members of the legacy era are stored."""

MEMBER_BYTES_MAX = 1024

POLL_MS = 1000
"""The poll interval of hub tasks, which the hub answers from memory."""

TASKS_VERSION = "2025-11-25"
"""The first version in which a caller can ask for a task."""

_PLAIN = (ID, "status", "statusMessage", "createdAt", "lastUpdatedAt", "ttl", "pollInterval")

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_state(payload: Payload) -> ServerTaskState | None:
    """The state of a task in a result or a notification; None if the message is about no task."""
    members = _read(payload)
    return state_of(_read(members[TASK]) if TASK in members else members)


def state_of(members: Members) -> ServerTaskState | None:
    """The state of a task from its members; None if they are invalid."""
    id, status = read_string(members.get(ID)), read_string(members.get("status"))
    if id is None or len(id) > ID_LENGTH_MAX or status not in STATUSES:
        return None
    ttl = members.get("ttl", members.get("ttlMs"))
    if sum(len(key) + len(memoryview(value)) for key, value in members.items()) > STATE_BYTES_MAX:
        short = {key for key, value in members.items() if len(memoryview(value)) <= MEMBER_BYTES_MAX} | {ID}
        members = {key: members[key] for key in _PLAIN if key in members and key in short}
    stored = {key: value.copy() for key, value in members.items()}
    return ServerTaskState(id, status, status in ENDS, None if ttl is None else read_seconds(ttl), stored)


class TaskSummary(msgspec.Struct, frozen=True):
    """The state of a hub task, as far as both eras share it. Times are seconds of the epoch."""

    id: str
    status: str
    created: float
    updated: float
    ttl_seconds: float
    message: str = ""


def legacy_state(summary: TaskSummary) -> dict[str, Payload]:
    """The state of a task for legacy callers."""
    return _state(summary, "ttl", "pollInterval")


def modern_state(summary: TaskSummary) -> dict[str, Payload]:
    """The state of a task for modern callers."""
    return _state(summary, "ttlMs", "pollIntervalMs")


def _state(summary: TaskSummary, ttl: str, poll: str) -> dict[str, Payload]:
    written: dict[str, object] = {ID: summary.id, "status": summary.status}
    if summary.message:
        written["statusMessage"] = summary.message
    written |= {"createdAt": _moment(summary.created), "lastUpdatedAt": _moment(summary.updated)}
    written |= {ttl: int(summary.ttl_seconds * 1000), poll: POLL_MS}
    return {key: msgspec.json.encode(value) for key, value in written.items()}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def related_to(id: str, members: Members) -> Members:
    """The members of a message, with the task that it relates to."""
    meta = _read(members.get("_meta", msgspec.Raw(b"{}")))
    related = msgspec.Raw(msgspec.json.encode({ID: id}))
    return {**members, "_meta": msgspec.Raw(render({**meta, RELATED: related}))}


class _TaskRequest(msgspec.Struct):
    ttl: float | None = None


_WANTED = msgspec.json.Decoder(_TaskRequest)


def read_ttl(wanted: msgspec.Raw) -> float | str | None:
    """The `ttl` of a task request in seconds, None if it has none; or what is wrong with it."""
    try:
        ttl = _WANTED.decode(wanted).ttl
    except msgspec.MsgspecError:
        return "task must be an object whose ttl is a number of milliseconds"
    if ttl is None:
        return None
    return ttl / 1000 if 0 <= ttl < float("inf") else f"the ttl of a task must be finite and at least 0, not {ttl:g}"


def is_task_required(execution: Payload) -> bool:
    """Whether a tool's `execution` says that the tool runs only as a task."""
    return read_string(_read(execution).get("taskSupport")) == "required"


def with_task_support(definition: Members) -> Members:
    """A tool's definition which says that the tool may run as a task."""
    execution = _read(definition.get("execution", msgspec.Raw(b"{}")))
    return {**definition, "execution": msgspec.Raw(render({**execution, "taskSupport": b'"optional"'}))}


def read_poll_seconds(payload: Payload) -> float | None:
    """The poll interval that a server names for a task; None if it names none."""
    written = _read(payload).get("pollIntervalMs")
    return None if written is None else read_seconds(written)


def list_result(states: Iterable[Payload], cursor: str | None) -> bytes:
    """A page of tasks; `cursor` is that of the next page."""
    members: dict[str, Payload] = {"tasks": b"[" + b",".join(states) + b"]"}
    if cursor is not None:
        members["nextCursor"] = msgspec.json.encode(cursor)
    return render(members)


def rename_related(members: Members, rename: Callable[[str], str | None]) -> Members:
    """The members of a message with the id of its related task renamed; a task that `rename` rejects is left out."""
    meta = _read(members.get("_meta", msgspec.Raw(b"{}")))
    if RELATED not in meta:
        return members
    return {**members, "_meta": msgspec.Raw(render(rename_related_meta(meta, rename)))}


def rename_related_meta(meta: Members, rename: Callable[[str], str | None]) -> Members:
    """The same for the members of a `_meta`."""
    related = _read(meta.get(RELATED, msgspec.Raw(b"{}")))
    id = read_string(related.get(ID))
    name = None if id is None else rename(id)
    if name is None:
        return {key: value for key, value in meta.items() if key != RELATED}
    return {**meta, RELATED: msgspec.Raw(render({**related, ID: msgspec.json.encode(name)}))}


def rename_ids(payload: Payload, rename: Callable[[str], str]) -> Payload:
    """A result, or the parameters of a message, with all ids of its task renamed."""
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
