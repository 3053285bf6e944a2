"""From the names that people type to tools: all forms of names, permissions, and what is wrong with the rest.

What a name means is the catalog's to say (`library.catalog`); here whole lists of names are looked up in one catalog,
so that all of them are of the same moment. Called by programs and by the task engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from isthmus.library.catalog import Catalog, Entry, check_name
from isthmus.library.contracts import UniversalTool, UserContext
from isthmus.library.errors import ToolDeniedError, ToolError, UnresolvedToolsError
from isthmus.library.running import HasCatalog


@dataclass(slots=True)
class Resolution:
    """What became of a list of names: each tool once, in the order of the list, and each name that is none."""

    found: dict[str, Entry] = field(default_factory=dict)
    """By full name."""
    denied: dict[str, ToolDeniedError] = field(default_factory=dict)
    """By the name that was given, as are the others."""
    unknown: dict[str, ToolError] = field(default_factory=dict)
    """Of no tool, or of several."""

    @property
    def tools(self) -> list[UniversalTool]:
        """The tools that were found, as frameworks are shown them."""
        return [entry.tool for entry in self.found.values()]

    def check(self) -> None:
        """Raise what is wrong with one name, or an `UnresolvedToolsError` for several."""
        problems: dict[str, ToolError] = {**self.unknown, **self.denied}
        if len(problems) > 1:
            raise UnresolvedToolsError(problems)
        for problem in problems.values():
            raise problem


def resolve_all(catalog: Catalog, names: Iterable[str], user: UserContext | None) -> Resolution:
    """Look up every name; what is no tool's is kept, so that whoever asked can say everything that is wrong at once."""
    resolution = Resolution()
    for name in listed(names):
        try:
            entry = catalog.resolve_for(user, name)
        except ToolDeniedError as error:
            resolution.denied[name] = error
        except ToolError as error:
            resolution.unknown[name] = error
        else:
            resolution.found[entry.full_name] = entry
    return resolution


def listed(names: Iterable[str]) -> list[str]:
    """Names as a list; one by itself is a list of one.

    Raises:
        TypeError: they are something else, or one of them is no text.
    """
    if not isinstance(names, Iterable):
        raise TypeError(f"tool_names must be a list of names, not {type(names).__name__}")
    found = [names] if isinstance(names, str) else list(names)
    for name in found:
        check_name(name)
    return found


class ToolResolver:
    """Finds the tools of one service by name."""

    def __init__(self, tool_service: HasCatalog) -> None:
        self._service = tool_service

    async def resolve_tools(
        self, tool_names: Iterable[str], user_context: UserContext | None = None
    ) -> list[UniversalTool]:
        """The tools that are meant, in the order of their names; what is named twice, in whatever form, is there once.

        Raises:
            ToolNotFoundError: no tool has a name; tools that look like it are suggested.
            AmbiguousToolError: several tools have it.
            ToolDeniedError: the user may not use it.
            UnresolvedToolsError: several names are wrong, each in one of these ways.
        """
        resolution = resolve_all(await self._service.catalog(), tool_names, user_context)
        resolution.check()
        return resolution.tools

    async def resolve_tool(self, tool_name: str, user_context: UserContext | None = None) -> UniversalTool:
        """The one tool that is meant; raises the same."""
        (tool,) = await self.resolve_tools([tool_name], user_context)
        return tool
