"""Tools that an earlier server runs as a task only, for callers that cannot ask for one: the hub does, and waits.

A modern caller has no word for it, and so has no hub that speaks for others in the modern era. To the caller it is a
call like any other. Called by links of every kind.
"""

from __future__ import annotations

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.model.events import Log
from isthmus.model.faults import Fault
from isthmus.model.features import Feature
from isthmus.model.questions import NOT_ASKED, OnReply, Question
from isthmus.upstream.waiters import CallWaiter
from isthmus.wire.jsonrpc import ErrorReply
from isthmus.wire.mcp.messages import Members
from isthmus.wire.mcp.tasks import TASK, is_task_required, read_state

CANCEL = "tasks/cancel"


def waiter_for(inflight: InFlight) -> CallWaiter:
    """Who waits for the answer to a call that is about to be sent to an earlier server; the call may ask for more then.

    What asks for a task in its caller's name, or is about one, is left as it is.
    """
    call = inflight.call
    if call.kind != "tool" or not call.comes_back or TASK in call.extra or not _is_task(inflight.target.feature):
        return CallWaiter(inflight)
    inflight.call = msgspec.structs.replace(call, extra={**call.extra, TASK: msgspec.Raw(b"{}")})
    return _Beginning(inflight)


def is_run(inflight: InFlight) -> bool:
    """Whether a call waits for the result of a task that its caller knows nothing of."""
    return inflight.call.kind == "task_result" and _is_task(inflight.target.feature)


def _is_task(tool: Feature) -> bool:
    execution = tool.definition.get("execution")
    return execution is not None and is_task_required(execution)


class _Beginning(CallWaiter):
    """Waits for the task, and then asks for its result on the same link."""

    __slots__ = ()

    def result(self, payload: msgspec.Raw, *, is_later: bool = False) -> None:
        """The server answered: with a task, or with the result after all."""
        inflight, link = self.inflight, self.inflight.link
        state = read_state(payload)
        inflight.call = call = msgspec.structs.replace(inflight.call, extra={})
        if state is None or link is None:
            super().result(payload, is_later=is_later)
            return
        inflight.rounds += 1  # it runs, whatever comes of the next request
        inflight.call = msgspec.structs.replace(call, kind="task_result")
        inflight.name = state.id
        link.send(inflight)


class Unheard:
    """Waits for nothing: the answer is no matter."""

    def result(self, payload: msgspec.Raw) -> None:
        """See `Waiter`."""

    def error(self, reply: ErrorReply) -> None:
        """See `Waiter`."""

    def fail(self, fault: Fault) -> None:
        """See `Waiter`."""

    def progress(self, params: Members) -> None:
        """See `Waiter`."""

    def log(self, line: Log) -> None:
        """See `Waiter`."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """See `Waiter`."""
        reply(NOT_ASKED)
