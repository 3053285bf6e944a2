"""Malformed requests to the agent, generated from valid ones in every generation, with the expected answers.

`VALID` has each method's members with what they must be, which is the specification written down a second time. From it
`mutations` makes bodies with one member changed, and `code_of` says what then has to come back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.frontends.wire import encoded

PARSE, INVALID, UNKNOWN_METHOD, PARAMS, NOT_FOUND = -32700, -32600, -32601, -32602, -32001
VERSION, NO_CARD, UNSUPPORTED, CONTENT = -32009, -32007, -32004, -32005

Kind = Literal[
    "id", "id?", "text", "text?", "count?", "size?", "flag?", "object", "object?", "data", "any",
    "array", "texts", "texts?", "state?", "time?", "word", "word?", "proof?",
]  # fmt: skip
"""What a member must be; with a question mark it may be absent, or null. A word is one of a few texts, data an object
that nobody looks into, and any may be whatever there is."""

LONG = json.dumps("x" * 300)
DEEP = "[" * 100 + "]" * 100
CHANGES = (
    "drop", "null", "7", "-1", "1.5", '"x"', '""', LONG, "true", "[]", "[null]", "{}", '{"a":{}}', DEEP,
    "double", "other case",
)  # fmt: skip

_ABSENT = {"drop", "null", "other case"}
_OBJECTS = {"{}", '{"a":{}}'}
FITTING: Mapping[Kind, set[str]] = {
    "id": {'"x"'},
    "id?": {*_ABSENT, '"x"', '""'},
    "text": {'"x"', '""', LONG},
    "text?": {*_ABSENT, '"x"', '""', LONG},
    "count?": {*_ABSENT, "7"},
    "size?": {*_ABSENT, "7"},
    "flag?": {*_ABSENT, "true"},
    "object": set(),
    "object?": {*_ABSENT, *_OBJECTS},
    "data": _OBJECTS,
    "any": {*CHANGES} - {"drop", "other case"},
    "array": set(),
    "texts": {"[]"},
    "texts?": {*_ABSENT, "[]"},
    "state?": {*_ABSENT, '""'},
    "time?": _ABSENT,
    "word": set(),
    "word?": {"drop", "other case"},
    "proof?": _ABSENT,
}


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the parameters, and what it must be."""

    value: Any
    kind: Kind
    fine: Mapping[str, int | None] | None = None
    """Codes of changes that fit and still have a consequence of their own."""


Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Valid:
    """A valid request; `code` is what comes of it (None: a result)."""

    method: str
    members: Tree
    code: int | None

    @property
    def params(self) -> Any:
        """Its parameters."""
        return _value(self.members)


def _without(tree: Tree, name: str) -> Tree:
    return {key: node for key, node in tree.items() if key != name}


def _value(node: Any) -> Any:
    if isinstance(node, Member):
        return node.value
    if isinstance(node, list):
        return [_value(each) for each in node]
    return {key: _value(each) for key, each in node.items() if not key.startswith(":")}


def _kind(node: Any) -> Kind:
    """What a node must be; of objects and arrays `:kind` says it."""
    if isinstance(node, Member):
        return node.kind
    kind: Kind = "array" if isinstance(node, list) else node.get(":kind", "object")
    return kind


# -- what is valid -------------------------------------------------------------------------------------------------

NOBODY = "no-such-task"
RUN = {"tool": "builtin.echo", "arguments": {"text": "hi"}}
MAYBE: Tree = {":kind": "object?"}
META = Member({"a": 1}, "object?")
HOOK = Member("https://198.41.0.4/hook", "text", {'""': PARAMS})
"""Which addresses are fit for one is asked when there is such a task."""
TASK_ID = Member(None, "id?", {'"x"': NOT_FOUND})

PART_1_0: Tree = {
    "data": Member(RUN, "any"),
    "mediaType": Member("application/json", "text?"),
    "metadata": META,
}
SAID_1_0: Tree = {
    "messageId": Member("m1", "id"),
    "role": Member("ROLE_USER", "word"),
    "parts": [PART_1_0],
    "contextId": Member("c", "id?"),
    "taskId": TASK_ID,
    "metadata": META,
    "extensions": Member(["u"], "texts?"),
    "referenceTaskIds": Member(["t"], "texts?"),
}
SEND_1_0: Tree = {
    "message": SAID_1_0,
    "configuration": {
        **MAYBE,
        "acceptedOutputModes": Member(["text/plain"], "texts?"),
        "historyLength": Member(2, "count?"),
        "returnImmediately": Member(True, "flag?"),
    },
    "metadata": META,
}
LIST_1_0: Tree = {
    "contextId": Member("nobody's", "id?"),
    "status": Member("TASK_STATE_WORKING", "state?"),
    "pageSize": Member(5, "size?"),
    "pageToken": Member("", "text?", {'"x"': PARAMS, LONG: PARAMS}),
    "historyLength": Member(1, "count?"),
    "statusTimestampAfter": Member("2026-01-01T00:00:00Z", "time?"),
    "includeArtifacts": Member(False, "flag?"),
}
TASK: Tree = {"id": Member(NOBODY, "id")}
GET: Tree = {**TASK, "historyLength": Member(1, "count?")}
CANCEL: Tree = {**TASK, "metadata": META}
PUSH_1_0: Tree = {
    "taskId": Member(NOBODY, "id"),
    "url": HOOK,
    "id": Member("p", "id?"),
    "token": Member("t", "text?"),
    "authentication": {":kind": "proof?", "scheme": Member("Bearer", "text"), "credentials": Member("c", "text?")},
}
NAMED_1_0: Tree = {"taskId": Member(NOBODY, "id"), "id": Member("p", "id")}

V1_0 = (
    Valid("SendMessage", SEND_1_0, None),
    Valid("SendStreamingMessage", SEND_1_0, None),
    Valid("GetTask", GET, NOT_FOUND),
    Valid("ListTasks", LIST_1_0, None),
    Valid("CancelTask", CANCEL, NOT_FOUND),
    Valid("SubscribeToTask", TASK, NOT_FOUND),
    Valid("CreateTaskPushNotificationConfig", PUSH_1_0, NOT_FOUND),
    Valid("GetTaskPushNotificationConfig", NAMED_1_0, NOT_FOUND),
    Valid(
        "ListTaskPushNotificationConfigs",
        {"taskId": Member(NOBODY, "id"), "pageSize": Member(5, "count?"), "pageToken": Member("", "text?")},
        NOT_FOUND,
    ),
    Valid("DeleteTaskPushNotificationConfig", NAMED_1_0, NOT_FOUND),
    Valid("GetExtendedAgentCard", {}, UNSUPPORTED),
)

SAID_0_3: Tree = {
    "kind": Member("message", "word?"),
    "messageId": Member("m1", "id"),
    "role": Member("user", "word"),
    "parts": [{"kind": Member("data", "word"), "data": Member(RUN, "data"), "metadata": META}],
    "contextId": Member("c", "id?"),
    "taskId": TASK_ID,
    "metadata": META,
    "extensions": Member(["u"], "texts?"),
    "referenceTaskIds": Member(["t"], "texts?"),
}
SEND_0_3: Tree = {
    "message": SAID_0_3,
    "configuration": {
        **MAYBE,
        "acceptedOutputModes": Member(["text/plain"], "texts?"),
        "historyLength": Member(2, "count?"),
        "blocking": Member(False, "flag?"),
    },
    "metadata": META,
}
PUSH_0_3: Tree = {
    "taskId": Member(NOBODY, "id"),
    "pushNotificationConfig": {
        "url": HOOK,
        "id": Member("p", "id?"),
        "token": Member("t", "text?"),
        "authentication": {
            ":kind": "proof?",
            "schemes": Member(["Bearer"], "texts"),
            "credentials": Member("c", "text?"),
        },
    },
}
NAMED_0_3: Tree = {**TASK, "pushNotificationConfigId": Member("p", "id")}

V0_3 = (
    Valid("message/send", SEND_0_3, None),
    Valid("message/stream", SEND_0_3, None),
    Valid("tasks/get", GET, NOT_FOUND),
    Valid("tasks/cancel", CANCEL, NOT_FOUND),
    Valid("tasks/resubscribe", TASK, NOT_FOUND),
    Valid("tasks/pushNotificationConfig/set", PUSH_0_3, NOT_FOUND),
    Valid("tasks/pushNotificationConfig/get", {**TASK, "pushNotificationConfigId": Member("p", "id?")}, NOT_FOUND),
    Valid("tasks/pushNotificationConfig/list", TASK, NOT_FOUND),
    Valid("tasks/pushNotificationConfig/delete", NAMED_0_3, NOT_FOUND),
    Valid("agent/getAuthenticatedExtendedCard", {}, NO_CARD),
)

SAID_0_1: Tree = {
    "role": Member("user", "word"),
    "parts": [{"type": Member("data", "word"), "data": Member(RUN, "data"), "metadata": META}],
    "metadata": META,
}
SEND_0_1: Tree = {
    "id": Member("mine", "id"),
    "sessionId": Member(None, "id?"),
    "message": SAID_0_1,
    "acceptedOutputModes": Member(["text"], "texts?"),
    "historyLength": Member(0, "count?"),
    "metadata": META,
}
V0_1 = (
    Valid("tasks/send", SEND_0_1, None),
    # Without a message it is AgentVault's, and about a task that there must be.
    Valid(
        "tasks/sendSubscribe", {**SEND_0_1, "message": {**SAID_0_1, ":fine": dict.fromkeys(_ABSENT, NOT_FOUND)}}, None
    ),
    Valid(
        "tasks/pushNotification/set",
        {**TASK, "pushNotificationConfig": {"url": HOOK, "token": Member("t", "text?")}},
        NOT_FOUND,
    ),
    Valid("tasks/pushNotification/get", TASK, NOT_FOUND),
)

SAID_VAULT: Tree = {
    "role": Member("user", "word"),
    "parts": [
        {
            "type": Member("data", "word"),
            "content": Member(RUN, "data"),
            "mediaType": Member("application/json", "text?"),
        }
    ],
    "metadata": META,
}
VAULT = (
    Valid("tasks/send", {"message": SAID_VAULT}, None),
    Valid("tasks/sendSubscribe", {"message": SAID_VAULT}, None),
    Valid("tasks/sendSubscribe", TASK, NOT_FOUND),
)

VALID: tuple[Valid, ...] = (*V1_0, *V0_3, *V0_1, *VAULT)

# In the plain binding the path says which task is meant, and the body the rest.

SAID_0_3_PLAIN: Tree = {
    "messageId": Member("m1", "id"),
    "role": Member("ROLE_USER", "word"),
    "content": [{"data": {"data": Member(RUN, "data")}, "metadata": META}],
    "contextId": Member("c", "id?"),
    "taskId": TASK_ID,
    "metadata": META,
    "extensions": Member(["u"], "texts?"),
}
PLAIN: tuple[Valid, ...] = (
    Valid("POST message:send", SEND_1_0, None),
    Valid("POST message:stream", SEND_1_0, None),
    Valid("POST a-tenant/message:send", SEND_1_0, None),
    Valid("POST tasks/none:cancel", {"metadata": META}, NOT_FOUND),
    Valid("POST tasks/none:subscribe", {}, NOT_FOUND),
    Valid("POST tasks/none/pushNotificationConfigs", _without(PUSH_1_0, "taskId"), NOT_FOUND),
    Valid("POST v1/message:send", {**SEND_0_3, "message": SAID_0_3_PLAIN}, None),
    Valid("POST v1/message:stream", {**SEND_0_3, "message": SAID_0_3_PLAIN}, None),
    Valid("POST v1/tasks/none:cancel", {}, NOT_FOUND),
    Valid("POST v1/tasks/none:subscribe", {}, NOT_FOUND),
)

_OK = ("true", "false")
LINES: dict[str, int | None] = {
    "GET tasks": None,
    **{f"GET tasks?pageSize={value}": None for value in ("1", "100")},
    **{f"GET tasks?pageSize={value}": PARAMS for value in ("0", "101", "-1", "1.5", "1e1", "x", "", "9" * 40, "%00")},
    **{f"GET tasks?historyLength={value}": PARAMS for value in ("-1", "1.5", "x", "", "9" * 40)},
    **{f"GET tasks?includeArtifacts={value}": None for value in _OK},
    **{f"GET tasks?includeArtifacts={value}": PARAMS for value in ("1", "TRUE", "x", "")},
    **{f"GET tasks?status={value}": None for value in ("TASK_STATE_WORKING", "TASK_STATE_UNSPECIFIED", "")},
    **{f"GET tasks?status={value}": PARAMS for value in ("working", "x", "7", "%ff")},
    **{f"GET tasks?statusTimestampAfter={value}": PARAMS for value in ("x", "2026-13-01T00:00:00Z", "1")},
    **{f"GET tasks?contextId={value}": None for value in ("x", "", "%F0%9F%98%80", "%ff", "%00")},
    f"GET tasks?contextId={'x' * 300}": PARAMS,
    "GET tasks?pageToken=x": PARAMS,
    "GET tasks?pageToken=%ff": PARAMS,
    "GET tasks?page_size=101": PARAMS,
    "GET tasks?nothing=1&nothing=2": None,
    "GET tasks?" + "&".join(f"a{at}=1" for at in range(60)): INVALID,
    "GET tasks?A2A-Version=9.0": VERSION,
    "GET tasks?A2A-Version=0.3": VERSION,
    "GET tasks?A2A-Version=1.0": None,
    "GET tasks?A2A-Version=1.0.7": None,
    **{
        f"GET {at}": NOT_FOUND
        for at in ("tasks/none", "tasks/%00", "tasks/%ff", "tasks/a%2Fb", "tasks/..%2f", "tasks/%F0%9F%92%A5")
    },
    "GET tasks/none?historyLength=1": NOT_FOUND,
    "GET tasks/none?historyLength=x": PARAMS,
    f"GET tasks/{'x' * 300}": PARAMS,
    "GET tasks/none:subscribe": NOT_FOUND,
    "GET tasks/none/pushNotificationConfigs": NOT_FOUND,
    "GET tasks/none/pushNotificationConfigs/p": NOT_FOUND,
    "DELETE tasks/none/pushNotificationConfigs/p": NOT_FOUND,
    "GET extendedAgentCard": UNSUPPORTED,
    "GET v1/tasks/none": NOT_FOUND,
    "GET v1/tasks/none?historyLength=x": PARAMS,
    f"GET v1/tasks/{'x' * 300}": PARAMS,
    "GET v1/tasks/none:subscribe": NOT_FOUND,
    "GET v1/tasks/none/pushNotificationConfigs": NOT_FOUND,
    "GET v1/tasks/none/pushNotificationConfigs/p": NOT_FOUND,
    "DELETE v1/tasks/none/pushNotificationConfigs/p": NOT_FOUND,
    "GET v1/card": NO_CARD,
    "GET v1/tasks": UNKNOWN_METHOD,
    "GET v1/card?A2A-Version=1.0": INVALID,
    **{
        f"{verb} {at}": UNKNOWN_METHOD
        for verb in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS")
        for at in ("message:send", "v1/message:send", "nothing", "tasks/a/b/c/d", "tasks:", "v1/", "..")
    },
}
"""Requests without a body, and what comes of them."""


# -- what is changed -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One change of one member."""

    valid: Valid
    path: tuple[str, ...]
    change: str
    params: bytes
    code: int | None

    @property
    def label(self) -> str:
        """What it is about."""
        return f"{self.valid.method}: {'.'.join(self.path)} {self.change[:20]}"


def mutations(valid: Valid) -> Iterator[Case]:
    """Every change of every member of a valid request's parameters."""
    for path, node in _paths(valid.members, ()):
        for change in CHANGES:
            if (change == "double" and len(path) > 1) or (path[-1].isdigit() and change in _ABSENT - {"null"}):
                continue  # below the parameters the last of two counts, and an element has no name
            yield Case(valid, path, change, _changed(valid.params, path, change), code_of(valid, path, node, change))


_NUMBERS_AND_TEXTS = {"7", "-1", "1.5", '"x"', '""', LONG}
_NO_NAMES = {DEEP, "null", "7", "-1", "1.5", "true", "[]", "[null]", "{}", '{"a":{}}', '"x"', '""', LONG}


def envelopes(valid: Valid) -> Iterator[tuple[str, bytes, int | None]]:
    """Every change of every member of the request around the parameters: its label, the body, and the code."""
    request = {"jsonrpc": "2.0", "id": 41, "method": valid.method, "params": valid.params}
    for member in request:
        for change in CHANGES:
            label = f"{valid.method}: {member} {change[:20]}"
            yield label, _changed(request, (member,), change), _envelope_code(valid, member, change)


def _envelope_code(valid: Valid, member: str, change: str) -> int | None:
    match member:
        case "id" if change in _NUMBERS_AND_TEXTS:
            return valid.code
        case "method" if change in _NO_NAMES:
            return UNKNOWN_METHOD
        case "params" if change in {*_ABSENT, *_OBJECTS} - {"null", "other case"}:
            is_needed = any(_kind(node)[-1] != "?" for node in valid.members.values())
            return PARAMS if is_needed else valid.code
        case "params" if change in _NO_NAMES - {DEEP}:
            return PARAMS
        case _:
            return INVALID


def _paths(node: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(node, Member):
        return
    below = enumerate(node) if isinstance(node, list) else node.items()
    for key, child in below:
        if str(key).startswith(":"):
            continue
        path = (*above, str(key))
        yield path, child
        yield from _paths(child, path)


def code_of(valid: Valid, path: tuple[str, ...], node: Any, change: str) -> int | None:
    """What must come of a change: the protocol's rule, by what the member must be."""
    if change in (DEEP, "double"):
        return INVALID
    fine = node.fine or {} if isinstance(node, Member) else {} if isinstance(node, list) else node.get(":fine", {})
    if change in fine:
        code: int | None = fine[change]
        return code
    return valid.code if change in FITTING[_kind(node)] else PARAMS


def _changed(value: Any, path: tuple[str, ...], change: str) -> bytes:
    """The value as JSON, with the member at `path` changed."""
    if isinstance(value, list):
        below = [_changed_or(value[at], path, str(at), change) for at in range(len(value))]
        return b"[" + b",".join(below) + b"]"
    members: list[bytes] = []
    for key, each in value.items():
        if key == path[0] and len(path) == 1:
            members += _member(key, encoded(each), change)
        else:
            members.append(encoded(key) + b":" + _changed_or(each, path, key, change))
    return b"{" + b",".join(members) + b"}"


def _changed_or(value: Any, path: tuple[str, ...], key: str, change: str) -> bytes:
    if path[0] != key:
        return encoded(value)
    return _changed(value, path[1:], change) if len(path) > 1 else change.encode()


def _member(key: str, value: bytes, change: str) -> list[bytes]:
    match change:
        case "drop":
            return []
        case "double":
            return [encoded(key) + b":" + value] * 2
        case "other case":
            return [encoded(key.swapcase()) + b":" + value]
        case _:
            return [encoded(key) + b":" + change.encode()]
