"""The fixture's resources and prompts as they are read, and the completion of a prompt's argument.

`listings` has their addresses and names; `fixture` hands these functions to the SDK.
"""

from __future__ import annotations

import json
import re

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    ContentBlock,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextResourceContents,
)

from tests.conformance import contents, listings
from tests.conformance.questions import Context, ask, field, user

_TEXTS = {listings.TEXT_URI: "This is a text.", listings.WATCHED_URI: "This text may change."}
_TEMPLATE = re.compile(r"test://template/([^/]+)/data")


async def read(ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
    """The resource at an address."""
    uri = str(params.uri)
    if uri in _TEXTS:
        found: TextResourceContents | BlobResourceContents = _text(uri, _TEXTS[uri], "text/plain")
    elif uri == listings.BINARY_URI:
        found = BlobResourceContents(uri=uri, blob=contents.PNG, mime_type="image/png")
    elif (match := _TEMPLATE.fullmatch(uri)) is not None:
        found = _text(uri, json.dumps({"id": match[1], "data": f"the data of {match[1]}"}), "application/json")
    else:
        raise MCPError(INVALID_PARAMS, "There is no such resource", {"uri": uri})
    return ReadResourceResult(contents=[found])


async def get(ctx: Context, params: GetPromptRequestParams) -> GetPromptResult | InputRequiredResult:
    """A prompt, written out."""
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            return _written(contents.text("Say something simple."))
        case "test_prompt_with_arguments":
            return _written(contents.text(f"arg1 is {given.get('arg1')} and arg2 is {given.get('arg2')}"))
        case "test_prompt_with_embedded_resource":
            embedded = contents.embedded(given.get("resourceUri", ""), "An embedded text.")
            return _written(embedded, contents.text("What does it say?"))
        case "test_prompt_with_image":
            return _written(contents.picture(), contents.text("What does it show?"))
        case "test_input_required_result_prompt":
            return await _ask_for_context(ctx, params)
        case _:
            raise MCPError(INVALID_PARAMS, f"There is no prompt {params.name}")


async def complete(ctx: Context, params: CompleteRequestParams) -> CompleteResult:
    """The words that begin with what was typed."""
    words = [word for word in ("paris", "park", "test", "testing") if word.startswith(params.argument.value)]
    return CompleteResult(completion=Completion(values=words, total=len(words), has_more=False))


async def _ask_for_context(ctx: Context, params: GetPromptRequestParams) -> GetPromptResult | InputRequiredResult:
    answers = await ask(ctx, params, {"user_context": user("In which context?", listings.CONTEXT_FORM)})
    if isinstance(answers, InputRequiredResult):
        return answers
    return _written(contents.text(f"The context is: {field(answers['user_context'], 'context')}"))


def _text(uri: str, words: str, mime_type: str) -> TextResourceContents:
    return TextResourceContents(uri=uri, text=words, mime_type=mime_type)


def _written(*blocks: ContentBlock) -> GetPromptResult:
    return GetPromptResult(messages=[PromptMessage(role="user", content=block) for block in blocks])
