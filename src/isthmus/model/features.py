"""What servers offer: tools, prompts, resources and resource templates, with their definitions."""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias, TypeVar, get_args

import msgspec

from isthmus.model.names import FeatureName, ServerName

Ability: TypeAlias = Literal[
    "tools",
    "prompts",
    "resources",
    "subscribe",
    "completions",
    "logging",
    "apps",
    "tasks",
    "task_list",
    "task_handles",
]
"""What a server says it can do. `apps` are resources that a client can show as a user interface. A tool runs as a task
if its caller requests it (`tasks`, before 2026-07-28), or if its server decides so (`task_handles`). The list of a
caller's tasks (`task_list`) is the hub's own, and no server's."""

TASK_ABILITIES: frozenset[Ability] = frozenset({"tasks", "task_handles"})

Topic: TypeAlias = Literal["tools", "prompts", "resources"]
"""A list whose changes clients can be notified of; resources include their templates."""

TOPICS: tuple[Topic, ...] = ("tools", "prompts", "resources")

ListName: TypeAlias = Literal["tools", "prompts", "resources", "templates"]
"""The lists of a server."""

LISTS: tuple[ListName, ...] = get_args(ListName)

F = TypeVar("F", bound="Feature")


class Feature(msgspec.Struct, frozen=True, gc=False):
    """Something that one server offers; its kind and the pair (server, name) are its only identity.

    It refers to nothing that could refer to it, so the collector need not scan it: a hub may have 100,000 of them.
    `definition` is the server's own definition, decoded one level deep and otherwise unchanged, so that members unknown
    to this hub reach the caller. `digest` changes exactly when the definition does.
    """

    server: ServerName
    name: FeatureName
    definition: dict[str, msgspec.Raw]
    digest: bytes

    @classmethod
    def of(cls: type[F], server: ServerName, name: FeatureName, definition: dict[str, msgspec.Raw]) -> F:
        """Create one and compute its digest."""
        return cls(server, name, definition, digest_of(definition))


class Tool(Feature, frozen=True):
    """Something that can be called."""


class Prompt(Feature, frozen=True):
    """A prompt template."""


class Resource(Feature, frozen=True):
    """Something that can be read; its name is its URI."""


class Template(Feature, frozen=True):
    """A family of resources; its name is the template of their URIs."""


def digest_of(definition: dict[str, msgspec.Raw]) -> bytes:
    """A short fingerprint of a definition, the same for the same members in the same order."""
    return hashlib.blake2b(msgspec.json.encode(definition), digest_size=12).digest()
