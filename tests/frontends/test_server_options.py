"""Settings of a server, from the file to a call: functions, isolation, defaults, caches, filters."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from isthmus.core.calls.result_cache import CACHED_KEY
from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.watching import eventually
from tests.hubs import META, MODERN, PATIENT, HubProcess, Raw, serving, stdio, write_config

ONE, OTHER = "key-of-one-who-may-everything", "key-of-another-who-may-too"
CALLERS = {"one": {"key": ONE, "allow": ["*"]}, "other": {"key": OTHER, "allow": ["*"]}}
TABLES: dict[str, Any] = {"limits": PATIENT, "callers": CALLERS}

DEEDS = '''
import itertools
import time
from pathlib import Path

from isthmus.upstream.python.context import Context

_times = itertools.count(1)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def greet(name: str, greeting: str) -> str:
    return f"{greeting} {name}"


def count(subject: str) -> int:
    return next(_times)


def fail(subject: str) -> int:
    raise ValueError(f"{subject} cannot be done, {next(_times)}")


def climb(steps: int, context: Context) -> str:
    for step in range(1, steps + 1):
        context.progress(step, steps, f"step {step}")
    return context.caller


def wait(folder: str) -> str:
    Path(folder, "begun").touch()
    until = time.monotonic() + 30
    while not Path(folder, "released").exists() and time.monotonic() < until:
        time.sleep(0.01)
    return "released" if time.monotonic() < until else "never released"
'''


@pytest.fixture
def deeds(tmp_path: Path) -> dict[str, Any]:
    """An entry for a whole module."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "deeds.py").write_text(DEEDS)
    return {"python": "deeds", "path": "lib"}


def text(answer: dict[str, Any]) -> str:
    received: str = answer["result"]["content"][0]["text"]
    return received


def is_cached(answer: dict[str, Any]) -> bool:
    return CACHED_KEY in answer["result"].get("_meta", {})


def messages(response: httpx2.Response) -> list[dict[str, Any]]:
    """The messages of an event stream."""
    assert response.headers["content-type"] == "text/event-stream"
    return [
        json.loads(line[5:]) for line in response.text.splitlines() if line.startswith("data:") and line[5:].strip()
    ]


async def reloaded(hub: HubProcess, folder: Path, servers: dict[str, Any], **tables: Any) -> None:
    """Have the hub take other entries, and wait until it has."""

    def told() -> int:
        return sum("configuration reloaded" in line for line in hub.said)

    before = told()
    write_config(folder, servers, **tables)
    hub.process.send_signal(signal.SIGHUP)
    await eventually(lambda: told() > before, "the hub has reloaded")


# -- functions in the hub's own process --------------------------------------------------------------------------


async def test_a_function_and_a_whole_module_are_tools(tmp_path: Path, deeds: dict[str, Any]) -> None:
    servers = {"sum": {**deeds, "python": "deeds:add"}, "all": deeds}
    async with serving(tmp_path, servers, limits=PATIENT) as hub, Raw(hub.url) as caller:
        names = set(await caller.names())
        assert {name for name in names if name.startswith("sum.")} == {"sum.add"}
        assert {name for name in names if name.startswith("all.")} == {
            *("all.add", "all.greet", "all.count", "all.fail", "all.climb", "all.wait")
        }
        assert text(await caller.call("sum.add", {"a": 2, "b": 3})) == "5"
        assert text(await caller.call("all.add", {"a": 2, "b": -3})) == "-1"
        assert (await caller.call("sum.add", {"a": "two", "b": 3}))["error"]["code"] == -32602


async def test_an_exception_is_the_tools_own_error(tmp_path: Path, deeds: dict[str, Any]) -> None:
    async with serving(tmp_path, {"all": deeds}, limits=PATIENT) as hub, Raw(hub.url) as caller:
        answer = await caller.call("all.fail", {"subject": "magic"})
        assert answer["result"]["isError"] is True
        assert "magic cannot be done" in text(answer)
        assert text(await caller.call("all.add", {"a": 1, "b": 1})) == "2"


async def test_a_function_reports_progress_and_knows_its_caller(tmp_path: Path, deeds: dict[str, Any]) -> None:
    async with serving(tmp_path, {"all": deeds}, **TABLES) as hub, Raw(hub.url, key=ONE) as caller:
        params = {"name": "all.climb", "arguments": {"steps": 3}, "_meta": {**META, "progressToken": "p"}}
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "all.climb"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        *received, answer = messages(await caller.post(body, headers))
        assert [message["params"] for message in received] == [
            {"progress": step, "total": 3, "message": f"step {step}", "progressToken": "p"} for step in (1, 2, 3)
        ]
        assert text(answer) == "one"


async def test_a_blocking_function_delays_no_other_call(tmp_path: Path, deeds: dict[str, Any]) -> None:
    async with serving(tmp_path, {"all": deeds}, limits=PATIENT) as hub, Raw(hub.url) as caller:
        waiting = asyncio.ensure_future(caller.call("all.wait", {"folder": str(tmp_path)}, id="w"))
        await eventually((tmp_path / "begun").exists, "the function runs")
        assert text(await caller.call("all.add", {"a": 1, "b": 1})) == "2"
        assert text(await caller.call("builtin.echo", {"text": "here"})) == "here"
        (tmp_path / "released").touch()
        assert text(await waiting) == "released"


# -- who shares a process ----------------------------------------------------------------------------------------


async def test_isolation_decides_which_callers_share_a_process(tmp_path: Path, ledger: Ledger) -> None:
    quick = quick_server.command(ledger.path)
    servers = {isolation: stdio(quick, isolation=isolation) for isolation in ("shared", "caller", "call")}
    async with serving(tmp_path, servers, **TABLES) as hub:
        for key in (ONE, OTHER, ONE):
            async with Raw(hub.url, key=key) as caller:
                for server in servers:
                    assert text(await caller.call(f"{server}.pay", {"nonce": server})) == server
        pids = {server: [fact["pid"] for fact in facts(ledger) if fact["nonce"] == server] for server in servers}

    assert len(set(pids["shared"])) == 1
    one, other, one_again = pids["caller"]
    assert one == one_again
    assert one != other
    assert len(set(pids["call"])) == 3


def facts(ledger: Ledger) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ledger.lines()]


# -- arguments, caches and filters -------------------------------------------------------------------------------


async def test_defaults_fill_omitted_arguments(tmp_path: Path, deeds: dict[str, Any]) -> None:
    entry = {**deeds, "defaults": {"greet": {"greeting": "Good day"}}}
    async with serving(tmp_path, {"all": entry}, limits=PATIENT) as hub, Raw(hub.url) as caller:
        assert text(await caller.call("all.greet", {"name": "Ann"})) == "Good day Ann"
        assert text(await caller.call("all.greet", {"name": "Ann", "greeting": "Hi"})) == "Hi Ann"
        assert (await caller.call("all.greet", {}))["error"]["code"] == -32602


@pytest.mark.one_process("each node has a cache of results of its own")
async def test_cached_results_of_named_tools_are_returned_to_their_caller_for_their_time(
    tmp_path: Path, deeds: dict[str, Any]
) -> None:
    def entry(ttl: float) -> dict[str, Any]:
        return {"all": {**deeds, "cache": {"tools": ["count", "fail"], "ttl": ttl}}}

    async with (
        serving(tmp_path, entry(600), **TABLES) as hub,
        Raw(hub.url, key=ONE) as one,
        Raw(hub.url, key=OTHER) as other,
    ):
        first, again = [await one.call("all.count", {"subject": "a"}) for _ in range(2)]
        assert [text(first), text(again)] == ["1", "1"]
        assert [is_cached(first), is_cached(again)] == [False, True]
        assert again["result"]["_meta"][CACHED_KEY]["ageSeconds"] >= 0

        assert text(await other.call("all.count", {"subject": "a"})) == "2", "it is another's"
        assert text(await one.call("all.count", {"subject": "b"})) == "3", "the arguments are others"

        failed = [await one.call("all.fail", {"subject": "a"}) for _ in range(2)]
        assert [answer["result"]["isError"] for answer in failed] == [True, True]
        assert ["done, 4" in text(failed[0]), "done, 5" in text(failed[1])] == [True, True]

        await reloaded(hub, tmp_path, entry(0.001), **TABLES)
        fresh = await one.call("all.count", {"subject": "a"})
        assert (text(fresh), is_cached(fresh)) == ("6", False), "what is kept is older than results may be by now"


async def test_only_the_tools_that_are_shown_can_be_called(tmp_path: Path, deeds: dict[str, Any]) -> None:
    servers = {
        "few": {**deeds, "include_tools": ["add", "greet"]},
        "most": {**deeds, "exclude_tools": ["fail", "wait"]},
    }
    async with serving(tmp_path, servers, limits=PATIENT) as hub, Raw(hub.url) as caller:
        names = set(await caller.names())
        assert {name for name in names if name.startswith("few.")} == {"few.add", "few.greet"}
        assert {name for name in names if name.startswith("most.")} == {
            *("most.add", "most.greet", "most.count", "most.climb")
        }
        assert text(await caller.call("few.add", {"a": 1, "b": 1})) == "2"
        hidden = [await caller.call(name, {"subject": "a"}) for name in ("few.count", "most.fail")]
        assert [answer["error"]["data"]["reason"] for answer in hidden] == ["unknown_tool", "unknown_tool"]
