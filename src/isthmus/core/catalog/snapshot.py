"""Names, tools and states at one moment: immutable, swapped whole.

A `Snapshot` holds every server; a `View` is what one permission set sees of it on one surface. Listing and calling
read the same view, which is what makes "callable" and "listed" the same set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from isthmus.core.access.policy import Policy
from isthmus.core.catalog.names import Pair, canonical_table, llm_table
from isthmus.core.catalog.schema import Check, Unchecked, compile_check
from isthmus.model.callers import Grants
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.model.tools import Tool

ServerState: TypeAlias = Literal["starting", "ready", "retrying", "stopped", "disabled"]
"""`starting`: the first attempt runs. `retrying`: lost or never reached, tried again by itself."""

VIEWS_MAX = 256
"""Views kept per snapshot; more permission sets than this at once are compiled again when they return."""


class Standing(msgspec.Struct, frozen=True):
    """How one server stands: its state, why, and the tools it last listed (kept while it is away).

    `reason` is told to callers; `detail` (what a process last said, say) only to the operator.
    """

    server: ServerName
    state: ServerState = "starting"
    reason: str | None = None
    detail: str | None = None
    tools: tuple[Tool, ...] = ()
    is_settled: bool = False
    """Its first attempt to connect has ended, one way or the other."""
    era: str | None = None
    notes: tuple[str, ...] = ()
    """What the operator should know of it: tools left out, schemas that cannot be checked."""


class Route(msgspec.Struct, frozen=True, eq=False):
    """Where an exposed name leads."""

    tool: Tool
    exposed: str
    check: Callable[[msgspec.Raw], str | None]


class Missing(msgspec.Struct, frozen=True):
    """A server that the caller may see and whose tools are absent from a listing, or listed though it is away."""

    state: ServerState
    reason: str | None
    is_listed: bool


class View:
    """What one permission set sees on one surface. `memo` holds what faces rendered from it.

    `servers` are those that the permissions reach at all, with tools or without.
    """

    __slots__ = ("digest", "memo", "missing", "routes", "servers")

    def __init__(
        self, routes: dict[str, Route], missing: dict[ServerName, Missing], servers: frozenset[ServerName]
    ) -> None:
        self.routes = routes
        self.missing = missing
        self.servers = servers
        self.memo: dict[str, bytes] = {}
        self.digest = _digest(routes)


def _digest(routes: Mapping[str, Route]) -> bytes:
    """Changes exactly when the listed tools, their names or their descriptions do."""
    total = hashlib.blake2b(digest_size=16)
    for exposed, route in routes.items():
        total.update(exposed.encode("utf-8", "surrogatepass") + b"\0" + route.tool.digest)
    return total.digest()


class Snapshot:
    """Every server's standing at one moment."""

    def __init__(self, version: int, standings: Mapping[ServerName, Standing], checks: CheckCache) -> None:
        self.version = version
        self.standings = standings
        self._checks = checks
        self._views: dict[tuple[Grants, Surface], View] = {}
        self._names: dict[str, dict[Pair, str]] = {}

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
        names = self._names_of(surface)
        routes: dict[str, Route] = {}
        missing: dict[ServerName, Missing] = {}
        shown = self._shown(policy, surface)
        for standing in shown:
            for tool in standing.tools:
                if policy.allows(tool.server, tool.name):
                    exposed = names[tool.server, tool.name] if names else str(tool.name)
                    routes[exposed] = Route(tool, exposed, self._checks.of(tool))
            if standing.state != "ready":
                missing[standing.server] = Missing(standing.state, standing.reason, bool(standing.tools))
        return View(routes, missing, frozenset(standing.server for standing in shown))

    def _shown(self, policy: Policy, surface: Surface) -> list[Standing]:
        """The servers to look at, in the order of their names: listings are deterministic."""
        return [
            standing
            for name, standing in sorted(self.standings.items())
            if surface.server in (None, name) and policy.may_see_server(name) and standing.state != "disabled"
        ]

    def _names_of(self, surface: Surface) -> dict[Pair, str]:
        if surface.style == "own":
            return {}
        if surface.style not in self._names:
            self._names[surface.style] = _TABLES[surface.style](self.pairs())
        return self._names[surface.style]

    def pairs(self) -> list[Pair]:
        """Every tool of every server."""
        return [
            (tool.server, tool.name)
            for standing in self.standings.values()
            if standing.state != "disabled"
            for tool in standing.tools
        ]


_TABLES: dict[str, Callable[[Iterable[Pair]], dict[Pair, str]]] = {
    "canonical": canonical_table,
    "llm": llm_table,
}


class CheckCache:
    """Compiled argument checks by the tool they belong to; the same tool is compiled once, and on its first call."""

    def __init__(self, *, limit_bytes: int, capacity: int = 20_000) -> None:
        self._limit_bytes = limit_bytes
        self._capacity = capacity
        self._checks: dict[tuple[ServerName, bytes], Check | None] = {}

    def of(self, tool: Tool) -> Callable[[msgspec.Raw], str | None]:
        """The check for this tool; compiling is put off until somebody calls it."""
        return lambda arguments: self._run(tool, arguments)

    def _run(self, tool: Tool, arguments: msgspec.Raw) -> str | None:
        key = (tool.server, tool.digest)
        try:
            check = self._checks[key]
        except KeyError:
            check = self._compile(tool)
            if len(self._checks) >= self._capacity:
                self._checks.clear()
            self._checks[key] = check
        return None if check is None else check(arguments)

    def _compile(self, tool: Tool) -> Check | None:
        schema = tool.definition.get("inputSchema")
        if schema is None:
            return None
        try:
            return compile_check(schema, limit_bytes=self._limit_bytes)
        except Unchecked:
            return None  # the server makes its own check; see `catalog.schema`
