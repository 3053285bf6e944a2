"""MCP 2026-07-28: no handshake and no session; every request names its version and client capabilities in `_meta`.

Pure readers and writers for both ends: `_meta`, `server/discover`, `subscriptions/listen`, and the headers of
Streamable HTTP, which must agree with the body because proxies may route on them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Set
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.features import Ability, Topic
from isthmus.wire.jsonrpc import INVALID_PARAMS, Payload, Request, object_members, render
from isthmus.wire.mcp.lists import next_cursor
from isthmus.wire.mcp.messages import (
    LEGACY_VERSIONS,
    NO_HUBS,
    Implementation,
    Members,
    ServerCapabilities,
    read_string,
    write_client_capabilities,
    write_hubs,
    write_server_capabilities,
)

VERSION = "2026-07-28"
VERSIONS = (VERSION,)
SUPPORTED = (*VERSIONS, *reversed(LEGACY_VERSIONS))
"""Every supported protocol version, newest first."""
_VERSION_TEXT = msgspec.json.encode(VERSION)

_PREFIX = "io.modelcontextprotocol/"
VERSION_KEY = _PREFIX + "protocolVersion"
CLIENT_KEY = _PREFIX + "clientInfo"
CAPABILITIES_KEY = _PREFIX + "clientCapabilities"
SERVER_KEY = _PREFIX + "serverInfo"
LOG_KEY = _PREFIX + "logLevel"
SUBSCRIPTION_KEY = _PREFIX + "subscriptionId"

OWN_KEYS = frozenset({VERSION_KEY, CLIENT_KEY, CAPABILITIES_KEY, LOG_KEY, SUBSCRIPTION_KEY})
"""Members of `_meta` that describe one hop; they are written anew for the next hop and never passed on."""

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
TASK_ID = "taskId"
REMEMBERED_BYTES = 256
"""The length of routing headers that are remembered."""

_NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), TASK_ID),
}

HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
LISTEN = "subscriptions/listen"
DISCOVER = "server/discover"


class Rejection(msgspec.Struct, frozen=True):
    """Why a request is refused before its method is read."""

    code: int
    message: str
    data: bytes | None = None


def is_modern(request: Request, version_header: str | None) -> bool:
    """Whether a request is of this era, by its version header or its `_meta`.

    A header with an unknown version counts as modern: the response lists the supported versions.
    """
    if version_header is not None and version_header not in LEGACY_VERSIONS:
        return True
    meta = request.params.get("_meta")
    return meta is not None and VERSION_KEY in (object_members(meta) or ())


class RoutingHeaders(msgspec.Struct, frozen=True):
    """The headers that must agree with a request's body."""

    version: str | None
    method: str | None
    name: str | None


def read_routing_headers(version: bytes | None, method: bytes | None, name: bytes | None) -> RoutingHeaders:
    """Read these headers. Callers send the same ones again and again, so short ones are remembered."""
    if len(version or b"") + len(method or b"") + len(name or b"") <= REMEMBERED_BYTES:
        return _remembered_routing_headers(version, method, name)
    return _routing_headers(version, method, name)


def _routing_headers(version: bytes | None, method: bytes | None, name: bytes | None) -> RoutingHeaders:
    return RoutingHeaders(*(None if value is None else value.decode("latin-1") for value in (version, method, name)))


_remembered_routing_headers = lru_cache(maxsize=1024)(_routing_headers)


def check(request: Request, headers: RoutingHeaders | None) -> Members | Rejection | None:
    """Check a request's `_meta` and, over HTTP, that the headers agree with it; returns the members of `_meta`.

    None for a legacy request. The order matters: a contradiction is reported before an unsupported version, because
    the latter makes clients fall back to another era.
    """
    if not is_modern(request, None if headers is None else headers.version):
        return None
    meta = object_members(request.params.get("_meta", b""))
    if meta is None or VERSION_KEY not in meta or CAPABILITIES_KEY not in meta:
        return _incomplete(meta, headers)
    # Nearly every request has this version, in this spelling.
    version = VERSION if bytes(meta[VERSION_KEY]) == _VERSION_TEXT else read_string(meta[VERSION_KEY])
    if headers is not None and (mismatch := _mismatch(request, version, headers)) is not None:
        return Rejection(HEADER_MISMATCH, mismatch)
    if version is None:
        return Rejection(INVALID_PARAMS, f"{VERSION_KEY} must be a string")
    return meta if version in VERSIONS else unsupported(version)


def _incomplete(meta: Members | None, headers: RoutingHeaders | None) -> Rejection:
    """The rejection of an incomplete `_meta`, or of a version header whose version may not have one at all."""
    version = None if headers is None else headers.version
    if version is not None and version not in SUPPORTED and (meta is None or VERSION_KEY not in meta):
        return unsupported(version)
    if meta is None:
        return Rejection(INVALID_PARAMS, f"params._meta must be an object with {VERSION_KEY} and {CAPABILITIES_KEY}")
    absent = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    return Rejection(INVALID_PARAMS, f"params._meta lacks {' and '.join(absent)}")


def unsupported(version: str) -> Rejection:
    """The rejection of a version, with the supported ones."""
    data = msgspec.json.encode({"supported": SUPPORTED, "requested": version})
    text = f"Unsupported protocol version: {version or 'none'}; supported are {', '.join(SUPPORTED)}"
    return Rejection(UNSUPPORTED_VERSION, text, data)


def _mismatch(request: Request, version: str | None, headers: RoutingHeaders) -> str | None:
    if headers.version is None or headers.version != version:
        return "the MCP-Protocol-Version header and the body's protocol version differ"
    if headers.method != request.method:
        return "the Mcp-Method header and the body's method differ"
    key = _NAMED.get(request.method)
    if key is not None and key in request.params and decode_header(headers.name) != read_string(request.params[key]):
        # Clients based on FastMCP's task extension omit the header for tasks; a missing header cannot misroute.
        is_absent = headers.name is None and key == TASK_ID
        return None if is_absent else f"the Mcp-Name header and the body's {key} differ"
    return None


def discover_result(
    supported: tuple[str, ...],
    me: Implementation,
    abilities: Set[Ability],
    hubs: Mapping[str, int] = NO_HUBS,
    instructions: str = "",
) -> bytes:
    """The hub's `server/discover` result."""
    answer: dict[str, Any] = {
        "resultType": "complete",
        "supportedVersions": supported,
        "capabilities": write_server_capabilities(abilities - {"tasks"}),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_KEY: me, **write_hubs(hubs)},
    }
    if instructions:
        answer["instructions"] = instructions
    return msgspec.json.encode(answer)


class DiscoverResult(msgspec.Struct):
    """A server's `server/discover` result."""

    supportedVersions: list[str]
    capabilities: ServerCapabilities = msgspec.field(default_factory=ServerCapabilities)
    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b"{}"))
    instructions: msgspec.Raw = msgspec.Raw(b'""')


def read_discover_result(result: Payload) -> DiscoverResult | None:
    """Read a `server/discover` result; None if it is invalid or has no version of this era."""
    try:
        discovery = msgspec.json.decode(result, type=DiscoverResult)
    except msgspec.MsgspecError:
        return None
    return discovery if VERSION in discovery.supportedVersions else None


def as_initialize_result(discovery: Payload) -> bytes:
    """A `server/discover` result as a legacy `initialize` result."""
    members = object_members(discovery) or {}
    info = (object_members(members.get("_meta", b"{}")) or {}).get(SERVER_KEY, members.get("serverInfo"))
    written: dict[str, Payload | None] = {
        "protocolVersion": msgspec.json.encode(VERSION),
        "capabilities": members.get("capabilities", b"{}"),
        "serverInfo": b'{"name":"","version":""}' if info is None else info,
        "instructions": members.get("instructions"),
    }
    return render({name: value for name, value in written.items() if value is not None})


class _Refusal(msgspec.Struct):
    supported: list[str]


def is_version_supported(data: Payload | None) -> bool:
    """Whether the data of a version error lists this era's version as supported."""
    try:
        return VERSION in msgspec.json.decode(data or b"", type=_Refusal).supported
    except msgspec.MsgspecError:
        return False


def envelope(me: Implementation, client_caps: ClientCapabilities = NO_CAPABILITIES) -> bytes:
    """The hub's members of `_meta` for every request to a modern server, without the braces.

    `client_caps` are those of the caller of the request.
    """
    capabilities = write_client_capabilities(client_caps)
    return msgspec.json.encode({VERSION_KEY: VERSION, CLIENT_KEY: me, CAPABILITIES_KEY: capabilities})[1:-1]


def request_meta(own: bytes, passed_on: Mapping[str, Payload]) -> bytes:
    """The `_meta` of one request: the hub's own members, and those of the caller that are passed on."""
    if not passed_on:
        return b"{" + own + b"}"
    return b"{" + own + b"," + render(passed_on)[1:]


def list_result(member: str, entries: bytes, meta: Payload | None, cursor: str | None = None) -> bytes:
    """A list's result around its rendered entries; `cursor` is that of the next page.

    It must not be cached: lists differ by caller and may change.
    """
    tail = b"}" if meta is None else b"".join((b',"_meta":', meta, b"}"))
    head = b'{"resultType":"complete","%b":' % member.encode()
    return b"".join((head, entries, next_cursor(cursor), b',"ttlMs":0,"cacheScope":"private"', tail))


def as_modern(result: Payload, *, is_cacheable: bool = False) -> Payload | None:
    """A legacy server's result as this era writes it; None if it is not an object."""
    parts = modern_parts(result, is_cacheable=is_cacheable)
    return None if parts is None else b"".join(parts)


def modern_parts(result: Payload, *, is_cacheable: bool = False) -> tuple[bytes | memoryview, ...] | None:
    """The same in parts that are not joined yet.

    A cacheable result must name its lifetime; legacy servers do not, so it is zero.
    """
    members = object_members(result)
    if members is None:
        return None
    written = _CACHEABLE if is_cacheable else _COMPLETE
    if members and members.keys().isdisjoint(written):
        # Members are not rewritten: a result may have megabytes.
        return _HEADS[is_cacheable], memoryview(result)[1:]
    return (render({**written, **{key: members[key] for key in members if key != "resultType"}}),)


_COMPLETE: dict[str, Payload] = {"resultType": b'"complete"'}
_CACHEABLE: dict[str, Payload] = {**_COMPLETE, "ttlMs": b"0", "cacheScope": b'"private"'}
_HEADS = tuple(render(members)[:-1] + b"," for members in (_COMPLETE, _CACHEABLE))


def typed(result: Payload) -> tuple[bytes, memoryview]:
    """An object that has members but no `resultType` with one, in two parts: it may have megabytes."""
    return b'{"resultType":"complete",', memoryview(result)[1:]


def as_legacy(result: Payload) -> Payload | None:
    """A modern server's result as the earlier era writes it; None if it is not an object."""
    members = object_members(result)
    if members is None:
        return None
    if "resultType" not in members:
        return result
    return render({key: value for key, value in members.items() if key != "resultType"})


class _WireFilter(msgspec.Struct, omit_defaults=True):
    toolsListChanged: bool | None = False
    promptsListChanged: bool | None = False
    resourcesListChanged: bool | None = False
    resourceSubscriptions: list[str] | None = None
    taskIds: list[str] | None = None


class ListenFilter(msgspec.Struct, frozen=True):
    """What a `subscriptions/listen` asks for: list changes, resource updates and tasks."""

    topics: frozenset[Topic]
    uris: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


def read_listen_filter(params: Mapping[str, msgspec.Raw]) -> ListenFilter | None:
    """Read the filter of a `subscriptions/listen`; None if it is malformed."""
    try:
        asked = msgspec.json.decode(params["notifications"], type=_WireFilter)
    except (KeyError, msgspec.MsgspecError):
        return None
    flags: dict[Topic, bool | None] = {
        "tools": asked.toolsListChanged,
        "prompts": asked.promptsListChanged,
        "resources": asked.resourcesListChanged,
    }
    topics = frozenset(topic for topic, is_wanted in flags.items() if is_wanted)
    uris, tasks = (tuple(dict.fromkeys(names or ())) for names in (asked.resourceSubscriptions, asked.taskIds))
    return ListenFilter(topics, uris, tasks)


def write_listen_filter(wanted: ListenFilter) -> bytes:
    """The `notifications` member of a `subscriptions/listen`, or of its acknowledgement."""
    return msgspec.json.encode(
        _WireFilter(
            "tools" in wanted.topics,
            "prompts" in wanted.topics,
            "resources" in wanted.topics,
            list(wanted.uris) or None,
            list(wanted.tasks) or None,
        )
    )


def acknowledged_params(subscription: Payload, wanted: ListenFilter) -> bytes:
    """The first message of a subscription's stream: what was granted."""
    granted = write_listen_filter(wanted)
    return b"".join((b'{"_meta":', subscription_meta(subscription), b',"notifications":', granted, b"}"))


def subscription_meta(subscription: Payload) -> bytes:
    """The `_meta` of every message of a subscription's stream."""
    return render({SUBSCRIPTION_KEY: subscription})


def read_subscription(params: Mapping[str, msgspec.Raw]) -> bytes | None:
    """The id of the subscription that a message belongs to; None if it has none."""
    meta = object_members(params.get("_meta", b"")) or {}
    return bytes(meta[SUBSCRIPTION_KEY]) if SUBSCRIPTION_KEY in meta else None


def read_granted(params: Mapping[str, msgspec.Raw]) -> frozenset[str] | None:
    """The resources that an acknowledgement grants; None if it grants nothing at all."""
    try:
        granted = msgspec.json.decode(params["notifications"], type=_WireFilter)
    except (KeyError, msgspec.MsgspecError):
        return None
    return None if granted == _WireFilter() else frozenset(granted.resourceSubscriptions or ())


def subscription_params(subscription: Payload, members: Mapping[str, Payload] = {}) -> bytes:
    """The parameters of a message on a subscription's stream."""
    return render({**members, "_meta": subscription_meta(subscription)})


def listen_result(subscription: Payload) -> bytes:
    """The result that ends a subscription's stream."""
    return b"".join((b'{"resultType":"complete","_meta":', subscription_meta(subscription), b"}"))


_SENTINEL = re.compile(r"=\?base64\?(?P<payload>.*)\?=")
_PLAIN = re.compile(r"[\x20-\x7e]*")


def encode_header(value: str) -> str:
    """A text as a header's value: itself if it survives there, else the specification's base64 form."""
    if _PLAIN.fullmatch(value) and value == value.strip() and not _SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def decode_header(value: str | None) -> str | None:
    """The decoded value of a header; None if it is invalid, so that it matches nothing."""
    match = None if value is None else _SENTINEL.fullmatch(value)
    if match is None:
        return value
    try:
        decoded = base64.b64decode(match["payload"], validate=True)
        text = decoded.decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    # Only the canonical spelling counts: two readers must not see two names.
    return text if base64.b64encode(decoded).decode() == match["payload"] else None


# -- arguments that a caller repeats in `Mcp-Param-*` headers ------------------------------------------------------

HeaderParams: TypeAlias = tuple[tuple[tuple[str, ...], str], ...]
"""The paths of arguments, each with the header that repeats it."""

ANNOTATION = "x-mcp-header"
PARAM_PREFIX = "mcp-param-"
DEPTH_MAX = 16
"""The deepest annotated property; schemas of servers are not trusted."""

PARAM_TYPES = frozenset({"string", "integer", "boolean"})
"""Types that may be annotated; programs write other types in different ways."""

BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
"""Keywords of JSON Schema, old ones too, that contain schemas by name. The names are not keywords."""

OF_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"})
OF_MEMBERS = frozenset({"additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"})
OF_THE_SAME = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
UNNAMED = OF_ITEMS | OF_MEMBERS | OF_THE_SAME
"""Keywords that contain one schema or a list of schemas."""

_Schema: TypeAlias = dict[str, Any]
_Path: TypeAlias = tuple[str, ...] | None

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTEGER = re.compile(r"(-?[0-9]+)(?:\.0+)?")


class _Annotation(NamedTuple):
    """An annotated schema: the path of its values if that counts, the header if it is valid, and their type."""

    path: _Path
    header: str | None
    kind: object


_UNREADABLE = _Annotation(None, None, None)


def annotated_params(schema: Payload | None) -> HeaderParams:
    """The annotated arguments of an input schema; empty for nearly every tool, which is found out cheaply."""
    return tuple((mark.path, mark.header) for mark in _marks(schema) if mark.path and mark.header)


def required_params(schema: Payload | None) -> HeaderParams:
    """The arguments that a caller must repeat; none if an annotation is invalid, because clients drop such a tool."""
    return annotated_params(schema) if is_annotation_valid(schema) else ()


def is_annotation_valid(schema: Payload | None) -> bool:
    """Whether every annotation has its own header, an allowed type, and a path that counts."""
    marks = _marks(schema)
    return len(marks) == len({mark.header for mark in marks}) and all(
        mark.path and mark.header and isinstance(mark.kind, str) and mark.kind in PARAM_TYPES for mark in marks
    )


def _marks(schema: Payload | None) -> list[_Annotation]:
    if schema is None or ANNOTATION.encode() not in bytes(schema):
        return []
    try:
        root = msgspec.json.decode(schema)
    except (msgspec.MsgspecError, RecursionError):
        return [_UNREADABLE]
    found: list[_Annotation] = []
    for part, path in _schemas(root):
        if ANNOTATION in part:
            token = part[ANNOTATION]
            is_token = isinstance(token, str) and _TOKEN.fullmatch(token)
            found.append(_Annotation(path, PARAM_PREFIX + token.lower() if is_token else None, part.get("type")))
    return found


def _schemas(root: Any) -> list[tuple[_Schema, _Path]]:
    """Every schema within a schema and the path of its values; None if not reached through `properties` alone.

    Values of other keywords, such as `default` or `enum`, are data.
    """
    found: list[tuple[_Schema, _Path]] = [(root, ())] if isinstance(root, dict) else []
    for schema, path in found:  # it grows meanwhile; recursion could be too deep for a server's schema
        for keyword, value in schema.items():
            found += [(part, below) for part, below in _parts(keyword, value, path) if isinstance(part, dict)]
    return found


def _parts(keyword: str, value: Any, path: _Path) -> list[tuple[Any, _Path]]:
    """The values of a keyword that may be schemas."""
    if keyword in BY_NAME and isinstance(value, dict):
        if keyword == "properties" and path is not None and len(path) < DEPTH_MAX:
            return [(part, (*path, name)) for name, part in value.items()]
        return [(part, None) for part in value.values()]
    if keyword in UNNAMED:
        return [(part, None) for part in (value if isinstance(value, list) else [value])]
    return []


def param_headers(params: HeaderParams, arguments: Payload) -> dict[str, str]:
    """The headers that repeat these arguments."""
    headers: dict[str, str] = {}
    for path, header in params:
        value = _value_at(path, arguments)
        # A repeated argument gets no header: servers refuse the call then, instead of being misrouted.
        text = None if value is None else _text_of(value)
        if text is not None:
            headers[header] = encode_header(text)
    return headers


def find_param_mismatch(params: HeaderParams, arguments: Payload, headers: Mapping[bytes, bytes]) -> str | None:
    """How a caller's headers contradict its arguments; None if they agree."""
    for path, header in params:
        claimed = headers.get(header.encode())
        value = _value_at(path, arguments)
        if value is None:
            return f"the argument of the header {header} is given twice"
        if claimed is None and _text_of(value) is not None:
            return f"the header {header} is missing, but its argument is given"
        if claimed is not None and not _is_same(decode_header(claimed.decode("latin-1")), value):
            return f"the header {header} and its argument differ"
    return None


def _is_same(claimed: str | None, value: bytes) -> bool:
    """Whether a header's text is that of an argument; `42` and `42.0` are one number."""
    text = _text_of(value)
    if claimed is None or text is None or value[:1] == b'"':
        return claimed is not None and claimed == text
    number = _INTEGER.fullmatch(claimed)
    return text == (claimed if number is None else number[1])


def _value_at(path: tuple[str, ...], arguments: Payload) -> bytes | None:
    """The JSON text of an argument; `null` if it is absent.

    None if a member on the path is repeated: a proxy and the server could then read different values.
    """
    value: Payload = arguments
    for step in path:
        if bytes(value)[:1] != b"{":
            return b"null"
        members = object_members(value)
        if members is None:
            return None
        if step not in members:
            return b"null"
        value = members[step]
    return bytes(value)


def _text_of(value: bytes) -> str | None:
    """A scalar as a header's text. Integers keep their digits, whatever their size."""
    if value in (b"true", b"false"):
        return value.decode()
    if value[:1] == b'"':
        return read_string(msgspec.Raw(value))
    integer = _INTEGER.fullmatch(value.decode())
    return None if integer is None else integer[1]
