from __future__ import annotations

import pytest

from isthmus.library import ToolRequest, ToolResult, ToolService, tool
from isthmus.library.streaming import Execution
from isthmus.model.calls import Event, Outcome


class OutcomeRecorder:
    """Takes what happens to a call."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def emit(self, event: Event) -> None: ...

    def end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_a_call_is_started_unless_it_was_cancelled_before(*, is_wanted: bool) -> None:
    ran: list[str] = []

    @tool(inline=True)
    def note(text: str) -> str:
        """Remember a text."""
        ran.append(text)
        return text

    received = OutcomeRecorder()
    try:
        async with ToolService() as service:
            loop_thread, engine = service._open_engine()
            request = ToolRequest("builtin.note", parameters={"text": "mine"})
            prepared = service._make_call(engine, await service.catalog(), request, is_streamed=False)
            assert not isinstance(prepared, ToolResult)
            execution = Execution(engine.running.hub, prepared[1], received, loop_thread, None)
            if not is_wanted:
                await loop_thread.call_async(execution.cancel)
            await loop_thread.call_async(execution.start)
    finally:
        tool.remove(note)

    assert ran == (["mine"] if is_wanted else [])
    assert len(received.outcomes) == len(ran)
