"""Which tools a permission set covers.

A `Policy` is compiled once per `Grants` and answers from sets, so listing and calling can both afford to ask
it for every tool. It knows nothing of callers, keys or names as shown on a face: its question is always the
pair (server, tool). The catalog's views ask it; `config` uses `check_pattern` to refuse a mistyped grant
early.

A pattern is `*` (everything), `server.*` or `server` (all tools of one), `server.tool` (one tool, split at the first
dot), or `agent:KEY` (every server that dialled in under an agent). What is denied stays denied whatever is allowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeAlias

from isthmus.model.callers import Grants
from isthmus.model.names import FeatureName, ServerName, parse_server_name

AGENT = "agent:"
"""What a pattern begins with that means an agent's servers; no server's name has a colon."""

AgentOf: TypeAlias = Callable[[ServerName], str | None]
"""The key of the agent under which a server dialled in; None for one that did not."""


def nobodys(_: ServerName) -> str | None:
    """Where no server dialled in."""
    return None


class Policy:
    """The compiled form of one `Grants`; `agent_of` is asked only where a pattern means an agent's servers.

    Raises:
        ValueError: a pattern is malformed; a policy never guesses what was meant.
    """

    __slots__ = ("_allowed", "_denied")

    def __init__(self, grants: Grants, agent_of: AgentOf = nobodys) -> None:
        self._allowed = _Patterns(grants.allow, agent_of)
        self._denied = _Patterns(grants.deny, agent_of)

    def allows(self, server: ServerName, tool: FeatureName) -> bool:
        """Say whether this tool may be seen and called."""
        return self._allowed.cover(server, tool) and not self._denied.cover(server, tool)

    def denies(self, server: ServerName, tool: FeatureName) -> bool:
        """Say whether this is refused by name, whatever is allowed."""
        return self._denied.cover(server, tool)

    def may_see_server(self, server: ServerName) -> bool:
        """Say whether any tool of this server, known yet or not, could be allowed."""
        if self._denied.cover_all_of(server):
            return False
        return self._allowed.cover_all_of(server) or bool(
            self._allowed.tools_of(server) - self._denied.tools_of(server)
        )

    def may_use_all_of(self, server: ServerName) -> bool:
        """Say whether everything of this server is allowed, known yet or not."""
        is_denied = self._denied.cover_all_of(server) or bool(self._denied.tools_of(server))
        return self._allowed.cover_all_of(server) and not is_denied

    def named_servers(self) -> set[ServerName] | None:
        """The only servers that could be seen; None where that is not said by name."""
        return self._allowed.named_servers()


class _Patterns:
    """One list of patterns, sorted into what each kind covers."""

    __slots__ = ("_agent_of", "_agents", "_everything", "_servers", "_tools")

    def __init__(self, patterns: Iterable[str], agent_of: AgentOf) -> None:
        self._everything = False
        self._agent_of = agent_of
        self._agents: set[str] = set()
        self._servers: set[ServerName] = set()
        self._tools: dict[ServerName, set[FeatureName]] = defaultdict(set)
        for pattern in patterns:
            self._add(pattern)
        self._tools = dict(self._tools)  # lookups must not grow it

    def _add(self, pattern: str) -> None:
        if is_of_agent(pattern):
            self._agents.add(_agent_in(pattern))
            return
        server, tool = _parse(pattern)
        if server is None:
            self._everything = True
        elif tool is None:
            self._servers.add(server)
        else:
            self._tools[server].add(tool)

    def cover(self, server: ServerName, tool: FeatureName) -> bool:
        return self.cover_all_of(server) or tool in self._tools.get(server, ())

    def cover_all_of(self, server: ServerName) -> bool:
        if self._everything or server in self._servers:
            return True
        return bool(self._agents) and self._agent_of(server) in self._agents

    def named_servers(self) -> set[ServerName] | None:
        return None if self._everything or self._agents else self._servers | self._tools.keys()

    def tools_of(self, server: ServerName) -> set[FeatureName]:
        return self._tools.get(server, set())


def check_pattern(text: str) -> None:
    """Accept a well-formed pattern.

    Raises:
        ValueError: it is malformed; the message says what to write instead.
    """
    if not is_of_agent(text):
        _parse(text)
    elif not _agent_in(text).isprintable() or " " in text:
        raise _malformed(text, "the key of an agent has no spaces, and nothing that cannot be printed")


def is_of_agent(pattern: str) -> bool:
    """Whether a pattern means the servers of an agent."""
    return pattern.startswith(AGENT)


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
    return ValueError(f"a grant must be *, server.*, server.tool or agent:KEY, not {pattern!r}: {why}")
