"""Budgets of a running hub: on every frontend, after a restart, and when the file is edited."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mcp import MCPError

from tests.databases import Database
from tests.databases import running as running_database
from tests.faults.test_tasks_crash import killed
from tests.frontends.test_a2a import envelope, run
from tests.hubs import MODERN, PATIENT, TRUSTED, HubProcess, Raw, serving, started, stdio, write_config
from tests.peers.client_sdk2 import client_over_http
from tests.property.echo_server import command
from tests.relay.peers import CallFailed, device
from tests.relay.tokens import KEY as RELAY_KEY
from tests.security.fickle import command as isthmus_command
from tests.security.fickle import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = ("rest", "legacy", "modern", "agent", "seeker", "coder", "one", "two", "watcher", "inside", "bound", "boss")
KEYS = {name: f"key-of-{name}-0123456789" for name in NAMES}
CALLERS: dict[str, Any] = {
    **{name: {"key": KEYS[name], "allow": ["*"]} for name in NAMES},
    "seeker": {"key": KEYS["seeker"], "allow": ["*"], "expose": "search"},
    "coder": {"key": KEYS["coder"], "allow": ["*"], "expose": "code"},
    "one": {"key": KEYS["one"], "allow": ["*"], "tenant": "team"},
    "two": {"key": KEYS["two"], "allow": ["*"], "tenant": "team"},
    "bound": {"key": KEYS["bound"], "allow": ["*"], "set": "picked"},
    "boss": {"key": KEYS["boss"], "allow": [], "operator": True},
}
SETS: dict[str, Any] = {"picked": {"tools": ["bank.*"]}}
BUDGETS: dict[str, Any] = {
    "each": {"calls": 2, "tools": ["bank.*"], "tenants": ["default"]},
    "relayed": {"calls": 2, "tools": ["bank.*"], "callers": ["relay:guest"]},
    "all": {"result_bytes": 1_200_000, "per": "hub", "callers": ["one"]},
    "picked": {"calls": 2, "per": "set", "sets": ["picked"], "callers": ["inside", "bound"]},
    "team": {"cost": 6, "costs": {"bank.echo": 2}, "per": "tenant", "tenants": ["team"], "period": "month"},
}
TOOL = "bank.echo"


@asynccontextmanager
async def client(hub: HubProcess, who: str) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {KEYS[who]}"}
    base = f"http://127.0.0.1:{hub.port}"
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=30, verify=TRUSTED) as made:
        yield made


async def used(http: httpx2.AsyncClient, budget: str = "each") -> dict[str, int]:
    """Counted calls by caller."""
    shown = (await http.get("/v1/budgets")).json()
    return {each["subject"]["caller"]: each["calls"] for each in shown["counters"] if each["budget"] == budget}


async def refused(hub: HubProcess, budget: str) -> int:
    """How many calls a budget has refused, at all nodes."""
    total = 0
    for node in hub.each:
        async with client(node, "boss") as boss:
            entries = (await boss.get("/v1/budgets")).json()["budgets"]
        total += sum(each["refused"] for each in entries if each["name"] == budget)
    return total


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("budgets")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(folder: Path) -> AsyncIterator[HubProcess]:
    servers = {"bank": stdio(command())}
    relay = {"key": RELAY_KEY, "agents": {"guest": {"allow": [TOOL]}}}
    tables: dict[str, Any] = {"callers": CALLERS, "sets": SETS, "budgets": BUDGETS, "limits": PATIENT, "relay": relay}
    async with serving(folder, servers, **tables) as running:
        yield running


def check(message: str, retry_after: float) -> None:
    assert message.startswith("The budget each is used up: 2 of 2 calls this day for the caller ")
    assert message.endswith("T00:00:00Z. The tool did not run")
    assert 0 < retry_after <= 86_400


# -- frontends ---------------------------------------------------------------------------------------------------------


async def test_over_rest_a_refusal_is_a_problem_with_retry_after(hub: HubProcess) -> None:
    async with client(hub, "rest") as http:
        for _ in range(2):
            assert (await http.post(f"/v1/tools/{TOOL}", json={"n": 1})).status_code == 200
        answer = await http.post(f"/v1/tools/{TOOL}", json={"n": 1})
        problem = answer.json()
        assert (answer.status_code, problem["reason"], problem["executed"]) == (429, "budget_exceeded", "no")
        check(problem["detail"], problem["retryAfter"])
        assert abs(int(answer.headers["retry-after"]) - problem["retryAfter"]) <= 1


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_over_mcp_a_refusal_is_an_error_in_both_eras(hub: HubProcess, mode: Any) -> None:
    who = "legacy" if mode == "legacy" else "modern"
    async with client_over_http(hub.url, mode=mode, headers={"authorization": f"Bearer {KEYS[who]}"}) as mcp:
        for _ in range(2):
            assert (await mcp.call_tool(TOOL, {"n": 1})).structured_content == {"n": 1}
        with pytest.raises(MCPError) as refused:
            await mcp.call_tool(TOOL, {"n": 1})
    error = refused.value.error
    assert (error.code, error.data["reason"], error.data["executed"]) == (-32010, "budget_exceeded", "no")
    check(error.message, error.data["retryAfter"])


async def test_over_a2a_a_refused_task_is_rejected(hub: HubProcess) -> None:
    async with client(hub, "agent") as http:

        async def send() -> Any:
            return (await http.post("/a2a", json=envelope("SendMessage", run(TOOL, n=1)))).json()["result"]["task"]

        assert [(await send())["status"]["state"] for _ in range(2)] == ["TASK_STATE_COMPLETED"] * 2
        status = (await send())["status"]
        assert status["state"] == "TASK_STATE_REJECTED"
        assert status["message"]["metadata"]["executed"] == "no"
        check(status["message"]["parts"][0]["text"], float(status["message"]["metadata"]["retryAfter"]))


async def test_devices_of_the_relay_count_for_their_agent(hub: HubProcess) -> None:
    async with device(hub.port, "guest") as first, device(hub.port, "guest") as second:
        for it in (await first.ready(), await second.ready()):
            await it.call_unlisted("echo", {"n": 1})
        with pytest.raises(
            CallFailed, match="转发工具调用请求失败"
        ):  # the relay's words for a call that was not forwarded
            await first.call_unlisted("echo", {"n": 1})
    async with client(hub, "boss") as boss:
        assert await used(boss, "relayed") == {"relay:guest": 2}
        assert await refused(hub, "relayed") == 1


async def test_a_call_through_call_tool_and_each_call_of_a_script_count_once(hub: HubProcess) -> None:
    async with Raw(hub.url, key=KEYS["seeker"]) as raw, client(hub, "seeker") as http:
        assert "result" in await raw.call("search_tools", {"query": "echo"})
        assert "result" in await raw.call("call_tool", {"name": TOOL, "arguments": {"n": 1}})
        assert await used(http) == {"seeker": 1}
    code = "await asyncio.gather(*[bank_echo(n=1) for _ in range(2)])\ntry:\n    await bank_echo(n=1)\n"
    code = f"import asyncio\n{code}except RuntimeError as error:\n    said = str(error)\nsaid"
    async with Raw(hub.url, key=KEYS["coder"]) as raw, client(hub, "coder") as http:
        result = (await raw.call("run_code", {"code": code}))["result"]
        assert "The budget each is used up" in json.dumps(result), result
        assert await used(http) == {"coder": 2}


async def test_the_callers_of_a_tenant_share_its_budget(hub: HubProcess) -> None:
    async with client(hub, "one") as one, client(hub, "two") as two:
        for http in (one, two, one):
            assert (await http.post(f"/v1/tools/{TOOL}", json={})).status_code == 200
        problem = (await two.post(f"/v1/tools/{TOOL}", json={})).json()
        assert "6 of 6 cost units this month for the tenant team, and this call costs 2" in problem["detail"]


async def test_the_callers_of_a_set_share_its_budget_and_calls_outside_of_it_go_on(hub: HubProcess) -> None:
    async with (
        Raw(hub.url_of("picked"), key=KEYS["inside"]) as inside,
        Raw(hub.url, key=KEYS["inside"]) as outside,
        client(hub, "bound") as bound,
    ):
        assert "result" in await inside.call("echo")
        assert (await bound.post("/v1/tools/echo", json={})).status_code == 200
        used_up = "The budget picked is used up: 2 of 2 calls this day for the set picked"
        error = (await inside.call("echo"))["error"]
        assert (error["code"], error["data"]["reason"], error["data"]["executed"]) == (-32010, "budget_exceeded", "no")
        assert error["message"].startswith(used_up)
        answer = await bound.post("/v1/tools/echo", json={})
        assert (answer.status_code, answer.json()["reason"]) == (429, "budget_exceeded")
        assert answer.json()["detail"].startswith(used_up)
        task = (await bound.post("/a2a", json=envelope("SendMessage", run("echo")))).json()["result"]["task"]
        assert task["status"]["state"] == "TASK_STATE_REJECTED"
        assert task["status"]["message"]["parts"][0]["text"].startswith(used_up)
        assert "result" in await outside.call(TOOL)
    assert await refused(hub, "picked") == 3


# -- for people --------------------------------------------------------------------------------------------------------


async def test_operators_see_all_and_callers_their_own(hub: HubProcess, folder: Path) -> None:
    async with client(hub, "watcher") as http, client(hub, "boss") as boss:
        assert (await http.post(f"/v1/tools/{TOOL}", json={})).status_code == 200
        own: dict[str, Any] = {}

        async def has_bytes() -> bool:
            own.update((await http.get("/v1/budgets")).json())
            return bool(own["counters"][0]["resultBytes"])

        await until(has_bytes, "the bytes are counted, at other nodes after the next write")
        assert own["budgets"] == [{"name": "each", "per": "caller", "period": "day", "calls": 2}]
        (counter,) = own["counters"]
        assert counter["subject"] == {"tenant": "default", "caller": "watcher"}
        assert counter["calls"] == 1
        whole = (await boss.get("/v1/budgets")).json()
        assert {each["name"] for each in whole["budgets"]} == set(BUDGETS)
        assert (await used(boss))["watcher"] == 1
        assert (await boss.get("/v1/budgets?limit=501")).status_code == 400
        assert (await boss.get("/v1/budgets?cursor=x")).status_code == 400
        page = (await boss.get("/v1/budgets?limit=1")).json()
        following = (await boss.get(f"/v1/budgets?limit=1&cursor={page['next']}")).json()
        assert following["counters"] != page["counters"]
    text = await isthmus_command(folder, "budgets")
    assert "watcher" in text
    assert "1 of 2" in text
    assert "00:00 UTC" in text
    assert re.search(r"all +hub +\d+ bytes of 1.2 MB +this day", text)
    words = ("budgets", "--hub", f"http://127.0.0.1:{hub.port}")
    text = await isthmus_command(folder, *words, key=KEYS["one"])
    assert re.search(r"all +hub +not shown, of 1.2 MB +this day +\S+ 00:00 UTC", text), "what all use is for operators"
    assert "only operators see that" in text


async def test_metrics_and_audit_log_have_refusals(hub: HubProcess) -> None:
    async with client(hub, "watcher") as http, client(hub, "boss") as boss:
        while (await http.post(f"/v1/tools/{TOOL}", json={})).status_code == 200:
            pass
        text = ""
        for node in hub.each:
            async with client(node, "boss") as at_node:
                text += (await at_node.get("/metrics")).text
        assert 'isthmus_budget_refusals_total{budget="each"}' in text
        assert "watcher" not in "".join(line for line in text.splitlines() if "budget" in line)
        records: list[Any] = []

        async def is_written() -> bool:
            found = (await boss.get("/v1/audit?caller=watcher&limit=500")).json()["records"]
            records[:] = [each["record"] for each in found]
            return {"budget_exceeded", "budget.exceeded"} <= {
                value for record in records for value in (record.get("outcome"), record.get("event"))
            }

        await until(is_written, "the log has it")
        (event,) = [each for each in records if each["event"] == "budget.exceeded"]
        assert (event["budget"], event["caller"], event["tool"]) == ("each", "watcher", TOOL)


# -- restart and reload ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with running_database() as made:
        yield made


def tables(**more: Any) -> dict[str, Any]:
    return {"callers": CALLERS, "limits": PATIENT, "budgets": {"each": {"calls": 5}}, **more}


async def call(http: httpx2.AsyncClient, times: int) -> list[int]:
    return [(await http.post(f"/v1/tools/{TOOL}", json={})).status_code for _ in range(times)]


@pytest.mark.parametrize("storage", ["sqlite", "postgresql"])
async def test_counters_survive_a_restart_and_kill_9(
    tmp_path: Path, storage: str, request: pytest.FixtureRequest
) -> None:
    more: Mapping[str, Any] = {}
    if storage == "postgresql":
        made: Database = request.getfixturevalue("database")
        more = {"storage": {"url": made.url(user="hub:${PG_PASSWORD:-none}")}}
    config = write_config(tmp_path, {"bank": stdio(command())}, **tables(**more))
    async with started(tmp_path, "--config", str(config)) as hub, client(hub, "rest") as http:
        assert await call(http, 2) == [200, 200]
        hub.terminate()  # what was counted last is written before the end
        await hub.process.wait()
    async with killed(config) as hub, client(hub, "rest") as http, client(hub, "boss") as boss:
        assert await used(boss) == {"rest": 2}
        assert await call(http, 2) == [200, 200]
        # A crash may forget the last second.
        await asyncio.sleep(1.0)
        hub.process.send_signal(signal.SIGKILL)
        await hub.process.wait()
    async with started(tmp_path, "--config", str(config)) as hub, client(hub, "rest") as http:
        assert await used(http) == {"rest": 4}
        assert await call(http, 2) == [200, 429]


async def test_an_edit_of_the_file_applies_at_once_and_resets_nothing(tmp_path: Path) -> None:
    servers = {"bank": stdio(command())}
    async with serving(tmp_path, servers, **tables()) as hub, client(hub, "rest") as http:
        assert await call(http, 2) == [200, 200]
        budgets = {"each": {"calls": 3}, "new": {"calls": 9}}
        write_config(tmp_path, servers, **tables(budgets=budgets))

        async def is_applied() -> bool:
            shown = [await _shown_at(node) for node in hub.each]
            return {len(each["budgets"]) for each in shown} == {2}

        await until(is_applied, "the hub has read the file")
        assert await call(http, 2) == [200, 429]
        assert await used(http, "new") == {"rest": 1}
        write_config(tmp_path, servers, **tables(budgets={}))
        await until(lambda: _is_free(http), "the budgets are gone")


async def _shown_at(node: HubProcess) -> Any:
    async with client(node, "rest") as http:
        return (await http.get("/v1/budgets")).json()


async def _is_free(http: httpx2.AsyncClient) -> bool:
    return await call(http, 1) == [200]
