"""How a fault is told to a person: what happened, whether the tool ran, what to do next; and the exit code.

A hub of this process gives the fault itself, a running one tells it as a problem; both become a `Told`. A test
proves that every leaf has advice.
"""

from __future__ import annotations

import msgspec

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.model.faults import (
    BadArguments,
    BadReply,
    BadState,
    BreakerOpen,
    Bug,
    Cancelled,
    Draining,
    Executed,
    Fault,
    Lost,
    NotConnected,
    NotWritten,
    Overloaded,
    ServerError,
    TargetRefused,
    TaskEnded,
    TimedOut,
    TooManyBytes,
    TooManyCalls,
    TooManySubscriptions,
    TooManyTargets,
    Unanswered,
    UnknownPrompt,
    UnknownResource,
    UnknownTask,
    UnknownTool,
    leaves,
)

ADVICE: dict[type[Fault], str] = {
    BadArguments: "`isthmus tools --json` shows what each tool takes.",
    UnknownTool: "`isthmus tools` lists what there is.",
    UnknownPrompt: "`isthmus prompts` lists what there is.",
    UnknownResource: "`isthmus resources` lists what there is.",
    UnknownTask: "It may have been kept for as long as it was to be; run the tool again if that does no harm.",
    TaskEnded: "Ask for its result instead.",
    Unanswered: "It needs a client that can answer questions: an MCP client with elicitation, sampling or roots.",
    BadState: "Call it again from the beginning, if it did not run.",
    TargetRefused: "Configure the server, or list its address under [targets].",
    TooManySubscriptions: "Unsubscribe from some resources first.",
    TooManyBytes: "Try again in a moment, or raise caller_bytes or tenant_bytes under [limits].",
    TooManyCalls: "Try again in a moment, or raise max_calls under [tenants].",
    TooManyTargets: "Try again in a moment, or raise max under [targets].",
    Cancelled: "Call it again if it is still wanted.",
    NotConnected: "`isthmus doctor` says what is wrong with the server.",
    Overloaded: "Try again in a moment, or raise max_calls for the server.",
    BreakerOpen: "Wait a moment; `isthmus doctor` says how the server stands.",
    ServerError: "The server itself said so: its own documentation or log may tell more.",
    BadReply: "The server is at fault; its own log may tell more.",
    Lost: "`isthmus doctor` says whether the server is back.",
    TimedOut: "If it needs longer, raise `timeout` for the server in the configuration.",
    Draining: "Try again when the hub is back.",
    NotWritten: "Look at the disk that the hub's state is on.",
    Bug: "This is a defect of Isthmus: please report it with the hub's log.",
}

EXECUTED: dict[Executed, str] = {
    "no": "executed: no (the tool did not run)",
    "yes": "executed: yes (the server took the call and answered)",
    "unknown": "executed: unknown (it may have run: look before you call it again)",
}


class Told(msgspec.Struct, frozen=True):
    """Why a call has no result, whichever hub met it."""

    message: str
    executed: Executed
    reason: str
    server: str | None = None


def told_of(fault: Fault) -> Told:
    """A fault of this process's own hub."""
    return Told(fault.message, fault.executed, fault.reason, fault.server)


class _Problem(msgspec.Struct):
    detail: str
    executed: Executed
    reason: str
    server: str | None = None


def told_in(problem: bytes) -> Told | None:
    """What a running hub tells in a problem; None if it is not one of a hub."""
    try:
        read = msgspec.json.decode(problem, type=_Problem)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return Told(read.detail, read.executed, read.reason, read.server)


def failed(told: Told) -> CommandFailed:
    """Return what to tell the person whose call ended so."""
    by_reason = {leaf.reason: ADVICE[leaf] for leaf in leaves()}
    advice = by_reason.get(told.reason, ADVICE[ServerError])
    return CommandFailed(Exit.CALL_FAILED, told.message, EXECUTED[told.executed], advice)


def as_json(told: Told) -> bytes:
    """Return the fault for programs."""
    return msgspec.json.encode({"error": told})
