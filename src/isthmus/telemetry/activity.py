"""The last calls of a hub: a list, a feed of new ones, the way of each, and on request arguments and results.

REST shows them to operators; `app.hub` creates the recorder. What a call leaves here is a few names and the times that
its path takes anyway. Arguments and results are captured only while an operator wants that, and never written to disk.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
import structlog

from isthmus.core.admin_ports import CallDetails, CallStep, CapturedText, CaptureOrder, CaptureState, EndedCall
from isthmus.core.audit import Value
from isthmus.core.calls.running_call import STEPS_MAX, InFlight
from isthmus.core.ports import Recorder, StrictAudit
from isthmus.model.callers import Caller
from isthmus.model.calls import Kind, Outcome, Result, Surface
from isthmus.model.fault_table import Executed, Fault
from isthmus.model.names import ServerName

log = structlog.get_logger(__name__)

KEPT_CALLS = 500
"""How many calls are remembered: names, times and a sentence each; about 300 KB."""

FEED_SECONDS = 0.1
"""New calls reach a feed this often, however many there are."""

CAPTURED_CALLS = 200
"""A capture ends after so many calls."""

CAPTURED_LENGTH = 4_096
"""Characters that are kept of arguments, and of a result."""

CAPTURE_SECONDS_MAX = 600.0
"""How long a capture lasts at most, and how long after its end its texts are deleted."""

Feed: TypeAlias = Callable[[Sequence[EndedCall]], None]

Shorten: TypeAlias = Callable[[InFlight, msgspec.Raw, int], str]
"""At most so many characters of a call's arguments or result, without secrets."""


class Note(Protocol):
    """Writes an event to the audit log."""

    def __call__(self, event: str, **about: Value) -> None:
        """Write it."""


class RecentCalls:
    """A recorder that remembers the last calls, and forwards each call to another recorder."""

    strict_audit: StrictAudit | None = None

    def __init__(self, recorder: Recorder, note: Note, shorten: Shorten) -> None:
        self._recorder = recorder
        self.started = recorder.started
        self.waited = recorder.waited
        self.late = recorder.late
        self._note = note
        self._shorten = shorten
        self._count = 0
        self._calls: deque[_CompactCall] = deque(maxlen=KEPT_CALLS)
        self._feeds: list[Feed] = []
        self._fed = 0
        """The number of the last call that the feeds have."""
        self._timer: asyncio.TimerHandle | None = None
        self._capture: _Capture | None = None
        """The capture that is on, or the last one while its texts are kept."""
        self._is_capturing = False
        self._capture_timer: asyncio.TimerHandle | None = None

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Remember and forward the end of a call."""
        self._recorder.call_ended(inflight, server, outcome, seconds)
        self._count += 1
        call = inflight.call
        self._calls.append(
            (
                time.time(),
                seconds,
                call.caller,
                call.frontend,
                call.kind,
                call.name,
                call.surface,
                server,
                outcome.is_error
                if isinstance(outcome, Result)
                else (outcome.server, outcome.reason, outcome.executed, outcome.message, outcome.is_denied),
                inflight.link is not None and not inflight.is_unreached,
                inflight.wait_seconds,
                inflight.steps,
                inflight.name,
            )
        )
        if self._is_capturing:
            self._capture_call(ended_call(self._count, self._calls[-1]), inflight, outcome)
        if self._feeds and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FEED_SECONDS, self._feed)

    def latest(self, count: int) -> list[EndedCall]:
        """At most so many of the last calls, the oldest first."""
        skipped = max(0, len(self._calls) - count)
        first = self._count - len(self._calls) + skipped + 1
        return [ended_call(number, kept) for number, kept in enumerate(islice(self._calls, skipped, None), first)]

    def follow(self, feed: Feed) -> Callable[[], None]:
        """See `core.admin_ports.HubAdmin.follow_calls`."""
        if not self._feeds:
            self._fed = self._count
        self._feeds.append(feed)
        return lambda: self._feeds.remove(feed)

    def _feed(self) -> None:
        self._timer = None
        calls = self.latest(self._count - self._fed)
        self._fed = self._count
        for feed in list(self._feeds):
            feed(calls)

    def details(self, number: int, reader: Caller) -> CallDetails | None:
        """See `core.admin_ports.HubAdmin.call_details`."""
        at = number - self._count - 1
        if number < 1 or not -len(self._calls) <= at < 0:
            return None
        call = ended_call(number, self._calls[at])
        *_, was_sent, wait_seconds, noted, name = self._calls[at]
        arguments, result = (None, None) if self._capture is None else self._capture.texts.get(number, (None, None))
        if arguments is not None:
            self._note("capture.read", caller=reader.name, tenant=reader.tenant, call=number, name=call.name)
        tool = f"{call.server}.{name}" if call.kind == "tool" and call.server is not None else None
        is_cut = noted is not None and len(noted) >= STEPS_MAX
        steps = steps_of(call, noted, was_sent=was_sent, wait_seconds=wait_seconds)
        return CallDetails(call, tool, steps, is_cut, arguments, result)

    # -- capture -------------------------------------------------------------------------------------------------------

    def capture_state(self) -> CaptureState | None:
        """See `core.admin_ports.HubAdmin`."""
        capture = self._capture
        if capture is None:
            return None
        order = capture.order
        return CaptureState(
            self._is_capturing,
            order.by.name,
            capture.since,
            capture.until,
            len(capture.texts),
            order.server,
            order.tool,
            order.caller,
        )

    def start_capture(self, order: CaptureOrder) -> CaptureState:
        """See `core.admin_ports.HubAdmin`."""
        self.end_capture(order.by, forget=True)
        seconds = min(order.seconds, CAPTURE_SECONDS_MAX)
        now = time.time()
        self._capture = _Capture(order, now, now + seconds)
        self._is_capturing = True
        only = {"server": order.server, "tool": order.tool, "of_caller": order.caller}
        about = {name: value for name, value in only.items() if value is not None}
        self._note("capture.started", caller=order.by.name, tenant=order.by.tenant, seconds=seconds, **about)
        loop = asyncio.get_running_loop()
        self._capture_timer = loop.call_later(seconds, self._stop_capturing, "its time was over")
        self._feed_soon()
        state = self.capture_state()
        assert state is not None
        return state

    def end_capture(self, by: Caller, *, forget: bool) -> CaptureState | None:
        """See `core.admin_ports.HubAdmin`."""
        if self._is_capturing:
            self._stop_capturing("an operator ended it", by)
        if forget:
            self._forget_captured()
        return self.capture_state()

    def close(self) -> None:
        """Stop the timers."""
        for timer in (self._timer, self._capture_timer):
            if timer is not None:
                timer.cancel()

    def _capture_call(self, ended: EndedCall, inflight: InFlight, outcome: Outcome) -> None:
        capture = self._capture
        assert capture is not None
        order = capture.order
        tool = f"{ended.server}.{inflight.name}"
        if (
            (order.server is not None and order.server != ended.server)
            or (order.tool is not None and order.tool not in (ended.name, tool))
            or (order.caller is not None and order.caller != ended.caller)
        ):
            return
        result = None if isinstance(outcome, Fault) else self._text_of(inflight, outcome.payload)
        capture.texts[ended.number] = _Texts(self._text_of(inflight, inflight.call.arguments), result)
        if len(capture.texts) >= CAPTURED_CALLS:
            self._stop_capturing(f"it had {CAPTURED_CALLS} calls")

    def _text_of(self, inflight: InFlight, payload: msgspec.Raw) -> CapturedText:
        whole = memoryview(payload)
        text = self._shorten(inflight, payload, CAPTURED_LENGTH)
        # A character has at most four bytes.
        plain = bytes(whole[: 4 * CAPTURED_LENGTH]).decode("utf-8", "replace")
        return CapturedText(text, len(whole), len(plain) > CAPTURED_LENGTH, text != plain[:CAPTURED_LENGTH])

    def _stop_capturing(self, why: str, by: Caller | None = None) -> None:
        """Stop capturing; the texts are kept for a while."""
        capture = self._capture
        assert capture is not None
        self._is_capturing = False
        capture.until = time.time()
        caller_fields = {} if by is None else {"caller": by.name, "tenant": by.tenant}
        self._note("capture.ended", why=why, calls=len(capture.texts), **caller_fields)
        if self._capture_timer is not None:
            self._capture_timer.cancel()
        loop = asyncio.get_running_loop()
        self._capture_timer = loop.call_later(CAPTURE_SECONDS_MAX, self._forget_captured)
        self._feed_soon()

    def _forget_captured(self) -> None:
        self._capture = None
        if self._capture_timer is not None:
            self._capture_timer.cancel()
            self._capture_timer = None
        self._feed_soon()

    def _feed_soon(self) -> None:
        if self._feeds and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FEED_SECONDS, self._feed)


_Noted: TypeAlias = Sequence[tuple[str, float]]
"""The steps that a call noted on its way, with their times."""

_Ending: TypeAlias = bool | tuple[ServerName | None, str, Executed, str, bool]
"""Whether a result is an error. Of a fault: server, reason, whether the tool ran, message, whether it was denied."""

_CompactCall: TypeAlias = tuple[
    float, float, Caller, str, Kind, str, Surface, ServerName | None, _Ending, bool, float, _Noted | None, str
]
"""When a call ended, how long it took, its caller, frontend, kind, name, surface, server and end; whether it was
sent, how long it waited in the queue, its steps, and the server's own name of the tool. One bare tuple, because every
call creates one; few of them are ever looked at. It keeps no argument, no result and no exception alive."""


def ended_call(number: int, kept: _CompactCall) -> EndedCall:
    """A call as a reader sees it."""
    at, seconds, caller, frontend, kind, name, surface, server, ending, *_ = kept
    # At `/mcp/{server}` a name has no server in front.
    name = f"{surface.server}.{name}" if surface.style == "own" else name
    about = (number, at, seconds, caller.name, caller.tenant, frontend, kind, name)
    if isinstance(ending, bool):
        return EndedCall(*about, server, "tool_error" if ending else "result", "yes", None)
    at_server, reason, executed, message, is_denied = ending
    return EndedCall(*about, server or at_server, reason, executed, message, is_denied)


class _Capture:
    """Arguments and results of calls, by the calls' numbers."""

    __slots__ = ("order", "since", "texts", "until")

    def __init__(self, order: CaptureOrder, since: float, until: float) -> None:
        self.order = order
        self.since = since
        self.until = until
        self.texts: dict[int, _Texts] = {}


class _Texts(NamedTuple):
    arguments: CapturedText
    result: CapturedText | None


def steps_of(call: EndedCall, noted: _Noted | None, *, was_sent: bool, wait_seconds: float) -> list[CallStep]:
    """The way of a call in the order of time, from `received` to `done`."""
    times: dict[str, float] = {}
    """When the call came as far as this last; the hub may send it a second time."""
    events: list[CallStep] = []
    for step, at in noted or ():
        if step in ("checked", "held", "decided", "queued", "sent"):
            times[step] = at
        elif at <= call.seconds:
            events.append(CallStep(step, at))
    steps = [
        CallStep("received", 0.0),
        *(CallStep(step, times[step]) for step in ("held", "decided", "checked", "queued") if step in times),
    ]
    if was_sent:
        left_at = max(wait_seconds, times.get("decided", 0.0), times.get("checked", 0.0))
        sent_at = max(times.get("sent", 0.0), left_at)
        if sent_at > left_at:  # it had a slot, and waited for a link of its own or for the journal
            steps.append(CallStep("assigned", left_at))
        steps.append(CallStep("sent", sent_at))
    if events or (was_sent and call.executed == "yes"):
        steps.append(CallStep("first_byte", events[0].seconds if events else call.seconds))
    return [*steps, *events, CallStep("done", call.seconds)]


class LoggedCalls:
    """A recorder that logs each call, for `isthmus serve --verbose`, and forwards it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.started = recorder.started
        self.waited = recorder.waited
        self.late = recorder.late
        self.strict_audit = recorder.strict_audit

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Log and forward the end of a call."""
        self._recorder.call_ended(inflight, server, outcome, seconds)
        call = inflight.call
        ending: tuple[str, str | None, str | None] = ("tool_error", None, None)
        if isinstance(outcome, Fault):
            ending = (outcome.reason, outcome.executed, outcome.message)
        elif not outcome.is_error:
            ending = ("result", None, None)
        log.debug(
            "call",
            tool=call.name,
            caller=call.caller.name,
            ms=round(seconds * 1000, 1),
            outcome=ending[0],
            executed=ending[1],
            reason=ending[2],
            **inflight.ids(),
        )
