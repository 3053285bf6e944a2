"""Ask the caller something in the words of its era: by a request in the legacy one, by the result in the modern.

A tool says what it wants to know with `ask` and gets either the answers or the result that asks for them, which it
returns as it is. It is then called again with the answers, and comes to the same line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeAlias

from mcp.server.context import ServerRequestContext
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    InputResponse,
    InputResponseRequestParams,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)

from tests.conformance.listings import JsonObject
from tests.peers.serving import MODERN_VERSION

Context: TypeAlias = ServerRequestContext[Any, Any]
Questions: TypeAlias = Mapping[str, InputRequest]
Answers: TypeAlias = Mapping[str, InputResponse]


def is_modern(ctx: Context) -> bool:
    """Whether the caller speaks the modern era."""
    return ctx.protocol_version == MODERN_VERSION


def user(message: str, schema: JsonObject) -> ElicitRequest:
    """A form for the user."""
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def elsewhere(message: str, url: str, id: str | None) -> ElicitRequest:
    """An address for the user to go to; it has an id in the legacy era."""
    return ElicitRequest(params=ElicitRequestURLParams(message=message, url=url, elicitation_id=id))


def model(prompt: str) -> CreateMessageRequest:
    """A prompt for the caller's model."""
    message = SamplingMessage(role="user", content=TextContent(text=prompt))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=100))


def roots() -> ListRootsRequest:
    """The question for the caller's roots."""
    return ListRootsRequest()


async def ask(
    ctx: Context, params: InputResponseRequestParams, questions: Questions, state: str | None = None
) -> Answers | InputRequiredResult:
    """Get the answers to all of these; `state` comes back with them in the modern era."""
    if not is_modern(ctx):
        answered = await asyncio.gather(*(_request(ctx, question) for question in questions.values()))
        return dict(zip(questions, answered, strict=True))
    answers = params.input_responses or {}
    if questions.keys() <= answers.keys():
        return answers
    return InputRequiredResult(input_requests=dict(questions), request_state=state)


def answerable(questions: Questions, capabilities: ClientCapabilities | None) -> Questions:
    """Those of the questions that a caller with these capabilities can be asked."""
    can = capabilities or ClientCapabilities()
    able = {"elicitation/create": can.elicitation, "sampling/createMessage": can.sampling, "roots/list": can.roots}
    return {key: question for key, question in questions.items() if able[question.method] is not None}


def field(answer: InputResponse, name: str) -> str:
    """What the user wrote into a field of the form, or `nothing`."""
    content = answer.content if isinstance(answer, ElicitResult) else None
    return str((content or {}).get(name, "nothing"))


async def _request(ctx: Context, question: InputRequest) -> InputResponse:
    # Without the call's id the request would go to the GET stream, which nobody may be reading.
    about = ServerMessageMetadata(related_request_id=ctx.request_id)
    match question:
        case ElicitRequest():
            return await ctx.session.send_request(question, ElicitResult, metadata=about)
        case CreateMessageRequest():
            return await ctx.session.send_request(question, CreateMessageResult, metadata=about)
        case ListRootsRequest():
            return await ctx.session.send_request(question, ListRootsResult, metadata=about)
