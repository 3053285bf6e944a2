"""Names, features and states at one moment: immutable, swapped whole.

A `Snapshot` holds every server; a `View` is what one permission set sees of it on one surface. Listing and calling
read the same view, which is what makes "callable" and "listed" the same set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from isthmus.core.access.policy import Policy
from isthmus.core.catalog.checks import CheckCache
from isthmus.core.catalog.defaults import as_listed, compile_defaults
from isthmus.core.catalog.names import Pair, canonical_table, llm_table
from isthmus.core.catalog.rules import NO_RULES, Rules
from isthmus.core.catalog.uris import uri_table
from isthmus.core.catalog.view import Missing, Route, ServerState, View
from isthmus.model.callers import Grants
from isthmus.model.calls import Surface
from isthmus.model.features import Ability, Feature, Prompt, Resource, Template, Tool
from isthmus.model.names import ServerName

VIEWS_MAX = 256
"""Views kept per snapshot; more permission sets than this at once are compiled again when they return."""

Listed: TypeAlias = Literal["tools", "prompts", "resources", "templates"]
"""The lists that a server has, as the fields of a `Standing` are called."""


class Standing(msgspec.Struct, frozen=True):
    """How one server stands: its state, why, and what it last listed (kept while it is away).

    `reason` is told to callers; `detail` (what a process last said, say) only to the operator.
    """

    server: ServerName
    state: ServerState = "starting"
    reason: str | None = None
    detail: str | None = None
    tools: tuple[Tool, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    templates: tuple[Template, ...] = ()
    abilities: frozenset[Ability] = frozenset()
    is_settled: bool = False
    """Its first attempt to connect has ended, one way or the other."""
    era: str | None = None
    carrier: str | None = None
    """What carries messages to it: stdio, http, sse and so on."""
    notes: tuple[str, ...] = ()
    """What the operator should know of it: tools left out, schemas that cannot be checked."""
    rules: Rules = NO_RULES

    @property
    def has_lists(self) -> bool:
        """Whether it offers anything by name."""
        return bool(self.tools or self.prompts or self.resources or self.templates)


class Snapshot:
    """Every server's standing at one moment."""

    def __init__(self, version: int, standings: Mapping[ServerName, Standing], checks: CheckCache) -> None:
        self.version = version
        self.standings = standings
        self._checks = checks
        self._views: dict[tuple[Grants, Surface], View] = {}
        self._names: dict[tuple[str, Listed], dict[Pair, str]] = {}

    def view(self, grants: Grants, surface: Surface) -> View:
        """The table for these permissions on this surface, compiled on first use."""
        key = (grants, surface)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= VIEWS_MAX:
                self._views.clear()
            view = self._views[key] = self._compile(Policy(grants), surface)
        return view

    def _compile(self, policy: Policy, surface: Surface) -> View:
        shown = self._shown(policy, surface)
        view = View(policy, {standing.server: standing.abilities for standing in shown})
        for standing in shown:
            self._add_tools(view, standing, policy, self._names_of(surface, "tools"))
            _add(view.prompts, standing.prompts, policy, self._names_of(surface, "prompts"))
            _add(view.resources, standing.resources, policy, self._names_of(surface, "resources"))
            _add(view.templates, standing.templates, policy, self._names_of(surface, "templates"))
            if standing.state != "ready":
                view.missing[standing.server] = Missing(standing.state, standing.reason, standing.has_lists)
        return view

    def _add_tools(self, view: View, standing: Standing, policy: Policy, names: dict[Pair, str] | None) -> None:
        rules = standing.rules
        if rules is NO_RULES:
            for tool in standing.tools:
                if policy.allows(tool.server, tool.name):
                    exposed = tool.name if names is None else names[tool.server, tool.name]
                    view.routes[exposed] = Route(tool, exposed, self._checks.of(tool))
            return
        for tool in standing.tools:
            if rules.shows(tool.name) and policy.allows(tool.server, tool.name):
                exposed = tool.name if names is None else names[tool.server, tool.name]
                view.routes[exposed] = self._ruled_route(tool, exposed, rules)

    def _ruled_route(self, tool: Tool, exposed: str, rules: Rules) -> Route:
        defaults = compile_defaults(rules.defaults.get(tool.name, {}))
        seconds = rules.cache_seconds if rules.keeps(tool.name) else 0.0
        # Checked once the defaults are in, and so against the server's own schema.
        return Route(as_listed(tool, defaults), exposed, self._checks.of(tool), defaults, seconds)

    def _shown(self, policy: Policy, surface: Surface) -> list[Standing]:
        """The servers to look at, in the order of their names: listings are deterministic."""
        return [
            standing
            for name, standing in sorted(self.standings.items())
            if surface.server in (None, name) and policy.may_see_server(name) and standing.state != "disabled"
        ]

    def _names_of(self, surface: Surface, listed: Listed) -> dict[Pair, str] | None:
        """What everything of one list is called on a surface; None where servers' own names are used."""
        if surface.style == "own":
            return None
        key = (surface.style, listed)
        if key not in self._names:
            make = _TABLES[surface.style] if listed in ("tools", "prompts") else uri_table
            self._names[key] = make(self.pairs(listed))
        return self._names[key]

    def pairs(self, listed: Listed = "tools") -> list[Pair]:
        """Everything of one list, of every server."""
        return [
            (feature.server, feature.name)
            for standing in self.standings.values()
            if standing.state != "disabled"
            for feature in _list_of(standing, listed)
        ]


def _list_of(standing: Standing, listed: Listed) -> tuple[Feature, ...]:
    match listed:
        case "tools":
            return standing.tools
        case "prompts":
            return standing.prompts
        case "resources":
            return standing.resources
        case "templates":
            return standing.templates


def _add(table: dict[str, Route], features: Iterable[Feature], policy: Policy, names: dict[Pair, str] | None) -> None:
    for feature in features:
        if policy.allows(feature.server, feature.name):
            exposed = feature.name if names is None else names[feature.server, feature.name]
            table[exposed] = Route(feature, exposed)


_TABLES: dict[str, Callable[[Iterable[Pair]], dict[Pair, str]]] = {
    "canonical": canonical_table,
    "llm": llm_table,
}
