"""The device's side of a call: progress under its own token, no answers to questions, one end."""

from __future__ import annotations

import json

from isthmus.frontends.relay.exchange import DeviceExchange
from isthmus.model.calls import NOT_ASKED, LogMessage, Outcome, Progress, Question, Reply
from tests.unit.core.doubles import DONE, raw


class Caller:
    def __init__(self) -> None:
        self.reports: list[bytes] = []
        self.ends: list[tuple[DeviceExchange, Outcome]] = []

    def report(self, message: bytes) -> None:
        self.reports.append(message)

    def call_ended(self, exchange: DeviceExchange, outcome: Outcome) -> None:
        self.ends.append((exchange, outcome))


def test_progress_is_told_under_the_devices_own_token_and_nothing_else_is() -> None:
    caller = Caller()
    exchange = DeviceExchange(caller, raw(1), "add", raw("p"), 10)
    exchange.emit(Progress({"progress": raw(1), "total": raw(2)}))
    exchange.emit(LogMessage("info", {"data": raw("x")}))
    (report,) = caller.reports
    assert json.loads(report)["params"] == {"progressToken": "p", "progress": 1, "total": 2}


def test_who_gave_no_token_hears_nothing() -> None:
    caller = Caller()
    DeviceExchange(caller, raw(1), "add", None, 10).emit(Progress({"progress": raw(1)}))
    assert caller.reports == []


def test_a_question_is_declined_and_the_end_is_told_once() -> None:
    caller = Caller()
    exchange = DeviceExchange(caller, raw(1), "add", None, 10)
    replies: list[Reply] = []
    exchange.ask(Question("elicitation/create", raw({})), replies.append)
    exchange.end(DONE)
    assert replies == [NOT_ASKED]
    assert caller.ends == [(exchange, DONE)]
