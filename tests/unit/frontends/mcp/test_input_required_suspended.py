"""Suspended calls are bounded in number and bytes, and release both when they end."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.frontends.mcp import input_required as module
from isthmus.frontends.mcp.input_required import LARGE, SuspendedCall, SuspendedCalls, owner_of
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import TOO_LATE, Answered, Outcome, Question, Reply, Result
from isthmus.model.fault_table import BadReply, ServerError, TimedOut
from tests.unit.core.doubles import ANYONE, DONE, PROGRESS, SERVER, Stage, call, raw

OTHER = Caller("other", "default", Grants(("*",)))
QUESTION = Question("elicitation/create", raw({"message": "x" * 80}))
SIZE = len(memoryview(QUESTION.params))


class Place:
    """A lot, and calls that are parked on it."""

    def __init__(self) -> None:
        self.lot = SuspendedCalls()
        self.answers: list[Reply] = []

    def park(self, caller: Caller = ANYONE, number: str | None = "1") -> SuspendedCall:
        """A parked call whose caller was let go, unless it has no number."""
        inflight, _ = Stage().start(call(caller=caller))
        parked = self.lot.suspend(inflight)
        assert parked is not None
        parked.number = number
        return parked

    def ask(self, parked: SuspendedCall) -> None:
        parked.ask(QUESTION, self.answers.append)

    @property
    def kept(self) -> tuple[int, dict[tuple[str, str], int]]:
        """Bytes, in all and of each caller."""
        return self.lot._size_bytes, self.lot._bytes


async def test_one_calls_questions_are_bounded_and_each_that_ends_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUESTIONS_BYTES_MAX", 2 * SIZE)
    place = Place()
    parked = place.park()
    for _ in range(3):
        place.ask(parked)
    assert (list(parked.questions), place.answers) == (["q1", "q2"], [LARGE])
    parked.answer("q1", raw({"action": "decline"}))
    place.ask(parked)
    assert list(parked.questions) == ["q2", "q3"]
    parked.retract(parked.questions["q2"][1])
    assert (list(parked.questions), place.kept[0], parked.size_bytes) == (["q3"], SIZE, SIZE)


async def test_suspended_bytes_of_one_caller_are_bounded_and_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STORED_EACH_BYTES_MAX", 2 * SIZE)
    place = Place()
    for caller in (ANYONE, ANYONE, ANYONE, OTHER):
        place.ask(place.park(caller))
    assert place.answers == [LARGE]
    assert place.kept == (3 * SIZE, {owner_of(call()): 2 * SIZE, owner_of(call(caller=OTHER)): SIZE})


async def test_suspended_bytes_are_bounded_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORED_BYTES_MAX", 2 * SIZE)
    place = Place()
    parked = [place.park(caller) for caller in (ANYONE, OTHER, ANYONE)]
    for each in parked:
        place.ask(each)
    assert place.answers == [LARGE]
    place.lot.remove(parked[0])
    assert place.answers == [LARGE, TOO_LATE]
    place.ask(parked[2])
    assert len(place.answers) == 2


async def test_a_removed_call_releases_its_bytes() -> None:
    place = Place()
    parked = place.park()
    place.ask(parked)
    parked.end(DONE)
    assert place.kept[0] == SIZE + len(memoryview(DONE.payload))
    for _ in range(2):
        place.lot.remove(parked)
    assert (place.kept, len(place.lot), place.lot._counts, place.answers) == ((0, {}), 0, {}, [TOO_LATE])


def size_of(outcome: Outcome) -> int:
    return len(memoryview(outcome.payload)) if isinstance(outcome, Result) else len(outcome.message)


@pytest.mark.parametrize(
    "outcome",
    [DONE, TimedOut(SERVER, 30.0, executed="unknown"), ServerError(SERVER, -1, "no")],
    ids=lambda outcome: type(outcome).__name__,
)
async def test_an_outcome_is_stored_if_there_is_room_and_else_an_error(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place()
    monkeypatch.setattr(module, "STORED_EACH_BYTES_MAX", size_of(outcome))
    first, second = place.park(), place.park()
    first.end(outcome)
    second.end(outcome)
    assert first.outcome == outcome
    assert isinstance(second.outcome, BadReply)
    assert (second.outcome.executed, second.outcome.server) == ("unknown", SERVER)
    assert str(size_of(outcome)) in second.outcome.message


async def test_the_error_of_a_server_is_kept_with_its_data() -> None:
    place = Place()
    parked = place.park()
    parked.end(ServerError(SERVER, -7, "no", raw({"a": 1})))
    kept = parked.outcome
    assert isinstance(kept, ServerError)
    assert (kept.code, kept.message, kept.server, kept.executed) == (-7, "no", SERVER, "yes")
    assert kept.data is not None
    assert (bytes(kept.data), place.kept[0]) == (bytes(raw({"a": 1})), 2 + len(bytes(raw({"a": 1}))))


async def test_an_outcome_that_is_sent_at_once_needs_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORED_EACH_BYTES_MAX", 0)
    place, ends = Place(), list[Outcome | None]()
    parked = place.park(number=None)
    parked.on_end = lambda: ends.append(parked.outcome)
    parked.end(DONE)
    assert (ends, parked.inflight) == ([DONE], None)


async def test_an_invalid_answer_leaves_the_question_open() -> None:
    place = Place()
    parked = place.park()
    place.ask(parked)
    for text in (b"5", b"null", b"[]", b'"accept"'):
        parked.answer("q1", msgspec.Raw(text))
    parked.answer("q2", raw({}))
    assert place.answers == []
    parked.answer("q1", raw({}))
    assert [type(answer) for answer in place.answers] == [Answered]


async def test_events_in_the_meantime_are_dropped() -> None:
    parked = Place().park()
    parked.emit(PROGRESS)
    assert (parked.questions, parked.outcome) == ({}, None)


async def test_calls_are_found_by_their_ids_and_can_go_while_they_are_looked_through() -> None:
    place = Place()
    parked = [place.park() for _ in range(3)]
    assert [place.lot.find(each.id) for each in parked] == parked
    for each in place.lot:
        place.lot.remove(each)
    assert [place.lot.find(each.id) for each in parked] == [None] * 3
