"""One MCP call's exchange with its caller, on any transport (see `core.ports.Exchange`), and the messages it sends.

`McpExchange` decides which events are sent and how questions and the outcome are written in the caller's era. The
transports subclass it: `http.McpHttpExchange` and the exchange in `duplex`. The codes of faults are in
`model.fault_table`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import msgspec

from isthmus.core.calls.running_call import InFlight
from isthmus.core.ports import ReportProgress
from isthmus.frontends.mcp.tasks import with_public_id, with_public_related
from isthmus.model.calls import (
    NOT_ASKED,
    Call,
    Event,
    Kind,
    LogLevel,
    LogMessage,
    OnReply,
    Outcome,
    Progress,
    Question,
    Result,
    is_at_least,
)
from isthmus.model.fault_table import Cancelled, Fault, ServerError, UnknownResource, code_row
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, notification, object_members, render
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.forwarded_methods import COMPLETED, ELICITATION_ID, wrap_bare_result
from isthmus.wire.mcp.messages import LOGGED, PROGRESS, UPDATED, Era, progress_params


class JsonRpcReply(msgspec.Struct, frozen=True):
    """A rendered JSON-RPC response; `code` is its error code, or None for a result."""

    text: jsonrpc.Text
    code: int | None = None

    @property
    def body(self) -> bytes:
        """The response in one piece."""
        return jsonrpc.joined(self.text)


def refuse(id: Payload | None, code: int, message: str, data: Payload | None = None) -> JsonRpcReply:
    """An error response."""
    return JsonRpcReply(jsonrpc.error(id, code, message, data), code)


def reject(id: Payload | None, rejection: modern.Rejection) -> JsonRpcReply:
    """The error response to a request that is refused before its method is read."""
    return refuse(id, rejection.code, rejection.message, rejection.data)


def cancelled_reply(id: Payload) -> JsonRpcReply:
    """The response to a call that its caller cancelled before it was started."""
    return call_reply(id, Cancelled("by the caller", executed="no"), "legacy")


def call_reply(
    id: Payload, outcome: Outcome, era: Era, kind: Kind = "tool", *, is_for_node: bool = False
) -> JsonRpcReply:
    """The response to a call with this outcome, in the caller's era.

    Another node gets a result as the server wrote it, and writes it for its own caller.
    """
    if isinstance(outcome, Fault):
        code = code_of(outcome, era)
        return JsonRpcReply(jsonrpc.error(id, code, outcome.message, data_of(outcome)), code)
    if outcome.is_bare:
        outcome = wrap_bare_result(outcome)
    payload: Payload = outcome.payload
    # Results are always objects here, so translation cannot fail.
    if era == "modern" and not outcome.is_typed and not is_for_node:
        if outcome.is_untyped and kind != "resource":
            return JsonRpcReply(jsonrpc.result_of_parts(id, *modern.typed(payload)))
        parts = modern.modern_parts(payload, is_cacheable=kind == "resource")
        return JsonRpcReply(jsonrpc.result_of_parts(id, *(parts or (payload,))))
    if era == "legacy" and outcome.is_typed:
        payload = modern.as_legacy(payload) or payload
    return JsonRpcReply(jsonrpc.result_of_parts(id, payload))


HUB_MEMBERS = frozenset({"executed", "reason", "server", "retryAfter", "approval"})
"""Members of an error's data that only the hub may set."""


def code_of(fault: Fault, era: Era = "modern") -> int:
    """The JSON-RPC code of a fault. A server's own error keeps its own code."""
    if isinstance(fault, ServerError):
        return fault.code
    row = code_row(fault.reason, fault.executed)
    return row.mcp if era == "modern" or row.mcp_legacy is None else row.mcp_legacy


def data_of(fault: Fault) -> bytes:
    """The fault's details for programs, beside a server's own."""
    details = fault.details()
    if isinstance(fault, UnknownResource):
        details["uri"] = fault.uri
    if not isinstance(fault, ServerError) or fault.data is None:
        return msgspec.json.encode(details)
    own = object_members(fault.data)
    if own is not None and fault.is_of_hub:
        own = {key: value for key, value in own.items() if key not in HUB_MEMBERS}
    if own is None or not own.keys().isdisjoint(HUB_MEMBERS):
        own = {"data": fault.data}
    members: dict[str, Payload] = {**own}
    members.update((key, msgspec.json.encode(value)) for key, value in details.items())
    return render(members)


def event_notification(event: Event, token: Payload | None) -> bytes | None:
    """The notification for an event of a call. Progress needs the caller's progress token; without one it is None."""
    if isinstance(event, Progress):
        return None if token is None else jsonrpc.notification(PROGRESS, progress_params(token, event.members))
    return jsonrpc.notification(LOGGED, render(event.members))


def updated_params(uri: str) -> dict[str, Payload]:
    """The parameters of `notifications/resources/updated`."""
    return {"uri": msgspec.json.encode(uri)}


def updated_notification(uri: str) -> bytes:
    """`notifications/resources/updated` for one resource."""
    return jsonrpc.notification(UPDATED, render(updated_params(uri)))


class AskableExchange(Protocol):
    """An exchange whose caller can be asked: by a request, or by ending the call with `input_required`."""

    call: Call
    inflight: InFlight | None

    def emit(self, event: Event) -> None:
        """See `core.ports.Exchange`."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """See `core.ports.Exchange`."""

    def end(self, outcome: Outcome) -> None:
        """See `core.ports.Exchange`."""

    def send(self, message: bytes) -> None:
        """Send the caller a message while the call runs."""

    def send_request(self, id: bytes, message: bytes) -> None:
        """Send the caller a request with this id. A caller that reconnects gets it again until `settle_request`."""

    def settle_request(self, id: bytes) -> None:
        """A request was answered or is no longer needed."""


class ClientInput(Protocol):
    """Asks callers of one era for input. See `input_required`."""

    def ask(self, exchange: AskableExchange, question: Question, reply: OnReply) -> None:
        """Ask the caller a server's question; `reply` is called once, now or later."""

    def retract(self, exchange: AskableExchange, reply: OnReply) -> None:
        """Cancel the question that came with this `reply`, and notify the caller if possible."""

    def outlive(self, reply: OnReply, send: Callable[[bytes], None] | None) -> Callable[[], None] | None:
        """The call ends but the question that came with this `reply` stays open: keep nothing of the call.

        Returns what cancels the question. `send` delivers droppable messages to the caller, if anything can.
        """

    def seal(self, call: Call, result: Result) -> Outcome:
        """A server's `input_required` result with its state sealed for this caller, or why that is impossible."""


class McpExchange(ABC):
    """One call's caller. Subclasses set the slots in their own `__init__`: a `super()` call would cost every call."""

    __slots__ = ("_client_input", "_era", "_id", "_level", "_token", "call", "inflight")

    _client_input: ClientInput | None
    """How to ask the caller; None if it cannot be asked."""
    _era: Era
    _id: Payload
    _level: LogLevel | None
    """Log messages from this level on are sent; None for no log messages."""
    _token: Payload | None
    """The caller's progress token, if it gave one and its connection can carry progress."""
    call: Call
    inflight: InFlight | None
    """The running call, where it may be suspended until its caller returns with input."""

    @abstractmethod
    def emit(self, event: Event) -> None:
        """See `core.ports.Exchange`."""

    @abstractmethod
    def end(self, outcome: Outcome) -> None:
        """See `core.ports.Exchange`."""

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Send the caller a message while the call runs."""

    def send_request(self, id: bytes, message: bytes) -> None:
        """See `AskableExchange`. Most streams cannot be resumed, so nothing is stored."""
        self.send(message)

    def settle_request(self, id: bytes) -> None:  # noqa: B027 - nothing is stored by default
        """See `AskableExchange`."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Ask the caller, in its era's way."""
        if self._client_input is None:
            reply(NOT_ASKED)
        else:
            self._client_input.ask(self, question, reply)

    def retract(self, reply: OnReply) -> None:
        """See `core.ports.RetractingExchange`."""
        if self._client_input is not None:
            self._client_input.retract(self, reply)

    def retract_later(self, reply: OnReply) -> Callable[[], None] | None:
        """See `core.ports.RetractingExchange`."""
        return None if self._client_input is None else self._client_input.outlive(reply, self._late_send())

    def elicitation_completed(self, id: msgspec.Raw) -> None:
        """See `core.ports.ElicitationExchange`. The modern era has no such notification."""
        if self._era == "legacy":
            self.send(_elicitation_complete(id))

    def done_later(self) -> Callable[[msgspec.Raw], None] | None:
        """See `core.ports.ElicitationExchange`."""
        send = self._late_send() if self._era == "legacy" else None
        return None if send is None else lambda id: send(_elicitation_complete(id))

    def reporter(self) -> ReportProgress | None:
        """See `core.ports.LateProgressExchange`."""
        send = self._late_send()
        if send is None or self._token is None:
            return None
        # It outlives the call, so it must not hold this exchange.
        token, caller = bytes(self._token), self.call.caller

        def report(event: Progress) -> None:
            message = event_notification(with_public_related(event, caller), token)
            if message is not None:
                send(message)

        return report

    def _late_send(self) -> Callable[[bytes], None] | None:
        """How to send droppable messages after the call has ended; None if that is impossible."""
        return None

    def _render_event(self, event: Event) -> bytes | None:
        """An event as a notification; None if the caller did not ask for such events."""
        if isinstance(event, LogMessage) and (self._level is None or not is_at_least(event.level, self._level)):
            return None
        return event_notification(with_public_related(event, self.call.caller), self._token)

    def _reply_to(self, outcome: Outcome) -> JsonRpcReply:
        """The response to the call, in the caller's era."""
        self.inflight = None  # breaks the reference cycle between the two
        if isinstance(outcome, Result):
            if outcome.asked_by and self._client_input is not None:
                outcome = self._client_input.seal(self.call, outcome)
            if isinstance(outcome, Result) and outcome.task_of is not None:
                outcome = with_public_id(outcome, self.call.caller, outcome.task_of)
        return call_reply(self._id, outcome, self._era, self.call.kind, is_for_node=self.call.is_admitted)


def _elicitation_complete(id: msgspec.Raw) -> bytes:
    return notification(COMPLETED, render({ELICITATION_ID: id}))
