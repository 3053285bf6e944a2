"""Noting which tasks callers are given, and how these stand, from what servers answer. Called by waiters."""

from __future__ import annotations

from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports.exchange import Lasting
from isthmus.core.ports.link import Placed
from isthmus.core.watch.tasks import Place
from isthmus.model.calls import TASK_KINDS
from isthmus.model.names import ServerName
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.tasks import read_state


def note(inflight: InFlight, server: ServerName, answer: Payload) -> None:
    """Note what a server's answer says of a task, before the call ends with it."""
    tasks = None if inflight.server_queue is None else inflight.server_queue.tasks
    state = read_state(answer)
    if tasks is None or state is None:
        return
    call, place = inflight.call, _place_of(inflight)
    if call.kind not in TASK_KINDS:
        exchange, request = inflight.exchange, _request_of(inflight)
        report = exchange.reporter() if request >= 0 and isinstance(exchange, Lasting) else None
        tasks.made(call.caller, server, place, state, session=call.session, request=request, report=report)
    elif state.id == inflight.name:  # a server that answers with another's says nothing of this one
        tasks.answered(call.caller, server, place, state)


def _place_of(inflight: InFlight) -> Place | None:
    link: object = inflight.link
    return link.place_of(inflight) if isinstance(link, Placed) else None


def _request_of(inflight: InFlight) -> int:
    """The id of a call's request; links keep it, or what has it."""
    id = getattr(inflight.carriage, "id", inflight.carriage)
    return id if isinstance(id, int) else -1
