"""Functions and objects of a program's own as tools of its hubs."""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from pydantic import BaseModel, Field, field_validator

from isthmus.library import (
    ConfigurationError,
    Questions,
    Tool,
    ToolContext,
    ToolRequest,
    ToolResult,
    ToolService,
    ToolStatus,
    ToolStreamChunk,
    UserContext,
    UserPermissions,
    tool,
)
from isthmus.library.own_tools import ToolFunction
from isthmus.upstream.python.registry import REGISTRY
from isthmus.upstream.python.signatures import BadArgument


class Counter:
    """Something with a method."""

    def __init__(self) -> None:
        self.total = 0

    def count(self, by: int = 1) -> int:
        self.total += by
        return self.total


NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.fixture(autouse=True)
def own_tools() -> Iterator[None]:
    """Functions that a test registers are unregistered after it."""
    before = set(REGISTRY.functions())
    yield
    for name in set(REGISTRY.functions()) - before:
        tool.remove(name)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[ToolService]:
    async with ToolService(questions=Questions(elicitation=lambda asked: {"name": asked["message"]})) as service:
        yield service


async def run(service: ToolService, name: str, **parameters: Any) -> ToolResult:
    async with asyncio.timeout(10):
        return await service.execute_tool(ToolRequest(name, parameters=parameters, session_id="s1"))


async def test_a_function_is_a_tool_and_stays_a_function(service: ToolService) -> None:
    @tool
    def add(a: int, b: int = 1) -> int:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b

    assert add(1, 2) == 3
    found = await service.resolve("add")
    assert (found.name, found.description) == ("builtin.add", "Add two numbers.")
    assert found.parameters_schema["required"] == ["a"]
    assert found.parameters_schema["properties"]["a"]["description"] == "The first."
    assert (await run(service, "add", a=2)).result_data == {"result": 3}


async def test_its_docstring_is_its_description(service: ToolService) -> None:
    @tool(name="sum", description="In other words", annotations={"readOnlyHint": True}, inline=True)
    def add(a: int) -> int:
        """Never seen."""
        return a

    found = await service.resolve("builtin.sum")
    assert found.description == "In other words"
    assert found.metadata["annotations"] == {"readOnlyHint": True}
    assert (await run(service, "sum", a=2)).is_success
    assert (await run(service, "add", a=2)).status is ToolStatus.NOT_FOUND


async def test_a_bound_method_is_a_function_like_any_other(service: ToolService) -> None:
    tool(Counter().count)
    assert (await service.resolve("count")).parameters_schema["properties"].keys() == {"by"}
    assert [(await run(service, "count", by=2)).result_data for _ in range(2)] == [{"result": 2}, {"result": 4}]


async def test_a_tool_that_comes_and_goes_is_found_at_once(service: ToolService) -> None:
    for _ in range(20):

        @tool
        def add(a: int) -> int:
            return a

        assert (await run(service, "add", a=2)).is_success
        assert tool.remove(add)
        assert (await run(service, "add", a=2)).status is ToolStatus.NOT_FOUND
    assert not tool.remove("builtin.add")


async def test_running_a_cell_again_replaces_its_tools(service: ToolService) -> None:
    for value in (1, 2):
        space: dict[str, Any] = {"__name__": "__main__", "tool": tool}
        exec(f"@tool\ndef cell() -> int:\n    return {value}", space)
        assert (await run(service, "cell")).result_data == {"result": value}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tool(name="echo")(math.sqrt), r"echo cannot be a tool: builtin\.echo is a tool that every hub has"),
        (lambda: tool(name="taken")(math.sqrt), "'taken' is already the tool of .*taken"),
        (lambda: tool(lambda x: x), "has no name for a tool: give one"),
        (lambda: tool(functools.partial(math.sqrt, 2)), "has no name for a tool"),
        (lambda: tool(name="with space")(math.sqrt), "'with space' cannot be the name of a tool"),
        (lambda: tool(name="")(math.sqrt), "'' cannot be the name of a tool"),
        (lambda: tool(name="x" * 129)(math.sqrt), "cannot be the name of a tool"),
        (lambda: tool(name=cast(Any, 7))(math.sqrt), "7 cannot be the name of a tool"),
        (lambda: tool(max), "max cannot be a tool: it has no signature"),
        (lambda: tool(Counter.count), r"count cannot be a tool: it is an unbound method; use tool"),
        (lambda: tool(inline=True)(asyncio.sleep), "sleep cannot be a tool: it is asynchronous"),
    ],
)
def test_an_object_that_cannot_be_a_tool_is_refused_with_a_reason(make: Any, words: str) -> None:
    @tool
    def taken() -> None: ...

    with pytest.raises(ConfigurationError, match=words):
        make()


async def test_progress_questions_and_the_session_come_by_the_context(service: ToolService) -> None:
    @tool
    async def greet(context: ToolContext) -> str:
        context.progress(1, 2, "asking")
        answer = await context.ask("Ann", NAME)
        return f"{answer} of {context.session}"

    @tool
    def greet_blocking(context: ToolContext) -> str:
        context.progress(1, 2, "asking")
        return f"{context.ask_blocking('Ann', NAME)} of {context.session}"

    for name in ("greet", "greet_blocking"):
        chunks = [chunk async for chunk in service.execute_tool_stream(ToolRequest(name, session_id="s1"))]
        assert [chunk.chunk_type for chunk in chunks] == ["progress", "data", "complete"]
        assert chunks[-1].content == {"result": "{'name': 'Ann'} of s1"}


async def test_the_tool_says_that_the_program_answers_no_questions() -> None:
    @tool
    async def greet(context: ToolContext) -> Any:
        return await context.ask("Who?", NAME)

    async with ToolService() as service:
        result = await run(service, "greet")
    assert (result.status, result.error_message) == (ToolStatus.ERROR, "NoAnswerError: This caller cannot be asked")


async def test_exceptions_and_refused_arguments_have_different_statuses(service: ToolService) -> None:
    @tool
    def fail(words: str) -> None:
        raise ValueError(words)

    failed = await run(service, "fail", words="no such thing")
    assert (failed.status, failed.error_message) == (ToolStatus.ERROR, "ValueError: no such thing")
    assert (await run(service, "fail", words=7)).status is ToolStatus.INVALID_PARAMETERS


def plainly(function: Any) -> Any:
    """A decorator as people write it, which does not know of `async`."""

    @functools.wraps(function)
    def decorated(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return decorated


async def test_a_wrapped_async_function_is_awaited(service: ToolService) -> None:
    @tool
    @plainly
    async def knock(context: ToolContext, times: int) -> str:
        asyncio.get_running_loop()
        context.progress(times)
        if times > 1:
            raise ValueError("too often")
        return "come in"

    tool(name="static")(staticmethod(knock))
    for name in ("knock", "static"):
        assert (await run(service, name, times=1)).text == "come in"
    failed = await run(service, "knock", times=2)
    assert (failed.status, failed.text) == (ToolStatus.ERROR, "ValueError: too often")

    tool(name="quick", inline=True)(knock)
    quick = await run(service, "quick", times=1)
    assert "TypeError: the tool's result must be awaited" in quick.text


async def test_an_async_function_within_a_plain_one_is_cancelled_with_its_call(service: ToolService) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()
    here = asyncio.get_running_loop()

    @tool
    @plainly
    async def wait() -> None:
        here.call_soon_threadsafe(began.set)
        try:
            await asyncio.Event().wait()
        finally:
            here.call_soon_threadsafe(cancelled.set)

    call = asyncio.create_task(run(service, "wait"))
    async with asyncio.timeout(10):
        await began.wait()
        call.cancel()
        await cancelled.wait()


USER: ContextVar[str] = ContextVar("user", default="nobody")

CROWD = 200
"""More than a server works on at once, so that some begin where another ends."""


@pytest.mark.parametrize("kind", ["async", "thread", "inline"])
async def test_each_call_sees_the_context_variables_of_its_own_caller(service: ToolService, kind: str) -> None:
    async def whose() -> str:
        await asyncio.sleep(0)
        return USER.get()

    def whose_by_itself() -> str:
        return USER.get()

    function: Any = whose if kind == "async" else whose_by_itself
    tool(name="whose", inline=kind == "inline")(function)

    async def call(user: str) -> tuple[str, str]:
        USER.set(user)
        return user, (await run(service, "whose")).text

    for _ in range(2):  # calls leave one by one at first, and together once there are many
        said = await asyncio.gather(*(asyncio.create_task(call(f"user {number}")) for number in range(CROWD)))
        assert [(user, seen) for user, seen in said if user != seen] == []


class Leg(BaseModel):
    to: str
    kilometres: int = Field(default=1, ge=0)


class Trip(BaseModel):
    """With a model inside, and with itself."""

    legs: list[Leg]
    back: Trip | None = None

    @field_validator("legs")
    @classmethod
    def check_legs(cls, legs: list[Leg]) -> list[Leg]:
        if not legs:
            raise ValueError("a trip leads somewhere")
        return legs


@dataclass
class Stop:
    place: str
    minutes: int = 5


async def test_models_dataclasses_and_paths_come_and_go_as_they_are(service: ToolService) -> None:
    @tool
    def plan(trip: Trip, stops: list[Stop], folder: Path = Path("trips")) -> dict[str, Any]:
        return {"trip": trip, "stops": stops, "file": folder / "a.json"}

    trip = {"legs": [{"to": "Rom"}], "back": {"legs": [{"to": "Bonn"}]}}
    done = await run(service, "plan", trip=trip, stops=[{"place": "Como"}])
    assert done.result_data == {
        "trip": {
            "legs": [{"to": "Rom", "kilometres": 1}],
            "back": {"legs": [{"to": "Bonn", "kilometres": 1}], "back": None},
        },
        "stops": [{"place": "Como", "minutes": 5}],
        "file": "trips/a.json",
    }
    far = {"legs": [{"to": "Rom", "kilometres": -1}]}
    refused = await run(service, "plan", trip=far, stops=[])
    assert (refused.status, refused.error_message) == (
        ToolStatus.INVALID_PARAMETERS,
        "Invalid arguments for builtin.plan: trip.legs.0.kilometres: -1 is less than the minimum of 0",
    )
    nowhere = await run(service, "plan", trip={"legs": []}, stops=[])
    assert nowhere.status is ToolStatus.INVALID_PARAMETERS
    assert "legs: Value error, a trip leads somewhere - at `$.trip`" in str(nowhere.error_message)


class Guide(Tool):
    async def execute(self, tool_request: ToolRequest) -> ToolResult:
        return ToolResult(self.name, ToolStatus.SUCCESS, result_data=[Leg(to="Rom")])

    async def execute_stream(self, tool_request: ToolRequest) -> AsyncIterator[ToolStreamChunk]:
        yield ToolStreamChunk(self.name, "data", {"leg": Leg(to="Rom")})
        yield ToolStreamChunk(self.name, "complete", [Leg(to="Bonn")], is_final=True)


async def test_an_object_gives_models_piece_by_piece_too(service: ToolService) -> None:
    service.register_tool(Guide("guide"))
    chunks = [chunk async for chunk in service.execute_tool_stream(ToolRequest("guide"))]
    assert [chunk.content for chunk in chunks] == [
        {"leg": {"to": "Rom", "kilometres": 1}},
        {"result": [{"to": "Bonn", "kilometres": 1}]},
    ]


async def test_the_failure_of_a_task_group_is_reported(service: ToolService) -> None:
    @tool
    async def look() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(int, "seven"))

    result = await run(service, "look")
    assert "ValueError: invalid literal for int() with base 10: 'seven'" in str(result.error_message)


async def test_a_result_without_a_json_form_is_reported_with_the_allowed_types(service: ToolService) -> None:
    @tool
    def give() -> Any:
        return {"it": object()}

    result = await run(service, "give")
    assert (result.status, result.error_message) == (
        ToolStatus.ERROR,
        "TypeError: the tool's result has a value of type object, which JSON does not have: "
        "return text, numbers, lists, dictionaries, dataclasses or models",
    )


async def test_a_function_may_require_permissions_and_roles(service: ToolService) -> None:
    @tool(permissions="admin")
    def wipe() -> str:
        return "done"

    async def status(*permissions: str, roles: tuple[str, ...] = ()) -> ToolStatus:
        user = UserContext("u1", permissions=UserPermissions(list(permissions), list(roles)))
        assert ("builtin.wipe" in await service.list_tools(user)) is (bool(roles) or len(permissions) > 1)
        return (await service.execute_tool(ToolRequest("wipe", user_context=user))).status

    assert await status() is ToolStatus.UNAUTHORIZED
    assert await status("builtin.*") is ToolStatus.UNAUTHORIZED
    assert await status("builtin.*", "admin") is ToolStatus.SUCCESS
    assert await status(roles=("admin",)) is ToolStatus.SUCCESS
    assert (await run(service, "wipe")).is_success
    assert (await service.resolve("wipe")).required_permissions == ["builtin.wipe", "admin"]


async def test_every_service_has_it_whenever_it_was_made(service: ToolService) -> None:
    @tool
    def late() -> int:
        return 1

    async with ToolService() as other:
        assert (await run(other, "late")).is_success
        assert (await run(service, "late")).is_success


# -- tools that are objects --------------------------------------------------------------------------------------------


class Shout(Tool):
    """A tool that reports progress, or fails on request."""

    def __init__(self, namespace: str | None = None) -> None:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        super().__init__("shout", namespace, description="Say it loud", parameters_schema=schema)

    async def execute(self, tool_request: ToolRequest) -> ToolResult:
        if not tool_request.parameters["text"]:
            return ToolResult(self.name, ToolStatus.ERROR, error_message="nothing to shout")
        said = {"text": tool_request.parameters["text"].upper(), "session": tool_request.session_id}
        return ToolResult(self.name, ToolStatus.SUCCESS, result_data=said)


class Stepwise(Shout):
    """The same by steps."""

    chunks: tuple[ToolStreamChunk, ...] | None = None

    @property
    def supports_streaming(self) -> bool:
        return True

    async def execute_stream(self, tool_request: ToolRequest) -> AsyncIterator[ToolStreamChunk]:
        whole = super().execute_stream(tool_request)
        for chunk in [chunk async for chunk in whole] if self.chunks is None else self.chunks:
            yield chunk


async def test_an_object_is_a_tool_of_the_service_it_was_given_to(service: ToolService) -> None:
    service.register_tool(Shout())
    service.register_tool(Shout("voices"))
    assert {"builtin.shout", "voices.shout"} <= set(await service.list_tools())
    found = await service.resolve("voices.shout")
    assert (found.description, found.parameters_schema["required"]) == ("Say it loud", ["text"])
    assert (await run(service, "voices.shout", text="hey")).result_data == {"text": "HEY", "session": "s1"}
    failed = await run(service, "builtin.shout", text="")
    assert (failed.status, failed.error_message) == (ToolStatus.ERROR, "nothing to shout")
    async with ToolService() as other:
        assert "builtin.shout" not in await other.list_tools()


@pytest.mark.parametrize(
    ("given", "status", "text"),
    [
        (ToolResult("odd", cast(Any, "success"), result_data="fine"), "success", "fine"),
        (ToolResult("odd", cast(Any, "timeout")), "timeout", "timeout"),
        (ToolResult("odd", cast(Any, "tired")), "error", "ValueError: its status must be one of success, error, "),
        (None, "error", "TypeError: it must return a ToolResult, not NoneType"),
        ("fine", "error", "TypeError: it must return a ToolResult, not str"),
    ],
)
async def test_results_of_custom_tools_are_validated(service: ToolService, given: Any, status: str, text: str) -> None:
    class Odd(Tool):
        async def execute(self, tool_request: ToolRequest) -> ToolResult:
            return given  # type: ignore[no-any-return]  # as where nobody checks types

    service.register_tool(Odd("odd"))
    result = await run(service, "odd")
    assert result.status == status
    assert result.text.startswith(text)


async def test_an_object_s_name_must_be_free_and_one(service: ToolService) -> None:
    service.register_tool(Shout())
    with pytest.raises(ConfigurationError, match=r"there is a tool builtin\.shout already"):
        service.register_tool(Shout())
    with pytest.raises(ConfigurationError, match="a server name must be"):
        service.register_tool(Shout("a.b"))


async def test_an_object_that_cannot_be_shown_costs_only_itself(service: ToolService) -> None:
    def described(**words: Any) -> Tool:
        made = Shout("voices")
        for word, value in words.items():
            setattr(made, word, value)
        return made

    wrong: list[tuple[Any, type[Exception], str]] = [
        (described(parameters_schema={"default": object()}), ConfigurationError, "cannot be written as JSON"),
        (described(parameters_schema={"type": "string"}), ConfigurationError, "its parameters_schema is wrong"),
        (described(parameters_schema={"type": "objekt"}), ConfigurationError, "its parameters_schema is wrong"),
        (described(namespace=7), ConfigurationError, "its namespace must be a string, not 7"),
        (described(name=7), ConfigurationError, "7 cannot be the name of a tool"),
        (print, TypeError, "for a function, use @tool"),
    ]
    for tool_, error, words in wrong:
        with pytest.raises(error, match=words):
            service.register_tool(tool_)
    service.register_tool(Shout("voices"))
    assert (await run(service, "voices.shout", text="hey")).is_success


@pytest.mark.parametrize(
    ("chunks", "notified"),
    [
        (
            [
                ToolStreamChunk("shout", "progress", {"progress": 1, "total": 2, "message": "half"}),
                ToolStreamChunk("shout", "progress", "in words"),
                ToolStreamChunk("shout", "log", {"level": "warning", "data": "look out"}),
                ToolStreamChunk("shout", "complete", {"loud": True}, is_final=True),
            ],
            [
                ("progress", {"progress": 1, "total": 2, "message": "half"}),
                ("progress", {"progress": 0, "message": "in words"}),
                ("log", {"level": "warning", "data": "look out"}),
                ("data", {"loud": True}),
                ("complete", {"loud": True}),
            ],
        ),
        (
            [
                ToolStreamChunk("shout", "data", "one"),
                ToolStreamChunk("shout", "progress", 0.5),
                ToolStreamChunk("shout", "data", {"two": 2}),
                ToolStreamChunk("shout", "complete", {"loud": True}, is_final=True),
                ToolStreamChunk("shout", "data", "after the end"),
            ],
            [("data", "one"), ("progress", {"progress": 0.5}), ("data", {"two": 2}), ("complete", {"loud": True})],
        ),
        (
            [ToolStreamChunk("shout", "progress", {"progress": "half"})],
            [("error", "ValueError: progress must be a number, not 'half'")],
        ),
        ([ToolStreamChunk("shout", "error", "no voice", is_final=True)], [("error", "no voice")]),
        ([ToolStreamChunk("shout", "error", "no voice")], [("error", "no voice")]),
        (
            [ToolStreamChunk("shout", "data", "one"), ToolStreamChunk("shout", "complete", {"loud": True})],
            [("data", "one"), ("complete", {"loud": True})],
        ),
        (
            [ToolStreamChunk("shout", "progress", 0.5)],
            [("progress", {"progress": 0.5}), ("error", "RuntimeError: its stream ended without a final chunk")],
        ),
        ([], [("error", "RuntimeError: its stream ended without a final chunk")]),
    ],
)
async def test_progress_of_an_object_arrives_step_by_step(
    service: ToolService, chunks: list[ToolStreamChunk], notified: list[Any]
) -> None:
    stepwise = Stepwise()
    stepwise.chunks = tuple(chunks)
    service.register_tool(stepwise)
    received = service.execute_tool_stream(ToolRequest("shout", parameters={"text": "x"}))
    found = [(chunk.chunk_type, chunk.content) async for chunk in received]
    assert json.dumps(found) == json.dumps(notified)


async def test_an_object_s_stream_is_read_to_its_end(service: ToolService) -> None:
    class Tidy(Stepwise):
        is_tidied = False

        async def execute_stream(self, tool_request: ToolRequest) -> AsyncIterator[ToolStreamChunk]:
            yield ToolStreamChunk("shout", "complete", {"loud": True}, is_final=True)
            self.is_tidied = True

    tidy = Tidy()
    service.register_tool(tidy)
    assert (await run(service, "shout", text="hey")).result_data == {"loud": True}
    assert tidy.is_tidied


async def test_the_end_of_an_object_s_stream_is_its_result(service: ToolService) -> None:
    service.register_tool(Stepwise())
    assert (await run(service, "shout", text="hey")).result_data == {"text": "HEY", "session": "s1"}


def test_arguments_of_an_object_must_have_names() -> None:
    with pytest.raises(BadArgument):
        ToolFunction(Shout()).read(b"[]")
