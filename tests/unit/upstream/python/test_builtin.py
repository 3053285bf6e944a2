"""The hub's own server: it follows the table of functions, and has some built-in tools."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.settings import Limits
from isthmus.model.calls import EVERYTHING, Result
from isthmus.model.fault_table import Bug, Lost, NotConnected, UnknownTool
from isthmus.model.names import ServerName
from isthmus.storage.memory import MemoryJournal
from isthmus.upstream.python.builtin import HubFunctions, LocalLink, LocalTool, builtin_tools
from isthmus.upstream.python.context import Context
from isthmus.upstream.python.registry import RESERVED, FunctionOrigin, FunctionRegistry, NameTaken
from isthmus.upstream.python.runner import Runner
from isthmus.upstream.python.signatures import Function
from tests.unit.core.doubles import ANYONE, SERVER, Listener, Notes, Stage, call

OWN = ["builtin.chat_log", "builtin.echo", "builtin.timestamp"]


def double(n: int) -> int:
    return 2 * n


async def tell(context: Context) -> None:
    context.log("info", context.session)


class Scene:
    """A hub with nothing but what its process has."""

    def __init__(self, background: BackgroundTasks, *, is_settled: bool = True) -> None:
        self.registry = FunctionRegistry()
        self.hub = Hub(Limits(), Notes())
        own = builtin_tools(MemoryJournal(), lambda: 1.5)
        self.functions = HubFunctions(self.hub, background, own, is_settled=is_settled, registry=self.registry)

    def listed(self) -> list[str]:
        return sorted(self.hub.snapshot.view(ANYONE.grants, EVERYTHING).routes)

    def register(self, name: str = "double", function: Any = double) -> None:
        self.registry.add(Function(name, function), FunctionOrigin("shop", name))

    async def run(self, name: str, **arguments: Any) -> Listener:
        listener = Listener()
        self.hub.start(call(name, arguments), listener)
        async with asyncio.timeout(5):
            await listener.ended.wait()
        return listener

    async def value(self, name: str, **arguments: Any) -> Any:
        (outcome,) = (await self.run(name, **arguments)).ends
        assert isinstance(outcome, Result), outcome
        return json.loads(bytes(outcome.payload))["structuredContent"]["result"]


@pytest_asyncio.fixture
async def background() -> AsyncIterator[BackgroundTasks]:
    background = BackgroundTasks("test")
    yield background
    await background.aclose()


@pytest_asyncio.fixture
async def scene(background: BackgroundTasks) -> AsyncIterator[Scene]:
    scene = Scene(background)
    yield scene
    scene.functions.close()


async def test_a_function_is_shown_and_called_as_soon_as_it_is_a_tool(scene: Scene) -> None:
    changes: list[int] = []
    scene.hub.watch(lambda: changes.append(scene.hub.snapshot.version))
    scene.register()
    assert scene.listed() == sorted([*OWN, "builtin.double"])
    assert await scene.value("builtin.double", n=4) == 8
    scene.registry.remove("double")
    assert scene.listed() == OWN
    assert len(changes) == 2


async def test_a_function_registered_in_another_thread_comes_over(scene: Scene) -> None:
    changed = asyncio.Event()
    scene.hub.watch(changed.set)
    thread = threading.Thread(target=scene.register)
    thread.start()
    async with asyncio.timeout(5):
        await changed.wait()
    assert "builtin.double" in scene.listed()
    thread.join(5)


async def test_functions_registered_before_the_hub_are_listed_too(background: BackgroundTasks) -> None:
    first = Scene(background)
    first.register()
    second = HubFunctions(first.hub, background, [], registry=first.registry)
    assert "builtin.double" in first.listed()
    second.close()
    first.functions.close()


async def test_a_server_of_functions_of_this_hub_alone_comes_with_the_first_and_goes_with_the_last(
    scene: Scene,
) -> None:
    scene.functions.add(Function("double", double), "shop")
    scene.functions.add(Function("twice", double), "shop")
    assert scene.listed() == [*OWN, "shop.double", "shop.twice"]
    assert await scene.value("shop.double", n=3) == 6
    assert scene.functions.remove("twice", "shop")
    assert scene.functions.remove("double", "shop")
    assert not scene.functions.remove("double", "shop")
    assert scene.listed() == OWN
    assert isinstance((await scene.run("shop.double", n=3)).fault, UnknownTool)
    scene.functions.add(Function("double", double), "shop")
    assert await scene.value("shop.double", n=3) == 6


async def test_a_function_of_this_hub_alone_can_be_built_in(scene: Scene) -> None:
    scene.functions.add(Function("double", double))
    assert await scene.value("builtin.double", n=3) == 6
    assert scene.functions.remove("double")
    assert scene.listed() == OWN


@pytest.mark.parametrize(("name", "server"), [("echo", "builtin"), ("double", "builtin"), ("double", "files")])
async def test_a_name_that_is_taken_stays_so(scene: Scene, name: str, server: str) -> None:
    scene.register()
    scene.hub.server_queues[ServerName("files")] = scene.hub.server_queues[BUILTIN]
    with pytest.raises(NameTaken):
        scene.functions.add(Function(name, double), server)
    assert scene.listed() == sorted([*OWN, "builtin.double"])


async def test_a_server_s_name_must_be_one(scene: Scene) -> None:
    with pytest.raises(ValueError, match="a server name must be"):
        scene.functions.add(Function("double", double), "a.b")


async def test_the_hub_can_log_once_a_function_can(scene: Scene) -> None:
    assert scene.hub.snapshot.server_statuses[BUILTIN].abilities == {"tools"}
    scene.register("tell", tell)
    assert scene.hub.snapshot.server_statuses[BUILTIN].abilities == {"tools", "logging"}


async def test_a_call_that_comes_when_its_function_is_gone_says_so(scene: Scene) -> None:
    scene.register()
    snapshot = scene.hub.snapshot
    scene.registry.remove("double")
    scene.hub.__dict__["snapshot"] = snapshot  # as a caller that waited for its turn had found it
    fault = (await scene.run("builtin.double", n=1)).fault
    assert isinstance(fault, NotConnected)
    assert fault.executed == "no"


async def test_a_list_waits_until_all_modules_have_been_imported(background: BackgroundTasks) -> None:
    scene = Scene(background, is_settled=False)
    assert scene.hub.settling
    assert "builtin.echo" in scene.listed()
    scene.functions.all_loaded(("one module less",))
    assert not scene.hub.settling
    assert scene.hub.snapshot.server_statuses[BUILTIN].notes == ("one module less",)
    scene.functions.close()


async def test_an_asynchronous_function_is_cancelled_with_its_call(scene: Scene) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        try:
            begun.set()
            await asyncio.sleep(600)
        finally:
            ended.set()

    scene.register("hang", hang)
    listener = Listener()
    inflight = scene.hub.start(call("builtin.hang"), listener)
    async with asyncio.timeout(5):
        await begun.wait()
        inflight.cancel("enough")
        await ended.wait()
    assert listener.fault.executed == "unknown"


async def test_the_end_cancels_every_call_and_receives_nothing_more(scene: Scene) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.sleep(600)

    scene.register("hang", hang)
    listener = Listener()
    scene.hub.start(call("builtin.hang"), listener)
    async with asyncio.timeout(5):
        await begun.wait()
    scene.functions.close()
    assert isinstance(listener.fault, Lost)
    scene.register()
    assert "builtin.double" not in scene.listed()


class LocalScene:
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
async def local_scene() -> AsyncIterator[LocalScene]:
    background = BackgroundTasks("test")
    yield LocalScene(background)
    await background.aclose()


def shown(listener: Listener) -> Any:
    (outcome,) = listener.ends
    assert isinstance(outcome, Result), outcome
    return json.loads(bytes(outcome.payload))


async def test_an_echo_is_its_text(local_scene: LocalScene) -> None:
    assert shown(await local_scene.run("echo", text="hello")) == {
        "content": [{"type": "text", "text": "hello"}],
        "structuredContent": {"text": "hello"},
        "isError": False,
    }


async def test_the_time_is_returned_in_two_forms(local_scene: LocalScene) -> None:
    received = {"iso": "1970-01-01T00:00:01.500000+00:00", "unix": 1.5}
    assert shown(await local_scene.run("timestamp"))["structuredContent"] == received


async def test_lines_are_kept_and_read_back_oldest_first(local_scene: LocalScene) -> None:
    await local_scene.run("chat_log", message="one")
    lines = shown(await local_scene.run("chat_log", message="two", role="agent", limit=5))["structuredContent"]["lines"]
    kept = [(line["role"], line["message"], line["at"]) for line in lines]
    assert kept == [("user", "one", 1.5), ("agent", "two", 1.5)]


async def test_a_tool_that_waits_is_cancelled_with_its_call(local_scene: LocalScene) -> None:
    inflight, listener = local_scene.stage.start(call("files.hang"))
    await asyncio.sleep(0)
    inflight.cancel("enough")
    assert listener.fault.executed == "unknown"
    async with asyncio.timeout(10):
        await local_scene.has_ended.wait()


async def test_a_tool_that_fails_is_a_defect_of_the_hub(local_scene: LocalScene) -> None:
    assert isinstance((await local_scene.run("fail")).fault, Bug)


async def test_no_function_can_take_the_name_of_a_builtin_tool() -> None:
    assert {tool.name for tool in builtin_tools(MemoryJournal(), lambda: 1.5)} == RESERVED
