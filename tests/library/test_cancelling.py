"""Calls cancelled at random moments raise only the cancellation, and their servers are cancelled."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.library import ToolContext, ToolRequest, ToolService, tool
from isthmus.library.loop_thread import LoopThread
from tests.library.services import POLL_SECONDS, pay, raw_server, wait_for_line, with_servers

CASES = 500
AT_ONCE = 25
"""Fewer than a server may have in flight, so that no call waits for another."""
pytestmark = pytest.mark.xdist_group("library_cancelling")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def complaints() -> Iterator[list[dict[str, Any]]]:
    """Errors without a handler, on the owner's loop and on the caller's."""
    received: list[dict[str, Any]] = []
    owner = LoopThread.shared()
    owner.call(owner.loop.set_exception_handler, lambda _, context: received.append(context))
    yield received
    owner.call(owner.loop.set_exception_handler, None)


@asynccontextmanager
async def serving(ledger: Path) -> AsyncIterator[ToolService]:
    service = ToolService()
    await service.initialize(with_servers(raw_server(ledger=ledger)))
    try:
        yield service
    finally:
        await service.shutdown()


async def execute(service: ToolService, nonce: str, mode: str | None) -> None:
    assert (await service.execute_tool(pay(nonce, mode))).result_data == nonce


async def stream(service: ToolService, nonce: str, mode: str | None) -> None:
    async for chunk in service.execute_tool_stream(pay(nonce, mode)):
        assert chunk.chunk_type != "error", chunk


async def closed_stream(service: ToolService, nonce: str, mode: str | None) -> None:
    async with service.execute_tool_stream(pay(nonce, mode)) as chunks:
        assert [chunk.chunk_type async for chunk in chunks][-1] == "complete"


async def test_five_hundred_calls_cancelled_at_random_moments(ledger: Path, complaints: list[dict[str, Any]]) -> None:
    """Each is quick or would take a minute, and is executed or streamed; of the long ones none comes to its end."""
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    chance = random.Random(7)
    endings = {"cancelled": 0, "ended": 0}

    async def one(service: ToolService, number: int) -> None:
        way = chance.choice([execute, stream, closed_stream])
        mode = chance.choice([None, "progress:2,sleep:60"])
        task = asyncio.create_task(way(service, f"{'long' if mode else 'quick'} {number}", mode))
        await asyncio.sleep(chance.uniform(0, 1.5) * usual)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            endings["cancelled"] += 1
        else:
            assert task.exception() is None, f"{number} raised {task.exception()!r}"
            assert mode is None, f"{number} ended although it takes a minute"
            endings["ended"] += 1

    async with serving(ledger) as service:
        usual = await seconds_of(service)
        for first in range(0, CASES, AT_ONCE):
            await asyncio.gather(*(one(service, number) for number in range(first, first + AT_ONCE)))
        assert (await service.execute_tool(pay("last"))).result_data == "last"
        ran, cancelled = noted(ledger)
        for nonce in ran:
            if nonce.startswith("long"):
                await asyncio.to_thread(wait_for_line, ledger, f'"cancelled": "{nonce}"')
    gc.collect()

    assert sum(endings.values()) == CASES
    assert min(endings.values()) > 0, "the moments tell nothing: they are all too early or all too late"
    assert any(nonce.startswith("long") for nonce in ran)
    assert cancelled <= ran
    assert complaints == []


async def seconds_of(service: ToolService) -> float:
    """What as many calls as are made at once take on this machine, now that all of them have been made before."""
    took = 0.0
    for turn in range(2):
        began = time.perf_counter()
        await asyncio.gather(*(execute(service, f"measured {turn} {number}", None) for number in range(AT_ONCE)))
        took = time.perf_counter() - began
    return took


def noted(ledger: Path) -> tuple[set[str], set[str]]:
    """The nonces that ran, each once, and those that were cancelled."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    ran = [line["nonce"] for line in lines if "nonce" in line]
    assert len(ran) == len(set(ran))
    return set(ran), {line["cancelled"] for line in lines if "cancelled" in line}


@pytest.mark.parametrize("way", ["service", "tool"])
async def test_a_stream_that_is_left_is_cancelled_at_the_server(ledger: Path, way: str) -> None:
    async with serving(ledger) as service:
        request = pay("left", "progress:1,sleep:60")
        chunks = (
            service.execute_tool_stream(request)
            if way == "service"
            else service.get_tool("pay").execute_stream(request)
        )
        async for chunk in chunks:
            assert chunk.chunk_type == "progress"
            break
        del chunks
        gc.collect()
        await asyncio.to_thread(wait_for_line, ledger, '"cancelled": "left"')


async def test_a_stream_that_another_task_closes_ends(ledger: Path) -> None:
    async with serving(ledger) as service:
        chunks = service.execute_tool_stream(pay("closed", "sleep:60"))
        reading = asyncio.create_task(anext(chunks, None))
        await asyncio.to_thread(wait_for_line, ledger, '"nonce": "closed"')
        await chunks.aclose()
        assert await asyncio.wait_for(reading, 20) is None
        await asyncio.to_thread(wait_for_line, ledger, '"cancelled": "closed"')


async def test_a_timeout_of_the_callers_own_is_a_timeout(ledger: Path) -> None:
    async with serving(ledger) as service:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await service.execute_tool(pay("slow", "sleep:60"))
        assert (await service.execute_tool(pay("next"))).result_data == "next"


def test_a_loop_that_is_closed_during_a_call_affects_no_other(ledger: Path, complaints: list[dict[str, Any]]) -> None:
    """The caller is gone: the answer is dropped when it comes, and the call ends with the service."""
    gate = ledger.parent / "gate"
    service = ToolService()
    asyncio.run(service.initialize(with_servers(raw_server(ledger=ledger))))

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: None)  # that a task was left is what is done here
    left = [loop.create_task(service.execute_tool(pay(*each))) for each in (("a", f"until:{gate}"), ("b", "sleep:60"))]
    loop.run_until_complete(asyncio.to_thread(wait_for_line, ledger, '"nonce": "b"'))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    gate.touch()

    assert asyncio.run(service.execute_tool(pay("next"))).result_data == "next"
    service.blocking.shutdown()
    wait_for_line(ledger, '"cancelled": "b"')
    assert not any(task.done() for task in left)
    assert complaints == []


@pytest.mark.parametrize("mode", ["off", "strict"])
@pytest.mark.parametrize("way", ["cancelled", "late", "closed", "shut down"])
async def test_a_function_in_a_thread_can_learn_that_its_call_is_over(tmp_path: Path, way: str, mode: str) -> None:
    has_begun, has_returned = threading.Event(), threading.Event()
    was_over: list[bool] = []

    @tool
    def dig(context: ToolContext) -> str:
        """Dig until the call is cancelled."""
        was_over.append(context.is_done)
        has_begun.set()
        while not context.is_done:
            has_returned.wait(POLL_SECONDS)
        has_returned.set()
        return "dug"

    service = ToolService()
    await service.initialize({"audit": mode, "state": tmp_path})
    try:
        async with service, asyncio.timeout(20):
            chunks = service.execute_tool_stream(ToolRequest("dig", timeout=0.5 if way == "late" else None))
            reading = asyncio.create_task(anext(chunks, None))
            assert await asyncio.to_thread(has_begun.wait, 20)
            match way:
                case "cancelled":
                    reading.cancel()
                case "closed":
                    await chunks.aclose()
                case "shut down":
                    await service.shutdown()
                case _:
                    pass  # its time will be over
            assert await asyncio.to_thread(has_returned.wait, 20)
            await asyncio.wait([reading])
    finally:
        tool.remove("dig")
    assert was_over == [False]
