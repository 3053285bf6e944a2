"""How a fault is told to a person: what happened, whether the tool ran, what to do next; and the exit code.

A hub of this process gives the fault itself, a running one tells it as a problem; both become a `Told`. A test
proves that every leaf has advice.
"""

from __future__ import annotations

import msgspec

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.model.faults import FAULTS, Executed, Fault

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
    row = FAULTS.get(told.reason, FAULTS["server_error"])
    return CommandFailed(Exit(row.exit), told.message, EXECUTED[told.executed], row.advice)


def as_json(told: Told) -> bytes:
    """Return the fault for programs."""
    return msgspec.json.encode({"error": told})
