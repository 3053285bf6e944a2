"""How a fault is told to a person: what happened, whether the tool ran, what to do next; and the exit code.

A fault that a running hub met reaches us as its JSON-RPC error; the hub's own words for it are in the error's
data, and those are what is told. A test proves that every leaf has advice.
"""

from __future__ import annotations

import msgspec

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.reached import REFUSED, in_hub_terms
from isthmus.model.faults import (
    BadArguments,
    BadReply,
    BreakerOpen,
    Bug,
    Cancelled,
    Draining,
    Executed,
    Fault,
    Lost,
    NotConnected,
    Overloaded,
    ServerError,
    TimedOut,
    UnknownTool,
    leaves,
)

ADVICE: dict[type[Fault], str] = {
    BadArguments: "`isthmus tools --json` shows what each tool takes.",
    UnknownTool: "`isthmus tools` lists what there is.",
    Cancelled: "Call it again if it is still wanted.",
    NotConnected: "`isthmus doctor` says what is wrong with the server.",
    Overloaded: "Try again in a moment, or raise max_calls for the server.",
    BreakerOpen: "Wait a moment; `isthmus doctor` says how the server stands.",
    ServerError: "The server itself said so: its own documentation or log may tell more.",
    BadReply: "The server is at fault; its own log may tell more.",
    Lost: "`isthmus doctor` says whether the server is back.",
    TimedOut: "If it needs longer, raise `timeout` for the server in the configuration.",
    Draining: "Try again when the hub is back.",
    Bug: "This is a defect of Isthmus: please report it with the hub's log.",
}

EXECUTED: dict[Executed, str] = {
    "no": "executed: no (the tool did not run)",
    "yes": "executed: yes (the server took the call and answered)",
    "unknown": "executed: unknown (it may have run: look before you call it again)",
}


class Told(msgspec.Struct, frozen=True):
    """What a program may want to know of a fault."""

    executed: Executed
    reason: str
    server: str | None = None


def told_of(fault: Fault, *, is_remote: bool) -> Told:
    """Return the facts of a fault; a running hub's own are believed, a server's are not."""
    if is_remote and isinstance(fault, ServerError) and fault.data is not None:
        try:
            return msgspec.json.decode(fault.data, type=Told)
        except msgspec.MsgspecError:
            pass  # whatever answers there is no hub of ours
    return Told(fault.executed, fault.reason, None if is_remote else fault.server)


def failed(fault: Fault, *, is_remote: bool) -> CommandFailed:
    """Return what to tell the person whose call ended in this fault."""
    told = told_of(fault, is_remote=is_remote)
    by_reason = {leaf.reason: ADVICE[leaf] for leaf in leaves()}
    advice = by_reason.get(told.reason, ADVICE[ServerError])
    message = in_hub_terms(fault.message) if is_remote else fault.message
    return CommandFailed(_exit(fault, is_remote=is_remote), message, EXECUTED[told.executed], advice)


def _exit(fault: Fault, *, is_remote: bool) -> Exit:
    """Return the code: what the way to a running hub met is not the call's own failure."""
    if is_remote and isinstance(fault, NotConnected):
        return Exit.NOT_ALLOWED if fault.status in REFUSED else Exit.UNREACHABLE
    if is_remote and isinstance(fault, Lost) and fault.executed == "no":
        return Exit.UNREACHABLE
    return Exit.CALL_FAILED


def as_json(fault: Fault, *, is_remote: bool) -> bytes:
    """Return the fault for programs."""
    told = told_of(fault, is_remote=is_remote)
    return msgspec.json.encode({"error": {"message": fault.message, **msgspec.structs.asdict(told)}})
