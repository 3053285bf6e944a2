"""One device's conversation: answered once each, in order, under its own ids, whatever it sends."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from isthmus.core.calls.running_call import InFlight
from isthmus.core.event_loop import LONG_BYTES, pause_after
from isthmus.frontends.relay.device_connection import (
    CALLS_MAX,
    PENDING_MAX,
    DeviceCall,
    device_title,
    initialize_result,
    ping_result,
    read_cursor,
    read_version,
)
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.model.calls import NOT_ASKED, Declined, LogMessage, Outcome, Progress, Question, Reply, Result
from isthmus.model.fault_table import Cancelled, Lost, ServerError
from isthmus.model.relay import AgentRules
from tests.unit.core.doubles import DONE, raw, tool
from tests.unit.frontends.relay.doubles import KITCHEN, ME, ConnectedDevice, Room, answer, until

GREETING = {
    "protocolVersion": "2024-11-05",
    "capabilities": {"sampling": {}},
    "clientInfo": {"name": "Pot", "version": "9"},
}


def error_of(message: Any) -> Any:
    assert "result" not in message, "a device takes anything with a result for a success"
    return message["error"]


# -- greeting and listing ----------------------------------------------------------------------------------------------


async def test_initialize_returns_the_result_of_each_server() -> None:
    room = Room()
    room.sit("s1", "add")
    room.sit("s2", "sub")
    device = ConnectedDevice(room)
    device.send("initialize", GREETING, id=1)
    result = device.last["result"]
    assert device.last["id"] == 1
    assert result["protocolVersion"] == "2024-11-05"
    assert result["capabilities"] == {"tools": {"listChanged": True}}
    assert result["serverInfo"] == {"name": "isthmus", "version": "1.2.3"}
    said = {"protocolVersion": "2024-11-05", "serverInfo": {"name": "s1"}, "server_id": "s1"}
    assert result["responses"][0] == said
    assert [entry["server_id"] for entry in result["responses"]] == ["s1", "s2"]
    assert (result["total_servers"], result["responded_servers"]) == (2, 2)
    assert "missing" not in result
    assert device.line.summary().title == "Pot 9"


async def test_an_unknown_version_is_answered_with_a_supported_one() -> None:
    device = ConnectedDevice(Room())
    device.send("initialize", {**GREETING, "protocolVersion": "1999-01-01"}, id=1)
    assert device.last["result"]["protocolVersion"] == "2025-11-25"
    device.send("initialize", {}, id=2)
    assert error_of(device.last)["code"] == -32602


async def test_tools_are_listed_as_their_servers_describe_them_with_whose_they_are() -> None:
    room = Room()
    room.sit(
        "s1", tool("add", "kitchen_s1", description="adds", inputSchema={"type": "object"}, odd=[1], server_id="x")
    )
    room.sit("s2", "add")
    listed = ConnectedDevice(room).list_tools()
    whole = {"name": "add", "description": "adds", "inputSchema": {"type": "object"}, "odd": [1], "server_id": "s1"}
    assert listed["tools"][0] == whole
    assert [entry["name"] for entry in listed["tools"]] == ["add", "s2.add"]
    assert (listed["total_servers"], listed["responded_servers"]) == (2, 2)
    assert listed.keys() == {"tools", "total_servers", "responded_servers"}


async def test_with_no_server_the_device_is_ready_at_once_with_no_tools() -> None:
    device = ConnectedDevice(Room())
    device.send("initialize", GREETING, id=1)
    assert device.list_tools() == {"tools": [], "total_servers": 0, "responded_servers": 0}
    assert [message["id"] for message in device.said] == [1, 2]


async def test_a_device_is_greeted_at_once_and_its_list_waits_for_servers_that_are_just_arriving() -> None:
    room = Room()
    room.expect("s1")
    device = ConnectedDevice(room)
    device.send("initialize", GREETING, id=1)
    device.send("notifications/initialized", {})
    device.send("tools/list", id=2)
    (greeted,) = device.said
    assert (greeted["id"], greeted["result"]["responded_servers"]) == (1, 0)
    room.arrive("s1", "add")
    await until(lambda: len(device.said) == 2)
    listed = device.last
    assert (listed["id"], [entry["name"] for entry in listed["result"]["tools"]]) == (2, ["add"])


async def test_a_greeting_behind_a_list_that_waits_is_not_given_before_it() -> None:
    room = Room()
    room.expect("s1")
    device = ConnectedDevice(room)
    device.send("tools/list", id=2)
    device.send("initialize", GREETING, id=1)
    assert device.said == []


async def test_a_server_that_is_late_is_named_and_delays_no_other() -> None:
    room = Room()
    room.sit("s1", "add")
    room.expect("slow")
    device = ConnectedDevice(room, RelaySettings(wait=0.02))
    device.send("initialize", GREETING, id=1)
    device.send("tools/list", id=2)
    await until(lambda: len(device.said) == 2)
    for message in device.said:
        (missing,) = message["result"]["missing"]
        assert missing["server_id"] == "slow"
        assert missing["reason"]
        assert (message["result"]["total_servers"], message["result"]["responded_servers"]) == (2, 1)


async def test_an_answer_that_waits_is_dropped_when_a_call_uses_its_id() -> None:
    room = Room()
    room.sit("s0", "now")
    room.expect("s1")
    device = ConnectedDevice(room)
    device.send("tools/list", id=1)
    device.send("tools/list", id=2)
    device.call("now", id=1)
    room.arrive("s1", "add")
    await until(lambda: bool(device.said))
    assert [message["id"] for message in device.said] == [2], "a late list would be taken for the call's result"


@pytest.mark.parametrize("method", ["ping", "tools/list", "initialize", "custom/thing", "tasks/get"])
async def test_an_answer_that_waits_is_given_before_anything_but_a_call_uses_its_id(method: str) -> None:
    room = Room()
    room.sit("s0", "now")
    room.expect("s1")
    device = ConnectedDevice(room)
    device.send("initialize", GREETING, id=1)
    device.send("tools/list", id=2)
    device.send(method, GREETING if method == "initialize" else None, id=2)
    greeted, listed = device.said[:2]
    assert (greeted["id"], greeted["result"]["serverInfo"]["name"]) == (1, "isthmus")
    assert (listed["id"], [entry["name"] for entry in listed["result"]["tools"]]) == (2, ["now"])
    assert [absent["server_id"] for absent in listed["result"]["missing"]] == ["s1"]


async def test_a_draining_device_is_closed_after_its_answers_and_asks_nothing() -> None:
    room = Room()
    agent_server = room.sit("s0", "now")
    room.expect("s1")
    device = ConnectedDevice(room)
    device.send("tools/list", id=1)
    device.line.drain()
    device.send("custom/thing", id=1)
    assert device.wire.closed is not None
    assert ([message["id"] for message in device.said], agent_server.link.sent) == ([1], [])


async def test_a_server_that_is_away_is_not_listed_and_is_named_with_the_reason() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    room.go_away(agent_server, "it is not connected: the cable was pulled")
    listed = device.list_tools()
    assert listed["tools"] == []
    assert listed["missing"] == [{"server_id": "s1", "reason": "it is not connected: the cable was pulled"}]
    assert (listed["total_servers"], listed["responded_servers"]) == (1, 0)


async def test_a_list_too_long_for_one_message_comes_in_pages_and_whole() -> None:
    room = Room()
    room.sit("s1", *(tool(f"t{number}", "kitchen_s1", description="x" * 500) for number in range(40)))
    device = ConnectedDevice(room, RelaySettings(frame_bytes=4096))
    names: list[str] = []
    params: dict[str, Any] | None = None
    for _ in range(40):
        device.send("tools/list", params, id=2)
        assert len(device.wire.frames[-1]) <= 4096
        names += [entry["name"] for entry in device.last["result"]["tools"]]
        if "nextCursor" not in device.last["result"]:
            break
        params = {"cursor": device.last["result"]["nextCursor"]}
    assert names == [f"t{number}" for number in range(40)]
    room.relist(room.servers()[0], "other")
    device.send("tools/list", params, id=2)
    assert [entry["name"] for entry in device.last["result"]["tools"]] == ["other"], "an old cursor begins anew"
    for nonsense in ("!", "", 7, "AAAA"):
        device.send("tools/list", {"cursor": nonsense}, id=2)
        assert error_of(device.last)["code"] == -32602
    device.send("tools/list", {"cursor": None}, id=2)
    assert "result" in device.last


async def test_initialize_leaves_out_results_that_do_not_fit() -> None:
    room = Room()
    for number in range(10):
        room.sit(f"s{number}").welcome = json.dumps({"instructions": "x" * 1000}).encode()
    device = ConnectedDevice(room, RelaySettings(frame_bytes=4096))
    device.send("initialize", GREETING, id=1)
    assert len(device.wire.frames[-1]) <= 4096
    assert device.last["result"]["responses"] == [{"server_id": f"s{number}"} for number in range(10)]


async def test_a_tool_too_long_to_be_listed_cannot_be_called() -> None:
    room = Room()
    room.sit("s1", "add", tool("huge", "kitchen_s1", description="x" * 4096))
    device = ConnectedDevice(room, RelaySettings(frame_bytes=4096))
    assert [entry["name"] for entry in device.list_tools()["tools"]] == ["add"]
    device.call("huge")
    assert error_of(device.last)["code"] == -32601


async def test_a_slow_device_gets_a_summary_of_missed_messages() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room, RelaySettings(frame_bytes=4096))
    device.wire.unread_bytes = 8192
    for id in (1, 2, 3):
        device.call("add", id=id)
    short, long, again = agent_server.link.sent
    short.finish(answer("x"))
    assert device.last["result"]
    device.wire.unread_bytes = 4 * 4096 - 3000
    long.finish(answer("x" * 3000))
    said = error_of(device.last)
    assert (device.last["id"], said["code"], said["data"]["executed"]) == (2, -32002, "yes")
    assert "未读应答过多: 13384 字节未读" in said["data"]["details"]
    again.finish(answer("x" * 500))
    assert device.last["result"], "what is short is no burden"
    device.call("add", id=4)
    said = error_of(device.last)
    assert (said["code"], said["data"]["executed"], len(agent_server.link.sent)) == (-32002, "no", 3)


# -- calling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [b"0", b'""', b'"null"', b"1.5", b"1", b"123456789012345678901234567890", b'"\\u4e00"'])
async def test_ids_come_back_as_they_were_written(id: bytes) -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.line.read(b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"add"}}\n' % id)
    agent_server.call.finish(answer())
    assert device.wire.frames == [
        b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, b'{"content": [{"type": "text", "text": "well"}]}')
    ]


async def test_a_call_reaches_its_server_by_the_tools_own_name() -> None:
    room = Room()
    room.sit("s1", "add")
    agent_server = room.sit("s2", "add")
    device = ConnectedDevice(room)
    params = {
        "name": "s2.add",
        "arguments": {"a": 1},
        "_meta": {"progressToken": "p", "x/y": 1, "io.modelcontextprotocol/related-task": {"taskId": "t"}},
        "task": {"ttl": 1},
        "requestState": "s",
        "more": 2,
    }
    device.send("tools/call", params, id=5)
    call = agent_server.call.call
    assert (agent_server.call.name, call.surface.server, bytes(call.arguments)) == ("add", "kitchen_s2", b'{"a": 1}')
    assert (set(call.meta), set(call.extra), call.wants_progress) == ({"x/y"}, {"more"}, True)
    assert (call.timeout, call.caller.name, call.caller.grants.allow) == (25.0, "relay:kitchen", ("agent:kitchen",))
    agent_server.call.emit(Progress({"progress": raw(1)}))
    assert device.last["params"] == {"progressToken": "p", "progress": 1}
    device.wire.unread_bytes = 1_000_000
    agent_server.call.emit(Progress({"progress": raw(2)}))
    assert len(device.said) == 1, "who reads slowly is spared"
    agent_server.call.finish(answer())
    assert device.last["result"] == {"content": [{"type": "text", "text": "well"}]}


async def test_unrequested_progress_is_not_sent_and_questions_are_declined() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add")
    agent_server.call.emit(Progress({"progress": raw(1)}))
    replies: list[object] = []
    agent_server.call.ask(Question("sampling/createMessage", raw({})), replies.append)
    assert device.said == []
    (declined,) = replies
    assert isinstance(declined, Declined)


async def test_a_result_arrives_as_it_was() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add")
    said = answer("7", structuredContent={"sum": 7}, _meta={"a": 1}, isError=False)
    agent_server.call.finish(said)
    assert device.last["result"] == json.loads(bytes(said.payload))


async def test_a_modern_servers_result_has_no_type_that_devices_do_not_know() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add")
    agent_server.call.finish(answer(resultType="complete"))
    assert device.last["result"].keys() == {"content"}


async def test_a_tool_that_says_no_is_a_result_whose_text_devices_find() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add")
    agent_server.call.finish(answer("no milk", isError=True))
    assert device.last["result"]["isError"] is True
    assert device.last["result"]["error"] == device.last["result"]["content"][0]["text"] == "no milk"


async def test_a_servers_error_is_an_error() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add", id=3)
    agent_server.call.finish(ServerError(agent_server.server, -32000, "broken", raw([1])))
    assert error_of(device.last) == {"code": -32000, "message": "broken", "data": [1]}


async def test_unknown_denied_and_nameless_tools_are_reported_in_the_originals_words() -> None:
    room = Room()
    room.sit("s1", "add", "knife")
    rules = AgentRules(deny=("kitchen_s1.knife",))
    device = ConnectedDevice(room, RelaySettings(agents={KITCHEN: rules}))
    for name in ("knife", "spoon"):
        device.call(name)
        assert error_of(device.last) == {"code": -32601, "message": f"工具 '{name}' 不存在"}
    nameless: list[dict[str, Any]] = [{}, {"arguments": {}}, {"name": ""}, {"name": 7}, {"name": None}]
    for params in nameless:
        device.send("tools/call", params, id=1)
        assert error_of(device.last) == {"code": -32602, "message": "缺少工具名称"}
    device.send("tools/call", {"name": "add", "arguments": [1]}, id=1)
    assert error_of(device.last)["code"] == -32602
    assert [entry["name"] for entry in device.list_tools()["tools"]] == ["add"], "callable is what is listed"


async def test_null_arguments_count_as_empty() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.send("tools/call", {"name": "add", "arguments": None}, id=1)
    assert bytes(agent_server.call.call.arguments) == b"{}"


async def test_a_call_to_an_absent_server_fails_at_once_and_works_when_it_is_back() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    room.go_away(agent_server)
    device.call("add")
    error = error_of(device.last)
    assert (error["code"], error["message"]) == (-32001, "工具端未连接")
    assert (error["data"]["agent_id"], error["data"]["executed"]) == (KITCHEN, "no")
    assert error["data"]["details"]
    room.come_back(agent_server)
    device.call("add", id=2)
    agent_server.call.finish(answer())
    assert device.last["id"] == 2
    assert "result" in device.last


async def test_a_call_that_was_lost_says_whether_the_tool_may_have_run() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add")
    agent_server.call.finish(Lost(agent_server.server, "gone", executed="unknown"))
    error = error_of(device.last)
    assert (error["code"], error["message"], error["data"]["executed"]) == (-32002, "转发工具调用请求失败", "unknown")


async def test_a_device_gets_a_plain_server_s_value_as_text_and_structure() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add", id=4)
    agent_server.call.finish(Result(msgspec.Raw(b'{"sum":5}'), is_bare=True))
    assert device.last["result"] == {
        "content": [{"type": "text", "text": '{"sum":5}'}],
        "structuredContent": {"sum": 5},
        "isError": False,
    }


@pytest.mark.parametrize("size", [1024 * 1024, 5 * 1024 * 1024])
async def test_a_result_too_long_for_a_device_becomes_an_error(size: int) -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add", id=4)
    agent_server.call.finish(answer("x" * size))
    error = error_of(device.last)
    assert (device.last["id"], error["code"], error["data"]["executed"]) == (4, -32002, "yes")
    assert str(1024 * 1024) in error["data"]["details"]
    assert all(len(frame) <= 1024 * 1024 for frame in device.wire.frames)


@pytest.mark.parametrize("is_typed", [False, True])
async def test_nothing_is_made_of_a_result_that_is_too_long_for_a_device(*, is_typed: bool) -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add", id=4)
    crowd = b",".join(b'"%d":0' % number for number in range(200_000))
    payload = b'{"resultType":"complete","isError":true,"content":[{"type":"text","text":"no"}],%b}' % crowd
    tracemalloc.start()
    try:
        agent_server.call.finish(Result(msgspec.Raw(payload), is_error=True, is_typed=is_typed))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error_of(device.last)["code"] == -32002
    assert peak < 3 * len(payload)


async def test_an_id_too_long_to_be_repeated_is_refused_without_it() -> None:
    device = ConnectedDevice(Room(), RelaySettings(frame_bytes=4096))
    device.call("add", id="x" * 5000)
    device.line.read(b'{"jsonrpc":"1.0","id":"%b","method":"ping"}' % (b"x" * 5000))
    for message in device.said:
        assert message["id"] is None
        assert error_of(message)["code"] == -32600


async def test_a_text_that_does_not_fit_twice_stays_where_it_was() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add")
    agent_server.call.finish(answer("x" * 600_000, isError=True))
    assert device.last["result"].keys() == {"content", "isError"}


async def test_a_device_may_not_have_everything_it_asks_kept_without_end() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    for number in range(4):
        device.call("add", id=number, text="x" * 4_100_000)
    device.send("custom/thing", {"text": "x" * 4_100_000}, id=5)
    device.call("add", id=6, text="x" * 4_100_000)
    await until(lambda: len(device.said) == 2)
    assert [(message["id"], error_of(message)["code"]) for message in device.said] == [(5, -32002), (6, -32002)]
    for inflight in agent_server.link.sent:
        inflight.finish(answer())
    count = len(agent_server.link.sent)
    device.send("custom/thing", {"text": "x" * 4_100_000}, id=7)
    await until(lambda: len(agent_server.link.sent) > count)
    agent_server.link.sent[-1].finish(answer())
    assert "result" in device.last
    assert device.line._held_bytes == 0


async def test_messages_of_a_device_behind_a_long_one_wait_until_it_was_read() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add", id=1, text="x" * LONG_BYTES)
    device.send("notifications/cancelled", {"requestId": 1})
    device.send("ping", {}, id=2)
    device.line.read(b'{"jsonrpc":"2.0","id":3,"method":"ping","x":"' + b"x" * LONG_BYTES + b'","params":null}')
    assert device.said == []
    await until(lambda: len(device.said) == 3)
    assert [message["id"] for message in device.said] == [1, 2, 3]
    assert "result" in device.said[2]
    assert isinstance(agent_server.link.sent[0].outcome, Cancelled)
    device.call("add", id=4, text="x" * LONG_BYTES)
    device.line.connection_ended("gone")
    device.call("add", id=5)
    for _ in range(20):  # more turns than the passes over the message
        await pause_after(LONG_BYTES + 1)
    assert len(agent_server.link.sent) == 1, "a device that has left calls nothing"


async def test_simultaneous_calls_of_a_device_are_bounded() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    for number in range(CALLS_MAX + 1):
        device.call("add", id=number)
    assert device.last["id"] == CALLS_MAX
    assert error_of(device.last)["code"] == -32002
    agent_server.link.sent[0].finish(answer())
    device.call("add", id=1000)
    assert len(device.said) == 2
    for number in range(1, CALLS_MAX + 1):
        agent_server.link.sent[number].finish(answer())
    assert sorted(message["id"] for message in device.said) == [*range(CALLS_MAX + 1), 1000]


async def test_one_device_leaves_most_of_a_server_to_others() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    greedy, other = ConnectedDevice(room), ConnectedDevice(room)
    for number in range(CALLS_MAX // 2):
        greedy.call("add", id=number)
    for number in range(CALLS_MAX // 2):
        greedy.send("custom/thing", id=100 + number)
    assert len(agent_server.link.sent) == room.hub.limits.max_calls // 4
    other.call("add", id=1)
    agent_server.link.sent[-1].finish(answer("mine"))
    assert other.last["result"]["content"][0]["text"] == "mine"


async def test_a_call_that_found_no_slot_in_time_ends_as_busy() -> None:
    room = Room()
    room.sit("s1", "add")
    for _ in range(4):
        greedy = ConnectedDevice(room)
        for number in range(room.hub.limits.max_calls // 4):
            greedy.call("add", id=number)
    device = ConnectedDevice(room)
    device.call("add", id=1)
    started = [each for each in room.hub.deadlines.pending() if isinstance(each, InFlight)]
    (unsent,) = [inflight for inflight in started if inflight.link is None]
    unsent.expire()
    error = error_of(device.last)
    assert (error["code"], error["data"]["reason"], error["data"]["executed"]) == (-32002, "overloaded", "no")


async def test_a_device_withdraws_a_call() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add", id=7)
    device.send("notifications/cancelled", {"requestId": 8})
    assert not agent_server.link.withdrawn
    device.send("notifications/cancelled", {"requestId": 7})
    assert [entry[0] for entry in agent_server.link.withdrawn] == [agent_server.call]
    assert (device.last["id"], error_of(device.last)["code"]) == (7, -32002)


async def test_when_the_device_leaves_its_calls_are_cancelled_at_their_servers() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add", id=1)
    device.send("prompts/list", id=2)
    room.expect("s2")
    device.send("tools/list", id=3)
    device.line.connection_ended("it closed the WebSocket")
    assert len(agent_server.link.withdrawn) == 2
    assert device.left == [device.line]
    room.arrive("s2", "sub")
    await until(lambda: not room.hub.running())
    assert device.said == []


# -- everything else ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "id"),
    [
        (b"hello", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"', -32700, None),
        (b"[]", -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
        (b"7", -32600, None),
        (b"null", -32600, None),
        (b'"text"', -32600, None),
        (b'{"id":1,"method":"ping"}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":[],"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32602, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":%b}' % (b'{"a":' * 80 + b"1" + b"}" * 80), -32600, 1),
        (b"\xff\xfe", -32700, None),
        (b"", -32700, None),
    ],
)
async def test_an_invalid_message_gets_an_error_and_the_next_is_answered(
    text: bytes, code: int, id: int | None
) -> None:
    device = ConnectedDevice(Room())
    device.line.read(text)
    assert device.last["id"] == id
    assert error_of(device.last)["code"] == code
    device.send("ping", id=9)
    assert device.last == {
        "jsonrpc": "2.0",
        "id": 9,
        "result": {"responses": [], "total_servers": 0, "responded_servers": 0},
    }


NAMES = st.sampled_from(["jsonrpc", "id", "method", "params", "name", "arguments", "cursor", "_meta", "requestId", "x"])
WORDS = st.sampled_from(["2.0", "tools/call", "tools/list", "initialize", "ping", "custom/thing", "add", "1"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()), max_size=6))
def test_any_message_gets_at_most_one_answer_and_the_device_stays(texts: list[bytes]) -> None:
    async def say_all() -> None:
        room = Room()
        room.sit("s1", "add").link.at_once = lambda inflight: inflight.finish(answer())
        device = ConnectedDevice(room)
        for number, text in enumerate(texts):
            device.line.read(text)
            assert len(device.said) <= number + 1
        assert all(("result" in message) != ("error" in message) for message in device.said)
        device.send("ping", id="last")
        assert device.last["id"] == "last"

    with capture_logs() as logs:
        asyncio.run(say_all())
    assert not logs, "nothing that comes is a defect"


async def test_a_binary_message_gets_an_error() -> None:
    device = ConnectedDevice(Room())
    assert device.wire.on_binary is not None
    device.wire.on_binary(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert error_of(device.last)["code"] == -32600
    assert device.wire.closed is None


async def test_a_ping_is_answered_by_the_hub_for_all_connected_servers() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.send("ping", id=4)
    assert device.last["result"] == {"responses": [{"server_id": "s1"}], "total_servers": 1, "responded_servers": 1}
    assert not agent_server.link.sent


@pytest.mark.parametrize(
    "method",
    [
        "tasks/get",
        "tasks/list",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "subscriptions/listen",
        "server/discover",
        "sampling/createMessage",
        "elicitation/create",
        "roots/list",
        "notifications/cancelled",
        "Tools/Call",
        "INITIALIZE",
        "logging/setlevel",
        "Tasks/get",
        "no spaces",
        "x" * 200,
    ],
)
async def test_methods_that_are_not_a_devices_to_ask_reach_no_server(method: str) -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.send(method, {}, id=1)
    assert error_of(device.last)["code"] == -32601
    assert not agent_server.link.sent


async def test_notifications_and_answers_are_taken_silently() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.send("notifications/initialized", {})
    device.send("notifications/anything")
    device.line.read(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    device.line.read(b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}')
    assert device.said == []
    assert not agent_server.link.sent


async def test_only_so_many_answers_wait_for_servers() -> None:
    room = Room()
    room.expect("s1")
    device = ConnectedDevice(room)
    for number in range(PENDING_MAX + 1):
        device.send("tools/list", id=number)
    (refused,) = device.said
    assert (refused["id"], error_of(refused)["code"]) == (PENDING_MAX, -32002)


async def test_a_device_that_listens_learns_that_its_tools_changed_and_not_too_often() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    deaf, device = ConnectedDevice(room), ConnectedDevice(room)
    device.send("notifications/initialized", {})
    room.relist(agent_server, "sub")
    room.relist(agent_server, "mul")
    await until(lambda: bool(device.said))
    assert device.said == [{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}]
    room.go_away(agent_server)
    room.come_back(agent_server)
    room.relist(agent_server, "mul")
    assert device.agent._timer is not None
    device.agent._check()
    assert len(device.said) == 1, "the list is what it was"
    assert deaf.said == []


async def test_a_drained_device_is_let_go_at_once_or_when_its_last_answer_is_given() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    idle, busy = ConnectedDevice(room), ConnectedDevice(room)
    busy.call("add", id=1)
    for device in (idle, busy):
        device.line.drain()
    assert idle.wire.closed == (1012, "the hub is restarting")
    assert not busy.left
    agent_server.call.finish(answer())
    assert busy.last["id"] == 1
    assert busy.wire.closed == (1012, "the hub is restarting")
    assert (idle.left, busy.left) == ([idle.line], [busy.line])


async def test_a_device_that_asks_on_while_it_is_drained_is_still_answered() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.send("custom/thing", id=1)
    device.line.drain()
    device.call("add", id=1)
    assert not device.left
    agent_server.link.sent[-1].finish(answer())
    assert [message["id"] for message in device.said] == [1]
    assert device.left == [device.line]


async def test_a_defect_costs_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ConnectedDevice(Room())

    def broken() -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(device.agent, "table", broken)
    device.call("add", id=1)
    error = error_of(device.last)
    assert (device.last["id"], error["code"]) == (1, -32603)
    assert error["data"]["incident"]
    device.send("tools/list", id=2)
    assert (device.last["id"], error_of(device.last)["code"]) == (2, -32603)
    device.send("ping", id=3)
    assert "result" in device.last


async def test_a_devices_summary_counts_its_calls() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.call("add", id=1)
    shown = device.line.summary()
    assert (shown.agent, shown.since, shown.client, shown.calls, shown.answered) == (
        KITCHEN,
        100.0,
        "192.0.2.7:4711",
        1,
        0,
    )
    agent_server.call.finish(answer())
    assert (device.line.summary().calls, device.line.summary().answered) == (0, 1)


def members(**values: Any) -> dict[str, Any]:
    return {key: raw(value) for key, value in values.items()}


@pytest.mark.parametrize(
    ("info", "title"),
    [
        ({"name": "Pot", "version": "9"}, "Pot 9"),
        ({"name": "Pot"}, "Pot"),
        ({"name": 7, "version": None}, None),
        ({}, None),
        ("Pot", None),
        ({"name": "a\x1bb"}, None),
        ({"name": "x" * 1000}, "x" * 100),
    ],
)
def test_a_devices_title_is_its_own_printable_name(info: Any, title: str | None) -> None:
    assert device_title(members(clientInfo=info)) == title


def test_a_version_is_agreed_on_if_one_is_asked_for() -> None:
    assert read_version(members(protocolVersion="2025-06-18")) == "2025-06-18"
    assert read_version(members(protocolVersion="2026-07-28")) == "2025-11-25"
    assert read_version(members(protocolVersion=7)) is read_version({}) is None


def test_a_cursor_is_a_string_or_none() -> None:
    assert read_cursor(members(cursor="abc")) == "abc"
    assert read_cursor(members(cursor=None)) is read_cursor({}) is None
    assert read_cursor(members(cursor=7)) is not None
    assert len(read_cursor(members(cursor="x" * 1000)) or "") == 64


async def test_a_greeting_that_fits_in_no_other_way_is_only_the_hubs_own() -> None:
    room = Room()
    for number in range(32):
        room.sit(f"{number}" + "厨" * 60)
    device = ConnectedDevice(room, RelaySettings(frame_bytes=4096))
    response = json.loads(initialize_result(device.agent, ME, "2024-11-05"))
    assert response.keys() == {"protocolVersion", "capabilities", "serverInfo"}


async def test_a_server_without_a_welcome_is_still_named() -> None:
    room = Room()
    room.sit("s1").welcome = b""
    response = json.loads(initialize_result(ConnectedDevice(room).agent, ME, "2024-11-05"))
    assert response["responses"] == [{"server_id": "s1"}]


async def test_a_heartbeat_names_connected_and_absent_servers() -> None:
    room = Room()
    room.sit("s1")
    room.go_away(room.sit("s2"), "gone")
    response = json.loads(ping_result(ConnectedDevice(room).agent))
    assert response["responses"] == [{"server_id": "s1"}]
    assert response["missing"] == [{"server_id": "s2", "reason": "gone"}]


class Caller:
    def __init__(self) -> None:
        self.reports: list[bytes] = []
        self.ends: list[tuple[DeviceCall, Outcome]] = []

    def report(self, message: bytes) -> None:
        self.reports.append(message)

    def call_ended(self, exchange: DeviceCall, outcome: Outcome) -> None:
        self.ends.append((exchange, outcome))


def test_only_progress_is_sent_under_the_devices_own_token() -> None:
    caller = Caller()
    exchange = DeviceCall(caller, raw(1), "add", raw("p"), 10)  # type: ignore[arg-type]
    exchange.emit(Progress({"progress": raw(1), "total": raw(2)}))
    exchange.emit(LogMessage("info", {"data": raw("x")}))
    (report,) = caller.reports
    assert json.loads(report)["params"] == {"progressToken": "p", "progress": 1, "total": 2}


def test_a_device_without_a_token_gets_no_progress() -> None:
    caller = Caller()
    DeviceCall(caller, raw(1), "add", None, 10).emit(Progress({"progress": raw(1)}))  # type: ignore[arg-type]
    assert caller.reports == []


def test_a_question_is_declined_and_the_end_is_sent_once() -> None:
    caller = Caller()
    exchange = DeviceCall(caller, raw(1), "add", None, 10)  # type: ignore[arg-type]
    replies: list[Reply] = []
    exchange.ask(Question("elicitation/create", raw({})), replies.append)
    exchange.end(DONE)
    assert replies == [NOT_ASKED]
    assert caller.ends == [(exchange, DONE)]
