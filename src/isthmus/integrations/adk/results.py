"""Tool results in google-adk: the reply to the model, partial events while a tool runs, and background executions.

The reply is a dictionary with a status; an exception would end the whole invocation. Used by `HubTool` and
`HubToolset`.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from concurrent.futures import Future
from typing import Any

from google.adk.events.event import Event
from google.adk.tools.tool_context import ToolContext
from google.adk.version import __version__ as adk_version
from google.adk.workflow import BaseNode
from google.genai import types

from isthmus.library.errors import ServiceClosedError
from isthmus.library.loop_thread import LoopThread
from isthmus.library.provider_formats import block_text, image_from_block
from isthmus.library.public_types import ErrorPayload, ToolResult, ToolStreamChunk, text_of

TAKES_MEDIA = tuple(int(part) for part in adk_version.split(".")[:2]) >= (2, 8)
"""Earlier releases of ADK cannot pass media to the model; there the blocks stay among the text."""


def tool_response(result: ToolResult) -> dict[str, Any]:
    """`{status, result, tool_name, namespace, execution_time}`, or `{status, error, …, error_payload}`.

    Images and audio are in `media`, which ADK passes to the model as such.
    """
    response: dict[str, Any] = {"status": result.status.value}
    content: list[dict[str, Any]] = result.metadata.get("content") or []
    media: list[types.Part] = []
    texts: list[dict[str, Any]] = []
    for block in content if TAKES_MEDIA else ():
        part = _media_part(block)
        if part is not None:
            media.append(part)
        else:
            is_media = block.get("type") in ("image", "audio")
            texts.append({"type": "text", "text": block_text(block)} if is_media else block)
    has_media = any(block.get("type") in ("image", "audio") for block in content)
    if not result.is_success:
        response["error"] = result.error_message or result.status.value
    elif TAKES_MEDIA and has_media and not result.metadata.get("structured"):
        response["result"] = text_of(texts) if all(block.get("type") == "text" for block in texts) else texts
    else:
        response["result"] = result.result_data
    response |= {
        "tool_name": result.tool_name,
        "namespace": result.tool_namespace,
        "execution_time": result.execution_time,
    }
    if result.error is not None:
        response["error_payload"] = error_dict(result.error)
    if media:
        response["media"] = media
    return response


def error_dict(error: ErrorPayload) -> dict[str, Any]:
    """An error as a dictionary, without unknown members."""
    known = {
        "code": error.code.value,
        "message": error.message,
        "executed": error.executed,
        "reason": error.reason,
        "server": error.server,
        "retry_after": error.retry_after,
        "details": error.details,
    }
    return {key: value for key, value in known.items() if value not in (None, "", {})}


def _media_part(block: dict[str, Any]) -> types.Part | None:
    if (image := image_from_block(block)) is not None:
        return types.Part.from_bytes(data=base64.b64decode(image.data), mime_type=image.mime)
    match block:
        case {"type": "audio", "data": str(data), "mimeType": str(kind)}:
            try:
                return types.Part.from_bytes(data=base64.b64decode(data, validate=True), mime_type=kind)
            except ValueError:  # servers may send anything
                return None
        case _:
            return None


# -- background executions ---------------------------------------------------------------------------------------------
#
# ADK calls these long-running: the agent's turn ends, and its program sends the result in a later one. `HubToolset`
# makes one `Background`, `HubTool` starts executions in it, and the program waits for their results there.

PENDING_MAX = 256
"""How many executions may run or wait to be fetched; a program with more has probably forgotten them."""


class Background:
    """Executions in the background, by the id of the function call that started them."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[str, Future[dict[str, Any]]]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Background:
        return Background()  # results are fetched from the original

    @property
    def pending(self) -> list[str]:
        """The ids of executions whose results are not fetched yet."""
        return list(self._pending)

    def has_room(self) -> bool:
        """Whether another execution may start."""
        return len(self._pending) < PENDING_MAX

    def begin(self, call_id: str, name: str, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Start an execution; it does not depend on the caller's loop."""
        self._pending[call_id] = name, LoopThread.shared().submit(work)

    async def answer(self, call_id: str) -> types.Part:
        """Wait for a result and return the part to send as the user's next message.

        A cancelled wait can be repeated; a result can be fetched once.

        Raises:
            KeyError: no execution has this id, or its result was fetched.
            ServiceClosedError: the toolset was closed meanwhile.
        """
        name, future = self._pending[call_id]
        try:
            response = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            is_caller_cancelled = task is not None and task.cancelling() > 0
            if future.cancelled() and not is_caller_cancelled:
                raise ServiceClosedError(f"{name} was cancelled, because its toolset was closed.") from None
            raise
        self._pending.pop(call_id, None)
        media = [
            types.FunctionResponsePart.from_bytes(data=part.inline_data.data, mime_type=part.inline_data.mime_type)
            for part in response.pop("media", ())
        ]
        body = types.FunctionResponse(id=call_id, name=name, response=response, parts=media or None)
        return types.Part(function_response=body)

    def cancel(self, call_id: str) -> None:
        """Cancel an execution at its server and forget it."""
        _, future = self._pending.pop(call_id)
        future.cancel()

    def cancel_all(self) -> None:
        """Cancel all executions."""
        for call_id in self.pending:
            self.cancel(call_id)


# -- progress ----------------------------------------------------------------------------------------------------------
#
# A `BaseTool` returns one response and has no events. So the execution runs as a node under the tool's context, like
# ADK's own generator functions, and each chunk of progress is a partial event of that node: the runner's consumer gets
# it at once, and neither the session nor the model sees it.

NO_PROGRESS = {"progress": None, "total": None, "message": None}
"""Members that a server may omit."""

PROGRESS_KEY = "tool_progress"
LOG_KEY = "tool_log"
"""Keys of an event's `custom_metadata`."""


def can_send_progress(tool_context: ToolContext) -> bool:
    """Whether a runner accepts events while a tool runs.

    An agent without a runner has none, and live sessions use another way.
    """
    invocation = getattr(tool_context, "_invocation_context", None)
    is_live = getattr(invocation, "live_request_queue", None) is not None
    return getattr(invocation, "_event_queue", None) is not None and not is_live


async def send_progress(events: AsyncIterator[Event], tool_name: str, tool_context: ToolContext) -> None:
    """Send events to the runner as they come."""
    call_id = tool_context.function_call_id
    # Consumers know the agent, and not that a tool is a node.
    tool_context.event_author = tool_context.agent_name
    legal = re.sub(r"[^A-Za-z0-9_]", "_", tool_name)
    node = _EventNode(name=legal if legal.isidentifier() else f"_{legal}", events=events)
    # A plain number would look like an id of the runner's own.
    await tool_context.run_node(node, run_id=f"call_{call_id}" if call_id else None)


class _EventNode(BaseNode):
    """A node that only emits events; its output is not used."""

    rerun_on_resume: bool = True
    events: Any

    async def _run_impl(self, *, ctx: Any, node_input: Any) -> AsyncGenerator[Event, None]:
        async for event in self.events:
            yield event


def progress_event(chunk: ToolStreamChunk, call_id: str | None) -> Event | None:
    """A partial event for a progress or log chunk; None for others."""
    if chunk.chunk_type not in ("progress", "log") or not isinstance(chunk.content, dict):
        return None
    content: dict[str, Any] = chunk.content
    if chunk.chunk_type == "progress":
        key, members = PROGRESS_KEY, {**NO_PROGRESS, **content}
        done, total, message = members["progress"], members["total"], members["message"]
        text = f"{done:g}" if isinstance(done, int | float) else "…"
        if isinstance(total, int | float):
            text += f"/{total:g}"
        if message:
            text = f"{text} {message}"
    else:
        key, members = LOG_KEY, content
        text = f"[{content.get('level')}] {content.get('data')}"
    about = {"tool_name": chunk.tool_name, "function_call_id": call_id, "sequence_id": chunk.sequence_id}
    return Event(
        partial=True,
        # As a thought, it can be displayed, but is not part of the text of all events.
        content=types.Content(role="model", parts=[types.Part(text=text, thought=True)]),
        custom_metadata={key: {**about, **members}},
        timestamp=chunk.timestamp.timestamp(),
    )
