"""Which tools a permission set covers.

A `Policy` is compiled once per `Grants` and answers from sets, so listing and calling can both afford to ask
it for every tool. It knows nothing of callers, keys or names as shown on a face: its question is always the
pair (server, tool). The catalog's views ask it; `config` uses `check_pattern` to refuse a mistyped grant
early.

A pattern is `*` (everything), `server.*` or `server` (all tools of one), or `server.tool` (one tool, split at
the first dot). What is denied stays denied whatever is allowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from isthmus.model.callers import Grants
from isthmus.model.names import FeatureName, ServerName, parse_server_name


class Policy:
    """The compiled form of one `Grants`.

    Raises:
        ValueError: a pattern is malformed; a policy never guesses what was meant.
    """

    __slots__ = ("_allowed", "_denied")

    def __init__(self, grants: Grants) -> None:
        self._allowed = _Patterns(grants.allow)
        self._denied = _Patterns(grants.deny)

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


class _Patterns:
    """One list of patterns, sorted into what each kind covers."""

    __slots__ = ("_everything", "_servers", "_tools")

    def __init__(self, patterns: Iterable[str]) -> None:
        self._everything = False
        self._servers: set[ServerName] = set()
        self._tools: dict[ServerName, set[FeatureName]] = defaultdict(set)
        for pattern in patterns:
            self._add(pattern)
        self._tools = dict(self._tools)  # lookups must not grow it

    def _add(self, pattern: str) -> None:
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
        return self._everything or server in self._servers

    def tools_of(self, server: ServerName) -> set[FeatureName]:
        return self._tools.get(server, set())


def check_pattern(text: str) -> None:
    """Accept a well-formed pattern.

    Raises:
        ValueError: it is malformed; the message says what to write instead.
    """
    _parse(text)


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
    return ValueError(f"a grant must be *, server.* or server.tool, not {pattern!r}: {why}")
