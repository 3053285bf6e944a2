"""The same service for programs that do not await: from any thread, with or without a loop running in it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.library import (
    BlockingToolService,
    ConfigurationError,
    ServiceClosedError,
    ToolRequest,
    ToolResult,
    ToolService,
    ToolStatus,
    WrongThreadError,
    tool,
)
from isthmus.library.loop_thread import LoopThread
from tests.conftest import children
from tests.library.process_resources import leaked_since, process_resources
from tests.library.services import POLL_SECONDS, pay, raw_server, wait_for_line, with_servers

pytestmark = pytest.mark.xdist_group("library_sync")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sync") / "ledger.jsonl"


@pytest.fixture(scope="module")
def service(ledger: Path) -> Iterator[ToolService]:
    """One service for all tests, each of which has a loop of its own, or none; made on yet another one."""
    made = ToolService()
    asyncio.run(made.initialize(with_servers(raw_server(ledger=ledger))))
    yield made
    asyncio.run(made.shutdown())


@contextmanager
def interrupting(moment: Callable[[], None]) -> Iterator[None]:
    """Send this thread SIGINT once `moment` returns."""
    interrupted = threading.get_ident()

    def interrupt() -> None:
        moment()
        signal.pthread_kill(interrupted, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    yield
    helper.join()


def test_a_thread_without_a_loop_calls_lists_and_reads(service: ToolService) -> None:
    assert service.blocking.execute_tool(pay("plain")).result_data == "plain"
    assert {"raw.pay", "builtin.echo"} <= set(service.blocking.list_tools())


async def test_a_blocking_call_works_where_a_loop_runs_as_in_a_notebook(service: ToolService) -> None:
    before = asyncio.current_task()

    assert service.blocking.execute_tool(pay("notebook")).result_data == "notebook"

    assert asyncio.current_task() is before
    assert (await service.execute_tool(pay("awaited"))).result_data == "awaited"


@pytest.mark.parametrize("turn", range(3))
async def test_each_loop_uses_the_same_service(service: ToolService, turn: int) -> None:
    both = await asyncio.gather(service.execute_tool(pay(f"a{turn}")), service.execute_tool(pay(f"b{turn}")))

    assert [result.result_data for result in both] == [f"a{turn}", f"b{turn}"]


async def test_a_worker_thread_of_a_loop_calls(service: ToolService) -> None:
    assert (await asyncio.to_thread(service.blocking.execute_tool, pay("worker"))).result_data == "worker"


def test_chunks_come_to_a_thread_while_the_tool_runs(service: ToolService, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    kinds = []
    for chunk in service.blocking.execute_tool_stream(pay("gated", f"progress:2,until:{gate}")):
        kinds.append(chunk.chunk_type)
        if chunk.chunk_type == "progress":
            gate.touch()  # the tool ends only now, so what we have was said before its end

    assert kinds == ["progress", "progress", "data", "complete"]


def test_a_stream_that_is_left_is_cancelled_at_the_server(service: ToolService, ledger: Path) -> None:
    for chunk in service.blocking.execute_tool_stream(pay("left", "progress:1,sleep:60")):
        assert chunk.chunk_type == "progress"
        break

    wait_for_line(ledger, '"cancelled": "left"')


def test_a_stream_that_is_closed_while_it_begins_is_cancelled_at_the_server(service: ToolService, ledger: Path) -> None:
    stream = service.blocking.execute_tool_stream(pay("closed early", "sleep:60"))
    may_go_on = threading.Event()
    reader = threading.Thread(target=lambda: list(stream))

    @tool
    def newcomer() -> None:
        """So that the list of tools must be asked for."""

    try:
        LoopThread.shared().post(may_go_on.wait)  # until then the hub gives no list
        reader.start()
        while stream._start is not None:
            time.sleep(POLL_SECONDS)  # it has no other way to tell
        stream.close()
    finally:
        may_go_on.set()
        tool.remove(newcomer)
    reader.join()
    assert service.blocking.execute_tool(pay("after")).is_success
    if '"nonce": "closed early"' in ledger.read_text():  # else it was taken back before it was sent
        wait_for_line(ledger, '"cancelled": "closed early"')


def test_an_interrupted_call_is_cancelled_at_the_server(service: ToolService, ledger: Path) -> None:
    with interrupting(lambda: wait_for_line(ledger, '"nonce": "interrupted"')), pytest.raises(KeyboardInterrupt):
        service.blocking.execute_tool(pay("interrupted", "sleep:60"))

    wait_for_line(ledger, '"cancelled": "interrupted"')


def test_an_interrupted_initialize_leaves_no_process(service: ToolService) -> None:
    before = process_resources()

    def until_there_is_one() -> None:
        while not children() - before.processes:
            time.sleep(POLL_SECONDS)  # it has no other way to tell

    with interrupting(until_there_is_one), pytest.raises(KeyboardInterrupt):
        BlockingToolService(with_servers(raw_server("--mode", "hang_init"))).initialize()

    assert leaked_since(before) == {}


@pytest.mark.parametrize(
    ("fields", "trouble"),
    [
        ({"timeout": "soon"}, "timeout must be a number of seconds, 0 or more, not 'soon'"),
        ({"timeout": True}, "timeout must be a number of seconds, 0 or more, not True"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds, 0 or more, not nan"),
        ({"session_id": "a\nb"}, "session_id must be printable text, not 'a\\nb'"),
        ({"session_id": 5}, "session_id must be printable text, not 5"),
    ],
)
def test_an_impossible_request_is_reported(service: ToolService, fields: dict[str, Any], trouble: str) -> None:
    result = service.blocking.execute_tool(pay("never", **fields))

    assert (result.status, result.error_message) == (ToolStatus.INVALID_PARAMETERS, trouble)


def test_the_timeout_of_a_request_does_not_delay_a_call(service: ToolService) -> None:
    result = service.blocking.execute_tool(pay("quick", timeout=300))

    assert result.result_data == "quick"
    assert result.execution_time is not None
    assert result.execution_time < 60


def test_an_async_tool_that_blocks_its_own_loop_gets_advice(service: ToolService) -> None:
    tools = service.blocking
    waits: dict[str, Callable[[], object]] = {
        "execute_tool": lambda: tools.execute_tool(pay("never")),
        "execute_tool_stream": lambda: list(tools.execute_tool_stream(pay("never"))),
        "list_prompts": tools.list_prompts,
        "read_resource": lambda: tools.read_resource("memo://x"),
        "initialize": BlockingToolService().initialize,
        "shutdown": tools.shutdown,
    }
    said: dict[str, str] = {}

    @tool
    async def impatient() -> str:
        """Wait for oneself."""
        for name, wait in waits.items():
            try:
                wait()
            except WrongThreadError as error:
                said[name] = str(error)
        return str((await service.execute_tool(pay("patient"))).result_data)

    try:
        assert tools.execute_tool(ToolRequest("impatient")).text == "patient"
    finally:
        tool.remove("impatient")
    assert said.keys() == waits.keys()
    assert all("await the methods of the service" in advice for advice in said.values())


def test_a_plain_tool_may_block(service: ToolService) -> None:
    @tool
    def patient() -> str:
        """Ask another tool."""
        return str(service.blocking.execute_tool(pay("asked by a tool")).result_data)

    try:
        assert service.blocking.execute_tool(ToolRequest("patient")).text == "asked by a tool"
    finally:
        tool.remove("patient")


@pytest.fixture(params=["def", "async def"])
def down(service: ToolService, request: pytest.FixtureRequest) -> Iterator[Callable[[int], ToolResult]]:
    """Calls a tool that calls itself, so many times, one within the other."""

    def deeper(left: int) -> ToolRequest:
        return ToolRequest("descend", parameters={"left": left - 1})

    def descend(left: int) -> str:
        return service.blocking.execute_tool(deeper(left)).text if left else "the bottom"

    async def descend_awaiting(left: int) -> str:
        return (await service.execute_tool(deeper(left))).text if left else "the bottom"

    tool(name="descend")(descend if request.param == "def" else descend_awaiting)
    yield lambda depth: service.blocking.execute_tool(deeper(depth))
    tool.remove("descend")


def test_tools_that_call_each_other_use_every_place_there_is(down: Callable[[int], ToolResult]) -> None:
    assert down(64).text == "the bottom"


def test_a_call_that_can_never_have_a_place_is_refused_at_once(down: Callable[[int], ToolResult]) -> None:
    assert down(200).text == (
        "Server builtin is busy: 64 calls running, 0 waiting; all running calls wait for calls that they made "
        "themselves, including this one: nest tool calls less deeply, or raise max_calls"
    )
    assert down(64).text == "the bottom"


def test_many_that_each_call_another_do_not_wait_for_each_other(service: ToolService) -> None:
    all_run = threading.Barrier(64)

    @tool
    def pair() -> str:
        """Call another once as many run as may."""
        all_run.wait(30)
        return str(service.blocking.execute_tool(ToolRequest("single")).status)

    @tool
    def single() -> str:
        """Return at once, in a thread."""
        return "done"

    try:
        with ThreadPoolExecutor(64) as pool:
            ended = list(pool.map(lambda _: service.blocking.execute_tool(ToolRequest("pair")), range(64)))
    finally:
        tool.remove("pair")
        tool.remove("single")
    said = Counter(result.text for result in ended)
    assert said.keys() <= {"success", "unavailable"}
    assert said["success"] > said["unavailable"] > 0


def test_a_service_that_there_is_takes_no_configuration(service: ToolService) -> None:
    with pytest.raises(ConfigurationError, match="Give `service` alone"):
        BlockingToolService({"enable_mcp": False}, service=service)


def test_a_service_that_there_is_can_be_initialized_without_a_loop(tmp_path: Path) -> None:
    service = ToolService()
    service.blocking.initialize(with_servers(raw_server(ledger=tmp_path / "ledger")))
    with service.blocking as tools:
        assert tools.execute_tool(pay("later")).result_data == "later"


def test_initial_settings_are_passed_once() -> None:
    with pytest.raises(ConfigurationError, match=r"already passed to ToolService.*without arguments"):
        BlockingToolService({"enable_mcp": False}).initialize({"enable_mcp": True})


def test_using_a_service_too_early_is_answered_with_how_to_begin() -> None:
    with pytest.raises(ServiceClosedError, match=r"or call `initialize` first"):
        BlockingToolService().list_tools()


def test_a_service_by_itself_needs_no_loop_at_all(tmp_path: Path) -> None:
    with BlockingToolService(with_servers(raw_server(ledger=tmp_path / "ledger"))) as tools:
        assert tools.execute_tool(pay("alone")).result_data == "alone"

    with pytest.raises(ServiceClosedError, match="shut down"):
        tools.execute_tool(pay("late"))
