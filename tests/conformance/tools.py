"""The behaviour of the fixture's tools; `listings` has names and schemas, `fixture` calls them through `run`.

Every tool that asks does so in both eras (`questions`), so that a caller of one can be joined with a server of the
other. The changes of lists are real: after each one the list is different from before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ToolsListChanged
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    InputRequiredResult,
    Prompt,
    Tool,
)

from tests.conformance import contents, listings
from tests.conformance.questions import (
    Context,
    Questions,
    answerable,
    ask,
    elsewhere,
    field,
    is_modern,
    model,
    roots,
    user,
)

Outcome: TypeAlias = CallToolResult | InputRequiredResult
Handler: TypeAlias = Callable[[Context, CallToolRequestParams], Awaitable[Outcome]]
Entry = TypeVar("Entry", Tool, Prompt)

MISSING_CAPABILITY = -32021
PAUSE_SECONDS = 0.05
"""Between the notifications of one call, so that they do not leave together."""
AWAY_SECONDS = 0.2
"""How long a call goes on after it has closed its stream: longer than the pause that it asks of the caller."""
SECOND_ROUND = "second round: "

bus = InMemorySubscriptionBus()
extra_tool = Tool(name="test_dynamic_tool", description="Comes and goes.", input_schema=listings.NOTHING)
extra_prompt = Prompt(name="test_dynamic_prompt", description="Comes and goes.")


def result_of(*blocks: ContentBlock) -> CallToolResult:
    """A result with these contents."""
    return CallToolResult(content=list(blocks))


def text_result(words: str) -> CallToolResult:
    """A result of one text."""
    return result_of(contents.text(words))


def always(*blocks: ContentBlock) -> Handler:
    """A tool that answers the same every time."""

    async def handler(ctx: Context, params: CallToolRequestParams) -> Outcome:
        return result_of(*blocks)

    return handler


def asking(questions: Questions, state: str | None = None) -> Handler:
    """A tool that asks all of these at once and says which were answered."""

    async def handler(ctx: Context, params: CallToolRequestParams) -> Outcome:
        answers = await ask(ctx, params, questions, state)
        if isinstance(answers, InputRequiredResult):
            return answers
        _check_state(ctx, params, state)
        return text_result(f"state-ok, answered: {', '.join(sorted(questions))}")

    return handler


async def fail(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Fail as a tool does."""
    return CallToolResult(content=[contents.text("this tool always fails")], is_error=True)


async def log_thrice(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Log at the beginning, in the middle and at the end."""
    for line in ("started", "at work", "done"):
        await _log(ctx, line)
        await asyncio.sleep(PAUSE_SECONDS)
    return text_result("logged")


async def log_once(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Log one line."""
    await _log(ctx, "one line")
    return text_result("logged")


async def progress(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Report progress at the beginning, in the middle and at the end."""
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100, f"{done} of 100")
        await asyncio.sleep(PAUSE_SECONDS)
    return text_result("done")


async def reconnect(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Close the stream of this call and answer after the caller came back; without a stream just answer."""
    await _log(ctx, "closing the stream")
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await asyncio.sleep(AWAY_SECONDS)
    return text_result("reconnected")


async def need_sampling(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Refuse a caller that did not say that it can sample."""
    can = ctx.session.client_capabilities
    if can is None or can.sampling is None:
        raise MCPError(MISSING_CAPABILITY, "This tool needs sampling", {"requiredCapabilities": {"sampling": {}}})
    return text_result("the caller can sample")


async def change_tools(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Add the extra tool or take it away, and say so in the way of the caller's era."""
    _toggle(listings.TOOLS, extra_tool)
    await bus.publish(ToolsListChanged())
    if not is_modern(ctx):
        await ctx.session.send_tool_list_changed()
    return text_result("changed")


async def change_prompts(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Add the extra prompt or take it away, and say so in the way of the caller's era."""
    _toggle(listings.PROMPTS, extra_prompt)
    await bus.publish(PromptsListChanged())
    if not is_modern(ctx):
        await ctx.session.send_prompt_list_changed()
    return text_result("changed")


async def ask_model(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Put the given prompt to the caller's model."""
    prompt = str((params.arguments or {}).get("prompt", ""))
    return await asking({"sample": model(prompt)})(ctx, params)


async def ask_user(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Show the given message to the user."""
    message = str((params.arguments or {}).get("message", ""))
    return await asking({"account": user(message, listings.ACCOUNT_FORM)})(ctx, params)


async def ask_while_streaming(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Report progress and then ask."""
    await ctx.session.report_progress(0, 1, "about to ask")
    return await asking({"user_name": user("Who is there?", listings.NAME_FORM)})(ctx, params)


async def ask_name(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Ask for a name and greet."""
    answers = await ask(ctx, params, {"user_name": user("What is your name?", listings.NAME_FORM)})
    if isinstance(answers, InputRequiredResult):
        return answers
    return text_result(f"Hello, {field(answers['user_name'], 'name')}!")


async def ask_twice(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Ask for a name, then for this person's colour; in between, the name is in the state alone."""
    state = params.request_state or ""
    name = state.removeprefix(SECOND_ROUND)
    if not state.startswith(SECOND_ROUND):
        first = await ask(ctx, params, {"step1": user("What is your name?", listings.NAME_FORM)}, "first round")
        if isinstance(first, InputRequiredResult):
            return first
        name = field(first["step1"], "name")
    question = {"step2": user(f"Which colour do you like, {name}?", listings.COLOUR_FORM)}
    second = await ask(ctx, params, question, SECOND_ROUND + name)
    if isinstance(second, InputRequiredResult):
        return second
    return text_result(f"{name} likes {field(second['step2'], 'color')}.")


async def ask_what_is_possible(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Ask only what the caller said that it can answer."""
    wanted: Questions = {"user_name": user("Who is there?", listings.NAME_FORM), "greeting": model("Say hello.")}
    possible = answerable(wanted, ctx.session.client_capabilities)
    return await asking(possible, "what is possible")(ctx, params) if possible else text_result("nothing can be asked")


async def send_elsewhere(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Have the user log in at an address."""
    question = elsewhere("Please log in.", "https://login.example/", None if is_modern(ctx) else "login-1")
    return await asking({"login": question})(ctx, params)


async def region(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Give the argument back that travels in a header too."""
    return text_result(f"region: {(params.arguments or {}).get('region', 'none')}")


_CONSENT: Questions = {"confirm": user("Please confirm.", listings.CONSENT_FORM)}
_EVERYTHING: Questions = {
    "user_name": user("What is your name?", listings.NAME_FORM),
    "greeting": model("Write a greeting."),
    "client_roots": roots(),
}

HANDLERS: dict[str, Handler] = {
    "test_simple_text": always(contents.text("This is a text.")),
    "test_image_content": always(contents.picture()),
    "test_audio_content": always(contents.sound()),
    "test_embedded_resource": always(contents.embedded("test://embedded-resource", "An embedded text.")),
    "test_multiple_content_types": always(
        contents.text("Several things:"),
        contents.picture(),
        contents.embedded("test://mixed-content-resource", '{"value": 123}', "application/json"),
    ),
    "test_error_handling": fail,
    "test_tool_with_logging": log_thrice,
    "test_logging_tool": log_once,
    "test_tool_with_progress": progress,
    "test_reconnection": reconnect,
    "test_missing_capability": need_sampling,
    "test_trigger_tool_change": change_tools,
    "test_trigger_prompt_change": change_prompts,
    "test_sampling": ask_model,
    "test_elicitation": ask_user,
    "test_elicitation_sep1034_defaults": asking({"person": user("Who are you?", listings.DEFAULTS_FORM)}),
    "test_elicitation_sep1330_enums": asking({"choice": user("Please choose.", listings.CHOICES_FORM)}),
    "test_streaming_elicitation": ask_while_streaming,
    "test_input_required_result_elicitation": ask_name,
    "test_input_required_result_sampling": asking({"capital_question": model("What is the capital of France?")}),
    "test_input_required_result_list_roots": asking({"client_roots": roots()}),
    "test_input_required_result_request_state": asking(_CONSENT, "asked for consent"),
    "test_input_required_result_multiple_inputs": asking(_EVERYTHING, "asked for everything"),
    "test_input_required_result_multi_round": ask_twice,
    "test_input_required_result_tampered_state": asking(_CONSENT, "asked to be tampered with"),
    "test_input_required_result_capabilities": ask_what_is_possible,
    "test_elicitation_url": send_elsewhere,
    "test_x_mcp_header": region,
    "json_schema_2020_12_tool": always(contents.text("The arguments are well.")),
    extra_tool.name: always(contents.text("I am here for a while.")),
}


async def run(ctx: Context, params: CallToolRequestParams) -> Outcome:
    """Run the tool that the caller named."""
    if params.name not in {tool.name for tool in listings.TOOLS}:
        raise MCPError(INVALID_PARAMS, f"There is no tool {params.name}")
    return await HANDLERS[params.name](ctx, params)


def _check_state(ctx: Context, params: CallToolRequestParams, state: str | None) -> None:
    # The SDK's boundary has opened the seal; what is left to see is whether it is the state of this tool at all.
    if is_modern(ctx) and params.request_state != state:
        raise MCPError(INVALID_PARAMS, "The answers came without the state that was given with the question")


def _toggle(entries: list[Entry], entry: Entry) -> None:
    if entry in entries:
        entries.remove(entry)
    else:
        entries.append(entry)


async def _log(ctx: Context, line: str) -> None:
    await ctx.session.send_log_message("info", line, "fixture", related_request_id=ctx.request_id)
