"""Questions of servers while a tool runs: the program that answers, the user it answers for, and when they end."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.library import (
    BlockingToolService,
    NoAnswerError,
    Questions,
    ToolContext,
    ToolRequest,
    ToolService,
    ToolStatus,
    tool,
)
from tests.frontends import counting_server
from tests.library.services import with_servers

pytestmark = pytest.mark.xdist_group("library_service")

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.fixture(autouse=True)
def asking() -> Iterator[None]:
    @tool
    async def ask(context: ToolContext) -> str:
        """Ask who it is."""
        given = await context.ask("Who is it?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return "refused" if given is None else str(given.get("name"))

    yield
    tool.remove("ask")


async def test_the_question_function_sees_the_context_of_the_caller() -> None:
    async def tell(_: dict[str, Any]) -> dict[str, Any]:
        return {"name": WHO.get()}

    async def call_as(name: str) -> object:
        WHO.set(name)
        return (await service.execute_tool(ToolRequest("ask"))).result_data

    async with ToolService(questions=Questions(elicitation=tell)) as service:
        both = list(await asyncio.gather(call_as("ada"), call_as("bob")))
        WHO.set("cyd")
        here = await asyncio.to_thread(service.blocking.execute_tool, ToolRequest("ask"))
    assert both == [{"result": "ada"}, {"result": "bob"}]
    assert here.result_data == {"result": "cyd"}


async def test_a_blocking_call_on_a_running_loop_is_answered_by_an_asynchronous_function() -> None:
    async def tell(_: dict[str, Any]) -> dict[str, Any]:
        return {"name": threading.current_thread().name}

    async with ToolService(questions=Questions(elicitation=tell)) as service:
        result = service.blocking.execute_tool(ToolRequest("ask", timeout=10))
    assert result.result_data == {"result": "isthmus question"}


async def test_a_plain_function_may_have_a_loop_of_its_own() -> None:
    async def name() -> str:
        return "ada"

    def tell(_: dict[str, Any]) -> dict[str, Any]:
        return {"name": asyncio.run(name())}

    async with ToolService(questions=Questions(elicitation=tell)) as service:
        assert (await service.execute_tool(ToolRequest("ask"))).result_data == {"result": "ada"}


async def test_a_function_that_wants_to_end_the_program_ends_its_question() -> None:
    def leave(_: dict[str, Any]) -> dict[str, Any]:
        raise SystemExit(3)

    async with ToolService(questions=Questions(elicitation=leave)) as service:
        result = await service.execute_tool(ToolRequest("ask", timeout=10))
    assert result.status is ToolStatus.ERROR
    assert NoAnswerError.__name__ in str(result.error_message)


async def test_the_question_function_gets_nothing_more_once_the_call_is_done() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def think(_: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("nobody ends its thinking but the call")

    async with ToolService(questions=Questions(elicitation=think)) as service:
        stream = service.execute_tool_stream(ToolRequest("ask"))
        reading = asyncio.create_task(anext(stream))
        async with asyncio.timeout(20):
            await begun.wait()
            reading.cancel()
            await ended.wait()
        with pytest.raises(asyncio.CancelledError):
            await reading


def test_a_thread_that_asks_ends_with_its_call() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def think(_: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("nobody ends its thinking but the call")

    with BlockingToolService(questions=Questions(elicitation=think)) as tools:
        stream = tools.execute_tool_stream(ToolRequest("ask"))
        reading = threading.Thread(target=lambda: list(stream))
        reading.start()
        assert begun.wait(20)
        stream.close()
        reading.join(20)
        assert not reading.is_alive()
    assert ended.wait(20)


async def test_a_session_reaches_one_process_of_a_server_that_asks() -> None:
    asked: list[str] = []

    async def accept(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params["message"])
        return {"ok": True}

    async def pid(name: str, session: str) -> int:
        result = await service.execute_tool(ToolRequest(f"s.{name}", session_id=session))
        return int(result.result_data["pid"])

    service = ToolService(questions=Questions(elicitation=accept))
    await service.initialize(with_servers({"name": "s", "command": sys.executable, "args": [counting_server.__file__]}))
    async with service:
        ones = [await pid(name, "one") for name in ("count", "confirm", "count")]
        others = [await pid(name, "other") for name in ("count", "confirm", "count")]
    assert ({*ones}, {*others}, len(asked)) == ({ones[0]}, {others[0]}, 2)
    assert ones[0] != others[0]
