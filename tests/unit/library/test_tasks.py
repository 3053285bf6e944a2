"""A task has the tools that were named and may be used, and says which were left out."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.library import running
from isthmus.library.contracts import AgentConfig, SessionContext, TaskRequest
from isthmus.library.errors import AmbiguousToolError, ServiceClosedError, ToolNotFoundError, UnresolvedToolsError
from isthmus.library.tasks import TaskEngine, create_task_request
from tests.unit.library.catalogs import Shelf, user

SHELF = Shelf("builtin.echo", "files.read", "files.search", "web.search", "web.weather")
ENGINE = TaskEngine(SHELF)


def names(request: TaskRequest) -> list[str]:
    return [tool.name for tool in request.available_tools]


async def test_only_the_names_of_tools_are_needed() -> None:
    request = await ENGINE.create_task_request(tool_names=["weather", "echo"])
    assert names(request) == ["web.weather", "builtin.echo"]
    assert request.task_id.startswith("task_")
    assert (request.task_type, request.metadata, request.agent_config) == ("chat", {}, None)


@pytest.mark.parametrize(("defaults", "found"), [("echo", ["builtin.echo"]), (None, []), ([], [])])
async def test_an_agent_may_always_have_one_tool_or_none(defaults: Any, found: list[str]) -> None:
    request = await ENGINE.create_task_request(tool_names=[], agent_config=AgentConfig(available_tools=defaults))
    assert names(request) == found


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"available_tools": []}, "the tools of a task are named by tool_names"),
        ({"agent_config": {"available_tools": ["echo"]}}, "agent_config must be an AgentConfig, not dict"),
        ({"user_context": "ada"}, "user_context must be a UserContext, not str"),
        ({"colour": "blue"}, "unexpected keyword argument 'colour'"),
    ],
)
async def test_what_a_task_has_not_is_told(said: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        await ENGINE.create_task_request(tool_names=["echo"], **said)


async def test_a_denied_tool_is_dropped_whether_its_server_came_or_not() -> None:
    engine = TaskEngine(Shelf("builtin.echo", missing={"vault": "connection refused"}))
    request = await engine.create_task_request(tool_names=["echo", "vault.open"], user_context=user("builtin.*"))
    assert (names(request), request.metadata) == (["builtin.echo"], {"denied_tools": ["vault.open"]})


async def test_names_that_no_tool_has_are_reported_to_callers_that_ask_for_it() -> None:
    shelf = Shelf("builtin.echo", "files.search", "web.search", missing={"vault": "connection refused"})
    asked: dict[str, Any] = {"tool_names": ["echo", "files.search", "wether", "vault.open"], "report_missing": True}
    request = await create_task_request(tool_service=shelf, user_context=user("builtin.*", "vault.*"), **asked)
    assert names(request) == ["builtin.echo"]
    assert request.metadata == {"denied_tools": ["files.search"], "missing_tools": ["wether", "vault.open"]}
    with pytest.raises(UnresolvedToolsError, match=r"files\.search, web\.search"):
        await TaskEngine(shelf).create_task_request(tool_names=["search", "wether"], report_missing=True)


async def test_whatever_else_is_said_is_in_the_task() -> None:
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


async def test_what_is_none_is_as_if_it_was_not_said() -> None:
    request = await ENGINE.create_task_request(tool_names=[], task_id=None, messages=None, metadata=None)
    assert (request.task_id[:5], request.messages, request.metadata) == ("task_", [], {})


async def test_what_the_user_may_not_use_is_left_out_and_named() -> None:
    metadata = {"key": 1}
    request = await ENGINE.create_task_request(
        tool_names=["web.weather", "files.read", "weather"], user_context=user("files.*"), metadata=metadata
    )
    assert names(request) == ["files.read"]
    assert request.metadata == {"key": 1, "denied_tools": ["web.weather"]}
    assert metadata == {"key": 1}


async def test_a_name_of_several_tools_none_of_which_is_the_users_is_left_out_and_named_as_it_was_given() -> None:
    request = await ENGINE.create_task_request(tool_names=["echo", "search"], user_context=user("builtin"))
    assert (names(request), request.metadata) == (["builtin.echo"], {"denied_tools": ["search"]})


@pytest.mark.parametrize("wrong", [["wether"], ["wether", "search"]])
async def test_wrong_names_are_told_together(wrong: list[str]) -> None:
    with pytest.raises(UnresolvedToolsError) as unresolved:
        await ENGINE.create_task_request(tool_names=["echo", *wrong], user_context=user("files.*", "web.*"))
    kinds = {"wether": ToolNotFoundError, "search": AmbiguousToolError}
    assert {name: type(problem) for name, problem in unresolved.value.problems.items()} == {
        name: kinds[name] for name in wrong
    }


async def test_the_tools_of_the_agent_come_after_and_are_not_doubled() -> None:
    agent = AgentConfig(available_tools=["echo", "files.read"])
    request = await TaskEngine(SHELF, agent).create_task_request(tool_names=["read", "weather"])
    assert names(request) == ["files.read", "web.weather", "builtin.echo"]
    assert request.agent_config is agent


async def test_a_task_may_bring_its_own_agent() -> None:
    own = AgentConfig(available_tools=["web.search"])
    engine = TaskEngine(SHELF, AgentConfig(available_tools=["echo"]))
    assert names(await engine.create_task_request(tool_names=[], agent_config=own)) == ["web.search"]


# -- without an engine ---------------------------------------------------------------------------------------------


async def test_a_service_is_enough() -> None:
    request = await create_task_request(tool_names=["echo"], tool_service=SHELF, description="Say it")
    assert (names(request), request.description) == (["builtin.echo"], "Say it")


async def test_the_only_service_of_the_process_need_not_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_services", {})
    with pytest.raises(ServiceClosedError, match="tool_service="):
        await create_task_request(tool_names=["echo"])
    running.begun(SHELF)
    assert names(await create_task_request(tool_names=["echo"])) == ["builtin.echo"]
