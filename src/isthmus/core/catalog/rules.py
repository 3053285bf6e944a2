"""What the operator said of one server's tools: which are shown, what is filled in, what is remembered.

Values only, compared on reload. `config` fills them in; a `Snapshot` compiles them into its routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EVERY = "*"
"""Stands for every tool, alone and not as a part of a name."""

CACHE_SECONDS = 60.0
CACHE_SECONDS_MAX = 86_400.0


@dataclass(frozen=True, slots=True)
class ToolRules:
    """The operator's word on one server's tools, by the names that the server itself gives them."""

    only: tuple[str, ...] | None = None
    """The tools that are shown; None for all of them."""
    hidden: tuple[str, ...] = ()
    """Tools that are not shown, whatever `only` says."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By tool: arguments that are filled in when a caller leaves them out."""
    cached: tuple[str, ...] = ()
    """Tools whose results may be given again for the same caller and the same arguments."""
    cache_seconds: float = CACHE_SECONDS
    is_trusted: bool = False
    """Whether what the server says of its tools, in annotations and tags, counts where something is allowed by it."""
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The operator's own tags by tool, prompt or resource; those of `*` are everything's."""

    def __post_init__(self) -> None:
        if not 0 < self.cache_seconds <= CACHE_SECONDS_MAX:
            raise ValueError(f"cache.ttl must be over 0 and at most 86400 seconds, not {self.cache_seconds}")

    def shows(self, tool: str) -> bool:
        """Whether callers may know of this tool at all."""
        if tool in self.hidden or EVERY in self.hidden:
            return False
        return self.only is None or tool in self.only or EVERY in self.only

    @property
    def tags_of_all(self) -> tuple[str, ...]:
        """The tags that everything of the server has, known yet or not."""
        return self.tags.get(EVERY, ())

    @property
    def changes_nothing(self) -> bool:
        """Whether the server's tools are there as it has them, all of them."""
        return self.only is None and not (self.hidden or self.defaults or self.cached)

    def keeps(self, tool: str) -> bool:
        """Whether this tool's results may be given again."""
        return tool in self.cached or EVERY in self.cached


NO_TOOL_RULES = ToolRules()
