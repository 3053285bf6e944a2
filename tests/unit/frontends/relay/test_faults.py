"""Every failure has its code, says whether the tool ran, and never looks like a result."""

from __future__ import annotations

import json

import pytest

from isthmus.frontends.relay.faults import fault_reply, not_connected, refusal
from isthmus.model import fault_table
from isthmus.model.fault_table import FAULTS, Fault, ServerError
from isthmus.model.names import ServerName
from tests.unit.core.doubles import raw
from tests.unit.model.fault_examples import EVERY_FAULT

COOK = ServerName("kitchen_cook")

MESSAGES = {
    -32601: "工具 'boil' 不存在",
    -32002: "转发工具调用请求失败",
    -32001: "工具端未连接",
    -32603: "处理工具调用请求时发生错误",
}
"""What devices show for a code; other codes have the message of the fault."""

UNSENT = (fault_table.Lost(COOK, "gone", executed="no"), fault_table.TimedOut(COOK, 25.0, executed="no"))


@pytest.mark.parametrize("fault", [*EVERY_FAULT, *UNSENT], ids=lambda fault: f"{fault.reason}-{fault.executed}")
def test_a_fault_has_its_code_and_never_a_result(fault: Fault) -> None:
    code = fault.code if isinstance(fault, ServerError) else FAULTS[fault.reason].relay
    if fault in UNSENT:
        code = -32001
    response = json.loads(fault_reply(b"7", fault, "kitchen", "boil"))
    assert response.keys() == {"jsonrpc", "id", "error"}
    assert (response["id"], response["error"]["code"]) == (7, code)
    assert response["error"]["message"] == MESSAGES.get(code, fault.message)
    if not isinstance(fault, ServerError | fault_table.UnknownTool):
        data = response["error"]["data"]
        assert (data["agent_id"], data["details"], data["executed"]) == ("kitchen", fault.message, fault.executed)
        assert (data["reason"], data.get("server")) == (fault.reason, fault.server)
        assert data.get("retryAfter") == fault.retry_after


def test_a_servers_own_error_is_sent_verbatim() -> None:
    response = json.loads(
        fault_reply(b'""', ServerError(COOK, 5, "no salt", raw({"executed": "no"})), "kitchen", "boil")
    )
    assert response == {
        "jsonrpc": "2.0",
        "id": "",
        "error": {"code": 5, "message": "no salt", "data": {"executed": "no"}},
    }


def test_a_defect_has_its_incident_and_a_pause_its_length() -> None:
    assert json.loads(fault_reply(b"1", fault_table.Bug("1f2e"), "k", "t"))["error"]["data"]["incident"] == "1f2e"
    busy = json.loads(fault_reply(b"1", fault_table.BreakerOpen(COOK, 2.5), "k", "t"))
    assert busy["error"]["data"]["retryAfter"] == 2.5


def test_refusals_of_the_frontend_have_executed_no_by_default() -> None:
    assert json.loads(refusal(b"1", "k", "too much"))["error"]["data"]["executed"] == "no"
    assert json.loads(refusal(b"1", "k", "too long", executed="yes"))["error"]["data"]["executed"] == "yes"
    assert json.loads(not_connected(b"1", "k", "nobody"))["error"]["code"] == -32001
