"""Python functions behind a link: where they run, how they end, and isolation from the hub."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.settings import Limits
from isthmus.model.calls import LogMessage, Progress, Result
from isthmus.model.fault_table import BadArguments, BadReply, Lost, NotConnected
from isthmus.model.features import Tool
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.python import runner as module
from isthmus.upstream.python.link import PythonLink
from isthmus.upstream.python.runner import redirect_prints
from isthmus.upstream.server_settings import PythonSettings
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import SERVER, Listener, Stage, call, tool

SHOP = '''
    import asyncio, sys, threading
    from dataclasses import dataclass
    from isthmus.upstream.python.context import Context

    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    entered = threading.Semaphore(0)
    ran = []

    @dataclass
    class Bill:
        total: int

    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    def give(value):
        return value

    def bill() -> Bill:
        return Bill(7)

    def where() -> str:
        print("a word aside")
        return threading.current_thread().name

    async def wait(value: str) -> str:
        await asyncio.sleep(0)
        print("a word aside")
        return value

    async def hang() -> None:
        try:
            begun.set()
            await asyncio.sleep(600)
        finally:
            ended.set()

    def block(note: str = "") -> str:
        ran.append(note)
        entered.release()
        may_end.wait(30)
        return "late"

    def fail(words: str) -> None:
        raise ValueError(words)

    async def fail_later() -> None:
        raise KeyError("key")

    def leave() -> None:
        sys.exit(3)

    async def leave_later() -> None:
        sys.exit(3)

    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    def nameless() -> None:
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError
        raise Mute

    def not_json() -> object:
        return object()

    def tell(context: Context) -> str:
        for number in range(3):
            context.progress(number, 3, "on the way")
        context.log("warning", "look out")
        return context.caller

    async def tell_later(context: Context) -> None:
        context.progress(1)
'''


class Scene:
    """A hub whose only server is a module of functions."""

    def __init__(self, folder: Path, background: BackgroundTasks, limits: Limits) -> None:
        self._background = background
        self._limits = limits
        (folder / "shop_of_functions.py").write_text(dedent(SHOP))
        self.reach = PythonSettings("shop_of_functions", str(folder))
        self.link = self.dial(self.reach)
        self.stage = Stage()

    def dial(self, reach: PythonSettings) -> PythonLink:
        me = Implementation("test", "1")
        return PythonLink(SERVER, me, self._limits, reach=reach, background=self._background, max_calls=2)

    async def open(self) -> None:
        await self.link.handshake("legacy")
        self.stage = Stage(*(await self.link.list_features()).tools)
        self.stage.server_queue.attach(self.link)

    @property
    def shop(self) -> Any:
        """The module itself."""
        return sys.modules["shop_of_functions"]

    def start(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> tuple[InFlight, Listener]:
        asked = msgspec.structs.replace(call(f"files.{name}", arguments), **more)
        return self.stage.start(asked)

    async def entered(self, count: int) -> None:
        """Wait until as many calls of `block` have begun."""
        for _ in range(count):
            await hold(lambda seconds: self.shop.entered.acquire(timeout=seconds))

    async def run(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Listener:
        _, listener = self.start(name, arguments, **more)
        async with asyncio.timeout(10):
            await listener.ended.wait()
        return listener

    async def value(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        return shown(await self.run(name, arguments))["structuredContent"]["result"]


def shown(listener: Listener) -> Any:
    (outcome,) = listener.ends
    assert isinstance(outcome, Result), outcome
    return json.loads(bytes(outcome.payload))


async def hold(wait: Callable[[float], bool]) -> None:
    """Wait for something in another thread."""
    assert await asyncio.to_thread(wait, 10)


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    path, background = list(sys.path), BackgroundTasks("test")
    scene = Scene(tmp_path, background, Limits(reply_bytes=4096))
    await scene.open()
    yield scene
    scene.shop.may_end.set()
    await scene.link.aclose()
    await background.aclose()
    sys.path[:] = path
    del sys.modules["shop_of_functions"]


# -- results ---------------------------------------------------------------------------------------------------------


async def test_a_function_is_described_and_called(scene: Scene) -> None:
    tools = {str(tool.name): tool for tool in (await scene.link.list_features()).tools}
    assert isinstance(tools["add"], Tool)
    assert json.loads(bytes(tools["add"].definition["description"])) == "Add two numbers."
    assert shown(await scene.run("add", {"a": 2})) == {
        "content": [{"type": "text", "text": "3"}],
        "structuredContent": {"result": 3},
        "isError": False,
    }


@pytest.mark.parametrize("value", [None, "text", 1.5, [1], True])
async def test_a_value_comes_back_as_structure(scene: Scene, value: Any) -> None:
    assert await scene.value("give", {"value": value}) == value


async def test_an_object_is_its_own_structure(scene: Scene) -> None:
    assert shown(await scene.run("bill"))["structuredContent"] == {"total": 7}
    assert shown(await scene.run("give", {"value": {"a": 1}}))["structuredContent"] == {"a": 1}


async def test_a_result_in_the_words_of_mcp_is_passed_on(scene: Scene) -> None:
    value = {"content": [{"type": "text", "text": "no"}], "isError": True}
    listener = await scene.run("give", {"value": value})
    assert shown(listener) == value
    assert isinstance(listener.ends[0], Result)
    assert listener.ends[0].is_error


async def test_plain_functions_run_in_threads_and_print_aside(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    redirect_prints()
    assert (await scene.value("where")).startswith(f"{SERVER}/")
    assert await scene.value("wait", {"value": "here"}) == "here"
    assert capsys.readouterr() == ("", "a word aside\n" * 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fail", "ValueError: no such thing"),
        ("fail_later", "KeyError: 'key'"),
        ("leave", "SystemExit: 3"),
        ("leave_later", "SystemExit: 3"),
        ("cancel_itself", "CancelledError"),
        ("nameless", "Mute"),
        (
            "not_json",
            "TypeError: the tool's result has a value of type object, which JSON does not have: "
            "return text, numbers, lists, dictionaries, dataclasses or models",
        ),
    ],
)
async def test_an_exception_is_a_result_that_says_so(scene: Scene, name: str, words: str) -> None:
    listener = await scene.run(name, {"words": "no such thing"} if name == "fail" else {})
    assert shown(listener) == {"content": [{"type": "text", "text": words}], "isError": True}
    assert await scene.value("add", {"a": 1}) == 2


async def test_an_endless_explanation_is_cut(scene: Scene) -> None:
    listener = await scene.run("fail", {"words": "x" * 10_000})
    assert len(shown(listener)["content"][0]["text"]) == module.TEXT_LENGTH_MAX


async def test_a_result_over_the_limit_is_refused(scene: Scene) -> None:
    fault = (await scene.run("give", {"value": "x" * 5000})).fault
    assert isinstance(fault, BadReply)


async def test_arguments_that_the_annotations_refuse_never_reach_the_function(scene: Scene) -> None:
    scene.stage = Stage(tool("add"))  # without a schema, so that the hub itself does not refuse them
    scene.stage.server_queue.attach(scene.link)
    fault = (await scene.run("add", {"a": "x"})).fault
    assert isinstance(fault, BadArguments)
    assert "$.a" in fault.message


# -- events ----------------------------------------------------------------------------------------------------------


async def test_a_thread_reports_progress_and_logs_in_order(scene: Scene) -> None:
    listener = await scene.run("tell", wants_progress=True)
    assert [bytes(event.members["progress"]) for event in listener.events if isinstance(event, Progress)] == [
        b"0",
        b"1",
        b"2",
    ]
    assert isinstance(listener.events[-1], LogMessage)
    assert listener.events[-1].level == "warning"
    assert shown(listener)["structuredContent"] == {"result": "anyone"}


async def test_an_asynchronous_function_reports_progress(scene: Scene) -> None:
    listener = await scene.run("tell_later", wants_progress=True)
    assert listener.events == [Progress({"progress": msgspec.Raw(b"1")})]


async def test_progress_reaches_no_caller_that_did_not_ask(scene: Scene) -> None:
    listener = await scene.run("tell")
    assert [type(event) for event in listener.events] == [LogMessage]


async def test_a_module_with_a_context_can_log(scene: Scene) -> None:
    assert scene.link.abilities() == {"tools", "logging"}
    scene.link.set_level("debug")
    other = scene.dial(PythonSettings("math:sqrt"))
    await other.handshake("legacy")
    assert other.abilities() == {"tools"}
    await other.aclose()


# -- giving up -------------------------------------------------------------------------------------------------------


async def test_an_asynchronous_function_is_cancelled_with_its_call(scene: Scene) -> None:
    inflight, listener = scene.start("hang")
    await hold(scene.shop.begun.wait)
    inflight.cancel("enough")
    assert listener.fault.executed == "unknown"
    await hold(scene.shop.ended.wait)


async def test_an_asynchronous_function_given_up_at_once_never_began(scene: Scene) -> None:
    inflight, listener = scene.start("hang")
    inflight.cancel("enough")
    assert listener.fault.executed == "no"
    await asyncio.sleep(0)
    assert not scene.shop.begun.is_set()


async def test_a_thread_continues_after_its_call_and_its_result_is_dropped(scene: Scene) -> None:
    started = [scene.start("block") for _ in range(2)]
    await scene.entered(2)
    for inflight, listener in started:
        inflight.cancel("enough")
        assert listener.fault.executed == "unknown"
    scene.shop.may_end.set()
    assert await scene.value("add", {"a": 1}) == 2  # in a thread that was free for it
    assert scene.stage.notes.lates
    assert [len(listener.ends) for _, listener in started] == [1, 1]


async def test_a_call_that_finds_every_thread_taken_waits_and_can_be_taken_back(scene: Scene) -> None:
    held = [scene.start("block", {"note": "held"})[0] for _ in range(2)]
    await scene.entered(2)
    for inflight in held:
        inflight.cancel("enough")  # their threads go on, so that the next ones find none
    waiting, listener = scene.start("block", {"note": "waiting"})
    _, later = scene.start("block", {"note": "later"})
    waiting.cancel("enough")
    assert listener.fault.executed == "no"
    scene.shop.may_end.set()
    async with asyncio.timeout(10):
        await later.ended.wait()
    assert sorted(scene.shop.ran) == ["held", "held", "later"]


async def test_a_blocked_thread_delays_no_other(scene: Scene) -> None:
    scene.start("block")
    await scene.entered(1)
    assert await scene.value("add", {"a": 1}) == 2
    assert await scene.value("wait", {"value": "x"}) == "x"


async def test_closing_the_link_ends_every_call_and_does_not_wait_for_threads(scene: Scene) -> None:
    ends = [scene.start("hang")[1]] + [scene.start("block")[1] for _ in range(3)]
    await hold(scene.shop.begun.wait)
    await scene.entered(2)
    await scene.link.aclose()
    assert [(type(end.fault), end.fault.executed) for end in ends] == [
        (Lost, "unknown"),
        (Lost, "unknown"),
        (Lost, "unknown"),
        (Lost, "no"),
    ]
    _, late = scene.start("add", {"a": 1})
    assert isinstance(late.fault, NotConnected)


# -- greeting --------------------------------------------------------------------------------------------------------


async def test_a_failed_import_is_a_failed_connection(scene: Scene) -> None:
    link = scene.dial(PythonSettings("nowhere_at_all"))
    with pytest.raises(ConnectFailed, match="there is no Python module called nowhere_at_all"):
        await link.handshake("legacy")
    await link.aclose()


async def test_an_import_that_takes_too_long_is_a_failed_connection(scene: Scene, tmp_path: Path) -> None:
    text = "import shop_of_functions\nshop_of_functions.may_end.wait(30)\ndef f(): ..."
    (tmp_path / "slow_to_import.py").write_text(text)
    link = scene.dial(PythonSettings("slow_to_import", str(tmp_path)))
    link.start_seconds = 0.05
    with pytest.raises(ConnectFailed, match="importing slow_to_import takes over"):
        await link.handshake("legacy")
    scene.shop.may_end.set()
    link.start_seconds = 10.0
    await link.handshake("legacy")
    assert [tool.name for tool in (await link.list_features()).tools] == ["f"]
    await link.aclose()
    del sys.modules["slow_to_import"]


async def test_a_ping_needs_no_answer_and_a_question_gets_none(scene: Scene) -> None:
    await scene.link.ping(0.0)
    scene.link.listen()
    with pytest.raises(NotConnected):
        await scene.link.request("ping", b"{}")
