"""An earlier caller is asked by requests: every answer finds its question, and nothing waits for ever."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.core.calls.running_call import InFlight
from isthmus.frontends.mcp import input_required
from isthmus.frontends.mcp.input_required import CROWDED, GONE, NO_ANSWER, LegacyClientInput
from isthmus.frontends.mcp.tasks import public_id
from isthmus.model.calls import Answered, Declined, Event, OnReply, Outcome, Question, Reply, Result
from isthmus.wire.jsonrpc import ErrorReply, Response
from tests.unit.core.doubles import ANYONE, DONE, SERVER, call, raw

FORM = Question("elicitation/create", raw({"message": "who?"}))


class Stream:
    """The stream of a call, as its caller reads it."""

    def __init__(self) -> None:
        self.call = call()
        self.inflight: InFlight | None = None
        self.read: list[Any] = []
        self.settled: list[bytes] = []

    def emit(self, event: Event) -> None:
        raise AssertionError(event)

    def ask(self, question: Question, reply: OnReply) -> None:
        raise AssertionError(question)

    def end(self, outcome: Outcome) -> None:
        raise AssertionError(outcome)

    def send(self, message: bytes) -> None:
        self.read.append(json.loads(message))

    def send_request(self, id: bytes, message: bytes) -> None:
        self.send(message)
        assert self.read[-1]["id"] == json.loads(id)

    def settle_request(self, id: bytes) -> None:
        self.settled.append(id)


class Seat:
    """A caller, what it was asked, and what it answered."""

    def __init__(self) -> None:
        self.asked = LegacyClientInput()
        self.stream = Stream()
        self.answers: list[Reply] = []

    def ask(self, question: Question = FORM) -> msgspec.Raw:
        """Ask; returns the id of the request."""
        self.asked.ask(self.stream, question, self.answers.append)
        return raw(self.stream.read[-1]["id"])


@pytest.fixture
def seat() -> Seat:
    return Seat()


def test_a_question_is_a_request_on_the_stream_of_its_call(seat: Seat) -> None:
    id = seat.ask()
    assert seat.stream.read == [
        {"jsonrpc": "2.0", "id": json.loads(bytes(id)), "method": "elicitation/create", "params": {"message": "who?"}}
    ]


def test_an_answer_is_taken_once(seat: Seat) -> None:
    id = seat.ask()
    assert seat.asked.receive(Response(id, raw({"action": "accept"})))
    assert not seat.asked.receive(Response(id, raw({"action": "decline"})))
    (answer,) = seat.answers
    assert isinstance(answer, Answered)
    assert bytes(answer.result) == b'{"action": "accept"}'


@pytest.mark.parametrize("text", [b"5", b"null", b"[]", b'"accept"'])
def test_an_invalid_answer_does_not_reach_the_server(seat: Seat, text: bytes) -> None:
    assert seat.asked.receive(Response(seat.ask(), msgspec.Raw(text)))
    assert seat.answers == [NO_ANSWER]


def test_a_refusal_reaches_the_server_unchanged(seat: Seat) -> None:
    assert seat.asked.receive(ErrorReply(seat.ask(), -1, "User rejected", None))
    assert seat.answers == [Declined(-1, "User rejected")]


def test_answers_in_any_order_find_their_questions(seat: Seat) -> None:
    received: dict[int, list[Reply]] = {number: [] for number in range(100)}
    for answers in received.values():
        seat.asked.ask(seat.stream, FORM, answers.append)
    for number, request in reversed(list(enumerate(seat.stream.read))):
        assert seat.asked.receive(Response(raw(request["id"]), raw({"number": number})))
    for number, (answer,) in received.items():
        assert isinstance(answer, Answered)
        assert json.loads(bytes(answer.result)) == {"number": number}


@pytest.mark.parametrize("id", [b"1", b'"isthmus-2"', b'"isthmus-01"', b"null", b'"Isthmus-1"'])
def test_an_answer_without_a_question_is_dropped(seat: Seat, id: bytes) -> None:
    seat.ask()
    assert not seat.asked.receive(Response(msgspec.Raw(id), raw({})))
    assert not seat.asked.receive(ErrorReply(msgspec.Raw(id), -1, "no", None))
    assert seat.answers == []


def test_an_error_without_an_id_is_dropped(seat: Seat) -> None:
    seat.ask()
    assert not seat.asked.receive(ErrorReply(None, -1, "no", None))
    assert seat.answers == []


def test_one_caller_cannot_answer_for_another(seat: Seat) -> None:
    other = Seat()
    other.ask()
    theirs = seat.ask()
    assert other.asked.receive(Response(theirs, raw({})))  # its own question of the same number
    assert (seat.answers, len(other.answers)) == ([], 1)


def test_a_caller_that_never_answers_loses_the_oldest_question_to_a_new_one(
    seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_required, "OPEN_MAX", 3)
    first, *others = [seat.ask() for _ in range(4)]
    assert seat.answers == [CROWDED]
    assert not seat.asked.receive(Response(first, raw({})))
    assert all(seat.asked.receive(Response(id, raw({}))) for id in others)


def test_a_retracted_question_is_cancelled_at_the_caller_and_an_answer_to_it_is_dropped(seat: Seat) -> None:
    first, second = seat.ask(), list[Reply]()
    seat.asked.ask(seat.stream, FORM, reply := second.append)
    id = seat.stream.read[-1]["id"]
    for _ in range(2):
        seat.asked.retract(seat.stream, reply)
    assert seat.stream.read[2:] == [
        {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "the answer is no longer needed"},
        }
    ]
    assert not seat.asked.receive(Response(raw(id), raw({})))
    assert seat.asked.receive(Response(first, raw({})))
    assert (len(seat.answers), second) == (1, [])


def test_a_question_that_was_answered_outlives_nothing(seat: Seat) -> None:
    seat.asked.ask(seat.stream, FORM, reply := seat.answers.append)
    seat.asked.receive(Response(raw(seat.stream.read[-1]["id"]), raw({})))
    assert seat.asked.outlive(reply, seat.stream.send) is None


def test_a_question_that_outlives_its_call_can_be_closed_silently(seat: Seat) -> None:
    seat.asked.ask(seat.stream, FORM, reply := seat.answers.append)
    take_back = seat.asked.outlive(reply, None)
    assert take_back is not None
    take_back()
    assert not seat.asked.receive(Response(raw(seat.stream.read[-1]["id"]), raw({})))
    assert (len(seat.stream.read), seat.stream.settled, seat.answers) == (1, [], [])


def test_a_finished_question_need_not_be_sent_again(seat: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_required, "OPEN_MAX", 2)
    seat.asked.receive(Response(seat.ask(), raw({})))
    seat.asked.receive(ErrorReply(seat.ask(), -1, "no", None))
    seat.asked.ask(seat.stream, FORM, reply := list[Reply]().append)
    seat.asked.retract(seat.stream, reply)
    for _ in range(3):
        seat.ask()
    assert seat.stream.settled == [b'"isthmus-%d"' % number for number in (1, 2, 3, 4)]


def test_when_the_caller_leaves_its_questions_end(seat: Seat) -> None:
    ids = [seat.ask(), seat.ask()]
    seat.asked.close()
    seat.asked.close()
    assert seat.answers == [GONE, GONE]
    assert not any(seat.asked.receive(Response(id, raw({}))) for id in ids)


def test_there_is_nothing_to_seal_for_an_earlier_caller(seat: Seat) -> None:
    assert isinstance(DONE, Result)
    assert seat.asked.seal(call(), DONE) is DONE


def test_questions_of_a_task_use_each_ends_own_task_id(seat: Seat) -> None:
    meta = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
    id = seat.ask(Question("elicitation/create", raw({"message": "?", "_meta": meta}), SERVER))
    asked = seat.stream.read[-1]["params"]["_meta"]
    assert asked == {"io.modelcontextprotocol/related-task": {"taskId": public_id(ANYONE, SERVER, "t")}}
    seat.asked.receive(Response(id, raw({"action": "accept", "_meta": asked})))
    (answer,) = seat.answers
    assert isinstance(answer, Answered)
    assert json.loads(bytes(answer.result)) == {"action": "accept", "_meta": meta}
