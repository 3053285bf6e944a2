"""What errors of other hubs mean: of hubs that are servers here, of nodes, and of our own client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from isthmus.model.fault_table import FAULTS, Fault, Lost, NotConnected, ServerError
from isthmus.model.names import ServerName
from isthmus.upstream.hub_errors import DECISIONS, read_error, read_hub_error, read_node_error
from isthmus.wire.jsonrpc import ErrorReply

NAME = ServerName("robot_one")


def reply(message: str, data: Any) -> ErrorReply:
    text = json.dumps(data, separators=(",", ":")).encode()
    return ErrorReply(msgspec.Raw(b"1"), -32012, message, None if data is None else msgspec.Raw(text))


# -- hubs that are servers here ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", FAULTS)
def test_a_fault_of_a_hub_keeps_its_words(reason: str) -> None:
    said = {"executed": "unknown", "reason": reason, "retryAfter": 2.5, "approval": "ap_0a", "server": "behind"}
    fault = read_hub_error(NAME, reply("in its words", said))
    assert fault is not None
    assert (fault.executed, fault.reason, fault.retry_after, fault.approval) == ("unknown", reason, 2.5, "ap_0a")
    assert (fault.code, fault.message, fault.server) == (-32012, "in its words", NAME)


def test_a_reason_of_a_newer_hub_is_an_error_of_the_server() -> None:
    fault = read_hub_error(NAME, reply("in its words", {"executed": "no", "reason": "made_up_later"}))
    assert fault is not None
    assert (fault.executed, fault.reason) == ("no", "server_error")


@pytest.mark.parametrize(
    "data",
    [
        *(None, 5, [], {}, {"executed": "no"}, {"executed": "maybe", "reason": "lost"}),
        {"executed": "no", "reason": "lost", "retryAfter": -1},
        {"executed": "no", "reason": "lost", "approval": "ap_0a\n"},
    ],
)
def test_what_no_hub_says_is_not_read(data: Any) -> None:
    assert read_hub_error(NAME, reply("oh", data)) is None


# -- our own client, and nodes -------------------------------------------------------------------------------------


def test_a_call_that_its_server_did_not_answer_ended_as_if_this_hub_had_kept_it() -> None:
    told: dict[str, Any] = {"executed": "unknown", "reason": "lost", "server": "one"}
    lost = read_error(NAME, reply("Lost server one during the call: killed by signal 9", told))
    assert isinstance(lost, Lost)
    assert lost.is_behind
    assert (lost.executed, lost.message) == ("unknown", "Lost server robot_one during the call: killed by signal 9")

    told = {"executed": "no", "reason": "draining", "retryAfter": 1}
    refused = read_error(NAME, reply("The hub is shutting down", told))
    assert isinstance(refused, NotConnected)
    assert (refused.executed, refused.why) == ("no", "The hub is shutting down")


@pytest.mark.parametrize("reason", sorted(DECISIONS))
@pytest.mark.parametrize("read", [read_error, read_node_error])
def test_a_decision_of_a_hub_behind_is_passed_on(read: Callable[[ServerName, ErrorReply], Fault], reason: str) -> None:
    told = {"executed": "no", "reason": reason, "approval": "ap_0a", "server": "behind", "retryAfter": 2.5}
    fault = read(NAME, reply("in its words", told))
    assert (fault.executed, fault.reason, fault.approval, fault.retry_after) == ("no", reason, "ap_0a", 2.5)
    assert isinstance(fault, ServerError)
    assert (fault.code, fault.message, fault.server) == (-32012, "in its words", NAME)


@pytest.mark.parametrize("own", [{"hint": [1, {"a": None}]}, None])
def test_a_servers_own_error_comes_out_as_it_was(own: dict[str, Any] | None) -> None:
    told = {**(own or {}), "executed": "yes", "reason": "server_error", "server": "one"}
    error = read_error(NAME, reply("no such file", told))
    assert error == reply("no such file", own)


@pytest.mark.parametrize("data", [None, 5, [], {}, {"executed": "no"}, {"executed": "maybe", "reason": "x"}])
def test_what_is_no_hubs_word_is_left_as_it_is(data: Any) -> None:
    error = reply("oh", data)
    assert read_error(NAME, error) is error


@pytest.mark.parametrize("reason", FAULTS)
def test_a_fault_of_another_node_is_unchanged_if_the_table_says_so(reason: str) -> None:
    fault = read_node_error(NAME, reply("in its words", {"executed": "no", "reason": reason, "retryAfter": 2.0}))
    assert isinstance(fault, Fault)
    if FAULTS[reason].crosses_nodes:
        assert (fault.reason, fault.message, fault.executed, fault.retry_after) == (reason, "in its words", "no", 2.0)
    elif reason in DECISIONS:
        assert isinstance(fault, ServerError)
    else:
        assert isinstance(fault, NotConnected)
