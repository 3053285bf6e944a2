"""What a server can do, as both eras write it: read of servers, written to callers."""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from typing import Any

import msgspec

from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.features import Ability
from isthmus.wire.mcp import tasks

REMEMBERED_BYTES_MAX = 2048
"""What a client says of itself is remembered up to this length, which is many times what any needs."""

CLIENT_CAPABILITIES: dict[str, Set[str]] = {
    "elicitation": frozenset({"form", "url"}),
    "roots": frozenset(),
    "sampling": frozenset({"context", "tools"}),
}
"""Capabilities of a client that let a server ask something of it, each with the details that the protocol knows.

No others count: whoever made some up would have links and lists of its own for each. Nor does `listChanged` of roots: a
server that heard of other roots would ask for them, and outside a call nobody can be asked."""

APPS = "io.modelcontextprotocol/ui"
APP_TYPE = "text/html;profile=mcp-app"
"""What an app is written in, as a client names it that can show one."""

EXTENSIONS: dict[str, Ability] = {APPS: "apps", tasks.EXTENSION: "task_handles"}
"""Extensions that work through a hub because it passes on all that they consist of: apps are resources, and members of
`_meta` that name them. Of others nothing is said to callers, nor of anything experimental: they may have methods of
their own, which the hub would not know."""

LEGACY_EXTENSIONS = frozenset({APPS})
MODERN_EXTENSIONS = frozenset({APPS, tasks.EXTENSION})
"""Extensions that servers are told of where the caller knows them: an earlier caller, one since 2026-07-28."""

_SETTINGS: dict[str, Any] = {APPS: {"mimeTypes": [APP_TYPE]}}
"""What stands at a detail of what a client can do, where it is not an empty object."""


class ServerCapabilities(msgspec.Struct):
    """What a server says it can do, as far as the hub asks.

    What it writes may be of any type: a server that says `logging: true` is no worse for it.
    """

    tools: Any = None
    prompts: Any = None
    resources: Any = None
    completions: Any = None
    logging: Any = None
    extensions: Any = None
    tasks: Any = None

    @property
    def announces_changes(self) -> bool:
        """Whether it will tell when something that it lists changes, or can be asked to."""
        listings = (self.tools, self.prompts, self.resources)
        return any(_says(listing, "listChanged") or _says(listing, "subscribe") for listing in listings)

    def abilities(self) -> frozenset[Ability]:
        """The same as a set of words."""
        can: dict[Ability, bool] = {
            "tools": _is_there(self.tools),
            "prompts": _is_there(self.prompts),
            "resources": _is_there(self.resources),
            "subscribe": _says(self.resources, "subscribe"),
            "completions": _is_there(self.completions),
            "logging": _is_there(self.logging),
            # Of no use without an end: a caller must be able to give a task up.
            "tasks": _holds(self.tasks, "cancel") and _holds(self.tasks, "requests", "tools", "call"),
            **{ability: _holds(self.extensions, name) for name, ability in EXTENSIONS.items()},
        }
        return frozenset(ability for ability, is_there in can.items() if is_there)


def _is_there(capability: Any) -> bool:
    return isinstance(capability, dict) or capability is True


def _says(capability: Any, detail: str) -> bool:
    return isinstance(capability, dict) and capability.get(detail) is True


def _holds(capability: Any, *path: str) -> bool:
    """Whether there is something at a path into what is said."""
    for name in path:
        capability = capability.get(name) if isinstance(capability, dict) else None
    return _is_there(capability)


def write_server_capabilities(abilities: Set[Ability]) -> dict[str, Any]:
    """What the hub says it can do for a caller: what the servers behind it can, and tell of every change."""
    told: dict[str, Any] = {topic: {"listChanged": True} for topic in ("tools", "prompts") if topic in abilities}
    if "resources" in abilities:
        told["resources"] = {"listChanged": True, "subscribe": "subscribe" in abilities}
    for plain in ("completions", "logging"):
        if plain in abilities:
            told[plain] = {}
    if "tasks" in abilities:
        listed: dict[str, Any] = {"list": {}} if "task_list" in abilities else {}
        told["tasks"] = {**listed, "cancel": {}, "requests": {"tools": {"call": {}}}}
    extensions: dict[str, Any] = {name: {} for name, ability in EXTENSIONS.items() if ability in abilities}
    if extensions:
        told["extensions"] = extensions
    return told


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_client_capabilities(capabilities: msgspec.Raw | None, extensions: Set[str] = LEGACY_EXTENSIONS) -> ClientCapabilities:
    """What a client says it can be asked; of what it says in detail, what is known is kept as words behind a dot.

    Of the extensions that it knows, those among `extensions` count as such words too.
    """
    if capabilities is None or len(memoryview(capabilities)) == 2:  # `{}`, which most say
        return NO_CAPABILITIES
    read = _profile_in if len(memoryview(capabilities)) <= REMEMBERED_BYTES_MAX else _profile_in.__wrapped__
    return read(bytes(capabilities), frozenset(extensions))


@lru_cache(maxsize=256)
def _profile_in(capabilities: bytes, extensions: frozenset[str]) -> ClientCapabilities:
    """The same, once for all requests of a client that says the same each time, as modern ones do."""
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
        words.update(f"extensions.{name}" for name in _known(members["extensions"]) if name in extensions)
    return frozenset(words)


def _known(raw: msgspec.Raw) -> list[str]:
    """The extensions that a client knows; whoever shows no apps as they are written does not know them."""
    shows_apps = APP_TYPE.encode() in bytes(raw)
    return [name for name in _details(raw) if name != APPS or shows_apps]


def _details(raw: msgspec.Raw) -> list[str]:
    try:
        details = _MEMBERS.decode(raw)
    except msgspec.MsgspecError:
        return []
    return [name for name, value in details.items() if bytes(value) not in (b"false", b"null")]


def write_client_capabilities(client_caps: ClientCapabilities) -> dict[str, Any]:
    """The same as a client writes it, for the hub to say on its caller's behalf."""
    told: dict[str, Any] = {}
    for word in sorted(client_caps):
        name, dot, detail = word.partition(".")
        told.setdefault(name, {})
        if dot:
            told[name][detail] = _SETTINGS.get(detail, {})
    return told
