"""Spans of calls: one for the caller's request (SERVER) and one for the request to the server (CLIENT), if it was sent.

A call pays for two random ids when it starts and for one tuple when it ends; names, attributes and bytes are made by
the exporter (`telemetry.otlp`), some seconds later. Names and attributes follow OpenTelemetry's conventions for MCP and
generative AI, which are still in development: all of them are in this module. Arguments, results, URIs of resources,
callers and session ids are never exported. Used as the hub's recorder while OTLP is on. docs/decisions/telemetry.md
says why it does not use OpenTelemetry's SDK.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports import Recorder
from isthmus.model.calls import Kind, Outcome
from isthmus.model.faults import FAULTS, Fault
from isthmus.model.names import ServerName
from isthmus.model.trace_context import TRACEPARENT, SpanContext, parent_of, parse_traceparent, state_of
from isthmus.telemetry.protobuf import Attributes, SpanKind, encode_attributes, encode_link, encode_span
from isthmus.wire.mcp.calls import METHODS

NAME_LENGTH_MAX = 200
CACHED_MAX = 4_096
"""Encoded names and attributes; tools, outcomes and frontends are few, and the rest is made anew."""

MCP_FRONTENDS = frozenset({"mcp", "sse", "stdio", "relay"})

NETWORK: dict[str, Attributes] = {
    "mcp": {"network.transport": "tcp", "network.protocol.name": "http"},
    "sse": {"network.transport": "tcp", "network.protocol.name": "http"},
    "rest": {"network.transport": "tcp", "network.protocol.name": "http"},
    "a2a": {"network.transport": "tcp", "network.protocol.name": "http"},
    "http": {"network.transport": "tcp", "network.protocol.name": "http"},
    "rpc": {"network.transport": "tcp", "network.protocol.name": "http"},
    "agent": {"network.transport": "tcp", "network.protocol.name": "http"},
    "relay": {"network.transport": "tcp", "network.protocol.name": "websocket"},
    "websocket": {"network.transport": "tcp", "network.protocol.name": "websocket"},
    "dial-in": {"network.transport": "tcp", "network.protocol.name": "websocket"},
    "stdio": {"network.transport": "pipe"},
}
"""By frontend, and by the transport of a server."""

SamplerName: TypeAlias = Literal["always_on", "always_off", "traceidratio"]


class Sampler(NamedTuple):
    """Decides which calls are traced. With `is_parent_based`, a caller that has decided decides."""

    name: SamplerName = "always_on"
    ratio: float = 1.0
    is_parent_based: bool = True

    def decides(self, trace_id: int, parent: SpanContext | None) -> bool:
        """Whether a call is traced; without a `parent` it begins a trace."""
        if self.is_parent_based and parent is not None:
            return parent.is_sampled
        if self.name == "traceidratio":
            # As OpenTelemetry's SDKs do, so that they agree about a trace.
            return (trace_id & 0xFFFF_FFFF_FFFF_FFFF) < self.ratio * 2**64
        return self.name == "always_on"


class Trace:
    """What is kept of a traced call until it ends."""

    __slots__ = ("client_id", "link", "parent_id", "sent", "server_id", "started", "state", "trace_id")

    def __init__(self, trace_id: bytes, server_id: bytes, client_id: bytes) -> None:
        self.trace_id = trace_id
        self.server_id = server_id
        self.client_id = client_id
        self.parent_id = b""
        self.state = ""
        self.link = ""
        self.started = self.sent = time.time_ns()
        """`sent` is later if the call had to wait."""


class TracedCall(NamedTuple):
    """A traced call that has ended; the arguments and the result are not kept."""

    trace: Trace
    ended: int
    about: CallAbout


class CallAbout(NamedTuple):
    """What the names and attributes of a call's spans depend on."""

    name: str
    """As the caller named it."""
    own_name: str
    """As its server does."""
    kind: Kind
    frontend: str
    server: ServerName | None
    carrier: str | None
    """The transport of its server; None if the call was not sent."""
    outcome: str
    executed: str


class TracingRecorder:
    """See `core.ports.Recorder`. Traces calls and forwards them; on the path of every call while OTLP is on."""

    def __init__(
        self,
        recorder: Recorder,
        sampler: Sampler,
        on_ended: Callable[[TracedCall], None],
        carrier_of: Callable[[ServerName], str | None],
    ) -> None:
        self._count = recorder.ended
        self._waited = recorder.waited
        self.late = recorder.late
        self.audit_gate = recorder.audit_gate
        self._sampler = sampler
        self._on_ended = on_ended
        self._carrier_of = carrier_of
        self.started: Callable[[InFlight], None] | None = self._start
        # Ids need to be unique and not secret: this takes a tenth of the time that the system's generator takes.
        self._bits = random.Random(os.urandom(32)).getrandbits  # noqa: S311

    def _start(self, inflight: InFlight) -> None:
        """Begin the spans of a call, and pass their context on to its server."""
        call = inflight.call
        meta = call.meta
        parent = parent_of(meta) if TRACEPARENT in meta else None
        if parent is None and inflight.within is not None and (outer := inflight.within()) is not None:
            parent = parent_of(outer.call.meta)  # a function of this process makes this call
        trace_id = self._bits(128) or 1 if parent is None else int(parent.trace_id, 16)
        is_sampled = self._sampler.decides(trace_id, parent)
        if not is_sampled and parent is not None and not parent.is_sampled:
            return  # passed on as it is
        client_id = (self._bits(64) or 1).to_bytes(8, "big")
        context = f'"00-{trace_id:032x}-{client_id.hex()}-0{int(is_sampled)}"'
        inflight.call = msgspec.structs.replace(call, meta={**meta, TRACEPARENT: msgspec.Raw(context.encode())})
        if not is_sampled:
            return
        trace = Trace(trace_id.to_bytes(16, "big"), (self._bits(64) or 1).to_bytes(8, "big"), client_id)
        if parent is not None:
            trace.parent_id = bytes.fromhex(parent.span_id)
            trace.state = state_of(meta)
        trace.link = call.linked_trace
        inflight.trace = trace

    def waited(self, inflight: InFlight, seconds: float) -> None:
        """The request to the server begins now."""
        if isinstance(inflight.trace, Trace):
            inflight.trace.sent = time.time_ns()
        self._waited(inflight, seconds)

    def ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Hand the spans of a call over."""
        self._count(inflight, server, outcome, seconds)
        trace = inflight.trace
        if not isinstance(trace, Trace):
            return
        call, was_sent = inflight.call, inflight.was_sent
        if isinstance(outcome, Fault):
            word: str = outcome.reason
            executed: str = outcome.executed
        else:
            word = "tool_error" if outcome.is_error else "ok"
            executed = "yes" if was_sent else "no"
        carrier = (self._carrier_of(server) or "unknown") if was_sent and server is not None else None
        about = CallAbout(call.name, inflight.name, call.kind, call.frontend, server, carrier, word, executed)
        self._on_ended(TracedCall(trace, time.time_ns(), about))


# -- names and attributes ----------------------------------------------------------------------------------------------


class SpanTexts(NamedTuple):
    """The part of a span that many calls share, encoded."""

    server: bytes
    client: bytes | None


class SpanEncoder:
    """Encodes ended calls, for the exporter."""

    def __init__(self) -> None:
        self._cache: dict[CallAbout, SpanTexts] = {}

    def encode(self, call: TracedCall) -> list[bytes]:
        """The spans of one call."""
        trace, ended, about = call
        texts = self._cache.get(about)
        if texts is None:
            if len(self._cache) >= CACHED_MAX:
                self._cache.clear()
            texts = self._cache[about] = SpanTexts(_server_part(about), _client_part(about))
        ids = trace.trace_id, trace.server_id, trace.parent_id
        linked = parse_traceparent(trace.link) if trace.link else None
        link = b"" if linked is None else encode_link(bytes.fromhex(linked.trace_id), bytes.fromhex(linked.span_id))
        spans = [encode_span(*ids, trace.started, ended, texts.server, trace.state, link)]
        if texts.client is not None:
            ids = trace.trace_id, trace.client_id, trace.server_id
            spans.append(encode_span(*ids, trace.sent, ended, texts.client, trace.state))
        return spans


def _server_part(about: CallAbout) -> bytes:
    """The span of the caller's request: by MCP its method, by other frontends what is done."""
    method = METHODS.get(about.kind, about.own_name)
    tool = about.name[:NAME_LENGTH_MAX]
    attributes: Attributes = {}
    if about.frontend in MCP_FRONTENDS:
        attributes["mcp.method.name"] = method[:NAME_LENGTH_MAX]
        name = method
    else:
        name = "execute_tool" if about.kind == "tool" else method
    name += _named(about.kind, tool, attributes)
    attributes |= NETWORK.get(about.frontend, {})
    attributes |= {
        "isthmus.frontend": about.frontend or "hub",
        "isthmus.outcome": about.outcome,
        "isthmus.executed": about.executed,
    }
    if about.server is not None:
        attributes["isthmus.server"] = about.server
    is_failed = _failure(about.outcome, attributes)
    return encode_attributes(name[:NAME_LENGTH_MAX], SpanKind.SERVER, attributes, is_error=is_failed)


def _client_part(about: CallAbout) -> bytes | None:
    """The span of the request to the server; None if there was none."""
    if about.carrier is None or about.server is None:
        return None
    kind = SpanKind.CLIENT
    attributes: Attributes = {"isthmus.server": about.server, **NETWORK.get(about.carrier, {})}
    if about.carrier == "agent":
        attributes |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": about.server}
        name = f"invoke_agent {about.server}"
    elif about.carrier == "rpc":
        attributes |= {"rpc.system.name": "jsonrpc", "rpc.method": about.own_name[:NAME_LENGTH_MAX]}
        name = about.own_name
    elif about.carrier == "python":
        kind = SpanKind.INTERNAL
        name = "execute_tool" + _named(about.kind, about.own_name[:NAME_LENGTH_MAX], attributes)
    else:
        method = METHODS.get(about.kind, about.own_name)[:NAME_LENGTH_MAX]
        attributes["mcp.method.name"] = method
        name = method + _named(about.kind, about.own_name[:NAME_LENGTH_MAX], attributes)
    is_failed = _failure(about.outcome, attributes)
    return encode_attributes(name[:NAME_LENGTH_MAX], kind, attributes, is_error=is_failed)


def _named(kind: Kind, name: str, attributes: Attributes) -> str:
    """Add what a tool or prompt is called; returns what the span's name has of it. URIs may be secrets."""
    if kind == "tool":
        attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    elif kind == "prompt":
        attributes["gen_ai.prompt.name"] = name
    else:
        return ""
    return f" {name}"


def _failure(outcome: str, attributes: Attributes) -> bool:
    if outcome == "ok":
        return False
    attributes["error.type"] = outcome
    if outcome in FAULTS:
        attributes["rpc.response.status_code"] = str(FAULTS[outcome].mcp)
    return True
