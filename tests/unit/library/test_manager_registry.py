"""A registry: names, calls that block and calls that are awaited, and readers beside writers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.library.errors import ToolExecutionError, ToolNotFoundError, ToolRegistryError, WrongThreadError
from isthmus.library.manager import ToolRegistry
from isthmus.library.provider_formats import ToolDef

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def tool(name: str, func: Any = lambda **_: "done", **fields: Any) -> ToolDef:
    return ToolDef(name, f"does {name}", SCHEMA, func, **fields)


def test_tools_are_listed_in_the_order_in_which_they_came() -> None:
    registry = ToolRegistry([tool("b")])
    registry.register(tool("a"))
    assert registry.names == ["b", "a"]
    assert [found.name for found in registry] == ["b", "a"]
    assert "a" in registry
    assert len(registry) == 2
    assert registry.get("c") is None


def test_a_name_that_is_taken_is_refused_and_nothing_of_the_batch_is_registered() -> None:
    registry = ToolRegistry([tool("a")])
    with pytest.raises(ToolRegistryError, match="'a' is taken"):
        registry.register_many([tool("b"), tool("a")])
    assert registry.names == ["a"]


def test_an_unregistered_tool_is_not_found() -> None:
    registry = ToolRegistry([tool("a"), tool("b")])
    registry.unregister("a")
    assert registry.names == ["b"]
    with pytest.raises(ToolNotFoundError):
        registry.unregister("a")


def test_the_blocking_call_hands_the_arguments_over_by_name() -> None:
    registry = ToolRegistry([tool("add", lambda a, b: a + b)])
    assert registry.call_tool("add", {"a": 1, "b": 2}) == 3


async def test_the_awaited_call_prefers_the_async_function() -> None:
    async def awaited(**_: Any) -> str:
        return "awaited"

    registry = ToolRegistry([tool("both", async_func=awaited), tool("plain"), tool("only", awaited)])
    assert await registry.acall_tool("both") == "awaited"
    assert await registry.acall_tool("plain", {}) == "done"
    assert await registry.acall_tool("only") == "awaited"


async def test_text_is_cut_to_the_tools_limit_and_other_values_are_not() -> None:
    registry = ToolRegistry([tool("long", lambda: "x" * 9, max_result_chars=4), tool("rows", lambda: list(range(9)))])
    assert registry.call_tool("long") == "xxxx\n[5 of 9 characters left out]"
    assert await registry.acall_tool("long") == "xxxx\n[5 of 9 characters left out]"
    assert registry.call_tool("rows") == list(range(9))


async def test_an_unknown_name_is_answered_with_similar_names() -> None:
    registry = ToolRegistry([tool("mcp_files_read")])
    with pytest.raises(ToolNotFoundError, match="Did you mean mcp_files_read"):
        registry.call_tool("mcp_file_read")
    with pytest.raises(ToolNotFoundError):
        await registry.acall_tool("mcp_file_read")


async def test_every_exception_of_a_tool_is_a_tool_error_with_its_name() -> None:
    registry = ToolRegistry([tool("div", lambda a: 1 / a)])
    with pytest.raises(ToolExecutionError, match="div failed: ZeroDivisionError") as caught:
        registry.call_tool("div", {"a": 0})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ToolExecutionError, match="div failed: TypeError"):
        await registry.acall_tool("div", {"b": 0})


async def test_errors_of_the_library_are_raised_as_they_are() -> None:
    def refuse() -> str:
        raise WrongThreadError("not here")

    registry = ToolRegistry([tool("loop", refuse)])
    with pytest.raises(WrongThreadError):
        registry.call_tool("loop")
    with pytest.raises(WrongThreadError):
        await registry.acall_tool("loop")


class Promise:
    """Something else that can be awaited."""

    def __await__(self) -> Iterator[None]:
        yield


def test_an_async_function_cannot_be_called_without_awaiting_and_says_so() -> None:
    async def awaited() -> str:
        return "never"

    for func in (awaited, Promise):
        with pytest.raises(ToolExecutionError, match="await `acall_tool`"):
            ToolRegistry([tool("only", func)]).call_tool("only")


def test_the_origin_of_a_tool_is_looked_up() -> None:
    registry = ToolRegistry([tool("mcp_a_b_c", origin=("a_b", "c")), tool("own")])
    assert registry.original_of("mcp_a_b_c") == ("a_b", "c")
    with pytest.raises(ToolNotFoundError, match="not as a tool of an MCP server"):
        registry.original_of("own")


def test_all_tools_have_a_form_for_each_provider() -> None:
    registry = ToolRegistry([tool("a"), tool("b")])
    assert [form["name"] for form in registry.to_openai_schema()] == ["a", "b"]
    assert [form["function"]["name"] for form in registry.to_openai_schema("chat_completions")] == ["a", "b"]
    assert [form["name"] for form in registry.to_anthropic_schema()] == ["a", "b"]
    (together,) = registry.to_gemini_schema()
    assert [form["name"] for form in together["functionDeclarations"]] == ["a", "b"]
    assert ToolRegistry().to_gemini_schema() == []


def test_an_exchange_removes_only_its_own_tools() -> None:
    mine, yours = tool("a"), tool("a")
    registry = ToolRegistry([yours])
    assert registry.exchange([], [mine, tool("b")]) == [mine]
    assert registry.exchange([mine], []) == []
    assert registry.get("a") is yours
    assert registry.names == ["a", "b"]


def test_a_reader_sees_a_whole_list_while_tools_come_and_go() -> None:
    pairs = [tool("left"), tool("right")]
    registry = ToolRegistry()
    is_done = threading.Event()

    def change() -> None:
        for _ in range(500):
            registry.exchange([], pairs)
            registry.exchange(pairs, [])
        is_done.set()

    writer = threading.Thread(target=change)
    writer.start()
    seen = set()
    while not is_done.is_set():
        seen.add(tuple(registry.names))
    writer.join()
    assert seen <= {(), ("left", "right")}


@pytest.mark.parametrize("odd", [["x"], "x", 7, {1: 2}])
async def test_arguments_have_names(odd: Any) -> None:
    registry = ToolRegistry([ToolDef("say", "", {}, lambda **given: str(given))])
    with pytest.raises(ToolExecutionError, match="say must be a dictionary with string keys"):
        registry.call_tool("say", odd)
    with pytest.raises(ToolExecutionError, match="say must be a dictionary with string keys"):
        await registry.acall_tool("say", odd)
    assert registry.call_tool("say") == registry.call_tool("say", {}) == "{}"
