"""Failures as problem+json (RFC 9457), always with `executed`.

Statuses and titles of faults are in `model.fault_table`; requests that this frontend refuses by itself are listed here.
A problem's `type` is only a name and ends in the reason; programs compare the reason.
"""

from __future__ import annotations

import math

import msgspec

from isthmus.frontends.http.auth import Denied, Headers
from isthmus.frontends.http.request_cycle import header_lines
from isthmus.model.fault_table import FAULTS, Executed, Fault, ServerError, code_row
from isthmus.wire.jsonrpc import Payload, render

TYPE = "urn:isthmus:problem:"
CONTENT_TYPE = (b"content-type", b"application/problem+json")


REFUSALS: dict[str, tuple[int, str]] = {
    "bad_request": (400, "Malformed request"),
    "unauthenticated": (401, "A valid key is required"),
    "forbidden": (403, "Not allowed"),
    "not_a_server": (422, "The text is no server"),
    "unknown_path": (404, "Unknown path"),
    "unknown_set": (404, "Unknown set"),
    "unknown_agent": (404, "Unknown agent"),
    "unknown_caller": (404, "Unknown caller"),
    "unknown_tenant": (404, "Unknown tenant"),
    "unknown_call": (404, "Unknown call"),
    "no_audit_log": (404, "This hub keeps no audit log"),
    "unknown_question": (404, "Unknown question"),
    "unknown_approval": (404, "No such approval"),
    "unknown_definition": (404, "No such definition waits"),
    "method_not_allowed": (405, "Method not allowed"),
    "already_decided": (409, "The approval is decided already"),
    "not_away": (409, "The server is connected"),
    "not_restartable": (409, "The hub does not start this server"),
    "not_switchable": (409, "The server is not in the configuration"),
    "not_json": (415, "Content-Type must be application/json"),
    "misdirected": (421, "This hub does not serve that host"),
    "busy": (429, "Another one is running"),
    "too_many_wrong_keys": (429, "Too many wrong keys"),
    "storage_failed": (503, "The store cannot be used right now"),
    "unprovable": (503, "Keys cannot be checked right now"),
}
"""Status and title of requests that are refused before they reach the hub."""

DENIALS = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    421: "misdirected",
    429: "too_many_wrong_keys",
    503: "unprovable",
}
"""The reason for each status with which authentication fails."""


class Problem(msgspec.Struct, frozen=True):
    """Why there is no result."""

    status: int
    title: str
    reason: str
    detail: str
    executed: Executed = "no"
    server: str | None = None
    retry_after: float | None = None
    error: msgspec.Raw | None = None
    """A server's own error, kept apart from the hub's members."""
    headers: Headers = ()
    approval: str | None = None
    """The id of the approval that the call waits for."""

    def body(self) -> bytes:
        """The problem as JSON."""
        members: dict[str, object] = {
            "type": TYPE + self.reason,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason,
            "executed": self.executed,
        }
        if self.server is not None:
            members["server"] = self.server
        if self.retry_after is not None:
            members["retryAfter"] = round(self.retry_after, 3)
        if self.approval is not None:
            members["approval"] = self.approval
        if self.error is not None:
            members["error"] = self.error
        return msgspec.json.encode(members)

    def lines(self) -> bytes:
        """The response headers, encoded."""
        headers = [CONTENT_TYPE, *self.headers]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(self.retry_after))))
        return header_lines(headers)


def refusal(reason: str, detail: str, headers: Headers = ()) -> Problem:
    """A request that this frontend refuses; nothing was sent to any server."""
    status, title = REFUSALS[reason] if reason in REFUSALS else (FAULTS[reason].http, FAULTS[reason].title)
    return Problem(status, title, reason, detail, headers=headers)


def denial(denied: Denied) -> Problem:
    """A request that failed authentication."""
    return refusal(DENIALS[denied.status], denied.message, denied.headers)


def problem_of(fault: Fault) -> Problem:
    """The problem for a call that ended in a fault."""
    error = None
    if isinstance(fault, ServerError):
        members: dict[str, Payload] = {
            "code": msgspec.json.encode(fault.code),
            "message": msgspec.json.encode(fault.message),
        }
        if fault.data is not None:
            members["data"] = fault.data
        error = msgspec.Raw(render(members))
    return Problem(
        status=code_row(fault.reason, fault.executed).http,
        title=FAULTS[fault.reason].title,
        reason=fault.reason,
        detail=fault.message,
        executed=fault.executed,
        server=fault.server,
        retry_after=fault.retry_after,
        error=error,
        approval=fault.approval,
    )
