"""Tools of a hub in the OpenAI Agents SDK: real runs with a scripted model, real servers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, RunItemStreamEvent, Runner
from agents.exceptions import ModelBehaviorError, UserError
from agents.items import ToolCallOutputItem
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext

from isthmus.integrations.openai_agents import HubServer, hub_run_config, hub_tools
from isthmus.library import (
    TaskEngine,
    ToolDeniedError,
    ToolNotFoundError,
    ToolResult,
    ToolService,
    ToolStreamChunk,
    UserContext,
    tool,
)
from tests.frameworks.inside.served import (
    EXECUTED,
    LOGGED,
    MISSES,
    READER,
    SEARCHER,
    SECONDS,
    SUE,
    TYPED,
    UNREADABLE,
    audited,
    counted,
    let_go,
    refused_in,
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
    """The tool results that the model received."""
    return [item for item in result.new_items if isinstance(item, ToolCallOutputItem)]


def offered(model: ScriptedModel) -> list[list[str]]:
    """The tools that it was given, turn by turn."""
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
    (received,) = outputs(result)
    assert result.final_output == "it is about canals"
    assert offered(model)[0] == ["mcp_builtin_echo", "mcp_docs_search"]
    assert "a document about canals" in received.output
    assert received.custom_data["status"] == "success"
    assert received.custom_data["structured_content"]["found"] == "a document about canals"
    assert received.custom_data["structured_content"]["meta"]["isthmus/session"] == "group 1"


async def test_a_task_from_typed_names_to_the_answer_in_one_run(service: ToolService) -> None:
    task = await TaskEngine(service).create_task_request(
        tool_names=TYPED, description="Index, then search.", user_context=READER, session_id="task 1"
    )
    assert task.metadata["denied_tools"] == ["docs.erase"]
    seen: list[ToolStreamChunk] = []

    async def hear(context: ToolContext[Any], chunk: ToolStreamChunk) -> None:
        seen.append(chunk)
        await let_go(service)  # the tool goes on only when its progress was heard

    model = scripted(("mcp_docs_index", {"steps": 2}), ("mcp_docs_search", {"query": "locks"}), "about locks")
    tools = await hub_tools(service, task.available_tools, task.user_context, session_id=task.session_id, on_event=hear)
    async with asyncio.timeout(SECONDS):
        result = await Runner.run(
            Agent("librarian", model=model, tools=[*tools]), task.description, run_config=UNTRACED
        )
    times = [chunk.timestamp for chunk in seen]
    assert ([chunk.content["progress"] for chunk in seen], times) == ([1, 2], sorted(set(times)))
    assert offered(model) == [["mcp_docs_search", "mcp_docs_index"]] * 3
    _, searched = outputs(result)
    assert searched.custom_data["structured_content"]["meta"]["isthmus/session"] == "task 1"
    assert result.final_output == "about locks"


async def test_the_hub_is_one_server_with_the_same_tools(service: ToolService) -> None:
    model = scripted(("mcp_docs_search", {"query": "canals"}), "done")
    server = HubServer(service, ["echo", "docs.search"], session_id="mine")
    async with server:
        agent = Agent("librarian", model=model, mcp_servers=[server])
        result = await Runner.run(agent, "please", run_config=UNTRACED)
    (received,) = outputs(result)
    assert offered(model)[0] == ["mcp_builtin_echo", "mcp_docs_search"]
    assert received.custom_data["structured_content"]["meta"]["isthmus/session"] == "mine"
    elsewhere = await server.call_tool("mcp_docs_erase", {"path": "all"})
    assert elsewhere.is_error, "it is no tool of this server"


@pytest.mark.parametrize("name", ["user_context", "headers"])
def test_a_hub_server_rejects_functions_because_the_sdk_does_not_pass_the_caller(
    service: ToolService, name: str
) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a value, not a function: A HubServer "):
        HubServer(service, **{name: lambda context: None})


async def test_a_user_s_server_has_no_prompts(service: ToolService) -> None:
    server = HubServer(service, user_context=SEARCHER)
    assert (await server.list_prompts()).prompts == []
    with pytest.raises(UserError, match="permissions cover tools only"):
        await server.get_prompt("docs.any")


async def test_progress_is_reported_before_the_end(service: ToolService) -> None:
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


async def test_a_run_gets_the_tools_of_its_own_user(service: ToolService) -> None:
    tools = await hub_tools(service, ["docs.search", "docs.erase"], lambda context: context.context)
    model = scripted("nothing to do", "nothing to do")
    agent: Agent[Any] = Agent("librarian", model=model, tools=[*tools])
    await Runner.run(agent, "please", context=SEARCHER, run_config=UNTRACED)
    await Runner.run(agent, "please", context=None, run_config=UNTRACED)
    assert offered(model) == [["mcp_docs_search"], ["mcp_docs_search", "mcp_docs_erase"]]


@pytest.mark.parametrize(("name", "arguments", "status", "words"), [*EXECUTED, *UNREADABLE])
async def test_every_way_to_fail_has_its_own_status_and_message(
    service: ToolService, name: str, arguments: Any, status: str, words: str
) -> None:
    tools = await hub_tools(service, timeout=seconds_for(status))
    agent = Agent("librarian", model=scripted((name, arguments), "so be it"), tools=[*tools])
    result = await Runner.run(agent, "please", run_config=UNTRACED)
    (received,) = outputs(result)
    assert received.custom_data["status"] == status
    assert re.search(words, received.output)
    assert received.output == received.custom_data["error"]["message"]
    assert result.final_output == "so be it"


@pytest.mark.parametrize(("name", "arguments", "status", "words"), EXECUTED)
async def test_the_same_by_the_server(service: ToolService, name: str, arguments: Any, status: str, words: str) -> None:
    server = HubServer(service, timeout=seconds_for(status))
    agent = Agent("librarian", model=scripted((name, arguments), "so be it"), mcp_servers=[server])
    result = await Runner.run(agent, "please", run_config=UNTRACED)
    (received,) = outputs(result)
    assert received.custom_data["status"] == status
    assert re.search(words, received.output["text"])
    assert received.output["text"] == received.custom_data["error"]["message"]
    assert result.final_output == "so be it"


@pytest.mark.parametrize(("name", "arguments", "status", "words"), UNREADABLE)
async def test_arguments_that_the_sdk_cannot_read_are_reported_by_the_server(
    service: ToolService, name: str, arguments: str, status: str, words: str
) -> None:
    agent = Agent("librarian", model=scripted((name, arguments), "so be it"), mcp_servers=[HubServer(service)])
    result = await Runner.run(agent, "please", run_config=UNTRACED)
    (received,) = outputs(result)
    assert re.search(words, received.output)
    assert (received.custom_data["status"], received.custom_data["error"]["message"]) == (status, received.output)
    assert result.final_output == "so be it"


async def test_a_programs_own_error_settings_of_servers_stay(service: ToolService) -> None:
    class Broken(HubServer):
        async def call_tool(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("broken")

    server = Broken(service, failure_error_function=lambda context, error: "sorry")
    agent = Agent("librarian", model=scripted(("mcp_docs_go", {}), "well"), mcp_servers=[server])
    (received,) = outputs(await Runner.run(agent, "please", run_config=UNTRACED))
    assert received.output == "sorry"
    server = HubServer(service, failure_error_function=None)
    agent = Agent("librarian", model=scripted(("mcp_docs_go", "{"), "never said"), mcp_servers=[server])
    with pytest.raises(ModelBehaviorError):  # the program wants it so
        await Runner.run(agent, "please", run_config=UNTRACED)


@pytest.mark.parametrize(("name", "user", "status", "words"), MISSES)
@pytest.mark.parametrize("is_server", [True, False])
async def test_an_unlisted_name_is_answered_with_its_status(
    service: ToolService, name: str, user: UserContext | None, status: str, words: str, *, is_server: bool
) -> None:
    refusals: list[tuple[str, ToolResult]] = []
    config = hub_run_config(
        service,
        user_context=user,
        run_config=UNTRACED,
        on_refusal=lambda call_id, result: refusals.append((call_id, result)),
    )
    agent = Agent("librarian", model=scripted((name, {}), "so be it"))
    if is_server:
        agent.mcp_servers = [HubServer(service, user_context=user)]
    else:
        agent.tools = [*await hub_tools(service, user_context=user)]
    result = await Runner.run(agent, "please", run_config=config)
    (received,) = outputs(result)
    assert received.output.startswith(words)
    assert [(call_id, each.status, each.error_message) for call_id, each in refusals] == [
        ("call_0", status, received.output)
    ]
    assert result.final_output == "so be it"


@pytest.mark.parametrize("is_server", [True, False])
async def test_a_refusal_is_in_the_audit_log_once(tmp_path: Path, *, is_server: bool) -> None:
    async with audited(tmp_path) as service:
        model = scripted(
            ("mcp_builtin_ech", {}),
            ("mcp_builtin_timestamp", {}),
            ("mcp_builtin_echo", "{"),
            ("mcp_builtin_echo", {"text": "hi"}),
            ("mcp_builtin_chat_log", {"message": "hi"}),
            "so be it",
        )
        agent = Agent("librarian", model=model)
        if is_server:
            asked = {"always": {"tool_names": ["mcp_builtin_chat_log"]}}
            agent.mcp_servers = [HubServer(service, None, SUE, session_id="talk", require_approval=asked)]
        else:
            agent.tools = [*await hub_tools(service, user_context=SUE, session_id="talk", needs_approval=["chat_log"])]
        config = hub_run_config(service, user_context=SUE, session_id="talk", run_config=UNTRACED)
        result = await Runner.run(agent, "please", run_config=config)
        state = result.to_state()
        state.reject(result.interruptions[0])
        assert (await Runner.run(agent, state, run_config=config)).final_output == "so be it"
    expected = [*LOGGED, ("builtin.echo", "bad_arguments"), ("builtin.chat_log", "not_approved")]
    assert await refused_in(tmp_path) == expected


async def test_missing_tools_of_a_server_are_in_the_log(tmp_path: Path) -> None:
    async with audited(tmp_path) as service:
        server = HubServer(service, ["echo"], SUE)
        for name in ("mcp_builtin_ech", "mcp_builtin_timestamp", "mcp_builtin_echo"):
            await server.call_tool(name, {"text": "hi"}, {"isthmus/session": "talk"})
    assert await refused_in(tmp_path) == LOGGED


async def test_a_run_that_is_streamed_goes_on_after_such_a_name_too(service: ToolService) -> None:
    model = scripted(("mcp_docs_serch", {}), ("mcp_docs_go", {}), "so be it")
    agent = Agent("librarian", model=model, tools=[*await hub_tools(service, user_context=SEARCHER)])
    config = hub_run_config(service, user_context=SEARCHER, run_config=UNTRACED)
    result = Runner.run_streamed(agent, "please", run_config=config)
    items = [event.item async for event in result.stream_events() if isinstance(event, RunItemStreamEvent)]
    unknown, denied = [item.output for item in items if isinstance(item, ToolCallOutputItem)]
    assert [unknown, denied] == [received.output for received in outputs(result)]
    assert unknown.startswith("There is no tool 'mcp_docs_serch'. Did you mean mcp_docs_search")
    assert denied.startswith("user 'ann' may not use docs.go")
    assert result.final_output == "so be it"


def test_so_does_one_without_a_loop(service: ToolService) -> None:
    agent = Agent("librarian", model=scripted(("mcp_docs_serch", {}), "so be it"), mcp_servers=[HubServer(service)])
    with closing(asyncio.new_event_loop()) as loop:  # the SDK would make one, and leave it open
        asyncio.set_event_loop(loop)
        result = Runner.run_sync(agent, "please", run_config=hub_run_config(service, run_config=UNTRACED))
        asyncio.set_event_loop(None)
    assert outputs(result)[0].output.startswith("There is no tool 'mcp_docs_serch'. Did you mean mcp_docs_search")
    assert result.final_output == "so be it"


async def test_a_tool_of_the_hub_that_this_agent_was_not_given_is_not_found(service: ToolService) -> None:
    refusals: list[ToolResult] = []
    config = hub_run_config(service, run_config=UNTRACED, on_refusal=lambda call_id, result: refusals.append(result))
    tools = await hub_tools(service, ["docs.search"])
    agent = Agent("librarian", model=scripted(("mcp_docs_go", {}), "so be it"), tools=[*tools])
    (received,) = outputs(await Runner.run(agent, "please", run_config=config))
    assert received.output == "There is no tool 'mcp_docs_go'."
    assert [(each.status, each.error_message) for each in refusals] == [("not_found", received.output)]


@pytest.mark.parametrize("is_server", [True, False])
async def test_a_run_without_its_configuration_is_ended_by_the_sdk(service: ToolService, *, is_server: bool) -> None:
    agent = Agent("librarian", model=scripted(("mcp_docs_serch", {}), "never said"))
    if is_server:
        agent.mcp_servers = [HubServer(service)]
    else:
        agent.tools = [*await hub_tools(service)]
    with pytest.raises(ModelBehaviorError, match="mcp_docs_serch"):  # docs/library.md says so, and what to do
        await Runner.run(agent, "please", run_config=UNTRACED)


async def test_a_runs_own_error_formatter_stays(service: ToolService) -> None:
    own = RunConfig(tracing_disabled=True, tool_error_formatter=lambda call: f"{call.kind}, sorry")
    config = hub_run_config(service, run_config=own)
    agent = Agent(
        "librarian",
        model=scripted(("mcp_docs_erase", {"path": "formatted"}), "well"),
        tools=[*await hub_tools(service, ["docs.erase"], needs_approval=True)],
    )
    result = await Runner.run(agent, "please", run_config=config)
    state = result.to_state()
    state.reject(result.interruptions[0])
    result = await Runner.run(agent, state, run_config=config)
    assert outputs(result)[-1].output == "approval_rejected, sorry"
    assert own.tool_not_found_behavior == "raise_error"


async def test_cancelling_the_wait_cancels_the_tool(service: ToolService, folder: Path) -> None:
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


async def test_added_tools_are_offered_at_the_next_turn(service: ToolService) -> None:
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


class Distracted(ScriptedModel):
    """Takes its time, in which a tool is taken back."""

    async def get_response(self, *args: Any, **options: Any) -> Any:
        """See `Model`."""
        tool.remove("passing")
        return await super().get_response(*args, **options)


@pytest.mark.parametrize("is_server", [False, True])
async def test_a_tool_that_goes_while_the_model_thinks_is_not_found(service: ToolService, *, is_server: bool) -> None:
    def passing() -> str:
        """Gone when it is called."""
        return "here"

    tool(passing)
    turns = [[function_call("mcp_builtin_passing", {}, call_id="call_0")], [assistant_message("so be it")]]
    given: dict[str, Any] = {"mcp_servers": [HubServer(service)]} if is_server else {"tools": await hub_tools(service)}
    agent = Agent("librarian", model=Distracted(turns), **given)
    result = await Runner.run(agent, "please", run_config=hub_run_config(service, run_config=UNTRACED))
    (received,) = outputs(result)
    assert received.custom_data["status"] == "not_found"
    assert "There is no tool 'mcp_builtin_passing'." in str(received.output)
    assert result.final_output == "so be it"
    model = scripted("nothing to do")
    await Runner.run(agent.clone(model=model), "again", run_config=UNTRACED)
    assert "mcp_builtin_passing" not in offered(model)[0]


async def test_a_user_whose_permission_is_taken_back_while_the_model_thinks_is_refused(
    service: ToolService, folder: Path
) -> None:
    class Revoked(ScriptedModel):
        async def get_response(self, *args: Any, **options: Any) -> Any:
            """See `Model`."""
            users.append(SEARCHER)
            return await super().get_response(*args, **options)

    users: list[UserContext | None] = [None]
    tools = await hub_tools(service, ["docs.erase"], lambda _: users[-1])
    turns = [[function_call("mcp_docs_erase", {"path": "revoked"}, call_id="call_0")], [assistant_message("so be it")]]
    agent = Agent("librarian", model=Revoked(turns), tools=[*tools])
    result = await Runner.run(agent, "please", run_config=hub_run_config(service, run_config=UNTRACED))
    (received,) = outputs(result)
    assert received.custom_data["status"] == "unauthorized"
    ledger = folder / "ledger"
    assert not ledger.exists() or "erased revoked" not in ledger.read_text().splitlines()


async def test_a_server_is_not_asked_for_its_list_at_every_turn(tmp_path: Path) -> None:
    async with counted(tmp_path) as (service, lists):
        before = lists()
        model = scripted(*[("mcp_counted_tick", {})] * 5, "done")
        agent = Agent("a", model=model, mcp_servers=[HubServer(service)])
        result = await Runner.run(agent, "please", run_config=UNTRACED)
        assert [item.custom_data["status"] for item in outputs(result)] == ["success"] * 5
        assert lists() == before


async def test_a_picture_is_shown_as_one(service: ToolService) -> None:
    agent = Agent("a", model=scripted(("mcp_docs_picture", {}), "seen"), tools=[*await hub_tools(service, ["picture"])])
    result = await Runner.run(agent, "please", run_config=UNTRACED)
    text, image = outputs(result)[0].raw_item["output"]
    assert (text["text"], image["type"]) == ("a pixel", "input_image")
    assert image["image_url"].startswith("data:image/png;base64,")


async def test_an_image_that_models_do_not_accept_is_named(service: ToolService) -> None:
    for given in ({"tools": [*await hub_tools(service, ["drawing"])]}, {"mcp_servers": [HubServer(service)]}):
        agent = Agent("a", model=scripted(("mcp_docs_drawing", {}), "seen"), **given)
        (received,) = outputs(await Runner.run(agent, "please", run_config=UNTRACED))
        assert "image/svg+xml, 70 bytes]" in str(received.raw_item["output"])
        assert "input_image" not in str(received.raw_item["output"])


async def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    await run_example("openai_agents_agent")
    said = capsys.readouterr().out
    expected = [
        "meanwhile: reading the archive",
        "told:      success {'words': 4",
        "refused:   not_found There is no tool 'mcp_workshop_mesure'. Did you mean mcp_workshop_measure?",
        "answer:    One word.",
    ]
    assert [words for words in expected if words not in said] == []


async def test_the_example_runs_with_a_server_that_logs_too(capsys: pytest.CaptureFixture[str]) -> None:
    await run_example("openai_agents_agent", is_chatty=True)
    assert "answer:    One word." in capsys.readouterr().out
