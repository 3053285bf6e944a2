"""The library under Trio, by Trio itself and by anyio, which the other tests' environment does not have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from isthmus.library import BlockingToolService, ToolRequest, ToolService, tool
from isthmus.library.loop_thread import LoopThread
from tests.library.services import pay, raw_server, wait_for_line, with_servers

BACKENDS = ["asyncio", "trio"]
CASES = 100
SECONDS = 20.0


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtimes") / "ledger.jsonl"


@pytest.fixture(scope="module")
def service(ledger: Path) -> Iterator[ToolService]:
    """Made under asyncio, used under everything."""
    made = ToolService()
    asyncio.run(made.initialize(with_servers(raw_server(ledger=ledger))))
    yield made
    made.blocking.shutdown()


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_beside_each_other(service: ToolService, backend: str) -> None:
    found: dict[int, Any] = {}

    async def call(number: int) -> None:
        found[number] = (await service.execute_tool(pay(f"{backend} {number}"))).result_data

    async def main() -> None:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(call, number)

    anyio.run(main, backend=backend)
    assert found == {number: f"{backend} {number}" for number in range(20)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_chunks_come_while_the_tool_runs(service: ToolService, tmp_path: Path, backend: str) -> None:
    gate = tmp_path / "gate"

    async def main() -> list[str]:
        kinds = []
        with anyio.fail_after(SECONDS):
            async with service.execute_tool_stream(pay(f"gated {backend}", f"progress:2,until:{gate}")) as chunks:
                async for chunk in chunks:
                    kinds.append(chunk.chunk_type)
                    gate.touch()
        return kinds

    assert anyio.run(main, backend=backend) == ["progress", "progress", "data", "complete"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", ["execute", "stream"])
def test_a_scope_that_is_cancelled_cancels_at_the_server(
    service: ToolService, ledger: Path, backend: str, way: str
) -> None:
    nonce = f"left {backend} {way}"

    async def call() -> None:
        if way == "execute":
            await service.execute_tool(pay(nonce, "sleep:60"))
        else:
            async for _ in service.execute_tool_stream(pay(nonce, "progress:1,sleep:60")):
                pass

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await anyio.to_thread.run_sync(wait_for_line, ledger, f'"nonce": "{nonce}"')
            group.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    wait_for_line(ledger, f'"cancelled": "{nonce}"')


@pytest.mark.parametrize("backend", BACKENDS)
def test_scopes_that_end_at_random_moments_raise_nothing(service: ToolService, backend: str) -> None:
    chance = random.Random(11)

    async def one(number: int) -> None:
        with anyio.move_on_after(chance.uniform(0, 0.006)):
            result = await service.execute_tool(pay(f"{backend} random {number}", chance.choice([None, "sleep:60"])))
            assert result.is_success

    async def main() -> None:
        with anyio.fail_after(SECONDS):
            for _ in range(0, CASES, 20):
                async with anyio.create_task_group() as group:
                    for number in range(20):
                        group.start_soon(one, number)

    anyio.run(main, backend=backend)


def test_a_service_lives_wholly_under_trio(tmp_path: Path) -> None:
    async def main() -> str:
        with trio.fail_after(SECONDS):
            async with ToolService() as empty:
                assert "builtin.echo" in await empty.list_tools()
            service = ToolService()
            await service.initialize(with_servers(raw_server(ledger=tmp_path / "ledger")))
            try:
                return str((await service.execute_tool(pay("trio"))).result_data)
            finally:
                await service.shutdown()

    assert trio.run(main) == "trio"


def test_an_initialize_that_trio_cancels_leaves_no_process(tmp_path: Path) -> None:
    async def main() -> None:
        service = ToolService()
        with trio.move_on_after(0.02) as scope:
            await service.initialize(with_servers(raw_server("--mode", "hang_init")))
        assert scope.cancelled_caught

    owner = LoopThread.shared()
    before = owner.call(lambda: len(asyncio.all_tasks(owner.loop)))
    trio.run(main)
    deadline = trio_free_deadline()
    while owner.call(lambda: len(asyncio.all_tasks(owner.loop))) > before:
        deadline()


def trio_free_deadline() -> Any:
    """Called in a loop: waits a little, and raises once it has taken too long."""
    import time  # noqa: PLC0415

    end = time.monotonic() + SECONDS

    def wait() -> None:
        assert time.monotonic() < end, "it is still there"
        time.sleep(0.01)

    return wait


def test_a_guest_of_asyncio_and_its_host_both_call(service: ToolService) -> None:
    """Trio as a guest: a loop of asyncio runs around its tasks."""

    async def in_trio() -> Any:
        return (await service.execute_tool(pay("guest"))).result_data

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        trio.lowlevel.start_guest_run(
            in_trio,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=ended.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )
        host = (await service.execute_tool(pay("host"))).result_data
        return [host, (await ended).unwrap()]

    assert asyncio.run(main()) == ["host", "guest"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_tools_use_anyio_on_every_backend_of_the_caller(service: ToolService, backend: str) -> None:
    @tool
    async def doze() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)
        return "dozed"

    @tool
    def doze_by_itself() -> str:
        anyio.run(anyio.sleep, 0)
        return "dozed"

    async def main() -> list[str]:
        return [(await service.execute_tool(ToolRequest(name))).text for name in ("doze", "doze_by_itself")]

    try:
        assert anyio.run(main, backend=backend) == ["dozed", "dozed"]
    finally:
        tool.remove(doze)
        tool.remove(doze_by_itself)


def test_a_thread_of_trio_blocks(service: ToolService) -> None:
    async def main() -> Any:
        return await trio.to_thread.run_sync(service.blocking.execute_tool, pay("thread of trio"))

    assert trio.run(main).result_data == "thread of trio"


def test_a_trio_task_may_block_too(service: ToolService) -> None:
    async def main() -> Any:
        return service.blocking.execute_tool(pay("blocked trio")).result_data

    assert trio.run(main) == "blocked trio"


def test_without_any_loop_the_advice_is_to_block(service: ToolService) -> None:
    with pytest.raises(RuntimeError, match="blocking"):
        service.execute_tool(ToolRequest("raw.echo", parameters={"text": "x"})).send(None)


def test_the_blocking_form_needs_nothing() -> None:
    with BlockingToolService() as tools:
        assert "builtin.echo" in tools.list_tools()
