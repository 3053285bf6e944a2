"""The tools of a service at one moment, by every name that people give them.

A catalog is made on the owner loop from the tables that listing and calling read, and never changes: any thread may
read it. Making one is cheap, whatever the tools are like: a tool's own description is decoded when it is asked for.
Called by the service and the resolver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from isthmus.core.access.policy import Policy
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
from isthmus.core.catalog.view import Route
from isthmus.library.contracts import UniversalTool, UserContext
from isthmus.library.errors import (
    AmbiguousToolError,
    ToolDeniedError,
    ToolError,
    ToolNotFoundError,
    ToolUnreachableError,
)
from isthmus.library.permissions import check_user, grants_of, has_permissions, policy_of, restricted_names
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.features import Feature
from isthmus.model.names import FeatureName, ServerName, without_accents
from isthmus.upstream.python.signatures import PERMISSIONS

ANY_SERVER = "mcp"
"""The namespace of every tool that is not built in."""

NOWHERE = ServerName("")
"""The server of a tool whose hub names it in another style than `server.tool`."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_]+")
_LLM_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LLM_LENGTH_MAX}}}")

T = TypeVar("T")


class ToolEntry:
    """A tool: its full name, the pair behind it, and how a `Call` names it."""

    __slots__ = (
        "_feature",
        "_is_trusted",
        "_llm_name_of",
        "exposed",
        "full_name",
        "is_unlisted",
        "name",
        "server",
        "surface",
    )

    def __init__(
        self, route: Route, surface: Surface, llm_name_of: Callable[[str], str], *, is_unlisted: bool = False
    ) -> None:
        self.is_unlisted = is_unlisted
        """It is a method of a server without a list: for those who may use all of that server."""
        self._feature: Feature = route.feature
        self._is_trusted = route.is_trusted
        self._llm_name_of = llm_name_of
        self.surface = surface
        self.exposed = route.exposed
        self.server, self.name = self._pair()
        self.full_name = canonical((self.server, self.name)) if self.server else self.exposed

    def _pair(self) -> Pair:
        if self.surface.style != "own":
            return self._feature.server, self._feature.name
        server, dot, name = self.exposed.partition(".")  # of another hub, which has said what they are called
        return (ServerName(server), FeatureName(name)) if dot else (NOWHERE, FeatureName(self.exposed))

    @property
    def namespace(self) -> str | None:
        """Its server; None if that is not known."""
        return self.server or None

    @property
    def llm_name(self) -> str:
        """What language models are told that it is called."""
        return self._llm_name_of(self.full_name)

    @property
    def names(self) -> set[str]:
        """All names by which it may be denied or held back, also those that others have too."""
        return all_names(self.server, self.name, self.full_name, self.llm_name)

    @property
    def digest(self) -> bytes:
        """Changes exactly when what its server says of it does."""
        return self._feature.digest

    @property
    def description(self) -> str:
        """What its server says that it does."""
        return self._read("description", str) or ""

    @property
    def parameters_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments, as its server gave it; a new object each time."""
        return self._read("inputSchema", dict[str, Any]) or {}

    @property
    def demanded(self) -> list[str]:
        """What a user must have been given beside the tool itself, as its author says."""
        members = self._read("_meta", dict[str, Any]) or {}
        found = members.get(PERMISSIONS, [])
        return [str(each) for each in found] if isinstance(found, list) else []

    @property
    def tool(self) -> UniversalTool:
        """The tool as frameworks are shown it; a new object each time, since who has it may change it."""
        return UniversalTool(
            name=self.full_name,
            description=self.description,
            parameters_schema=self.parameters_schema,
            namespace=self.namespace,
            required_permissions=[self.full_name, *self.demanded],
            supports_streaming=True,
            metadata=self._metadata(),
        )

    def _metadata(self) -> dict[str, Any]:
        known = {
            "title": self._read("title", str),
            "annotations": self._read("annotations", dict[str, Any]),
            "output_schema": self._read("outputSchema", dict[str, Any]),
        }
        said = {key: value for key, value in known.items() if value is not None}
        return {**said, **({"trusted": True} if self._is_trusted else {}), "llm_name": self.llm_name}

    def _read(self, member: str, kind: type[T]) -> T | None:
        """A member of its description; None if it is not there, or is something else than it must be."""
        raw = self._feature.definition.get(member)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw, type=kind)
        except (ValueError, RecursionError):  # what a server says is not to be trusted
            return None


class Catalog:
    """All tools of a service; `missing` are servers that did not come, and why."""

    def __init__(
        self,
        tables: Mapping[Surface, Mapping[str, Route]],
        missing: Mapping[str, str] | None = None,
        find_unlisted: Callable[[str], Route | None] | None = None,
    ) -> None:
        """`tables` are routes by the surface on which a call finds them; of the same full name the first holds.

        `find_unlisted` finds methods of servers without a list, by their full names.
        """
        self._find_unlisted = find_unlisted
        entries: dict[str, ToolEntry] = {}
        for surface, routes in tables.items():
            for route in routes.values():
                entry = ToolEntry(route, surface, self._llm_name_of)
                entries.setdefault(entry.full_name, entry)
        self.entries: Mapping[str, ToolEntry] = MappingProxyType(entries)
        self.missing: Mapping[str, str] = MappingProxyType(dict(missing or {}))
        self._resolved: dict[str, ToolEntry] = {}

    # -- names -----------------------------------------------------------------------------------------------------

    def resolve(self, name: str, namespace: str | None = None) -> ToolEntry:
        """The one tool that is meant.

        A name may be full, `mcp.tool`, short, or what language models are told; `namespace` is the tool's server.

        Raises:
            ToolNotFoundError: no tool has this name; tools that look like it are suggested, never taken.
            ToolUnreachableError: the same, since its server did not come.
            AmbiguousToolError: several have it.
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
        """A method of a server without a list; not kept, since a program may name any number of them."""
        route = None if self._find_unlisted is None else self._find_unlisted(full_name)
        return None if route is None else ToolEntry(route, EVERYTHING, self._llm_name_of, is_unlisted=True)

    def resolve_for(self, user: UserContext | None, name: str, namespace: str | None = None) -> ToolEntry:
        """The same for a user, who is told of nothing that is not this user's to use.

        Of several that have the name, the one is meant that the user may use.

        Raises:
            ToolNotFoundError, ToolUnreachableError, AmbiguousToolError: as `resolve`.
            ToolDeniedError: the user may not use it, or could not if its server were there.
        """
        try:
            entry = self.resolve(name, namespace)
        except ToolNotFoundError as error:
            check_user(user)
            raise self._unknown(error.name, user) from None
        except AmbiguousToolError as several:
            return self._usable_of(several, user)
        if user is not None and not self.may_use(user, entry):
            raise ToolDeniedError(entry.full_name, user.user_id)
        return entry

    def _usable_of(self, several: AmbiguousToolError, user: UserContext | None) -> ToolEntry:
        if user is None:
            raise several
        usable = [entry for name in several.candidates if self.may_use(user, entry := self.entries[name])]
        if not usable:
            raise ToolDeniedError(several.name, user.user_id) from None
        if len(usable) > 1:
            raise AmbiguousToolError(several.name, [entry.full_name for entry in usable]) from None
        return usable[0]

    def _resolve_in(self, namespace: str, name: str) -> ToolEntry:
        for entry in self._named(name, f"{namespace}.{name}"):
            if entry is not None and _is_in(namespace, entry):
                return entry
        if namespace == ANY_SERVER:
            return self.resolve(f"{ANY_SERVER}.{name}")
        if (unlisted := self._unlisted(f"{namespace}.{name}")) is not None:
            return unlisted
        raise self._unknown(name if name.startswith(f"{namespace}.") else f"{namespace}.{name}")

    def _named(self, name: str, within: str) -> Iterator[ToolEntry | None]:
        """What a name stands for where its server is said too, the surest first.

        That is the full name: a server may have one tool whose own name is another's in full.
        """
        yield self.entries.get(name)
        yield self.entries.get(within)
        yield self._by_llm_name.get(name)

    def _search(self, name: str) -> ToolEntry:
        check_name(name)
        meant = self._having(name)
        if len(meant) > 1:
            raise AmbiguousToolError(name, sorted(meant))
        if not meant:
            raise self._unknown(name)
        return self.entries[meant.pop()]

    def _having(self, name: str) -> set[str]:
        """The full names of all that a name could be meant for, as people say it or as language models do."""
        by_llm_name = self._by_llm_name.get(name)
        told = set() if by_llm_name is None else {by_llm_name.full_name}
        try:
            pair = resolve(name, (_pair_of(entry) for entry in self.entries.values() if entry.server))
        except AmbiguousName as several:
            return told.union(several.candidates)
        return told if pair is None else told | {canonical(pair)}

    def _unknown(self, name: str, user: UserContext | None = None) -> ToolError:
        if (unreachable := self.unreachable(name, user)) is not None:
            return unreachable
        policy = policy_of(grants_of(user))
        silent = sorted(server for server in self.silent if policy.may_see_server(ServerName(server)))
        hint = f"Not connected, so not listed: {', '.join(silent)}." if silent else ""
        known = self.entries if user is None else [entry.full_name for entry in self.reachable(user)]
        return ToolNotFoundError(name, suggestions(name, known), hint)

    def unreachable(self, name: str, user: UserContext | None = None) -> ToolUnreachableError | ToolDeniedError | None:
        """Why nothing has this name, full or for language models, if that is because its server did not come.

        Who could not use it is told what would be told if the server were there, and nothing of that server.
        """
        server, dot, tool = name.partition(".")
        meant = ServerName(server if dot else self._server_told(name))
        if meant not in self.silent:
            return None
        if user is not None and not _could_use(user, meant, FeatureName(tool) if dot else None, name):
            return ToolDeniedError(name, user.user_id)
        return ToolUnreachableError(name, meant, self.missing[meant])

    def _server_told(self, llm_name: str) -> str:
        """The server whose tools have names for language models that begin like this one, if there is any."""
        servers = [*self.silent, *(entry.server for entry in self.entries.values())]
        beginnings = {llm_form((ServerName(server), FeatureName(""))): str(server) for server in servers}
        longest = max((each for each in beginnings if llm_name.startswith(each)), key=len, default="")
        return beginnings.get(longest, "")

    @cached_property
    def silent(self) -> frozenset[str]:
        """Servers that are not connected and have not said what they have; of others the last list is known."""
        return frozenset(self.missing).difference(str(entry.server) for entry in self.entries.values())

    # -- names for language models ---------------------------------------------------------------------------------

    @cached_property
    def _llm_names(self) -> dict[str, str]:
        table = llm_table(_pair_of(entry) for entry in self.entries.values())
        names = {entry.full_name: table[_pair_of(entry)] for entry in self.entries.values()}
        # A hub that names its tools for language models has already said what these are called.
        said = {name for name, entry in self.entries.items() if not entry.server and _LLM_NAME.fullmatch(name)}
        return {**names, **{name: name for name in said.difference(names.values())}}

    def _llm_name_of(self, full_name: str) -> str:
        # A method that nobody lists has none, and a program that called it by one would not find it.
        return self._llm_names.get(full_name, full_name)

    @cached_property
    def _by_llm_name(self) -> dict[str, ToolEntry]:
        by_name = {self._llm_names[full_name]: entry for full_name, entry in self.entries.items()}
        return {**by_name, **{alias: by_name[name] for alias, name in llm_aliases(by_name).items()}}

    def by_llm_name(self, llm_name: str) -> ToolEntry | None:
        """The tool that a language model was told has this name, or a model wrote with underscores for its hyphens."""
        return self._by_llm_name.get(llm_name)

    # -- permissions -----------------------------------------------------------------------------------------------

    def may_use(self, user: UserContext | None, entry: ToolEntry) -> bool:
        """Whether this user's permissions cover a tool."""
        check_user(user)
        is_covered = _covers(policy_of(grants_of(user)), entry) and has_permissions(user, entry.demanded)
        return is_covered and not _is_restricted(entry, restricted_names(user))

    def reachable(self, user: UserContext | None) -> list[ToolEntry]:
        """What this user may use, in the order of the list."""
        check_user(user)
        policy = policy_of(grants_of(user))
        words = restricted_names(user)
        return [
            entry
            for entry in self.entries.values()
            if _covers(policy, entry) and has_permissions(user, entry.demanded) and not _is_restricted(entry, words)
        ]


def check_name(name: object) -> None:
    """Refuse what cannot be the name of a tool.

    Raises:
        TypeError: it is no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a tool must be a text, not {type(name).__name__}")


def _covers(policy: Policy, entry: ToolEntry) -> bool:
    if entry.is_unlisted:
        return policy.may_use_all_of(entry.server)
    # A tool of no known server is granted by the whole of its name, which is written as a server's.
    return policy.allows(entry.server or ServerName(entry.full_name), entry.name)


def _could_use(user: UserContext, server: ServerName, tool: FeatureName | None, name: str) -> bool:
    """Whether a user's permissions would cover a tool of a server that has not said what it has.

    A name for language models cannot be taken apart, so that there is no `tool`: anything of the server will do.
    """
    policy, words = policy_of(grants_of(user)), restricted_names(user)
    if tool is None:
        return policy.may_see_server(server) and name not in words
    names = all_names(server, tool, name, llm_form((server, tool)))
    return policy.allows(server, tool) and words.isdisjoint(names)


def _is_restricted(entry: ToolEntry, words: frozenset[object]) -> bool:
    """Whether a tool is denied by any of its names; one that several have denies them all."""
    if not words:
        return False
    return not words.isdisjoint(entry.names) or (not entry.server and _may_be_meant(entry.full_name, words))


def _may_be_meant(full_name: str, words: frozenset[object]) -> bool:
    """Whether a tool may be denied of which only the name for language models is known.

    That cannot be taken apart again: it is denied wherever it could hold what is, which may be more than was meant.
    """
    parts = (_as_identifier(str(word)).strip("_").removeprefix("mcp_") for word in words)
    name = _as_identifier(full_name)
    return any(f"_{part}_" in f"_{name}_" if part else True for part in parts)


def _as_identifier(name: str) -> str:
    return _ILLEGAL.sub("_", without_accents(name))


def all_names(server: str, name: str, full_name: str, llm_name: str) -> set[str]:
    """All names of a tool, also those that it had, or will have, for language models.

    Such a name changes with the other tools of its server, and what somebody said by it has to hold.
    """
    return {full_name, name, f"{ANY_SERVER}.{name}", llm_name, *llm_forms((ServerName(server), FeatureName(name)))}


def _is_in(namespace: str, entry: ToolEntry) -> bool:
    return entry.server == namespace or (namespace == ANY_SERVER and entry.server != BUILTIN)


def _pair_of(entry: ToolEntry) -> Pair:
    return entry.server, entry.name
