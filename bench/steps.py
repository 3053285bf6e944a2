"""How many steps the interpreter takes for a piece of work: its instructions, and its calls of functions in C.

Seconds say what a caller pays, and differ by half between two machines for the same code. Steps are the same on each,
whatever else runs there, for one version of Python: too coarse to say what something costs, since all count alike, and
fine enough to see that a call has begun to do something more. `bench.gate` compares both.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from bench.collecting import no_collection
from bench.scenarios import Scenario, Work

WARM_UPS = 3
"""Repetitions before the one that is counted: the first ones fill caches, and import what is imported late."""


TOOL = 4
"""By which the interpreter knows who counts; none of those that debuggers, coverage and profilers have."""


def count(scenarios: Mapping[str, Scenario]) -> dict[str, float]:
    """Return the steps of one repetition of each scenario."""
    return {name: float(steps_of(made)) for name, made in scenarios.items()}


def steps_of(made: Scenario) -> int:
    """Return the steps of one repetition."""
    with made() as work:
        for _ in range(WARM_UPS):
            work()
        with no_collection():
            return _counted(work)


def _counted(work: Work) -> int:
    if sys.version_info >= (3, 12):
        return _monitored(work)
    return _traced(work)


def _traced(work: Work) -> int:
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        steps += event == "opcode"
        return trace

    def client_caps(_frame: FrameType, event: str, _: Any) -> None:
        nonlocal steps
        steps += event == "c_call"

    watching = sys.gettrace(), sys.getprofile()
    sys.setprofile(client_caps)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(watching[0])
        sys.setprofile(watching[1])
    return steps


if sys.version_info >= (3, 12):

    def _monitored(work: Work) -> int:
        """For 3.12 and later, where tracing is told of some instructions only. Calls of Python functions count, too."""
        steps = 0

        def count_one(*_: object) -> None:
            nonlocal steps
            steps += 1

        events = sys.monitoring.events
        sys.monitoring.use_tool_id(TOOL, __name__)
        for event in (events.INSTRUCTION, events.CALL):
            sys.monitoring.register_callback(TOOL, event, count_one)
        sys.monitoring.set_events(TOOL, events.INSTRUCTION | events.CALL)
        try:
            work()
        finally:
            sys.monitoring.set_events(TOOL, events.NO_EVENTS)
            sys.monitoring.free_tool_id(TOOL)
        return steps
