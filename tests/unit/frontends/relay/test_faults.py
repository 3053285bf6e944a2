"""Every failure has its code, says whether the tool ran, and never looks like a result."""

from __future__ import annotations

import json

import pytest

from isthmus.frontends.relay.faults import fault_reply, not_connected, refusal
from isthmus.model import faults
from isthmus.model.faults import Fault, ServerError
from isthmus.model.names import ServerName
from tests.unit.core.doubles import raw

COOK = ServerName("kitchen_cook")

TOLD: list[tuple[Fault, int, str | None]] = [
    (faults.BadArguments("boil", "no water"), -32602, "Invalid arguments for boil: no water"),
    (faults.UnknownTool("boil"), -32601, "工具 'boil' 不存在"),
    (faults.UnknownPrompt("boil"), -32602, None),
    (faults.UnknownResource("x:y"), -32602, None),
    (faults.UnknownTask(), -32602, None),
    (faults.TaskEnded("completed"), -32602, None),
    (faults.TargetRefused("not there"), -32602, None),
    (faults.BadState(), -32602, None),
    (faults.TooManySubscriptions(1000), -32002, "转发工具调用请求失败"),
    (faults.TooManyBytes("ann", 200, 210), -32002, "转发工具调用请求失败"),
    (faults.TooManyCalls("acme", 200), -32002, "转发工具调用请求失败"),
    (faults.TooManyTargets(64), -32002, "转发工具调用请求失败"),
    (faults.Overloaded(COOK, 64, 256), -32002, "转发工具调用请求失败"),
    (faults.BreakerOpen(COOK, 2.5), -32002, "转发工具调用请求失败"),
    (faults.Draining(), -32002, "转发工具调用请求失败"),
    (faults.NotConnected(COOK, "gone"), -32001, "工具端未连接"),
    (faults.Lost(COOK, "gone", executed="no"), -32001, "工具端未连接"),
    (faults.Lost(COOK, "gone", executed="unknown"), -32002, "转发工具调用请求失败"),
    (faults.TimedOut(COOK, 25.0, executed="no"), -32001, "工具端未连接"),
    (faults.TimedOut(COOK, 25.0, executed="unknown"), -32002, "转发工具调用请求失败"),
    (faults.Cancelled("enough", executed="unknown", server=COOK), -32002, "转发工具调用请求失败"),
    (faults.Unanswered(COOK, "nobody answered"), -32002, "转发工具调用请求失败"),
    (faults.BadReply(COOK, "no"), -32002, "转发工具调用请求失败"),
    (faults.NotWritten("The disk is full"), -32603, "处理工具调用请求时发生错误"),
    (faults.Bug("1f2e"), -32603, "处理工具调用请求时发生错误"),
    (ServerError(COOK, -32050, "no salt"), -32050, "no salt"),
]


@pytest.mark.parametrize(("fault", "code", "message"), TOLD, ids=lambda value: getattr(value, "reason", None))
def test_a_fault_is_told_by_its_code_and_never_beside_a_result(fault: Fault, code: int, message: str | None) -> None:
    told = json.loads(fault_reply(b"7", fault, "kitchen", "boil"))
    assert told.keys() == {"jsonrpc", "id", "error"}
    assert (told["id"], told["error"]["code"]) == (7, code)
    assert told["error"]["message"] == (message or fault.message)
    if not isinstance(fault, ServerError | faults.UnknownTool):
        data = told["error"]["data"]
        assert (data["agent_id"], data["details"], data["executed"]) == ("kitchen", fault.message, fault.executed)
        assert (data["reason"], data.get("server")) == (fault.reason, fault.server)


def test_a_servers_own_error_is_told_verbatim() -> None:
    told = json.loads(fault_reply(b'""', ServerError(COOK, 5, "no salt", raw({"executed": "no"})), "kitchen", "boil"))
    assert told == {"jsonrpc": "2.0", "id": "", "error": {"code": 5, "message": "no salt", "data": {"executed": "no"}}}


def test_a_defect_has_its_incident_and_a_pause_its_length() -> None:
    assert json.loads(fault_reply(b"1", faults.Bug("1f2e"), "k", "t"))["error"]["data"]["incident"] == "1f2e"
    busy = json.loads(fault_reply(b"1", faults.BreakerOpen(COOK, 2.5), "k", "t"))
    assert busy["error"]["data"]["retryAfter"] == 2.5


def test_what_the_frontend_refuses_by_itself_has_not_run_unless_it_says_so() -> None:
    assert json.loads(refusal(b"1", "k", "too much"))["error"]["data"]["executed"] == "no"
    assert json.loads(refusal(b"1", "k", "too long", executed="yes"))["error"]["data"]["executed"] == "yes"
    assert json.loads(not_connected(b"1", "k", "nobody"))["error"]["code"] == -32001
