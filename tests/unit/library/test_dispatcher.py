from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, Field

from isthmus.library import (
    BlockingToolService,
    Dispatcher,
    ToolContext,
    ToolDef,
    ToolRegistry,
    ToolService,
    UserContext,
    UserPermissions,
    tool,
)
from isthmus.library.dispatcher import Dispatched, ModelCall, Provider, calls_in, messages_for
from isthmus.library.public_types import ToolResult, ToolStatus, ToolStreamChunk

ECHO = "mcp_builtin_echo"
IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


@pytest.fixture
async def service() -> AsyncIterator[ToolService]:
    async with ToolService() as made:
        yield made


# -- what a provider is sent -------------------------------------------------------------------------------------------


async def test_tools_have_the_form_of_each_provider(service: ToolService) -> None:
    dispatcher = Dispatcher(service, ["echo"])
    (chat,) = await dispatcher.tools("chat_completions")
    (responses,) = await dispatcher.tools("responses")
    (anthropic,) = await dispatcher.tools("anthropic")
    (gemini,) = await dispatcher.tools("gemini")
    schema = chat["function"]["parameters"]
    assert schema["type"] == "object"
    assert (chat["type"], chat["function"]["name"]) == ("function", ECHO)
    assert (responses["type"], responses["name"], responses["strict"]) == ("function", ECHO, False)
    assert (anthropic["name"], anthropic["input_schema"]) == (ECHO, schema)
    assert [each["name"] for each in gemini["functionDeclarations"]] == [ECHO]
    with pytest.raises(ValueError, match="'openia'"):
        await dispatcher.tools("openia")  # type: ignore[arg-type]


async def test_openai_s_form_is_the_same_here_and_in_a_registry_unless_another_is_asked_for(
    service: ToolService,
) -> None:
    dispatcher = Dispatcher(service, ["echo"])
    (echo,) = await service.universal_tools(UserContext("ann", permissions=UserPermissions(["builtin.echo"])))
    registry = ToolRegistry([ToolDef(ECHO, echo.description, echo.parameters_schema, print)])
    assert await dispatcher.tools() == await dispatcher.tools("openai") == registry.to_openai_schema()
    assert await asyncio.to_thread(dispatcher.tools_blocking) == registry.to_openai_schema()
    assert await dispatcher.tools("chat_completions") == registry.to_openai_schema("chat_completions")


@pytest.mark.parametrize("name", ["user_context", "session_id", "headers"])
async def test_a_function_is_refused_since_there_is_nothing_to_ask_it_with(service: ToolService, name: str) -> None:
    given: dict[str, Any] = {name: lambda _: None}
    with pytest.raises(TypeError, match=f"{name} must be a value, not a function: A Dispatcher "):
        Dispatcher(service, **given)


# -- what a model replied ----------------------------------------------------------------------------------------------

CHAT = {"id": "c1", "type": "function", "function": {"name": ECHO, "arguments": '{"text":"hi"}'}}
RESPONSES = {"type": "function_call", "id": "fc", "call_id": "c1", "name": ECHO, "arguments": '{"text":"hi"}'}
ANTHROPIC = {"type": "tool_use", "id": "c1", "name": ECHO, "input": {"text": "hi"}}
GEMINI = {"functionCall": {"id": "c1", "name": ECHO, "args": {"text": "hi"}}}


@pytest.mark.parametrize(
    ("provider", "reply"),
    [
        ("chat_completions", CHAT),
        ("chat_completions", [CHAT]),
        ("chat_completions", {"role": "assistant", "content": None, "tool_calls": [CHAT]}),
        ("chat_completions", {"choices": [{"index": 0, "message": {"content": "let me see", "tool_calls": [CHAT]}}]}),
        ("responses", RESPONSES),
        ("responses", {"output": [{"type": "reasoning", "summary": []}, RESPONSES]}),
        ("anthropic", ANTHROPIC),
        ("anthropic", {"role": "assistant", "content": [{"type": "text", "text": "let me see"}, ANTHROPIC]}),
        ("gemini", GEMINI),
        ("gemini", {"function_call": GEMINI["functionCall"]}),
        ("gemini", {"candidates": [{"content": {"role": "model", "parts": [{"text": "let me see"}, GEMINI]}}]}),
    ],
)
def test_calls_are_found_in_the_replies_of_each_provider(provider: Provider, reply: Any) -> None:
    assert calls_in(reply) == [ModelCall(provider, "c1", ECHO, {"text": "hi"})]


async def test_a_call_as_openai_had_them_before_keeps_its_arguments(service: ToolService) -> None:
    message = {"role": "assistant", "content": None, "function_call": {"name": ECHO, "arguments": '{"text":"hi"}'}}
    assert calls_in(message) == [ModelCall("chat_completions", None, ECHO, {"text": "hi"})]
    assert await Dispatcher(service).dispatch(message) == [{"role": "function", "name": ECHO, "content": "hi"}]


class Function(BaseModel):
    name: str
    arguments: str


class Call(BaseModel):
    id: str
    function: Function


class Part(BaseModel):
    function_call: dict[str, Any] | None = Field(default=None, serialization_alias="functionCall")
    text: str | None = None


def test_a_provider_s_own_objects_are_understood() -> None:
    (call,) = calls_in([Call(id="c1", function=Function(name=ECHO, arguments="{}"))])
    assert call == ModelCall("chat_completions", "c1", ECHO, {})
    (call,) = calls_in([Part(text="let me see"), Part(function_call={"name": ECHO})])
    assert call == ModelCall("gemini", None, ECHO, {})
    (call,) = calls_in((MappingProxyType(CHAT),))
    assert (call.id, call.name) == ("c1", ECHO)


@pytest.mark.parametrize("reply", [object(), [object()], {"choices": [object()]}, b"{}"])
def test_an_unreadable_reply_is_refused_instead_of_having_no_calls(reply: Any) -> None:
    with pytest.raises(TypeError, match=r"not (object|bytes): pass what its API returned"):
        calls_in(reply)


async def test_a_reply_that_was_not_awaited_is_refused() -> None:
    async def answer() -> dict[str, Any]:
        return {}

    late = answer()
    with pytest.raises(TypeError, match="not coroutine"):
        calls_in(late)
    await late


@pytest.mark.parametrize("reply", ["hello", None, 7, {}, [], {"content": "hello"}, {"choices": []}, {"type": "text"}])
def test_a_reply_without_calls_has_none(reply: Any) -> None:
    assert calls_in(reply) == []


# -- from the call to the answer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (CHAT, {"role": "tool", "tool_call_id": "c1", "content": "hi"}),
        (RESPONSES, {"type": "function_call_output", "call_id": "c1", "output": "hi"}),
        (
            ANTHROPIC,
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "hi"}]}],
            },
        ),
    ],
)
async def test_each_provider_gets_its_own_message(service: ToolService, call: Any, message: dict[str, Any]) -> None:
    assert await Dispatcher(service).dispatch(call) == [message]
    assert await asyncio.to_thread(Dispatcher(service).dispatch_blocking, call) == [message]


async def test_gemini_is_answered_in_its_own_words(service: ToolService) -> None:
    (message,) = await Dispatcher(service).dispatch(GEMINI)
    assert message["role"] == "user"
    (part,) = message["parts"]
    assert (part["functionResponse"]["name"], part["functionResponse"]["id"]) == (ECHO, "c1")
    assert "hi" in json.dumps(part["functionResponse"]["response"]["output"])
    (message,) = await Dispatcher(service).dispatch({"functionCall": {"name": "nothing"}})
    assert "There is no tool 'nothing'" in message["parts"][0]["functionResponse"]["response"]["error"]


def test_calls_of_one_reply_are_answered_in_one_message_where_that_is_wanted() -> None:
    done = [
        Dispatched(ModelCall("anthropic", str(number), "f", {}), ToolResult("f", ToolStatus.SUCCESS))
        for number in range(3)
    ]
    (message,) = messages_for(done)
    assert [block["tool_use_id"] for block in message["content"]] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("provider", "shown"),
    [
        ("chat_completions", "a pixel\n[image image/png, 3 bytes]"),
        (
            "responses",
            [
                {"type": "input_text", "text": "a pixel"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            ],
        ),
        (
            "anthropic",
            [
                {"type": "text", "text": "a pixel"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ],
        ),
    ],
)
def test_pictures_are_shown_where_the_provider_takes_them(provider: Provider, shown: Any) -> None:
    result = ToolResult("f", ToolStatus.SUCCESS, metadata={"content": [{"type": "text", "text": "a pixel"}, IMAGE]})
    (message,) = messages_for([Dispatched(ModelCall(provider, "c1", "f", {}), result)])
    block = message["content"][0] if provider == "anthropic" else message
    assert (block["output"] if provider == "responses" else block["content"]) == shown


@pytest.mark.parametrize("content", [[], [{"type": "text", "text": ""}], [{"type": "text", "text": " \n"}]])
def test_a_silent_tool_gets_an_empty_answer(content: Any) -> None:
    # Anthropic refuses a conversation with a block of text that has none.
    result = ToolResult("f", ToolStatus.SUCCESS, metadata={"content": content})
    (message,) = messages_for([Dispatched(ModelCall("anthropic", "c1", "f", {}), result)])
    assert message["content"] == [{"type": "tool_result", "tool_use_id": "c1", "content": []}]


ANN = UserContext("ann", permissions=UserPermissions(["builtin.echo"]))


@pytest.mark.parametrize(
    ("call", "status", "words"),
    [
        ({**ANTHROPIC, "name": "mcp_builtin_ehco"}, "not_found", "Did you mean mcp_builtin_echo"),
        ({**ANTHROPIC, "name": "mcp_builtin_timestamp"}, "unauthorized", "'ann' may not use builtin.timestamp"),
        ({**ANTHROPIC, "input": {"text": 7}}, "invalid_parameters", "text"),
        ({**ANTHROPIC, "input": [7]}, "invalid_parameters", "not a JSON object"),
        ({**RESPONSES, "arguments": "{nonsense"}, "invalid_parameters", "not a JSON object"),
    ],
)
async def test_a_call_that_cannot_be_executed_is_answered_with_why(
    service: ToolService, call: Any, status: str, words: str
) -> None:
    (done,) = await Dispatcher(service, user_context=ANN).execute(call)
    assert done.result.status == status
    assert words in json.dumps(messages_for([done]))


async def test_a_failure_is_marked_where_the_provider_has_a_mark(service: ToolService) -> None:
    (message,) = await Dispatcher(service).dispatch({**ANTHROPIC, "input": {}})
    assert message["content"][0]["is_error"] is True


async def test_unselected_tools_cannot_be_called(service: ToolService) -> None:
    (done,) = await Dispatcher(service, ["timestamp"]).execute(CHAT)
    assert done.result.status == "not_found"


async def test_a_call_waits_for_approval(service: ToolService) -> None:
    dispatcher = Dispatcher(service, needs_approval=["echo"])
    assert [call.id for call in await dispatcher.waiting([CHAT])] == ["c1"]
    assert [call.id for call in await dispatcher.waiting([{**CHAT, "function": {"name": "unknown"}}])] == []
    (refused,) = await dispatcher.execute(CHAT)
    (agreed,) = await dispatcher.execute(CHAT, approved=["c1"])
    assert (refused.result.status, agreed.result.status) == ("unauthorized", "success")


@pytest.mark.parametrize("id_", [None, "c1"])
async def test_identical_calls_each_wait_for_their_own_approval(service: ToolService, id_: str | None) -> None:
    dispatcher = Dispatcher(service, needs_approval=True)
    calls = [{"name": ECHO, "args": {"text": text}} for text in ("a", "b", "c")]
    reply = [{"functionCall": call if id_ is None else {**call, "id": id_}} for call in calls]
    keys = [call.key for call in await dispatcher.waiting(reply)]
    assert keys[0] == (id_ or ECHO)
    for place, key in enumerate(keys):
        done = await dispatcher.execute(reply, approved=[key])
        assert [each.result.is_success for each in done] == [number == place for number in range(3)]


@pytest.fixture
def meeting() -> Iterator[None]:
    """A tool that ends once so many calls of it run."""
    come: list[str] = []
    all_there: dict[str, asyncio.Event] = {}

    @tool
    async def meeting(name: str, count: int, context: ToolContext) -> str:
        """Wait for the others."""
        event = all_there.setdefault("here", asyncio.Event())
        come.append(name)
        context.progress(len(come), count)
        if len(come) == count:
            event.set()
        await event.wait()
        return f"{name} in {context.session}"

    yield
    tool.remove("meeting")


@pytest.mark.usefixtures("meeting")
async def test_calls_of_one_reply_run_side_by_side_and_are_answered_in_order(service: ToolService) -> None:
    received: list[float] = []
    dispatcher = Dispatcher(
        service, ["meeting"], session_id="room", on_event=lambda chunk: received.append(chunk.content["progress"])
    )
    calls = [
        {"type": "tool_use", "id": name, "name": "mcp_builtin_meeting", "input": {"name": name, "count": 3}}
        for name in ("ann", "bob", "eve")
    ]
    (message,) = await asyncio.wait_for(dispatcher.dispatch(calls), 10)
    assert [block["content"][0]["text"] for block in message["content"]] == [
        "ann in room",
        "bob in room",
        "eve in room",
    ]
    assert sorted(received) == [1, 2, 3]


@pytest.fixture
def sleeping() -> Iterator[threading.Event]:
    """A tool that reports its cancellation."""
    cancelled = threading.Event()

    @tool
    async def sleeping(context: ToolContext) -> str:
        """Wait for ever."""
        context.progress(1)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    yield cancelled
    tool.remove("sleeping")


async def test_a_listener_that_raises_ends_all_calls_of_the_reply(
    service: ToolService, sleeping: threading.Event
) -> None:
    received: list[str] = []

    def fail(chunk: ToolStreamChunk) -> None:
        received.append(chunk.tool_name)
        if len(received) == 2:
            raise ValueError("deaf")

    calls = [{**ANTHROPIC, "id": name, "name": "mcp_builtin_sleeping", "input": {}} for name in ("a", "b")]
    before = asyncio.all_tasks()
    with pytest.raises(ValueError, match="deaf"):
        await asyncio.wait_for(Dispatcher(service, on_event=fail).execute(calls), 10)
    assert asyncio.all_tasks() == before
    assert await asyncio.to_thread(sleeping.wait, 10)


async def test_cancelling_the_wait_cancels_all_calls_of_the_reply(
    service: ToolService, sleeping: threading.Event
) -> None:
    received = asyncio.Event()
    calls = [{**ANTHROPIC, "id": name, "name": "mcp_builtin_sleeping", "input": {}} for name in ("a", "b")]
    running = asyncio.create_task(Dispatcher(service, on_event=lambda chunk: received.set()).execute(calls))
    await asyncio.wait_for(received.wait(), 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(sleeping.wait, 10)


def test_without_asyncio_calls_are_executed_one_after_the_other() -> None:
    with BlockingToolService() as tools:
        dispatcher = Dispatcher(tools.service)
        assert ECHO in [each["name"] for each in dispatcher.tools_blocking("anthropic")]
        work = dispatcher.execute([{**CHAT, "function": {"name": "nothing"}}, {**CHAT, "function": {"name": "nobody"}}])
        with pytest.raises(StopIteration) as ended:  # nothing has to be waited for
            work.send(None)
    assert [done.result.tool_name for done in ended.value.value] == ["nothing", "nobody"]
