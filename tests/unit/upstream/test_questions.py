"""Users that a question sent to another page: their caller alone is notified, once, when they are done there."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import msgspec
import pytest

from isthmus.core.calls.running_call import InFlight
from isthmus.upstream import questions as module
from isthmus.upstream.questions import UrlElicitations
from tests.unit.core.doubles import DONE, Listener, Stage, call, raw


class Sent(Listener):
    """A caller that can be notified, while its call runs and later."""

    def __init__(self, received: list[str], *, is_reached: bool = True) -> None:
        super().__init__()
        self._told = received
        self._is_reached = is_reached

    def elicitation_completed(self, id: msgspec.Raw) -> None:
        self._told.append(f"now {bytes(id).decode()}")

    def done_later(self) -> Callable[[msgspec.Raw], None] | None:
        received = self._told
        return (lambda id: received.append(f"later {bytes(id).decode()}")) if self._is_reached else None


def started(exchange: Listener) -> InFlight:
    return Stage().hub.start(call(), exchange)


async def test_a_caller_is_notified_once_while_its_call_runs() -> None:
    received, elsewhere = list[str](), UrlElicitations()
    inflight = started(Sent(received))
    elsewhere.add(raw("e1"), inflight)
    for id in ("e2", "e1", "e1"):
        elsewhere.completed(raw(id))
    assert received == ['now "e1"']


@pytest.mark.parametrize(("is_reached", "notified"), [(True, ['later "e1"']), (False, [])])
async def test_after_its_call_a_caller_is_notified_beside_its_calls(*, is_reached: bool, notified: list[str]) -> None:
    received, elsewhere = list[str](), UrlElicitations()
    inflight = started(Sent(received, is_reached=is_reached))
    elsewhere.add(raw("e1"), inflight)
    inflight.finish(DONE)
    elsewhere.completed(raw("e1"))
    assert received == notified


async def test_a_call_that_is_over_is_not_kept() -> None:
    received, elsewhere = list[str](), UrlElicitations()
    inflight = started(Sent(received))
    elsewhere.add(raw("e1"), inflight)
    inflight.finish(DONE)
    seen = weakref.ref(inflight)
    del inflight
    gc.collect()
    assert seen() is None
    elsewhere.completed(raw("e1"))
    assert received == ['later "e1"']


async def test_a_caller_without_notifications_gets_none() -> None:
    elsewhere = UrlElicitations()
    inflight = started(listener := Listener())
    elsewhere.add(raw("e1"), inflight)
    elsewhere.completed(raw("e1"))
    assert listener.events == []


async def test_an_exchange_that_breaks_affects_no_other() -> None:
    class Broken(Sent):
        def elicitation_completed(self, id: msgspec.Raw) -> None:
            raise RuntimeError("a defect of a frontend")

    elsewhere = UrlElicitations()
    inflight = started(Broken([]))
    elsewhere.add(raw("e1"), inflight)
    elsewhere.completed(raw("e1"))
    assert inflight.outcome is None


async def test_only_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ELICITATIONS_MAX", 2)
    received, elsewhere = list[str](), UrlElicitations()
    inflight = started(Sent(received))
    for id in ("x" * module.ELICITATION_ID_LENGTH_MAX, "e1", "e2", "e3"):
        elsewhere.add(raw(id), inflight)
    for id in ("x" * module.ELICITATION_ID_LENGTH_MAX, "e1", "e2", "e3"):
        elsewhere.completed(raw(id))
    assert received == ['now "e2"', 'now "e3"']
