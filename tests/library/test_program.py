"""Programs that are run on the hub's own loop, and calls that are made there."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.library import Questions, ToolContext, ToolRequest, ToolService, WrongThreadError, run, tool
from isthmus.library.loop_thread import LoopThread
from isthmus.library.public_types import ChunkType


async def where() -> str:
    return threading.current_thread().name


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What crosses over to the hub's loop."""
    crossed: list[object] = []
    post = LoopThread.post

    def noted(self: LoopThread, function: Any, *args: Any) -> None:
        crossed.append(function)
        post(self, function, *args)

    monkeypatch.setattr(LoopThread, "post", noted)
    return crossed


@pytest.fixture
def greet() -> Iterator[None]:
    @tool
    async def greet(context: ToolContext, name: str = "nobody") -> str:
        """Greet by name; without a name, ask for it."""
        if name == "nobody":
            answer = await context.ask("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
            name = "" if answer is None else answer["name"]
        return f"hello {name} on {await where()}"

    yield
    tool.remove("greet")


def test_a_program_runs_on_the_hubs_loop_and_returns_to_its_starter() -> None:
    assert run(where()) == "isthmus"
    assert run(where()) == "isthmus"


@pytest.mark.usefixtures("greet")
def test_its_calls_and_streams_cross_nothing(posted: list[object]) -> None:
    async def call() -> tuple[str, list[ChunkType]]:
        async with ToolService() as service:
            request = ToolRequest("greet", parameters={"name": "ada"})
            await service.execute_tool(request)
            posted.clear()
            said = (await service.execute_tool(request)).text
            kinds = [chunk.chunk_type async for chunk in service.execute_tool_stream(request)]
            assert posted == []
            return said, kinds

    assert run(call()) == ("hello ada on isthmus", ["data", "complete"])


@pytest.mark.usefixtures("greet")
async def test_a_tool_that_calls_another_crosses_nothing_either(posted: list[object]) -> None:
    @tool
    async def relay() -> str:
        """Call the other greeting."""
        posted.clear()
        said = (await service.execute_tool(ToolRequest("greet", parameters={"name": "bob"}))).text
        return f"{said}, {len(posted)} times"

    async with ToolService() as service:
        try:
            assert (await service.execute_tool(ToolRequest("relay"))).text == "hello bob on isthmus, 0 times"
        finally:
            tool.remove(relay)


@pytest.mark.usefixtures("greet")
def test_a_question_goes_to_the_program_on_its_loop() -> None:
    async def tell(_: dict[str, Any]) -> dict[str, Any]:
        return {"name": await where()}

    async def call() -> str:
        async with ToolService(questions=Questions(elicitation=tell)) as service:
            return (await service.execute_tool(ToolRequest("greet"))).text

    assert run(call()) == "hello isthmus on isthmus"


@pytest.mark.parametrize("raised", [LookupError("lost"), SystemExit(3), asyncio.CancelledError()])
def test_an_exception_of_a_program_is_raised_and_the_loop_continues(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise raised

    with pytest.raises(type(raised)) as caught:
        run(fail())

    assert str(caught.value) == str(raised)
    assert run(where()) == "isthmus"
    assert caplog.records == []


def test_an_interrupted_program_has_ended_when_the_interruption_is_raised() -> None:
    ended: list[str] = []
    here = threading.get_ident()

    async def long() -> None:
        try:
            asyncio.get_running_loop().call_later(0.02, signal.pthread_kill, here, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(bool)  # whatever takes another turn, or several
            ended.append("in good order")

    with pytest.raises(KeyboardInterrupt):
        run(long())

    assert ended == ["in good order"]


def test_a_program_that_blocks_there_is_advised_to_await() -> None:
    async def standing_still() -> None:
        async with ToolService() as service:
            service.blocking.execute_tool(ToolRequest("echo", parameters={"text": "hello"}))

    with pytest.raises(WrongThreadError, match="in a program started by `run`, await"):
        run(standing_still())


async def test_where_a_loop_runs_already_it_is_refused() -> None:
    with pytest.raises(WrongThreadError, match="await the coroutine instead"):
        run(where())

    async def inside() -> None:
        run(where())

    with pytest.raises(WrongThreadError, match="await the coroutine instead"):
        await asyncio.to_thread(run, inside())
