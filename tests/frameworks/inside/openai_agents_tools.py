"""Tools of a hub in the OpenAI Agents SDK: real runs with a scripted model, real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner
from agents.exceptions import UserError
from agents.items import ToolCallOutputItem
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext

from isthmus.integrations.openai_agents import HubServer, hub_tools
from isthmus.library import TaskEngine, ToolDeniedError, ToolNotFoundError, ToolService, ToolStreamChunk, tool
from tests.frameworks.inside.served import (
    ALL_BUT_GO,
    FAILURES,
    SEARCHER,
    SECONDS,
    let_go,
    run_example,
    seconds_for,
    serving,
    wait_for_note,
    wait_until,
)

UNTRACED = RunConfig(tracing_disabled=True, group_id="group 1")


def scripted(*turns: str | tuple[str, Any]) -> ScriptedModel:
    """A model that says these words, or calls these tools."""
    return ScriptedModel(
        [
            [assistant_message(turn) if isinstance(turn, str) else function_call(*turn, call_id=f"call_{number}")]
            for number, turn in enumerate(turns)
        ]
    )


def outputs(result: Any) -> list[ToolCallOutputItem]:
    """What the model was told by tools."""
    return [item for item in result.new_items if isinstance(item, ToolCallOutputItem)]


def offered(model: ScriptedModel) -> list[list[str]]:
    """The tools of which it was told, turn by turn."""
    return [[each.name for each in call.tools] for call in model.calls]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("openai_agents")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ToolService]:
    with serving(folder) as made:
        yield made


async def test_names_that_a_user_typed_become_tools_of_an_agent_that_answers(service: ToolService) -> None:
    task = await TaskEngine(service).create_task_request(tool_names=["echo", "docs.search"])
    model = scripted(("mcp_docs_search", {"query": "canals"}), "it is about canals")
    agent = Agent("librarian", model=model, tools=[*await hub_tools(service, task.available_tools)])
    result = await Runner.run(agent, "please", run_config=UNTRACED)
    (told,) = outputs(result)
    assert result.final_output == "it is about canals"
    assert offered(model)[0] == ["mcp_builtin_echo", "mcp_docs_search"]
    assert "a document about canals" in told.output
    assert told.custom_data["status"] == "success"
    assert told.custom_data["structured_content"]["found"] == "a document about canals"
    assert told.custom_data["structured_content"]["meta"]["isthmus/session"] == "group 1"


async def test_the_hub_is_one_server_with_the_same_tools(service: ToolService) -> None:
    model = scripted(("mcp_docs_search", {"query": "canals"}), "done")
    server = HubServer(service, ["echo", "docs.search"], session_id="mine")
    async with server:
        agent = Agent("librarian", model=model, mcp_servers=[server])
        result = await Runner.run(agent, "please", run_config=UNTRACED)
    (told,) = outputs(result)
    assert offered(model)[0] == ["mcp_builtin_echo", "mcp_docs_search"]
    assert told.custom_data["structured_content"]["meta"]["isthmus/session"] == "mine"
    elsewhere = await server.call_tool("mcp_docs_erase", {"path": "all"})
    assert elsewhere.is_error, "it is no tool of this server"


async def test_a_user_s_server_has_no_prompts(service: ToolService) -> None:
    server = HubServer(service, user_context=SEARCHER)
    assert (await server.list_prompts()).prompts == []
    with pytest.raises(UserError, match="permissions are for tools"):
        await server.get_prompt("docs.any")


async def test_progress_is_told_before_the_end(service: ToolService) -> None:
    seen: list[tuple[str, ToolStreamChunk]] = []

    async def hear(context: ToolContext[Any], chunk: ToolStreamChunk) -> None:
        seen.append((context.tool_call_id, chunk))
        await let_go(service)  # the tool goes on only when its progress was heard

    tools = await hub_tools(service, ["docs.index"], on_event=hear)
    agent = Agent("librarian", model=scripted(("mcp_docs_index", {"steps": 3}), "indexed"), tools=[*tools])
    async with asyncio.timeout(SECONDS):
        result = await Runner.run(agent, "please", run_config=UNTRACED)
    assert outputs(result)[0].output == "3 steps"
    assert [(call, chunk.content["progress"]) for call, chunk in seen] == [("call_0", 1), ("call_0", 2), ("call_0", 3)]
    times = [chunk.timestamp for _, chunk in seen]
    assert times == sorted(set(times))


async def test_a_user_is_given_the_tools_that_permissions_cover(service: ToolService) -> None:
    assert [each.name for each in await hub_tools(service, user_context=SEARCHER)] == ["mcp_docs_search"]
    with pytest.raises(ToolDeniedError, match=r"docs\.erase"):
        await hub_tools(service, ["docs.erase"], SEARCHER)
    with pytest.raises(ToolNotFoundError, match=r"Did you mean docs\.search"):
        await HubServer(service, ["docs.serach"]).connect()


async def test_a_run_is_shown_what_its_own_user_may_use(service: ToolService) -> None:
    tools = await hub_tools(service, ["docs.search", "docs.erase"], lambda context: context.context)
    model = scripted("nothing to do", "nothing to do")
    agent: Agent[Any] = Agent("librarian", model=model, tools=[*tools])
    await Runner.run(agent, "please", context=SEARCHER, run_config=UNTRACED)
    await Runner.run(agent, "please", context=None, run_config=UNTRACED)
    assert offered(model) == [["mcp_docs_search"], ["mcp_docs_search", "mcp_docs_erase"]]


UNREADABLE = ("mcp_docs_search", "{nonsense", "invalid_parameters")


@pytest.mark.parametrize(("name", "arguments", "status"), [*FAILURES, UNREADABLE])
async def test_every_way_to_fail_has_its_own_status(
    service: ToolService, name: str, arguments: Any, status: str
) -> None:
    def passing() -> str:
        """Gone when it is called."""
        return "here"

    tool(passing)
    try:
        names = ["docs.refuse", "docs.search", "docs.hang", "raw.pay", "docs.go", "builtin.passing"]
        tools = await hub_tools(service, names, lambda context: ALL_BUT_GO, timeout=seconds_for(status))
    finally:
        tool.remove("passing")
    for each in tools:
        each.is_enabled = True  # or the model would not be told of those that it may not call
    agent = Agent("librarian", model=scripted((name, arguments), "so be it"), tools=[*tools])
    result = await Runner.run(agent, "please", run_config=UNTRACED)
    (told,) = outputs(result)
    assert told.custom_data["status"] == status
    assert told.output == told.custom_data["error"]["message"]
    assert result.final_output == "so be it"


@pytest.mark.parametrize(("name", "arguments", "status"), FAILURES[:3])
async def test_the_same_by_the_server(service: ToolService, name: str, arguments: Any, status: str) -> None:
    server = HubServer(service, timeout=seconds_for(status))
    agent = Agent("librarian", model=scripted((name, arguments), "so be it"), mcp_servers=[server])
    result = await Runner.run(agent, "please", run_config=UNTRACED)
    assert outputs(result)[0].custom_data["status"] == status


async def test_who_stops_waiting_stops_the_tool(service: ToolService, folder: Path) -> None:
    started = asyncio.Event()
    tools = await hub_tools(service, ["docs.hang"], on_event=lambda context, chunk: started.set())
    agent = Agent("librarian", model=scripted(("mcp_docs_hang", {"token": "run"})), tools=[*tools])
    running = asyncio.create_task(Runner.run(agent, "please", run_config=UNTRACED))
    await asyncio.wait_for(started.wait(), SECONDS)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_for_note(folder, "cancelled run")


async def test_a_tool_that_needs_approval_waits_for_it(service: ToolService, folder: Path) -> None:
    tools = await hub_tools(service, ["docs.erase", "docs.search"], needs_approval=["erase"])
    agent = Agent("librarian", model=scripted(("mcp_docs_erase", {"path": "run"}), "well"), tools=[*tools])
    result = await Runner.run(agent, "please", run_config=UNTRACED)
    (waiting,) = result.interruptions
    assert not (folder / "ledger").exists() or "erased run" not in (folder / "ledger").read_text()
    state = result.to_state()
    state.approve(waiting)
    result = await Runner.run(agent, state, run_config=UNTRACED)
    assert outputs(result)[-1].custom_data["status"] == "success"
    await wait_for_note(folder, "erased run")


async def test_what_a_server_adds_is_offered_at_the_next_turn(service: ToolService) -> None:
    async def is_listed() -> bool:
        return "docs.ran" in await service.list_tools()

    class Patient(HubServer):
        async def list_tools(self, *args: Any, **kwargs: Any) -> Any:
            if len(model.calls) == 1:
                await wait_until(is_listed)
            return await super().list_tools(*args, **kwargs)

    model = scripted(("mcp_docs_grow", {"name": "ran"}), ("mcp_docs_ran", {}), "grown")
    result = await Runner.run(Agent("a", model=model, mcp_servers=[Patient(service)]), "please", run_config=UNTRACED)
    assert ["mcp_docs_ran" in each for each in offered(model)] == [False, True, True]
    assert [item.custom_data["status"] for item in outputs(result)] == ["success", "success"]


async def test_a_picture_is_shown_as_one(service: ToolService) -> None:
    agent = Agent("a", model=scripted(("mcp_docs_picture", {}), "seen"), tools=[*await hub_tools(service, ["picture"])])
    result = await Runner.run(agent, "please", run_config=UNTRACED)
    text, image = outputs(result)[0].raw_item["output"]
    assert (text["text"], image["type"]) == ("a pixel", "input_image")
    assert image["image_url"].startswith("data:image/png;base64,")


async def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    await run_example("openai_agents_agent")
    said = capsys.readouterr().out
    expected = [
        "meanwhile: reading the archive",
        "told:      success {'words': 4",
        "answer:    One word.",
    ]
    assert [words for words in expected if words not in said] == []
