"""What both eras of MCP write alike: notifications, capabilities, and the members of `_meta` that hubs exchange.

It also reads small JSON values. Frontends and links use it, in opposite directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from isthmus.model.calls import LOG_LEVELS, NO_CAPABILITIES, ClientCapabilities, LogLevel, LogMessage, Progress
from isthmus.model.features import Ability, Topic
from isthmus.model.names import ServerName
from isthmus.wire.jsonrpc import Payload, render

Era: TypeAlias = Literal["legacy", "modern"]
"""Protocol versions with a handshake and sessions, and those since 2026-07-28 without."""

LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Oldest first. In HTTP headers, any other version counts as modern."""

Members: TypeAlias = dict[str, msgspec.Raw]

PROGRESS = "notifications/progress"
CANCELLED = "notifications/cancelled"
LOGGED = "notifications/message"
UPDATED = "notifications/resources/updated"
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
PROGRESS_TOKEN = "progressToken"

CHANGED: dict[Topic, str] = {
    "tools": TOOLS_CHANGED,
    "prompts": PROMPTS_CHANGED,
    "resources": RESOURCES_CHANGED,
}
"""The notification of a change of each list."""

TOPIC_OF: dict[str, Topic] = {method: topic for topic, method in CHANGED.items()}


class Implementation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The name and version of a client or server."""

    name: str
    version: str
    title: str | None = None


def progress_params(token: Payload, members: Mapping[str, Payload]) -> bytes:
    """Write a progress notification's parameters under the receiver's own token."""
    return render({PROGRESS_TOKEN: token, **members})


def read_progress(params: Members, server: ServerName) -> Progress:
    """A server's progress notification, without the hub's progress token."""
    members = {key: value for key, value in params.items() if key != PROGRESS_TOKEN}
    return Progress(members, server if "_meta" in members else None)


def token_of(params: Members) -> int:
    """The progress token of a notification, which is a request id of the hub; -1 if it is anything else."""
    try:
        return int(bytes(params.get(PROGRESS_TOKEN, b"")))
    except ValueError:
        return -1


def cancelled_params(request_id: Payload, reason: str) -> bytes:
    """Write a cancellation's parameters."""
    return b"".join((b'{"requestId":', request_id, b',"reason":', msgspec.json.encode(reason), b"}"))


def read_log(params: Members) -> LogMessage | None:
    """Read a server's log message; None if it has no level or no data."""
    level = read_level(params.get("level"))
    return None if level is None or "data" not in params else LogMessage(level, params)


def read_level(raw: msgspec.Raw | None) -> LogLevel | None:
    """A log level; None if it is absent or invalid."""
    if raw is None:
        return None
    text = read_string(raw)
    return next((level for level in LOG_LEVELS if level == text), None)


def read_string(raw: msgspec.Raw | None) -> str | None:
    """The value of a JSON string; None if it is absent or not a string."""
    if raw is None:
        return None
    try:
        return _STRING.decode(raw)
    except msgspec.MsgspecError:
        return None


_STRING = msgspec.json.Decoder(str)


def read_seconds(raw: msgspec.Raw) -> float | None:
    """Milliseconds as seconds, at least 0; None if it is not a number."""
    try:
        return max(_NUMBER.decode(raw), 0.0) / 1000
    except msgspec.MsgspecError:
        return None


_NUMBER = msgspec.json.Decoder(float)


_BRACE = ord("{")


def is_object(raw: msgspec.Raw) -> bool:
    """Whether a checked payload is an object."""
    return bool(raw) and memoryview(raw)[0] == _BRACE


CACHED_BYTES_MAX = 2048
"""Client capabilities up to this length are cached; it is many times what clients send."""

CLIENT_CAPABILITIES: dict[str, Set[str]] = {
    "elicitation": frozenset({"form", "url"}),
    "roots": frozenset(),
    "sampling": frozenset({"context", "tools"}),
}
"""Capabilities that let a server ask its client something, each with the details that the protocol has.

Others are ignored: links and lists exist per set of capabilities, and a client could invent any number of them.
`listChanged` of roots is ignored too: a server would ask for the new roots, and outside a call it cannot."""


# -- capabilities --------------------------------------------------------------------------------------------------

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
APPS = "io.modelcontextprotocol/ui"
APP_TYPE = "text/html;profile=mcp-app"
"""The media type of apps, which a client names if it can show them."""

EXTENSIONS: dict[str, Ability] = {APPS: "apps", TASKS_EXTENSION: "task_handles"}
"""Extensions that work through a hub because it passes on all their parts: apps are resources, and members of `_meta`
that name them. Others, and experimental capabilities, are not announced: they may have methods that the hub lacks."""

LEGACY_EXTENSIONS = frozenset({APPS})
MODERN_EXTENSIONS = frozenset({APPS, TASKS_EXTENSION})
"""Extensions that are announced to servers if the caller has them, by the caller's era."""

_SETTINGS: dict[str, Any] = {APPS: {"mimeTypes": [APP_TYPE]}}
"""The settings of a detail, where they are not an empty object."""


class ServerCapabilities(msgspec.Struct):
    """A server's capabilities. Values may be of any type: `logging: true` is accepted."""

    tools: Any = None
    prompts: Any = None
    resources: Any = None
    completions: Any = None
    logging: Any = None
    extensions: Any = None
    tasks: Any = None

    @property
    def announces_changes(self) -> bool:
        """Whether the server notifies of changes, or can be subscribed to."""
        listings = (self.tools, self.prompts, self.resources)
        return any(_is_true(listing, "listChanged") or _is_true(listing, "subscribe") for listing in listings)

    def abilities(self) -> frozenset[Ability]:
        """The capabilities as a set of abilities."""
        can: dict[Ability, bool] = {
            "tools": _is_present(self.tools),
            "prompts": _is_present(self.prompts),
            "resources": _is_present(self.resources),
            "subscribe": _is_true(self.resources, "subscribe"),
            "completions": _is_present(self.completions),
            "logging": _is_present(self.logging),
            # Callers must be able to cancel tasks.
            "tasks": _has(self.tasks, "cancel") and _has(self.tasks, "requests", "tools", "call"),
            **{ability: _has(self.extensions, name) for name, ability in EXTENSIONS.items()},
        }
        return frozenset(ability for ability, is_there in can.items() if is_there)


def _is_present(capability: Any) -> bool:
    return isinstance(capability, dict) or capability is True


def _is_true(capability: Any, detail: str) -> bool:
    return isinstance(capability, dict) and capability.get(detail) is True


def _has(capability: Any, *path: str) -> bool:
    """Whether there is a capability at this path."""
    for name in path:
        capability = capability.get(name) if isinstance(capability, dict) else None
    return _is_present(capability)


def write_server_capabilities(abilities: Set[Ability]) -> dict[str, Any]:
    """The hub's own capabilities for a caller: those of its servers, and notifications of every change."""
    written: dict[str, Any] = {topic: {"listChanged": True} for topic in ("tools", "prompts") if topic in abilities}
    if "resources" in abilities:
        written["resources"] = {"listChanged": True, "subscribe": "subscribe" in abilities}
    for plain in ("completions", "logging"):
        if plain in abilities:
            written[plain] = {}
    if "tasks" in abilities:
        listed: dict[str, Any] = {"list": {}} if "task_list" in abilities else {}
        written["tasks"] = {**listed, "cancel": {}, "requests": {"tools": {"call": {}}}}
    extensions: dict[str, Any] = {name: {} for name, ability in EXTENSIONS.items() if ability in abilities}
    if extensions:
        written["extensions"] = extensions
    return written


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_client_capabilities(
    capabilities: msgspec.Raw | None, extensions: Set[str] = LEGACY_EXTENSIONS
) -> ClientCapabilities:
    """A client's capabilities as words; known details follow a dot (`elicitation.url`).

    Those of its extensions that are in `extensions` are included.
    """
    if capabilities is None or len(memoryview(capabilities)) == 2:  # `{}`, as most send
        return NO_CAPABILITIES
    read = _read_cached if len(memoryview(capabilities)) <= CACHED_BYTES_MAX else _read_cached.__wrapped__
    return read(bytes(capabilities), frozenset(extensions))


@lru_cache(maxsize=256)
def _read_cached(capabilities: bytes, extensions: frozenset[str]) -> ClientCapabilities:
    """Cached, because modern clients send the same capabilities with every request."""
    try:
        members = _MEMBERS.decode(capabilities)
    except msgspec.MsgspecError:
        return NO_CAPABILITIES
    words: set[str] = set()
    for name, known in CLIENT_CAPABILITIES.items():
        if name in members:
            words.add(name)
            words.update(f"{name}.{detail}" for detail in _details(members[name]) if detail in known)
    if "extensions" in members:
        raw = members["extensions"]
        shows_apps = APP_TYPE.encode() in bytes(raw)
        words.update(
            f"extensions.{name}" for name in _details(raw) if name in extensions and (name != APPS or shows_apps)
        )
    return frozenset(words)


def _details(raw: msgspec.Raw) -> list[str]:
    try:
        details = _MEMBERS.decode(raw)
    except msgspec.MsgspecError:
        return []
    return [name for name, value in details.items() if bytes(value) not in (b"false", b"null")]


def write_client_capabilities(client_caps: ClientCapabilities) -> dict[str, Any]:
    """Client capabilities as JSON, which the hub sends on its caller's behalf."""
    written: dict[str, Any] = {}
    for word in sorted(client_caps):
        name, dot, detail = word.partition(".")
        written.setdefault(name, {})
        if dot:
            written[name][detail] = _SETTINGS.get(detail, {})
    return written


# -- what hubs tell each other in `_meta` --------------------------------------------------------------------------

HUBS_KEY = "isthmus/hubs"

HUBS_MAX = 256
"""The nearest are sent. A list with more is ignored."""

NO_HUBS: Mapping[str, int] = {}

HUB_ID_LENGTH_MAX = 64
STEPS_MAX = 100
"""Longer than any chain of hubs. Larger distances are sent as this one, because a larger number is ignored."""


class _HubsMeta(msgspec.Struct):
    hubs: dict[
        Annotated[str, msgspec.Meta(max_length=HUB_ID_LENGTH_MAX)], Annotated[int, msgspec.Meta(ge=0, le=STEPS_MAX)]
    ] = msgspec.field(name=HUBS_KEY, default_factory=dict)


def read_hubs(meta: Payload) -> dict[str, int]:
    """The distances of the hubs that a `_meta` names, by id; empty if it names none or is invalid."""
    try:
        hubs = msgspec.json.decode(meta, type=_HubsMeta).hubs
    except msgspec.MsgspecError:
        return {}
    return hubs if len(hubs) <= HUBS_MAX else {}


def write_hubs(hubs: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The member of `_meta` that names these hubs; empty if there are none."""
    nearest = sorted(hubs.items(), key=lambda entry: entry[1])[:HUBS_MAX]
    return {HUBS_KEY: {id: min(steps, STEPS_MAX) for id, steps in nearest}} if nearest else {}


CONVERSATION_KEY = "isthmus/conversation"

MARK_LENGTH_MAX = 64


class ConversationMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identifies a caller and its session, without their names, while the hub runs."""

    caller: str
    session: str = ""
    """Empty for calls without a session; two such calls may come from two programs."""
    shares: bool = False
    """See `Call.shares_link`."""


_MARK = msgspec.json.Decoder(ConversationMark)


def read_mark(raw: msgspec.Raw | None) -> ConversationMark | None:
    """Read the member of `_meta`; None if it is missing or invalid."""
    if raw is None:
        return None
    try:
        mark = _MARK.decode(raw)
    except msgspec.MsgspecError:
        return None
    return mark if 0 < len(mark.caller) <= MARK_LENGTH_MAX and len(mark.session) <= MARK_LENGTH_MAX else None


CALLER_KEY = "isthmus/caller"
"""Between the nodes of a cluster, which trust each other; from anybody else it is dropped."""


class NamedCaller(msgspec.Struct, frozen=True, omit_defaults=True):
    """The caller of a call that another node has admitted: for the queue, the log and the audit log."""

    name: str
    tenant: str
    session: str = ""
    shares: bool = False
    """See `Call.shares_link`."""
    sharer: str = ""
    """See `Call.sharer`."""


_CALLER = msgspec.json.Decoder(NamedCaller)


def read_caller(raw: msgspec.Raw | None) -> NamedCaller | None:
    """Read the member of `_meta`; None if it is missing or invalid."""
    if raw is None:
        return None
    try:
        return _CALLER.decode(raw)
    except msgspec.MsgspecError:
        return None


MISSING_KEY = "isthmus/missing"

MISSING_MAX = 1_000
"""A list with more servers is ignored."""

SERVER_LENGTH_MAX = 128
REASON_LENGTH_MAX = 300
"""A longer reason is truncated."""


class UnavailableServer(msgspec.Struct, frozen=True):
    """A server that is not connected; `listed` if its last known tools are in the list."""

    state: str
    reason: str | None
    listed: bool = False


class _MissingMeta(msgspec.Struct):
    missing: dict[Annotated[str, msgspec.Meta(min_length=1, max_length=SERVER_LENGTH_MAX)], UnavailableServer] = (
        msgspec.field(name=MISSING_KEY, default_factory=dict)
    )


def read_missing(meta: Payload) -> dict[str, str]:
    """The missing servers in a list's `_meta`, with reasons; empty if there are none or it is invalid."""
    try:
        missing = msgspec.json.decode(meta, type=_MissingMeta).missing
    except msgspec.MsgspecError:
        return {}
    if len(missing) > MISSING_MAX:
        return {}
    reasons: dict[str, str] = {}
    for server, each in missing.items():
        if server.isprintable():
            printable = "".join(letter for letter in each.reason or "" if letter.isprintable())
            reasons[server] = printable[:REASON_LENGTH_MAX] or "it is away"
    return reasons


def write_missing(missing: Mapping[str, UnavailableServer]) -> bytes:
    """A list's `_meta` that names these servers."""
    return msgspec.json.encode({MISSING_KEY: missing})
