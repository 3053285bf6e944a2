"""A call in flight ends exactly once, whoever is first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations

import pytest

from isthmus.core.calls import inflight as module
from isthmus.core.calls.inflight import InFlight
from isthmus.model.events import Event
from isthmus.model.faults import Cancelled, Lost, TimedOut, Unanswered
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import NOT_ASKED, TOO_LATE, Answered, OnReply, Question, Reply
from tests.unit.core.doubles import DONE, PROGRESS, SERVER, Listener, Notes, Stage, call, raw


async def test_a_call_ends_once_and_frees_its_slot() -> None:
    stage = Stage()
    inflight, listener = stage.start()
    assert stage.lane.running == 1
    assert inflight.finish(DONE)
    assert listener.ends == [DONE]
    assert stage.lane.running == 0
    assert stage.notes.ends == [("files.read", SERVER, DONE)]


async def test_a_late_answer_is_counted_and_dropped() -> None:
    stage = Stage()
    inflight, listener = stage.start()
    inflight.finish(DONE)
    assert not inflight.finish(Lost(SERVER, "too late", executed="unknown"))
    assert listener.ends == [DONE]
    assert stage.notes.lates == [SERVER]
    assert len(stage.notes.ends) == 1
    assert stage.lane.running == 0


async def test_whatever_comes_first_wins_and_the_rest_changes_nothing() -> None:
    ways: dict[str, Callable[[InFlight], object]] = {
        "answer": lambda inflight: inflight.finish(DONE),
        "loss": lambda inflight: inflight.finish(Lost(SERVER, "gone", executed="unknown")),
        "withdrawal": lambda inflight: inflight.cancel("enough"),
        "deadline": lambda inflight: inflight.expire(),
    }
    kinds = {"answer": type(DONE), "loss": Lost, "withdrawal": Cancelled, "deadline": TimedOut}
    for order in permutations(ways):
        stage = Stage()
        inflight, listener = stage.start()
        for way in order:
            ways[way](inflight)
        assert [type(end) for end in listener.ends] == [kinds[order[0]]], order
        assert stage.lane.running == 0


async def test_a_late_answer_to_a_call_that_found_no_tool_is_nobodys() -> None:
    stage = Stage()
    inflight, listener = stage.start(call("files.none"))
    assert not inflight.finish(DONE)
    assert len(listener.ends) == 1
    assert stage.notes.lates == []


async def test_events_reach_the_caller_only_until_the_end() -> None:
    stage = Stage()
    inflight, listener = stage.start()
    inflight.emit(PROGRESS)
    inflight.finish(DONE)
    inflight.emit(PROGRESS)
    assert listener.events == [PROGRESS]


@pytest.mark.parametrize(("has_left", "executed"), [(True, "unknown"), (False, "no")])
async def test_a_deadline_says_whether_the_tool_may_have_run_and_tells_the_server(
    *, has_left: bool, executed: str
) -> None:
    stage = Stage()
    stage.link.has_left = has_left
    inflight, listener = stage.start(call(timeout=0.001))
    async with asyncio.timeout(30):
        await listener.ended.wait()
    assert isinstance(listener.fault, TimedOut)
    assert (listener.fault.executed, listener.fault.server) == (executed, SERVER)
    assert stage.link.withdrawn == [(inflight, "no answer within 0.001 s")]


@pytest.mark.parametrize(("has_left", "executed"), [(True, "unknown"), (False, "no")])
async def test_a_withdrawal_says_whether_the_tool_may_have_run_and_tells_the_server(
    *, has_left: bool, executed: str
) -> None:
    stage = Stage()
    stage.link.has_left = has_left
    inflight, listener = stage.start()
    inflight.cancel("by the caller")
    assert isinstance(listener.fault, Cancelled)
    assert (listener.fault.executed, listener.fault.server) == (executed, SERVER)
    assert stage.link.withdrawn == [(inflight, "by the caller")]


async def test_a_call_withdrawn_before_it_found_a_server_did_not_run() -> None:
    listener = Listener()
    inflight = InFlight(call(), listener, Notes(), asyncio.get_running_loop())
    inflight.cancel("at once")
    assert (listener.fault.executed, listener.fault.server) == ("no", None)


async def test_an_exchange_that_breaks_does_not_reach_the_link() -> None:
    class Broken(Listener):
        def end(self, outcome: Outcome) -> None:
            raise RuntimeError("a defect of a face")

    stage = Stage()
    inflight = stage.hub.start(call(), Broken())
    assert inflight.finish(DONE)
    assert stage.lane.running == 0


async def test_an_exchange_that_breaks_on_an_event_still_gets_its_answer() -> None:
    class Broken(Listener):
        def emit(self, event: Event) -> None:
            raise RuntimeError("a defect of a face")

    stage, listener = Stage(), Broken()
    inflight = stage.hub.start(call(), listener)
    inflight.emit(PROGRESS)
    assert inflight.finish(DONE)
    assert listener.ends == [DONE]


async def test_who_keeps_outcomes_is_given_the_one_that_counts() -> None:
    stage = Stage()
    inflight, _ = stage.start()
    kept: list[Outcome] = []
    inflight.keep = lambda _inflight, outcome: kept.append(outcome)
    inflight.finish(DONE)
    inflight.cancel("too late")
    assert kept == [DONE]


# -- questions -------------------------------------------------------------------------------------------------------

QUESTION = Question("roots/list", raw({}))
ANSWER = Answered(raw({"roots": []}))


def asked(stage: Stage, timeout: float = 3600.0) -> tuple[InFlight, Listener, list[Reply]]:
    """A call that was just asked something, and what its server was answered."""
    inflight, listener = stage.start(call(timeout=timeout))
    answers: list[Reply] = []
    inflight.ask(QUESTION, answers.append)
    return inflight, listener, answers


async def test_a_question_reaches_the_caller_and_its_answer_the_server_once() -> None:
    _, listener, answers = asked(Stage())
    ((question, reply),) = listener.asked
    reply(ANSWER)
    reply(Answered(raw("another")))
    assert (question, answers, listener.ends) == (QUESTION, [ANSWER], [])


async def test_while_the_caller_thinks_the_clock_of_the_call_stands_still() -> None:
    stage = Stage()
    inflight, listener, _ = asked(stage, timeout=0.001)
    _, other = stage.start(call(timeout=0.1))  # by when this one has expired, the other would have
    async with asyncio.timeout(30):
        await other.ended.wait()
    assert (inflight.outcome, listener.ends) == (None, [])
    listener.asked[0][1](ANSWER)
    async with asyncio.timeout(30):
        await listener.ended.wait()
    assert isinstance(listener.fault, TimedOut)


async def test_the_clock_stands_still_until_the_last_question_is_answered() -> None:
    stage = Stage()
    inflight, listener, answers = asked(stage, timeout=0.001)
    inflight.ask(QUESTION, answers.append)
    listener.asked[0][1](ANSWER)
    _, other = stage.start(call(timeout=0.1))
    async with asyncio.timeout(30):
        await other.ended.wait()
    assert listener.ends == []
    listener.asked[1][1](ANSWER)
    async with asyncio.timeout(30):
        await listener.ended.wait()
    assert isinstance(listener.fault, TimedOut)


async def test_a_question_that_nobody_answers_ends_the_call_and_the_server_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "QUESTION_SECONDS", 0.01)
    stage = Stage()
    inflight, listener, answers = asked(stage)
    async with asyncio.timeout(30):
        await listener.ended.wait()
    assert isinstance(listener.fault, Unanswered)
    assert listener.fault.message == "Server files asked something back: nobody answered within 0.01 s"
    assert (listener.fault.executed, listener.fault.server) == ("unknown", SERVER)
    assert stage.link.withdrawn == [(inflight, "nobody answered within 0.01 s")]
    assert stage.lane.running == 0
    listener.asked[0][1](ANSWER)
    assert (answers, len(listener.ends)) == ([ANSWER], 1)


async def test_a_call_that_is_over_asks_nobody() -> None:
    inflight, listener = Stage().start()
    inflight.finish(DONE)
    answers: list[Reply] = []
    inflight.ask(QUESTION, answers.append)
    assert (listener.asked, answers) == ([], [TOO_LATE])


async def test_only_so_many_questions_of_one_call_are_open_at_once() -> None:
    inflight, listener = Stage().start()
    answers: list[Reply] = []
    for _ in range(module.QUESTIONS_MAX + 1):
        inflight.ask(QUESTION, answers.append)
    assert (len(listener.asked), answers) == (module.QUESTIONS_MAX, [NOT_ASKED])
    listener.asked[0][1](ANSWER)
    inflight.ask(QUESTION, answers.append)
    assert (len(listener.asked), answers) == (module.QUESTIONS_MAX + 1, [NOT_ASKED, ANSWER])


async def test_an_exchange_that_breaks_on_a_question_declines_it_and_the_call_goes_on() -> None:
    class Broken(Listener):
        def ask(self, question: Question, reply: OnReply) -> None:
            raise RuntimeError("a defect of a face")

    stage, listener = Stage(), Broken()
    inflight = stage.hub.start(call(), listener)
    answers: list[Reply] = []
    inflight.ask(QUESTION, answers.append)
    assert (answers, inflight.open_questions) == ([TOO_LATE], 0)
    assert inflight.finish(DONE)
    assert listener.ends == [DONE]


async def test_whatever_comes_first_wins_while_a_question_is_open_too() -> None:
    for way in (InFlight.expire, lambda inflight: inflight.cancel("enough"), lambda inflight: inflight.finish(DONE)):
        stage = Stage()
        inflight, listener, answers = asked(stage)
        way(inflight)
        listener.asked[0][1](ANSWER)
        assert (len(listener.ends), answers, stage.lane.running) == (1, [ANSWER], 0)
        assert stage.hub.deadlines.everything() == []


async def test_a_caller_is_let_go_if_its_exchange_can_and_the_call_runs() -> None:
    class Leaving(Listener):
        def __init__(self) -> None:
            super().__init__()
            self.pauses: list[float] = []

        def pause(self, seconds: float) -> None:
            self.pauses.append(seconds)
            if seconds > 1:
                raise RuntimeError("a defect of a face")

    stage, leaving = Stage(), Leaving()
    inflight = stage.hub.start(call(), leaving)
    inflight.pause(1.0)
    inflight.pause(2.0)
    inflight.finish(DONE)
    inflight.pause(3.0)
    stage.start()[0].pause(4.0)
    assert (leaving.pauses, leaving.ends) == ([1.0, 2.0], [DONE])
