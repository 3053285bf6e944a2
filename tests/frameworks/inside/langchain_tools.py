"""Tools of a hub in LangChain and LangGraph: real agents with a scripted model, real servers."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from isthmus.integrations.langchain import (
    HubMiddleware,
    HubToolException,
    hub_tool_node,
    hub_tools,
    hub_tools_blocking,
)
from isthmus.library import (
    TaskEngine,
    Tool,
    ToolDeniedError,
    ToolNotFoundError,
    ToolRequest,
    ToolResult,
    ToolService,
    ToolStatus,
    UserContext,
    tool,
)
from tests.frameworks.inside.served import (
    ALL_BUT_GO,
    EXECUTED,
    FAILURES,
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


class Scripted(GenericFakeChatModel):
    """Says one message after the other, and keeps which tools it was offered."""

    offered: Any = None

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        self.offered.append([convert_to_openai_tool(each)["function"]["name"] for each in tools])
        return self


def scripted(*turns: str | tuple[str, dict[str, Any]]) -> Scripted:
    """A model that says these words, or calls these tools."""
    messages = [
        AIMessage(turn)
        if isinstance(turn, str)
        else AIMessage("", tool_calls=[{"name": turn[0], "args": turn[1], "id": f"call_{number}"}])
        for number, turn in enumerate(turns)
    ]
    return Scripted(messages=iter(messages), offered=[])


def tool_messages(state: dict[str, Any]) -> list[ToolMessage]:
    """The tool results that the model received."""
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


ASKED = {"messages": [("user", "please")]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("langchain")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ToolService]:
    with serving(folder) as made:
        yield made


async def test_names_that_a_user_typed_become_tools_of_an_agent_that_answers(service: ToolService) -> None:
    task = await TaskEngine(service).create_task_request(tool_names=["echo", "docs.search"])
    tools = await hub_tools(service, task.available_tools)
    model = scripted(("mcp_docs_search", {"query": "canals"}), "it is about canals")
    state = await create_agent(model, tools).ainvoke(ASKED, {"configurable": {"thread_id": "thread 1"}})
    (received,) = tool_messages(state)
    assert state["messages"][-1].content == "it is about canals"
    assert model.offered[0] == ["mcp_builtin_echo", "mcp_docs_search"]
    assert "a document about canals" in received.content
    assert received.artifact["structured_content"]["found"] == "a document about canals"
    assert received.artifact["structured_content"]["meta"]["isthmus/session"] == "thread 1"
    assert (received.status, received.artifact["status"]) == ("success", "success")


async def test_a_task_from_typed_names_to_the_answer_in_one_run(service: ToolService) -> None:
    task = await TaskEngine(service).create_task_request(
        tool_names=TYPED, description="Index, then search.", user_context=READER, session_id="task 1"
    )
    assert task.metadata["denied_tools"] == ["docs.erase"]
    hub = HubMiddleware(service, task.available_tools, task.user_context, session_id=task.session_id)
    model = scripted(("mcp_docs_index", {"steps": 2}), ("mcp_docs_search", {"query": "locks"}), "about locks")
    seen: list[Any] = []
    state: dict[str, Any] = {}
    async with asyncio.timeout(SECONDS):
        asked = {"messages": [("user", task.description)]}
        async for mode, chunk in create_agent(model, middleware=[hub]).astream(asked, stream_mode=["custom", "values"]):
            if mode == "custom":
                seen.append(chunk)
                await let_go(service)  # the tool goes on only when its progress was seen
            else:
                state = chunk
    times = [datetime.fromisoformat(each["timestamp"]) for each in seen]
    assert ([each["progress"] for each in seen], times) == ([1, 2], sorted(set(times)))
    assert model.offered == [["mcp_docs_search", "mcp_docs_index"]] * 3
    _, searched = tool_messages(state)
    assert searched.artifact["structured_content"]["meta"]["isthmus/session"] == "task 1"
    assert state["messages"][-1].content == "about locks"


def test_the_same_without_a_loop(service: ToolService) -> None:
    tools = hub_tools_blocking(service, ["docs.search"])
    model = scripted(("mcp_docs_search", {"query": "locks"}), "done")
    state = create_agent(model, tools).invoke(ASKED)
    assert tool_messages(state)[0].artifact["structured_content"]["found"] == "a document about locks"


async def test_a_tool_by_itself_needs_no_graph(service: ToolService) -> None:
    (search,) = await hub_tools(service, ["docs.search"], session_id="mine")
    assert '"isthmus/session":"mine"' in (await search.ainvoke({"query": "weirs"})).replace(" ", "")


async def test_a_copy_of_a_tool_works_like_the_tool(service: ToolService) -> None:
    (search,) = await hub_tools(service, ["docs.search"])
    copied = search.model_copy(deep=True)
    assert "a document about sluices" in await copied.ainvoke({"query": "sluices"})


async def test_progress_is_in_the_stream_before_the_end(service: ToolService) -> None:
    agent = create_agent(
        scripted(("mcp_docs_index", {"steps": 3}), "indexed"), await hub_tools(service, ["docs.index"])
    )
    seen: list[dict[str, Any]] = []
    async with asyncio.timeout(SECONDS):
        async for mode, chunk in agent.astream(ASKED, stream_mode=["custom", "values"]):
            if mode == "custom":
                seen.append(chunk)
                await let_go(service)  # the tool goes on only when its progress was seen
    assert [(each["type"], each["progress"], each["message"]) for each in seen] == [
        ("progress", number, f"step {number}") for number in (1, 2, 3)
    ]
    times = [datetime.fromisoformat(each["timestamp"]) for each in seen]
    assert times == sorted(set(times))


def test_progress_is_in_the_stream_without_a_loop_too(service: ToolService) -> None:
    agent = create_agent(scripted(("mcp_docs_index", {"steps": 2}), "indexed"), hub_tools_blocking(service, ["index"]))
    seen = []
    for chunk in agent.stream(ASKED, stream_mode="custom"):
        seen.append(chunk["progress"])
        service.blocking.execute_tool(ToolRequest("docs.go"))
    assert seen == [1, 2]


async def test_a_user_is_given_the_tools_that_permissions_cover(service: ToolService) -> None:
    assert [each.name for each in await hub_tools(service, user_context=SEARCHER)] == ["mcp_docs_search"]
    with pytest.raises(ToolDeniedError, match=r"docs\.erase"):
        await hub_tools(service, ["docs.erase"], SEARCHER)
    with pytest.raises(ToolNotFoundError, match=r"Did you mean docs\.search"):
        await hub_tools(service, ["docs.serach"])


@pytest.mark.parametrize(("name", "arguments", "status", "words"), FAILURES)
async def test_every_way_to_fail_has_its_own_status_and_message(
    service: ToolService, name: str, arguments: dict[str, Any], status: str, words: str
) -> None:
    def passing() -> str:
        """Gone when it is called."""
        return "here"

    tool(passing)
    try:
        names = ["docs.refuse", "docs.search", "docs.hang", "raw.pay", "mine.look", "docs.go", "builtin.passing"]
        tools = await hub_tools(service, names, lambda config: ALL_BUT_GO, timeout=seconds_for(status))
    finally:
        tool.remove("passing")
    state = await create_agent(scripted((name, arguments), "so be it"), tools).ainvoke(ASKED)
    (received,) = tool_messages(state)
    assert (received.status, received.artifact["status"]) == ("error", status)
    assert re.search(words, received.content)
    assert received.content == received.artifact["error"]["message"]
    assert state["messages"][-1].content == "so be it"


@pytest.mark.parametrize(("name", "arguments", "status", "words"), EXECUTED)
async def test_the_same_by_the_middleware(
    service: ToolService, name: str, arguments: dict[str, Any], status: str, words: str
) -> None:
    hub = HubMiddleware(service, timeout=seconds_for(status))
    state = await create_agent(scripted((name, arguments), "so be it"), middleware=[hub]).ainvoke(ASKED)
    (received,) = tool_messages(state)
    assert (received.status, received.artifact["status"]) == ("error", status)
    assert re.search(words, received.content)
    assert state["messages"][-1].content == "so be it"


def unreadable(name: str, arguments: str, id: str) -> dict[str, str]:
    """What LangChain makes of a call whose arguments it cannot read."""
    return {"name": name, "args": arguments, "id": id, "error": "no JSON", "type": "invalid_tool_call"}


@pytest.mark.parametrize(("name", "arguments", "status", "words"), UNREADABLE)
async def test_unreadable_arguments_are_reported_and_the_model_tries_again(
    service: ToolService, name: str, arguments: str, status: str, words: str
) -> None:
    broken = AIMessage("", invalid_tool_calls=[unreadable(name, arguments, "broken")])
    mended = AIMessage("", tool_calls=[{"name": name, "args": {"query": "weirs"}, "id": "mended"}])
    hub = HubMiddleware(service)
    for is_blocking in (False, True):
        model = Scripted(messages=iter([broken, mended, AIMessage("about weirs")]), offered=[])
        agent = create_agent(model, middleware=[hub])
        state = await (asyncio.to_thread(agent.invoke, ASKED) if is_blocking else agent.ainvoke(ASKED))
        refused, found = tool_messages(state)
        assert (refused.tool_call_id, refused.status, refused.artifact["status"]) == ("broken", "error", status)
        assert re.search(words, refused.content)
        assert found.artifact["structured_content"]["found"] == "a document about weirs"
        assert state["messages"][-1].content == "about weirs"


async def test_valid_calls_beside_an_invalid_one_are_executed(service: ToolService) -> None:
    both = AIMessage(
        "",
        tool_calls=[{"name": "mcp_docs_search", "args": {"query": "weirs"}, "id": "read"}],
        invalid_tool_calls=[unreadable("mcp_docs_search", "{", "broken"), unreadable("elsewhere", "{", "another")],
    )
    model = Scripted(messages=iter([both, AIMessage("about weirs")]), offered=[])
    state = await create_agent(model, middleware=[HubMiddleware(service)]).ainvoke(ASKED)
    received = {each.tool_call_id: each.artifact for each in tool_messages(state) if each.artifact is not None}
    assert {call: record["status"] for call, record in received.items()} == {
        "broken": "invalid_parameters",
        "another": "invalid_parameters",
        "read": "success",
    }
    assert state["messages"][-1].content == "about weirs"


async def test_a_model_is_not_asked_again_before_each_of_its_calls_is_answered(service: ToolService) -> None:
    broken = [unreadable("mcp_docs_search", "{", "broken"), unreadable("elsewhere", "{", "another")]
    model = Scripted(messages=iter([AIMessage("", invalid_tool_calls=broken), AIMessage("I give up")]), offered=[])
    state = await create_agent(model, middleware=[HubMiddleware(service)]).ainvoke(ASKED)
    # Providers refuse a conversation in which a call has no answer.
    assert [each.tool_call_id for each in tool_messages(state)] == ["broken", "another"]
    assert state["messages"][-1].content == "I give up"


async def test_an_unreadable_call_of_a_made_up_name_is_answered_and_one_of_another_s_tool_is_not(
    service: ToolService,
) -> None:
    @langchain_tool
    def others(text: str) -> str:
        """Somebody else's."""
        return text

    for name, answered in (("made_up", ["broken"]), ("others", [])):
        broken = AIMessage("", invalid_tool_calls=[unreadable(name, "{", "broken")])
        model = Scripted(messages=iter([broken, AIMessage("I give up")]), offered=[])
        state = await create_agent(model, [others], middleware=[HubMiddleware(service)]).ainvoke(ASKED)
        assert [each.tool_call_id for each in tool_messages(state)] == answered


async def test_two_hubs_with_the_same_tool_report_a_problem_once(service: ToolService) -> None:
    broken = AIMessage("", invalid_tool_calls=[unreadable("mcp_docs_search", "{", "broken")])
    model = Scripted(messages=iter([broken, AIMessage("I give up"), AIMessage("asked too often")]), offered=[])
    hubs = [HubMiddleware(service, ["docs.search"]), _Another(service, ["docs.search"])]
    state = await create_agent(model, middleware=hubs).ainvoke(ASKED)
    assert [each.tool_call_id for each in tool_messages(state)] == ["broken"]
    assert state["messages"][-1].content == "I give up"


class _Another(HubMiddleware):
    """LangChain takes no two of the same name."""


async def test_a_model_that_never_learns_it_is_not_asked_for_ever(service: ToolService) -> None:
    broken = (AIMessage("", invalid_tool_calls=[unreadable("mcp_docs_go", "{", f"c{turn}")]) for turn in count())
    state = await create_agent(
        Scripted(messages=broken, offered=[]), middleware=[HubMiddleware(service, ["docs.go"])]
    ).ainvoke(ASKED)
    assert [each.artifact["status"] for each in tool_messages(state)] == ["invalid_parameters"] * 4


async def test_of_a_list_of_tools_it_is_langgraph_that_answers_other_names(service: ToolService) -> None:
    tools = await hub_tools(service, ["docs.search"])
    state = await create_agent(scripted(("mcp_docs_serch", {}), "so be it"), tools).ainvoke(ASKED)
    (received,) = tool_messages(state)
    assert (received.status, received.artifact) == ("error", None), (
        "docs/library.md says so, and names what to use instead"
    )


@pytest.mark.parametrize(("name", "user", "status", "words"), MISSES)
async def test_an_unlisted_name_is_answered_with_its_status(
    service: ToolService, name: str, user: UserContext | None, status: str, words: str
) -> None:
    hub = HubMiddleware(service, user_context=user)
    state = await create_agent(scripted((name, {}), "so be it"), middleware=[hub]).ainvoke(ASKED)
    (received,) = tool_messages(state)
    assert (received.status, received.name, received.artifact["status"]) == ("error", name, status)
    assert received.content.startswith(words)
    assert received.content == received.artifact["error"]["message"]
    assert state["messages"][-1].content == "so be it"
    blocking = create_agent(scripted((name, {}), "well"), middleware=[hub])
    assert tool_messages(await asyncio.to_thread(blocking.invoke, ASKED))[0].artifact == received.artifact


@pytest.mark.parametrize("is_blocking", [True, False])
async def test_a_refusal_is_in_the_audit_log_once(tmp_path: Path, *, is_blocking: bool) -> None:
    async with audited(tmp_path) as service:
        names = ["mcp_builtin_ech", "mcp_builtin_timestamp", "mcp_builtin_echo"]
        broken = [unreadable("mcp_builtin_echo", "{", "broken"), unreadable("made_up", "{", "another")]
        messages = [
            AIMessage("", tool_calls=[{"name": name, "args": {"text": "hi"}, "id": name} for name in names]),
            AIMessage("", invalid_tool_calls=broken),
            AIMessage("", tool_calls=[{"name": "mcp_builtin_chat_log", "args": {"message": "hi"}, "id": "asked"}]),
            AIMessage("so be it"),
        ]
        hubs = [
            HubMiddleware(service, user_context=SUE, needs_approval=["chat_log"]),
            _Another(service, ["echo"], SUE),
        ]
        model = Scripted(messages=iter(messages), offered=[])
        agent = create_agent(model, middleware=hubs, checkpointer=InMemorySaver())
        for said in (ASKED, Command(resume=False)):
            config = {"configurable": {"thread_id": "talk"}}
            invoke = asyncio.to_thread(agent.invoke, said, config) if is_blocking else agent.ainvoke(said, config)
            state = await invoke
        assert state["messages"][-1].content == "so be it"
    assert sorted(await refused_in(tmp_path)) == sorted(
        [*LOGGED, ("builtin.echo", "bad_arguments"), ("made_up", "bad_arguments"), ("builtin.chat_log", "not_approved")]
    )


async def test_a_name_that_one_hub_does_not_have_may_be_anothers(service: ToolService) -> None:
    class Other(HubMiddleware):
        """LangChain takes one middleware of a name."""

    hubs = [HubMiddleware(service, ["echo"]), Other(service, ["docs.search"])]
    model = scripted(("mcp_docs_search", {"query": "weirs"}), ("mcp_docs_index", {"steps": 1}), "done")
    received = tool_messages(await create_agent(model, middleware=hubs).ainvoke(ASKED))
    assert [each.artifact["status"] for each in received] == ["success", "not_found"]


@pytest.mark.parametrize("is_denied_first", [True, False])
async def test_of_several_hubs_the_one_that_denies_counts(service: ToolService, *, is_denied_first: bool) -> None:
    class Other(HubMiddleware):
        """LangChain takes one middleware of a name."""

    async with ToolService() as other:
        hubs = [HubMiddleware(service, user_context=SEARCHER), Other(other, ["echo"])]
        model = scripted(("mcp_docs_go", {}), "well")
        agent = create_agent(model, middleware=hubs if is_denied_first else hubs[::-1])
        (received,) = tool_messages(await agent.ainvoke(ASKED))
    assert received.artifact["status"] == "unauthorized"


async def test_a_tool_node_can_name_the_hub_for_other_names(service: ToolService) -> None:
    hub = HubMiddleware(service, user_context=SEARCHER)
    tools = await hub_tools(service, user_context=SEARCHER)
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools, awrap_tool_call=hub.awrap_tool_call))
    graph.set_entry_point("tools")
    calls = [{"name": name, "args": {"query": "a"}, "id": name} for name in ("mcp_docs_search", "mcp_docs_go")]
    state = await graph.compile().ainvoke({"messages": [AIMessage("", tool_calls=calls)]})
    assert [each.artifact["status"] for each in tool_messages(state)] == ["success", "unauthorized"]


async def test_a_node_of_the_hub_gives_the_model_its_tools_and_nothing_else(service: ToolService, folder: Path) -> None:
    node = await hub_tool_node(service, ["docs.search", "docs.erase"], ALL_BUT_GO, needs_approval=["erase"])
    assert list(node.tools_by_name) == ["mcp_docs_search", "mcp_docs_erase"]
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.set_entry_point("tools")
    names = ["mcp_docs_search", "mcp_docs_serch", "mcp_docs_index", "mcp_docs_go"]
    calls = [{"name": name, "args": {"query": "a"}, "id": name} for name in names]
    said = {"messages": [AIMessage("", tool_calls=calls)]}
    expected = ["success", "not_found", "not_found", "unauthorized"]
    assert [each.artifact["status"] for each in tool_messages(await graph.compile().ainvoke(said))] == expected
    blocking = await asyncio.to_thread(graph.compile().invoke, said)
    assert [each.artifact["status"] for each in tool_messages(blocking)] == expected
    erase = AIMessage("", tool_calls=[{"name": "mcp_docs_erase", "args": {"path": "node"}, "id": "e"}])
    agent = graph.compile(checkpointer=InMemorySaver())
    state = await agent.ainvoke({"messages": [erase]}, {"configurable": {"thread_id": "node"}})
    assert [each.value["tool"] for each in state["__interrupt__"]] == ["docs.erase"]


def test_langgraph_may_call_its_words_otherwise() -> None:
    code = (
        "import langgraph.prebuilt.tool_node as node; del node.INVALID_TOOL_NAME_ERROR_TEMPLATE\n"
        "import isthmus.integrations.langchain as integration\n"
        "assert integration.INVALID_TOOL_NAME.format(requested_tool='a', available_tools='b').startswith('Error: a is')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_the_conversation_may_be_read_from_the_configuration(service: ToolService) -> None:
    (search,) = await hub_tools(service, ["docs.search"], session_id=lambda config: config["metadata"]["room"])
    response = await search.ainvoke({"query": "weirs"}, {"metadata": {"room": "r1"}})
    assert '"isthmus/session":"r1"' in response.replace(" ", "")


async def test_a_failure_can_be_had_as_an_exception(service: ToolService) -> None:
    (refuse,) = await hub_tools(service, ["docs.refuse"])
    refuse.handle_tool_error = False
    with pytest.raises(HubToolException, match="the archive is closed") as caught:
        await refuse.ainvoke({})
    assert caught.value.result.status == "error"


async def test_cancelling_the_wait_cancels_the_tool(service: ToolService, folder: Path) -> None:
    (hang,) = await hub_tools(service, ["docs.hang"], on_event=lambda chunk: started.set())
    started = asyncio.Event()
    running = asyncio.create_task(hang.ainvoke({"token": "chain"}))
    await asyncio.wait_for(started.wait(), SECONDS)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_for_note(folder, "cancelled chain")


@pytest.mark.parametrize(
    ("reply", "ending", "words"),
    [
        (True, "success", "is gone"),
        ({"decisions": [{"type": "approve"}]}, "success", "is gone"),
        (False, "unauthorized", "it was not approved."),
        ({"type": "reject", "message": "too risky"}, "unauthorized", "it was not approved (too risky)."),
        ({"decisions": [{"type": "reject", "message": "too risky"}]}, "unauthorized", "(too risky)"),
        ({"decisions": [{"type": "approve"}, {"type": "reject"}]}, "unauthorized", "it was not approved."),
        ({"decisions": []}, "unauthorized", "it was not approved."),
        ("yes", "unauthorized", "it was not approved."),
    ],
)
async def test_a_tool_that_needs_approval_waits_for_it(
    service: ToolService, folder: Path, reply: Any, ending: str, words: str
) -> None:
    path = f"chain {reply}"
    tools = await hub_tools(service, ["docs.erase", "docs.search"], needs_approval=["docs.erase"])
    agent = create_agent(scripted(("mcp_docs_erase", {"path": path}), "well"), tools, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": path}}
    state = await agent.ainvoke(ASKED, config)
    (question,) = state["__interrupt__"]
    assert question.value == {"type": "approval", "tool": "docs.erase", "parameters": {"path": path}}
    state = await agent.ainvoke(Command(resume=reply), config)
    (received,) = tool_messages(state)
    assert (received.artifact["status"], words in received.content) == (ending, True)
    noted = (folder / "ledger").read_text() if (folder / "ledger").exists() else ""
    assert (f"erased {path}" in noted) == (ending == "success")


async def test_added_tools_are_offered_at_the_next_turn(service: ToolService) -> None:
    model = scripted(("mcp_docs_grow", {"name": "chained"}), ("mcp_docs_chained", {}), "grown")

    async def is_listed() -> bool:
        return "docs.chained" in await service.list_tools()

    class Patient(HubMiddleware):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            if len(model.offered) == 1:
                await wait_until(is_listed)
            return await super().awrap_model_call(request, handler)

    state = await create_agent(model, middleware=[Patient(service)]).ainvoke(ASKED)
    assert "mcp_docs_chained" not in model.offered[0]
    assert "mcp_docs_chained" in model.offered[1]
    assert [each.content for each in tool_messages(state)] == ["chained", "went"]


def test_live_tools_without_a_loop(service: ToolService) -> None:
    model = scripted(("mcp_docs_search", {"query": "rafts"}), "done")
    state = create_agent(model, middleware=[HubMiddleware(service, ["search"])]).invoke(ASKED)
    assert model.offered == [["mcp_docs_search"]] * 2
    assert tool_messages(state)[0].artifact["status"] == "success"


async def test_a_run_gets_the_tools_of_its_own_user(service: ToolService) -> None:
    names = ["docs.search", "docs.erase"]
    hub = HubMiddleware(service, names, lambda config: config["configurable"].get("user"))
    model = scripted("nothing to do", "nothing to do")
    agent = create_agent(model, middleware=[hub])
    await agent.ainvoke(ASKED, {"configurable": {"user": SEARCHER}})
    await agent.ainvoke(ASKED)
    assert model.offered == [["mcp_docs_search"], ["mcp_docs_search", "mcp_docs_erase"]]


async def test_arguments_may_have_any_name(service: ToolService) -> None:
    def clashing(self: str, config: str, run_manager: str, callbacks: str = "none") -> str:
        """All names that the framework uses itself."""
        return f"{self} {config} {run_manager} {callbacks}"

    tool(clashing)
    try:
        arguments = {"self": "a", "config": "b", "run_manager": "c", "callbacks": "d"}
        (built,) = await hub_tools(service, ["clashing"])
        assert await built.ainvoke(arguments) == "a b c d"
    finally:
        tool.remove("clashing")


@pytest.mark.parametrize(
    "members", [{"how": {"$ref": "#/definitions/Lost"}}, {"how": {}, "$ref": {"type": "string"}}], ids=["lost", "named"]
)
async def test_a_tool_whose_schema_langchain_cannot_read_costs_no_other_its_place(
    service: ToolService, members: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    class Torn(Tool):
        async def execute(self, tool_request: ToolRequest) -> ToolResult:
            return ToolResult(self.full_name, ToolStatus.SUCCESS, result_data="whole")

    name = f"torn_{request.node.callspec.id}"
    schema = {"type": "object", "properties": {"inner": {"properties": members}, **members}, "required": list(members)}
    service.register_tool(Torn(name, parameters_schema=schema))
    model = scripted(
        (f"mcp_builtin_{name}", {"how": 7, "$ref": "any"}), ("mcp_docs_search", {"query": "locks"}), "done"
    )
    state = await create_agent(model, middleware=[HubMiddleware(service)]).ainvoke(ASKED)
    assert [message.artifact["status"] for message in tool_messages(state)] == ["success", "success"]


async def test_a_server_is_not_asked_for_its_list_at_every_turn(tmp_path: Path) -> None:
    async with counted(tmp_path) as (service, lists):
        before = lists()
        model = scripted(*[("mcp_counted_tick", {})] * 5, "done")
        state = await create_agent(model, middleware=[HubMiddleware(service)]).ainvoke(ASKED)
        assert [each.content for each in tool_messages(state)] == ["tock"] * 5
        assert lists() == before


async def test_a_picture_is_shown_as_one(service: ToolService) -> None:
    (picture,) = await hub_tools(service, ["docs.picture"])
    text, image = await picture.ainvoke({})
    assert (text["text"], image["type"], image["mime_type"]) == ("a pixel", "image", "image/png")


async def test_an_image_that_models_do_not_accept_is_named(service: ToolService) -> None:
    (drawing,) = await hub_tools(service, ["docs.drawing"])
    assert await drawing.ainvoke({}) == "a line\n[image image/svg+xml, 70 bytes]"


async def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    await run_example("langgraph_agent")
    said = capsys.readouterr().out
    expected = [
        "meanwhile: reading the archive",
        "told:      success {'words': 4",
        "refused:   not_found There is no tool 'mcp_workshop_mesure'. Did you mean mcp_workshop_measure?",
        "answer:    Four words.",
    ]
    assert [words for words in expected if words not in said] == []


async def test_the_example_runs_with_a_server_that_logs_too(capsys: pytest.CaptureFixture[str]) -> None:
    await run_example("langgraph_agent", is_chatty=True)
    assert "answer:    Four words." in capsys.readouterr().out
