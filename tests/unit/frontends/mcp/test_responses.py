"""Faults as MCP errors: the code, and always whether the tool ran."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.frontends.mcp.exchange import call_reply, code_of, data_of
from isthmus.model import faults
from isthmus.model.faults import Fault, ServerError
from isthmus.model.names import ServerName
from tests.unit.core.doubles import raw

FILES = ServerName("files")

TOLD: list[tuple[Fault, int, dict[str, Any]]] = [
    (faults.BadArguments("files.read", "no"), -32602, {"executed": "no", "reason": "bad_arguments"}),
    (faults.UnknownTool("files.read"), -32602, {"executed": "no", "reason": "unknown_tool"}),
    (faults.UnknownPrompt("files.ask"), -32602, {"executed": "no", "reason": "unknown_prompt"}),
    (
        faults.UnknownResource("file:///x"),
        -32602,
        {"executed": "no", "reason": "unknown_resource", "uri": "file:///x"},
    ),
    (
        faults.Unanswered(FILES, "nobody answered"),
        -32012,
        {"executed": "unknown", "reason": "unanswered", "server": "files"},
    ),
    (faults.BadState(), -32602, {"executed": "unknown", "reason": "bad_state"}),
    (faults.UnknownTask(), -32602, {"executed": "no", "reason": "unknown_task"}),
    (faults.TaskEnded("completed"), -32602, {"executed": "no", "reason": "task_ended"}),
    (faults.NotWritten("The disk is full"), -32603, {"executed": "no", "reason": "not_written", "retryAfter": 1.0}),
    (faults.TooManySubscriptions(1000), -32010, {"executed": "no", "reason": "too_many_subscriptions"}),
    (faults.TargetRefused("not there"), -32602, {"executed": "no", "reason": "target_refused"}),
    (faults.TooManyBytes("ann", 9, 9), -32010, {"executed": "no", "reason": "too_many_bytes", "retryAfter": 1.0}),
    (faults.TooManyCalls("acme", 200), -32010, {"executed": "no", "reason": "too_many_calls", "retryAfter": 1.0}),
    (faults.TooManyTargets(64), -32010, {"executed": "no", "reason": "too_many_targets", "retryAfter": 1.0}),
    (
        faults.Cancelled("enough", executed="unknown", server=FILES),
        -32012,
        {"executed": "unknown", "reason": "cancelled", "server": "files"},
    ),
    (
        faults.NotConnected(FILES, "gone"),
        -32011,
        {"executed": "no", "reason": "not_connected", "server": "files"},
    ),
    (
        faults.Overloaded(FILES, 64, 256),
        -32010,
        {"executed": "no", "reason": "overloaded", "server": "files", "retryAfter": 1.0},
    ),
    (
        faults.BreakerOpen(FILES, 2.98765),
        -32010,
        {"executed": "no", "reason": "breaker_open", "server": "files", "retryAfter": 2.988},
    ),
    (
        ServerError(FILES, -32000, "no"),
        -32000,
        {"executed": "yes", "reason": "server_error", "server": "files"},
    ),
    (faults.BadReply(FILES, "no"), -32012, {"executed": "unknown", "reason": "bad_reply", "server": "files"}),
    (
        faults.Lost(FILES, "gone", executed="no"),
        -32011,
        {"executed": "no", "reason": "lost", "server": "files"},
    ),
    (
        faults.TimedOut(FILES, 30.0, executed="unknown"),
        -32012,
        {"executed": "unknown", "reason": "timed_out", "server": "files"},
    ),
    (faults.Draining(), -32010, {"executed": "no", "reason": "draining", "retryAfter": 1.0}),
    (faults.Bug("1f2e"), -32603, {"executed": "unknown", "reason": "internal"}),
]


@pytest.mark.parametrize(("fault", "code", "data"), TOLD, ids=lambda value: getattr(value, "reason", ""))
def test_a_fault_is_told_with_its_code_and_whether_the_tool_ran(fault: Fault, code: int, data: dict[str, Any]) -> None:
    reply = json.loads(call_reply(msgspec.Raw(b'"x"'), fault, "modern").body)
    assert reply == {"jsonrpc": "2.0", "id": "x", "error": {"code": code, "message": fault.message, "data": data}}
    assert code_of(fault) == code


@pytest.mark.parametrize(("fault", "code", "_data"), TOLD, ids=lambda value: getattr(value, "reason", ""))
def test_the_earlier_era_has_the_same_codes_but_for_a_resource_that_is_not_there(
    fault: Fault, code: int, _data: dict[str, Any]
) -> None:
    assert code_of(fault, "legacy") == (-32002 if isinstance(fault, faults.UnknownResource) else code)
    assert json.loads(call_reply(b"1", fault, "legacy").body)["error"]["code"] == code_of(fault, "legacy")


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"hint": [1]}, {"hint": [1], "executed": "yes", "reason": "server_error", "server": "files"}),
        (
            {"reason": "mine"},
            {"data": {"reason": "mine"}, "executed": "yes", "reason": "server_error", "server": "files"},
        ),
        ("text", {"data": "text", "executed": "yes", "reason": "server_error", "server": "files"}),
        ({}, {"executed": "yes", "reason": "server_error", "server": "files"}),
    ],
)
def test_a_servers_own_data_is_kept_and_ours_added(own: object, told: dict[str, Any]) -> None:
    assert json.loads(data_of(ServerError(FILES, 1, "no", raw(own)))) == told


def test_a_server_cannot_speak_for_the_hub() -> None:
    forged = msgspec.Raw(b'{"executed":"no","server":"other","detail":1}')
    told = msgspec.json.decode(data_of(faults.ServerError(FILES, -32000, "no", forged)))
    assert told == {
        "executed": "yes",
        "reason": "server_error",
        "server": "files",
        "data": {"executed": "no", "server": "other", "detail": 1},
    }
