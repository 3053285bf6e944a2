"""What one permission set sees on one surface: the table that listing and calling both read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from isthmus.core.access.policy import Policy
from isthmus.core.catalog.checks import unchecked
from isthmus.core.catalog.defaults import Defaults
from isthmus.core.catalog.uris import Shape, qualified
from isthmus.model.calls import Kind
from isthmus.model.features import Feature, Resource
from isthmus.model.names import FeatureName, ServerName

ServerState: TypeAlias = Literal["starting", "ready", "retrying", "stopped", "disabled"]
"""`starting`: the first attempt runs. `retrying`: lost or never reached, tried again by itself."""

Ability: TypeAlias = Literal["tools", "prompts", "resources", "subscribe", "completions", "logging"]
"""What a server says it can do."""

Topic: TypeAlias = Literal["tools", "prompts", "resources"]
"""A list that callers can be told has changed; that of the resources is also that of their templates."""

TOPICS: tuple[Topic, ...] = ("tools", "prompts", "resources")


class Route(msgspec.Struct, frozen=True, eq=False):
    """Where an exposed name leads.

    `feature` is what the server offers, as callers see it. `defaults` are arguments to fill in, `keep_seconds` is
    how long a result may be given again; both are the operator's.
    """

    feature: Feature
    exposed: str
    check: Callable[[msgspec.Raw], str | None] = unchecked
    defaults: Defaults = {}
    keep_seconds: float = 0.0


class Missing(msgspec.Struct, frozen=True):
    """A server that the caller may see and whose tools are absent from a listing, or listed though it is away."""

    state: ServerState
    reason: str | None
    is_listed: bool


class Found(msgspec.Struct, frozen=True):
    """A route, and what its server calls the thing that was asked for."""

    route: Route
    name: str


class View:
    """What one permission set sees on one surface. `memo` holds what faces rendered from it.

    `routes` are those of tools. `servers` are those that the permissions reach at all, with tools or without;
    `abilities` is what at least one of them can do.
    """

    __slots__ = (
        "_digests",
        "_policy",
        "_shapes",
        "abilities",
        "memo",
        "missing",
        "prompts",
        "resources",
        "routes",
        "servers",
        "templates",
    )

    def __init__(self, policy: Policy, abilities: Mapping[ServerName, frozenset[Ability]]) -> None:
        self._policy = policy
        self.routes: dict[str, Route] = {}
        self.prompts: dict[str, Route] = {}
        self.resources: dict[str, Route] = {}
        self.templates: dict[str, Route] = {}
        self.missing: dict[ServerName, Missing] = {}
        self.servers: Mapping[ServerName, frozenset[Ability]] = abilities
        self.abilities: frozenset[Ability] = frozenset().union(*abilities.values())
        self.memo: dict[str, bytes] = {}
        self._digests: dict[Topic, bytes] = {}
        self._shapes: list[tuple[Shape, Route]] | None = None

    @property
    def digest(self) -> bytes:
        """Changes exactly when the listed tools, their names or their descriptions do."""
        return self.digest_of("tools")

    def digest_of(self, topic: Topic) -> bytes:
        """Changes exactly when that list does."""
        if topic not in self._digests:
            self._digests[topic] = _digest(*self._tables(topic))
        return self._digests[topic]

    def _tables(self, topic: Topic) -> tuple[dict[str, Route], ...]:
        match topic:
            case "tools":
                return (self.routes,)
            case "prompts":
                return (self.prompts,)
            case "resources":
                return (self.resources, self.templates)

    # -- finding ---------------------------------------------------------------------------------------------------

    def find(self, kind: Kind, name: str) -> Found | None:
        """Where a call of this kind leads; None if nowhere that this caller may see."""
        match kind:
            case "tool":
                return _found(self.routes.get(name))
            case "prompt" | "prompt_argument":
                return _found(self.prompts.get(name))
            case "uri_argument":
                return _found(self.templates.get(name) or self.resources.get(name))
            case "resource":
                return self.find_resource(name)

    def find_resource(self, uri: str) -> Found | None:
        """Where a URI is read: a listed one, one that a template stands for, or one for the only server there is.

        Servers write URIs into their results that they list nowhere, and expect them to be read.
        """
        return _found(self.resources.get(uri)) or self._by_template(uri) or self._unlisted(uri)

    def _by_template(self, uri: str) -> Found | None:
        if self._shapes is None:
            # The most literal first; of equals, in the order of the servers.
            shapes = [(Shape(exposed), route) for exposed, route in self.templates.items()]
            self._shapes = sorted(shapes, key=lambda entry: -entry[0].weight)
        for shape, route in self._shapes:
            if shape.fits(uri):
                own = _own_uri(uri, route)
                if not self._policy.denies(route.feature.server, FeatureName(own)):
                    return Found(route, own)
        return None

    def _unlisted(self, uri: str) -> Found | None:
        servers = [server for server, abilities in self.servers.items() if "resources" in abilities]
        whose = next((server for server in servers if uri.startswith(qualified(server, ""))), None)
        if whose is not None:
            own = uri.removeprefix(qualified(whose, ""))
        elif len(servers) == 1:
            whose, own = servers[0], uri
        else:
            return None
        if not self._policy.allows(whose, FeatureName(own)):
            return None
        return Found(Route(Resource.of(whose, FeatureName(own), {}), uri), own)

    def candidates(self, uri: str) -> tuple[str, ...]:
        """The listed URIs that could be meant by one that several servers have."""
        return tuple(exposed for exposed, route in self.resources.items() if route.feature.name == uri != exposed)


def _found(route: Route | None) -> Found | None:
    return None if route is None else Found(route, route.feature.name)


def _own_uri(uri: str, route: Route) -> str:
    """What the server of a template calls a URI that was asked for."""
    prefix = qualified(route.feature.server, "")
    return uri.removeprefix(prefix) if route.exposed.startswith(prefix) else uri


def _digest(*tables: Mapping[str, Route]) -> bytes:
    total = hashlib.blake2b(digest_size=16)
    for table in tables:
        for exposed, route in table.items():
            total.update(exposed.encode("utf-8", "surrogatepass") + b"\0" + route.feature.digest)
        total.update(b"\0\0")
    return total.digest()
