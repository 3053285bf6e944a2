"""Many threads, and many loops, at one service: everybody gets their own answer, from one loop and one connection."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isthmus.library import MCPManager, ToolRegistry, ToolRequest, ToolService, ToolStatus
from tests.library.process_resources import leaked_since, process_resources
from tests.library.services import pay, raw_server, with_servers

CALLS = 1000
THREADS = 32

pytestmark = pytest.mark.xdist_group("library_threads")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def service(ledger: Path) -> Iterator[ToolService]:
    made = ToolService()
    asyncio.run(made.initialize(with_servers(raw_server(ledger=ledger))))
    yield made
    made.blocking.shutdown()


def owners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "isthmus"]


def test_a_thousand_calls_from_32_threads(service: ToolService) -> None:
    def echo(text: str) -> str:
        return service.blocking.execute_tool(ToolRequest("raw.echo", parameters={"text": text})).text

    echo("warm")
    before = process_resources()
    texts = [f"call {number}" for number in range(CALLS)]
    with ThreadPoolExecutor(THREADS) as threads:
        assert list(threads.map(echo, texts)) == texts

    assert len(owners()) == 1
    assert leaked_since(before) == {}


def test_the_functions_of_a_registry_from_32_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXCELMANUS_MCP_CONFIG", raising=False)
    server = raw_server()
    entry = {"command": server["command"], "args": server["args"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"raw": entry}}))
    manager, registry = MCPManager(tmp_path), ToolRegistry()
    asyncio.run(manager.initialize(registry))
    try:
        known = registry.get("mcp_raw_echo")
        assert known is not None
        func = known.func
        with ThreadPoolExecutor(THREADS) as threads:
            texts = [f"call {number}" for number in range(CALLS // 4)]
            assert list(threads.map(lambda text: func(text=text), texts)) == texts
            asked = threads.map(lambda text: registry.call_tool("mcp_raw_echo", {"text": text}), texts)
            assert list(asked) == texts
    finally:
        asyncio.run(manager.shutdown())


def test_everything_ran_once_and_in_one_process(service: ToolService, ledger: Path) -> None:
    nonces = [f"nonce {number}" for number in range(100)]
    with ThreadPoolExecutor(THREADS) as threads:
        results = list(threads.map(lambda nonce: service.blocking.execute_tool(pay(nonce)), nonces))

    assert [result.result_data for result in results] == nonces
    ran = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert sorted(line["nonce"] for line in ran) == sorted(nonces)
    assert len({line["pid"] for line in ran}) == 1


def test_a_loop_in_every_thread(service: ToolService) -> None:
    async def some(thread: int) -> list[str]:
        requests = [ToolRequest("raw.echo", parameters={"text": f"{thread}.{call}"}) for call in range(10)]
        return [result.text for result in await asyncio.gather(*map(service.execute_tool, requests))]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda thread: asyncio.run(some(thread)), range(8)))

    assert found == [[f"{thread}.{call}" for call in range(10)] for thread in range(8)]


def test_services_share_one_loop_and_do_not_meet(tmp_path: Path) -> None:
    def use(number: int) -> tuple[str, list[str]]:
        made = ToolService()
        asyncio.run(made.initialize({"enable_mcp": False}))
        try:
            said = made.blocking.execute_tool(ToolRequest("echo", parameters={"text": str(number)})).text
            return said, made.blocking.list_tools()
        finally:
            made.blocking.shutdown()

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(use, range(16)))

    assert len(owners()) == 1
    assert all(str(number) in said for number, (said, _) in enumerate(found))


def test_a_shutdown_from_another_thread_ends_running_calls(service: ToolService, ledger: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        running = [
            threads.submit(service.blocking.execute_tool, pay(f"long {number}", "sleep:60")) for number in range(3)
        ]
        while not ledger.exists() or len(ledger.read_text().splitlines()) < 3:
            threading.Event().wait(0.01)  # another process writes it, and cannot wake us
        threads.submit(service.blocking.shutdown).result()
        statuses = {future.result().status for future in running}

    assert statuses <= {ToolStatus.CANCELLED, ToolStatus.UNAVAILABLE}
