"""Services come and go, and leave nothing: no thread, task, process, descriptor or hub."""

from __future__ import annotations

import asyncio
import gc
import random
from pathlib import Path

import msgspec
import pytest

from isthmus.core.calls.running_call import InFlight
from isthmus.library import BlockingToolService, ToolRequest, ToolService
from isthmus.library.loop_thread import LoopThread
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_log_folders import slot_file
from tests.library.process_resources import ProcessResources, leaked_since, process_resources
from tests.library.services import pay, raw_server, with_servers

STARTS = 200
STARTS_WITH_PROCESS = 30
"""Each takes the time that Python takes to start, and what one leaves behind is found after two."""
INTERRUPTED_STARTS = 10

pytestmark = pytest.mark.xdist_group("library_leaks")


@pytest.fixture(scope="module")
def warm() -> None:
    """What lasts as long as the program is made with the first process."""
    with BlockingToolService(with_servers(raw_server())) as tools:
        assert not tools.failures


@pytest.fixture
def before(warm: None) -> ProcessResources:
    """What there is; ask for it after other fixtures, which have things of their own."""
    return process_resources()


async def last_event(state: Path) -> str:
    """What the audit log in a folder says last."""
    async with audit_sqlite.open_reader(slot_file(state, 1)) as log:
        return str([msgspec.json.decode(row.content)["event"] async for row in log.rows()][-1])


async def _start_and_stop() -> None:
    service = ToolService()
    await service.initialize({"enable_mcp": False})
    try:
        result = await service.execute_tool(ToolRequest("echo", parameters={"text": "x"}))
        assert result.is_success, result
    finally:
        await service.shutdown()


def test_two_hundred_services_leave_nothing(before: ProcessResources) -> None:
    async def all_of_them() -> None:
        for _ in range(STARTS // 2):
            await _start_and_stop()

    asyncio.run(all_of_them())
    for _ in range(STARTS // 2):
        with BlockingToolService({"enable_mcp": False}) as tools:
            assert tools.execute_tool(ToolRequest("echo", parameters={"text": "x"})).is_success

    assert leaked_since(before) == {}


def test_a_call_that_is_over_does_not_wait_for_the_garbage_collector(warm: None) -> None:
    with BlockingToolService({"enable_mcp": False}) as tools:
        gc.collect()
        gc.disable()
        try:
            for _ in range(STARTS):
                assert tools.execute_tool(ToolRequest("echo", parameters={"text": "x"})).is_success
            kept = sum(1 for thing in gc.get_objects() if type(thing) is InFlight)
        finally:
            gc.enable()

    assert kept < STARTS / 10  # the last may be on its way out


def test_services_with_a_process_each_leave_nothing(before: ProcessResources) -> None:
    for number in range(STARTS_WITH_PROCESS):
        with BlockingToolService(with_servers(raw_server())) as tools:
            assert tools.execute_tool(pay(str(number))).result_data == str(number)

    assert leaked_since(before) == {}


def test_a_service_that_cannot_reach_its_servers_leaves_nothing(deaf_port: int, before: ProcessResources) -> None:
    servers = [
        {"name": "missing", "command": "no-such-program-anywhere"},
        {"name": "deaf", "endpoint": f"http://127.0.0.1:{deaf_port}/mcp"},
        raw_server("--mode", "die_before_write"),
    ]
    with BlockingToolService(with_servers(*servers)) as tools:
        assert set(tools.failures) == {"missing", "deaf"}
        tools.execute_tool(pay("dies"))

    assert leaked_since(before) == {}


def test_an_initialize_that_is_cancelled_at_any_moment_leaves_nothing(before: ProcessResources) -> None:
    moments = random.Random(7)

    async def cancelled() -> None:
        service = ToolService()
        work = asyncio.create_task(service.initialize(with_servers(raw_server())))
        await asyncio.sleep(moments.uniform(0, 0.1))
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled() or work.exception() is None
        await service.shutdown()

    for _ in range(INTERRUPTED_STARTS):
        asyncio.run(cancelled())

    assert leaked_since(before) == {}


@pytest.mark.parametrize("place", ["a loop of its own", "the hub's loop"])
def test_a_shutdown_that_is_cancelled_goes_on_to_its_end(tmp_path: Path, warm: None, place: str) -> None:
    config = {**with_servers(raw_server()), "audit": "batched", "state": tmp_path}
    with BlockingToolService(config):
        """What writes a log has threads that last as long as the program."""
    before = process_resources()

    async def cancelled() -> None:
        service = ToolService()
        await service.initialize(config)
        whole = service.shutdown()
        work = asyncio.create_task(LoopThread.shared().run(whole) if place == "the hub's loop" else whole)
        await asyncio.sleep(0)  # it has been asked for, and not more
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled()

    asyncio.run(cancelled())

    assert leaked_since(before) == {}
    assert asyncio.run(last_event(tmp_path)) == "hub.stopped"


def test_a_service_that_is_shut_down_twice_can_be_used_again(before: ProcessResources) -> None:
    async def twice() -> None:
        service = ToolService()
        await service.shutdown()
        for _ in range(2):
            await service.initialize({"enable_mcp": False})
            assert "builtin.echo" in await service.list_tools()
            await asyncio.gather(service.shutdown(), service.shutdown())
        await service.shutdown()

    asyncio.run(twice())

    assert leaked_since(before) == {}
