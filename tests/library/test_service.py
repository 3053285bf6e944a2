"""A service and its real servers: outcomes of tools, events while they run, and features beside tools."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import json
import pickle
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.core.settings import Limits
from isthmus.library import (
    AmbiguousToolError,
    ConfigurationError,
    ErrorCode,
    ErrorPayload,
    MCPServerConfig,
    Questions,
    ServiceClosedError,
    Tool,
    ToolContext,
    ToolExecutionError,
    ToolNotFoundError,
    ToolRequest,
    ToolResult,
    ToolService,
    ToolStatus,
    ToolStreamChunk,
    UserContext,
    UserPermissions,
    tool,
)
from isthmus.library.outcomes_to_results import CODES, STATUSES, result_from
from isthmus.model.calls import Result
from isthmus.model.fault_table import Bug, Fault, ServerError, leaves
from isthmus.model.names import ServerName
from tests.conftest import children
from tests.library.services import pay, raw_server, wait_for_line, with_servers
from tests.peers import content
from tests.peers.launch import command

pytestmark = pytest.mark.xdist_group("library_service")

MOST = Limits().hard_seconds


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ToolService]:
    made = ToolService()
    await made.initialize(with_servers(raw_server(ledger=tmp_path / "ledger.jsonl")))
    async with made:
        yield made


def noted(tmp_path: Path, word: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    return [line for line in lines if word in json.dumps(line)]


async def test_a_copied_object_keeps_the_same_service(service: ToolService) -> None:
    holder = copy.deepcopy({"agent": [service, copy.copy(service)]})
    assert holder["agent"] == [service, service]
    assert (await holder["agent"][0].execute_tool(pay("copied"))).is_success
    with pytest.raises(TypeError, match=r"or an object that has one, cannot be pickled.*one in each process"):
        pickle.dumps(holder)


# -- each way of ending ------------------------------------------------------------------------------------------------


async def test_a_success_has_the_data_and_the_content(service: ToolService) -> None:
    result = await service.execute_tool(pay("one", session_id="talk"))
    assert (result.status, result.result_data, result.error) == (ToolStatus.SUCCESS, "one", None)
    assert result.tool_name == "raw.pay"
    assert result.tool_namespace == "raw"
    assert result.session_id == "talk"
    assert result.metadata["content"] == [{"type": "text", "text": "one"}]
    assert result.execution_time is not None
    assert result.is_success
    assert result.text == "one"


async def test_every_failure_has_its_own_status_and_says_whether_the_tool_ran(service: ToolService) -> None:
    ada = UserContext("ada", permissions=UserPermissions(["builtin"]))
    endings = {
        ToolStatus.NOT_FOUND: ToolRequest("raw.payy"),
        ToolStatus.UNAUTHORIZED: pay("denied", user_context=ada),
        ToolStatus.INVALID_PARAMETERS: ToolRequest("raw.pay", parameters={"nonce": 7}),
        ToolStatus.TIMEOUT: pay("late", "hang", timeout=0.2),
        ToolStatus.UNAVAILABLE: pay("dying", "die_after_ledger"),
    }
    results = {status: await service.execute_tool(request) for status, request in endings.items()}
    assert {status: result.status for status, result in results.items()} == {status: status for status in endings}
    errors = {status: result.error for status, result in results.items() if result.error is not None}
    assert {status: error.code for status, error in errors.items()} == {status: CODES[status] for status in endings}
    assert {status: error.executed for status, error in errors.items()} == {
        ToolStatus.NOT_FOUND: "no",
        ToolStatus.UNAUTHORIZED: "no",
        ToolStatus.INVALID_PARAMETERS: "no",
        ToolStatus.TIMEOUT: "unknown",
        ToolStatus.UNAVAILABLE: "unknown",
    }
    assert len({result.error_message for result in results.values()}) == len(endings)
    assert "raw.pay" in str(results[ToolStatus.NOT_FOUND].error_message)
    assert "ada" in str(results[ToolStatus.UNAUTHORIZED].error_message)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "Encoding objects of type object is unsupported"),
        (float("nan"), "nan cannot be written as JSON"),
        ([{"deep": float("-inf")}], "-inf cannot be written as JSON"),
    ],
)
async def test_arguments_that_are_not_json_are_reported_and_nothing_is_sent(
    service: ToolService, tmp_path: Path, value: object, said: str
) -> None:
    result = await service.execute_tool(ToolRequest("raw.pay", parameters={"nonce": "never", "more": value}))
    assert result.status is ToolStatus.INVALID_PARAMETERS
    assert result.error_message == f"Invalid arguments for raw.pay: {said}"
    plain = await service.execute_tool(ToolRequest("raw.pay", parameters={"nonce": "null", "more": [None, 1.5]}))
    assert plain.is_success
    assert not noted(tmp_path, "never")


async def test_arguments_in_place_of_a_namespace_are_reported_with_their_right_place() -> None:
    async with ToolService() as service:
        result = await service.execute_tool(ToolRequest("echo", {"text": "hello"}))  # type: ignore[arg-type]
    assert result.status is ToolStatus.INVALID_PARAMETERS
    assert result.error_message == "tool_namespace must be text, not dict; give arguments as parameters={...}"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ToolRequest(None), "tool_name"),  # type: ignore[arg-type]
        (ToolRequest("echo", 7), "tool_namespace"),  # type: ignore[arg-type]
        (ToolRequest("echo", user_context={"user_id": "ada"}), "user_context"),  # type: ignore[arg-type]
        (ToolRequest("raw.pay", user_context="ada"), "user_context"),  # type: ignore[arg-type]
        (ToolRequest("echo", user_context=UserContext(["ada"])), "user_context.user_id"),  # type: ignore[arg-type]
        (ToolRequest("echo", user_context=UserContext("ada\ud800")), "user_context.user_id"),
        (ToolRequest("echo", session_context={"session_id": "talk"}), "session_context"),  # type: ignore[arg-type]
        (ToolRequest("echo", metadata=["headers"]), "metadata"),  # type: ignore[arg-type]
    ],
)
async def test_a_field_of_a_wrong_type_is_reported_by_name(request_: ToolRequest, field: str) -> None:
    async with ToolService() as service:
        result = await service.execute_tool(request_)
        blocked = await asyncio.to_thread(service.blocking.execute_tool, request_)
        (chunk,) = [chunk async for chunk in service.execute_tool_stream(request_)]
    assert (result.status, blocked.status) == (ToolStatus.INVALID_PARAMETERS, ToolStatus.INVALID_PARAMETERS)
    assert str(result.error_message).startswith(f"{field} must be ")
    assert isinstance(result.tool_name, str)
    assert result.error is not None
    assert (result.error.reason, result.error.executed) == ("bad_arguments", "no")
    assert (chunk.chunk_type, chunk.is_final) == ("error", True)


async def test_callers_and_names_of_a_wrong_type_are_reported_by_that_type() -> None:
    odd: Any = 7
    async with ToolService() as service:
        for user in ("ada", {"permissions": ["*"]}):
            with pytest.raises(TypeError, match="user_context must be a UserContext"):
                await service.list_tools(user)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="the name of a tool must be a string, not int"):
            service.get_tool(odd)
        with pytest.raises(TypeError, match="the name of a tool must be a string, not int"):
            await service.resolve(odd)


@pytest.mark.parametrize("odd", ["echo", None, {"tool_name": "echo"}])
async def test_an_invalid_request_is_reported_with_the_expected_form(odd: Any) -> None:
    async with ToolService() as service:
        with pytest.raises(TypeError, match=r'expected a ToolRequest\("name", parameters=\{\.\.\.\}\), not'):
            await service.execute_tool(odd)
        with pytest.raises(TypeError, match="expected a ToolRequest"):
            await asyncio.to_thread(service.blocking.execute_tool, odd)
        with pytest.raises(TypeError, match="expected a ToolRequest"):
            await anext(service.execute_tool_stream(odd))


async def test_a_tool_that_says_no_is_an_error_and_never_a_success(service: ToolService) -> None:
    class Refusing(Tool):
        async def execute(self, tool_request: ToolRequest) -> ToolResult:
            return ToolResult(self.name, ToolStatus.ERROR, error_message="not on a Sunday")

    service.register_tool(Refusing("refuse", "mine"))
    result = await service.execute_tool(ToolRequest("mine.refuse"))
    assert result.status is ToolStatus.ERROR
    assert result.error_message == "not on a Sunday"
    assert result.error is not None
    assert result.error.executed == "yes"
    chunks = [chunk async for chunk in service.execute_tool_stream(ToolRequest("refuse"))]
    assert [(chunk.chunk_type, chunk.is_final) for chunk in chunks] == [("error", True)]


@pytest.mark.parametrize("status", [status for status in ToolStatus if status is not ToolStatus.SUCCESS])
async def test_how_a_tool_of_ones_own_ended_is_for_it_to_say(service: ToolService, status: ToolStatus) -> None:
    class Ending(Tool):
        async def execute(self, tool_request: ToolRequest) -> ToolResult:
            return ToolResult(self.name, status, error_message="as it says")

    class Streaming(Ending):
        async def execute_stream(self, tool_request: ToolRequest) -> AsyncIterator[ToolStreamChunk]:
            result = await self.execute(tool_request)
            yield ToolStreamChunk(self.name, "error", result.error_message, True, metadata={"result": result})

    service.register_tool(Ending("end", "mine"))
    service.register_tool(Streaming("flow", "mine"))
    for name in ("mine.end", "mine.flow"):
        result = await service.execute_tool(ToolRequest(name))
        assert (result.status, result.error_message, result.text) == (status, "as it says", "as it says")
        assert result.error is not None
        assert (result.error.code, result.error.executed) == (CODES[status], "yes")
        chunks = [chunk async for chunk in service.execute_tool_stream(ToolRequest(name))]
        assert [(chunk.chunk_type, chunk.content) for chunk in chunks] == [("error", "as it says")]
        assert chunks[-1].metadata["result"].status is status


async def test_an_error_of_a_custom_tool_is_kept(service: ToolService) -> None:
    busy = ErrorPayload(ErrorCode.TOOL_UNAVAILABLE, "the oven is cold", "no", "cold", retry_after=5.0)

    class Baking(Tool):
        async def execute(self, tool_request: ToolRequest) -> ToolResult:
            return ToolResult(self.name, ToolStatus.UNAVAILABLE, error=busy)

    service.register_tool(Baking("bake", "mine"))
    result = await service.execute_tool(ToolRequest("mine.bake"))
    assert (result.status, result.error_message, result.error) == (ToolStatus.UNAVAILABLE, "the oven is cold", busy)


def test_every_fault_has_a_status() -> None:
    reasons = {leaf.reason for leaf in leaves() if leaf is not Fault}
    assert reasons <= STATUSES.keys()
    assert STATUSES.keys() <= reasons
    assert set(CODES) == set(ToolStatus) - {ToolStatus.SUCCESS}


def test_an_error_of_a_hub_behind_this_one_keeps_its_status() -> None:
    data = msgspec.Raw(b'{"reason":"timed_out","executed":"no","server":"far"}')
    late = ServerError(ServerName("hub"), -32012, "late", data)
    behind = result_from(ToolRequest("x"), late, "x", None, 0.1, is_of_hub=True)
    assert (behind.status, behind.error and behind.error.server) == (ToolStatus.TIMEOUT, "far")
    other = result_from(ToolRequest("x"), late, "x", None, 0.1)
    assert (other.status, other.error and other.error.executed) == (ToolStatus.ERROR, "yes")
    odd = ServerError(ServerName("s"), -1, "odd", msgspec.Raw(b'{"reason":["x"],"executed":"perhaps"}'))
    assert result_from(ToolRequest("x"), odd, "x", None, 0.1, is_of_hub=True).status is ToolStatus.ERROR
    assert result_from(ToolRequest("x"), Bug("1"), "x", None, 0.1).status is ToolStatus.ERROR


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        ({"answer": 42}, {"answer": 42}),
        ({"answer": 42, "isError": False}, {"answer": 42, "isError": False}),
        ({"content": [{"type": "text", "text": "hi"}], "answer": 42}, "hi"),
        ({"content": []}, ""),
        ({"isError": False, "_meta": {"a": 1}}, ""),
        ({}, ""),
    ],
)
def test_a_result_without_content_is_the_result_data(answer: dict[str, Any], data: object) -> None:
    outcome = Result(msgspec.Raw(msgspec.json.encode(answer)))
    result = result_from(ToolRequest("x"), outcome, "x", None, 0.1)
    assert (result.status, result.result_data) == (ToolStatus.SUCCESS, data)


async def test_a_program_may_not_go_on_with_a_service_that_is_closed(service: ToolService) -> None:
    await service.shutdown()
    await service.shutdown()
    with pytest.raises(ServiceClosedError, match="shut down"):
        await service.execute_tool(pay("late"))
    with pytest.raises(ServiceClosedError, match="initialize"):
        await ToolService().list_tools()


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_chunks_leave_while_the_tool_runs(service: ToolService, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    stream = service.execute_tool_stream(pay("streamed", f"progress:3,until:{gate}"))
    begun = [await anext(stream) for _ in range(3)]
    assert [chunk.chunk_type for chunk in begun] == ["progress"] * 3
    assert begun[0].content["progress"] is not None
    gate.touch()  # only now can the tool end
    rest = [chunk async for chunk in stream]
    assert [chunk.chunk_type for chunk in rest] == ["data", "complete"]
    every = [*begun, *rest]
    assert [chunk.sequence_id for chunk in every] == list(range(5))
    assert [chunk.is_final for chunk in every] == [False] * 4 + [True]
    assert [chunk.timestamp for chunk in every] == sorted(chunk.timestamp for chunk in every)
    assert rest[-1].metadata["result"].result_data == "streamed"


async def test_a_server_without_progress_gives_one_piece_of_data_and_the_end(service: ToolService) -> None:
    chunks = [chunk async for chunk in service.execute_tool_stream(pay("plain"))]
    assert [(chunk.chunk_type, chunk.content) for chunk in chunks] == [("data", "plain"), ("complete", "plain")]


@pytest.mark.parametrize("way", ["aclose", "block", "left behind", "cancelled"])
async def test_a_reader_that_stops_cancels_the_tool_at_its_server(
    service: ToolService, tmp_path: Path, way: str
) -> None:
    request = pay("unwanted", "progress:1,sleep:60")
    match way:
        case "aclose":
            stream = service.execute_tool_stream(request)
            await anext(stream)
            await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        case "block":
            async with service.execute_tool_stream(request) as stream:
                await anext(stream)
        case "left behind":
            async for _ in service.execute_tool_stream(request):
                break
            gc.collect()
        case "cancelled":
            stream = service.execute_tool_stream(request)
            await anext(stream)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(stream)
        case _:
            raise AssertionError(way)
    await asyncio.to_thread(wait_for_line, tmp_path / "ledger.jsonl", "cancelled")


async def test_a_stream_without_a_reader_does_nothing(service: ToolService, tmp_path: Path) -> None:
    await service.execute_tool_stream(pay("never")).aclose()
    await service.execute_tool(pay("after"))
    assert not noted(tmp_path, "never")


async def test_a_tool_of_ones_own_streams_through_the_hub(service: ToolService) -> None:
    class Counting(Tool):
        supports_streaming = True  # as plainly as people write it

        async def execute(self, tool_request: ToolRequest) -> ToolResult:
            raise AssertionError("it streams")

        async def execute_stream(self, tool_request: ToolRequest) -> AsyncIterator[ToolStreamChunk]:
            for number in range(tool_request.parameters["upto"]):
                yield ToolStreamChunk(self.name, "progress", {"progress": number + 1, "message": f"n{number}"})
            yield ToolStreamChunk(self.name, "complete", {"counted": tool_request.parameters["upto"]}, is_final=True)

    schema = {"type": "object", "properties": {"upto": {"type": "integer"}}, "required": ["upto"]}
    service.register_tool(Counting("count", description="Count.", parameters_schema=schema))
    chunks = [chunk async for chunk in service.execute_tool_stream(ToolRequest("count", parameters={"upto": 2}))]
    assert [chunk.chunk_type for chunk in chunks] == ["progress", "progress", "data", "complete"]
    assert chunks[1].content == {"progress": 2, "message": "n1"}
    assert chunks[-1].content == {"counted": 2}
    with pytest.raises(ConfigurationError, match="count"):
        service.register_tool(Counting("count"))


@pytest.mark.parametrize("says_no", [False, True])
async def test_a_streaming_function_need_not_be_declared_as_one(*, says_no: bool) -> None:
    class Pouring(Tool):
        async def execute(self, tool_request: ToolRequest) -> ToolResult:
            return ToolResult(self.name, ToolStatus.SUCCESS, result_data={"poured": "at once"})

        async def execute_stream(self, tool_request: ToolRequest) -> AsyncIterator[ToolStreamChunk]:
            yield ToolStreamChunk(self.name, "progress", {"progress": 1})
            yield ToolStreamChunk(self.name, "complete", {"poured": "slowly"}, is_final=True)

    class AtOnce(Pouring):
        supports_streaming = False

    async with ToolService() as service:
        service.register_tool(AtOnce("pour") if says_no else Pouring("pour"))
        chunks = [chunk async for chunk in service.execute_tool_stream(ToolRequest("pour"))]
    received = ["data", "complete"] if says_no else ["progress", "data", "complete"]
    assert [chunk.chunk_type for chunk in chunks] == received
    assert chunks[-1].content == {"poured": "at once" if says_no else "slowly"}


async def test_a_stream_of_something_else_is_reported_in_words() -> None:
    class Wrong(Tool):
        async def execute(self, tool_request: ToolRequest) -> ToolResult:
            raise AssertionError("it streams")

        async def execute_stream(self, tool_request: ToolRequest) -> AsyncIterator[ToolStreamChunk]:
            yield "drop"  # type: ignore[misc]  # as where nobody checks types

    async with ToolService() as service:
        service.register_tool(Wrong("wrong"))
        result = await service.execute_tool(ToolRequest("wrong"))
    assert result.error_message == "TypeError: its stream must yield a ToolStreamChunk, not str"


# -- questions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain", "refusing", "failing"])
async def test_a_tools_question_goes_to_the_program(kind: str) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(params: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(params)
        assert asyncio.get_running_loop() is here
        return {"colour": "blue"}

    def answer_plainly(params: dict[str, Any]) -> dict[str, Any] | None:
        return {"action": "accept", "content": {"colour": "green"}}

    def refuse(params: dict[str, Any]) -> None:
        return None

    def fail(params: dict[str, Any]) -> None:
        raise LookupError("no paint")

    @tool
    async def paint(context: ToolContext) -> str:
        schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
        given = await context.ask("Which colour?", schema)
        return "unpainted" if given is None else str(given["colour"])

    here = asyncio.get_running_loop()
    handlers = {"async": answer, "plain": answer_plainly, "refusing": refuse, "failing": fail}
    painted = {"async": "blue", "plain": "green", "refusing": "unpainted"}
    try:
        async with ToolService(questions=Questions(elicitation=handlers[kind])) as service:
            result = await service.execute_tool(ToolRequest("paint"))
        if kind == "failing":
            assert result.status is ToolStatus.ERROR
            assert "LookupError" in str(result.error_message)
            assert "no paint" not in str(result.error_message)  # that is for the program's own log
        else:
            assert result.result_data == {"result": painted[kind]}
        if kind == "async":
            assert asked[0]["message"] == "Which colour?"
    finally:
        tool.remove("paint")


# -- what there is beside tools ----------------------------------------------------------------------------------------


async def test_resources_and_prompts_are_named_by_texts() -> None:
    odd: list[Any] = [None, 7, b"memo://x"]
    async with ToolService() as service:
        for name in odd:
            with pytest.raises(TypeError, match="a resource must be a string, not"):
                await service.read_resource(name)
            with pytest.raises(TypeError, match="a prompt must be a string, not"):
                await service.get_prompt(name)
        for arguments in (["x"], "x"):
            with pytest.raises(TypeError, match="the arguments of a prompt must be a dictionary, not"):
                await service.get_prompt("greet", arguments)  # type: ignore[arg-type]
        for value in (object(), float("nan")):
            with pytest.raises(ToolExecutionError, match="Invalid arguments for greet"):
                await service.get_prompt("greet", {"name": value})  # type: ignore[dict-item]


async def test_resources_and_prompts_of_a_server_can_be_had() -> None:
    program, *words = command("full_fastmcp", "--transport", "stdio")
    async with ToolService() as service:
        await service.shutdown()
    service = ToolService()
    await service.initialize(with_servers({"name": "full", "command": program, "args": words}))
    async with service:
        prompts = {prompt["name"]: prompt for prompt in await service.list_prompts()}
        assert prompts[f"full.{content.GREET_PROMPT}"]["arguments"][0]["name"] == "name"
        written = await service.get_prompt(f"full.{content.GREET_PROMPT}", {"name": "Ada"})
        assert "Ada" in json.dumps(written["messages"])
        for short in (content.GREET_PROMPT, f"mcp.{content.GREET_PROMPT}", f"mcp_full_{content.GREET_PROMPT}"):
            assert await service.get_prompt(short, {"name": "Ada"}) == written
        uris = [resource["uri"] for resource in await service.list_resources()]
        assert content.WATCHED_URI in uris
        assert (await service.read_resource(content.WATCHED_URI))[0]["uri"] == content.WATCHED_URI
        assert await asyncio.to_thread(service.blocking.read_resource, content.WATCHED_URI)
        with pytest.raises(ToolExecutionError, match="note://nowhere") as unread:
            await service.read_resource("note://nowhere/at/all")
        assert unread.value.result is not None
        with pytest.raises(ToolExecutionError, match="no_such") as unknown:
            await service.get_prompt("full.no_such")
        assert unknown.value.result is not None
        assert unknown.value.result.status is ToolStatus.NOT_FOUND


async def test_a_prompt_that_several_servers_have_is_named_in_full() -> None:
    program, *words = command("full_fastmcp", "--transport", "stdio")
    servers = {name: {"command": program, "args": words} for name in ("one", "two")}
    async with ToolService({"mcpServers": servers}) as service:
        with pytest.raises(AmbiguousToolError, match=f"one.{content.GREET_PROMPT}, two.{content.GREET_PROMPT}"):
            await service.get_prompt(content.GREET_PROMPT, {"name": "Ada"})
        assert await service.get_prompt(f"two.{content.GREET_PROMPT}", {"name": "Ada"})


# -- what it is made of ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mcp_servers": "x"}, "mcp_servers must be a list"),
        ({"mcpServers": "x"}, "mcpServers must be a dictionary of servers by name, not str"),
        ({"servers": [raw_server()]}, "servers must be a dictionary of servers by name, not list"),
        ({"enable_mcp": "yes"}, "enable_mcp"),
        ({"mcp_server": []}, "unknown keys: mcp_server"),
        ({"tool_service": 3}, "tool_service"),
        ("/no/such/isthmus.toml", "isthmus.toml"),
        (7, "a dictionary or the path of a file, not 7"),
        ([raw_server()], "must be in a dictionary"),
    ],
)
async def test_unusable_things_are_reported_by_name(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await ToolService().initialize(given)


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({}, "endpoint"),
    ({"transport": "stdio"}, "command"),
    ({"transport": "pigeon", "url": "http://h"}, "pigeon"),
    ({"endpoint": "ftp://h/mcp"}, "http://"),
    ({"endpoint": "http://h/mcp", "timeout": 0}, f"1 to {MOST:g}"),
    ({"endpoint": "http://h/mcp", "timeout": True}, f"1 to {MOST:g}"),
    ({"endpoint": "http://h/mcp", "timeout": MOST + 1}, f"1 to {MOST:g}"),
    ({"endpoint": "http://h/mcp", "colour": 1}, "colour"),
    ({"command": "x", "user_headers": ["X-User"]}, "headers need an HTTP address"),
    ({"url": "ws://h/mcp", "user_headers": ["X-User"]}, "headers need an HTTP"),
    ({"endpoint": "http://h", "url": "http://i"}, "endpoint and url are aliases"),
    ({"endpoint": "http://h", "command": "x"}, "a command or an address"),
    ({"transport": "auto", "command": "x", "url": "http://h"}, "a command or an address"),
    ({"endpoint": "http://h", "headers": [1]}, "headers must be a dictionary"),
    ({"command": "x", "args": 7}, "args must be a list of strings"),
    ({"command": "x", "base": {}}, "has unknown keys: base; known: name,"),
    ({"command": "x", "cache": ["say"]}, "cache must be a table"),
    ({"command": "x", "cache": {"seconds": 9}}, "cache must have only tools, ttl, not 'seconds'"),
    ({"command": "x", "cache": {"tools": ["say"], "ttl": 0}}, "cache.ttl must be over 0"),
]


async def test_a_server_that_cannot_be_used_costs_only_itself() -> None:
    bad = [{"name": f"bad{number}", **fields} for number, (fields, _) in enumerate(UNUSABLE)]
    async with ToolService({"mcp_servers": [*bad, raw_server()]}) as service:
        assert list(service.failures) == [server["name"] for server in bad]
        for why, (_, said) in zip(service.failures.values(), UNUSABLE, strict=True):
            assert said in why
        assert (await service.execute_tool(pay("nonce"))).is_success
        gone = await service.execute_tool(ToolRequest("bad0.tool"))
        assert (gone.status, gone.error and gone.error.executed) == ("unavailable", "no")


async def test_servers_without_a_name_of_their_own_are_reported_by_their_place() -> None:
    nameless: list[Any] = [7, {"endpoint": "http://h/mcp"}, {"name": 7, "command": "x"}, {**raw_server(), "args": []}]
    async with ToolService({"mcp_servers": [raw_server(), *nameless]}) as service:
        assert service.failures == {
            "mcp_servers[1]": "a server must be a dictionary or an MCPServerConfig, not int",
            "mcp_servers[2]": "a server needs a name",
            "mcp_servers[3]": "server 7: name must be a string, not 7",
            "mcp_servers[4]": "another server has the name 'raw': give this one another name",
        }
        assert "raw.pay" in await service.list_tools()


@pytest.mark.parametrize("names", [["天气", "翻译"], ["翻译", "天气"]])
async def test_servers_in_other_letters_have_the_same_names_however_they_are_given(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [raw_server(name=name) for name in names]
    named = {server["name"]: {"command": server["command"], "args": server["args"]} for server in listed}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": named}))
    monkeypatch.chdir(tmp_path)
    for given in ({"mcp_servers": listed}, {"mcpServers": named}, "mcp.json"):
        async with ToolService(given) as service:
            found = {name.partition(".")[0] for name in await service.list_tools()}
            assert found == {"builtin", "server-44c909", "server-339dcc"}


async def test_servers_by_their_names_are_read_as_a_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "run.sh"
    words = raw_server()
    program.write_text(f"#!/bin/sh\nexec {shlex.join([words['command'], *words['args']])}\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOL_HOST", "localhost:1")
    servers = {
        "raw": {"command": "./run.sh"},
        "off": {"command": "x", "disabled": True},
        "bad": {"type": "pigeon", "url": "http://h"},
        "web": {"url": "http://${TOOL_HOST}/mcp"},
    }
    for given in ({"mcpServers": servers}, {"tool_service": {"mcp_servers": servers}}, {"servers": servers}):
        async with ToolService(given) as service:
            assert "raw.pay" in await service.list_tools()
            assert sorted(service.failures) == ["bad", "web"]
            assert "mcpServers.bad.type must be one of" in service.failures["bad"]


async def test_a_relative_command_starts_in_the_programs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = raw_server()
    program = tmp_path / "run.sh"
    program.write_text(f"#!/bin/sh\nexec {shlex.join([words['command'], *words['args']])}\n")
    program.chmod(0o755)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    async with ToolService({"mcp_servers": [{"name": "raw", "command": "./run.sh", "cwd": "sub"}]}) as service:
        assert service.failures == {}


async def test_a_configured_service_initializes_without_arguments() -> None:
    service = ToolService({"mcp_servers": [raw_server()]})
    with pytest.raises(ConfigurationError, match="was already passed"):
        await service.initialize({"mcp_servers": []})
    for _ in range(2):
        await service.initialize()
        assert "raw.pay" in await service.list_tools()
        await service.shutdown()


async def test_results_are_given_again_where_the_server_says_so(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    server = {**raw_server(ledger=ledger), "cache": {"tools": ["pay"], "ttl": 60}}
    async with ToolService({"mcp_servers": [server]}) as service:
        for _ in range(3):
            assert (await service.execute_tool(pay("once"))).is_success
    assert len(ledger.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "said"), [({"hub": 7}, "hub must be"), ({"hub": "http://h", "key": 7}, "key must be a string")]
)
async def test_a_hub_is_named_by_texts(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await ToolService().initialize(**given)


async def test_omitted_fields_of_a_server_may_be_none() -> None:
    fields = ("headers", "transport", "command", "args", "env", "url", "cwd", "user_headers")
    server = {"name": "a", "endpoint": "http://h/mcp", **dict.fromkeys(fields)}
    assert MCPServerConfig.of(server).settings() == MCPServerConfig("a", "http://h/mcp").settings()


async def test_a_server_that_a_file_describes_wrongly_is_listed_as_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {"wrong": {"command": 5}, "raw": {**raw_server(), "odd": 1}}
    entries["raw"].pop("name")
    file = tmp_path / "isthmus.json"
    file.write_text(json.dumps({"servers": entries}))
    service = ToolService()
    await service.initialize(file)
    async with service:
        assert service.failures == {"wrong": "isthmus.json: servers.wrong.command must be a text, not 5"}
        assert "raw.pay" in await service.list_tools()
        with pytest.raises(ToolNotFoundError, match=r"servers\.wrong\.command must be a text"):
            service.get_tool("wrong.anything")
    received = "\n".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "servers.wrong.command must be" in received
    assert "servers.raw.odd" in received


async def test_a_file_configures_the_service(tmp_path: Path) -> None:
    program, *words = command("raw_server", "--transport", "stdio")
    entries = {"paid": {"command": program, "args": words}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    service = ToolService()
    await service.initialize(tmp_path / "mcp.json")
    async with service:
        assert "paid.pay" in await service.list_tools()
        with pytest.raises(ConfigurationError, match="already"):
            await service.initialize()


@pytest.mark.parametrize("under", ["tool_service", None])
@pytest.mark.parametrize("enabled", [True, False, "no"])
async def test_the_dictionary_may_also_be_a_file(tmp_path: Path, under: str | None, enabled: Any) -> None:
    said = {**with_servers(raw_server()), "enable_mcp": enabled}
    (tmp_path / "service.json").write_text(json.dumps({under: said} if under else said))
    service = ToolService()
    try:
        if isinstance(enabled, bool):
            await service.initialize(tmp_path / "service.json")
            assert ("raw.pay" in await service.list_tools()) is enabled
        else:
            with pytest.raises(ConfigurationError, match="enable_mcp must be true or false, not 'no'"):
                await service.initialize(tmp_path / "service.json")
    finally:
        await service.shutdown()


async def test_cached_results_are_returned_to_no_other_caller(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    server = raw_server(ledger=ledger)
    (tmp_path / "isthmus.toml").write_text(
        f"[servers.raw]\ncommand = {json.dumps(server['command'])}\nargs = {json.dumps(server['args'])}\n"
        '[servers.raw.cache]\ntools = ["pay"]\nttl = 600\n'
    )
    all_of_it, more = UserPermissions(["raw"]), UserPermissions(["raw", "builtin"])
    askers: list[dict[str, Any]] = [
        {},
        {"user_context": UserContext(permissions=all_of_it)},
        {"user_context": UserContext(permissions=more)},
        {"user_context": UserContext(permissions=all_of_it), "session_id": "talk"},
        {"user_context": UserContext(permissions=all_of_it, session_token="hers")},
        {"user_context": UserContext(permissions=all_of_it, session_token="his")},
        {"user_context": UserContext("ada", permissions=all_of_it)},
        {"user_context": UserContext("local", permissions=all_of_it)},
    ]
    service = ToolService()
    await service.initialize(tmp_path / "isthmus.toml")
    async with service:
        for paid, asker in enumerate(askers, start=1):
            for _ in range(2):
                assert (await service.execute_tool(pay("one", **asker))).result_data == "one"
                assert len(noted(tmp_path, "one")) == paid, asker


async def test_a_server_that_failed_is_listed_and_has_no_tools(deaf_port: int) -> None:
    service = ToolService()
    dead = {"name": "dead", "endpoint": f"http://127.0.0.1:{deaf_port}/mcp"}
    await service.initialize({"tool_service": {"enable_mcp": True, "mcp_servers": [dead, raw_server()]}})
    async with service:
        assert list(service.failures) == ["dead"]
        assert not [name for name in await service.list_tools() if name.startswith("dead.")]
        assert "raw.pay" in service._tools
        with pytest.raises(ToolNotFoundError, match="not connected"):
            service.get_tool("dead.anything")


async def test_nothing_is_connected_unless_it_is_enabled() -> None:
    service = ToolService()
    await service.initialize({"enable_mcp": False, "mcp_servers": [raw_server()]})
    async with service:
        assert await service.list_tools() == ["builtin.echo", "builtin.timestamp", "builtin.chat_log"]


async def test_changes_are_notified_and_seen_without_listing_again(service: ToolService) -> None:
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    stop = service.watch(lambda: loop.call_soon_threadsafe(changed.set))
    await service.execute_tool(ToolRequest("raw.grow", parameters={"name": "sprout"}))
    async with asyncio.timeout(20):
        while "raw.sprout" not in await service.list_tools():
            await changed.wait()
            changed.clear()
    stop()


# -- twice at once -----------------------------------------------------------------------------------------------------


async def test_a_service_is_initialized_once() -> None:
    service = ToolService()
    both = await asyncio.gather(
        service.initialize(with_servers(raw_server())),
        service.initialize(with_servers(raw_server())),
        return_exceptions=True,
    )
    assert [type(each) for each in both if each is not None] == [ConfigurationError]
    async with service:
        assert "raw.pay" in await service.list_tools()


async def test_a_shutdown_during_initialization_leaves_nothing_open() -> None:
    before = children()
    service = ToolService()
    opening = asyncio.create_task(service.initialize(with_servers(raw_server())))
    await asyncio.sleep(0)
    await service.shutdown()
    await opening
    assert children() <= before
    with pytest.raises(ServiceClosedError):
        await service.list_tools()


async def test_a_service_can_be_opened_and_closed_by_many_at_once() -> None:
    before = children()
    service = ToolService()

    async def use() -> None:
        with contextlib.suppress(ConfigurationError):
            await service.initialize(with_servers(raw_server()))
        await service.shutdown()

    async with asyncio.timeout(60):
        await asyncio.gather(*(use() for _ in range(5)))
    assert children() <= before


async def test_a_shutdown_beside_another_waits_for_the_end_too() -> None:
    before = children()
    service = ToolService()
    await service.initialize(with_servers(raw_server()))
    first = asyncio.create_task(service.shutdown())
    await asyncio.sleep(0)
    await service.shutdown()
    assert children() <= before
    await first


async def test_one_reader_reads_a_stream(service: ToolService, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    stream = service.execute_tool_stream(pay("shared", f"until:{gate}"))
    reading = asyncio.create_task(anext(stream))
    await asyncio.to_thread(wait_for_line, tmp_path / "ledger.jsonl", "shared")
    with pytest.raises(RuntimeError, match="already has a reader"):
        await anext(stream)
    gate.touch()
    assert (await reading).content == "shared"


async def test_one_watcher_that_fails_does_not_keep_the_others_from_the_news(service: ToolService) -> None:
    received = asyncio.Event()
    loop = asyncio.get_running_loop()
    stops = [service.watch(lambda: 1 / 0), service.watch(lambda: loop.call_soon_threadsafe(received.set))]
    await service.execute_tool(ToolRequest("raw.grow", parameters={"name": "sprout"}))
    async with asyncio.timeout(20):
        await received.wait()
    for stop in stops:
        stop()


@pytest.mark.parametrize("word", ["raw.pay", "pay", "mcp.pay", "mcp_raw_pay", "raw", "raw.*", "*", "pay me.not"])
async def test_a_tool_is_denied_by_any_of_its_names(service: ToolService, word: str) -> None:
    for restricted in ([word], word, iter([word]), {"pay": word}):
        ada = UserContext("ada", permissions=UserPermissions(["*"], restrictions={"tools": restricted}))
        for _ in range(2):
            assert (await service.execute_tool(pay("denied", user_context=ada))).status is ToolStatus.UNAUTHORIZED
            assert "raw.pay" not in await service.list_tools(ada)
