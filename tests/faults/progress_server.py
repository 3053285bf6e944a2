"""A server over Streamable HTTP whose calls last until the test ends them, report progress, and may ask."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.faults.scripted import EVENTS, ReceivedRequest, Scripted, events

STEPS = 4
"""Reports of one call. As a stream it has two events more: the first, which has no content, and the answer."""

ASKED = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


class ProgressServer(Scripted):
    """A server whose calls report progress and end when the test allows it; with `asks` they ask in between."""

    def __init__(self) -> None:
        super().__init__()
        self.may_work = asyncio.Event()
        self.may_end = asyncio.Event()
        self.was_answered = asyncio.Event()
        self.answered_with: Any = None

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        out.write(EVENTS)
        await self.may_work.wait()
        token = request.message["params"]["_meta"]["progressToken"]
        for step in range(1, STEPS + 1):
            report = {"progressToken": token, "progress": step}
            out.write(events({"jsonrpc": "2.0", "method": "notifications/progress", "params": report}))
        if request.arguments.get("asks"):
            out.write(events({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": ASKED}))
            await self.was_answered.wait()
        await self.may_end.wait()
        out.write(events(request.result({"content": [{"type": "text", "text": "done"}]})) + b"0\r\n\r\n")

    async def on_refused(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if request.message.get("id") == "q":
            self.answered_with = request.message.get("result")
            self.was_answered.set()
        await super().on_refused(request, out)
