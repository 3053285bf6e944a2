"""The first list is the whole list: servers that start slowly, seen before or not, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults.watching import eventually
from tests.fork_server import quick_isthmus
from tests.frontends import late_server
from tests.hubs import TRUSTED, environment, node_urls, serving, write_config

SECONDS = 30.0
LATE_SECONDS = 1.5
"""How late the server is that a first list waits for."""

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
CHANGED = "notifications/tools/list_changed"


class Client:
    """A client that started `isthmus stdio`: each request is answered when its future is."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.notifications: list[str] = []
        self.said: list[str] = []

    def ask(self, method: str, **params: Any) -> asyncio.Future[dict[str, Any]]:
        id = len(self._answers)
        self._answers[id] = asyncio.get_running_loop().create_future()
        self._write({"id": id, "method": method, "params": params})
        return self._answers[id]

    def call(self, name: str) -> asyncio.Future[dict[str, Any]]:
        return self.ask("tools/call", name=name, arguments={"text": "hi"} if name == "builtin.echo" else {})

    async def greet(self) -> dict[str, Any]:
        answer = await asyncio.wait_for(self.ask("initialize", **HELLO), SECONDS)
        self._write({"method": "notifications/initialized"})
        return dict(answer["result"]["capabilities"])

    async def tools(self) -> dict[str, Any]:
        return await named(self.ask("tools/list"))

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if "id" in message:
                self._answers[message["id"]].set_result(message)
            else:
                self.notifications.append(message["method"])

    async def read_log(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.said.append(line.decode())


async def named(asked: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
    """The servers' tools of a list with their descriptions, and under `away` what the list says of servers."""
    result = (await asyncio.wait_for(asked, SECONDS))["result"]
    tools = {tool["name"]: tool["description"] for tool in result["tools"] if not tool["name"].startswith("builtin.")}
    missing: dict[str, Any] = next(
        (value for key, value in result.get("_meta", {}).items() if key.endswith("missing")), {}
    )
    return {"tools": tools, "away": {server: received["state"] for server, received in missing.items()}}


@asynccontextmanager
async def stdio_client(config: Path) -> AsyncIterator[Client]:
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("stdio", "--config", str(config)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    client = Client(process)
    reading = [asyncio.ensure_future(client.read()), asyncio.ensure_future(client.read_log())]
    try:
        yield client
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), SECONDS)
        except TimeoutError:
            process.kill()
            raise
        finally:
            await asyncio.gather(*reading)


class Field:
    """A folder with a late server, whose gate and lists the test has in its hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._gate = folder / "late.gate"
        self.lists(pay="pays")

    def lists(self, *, prompts: bool = True, dies: bool = False, **tools: str) -> None:
        offered = {"tools": tools, **({"prompts": ["greet"]} if prompts else {}), "dies": dies}
        (self.folder / "late.json").write_text(json.dumps(offered))

    def open(self) -> None:
        self._gate.touch()

    def shut(self) -> None:
        self._gate.unlink()

    def config(self, *, arguments: list[str] | None = None, **tables: Any) -> Path:
        entry = late_server.entry(self.folder)
        entry["args"] += arguments or []
        return write_config(self.folder, {"late": entry}, **tables)

    async def seen(self, **tables: Any) -> None:
        """Have the server seen by a hub once, and be slow the next time."""
        self.open()
        async with stdio_client(self.config(**tables)) as client:
            await client.greet()
            assert "late.pay" in (await client.tools())["tools"]
        self.shut()

    def kept(self) -> list[Path]:
        return list((self.folder / "state" / "lists").iterdir())


@pytest.fixture
def field(tmp_path: Path) -> Field:
    return Field(tmp_path)


async def test_the_first_list_waits_for_a_server_that_was_never_seen(field: Field) -> None:
    async with stdio_client(field.config()) as client:
        capabilities = await client.greet()
        assert {"tools", "prompts", "resources"} <= capabilities.keys(), "the greeting does not wait, and promises all"
        listed = client.ask("tools/list")
        echoed = client.call("builtin.echo")
        assert (await asyncio.wait_for(echoed, SECONDS))["result"]["content"][0]["text"] == "hi"
        held = client.call("late.pay")
        done, _ = await asyncio.wait({listed, held}, timeout=LATE_SECONDS)
        assert not done, "nothing was answered without the late server"
        field.open()
        assert await named(listed) == {"tools": {"late.pay": "pays"}, "away": {}}
        prompts = (await asyncio.wait_for(client.ask("prompts/list"), SECONDS))["result"]["prompts"]
        assert [prompt["name"] for prompt in prompts] == ["late.greet"]
        assert (await asyncio.wait_for(held, SECONDS))["result"]["content"][0]["text"] == "pay"


async def test_a_server_that_was_seen_is_listed_at_once_and_its_calls_wait(field: Field) -> None:
    await field.seen()
    async with stdio_client(field.config()) as client:
        assert "prompts" in await client.greet()
        assert await client.tools() == {"tools": {"late.pay": "pays"}, "away": {"late": "starting"}}
        prompts = (await asyncio.wait_for(client.ask("prompts/list"), SECONDS))["result"]["prompts"]
        assert [prompt["name"] for prompt in prompts] == ["late.greet"]
        held = client.call("late.pay")
        await client.tools()
        assert not held.done()
        field.open()
        assert (await asyncio.wait_for(held, SECONDS))["result"]["content"][0]["text"] == "pay"
        assert await client.tools() == {"tools": {"late.pay": "pays"}, "away": {}}
        assert client.notifications == [], "nothing has changed"


async def test_a_list_that_is_another_by_now_is_announced(field: Field) -> None:
    field.lists(pay="pays", gone="goes")
    await field.seen()
    field.lists(pay="pays twice", refund="gives back")
    async with stdio_client(field.config()) as client:
        await client.greet()
        assert (await client.tools())["tools"] == {"late.pay": "pays", "late.gone": "goes"}
        held = client.call("late.gone")
        await client.tools()
        field.open()
        await eventually(lambda: CHANGED in client.notifications, "the change is announced")
        assert (await client.tools())["tools"] == {"late.pay": "pays twice", "late.refund": "gives back"}
        assert "Unknown tool" in json.dumps(await asyncio.wait_for(held, SECONDS))
    field.shut()
    async with stdio_client(field.config()) as client:
        await client.greet()
        assert len((await client.tools())["tools"]) == 2, "the latest list is remembered"


async def test_an_entry_that_was_edited_shows_no_old_list(field: Field) -> None:
    await field.seen()
    async with stdio_client(field.config(arguments=["--other"], limits={"listing_seconds": 0.1})) as client:
        await client.greet()
        assert (await client.tools())["tools"] == {}


async def test_a_damaged_file_costs_a_warning(field: Field) -> None:
    await field.seen()
    (kept,) = field.kept()
    kept.write_text('{"server": "late", "abilities": [], "tools": [')
    async with stdio_client(field.config()) as client:
        greeted = asyncio.ensure_future(client.greet())
        await eventually(lambda: any("damaged" in line for line in client.said), "the warning")
        field.open()
        await greeted
        assert (await client.tools())["tools"] == {"late.pay": "pays"}
    assert json.loads(kept.read_text())["tools"]


async def test_a_caller_that_waits_for_a_server_that_does_not_start_learns_why(field: Field) -> None:
    await field.seen()
    field.lists(dies=True, pay="pays")
    async with stdio_client(field.config()) as client:
        await client.greet()
        held = client.call("late.pay")
        await client.tools()
        field.open()
        error = (await asyncio.wait_for(held, SECONDS))["error"]
        assert error["data"]["reason"] == "not_connected"
        assert error["data"]["executed"] == "no"
        assert await client.tools() == {"tools": {"late.pay": "pays"}, "away": {"late": "retrying"}}


async def test_withheld_tools_stay_withheld_in_a_remembered_list(field: Field) -> None:
    hub = {"pin": "strict"}
    await field.seen(hub=hub)
    field.lists(pay="pays somebody else", refund="gives back")
    field.open()
    async with stdio_client(field.config(hub=hub)) as client:
        await client.greet()
        await eventually(lambda: any("withheld" in line for line in client.said), "the change is noticed")
        assert (await client.tools())["tools"] == {"late.refund": "gives back"}
    field.shut()
    async with stdio_client(field.config(hub=hub)) as client:
        await client.greet()
        assert await client.tools() == {"tools": {"late.refund": "gives back"}, "away": {"late": "starting"}}


async def test_a_hub_is_ready_when_first_lists_are_whole(field: Field) -> None:
    callers = {"boss": {"key": "key-of-the-operator", "allow": ["*"], "operator": True}}
    boss = {"authorization": "Bearer key-of-the-operator"}
    servers = {"late": late_server.entry(field.folder)}
    async with serving(field.folder, servers, callers=callers) as hub, ready(hub.port) as http:
        answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"status": "starting"})
        assert (await http.get("/readyz", headers=boss)).json() == {"status": "starting", "starting": ["late"]}
        assert (await http.get("/healthz")).json() == (await http.get("/livez")).json() == {"status": "ok"}
        field.open()
        await until_ready(http)
        assert (await http.get("/readyz", headers=boss)).json() == {"status": "ok", "starting": []}
    field.shut()
    async with serving(field.folder, servers, callers=callers) as hub, ready(hub.port) as http:
        await until_ready(http)
        assert (await http.get("/readyz", headers=boss)).json() == {"status": "ok", "starting": ["late"]}


async def test_a_server_that_does_not_start_keeps_no_hub_from_being_ready(field: Field) -> None:
    servers = {"late": late_server.entry(field.folder)}
    async with serving(field.folder, servers, limits={"listing_seconds": 0.2}) as hub, ready(hub.port) as http:
        await until_ready(http)


@asynccontextmanager
async def ready(port: int) -> AsyncIterator[httpx2.AsyncClient]:
    base = f"http://127.0.0.1:{port}"
    async with httpx2.AsyncClient(base_url=base, verify=TRUSTED, timeout=SECONDS) as http:
        yield http


async def until_ready(http: httpx2.AsyncClient) -> None:
    """Wait until the hub is ready, at every node."""
    async with asyncio.timeout(SECONDS):
        for url in node_urls(f"{http.base_url}/readyz"):
            while (await http.get(url)).status_code != 200:  # noqa: ASYNC110 - as probes do
                await asyncio.sleep(0.02)
