"""What every call passes before it is sent: small synchronous functions that return None or how the call ends.

Adding a capability is adding a stage to `STAGES`, not a branch to another one. Stages only decide and note what
they found on the in-flight entry; sending is the lane's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.catalog.defaults import fill_defaults
from isthmus.core.catalog.schema import EXPENSIVE
from isthmus.core.catalog.view import View
from isthmus.model.calls import Call, Outcome
from isthmus.model.faults import (
    BadArguments,
    Draining,
    Fault,
    NotConnected,
    ServerError,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
)

if TYPE_CHECKING:
    from isthmus.core.calls.hub import Hub

Stage: TypeAlias = "Callable[[Hub, InFlight], Outcome | None]"

METHOD_NOT_FOUND = -32601
"""What servers say of a method that they do not have, in the protocol of all of them."""


def admit(hub: Hub, _: InFlight) -> Fault | None:
    """A hub that is going away takes nothing new."""
    return Draining() if hub.is_draining else None


def find(hub: Hub, inflight: InFlight) -> Fault | None:
    """Look the name up in the caller's own view, which is also what the caller was shown.

    A tool that the caller may not see is not in the view: denied and unknown are one answer. What a server has that was
    never reached is not known; a caller that may use the tool is told that the server is down.
    """
    call = inflight.call
    if call.kind == "tool":  # nearly all are, and spared the detour
        route = hub.snapshot.find_tool(call.caller.grants, call.surface, call.client_caps, call.name)
        if route is None:
            if call.surface.style == "llm":  # only there names have aliases
                route = hub.snapshot.view(call.caller.grants, call.surface, call.client_caps).by_alias(call.name)
            if route is None:
                return hub.unreached(call.caller.grants, call.surface, call.name) or UnknownTool(call.name)
        inflight.route = route
        inflight.name = route.feature.name
        return None
    view = hub.snapshot.view(call.caller.grants, call.surface, call.client_caps)
    found = view.find(call.kind, call.name)
    if found is None:
        return _unknown(call, view)
    inflight.route, inflight.name = found.route, found.name
    return _refused_method(hub, inflight) if call.kind == "method" else None


def _refused_method(hub: Hub, inflight: InFlight) -> Fault | None:
    """A server that is no MCP server, such as the hub's own functions, has no methods: said in its place."""
    server = inflight.target.feature.server
    server_queue = hub.server_queues.get(server)
    if server_queue is None or server_queue.takes_methods:
        return None
    return ServerError(server, METHOD_NOT_FOUND, f"Method not found: {inflight.name}")


def _unknown(call: Call, view: View) -> Fault:
    match call.kind:
        case "tool" | "method":
            return UnknownTool(call.name)
        case "prompt" | "prompt_argument":
            return UnknownPrompt(call.name)
        case "resource" | "uri_argument":
            return UnknownResource(call.name, view.candidates(call.name))
        case "task" | "task_result" | "task_cancel" | "task_update":
            server = call.surface.server
            return UnknownTool(call.name) if server is None else NotConnected(server, "it was removed")


def fill(_: Hub, inflight: InFlight) -> Fault | None:
    """Add the arguments that the operator gave and the caller left out."""
    route = inflight.route
    assert route is not None  # not `target`: as a property it costs more than the rest of this
    if route.defaults:
        arguments = fill_defaults(inflight.call.arguments, route.defaults)
        inflight.call = msgspec.structs.replace(inflight.call, arguments=arguments)
    return None


def recall(hub: Hub, inflight: InFlight) -> Outcome | None:
    """Answer with what was answered before, where that is allowed; else see to it that the answer is kept."""
    route = inflight.route
    assert route is not None
    if not route.keep_seconds and inflight.call.kind != "resource":
        return None
    known = hub.recall.find(inflight, hub.now())
    if known is None:
        inflight.keep = hub.keep
    return known


def assign(hub: Hub, inflight: InFlight) -> Fault | None:
    """Find the lane of the tool's server and start the clock."""
    assert inflight.route is not None
    server = inflight.route.feature.server
    server_queue = hub.server_queues.get(server)
    if server_queue is None:
        return NotConnected(server, "it was removed")
    call = inflight.call
    tenant, tenants = call.caller.tenant, hub.tenants
    if tenant != tenants.uncounted:
        if (refused := tenants.enter(tenant, hub.limits.tenant_calls)) is not None:
            return refused
        inflight.counted_by = tenants
    wanted = call.timeout
    # The result of a task is waited for as long as the task takes.
    longest = hub.limits.hard_seconds if call.lasts or call.kind == "task_result" else server_queue.timeout
    inflight.limit(longest if wanted is None else min(wanted, longest), hub.deadlines)
    inflight.server_queue = server_queue
    return None


def validate(hub: Hub, inflight: InFlight) -> Fault | None:
    """Check the arguments against the tool's own schema; `submit` has those checked that take long."""
    assert inflight.route is not None
    detail = inflight.route.check(inflight.call.arguments)
    if detail is None:
        return None
    if detail is EXPENSIVE and hub.validation is not None:
        inflight.carriage = EXPENSIVE
        return None
    return BadArguments(inflight.call.name, detail)


def submit(hub: Hub, inflight: InFlight) -> Fault | None:
    """Hand the call to its lane, which sends, queues or refuses it; or first to who has to write it down."""
    assert inflight.server_queue is not None
    if inflight.carriage is EXPENSIVE:
        assert hub.validation is not None
        inflight.carriage = None
        hub.validation.validate(inflight, hub.submit)
        return None
    if hub.audit_gate is not None:
        hub.audit_gate.begin(inflight, hub.send)
        return None
    return inflight.server_queue.submit(inflight)


STAGES: tuple[Stage, ...] = (admit, find, fill, validate, recall, assign, submit)
