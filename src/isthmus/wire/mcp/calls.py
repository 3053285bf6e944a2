"""The requests of MCP that go to a server and come back with its answer, which both eras write alike.

Running a tool, writing out a prompt, reading a resource, completing an argument. Used by faces (to read requests)
and by links (to write them anew, from what was authorised, never from what was received).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from isthmus.model.calls import TASK_KINDS, Kind, Result
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.hub_meta import CONVERSATION_KEY
from isthmus.wire.mcp.input_requests import RESPONSES, STATE
from isthmus.wire.mcp.messages import PROGRESS_TOKEN, Members, is_object, read_seconds, read_string
from isthmus.wire.mcp.modern import OWN_KEYS
from isthmus.wire.mcp.tasks import RELATED, rename_related_meta

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
    resultType: str | None = None


class _ReadResult(msgspec.Struct):
    resultType: str | None = None
    ttlMs: msgspec.Raw = msgspec.Raw(b"null")
    cacheScope: msgspec.Raw = msgspec.Raw(b"null")


_CALL_RESULT = msgspec.json.Decoder(_CallResult)
_READ_RESULT = msgspec.json.Decoder(_ReadResult)


class CallResultInfo(msgspec.Struct, frozen=True):
    """What the hub needs to know of a call's result; the rest stays text."""

    is_error: bool
    result_type: str | None
    ttl_seconds: float = 0.0
    """How long the server says that this may be given again, to the same caller or (`is_public`) to anybody."""
    is_public: bool = False


def read_call_result(result: Payload) -> CallResultInfo | None:
    """Read the two members of a result that matter here; None if it is not a result object."""
    try:
        answer = _CALL_RESULT.decode(result)
    except msgspec.MsgspecError:
        return None
    return CallResultInfo(bool(answer.isError), answer.resultType)


def read_any_result(result: msgspec.Raw) -> CallResultInfo | None:
    """Of what any method answers, nothing needs to be known; None if it is not a result object."""
    return CallResultInfo(is_error=False, result_type=None) if is_object(result) else None


def read_resource_result(result: Payload) -> CallResultInfo | None:
    """Read what a resource's content says of itself; None if it is not a result object."""
    try:
        answer = _READ_RESULT.decode(result)
    except msgspec.MsgspecError:
        return None
    seconds = read_seconds(answer.ttlMs) or 0.0
    return CallResultInfo(False, answer.resultType, seconds, read_string(answer.cacheScope) == "public")


INPUT_MEMBERS = frozenset({RESPONSES, STATE})
"""What answers a modern server's questions, and the state it gave with them, which it would believe of anybody."""

_HOP_KEYS = frozenset(key.casefold() for key in (*OWN_KEYS, CONVERSATION_KEY, PROGRESS_TOKEN, RELATED))


def passed_meta(meta: Members, rename: Callable[[str], str | None]) -> Members:
    """Members of `_meta` that travel on; `rename` gives a server's own id for the task to which they relate, if any."""
    if meta.keys() <= OWN_KEYS:
        return {}
    passed = {key: value for key, value in meta.items() if key.casefold() not in _HOP_KEYS}
    related = rename_related_meta({RELATED: meta[RELATED]}, rename) if RELATED in meta else {}
    return {**passed, **related}


def passed_extra(extra: Members, ours: frozenset[str], kept: frozenset[str] = frozenset()) -> Members:
    """Members beside those that the hub reads, without `ours`; of these, `kept` may stand in their own spelling."""
    spelt = {key.casefold() for key in ours}
    return {key: value for key, value in extra.items() if key in kept or key.casefold() not in spelt}


_encode = msgspec.json.Encoder().encode


class _ContentBlock(msgspec.Struct):
    type: Literal["text", "image", "audio", "resource", "resource_link"]


class _ToolResult(msgspec.Struct):
    content: list[_ContentBlock]
    isError: bool | None = False
    resultType: Literal["complete"] | None = None


class _Flag(msgspec.Struct):
    isError: bool | None = False


_TOOL_RESULT = msgspec.json.Decoder(_ToolResult)
_FLAG = msgspec.json.Decoder(_Flag)


def tool_result(value: Payload) -> Result:
    """The result that says `value`: itself if it is one already, otherwise the value as text and as structure."""
    if bytes(memoryview(value)[:1]) != b"{":
        return json_tool_result(value)
    try:
        known = _TOOL_RESULT.decode(value)
    except msgspec.MsgspecError:
        # Content of kinds that MCP does not have would make clients refuse the whole answer.
        return json_tool_result(value, is_error=_says_error(value))
    return Result(msgspec.Raw(value), bool(known.isError), known.resultType is not None)


def untouched_result(value: Payload) -> Result:
    """What a plain JSON-RPC server returned, unchanged; it is bare unless it happens to be a tool result of MCP."""
    try:
        known = _TOOL_RESULT.decode(value)
    except msgspec.MsgspecError:
        return Result(msgspec.Raw(value), _says_error(value), is_bare=True)
    return Result(msgspec.Raw(value), bool(known.isError), known.resultType is not None)


def wrap_bare_result(result: Result) -> Result:
    """A bare result for a protocol that carries only tool results of MCP: the same JSON as text and as structure."""
    return json_tool_result(result.payload, is_error=result.is_error)


def _says_error(value: Payload) -> bool:
    try:
        return bool(_FLAG.decode(value).isError)
    except msgspec.MsgspecError:
        return False


def json_tool_result(value: Payload, *, is_error: bool = False) -> Result:
    """A result with the value as text, and as structured content, which must be an object."""
    start = bytes(memoryview(value)[:1])
    text = value if start == b'"' else _encode(str(memoryview(value), "utf-8"))
    parts = (value,) if start == b"{" else (b'{"result":', value, b"}")
    return Result(msgspec.Raw(b"".join((_HEAD, text, _MIDDLE, *parts, _TAILS[is_error]))), is_error)


def failed_tool_result(words: str) -> Result:
    """The result of a tool that ran and failed."""
    return Result(msgspec.Raw(b"".join((_HEAD, _encode(words), b"}]", _TAILS[True]))), is_error=True)


_HEAD = b'{"content":[{"type":"text","text":'
_MIDDLE = b'}],"structuredContent":'
_TAILS = {False: b',"isError":false}', True: b',"isError":true}'}
