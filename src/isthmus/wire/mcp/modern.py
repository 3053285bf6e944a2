"""MCP 2026-07-28: no handshake and no session; every request says who speaks and what it can do.

Pure readers and writers for both ends: the `_meta` envelope, `server/discover`, `subscriptions/listen`, and the
headers of Streamable HTTP, which must repeat what the body says (a middleman may route on them).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Set
from typing import Any

import msgspec

from isthmus.model.features import Ability, Topic
from isthmus.model.questions import NOTHING, Profile
from isthmus.wire.jsonrpc import INVALID_PARAMS, Payload, Request, long_object_members, object_members, render
from isthmus.wire.mcp.capabilities import Capabilities, capabilities_of, profile_capabilities
from isthmus.wire.mcp.hubs import NO_HUBS, write_hubs
from isthmus.wire.mcp.messages import Implementation, Members, read_string

VERSION = "2026-07-28"
VERSIONS = (VERSION,)

_PREFIX = "io.modelcontextprotocol/"
VERSION_KEY = _PREFIX + "protocolVersion"
CLIENT_KEY = _PREFIX + "clientInfo"
CAPABILITIES_KEY = _PREFIX + "clientCapabilities"
SERVER_KEY = _PREFIX + "serverInfo"
LOG_KEY = _PREFIX + "logLevel"
SUBSCRIPTION_KEY = _PREFIX + "subscriptionId"

OWN_KEYS = frozenset({VERSION_KEY, CLIENT_KEY, CAPABILITIES_KEY, LOG_KEY, SUBSCRIPTION_KEY})
"""Members of `_meta` that describe one hop; they are written anew for the next, never passed on."""

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
TASK_ID = "taskId"
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
    """Why a request is refused before anybody looks at its method."""

    code: int
    message: str
    data: bytes | None = None


def is_modern(request: Request, version_header: str | None, legacy: tuple[str, ...]) -> bool:
    """Whether a request claims this era: by its header, or by the envelope in its body.

    A header that names no legacy version is taken here too, where it is answered with the versions spoken.
    """
    if version_header is not None and version_header not in legacy:
        return True
    meta = request.params.get("_meta")
    return meta is not None and VERSION_KEY in (object_members(meta) or ())


class Claims(msgspec.Struct, frozen=True):
    """What a request's headers say that its body says."""

    version: str | None
    method: str | None
    name: str | None


def check(request: Request, claims: Claims | None, supported: tuple[str, ...]) -> Members | Rejection:
    """Check a request's envelope and, over HTTP, that the headers agree with it; returns the members of `_meta`.

    The order matters to clients: one that contradicts itself is told so before it is told that its version is
    not spoken, because the latter makes it fall back to another era.
    """
    meta = object_members(request.params.get("_meta", b""))
    if meta is None or VERSION_KEY not in meta or CAPABILITIES_KEY not in meta:
        return _incomplete(meta, claims, supported)
    version = read_string(meta[VERSION_KEY])
    if claims is not None and (mismatch := _mismatch(request, version, claims)) is not None:
        return Rejection(HEADER_MISMATCH, mismatch)
    if version is None:
        return Rejection(INVALID_PARAMS, f"{VERSION_KEY} must be a string")
    return meta if version in VERSIONS else unsupported(version, supported)


def _incomplete(meta: Members | None, claims: Claims | None, supported: tuple[str, ...]) -> Rejection:
    """The refusal of an envelope that lacks something, or of a header whose version may have no envelope at all."""
    version = None if claims is None else claims.version
    if version is not None and version not in supported and (meta is None or VERSION_KEY not in meta):
        return unsupported(version, supported)
    if meta is None:
        return Rejection(INVALID_PARAMS, f"params._meta must be an object with {VERSION_KEY} and {CAPABILITIES_KEY}")
    absent = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    return Rejection(INVALID_PARAMS, f"params._meta lacks {' and '.join(absent)}")


def unsupported(version: str, supported: tuple[str, ...]) -> Rejection:
    """The refusal of a version, naming those that are spoken."""
    data = msgspec.json.encode({"supported": supported, "requested": version})
    text = f"Unsupported protocol version: {version or 'none'}; spoken are {', '.join(supported)}"
    return Rejection(UNSUPPORTED_VERSION, text, data)


def _mismatch(request: Request, version: str | None, claims: Claims) -> str | None:
    if claims.version is None or claims.version != version:
        return "the MCP-Protocol-Version header and the body's protocol version differ"
    if claims.method != request.method:
        return "the Mcp-Method header and the body's method differ"
    key = _NAMED.get(request.method)
    if key is not None and key in request.params and decode_header(claims.name) != read_string(request.params[key]):
        # Clients built on the extension of fastmcp name no task there; nobody can have routed by what is absent.
        is_absent = claims.name is None and key == TASK_ID
        return None if is_absent else f"the Mcp-Name header and the body's {key} differ"
    return None


def discover_result(
    supported: tuple[str, ...],
    me: Implementation,
    abilities: Set[Ability],
    instructions: str | None,
    hubs: Mapping[str, int] = NO_HUBS,
) -> bytes:
    """What the hub answers to `server/discover`."""
    answer: dict[str, Any] = {
        "resultType": "complete",
        "supportedVersions": supported,
        "capabilities": capabilities_of(abilities - {"tasks"}),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_KEY: me, **write_hubs(hubs)},
    }
    if instructions:
        answer["instructions"] = instructions
    return msgspec.json.encode(answer)


class Discovery(msgspec.Struct):
    """What a modern server says of itself."""

    supportedVersions: list[str]
    capabilities: Capabilities = msgspec.field(default_factory=Capabilities)
    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b"{}"))


def read_discovery(result: Payload) -> Discovery | None:
    """Read a `server/discover` result; None if it is none, or names no version of this era."""
    try:
        discovery = msgspec.json.decode(result, type=Discovery)
    except msgspec.MsgspecError:
        return None
    return discovery if VERSION in discovery.supportedVersions else None


def as_welcome(discovery: Payload) -> bytes:
    """What a server said of itself in this era, as the result of an earlier `initialize`."""
    members = object_members(discovery) or {}
    info = (object_members(members.get("_meta", b"{}")) or {}).get(SERVER_KEY, members.get("serverInfo"))
    told: dict[str, Payload | None] = {
        "protocolVersion": msgspec.json.encode(VERSION),
        "capabilities": members.get("capabilities", b"{}"),
        "serverInfo": b'{"name":"","version":""}' if info is None else info,
        "instructions": members.get("instructions"),
    }
    return render({name: value for name, value in told.items() if value is not None})


class _Refusal(msgspec.Struct):
    supported: list[str]


def names_version(data: Payload | None) -> bool:
    """Whether a server that refuses a version names this era's among those that it speaks."""
    try:
        return VERSION in msgspec.json.decode(data or b"", type=_Refusal).supported
    except msgspec.MsgspecError:
        return False


def envelope(me: Implementation, profile: Profile = NOTHING) -> bytes:
    """The members of `_meta` that the hub puts on every request to a modern server, without the braces.

    They say what the caller can be asked, on whose behalf the request is made.
    """
    capabilities = profile_capabilities(profile)
    return msgspec.json.encode({VERSION_KEY: VERSION, CLIENT_KEY: me, CAPABILITIES_KEY: capabilities})[1:-1]


def request_meta(own: bytes, passed_on: Mapping[str, Payload]) -> bytes:
    """`_meta` of one request: the hub's own members and what the caller's are passed on."""
    if not passed_on:
        return b"{" + own + b"}"
    return b"{" + own + b"," + render(passed_on)[1:]


def list_result(member: str, entries: bytes, meta: Payload | None) -> bytes:
    """A list's result around its rendered entries. Lists differ by caller and may change at any moment."""
    tail = b"}" if meta is None else b"".join((b',"_meta":', meta, b"}"))
    head = b'{"resultType":"complete","%b":' % member.encode()
    return b"".join((head, entries, b',"ttlMs":0,"cacheScope":"private"', tail))


def as_modern(result: Payload, *, is_cacheable: bool = False) -> Payload | None:
    """A legacy server's result as this era writes it; None if it is not an object.

    What can be kept by whoever reads it must say how long; an earlier server says nothing, and so not at all.
    """
    written: dict[str, Payload] = {"resultType": b'"complete"'}
    if is_cacheable:
        written.update({"ttlMs": b"0", "cacheScope": b'"private"'})
    members = long_object_members(bytes(result)) if is_cacheable else object_members(result)
    if members is None:
        return None
    if members and members.keys().isdisjoint(written):
        # Nothing of it is written anew: results have megabytes.
        return b"".join((render(written)[:-1], b",", memoryview(result)[1:]))
    return render({**written, **{key: members[key] for key in members if key != "resultType"}})


def typed(result: Payload) -> bytes:
    """An object that has members, and no `resultType` among them, with one; it is not read for that."""
    return b"".join((b'{"resultType":"complete",', memoryview(result)[1:]))


def as_legacy(result: Payload) -> Payload | None:
    """A modern server's result as the earlier era writes it; None if it is not an object."""
    members = object_members(result)
    if members is None:
        return None
    if "resultType" not in members:
        return result
    return render({key: value for key, value in members.items() if key != "resultType"})


class _Filter(msgspec.Struct, omit_defaults=True):
    toolsListChanged: bool | None = False
    promptsListChanged: bool | None = False
    resourcesListChanged: bool | None = False
    resourceSubscriptions: list[str] | None = None
    taskIds: list[str] | None = None


class Wanted(msgspec.Struct, frozen=True):
    """What a `subscriptions/listen` asks to be told of: changes of lists, updates of resources, and single tasks."""

    topics: frozenset[Topic]
    uris: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


def read_wanted(params: Mapping[str, msgspec.Raw]) -> Wanted | None:
    """What a caller's `subscriptions/listen` asks for; None if it is malformed."""
    try:
        asked = msgspec.json.decode(params["notifications"], type=_Filter)
    except (KeyError, msgspec.MsgspecError):
        return None
    flags: dict[Topic, bool | None] = {
        "tools": asked.toolsListChanged,
        "prompts": asked.promptsListChanged,
        "resources": asked.resourcesListChanged,
    }
    topics = frozenset(topic for topic, is_wanted in flags.items() if is_wanted)
    uris, tasks = (tuple(dict.fromkeys(names or ())) for names in (asked.resourceSubscriptions, asked.taskIds))
    return Wanted(topics, uris, tasks)


def write_wanted(wanted: Wanted) -> bytes:
    """The `notifications` member of a `subscriptions/listen`, or of its acknowledgement."""
    return msgspec.json.encode(
        _Filter(
            "tools" in wanted.topics,
            "prompts" in wanted.topics,
            "resources" in wanted.topics,
            list(wanted.uris) or None,
            list(wanted.tasks) or None,
        )
    )


def acknowledged_params(subscription: Payload, wanted: Wanted) -> bytes:
    """The first message of a subscription's stream: what will be told on it."""
    honoured = write_wanted(wanted)
    return b"".join((b'{"_meta":', subscription_meta(subscription), b',"notifications":', honoured, b"}"))


def subscription_meta(subscription: Payload) -> bytes:
    """The mark that every message of a subscription's stream carries."""
    return render({SUBSCRIPTION_KEY: subscription})


def read_subscription(params: Mapping[str, msgspec.Raw]) -> bytes | None:
    """Which subscription a message belongs to, as the text of its id; None if it does not say."""
    meta = object_members(params.get("_meta", b"")) or {}
    return bytes(meta[SUBSCRIPTION_KEY]) if SUBSCRIPTION_KEY in meta else None


def read_honoured(params: Mapping[str, msgspec.Raw]) -> frozenset[str] | None:
    """The resources of which an acknowledgement says that they will be told of; None if it says nothing of anything."""
    try:
        honoured = msgspec.json.decode(params["notifications"], type=_Filter)
    except (KeyError, msgspec.MsgspecError):
        return None
    return None if honoured == _Filter() else frozenset(honoured.resourceSubscriptions or ())


def marked_params(subscription: Payload, members: Mapping[str, Payload] = {}) -> bytes:
    """The parameters of a message on a subscription's stream."""
    return render({**members, "_meta": subscription_meta(subscription)})


def listen_result(subscription: Payload) -> bytes:
    """What ends a subscription's stream in good order."""
    return b"".join((b'{"resultType":"complete","_meta":', subscription_meta(subscription), b"}"))


_SENTINEL = re.compile(r"=\?base64\?(?P<payload>.*)\?=")
_PLAIN = re.compile(r"[\x20-\x7e]*")


def encode_header(value: str) -> str:
    """A text as a header's value: itself if it survives there, else the specification's base64 form."""
    if _PLAIN.fullmatch(value) and value == value.strip() and not _SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def decode_header(value: str | None) -> str | None:
    """The text that a header's value stands for; None if it stands for none, so that it can match nothing."""
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
