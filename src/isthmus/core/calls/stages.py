"""What every call passes before it is sent: small synchronous functions that return None or the fault.

Adding a capability is adding a stage to `STAGES`, not a branch to another one. Stages only decide and note what
they found on the in-flight entry; sending is the lane's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from isthmus.core.calls.inflight import InFlight
from isthmus.model.faults import BadArguments, Draining, Fault, NotConnected, UnknownTool

if TYPE_CHECKING:
    from isthmus.core.calls.hub import Hub

Stage: TypeAlias = "Callable[[Hub, InFlight], Fault | None]"


def admit(hub: Hub, _: InFlight) -> Fault | None:
    """A hub that is going away takes nothing new."""
    return Draining() if hub.is_draining else None


def find(hub: Hub, inflight: InFlight) -> Fault | None:
    """Look the name up in the caller's own view, which is also what the caller was shown.

    A tool that the caller may not see is not in the view: denied and unknown are one answer.
    """
    call = inflight.call
    inflight.route = hub.snapshot.view(call.caller.grants, call.surface).routes.get(call.name)
    return UnknownTool(call.name) if inflight.route is None else None


def assign(hub: Hub, inflight: InFlight) -> Fault | None:
    """Find the lane of the tool's server and start the clock."""
    server = inflight.tool.tool.server
    lane = hub.lanes.get(server)
    if lane is None:
        return NotConnected(server, "it was removed")
    wanted = inflight.call.timeout
    inflight.limit(lane.timeout if wanted is None else min(wanted, lane.timeout), hub.deadlines)
    inflight.lane = lane
    return None


def validate(_: Hub, inflight: InFlight) -> Fault | None:
    """Check the arguments against the tool's own schema."""
    detail = inflight.tool.check(inflight.call.arguments)
    return None if detail is None else BadArguments(inflight.call.name, detail)


def submit(_: Hub, inflight: InFlight) -> Fault | None:
    """Hand the call to its lane, which sends, queues or refuses it."""
    assert inflight.lane is not None
    return inflight.lane.submit(inflight)


STAGES: tuple[Stage, ...] = (admit, find, validate, assign, submit)
