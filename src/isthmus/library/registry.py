"""The tools of one agent under the names that its language model knows: its own functions, and those of MCP servers.

Any thread may read it while another one changes it: MCP tools come and go by themselves (`library.manager`). What is
called is looked up by name; no name is ever taken apart. A tool whose name has hyphens is found by underscores, too.
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
from isthmus.library.forms import OpenAIMode, ToolDef

SUGGESTIONS_MAX = 3

_registries: WeakSet[ToolRegistry] = WeakSet()
"""All of this process, for the day on which it forks."""


class ToolRegistry:
    """Tools by name, in the order in which they were registered."""

    def __init__(self, tools: Iterable[ToolDef] = ()) -> None:
        self._lock = threading.Lock()
        _registries.add(self)
        # Never changed, only replaced: who reads needs no lock, and no list changes under a loop over it.
        self._tools: Mapping[str, ToolDef] = {}
        self.register_many(tools)

    def forked(self) -> None:
        """In a forked child: the lock may be held by a thread that did not come along."""
        self._lock = threading.Lock()

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Of all tools."""
        return list(self._tools)

    def get(self, name: str) -> ToolDef | None:
        """The tool of this name, if there is one; underscores may stand for the hyphens of its name."""
        tools = self._tools
        return tools.get(name) or tools.get(llm_aliases(tools).get(name, ""))

    def original_of(self, name: str) -> tuple[str, str]:
        """The server of a tool, and what that calls it.

        Raises:
            ToolNotFoundError: there is no such tool, or it is of no server.
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
        """Add all of them, or none.

        Raises:
            ToolRegistryError: a name is taken, or two of them have the same.
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
        """Take a tool out.

        Raises:
            ToolNotFoundError: there is none of this name.
        """
        with self._lock:
            gone = self._find(name)
            self._tools = {known: tool for known, tool in self._tools.items() if tool is not gone}

    def exchange(self, gone: Iterable[ToolDef], come: Iterable[ToolDef]) -> list[ToolDef]:
        """Take tools out and put others in, at once for whoever reads; return those whose names others have."""
        with self._lock:
            leaving = {id(tool) for tool in gone}
            known = {name: tool for name, tool in self._tools.items() if id(tool) not in leaving}
            refused = [tool for tool in come if known.setdefault(tool.name, tool) is not tool]
            self._tools = known
        return refused

    # -- calling -------------------------------------------------------------------------------------------------------

    def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool and wait for its result; a text is cut to the tool's `max_result_chars`.

        Raises:
            ToolNotFoundError: there is no such tool.
            ToolExecutionError: it failed.
            WrongThreadError: this is the loop that would have to answer; `acall_tool` can be awaited there.
        """
        tool = self._find(name)
        try:
            return _finished(tool, _not_awaitable(tool, tool.func(**_given(tool, arguments))))
        except LibraryError:
            raise
        except Exception as error:
            raise _failure(tool, error) from error

    async def acall_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """The same without standing still, if the tool has an `async_func`; one without is called where this is."""
        tool = self._find(name)
        try:
            value = (tool.async_func or tool.func)(**_given(tool, arguments))
            return _finished(tool, await value if inspect.isawaitable(value) else value)
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
        """All tools, as the `tools` of OpenAI's Responses or, with `mode="chat_completions"`, Chat Completions."""
        return [tool.to_openai_schema(mode) for tool in self]

    def to_anthropic_schema(self) -> list[dict[str, Any]]:
        """All tools, as the `tools` of Anthropic's Messages."""
        return [tool.to_anthropic_schema() for tool in self]

    def to_gemini_schema(self) -> list[dict[str, Any]]:
        """All tools, as the `tools` of Gemini."""
        declarations = [tool.to_gemini_schema() for tool in self]
        return [{"functionDeclarations": declarations}] if declarations else []


def _given(tool: ToolDef, arguments: object) -> dict[str, Any]:
    given = arguments or {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ToolExecutionError(tool.name, f"{tool.name} takes its arguments as a dictionary by their names.")
    return dict(given)


def _not_awaitable(tool: ToolDef, value: Any) -> Any:
    if not inspect.isawaitable(value):
        return value
    if inspect.iscoroutine(value):
        value.close()  # nobody will await it, and Python would complain about that
    raise ToolExecutionError(tool.name, f"{tool.name} is an async function: await `acall_tool` instead.")


def _finished(tool: ToolDef, value: Any) -> Any:
    return tool.truncate_result(value) if isinstance(value, str) else value


def _failure(tool: ToolDef, error: Exception) -> ToolExecutionError:
    return ToolExecutionError(tool.name, f"{tool.name} failed: {type(error).__name__}: {error}")


def _forked() -> None:
    for registry in _registries:
        registry.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
