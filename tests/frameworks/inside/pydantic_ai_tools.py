"""Tools of a hub in pydantic-ai: real runs with a scripted model, real servers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, AgentRunResultEvent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from isthmus.integrations.pydantic_ai import HubProgressEvent, HubResultEvent, HubToolset
from isthmus.library import TaskEngine, ToolDeniedError, ToolNotFoundError, ToolService, UserContext, tool
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
    calls_in,
    counted,
    let_go,
    refused_in,
    run_example,
    seconds_for,
    serving,
    wait_for_note,
    wait_until,
)

Turn = str | tuple[str, Any]


class Scripted:
    """Says one turn after the other, and records the offered tools and the last results."""

    def __init__(self, *turns: Turn) -> None:
        self._turns = list(turns)
        self.offered: list[list[str]] = []
        self.returned: list[str] = []
        self.model = FunctionModel(self._say, stream_function=self._stream)

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> Turn:
        self.returned = [str(part.content) for part in returns(messages[-1:])]
        self.offered.append([each.name for each in info.function_tools])
        return self._turns.pop(0)

    async def _say(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = self._next(messages, info)
        return ModelResponse(parts=[TextPart(turn) if isinstance(turn, str) else ToolCallPart(*turn)])

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        turn = self._next(messages, info)
        if isinstance(turn, str):
            yield turn
        else:
            name, arguments = turn
            yield {0: DeltaToolCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments))}


def returns(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    """The tool results that the model received."""
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    return [part for message in requests for part in message.parts if isinstance(part, ToolReturnPart)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pydantic_ai")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ToolService]:
    with serving(folder) as made:
        yield made


async def test_names_that_a_user_typed_become_tools_of_an_agent_that_answers(service: ToolService) -> None:
    task = await TaskEngine(service).create_task_request(tool_names=["echo", "docs.search"])
    script = Scripted(("mcp_docs_search", {"query": "canals"}), "it is about canals")
    agent = Agent(script.model, toolsets=[HubToolset(service, task.available_tools)])
    result = await agent.run("please", conversation_id="conversation 1")
    (received,) = returns(result.all_messages())
    assert result.output == "it is about canals"
    assert script.offered[0] == ["mcp_builtin_echo", "mcp_docs_search"]
    assert received.content["found"] == "a document about canals"
    assert received.content["meta"]["isthmus/session"] == "conversation 1"
    assert received.metadata["status"] == "success"


async def test_a_task_from_typed_names_to_the_answer_in_one_run(service: ToolService) -> None:
    task = await TaskEngine(service).create_task_request(
        tool_names=TYPED, description="Index, then search.", user_context=READER, session_id="task 1"
    )
    assert task.metadata["denied_tools"] == ["docs.erase"]
    script = Scripted(("mcp_docs_index", {"steps": 2}), ("mcp_docs_search", {"query": "locks"}), "about locks")
    toolset = HubToolset[None](service, task.available_tools, task.user_context, session_id=task.session_id)
    seen: list[HubProgressEvent] = []
    result: Any = None
    async with (
        asyncio.timeout(SECONDS),
        Agent(script.model, toolsets=[toolset]).run_stream_events(task.description) as events,
    ):
        async for event in events:
            if isinstance(event, HubProgressEvent):
                seen.append(event)
                await let_go(service)  # the tool goes on only when its progress was seen
            elif isinstance(event, AgentRunResultEvent):
                result = event.result
    times = [event.timestamp for event in seen]
    assert ([event.progress for event in seen], times) == ([1, 2], sorted(set(times)))
    assert script.offered == [["mcp_docs_search", "mcp_docs_index"]] * 3
    _, searched = returns(result.all_messages())
    assert searched.content["meta"]["isthmus/session"] == "task 1"
    assert result.output == "about locks"


async def test_progress_is_in_the_stream_before_the_end(service: ToolService) -> None:
    agent = Agent(
        Scripted(("mcp_docs_index", {"steps": 3}), "indexed").model, toolsets=[HubToolset(service, ["index"])]
    )
    seen: list[tuple[str, Any]] = []
    times: list[datetime] = []
    async with asyncio.timeout(SECONDS), agent.run_stream_events("please") as events:
        async for event in events:
            if isinstance(event, HubProgressEvent):
                seen.append(("progress", event.message))
                times.append(event.timestamp)
                await let_go(service)  # the tool goes on only when its progress was seen
            elif isinstance(event, HubResultEvent):
                seen.append(("result", event.status))
    assert seen == [
        ("progress", "step 1"),
        ("progress", "step 2"),
        ("progress", "step 3"),
        ("result", "success"),
    ]
    assert times == sorted(set(times))


async def test_a_user_is_given_the_tools_that_permissions_cover(service: ToolService) -> None:
    script = Scripted("nothing to do", "nothing to do")
    agent = Agent(
        script.model, deps_type=object, toolsets=[HubToolset(service, ["search", "erase"], lambda ctx: ctx.deps)]
    )
    await agent.run("please", deps=SEARCHER)
    await agent.run("please", deps=None)
    assert script.offered == [["mcp_docs_search"], ["mcp_docs_search", "mcp_docs_erase"]]
    with pytest.raises(ToolDeniedError, match=r"docs\.erase"):
        await Agent(script.model, toolsets=[HubToolset(service, ["docs.erase"], SEARCHER)]).run("please")
    with pytest.raises(ToolNotFoundError, match=r"Did you mean docs\.search"):
        await Agent(script.model, toolsets=[HubToolset(service, ["docs.serach"])]).run("please")


@pytest.mark.parametrize(("name", "arguments", "status", "words"), [*EXECUTED, *UNREADABLE])
async def test_every_way_to_fail_has_its_own_status_and_message(
    service: ToolService, name: str, arguments: Any, status: str, words: str
) -> None:
    agent = Agent(
        Scripted((name, arguments), "so be it").model, toolsets=[HubToolset(service, timeout=seconds_for(status))]
    )
    ended: list[HubResultEvent] = []

    async def hear(ctx: Any, events: Any) -> None:
        ended.extend([event async for event in events if isinstance(event, HubResultEvent)])

    result = await agent.run("please", event_stream_handler=hear)
    (received,) = returns(result.all_messages())
    assert [(event.status, event.record) for event in ended] == [(status, received.metadata)]
    assert received.outcome == ("retried" if status == "invalid_parameters" else "failed")
    assert type(received.content) is str
    assert re.search(words, received.content)
    assert received.content == ended[0].record["error"]["message"]
    assert result.output == "so be it"


@pytest.mark.parametrize(("name", "user", "status", "words"), MISSES)
async def test_an_unlisted_name_is_answered_with_its_status(
    service: ToolService, name: str, user: UserContext | None, status: str, words: str
) -> None:
    script = Scripted((name, {}), "so be it")
    ended: list[HubResultEvent] = []

    async def hear(ctx: Any, events: Any) -> None:
        ended.extend([event async for event in events if isinstance(event, HubResultEvent)])

    agent = Agent(script.model, toolsets=[HubToolset(service, user_context=user)])
    result = await agent.run("please", event_stream_handler=hear)
    (received,) = returns(result.all_messages())
    assert script.returned == [str(received.content)]
    assert received.content.startswith(words)
    assert (received.metadata["status"], received.metadata["error"]["message"]) == (status, received.content)
    assert [event.record for event in ended] == [received.metadata]
    assert result.output == "so be it"


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_refusal_is_in_the_audit_log_once(tmp_path: Path, *, is_streamed: bool) -> None:
    async def hear(ctx: Any, events: Any) -> None:
        async for _ in events:
            pass

    async with audited(tmp_path) as service:
        script = Scripted(
            ("mcp_builtin_ech", {"text": "hi"}),
            ("mcp_builtin_timestamp", '{"text": '),
            ("mcp_builtin_echo", '{"text": '),
            ("mcp_builtin_echo", {"text": "hi"}),
            ("mcp_builtin_chat_log", {"text": "hi"}),
            ("mcp_builtin_echo", {"text": "hi"}),
            "so be it",
        )
        hub = HubToolset[None](service, None, SUE, session_id="talk", needs_approval=["chat_log"])
        agent = Agent(script.model, output_type=[str, DeferredToolRequests], toolsets=[hub])
        handler = hear if is_streamed else None
        result = await agent.run("please", event_stream_handler=handler)
        assert isinstance(result.output, DeferredToolRequests)
        no = DeferredToolResults(approvals={result.output.approvals[0].tool_call_id: False})
        result = await agent.run(
            message_history=result.all_messages(), deferred_tool_results=no, event_stream_handler=handler
        )
        assert result.output == "so be it"
        assert [each.metadata["status"] for each in returns(result.new_messages())] == ["unauthorized", "success"]
    expected = [*LOGGED, ("builtin.echo", "bad_arguments"), ("builtin.chat_log", "not_approved")]
    assert await refused_in(tmp_path) == expected
    made_up, denied, broken, *rest = [each["arguments"] for each in await calls_in(tmp_path)]
    assert (denied == broken, set(rest)) == (True, {made_up}), "equal arguments are seen to be equal"


@pytest.mark.parametrize("is_denied_first", [True, False])
async def test_of_several_toolsets_the_one_that_denies_counts(service: ToolService, *, is_denied_first: bool) -> None:
    async with ToolService() as other:
        toolsets = [HubToolset[None](other, ["echo"]), HubToolset[None](service, ["docs.search"], SEARCHER)]
        script = Scripted(("mcp_docs_go", {}), "well")
        agent = Agent(script.model, toolsets=toolsets[::-1] if is_denied_first else toolsets)
        (received,) = returns((await agent.run("please")).all_messages())
    assert (received.metadata["status"], script.returned) == ("unauthorized", [received.content])


async def test_renamed_and_omitted_tools_are_not_suggested(service: ToolService) -> None:
    toolset = HubToolset[None](service).filtered(lambda ctx, each: each.metadata["tool"] == "docs.index")
    agent = Agent(Scripted(("mcp_docs_serch", {}), "well").model, toolsets=[toolset])
    (received,) = returns((await agent.run("please")).all_messages())
    assert (received.metadata["status"], received.content) == ("not_found", "There is no tool 'mcp_docs_serch'.")


async def test_cancelling_the_wait_cancels_the_tool(service: ToolService, folder: Path) -> None:
    started = asyncio.Event()

    async def hear(ctx: Any, events: Any) -> None:
        async for event in events:
            if isinstance(event, HubProgressEvent):
                started.set()

    agent = Agent(Scripted(("mcp_docs_hang", {"token": "step"})).model, toolsets=[HubToolset(service, ["hang"])])
    running = asyncio.create_task(agent.run("please", event_stream_handler=hear))
    await asyncio.wait_for(started.wait(), SECONDS)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_for_note(folder, "cancelled step")


async def test_a_tool_that_needs_approval_waits_for_it(service: ToolService, folder: Path) -> None:
    script = Scripted(("mcp_docs_erase", {"path": "step"}), "well")
    toolset = HubToolset[None](service, ["docs.erase", "docs.search"], needs_approval=["docs.erase"])
    agent = Agent(script.model, output_type=[str, DeferredToolRequests], toolsets=[toolset])
    result = await agent.run("please")
    assert isinstance(result.output, DeferredToolRequests)
    (waiting,) = result.output.approvals
    assert not (folder / "ledger").exists() or "erased step" not in (folder / "ledger").read_text()
    agreed = DeferredToolResults(approvals={waiting.tool_call_id: True})
    result = await agent.run(message_history=result.all_messages(), deferred_tool_results=agreed)
    assert result.output == "well"
    assert returns(result.all_messages())[-1].metadata["status"] == "success"
    await wait_for_note(folder, "erased step")


async def test_added_tools_are_offered_at_the_next_turn(service: ToolService) -> None:
    async def is_listed() -> bool:
        return "docs.stepped" in await service.list_tools()

    class Patient(HubToolset[Any]):
        async def get_tools(self, ctx: Any) -> Any:
            if len(script.offered) == 1:
                await wait_until(is_listed)
            return await super().get_tools(ctx)

    script = Scripted(("mcp_docs_grow", {"name": "stepped"}), ("mcp_docs_stepped", {}), "grown")
    result = await Agent(script.model, toolsets=[Patient(service)]).run("please")
    assert ["mcp_docs_stepped" in each for each in script.offered] == [False, True, True]
    assert [each.content for each in returns(result.all_messages())] == ["stepped", "went"]


async def test_a_tool_that_goes_while_the_model_thinks_is_not_found(service: ToolService) -> None:
    def passing() -> str:
        """Gone when it is called."""
        return "here"

    class Distracted(Scripted):
        def _next(self, messages: list[ModelMessage], info: AgentInfo) -> Turn:
            tool.remove("passing")
            return super()._next(messages, info)

    tool(passing)
    script = Distracted(("mcp_builtin_passing", {}), "so be it")
    (received,) = returns((await Agent(script.model, toolsets=[HubToolset(service)]).run("please")).all_messages())
    assert received.metadata["status"] == "not_found"
    assert received.content.startswith("There is no tool 'mcp_builtin_passing'.")


async def test_a_tool_that_comes_while_the_model_thinks_is_not_found_yet(service: ToolService) -> None:
    def late() -> str:
        """Come when the model has its list."""
        return "here"

    class Quick(Scripted):
        def _next(self, messages: list[ModelMessage], info: AgentInfo) -> Turn:
            tool(late)
            return super()._next(messages, info)

    try:
        script = Quick(("mcp_builtin_late", {}), ("mcp_builtin_late", {}), "so be it")
        result = await Agent(script.model, toolsets=[HubToolset(service)]).run("please")
    finally:
        tool.remove("late")
    missed, made = returns(result.all_messages())
    assert (missed.metadata["status"], made.metadata["status"]) == ("not_found", "success")
    assert missed.content == "There is no tool 'mcp_builtin_late'."


async def test_a_server_is_not_asked_for_its_list_at_every_turn(tmp_path: Path) -> None:
    async with counted(tmp_path) as (service, lists):
        before = lists()
        script = Scripted(*[("mcp_counted_tick", {})] * 5, "done")
        result = await Agent(script.model, toolsets=[HubToolset(service)]).run("please")
        assert [each.content for each in returns(result.all_messages())] == ["tock"] * 5
        assert lists() == before


async def test_it_may_be_wrapped_like_every_toolset(service: ToolService) -> None:
    toolset = (
        HubToolset[None](service).filtered(lambda ctx, each: each.metadata["tool"] == "docs.search").prefixed("my")
    )
    script = Scripted(("my_mcp_docs_search", {"query": "rafts"}), "done")
    (received,) = returns((await Agent(script.model, toolsets=[toolset]).run("please")).all_messages())
    assert script.offered[0] == ["my_mcp_docs_search"]
    assert received.content["found"] == "a document about rafts"


async def test_a_picture_is_shown_as_one(service: ToolService) -> None:
    agent = Agent(Scripted(("mcp_docs_picture", {}), "seen").model, toolsets=[HubToolset(service, ["picture"])])
    (received,) = returns((await agent.run("please")).all_messages())
    text, image = received.content
    assert (text, image.media_type) == ("a pixel", "image/png")


async def test_an_image_that_models_do_not_accept_is_named(service: ToolService) -> None:
    agent = Agent(Scripted(("mcp_docs_drawing", {}), "seen").model, toolsets=[HubToolset(service, ["drawing"])])
    (received,) = returns((await agent.run("please")).all_messages())
    assert received.content == "a line\n[image image/svg+xml, 70 bytes]"


async def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    await run_example("pydantic_ai_agent")
    said = capsys.readouterr().out
    expected = [
        "meanwhile: reading the archive",
        "ended:     workshop.measure success",
        "answer:    Four words.",
    ]
    assert [words for words in expected if words not in said] == []


async def test_the_example_runs_with_a_server_that_logs_too(capsys: pytest.CaptureFixture[str]) -> None:
    await run_example("pydantic_ai_agent", is_chatty=True)
    assert "answer:    Four words." in capsys.readouterr().out
