"""A request to every server is answered once, with each server's answer and the missing ones."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.frontends.relay.broadcast import NOT_ALLOWED, PAGES_MAX
from isthmus.frontends.relay.device_connection import PENDING_MAX
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.model.calls import Question, Result
from isthmus.model.fault_table import ServerError
from isthmus.model.relay import AgentRules
from tests.unit.core.doubles import raw
from tests.unit.frontends.relay.doubles import KITCHEN, ConnectedDevice, Room, Seated, until


class Party:
    """A device and two servers."""

    def __init__(self, settings: RelaySettings | None = None) -> None:
        self.room = Room()
        self.one = self.room.sit("s1", "add")
        self.two = self.room.sit("s2", "sub")
        self.device = ConnectedDevice(self.room, settings)

    @property
    def result(self) -> Any:
        (message,) = self.device.said
        assert "error" not in message
        return message["result"]

    @property
    def error(self) -> Any:
        (message,) = self.device.said
        assert "result" not in message
        return message["error"]


def say(agent_server: Seated, value: Any) -> None:
    agent_server.link.sent[-1].finish(Result(raw(value)))


def refuse(agent_server: Seated, code: int = -32601, message: str = "Method not found") -> None:
    agent_server.link.sent[-1].finish(ServerError(agent_server.server, code, message))


async def test_every_server_is_asked_and_one_answer_holds_all() -> None:
    party = Party()
    party.device.send("prompts/get", {"name": "p", "_meta": {"progressToken": 1, "x/y": 2}}, id="q")
    for agent_server in (party.one, party.two):
        call = agent_server.call.call
        assert (call.kind, call.name, json.loads(bytes(call.arguments))) == ("method", "prompts/get", {"name": "p"})
        assert call.meta.keys() == {"x/y"}
    say(party.two, {"messages": [2]})
    assert party.device.said == []
    say(party.one, {"messages": [1]})
    assert party.device.last["id"] == "q"
    assert party.result == {
        "responses": [{"messages": [1], "server_id": "s1"}, {"messages": [2], "server_id": "s2"}],
        "total_servers": 2,
        "responded_servers": 2,
    }


async def test_a_server_that_does_not_answer_in_time_is_named_and_left_out() -> None:
    party = Party(RelaySettings(wait=0.05))
    away = party.room.sit("s3", "mul")
    party.room.go_away(away, "it is not connected: gone")
    party.device.send("custom/thing", id=1)
    say(party.one, {"a": 1})
    await until(lambda: bool(party.device.said))
    assert party.result["responses"] == [{"a": 1, "server_id": "s1"}]
    assert (party.result["total_servers"], party.result["responded_servers"]) == (3, 1)
    missing = {entry["server_id"]: entry["reason"] for entry in party.result["missing"]}
    assert missing.keys() == {"s2", "s3"}
    assert "0.05 s" in missing["s2"]
    assert not away.link.sent
    assert party.two.link.withdrawn, "a server that is not waited for is cancelled"
    say(party.two, {"late": True})
    assert len(party.device.said) == 1


async def test_lists_are_merged_under_their_own_member_with_all_their_pages() -> None:
    party = Party()
    party.device.send("prompts/list", id=1)
    say(party.one, {"prompts": [{"name": "a"}], "nextCursor": "more"})
    assert json.loads(bytes(party.one.link.sent[-1].call.arguments)) == {"cursor": "more"}
    say(party.two, {"prompts": [{"name": "b"}, "nonsense"]})
    say(party.one, {"prompts": [{"name": "c"}]})
    assert party.result == {
        "prompts": [
            {"name": "a", "server_id": "s1"},
            {"name": "c", "server_id": "s1"},
            {"name": "b", "server_id": "s2"},
        ],
        "total_servers": 2,
        "responded_servers": 2,
    }


@pytest.mark.parametrize(
    ("method", "member"), [("resources/list", "resources"), ("resources/templates/list", "resourceTemplates")]
)
async def test_in_a_list_an_error_is_no_entry(method: str, member: str) -> None:
    party = Party()
    party.device.send(method, id=1)
    refuse(party.two)
    say(party.one, {member: [{"uri": "x:y"}]})
    assert party.result[member] == [{"uri": "x:y", "server_id": "s1"}]
    assert party.result["missing"] == [{"server_id": "s2", "reason": "Method not found"}]


async def test_an_endless_list_is_cut_and_an_invalid_one_is_named() -> None:
    party = Party()
    party.device.send("prompts/list", id=1)
    say(party.two, {"prompts": 7})
    for _ in range(PAGES_MAX):
        say(party.one, {"prompts": [{"name": "a"}], "nextCursor": "again"})
    assert len(party.one.link.sent) == PAGES_MAX
    assert len(party.result["prompts"]) == PAGES_MAX
    assert {entry["server_id"] for entry in party.result["missing"]} == {"s1", "s2"}


async def test_a_servers_error_stands_beside_anothers_success() -> None:
    party = Party()
    party.device.send("custom/thing", id=1)
    refuse(party.one, -32000, "broken")
    say(party.two, {})
    assert party.result["responses"] == [
        {"error": {"code": -32000, "message": "broken"}, "server_id": "s1"},
        {"server_id": "s2"},
    ]
    assert (party.result["total_servers"], party.result["responded_servers"]) == (2, 2)


async def test_if_all_fail_the_answer_is_an_error() -> None:
    party = Party()
    party.device.send("custom/thing", id=1)
    refuse(party.two, -32000, "broken")
    party.one.link.sent[-1].cancel("gone")
    missing = [{"server_id": "s1", "reason": "Cancelled: gone"}]
    assert party.error == {"code": -32000, "message": "broken", "data": {"missing": missing}}


async def test_silent_servers_are_named_before_forbidden_ones() -> None:
    rules = AgentRules(deny=("kitchen_s1.add",))
    party = Party(RelaySettings(agents={KITCHEN: rules}, wait=0.02))
    party.room.sit("s3", "add")
    party.room.go_away(party.room.sit("s4", "mul"), "it left")
    party.device.send("prompts/list", id=1)
    await until(lambda: bool(party.device.said))
    assert (party.error["code"], party.error["message"]) == (-32002, "转发消息失败")
    missing = {entry["server_id"]: entry["reason"] for entry in party.error["data"]["missing"]}
    assert missing.keys() == {"s1", "s2", "s3", "s4"}
    assert (missing["s1"], missing["s4"]) == (NOT_ALLOWED, "it left")
    assert "0.02 s" in missing["s2"]


async def test_if_no_server_answers_the_response_says_why() -> None:
    party = Party(RelaySettings(wait=0.02))
    party.device.send("custom/thing", id=1)
    await until(lambda: bool(party.device.said))
    assert (party.error["code"], party.error["message"]) == (-32002, "转发消息失败")


async def test_without_connected_servers_the_error_says_not_connected() -> None:
    device = ConnectedDevice(Room())
    device.send("prompts/list", id=1)
    assert (device.last["error"]["code"], device.last["error"]["message"]) == (-32001, "工具端未连接")
    assert device.last["error"]["data"]["agent_id"] == KITCHEN
    assert not device.line._broadcasts


async def test_the_first_success_can_be_enough() -> None:
    party = Party(RelaySettings(aggregate="first", wait=30))
    party.device.send("custom/thing", id=1)
    refuse(party.one)
    assert party.device.said == []
    third = party.room.sit("s3")
    party.device.send("custom/other", id=2)
    say(third, {"a": 1})
    assert party.result == {"responses": [{"a": 1, "server_id": "s3"}], "total_servers": 3, "responded_servers": 1}
    assert {entry[0].call.name for entry in party.two.link.withdrawn} == {"custom/other"}


async def test_a_caller_of_a_part_of_a_server_may_not_call_arbitrary_methods() -> None:
    rules = AgentRules(deny=("kitchen_s1.add", "kitchen_s2.sub"))
    party = Party(RelaySettings(agents={KITCHEN: rules}))
    party.device.send("prompts/list", id=1)
    assert party.error == {"code": -32601, "message": "Method not found: prompts/list"}
    assert not party.one.link.sent


async def test_a_question_is_dropped_when_a_call_uses_its_id_or_it_is_withdrawn() -> None:
    party = Party()
    party.device.send("prompts/list", id=1)
    party.device.call("no such tool", id=1)
    party.device.send("prompts/list", id=2)
    party.device.send("notifications/cancelled", {"requestId": 2})
    assert [message["id"] for message in party.device.said] == [1]
    assert len(party.one.link.withdrawn) == len(party.two.link.withdrawn) == 2
    assert not party.device.line._broadcasts


async def test_only_so_many_questions_are_open_at_once() -> None:
    room = Room()
    room.sit("s1")
    device = ConnectedDevice(room)
    for number in range(PENDING_MAX + 1):
        device.send("custom/thing", id=number)
    assert (device.last["id"], device.last["error"]["code"]) == (PENDING_MAX, -32002)
    assert len(device.said) == 1


async def test_reusing_a_requests_id_answers_the_first_with_the_received_parts() -> None:
    party = Party()
    party.device.send("custom/thing", id=1)
    say(party.two, {"a": 2})
    party.device.send("ping", id=1)
    received, ping = party.device.said
    assert received["result"]["responses"] == [{"a": 2, "server_id": "s2"}]
    assert [absent["server_id"] for absent in received["result"]["missing"]] == ["s1"]
    assert (ping["id"], ping["result"]["total_servers"]) == (1, 2)
    assert party.one.link.withdrawn


async def test_an_unanswered_request_is_an_error_when_its_id_is_reused() -> None:
    party = Party()
    party.device.send("custom/thing", id=1)
    party.device.send("ping", id=1)
    assert [list(message)[-1] for message in party.device.said] == ["error", "result"]


async def test_a_list_with_far_too_many_entries_is_no_answer() -> None:
    party = Party(RelaySettings(frame_bytes=1 << 20))
    party.device.send("prompts/list", id=1)
    say(party.one, {"prompts": [{}] * 10_001})
    say(party.two, {"prompts": [{"name": "p"}]})
    assert party.result["prompts"] == [{"name": "p", "server_id": "s2"}]
    assert [absent["server_id"] for absent in party.result["missing"]] == ["s1"]


async def test_a_combined_answer_that_is_too_long_becomes_an_error() -> None:
    party = Party(RelaySettings(frame_bytes=4096))
    party.device.send("custom/thing", id=1)
    say(party.one, {"a": "x" * 3000})
    say(party.two, {"a": "x" * 3000})
    assert party.error["code"] == -32002
    assert "4096" in party.error["data"]["details"]


async def test_the_hub_does_not_wait_for_an_answer_that_cannot_fit() -> None:
    party = Party(RelaySettings(frame_bytes=4096, wait=30))
    party.device.send("prompts/list", id=1)
    say(party.one, {"prompts": [{"name": "x" * 5000}], "nextCursor": "more"})
    assert party.error["data"]["executed"] == "yes"
    assert len(party.one.link.sent) == 1
    assert party.two.link.withdrawn


async def test_a_modern_servers_answer_has_no_type_that_devices_do_not_know() -> None:
    party = Party()
    party.device.send("custom/thing", id=1)
    party.one.call.finish(Result(raw({"a": 1, "resultType": "complete"}), is_typed=True))
    say(party.two, {})
    assert party.result["responses"][0] == {"a": 1, "server_id": "s1"}


async def test_meta_that_is_no_object_is_refused() -> None:
    party = Party()
    party.device.send("custom/thing", {"_meta": 1}, id=1)
    assert party.error["code"] == -32602


async def test_a_broadcast_declines_questions_and_rejects_a_result_with_duplicate_keys() -> None:
    party = Party()
    party.device.send("custom/thing", id=1)
    replies: list[object] = []
    party.one.call.ask(Question("sampling/createMessage", raw({})), replies.append)
    assert len(replies) == 1
    party.one.call.finish(Result(msgspec.Raw(b'{"a":1,"a":2}')))
    say(party.two, {})
    assert party.result["responses"] == [{"server_id": "s2"}]
    assert [entry["server_id"] for entry in party.result["missing"]] == ["s1"]
