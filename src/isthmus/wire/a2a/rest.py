"""The HTTP+JSON bindings of A2A towards callers: 1.0, and 0.3 under `/v1`.

Maps the HTTP method, path, query and body of a request to an operation. The dialect writes the results; problems have
their own status and body. The only header used here is the version. Called by the A2A frontend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Raw

from isthmus.wire.a2a import v0_3_rest, v1_0
from isthmus.wire.a2a.negotiate import VERSION_PARAMETER, dialect_of, unsupported_version, version_of
from isthmus.wire.a2a.operations import A2aProblem, Operation, status_0_3, status_1_0
from isthmus.wire.a2a.v1_0 import Dialect
from isthmus.wire.jsonrpc import PARSE_ERROR, Malformed, decode_object, object_members

FIELDS_MAX = 50
"""Parameters of a query, several times as many as any operation has."""


class Binding(NamedTuple):
    """One generation over plain HTTP."""

    dialect: Dialect
    write_problem: Callable[[A2aProblem], tuple[int, bytes]]
    """Status and body of a problem."""


V1_0 = Binding(v1_0.DIALECT, status_1_0)
V0_3 = Binding(v0_3_rest.DIALECT, status_0_3)

_V0_3_PREFIX = "v1"
_TENANT = r"(?:[^/]+/)?"
"""1.0 allows a tenant before any path. The hub ignores it: the caller's key decides which tasks it sees."""


def _routes(prefix: str, table: Mapping[str, str]) -> list[tuple[str, re.Pattern[str], str]]:
    """HTTP method, path pattern and A2A method of each route, from lines like `GET tasks/{id}`."""
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
        # GET by the protobuf of the specification, POST by its text.
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
) -> tuple[Binding, Operation | A2aProblem]:
    """Read a request, and find the binding that writes its response.

    `path` is relative to the mount point and still escaped; `header` is the version header.
    """
    path = path.strip("/")
    binding, routes = V1_0, _ROUTES_1_0
    first, _, rest = path.partition("/")
    if first == _V0_3_PREFIX:
        binding, routes, path = V0_3, _ROUTES_0_3, rest
    try:
        fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        return binding, A2aProblem("invalid_request", f"the query cannot be read; it may have {FIELDS_MAX} parameters")
    if (problem := _check_version(binding, header, fields)) is not None:
        return binding, problem
    for allowed, pattern, method in routes:
        if verb == allowed and (found := pattern.fullmatch(path)):
            members = (
                _members(body) if verb == "POST" else {name: _json_value(name, value) for name, value in fields.items()}
            )
            if isinstance(members, A2aProblem):
                return binding, members
            path_members = {key: _string(unquote(value)) for key, value in found.groupdict().items()}
            return binding, binding.dialect.read(method, {**members, **path_members})
    return binding, A2aProblem("unknown_method", f"unknown path: {verb[:10]} /{path[:200]}")


def write_denial(path: str, status: int, message: str) -> bytes:
    """The body of a 401, 403 or 503 response, in the form of the generation that the path belongs to."""
    if path.strip("/").partition("/")[0] == _V0_3_PREFIX:
        return V0_3.write_problem(A2aProblem("invalid_request", message))[1]
    error = {"code": status, "status": _DENIALS.get(status, "INVALID_ARGUMENT"), "message": message, "details": []}
    return msgspec.json.encode({"error": error})


_DENIALS = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 503: "UNAVAILABLE"}


def _check_version(binding: Binding, header: str | None, fields: Mapping[str, str]) -> A2aProblem | None:
    """The problem of a version that is not the path's. A request without a version uses the path's."""
    version = version_of(header, fields.get(VERSION_PARAMETER))
    asked = None if version is None else dialect_of(version)
    if version is None or asked == binding.dialect.name:
        return None
    if asked is None:
        return unsupported_version(version)
    message = f"this path is for A2A {binding.dialect.name}, not {version[:20]}"
    return A2aProblem("version_not_supported", message, {"supportedVersions": binding.dialect.name})


def _members(body: bytes) -> dict[str, Raw] | A2aProblem:
    """The members of a body, which may be empty."""
    if not body:
        return {}
    value = decode_object(body)
    if isinstance(value, Malformed):
        return A2aProblem("parse" if value.code == PARSE_ERROR else "invalid_request", value.message)
    return object_members(value) or {}


# Query values are text. They become the JSON that the same members have in a body.

_NUMBERS = frozenset({"historyLength", "history_length", "pageSize", "page_size"})
_FLAGS = frozenset({"includeArtifacts", "include_artifacts"})
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def _json_value(name: str, value: str) -> Raw:
    is_number = name in _NUMBERS and _NUMBER.fullmatch(value)
    is_flag = name in _FLAGS and value in ("true", "false")
    return Raw(value.encode()) if is_number or is_flag else _string(value)


def _string(text: str) -> Raw:
    # Half of a surrogate pair cannot be encoded. Replaced, it matches no stored id.
    return Raw(msgspec.json.encode(text.encode(errors="replace").decode()))
