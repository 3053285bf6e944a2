"""Capabilities of servers and clients, which both eras write alike."""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from typing import Any

import msgspec

from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.features import Ability
from isthmus.wire.mcp import tasks

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

APPS = "io.modelcontextprotocol/ui"
APP_TYPE = "text/html;profile=mcp-app"
"""The media type of apps, which a client names if it can show them."""

EXTENSIONS: dict[str, Ability] = {APPS: "apps", tasks.EXTENSION: "task_handles"}
"""Extensions that work through a hub because it passes on all their parts: apps are resources, and members of `_meta`
that name them. Others, and experimental capabilities, are not announced: they may have methods that the hub lacks."""

LEGACY_EXTENSIONS = frozenset({APPS})
MODERN_EXTENSIONS = frozenset({APPS, tasks.EXTENSION})
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
