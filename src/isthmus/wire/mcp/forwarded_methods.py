"""The MCP requests that become calls to a server, and their results, which both eras write alike.

These are `tools/call`, `prompts/get`, `resources/read`, `completion/complete` and `tasks/*`. Frontends read requests.
Links write them anew in the era of their server (`McpDialect`), from what was authorized and never from what was
received. Plain JSON values become tool results here, and the questions in `input_required` results are read and written
here. Values are built as text around text, so that megabytes are neither parsed nor rendered again.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from isthmus.model.calls import NO_CAPABILITIES, TASK_KINDS, Call, ClientCapabilities, Declined, Kind, Question, Result
from isthmus.model.json_members import known_members
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, object_members, only_members, render
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.messages import (
    CALLER_KEY,
    CONVERSATION_KEY,
    PROGRESS_TOKEN,
    Implementation,
    Members,
    is_object,
    read_seconds,
    read_string,
)
from isthmus.wire.mcp.modern import OWN_KEYS
from isthmus.wire.mcp.tasks import RELATED, rename_related_meta

EMPTY_OBJECT = msgspec.Raw(b"{}")

# -- questions of servers: `input_required` ------------------------------------------------------------------------

INPUT_REQUIRED = "input_required"
RESPONSES = "inputResponses"
STATE = "requestState"

CAPABILITY_NEEDED = {"elicitation/create": "elicitation", "roots/list": "roots", "sampling/createMessage": "sampling"}
"""The methods by which a server asks, and the client capability that each needs."""

QUESTIONS = frozenset(CAPABILITY_NEEDED)

COMPLETED = "notifications/elicitation/complete"
ELICITATION_ID = "elicitationId"
"""The legacy notification that the user has completed a URL elicitation."""

URL_ELICITATION_REQUIRED = -32042
"""The error of a server whose user must visit a URL first; its data contains the elicitations."""

QUESTIONS_MAX = 100
"""Questions that one result may hold."""


class InputRequests(msgspec.Struct, frozen=True):
    """The questions of a server by its own keys, and a state that it wants back."""

    questions: dict[str, Question]
    state: msgspec.Raw | None


def read_input_required(result: Payload) -> InputRequests | str:
    """Read an `input_required` result, or return what is wrong with it."""
    members = object_members(result) or {}
    asked = object_members(members.get("inputRequests", EMPTY_OBJECT))
    state = members.get(STATE)
    if asked is None or len(asked) > QUESTIONS_MAX:
        return "an input_required result with invalid inputRequests"
    if state is not None and read_string(state) is None:
        return "an input_required result whose requestState is not a string"
    if not asked and state is None:
        return "an input_required result without inputRequests and requestState"
    questions: dict[str, Question] = {}
    for key, raw in asked.items():
        request = object_members(raw) or {}
        method, params = read_string(request.get("method")), request.get("params", EMPTY_OBJECT)
        if method not in QUESTIONS or not is_object(params):
            return f"an input_required result with an unknown request ({key[:40]!r})"
        questions[key] = Question(method, params)
    return InputRequests(questions, state)


def as_legacy_request(question: Question, id: str) -> Question:
    """The question for a legacy caller: in that era a URL elicitation has an id."""
    members = object_members(question.params) or {}
    if question.method != "elicitation/create" or read_string(members.get("mode")) != "url":
        return question
    params = msgspec.Raw(render({ELICITATION_ID: msgspec.json.encode(id), **members}))
    return msgspec.structs.replace(question, params=params)


_LIST = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def read_url_elicitations(data: msgspec.Raw | None) -> list[msgspec.Raw]:
    """The ids of the elicitations in a `URL_ELICITATION_REQUIRED` error; empty if its data is invalid."""
    members = {} if data is None else object_members(data) or {}
    try:
        elicitations = _LIST.decode(members.get("elicitations", b"[]"))
    except msgspec.MsgspecError:
        return []
    return [members[ELICITATION_ID] for members in elicitations[:QUESTIONS_MAX] if ELICITATION_ID in members]


def write_input_required(questions: Mapping[str, Question], state: str) -> bytes:
    """An `input_required` result with these questions."""
    asked = {
        key: render({"method": msgspec.json.encode(question.method), "params": question.params})
        for key, question in questions.items()
    }
    return render(
        {"resultType": b'"input_required"', "inputRequests": render(asked), STATE: msgspec.json.encode(state)}
    )


def with_state(result: Payload, state: str) -> bytes:
    """A server's `input_required` result with another state."""
    return render({**(object_members(result) or {}), STATE: msgspec.json.encode(state)})


def read_responses(extra: Members) -> dict[str, msgspec.Raw] | None:
    """The answers in a caller's next call; None if they are not an object."""
    return object_members(extra[RESPONSES]) if RESPONSES in extra else {}


REFUSAL_KEY = "isthmus/refused"
"""Between the nodes of a cluster, in the `_meta` of an answer: `inputResponses` have no word for a refusal, which a
legacy server at the other node gets as an error."""


class _RefusalMeta(msgspec.Struct):
    refused: Declined | None = msgspec.field(name=REFUSAL_KEY, default=None)


class _Refusal(msgspec.Struct):
    meta: _RefusalMeta | None = msgspec.field(name="_meta", default=None)


_REFUSAL = msgspec.json.Decoder(_Refusal)


def write_refusal(refused: Declined) -> bytes:
    """A refusal in place of an answer, for another node."""
    return msgspec.json.encode(_Refusal(_RefusalMeta(refused)))


def read_refusal(answer: Payload) -> Declined | None:
    """The refusal that another node sends in place of an answer; None for an answer."""
    try:
        read = _REFUSAL.decode(answer)
    except msgspec.MsgspecError:
        return None
    return None if read.meta is None else read.meta.refused


# -- requests and results ------------------------------------------------------------------------------------------

CALL_MEMBERS = frozenset({"name", "arguments", "_meta"})

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
"""The method of each kind of call; the kind `method` has its method as name."""

CALLS = frozenset(METHODS.values())

_TASKS: dict[str, Kind] = {METHODS[kind]: kind for kind in TASK_KINDS}

_MEMBERS = {
    "tools/call": CALL_MEMBERS,
    "prompts/get": CALL_MEMBERS,
    "resources/read": frozenset({"uri", "_meta"}),
    "completion/complete": frozenset({"ref", "argument", "_meta"}),
    **dict.fromkeys(_TASKS, frozenset({"taskId", "_meta"})),
}
"""Members that the hub reads and writes itself; others are passed on unchanged."""


class CallRequest(msgspec.Struct, frozen=True):
    """The parameters of a request that becomes a call."""

    name: str
    arguments: msgspec.Raw
    meta: Members
    extra: Members
    kind: Kind = "tool"


def read_request(method: str, params: Members, meta: Members | None = None) -> CallRequest | str:
    """Read a request's parameters, or return what is wrong with them; `meta` is passed if it was read before."""
    if meta is None and (meta := object_members(params["_meta"]) if "_meta" in params else {}) is None:
        return "_meta must be an object without repeated members"
    extra: Members = {}
    known = _MEMBERS[method]
    if not params.keys() <= known:
        extra = {key: value for key, value in params.items() if key not in known}
        for key in extra:
            # A server that ignores case would read `Name` as `name`, which is not what was authorized.
            if key.casefold() in known:
                return f"{key!r} is not a member of {method}; did you mean {key.casefold()!r}?"
    if method in ("tools/call", "prompts/get"):  # first, because nearly all are
        if (name := read_string(params.get("name"))) is None:
            return f"{method} needs a name, a string"
        if not is_object(arguments := params.get("arguments", EMPTY_OBJECT)):
            return "arguments must be an object"
        return CallRequest(name, arguments, meta, extra, "tool" if method == "tools/call" else "prompt")
    if method == "completion/complete":
        return _read_completion(params, meta, extra)
    member, kind = ("taskId", _TASKS[method]) if method in _TASKS else ("uri", "resource")
    subject = read_string(params.get(member))
    if subject is None:
        return f"{method} needs a {member}, a string"
    return CallRequest(subject, EMPTY_OBJECT, meta, extra, kind)


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
    members: dict[str, Payload]
    if kind == "method":  # as they are, but with the hub's own `_meta`
        members = {**(object_members(arguments) or {}), **extra}
        members.pop("_meta", None)
    else:
        members = {**_subject(kind, msgspec.json.encode(name), arguments), **extra}
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


# -- parameters in a server's era ------------------------------------------------------------------------------------

ENVELOPES_MAX = 64

_NO_MEMBERS: Mapping[str, Payload] = {}


class McpDialect(Protocol):
    """Writes the parameters of requests."""

    era: Literal["legacy", "modern"]
    version: str
    probe: str
    """The cheapest method that every server of the era answers."""

    def params(
        self,
        members: Mapping[str, Payload] = _NO_MEMBERS,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        meta: Mapping[str, Payload] = _NO_MEMBERS,
    ) -> bytes:
        """Parameters of any request, for clients with these capabilities; `meta` is for `_meta` besides."""

    def call_params(self, call: Call, name: str, token: int) -> bytes:
        """Parameters of a call of the feature that the server calls `name`; `token` requests progress."""


class LegacyDialect:
    """A negotiated version; nothing is repeated per request."""

    era: Literal["legacy", "modern"] = "legacy"
    probe = "ping"

    def __init__(self, version: str = legacy.LATEST) -> None:
        self.version = version

    def params(
        self,
        members: Mapping[str, Payload] = _NO_MEMBERS,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        meta: Mapping[str, Payload] = _NO_MEMBERS,
    ) -> bytes:
        """The members only; the capabilities were sent in `initialize`."""
        return render({**members, "_meta": render(meta)} if meta else members)

    def call_params(self, call: Call, name: str, token: int) -> bytes:
        """`_meta` only if it has members."""
        if call.kind == "tool" and not (call.meta or call.wants_progress):
            return call_params(name, call.arguments, None, call.extra)  # nearly every call
        meta = _passed_on(call, token)
        return request_params(call.kind, name, call.arguments, render(meta) if meta else None, call.extra)


class ModernDialect:
    """Every request carries the hub's own envelope."""

    era: Literal["legacy", "modern"] = "modern"
    version = modern.VERSION
    probe = modern.DISCOVER

    def __init__(self, me: Implementation) -> None:
        self._me = me
        self._own = modern.envelope(me)
        self._bare = modern.request_meta(self._own, {})
        self._envelopes: dict[ClientCapabilities, bytes] = {}

    def params(
        self,
        members: Mapping[str, Payload] = _NO_MEMBERS,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        meta: Mapping[str, Payload] = _NO_MEMBERS,
    ) -> bytes:
        """The members and the envelope."""
        is_bare = not client_caps and not meta
        written = self._bare if is_bare else modern.request_meta(self._envelope(client_caps), meta)
        return render({**members, "_meta": written})

    def call_params(self, call: Call, name: str, token: int) -> bytes:
        """Always with `_meta`: the envelope, and the caller's own members."""
        if call.kind == "tool" and not (call.meta or call.client_caps or call.wants_progress or call.log_level):
            return call_params(name, call.arguments, self._bare, call.extra)  # nearly every call
        meta = _passed_on(call, token)
        if call.log_level is not None:
            meta[modern.LOG_KEY] = msgspec.json.encode(call.log_level)
        own = self._envelope(call.client_caps) if call.client_caps else self._own
        return request_params(call.kind, name, call.arguments, modern.request_meta(own, meta), call.extra)

    def _envelope(self, client_caps: ClientCapabilities) -> bytes:
        """The envelope for these capabilities; there are few different ones."""
        if client_caps not in self._envelopes:
            if len(self._envelopes) >= ENVELOPES_MAX:
                self._envelopes.clear()
            self._envelopes[client_caps] = modern.envelope(self._me, client_caps)
        return self._envelopes[client_caps]


def _passed_on(call: Call, token: int) -> dict[str, Payload]:
    meta: dict[str, Payload] = dict(call.meta)
    if call.wants_progress:
        meta[PROGRESS_TOKEN] = msgspec.json.encode(token)
    return meta


# -- results ---------------------------------------------------------------------------------------------------------


class _CallResult(msgspec.Struct):
    isError: bool | None = False
    resultType: str | msgspec.UnsetType | None = msgspec.UNSET


class _ReadResult(msgspec.Struct):
    resultType: str | None = None
    ttlMs: msgspec.Raw = msgspec.Raw(b"null")
    cacheScope: msgspec.Raw = msgspec.Raw(b"null")


_CALL_RESULT = msgspec.json.Decoder(_CallResult)
_READ_RESULT = msgspec.json.Decoder(_ReadResult)


class CallResultInfo(msgspec.Struct, frozen=True):
    """The members of a call's result that the hub reads."""

    is_error: bool
    result_type: str | None
    ttl_seconds: float = 0.0
    """How long the result may be cached, for the same caller or (`is_public`) for all callers."""
    is_public: bool = False
    has_type: bool = False
    """Whether the result has a `resultType`, even if it is null."""


def read_call_result(result: Payload) -> CallResultInfo | None:
    """Read a tool's result; None if it is not a result object."""
    try:
        answer = _CALL_RESULT.decode(only_members(result, "isError", "resultType"))
    except msgspec.MsgspecError:
        return None
    if answer.resultType is msgspec.UNSET:
        return CallResultInfo(bool(answer.isError), None)
    return CallResultInfo(bool(answer.isError), answer.resultType, has_type=True)


def read_any_result(result: msgspec.Raw) -> CallResultInfo | None:
    """Read the result of an arbitrary method; None if it is not an object."""
    return CallResultInfo(is_error=False, result_type=None) if is_object(result) else None


def read_resource_result(result: Payload) -> CallResultInfo | None:
    """Read a `resources/read` result with its caching members; None if it is not a result object."""
    try:
        answer = _READ_RESULT.decode(only_members(result, "resultType", "ttlMs", "cacheScope"))
    except msgspec.MsgspecError:
        return None
    seconds = read_seconds(answer.ttlMs) or 0.0
    return CallResultInfo(False, answer.resultType, seconds, read_string(answer.cacheScope) == "public")


INPUT_MEMBERS = frozenset({RESPONSES, STATE})
"""Answers to a modern server's questions, and the state that it sent with them. It would believe any caller's."""

_HOP_KEYS = frozenset(
    key.casefold() for key in (*OWN_KEYS, CALLER_KEY, CONVERSATION_KEY, PROGRESS_TOKEN, RELATED, "baggage")
)


def passed_meta(meta: Members, rename: Callable[[str], str | None]) -> Members:
    """The members of a caller's `_meta` that are passed on to the server. `rename` returns its own id for a task.

    The hub's own members are dropped in any spelling: to a server that ignores case, `ProgressToken` would name the
    progress of another call. `baggage` is dropped too: what a caller writes into it, a server would believe.
    """
    if meta.keys() <= OWN_KEYS:
        return {}
    passed = {key: value for key, value in meta.items() if key.casefold() not in _HOP_KEYS}
    related = rename_related_meta({RELATED: meta[RELATED]}, rename) if RELATED in meta else {}
    return {**passed, **related}


def passed_extra(extra: Members, ours: frozenset[str], kept: frozenset[str] = frozenset()) -> Members:
    """The extra members of a request without `ours` in any spelling; those in `kept` stay if spelt exactly so."""
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
_CONTENT = msgspec.json.Decoder(list[_ContentBlock])
_FLAG = msgspec.json.Decoder(_Flag)


def tool_result(value: Payload) -> Result:
    """A tool result for a JSON value: the value itself if it is one, else the value as text and structured content."""
    if bytes(memoryview(value)[:1]) != b"{":
        return json_tool_result(value)
    try:
        known = _read_tool_result(value)
    except msgspec.MsgspecError:
        # Clients reject the whole result if it has content of an unknown type.
        return json_tool_result(value, is_error=_says_error(value))
    return Result(_raw(value), bool(known.isError), known.resultType is not None)


def untouched_result(value: Payload) -> Result:
    """A plain JSON-RPC server's result, unchanged; marked as bare unless it is an MCP tool result."""
    try:
        known = _read_tool_result(value)
    except msgspec.MsgspecError:
        return Result(_raw(value), _says_error(value), is_bare=True)
    return Result(_raw(value), bool(known.isError), known.resultType is not None)


def decode_untouched(body: bytes | memoryview, *, max_depth: int) -> tuple[jsonrpc.Message, Result | None]:
    """Read a long response of a plain JSON-RPC server, and its result as `untouched_result` does."""
    return jsonrpc.finish(untouched_passes(body, max_depth=max_depth))


def untouched_passes(
    body: bytes | memoryview, *, max_depth: int
) -> jsonrpc.Passes[tuple[jsonrpc.Message, Result | None]]:
    """The passes of `decode_untouched`."""
    message = yield from jsonrpc.reply_passes(body, max_depth=max_depth)
    yield
    return message, untouched_result(message.result) if isinstance(message, jsonrpc.Response) else None


def _raw(value: Payload) -> msgspec.Raw:
    """A long object that knows its members stays the same object."""
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(value)


def _read_tool_result(value: Payload) -> _ToolResult:
    members = known_members(value)
    if members is None or "content" not in members:
        return _TOOL_RESULT.decode(value)
    few: dict[str, Payload] = {name: members[name] for name in ("isError", "resultType") if name in members}
    known = _TOOL_RESULT.decode(render({"content": b"[]", **few}))
    _CONTENT.decode(members["content"])
    return known


def wrap_bare_result(result: Result) -> Result:
    """A bare result as an MCP tool result: the same JSON as text and as structured content."""
    return json_tool_result(result.payload, is_error=result.is_error)


def _says_error(value: Payload) -> bool:
    try:
        return bool(_FLAG.decode(only_members(value, "isError")).isError)
    except msgspec.MsgspecError:
        return False


def json_tool_result(value: Payload, *, is_error: bool = False) -> Result:
    """A tool result with the value as text and as structured content; anything but an object is wrapped in one."""
    start = bytes(memoryview(value)[:1])
    texts = (value,) if start == b'"' else quoted(value)
    parts = (value,) if start == b"{" else (b'{"result":', value, b"}")
    whole = b"".join((_HEAD, *texts, _MIDDLE, *parts, _TAILS[is_error]))
    return Result(msgspec.Raw(whole), is_error, is_untyped=True)


def quoted(text: Payload | str) -> list[bytes]:
    """A text as a JSON string, in pieces: writing megabytes at once would hold the interpreter's lock."""
    whole = text if isinstance(text, str) else memoryview(text)
    if len(whole) <= _PIECE:
        return [_encode(whole if isinstance(whole, str) else str(whole, "utf-8"))]
    decode = codecs.getincrementaldecoder("utf-8")().decode
    pieces = [b'"']
    for at in range(0, len(whole), _PIECE):
        piece = whole[at : at + _PIECE]
        pieces.append(_encode(piece if isinstance(piece, str) else decode(piece, at + _PIECE >= len(whole)))[1:-1])
    return [*pieces, b'"']


_PIECE = 64 * 1024


def failed_tool_result(words: str) -> Result:
    """The result of a tool that ran and failed."""
    return Result(msgspec.Raw(b"".join((_HEAD, _encode(words), b"}]", _TAILS[True]))), is_error=True)


_HEAD = b'{"content":[{"type":"text","text":'
_MIDDLE = b'}],"structuredContent":'
_TAILS = {False: b',"isError":false}', True: b',"isError":true}'}
