"""Faults as MCP errors: the code, and always whether the tool ran."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.frontends.mcp.exchange import call_reply, code_of, data_of
from isthmus.model import fault_table
from isthmus.model.fault_table import FAULTS, Fault, ServerError
from isthmus.model.names import ServerName
from tests.unit.core.doubles import raw
from tests.unit.model.fault_examples import EVERY_FAULT

FILES = ServerName("files")

UNSENT = (fault_table.Lost(FILES, "gone", executed="no"), fault_table.TimedOut(FILES, 30.0, executed="no"))
FAULT_CASES = pytest.mark.parametrize(
    "fault", [*EVERY_FAULT, *UNSENT], ids=lambda fault: f"{fault.reason}-{fault.executed}"
)


def expected_code(fault: Fault) -> int:
    if fault in UNSENT:
        return -32011
    return fault.code if isinstance(fault, ServerError) else FAULTS[fault.reason].mcp


@FAULT_CASES
def test_a_fault_has_its_code_and_whether_the_tool_ran(fault: Fault) -> None:
    data: dict[str, object] = {"executed": fault.executed, "reason": fault.reason}
    optional = {"server": fault.server, "retryAfter": fault.retry_after, "approval": fault.approval}
    optional["uri"] = getattr(fault, "uri", None)
    data |= {name: value for name, value in optional.items() if value is not None}
    code = expected_code(fault)
    reply = json.loads(call_reply(msgspec.Raw(b'"x"'), fault, "modern").body)
    assert reply == {"jsonrpc": "2.0", "id": "x", "error": {"code": code, "message": fault.message, "data": data}}
    assert code_of(fault) == code


@FAULT_CASES
def test_the_earlier_era_has_the_same_codes_but_for_a_resource_that_is_not_there(fault: Fault) -> None:
    is_resource = isinstance(fault, fault_table.UnknownResource)
    assert code_of(fault, "legacy") == (-32002 if is_resource else expected_code(fault))
    assert json.loads(call_reply(b"1", fault, "legacy").body)["error"]["code"] == code_of(fault, "legacy")


def test_a_pause_is_sent_in_milliseconds_at_most() -> None:
    reply = json.loads(call_reply(b"1", fault_table.BreakerOpen(FILES, 2.98765), "modern").body)
    assert reply["error"]["data"]["retryAfter"] == 2.988


@pytest.mark.parametrize(
    ("own", "received"),
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
def test_a_servers_own_data_is_kept_and_ours_added(own: object, received: dict[str, Any]) -> None:
    assert json.loads(data_of(ServerError(FILES, 1, "no", raw(own)))) == received


def test_a_server_that_is_a_hub_speaks_for_itself_once() -> None:
    said = raw({"executed": "no", "reason": "overloaded", "server": "behind", "retryAfter": 1, "hint": [1]})
    fault = ServerError(FILES, -32010, "busy", said)
    fault.is_of_hub, fault.executed, fault.reason, fault.retry_after = True, "no", "overloaded", 1.0
    told = {"executed": "no", "reason": "overloaded", "server": "files", "retryAfter": 1.0, "hint": [1]}
    assert json.loads(data_of(fault)) == told


def test_a_server_cannot_speak_for_the_hub() -> None:
    forged = msgspec.Raw(b'{"executed":"no","server":"other","detail":1}')
    received = msgspec.json.decode(data_of(fault_table.ServerError(FILES, -32000, "no", forged)))
    assert received == {
        "executed": "yes",
        "reason": "server_error",
        "server": "files",
        "data": {"executed": "no", "server": "other", "detail": 1},
    }
