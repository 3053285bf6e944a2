"""All servers, their features and states at one moment: immutable, replaced whole.

A `Snapshot` compiles a `core.catalog.view.View` for each permission set, surface and set of client capabilities: what
is listed there, under which name, and with which definition. `core.catalog.access_reasons` says why a permission set
reaches what it reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from isthmus.core.access.policy import TAG, UNLABELLED, CustomPolicy, Labels, Policy
from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.names import (
    CanonicalNames,
    Pair,
    TemplateClaims,
    canonical,
    llm_aliases,
    llm_form,
    llm_forms,
    llm_table,
    uri_table,
    with_digits,
)
from isthmus.core.catalog.sets import (
    CHANGE_TABLES,
    NO_SET,
    SetNote,
    SetSettings,
    SetVariant,
    set_names,
    variant_of,
)
from isthmus.core.catalog.tool_rules import (
    NO_TOOL_RULES,
    CallChanges,
    ToolRules,
    labels_of,
)
from isthmus.core.catalog.view import (
    ALL_EXPOSED,
    CALL_BY_ARGUMENT,
    ExposedTools,
    NotReadyServer,
    Route,
    ServerState,
    View,
    VirtualRoute,
    ruled_route,
)
from isthmus.core.ports import VirtualTool
from isthmus.model.callers import Exposure, Grants
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities, Style, Surface
from isthmus.model.features import (
    LISTS,
    TASK_ABILITIES,
    Ability,
    Feature,
    ListName,
    Prompt,
    Resource,
    Template,
    Tool,
)
from isthmus.model.names import FeatureName, ServerName

F = TypeVar("F", bound=Feature)

ALL = Grants(("*",))

VIEWS_MAX = 256
"""Cached views per snapshot, of all servers and of single ones. With more permission sets at once, the oldest view is
compiled again when it is needed."""

VARIANTS_AT_ONCE = 50
"""Tools of a set that are changed in one turn of the event loop: half a millisecond."""

SERVERS_FOR_SINGLE_VIEW = 64
"""With more servers, a view of all of them is compiled for lists, and not for a single call: where servers connect and
disconnect all the time, each call would find a new snapshot."""

Key: TypeAlias = tuple[Grants, Surface] | tuple[Grants, Surface, ClientCapabilities]
"""The key of a view; without capabilities where the view is the same for all clients."""


class FeatureLists(msgspec.Struct, frozen=True):
    """What a server lists to clients with certain capabilities, if that differs from what it lists to all."""

    tools: tuple[Tool, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    templates: tuple[Template, ...] = ()
    abilities: frozenset[Ability] = frozenset()


class ServerStatus(msgspec.Struct, frozen=True):
    """The state of one server, the reason for it, and its last lists (kept while it is away).

    Callers see `reason`; only the operator sees `detail`, such as the last output of a process.
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
    """Its first connection attempt has ended."""
    is_recalled: bool = False
    """It has not answered yet, and its lists are cached ones."""
    era: str | None = None
    carrier: str | None = None
    """Its transport: stdio, http, sse and so on."""
    notes: tuple[str, ...] = ()
    """Notes for the operator: tools left out, schemas that cannot be checked."""
    withheld: tuple[FeatureName, ...] = ()
    """Tools that callers do not see until the operator approves them."""
    left_out: Mapping[FeatureName, str] = {}
    """Unusable tools, hidden from all callers, and why."""
    rules: ToolRules = NO_TOOL_RULES
    variants: Mapping[ClientCapabilities, FeatureLists] = {}
    """Its lists by client capabilities, as far as they are loaded and differ."""

    hubs: Mapping[str, int] = {}
    """If it is a hub: its id and those of hubs behind it, with the number of hubs between."""

    instructions: str = ""
    """How the server says it should be used."""

    missing: Mapping[str, str] = {}
    """If it is a hub: the servers behind it whose tools are missing, and why."""

    is_unlisted: bool = False
    """It is a plain JSON-RPC server without a list: callers that may use all of it name its methods."""

    agent: str | None = None
    """The key of the agent under which it dialled in; None if it did not."""

    @property
    def has_lists(self) -> bool:
        """Whether it lists anything."""
        return bool(self.tools or self.prompts or self.resources or self.templates)


class Snapshot:
    """The status of every server at one moment."""

    def __init__(
        self,
        version: int,
        server_statuses: Mapping[ServerName, ServerStatus],
        checks: CheckCache,
        custom_policy: CustomPolicy | None = None,
        sets: Mapping[str, SetSettings] = {},
        exposed: ExposedTools = ALL_EXPOSED,
        hides: Callable[[ServerStatus], bool] | None = None,
    ) -> None:
        self.version = version
        self.sets = sets
        self.hides = hides
        """Whether only a fleet and the server's own surface have a server's tools; None if there are no fleets."""
        self.exposed = exposed
        self._custom_policy = custom_policy
        self.server_statuses = server_statuses
        self._checks = checks
        self._views: dict[Key, View] = {}
        self._single: dict[Key, View] = {}
        """Views of single servers: thousands of these must not replace one of all servers."""
        self._varied: frozenset[ClientCapabilities] | None = None
        """Capabilities for which some server has lists of their own, computed on demand; all others share one view."""
        self._names: dict[tuple[str, ListName], dict[Pair, str]] = {}
        self._set_names: dict[tuple[str, str, ListName], dict[Pair, str]] = {}
        self._set_notes: dict[str, list[SetNote]] = {}
        self._aliases: dict[str, str] | None = None

    def without_custom_policy(self) -> Snapshot:
        """The same snapshot without the operator's own policy."""
        if self._custom_policy is None:
            return self
        return Snapshot(
            self.version, self.server_statuses, self._checks, sets=self.sets, exposed=self.exposed, hides=self.hides
        )

    def view(self, grants: Grants, surface: Surface, client_caps: ClientCapabilities = NO_CAPABILITIES) -> View:
        """The view of these permissions on this surface, compiled on first use."""
        is_varied = bool(client_caps) and self._is_varied(client_caps, surface.server)
        key: Key = (grants, surface, client_caps) if is_varied else (grants, surface)
        views = self._views if surface.server is None else self._single
        view = views.get(key)
        if view is None:
            if len(views) >= VIEWS_MAX:
                del views[next(iter(views))]
            view = views[key] = self._compile(grants, surface, client_caps if is_varied else NO_CAPABILITIES)
            if virtual := self.exposed.virtual.get(self.exposure(grants, surface)):
                self._add_virtual(view, virtual)
        return view

    def exposure(self, grants: Grants, surface: Surface) -> Exposure:
        """Which tools the lists of these permissions have: the surface decides, else the caller, its set, the hub."""
        return surface.expose or grants.expose or self._set_of(grants, surface).expose or self.exposed.default

    def _add_virtual(self, view: View, tools: Iterable[VirtualTool]) -> None:
        """Let a view list tools of the hub. A server's tool of the same name is called `server.tool` there."""
        for virtual in tools:
            name = virtual.tool.name
            view.virtual[name] = VirtualRoute(virtual.tool, name, self._checks.check_for(virtual.tool), virtual=virtual)
            if (taken := view.routes.pop(name, None)) is not None:
                pair = (taken.feature.server, taken.feature.name)
                exposed = canonical(pair)
                if exposed in view.routes:
                    exposed = with_digits(llm_form(pair), pair, set(view.routes))
                view.routes[exposed] = replace(taken, exposed=exposed)
        view.abilities |= {"tools"}

    def find_virtual(
        self, grants: Grants, surface: Surface, client_caps: ClientCapabilities, name: str
    ) -> VirtualRoute | None:
        """The route of a tool of the hub itself, if the caller's lists have it."""
        if name not in self.exposed.names:  # nearly all names: no view need be compiled
            return None
        return self.view(grants, surface, client_caps).virtual.get(name)

    def find_tool(self, grants: Grants, surface: Surface, client_caps: ClientCapabilities, name: str) -> Route | None:
        """The route of a tool's name; with many servers, only the one that it names is compiled."""
        if not client_caps:  # nearly all calls, and most find a compiled view
            views = self._views if surface.server is None else self._single
            view = views.get((grants, surface))
            if view is not None:
                return view.routes.get(name) or view.find_unlisted(name)
        is_common = surface.server is None and surface.style == "canonical" and not (surface.set or grants.set)
        if is_common and len(self.server_statuses) > SERVERS_FOR_SINGLE_VIEW:
            server = ServerName(name.partition(".")[0])
            if server not in self.server_statuses:
                return None
            surface = Surface(surface.style, server)
        return self.view(grants, surface, client_caps).find_tool(name)

    def find_unreached(self, grants: Grants, surface: Surface, name: str) -> ServerName | None:
        """The server that a tool's name names, if it is down and was never listed; otherwise None.

        Only for a server that these permissions see, and a tool that they would allow if the server had it.
        """
        if surface.set or grants.set:
            return self._find_unreached_in_set(grants, surface, name)
        policy = self.policy(grants)
        if surface.style == "llm":
            return self._find_unreached_llm(policy, name)
        named, _, tool = name.partition(".") if surface.style == "canonical" else (surface.server or "", "", name)
        server_status = self.server_statuses.get(ServerName(named))
        if server_status is None or surface.server not in (None, named):
            return None
        if surface.style != "own" and self._is_hidden(server_status):
            return None
        return (
            server_status.server
            if _is_visible(policy, server_status) and _may_offer(policy, server_status, tool)
            else None
        )

    def _find_unreached_llm(self, policy: Policy, name: str) -> ServerName | None:
        """`find_unreached` for a name for language models; the longest matching server name counts."""
        fitting = {
            beginning: server_status
            for server, server_status in self.server_statuses.items()
            if name.startswith(beginning := llm_form((server, FeatureName("")))) and _is_visible(policy, server_status)
        }
        if not fitting:
            return None
        beginning = max(fitting, key=len)
        server_status = fitting[beginning]
        server, rules = server_status.server, server_status.rules
        # Several names look the same to language models; those in the configuration decide.
        written = {*policy.named_tools(server), *rules.hidden, *(rules.only or ()), *rules.tags}
        alike = [tool for tool in written if name in llm_forms((server, FeatureName(tool)))]
        tools = alike or [name.removeprefix(beginning)]
        return server if all(_may_offer(policy, server_status, tool) for tool in tools) else None

    def _find_unreached_in_set(self, grants: Grants, surface: Surface, name: str) -> ServerName | None:
        """`find_unreached` for a name in a set, which may rename tools."""
        settings = self._set_of(grants, surface)
        policy = self.policy(_grants_in_set(settings, "tools", grants))
        renamed = [tool for tool, change in settings.tool.items() if change.name == name]
        for server, server_status in sorted(self.server_statuses.items()):
            if surface.server not in (None, server) or not _is_visible(policy, server_status):
                continue
            own = {tool.removeprefix(f"{server}.") for tool in renamed if tool.startswith(f"{server}.")}
            if any(_may_offer(policy, server_status, tool) for tool in own or {name, name.removeprefix(f"{server}.")}):
                return server
        return None

    def is_denied(self, grants: Grants, surface: Surface, listed: ListName, name: str) -> bool:
        """Whether a tool or prompt has this name, and these permissions hide it. Only operators may learn that."""
        server, own = self._feature_named(grants, surface, listed, name)
        server_status = self.server_statuses.get(server)
        if server_status is None or server_status.state == "disabled" or surface.server not in (None, server):
            return False
        # A dict of all: a search that stops at a match would reveal by its duration whether the name exists.
        feature = {each.name: each for each in _features_of(server_status, listed)}.get(own)
        rules = server_status.rules
        if feature is None or (listed == "tools" and not rules.shows(own)):
            return False
        if surface.set or grants.set:
            grants = _grants_in_set(self._set_of(grants, surface), listed, grants)
        return not _is_allowed(self.policy(grants), feature, rules)

    def _feature_named(self, grants: Grants, surface: Surface, listed: ListName, name: str) -> Pair:
        """The server and the own name of a tool or prompt that has this name on a surface; an empty pair if none."""
        style: Style = "llm" if surface.style == "llm" else "canonical"
        if surface.set or grants.set:
            settings = self._set_of(grants, surface)
            names = self._names_in_set(grants.set or surface.set, settings, style, listed)
            found = {exposed: pair for pair, exposed in names.items()}.get(name)
            if found is not None or surface.set:
                return found or (ServerName(""), FeatureName(""))
        if surface.style == "llm":
            names = self._names_of(surface, listed) or {}
            return {exposed: pair for pair, exposed in names.items()}.get(name, (ServerName(""), FeatureName("")))
        if surface.style == "own":
            return surface.server or ServerName(""), FeatureName(name)
        server, _, own = name.partition(".")
        return ServerName(server), FeatureName(own)

    def _is_varied(self, client_caps: ClientCapabilities, server: ServerName | None) -> bool:
        if server is not None:
            return server in self.server_statuses and client_caps in self.server_statuses[server].variants
        if self._varied is None:
            self._varied = frozenset(
                known for server_status in self.server_statuses.values() for known in server_status.variants
            )
        return client_caps in self._varied

    def policy(self, grants: Grants) -> Policy:
        """The policy of these permissions for this snapshot."""
        # Without `self`: a view that refers to its snapshot would keep an old one in memory.
        statuses = self.server_statuses

        def agent_of(server: ServerName) -> str | None:
            return None if (status := statuses.get(server)) is None else status.agent

        def tags_of(server: ServerName) -> tuple[str, ...]:
            return () if (status := statuses.get(server)) is None else status.rules.tags_of_all

        return Policy(grants, agent_of, tags_of, self._custom_policy)

    def _compile(self, grants: Grants, surface: Surface, client_caps: ClientCapabilities) -> View:
        if surface.set or grants.set:
            return self._compile_set(grants, surface, client_caps)
        policy = self.policy(grants)
        visible = self._shown(policy, surface)
        view = View(
            policy,
            {server_status.server: _lists_for(server_status, client_caps).abilities for server_status in visible},
        )
        view.hubs = _hubs_behind(visible)
        if surface.style == "llm":
            # Over all tools, whatever the caller may use: a name means the same to all callers.
            if self._aliases is None:
                self._aliases = llm_aliases((self._names_of(surface, "tools") or {}).values())
            view.aliases = self._aliases
        if surface.style == "own" and surface.server is not None:
            view.whole = next((each.server for each in visible if _is_fully_visible(each, policy)), None)
            view.description = next((each.instructions for each in visible if each.rules.is_trusted), "")
        hides = None if surface.style == "own" else self.hides
        for server_status in visible:
            lists = _lists_for(server_status, client_caps)
            if lists.tools and (hides is None or not hides(server_status)):
                self._add_tools(view, lists.tools, server_status.rules, policy, self._names_of(surface, "tools"))
            if lists.prompts:
                _add(view.prompts, lists.prompts, server_status.rules, policy, self._names_of(surface, "prompts"))
            if lists.resources:
                _add(view.resources, lists.resources, server_status.rules, policy, self._names_of(surface, "resources"))
            if lists.templates:
                _add(view.templates, lists.templates, server_status.rules, policy, self._names_of(surface, "templates"))
            if policy.has_denials:
                view.withhold(server_status.server, _denied_uris(policy, server_status))
            if server_status.is_unlisted and policy.covers_all_of(server_status.server):
                view.unlisted["" if surface.style == "own" else server_status.server] = (
                    server_status.server,
                    server_status.rules,
                )
            _add_not_ready(view, server_status)
        return view

    # -- sets ----------------------------------------------------------------------------------------------------------

    def _set_of(self, grants: Grants, surface: Surface) -> SetSettings:
        """The set that a caller sees; an empty one if it is unknown, or if the caller is bound to another."""
        name = grants.set or surface.set
        return NO_SET if name is None or surface.set not in (None, name) else self.sets.get(name, NO_SET)

    def _compile_set(self, grants: Grants, surface: Surface, client_caps: ClientCapabilities) -> View:
        """The view of a set: what it picks of what these permissions allow, of all servers or of one.

        No set has methods of unlisted servers, or methods that the hub does not know: they cannot be listed.
        """
        settings = self._set_of(grants, surface)
        policies = {listed: self.policy(_grants_in_set(settings, listed, grants)) for listed in LISTS}
        tools, prompts, resources = policies["tools"], policies["prompts"], policies["resources"]
        visible: list[ServerStatus] = []
        abilities: dict[ServerName, frozenset[Ability]] = {}
        for server, server_status in sorted(self.server_statuses.items()):
            if surface.server not in (None, server):
                continue
            seen = [_is_visible(policy, server_status) for policy in (tools, prompts, resources)]
            if any(seen):
                visible.append(server_status)
                abilities[server] = _lists_for(server_status, client_caps).abilities - _unseen_abilities(*seen)
        view = View(resources, abilities)
        view.set, view.description, view.hubs = grants.set or surface.set, settings.description, _hubs_behind(visible)
        style: Style = "llm" if surface.style == "llm" else "canonical"
        names = {listed: self._names_in_set(view.set, settings, style, listed) for listed in LISTS}
        if style == "llm":
            view.aliases = llm_aliases(names["tools"].values())
        for server_status in visible:
            lists, rules = _lists_for(server_status, client_caps), server_status.rules
            for listed in LISTS:
                if listed != "tools" or not self._is_hidden(server_status):
                    features = _allowed(policies[listed], server_status.server, _list_of(lists, listed), rules)
                    self._add_to_set(view, settings, listed, features, rules, names[listed])
            if resources.has_denials:
                view.withhold(server_status.server, _denied_uris(resources, server_status))
            _add_not_ready(view, server_status)
        return view

    def variant_passes(self, grants: Grants, surface: Surface) -> Generator[None, None, None]:
        """Change what a set has as it says, before its view is compiled: thousands take a tenth of a second."""
        settings = self._set_of(grants, surface)
        if (grants, surface) in self._views:
            return
        number = 0
        for listed in LISTS:
            if settings.description_max is None and not settings.changes_of(listed):
                continue
            policy = self.policy(_grants_in_set(settings, listed, grants))
            for server_status in self.server_statuses.values():
                rules = server_status.rules
                for feature in _allowed(policy, server_status.server, _list_of(server_status, listed), rules):
                    self._variant(settings, listed, self._plain_route(feature, feature.name, rules))
                    if not (number := number + 1) % VARIANTS_AT_ONCE:
                        yield

    def _add_to_set(
        self,
        view: View,
        settings: SetSettings,
        listed: ListName,
        features: Iterable[Feature],
        rules: ToolRules,
        names: dict[Pair, str],
    ) -> None:
        """Add features of one server to one list of a set's view, under their names and changed as it says."""
        table, is_named = view.table(listed), listed in ("tools", "prompts")
        changes, is_cutting = settings.changes_of(listed), settings.description_max is not None
        for feature in features:
            if listed == "tools" and not (rules is NO_TOOL_RULES or rules.shows(feature.name)):
                continue
            exposed = names[feature.server, feature.name]
            route = self._plain_route(feature, exposed, rules)
            is_changed = is_cutting or (changes and canonical((feature.server, feature.name)) in changes)
            own = feature.name if is_named and exposed != feature.name else ""
            if not is_changed and not own:
                table[exposed] = route
                continue
            variant = self._variant(settings, listed, route) if is_changed else SetVariant(route.feature)
            if isinstance(variant, str):
                view.left_out[listed, canonical((feature.server, feature.name))] = variant
                continue
            call_changes = route.changes
            if own or variant.accepted is not None:
                defaults = {} if call_changes is None else call_changes.defaults
                call_changes = CallChanges({**defaults, **variant.fixed}, variant.accepted, own)
            table[exposed] = replace(route, feature=variant.feature, changes=call_changes, own=feature)

    def _plain_route(self, feature: Feature, exposed: str, rules: ToolRules) -> Route:
        """The route of a feature with the rules of its server, before a set changes it."""
        if not isinstance(feature, Tool):
            return Route(feature, exposed, is_trusted=rules.is_trusted)
        check = self._checks.check_for(feature)
        return Route(feature, exposed, check) if rules is NO_TOOL_RULES else ruled_route(feature, exposed, rules, check)

    def _variant(self, settings: SetSettings, listed: ListName, route: Route) -> SetVariant | str:
        """A feature as a set has it, or why it cannot have it."""
        feature, defaults = route.feature, () if route.changes is None else route.changes.defaults
        full = canonical((feature.server, feature.name))
        return variant_of(settings, listed, feature, full, self._checks, defaults)

    def _names_in_set(self, name: str | None, settings: SetSettings, style: Style, listed: ListName) -> dict[Pair, str]:
        """The names of one list of a set. They do not depend on the caller: a name means the same to all."""
        key = (name or "", style, listed)
        if settings is NO_SET:
            return {}
        if key not in self._set_names:
            pairs = self._pairs_in_set(settings, listed)
            if listed == "resources":
                templates = self._pairs_in_set(settings, "templates")
                names = uri_table(pairs, TemplateClaims(templates) if templates else None)
            elif listed == "templates":
                names = uri_table(pairs)
            else:
                names = set_names(pairs, settings.changes_of(listed), style)
            self._set_names[key] = names
        return self._set_names[key]

    def _pairs_in_set(self, settings: SetSettings, listed: ListName) -> list[Pair]:
        """What a set picks, before any caller's permissions apply."""
        policy = self.without_custom_policy().policy(Grants(settings.patterns_of(listed), settings.exclude))
        pairs: list[Pair] = []
        for server_status in self.server_statuses.values():
            if server_status.state == "disabled" or (listed == "tools" and self._is_hidden(server_status)):
                continue
            rules = server_status.rules
            pairs += [
                (feature.server, feature.name)
                for feature in _allowed(policy, server_status.server, _features_of(server_status, listed), rules)
                if listed != "tools" or rules is NO_TOOL_RULES or rules.shows(feature.name)
            ]
        return pairs

    def set_notes(self, name: str) -> Sequence[SetNote]:
        """What the operator should know about a set: what is left out, patterns and changes without effect."""
        if name not in self._set_notes:
            self._set_notes[name] = self._make_set_notes(name)
        return self._set_notes[name]

    def _make_set_notes(self, name: str) -> list[SetNote]:
        settings = self.sets.get(name, NO_SET)
        view = self.without_custom_policy().view(ALL, Surface(set=name))
        left_out = sorted(view.left_out.items(), key=lambda entry: (LISTS.index(entry[0][0]), entry[0][1]))
        notes = [SetNote((CHANGE_TABLES[listed], full), f"is left out: {why}") for (listed, full), why in left_out]
        if any(not status.has_lists and status.state != "disabled" for status in self.server_statuses.values()):
            return notes  # patterns may mean what a server has not listed yet
        lists: tuple[tuple[str, tuple[str, ...], tuple[ListName, ...]], ...] = (
            ("tools", settings.tools, ("tools",)),
            ("prompts", settings.prompts, ("prompts",)),
            ("resources", settings.resources, ("resources", "templates")),
            ("exclude", settings.exclude, LISTS),
        )
        for key, patterns, listed in lists:
            features = [
                (feature, server_status.rules)
                for server_status in self.server_statuses.values()
                for each in listed
                for feature in _features_of(server_status, each)
            ]
            for pattern in patterns:
                policy = self.without_custom_policy().policy(Grants((pattern,)))
                if not any(_is_allowed(policy, feature, rules) for feature, rules in features):
                    notes.append(SetNote((key,), f"has {pattern}, which matches nothing"))
        picked = {(CHANGE_TABLES[listed], full) for listed, full in view.left_out}
        for name_of_list in LISTS:
            own = (route.feature for route in view.table(name_of_list).values())
            picked |= {(CHANGE_TABLES[name_of_list], canonical((each.server, each.name))) for each in own}
        for table, changes in settings.changes.items():
            unused = (full for full in sorted(changes) if (table, full) not in picked)
            notes += [SetNote((table, full), f"is not among the {table}s of the set") for full in unused]
        return notes

    def names_nothing(self, pattern: str) -> bool:
        """Whether a pattern names a tool that its server, which is ready, does not have."""
        server, _, name = pattern.partition(".")
        status = self.server_statuses.get(ServerName(server))
        if name in ("", "*", CALL_BY_ARGUMENT) or status is None or status.state != "ready" or not status.has_lists:
            return False
        if status.is_unlisted or name in status.withheld or name in status.left_out:
            return False
        return all(feature.name != name for listed in LISTS for feature in _features_of(status, listed))

    def _add_tools(
        self, view: View, tools: tuple[Tool, ...], rules: ToolRules, policy: Policy, names: dict[Pair, str] | None
    ) -> None:
        server = tools[0].server
        allowed = tools if policy.may_use_all_of(server) else _allowed(policy, server, tools, rules)
        if rules is NO_TOOL_RULES:
            routes, check_of = view.routes, self._checks.check_for
            for tool in allowed:
                exposed = tool.name if names is None else names[tool.server, tool.name]
                routes[exposed] = Route(tool, exposed, check_of(tool))
            return
        for tool in allowed:
            if rules.shows(tool.name):
                exposed = tool.name if names is None else names[tool.server, tool.name]
                view.routes[exposed] = ruled_route(tool, exposed, rules, self._checks.check_for(tool))

    def _shown(self, policy: Policy, surface: Surface) -> list[ServerStatus]:
        """The visible servers, sorted by name: lists are deterministic."""
        names = policy.named_servers() if surface.server is None else {surface.server}
        candidates = self.server_statuses if names is None else self.server_statuses.keys() & names
        return [
            self.server_statuses[name] for name in sorted(candidates) if _is_visible(policy, self.server_statuses[name])
        ]

    def _names_of(self, surface: Surface, listed: ListName) -> dict[Pair, str] | None:
        """The names of one list on a surface; None where servers' own names are used."""
        if surface.style == "own":
            return None
        key = (surface.style, listed)
        if key not in self._names:
            if listed == "resources":
                templates = self.pairs("templates")
                names = uri_table(self.pairs(listed), TemplateClaims(templates) if templates else None)
            elif listed == "templates":
                names = uri_table(self.pairs(listed))
            else:
                names = llm_table(self.pairs(listed)) if surface.style == "llm" else CanonicalNames()
            self._names[key] = names
        return self._names[key]

    def pairs(self, listed: ListName = "tools") -> list[Pair]:
        """Everything in one list, of every server and for all capabilities: a name means the same to all callers."""
        return [
            (feature.server, feature.name)
            for server_status in self.server_statuses.values()
            if server_status.state != "disabled" and not (listed == "tools" and self._is_hidden(server_status))
            for feature in _features_of(server_status, listed)
        ]

    def _is_hidden(self, server_status: ServerStatus) -> bool:
        return self.hides is not None and self.hides(server_status)


def _grants_in_set(settings: SetSettings, listed: ListName, grants: Grants) -> Grants:
    """What of one list a set picks of what these permissions allow."""
    return Grants(settings.patterns_of(listed), settings.exclude).bounded_by(grants)


def _labels(policy: Policy, feature: Feature, rules: ToolRules) -> Labels:
    return labels_of(feature, rules) if policy.reads_labels else UNLABELLED


def _is_allowed(policy: Policy, feature: Feature, rules: ToolRules) -> bool:
    return policy.allows(feature.server, feature.name, _labels(policy, feature, rules))


def _allowed(policy: Policy, server: ServerName, features: Iterable[F], rules: ToolRules) -> Iterable[F]:
    """The features of one server that a policy allows."""
    names = policy.names_of(server)
    if names is None:
        return [feature for feature in features if _is_allowed(policy, feature, rules)]
    allowed, denied = names
    if allowed is not None:
        allowed = allowed - denied
        return [feature for feature in features if feature.name in allowed]
    return [feature for feature in features if feature.name not in denied] if denied else features


def _is_denied(policy: Policy, feature: Feature, rules: ToolRules) -> bool:
    return policy.denies(feature.server, feature.name, _labels(policy, feature, rules))


def _hubs_behind(visible: Iterable[ServerStatus]) -> dict[str, int]:
    hubs: dict[str, int] = {}
    for server_status in visible:
        for id, steps in server_status.hubs.items():
            hubs[id] = max(steps + 1, hubs.get(id, 0))  # on the longest way
    return hubs


def _add_not_ready(view: View, server_status: ServerStatus) -> None:
    if server_status.state != "ready":
        view.missing[server_status.server] = NotReadyServer(
            server_status.state, server_status.reason, server_status.has_lists
        )


def _unseen_abilities(tools: bool, prompts: bool, resources: bool) -> frozenset[Ability]:  # noqa: FBT001
    """What a set does not show of a server, by whether it picks tools, prompts and resources there."""
    unseen: set[Ability] = set()
    if not tools:
        unseen |= {"tools", *TASK_ABILITIES}
    if not prompts:
        unseen.add("prompts")
    if not resources:
        unseen |= {"resources", "subscribe", "apps"}
    if not prompts and not resources:
        unseen.add("completions")
    return frozenset(unseen)


def _denied_uris(policy: Policy, server_status: ServerStatus) -> Iterable[str]:
    """The denied resources and templates of a server, listed or not.

    Unlisted ones are known by name, from permissions and from the operator's tags.
    """
    server, rules = server_status.server, server_status.rules
    listed = (*_features_of(server_status, "resources"), *_features_of(server_status, "templates"))
    yield from (feature.name for feature in listed if _is_denied(policy, feature, rules))
    yield from (name for name in policy.denied_names(server) if ":" in name)
    for name in rules.tags if policy.reads_labels else ():
        if ":" in name and _is_denied(policy, Resource.of(server, FeatureName(name), {}), rules):
            yield name


def _is_visible(policy: Policy, server_status: ServerStatus) -> bool:
    """Whether a server is visible: its name is granted, or one of its features is by a label."""
    if server_status.state == "disabled":
        return False
    if policy.may_see_server(server_status.server) and not (policy.is_narrowed and server_status.has_lists):
        return True
    return (policy.reads_labels or policy.is_narrowed) and any(
        _is_allowed(policy, feature, server_status.rules)
        for listed in LISTS
        for feature in _features_of(server_status, listed)
    )


def _may_offer(policy: Policy, server_status: ServerStatus, tool: str) -> bool:
    """Whether a disconnected server may have a tool that the caller could then use."""
    rules = server_status.rules
    is_known = (
        server_status.state == "ready" or server_status.has_lists or server_status.withheld or server_status.left_out
    )
    if is_known or not tool or not rules.shows(tool):
        return False
    tags = frozenset(f"{TAG}{tag}" for tag in (*rules.tags_of_all, *rules.tags.get(tool, ())))
    return policy.allows(server_status.server, FeatureName(tool), Labels(tags, tags))


def _is_fully_visible(server_status: ServerStatus, policy: Policy) -> bool:
    """Whether nothing of a server is hidden from these permissions."""
    is_all_shown = not server_status.withheld and not server_status.left_out
    return server_status.rules.changes_nothing and is_all_shown and policy.may_use_all_of(server_status.server)


def _lists_for(server_status: ServerStatus, client_caps: ClientCapabilities) -> ServerStatus | FeatureLists:
    return server_status.variants.get(client_caps, server_status) if client_caps else server_status


def all_tools_of(server_status: ServerStatus) -> list[Tool]:
    """The tools of a server, as it lists them to any client."""
    variants = [tool for lists in server_status.variants.values() for tool in lists.tools]
    return [*server_status.tools, *variants]


def _features_of(server_status: ServerStatus, listed: ListName) -> Iterable[Feature]:
    if not server_status.variants:
        return _list_of(server_status, listed)
    offers: tuple[ServerStatus | FeatureLists, ...] = (server_status, *server_status.variants.values())
    return [feature for lists in offers for feature in _list_of(lists, listed)]


def _list_of(lists: ServerStatus | FeatureLists, listed: ListName) -> tuple[Feature, ...]:
    match listed:
        case "tools":
            return lists.tools
        case "prompts":
            return lists.prompts
        case "resources":
            return lists.resources
        case "templates":
            return lists.templates


def _add(
    table: dict[str, Route],
    features: Iterable[Feature],
    rules: ToolRules,
    policy: Policy,
    names: dict[Pair, str] | None,
) -> None:
    for feature in features:
        if _is_allowed(policy, feature, rules):
            exposed = feature.name if names is None else names[feature.server, feature.name]
            table[exposed] = Route(feature, exposed, is_trusted=rules.is_trusted)
