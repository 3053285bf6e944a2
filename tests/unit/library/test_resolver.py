"""Lists of names become lists of tools, or one error that says everything that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.library.contracts import UniversalTool
from isthmus.library.errors import AmbiguousToolError, ToolDeniedError, ToolNotFoundError, UnresolvedToolsError
from isthmus.library.resolver import ToolResolver
from tests.unit.library.catalogs import Shelf, user

RESOLVER = ToolResolver(Shelf("builtin.echo", "files.read", "files.search", "web.search", "web.weather"))


async def test_tools_come_in_the_order_of_their_names_each_once() -> None:
    tools = await RESOLVER.resolve_tools(["weather", "echo", "files.search", "web.weather", "mcp_web_weather"])
    assert [tool.name for tool in tools] == ["web.weather", "builtin.echo", "files.search"]


async def test_no_names_are_no_tools() -> None:
    assert await RESOLVER.resolve_tools([]) == []


async def test_one_text_is_one_name_and_not_its_letters() -> None:
    assert [tool.name for tool in await RESOLVER.resolve_tools("echo")] == ["builtin.echo"]


async def test_one_tool_is_resolved_by_itself() -> None:
    assert (await RESOLVER.resolve_tool("mcp.weather")).name == "web.weather"


async def test_one_wrong_name_is_its_own_error() -> None:
    with pytest.raises(ToolNotFoundError, match=r"no tool 'wether'. Did you mean web.weather\?"):
        await RESOLVER.resolve_tools(["echo", "wether"])
    with pytest.raises(AmbiguousToolError, match=r"files.search, web.search"):
        await RESOLVER.resolve_tools(["search", "search"])
    with pytest.raises(ToolDeniedError, match=r"user 'ada' may not use web.weather"):
        await RESOLVER.resolve_tools(["weather"], user("files.*"))
    with pytest.raises(ToolDeniedError):
        await RESOLVER.resolve_tool("weather", user())


@pytest.mark.parametrize("odd", [None, 7, [7], [None], [["echo"]], [UniversalTool("builtin.echo")]])
async def test_what_are_no_names_are_told_by_their_type(odd: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a (text|list of names), not (NoneType|int|list|UniversalTool)$"):
        await RESOLVER.resolve_tools(odd)


@pytest.mark.parametrize("odd", ["ada", {"permissions": ["*"]}])
async def test_who_is_no_user_is_told_by_their_type(odd: Any) -> None:
    with pytest.raises(TypeError, match=r"user_context must be a UserContext, not (str|dict)$"):
        await RESOLVER.resolve_tools(["echo"], odd)


async def test_several_wrong_names_are_told_at_once() -> None:
    names = ["echo", "nothing", "search", "web.weather", "files.read"]
    with pytest.raises(UnresolvedToolsError) as wrong:
        await RESOLVER.resolve_tools(names, user("files.*", "web.search"))
    assert {name: type(problem) for name, problem in wrong.value.problems.items()} == {
        "nothing": ToolNotFoundError,
        "search": AmbiguousToolError,
        "echo": ToolDeniedError,
        "web.weather": ToolDeniedError,
    }
    assert "no tool 'nothing'" in str(wrong.value)
    assert "may not use web.weather" in str(wrong.value)
    assert str(wrong.value).splitlines() == [str(problem) for problem in wrong.value.problems.values()]


async def test_of_several_tools_of_a_name_a_user_has_those_that_permissions_cover() -> None:
    assert (await RESOLVER.resolve_tool("search", user("files.*"))).name == "files.search"
    assert (await RESOLVER.resolve_tool("mcp.search", user("*", denied=["files.search"]))).name == "web.search"
    with pytest.raises(ToolDeniedError) as denied:
        await RESOLVER.resolve_tool("search", user("builtin"))
    assert str(denied.value) == "user 'ada' may not use search: its permissions do not cover it."
    three = ToolResolver(Shelf("files.search", "web.search", "secret.search"))
    with pytest.raises(AmbiguousToolError) as several:
        await three.resolve_tool("search", user("files", "web"))
    assert (several.value.candidates, "secret" in str(several.value)) == (("files.search", "web.search"), False)
