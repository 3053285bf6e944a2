"""Which tools a permission set covers.

A `Policy` is compiled once per `Grants` and answers from sets, so that lists and calls can check every tool. It knows
nothing of callers, keys or exposed names: it decides about the pair (server, tool), and about the tool's labels where a
pattern matches those. The catalog's views use it; `config` rejects mistyped grants early with `check_pattern`.

A pattern is `*` (everything), `server.*` or `server` (all tools of one), `server.tool` (one tool, split at the first
dot), `agent:KEY` (every server that dialled in under an agent), `tag:NAME` (everything with that tag) or `hint:NAME`
(tools with that hint). A denial wins over every permission, and the bounds of a permission set (`Grants.within`) must
allow a thing as well. The operator's own policy (`CustomPolicy`) comes last: it can only refuse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal, TypeAlias, get_args

import msgspec

from isthmus.model.callers import CallerId, Grants
from isthmus.model.names import FeatureName, ServerName, parse_server_name

AGENT = "agent:"
"""The prefix of a pattern for an agent's servers; server names contain no colon."""
TAG = "tag:"
HINT = "hint:"

Hint: TypeAlias = Literal["read-only", "destructive", "idempotent", "open-world"]
"""What a server may state about a tool in its annotations."""

HINTS: tuple[Hint, ...] = get_args(Hint)

AgentOf: TypeAlias = Callable[[ServerName], str | None]
"""The key of the agent under which a server dialled in; None for other servers."""

TagsOf: TypeAlias = Callable[[ServerName], Collection[str]]
"""The operator's tags for everything of a server."""

CustomPolicy: TypeAlias = Callable[[CallerId | None, ServerName, FeatureName], bool]
"""Whether a caller may use what the patterns allow, decided by an operator's own code. It never raises. The caller is
None where callers need no credentials."""

BY_CUSTOM_POLICY = -1
"""The depth of a refusal by the operator's own policy."""

Why: TypeAlias = tuple[Literal["allow", "deny"], int, str | None]
"""What decided: the list, the depth of its permission set (0 is the innermost), and the pattern; None if none matches.
"""


class Labels(msgspec.Struct, frozen=True):
    """The labels of one feature, as patterns, by whether they are believed.

    What only its server claims, which may lie, is `suspected` and not `believed`; so is what the server left unsaid to
    its own advantage.
    """

    believed: frozenset[str] = frozenset()
    suspected: frozenset[str] = frozenset()


UNLABELLED = Labels()


def no_agent(_: ServerName) -> str | None:
    """For hubs without dialled-in servers."""
    return None


def no_tags(_: ServerName) -> tuple[str, ...]:
    """For hubs without tags."""
    return ()


class Policy:
    """The compiled form of one `Grants`; `agent_of` and `tags_of` are only called where a pattern needs them.

    Raises:
        ValueError: a pattern is malformed; a policy never guesses what was meant.
    """

    __slots__ = ("_caller_id", "_custom_policy", "_layers", "has_denials", "reads_labels")

    def __init__(
        self,
        grants: Grants,
        agent_of: AgentOf = no_agent,
        tags_of: TagsOf = no_tags,
        custom_policy: CustomPolicy | None = None,
    ) -> None:
        self._layers = tuple(
            (_Patterns(each.allow, agent_of, tags_of), _Patterns(each.deny, agent_of, tags_of))
            for each in _chain(grants)
            if each.caller_id is None
        )
        self._custom_policy = custom_policy
        self._caller_id = next((each.caller_id for each in _chain(grants) if each.caller_id is not None), None)
        self.reads_labels = any(patterns.labels for layer in self._layers for patterns in layer)
        """Whether any pattern matches labels; otherwise they need not be computed."""
        self.has_denials = custom_policy is not None or any(each.deny for each in _chain(grants))

    def allows(self, server: ServerName, tool: FeatureName, labels: Labels = UNLABELLED) -> bool:
        """Whether this tool is visible and callable."""
        for allowed, denied in self._layers:
            if not allowed.cover(server, tool, labels.believed) or denied.cover(server, tool, labels.suspected):
                return False
        return not self._is_refused_by_policy(server, tool)

    @property
    def is_narrowed(self) -> bool:
        """Whether a custom policy decides as well, so that patterns alone can only deny."""
        return self._custom_policy is not None

    def _is_refused_by_policy(self, server: ServerName, tool: FeatureName) -> bool:
        return self._custom_policy is not None and not self._custom_policy(self._caller_id, server, tool)

    def denies(self, server: ServerName, tool: FeatureName, labels: Labels = UNLABELLED) -> bool:
        """Whether this is denied by name, label or custom policy, whatever is allowed."""
        is_denied = any(denied.cover(server, tool, labels.suspected) for _, denied in self._layers)
        return is_denied or self._is_refused_by_policy(server, tool)

    def why(self, server: ServerName, tool: FeatureName, labels: Labels = UNLABELLED) -> tuple[Why, ...]:
        """What decides about a tool: the denial, the set that does not allow it, or the patterns that allow it."""
        for depth, (_, denied) in enumerate(self._layers):
            if (pattern := denied.covering_pattern(server, tool, labels.suspected)) is not None:
                return (("deny", depth, pattern),)
        found = tuple(
            ("allow", depth, allowed.covering_pattern(server, tool, labels.believed))
            for depth, (allowed, _) in enumerate(self._layers)
        )
        lacking = tuple(why for why in found if why[2] is None)
        if not lacking and self._is_refused_by_policy(server, tool):
            return (("deny", BY_CUSTOM_POLICY, "a policy"),)
        return lacking[:1] or found  # type: ignore[return-value]  # mypy widens the literal

    def may_see_server(self, server: ServerName) -> bool:
        """Whether any tool of this server, known or not, could be allowed by its name."""
        if any(denied.cover_all_of(server) for _, denied in self._layers):
            return False
        narrow = [allowed for allowed, _ in self._layers if not allowed.cover_all_of(server)]
        return not narrow or any(self.allows(server, tool) for tool in narrow[0].tools_of(server))

    def may_use_all_of(self, server: ServerName) -> bool:
        """Whether everything of this server is allowed, known or not."""
        return self._custom_policy is None and self.covers_all_of(server)

    def covers_all_of(self, server: ServerName) -> bool:
        """Whether the patterns allow everything of this server; a custom policy may still refuse single tools."""
        return all(
            allowed.cover_all_of(server) and not denied.may_cover_some_of(server) for allowed, denied in self._layers
        )

    def names_of(self, server: ServerName) -> tuple[set[FeatureName] | None, set[FeatureName]] | None:
        """The names of a server that are allowed, None for all, and those that are denied whatever is allowed.

        None if names alone do not decide. It answers for thousands of tools at once.
        """
        if self._custom_policy is not None or self.reads_labels:
            return None
        allowed: set[FeatureName] | None = None
        for allow, deny in self._layers:
            if deny.cover_all_of(server):
                return set(), set()
            if not allow.cover_all_of(server):
                allowed = allow.tools_of(server) if allowed is None else allowed & allow.tools_of(server)
        return allowed, self.denied_names(server)

    def denied_names(self, server: ServerName) -> set[FeatureName]:
        """What is denied of a server by name."""
        return set().union(*(denied.tools_of(server) for _, denied in self._layers))

    def named_tools(self, server: ServerName) -> set[FeatureName]:
        """What is allowed or denied of a server by its own name."""
        return set().union(*(patterns.tools_of(server) for layer in self._layers for patterns in layer))

    def named_servers(self) -> set[ServerName] | None:
        """The only servers that could be visible; None if the patterns are not only names."""
        known_names = [names for allowed, _ in self._layers if (names := allowed.named_servers()) is not None]
        return set.intersection(*known_names) if known_names else None


def _chain(grants: Grants | None) -> Iterator[Grants]:
    while grants is not None:
        yield grants
        grants = grants.within


class _Patterns:
    """One list of patterns, sorted by what each kind covers."""

    __slots__ = ("_agent_of", "_agents", "_everything", "_servers", "_tags_of", "_tools", "labels")

    def __init__(self, patterns: Iterable[str], agent_of: AgentOf, tags_of: TagsOf) -> None:
        self._everything = False
        self._agent_of = agent_of
        self._tags_of = tags_of
        self._agents: set[str] = set()
        self._servers: set[ServerName] = set()
        self._tools: dict[ServerName, set[FeatureName]] = defaultdict(set)
        self.labels: set[str] = set()
        """The patterns of tags and hints."""
        for pattern in patterns:
            if is_of_agent(pattern):
                self._agents.add(_agent_in(pattern))
                continue
            if is_of_label(pattern):
                _check_label(pattern)
                self.labels.add(pattern)
                continue
            server, tool = _parse(pattern)
            if server is None:
                self._everything = True
            elif tool is None:
                self._servers.add(server)
            else:
                self._tools[server].add(tool)
        self._tools = dict(self._tools)  # lookups must not add keys

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

    def covering_pattern(self, server: ServerName, tool: FeatureName, labels: frozenset[str]) -> str | None:
        """The pattern that covers a tool, the simplest first; None if no pattern does."""
        if tool in self._tools.get(server, ()):
            return f"{server}.{tool}"
        if server in self._servers:
            return f"{server}.*"
        if self._everything:
            return "*"
        if self._agents and (agent := self._agent_of(server)) in self._agents:
            return f"{AGENT}{agent}"
        known_names = labels | {f"{TAG}{tag}" for tag in self._tags_of(server)} if self.labels else labels
        return min(self.labels & known_names, default=None)

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
        raise _malformed(text, "an agent's key must be printable and without spaces")


def check_tag(text: str) -> None:
    """Accept a tag that a pattern can name.

    Raises:
        ValueError: no pattern can name it.
    """
    if not text or not text.isprintable() or text != text.strip():
        raise ValueError(f"a tag must be printable text, not {text!r}")


def is_of_agent(pattern: str) -> bool:
    """Whether a pattern means the servers of an agent."""
    return pattern.startswith(AGENT)


def is_of_label(pattern: str) -> bool:
    """Whether a pattern matches a label, and not a name."""
    return pattern.startswith((TAG, HINT))


def _check_label(pattern: str) -> None:
    if pattern.startswith(HINT):
        if pattern.removeprefix(HINT) not in HINTS:
            raise _malformed(pattern, f"a hint is one of {', '.join(HINTS)}")
        return
    try:
        check_tag(pattern.removeprefix(TAG))
    except ValueError:
        raise _malformed(pattern, "the tag is missing") from None


def _agent_in(pattern: str) -> str:
    """The agent's key, unchanged: a token may contain anything there."""
    key = pattern.removeprefix(AGENT)
    if not key:
        raise _malformed(pattern, "the agent's key is missing")
    return key


def _parse(pattern: str) -> tuple[ServerName | None, FeatureName | None]:
    """Split a pattern into server and tool; None stands for all."""
    if pattern == "*":
        return None, None
    server, dot, tool = pattern.partition(".")
    if "*" in server or ("*" in tool and tool != "*"):
        raise _malformed(pattern, "* cannot be part of a name")
    if not server or (dot and not tool):
        raise _malformed(pattern, f"the {'tool' if server else 'server'} is missing")
    try:
        name = parse_server_name(server)
    except ValueError:
        raise _malformed(pattern, "this is not a valid server name") from None
    return name, None if tool in ("", "*") else FeatureName(tool)


def _malformed(pattern: str, why: str) -> ValueError:
    forms = "*, server.*, server.tool, agent:KEY, tag:NAME or hint:NAME"
    return ValueError(f"a grant must be {forms}, not {pattern!r}: {why}")
