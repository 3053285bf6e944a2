"""The last calls: the way of each, from the times that its path has noted."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from isthmus.core.admin_ports import CaptureOrder, EndedCall
from isthmus.core.audit import Value
from isthmus.core.calls.running_call import STEPS_MAX, InFlight
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Progress
from isthmus.model.fault_table import Executed
from isthmus.model.names import ServerName
from isthmus.telemetry import activity as module
from isthmus.telemetry.activity import RecentCalls, steps_of
from isthmus.telemetry.call_metrics import CallMetrics
from tests.faults.watching import eventually
from tests.unit.core.doubles import DONE, SERVER, Listener, call

READER = Caller("ops", "default", Grants(("*",)), is_operator=True)


def remembered(notes: list[tuple[str, dict[str, Value]]] | None = None) -> RecentCalls:
    def note(event: str, **about: Value) -> None:
        if notes is not None:
            notes.append((event, about))

    return RecentCalls(CallMetrics(), note, lambda _, payload, length: bytes(payload).decode()[:length])


def begun(recorder: RecentCalls) -> InFlight:
    return InFlight(call(), Listener(), recorder, asyncio.get_running_loop())


def ended(seconds: float = 9.0, outcome: str = "result", executed: Executed = "yes") -> EndedCall:
    return EndedCall(
        1, 0.0, seconds, "me", "local", "mcp", "tool", "files.echo", ServerName("files"), outcome, executed, None
    )


@pytest.mark.parametrize(
    ("was_sent", "waited", "noted", "expected"),
    [
        (True, 0.0, None, "received 0, sent 0, first_byte 9, done 9"),
        (False, 0.0, None, "received 0, done 9"),
        (True, 2.0, [("queued", 0.5)], "received 0, queued 0.5, sent 2, first_byte 9, done 9"),
        (True, 0.0, [("checked", 1.0)], "received 0, checked 1, sent 1, first_byte 9, done 9"),
        (
            True,
            3.0,
            [("checked", 1.0), ("queued", 1.5), ("sent", 4.0), ("progress", 5.0), ("log", 6.0)],
            "received 0, checked 1, queued 1.5, assigned 3, sent 4, first_byte 5, progress 5, log 6, done 9",
        ),
        (
            True,
            0.0,
            [("question", 1.0), ("answer", 2.0), ("progress", 9.5)],
            "received 0, sent 0, first_byte 1, question 1, answer 2, done 9",
        ),
        (
            True,
            0.0,
            [("held", 1.0), ("decided", 7.0), ("checked", 7.5)],
            "received 0, held 1, decided 7, checked 7.5, sent 7.5, first_byte 9, done 9",
        ),
    ],
)
def test_the_way_of_a_call_is_in_the_order_of_time(
    was_sent: bool,  # noqa: FBT001 - a parameter of the test
    waited: float,
    noted: list[tuple[str, float]] | None,
    expected: str,
) -> None:
    steps = steps_of(ended(), noted, was_sent=was_sent, wait_seconds=waited)
    assert ", ".join(f"{each.step} {each.seconds:g}" for each in steps) == expected


def test_a_call_without_an_answer_has_no_first_byte() -> None:
    steps = steps_of(ended(outcome="timed_out", executed="unknown"), None, was_sent=True, wait_seconds=0.0)
    assert [each.step for each in steps] == ["received", "sent", "done"]


async def test_a_server_that_reports_without_end_fills_no_memory() -> None:
    recorder = remembered()
    inflight = begun(recorder)
    for _ in range(STEPS_MAX * 3):
        inflight.emit(Progress({}))
    recorder.call_ended(inflight, SERVER, DONE, 1.0)
    details = recorder.details(1, READER)
    assert details is not None
    assert details.is_cut
    assert len(details.steps) <= STEPS_MAX + 4


async def test_only_the_last_calls_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_CALLS", 3)
    recorder = remembered()
    for _ in range(5):
        recorder.call_ended(begun(recorder), SERVER, DONE, 1.0)
    found = [details and details.call.number for details in (recorder.details(n, READER) for n in range(-1, 8))]
    assert found == [None, None, None, None, 3, 4, 5, None, None]


async def test_captured_texts_are_deleted_some_time_after_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPTURE_SECONDS_MAX", 0.02)
    notes: list[tuple[str, dict[str, Value]]] = []
    recorder = remembered(notes)
    state = recorder.start_capture(CaptureOrder(READER, 600.0, server=SERVER))
    assert state.until - state.since == pytest.approx(0.02)
    recorder.call_ended(begun(recorder), SERVER, DONE, 1.0)
    recorder.call_ended(begun(recorder), None, DONE, 1.0)
    details = recorder.details(1, READER)
    assert details is not None
    assert details.arguments is not None
    assert details.arguments.text == bytes(call().arguments).decode()
    assert details.result is not None
    assert details.result.text == bytes(msgspec.Raw(DONE.payload)).decode()
    await eventually(lambda: recorder.capture_state() is None, "the texts are gone")
    details = recorder.details(1, READER)
    assert details is not None
    assert details.arguments is None
    assert [event for event, _ in notes] == ["capture.started", "capture.read", "capture.ended"]
    assert notes[0][1] == {"caller": "ops", "tenant": "default", "seconds": 0.02, "server": SERVER}
    assert notes[2][1] == {"why": "its time was over", "calls": 1}
