"""The tools of a service at one moment, by every form of their names.

A catalog is made on the loop thread from the hub's own tables and never changes, so any thread may read it. Making one
is cheap: a tool's definition is decoded on access. Called by the service and the resolver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from isthmus.core.access.policy import Policy
from isthmus.core.calls.search_tools import CALL_TOOL, SEARCH_TOOLS
from isthmus.core.catalog.names import (
    BUILTIN,
    LLM_LENGTH_MAX,
    AmbiguousName,
    Pair,
    canonical,
    llm_aliases,
    llm_form,
    llm_forms,
    llm_table,
    resolve,
    suggestions,
)
from isthmus.core.catalog.view import Route, VirtualRoute
from isthmus.library.errors import (
    AmbiguousToolError,
    ToolDeniedError,
    ToolError,
    ToolNotFoundError,
    ToolUnreachableError,
)
from isthmus.library.permissions import check_user, grants_of, has_permissions, policy_of, restricted_names
from isthmus.library.public_types import UniversalTool, UserContext
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.features import Feature
from isthmus.model.names import FeatureName, ServerName, without_accents
from isthmus.upstream.python.signatures import PERMISSIONS

ANY_SERVER = "mcp"
"""The namespace that stands for every server, but not for built-in tools."""

NO_SERVER = ServerName("")
"""The server of a remote hub's tool whose name is not `server.tool`."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_]+")
_LLM_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LLM_LENGTH_MAX}}}")

T = TypeVar("T")


class ToolEntry:
    """One tool: its full name, its server and own name, and the name that a `Call` uses."""

    __slots__ = (
        "_feature",
        "_is_trusted",
        "_llm_name_of",
        "exposed",
        "full_name",
        "is_unlisted",
        "is_virtual",
        "name",
        "server",
        "surface",
    )

    def __init__(
        self, route: Route, surface: Surface, llm_name_of: Callable[[str], str], *, is_unlisted: bool = False
    ) -> None:
        self.is_unlisted = is_unlisted
        """A method of a server that lists none; for users who may use all of that server."""
        self.is_virtual = isinstance(route, VirtualRoute)
        """A tool of the hub itself, which everybody may use who may use anything."""
        self._feature: Feature = route.feature
        self._is_trusted = route.is_trusted
        self._llm_name_of = llm_name_of
        self.surface = surface
        self.exposed = route.exposed
        self.server, self.name = self._feature.server, self._feature.name
        if surface.style == "own":  # a remote hub's tool, under the name that the remote hub gave it
            server, dot, name = self.exposed.partition(".")
            self.server = ServerName(server) if dot else NO_SERVER
            self.name = FeatureName(name if dot else self.exposed)
        elif self.is_virtual:
            self.server = NO_SERVER
        self.full_name = canonical((self.server, self.name)) if self.server else self.exposed

    @property
    def namespace(self) -> str | None:
        """Its server; None if unknown."""
        return self.server or None

    @property
    def llm_name(self) -> str:
        """Its name for language models."""
        return self._llm_name_of(self.full_name)

    @property
    def names(self) -> set[str]:
        """All its names, including ambiguous ones: a restriction by any of them applies."""
        return all_names(self.server, self.name, self.full_name, self.llm_name)

    @property
    def digest(self) -> bytes:
        """Changes exactly when the definition does."""
        return self._feature.digest

    @property
    def description(self) -> str:
        """The description by its server."""
        return self._read("description", str) or ""

    @property
    def parameters_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments, unchanged; a new object each time."""
        return self._read("inputSchema", dict[str, Any]) or {}

    @property
    def required_permissions(self) -> list[str]:
        """Permissions that its author requires, besides the tool itself."""
        members = self._read("_meta", dict[str, Any]) or {}
        found = members.get(PERMISSIONS, [])
        return [str(each) for each in found] if isinstance(found, list) else []

    @property
    def tool(self) -> UniversalTool:
        """The tool for frameworks; a new object each time, since its holder may change it."""
        known = {
            "title": self._read("title", str),
            "annotations": self._read("annotations", dict[str, Any]),
            "output_schema": self._read("outputSchema", dict[str, Any]),
        }
        return UniversalTool(
            name=self.full_name,
            description=self.description,
            parameters_schema=self.parameters_schema,
            namespace=self.namespace,
            required_permissions=[self.full_name, *self.required_permissions],
            supports_streaming=True,
            metadata={
                **{key: value for key, value in known.items() if value is not None},
                **({"trusted": True} if self._is_trusted else {}),
                "llm_name": self.llm_name,
            },
        )

    def _read(self, member: str, kind: type[T]) -> T | None:
        """A member of its definition; None if it is missing or has the wrong type."""
        raw = self._feature.definition.get(member)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw, type=kind)
        except (ValueError, RecursionError):  # servers may send anything
            return None


class Catalog:
    """All tools of a service; `missing` has the servers that are not connected, and why."""

    def __init__(
        self,
        tables: Mapping[Surface, Mapping[str, Route]],
        missing: Mapping[str, str] | None = None,
        find_unlisted: Callable[[str], Route | None] | None = None,
    ) -> None:
        """`tables` has the routes of each surface; if two have the same full name, the first wins.

        `find_unlisted` finds methods of servers that list none, by their full names.
        """
        self._find_unlisted = find_unlisted
        entries: dict[str, ToolEntry] = {}
        for surface, routes in tables.items():
            for route in routes.values():
                entry = ToolEntry(route, surface, self._llm_name_of)
                entries.setdefault(entry.full_name, entry)
        self.entries: Mapping[str, ToolEntry] = MappingProxyType(entries)
        self.virtual = [entry for entry in entries.values() if entry.is_virtual]
        """Tools of the hub itself, which are listed instead of all others."""
        self.missing: Mapping[str, str] = MappingProxyType(dict(missing or {}))
        self._resolved: dict[str, ToolEntry] = {}

    # -- names -----------------------------------------------------------------------------------------------------

    def resolve(self, name: str, namespace: str | None = None) -> ToolEntry:
        """Find one tool by its full name, `mcp.tool`, its short name or its name for language models.

        `namespace` is the tool's server.

        Raises:
            ToolNotFoundError: no tool has this name. Similar names are suggested, never used.
            ToolUnreachableError: its server is not connected.
            AmbiguousToolError: several tools have it.
        """
        if namespace:
            return self._resolve_in(namespace, name)
        entry = self.entries.get(name) or self._resolved.get(name)
        if entry is not None:
            return entry
        try:
            entry = self._resolved[name] = self._search(name)
        except ToolNotFoundError:
            if (entry := self._unlisted(name)) is None:
                raise
        return entry

    def _unlisted(self, full_name: str) -> ToolEntry | None:
        """A method of a server that lists none; not cached, since a program may name any number of them."""
        route = None if self._find_unlisted is None else self._find_unlisted(full_name)
        return None if route is None else ToolEntry(route, EVERYTHING, self._llm_name_of, is_unlisted=True)

    def resolve_for(self, user: UserContext | None, name: str, namespace: str | None = None) -> ToolEntry:
        """`resolve` for a user; errors reveal nothing that the user may not use.

        If several tools have the name, only those that the user may use count.

        Raises:
            ToolNotFoundError, ToolUnreachableError, AmbiguousToolError: as `resolve`.
            ToolDeniedError: the user may not use it, or could not if its server were connected.
        """
        try:
            entry = self.resolve(name, namespace)
        except ToolNotFoundError as error:
            check_user(user)
            raise self._unknown(error.name, user) from None
        except AmbiguousToolError as several:
            if user is None:
                raise
            usable = [entry for candidate in several.candidates if self.may_use(user, entry := self.entries[candidate])]
            if not usable:
                raise ToolDeniedError(several.name, user.user_id) from None
            if len(usable) > 1:
                raise AmbiguousToolError(several.name, [entry.full_name for entry in usable]) from None
            return usable[0]
        if user is not None and not self.may_use(user, entry):
            raise ToolDeniedError(entry.full_name, user.user_id)
        return entry

    def _resolve_in(self, namespace: str, name: str) -> ToolEntry:
        # The full name comes first: a server may have a tool whose own name is another tool's full name.
        for found in (
            self.entries.get(name),
            self.entries.get(f"{namespace}.{name}"),
            self._by_llm_name.get(name),
        ):
            if found is not None and (
                found.server == namespace or (namespace == ANY_SERVER and found.server != BUILTIN)
            ):
                return found
        if namespace == ANY_SERVER:
            return self.resolve(f"{ANY_SERVER}.{name}")
        if (unlisted := self._unlisted(f"{namespace}.{name}")) is not None:
            return unlisted
        raise self._unknown(name if name.startswith(f"{namespace}.") else f"{namespace}.{name}")

    def _search(self, name: str) -> ToolEntry:
        check_name(name)
        by_llm_name = self._by_llm_name.get(name)
        found = set() if by_llm_name is None else {by_llm_name.full_name}
        try:
            pair = resolve(name, ((entry.server, entry.name) for entry in self.entries.values() if entry.server))
        except AmbiguousName as several:
            found.update(several.candidates)
        else:
            if pair is not None:
                found.add(canonical(pair))
        if len(found) > 1:
            raise AmbiguousToolError(name, sorted(found))
        if not found:
            raise self._unknown(name)
        return self.entries[found.pop()]

    def _unknown(self, name: str, user: UserContext | None = None) -> ToolError:
        if (unreachable := self.unreachable(name, user)) is not None:
            return unreachable
        policy = policy_of(grants_of(user))
        silent = sorted(server for server in self.silent if policy.may_see_server(ServerName(server)))
        hint = f"These servers are not connected, so their tools are unknown: {', '.join(silent)}." if silent else ""
        known = self.entries if user is None else [entry.full_name for entry in self.usable(user)]
        return ToolNotFoundError(name, suggestions(name, known), hint)

    def unreachable(self, name: str, user: UserContext | None = None) -> ToolUnreachableError | ToolDeniedError | None:
        """The error for a full name or a name for language models whose server is not connected; else None.

        A user who could not use the tool anyway learns nothing about the server.
        """
        server, dot, tool = name.partition(".")
        if not dot:  # a name for language models begins with its server's
            servers = [*self.silent, *(str(entry.server) for entry in self.entries.values())]
            prefixes = {llm_form((ServerName(server), FeatureName(""))): server for server in servers}
            server = prefixes.get(
                max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=""), ""
            )
        if server not in self.silent:
            return None
        if user is not None:
            # A name for language models cannot be split, so any permission on the server is enough then.
            policy, owner, own_name = policy_of(grants_of(user)), ServerName(server), FeatureName(tool)
            names = all_names(owner, own_name, name, llm_form((owner, own_name))) if dot else {name}
            is_covered = policy.allows(owner, own_name) if dot else policy.may_see_server(owner)
            if not is_covered or not restricted_names(user).isdisjoint(names):
                return ToolDeniedError(name, user.user_id)
        return ToolUnreachableError(name, server, self.missing[server])

    @cached_property
    def silent(self) -> frozenset[str]:
        """Servers that are not connected and never listed their tools."""
        return frozenset(self.missing).difference(str(entry.server) for entry in self.entries.values())

    # -- names for language models ---------------------------------------------------------------------------------

    @cached_property
    def _llm_names(self) -> dict[str, str]:
        table = llm_table((entry.server, entry.name) for entry in self.entries.values())
        names = {entry.full_name: table[(entry.server, entry.name)] for entry in self.entries.values()}
        # A remote hub that already uses names for language models keeps them.
        own = {name for name, entry in self.entries.items() if not entry.server and _LLM_NAME.fullmatch(name)}
        return {**names, **{name: name for name in own.difference(names.values())}}

    def _llm_name_of(self, full_name: str) -> str:
        # An unlisted method has no such name, and could not be called by one.
        return self._llm_names.get(full_name, full_name)

    @cached_property
    def _by_llm_name(self) -> dict[str, ToolEntry]:
        by_name = {self._llm_names[full_name]: entry for full_name, entry in self.entries.items()}
        return {**by_name, **{alias: by_name[name] for alias, name in llm_aliases(by_name).items()}}

    def by_llm_name(self, llm_name: str) -> ToolEntry | None:
        """The tool with this name for language models; underscores may replace hyphens."""
        return self._by_llm_name.get(llm_name)

    # -- permissions -----------------------------------------------------------------------------------------------

    def may_use(self, user: UserContext | None, entry: ToolEntry) -> bool:
        """Whether this user's permissions cover a tool."""
        check_user(user)
        if entry.is_virtual:
            return True
        if _calls_others(entry) and not _is_unlimited(user):
            return False
        is_covered = _covers(policy_of(grants_of(user)), entry) and has_permissions(user, entry.required_permissions)
        return is_covered and not _is_restricted(entry, restricted_names(user))

    def reachable(self, user: UserContext | None) -> list[ToolEntry]:
        """The tools to list for this user: those that it may use, or tools of the hub that find and call these."""
        check_user(user)
        return list(self.virtual) if self.virtual else self.usable(user)

    def grants_for(self, user: UserContext, grants: Grants) -> Grants:
        """Grants of a user that cover exactly what the user may use: for calls of tools that name other tools."""
        usable = {entry.full_name for entry in self.usable(user)}
        denied = (name for name, entry in self.entries.items() if name not in usable and not entry.is_virtual)
        return msgspec.structs.replace(grants, deny=tuple(dict.fromkeys((*grants.deny, *denied))))

    def usable(self, user: UserContext | None) -> list[ToolEntry]:
        """The tools that this user may use, in list order."""
        check_user(user)
        policy = policy_of(grants_of(user))
        restricted = restricted_names(user)
        is_unlimited = _is_unlimited(user)
        return [
            entry
            for entry in self.entries.values()
            if not entry.is_virtual
            and _covers(policy, entry)
            and (is_unlimited or not _calls_others(entry))
            and has_permissions(user, entry.required_permissions)
            and not _is_restricted(entry, restricted)
        ]


def _calls_others(entry: ToolEntry) -> bool:
    """Whether it is a tool of a remote hub that finds or calls any tool there: that hub does not know our users."""
    return not entry.server and not entry.is_virtual and entry.name in (SEARCH_TOOLS, CALL_TOOL)


def _is_unlimited(user: UserContext | None) -> bool:
    grants = grants_of(user)
    return "*" in grants.allow and not grants.deny and not restricted_names(user)


def resolve_prompt(name: str, exposed: Iterable[str]) -> str:
    """The full name of a prompt, found by any form of its name; an unknown name is returned as it is.

    Raises:
        AmbiguousToolError: several prompts have it.
    """
    pairs: dict[Pair, str] = {}
    for full in exposed:
        if full == name:
            return name
        server, _, prompt = full.partition(".")
        pairs[ServerName(server), FeatureName(prompt)] = full
    try:
        pair = resolve(name, pairs)
    except AmbiguousName as several:
        raise AmbiguousToolError(name, several.candidates) from None
    if pair is not None:
        return pairs[pair]
    by_llm_name = {llm_name: pairs[each] for each, llm_name in llm_table(pairs).items()}
    return by_llm_name.get(llm_aliases(by_llm_name).get(name, name), name)


def check_name(name: object) -> None:
    """Raise `TypeError` if the name of a tool is not a string."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a tool must be a string, not {type(name).__name__}")


def _covers(policy: Policy, entry: ToolEntry) -> bool:
    if entry.is_unlisted:
        return policy.may_use_all_of(entry.server)
    # A tool without a known server is granted by its whole name, written like a server's.
    return policy.allows(entry.server or ServerName(entry.full_name), entry.name)


def _is_restricted(entry: ToolEntry, restricted: frozenset[object]) -> bool:
    """Whether a tool is denied by any of its names; an ambiguous name denies all tools that have it."""
    if not restricted:
        return False
    if not restricted.isdisjoint(entry.names):
        return True
    if entry.server:
        return False
    # Only its name for language models is known, and that cannot be split into server and tool. So the tool is denied
    # if its name could contain a restricted one, which may deny more than was meant, never less.
    parts = (_as_identifier(str(each)).strip("_").removeprefix("mcp_") for each in restricted)
    name = _as_identifier(entry.full_name)
    return any(f"_{part}_" in f"_{name}_" if part else True for part in parts)


def _as_identifier(name: str) -> str:
    return _ILLEGAL.sub("_", without_accents(name))


def all_names(server: str, name: str, full_name: str, llm_name: str) -> set[str]:
    """All names of a tool, with all forms that its name for language models can take.

    That form changes with the other tools of the server, and a restriction by any form must hold.
    """
    return {full_name, name, f"{ANY_SERVER}.{name}", llm_name, *llm_forms((ServerName(server), FeatureName(name)))}
