"""The requests of MCP that go to a server and come back with its answer, which both eras write alike.

Running a tool, writing out a prompt, reading a resource, completing an argument. Used by faces (to read requests)
and by links (to write them anew, from what was authorised, never from what was received).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from isthmus.model.calls import TASK_KINDS, Kind
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.messages import Members, is_object, read_seconds, read_string

CALL_MEMBERS = frozenset({"name", "arguments", "_meta"})
EMPTY_OBJECT = msgspec.Raw(b"{}")

METHODS: dict[Kind, str] = {
    "tool": "tools/call",
    "prompt": "prompts/get",
    "resource": "resources/read",
    "prompt_argument": "completion/complete",
    "uri_argument": "completion/complete",
    "task": "tasks/get",
    "task_result": "tasks/result",
    "task_cancel": "tasks/cancel",
    "task_update": "tasks/update",
}
"""How each kind of call is asked for; a `method` is that itself."""

CALLS = frozenset(METHODS.values())

_TASKS: dict[str, Kind] = {METHODS[kind]: kind for kind in TASK_KINDS}

_MEMBERS = {
    "tools/call": CALL_MEMBERS,
    "prompts/get": CALL_MEMBERS,
    "resources/read": frozenset({"uri", "_meta"}),
    "completion/complete": frozenset({"ref", "argument", "_meta"}),
    **dict.fromkeys(_TASKS, frozenset({"taskId", "_meta"})),
}
"""Members that the hub reads and writes itself; others travel untouched."""


class CallRequest(msgspec.Struct, frozen=True):
    """The parameters of such a request, read."""

    name: str
    arguments: msgspec.Raw
    meta: Members
    extra: Members
    kind: Kind = "tool"


def read_request(method: str, params: Members, meta: Members | None = None) -> CallRequest | str:
    """Read a request's parameters, or say what is wrong with them; `meta` is given where it was read before."""
    if meta is None and (meta := object_members(params["_meta"]) if "_meta" in params else {}) is None:
        return "_meta must be an object without repeated members"
    extra = {} if params.keys() <= _MEMBERS[method] else _extra(method, params)
    if isinstance(extra, str):
        return extra
    if method == "tools/call":  # first, and on its own, because nearly all are
        name = read_string(params.get("name"))
        arguments = params.get("arguments", EMPTY_OBJECT)
        if name is not None and is_object(arguments):
            return CallRequest(name, arguments, meta, extra)
        return _read_named("tool", method, params, meta, extra)
    if method == "prompts/get":
        return _read_named("prompt", method, params, meta, extra)
    if method == "resources/read":
        return _read_read(params, meta, extra)
    if method in _TASKS:
        return _read_task(_TASKS[method], params, meta, extra)
    return _read_completion(params, meta, extra)


def _extra(method: str, params: Members) -> Members | str:
    known = _MEMBERS[method]
    extra = {key: value for key, value in params.items() if key not in known}
    for key in extra:
        # A server that ignores case would take `Name` for `name`, which is not what was authorised.
        if key.casefold() in known:
            return f"{key!r} is not a member of {method}; did you mean {key.casefold()!r}?"
    return extra


def _read_named(kind: Kind, method: str, params: Members, meta: Members, extra: Members) -> CallRequest | str:
    name = read_string(params.get("name"))
    if name is None:
        return f"{method} needs a name, a string"
    arguments = params.get("arguments", EMPTY_OBJECT)
    if not is_object(arguments):
        return "arguments must be an object"
    return CallRequest(name, arguments, meta, extra, kind)


def _read_read(params: Members, meta: Members, extra: Members) -> CallRequest | str:
    uri = read_string(params.get("uri"))
    if uri is None:
        return "resources/read needs a uri, a string"
    return CallRequest(uri, EMPTY_OBJECT, meta, extra, "resource")


def _read_task(kind: Kind, params: Members, meta: Members, extra: Members) -> CallRequest | str:
    id = read_string(params.get("taskId"))
    if id is None:
        return f"{METHODS[kind]} needs a taskId, a string"
    return CallRequest(id, EMPTY_OBJECT, meta, extra, kind)


_REFERENCES: dict[str, tuple[Kind, str]] = {
    "ref/prompt": ("prompt_argument", "name"),
    "ref/resource": ("uri_argument", "uri"),
}


def _read_completion(params: Members, meta: Members, extra: Members) -> CallRequest | str:
    ref = object_members(params.get("ref", b"")) or {}
    kind, key = _REFERENCES.get(read_string(ref.get("type")) or "", (None, ""))
    if kind is None:
        return "completion/complete needs a ref whose type is ref/prompt or ref/resource"
    name = read_string(ref.get(key))
    if name is None:
        return f"the ref of completion/complete needs a {key}, a string"
    argument = params.get("argument", msgspec.Raw(b"null"))
    if not is_object(argument):
        return "completion/complete needs an argument, an object"
    return CallRequest(name, argument, meta, extra, kind)


def call_params(name: str, arguments: Payload, meta: Payload | None, extra: Mapping[str, Payload]) -> bytes:
    """Write `tools/call` parameters."""
    head = b'{"name":' + msgspec.json.encode(name) + b',"arguments":'
    tail = b"}" if meta is None else b"".join((b',"_meta":', meta, b"}"))
    if extra:
        tail = b"," + render(extra)[1:-1] + tail
    return b"".join((head, arguments, tail))


def request_params(
    kind: Kind, name: str, arguments: Payload, meta: Payload | None, extra: Mapping[str, Payload]
) -> bytes:
    """Write the parameters of any kind of call."""
    if kind == "tool":
        return call_params(name, arguments, meta, extra)
    if kind == "method":
        return _method_params(arguments, meta, extra)
    members: dict[str, Payload] = {**_subject(kind, msgspec.json.encode(name), arguments), **extra}
    if meta is not None:
        members["_meta"] = meta
    return render(members)


def _method_params(arguments: Payload, meta: Payload | None, extra: Mapping[str, Payload]) -> bytes:
    """Write the parameters of any method: as they are, save that what `_meta` says is for the hub to say."""
    members: dict[str, Payload] = {**(object_members(arguments) or {}), **extra}
    members.pop("_meta", None)
    if meta is not None:
        members["_meta"] = meta
    return render(members)


def _subject(kind: Kind, name: bytes, arguments: Payload) -> dict[str, Payload]:
    match kind:
        case "tool" | "prompt":
            return {"name": name} if bytes(arguments) == b"{}" else {"name": name, "arguments": arguments}
        case "resource":
            return {"uri": name}
        case "prompt_argument":
            return {"ref": render({"type": b'"ref/prompt"', "name": name}), "argument": arguments}
        case "uri_argument":
            return {"ref": render({"type": b'"ref/resource"', "uri": name}), "argument": arguments}
        case "task" | "task_result" | "task_cancel" | "task_update":
            return {"taskId": name}
        case "method":
            return {}


class _CallResult(msgspec.Struct):
    isError: bool | None = False
    resultType: str | msgspec.UnsetType | None = msgspec.UNSET


class _ReadResult(msgspec.Struct):
    resultType: str | None = None
    ttlMs: msgspec.Raw = msgspec.Raw(b"null")
    cacheScope: msgspec.Raw = msgspec.Raw(b"null")


_CALL_RESULT = msgspec.json.Decoder(_CallResult)
_READ_RESULT = msgspec.json.Decoder(_ReadResult)


class CallAnswer(msgspec.Struct, frozen=True):
    """What the hub needs to know of a call's result; the rest stays text."""

    is_error: bool
    result_type: str | None
    ttl_seconds: float = 0.0
    """How long the server says that this may be given again, to the same caller or (`is_public`) to anybody."""
    is_public: bool = False
    has_type: bool = False
    """It has a `resultType`, be it null."""


def read_call_result(result: Payload) -> CallAnswer | None:
    """Read the two members of a result that matter here; None if it is not a result object."""
    try:
        answer = _CALL_RESULT.decode(result)
    except msgspec.MsgspecError:
        return None
    if answer.resultType is msgspec.UNSET:
        return CallAnswer(bool(answer.isError), None)
    return CallAnswer(bool(answer.isError), answer.resultType, has_type=True)


def read_any_result(result: msgspec.Raw) -> CallAnswer | None:
    """Of what any method answers, nothing needs to be known; None if it is not a result object."""
    return CallAnswer(is_error=False, result_type=None) if is_object(result) else None


def read_resource_result(result: Payload) -> CallAnswer | None:
    """Read what a resource's content says of itself; None if it is not a result object."""
    try:
        answer = _READ_RESULT.decode(result)
    except msgspec.MsgspecError:
        return None
    seconds = read_seconds(answer.ttlMs) or 0.0
    return CallAnswer(False, answer.resultType, seconds, read_string(answer.cacheScope) == "public")
