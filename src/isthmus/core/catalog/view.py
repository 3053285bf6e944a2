"""What one permission set sees of a snapshot on one surface, and where each name of it leads.

Lists and calls read the same view, so "listed" and "callable" are the same set; the only exception are methods of
unlisted servers (`View.unlisted`). A set (`core.catalog.sets`) is a view, too: of some features, with names and
definitions of its own. With `expose`, a view lists tools of the hub itself (`View.virtual`). `core.catalog.snapshot`
compiles views.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from isthmus.core.access.policy import Policy
from isthmus.core.catalog.argument_validation import no_check
from isthmus.core.catalog.names import (
    TemplateShape,
    is_qualified,
    normalized,
    normalized_template,
    qualified,
    without_query,
)
from isthmus.core.catalog.tool_rules import (
    CallChanges,
    ToolRules,
    compile_defaults,
    without_required,
)
from isthmus.core.ports import VirtualTool
from isthmus.model.callers import Exposure
from isthmus.model.calls import Kind
from isthmus.model.features import TASK_ABILITIES, Ability, Feature, ListName, Resource, Tool, Topic
from isthmus.model.names import FeatureName, ServerName

ServerState: TypeAlias = Literal["starting", "ready", "retrying", "login", "away", "stopped", "disabled"]
"""`starting`: the first connection attempt runs. `retrying`: lost or never reached, retried automatically. `login`: it
requires a login, and is not retried before that changes. `away`: it dialled in and has disconnected; only it can come
back."""

TEMPLATED_LENGTH_MAX = 8192
"""A longer URI is compared with no template: servers may have thousands, and other calls wait meanwhile."""

METHOD = re.compile(r"[!-~]{1,128}")
"""The characters of a method name: it is written into headers."""

UNLISTED_LENGTH_MAX = 256
"""The length of a method name of an unlisted server."""

CALL_BY_ARGUMENT = "tools/call"
"""A method whose arguments name another method."""

CANDIDATES_MAX = 8
"""How many meanings of an ambiguous URI a caller gets."""


class Route(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where an exposed name leads. Nothing that it refers to refers to it, so the collector need not scan it.

    `feature` is what the server offers, as callers see it. `changes` are those of each call's arguments, `keep_seconds`
    is how long a result may be cached; the operator sets both.
    """

    feature: Feature
    exposed: str
    check: Callable[[msgspec.Raw], str | None] = no_check
    changes: CallChanges | None = None
    keep_seconds: float = 0.0
    is_trusted: bool = False
    """Whether the operator trusts the server's statements about itself."""
    own: Feature | None = None
    """What the server itself defines, where callers see something else."""


def ruled_route(
    tool: Tool, exposed: str, rules: ToolRules, check: Callable[[msgspec.Raw], str | None] = no_check
) -> Route:
    """A tool's route with the operator's rules."""
    defaults = compile_defaults(rules.defaults.get(tool.name, {}))
    seconds = rules.cache_seconds if rules.keeps(tool.name) else 0.0
    changes = CallChanges(defaults) if defaults else None
    # Checked after the defaults are added, against the server's own schema.
    return Route(without_required(tool, defaults), exposed, check, changes, seconds, rules.is_trusted, tool)


class VirtualRoute(Route, frozen=True, eq=False, gc=True, kw_only=True):
    """The route of a tool of the hub itself."""

    virtual: VirtualTool


class ExposedTools(msgspec.Struct, frozen=True, eq=False):
    """The hub's exposure, and the tools of the hub that views list instead of servers' tools, by exposure."""

    default: Exposure = "all"
    virtual: Mapping[Exposure, tuple[VirtualTool, ...]] = {}
    names: frozenset[str] = frozenset()
    """The names of all these tools."""


ALL_EXPOSED = ExposedTools()


class NotReadyServer(msgspec.Struct, frozen=True):
    """A visible server that is not ready; `is_listed` says whether its cached tools are in the list."""

    state: ServerState
    reason: str | None
    is_listed: bool


class FoundRoute(msgspec.Struct, frozen=True):
    """A route, and the server's own name for what was requested."""

    route: Route
    name: str


class View:
    """What one permission set sees on one surface. `memo` caches what frontends rendered from it.

    `routes` are those of tools. `servers` are the visible servers, with tools or without; `abilities` is what at least
    one of them can do.
    """

    __slots__ = (
        "_digests",
        "_policy",
        "_shapes",
        "_withheld",
        "_withheld_shapes",
        "abilities",
        "aliases",
        "description",
        "found",
        "hubs",
        "left_out",
        "memo",
        "missing",
        "prompts",
        "resources",
        "routes",
        "servers",
        "set",
        "templates",
        "unlisted",
        "virtual",
        "whole",
    )

    def __init__(self, policy: Policy, abilities: Mapping[ServerName, frozenset[Ability]]) -> None:
        self._policy = policy
        self.routes: dict[str, Route] = {}
        """What can be called by name. It is also what is listed, unless there are `virtual` tools."""
        self.virtual: dict[str, VirtualRoute] = {}
        """Tools of the hub itself that are listed instead of `routes`. No route has a name of theirs."""
        self.found: Mapping[str, Route] = {}
        """Tools that are listed besides `virtual`, because the caller's session has found them."""
        self.aliases: Mapping[str, str] = {}
        """Names with underscores for hyphens, and the real names. They are not listed."""
        self.prompts: dict[str, Route] = {}
        self.resources: dict[str, Route] = {}
        self.templates: dict[str, Route] = {}
        self.missing: dict[ServerName, NotReadyServer] = {}
        self.servers: Mapping[ServerName, frozenset[Ability]] = abilities
        self.abilities: frozenset[Ability] = frozenset().union(*abilities.values())
        self.hubs: Mapping[str, int] = {}
        """The hubs among these servers and behind them, by id, with the number of hubs between."""
        self.whole: ServerName | None = None
        """The only server on its own surface, if nothing of it is hidden from the caller."""
        self.unlisted: dict[str, tuple[ServerName, ToolRules]] = {}
        """Plain JSON-RPC servers without a list whose methods this caller may call by name. The key is the part before
        the dot: the server's name, or nothing on the server's own surface."""
        self.set: str | None = None
        """The set that this is a view of; only its names can be called."""
        self.description = ""
        """What the set is for, in the operator's words; for one trusted server, how it says it should be used."""
        self.left_out: dict[tuple[ListName, str], str] = {}
        """What the set picks and cannot have, by list and `server.tool`, and why. For the operator."""
        self.memo: dict[str, bytes] = {}
        self._digests: dict[Topic, bytes] = {}
        self._shapes: list[tuple[TemplateShape, Route]] | None = None
        self._withheld: set[tuple[ServerName, str]] = set()
        self._withheld_shapes: list[tuple[ServerName, TemplateShape]] = []

    @property
    def claimed(self) -> frozenset[Ability]:
        """The abilities to advertise: those of all servers, and tools as long as a server was never listed.

        Legacy clients that see no tools in the initialize result never list them, although that server's may appear at
        any moment. The same applies to a client that sees no server, since one may be added.
        """
        is_unheard = any(server in self.missing for server, abilities in self.servers.items() if not abilities)
        return self.abilities | {"tools"} if is_unheard or not self.servers else self.abilities

    def table(self, listed: ListName) -> dict[str, Route]:
        """The routes of one list by name or URI. Those of tools are all that can be called."""
        match listed:
            case "tools":
                return self.routes
            case "prompts":
                return self.prompts
            case "resources":
                return self.resources
            case "templates":
                return self.templates

    @property
    def listed(self) -> Mapping[str, Route]:
        """The tools to list."""
        return {**self.virtual, **self.found} if self.virtual else self.routes

    def with_found(self, names: Iterable[str]) -> View:
        """The same view, listing these tools besides those of the hub, as far as the caller still has them."""
        view = copy.copy(self)
        view.found = {name: route for name in names if (route := self.routes.get(name)) is not None}
        view.memo, view._digests = {}, {}
        return view

    @property
    def digest(self) -> bytes:
        """Changes exactly when the listed tools, their names or their definitions do."""
        return self.digest_of("tools")

    def digest_of(self, topic: Topic) -> bytes:
        """Changes exactly when that list does."""
        if topic not in self._digests:
            tables: Mapping[Topic, tuple[Mapping[str, Route], ...]] = {
                "tools": (self.listed,),
                "prompts": (self.prompts,),
                "resources": (self.resources, self.templates),
            }
            total = hashlib.blake2b(digest_size=16)
            for table in tables[topic]:
                for exposed, route in table.items():
                    total.update(exposed.encode("utf-8", "surrogatepass") + b"\0" + route.feature.digest)
                total.update(b"\0\0")
            self._digests[topic] = total.digest()
        return self._digests[topic]

    def withhold(self, server: ServerName, denied: Iterable[str]) -> None:
        """Deny resources also by way of a template, and those of denied templates in any way.

        That includes other spellings: servers decode URIs as they like.
        """
        for name in denied:
            if "{" in name:
                self._withheld_shapes.append((server, TemplateShape(normalized_template(name))))
            else:
                self._withheld.add((server, normalized(name)))

    def _is_withheld(self, server: ServerName, uri: str) -> bool:
        if self._policy.denies(server, FeatureName(uri)):
            return True
        if not self._is_selective(server):
            return False
        meant = {normalized(uri), normalized(without_query(uri))}
        shapes = [shape for owner, shape in self._withheld_shapes if owner == server]
        return any((server, each) in self._withheld or any(shape.fits(each) for shape in shapes) for each in meant)

    def _is_selective(self, server: ServerName) -> bool:
        """Whether some resource of a server is denied: then its unlisted resources are not readable either."""
        return any(server == owner for owner, _ in (*self._withheld, *self._withheld_shapes))

    def may_receive_updates(self, server: ServerName, name: str, uri: str) -> bool:
        """Whether the caller may receive updates of a resource it subscribed to, though it may no longer be listed.

        `name` is the server's URI, `uri` the caller's.
        """
        if server not in self.servers or self._is_withheld(server, name):
            return False
        return self._policy.allows(server, FeatureName(name)) or self.find_resource(uri) is not None

    # -- finding ---------------------------------------------------------------------------------------------------

    def find(self, kind: Kind, name: str) -> FoundRoute | None:
        """The route of a call of this kind; None if the caller sees none."""
        match kind:
            case "tool":
                return _found(self.find_tool(name) or self.virtual.get(name))
            case "prompt" | "prompt_argument":
                return _found(self.prompts.get(name))
            case "uri_argument":
                return _found(self.templates.get(name) or self.resources.get(name))
            case "resource":
                return self.find_resource(name)
            case "task" | "task_result" | "task_cancel" | "task_update":
                # A task belongs to one server; where there are several, its id must be qualified.
                servers = [each for each, abilities in self.servers.items() if not abilities.isdisjoint(TASK_ABILITIES)]
                server = servers[0] if servers and len(self.servers) == 1 else None
                return None if server is None else _unlisted_route(server, name)
            case "method":
                # Methods are for callers that may use the whole server, because their effect is unknown here.
                if self.whole is None or METHOD.fullmatch(name) is None:
                    return None
                return _unlisted_route(self.whole, name)

    def is_known(self, kind: Kind, name: str) -> bool:
        """Whether a call of this name need not wait for servers that start. A tool of the hub may name any other."""
        return self.find(kind, name) is not None and not (kind == "tool" and name in self.virtual)

    def by_alias(self, name: str) -> Route | None:
        """The tool whose name with underscores this is."""
        return self.routes.get(self.aliases.get(name, ""))

    def find_tool(self, name: str) -> Route | None:
        """The route of a tool's name: a listed tool, or a method of an unlisted server."""
        return self.routes.get(name) or self.find_unlisted(name)

    def find_unlisted(self, name: str) -> Route | None:
        """The route of a method of an unlisted server.

        A plain server without a list is the exception to "callable is listed": a caller that may use all of it calls
        its methods by name. Hidden methods stay hidden, and cannot be called through `tools/call` either.
        """
        place, method = ("", name) if "" in self.unlisted else name.partition(".")[::2]
        server, rules = self.unlisted.get(place, (None, None))
        if server is None or rules is None or not method.isprintable() or not 0 < len(method) <= UNLISTED_LENGTH_MAX:
            return None
        if method == CALL_BY_ARGUMENT and (rules.hidden or self._policy.is_narrowed):
            return None
        tool = Tool.of(server, FeatureName(method), {})
        is_allowed = rules.shows(method) and self._policy.allows(server, tool.name)
        return ruled_route(tool, name, rules) if is_allowed else None

    def find_resource(self, uri: str) -> FoundRoute | None:
        """Where a URI is read: a listed resource, a template's, or any URI of the only server.

        Servers put URIs into their results that they list nowhere, and expect them to be readable.
        """
        listed = self.resources.get(uri)
        if listed is not None:
            return _found(listed)
        # Only templates of the server that a qualified URI names can match it.
        servers = (server for server, abilities in self.servers.items() if "resources" in abilities)
        owner = next((server for server in servers if uri.startswith(qualified(server, ""))), None)
        own = uri if owner is None else uri.removeprefix(qualified(owner, ""))
        routes = self._templates_for(own, owner)
        claims = {route.feature.server for route in routes}
        if owner is None:
            claims |= {server for server in self.servers if qualified(server, uri) in self.resources}
        if len(claims) > 1:
            return None  # no server may answer for another, however well its template matches
        return FoundRoute(routes[0], own) if routes else self._unlisted(uri, own, owner)

    def _templates_for(self, own: str, owner: ServerName | None) -> list[Route]:
        """The templates that match a URI, the most specific first."""
        is_strangers = owner is None and is_qualified(own) and len(self.servers) > 1
        if is_strangers or len(own) > TEMPLATED_LENGTH_MAX:
            return []
        if self._shapes is None:
            shapes = [(TemplateShape(route.feature.name), route) for route in self.templates.values()]
            self._shapes = sorted(shapes, key=lambda entry: -entry[0].weight)
        return [
            route
            for shape, route in self._shapes
            if (route.exposed == route.feature.name if owner is None else route.feature.server == owner)
            and shape.fits(own)
            and not self._is_withheld(route.feature.server, own)
        ]

    def _unlisted(self, uri: str, own: str, owner: ServerName | None) -> FoundRoute | None:
        servers = [server for server, abilities in self.servers.items() if "resources" in abilities]
        if owner is None and len(servers) == 1:
            owner = servers[0]
        if owner is None or not self._policy.allows(owner, FeatureName(own)) or self._is_selective(owner):
            return None
        return FoundRoute(Route(Resource.of(owner, FeatureName(own), {}), uri), own)

    def candidates(self, uri: str) -> tuple[str, ...]:
        """The qualified URIs that an ambiguous URI or template may mean."""
        tables = (self.resources, self.templates)
        routes = [route for table in tables for route in table.values() if route.feature.name == uri != route.exposed]
        fitting = self._templates_for(uri, None)
        meant = [route.exposed for route in routes] + [qualified(route.feature.server, uri) for route in fitting]
        return tuple(dict.fromkeys(meant))[:CANDIDATES_MAX]


def _unlisted_route(server: ServerName, name: str) -> FoundRoute:
    return FoundRoute(Route(Tool.of(server, FeatureName(name), {}), name), name)


def _found(route: Route | None) -> FoundRoute | None:
    return None if route is None else FoundRoute(route, route.feature.name)
