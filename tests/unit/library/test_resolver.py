"""Lists of names become lists of tools, or one error that says everything that is wrong."""

from __future__ import annotations

import os
from typing import Any

import pytest

from isthmus.library import resolver
from isthmus.library.errors import (
    AmbiguousToolError,
    ServiceClosedError,
    ToolDeniedError,
    ToolNotFoundError,
    UnresolvedToolsError,
)
from isthmus.library.public_types import AgentConfig, SessionContext, TaskRequest, UniversalTool
from isthmus.library.resolver import (
    TaskEngine,
    ToolResolver,
    create_task_request,
    default_service,
    register_service,
    unregister_service,
)
from tests.unit.library.catalogs import CatalogService, user

RESOLVER = ToolResolver(CatalogService("builtin.echo", "files.read", "files.search", "web.search", "web.weather"))


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
async def test_values_that_are_not_names_are_reported_by_their_type(odd: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a (string|list of names), not (NoneType|int|list|UniversalTool)$"):
        await RESOLVER.resolve_tools(odd)


@pytest.mark.parametrize("odd", ["ada", {"permissions": ["*"]}])
async def test_a_value_that_is_not_a_user_is_reported_by_its_type(odd: Any) -> None:
    with pytest.raises(TypeError, match=r"user_context must be a UserContext, not (str|dict)$"):
        await RESOLVER.resolve_tools(["echo"], odd)


async def test_several_wrong_names_are_reported_at_once() -> None:
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
    three = ToolResolver(CatalogService("files.search", "web.search", "secret.search"))
    with pytest.raises(AmbiguousToolError) as several:
        await three.resolve_tool("search", user("files", "web"))
    assert (several.value.candidates, "secret" in str(several.value)) == (("files.search", "web.search"), False)


NONE = "no initialized ToolService: initialize one"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have begun is not seen."""
    monkeypatch.setattr(resolver, "_services", {})


def test_the_only_service_is_found_while_it_is_there() -> None:
    with pytest.raises(ServiceClosedError, match=NONE):
        default_service()
    service = CatalogService("builtin.echo")
    register_service(service)
    assert default_service() is service
    unregister_service(service)
    unregister_service(service)
    with pytest.raises(ServiceClosedError, match=NONE):
        default_service()


def test_of_several_one_has_to_be_named() -> None:
    first, second = CatalogService("builtin.echo"), CatalogService("builtin.echo")
    register_service(first)
    register_service(second)
    with pytest.raises(ServiceClosedError, match="2 services: pass the one to use"):
        default_service()
    unregister_service(first)
    assert default_service() is second


def test_a_service_without_references_does_not_count() -> None:
    register_service(CatalogService("builtin.echo"))
    with pytest.raises(ServiceClosedError, match=NONE):
        default_service()


def test_the_parents_service_is_not_that_of_a_forked_child(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = CatalogService("builtin.echo")
    register_service(parents)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ServiceClosedError, match=NONE):
        default_service()


CATALOG = CatalogService("builtin.echo", "files.read", "files.search", "web.search", "web.weather")
ENGINE = TaskEngine(CATALOG)


def names(request: TaskRequest) -> list[str]:
    return [tool.name for tool in request.available_tools]


async def test_only_the_names_of_tools_are_needed() -> None:
    request = await ENGINE.create_task_request(tool_names=["weather", "echo"])
    assert names(request) == ["web.weather", "builtin.echo"]
    assert request.task_id.startswith("task_")
    assert (request.task_type, request.metadata, request.agent_config) == ("chat", {}, None)


@pytest.mark.parametrize(("defaults", "found"), [("echo", ["builtin.echo"]), (None, []), ([], [])])
async def test_default_tools_of_an_agent_are_a_name_or_none_or_an_empty_list(defaults: Any, found: list[str]) -> None:
    request = await ENGINE.create_task_request(tool_names=[], agent_config=AgentConfig(available_tools=defaults))
    assert names(request) == found


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"available_tools": []}, "give the names of tools as tool_names"),
        ({"agent_config": {"available_tools": ["echo"]}}, "agent_config must be an AgentConfig, not dict"),
        ({"user_context": "ada"}, "user_context must be a UserContext, not str"),
        ({"colour": "blue"}, "unexpected keyword argument 'colour'"),
    ],
)
async def test_a_missing_field_of_a_task_is_reported(said: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        await ENGINE.create_task_request(tool_names=["echo"], **said)


async def test_a_denied_tool_is_dropped_whether_its_server_came_or_not() -> None:
    engine = TaskEngine(CatalogService("builtin.echo", missing={"vault": "connection refused"}))
    request = await engine.create_task_request(tool_names=["echo", "vault.open"], user_context=user("builtin.*"))
    assert (names(request), request.metadata) == (["builtin.echo"], {"denied_tools": ["vault.open"]})


async def test_names_that_no_tool_has_are_reported_to_callers_that_ask_for_it() -> None:
    tool_catalog = CatalogService("builtin.echo", "files.search", "web.search", missing={"vault": "connection refused"})
    asked: dict[str, Any] = {"tool_names": ["echo", "files.search", "wether", "vault.open"], "report_missing": True}
    request = await create_task_request(tool_service=tool_catalog, user_context=user("builtin.*", "vault.*"), **asked)
    assert names(request) == ["builtin.echo"]
    assert request.metadata == {"denied_tools": ["files.search"], "missing_tools": ["wether", "vault.open"]}
    with pytest.raises(UnresolvedToolsError, match=r"files\.search, web\.search"):
        await TaskEngine(tool_catalog).create_task_request(tool_names=["search", "wether"], report_missing=True)


async def test_all_other_arguments_are_in_the_task() -> None:
    said: dict[str, Any] = {
        "task_id": "task_123",
        "task_type": "search",
        "description": "Help me",
        "messages": ["hello"],
        "session_id": "s1",
        "session_context": SessionContext("s1"),
        "metadata": {"key": 1},
        "agent_id": "a1",
    }
    request = await ENGINE.create_task_request(tool_names=[], **said)
    assert {key: getattr(request, key) for key in said} == said


async def test_arguments_that_are_none_count_as_omitted() -> None:
    request = await ENGINE.create_task_request(tool_names=[], task_id=None, messages=None, metadata=None)
    assert (request.task_id[:5], request.messages, request.metadata) == ("task_", [], {})


async def test_forbidden_tools_are_left_out_and_named() -> None:
    metadata = {"key": 1}
    request = await ENGINE.create_task_request(
        tool_names=["web.weather", "files.read", "weather"], user_context=user("files.*"), metadata=metadata
    )
    assert names(request) == ["files.read"]
    assert request.metadata == {"key": 1, "denied_tools": ["web.weather"]}
    assert metadata == {"key": 1}


async def test_an_ambiguous_name_without_a_permitted_tool_is_reported_as_denied() -> None:
    request = await ENGINE.create_task_request(tool_names=["echo", "search"], user_context=user("builtin"))
    assert (names(request), request.metadata) == (["builtin.echo"], {"denied_tools": ["search"]})


@pytest.mark.parametrize("wrong", [["wether"], ["wether", "search"]])
async def test_wrong_names_are_reported_together(wrong: list[str]) -> None:
    with pytest.raises(UnresolvedToolsError) as unresolved:
        await ENGINE.create_task_request(tool_names=["echo", *wrong], user_context=user("files.*", "web.*"))
    kinds = {"wether": ToolNotFoundError, "search": AmbiguousToolError}
    assert {name: type(problem) for name, problem in unresolved.value.problems.items()} == {
        name: kinds[name] for name in wrong
    }


async def test_the_tools_of_the_agent_come_after_and_are_not_doubled() -> None:
    agent = AgentConfig(available_tools=["echo", "files.read"])
    request = await TaskEngine(CATALOG, agent).create_task_request(tool_names=["read", "weather"])
    assert names(request) == ["files.read", "web.weather", "builtin.echo"]
    assert request.agent_config is agent


async def test_a_task_may_bring_its_own_agent() -> None:
    own = AgentConfig(available_tools=["web.search"])
    engine = TaskEngine(CATALOG, AgentConfig(available_tools=["echo"]))
    assert names(await engine.create_task_request(tool_names=[], agent_config=own)) == ["web.search"]


# -- without an engine ---------------------------------------------------------------------------------------------


async def test_a_service_is_enough() -> None:
    request = await create_task_request(tool_names=["echo"], tool_service=CATALOG, description="Say it")
    assert (names(request), request.description) == (["builtin.echo"], "Say it")


async def test_the_only_service_of_the_process_need_not_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "_services", {})
    with pytest.raises(ServiceClosedError, match="tool_service="):
        await create_task_request(tool_names=["echo"])
    resolver.register_service(CATALOG)
    assert names(await create_task_request(tool_names=["echo"])) == ["builtin.echo"]
