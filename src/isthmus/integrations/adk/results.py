"""What the model is told of an execution: a dictionary with a status, whatever happened.

An exception would end the whole invocation, so there is none: each way of failing has its own `status`, and `error`
says why. Called by `HubTool`.
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

from isthmus.library.contracts import ErrorPayload, ToolResult, ToolStreamChunk, text_of
from isthmus.library.errors import ServiceClosedError
from isthmus.library.loop_thread import LoopThread
from isthmus.library.model_content import block_text, image_from_block

TAKES_MEDIA = tuple(int(part) for part in adk_version.split(".")[:2]) >= (2, 8)
"""Before, ADK has no way to give a model what a tool has drawn, and the blocks stay among the text."""


def tool_response(result: ToolResult) -> dict[str, Any]:
    """`{status, result, tool_name, namespace, execution_time}`, or `{status, error, …, error_payload}`.

    Pictures and sound go beside it as `media`, which ADK takes out and hands to the model as what they are.
    """
    answer: dict[str, Any] = {"status": result.status.value}
    content, media = result.metadata.get("content") or [], _media_of(result)
    if not result.is_success:
        answer["error"] = result.error_message or result.status.value
    elif TAKES_MEDIA and any(map(_is_media, content)) and not result.metadata.get("structured"):
        answer["result"] = _without_media(content)
    else:
        answer["result"] = result.result_data
    answer |= {
        "tool_name": result.tool_name,
        "namespace": result.tool_namespace,
        "execution_time": result.execution_time,
    }
    if result.error is not None:
        answer["error_payload"] = error_dict(result.error)
    if media:
        answer["media"] = media
    return answer


def error_dict(error: ErrorPayload) -> dict[str, Any]:
    """An error for programs, without what is not known."""
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


def _media_of(result: ToolResult) -> list[types.Part]:
    content = result.metadata.get("content") or [] if TAKES_MEDIA else []
    parts = [_media_part(block) for block in content if _is_media(block)]
    return [part for part in parts if part is not None]


def _without_media(content: list[dict[str, Any]]) -> Any:
    """What is left to say; of what cannot be shown, what it is."""
    rest = [_in_words(block) for block in content if not _is_media(block) or _media_part(block) is None]
    return text_of(rest) if all(block.get("type") == "text" for block in rest) else rest


def _in_words(block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": block_text(block)} if _is_media(block) else block


def _is_media(block: dict[str, Any]) -> bool:
    return block.get("type") in ("image", "audio")


def _media_part(block: dict[str, Any]) -> types.Part | None:
    if (image := image_from_block(block)) is not None:
        return types.Part.from_bytes(data=base64.b64decode(image.data), mime_type=image.mime)
    match block:
        case {"type": "audio", "data": str(data), "mimeType": str(kind)}:
            try:
                return types.Part.from_bytes(data=base64.b64decode(data, validate=True), mime_type=kind)
            except ValueError:  # what a server sends is not to be trusted
                return None
        case _:
            return None


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
        self._pending[call_id] = name, LoopThread.shared().submit(work)

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


SAID_OF_PROGRESS = {"progress": None, "total": None, "message": None}
"""What there is to read of progress, whatever a server leaves out."""

PROGRESS_KEY = "tool_progress"
LOG_KEY = "tool_log"
"""Where in an event's `custom_metadata` it stands."""


def can_send_progress(tool_context: ToolContext) -> bool:
    """Whether there is a runner that takes events while a tool runs.

    An agent run by hand has none, and in a live session ADK gives its own generators another way.
    """
    invocation = getattr(tool_context, "_invocation_context", None)
    is_live = getattr(invocation, "live_request_queue", None) is not None
    return getattr(invocation, "_event_queue", None) is not None and not is_live


async def send_progress(events: AsyncIterator[Event], tool_name: str, tool_context: ToolContext) -> None:
    """Give these to the runner, as they come."""
    call_id = tool_context.function_call_id
    # The consumer knows the agent, and not that a tool is a node.
    tool_context.event_author = tool_context.agent_name
    node = _Events(name=_identifier(tool_name), events=events)
    # A number alone would be taken for one of the runner's own.
    await tool_context.run_node(node, run_id=f"call_{call_id}" if call_id else None)


class _Events(BaseNode):
    """A node that only has something to say; what comes of it is nobody's output."""

    rerun_on_resume: bool = True
    events: Any

    async def _run_impl(self, *, ctx: Any, node_input: Any) -> AsyncGenerator[Event, None]:
        async for event in self.events:
            yield event


def progress_event(chunk: ToolStreamChunk, call_id: str | None) -> Event | None:
    """A partial event, if this is something that a consumer may want to know before the end."""
    if chunk.chunk_type not in ("progress", "log") or not isinstance(chunk.content, dict):
        return None
    if chunk.chunk_type == "progress":
        key, text, said = PROGRESS_KEY, _progress_text(chunk.content), {**SAID_OF_PROGRESS, **chunk.content}
    else:
        key, text, said = LOG_KEY, _log_text(chunk.content), chunk.content
    about = {"tool_name": chunk.tool_name, "function_call_id": call_id, "sequence_id": chunk.sequence_id}
    return Event(
        partial=True,
        # A thought: shown by who shows these, and not part of the answer for who joins the text of all events.
        content=types.Content(role="model", parts=[types.Part(text=text, thought=True)]),
        custom_metadata={key: {**about, **said}},
        timestamp=chunk.timestamp.timestamp(),
    )


def _progress_text(content: dict[str, Any]) -> str:
    done, total, message = content.get("progress"), content.get("total"), content.get("message")
    share = f"{done:g}" if isinstance(done, int | float) else "…"
    if isinstance(total, int | float):
        share += f"/{total:g}"
    return f"{share} {message}" if message else share


def _log_text(content: dict[str, Any]) -> str:
    return f"[{content.get('level')}] {content.get('data')}"


def _identifier(name: str) -> str:
    legal = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return legal if legal.isidentifier() else f"_{legal}"
