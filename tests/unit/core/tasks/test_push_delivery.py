"""The payload of a push, and the outcome of an attempt."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from isthmus.core.ports import PushReceipt
from isthmus.core.tasks import push_delivery as pushes
from isthmus.core.tasks.push_delivery import (
    ATTEMPTS_MAX,
    ENDED_BYTES_MAX,
    FIRST_PAUSE_SECONDS,
    PAUSE_GROWTH,
    REASON_LENGTH_MAX,
    RETRY_AFTER_SECONDS_MAX,
    Delivery,
    attempt_of,
    deliveries_of,
    delivery_document,
    delivery_id,
    delivery_of,
    host_of,
    is_delivered,
    is_hopeless,
    pause_after,
)
from isthmus.core.tasks.record import PushRecipient, StoredOutcome, TaskOwner, TaskRecord, read_record

ANN = PushRecipient("ann", "https://ann.example/hook?key=1", "1.0", "a-token", "Bearer", "a-credential")
BOB = PushRecipient("bob", "https://bob.example", "0.3")
RECORD = TaskRecord(
    "t", TaskOwner("default", "me"), "talk", "1.0", "working", 1.0, 2.0, version=3, recipients=(ANN, BOB)
)


def test_each_recipient_has_a_delivery_of_its_own_for_each_change() -> None:
    documents = deliveries_of(RECORD)
    assert [(each.kind, each.owner, each.group, each.state, each.version) for each in documents] == [
        ("delivery", "default\nme", "t", "due", 1)
    ] * 2
    assert [delivery_of(each).recipient for each in documents] == ["ann", "bob"]
    assert [delivery_of(each).host for each in documents] == ["ann.example", "bob.example"]
    later = deliveries_of(msgspec.structs.replace(RECORD, version=4))
    assert len({each.id for each in (*documents, *later)}) == 4


def test_a_task_without_recipients_has_no_deliveries() -> None:
    assert deliveries_of(msgspec.structs.replace(RECORD, recipients=())) == ()


def test_a_due_delivery_has_the_tasks_state_and_no_secret() -> None:
    document = deliveries_of(RECORD)[0]
    assert read_record(delivery_of(document).record) == msgspec.structs.replace(RECORD, recipients=())
    for secret in (b"a-token", b"a-credential", b"key=1"):
        assert secret not in (document.body or b"")


def test_a_large_end_is_not_written_twice() -> None:
    ended = msgspec.structs.replace(RECORD, state="completed")
    assert read_record(delivery_of(deliveries_of(ended)[0]).record).state == "completed"
    large = msgspec.structs.replace(ended, ending=StoredOutcome(message="x" * ENDED_BYTES_MAX))
    assert not delivery_of(deliveries_of(large)[0]).record
    unfinished = msgspec.structs.replace(large, state="working")
    assert read_record(delivery_of(deliveries_of(unfinished)[0]).record).state == "working"


@given(some.lists(some.tuples(some.text(), some.text(), some.integers(1, 9)), unique=True))
def test_no_two_deliveries_are_kept_under_the_same_id(names: list[tuple[str, str, int]]) -> None:
    assert len({delivery_id(*each) for each in names}) == len(names)


@pytest.mark.parametrize(
    ("url", "host"),
    [("https://A.example:8/x", "a.example:8"), ("http://b?x=/y", "b"), ("http://[::1]:9/", "[::1]:9"), ("odd", "")],
)
def test_a_destination_is_shown_without_the_rest_of_its_address(url: str, host: str) -> None:
    assert host_of(url) == host


def test_of_a_delivery_that_is_over_only_how_it_went_is_kept() -> None:
    document = deliveries_of(RECORD)[0]
    delivery = msgspec.structs.replace(delivery_of(document), attempts=(attempt_of(PushReceipt(503), 5.0),), next=9.0)
    again, done = delivery_document(document, delivery, "due"), delivery_document(document, delivery, "delivered")
    assert (again.version, again.state, delivery_of(again)) == (2, "due", delivery)
    assert (done.version, done.state, done.at) == (2, "delivered", document.at)
    assert delivery_of(done) == msgspec.structs.replace(delivery, record=msgspec.Raw(), next=0.0)


# -- what comes of an attempt ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("receipt", "is_done"),
    [
        (PushReceipt(None, "connection refused"), False),
        (PushReceipt(500), False),
        (PushReceipt(503), False),
        (PushReceipt(408), False),
        (PushReceipt(425), False),
        (PushReceipt(429), False),
        (PushReceipt(302), True),
        (PushReceipt(400), True),
        (PushReceipt(404), True),
        (PushReceipt(410), True),
        (PushReceipt(None, "private", is_refused=True), True),
    ],
)
def test_a_permanent_failure_is_not_retried(receipt: PushReceipt, *, is_done: bool) -> None:
    assert not is_delivered(receipt)
    assert is_hopeless(receipt, 1) is is_done
    assert is_hopeless(receipt, ATTEMPTS_MAX)


@pytest.mark.parametrize("status", [200, 202, 204])
def test_any_word_of_success_is_one(status: int) -> None:
    assert is_delivered(PushReceipt(status))


@given(some.integers(1, ATTEMPTS_MAX), some.floats(0.0, 1.0, exclude_max=True))
def test_pauses_grow_by_chance_up_to_a_bound(attempts: int, chance: float) -> None:
    pause = pause_after(PushReceipt(503), attempts, chance)
    assert 0.0 <= pause <= FIRST_PAUSE_SECONDS * PAUSE_GROWTH ** (attempts - 1)


@pytest.mark.parametrize(("wanted", "pause"), [(None, 0.0), (7.0, 7.0), (1e9, RETRY_AFTER_SECONDS_MAX)])
def test_a_retry_after_of_a_recipient_is_honoured_within_reason(wanted: float | None, pause: float) -> None:
    assert pause_after(PushReceipt(429, retry_after=wanted), 1, 0.0) == pause


def test_the_pauses_between_attempts_match_the_documentation() -> None:
    pauses = [pause_after(PushReceipt(503), attempts, 1.0) for attempts in range(1, ATTEMPTS_MAX)]
    assert 600 < sum(pauses) < 1_000


def test_the_record_of_an_attempt_is_short() -> None:
    attempt = attempt_of(PushReceipt(None, "x" * 10_000), 5.0)
    assert (attempt.at, attempt.status, len(attempt.reason)) == (5.0, None, REASON_LENGTH_MAX)


def test_every_state_is_one_that_is_taken_away_in_time() -> None:
    assert set(pushes.STATES) == {"due", "delivered", "failed", "dropped"}
    assert Delivery("t", "r", 1, "h").delivered == 0
