"""Rounds: a caller that is asked by requests, before a server that asks by its results."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.core.calls.inflight import InFlight
from isthmus.model.faults import Unanswered
from isthmus.model.questions import NOT_ASKED, Answered, Declined, Question
from isthmus.upstream.rounds import ROUNDS_MAX, Round
from isthmus.wire.mcp.inputs import Inputs
from tests.unit.core.doubles import DONE, SERVER, Stage, call, raw

ABLE = frozenset({"elicitation", "roots", "sampling"})
ROOTS = Question("roots/list", raw({}))
FORM = Question("elicitation/create", raw({"message": "who?"}))


class Asked:
    """A call whose server asks by its results."""

    def __init__(self, client_caps: frozenset[str] = ABLE, **extra: Any) -> None:
        self.stage = Stage()
        made = msgspec.structs.replace(
            call(client_caps=client_caps), extra={key: raw(value) for key, value in extra.items()}
        )
        self.inflight, self.listener = self.stage.start(made)

    def require(self, state: str | None = None, **questions: Question) -> None:
        Round(self.inflight, Inputs(questions, None if state is None else raw(state))).ask()

    def answer(self, value: object) -> None:
        """Answer the question that has waited longest."""
        self.listener.asked.pop(0)[1](Answered(raw(value)))

    @property
    def sent(self) -> list[InFlight]:
        return self.stage.link.sent

    @property
    def extra(self) -> dict[str, Any]:
        """What the call carries beside its arguments now."""
        return {key: json.loads(bytes(value)) for key, value in self.inflight.call.extra.items()}


async def test_the_call_is_sent_again_with_the_answers_and_the_servers_state() -> None:
    asked = Asked(own=1)
    asked.require("s1", roots=ROOTS)
    assert asked.sent == [asked.inflight]
    asked.answer({"roots": []})
    assert asked.sent == [asked.inflight] * 2
    assert asked.extra == {"own": 1, "inputResponses": {"roots": {"roots": []}}, "requestState": "s1"}
    assert asked.stage.server_queue.running == 1


async def test_each_question_that_sends_the_user_elsewhere_has_an_id_of_its_own() -> None:
    asked = Asked()
    login = Question("elicitation/create", raw({"mode": "url", "url": "https://login.example/"}))
    asked.require(one=login, other=login)
    ids = {json.loads(bytes(question.params))["elicitationId"] for question, _ in asked.listener.asked}
    assert len(ids) == 2


async def test_several_questions_are_asked_at_once_and_sent_back_together() -> None:
    asked = Asked()
    asked.require("s", roots=ROOTS, name=FORM)
    assert [question for question, _ in asked.listener.asked] == [ROOTS, FORM]
    asked.answer("first")
    assert len(asked.sent) == 1
    asked.answer("second")
    assert len(asked.sent) == 2
    assert asked.extra["inputResponses"] == {"roots": "first", "name": "second"}


async def test_a_later_round_carries_its_own_answers_and_state_alone() -> None:
    asked = Asked()
    asked.require("s1", roots=ROOTS)
    asked.answer("first")
    asked.require(None, name=FORM)
    asked.answer("second")
    assert asked.extra == {"inputResponses": {"name": "second"}}


async def test_a_server_that_only_wants_its_state_back_gets_it_at_once() -> None:
    asked = Asked()
    asked.require("s1")
    assert len(asked.sent) == 2
    assert asked.extra == {"inputResponses": {}, "requestState": "s1"}


async def test_a_server_that_asks_for_ever_gets_nowhere() -> None:
    asked = Asked()
    for _ in range(ROUNDS_MAX):
        asked.require("s", roots=ROOTS)
        asked.answer({})
    assert len(asked.sent) == 1 + ROUNDS_MAX
    asked.require("s", roots=ROOTS)
    assert (len(asked.sent), asked.listener.asked) == (1 + ROUNDS_MAX, [])
    assert isinstance(asked.listener.fault, Unanswered)
    assert asked.listener.fault.why == f"it went on asking after {ROUNDS_MAX} rounds"


async def test_a_declined_question_ends_the_call_and_the_other_answers_are_nobodys() -> None:
    asked = Asked()
    asked.require("s", roots=ROOTS, name=FORM)
    asked.listener.asked.pop(0)[1](Declined(-1, "not now"))
    asked.answer("too late")
    assert isinstance(asked.listener.fault, Unanswered)
    assert (asked.listener.fault.why, asked.listener.fault.server, len(asked.sent)) == ("not now", SERVER, 1)


@pytest.mark.parametrize("client_caps", [frozenset[str](), frozenset({"roots"}), frozenset({"elicitation.form"})])
async def test_a_caller_is_not_asked_what_it_never_said_it_can_answer(client_caps: frozenset[str]) -> None:
    asked = Asked(client_caps)
    asked.require("s", name=FORM)
    assert asked.listener.asked == []
    assert isinstance(asked.listener.fault, Unanswered)
    assert asked.listener.fault.why == NOT_ASKED.message


async def test_an_answer_after_the_end_of_the_call_sends_nothing() -> None:
    asked = Asked()
    asked.require("s", roots=ROOTS)
    asked.inflight.finish(DONE)
    asked.answer({})
    assert (len(asked.sent), asked.listener.ends) == (1, [DONE])
