"""Why a call did not end in a result, and whether the tool ran all the same.

The tree splits first by who is at fault. Every leaf says `executed`: "no" is a proof, "yes" a fact, "unknown"
everything else. Faults are both returned (by stages) and raised (while connecting); each face maps the leaves
to its protocol's codes in one table, and a test proves that table complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from isthmus.model.names import ServerName
from isthmus.model.places import without_places

Executed: TypeAlias = Literal["no", "yes", "unknown"]


class Fault(Exception):
    """Base of every way a call can fail. `reason` is a stable word for programs; the message is for people."""

    reason = "fault"
    executed: Executed = "no"
    server: ServerName | None = None
    retry_after: float | None = None

    def __init__(self, message: str, *, server: ServerName | None = None, executed: Executed | None = None) -> None:
        super().__init__(message)
        self.message = message
        if server is not None:
            self.server = server
        if executed is not None:
            self.executed = executed


class CallerFault(Fault):
    """The request itself is at fault; nothing was sent to any server."""


class BadArguments(CallerFault):
    """Arguments that the tool's own schema refuses."""

    reason = "bad_arguments"

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"Invalid arguments for {name}: {detail}")


class UnknownTool(CallerFault):
    """No such tool, or none that this caller may see: the two are told apart nowhere."""

    reason = "unknown_tool"

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown tool: {name}")


class UnknownPrompt(CallerFault):
    """No such prompt, or none that this caller may see."""

    reason = "unknown_prompt"

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown prompt: {name}")


class UnknownResource(CallerFault):
    """No server that this caller may see has such a resource, or several do and it is not said which."""

    reason = "unknown_resource"

    def __init__(self, uri: str, candidates: tuple[str, ...] = ()) -> None:
        meant = f"; it could be {' or '.join(candidates)}" if candidates else ""
        super().__init__(f"Resource not found: {uri}{meant}")
        self.uri = uri


class UnknownTask(CallerFault):
    """No such task, or none that is this caller's, or not any more."""

    reason = "unknown_task"

    def __init__(self) -> None:
        super().__init__("Task not found")


class TaskEnded(CallerFault):
    """A task that has ended cannot be given up."""

    reason = "task_ended"

    def __init__(self, status: str) -> None:
        super().__init__(f"Cannot cancel the task: it has ended ({status})")


class TooManySubscriptions(CallerFault):
    """The caller already follows as many resources as it may."""

    reason = "too_many_subscriptions"

    def __init__(self, followed: int) -> None:
        super().__init__(f"Too many subscriptions: {followed} resources are followed; unsubscribe from some first")


class TooManyCalls(CallerFault):
    """The caller's tenant has as many calls under way in the whole hub as it may have at once."""

    reason = "too_many_calls"

    def __init__(self, tenant: str, running: int) -> None:
        super().__init__(f"Too many calls at once: {tenant} has {running} under way")
        self.retry_after = 1.0


class TooManyBytes(CallerFault):
    """The caller, or its tenant, has as many bytes of requests under way as it may have at once."""

    reason = "too_many_bytes"

    def __init__(self, who: str, held: int, most: int) -> None:
        super().__init__(f"Too many bytes at once: requests of {who} hold {held} of at most {most} bytes")
        self.retry_after = 1.0


class TargetRefused(CallerFault):
    """The caller named an address that it may not have called; the sentence says what would allow it."""

    reason = "target_refused"


class Cancelled(CallerFault):
    """The caller withdrew the call, or left."""

    reason = "cancelled"

    def __init__(self, why: str, *, executed: Executed, server: ServerName | None = None) -> None:
        super().__init__(f"Cancelled: {why}", server=server, executed=executed)


class Unanswered(CallerFault):
    """The server asked something back and got no answer that it could go on with."""

    reason = "unanswered"

    def __init__(self, server: ServerName, why: str) -> None:
        super().__init__(f"Server {server} asked something back: {why}", server=server, executed="unknown")
        self.why = why


class BadState(CallerFault):
    """Somebody came back with answers to what was never asked of them, or was answered already.

    Nothing was sent; but what they answer may have been asked in the middle of a call, of which nothing is known now.
    """

    reason = "bad_state"
    executed = "unknown"

    def __init__(self) -> None:
        super().__init__("Invalid or expired requestState")


class UpstreamFault(Fault):
    """The server is at fault, or cannot be reached."""


class NotConnected(UpstreamFault):
    """There is no link to the server right now, or it turned the request away before running it."""

    reason = "not_connected"

    def __init__(self, server: ServerName, why: str, *, status: int | None = None, login: str | None = None) -> None:
        super().__init__(f"Server {server} is not connected: {without_places(why)}", server=server)
        self.why = why
        self.status = status
        """The HTTP status with which the server turned the request away, if it was that."""
        self.login = login
        """Where the server says how to prove who one is, if it asked for that."""


class Overloaded(UpstreamFault):
    """The server already has all the calls it may have, running and queued."""

    reason = "overloaded"

    def __init__(self, server: ServerName, running: int, queued: int, why: str = "") -> None:
        more = f"; {why}" if why else ""
        super().__init__(f"Server {server} is busy: {running} calls running, {queued} waiting{more}", server=server)
        self.retry_after = 1.0


class TooManyTargets(UpstreamFault):
    """As many servers at addresses that callers named are in use as may be at once."""

    reason = "too_many_targets"

    def __init__(self, used: int) -> None:
        super().__init__(f"Too many servers that callers named are in use: {used}")
        self.retry_after = 1.0


class BreakerOpen(UpstreamFault):
    """The server failed too often; it is left alone for a moment."""

    reason = "breaker_open"

    def __init__(self, server: ServerName, retry_after: float) -> None:
        super().__init__(f"Server {server} failed too often; next try in {retry_after:.1f} s", server=server)
        self.retry_after = retry_after


class ServerError(UpstreamFault):
    """The server answered with a JSON-RPC error, which reaches the caller as it is."""

    reason = "server_error"
    executed: Executed = "yes"

    def __init__(self, server: ServerName, code: int, message: str, data: msgspec.Raw | None = None) -> None:
        super().__init__(message, server=server)
        self.code = code
        self.data = data


class BadReply(UpstreamFault):
    """The server answered with something that is not an answer."""

    reason = "bad_reply"
    executed = "unknown"

    def __init__(self, server: ServerName, detail: str) -> None:
        super().__init__(f"Server {server} gave an unusable answer: {detail}", server=server)
        self.why = detail


class Lost(UpstreamFault):
    """The link broke while the call was on it."""

    reason = "lost"

    def __init__(self, server: ServerName, detail: str, *, executed: Executed, is_behind: bool = False) -> None:
        told = without_places(detail)
        super().__init__(f"Lost server {server} during the call: {told}", server=server, executed=executed)
        self.why = detail
        self.is_behind = is_behind
        """It was lost by a hub behind the link, which is well."""


class TimedOut(UpstreamFault):
    """No answer within the deadline; the server was told to stop."""

    reason = "timed_out"

    def __init__(self, server: ServerName, seconds: float, *, executed: Executed) -> None:
        super().__init__(f"Server {server} did not answer within {seconds:g} s", server=server, executed=executed)


class OwnFault(Fault):
    """The hub itself is at fault, or is going away."""


class Draining(OwnFault):
    """The hub is shutting down and takes no new calls."""

    reason = "draining"

    def __init__(self) -> None:
        super().__init__("The hub is shutting down")
        self.retry_after = 1.0


class NotWritten(OwnFault):
    """The journal did not take what must be kept first, or cannot say what it has."""

    reason = "not_written"

    def __init__(self, message: str, *, executed: Executed | None = None) -> None:
        super().__init__(message, executed=executed)
        self.retry_after = 1.0


class Bug(OwnFault):
    """A defect of the hub; the incident id is in its log beside the traceback."""

    reason = "internal"
    executed = "unknown"

    def __init__(self, incident: str) -> None:
        super().__init__(f"Internal error, incident {incident}")
        self.incident = incident


def leaves(root: type[Fault] = Fault) -> Iterator[type[Fault]]:
    """Every fault class that can be an outcome: those without subclasses."""
    children = root.__subclasses__()
    if not children:
        yield root
    for child in children:
        yield from leaves(child)
