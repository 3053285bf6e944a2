"""`AdkDomainAgent`: from the names that a user types to the answer of a real google-adk agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from isthmus.integrations.adk import AdkDomainAgent
from isthmus.integrations.adk.tool import NO_USER
from isthmus.library import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    BlockingToolService,
    ConfigurationError,
    ErrorCode,
    TaskEngine,
    TaskRequest,
    ToolRequest,
    ToolService,
    ToolStatus,
    UserContext,
    UserPermissions,
    create_task_request,
)
from tests.frameworks.inside.adk_scripted import (
    Ledger,
    Scripted,
    answers,
    http_server,
    repeat_answer,
    text_of,
)
from tests.frameworks.inside.served import LOGGED, SUE, audited, refused_in, run_example

ANN = UserContext(user_id="ann", permissions=UserPermissions(permissions=["docs.search", "docs.index"]))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger")


@pytest.fixture(scope="module")
def service(ledger: Ledger) -> Iterator[ToolService]:
    with http_server(ledger) as url:
        servers = [{"name": "docs", "endpoint": url, "user_headers": ["X-User"]}]
        with BlockingToolService({"tool_service": {"enable_mcp": True, "mcp_servers": servers}}) as blocking:
            yield blocking.service


def agent_of(*turns: Any, **context: Any) -> AdkDomainAgent:
    config = AgentConfig(model=Scripted(turns=list(turns)), system_prompt="Use {braces} as they are.")
    return AdkDomainAgent("my helper", config, context)


def model_of(agent: AdkDomainAgent) -> Scripted:
    assert isinstance(agent.config.model, Scripted)
    return agent.config.model


async def execute(agent: AdkDomainAgent, task: TaskRequest, **options: Any) -> AgentResponse:
    async with asyncio.timeout(20):
        return await agent.execute(AgentRequest(task_request=task, runtime_options=options))


async def test_from_the_names_that_a_user_types_to_the_answer(service: ToolService) -> None:
    engine = TaskEngine(service)
    task = await engine.create_task_request(
        tool_names=["echo", "mcp.search", "index", "docs.erase"],
        description="What is there about tides?",
        user_context=ANN,
        session_id="conversation-9",
    )
    assert [tool.name for tool in task.available_tools] == ["docs.search", "docs.index"]
    assert task.metadata["denied_tools"] == ["builtin.echo", "docs.erase"]
    agent = agent_of({"mcp_docs_search": {"query": "tides"}}, lambda request: f"I found {found(request)}.")
    response = await execute(agent, task)
    assert (response.status, response.text) == ("success", "I found a document about tides.")
    assert (response.task_id, response.session_id, response.error) == (task.task_id, "conversation-9", None)
    (result,) = response.tool_results
    assert (result.tool_name, result.status) == ("docs.search", ToolStatus.SUCCESS)
    assert result.result_data["meta"]["isthmus/session"] == "conversation-9"
    assert list(model_of(agent).declarations()) == ["mcp_docs_search", "mcp_docs_index"]
    assert str(model_of(agent).requests[0].config.system_instruction).startswith("Use {braces} as they are.")


async def test_a_task_from_typed_names_to_the_answer_in_one_run(service: ToolService) -> None:
    task = await TaskEngine(service).create_task_request(
        tool_names=["search", "mcp.index", "docs.erase"],
        description="Index, then search.",
        user_context=ANN,
        session_id="task 1",
    )
    assert task.metadata["denied_tools"] == ["docs.erase"]
    agent = agent_of({"mcp_docs_index": {"steps": 2}}, {"mcp_docs_search": {"query": "locks"}}, "about locks")
    events = []
    async with asyncio.timeout(20):
        async for event in agent.execute_stream(AgentRequest(task_request=task)):
            events.append(event)
            if event.partial:  # the tool waits for this, so it has not ended yet
                await service.execute_tool(ToolRequest("docs.go"))
    assert [event.custom_metadata["tool_progress"]["progress"] for event in events if event.partial] == [1, 2]
    times = [event.timestamp for event in events]
    assert times == sorted(set(times))
    assert [list(model_of(agent).declarations(turn)) for turn in range(3)] == [
        ["mcp_docs_search", "mcp_docs_index"]
    ] * 3
    _, searched = answers(events)
    assert searched["result"]["meta"]["isthmus/session"] == "task 1"
    assert text_of(events) == "about locks"


def found(request: LlmRequest) -> str:
    return str(request.contents[-1].parts[-1].function_response.response["result"]["found"])


async def test_progress_comes_at_increasing_times_before_the_end(service: ToolService) -> None:
    task = await create_task_request(tool_names=["index"], description="Index it.", user_context=ANN)
    events = []
    async with asyncio.timeout(20):
        async for event in agent_of({"mcp_docs_index": {"steps": 3}}, repeat_answer).execute_stream(
            AgentRequest(task_request=task)
        ):
            events.append(event)
            if event.partial:  # the tool waits for this, so it has not ended yet
                await service.execute_tool(ToolRequest("docs.go"))
    received = [event.custom_metadata["tool_progress"]["progress"] for event in events if event.partial]
    assert received == [1, 2, 3]
    times = [event.timestamp for event in events]
    assert times == sorted(set(times))
    assert events[-1].content.parts[0].text == "{'result': '3 steps'}"


async def test_an_agents_own_tools_come_after_the_tasks_and_the_user_gets_those_allowed(service: ToolService) -> None:
    agent = agent_of("hello", tool_service=service)
    agent.config.available_tools = ["docs.search", "docs.index", "docs.erase"]
    task = TaskRequest(description="hi", user_context=ANN, available_tools=[await service.resolve("docs.index")])
    assert (await execute(agent, task)).text == "hello"
    assert list(model_of(agent).declarations()) == ["mcp_docs_index", "mcp_docs_search"]


async def test_an_agent_may_have_no_tools_of_its_own(service: ToolService) -> None:
    task = await create_task_request(tool_names=["search"], description="Go.", user_context=ANN)
    agent = agent_of("done")
    agent.config.available_tools = None  # type: ignore[assignment]  # as `TaskEngine` takes it, too
    response = await execute(agent, task)
    assert (response.status, response.error, list(model_of(agent).declarations())) == (
        "success",
        None,
        ["mcp_docs_search"],
    )


async def test_a_conversation_continues_its_session_and_may_begin_with_history(service: ToolService) -> None:
    agent = agent_of("first", "second")
    said = [{"role": "user", "content": "I am Ann."}, {"role": "assistant", "content": "Hello Ann."}, "Who am I?"]
    await execute(agent, TaskRequest(messages=said, session_id="s"))
    await execute(agent, TaskRequest(description="And now?", session_id="s"))
    received = [(each.role, each.parts[0].text) for each in model_of(agent).requests[1].contents]
    assert received == [
        ("user", "I am Ann."),
        ("model", "Hello Ann."),
        ("user", "Who am I?"),
        ("model", "first"),
        ("user", "And now?"),
    ]


async def test_a_task_s_tools_are_shown_as_far_as_its_user_may_use_them(service: ToolService) -> None:
    agent = agent_of({"mcp_docs_erase": {"path": "denied"}}, "well", tool_service=service)
    tools = [await service.resolve(name) for name in ("docs.erase", "docs.search")]
    response = await execute(agent, TaskRequest(description="hi", user_context=ANN, available_tools=tools))
    assert list(model_of(agent).declarations()) == ["mcp_docs_search"]
    assert [result.status for result in response.tool_results] == [ToolStatus.UNAUTHORIZED]


async def test_an_unnamed_caller_is_a_caller_of_its_own(service: ToolService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service tells those apart that have no id, by whatever else there is of them."""
    asked: list[Any] = []
    plain = ToolService.execute_tool_stream

    def noting(self: ToolService, request: ToolRequest) -> Any:
        asked.append(request.user_context)
        return plain(self, request)

    monkeypatch.setattr(ToolService, "execute_tool_stream", noting)
    anyone = UserPermissions(["docs.search"])
    users = [UserContext(permissions=anyone), UserContext(user_name="Ann", permissions=anyone)]
    for user in users:
        agent = agent_of({"mcp_docs_search": {"query": "q"}}, "done")
        task = await create_task_request(tool_names=["search"], description="Search.", user_context=user)
        assert (await execute(agent, task)).status == "success"
    assert asked == users
    impostor = TaskRequest(description="hi", user_context=UserContext(NO_USER))
    response = await execute(agent_of("never"), impostor)
    assert response.error is not None
    assert response.error.code is ErrorCode.VALIDATION


async def test_headers_of_the_user_are_passed_on(service: ToolService) -> None:
    agent = agent_of(
        {"mcp_docs_search": {"query": "q"}}, "done", header_provider=lambda context: {"X-User": context.user_id}
    )
    task = await create_task_request(tool_names=["search"], description="Search.", user_context=ANN)
    (result,) = (await execute(agent, task)).tool_results
    assert result.result_data["headers"] == {"x-user": "ann"}


# -- approval ----------------------------------------------------------------------------------------------------------


async def erasing(path: str, **metadata: Any) -> TaskRequest:
    task = await create_task_request(tool_names=["erase"], description=f"Erase {path}.", session_id=path)
    task.available_tools[0].metadata |= metadata
    return task


async def test_no_question_is_asked_unless_a_tool_requires_approval(service: ToolService) -> None:
    response = await execute(agent_of({"mcp_docs_erase": {"path": "a"}}, repeat_answer), await erasing("a"))
    assert response.text == "{'result': 'a is gone'}"


@pytest.mark.parametrize("is_approved", [True, False])
async def test_the_decision_function_is_asked_and_its_answer_applies(
    service: ToolService, ledger: Ledger, *, is_approved: bool
) -> None:
    asked = []

    async def approve(tool_name: str, arguments: dict[str, Any]) -> bool:
        asked.append((tool_name, arguments))
        return is_approved

    path = f"b-{is_approved}"
    agent = agent_of({"mcp_docs_erase": {"path": path}}, repeat_answer, approve=approve)
    response = await execute(agent, await erasing(path, requires_approval=True))
    assert asked == [("docs.erase", {"path": path})]
    assert response.status == "success"
    assert (f"erased {path}" in ledger.lines()) is is_approved


async def test_an_undecided_response_names_the_pending_calls_and_a_later_request_decides(
    service: ToolService,
) -> None:
    agent = agent_of({"mcp_docs_erase": {"path": "c"}}, repeat_answer)
    task = await erasing("c", requires_approval=True)
    response = await execute(agent, task)
    assert response.status == "error"
    assert response.error is not None
    assert response.error.code is ErrorCode.APPROVAL_TIMEOUT
    assert response.tool_results == []
    (pending,) = response.metadata["pending_approvals"]
    assert (pending["tool_name"], pending["arguments"]) == ("docs.erase", {"path": "c"})
    response = await execute(agent, task, approvals={pending["id"]: True})
    assert (response.status, response.text) == ("success", "{'result': 'c is gone'}")


# -- failing -----------------------------------------------------------------------------------------------------------


async def test_a_tools_failure_is_in_the_results_and_the_agent_goes_on(service: ToolService) -> None:
    task = await create_task_request(tool_names=["refuse"], description="Try.")
    response = await execute(agent_of({"mcp_docs_refuse": {}}, repeat_answer), task)
    assert (response.status, response.text.endswith("the archive is closed")) == ("success", True)
    assert [result.status for result in response.tool_results] == [ToolStatus.ERROR]


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("mcp_docs_serch", "not_found", "There is no tool 'mcp_docs_serch'. Did you mean mcp_docs_search?"),
        ("mcp_docs_erase", "unauthorized", "user 'ann' may not use docs.erase: its permissions do not cover it."),
    ],
)
async def test_an_unlisted_name_is_answered_with_its_status(
    service: ToolService, name: str, status: str, words: str
) -> None:
    task = await create_task_request(tool_names=["search", "erase"], description="Try.", user_context=ANN)
    response = await execute(agent_of({name: {}}, repeat_answer), task)
    assert (response.status, response.text) == ("success", words)
    (result,) = response.tool_results
    assert (result.tool_name, result.status, result.error_message) == (name, status, words)


async def test_a_refusal_is_in_the_audit_log_once(tmp_path: Path) -> None:
    async with audited(tmp_path) as service:
        task = await TaskEngine(service).create_task_request(
            tool_names=["echo", "chat_log"], description="Try.", user_context=SUE, session_id="talk"
        )
        task.available_tools[1].metadata["requires_approval"] = True
        calls = {"mcp_builtin_ech": {}, "mcp_builtin_timestamp": {}, "mcp_builtin_echo": {"text": "hi"}}
        asked = {"mcp_builtin_chat_log": {"message": "hi"}}
        agent = agent_of(calls, asked, "so be it", tool_service=service, approve=lambda tool, arguments: False)
        assert (await execute(agent, task)).text == "so be it"
    assert sorted(await refused_in(tmp_path)) == sorted([*LOGGED, ("builtin.chat_log", "not_approved")])


async def test_a_model_that_calls_a_tool_without_having_any_gets_an_error() -> None:
    response = await execute(agent_of({"mcp_docs_search": {}}, repeat_answer), TaskRequest(description="Try."))
    assert response.text == "There is no tool 'mcp_docs_search'."
    assert [result.status for result in response.tool_results] == [ToolStatus.NOT_FOUND]


def test_a_configuration_may_be_a_mapping_and_nothing_else() -> None:
    agent = AdkDomainAgent("helper", {"model": "gemini-2.5-flash", "available_tools": ["echo"]})
    assert agent.config == AgentConfig(model="gemini-2.5-flash", available_tools=["echo"])
    with pytest.raises(ConfigurationError, match="AgentConfig has no modle"):
        AdkDomainAgent("helper", {"modle": "gemini-2.5-flash"})
    for nothing in (None, "gemini-2.5-flash", 3):
        with pytest.raises(ConfigurationError, match=f"not {type(nothing).__name__}"):
            AdkDomainAgent("helper", nothing)  # type: ignore[arg-type]


async def test_unknown_names_empty_tasks_and_broken_models_are_reported(
    service: ToolService,
) -> None:
    agent = agent_of(tool_service=service)
    agent.config.available_tools = ["docs.nothing"]
    cases = [
        (agent, TaskRequest(description="hi"), ErrorCode.VALIDATION, "There is no tool 'docs.nothing'."),
        (agent_of(), TaskRequest(), ErrorCode.VALIDATION, "has no message to reply to"),
        (agent_of(), TaskRequest(messages=[{"content": 3}]), ErrorCode.VALIDATION, "must be a string"),
        (agent_of(), TaskRequest(description="hi"), ErrorCode.FRAMEWORK_EXECUTION, "IndexError"),
    ]
    for each, task, code, words in cases:
        response = await execute(each, task)
        assert response.error is not None
        assert (response.status, response.error.code) == ("error", code)
        assert words in response.error.message


async def test_a_tool_that_an_agent_always_has_and_whose_server_did_not_come_is_unavailable(tmp_path: Path) -> None:
    other = ToolService()
    await other.initialize({"mcp_servers": [{"name": "gone", "command": str(tmp_path / "nothing")}]})
    try:
        for names, code in ((["gone.find"], ErrorCode.TOOL_UNAVAILABLE), (["gone.find", "x"], ErrorCode.VALIDATION)):
            agent = agent_of("never", tool_service=other)
            agent.config.available_tools = names
            response = await execute(agent, TaskRequest(description="hi"))
            assert response.error is not None
            assert response.error.code is code
            assert "Server gone is not connected: " in response.error.message
    finally:
        await other.shutdown()


async def test_without_a_service_an_agent_says_how_to_get_one(service: ToolService) -> None:
    task = await create_task_request(tool_names=["search"], description="Search.")
    async with ToolService():  # two of them: neither is meant
        response = await execute(agent_of("never"), task)
    assert response.error is not None
    assert "tool_service" in response.error.message


async def test_a_service_that_was_shut_down_is_reported() -> None:
    async with ToolService() as closed:
        task = await create_task_request(tool_names=["echo"], tool_service=closed, description="Echo.")
    response = await execute(agent_of("never", tool_service=closed), task)
    assert response.error is not None
    assert (response.error.code, response.error.message) == (
        ErrorCode.TOOL_UNAVAILABLE,
        "This ToolService is shut down.",
    )


async def test_cancelling_the_wait_cancels_the_tool_at_its_server(service: ToolService, ledger: Ledger) -> None:
    task = await create_task_request(tool_names=["hang"], description="Hang.")
    agent = agent_of({"mcp_docs_hang": {"token": "agent"}}, "never")
    async with asyncio.timeout(20):
        events = agent.execute_stream(AgentRequest(task_request=task))
        async for event in events:
            if event.partial:
                break
        await events.aclose()
        await ledger.has("cancelled agent")


async def test_the_model_may_be_asked_for_with_settings(service: ToolService) -> None:
    agent = agent_of("warm")
    agent.config.model_config = {"temperature": 0.5}
    await execute(agent, TaskRequest(description="hi"))
    config = model_of(agent).requests[0].config
    assert isinstance(config, types.GenerateContentConfig)
    assert config.temperature == 0.5


async def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    await run_example("adk_agent")
    assert capsys.readouterr().out.splitlines() == [
        "an agent of your own",
        "  meanwhile: reading the library",
        "  meanwhile: reading the archive",
        "  meanwhile: reading the field notes",
        "  answer:    tides: mentioned in the library, the archive, the field notes",
        "a task",
        "  tools:     ['workshop.measure'] denied: ['workshop.publish']",
        "  response:  success {'words': 4, 'weight': 4}",
    ]


async def test_the_example_runs_with_a_server_that_logs_too(capsys: pytest.CaptureFixture[str]) -> None:
    await run_example("adk_agent", is_chatty=True)
    assert "response:  success {'words': 1}" in capsys.readouterr().out
