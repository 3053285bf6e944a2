"""What a server can do, as both eras write it: read of servers, written to callers."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

from isthmus.model.features import Ability
from isthmus.model.questions import NOTHING, Profile

ASKABLE = ("elicitation", "roots", "sampling")
"""Capabilities of a client that let a server ask something of it."""


class _Listing(msgspec.Struct):
    listChanged: bool | None = False
    subscribe: bool | None = False


class Capabilities(msgspec.Struct):
    """What a server says it can do, as far as the hub asks."""

    tools: _Listing | None = None
    prompts: _Listing | None = None
    resources: _Listing | None = None
    completions: dict[str, msgspec.Raw] | None = None
    logging: dict[str, msgspec.Raw] | None = None

    @property
    def announces_changes(self) -> bool:
        """Whether it will tell when something that it lists changes, or can be asked to."""
        return any(listing is not None and (listing.listChanged or listing.subscribe) for listing in self._listings)

    @property
    def _listings(self) -> tuple[_Listing | None, ...]:
        return self.tools, self.prompts, self.resources

    def abilities(self) -> frozenset[Ability]:
        """The same as a set of words."""
        can: dict[Ability, bool] = {
            "tools": self.tools is not None,
            "prompts": self.prompts is not None,
            "resources": self.resources is not None,
            "subscribe": self.resources is not None and bool(self.resources.subscribe),
            "completions": self.completions is not None,
            "logging": self.logging is not None,
        }
        return frozenset(ability for ability, is_there in can.items() if is_there)


def capabilities_of(abilities: Set[Ability]) -> dict[str, Any]:
    """What the hub says it can do for a caller: what the servers behind it can, and tell of every change.

    Where nothing is known of any server yet, tools are what one expects.
    """
    told: dict[str, Any] = {"tools": {"listChanged": True}} if "tools" in abilities or not abilities else {}
    if "prompts" in abilities:
        told["prompts"] = {"listChanged": True}
    if "resources" in abilities:
        told["resources"] = {"listChanged": True, "subscribe": "subscribe" in abilities}
    for plain in ("completions", "logging"):
        if plain in abilities:
            told[plain] = {}
    return told


_CLIENT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_profile(capabilities: msgspec.Raw | None) -> Profile:
    """What a client says it can be asked; what it says of it in detail is kept as words behind a dot."""
    if capabilities is None or len(memoryview(capabilities)) == 2:  # `{}`, which most say
        return NOTHING
    try:
        members = _CLIENT.decode(capabilities)
    except msgspec.MsgspecError:
        return NOTHING
    words: set[str] = set()
    for name in ASKABLE:
        if name in members:
            words.add(name)
            words.update(f"{name}.{detail}" for detail in _details(members[name]))
    return frozenset(words)


def _details(raw: msgspec.Raw) -> list[str]:
    try:
        details = _CLIENT.decode(raw)
    except msgspec.MsgspecError:
        return []
    return [name for name, value in details.items() if bytes(value) not in (b"false", b"null") and len(name) <= 64][:16]


def profile_capabilities(profile: Profile) -> dict[str, Any]:
    """The same as a client writes it, for the hub to say on its caller's behalf."""
    told: dict[str, Any] = {}
    for word in sorted(profile):
        name, dot, detail = word.partition(".")
        told.setdefault(name, {})
        if dot:
            told[name][detail] = True if detail == "listChanged" else {}
    return told
