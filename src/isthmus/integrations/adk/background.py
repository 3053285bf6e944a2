"""Executions that go on after the model was told that they have begun.

ADK calls these long-running: the agent's turn ends, and its program gives the result in a later one. The program waits
here, for as long as it likes, and gets what to send. Made by `HubToolset`, filled by `HubTool`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from google.genai import types

from isthmus.library.errors import ServiceClosedError
from isthmus.library.owner import Owner

PENDING_MAX = 256
"""How many may run, or have a result that nobody has fetched; who starts more has forgotten the others."""


class Background:
    """What runs in the background, by the id of the function call that began it."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[str, Future[dict[str, Any]]]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Background:
        return Background()  # what runs is fetched where it was begun

    @property
    def pending(self) -> list[str]:
        """The ids of those whose result has not been fetched."""
        return list(self._pending)

    def has_room(self) -> bool:
        """Whether one more may begin."""
        return len(self._pending) < PENDING_MAX

    def begin(self, call_id: str, name: str, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Have an execution go on by itself, whatever becomes of the loop that this is called on."""
        self._pending[call_id] = name, Owner.shared().submit(work)

    async def answer(self, call_id: str) -> types.Part:
        """Wait for a result; send this part as the user's next message, and the agent goes on with it.

        Who stops waiting may wait again; a result is there once.

        Raises:
            KeyError: nothing of this id runs, or its result was fetched.
            ServiceClosedError: the toolset was closed meanwhile.
        """
        name, future = self._pending[call_id]
        try:
            answer = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if future.cancelled() and not _is_being_cancelled():
                raise ServiceClosedError(f"{name} was cancelled, because its toolset was closed.") from None
            raise
        self._pending.pop(call_id, None)
        return _response(call_id, name, answer)

    def cancel(self, call_id: str) -> None:
        """Stop one at its server; it is forgotten."""
        _, future = self._pending.pop(call_id)
        future.cancel()

    def cancel_all(self) -> None:
        """Stop them all."""
        for call_id in self.pending:
            self.cancel(call_id)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _response(call_id: str, name: str, answer: dict[str, Any]) -> types.Part:
    media = [
        types.FunctionResponsePart.from_bytes(data=part.inline_data.data, mime_type=part.inline_data.mime_type)
        for part in answer.pop("media", ())
    ]
    said = types.FunctionResponse(id=call_id, name=name, response=answer, parts=media or None)
    return types.Part(function_response=said)
