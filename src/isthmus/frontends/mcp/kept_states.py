"""How a task of the hub's own is told in the words of each era, from what is kept of it.

Values only. `kept_tasks` asks for it, as do lists and whoever tells of tasks unasked.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from isthmus.core.catalog.view import View
from isthmus.core.tasks.record import Asked, Ending, Record, outcome_of
from isthmus.frontends.mcp.faults import code_of, data_of
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.faults import Cancelled, Fault
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import Question
from isthmus.model.tasks import TaskState
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.results import as_tool_result
from isthmus.wire.mcp.tasks import TASK, Summary, earlier_state, modern_state, related_to, state_of

REALM = "mcp"
"""What tasks of this face are kept under: those of another one are told in other words, and not here."""

ENDED_SECONDS = 60.0
"""How long at least a task is kept after its end, however short a time its caller asked for."""

WAITS = "The call waits for its server, and has not been sent to it yet"
"""How a task stands that is being worked on only in the words of the protocol."""

_ID = re.compile(r"[0-9a-f]{32}")


class Brief(msgspec.Struct, frozen=True):
    """What the face remembers of a task."""

    server: ServerName
    ttl_seconds: float
    """For how long it is kept, from its creation on."""
    session: str = ""
    """The conversation that asked for it, where its caller cannot be told from others otherwise."""


_decode = msgspec.json.Decoder(Brief).decode


def is_kept_id(id: str) -> bool:
    """Whether an id could be that of a task of the hub's own: one that was passed on names its server."""
    return _ID.fullmatch(id) is not None


def brief_of(record: Record) -> Brief:
    """What was remembered."""
    return _decode(record.brief)


def is_seen(brief: Brief, view: View, surface: Surface) -> bool:
    """Whether a caller with this view may know of a task."""
    return surface.server in (None, brief.server) and brief.server in view.servers


def is_listed(session: str, caller: Caller, here: str) -> bool:
    """Whether a task of one conversation is listed in another: not where these may be anyone's."""
    return not caller.is_anyone or (here != "" and session == here)


def until(record: Record) -> float:
    """When a task that has ended is forgotten."""
    return max(record.created + brief_of(record).ttl_seconds, record.updated + ENDED_SECONDS)


# -- how it stands -------------------------------------------------------------------------------------------------


def _summary(record: Record, status: str) -> Summary:
    ending = record.ending
    message = WAITS if record.phase == "waiting" else "" if ending is None else ending.message
    return Summary(record.id, status, record.created, record.updated, brief_of(record).ttl_seconds, message)


def status_of(record: Record) -> str:
    """How it stands, in a word of the earlier era."""
    match record.state:
        case "completed":
            return "completed"
        case "failed" | "rejected":
            return "failed"
        case "canceled":
            return "cancelled"
        case _:
            return "working" if record.asked is None else "input_required"


def earlier_members(record: Record) -> dict[str, Payload]:
    """How it stands, to a caller before 2026-07-28."""
    return earlier_state(_summary(record, status_of(record)))


def announced(record: Record) -> TaskState:
    """The same, for who hears it unasked."""
    state = state_of({key: Raw(value) for key, value in earlier_members(record).items()})
    assert state is not None, "the hub's own words can be read"
    return state


def modern_members(record: Record) -> dict[str, Payload]:
    """How it stands since then, with all that comes with it: what is asked, the result, or the error."""
    outcome = None if record.ending is None else _outcome_of(record.ending)
    # A tool that ran and said no has completed there.
    status = "completed" if isinstance(outcome, Result) else status_of(record)
    members = modern_state(_summary(record, status))
    if status == "input_required":
        members["inputRequests"] = _asked(record)
    elif isinstance(outcome, Result):
        members["result"] = modern.as_modern(outcome.payload) or outcome.payload
    elif status == "failed" and outcome is not None:
        members["error"] = _error(outcome)
    return members


def _outcome_of(ending: Ending) -> Outcome:
    outcome = outcome_of(ending)
    return as_tool_result(outcome) if isinstance(outcome, Result) and outcome.is_bare else outcome


def _asked(record: Record) -> bytes:
    return render(
        {
            key: render({"method": msgspec.json.encode(asked.method), "params": asked.params})
            for key, asked in questions_of(record).items()
        }
    )


def questions_of(record: Record) -> dict[str, Asked]:
    """All that a task asks now, by the keys by which its caller answers."""
    asked = () if record.asked is None else (record.asked, *record.besides)
    return {f"q{each.number}": each for each in asked}


def _error(fault: Fault) -> bytes:
    return render(
        {
            "code": msgspec.json.encode(code_of(fault)),
            "message": msgspec.json.encode(fault.message),
            "data": data_of(fault),
        }
    )


# -- what is answered ----------------------------------------------------------------------------------------------


def created_earlier(record: Record) -> Result:
    """The answer to who asked for a task; it begins as one that is worked on, whatever came since."""
    state = earlier_state(_summary(record, "working"))
    return Result(Raw(render({TASK: render(state)})))


def created_modern(record: Record) -> Result:
    """The answer to a call that has become a task."""
    return _typed(b'"task"', modern_state(_summary(record, "working")))


def told_earlier(record: Record) -> Result:
    """The answer to who asks how it stands."""
    return Result(Raw(render(earlier_members(record))))


def told_modern(record: Record) -> Result:
    """The same."""
    return _typed(b'"complete"', modern_members(record))


ACKNOWLEDGED = Result(Raw(b'{"resultType":"complete"}'), is_typed=True)


def _typed(kind: bytes, members: dict[str, Payload]) -> Result:
    return Result(Raw(render({"resultType": kind, **members})), is_typed=True)


def result_of(record: Record) -> Outcome:
    """What the call itself would have been answered, once it has ended."""
    if record.ending is None:
        return Cancelled("the task was given up before it was begun", executed="no")
    outcome = _outcome_of(record.ending)
    if isinstance(outcome, Fault):
        return outcome
    members = related_to(record.id, object_members(outcome.payload) or {})
    return Result(Raw(render(members)), outcome.is_error, is_typed="resultType" in members)


def question_of(record: Record) -> Question | None:
    """What a task asks, as a request to its caller that says for which task it is; None if it asks nothing."""
    asked = record.asked
    if asked is None:
        return None
    members = related_to(record.id, object_members(asked.params) or {})
    return Question(asked.method, Raw(render(members)))
