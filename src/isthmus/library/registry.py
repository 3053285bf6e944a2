"""`ToolRegistry`: the tools of one agent under their names for language models, own functions and MCP tools alike.

Any thread may read it while another one changes it: MCP tools come and go (`library.manager`). Tools are looked up by
whole names. Underscores may replace the hyphens of a name.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any
from weakref import WeakSet

from isthmus.core.catalog.names import llm_aliases
from isthmus.library.errors import LibraryError, ToolExecutionError, ToolNotFoundError, ToolRegistryError
from isthmus.library.function_schemas import OpenAIMode, ToolDef

SUGGESTIONS_MAX = 3

_registries: WeakSet[ToolRegistry] = WeakSet()
"""All registries of the process, to reset their locks after a fork."""


class ToolRegistry:
    """Tools by name, in order of registration."""

    def __init__(self, tools: Iterable[ToolDef] = ()) -> None:
        self._lock = threading.Lock()
        _registries.add(self)
        # Replaced and never changed, so readers need no lock and can iterate safely.
        self._tools: Mapping[str, ToolDef] = {}
        self.register_many(tools)

    def reset_lock(self) -> None:
        """In a forked child: a lost thread may hold the lock."""
        self._lock = threading.Lock()

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of all tools."""
        return list(self._tools)

    def get(self, name: str) -> ToolDef | None:
        """The tool with this name, or None; underscores may replace hyphens."""
        tools = self._tools
        return tools.get(name) or tools.get(llm_aliases(tools).get(name, ""))

    def original_of(self, name: str) -> tuple[str, str]:
        """The server of a tool, and the server's name for it.

        Raises:
            ToolNotFoundError: there is no such tool, or it has no server.
        """
        origin = self._find(name).origin
        if origin is None:
            raise ToolNotFoundError(name, hint="It is registered, but not as a tool of an MCP server.")
        return origin

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[ToolDef]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    # -- registering ---------------------------------------------------------------------------------------------------

    def register(self, tool: ToolDef) -> None:
        """Add a tool.

        Raises:
            ToolRegistryError: its name is taken.
        """
        self.register_many([tool])

    def register_many(self, tools: Iterable[ToolDef]) -> None:
        """Add all tools, or none of them.

        Raises:
            ToolRegistryError: a name is taken, or two tools have the same.
        """
        added = list(tools)
        with self._lock:
            known = dict(self._tools)
            for tool in added:
                if tool.name in known:
                    raise ToolRegistryError(f"The name {tool.name!r} is taken: register the tool under another one.")
                known[tool.name] = tool
            self._tools = known

    def unregister(self, name: str) -> None:
        """Remove a tool.

        Raises:
            ToolNotFoundError: no tool has this name.
        """
        with self._lock:
            gone = self._find(name)
            self._tools = {known: tool for known, tool in self._tools.items() if tool is not gone}

    def exchange(self, removed: Iterable[ToolDef], added: Iterable[ToolDef]) -> list[ToolDef]:
        """Remove and add tools in one step; return the added ones whose names are taken."""
        with self._lock:
            ids = {id(tool) for tool in removed}
            known = {name: tool for name, tool in self._tools.items() if id(tool) not in ids}
            refused = [tool for tool in added if known.setdefault(tool.name, tool) is not tool]
            self._tools = known
        return refused

    # -- calling -------------------------------------------------------------------------------------------------------

    def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool and block; a text result is cut to the tool's `max_result_chars`.

        Raises:
            ToolNotFoundError: there is no such tool.
            ToolExecutionError: it failed.
            WrongThreadError: the caller is on the hub's own loop; await `acall_tool` there.
        """
        tool = self._find(name)
        try:
            value = tool.func(**_arguments(tool, arguments))
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()  # else Python warns that it was never awaited
                raise ToolExecutionError(tool.name, f"{tool.name} is an async function: await `acall_tool` instead.")
            return _cut(tool, value)
        except LibraryError:
            raise
        except Exception as error:
            raise _failure(tool, error) from error

    async def acall_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Await a tool's `async_func`; a tool without one blocks."""
        tool = self._find(name)
        try:
            value = (tool.async_func or tool.func)(**_arguments(tool, arguments))
            return _cut(tool, await value if inspect.isawaitable(value) else value)
        except LibraryError:
            raise
        except Exception as error:
            raise _failure(tool, error) from error

    def _find(self, name: str) -> ToolDef:
        tool = self.get(name)
        if tool is None:
            raise ToolNotFoundError(name, get_close_matches(str(name), self._tools, SUGGESTIONS_MAX))
        return tool

    # -- for language models -------------------------------------------------------------------------------------------

    def to_openai_schema(self, mode: OpenAIMode = "responses") -> list[dict[str, Any]]:
        """All tools for OpenAI's Responses API, or, with `mode="chat_completions"`, for Chat Completions."""
        return [tool.to_openai_schema(mode) for tool in self]

    def to_anthropic_schema(self) -> list[dict[str, Any]]:
        """All tools for Anthropic's Messages API."""
        return [tool.to_anthropic_schema() for tool in self]

    def to_gemini_schema(self) -> list[dict[str, Any]]:
        """All tools for Gemini."""
        declarations = [tool.to_gemini_schema() for tool in self]
        return [{"functionDeclarations": declarations}] if declarations else []


def _arguments(tool: ToolDef, arguments: object) -> dict[str, Any]:
    given = arguments or {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ToolExecutionError(tool.name, f"The arguments of {tool.name} must be a dictionary with string keys.")
    return dict(given)


def _cut(tool: ToolDef, value: Any) -> Any:
    return tool.truncate_result(value) if isinstance(value, str) else value


def _failure(tool: ToolDef, error: Exception) -> ToolExecutionError:
    return ToolExecutionError(tool.name, f"{tool.name} failed: {type(error).__name__}: {error}")


def _after_fork() -> None:
    for registry in _registries:
        registry.reset_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
