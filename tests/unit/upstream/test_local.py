"""The hub's own tools, called as any server's are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.model.faults import Bug
from isthmus.model.outcomes import Result
from isthmus.storage.memory import MemoryJournal
from isthmus.upstream.local import LocalLink, LocalTool, builtin_tools
from isthmus.upstream.registered import RESERVED
from isthmus.upstream.runner import Runner
from tests.unit.core.doubles import SERVER, Listener, Stage, call


class Scene:
    """A hub whose only server is the hub itself, and a tool that never ends or fails."""

    def __init__(self, background: BackgroundTasks) -> None:
        self.has_ended = asyncio.Event()
        odd = [LocalTool("hang", "", {"type": "object"}, self._hang), LocalTool("fail", "", {"type": "object"}, _fail)]
        runner = Runner(SERVER, Limits(), background, 2)
        self.link = LocalLink(SERVER, [*builtin_tools(MemoryJournal(), lambda: 1.5), *odd], background, runner)
        self.stage = Stage(*self.link.tools)
        self.stage.server_queue.attach(self.link)

    async def _hang(self, _caller: str, _arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            await asyncio.sleep(600)
        finally:
            self.has_ended.set()
        return {}

    async def run(self, name: str, **arguments: Any) -> Listener:
        _, listener = self.stage.start(call(f"files.{name}", arguments))
        async with asyncio.timeout(10):
            await listener.ended.wait()
        return listener


async def _fail(_caller: str, _arguments: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("a defect")


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    background = BackgroundTasks("test")
    yield Scene(background)
    await background.aclose()


def shown(listener: Listener) -> Any:
    (outcome,) = listener.ends
    assert isinstance(outcome, Result), outcome
    return json.loads(bytes(outcome.payload))


async def test_an_echo_is_its_text(scene: Scene) -> None:
    assert shown(await scene.run("echo", text="hello")) == {
        "content": [{"type": "text", "text": "hello"}],
        "structuredContent": {"text": "hello"},
        "isError": False,
    }


async def test_the_time_is_told_in_two_ways(scene: Scene) -> None:
    told = {"iso": "1970-01-01T00:00:01.500000+00:00", "unix": 1.5}
    assert shown(await scene.run("timestamp"))["structuredContent"] == told


async def test_lines_are_kept_and_read_back_oldest_first(scene: Scene) -> None:
    await scene.run("chat_log", message="one")
    lines = shown(await scene.run("chat_log", message="two", role="agent", limit=5))["structuredContent"]["lines"]
    kept = [(line["role"], line["message"], line["at"]) for line in lines]
    assert kept == [("user", "one", 1.5), ("agent", "two", 1.5)]


async def test_a_tool_that_waits_is_cancelled_with_its_call(scene: Scene) -> None:
    inflight, listener = scene.stage.start(call("files.hang"))
    await asyncio.sleep(0)
    inflight.cancel("enough")
    assert listener.fault.executed == "unknown"
    async with asyncio.timeout(10):
        await scene.has_ended.wait()


async def test_a_tool_that_fails_is_a_defect_of_the_hub(scene: Scene) -> None:
    assert isinstance((await scene.run("fail")).fault, Bug)


async def test_no_function_can_take_the_name_of_what_every_hub_has() -> None:
    assert {tool.name for tool in builtin_tools(MemoryJournal(), lambda: 1.5)} == RESERVED
