"""`isthmus serve --workers N`: several processes behind one port that look like one to callers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
import pytest_asyncio

from tests.cluster.servers import free_port
from tests.cluster_database.nodes import forked_hub
from tests.conftest import Ledger
from tests.databases import Database, running
from tests.faults import quick_server
from tests.faults.watching import eventually, with_mark
from tests.frontends.test_a2a_grpc import call
from tests.hubs import TRUSTED, HubProcess, run, stdio, write_config
from tests.relay.peers import Manner, raw_server
from tests.relay.tokens import KEY

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

Json = dict[str, Any]
TRIES = 24
"""Connections enough to meet both workers: all go to one of them once in eight million times."""
LEGACY = "2025-06-18"
PLAIN = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with running() as made:
        yield made


def config_of(folder: Path, database: Database, ledger: Ledger, entry: Json | None = None, **tables: Any) -> Path:
    """A configuration with a quick server; each test has a schema of its own."""
    server = stdio(quick_server.command(ledger.path), max_calls=8, **(entry or {}))
    schema = re.sub(r"\W", "_", folder.name)
    url = database.url(user="hub:${PG_PASSWORD:-none}", schema=schema)
    made: Json = {"cluster": {"lease_seconds": 2.0}, "limits": {"drain_seconds": 10.0}, "relay": {"key": KEY}, **tables}
    return write_config(folder, {"quick": server}, storage={"url": url}, **made)


@asynccontextmanager
async def workers(config: Path, count: int = 2) -> AsyncIterator[HubProcess]:
    """Run workers until the block ends; all of them are there."""
    async with forked_hub(config, "--workers", str(count)) as hub:
        try:
            await nodes_of(hub, count)
            yield hub
        finally:
            with suppress(ProcessLookupError):
                hub.process.terminate()
            await asyncio.wait_for(hub.process.wait(), 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `pair`."""
    return tmp_path_factory.mktemp("pair")


@pytest.fixture(scope="module")
def shared_ledger(folder: Path) -> Ledger:
    """What the servers of `pair` ran; each test has numbers of its own."""
    return Ledger(folder / "ledger.jsonl")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(folder: Path, database: Database, shared_ledger: Ledger) -> AsyncIterator[HubProcess]:
    async with workers(config_of(folder, database, shared_ledger)) as hub:
        yield hub


async def ask(hub: HubProcess, method: str, path: str, **options: Any) -> httpx2.Response:
    """Send one request on a connection of its own, so that any worker may get it."""
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=30.0, verify=TRUSTED) as client:
        return await client.request(method, path, **options)


async def rpc(hub: HubProcess, path: str, method: str, params: Json, headers: Json | None = None) -> Json:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    response = await ask(hub, "POST", path, json=body, headers={**PLAIN, **(headers or {})})
    text = response.text
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        text = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")][-1]
    found: Json = json.loads(text)
    return found


async def nodes_of(hub: HubProcess, count: int) -> Json:
    """Wait until every worker sees all others; return what each says, by its node."""
    met: Json = {}

    async def all_met() -> bool:
        found: Json = (await ask(hub, "GET", "/v1/cluster")).json()
        met[found["node"]] = found
        return len(met) == count and all(len(each["nodes"]) == count for each in met.values())

    await eventually(all_met, f"{count} workers serve", 30)
    return met


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def sent(text: str, tool: str = "pay") -> Json:
    part = {"data": {"tool": f"quick.{tool}", "arguments": {"nonce": text}}}
    message = {"messageId": text, "role": "ROLE_USER", "parts": [part]}
    return {"message": message, "configuration": {"returnImmediately": True}}


async def test_a_session_and_a_task_are_served_by_every_worker(pair: HubProcess, shared_ledger: Ledger) -> None:
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    session = {"mcp-session-id": (await ask(pair, "POST", "/mcp", json=body, headers=PLAIN)).headers["mcp-session-id"]}
    for _ in range(TRIES):
        answer = await rpc(pair, "/mcp", "tools/call", {"name": "builtin.echo", "arguments": {"text": "x"}}, session)
        assert answer["result"]["content"][0]["text"] == "x"
    headers = {"a2a-version": "1.0"}
    task = (await rpc(pair, "/a2a", "SendMessage", sent("1-1"), headers))["result"]["task"]["id"]
    for _ in range(TRIES):
        again = await rpc(pair, "/a2a", "SendMessage", sent("1-1"), headers)
        assert again["result"]["task"]["id"] == task
        assert "result" in await rpc(pair, "/a2a", "GetTask", {"id": task}, headers)
    assert shared_ledger.ran()["1-1"] == 1


async def test_a_server_that_dials_in_is_called_through_every_worker(pair: HubProcess) -> None:
    async with raw_server(pair.port, "kitchen", "s1", manner=Manner(tools=("echo",))) as server:

        async def is_everywhere() -> bool:
            found = [(await ask(pair, "GET", "/v1/servers/kitchen_s1")).json().get("state") for _ in range(TRIES)]
            return set(found) == {"ready"}

        await eventually(is_everywhere, "all workers have the server", 20)
        for n in range(TRIES):
            found = (await ask(pair, "POST", "/v1/tools/kitchen_s1.echo", json={"text": f"{n}"})).json()
            assert found["content"][0]["text"] == f"{n}", found
        assert server.asked.count("tools/call") == TRIES


async def test_commands_reach_any_worker(pair: HubProcess, folder: Path) -> None:
    config = ("--config", str(folder / "isthmus.json"))
    for n in range(6):
        ended = await run("call", "builtin.echo", f"text={n}", *config, folder=folder)
        assert (ended.code, ended.out.strip()) == (0, f"{n}"), ended
    status = await run("cluster", "status", *config, folder=folder)
    assert status.out.count("\n") == 2, status


@pytest.mark.parametrize("entry", [{"placement": "one"}, {"pool": 1}], ids=["placement", "pool"])
async def test_a_placed_program_runs_once_for_all_workers(
    tmp_path: Path, database: Database, ledger: Ledger, entry: Json
) -> None:
    async with workers(config_of(tmp_path, database, ledger, entry)) as hub:
        for n in range(TRIES):
            response = await ask(hub, "POST", "/v1/tools/quick.pay", json={"nonce": f"{n}"})
            assert response.status_code == 200, response.text
        assert set(ledger.ran().values()) == {1}
        notes = [json.loads(line) for line in ledger.lines()]
        assert len({note["pid"] for note in notes}) == 1
        assert len(with_mark(hub.pid, str(ledger.path))) == 1


async def test_one_scrape_has_the_figures_of_all_workers(pair: HubProcess) -> None:
    for _ in range(TRIES):
        assert (await ask(pair, "POST", "/v1/tools/builtin.echo", json={"text": "x"})).status_code == 200
    for accept in ("text/plain", "application/openmetrics-text"):
        text = (await ask(pair, "GET", "/metrics", headers={"accept": accept})).text
        calls = re.findall(r'^isthmus_calls_total\{worker="(\d)",.*tool="echo".*\} (\d+)$', text, re.MULTILINE)
        assert {worker for worker, _ in calls} == {"1", "2"}, text
        assert sum(int(count) for _, count in calls) >= TRIES
        heads = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
        assert len(heads) == len(set(heads))
        assert text.endswith("# EOF\n") is (accept != "text/plain")


async def test_a_killed_worker_costs_only_its_calls_and_is_started_again(
    pair: HubProcess, shared_ledger: Ledger
) -> None:
    before = set(await nodes_of(pair, 2))
    pids = children_of(pair.pid)
    assert len(pids) == 2
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                httpx2.AsyncClient(base_url=f"http://127.0.0.1:{pair.port}", verify=TRUSTED)
            )
            for _ in range(TRIES)
        ]
        calls = [
            asyncio.create_task(client.post("/v1/tools/quick.hold", json={"nonce": f"2-{n}"}, timeout=60))
            for n, client in enumerate(clients[:16])  # all at one worker once in 65,536 times
        ]
        await eventually(
            lambda: sum(nonce.startswith("2-") for nonce in shared_ledger.ran()) >= 8, "all calls are running", 20
        )
        os.kill(pids[0], signal.SIGKILL)
        await eventually(lambda: any(call.done() for call in calls) or len(calls) == 0, "callers are cut off", 10)
        for _ in range(TRIES):  # the other one goes on
            with suppress(httpx2.TransportError):
                assert (await ask(pair, "GET", "/healthz")).status_code == 200
        assert set(await nodes_of(pair, 2)) == before
        now = children_of(pair.pid)
        assert pids[1] in now
        assert len(now) == 2
        assert any("a worker has ended" in line for line in pair.said)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert max(shared_ledger.ran().values()) == 1


async def test_a_changed_file_reaches_all_workers(pair: HubProcess, folder: Path) -> None:
    file = folder / "isthmus.json"
    changed = json.loads(file.read_text())
    changed["servers"]["second"] = changed["servers"]["quick"]
    draft = folder / "draft"
    draft.write_text(json.dumps(changed))
    draft.replace(file)

    async def is_everywhere() -> bool:
        found = [(await ask(pair, "GET", "/v1/servers/second")).status_code for _ in range(TRIES)]
        return set(found) == {200}

    await eventually(is_everywhere, "all workers have the new server", 20)
    assert not [line for line in pair.said if "restart" in line]


async def test_running_calls_are_answered_at_the_end(tmp_path: Path, database: Database, ledger: Ledger) -> None:
    async with workers(config_of(tmp_path, database, ledger)) as hub:
        calls = [
            asyncio.create_task(ask(hub, "POST", "/v1/tools/quick.pay", json={"nonce": f"3-{n}"})) for n in range(8)
        ]
        await eventually(lambda: any(nonce.startswith("3-") for nonce in ledger.ran()), "calls are running", 20)
        hub.process.terminate()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert await asyncio.wait_for(hub.process.wait(), 30) == 0
    answered = [each for each in answers if isinstance(each, httpx2.Response)]
    assert answered
    assert {each.status_code for each in answered} <= {200, 503}, [each.text for each in answered]


async def test_a_missing_requirement_is_reported_once(tmp_path: Path, database: Database, ledger: Ledger) -> None:
    alone = write_config(tmp_path, {})
    words = ("serve", "--config", str(alone), "--port", "0", "--workers", "2")
    ended = await run(*words, folder=tmp_path)
    assert ended.code == 3
    assert "--workers 2" in ended.err
    assert "postgresql://" in ended.err
    wrong = config_of(tmp_path, database, ledger)
    wrong.write_text(
        wrong.read_text().replace(
            database.url(user="hub:${PG_PASSWORD:-none}").rpartition("/")[0], "postgresql://nobody@127.0.0.1:1"
        )
    )
    ended = await run(*words, folder=tmp_path)
    assert ended.code == 3, ended
    assert ended.err.count("the configuration cannot be used") == 1, ended


async def test_workers_share_the_port_of_grpc(tmp_path: Path, database: Database, ledger: Ledger) -> None:
    refused = config_of(tmp_path, database, ledger, a2a={"grpc_port": 0})
    ended = await run("serve", "--config", str(refused), "--port", "0", "--workers", "2", folder=tmp_path)
    assert (ended.code, "each worker would choose another one" in ended.err) == (3, True), ended
    port = free_port()
    async with workers(config_of(tmp_path, database, ledger, a2a={"grpc_port": port})) as hub, asyncio.timeout(60):
        tasks = []
        for number in range(TRIES):
            # A connection of its own each: gRPC would share one for all channels of the same address.
            options = (("grpc.use_local_subchannel_pool", 1),)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
                made = await call(channel, "SendMessage", sent(f"9-{number}"), key="")
                tasks.append(made.task.id)
        for task in tasks:

            async def is_done(task: str = task) -> bool:
                found = await rpc(hub, "/a2a", "GetTask", {"id": task}, {"a2a-version": "1.0"})
                return bool(found["result"]["status"]["state"] == "TASK_STATE_COMPLETED")

            await eventually(is_done, f"{task} is completed", 20)
        assert set(ledger.ran().values()) == {1}
        # Each worker has a process of its own.
        assert len({json.loads(line)["pid"] for line in ledger.lines()}) == 2
