"""The configuration changes while the hub works: only affected callers notice, and nothing leaks."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import pty
import signal
import termios
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from isthmus.app.hub import RunningHub
from isthmus.app.reload import ConfigurationSource, Reloader
from isthmus.model.calls import Result
from tests.conftest import Ledger, children, descriptors
from tests.faults import quick_server
from tests.faults.caller import Caller, pay
from tests.faults.oracle import Record, judge
from tests.faults.watching import IS_SOAK, Tail, eventually, family, open_descriptors, resident_bytes, watches_files
from tests.hubs import HubProcess, Raw, environment, isthmus, serving, started, stdio, write_config
from tests.peers.launch import command
from tests.unit.core.doubles import Listener, call

pytestmark = pytest.mark.usefixtures("no_leftovers")

ROUNDS = 100 if IS_SOAK else 30
RELOAD_SECONDS = 20.0
"""Who waits for so long has found that a change is not taken."""

KEY, OTHER_KEY = "k3y-of-the-planner-0123456789", "k3y-of-another-0123456789"
GROWTH_BYTES = 16 * 1024 * 1024
"""What an allocator may keep of so many reloads; a leaked server would be more than this by itself."""


class Load:
    """Callers that never stop, and the outcome of each call."""

    def __init__(self, port: int) -> None:
        self.records: dict[str, list[Record]] = {}
        self._caller = Caller(port)
        self._nonces = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_done = False

    def call(self, server: str) -> None:
        """Call one server again and again, until it is gone."""
        self._tasks.append(asyncio.ensure_future(self._keep_calling(server)))

    async def _keep_calling(self, server: str) -> None:
        received = self.records.setdefault(server, [])
        was_there = False
        while not self._is_done:
            record = await pay(self._caller, f"{server}.pay", f"{server}-{next(self._nonces)}")
            received.append(record)
            if was_there and record.reported == "no":
                return  # it was taken out
            was_there |= record.reported == "ok"
            await asyncio.sleep(0.005)  # there is more to do for two processors than to call

    async def end(self) -> list[Record]:
        """Stop, and return all outcomes."""
        self._is_done = True
        await asyncio.gather(*self._tasks)
        self._caller.hang_up()
        return [record for received in self.records.values() for record in received]


def reconfigure(hub: HubProcess, folder: Path, servers: Mapping[str, Any], /, **tables: Any) -> None:
    """Write other servers into the hub's file, and have it read at once."""
    write_config(folder, servers, **tables)
    hub.process.send_signal(signal.SIGHUP)


def count_logged(hub: HubProcess, *words: str) -> int:
    """How many lines with all these words the hub has logged."""
    return sum(all(word in line for word in words) for line in hub.said)


async def until_logged(hub: HubProcess, *words: str, times: int = 1) -> None:
    """Wait until the hub has logged so many lines with all these words."""
    await eventually(lambda: count_logged(hub, *words) >= times, f"the hub says {words}", within=RELOAD_SECONDS)


async def test_many_reloads_under_load_cost_no_caller_a_call(tmp_path: Path, ledger: Ledger) -> None:
    def entry(mark: str, **more: Any) -> dict[str, Any]:
        return stdio(quick_server.command(ledger.path, mark), **more)

    def servers(round: int) -> dict[str, Any]:
        return {
            "stays": entry("stays"),
            "eased": entry("eased", timeout=20 + round % 10),
            "changed": entry(f"changed-{round}"),
            f"new-{round}": entry(f"new-{round}"),
        }

    async with serving(tmp_path, servers(0)) as hub:
        for name in servers(0):
            await until_logged(hub, '"server ready"', f'"{name}"')
        await eventually(lambda: watches_files(hub.pid), "the hub is all there", within=20.0)
        files, memory = open_descriptors(hub.pid), resident_bytes(hub.pid)
        load = Load(hub.port)
        for name in ("stays", "eased", "changed", "changed"):
            load.call(name)
        for round in range(1, ROUNDS + 1):
            load.call(f"new-{round}")
            reconfigure(hub, tmp_path, servers(round))
            await until_logged(hub, '"server changed"', times=round)
            await until_logged(hub, '"server ready"', f'"new-{round}"')
        records = await load.end()
        print(f"{len(records)} calls, {sum(record.reported == 'no' for record in records)} refused")

        newest = [f"changed-{ROUNDS}", "eased", f"new-{ROUNDS}", "stays"]
        await eventually(lambda: marks(hub) == newest, "the newest processes, and no others", within=20.0)
        # Fewer are fine: the first look may have met a file that was just being read.
        await eventually(lambda: open_descriptors(hub.pid) <= files, "no more descriptors than before", within=20.0)
        assert resident_bytes(hub.pid) - memory < GROWTH_BYTES

    assert judge(records, ledger.ran()) == []
    for name in ("stays", "eased", "changed"):
        assert {record.reported for record in load.records[name]} == {"ok"}
        assert len(load.records[name]) > ROUNDS
    assert {record.reported for record in records} <= {"ok", "no"}


def marks(hub: HubProcess) -> list[str]:
    """The last words of the commands that the hub runs."""
    return sorted((words.split() or ["dead"])[-1] for words in family(hub.pid).values())


@asynccontextmanager
async def in_process(folder: Path, servers: Mapping[str, Any]) -> AsyncIterator[tuple[RunningHub, Reloader]]:
    source = ConfigurationSource(write_config(folder, servers), {}, folder, folder)
    running = RunningHub(source.load(), {})
    try:
        yield running, Reloader(running, source)
    finally:
        await running.aclose()


async def test_reloads_leave_no_task_server_queue_process_or_descriptor(tmp_path: Path, ledger: Ledger) -> None:
    def servers(round: int) -> dict[str, Any]:
        entry = stdio(quick_server.command(ledger.path, str(round)))
        return {"changed": entry, f"new-{round}": entry, "broken": {"command": f"/no/such/program-{round}"}}

    others = children()
    async with in_process(tmp_path, servers(0)) as (running, reloader):
        hub = running.hub

        def is_settled() -> bool:
            return all(server_status.is_settled for server_status in hub.snapshot.server_statuses.values())

        def held() -> tuple[int, int, int, int]:
            return len(running.background), len(children() - others), len(descriptors()), len(asyncio.all_tasks())

        await eventually(is_settled, "every server was tried", within=RELOAD_SECONDS)
        before = held()
        assert before[1] == 2
        listeners = []
        for round in range(1, 26):
            # In flight while everything changes around them.
            listeners += [start(running, f"{round}-{number}") for number in range(4)]
            write_config(tmp_path, servers(round))
            assert await reloader.reload() is not None
        await eventually(is_settled, "every server was tried", within=RELOAD_SECONDS)
        await eventually(lambda: all(listener.ends for listener in listeners), "every call has ended")
        assert {type(listener.ends[0]) for listener in listeners} == {Result}
        await eventually(lambda: held() == before, f"as much as before, {before}", within=20.0)
        assert set(hub.server_queues) == {"builtin", "changed", "new-25", "broken"}
        assert set(running.supervisor.reconnectors) == {"changed", "new-25", "broken"}


def start(running: RunningHub, nonce: str) -> Listener:
    """Call the server that is changed all the time."""
    listener = Listener()
    running.hub.start(call("changed.pay", arguments={"nonce": nonce}), listener)
    return listener


# -- what runs while things change ---------------------------------------------------------------------------


async def test_calls_on_a_server_that_is_removed_or_changed_are_answered_by_it(tmp_path: Path, ledger: Ledger) -> None:
    raw = command("raw_server", "--ledger", str(ledger.path))
    async with serving(tmp_path, {"gone": stdio(raw), "other": stdio(raw)}) as hub, Caller(hub.port) as caller:
        await until_logged(hub, '"server ready"', times=2)
        calls = [asyncio.ensure_future(pay(caller, f"{name}.pay", name, mode="sleep:2")) for name in ("gone", "other")]
        tail = Tail(ledger.path)
        await eventually(lambda: tail.look().ran == {"gone", "other"}, "both calls run")
        reconfigure(hub, tmp_path, {"other": stdio(raw, env={"OTHER": "1"})})
        await until_logged(hub, '"server changed"')
        assert (await caller.call("gone.pay", {"nonce": "late"})).error == (-32602, "no", "unknown_tool")
        assert [(await call).reported for call in calls] == ["ok", "ok"]


async def test_a_bad_file_is_refused_and_the_old_one_stays(tmp_path: Path, ledger: Ledger) -> None:
    quick = stdio(quick_server.command(ledger.path))
    async with serving(tmp_path, {"a": quick}) as hub, Raw(hub.url) as caller:
        await until_logged(hub, '"server ready"')
        (tmp_path / "isthmus.json").write_text('{"servers": {')
        await until_logged(hub, "configuration refused", "isthmus.json: line 1")
        assert "a.pay" in await caller.names()
        reconfigure(hub, tmp_path, {"b": quick})
        await until_logged(hub, '"server ready"', '"b"')
        assert "a.pay" not in await caller.names()


# -- who may call --------------------------------------------------------------------------------------------


def callers(**allowed: list[str]) -> dict[str, Any]:
    keys = {"planner": KEY, "other": OTHER_KEY}
    return {name: {"key": keys[name], "allow": allow} for name, allow in allowed.items()}


async def test_keys_and_permissions_change_at_once(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, callers=callers(planner=["*"])) as hub,
        Raw(hub.url, key=KEY) as planner,
        Raw(hub.url, key=OTHER_KEY) as other,
    ):
        assert len(await planner.names()) > 1
        assert (await other.post({})).status_code == 401

        reconfigure(hub, tmp_path, {}, callers=callers(planner=["builtin.echo"], other=["*"]))
        await until_logged(hub, '"configuration reloaded"', '"callers": 2')
        assert await planner.names() == ["builtin.echo"]
        assert len(await other.names()) > 1

        reconfigure(hub, tmp_path, {}, callers=callers(other=["*"]))
        await until_logged(hub, '"configuration reloaded"', '"callers": 1')
        assert (await planner.post({})).status_code == 401


async def test_new_bounds_of_tenants_frontends_and_tags_apply_at_once_and_end_sessions(tmp_path: Path) -> None:
    planner = {"key": KEY, "tenant": "acme", "allow": ["builtin"]}
    base: dict[str, Any] = {"callers": {"planner": planner}, "tenants": {"acme": {}}}
    every = {"builtin.echo", "builtin.timestamp", "builtin.chat_log"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    async with serving(tmp_path, **base) as hub, Raw(hub.url, key=KEY) as caller:

        async def seen() -> set[str]:
            return set(await caller.names())

        assert await seen() == every
        opened = await caller.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        changes: list[tuple[dict[str, Any], set[str]]] = [
            ({"tenants": {"acme": {"deny": ["builtin.echo"]}}}, every - {"builtin.echo"}),
            ({"tenants": {"acme": {"deny": ["hint:read-only"]}}}, {"builtin.chat_log"}),
            ({"tenants": {"other": {}}, "callers": {"planner": {**planner, "tenant": "other"}}}, every),
            (
                {"callers": {"planner": {**planner, "frontends": {"mcp": {"allow": ["builtin.echo"]}}}}},
                {"builtin.echo"},
            ),
            ({"callers": {"planner": {**planner, "frontends": {"rest": {"allow": []}}}}}, every),
        ]
        for tables, expected in changes:
            reconfigure(hub, tmp_path, {}, **{**base, **tables})
            await eventually(lambda: _is(seen, expected), f"it is {expected}")  # noqa: B023
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await caller.post(ping, session)).status_code == 404


async def _is(seen: Callable[[], Awaitable[set[str]]], expected: set[str]) -> bool:
    return await seen() == expected


def ask_agent(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def test_sessions_and_streams_of_callers_with_changed_permissions_end(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, callers=callers(planner=["*"], other=["*"])) as hub,
        Caller(hub.port, key=KEY, era="legacy") as planner,
        Caller(hub.port, key=OTHER_KEY, era="legacy") as other,
        Raw(hub.url, key=KEY) as listening,
    ):
        await planner.initialize()
        await other.initialize()
        headers, agent = {"accept": "text/event-stream"}, hub.url.replace("/mcp", "/a2a")
        said = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
        task = (await listening.http.post(agent, json=ask_agent("SendMessage", said))).json()["result"]["task"]
        follow = ask_agent("SubscribeToTask", {"id": task["id"]})
        async with (
            listening.http.stream("GET", hub.url, headers=headers) as changes,
            listening.http.stream("GET", hub.url.replace("/mcp", "/sse"), headers=headers) as sse,
            listening.http.stream("POST", agent, headers=headers, json=follow) as received,
        ):
            assert (changes.status_code, sse.status_code, received.status_code) == (200, 200, 200)
            reconfigure(hub, tmp_path, {}, callers=callers(planner=["builtin.echo"], other=["*"]))
            async with asyncio.timeout(RELOAD_SECONDS):
                await changes.aread()
                await sse.aread()
                assert b"permissions have changed" in await received.aread()
        assert (await planner.send(planner.request_bytes("tools/list", {}, id="1"))).status == 404
        assert (await other.send(other.request_bytes("tools/list", {}, id="1"))).status == 200


async def test_a_hub_that_wants_keys_is_not_opened_by_a_file_that_is_emptied_or_gone(tmp_path: Path) -> None:
    file = tmp_path / "isthmus.json"
    async with (
        serving(tmp_path, callers=callers(planner=["*"])) as hub,
        Raw(hub.url, key=KEY) as planner,
        Raw(hub.url) as nobody,
    ):
        file.write_text("{}")
        await until_logged(hub, "configuration refused", "restart the hub if it is to be open")
        assert (await nobody.post({})).status_code == 401
        file.unlink()
        await until_logged(hub, "configuration refused", "is gone")
        assert (await nobody.post({})).status_code == 401
        assert len(await planner.names()) > 1

        write_config(tmp_path, {}, callers=callers(other=["*"]))
        await until_logged(hub, '"configuration reloaded"')
        assert (await planner.post({})).status_code == 401


async def test_a_hub_that_wants_keys_is_not_opened_by_a_file_that_comes_first(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    (home / ".config" / "isthmus").mkdir(parents=True)
    project.mkdir()
    own = f'[callers.planner]\nkey = "{KEY}"\nallow = ["*"]\n'
    (home / ".config" / "isthmus" / "isthmus.toml").write_text(own)
    async with started(project, env={"HOME": str(home)}) as hub, Raw(hub.url) as nobody:
        assert (await nobody.post({})).status_code == 401
        (project / "mcp.json").write_text("{}")
        await until_logged(hub, "another file takes precedence", "project/mcp.json")
        assert (await nobody.post({})).status_code == 401


async def test_a_hub_that_others_can_reach_is_never_left_without_callers(tmp_path: Path) -> None:
    known = callers(planner=["*"])
    tables = {"hub": {"host": "0.0.0.0"}}
    async with (
        serving(tmp_path, callers=known, **tables) as hub,
        Raw(hub.url, key=KEY) as planner,
        Raw(hub.url) as nobody,
    ):
        reconfigure(hub, tmp_path, {}, **tables)
        await until_logged(hub, "configuration refused", "must be loopback while no caller is configured")
        # That it wants to be on loopback does not yet put it there.
        reconfigure(hub, tmp_path, {}, hub={"host": "127.0.0.1"})
        await until_logged(hub, "configuration refused", "must be loopback", times=2)
        assert (await nobody.post({})).status_code == 401
        assert len(await planner.names()) > 1


# -- the log -------------------------------------------------------------------------------------------------


async def test_the_log_goes_where_the_newest_configuration_says(tmp_path: Path) -> None:
    file, moved = tmp_path / "hub.log", tmp_path / "hub.log.1"
    async with serving(tmp_path) as hub:
        reconfigure(hub, tmp_path, {}, log={"file": "hub.log"})
        await eventually(lambda: has_line(file, "configuration reloaded"), "the file has it", within=RELOAD_SECONDS)
        file.rename(moved)
        reconfigure(hub, tmp_path, {}, log={"file": "hub.log", "level": "debug"})
        await eventually(lambda: has_line(file, '"log.level"'), "the new file has it", within=RELOAD_SECONDS)
        reconfigure(hub, tmp_path, {}, log={"file": "."})
        await eventually(lambda: has_line(file, "log.file cannot be written"), "it is refused", within=RELOAD_SECONDS)
        reconfigure(hub, tmp_path, {})
        await until_logged(hub, "configuration reloaded", '"log.file"')
    assert not has_line(moved, '"log.level"')


def has_line(file: Path, words: str) -> bool:
    return file.exists() and words in file.read_text()


# -- signals -------------------------------------------------------------------------------------------------


async def test_a_terminal_that_goes_away_ends_the_hub(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    config = write_config(tmp_path, {})
    process = await asyncio.create_subprocess_exec(
        *isthmus("serve", "--config", str(config), "--port", "0"),
        stdin=theirs,
        stdout=theirs,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(RELOAD_SECONDS):
            while b"listening" not in await process.stderr.readline():
                pass
            process.send_signal(signal.SIGHUP)
            while b"configuration reloaded" not in await process.stderr.readline():
                pass
            os.close(ours)
            assert await process.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            process.kill()
