"""Which tools a permission set covers.

A `Policy` is compiled once per `Grants` and answers from sets, so listing and calling can both afford to ask
it for every tool. It knows nothing of callers, keys or names as shown on a face: its question is always the
pair (server, tool), with the labels of the tool where a pattern is about those. The catalog's views ask it; `config`
uses `check_pattern` to refuse a mistyped grant early.

A pattern is `*` (everything), `server.*` or `server` (all tools of one), `server.tool` (one tool, split at the first
dot), `agent:KEY` (every server that dialled in under an agent), `tag:NAME` (whatever has that tag) or `hint:NAME`
(tools of which that is so). What is denied stays denied whatever is allowed, and what bounds a permission set
(`Grants.within`) must allow a thing as well. A `CustomPolicy`, if there is one, is asked last: it can only refuse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal, TypeAlias, get_args

import msgspec

from isthmus.model.callers import CallerId, Grants
from isthmus.model.names import FeatureName, ServerName, parse_server_name

AGENT = "agent:"
"""What a pattern begins with that means an agent's servers; no server's name has a colon."""
TAG = "tag:"
HINT = "hint:"

Hint: TypeAlias = Literal["read-only", "destructive", "idempotent", "open-world"]
"""What a server may say of a tool in its annotations."""

HINTS: tuple[Hint, ...] = get_args(Hint)

AgentOf: TypeAlias = Callable[[ServerName], str | None]
"""The key of the agent under which a server dialled in; None for one that did not."""

TagsOf: TypeAlias = Callable[[ServerName], Collection[str]]
"""The tags that the operator gave to everything of a server."""

CustomPolicy: TypeAlias = Callable[[CallerId | None, ServerName, FeatureName], bool]
"""Whether somebody may use what these patterns allow: what an operator's own code decides. It never raises. Who is
None where nobody had to show who they are."""

BY_NARROWING = -1
"""Where a refusal has its place that no permission set made."""

Why: TypeAlias = tuple[Literal["allow", "deny"], int, str | None]
"""What decided: a list, of which permission set (0 is the innermost), and the pattern; None if there was no fitting
one."""


class Labels(msgspec.Struct, frozen=True):
    """What is said of one feature, as patterns, by whether it is taken for true.

    What only its server says, which may lie, is not `believed`; it is `suspected`, and so is what that server has not
    said to its own disadvantage.
    """

    believed: frozenset[str] = frozenset()
    suspected: frozenset[str] = frozenset()


UNLABELLED = Labels()


def no_agent(_: ServerName) -> str | None:
    """Where no server dialled in."""
    return None


def no_tags(_: ServerName) -> tuple[str, ...]:
    """Where the operator gave no tags."""
    return ()


class Policy:
    """The compiled form of one `Grants`; `agent_of` and `tags_of` are asked only where a pattern is about such.

    Raises:
        ValueError: a pattern is malformed; a policy never guesses what was meant.
    """

    __slots__ = ("_layers", "_narrowing", "_whose", "has_denials", "reads_labels")

    def __init__(
        self,
        grants: Grants,
        agent_of: AgentOf = no_agent,
        tags_of: TagsOf = no_tags,
        narrowing: CustomPolicy | None = None,
    ) -> None:
        self._layers = tuple(
            (_Patterns(each.allow, agent_of, tags_of), _Patterns(each.deny, agent_of, tags_of))
            for each in _chain(grants)
            if each.whose is None
        )
        self._narrowing = narrowing
        self._whose = next((each.whose for each in _chain(grants) if each.whose is not None), None)
        self.reads_labels = any(patterns.labels for layer in self._layers for patterns in layer)
        """Whether labels make a difference; they need not be looked up otherwise."""
        self.has_denials = narrowing is not None or any(each.deny for each in _chain(grants))

    def allows(self, server: ServerName, tool: FeatureName, labels: Labels = UNLABELLED) -> bool:
        """Say whether this tool may be seen and called."""
        for allowed, denied in self._layers:
            if not allowed.cover(server, tool, labels.believed) or denied.cover(server, tool, labels.suspected):
                return False
        return not self._is_narrowed(server, tool)

    @property
    def is_narrowed(self) -> bool:
        """Whether somebody else is asked too, so that names alone say only what is not allowed."""
        return self._narrowing is not None

    def _is_narrowed(self, server: ServerName, tool: FeatureName) -> bool:
        return self._narrowing is not None and not self._narrowing(self._whose, server, tool)

    def denies(self, server: ServerName, tool: FeatureName, labels: Labels = UNLABELLED) -> bool:
        """Say whether this is refused by name or by label, whatever is allowed."""
        is_denied = any(denied.cover(server, tool, labels.suspected) for _, denied in self._layers)
        return is_denied or self._is_narrowed(server, tool)

    def why(self, server: ServerName, tool: FeatureName, labels: Labels = UNLABELLED) -> tuple[Why, ...]:
        """Say what decides of a tool: what denies it, which set does not allow it, or what all sets allow it by."""
        for depth, (_, denied) in enumerate(self._layers):
            if (pattern := denied.covering(server, tool, labels.suspected)) is not None:
                return (("deny", depth, pattern),)
        found = tuple(
            ("allow", depth, allowed.covering(server, tool, labels.believed))
            for depth, (allowed, _) in enumerate(self._layers)
        )
        lacking = tuple(why for why in found if why[2] is None)
        if not lacking and self._is_narrowed(server, tool):
            return (("deny", BY_NARROWING, "a policy"),)
        return lacking[:1] or found  # type: ignore[return-value]  # mypy widens the literal

    def may_see_server(self, server: ServerName) -> bool:
        """Say whether any tool of this server, known yet or not, could be allowed by its name."""
        if any(denied.cover_all_of(server) for _, denied in self._layers):
            return False
        narrow = [allowed for allowed, _ in self._layers if not allowed.cover_all_of(server)]
        return not narrow or any(self.allows(server, tool) for tool in narrow[0].tools_of(server))

    def may_use_all_of(self, server: ServerName) -> bool:
        """Say whether everything of this server is allowed, known yet or not."""
        return self._narrowing is None and self.covers_all_of(server)

    def covers_all_of(self, server: ServerName) -> bool:
        """Say whether the patterns allow everything of this server; a narrowing may still refuse single tools."""
        return all(
            allowed.cover_all_of(server) and not denied.may_cover_some_of(server) for allowed, denied in self._layers
        )

    def denied_names(self, server: ServerName) -> set[FeatureName]:
        """What is refused of a server by its name alone."""
        return set().union(*(denied.tools_of(server) for _, denied in self._layers))

    def named_tools(self, server: ServerName) -> set[FeatureName]:
        """What is allowed or refused of a server by its own name."""
        return set().union(*(patterns.tools_of(server) for layer in self._layers for patterns in layer))

    def named_servers(self) -> set[ServerName] | None:
        """The only servers that could be seen; None where that is not said by name."""
        said = [names for allowed, _ in self._layers if (names := allowed.named_servers()) is not None]
        return set.intersection(*said) if said else None


def _chain(grants: Grants | None) -> Iterator[Grants]:
    while grants is not None:
        yield grants
        grants = grants.within


class _Patterns:
    """One list of patterns, sorted into what each kind covers."""

    __slots__ = ("_agent_of", "_agents", "_everything", "_servers", "_tags_of", "_tools", "labels")

    def __init__(self, patterns: Iterable[str], agent_of: AgentOf, tags_of: TagsOf) -> None:
        self._everything = False
        self._agent_of = agent_of
        self._tags_of = tags_of
        self._agents: set[str] = set()
        self._servers: set[ServerName] = set()
        self._tools: dict[ServerName, set[FeatureName]] = defaultdict(set)
        self.labels: set[str] = set()
        """The patterns of tags and hints, as they are."""
        for pattern in patterns:
            self._add(pattern)
        self._tools = dict(self._tools)  # lookups must not grow it

    def _add(self, pattern: str) -> None:
        if is_of_agent(pattern):
            self._agents.add(_agent_in(pattern))
            return
        if is_of_label(pattern):
            _check_label(pattern)
            self.labels.add(pattern)
            return
        server, tool = _parse(pattern)
        if server is None:
            self._everything = True
        elif tool is None:
            self._servers.add(server)
        else:
            self._tools[server].add(tool)

    def cover(self, server: ServerName, tool: FeatureName, labels: frozenset[str]) -> bool:
        if self.cover_all_of(server) or tool in self._tools.get(server, ()):
            return True
        return bool(self.labels) and not self.labels.isdisjoint(labels)

    def cover_all_of(self, server: ServerName) -> bool:
        if self._everything or server in self._servers:
            return True
        if self._agents and self._agent_of(server) in self._agents:
            return True
        return bool(self.labels) and not self.labels.isdisjoint(f"{TAG}{tag}" for tag in self._tags_of(server))

    def may_cover_some_of(self, server: ServerName) -> bool:
        return bool(self.labels) or self.cover_all_of(server) or bool(self.tools_of(server))

    def covering(self, server: ServerName, tool: FeatureName, labels: frozenset[str]) -> str | None:
        """The pattern that covers a tool, the plainest first; None if none does."""
        if tool in self._tools.get(server, ()):
            return f"{server}.{tool}"
        if server in self._servers:
            return f"{server}.*"
        if self._everything:
            return "*"
        if self._agents and (agent := self._agent_of(server)) in self._agents:
            return f"{AGENT}{agent}"
        said = labels | {f"{TAG}{tag}" for tag in self._tags_of(server)} if self.labels else labels
        return min(self.labels & said, default=None)

    def named_servers(self) -> set[ServerName] | None:
        if self._everything or self._agents or self.labels:
            return None
        return self._servers | self._tools.keys()

    def tools_of(self, server: ServerName) -> set[FeatureName]:
        return self._tools.get(server, set())


def check_pattern(text: str) -> None:
    """Accept a well-formed pattern.

    Raises:
        ValueError: it is malformed; the message says what to write instead.
    """
    if is_of_label(text):
        _check_label(text)
    elif not is_of_agent(text):
        _parse(text)
    elif not _agent_in(text).isprintable() or " " in text:
        raise _malformed(text, "the key of an agent has no spaces, and nothing that cannot be printed")


def check_tag(text: str) -> None:
    """Accept a tag that a pattern can name.

    Raises:
        ValueError: none can.
    """
    if not text or not text.isprintable() or text != text.strip():
        raise ValueError(f"a tag must be a printable text, not {text!r}")


def is_of_agent(pattern: str) -> bool:
    """Whether a pattern means the servers of an agent."""
    return pattern.startswith(AGENT)


def is_of_label(pattern: str) -> bool:
    """Whether a pattern is about what is said of a thing, and not about its name."""
    return pattern.startswith((TAG, HINT))


def _check_label(pattern: str) -> None:
    if pattern.startswith(HINT):
        if pattern.removeprefix(HINT) not in HINTS:
            raise _malformed(pattern, f"a hint is one of {', '.join(HINTS)}")
        return
    try:
        check_tag(pattern.removeprefix(TAG))
    except ValueError:
        raise _malformed(pattern, "it names no tag") from None


def _agent_in(pattern: str) -> str:
    """The agent's key, taken as it is: who wrote it into a token may have put anything there."""
    key = pattern.removeprefix(AGENT)
    if not key:
        raise _malformed(pattern, "it names no agent")
    return key


def _parse(pattern: str) -> tuple[ServerName | None, FeatureName | None]:
    """Split a pattern into server and tool, None standing for all of them."""
    if pattern == "*":
        return None, None
    server, dot, tool = pattern.partition(".")
    if "*" in server or ("*" in tool and tool != "*"):
        raise _malformed(pattern, "a star cannot stand for a part of a name")
    if not server or (dot and not tool):
        raise _malformed(pattern, f"it names no {'tool' if server else 'server'}")
    try:
        name = parse_server_name(server)
    except ValueError:
        raise _malformed(pattern, "no server can have that name") from None
    return name, None if tool in ("", "*") else FeatureName(tool)


def _malformed(pattern: str, why: str) -> ValueError:
    forms = "*, server.*, server.tool, agent:KEY, tag:NAME or hint:NAME"
    return ValueError(f"a grant must be {forms}, not {pattern!r}: {why}")
