"""The bindings of A2A to plain HTTP: that of 1.0, and that of 0.3 under `/v1`.

A request line, a query and a body become an operation; results are what the dialect writes, and problems have a status
and a body of their own. Nothing here knows a header except for the version. Called by the face.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Raw

from isthmus.wire.a2a import v0_3_rest, v1_0
from isthmus.wire.a2a.negotiate import PARAMETER, dialect_of, unsupported, version_of
from isthmus.wire.a2a.operations import Dialect, Operation, Problem
from isthmus.wire.a2a.parts import camel_members
from isthmus.wire.a2a.problems import status_0_3, status_1_0
from isthmus.wire.jsonrpc import PARSE_ERROR, Malformed, decode_object, object_members

FIELDS_MAX = 50
"""Parameters of a query, several times of what any operation has."""


class Binding(NamedTuple):
    """How one generation is spoken over plain HTTP."""

    dialect: Dialect
    write_problem: Callable[[Problem], tuple[int, bytes]]
    """Status and body of a problem."""


V1_0 = Binding(v1_0, status_1_0)
V0_3 = Binding(v0_3_rest, status_0_3)

_V0_3_PREFIX = "v1"
_TENANT = r"(?:[^/]+/)?"
"""1.0 allows a tenant before any path. Whose a task is, the caller's credential says, and never an address."""


def _routes(prefix: str, table: Mapping[str, str]) -> list[tuple[str, re.Pattern[str], str]]:
    """Routes in their order: verb, path and method, from lines as `GET tasks/{id}`."""
    routes: list[tuple[str, re.Pattern[str], str]] = []
    for line, method in table.items():
        verb, path = line.split(" ")
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
        routes.append((verb, re.compile(prefix + pattern), method))
    return routes


_ROUTES_1_0 = _routes(
    _TENANT,
    {
        "POST message:send": "SendMessage",
        "POST message:stream": "SendStreamingMessage",
        "POST tasks/{id}:cancel": "CancelTask",
        # Its protobuf says GET, its text POST.
        "GET tasks/{id}:subscribe": "SubscribeToTask",
        "POST tasks/{id}:subscribe": "SubscribeToTask",
        "POST tasks/{taskId}/pushNotificationConfigs": "CreateTaskPushNotificationConfig",
        "GET tasks/{taskId}/pushNotificationConfigs": "ListTaskPushNotificationConfigs",
        "GET tasks/{taskId}/pushNotificationConfigs/{id}": "GetTaskPushNotificationConfig",
        "DELETE tasks/{taskId}/pushNotificationConfigs/{id}": "DeleteTaskPushNotificationConfig",
        "GET tasks/{id}": "GetTask",
        "GET tasks": "ListTasks",
        "GET extendedAgentCard": "GetExtendedAgentCard",
    },
)
_ROUTES_0_3 = _routes(
    "",
    {
        "POST message:send": "message/send",
        "POST message:stream": "message/stream",
        "POST tasks/{id}:cancel": "tasks/cancel",
        "GET tasks/{id}:subscribe": "tasks/resubscribe",
        "POST tasks/{id}:subscribe": "tasks/resubscribe",
        "POST tasks/{taskId}/pushNotificationConfigs": "tasks/pushNotificationConfig/set",
        "GET tasks/{id}/pushNotificationConfigs": "tasks/pushNotificationConfig/list",
        "GET tasks/{id}/pushNotificationConfigs/{pushNotificationConfigId}": "tasks/pushNotificationConfig/get",
        "DELETE tasks/{id}/pushNotificationConfigs/{pushNotificationConfigId}": "tasks/pushNotificationConfig/delete",
        "GET tasks/{id}": "tasks/get",
        "GET card": "agent/getAuthenticatedExtendedCard",
    },
)


def read(
    verb: str, path: str, query: str, body: bytes, header: str | None = None
) -> tuple[Binding, Operation | Problem]:
    """What a request asks for, and how it is to be answered.

    `path` is that of the request line behind where the binding is mounted, still escaped; `header` the version's.
    """
    path = path.strip("/")
    binding, routes = V1_0, _ROUTES_1_0
    first, _, rest = path.partition("/")
    if first == _V0_3_PREFIX:
        binding, routes, path = V0_3, _ROUTES_0_3, rest
    fields = _fields(query)
    if fields is None:
        return binding, Problem("invalid_request", "the query cannot be read")
    return binding, _refused(binding, header, fields) or _read(binding, routes, verb, path, fields, body)


def write_denial(path: str, status: int, message: str) -> bytes:
    """The body of an answer to somebody who is not let in, in the form of the generation that its path means."""
    if path.strip("/").partition("/")[0] == _V0_3_PREFIX:
        return V0_3.write_problem(Problem("invalid_request", message))[1]
    error = {"code": status, "status": _DENIALS.get(status, "INVALID_ARGUMENT"), "message": message, "details": []}
    return msgspec.json.encode({"error": error})


_DENIALS = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 503: "UNAVAILABLE"}


def _refused(binding: Binding, header: str | None, fields: Mapping[str, str]) -> Problem | None:
    """A version other than that of the path; where none is said, the path has said it."""
    version = version_of(header, fields.get(PARAMETER))
    asked = None if version is None else dialect_of(version)
    if version is None or asked == binding.dialect.name:
        return None
    if asked is None:
        return unsupported(version)
    here = f"A2A {version[:20]} is not spoken at this path, but A2A {binding.dialect.name}"
    return Problem("version_not_supported", here, {"supportedVersions": binding.dialect.name})


def _read(
    binding: Binding,
    routes: list[tuple[str, re.Pattern[str], str]],
    verb: str,
    path: str,
    fields: Mapping[str, str],
    body: bytes,
) -> Operation | Problem:
    for allowed, pattern, method in routes:
        if verb == allowed and (found := pattern.fullmatch(path)):
            members = _members(body) if verb == "POST" else _as_json(fields)
            if isinstance(members, Problem):
                return members
            named = {key: _string(unquote(value)) for key, value in found.groupdict().items()}
            return binding.dialect.read(method, {**camel_members(members), **named})
    return Problem("unknown_method", f"there is nothing at {verb[:10]} /{path[:200]}")


def _members(body: bytes) -> dict[str, Raw] | Problem:
    """The members of a body; an operation that needs none may have no body."""
    if not body:
        return {}
    value = decode_object(body)
    if isinstance(value, Malformed):
        return Problem("parse" if value.code == PARSE_ERROR else "invalid_request", value.message)
    return object_members(value) or {}


# Queries. Their values are text; they become the JSON that the same members have in a body, and are read as such.

_NUMBERS = frozenset({"historyLength", "history_length", "pageSize", "page_size"})
_FLAGS = frozenset({"includeArtifacts", "include_artifacts"})
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def _fields(query: str) -> dict[str, str] | None:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        return None


def _as_json(fields: Mapping[str, str]) -> dict[str, Raw]:
    return {name: _value(name, value) for name, value in fields.items()}


def _value(name: str, value: str) -> Raw:
    is_number = name in _NUMBERS and _NUMBER.fullmatch(value)
    is_flag = name in _FLAGS and value in ("true", "false")
    return Raw(value.encode()) if is_number or is_flag else _string(value)


def _string(text: str) -> Raw:
    # An escaped half of a surrogate pair is no text; it matches nothing that is kept.
    return Raw(msgspec.json.encode(text.encode(errors="replace").decode()))
