"""Every way a call can fail, and how each protocol reports it.

The classes split first by who is at fault: the caller, the server or the hub. `FAULTS` has one row per kind with all
its codes; frontends, the library and the command line read that table and have none of their own. A new kind is a
class and a row here. Stages return faults; code that connects to servers raises them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from isthmus.model.location_redaction import without_locations
from isthmus.model.names import ServerName

Executed: TypeAlias = Literal["no", "yes", "unknown"]
"""Whether the tool ran: "no" is proven, "yes" is known, "unknown" is everything else."""

INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REFUSED = -32010
"""MCP: the hub did not accept the call. Retrying later is safe."""
NOT_CONNECTED = -32011
"""MCP: there was no connection, so nothing was sent."""
SENT_AND_LOST = -32012
"""MCP: the call was sent and has no usable response."""
RESOURCE_NOT_FOUND = -32002
"""MCP, legacy era: the resource is unknown. The modern era has "invalid params" for that."""
RELAY_NO_TOOL = -32601
RELAY_NOT_CONNECTED = -32001
RELAY_NOT_FORWARDED = -32002


class FaultRow(msgspec.Struct, frozen=True):
    """How one kind of fault is reported everywhere."""

    executed: Executed | None
    """None if it depends on when the call failed; then each instance says it."""
    mcp: int
    """JSON-RPC code over MCP, and in the `mcp_error` of an A2A answer."""
    http: int
    """Status of a REST response."""
    relay: int
    """JSON-RPC code for relay devices."""
    a2a_state: Literal["failed", "rejected", "canceled"]
    """State of an A2A task that ended so. "rejected" means that nothing was tried, so a retry is safe."""
    a2a_kind: Literal["request", "network", "mcp", "internal"]
    """`kind` of the error in an A2A answer."""
    agentvault: str
    """`code` of the error that AgentVault's proxy reports."""
    library: Literal["error", "timeout", "unauthorized", "not_found", "invalid_parameters", "unavailable", "cancelled"]
    """`ToolStatus` of the library."""
    title: str
    """Short summary in a REST problem."""
    advice: str
    """What a person at the terminal can do next."""
    exit: int = 1
    """Exit code of the command line."""
    mcp_legacy: int | None = None
    """JSON-RPC code for MCP clients of the legacy era, where it differs."""
    crosses_nodes: bool = False
    """Whether callers get it unchanged if it happened at another node of the cluster, because it is about the call and
    not about the node. Other faults become "not connected" or "lost" there."""


# fmt: off
FAULTS: Mapping[str, FaultRow] = {
    # reason: executed, MCP, HTTP, relay, A2A state and kind, AgentVault, library; title; advice
    "bad_arguments": FaultRow(
        "no", INVALID_PARAMS, 400, INVALID_PARAMS, "failed", "request", "INVALID_ARGUMENTS", "invalid_parameters",
        "Invalid arguments",
        "`isthmus tools NAME` shows the arguments of a tool, `isthmus prompts NAME` those of a prompt.",
        crosses_nodes=True),
    "bad_instruction": FaultRow(
        "no", INVALID_PARAMS, 400, INVALID_PARAMS, "failed", "request", "INVALID_INPUT", "invalid_parameters",
        "Invalid instruction",
        "The description of the skill in the agent card shows what to send."),
    "unknown_server": FaultRow(
        "no", INVALID_PARAMS, 404, INVALID_PARAMS, "failed", "request", "MCP_SERVER_NOT_FOUND", "not_found",
        "Unknown server",
        "`isthmus servers` lists the servers."),
    "unknown_tool": FaultRow(
        "no", INVALID_PARAMS, 404, RELAY_NO_TOOL, "failed", "request", "-32601", "not_found",
        "Unknown tool",
        "`isthmus tools` lists all tools."),
    "unknown_prompt": FaultRow(
        "no", INVALID_PARAMS, 404, INVALID_PARAMS, "failed", "request", "PROXY_INTERNAL_ERROR", "not_found",
        "Unknown prompt",
        "`isthmus prompts` lists all prompts."),
    "unknown_resource": FaultRow(
        "no", INVALID_PARAMS, 404, INVALID_PARAMS, "failed", "request", "PROXY_INTERNAL_ERROR", "not_found",
        "Unknown resource",
        "`isthmus resources` lists all resources.",
        mcp_legacy=RESOURCE_NOT_FOUND),
    "unknown_task": FaultRow(
        "no", INVALID_PARAMS, 404, INVALID_PARAMS, "failed", "request", "PROXY_INTERNAL_ERROR", "not_found",
        "Unknown task",
        "The task may have expired. Run the tool again if that is safe."),
    "task_ended": FaultRow(
        "no", INVALID_PARAMS, 409, INVALID_PARAMS, "failed", "request", "PROXY_INTERNAL_ERROR", "error",
        "The task has already ended",
        "Fetch its result instead."),
    "task_elsewhere": FaultRow(
        "no", REFUSED, 503, RELAY_NOT_FORWARDED, "rejected", "network", "PROXY_INTERNAL_ERROR", "unavailable",
        "Another node runs the task",
        "Send the request to the node that runs the task, or again when the task has ended."),
    "too_many_subscriptions": FaultRow(
        "no", REFUSED, 429, RELAY_NOT_FORWARDED, "failed", "request", "PROXY_INTERNAL_ERROR", "error",
        "Too many subscriptions",
        "Unsubscribe from some resources first."),
    "too_many_calls": FaultRow(
        "no", REFUSED, 429, RELAY_NOT_FORWARDED, "rejected", "network", "MCP_CONNECTION_ERROR", "unavailable",
        "Too many calls at once",
        "Try again in a moment, or raise max_calls under [tenants]."),
    "too_many_bytes": FaultRow(
        "no", REFUSED, 429, RELAY_NOT_FORWARDED, "rejected", "network", "MCP_CONNECTION_ERROR", "unavailable",
        "Too many bytes at once",
        "Try again in a moment, or raise caller_bytes or tenant_bytes under [limits]."),
    "budget_exceeded": FaultRow(
        "no", REFUSED, 429, RELAY_NOT_FORWARDED, "rejected", "request", "PROXY_INTERNAL_ERROR", "unavailable",
        "The budget is used up",
        "Wait until the budget is renewed; `isthmus budgets` shows how much is used."),
    "target_refused": FaultRow(
        "no", INVALID_PARAMS, 403, INVALID_PARAMS, "rejected", "request", "PROXY_INTERNAL_ERROR", "unauthorized",
        "Address not allowed",
        "Configure the server, or list its address under [targets]."),
    "not_recorded": FaultRow(
        "no", INVALID_PARAMS, 404, INVALID_PARAMS, "failed", "request", "INVALID_ARGUMENTS", "error",
        "Not in the cassette",
        "Make the calls that were recorded, or record the cassette again."),
    "approval_pending": FaultRow(
        "no", REFUSED, 409, RELAY_NOT_FORWARDED, "rejected", "request", "PROXY_INTERNAL_ERROR", "unauthorized",
        "The call waits for approval",
        "An operator decides with `isthmus approvals`; then call again with the same arguments."),
    "approval_denied": FaultRow(
        "no", REFUSED, 403, RELAY_NOT_FORWARDED, "rejected", "request", "PROXY_INTERNAL_ERROR", "unauthorized",
        "The call was not approved",
        "Ask the operator of the hub, or make another call."),
    "approval_expired": FaultRow(
        "no", REFUSED, 403, RELAY_NOT_FORWARDED, "rejected", "request", "PROXY_INTERNAL_ERROR", "unauthorized",
        "Nobody approved the call in time",
        "Call again to ask again; an operator decides with `isthmus approvals`."),
    "too_many_approvals": FaultRow(
        "no", REFUSED, 429, RELAY_NOT_FORWARDED, "rejected", "request", "PROXY_INTERNAL_ERROR", "unavailable",
        "Too many calls wait for approval",
        "Decide about some of them with `isthmus approvals` first."),
    "cancelled": FaultRow(
        None, SENT_AND_LOST, 504, RELAY_NOT_FORWARDED, "canceled", "request", "CANCELED", "cancelled",
        "The call was cancelled",
        "Call the tool again if you still need the result.",
        crosses_nodes=True),
    "unanswered": FaultRow(
        "unknown", SENT_AND_LOST, 504, RELAY_NOT_FORWARDED, "failed", "request", "PROXY_INTERNAL_ERROR", "error",
        "The server requested input and got none",
        "Use an MCP client that supports elicitation, sampling or roots.",
        crosses_nodes=True),
    "bad_state": FaultRow(
        "unknown", INVALID_PARAMS, 400, INVALID_PARAMS, "failed", "request", "PROXY_INTERNAL_ERROR", "error",
        "Invalid or expired requestState",
        "Check whether the tool ran; if it did not, start the call again."),
    "not_connected": FaultRow(
        "no", NOT_CONNECTED, 503, RELAY_NOT_CONNECTED, "failed", "network", "MCP_CONNECTION_ERROR", "unavailable",
        "The server is not connected",
        "`isthmus doctor` checks the server."),
    "overloaded": FaultRow(
        "no", REFUSED, 429, RELAY_NOT_FORWARDED, "rejected", "network", "MCP_CONNECTION_ERROR", "unavailable",
        "The server is busy",
        "Try again in a moment, or raise max_calls for the server.",
        crosses_nodes=True),
    "too_many_targets": FaultRow(
        "no", REFUSED, 429, RELAY_NOT_FORWARDED, "rejected", "network", "MCP_CONNECTION_ERROR", "unavailable",
        "Too many target addresses in use",
        "Try again in a moment, or raise max under [targets]."),
    "breaker_open": FaultRow(
        "no", REFUSED, 503, RELAY_NOT_FORWARDED, "rejected", "network", "MCP_CONNECTION_ERROR", "unavailable",
        "The server failed too often",
        "Try again in a moment; `isthmus doctor` checks the server.",
        crosses_nodes=True),
    "server_error": FaultRow(
        # The server's own code replaces both codes; these are for stored outcomes without one.
        "yes", INTERNAL_ERROR, 502, INTERNAL_ERROR, "failed", "mcp", "PROXY_INTERNAL_ERROR", "error",
        "The server returned an error",
        "This message comes from the server: see its documentation or log."),
    "bad_reply": FaultRow(
        "unknown", SENT_AND_LOST, 502, RELAY_NOT_FORWARDED, "failed", "mcp", "MCP_INVALID_RESPONSE", "error",
        "The server sent an invalid response",
        "The server has a defect: see its log."),
    "lost": FaultRow(
        None, SENT_AND_LOST, 504, RELAY_NOT_FORWARDED, "failed", "network", "MCP_CONNECTION_ERROR", "unavailable",
        "The connection to the server was lost",
        "`isthmus doctor` says whether the server is back."),
    "node_lost": FaultRow(
        None, SENT_AND_LOST, 502, RELAY_NOT_FORWARDED, "failed", "network", "MCP_CONNECTION_ERROR", "unavailable",
        "Another node of the hub was lost",
        "Try again; if the session is gone, begin a new one."),
    "timed_out": FaultRow(
        None, SENT_AND_LOST, 504, RELAY_NOT_FORWARDED, "failed", "network", "MCP_TIMEOUT", "timeout",
        "The server did not respond in time",
        "If the tool needs longer, raise `timeout` for the server in the configuration.",
        crosses_nodes=True),
    "draining": FaultRow(
        "no", REFUSED, 503, RELAY_NOT_FORWARDED, "rejected", "network", "MCP_CONNECTION_ERROR", "unavailable",
        "The hub is shutting down",
        "Try again when the hub is back."),
    "not_written": FaultRow(
        "no", INTERNAL_ERROR, 503, INTERNAL_ERROR, "failed", "internal", "PROXY_INTERNAL_ERROR", "unavailable",
        "The hub could not store the call",
        "Check the disk or database that holds the hub's state."),
    "internal": FaultRow(
        "unknown", INTERNAL_ERROR, 500, INTERNAL_ERROR, "failed", "internal", "PROXY_INTERNAL_ERROR", "error",
        "Internal error",
        "This is a defect of Isthmus: please report it with the hub's log."),
}
# fmt: on


def code_row(reason: str, executed: Executed) -> FaultRow:
    """The row with the codes (MCP, HTTP, relay) of a fault: `not_connected` if a lost or late call was not sent.

    Another version of the hub may have stored a reason that this one does not know.
    """
    if executed == "no" and reason in ("lost", "node_lost", "timed_out"):
        return FAULTS["not_connected"]
    return FAULTS.get(reason, FAULTS["internal"])


class Fault(Exception):
    """Base of every way a call can fail. `reason` is a stable word for programs; the message is for people."""

    reason = "fault"
    executed: Executed = "no"
    server: ServerName | None = None
    retry_after: float | None = None
    is_denied = False
    """What was called exists, and the caller may not use it. Only operators learn this."""
    approval: str | None = None
    """The id of the approval that the call waits for, or was denied."""
    is_server_failure = False
    """It counts against the server, whose circuit breaker opens after several."""

    def __init_subclass__(cls) -> None:
        row = FAULTS.get(cls.reason)
        if row is not None and row.executed is not None:
            cls.executed = row.executed

    def __init__(self, message: str, *, server: ServerName | None = None, executed: Executed | None = None) -> None:
        super().__init__(message)
        self.message = message
        if server is not None:
            self.server = server
        if executed is not None:
            self.executed = executed

    def details(self) -> dict[str, object]:
        """What programs read: whether the tool ran, the reason, the server, when to retry."""
        found: dict[str, object] = {"executed": self.executed, "reason": self.reason}
        if self.server is not None:
            found["server"] = self.server
        if self.retry_after is not None:
            found["retryAfter"] = round(self.retry_after, 3)
        if self.approval is not None:
            found["approval"] = self.approval
        return found


class CallerFault(Fault):
    """The request is at fault; unless the kind says otherwise, nothing was sent to any server."""


class BadArguments(CallerFault):
    """The tool's own schema rejects the arguments."""

    reason = "bad_arguments"

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"Invalid arguments for {name}: {detail}")


class UnclearInstruction(CallerFault):
    """A message to the hub's A2A agent does not say which tool to call, or how."""

    reason = "bad_instruction"


class UnknownServer(CallerFault):
    """No such server, or not visible to this caller, who never learns which."""

    reason = "unknown_server"

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown server: {name}")


class UnknownTool(CallerFault):
    """No such tool, or not visible to this caller, who never learns which."""

    reason = "unknown_tool"

    def __init__(
        self, name: str, similar: tuple[str, ...] = (), *, exposure: str = "", is_denied: bool = False
    ) -> None:
        """`similar` are tools that this caller may mean, of those that it sees; `exposure` is what the tool needs."""
        meant = f"; did you mean {' or '.join(similar)}?" if similar else ""
        if exposure:
            meant = f'; it is a tool of the hub, for callers with expose = "{exposure}" (of [hub], a set or the caller)'
        super().__init__(f"Unknown tool: {name}{meant}")
        self.is_denied = is_denied


class UnknownPrompt(CallerFault):
    """No such prompt, or not visible to this caller."""

    reason = "unknown_prompt"

    def __init__(self, name: str, *, is_denied: bool = False) -> None:
        super().__init__(f"Unknown prompt: {name}")
        self.is_denied = is_denied


class UnknownResource(CallerFault):
    """No visible server has such a resource, or several do and the URI does not say which."""

    reason = "unknown_resource"

    def __init__(self, uri: str, candidates: tuple[str, ...] = (), why: str = "") -> None:
        meant = f"; it could be {' or '.join(candidates)}" if candidates else f"; {why}" if why else ""
        super().__init__(f"Resource not found: {uri}{meant}")
        self.uri = uri


class UnknownTask(CallerFault):
    """No such task, or it belongs to another caller, or it was deleted."""

    reason = "unknown_task"

    def __init__(self) -> None:
        super().__init__("Task not found")


class TaskEnded(CallerFault):
    """An ended task cannot be cancelled."""

    reason = "task_ended"

    def __init__(self, status: str) -> None:
        super().__init__(f"Cannot cancel the task: it has ended ({status})")


class TaskElsewhere(CallerFault):
    """Only the node of the cluster that runs a task can do what was requested."""

    reason = "task_elsewhere"

    def __init__(self, task: str) -> None:
        super().__init__(
            f"Another node of the cluster runs task {task}, and only that node can cancel or continue it; nothing was "
            "changed"
        )
        self.retry_after = 1.0


class TooManySubscriptions(CallerFault):
    """The caller is subscribed to as many resources as allowed."""

    reason = "too_many_subscriptions"

    def __init__(self, followed: int) -> None:
        super().__init__(f"Too many subscriptions: {followed} resources are followed; unsubscribe from some first")


class TooManyCalls(CallerFault):
    """The caller's tenant has as many running calls in the whole hub as allowed."""

    reason = "too_many_calls"

    def __init__(self, tenant: str, running: int) -> None:
        super().__init__(f"Too many calls at once: {tenant} has {running} under way")
        self.retry_after = 1.0


class TooManyBytes(CallerFault):
    """The caller, or its tenant, has too many bytes of requests in progress and of unread responses."""

    reason = "too_many_bytes"

    def __init__(self, holder: str, held: int, most: int) -> None:
        super().__init__(
            f"Too many bytes at once: requests and unread responses of {holder} hold {held} of at most {most} bytes"
        )
        self.retry_after = 1.0


class BudgetExceeded(CallerFault):
    """A budget of the operator has no room for the call in this period."""

    reason = "budget_exceeded"

    def __init__(self, budget: str, used: str, renewed: str, retry_after: float | None) -> None:
        """`retry_after` is None if the call never fits."""
        later = f"it is renewed at {renewed}" if retry_after is not None else "it has never room for this call"
        super().__init__(f"The budget {budget} is used up: {used}; {later}. The tool did not run")
        self.retry_after = retry_after


class TargetRefused(CallerFault):
    """The caller may not name this address; the message says what would allow it."""

    reason = "target_refused"


class NotRecorded(CallerFault):
    """A cassette is replayed that has no such call; the message names the nearest one and what differs."""

    reason = "not_recorded"

    def __init__(self, server: ServerName, problem: str) -> None:
        super().__init__(f"Not in the cassette: {problem}", server=server)


class ApprovalPending(CallerFault):
    """A rule of the operator holds the call, and nobody has decided about it yet."""

    reason = "approval_pending"

    def __init__(self, tool: str, approval: str, *, executed: Executed | None = None) -> None:
        """`executed` is for scripts: other calls of one may have run."""
        then = "Call it again with the same arguments once it is approved"
        if executed == "unknown":
            then = "Other calls of the script may have run, and a script that is run again repeats them"
        super().__init__(
            f"{tool} needs a person's approval, which is pending as {approval}; the tool did not run. {then}",
            executed=executed,
        )
        self.approval = approval


class ApprovalDenied(CallerFault):
    """A person decided that this call must not be made, or nobody can decide about it here."""

    reason = "approval_denied"

    def __init__(self, tool: str, approval: str, why: str) -> None:
        super().__init__(f"The call of {tool} was not approved, and the tool did not run: {why}")
        self.approval = approval or None


class ApprovalExpired(CallerFault):
    """Nobody decided about the call in time."""

    reason = "approval_expired"

    def __init__(self, tool: str, approval: str, seconds: float) -> None:
        super().__init__(
            f"Nobody decided about {tool} (approval {approval}) within {seconds:g} s; the tool did not run. "
            "Call it again to ask again"
        )
        self.approval = approval


class TooManyApprovals(CallerFault):
    """As many calls wait for approval as allowed, of this caller or in all."""

    reason = "too_many_approvals"

    def __init__(self, holder: str, held: str, most: str) -> None:
        super().__init__(
            f"Too many calls wait for approval: {holder} {held}, and the limit is {most}. "
            "The tool did not run; call it again when an operator has decided about some of them"
        )


class Cancelled(CallerFault):
    """The caller cancelled the call, or disconnected."""

    reason = "cancelled"

    def __init__(self, why: str, *, executed: Executed, server: ServerName | None = None) -> None:
        super().__init__(f"Cancelled: {why}", server=server, executed=executed)


class Unanswered(CallerFault):
    """The server asked the caller something and got no usable answer."""

    reason = "unanswered"

    def __init__(self, server: ServerName, why: str) -> None:
        super().__init__(f"Server {server} requested input: {why}", server=server)
        self.why = why


class BadState(CallerFault):
    """The caller sent answers to a question that it was never asked, or that is answered already.

    Nothing was sent; but the question may belong to a call that ran, about which nothing is known now.
    """

    reason = "bad_state"

    def __init__(self) -> None:
        super().__init__("Invalid or expired requestState")


class UpstreamFault(Fault):
    """The server's fault. It counts against the server, unless the server never got the call or answered it."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.is_server_failure = FAULTS[cls.reason].executed in (None, "unknown")


class NotConnected(UpstreamFault):
    """There is no link to the server, or the server rejected the request before running it."""

    reason = "not_connected"

    def __init__(self, server: ServerName, why: str, *, status: int | None = None, login: str | None = None) -> None:
        super().__init__(f"Server {server} is not connected: {without_locations(why)}", server=server)
        self.why = why
        self.status = status
        """The HTTP status with which the server rejected the request, if it did."""
        self.login = login
        """The URL of the server's protected resource metadata, if it requires a login."""


class Overloaded(UpstreamFault):
    """The server has as many running and queued calls as allowed."""

    reason = "overloaded"

    def __init__(self, server: ServerName, running: int, queued: int, why: str = "") -> None:
        more = f"; {why}" if why else ""
        super().__init__(f"Server {server} is busy: {running} calls running, {queued} waiting{more}", server=server)
        self.retry_after = 1.0


class TooManyTargets(UpstreamFault):
    """As many servers at caller-named addresses are in use as allowed."""

    reason = "too_many_targets"

    def __init__(self, used: int) -> None:
        super().__init__(f"Too many target addresses are in use: {used}")
        self.retry_after = 1.0


class BreakerOpen(UpstreamFault):
    """The server failed too often; it gets no calls for a moment."""

    reason = "breaker_open"

    def __init__(self, server: ServerName, retry_after: float) -> None:
        super().__init__(f"Server {server} failed too often; next try in {retry_after:.1f} s", server=server)
        self.retry_after = retry_after


class ServerError(UpstreamFault):
    """The server answered with a JSON-RPC error, which reaches the caller unchanged.

    The error of another hub has that hub's words about the call: `reason`, `executed`, `retry_after`, `approval`.
    """

    reason = "server_error"
    is_of_hub = False
    """The server is a hub, whose words about the call are in `data`."""

    def __init__(self, server: ServerName, code: int, message: str, data: msgspec.Raw | None = None) -> None:
        super().__init__(message, server=server)
        self.code = code
        self.data = data


class BadReply(UpstreamFault):
    """The server's response is not valid."""

    reason = "bad_reply"

    def __init__(self, server: ServerName, detail: str) -> None:
        super().__init__(f"Server {server} sent an invalid response: {detail}", server=server)
        self.why = detail


class Lost(UpstreamFault):
    """The link broke during the call."""

    reason = "lost"

    def __init__(self, server: ServerName, detail: str, *, executed: Executed, is_behind: bool = False) -> None:
        message = f"Lost server {server} during the call: {without_locations(detail)}"
        super().__init__(message, server=server, executed=executed)
        self.why = detail
        self.is_behind = is_behind
        """A hub behind the link lost it; the link itself works."""


class TimedOut(UpstreamFault):
    """The server did not respond before the deadline; the hub sent it a cancellation."""

    reason = "timed_out"

    def __init__(self, server: ServerName, seconds: float, *, executed: Executed) -> None:
        super().__init__(f"Server {server} did not answer within {seconds:g} s", server=server, executed=executed)


class OwnFault(Fault):
    """The hub itself is at fault, or is shutting down."""


class Draining(OwnFault):
    """The hub is shutting down and accepts no new calls."""

    reason = "draining"

    def __init__(self) -> None:
        super().__init__("The hub is shutting down")
        self.retry_after = 1.0


class NodeLost(OwnFault):
    """Another node of the cluster has what the request belongs to, and does not answer."""

    reason = "node_lost"

    def __init__(self, detail: str, *, executed: Executed) -> None:
        what = "cannot be reached" if executed == "no" else "was lost during the request"
        super().__init__(f"Another node of the hub {what}: {without_locations(detail)}", executed=executed)
        self.retry_after = 1.0 if executed == "no" else None


class NotWritten(OwnFault):
    """The journal did not store what must be stored first, or cannot say what it has."""

    reason = "not_written"

    def __init__(self, message: str, *, executed: Executed | None = None) -> None:
        super().__init__(message, executed=executed)
        self.retry_after = 1.0


class Bug(OwnFault):
    """A defect of the hub; the incident id is in its log with the traceback."""

    reason = "internal"

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


_KINDS: Mapping[str, type[Fault]] = {leaf.reason: leaf for leaf in leaves()}


def restored_fault(
    reason: str, message: str, *, server: ServerName | None, executed: Executed, retry_after: float | None
) -> Fault:
    """A fault that was stored, or that another process reported. An unknown reason becomes `Lost`."""
    kind = _KINDS.get(reason, Lost)
    # Without the subclass's `__init__`: the message is known, the arguments that it was built from are not.
    fault = kind.__new__(kind, message)
    Fault.__init__(fault, message, server=server, executed=executed)
    fault.retry_after = retry_after
    return fault
