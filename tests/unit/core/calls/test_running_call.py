"""A call in flight ends exactly once, by the first outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations
from weakref import ref

import msgspec
import pytest

from isthmus.core.calls import running_call as module
from isthmus.core.calls.running_call import TICK_SECONDS, InFlight, OpenQuestion
from isthmus.core.settings import Limits
from isthmus.model.calls import GIVEN_UP, NOT_ASKED, TOO_LATE, Answered, Event, OnReply, Outcome, Question, Reply
from isthmus.model.fault_table import Cancelled, Lost, ServerError, TimedOut, Unanswered
from tests.unit.core.doubles import DONE, PROGRESS, SERVER, Listener, Notes, Stage, call, raw


async def test_a_call_ends_once_and_frees_its_slot() -> None:
    stage = Stage()
    inflight, listener = stage.start()
    assert stage.server_queue.running == 1
    assert inflight.finish(DONE)
    assert listener.ends == [DONE]
    assert stage.server_queue.running == 0
    assert stage.notes.ends == [("files.read", SERVER, DONE)]


async def test_a_late_answer_is_counted_and_dropped() -> None:
    stage = Stage()
    inflight, listener = stage.start()
    inflight.finish(DONE)
    assert not inflight.finish(Lost(SERVER, "too late", executed="unknown"))
    assert listener.ends == [DONE]
    assert stage.notes.lates == [SERVER]
    assert len(stage.notes.ends) == 1
    assert stage.server_queue.running == 0


async def test_the_first_outcome_wins_and_later_ones_change_nothing() -> None:
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
        assert stage.server_queue.running == 0


@pytest.mark.parametrize("way", [InFlight.expire, lambda inflight: inflight.cancel("enough")])
@pytest.mark.parametrize(("rounds", "executed"), [(0, "no"), (1, "unknown")])
async def test_a_call_that_asked_something_may_have_run_though_its_answers_are_not_sent_yet(
    way: Callable[[InFlight], object], rounds: int, executed: str
) -> None:
    stage = Stage()
    inflight, listener = stage.start()
    stage.link.has_left = False
    inflight.rounds = rounds
    way(inflight)
    assert listener.fault.executed == executed


@pytest.mark.parametrize(("rounds", "executed"), [(0, "no"), (1, "unknown")])
async def test_a_hub_that_says_no_knows_only_about_the_last_round(rounds: int, executed: str) -> None:
    inflight, listener = Stage().start()
    inflight.rounds = rounds
    fault = ServerError(SERVER, -32010, "not approved")
    fault.executed, fault.reason = "no", "approval_denied"
    inflight.fail(fault)
    assert (listener.fault.executed, listener.fault.reason) == (executed, "approval_denied")


async def test_a_late_answer_to_a_call_without_a_tool_is_dropped() -> None:
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
async def test_a_deadline_says_whether_the_tool_may_have_run_and_cancels_at_the_server(
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
async def test_a_cancellation_says_whether_the_tool_may_have_run_and_reaches_the_server(
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
            raise RuntimeError("a defect of a frontend")

    stage = Stage()
    inflight = stage.hub.start(call(), Broken())
    assert inflight.finish(DONE)
    assert stage.server_queue.running == 0


async def test_an_exchange_that_breaks_on_an_event_still_gets_its_answer() -> None:
    class Broken(Listener):
        def emit(self, event: Event) -> None:
            raise RuntimeError("a defect of a frontend")

    stage, listener = Stage(), Broken()
    inflight = stage.hub.start(call(), listener)
    inflight.emit(PROGRESS)
    assert inflight.finish(DONE)
    assert listener.ends == [DONE]


async def test_the_keeper_of_outcomes_gets_the_one_that_counts() -> None:
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


async def test_a_call_without_a_waiting_caller_may_take_as_long_as_any() -> None:
    stage = Stage(limits=Limits(call_seconds=0.05, hard_seconds=600.0))
    inflight, listener = stage.start()
    inflight.prolong()
    replies: list[Reply] = []
    inflight.ask(Question("roots/list", raw({})), replies.append)
    listener.asked[0][1](Answered(raw({})))
    assert (inflight.timeout, len(replies)) == (600.0, 1)
    assert not listener.ends
    (due,) = [tick * TICK_SECONDS for tick, bucket in stage.hub.deadlines._buckets.items() if inflight in bucket]
    assert due > asyncio.get_running_loop().time() + 500


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


async def test_an_unanswered_question_ends_the_call_and_the_server_learns_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "QUESTION_SECONDS", 0.01)
    stage = Stage()
    inflight, listener, answers = asked(stage)
    async with asyncio.timeout(30):
        await listener.ended.wait()
    assert isinstance(listener.fault, Unanswered)
    assert listener.fault.message == "Server files requested input: no answer within 0.01 s"
    assert (listener.fault.executed, listener.fault.server) == ("unknown", SERVER)
    assert stage.link.withdrawn == [(inflight, "no answer within 0.01 s")]
    assert stage.server_queue.running == 0
    listener.asked[0][1](ANSWER)
    assert (answers, len(listener.ends)) == ([GIVEN_UP], 1)


async def test_a_task_waits_for_an_answer_long_after_a_connected_caller_would_have_been_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "QUESTION_SECONDS", 0.01)
    stage = Stage()
    inflight, listener = stage.start(msgspec.structs.replace(call(timeout=3600.0), lasts=True))
    answers: list[Reply] = []
    inflight.ask(QUESTION, answers.append)
    _, connected, _ = asked(stage)
    async with asyncio.timeout(30):
        await connected.ended.wait()
    assert isinstance(connected.fault, Unanswered)
    assert listener.ends == []
    listener.asked[0][1](ANSWER)
    assert answers == [ANSWER]


async def test_a_finished_call_asks_nothing() -> None:
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


async def test_a_call_asks_only_so_much_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_MAX", 3)
    inflight, listener = Stage().start()
    answers: list[Reply] = []
    for _ in range(5):
        inflight.ask(QUESTION, answers.append)
        listener.asked[-1][1](ANSWER)
    assert (len(listener.asked), answers) == (3, [ANSWER, ANSWER, ANSWER, NOT_ASKED, NOT_ASKED])


async def test_progress_extends_the_deadline_and_its_timer_is_set_only_when_it_fires() -> None:
    stage = Stage(limits=Limits(call_seconds=0.4))
    # The silent call starts first, so its timer never fires after the other one's.
    _, silent = stage.start()
    inflight, listener = stage.start()
    (armed,) = buckets_of(stage, inflight)
    until = asyncio.get_running_loop().time() + 1.0
    async with asyncio.timeout(30):
        while asyncio.get_running_loop().time() < until:
            inflight.emit(PROGRESS)
            if not silent.ends:
                assert buckets_of(stage, inflight) == [armed]
            await asyncio.sleep(0.01)
        assert isinstance(silent.fault, TimedOut)
        assert (listener.ends, len(buckets_of(stage, inflight))) == ([], 1)
        await listener.ended.wait()
    assert isinstance(listener.fault, TimedOut)
    assert "did not answer within 0.4 s" in str(listener.fault)


async def test_a_server_that_reports_for_ever_ends_with_the_longest_that_any_call_may_take() -> None:
    _, listener = await reporting(Stage(limits=Limits(call_seconds=0.2, hard_seconds=0.3)).start())
    assert isinstance(listener.fault, TimedOut)
    assert "did not answer within 0.3 s" in str(listener.fault)


async def test_progress_does_not_extend_the_callers_timeout() -> None:
    _, listener = await reporting(Stage(limits=Limits(call_seconds=0.2)).start(call(timeout=0.3)))
    assert isinstance(listener.fault, TimedOut)
    assert "did not answer within 0.3 s" in str(listener.fault)


async def test_an_answered_question_is_a_sign_of_life() -> None:
    stage = Stage(limits=Limits(call_seconds=30.0))
    inflight, listener = stage.start()
    inflight._started -= 29.0
    inflight.ask(QUESTION, lambda _: None)
    listener.asked[0][1](ANSWER)
    (due,) = buckets_of(stage, inflight)
    assert due * TICK_SECONDS > asyncio.get_running_loop().time() + 25


def buckets_of(stage: Stage, inflight: InFlight) -> list[int]:
    """Where the wheel holds a call."""
    return [tick for tick, bucket in stage.hub.deadlines._buckets.items() if inflight in bucket]


async def reporting(started: tuple[InFlight, Listener]) -> tuple[InFlight, Listener]:
    """A server that reports progress until its call has ended."""
    inflight, listener = started
    async with asyncio.timeout(30):
        while not listener.ends:
            inflight.emit(PROGRESS)
            await asyncio.sleep(0.01)
    return started


async def ask_for_ever(inflight: InFlight, listener: Listener) -> None:
    """A server that asks again as soon as it is answered, and a caller that answers at once."""
    async with asyncio.timeout(60):
        while not listener.ends:
            inflight.ask(QUESTION, lambda _: None)
            await asyncio.sleep(0)
            listener.asked[-1][1](ANSWER)


async def test_a_server_that_asks_for_ever_is_cut_by_the_hard_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ASKED_MAX", 10**9)
    inflight, listener = Stage(limits=Limits(call_seconds=0.2, hard_seconds=0.3)).start()
    await ask_for_ever(inflight, listener)
    assert isinstance(listener.fault, TimedOut | Unanswered)


async def test_a_server_that_asked_too_much_runs_out_of_its_own_time() -> None:
    inflight, listener = Stage(limits=Limits(call_seconds=0.2)).start()
    await ask_for_ever(inflight, listener)
    assert isinstance(listener.fault, TimedOut)


async def test_thinking_has_an_end_with_the_longest_that_any_call_may_take() -> None:
    stage = Stage(limits=Limits(call_seconds=0.05, hard_seconds=0.05))
    _, listener, answers = asked(stage)
    async with asyncio.timeout(30):
        await listener.ended.wait()
    assert isinstance(listener.fault, Unanswered)
    assert "no answer within 0.05 s" in str(listener.fault)
    assert answers == [GIVEN_UP]


async def test_an_exchange_that_breaks_on_a_question_declines_it_and_the_call_goes_on() -> None:
    class Broken(Listener):
        def ask(self, question: Question, reply: OnReply) -> None:
            raise RuntimeError("a defect of a frontend")

    stage, listener = Stage(), Broken()
    inflight = stage.hub.start(call(), listener)
    answers: list[Reply] = []
    inflight.ask(QUESTION, answers.append)
    assert (answers, inflight.questions) == ([TOO_LATE], ())
    assert inflight.finish(DONE)
    assert listener.ends == [DONE]


async def test_the_first_outcome_wins_while_a_question_is_open() -> None:
    for way, received in (
        (InFlight.expire, GIVEN_UP),
        (lambda inflight: inflight.cancel("enough"), GIVEN_UP),
        (lambda inflight: inflight.finish(DONE), TOO_LATE),
    ):
        stage = Stage()
        inflight, listener, answers = asked(stage)
        way(inflight)
        listener.asked[0][1](ANSWER)
        assert (len(listener.ends), answers, stage.server_queue.running) == (1, [received], 0)
        assert stage.hub.deadlines.pending() == []


# -- retracted questions -----------------------------------------------------------------------------------------------


class Spared(Listener):
    """A caller that receives retractions of questions."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[object] = []
        """Retracted questions and the end, in order."""

    def retract(self, reply: OnReply) -> None:
        self.received.append(reply)

    def retract_later(self, reply: OnReply) -> Callable[[], None] | None:
        received = self.received
        return lambda: received.append(reply)

    def end(self, outcome: Outcome) -> None:
        super().end(outcome)
        self.received.append(outcome)


def spared(stage: Stage, timeout: float = 3600.0) -> tuple[InFlight, Spared]:
    listener = Spared()
    return stage.hub.start(call(timeout=timeout), listener), listener


async def test_a_retracted_question_gets_no_answer_and_the_clock_runs_again() -> None:
    inflight, listener = spared(Stage(), timeout=0.001)
    answers: list[Reply] = []
    question = inflight.ask(QUESTION, answers.append)
    assert question is not None
    question.retract()
    question.retract()
    listener.asked[0][1](ANSWER)
    assert (listener.received, answers, question.is_open) == ([question], [], False)
    async with asyncio.timeout(30):
        await listener.ended.wait()
    assert isinstance(listener.fault, TimedOut)


async def test_a_question_that_was_answered_cannot_be_taken_back() -> None:
    inflight, listener = spared(Stage())
    answers: list[Reply] = []
    question = inflight.ask(QUESTION, answers.append)
    listener.asked[0][1](ANSWER)
    assert question is not None
    question.retract()
    assert (listener.received, answers) == ([], [ANSWER])


async def test_a_caller_that_is_never_asked_has_nothing_to_take_back() -> None:
    class Prompt(Listener):
        def ask(self, question: Question, reply: OnReply) -> None:
            reply(ANSWER)

    inflight, answers = Stage().hub.start(call(), Prompt()), list[Reply]()
    assert inflight.ask(QUESTION, answers.append) is None
    assert answers == [ANSWER]


@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize(
    "way",
    [InFlight.expire, lambda inflight: inflight.cancel("enough"), lambda i: i.finish(Lost(SERVER, "x", executed="no"))],
)
async def test_a_call_that_fails_retracts_its_questions_before_it_ends(
    way: Callable[[InFlight], object], *, lasts: bool
) -> None:
    inflight, listener = spared(Stage())
    answers: list[Reply] = []
    questions = [inflight.ask(QUESTION, answers.append, lasts=lasts) for _ in range(2)]
    way(inflight)
    assert listener.received == [*questions, *listener.ends]
    listener.asked[0][1](ANSWER)
    assert answers == [GIVEN_UP, GIVEN_UP]


async def test_a_call_that_was_answered_takes_along_only_the_questions_that_are_surely_its_own() -> None:
    inflight, listener = spared(Stage())
    answers: list[Reply] = []
    own, other = [inflight.ask(QUESTION, answers.append, lasts=lasts) for lasts in (False, True)]
    inflight.finish(DONE)
    assert (listener.received, answers) == ([own, DONE], [TOO_LATE])
    listener.asked[1][1](ANSWER)
    assert answers == [TOO_LATE, ANSWER]
    assert other is not None
    other.retract()
    assert listener.received == [own, DONE]


async def test_a_question_that_outlived_its_call_can_still_be_taken_back() -> None:
    inflight, listener = spared(Stage())
    answers: list[Reply] = []
    question = inflight.ask(QUESTION, answers.append, lasts=True)
    inflight.finish(DONE)
    assert question is not None
    question.retract()
    assert (listener.received, answers) == ([DONE, question], [])


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_question_that_outlived_its_call_keeps_nothing_of_it(*, is_alone: bool) -> None:
    stage = Stage()
    inflight, listener = spared(stage)
    others = () if is_alone else (spared(stage)[0],)
    question = inflight.ask(QUESTION, list[Reply]().append, others, lasts=True)
    inflight.finish(DONE)
    kept = ref(inflight), ref(listener)
    stage.link.sent.clear()
    del inflight, listener
    assert question is not None
    assert question.is_open
    assert [each() for each in kept] == [None, None]


async def test_a_question_that_may_be_about_several_calls_ends_with_the_last() -> None:
    stage = Stage()
    (one, first), (two, second), (three, third) = [spared(stage) for _ in range(3)]
    answers: list[Reply] = []
    question = three.ask(QUESTION, answers.append, (one, two))
    for inflight in (three, one):
        inflight.finish(DONE)
    assert (first.received, second.received, third.received, answers) == ([DONE], [], [DONE], [])
    assert two.questions == (question,)
    two.cancel("enough")
    assert (third.received, answers) == ([DONE, question], [GIVEN_UP])
    assert [inflight.questions for inflight in (one, two, three)] == [()] * 3


async def test_questions_that_end_one_another_end_once() -> None:
    inflight, listener = spared(Stage())
    questions: list[OpenQuestion | None] = []
    answers: list[Reply] = []

    def break_off(answer: Reply) -> None:  # as a link that is lost while it is told of the first
        answers.append(answer)
        assert questions[1] is not None
        questions[1].retract()

    questions += inflight.ask(QUESTION, break_off), inflight.ask(QUESTION, answers.append)
    inflight.finish(DONE)
    assert (listener.received, answers) == ([*questions, DONE], [TOO_LATE])


async def test_an_exchange_that_breaks_at_a_retraction_affects_no_other() -> None:
    class Broken(Spared):
        def retract(self, reply: OnReply) -> None:
            raise RuntimeError("a defect of a frontend")

        def retract_later(self, reply: OnReply) -> None:
            raise RuntimeError("another")

    stage, listener = Stage(), Broken()
    inflight = stage.hub.start(call(), listener)
    answers: list[Reply] = []
    inflight.ask(QUESTION, answers.append)
    lasting = inflight.ask(QUESTION, answers.append, lasts=True)
    inflight.finish(DONE)
    assert (listener.ends, answers) == ([DONE], [TOO_LATE])
    assert lasting is not None
    lasting.retract()
    assert not lasting.is_open


async def test_an_exchange_that_breaks_at_a_later_retraction_affects_no_other() -> None:
    class Broken(Spared):
        def retract_later(self, reply: OnReply) -> Callable[[], None]:
            def tell() -> None:
                raise RuntimeError("a defect of a frontend")

            return tell

    stage = Stage()
    inflight = stage.hub.start(call(), Broken())
    (other, listener), answers = spared(stage), list[Reply]()
    inflight.ask(QUESTION, answers.append, (other,))
    inflight.finish(DONE)
    other.finish(DONE)
    assert (listener.ends, answers) == ([DONE], [TOO_LATE])


async def test_for_a_caller_without_notifications_a_question_is_retracted_silently() -> None:
    inflight, listener = Stage().start()
    question = inflight.ask(QUESTION, (answers := list[Reply]()).append, lasts=True)
    inflight.finish(DONE)
    assert question is not None
    question.retract()
    assert (listener.ends, answers) == ([DONE], [])


async def test_a_caller_without_notifications_gets_none() -> None:
    inflight, listener, answers = asked(Stage())
    inflight.finish(DONE)
    assert (listener.ends, answers) == ([DONE], [TOO_LATE])


async def test_a_caller_is_let_go_if_its_exchange_can_and_the_call_runs() -> None:
    class Leaving(Listener):
        def __init__(self) -> None:
            super().__init__()
            self.pauses: list[float] = []

        def pause(self, seconds: float) -> None:
            self.pauses.append(seconds)
            if seconds > 1:
                raise RuntimeError("a defect of a frontend")

    stage, leaving = Stage(), Leaving()
    inflight = stage.hub.start(call(), leaving)
    inflight.pause(1.0)
    inflight.pause(2.0)
    inflight.finish(DONE)
    inflight.pause(3.0)
    stage.start()[0].pause(4.0)
    assert (leaving.pauses, leaving.ends) == ([1.0, 2.0], [DONE])
