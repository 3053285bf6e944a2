"""How a failure is told to a REST caller: problem+json (RFC 9457) with `executed`, one row of a table for each.

Faults of calls have their rows by class, what this face refuses by itself has them by reason. A `type` is a name
and leads nowhere; it ends in the reason, which is the word for programs.
"""

from __future__ import annotations

import math

import msgspec

from isthmus.faces.http.gate import Denied, Headers
from isthmus.faces.http.turn import header_lines
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
)
from isthmus.wire.jsonrpc import Payload, render

TYPE = "urn:isthmus:problem:"
CONTENT_TYPE = (b"content-type", b"application/problem+json")


class Kind(msgspec.Struct, frozen=True):
    """What all problems of one reason share."""

    status: int
    title: str


FAULTS: dict[type[Fault], Kind] = {
    BadArguments: Kind(400, "The arguments do not fit"),
    UnknownTool: Kind(404, "There is no such tool"),
    UnknownPrompt: Kind(404, "There is no such prompt"),
    UnknownResource: Kind(404, "There is no such resource"),
    UnknownTask: Kind(404, "There is no such task"),
    TaskEnded: Kind(409, "The task has ended"),
    TargetRefused: Kind(403, "The address may not be named"),
    TooManySubscriptions: Kind(429, "Too much is followed already"),
    TooManyBytes: Kind(429, "Too many bytes at once"),
    TooManyCalls: Kind(429, "Too many calls at once"),
    TooManyTargets: Kind(429, "Too many addresses are in use"),
    Overloaded: Kind(429, "The server is busy"),
    BreakerOpen: Kind(503, "The server failed too often"),
    Draining: Kind(503, "The hub is shutting down"),
    NotConnected: Kind(503, "The server is not connected"),
    ServerError: Kind(502, "The server answered with an error"),
    BadReply: Kind(502, "The server gave an unusable answer"),
    Lost: Kind(504, "The server was lost during the call"),
    TimedOut: Kind(504, "The server did not answer in time"),
    Cancelled: Kind(504, "The call was withdrawn"),
    Unanswered: Kind(504, "The server asked something back"),
    BadState: Kind(400, "There is nothing to come back to"),
    NotWritten: Kind(503, "What must be kept could not be written"),
    Bug: Kind(500, "The hub has a defect"),
}
"""Every leaf has a row. A tool that ran and said no is a result, with status 200."""

REFUSALS: dict[str, Kind] = {
    "bad_request": Kind(400, "The request cannot be understood"),
    "unauthenticated": Kind(401, "A valid key is needed"),
    "forbidden": Kind(403, "This is not allowed from there"),
    "unknown_path": Kind(404, "There is nothing here"),
    "unknown_server": Kind(404, "There is no such server"),
    "unknown_agent": Kind(404, "There is no such agent"),
    "method_not_allowed": Kind(405, "This cannot be done here"),
    "not_away": Kind(409, "The server is connected"),
    "not_json": Kind(415, "The body is not said to be JSON"),
    "misdirected": Kind(421, "This hub does not serve that host"),
    "too_many_wrong_keys": Kind(429, "Too many wrong keys"),
    "unprovable": Kind(503, "Nobody can be known just now"),
}
"""What this face refuses without asking the hub."""

DENIALS = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    421: "misdirected",
    429: "too_many_wrong_keys",
    503: "unprovable",
}
"""Why the gate lets nobody in, by the status that it gives."""


class Problem(msgspec.Struct, frozen=True):
    """Why there is no result, as the caller is told."""

    kind: Kind
    reason: str
    detail: str
    executed: Executed = "no"
    server: str | None = None
    retry_after: float | None = None
    error: msgspec.Raw | None = None
    """A server's own error, kept apart: it cannot speak for the hub."""
    headers: Headers = ()

    def body(self) -> bytes:
        """The problem as JSON."""
        told: dict[str, object] = {
            "type": TYPE + self.reason,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "reason": self.reason,
            "executed": self.executed,
        }
        if self.server is not None:
            told["server"] = self.server
        if self.retry_after is not None:
            told["retryAfter"] = round(self.retry_after, 3)
        if self.error is not None:
            told["error"] = self.error
        return msgspec.json.encode(told)

    def lines(self) -> bytes:
        """The headers that go with it."""
        headers = [CONTENT_TYPE, *self.headers]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(self.retry_after))))
        return header_lines(headers)


def refusal(reason: str, detail: str, headers: Headers = ()) -> Problem:
    """Something that this face refuses; nothing was sent to any server."""
    return Problem(REFUSALS[reason], reason, detail, headers=headers)


def denial(denied: Denied) -> Problem:
    """Somebody who does not come in."""
    return refusal(DENIALS[denied.status], denied.message, denied.headers)


def problem_of(fault: Fault) -> Problem:
    """How a call's fault is told."""
    return Problem(
        kind=_kind_of(fault),
        reason=fault.reason,
        detail=fault.message,
        executed=fault.executed,
        server=fault.server,
        retry_after=fault.retry_after,
        error=_error_of(fault) if isinstance(fault, ServerError) else None,
    )


def _kind_of(fault: Fault) -> Kind:
    if isinstance(fault, Lost) and fault.executed == "no":
        return Kind(FAULTS[NotConnected].status, FAULTS[Lost].title)  # what never left found no server
    return FAULTS[type(fault)]


def _error_of(fault: ServerError) -> msgspec.Raw:
    members: dict[str, Payload] = {
        "code": msgspec.json.encode(fault.code),
        "message": msgspec.json.encode(fault.message),
    }
    if fault.data is not None:
        members["data"] = fault.data
    return msgspec.Raw(render(members))
