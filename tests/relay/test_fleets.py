"""Fleets: servers with the same tools are one server to callers, on every frontend, while members come and go."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import grpc
import httpx2
import pytest
import pytest_asyncio
from google.protobuf import json_format
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from isthmus.library import ToolRequest, ToolService
from tests.faults.watching import eventually
from tests.fork_server import quick_isthmus
from tests.frontends.test_a2a_grpc import address as grpc_address
from tests.frontends.test_a2a_grpc import call as grpc_call
from tests.hubs import NODES as HUB_NODES
from tests.hubs import PATIENT, TRUSTED, HubProcess, Raw, environment, run, serving, started, stdio, write_config
from tests.peers.client_sdk2 import Mode, client_over_stdio
from tests.relay.peers import Json, Manner, device, raw_server
from tests.relay.tokens import KEY

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("fleets")]

SECONDS = 30.0
DEADLINE = 1.5
NODES = ["node-a", "node-b", "node-c"]
LOOKS = 1 if HUB_NODES == 1 else 5 * HUB_NODES
"""So many requests reach all nodes, very probably."""
CHILD = str(Path(__file__).with_name("fleet_child.py"))
SERVERS = {name: stdio([sys.executable, "-S", CHILD, name], trusted=True) for name in NODES}
FLEETS: dict[str, Any] = {
    "nodes": {"members": "node-*", "deadline": DEADLINE},
    "slow": {"members": "node-*", "deadline": 60},
    "tight": {"members": ["node-*"], "deadline": DEADLINE, "at_once": 1, "result_bytes": 4096, "hide_members": False},
    "sensors": {"members": "dialin:plant_*", "read_only": ["echo"], "deadline": 10},
    "empty": {"members": "dialin:nobody_*"},
}
KEYS = {name: f"key-of-{name}-0123456789" for name in ("free", "narrow", "careful", "stranger")}
CALLERS: dict[str, Any] = {
    "free": {"key": KEYS["free"], "allow": ["*"], "operator": True},
    "narrow": {"key": KEYS["narrow"], "allow": ["nodes.*"]},
    "careful": {"key": KEYS["careful"], "allow": ["nodes.*"], "deny": ["node-b.*"]},
    "stranger": {"key": KEYS["stranger"], "allow": ["builtin.*"]},
}
APPROVALS: dict[str, Any] = {
    "each": {"tools": ["*"], "arguments": {"text": {"equals": "risky"}}, "by": "caller"},
    "roof": {"tools": ["node-c.write"], "arguments": {"text": {"equals": "held"}}},
}
RELAY = {"key": KEY, "agents": {"plant": {}, "ward": {"allow": ["nodes.*"]}}}
MEMBER = "isthmus/member"
Era = Literal["legacy", "auto"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleets")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(folder: Path) -> AsyncIterator[HubProcess]:
    tables = {"fleets": FLEETS, "callers": CALLERS, "relay": RELAY, "approvals": APPROVALS, "limits": PATIENT}
    tables["a2a"] = {"grpc_port": 0}
    async with serving(folder, SERVERS, **tables) as running:
        yield running
    assert "Traceback" not in "".join(running.said)


@pytest_asyncio.fixture(loop_scope="module")
async def raw(hub: HubProcess) -> AsyncIterator[Raw]:
    async with Raw(hub.url, key=KEYS["free"]) as caller:
        yield caller


@pytest_asyncio.fixture(loop_scope="module")
async def rest(hub: HubProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with rest_of(hub, "free") as client:
        yield client


def rest_of(hub: HubProcess, who: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {KEYS[who]}"}
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", headers=headers, timeout=SECONDS, verify=TRUSTED)


@asynccontextmanager
async def sdk(hub: HubProcess, era: Era, **answers: Any) -> AsyncIterator[Client]:
    """The official client of one era."""
    headers = {"authorization": f"Bearer {KEYS['free']}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=SECONDS, verify=TRUSTED) as http,
        Client(streamable_http_client(hub.url, http_client=http), mode=era, **answers) as client,
    ):
        yield client


async def access(folder: Path, who: str) -> str:
    """What `isthmus access` says beside the running hub."""
    ended = await run("access", who, "--config", str(folder / "isthmus.json"), folder=folder)
    return ended.out + ended.err


def rows_of(result: Json) -> dict[str, Json]:
    """How the call of each member ended."""
    return {row["member"]: row for row in result["structuredContent"]["members"]}


async def count(raw: Raw, member: str) -> Json:
    """What a member has counted."""
    found: Json = (await raw.call("tight.count", {"fleet_member": member}))["result"]["structuredContent"]
    return found


async def total(raw: Raw, what: str, members: Sequence[str] = NODES) -> int:
    return sum([(await count(raw, member))[what] for member in members])


# -- lists -------------------------------------------------------------------------------------------------------------


async def test_a_fleet_lists_each_tool_once_and_hides_the_members(hub: HubProcess) -> None:
    async with Raw(hub.url, key=KEYS["narrow"]) as narrow, Raw(hub.url, key=KEYS["free"]) as free:
        tools = {tool["name"]: tool for tool in (await narrow.ask("tools/list"))["result"]["tools"]}
        assert sorted(tools) == [
            f"nodes.{name}" for name in ("ask", "count", "fleet_members", "own", "read", "steps", "write")
        ]
        read = tools["nodes.read"]
        assert list(read["inputSchema"]["properties"])[-1] == "fleet_member"
        assert "required" not in read["inputSchema"]
        assert "outputSchema" not in read, "a gathered result has another form"
        assert "'any'" in read["inputSchema"]["properties"]["fleet_member"]["description"]
        assert "'any'" not in tools["nodes.write"]["inputSchema"]["properties"]["fleet_member"]["description"]
        assert not [name for name in await free.names() if name.startswith("node-")]
    async with Raw(hub.url_of("node-a"), key=KEYS["free"]) as own:
        assert "read" in await own.names()
    async with Raw(hub.url_of("nodes"), key=KEYS["free"]) as fleet:
        assert "read" in await fleet.names()
        assert (await fleet.call("read", {"fleet_member": "node-b"}))["result"]["_meta"][MEMBER] == "node-b"


async def test_members_are_listed_by_a_tool(raw: Raw) -> None:
    listed = (await raw.call("nodes.fleet_members", {"pattern": "*-b"}))["result"]["structuredContent"]
    assert listed == {"fleet": "nodes", "members": [{"id": "node-b", "state": "ready", "calls": 0}], "total": 1}


async def test_an_argument_of_the_same_name_stays_the_tools_own(raw: Raw) -> None:
    answer = await raw.call("nodes.own", {"fleet_member": "mine", "fleet_member_": "node-c"})
    assert answer["result"]["structuredContent"] == {"from": "node-c", "arguments": {"fleet_member": "mine"}}


async def test_an_empty_fleet_lists_nothing_and_says_why(raw: Raw, rest: httpx2.AsyncClient) -> None:
    assert not [name for name in await raw.names() if name.startswith("empty.")]
    error = (await raw.call("empty.read"))["error"]
    assert error["data"] == {"executed": "no", "reason": "not_connected", "server": "empty"}
    assert "no server matches dialin:nobody_*" in error["message"]
    shown = (await rest.get("/v1/servers/empty")).json()
    assert shown["state"] == "away"
    assert shown["fix"] == "connect a server that matches members, or correct the patterns"


# -- one member --------------------------------------------------------------------------------------------------------
async def test_one_member_is_called_by_its_id_and_otherwise_the_least_busy_one(hub: HubProcess, raw: Raw) -> None:
    before = await total(raw, "hanging")
    async with Raw(hub.url, key=KEYS["free"]) as other:
        busy = asyncio.create_task(other.call("nodes.write", {"fleet_member": "node-b", "hang": ["node-b"]}))

        async def is_busy() -> bool:
            listed = [await raw.call("nodes.fleet_members", {"pattern": "*-b"}) for _ in range(LOOKS)]
            calls = [each["result"]["structuredContent"]["members"][0]["calls"] for each in listed]
            return await total(raw, "hanging") > before and min(calls) > 0

        await eventually(is_busy, "node-b is busy")
        used = [(await raw.call("nodes.read"))["result"]["structuredContent"]["from"] for _ in range(4)]
        # Each node uses members that are equally busy in turn.
        assert "node-b" not in used if LOOKS > 1 else sorted(used) == ["node-a", "node-a", "node-c", "node-c"]
        answer = await raw.call("nodes.read", {"fleet_member": "node-b", "text": "x"})
        assert answer["result"]["structuredContent"] == {"from": "node-b", "arguments": {"text": "x"}}
        assert answer["result"]["_meta"][MEMBER] == "node-b"
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


async def test_an_unknown_member_is_refused_with_the_known_ones(raw: Raw) -> None:
    error = (await raw.call("nodes.read", {"fleet_member": "node-x"}))["error"]
    assert (error["code"], error["data"]["executed"]) == (-32602, "no")
    assert (
        "must be 'all', 'any' or a member that has the tool (node-a, node-b, node-c), not 'node-x'" in error["message"]
    )


Use: TypeAlias = Callable[[], Awaitable[str]]
"""Calls `nodes.read` in a conversation: the member that was called."""


@asynccontextmanager
async def mcp_session(hub: HubProcess) -> AsyncIterator[Use]:
    async with sdk(hub, "legacy") as client:

        async def use() -> str:
            return str(((await client.call_tool("nodes.read", {})).structured_content or {})["from"])

        yield use


@asynccontextmanager
async def a2a_context(hub: HubProcess) -> AsyncIterator[Use]:
    context: dict[str, str] = {}
    async with rest_of(hub, "free") as http:

        async def use() -> str:
            parts = [{"data": {"tool": "nodes.read", "arguments": {}}}]
            message = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": parts, **context}
            body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
            answer = (await http.post("/a2a", json=body, headers={"a2a-version": "1.0"})).json()
            context["contextId"] = answer["result"]["task"]["contextId"]
            return str(member_of(answer["result"]["task"]))

        yield use


def member_of(task: Json) -> str:
    """The member that ran a task."""
    (found,) = (part["data"]["from"] for part in task["artifacts"][0]["parts"] if "data" in part)
    return str(found)


@pytest.mark.one_process("each node uses members that are equally busy in turn, so two may choose the same")
@pytest.mark.parametrize("conversation", [mcp_session, a2a_context])
async def test_a_conversation_keeps_its_member_while_it_is_there(
    hub: HubProcess, raw: Raw, conversation: Callable[[HubProcess], AbstractAsyncContextManager[Use]]
) -> None:
    async with conversation(hub) as one, conversation(hub) as other:
        mine, theirs = await one(), await other()
        assert mine != theirs
        assert [await one() for _ in range(3)] == [mine] * 3
        assert [await other() for _ in range(3)] == [theirs] * 3
        lost = await raw.call("nodes.write", {"fleet_member": mine, "exit": [mine]})
        assert lost["error"]["data"] == {"executed": "unknown", "reason": "lost", "server": mine}
        new = await one()
        assert new != mine
        assert [await one() for _ in range(3)] == [new] * 3

    async def is_back() -> bool:
        every = [(await raw.call("nodes.fleet_members"))["result"]["structuredContent"] for _ in range(LOOKS)]
        return all(row["state"] == "ready" for each in every for row in each["members"])

    await eventually(is_back, f"{mine} is back")


async def test_sessions_of_a_program_with_its_own_hub_keep_their_members(tmp_path: Path) -> None:
    config = write_config(tmp_path, SERVERS, fleets={"nodes": {"members": "node-*"}}, limits=PATIENT)
    service = ToolService()
    await service.initialize(str(config))
    async with service:

        async def used(session: str) -> str:
            result = await service.execute_tool(ToolRequest("nodes.read", parameters={}, session_id=session))
            assert isinstance(result.data, dict), result
            return str(result.data["from"])

        mine, theirs = await used("one"), await used("other")
        assert mine != theirs
        assert [await used("one") for _ in range(3)] == [mine] * 3
        assert [await used("other") for _ in range(3)] == [theirs] * 3


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_one_member_may_ask_its_caller_and_several_may_not(hub: HubProcess, era: Era) -> None:
    asked: list[str] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"colour": "red"})

    async with sdk(hub, era, elicitation_callback=answer) as client:
        one = await client.call_tool("nodes.ask", {"fleet_member": "node-c"})
        assert (one.structured_content or {})["said"]["content"] == {"colour": "red"}
        every = await client.call_tool("nodes.ask", {"fleet_member": "all"})
        said = [row["result"]["structuredContent"]["said"] for row in (every.structured_content or {})["members"]]
        assert [each["code"] for each in said] == [-32601] * 3
    assert asked == ["Which colour for node-c?"]


# -- all members -------------------------------------------------------------------------------------------------------


async def test_all_members_are_called_and_each_has_its_outcome(raw: Raw) -> None:
    arguments = {"fleet_member": "all", "fail": ["node-a"], "hang": ["node-c"]}
    result = (await raw.call("nodes.write", arguments))["result"]
    rows = rows_of(result)
    assert [(name, row["ok"], row["executed"]) for name, row in rows.items()] == [
        ("node-a", False, "yes"),
        ("node-b", True, "yes"),
        ("node-c", False, "unknown"),
    ]
    assert rows["node-a"]["result"]["isError"] is True
    assert rows["node-b"]["result"]["structuredContent"]["from"] == "node-b"
    assert rows["node-c"]["error"] == {
        "reason": "timed_out",
        "message": f"Server node-c did not answer within {DEADLINE:g} s",
    }
    assert (result["structuredContent"]["late"], result.get("isError")) == (True, None)
    assert "node-a: failed: out of order (executed: yes)" in result["content"][0]["text"]


async def test_a_member_that_is_lost_has_its_own_row_and_nothing_but_failures_is_an_error(raw: Raw) -> None:
    result = (await raw.call("nodes.write", {"fleet_member": "all", "fail": NODES[:2], "exit": ["node-c"]}))["result"]
    assert result["isError"] is True
    assert rows_of(result)["node-c"]["error"]["reason"] == "lost"
    assert rows_of(result)["node-c"]["executed"] == "unknown"

    async def is_back() -> bool:
        return "result" in await raw.call("nodes.read", {"fleet_member": "node-c"})

    await eventually(is_back, "node-c is back")


async def test_members_that_the_deadline_leaves_no_time_for_are_not_called(raw: Raw) -> None:
    result = (await raw.call("tight.write", {"fleet_member": "all", "hang": ["node-a"]}))["result"]
    assert {name: row["executed"] for name, row in rows_of(result).items()} == {
        "node-a": "unknown",
        "node-b": "no",
        "node-c": "no",
    }
    assert result["isError"] is True


async def test_a_result_over_its_share_is_left_out(raw: Raw) -> None:
    result = (await raw.call("tight.read", {"fleet_member": "all", "text": "x" * 2000}))["result"]
    assert all(row["ok"] and row["executed"] == "yes" for row in rows_of(result).values())
    assert all(row["omittedBytes"] > 2000 and "result" not in row for row in rows_of(result).values())


async def test_cancelling_the_call_cancels_every_member(hub: HubProcess, raw: Raw) -> None:
    hanging, cancelled = await total(raw, "hanging"), await total(raw, "cancelled")
    async with Raw(hub.url, key=KEYS["free"]) as other:
        call = asyncio.create_task(other.call("slow.write", {"fleet_member": "all", "hang": NODES}))

        async def is_hanging() -> bool:
            return await total(raw, "hanging") == hanging + 3

        await eventually(is_hanging, "all members have the call")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    async def is_cancelled() -> bool:
        return await total(raw, "cancelled") == cancelled + 3

    await eventually(is_cancelled, "every member was told")


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_progress_of_all_members_is_one_that_grows_and_names_them(hub: HubProcess, era: Era) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with sdk(hub, era) as client:
        await client.call_tool("nodes.steps", {"fleet_member": "all"}, progress_callback=on_progress)
    amounts = [progress for progress, _, _ in heard]
    assert amounts == sorted(set(amounts))
    assert {whole for _, whole, _ in heard} == {3}
    assert {(message or "").partition(":")[0] for _, _, message in heard} == {*NODES}


# -- any member --------------------------------------------------------------------------------------------------------


async def test_of_any_member_the_first_good_answer_counts_and_the_others_are_cancelled(raw: Raw) -> None:
    async def still_hang() -> int:
        counted = await count(raw, "node-c")
        return int(counted["hanging"] - counted["cancelled"])

    before = await still_hang()
    result = (await raw.call("slow.read", {"fleet_member": "any", "fail": ["node-a"], "hang": ["node-c"]}))["result"]
    assert (result["structuredContent"]["from"], result["_meta"][MEMBER]) == ("node-b", "node-b")

    # A member at another node may not have got the call yet when the answer comes; then it never gets it.
    async def none_hangs() -> bool:
        return await still_hang() == before

    await eventually(none_hangs, "the slow one was cancelled")


async def test_any_is_only_for_tools_that_read(raw: Raw) -> None:
    error = (await raw.call("nodes.write", {"fleet_member": "any"}))["error"]
    assert (error["data"]["reason"], error["data"]["executed"]) == ("bad_arguments", "no")
    assert "'any' is for tools that only read" in error["message"]


# -- permissions and records -------------------------------------------------------------------------------------------


async def test_permission_for_the_fleet_is_enough_and_a_denied_fleet_looks_unknown(hub: HubProcess) -> None:
    async with (
        Raw(hub.url, key=KEYS["narrow"]) as narrow,
        Raw(hub.url, key=KEYS["stranger"]) as stranger,
        Raw(hub.url, key=KEYS["careful"]) as careful,
    ):
        assert [*rows_of((await narrow.call("nodes.read", {"fleet_member": "all"}))["result"])] == NODES
        denied, unknown = await stranger.call("nodes.read"), await stranger.call("nothing.read")
        assert denied["error"]["message"].replace("nodes", "nothing") == unknown["error"]["message"]
        assert denied["error"]["data"] == unknown["error"]["data"] == {"executed": "no", "reason": "unknown_tool"}
        assert [*rows_of((await careful.call("nodes.read", {"fleet_member": "all"}))["result"])] == ["node-a", "node-c"]
        listed = (await careful.call("nodes.fleet_members"))["result"]["structuredContent"]
        assert ([row["id"] for row in listed["members"]], listed["total"]) == (["node-a", "node-c"], 2)
        one = await careful.call("nodes.read", {"fleet_member": "node-b"})
        none = await careful.call("nodes.read", {"fleet_member": "node-x"})
        assert one["error"]["message"].replace("node-b", "node-x") == none["error"]["message"]


async def test_each_members_call_has_its_record_that_names_the_fleet(hub: HubProcess) -> None:
    async with rest_of(hub, "narrow") as narrow, rest_of(hub, "free") as operator:
        await narrow.post("/v1/tools/nodes.read", json={"fleet_member": "all", "text": "audited"})

        async def records() -> list[Json]:
            page = (await operator.get("/v1/audit?event=call&caller=narrow")).json()
            return [each["record"] for each in page["records"] if each["record"]["frontend"] == "rest"]

        async def is_written() -> bool:
            return len(await records()) == 4

        await eventually(is_written, "all calls are in the log")
        found = sorted((record["server"], record.get("fleet"), record["executed"]) for record in await records())
    assert found == [*((name, "nodes", "yes") for name in NODES), ("nodes", None, "yes")]


async def test_a_call_of_all_members_is_approved_once_and_a_rule_about_one_member_holds_that_one(
    hub: HubProcess,
) -> None:
    asked: list[str] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"decision": "once"})

    async with sdk(hub, "legacy", elicitation_callback=answer) as client:
        every = {"fleet_member": "all", "text": "risky"}
        gathered = (await client.call_tool("nodes.write", every)).structured_content or {}
        assert (gathered["succeeded"], len(asked)) == (3, 1)
        gathered = (await client.call_tool("nodes.write", {**every, "text": "held"})).structured_content or {}
        assert [(row["ok"], row["executed"]) for row in gathered["members"]] == [
            (True, "yes"),
            (True, "yes"),
            (False, "no"),
        ]
        error = gathered["members"][2]["error"]
        assert (error["reason"], error["approval"][:3]) == ("approval_pending", "ap_")


# -- every frontend ----------------------------------------------------------------------------------------------------


async def test_a_fleet_is_called_on_every_frontend(hub: HubProcess, rest: httpx2.AsyncClient, folder: Path) -> None:
    every, sent = {"fleet_member": "all"}, {"fleet_member": "node-b"}
    eras: tuple[Era, ...] = ("legacy", "auto")
    for era in eras:
        async with sdk(hub, era) as client:
            assert "nodes.read" in [tool.name for tool in (await client.list_tools()).tools]
            gathered = (await client.call_tool("nodes.read", every)).structured_content or {}
            assert (gathered["succeeded"], gathered["failed"]) == (3, 0)
            assert (await client.call_tool("nodes.read", sent)).structured_content == {
                "from": "node-b",
                "arguments": {},
            }
    assert [*rows_of((await rest.post("/v1/tools/nodes.read", json=every)).json())] == NODES
    calling = {"tool": "nodes.read", "arguments": every}
    part = {"kind": "data", "data": calling}
    message = {"kind": "message", "messageId": "m1", "role": "user", "parts": [part]}
    params = {"message": message, "configuration": {"blocking": True}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
    task = (await rest.post("/a2a", json=body)).json()
    assert task["result"]["status"]["state"] == "completed"
    assert all(name in json.dumps(task["result"]["artifacts"]) for name in NODES)
    message = {"messageId": "m2", "role": "ROLE_USER", "parts": [{"data": calling}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    task = (await rest.post("/a2a", json=body, headers={"a2a-version": "1.0"})).json()["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert all(name in json.dumps(task["artifacts"]) for name in NODES)
    message["messageId"] = "m3"
    async with grpc.aio.insecure_channel(await grpc_address(hub)) as channel:
        sent_task = (await grpc_call(channel, "SendMessage", {"message": message}, KEYS["free"])).task
    task = json_format.MessageToDict(sent_task)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert all(name in json.dumps(task["artifacts"]) for name in NODES)
    async with device(hub.port, "ward") as robot:
        await robot.ready()
        assert "node-b" in await robot.call("read", sent)
        assert "3 of 3 members succeeded" in await robot.call("read", every)
    service = ToolService()
    await service.initialize(hub=f"http://127.0.0.1:{hub.port}", key=KEYS["free"])
    async with service:
        said = await service.execute_tool(ToolRequest("nodes.read", parameters=every))
        assert "3 of 3 members succeeded" in said.text
    words = ("call", "nodes.read", "--hub", f"http://127.0.0.1:{hub.port}", "fleet_member=all")
    ended = await run(*words, folder=folder, env={"ISTHMUS_KEY": KEYS["free"]})
    assert (ended.code, ended.out.partition("\n")[0]) == (0, "3 of 3 members succeeded"), ended


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_fleet_is_called_over_stdio(tmp_path: Path, mode: Mode) -> None:
    config = write_config(tmp_path, SERVERS, fleets={"nodes": {"members": "node-*"}}, limits=PATIENT)
    async with client_over_stdio(
        quick_isthmus("stdio", "--config", str(config)), mode=mode, env=environment()
    ) as client:
        assert "nodes.read" in [tool.name for tool in (await client.list_tools()).tools]
        gathered = (await client.call_tool("nodes.read", {"fleet_member": "all"})).structured_content or {}
        assert [row["member"] for row in gathered["members"] if row["ok"]] == NODES
        one = (await client.call_tool("nodes.read", {"fleet_member": "node-b"})).structured_content
        assert one == {"from": "node-b", "arguments": {}}


# -- members that come and go ------------------------------------------------------------------------------------------


async def test_servers_that_dial_in_join_leave_and_come_back(hub: HubProcess, raw: Raw, folder: Path) -> None:
    def manner() -> Manner:
        return Manner(tools=("echo", "hold"))

    async def members() -> dict[str, str]:
        answer = await raw.call("sensors.fleet_members")
        rows = answer["result"]["structuredContent"]["members"] if "result" in answer else []
        return {row["id"]: row["state"] for row in rows}

    async def are(**states: str) -> None:
        wanted = {f"plant_{name}": state for name, state in states.items()}

        async def hold() -> bool:
            return all([await members() == wanted for _ in range(LOOKS)])

        await eventually(hold, f"the members are {wanted}")

    async with AsyncExitStack() as stack:
        assert not [name for name in await raw.names() if name.startswith("sensors.")]
        one = await stack.enter_async_context(raw_server(hub.port, "plant", "s1", manner=manner()))
        await are(s1="ready")
        assert [name for name in await raw.names() if name.startswith(("sensors.", "plant_"))] == [
            "sensors.fleet_members",
            "sensors.echo",
            "sensors.hold",
        ]
        async with raw_server(hub.port, "plant", "s2", manner=manner()) as two:
            await are(s1="ready", s2="ready")
            everybody = asyncio.create_task(raw.call("sensors.hold", {"fleet_member": "all", "text": "x"}))
            await one.holds()
            await two.holds()
            two.socket.transport.abort()
            await are(s1="ready", s2="away")
            await one.release()
            rows = rows_of((await everybody)["result"])
            assert [(row["ok"], row["executed"]) for row in rows.values()] == [(True, "yes"), (False, "unknown")]
            assert rows["plant_s2"]["error"]["reason"] == "lost"
        rows = rows_of((await raw.call("sensors.echo", {"fleet_member": "all"}))["result"])
        assert (rows["plant_s2"]["error"]["reason"], rows["plant_s2"]["executed"]) == ("not_connected", "no")
        for _ in range(3):
            assert (await raw.call("sensors.echo"))["result"]["_meta"][MEMBER] == "plant_s1"
        await stack.enter_async_context(raw_server(hub.port, "plant", "s2", manner=manner()))
        await are(s1="ready", s2="ready")
        used = {(await raw.call("sensors.echo"))["result"]["_meta"][MEMBER] for _ in range(2 * LOOKS)}
        assert used == {"plant_s1", "plant_s2"}
        # The operator says that this one only reads; nobody trusts the servers.
        assert "result" in await raw.call("sensors.echo", {"fleet_member": "any"})
        assert "error" in await raw.call("sensors.hold", {"fleet_member": "any"})
        # Beside the running hub, `isthmus access` knows what only that can know.
        told = await access(folder, "free")
        assert all(f"{name}.{tool}" in told for name, tool in (("sensors", "echo"), ("nodes", "read")))
        assert "empty is away: the fleet has no members" in told
        assert "sensors is away" not in told


async def test_members_with_another_schema_are_not_called(hub: HubProcess, raw: Raw, rest: httpx2.AsyncClient) -> None:
    other = {"inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}
    async with (
        raw_server(hub.port, "plant", "m1", manner=Manner(tools=("echo", "odd"), definition=other)),
        raw_server(hub.port, "plant", "m2", manner=Manner(tools=("odd",))),
        raw_server(hub.port, "plant", "m3", manner=Manner(tools=("odd",))),
    ):
        shown: Json = {}

        async def is_noted() -> bool:
            shown.update((await rest.get("/v1/servers/sensors")).json())
            return "'odd' has another input schema at plant_m1: the fleet does not call it there" in shown["notes"]

        await eventually(is_noted, "the operator is told")
        rows = rows_of((await raw.call("sensors.odd", {"fleet_member": "all"}))["result"])
        assert sorted(rows) == ["plant_m2", "plant_m3"]
        error = (await raw.call("sensors.odd", {"fleet_member": "plant_m1"}))["error"]
        assert "(plant_m2, plant_m3)" in error["message"]


async def test_a_reload_adds_changes_and_removes_fleets(tmp_path: Path) -> None:
    one = {"node-a": SERVERS["node-a"]}
    async with serving(tmp_path, one, limits=PATIENT) as hub, Raw(hub.url) as raw:
        assert "node-a.read" in await raw.names()

        async def listed(*prefixes: str) -> None:
            async def hold() -> bool:
                found = {name.partition(".")[0] for name in await raw.names()} - {"builtin"}
                return found == {*prefixes}

            await eventually(hold, f"{prefixes} are listed")

        write_config(tmp_path, one, limits=PATIENT, fleets={"nodes": {"members": "node-*", "hide_members": False}})
        await listed("node-a", "nodes")
        write_config(tmp_path, one, limits=PATIENT, fleets={"nodes": {"members": "node-*"}})
        await listed("nodes")
        assert (await raw.call("nodes.read"))["result"]["structuredContent"]["from"] == "node-a"
        write_config(tmp_path, one, limits=PATIENT)
        await listed("node-a")


@pytest.mark.one_process("each node records its own calls, and these into one file")
async def test_a_cassette_has_the_calls_of_the_fleet_and_not_those_of_its_members(tmp_path: Path) -> None:
    file, every = tmp_path / "calls.jsonl", {"fleet_member": "all", "fail": ["node-b"]}
    hub_table, fleets = {"cassette": str(file)}, {"nodes": {"members": "node-*"}}
    async with serving(tmp_path, SERVERS, hub=hub_table, fleets=fleets, limits=PATIENT) as hub, Raw(hub.url) as raw:
        assert "nodes.read" in await raw.names(), "lists wait until all members are there"
        recorded = [await raw.call("nodes.read", {"fleet_member": "node-b"}), await raw.call("nodes.read", every)]
    async with started(tmp_path, str(file), command="replay") as hub, Raw(hub.url) as raw:
        assert {name.partition(".")[0] for name in await raw.names()} == {"builtin", "nodes"}
        assert "nodes.fleet_members" in await raw.names()
        assert [
            await raw.call("nodes.read", {"fleet_member": "node-b"}),
            await raw.call("nodes.read", every),
        ] == recorded
