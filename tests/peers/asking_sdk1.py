"""A server on the official SDK, mcp 1.x, that asks its caller back, in tools and words of the conformance fixture.

It runs in an environment of its own (`launch.mcp1_python`). A question that is refused is the call's own error: the
SDK would make a result of it, so the tools stand in the lower layer, which does not.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcp import types
from mcp.server.fastmcp import FastMCP
from mcp.shared.message import ServerMessageMetadata

from tests.peers.serving import parse_options
from tests.peers.serving_sdk1 import TRANSPORTS, serve_sdk1

server = FastMCP("asking-sdk1", log_level="CRITICAL")
lowlevel = server._mcp_server  # which has the caller's abilities and the question for roots

TEXT_FORM = {"type": "string"}


def user(message: str, field: str = "name") -> types.ElicitRequest:
    """A form for the user, with one field."""
    form = {"type": "object", "properties": {field: TEXT_FORM}}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requestedSchema=form))


def elsewhere(message: str, url: str) -> types.ElicitRequest:
    """An address for the user to go to."""
    params = types.ElicitRequestURLParams(message=message, url=url, elicitationId="login-1")
    return types.ElicitRequest(params=params)


def model(prompt: str) -> types.CreateMessageRequest:
    """A prompt for the caller's model."""
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], maxTokens=100))


NAME = user("What is your name?")
GREETING = model("Write a greeting.")
ROOTS = types.ListRootsRequest()
WANTED = {"user_name": user("Who is there?"), "greeting": model("Say hello.")}
ANSWERS = {
    types.ElicitRequest: types.ElicitResult,
    types.CreateMessageRequest: types.CreateMessageResult,
    types.ListRootsRequest: types.ListRootsResult,
}

TOGETHER: dict[str, dict[str, Any]] = {
    "test_input_required_result_sampling": {"capital_question": model("What is the capital of France?")},
    "test_input_required_result_list_roots": {"client_roots": ROOTS},
    "test_input_required_result_multiple_inputs": {"user_name": NAME, "greeting": GREETING, "client_roots": ROOTS},
    "test_input_required_result_request_state": {"confirm": user("Please confirm.", "ok")},
    "test_elicitation_url": {"login": elsewhere("Please log in.", "https://login.example/")},
}
"""Tools that ask all of these at once and say which were answered."""


async def ask(question: Any) -> Any:
    """The caller's answer. Without the call's id the question would go to a stream that nobody may be reading."""
    context = lowlevel.request_context
    about = ServerMessageMetadata(related_request_id=context.request_id)
    request = types.ServerRequest(question)
    return await context.session.send_request(request, ANSWERS[type(question)], metadata=about)


async def ask_field(question: Any, field: str) -> str:
    """What the user wrote into a field, or `nothing`."""
    return str(((await ask(question)).content or {}).get(field, "nothing"))


async def ask_all(questions: dict[str, Any]) -> str:
    """Ask all at once."""
    await asyncio.gather(*map(ask, questions.values()))
    return f"state-ok, answered: {', '.join(sorted(questions))}"


async def greet() -> str:
    """Ask for a name and greet."""
    return f"Hello, {await ask_field(NAME, 'name')}!"


async def ask_twice() -> str:
    """Ask for a name, then for this person's colour."""
    name = await ask_field(NAME, "name")
    return f"{name} likes {await ask_field(user(f'Which colour do you like, {name}?', 'color'), 'color')}."


async def ask_what_is_possible() -> str:
    """Ask only what the caller said that it can answer."""
    can = lowlevel.request_context.session.client_params.capabilities
    able = {"user_name": can.elicitation, "greeting": can.sampling}
    possible = {key: question for key, question in WANTED.items() if able[key] is not None}
    return await ask_all(possible) if possible else "nothing can be asked"


async def say() -> str:
    """Ask nothing."""
    return "This is a text."


TOOLS = {
    "test_input_required_result_elicitation": greet,
    "test_input_required_result_multi_round": ask_twice,
    "test_input_required_result_capabilities": ask_what_is_possible,
    "test_simple_text": say,
    **{name: lambda questions=questions: ask_all(questions) for name, questions in TOGETHER.items()},
}


async def list_tools(_: types.ListToolsRequest) -> types.ServerResult:
    """Every tool."""
    tools = [types.Tool(name=name, inputSchema={"type": "object"}) for name in TOOLS]
    return types.ServerResult(types.ListToolsResult(tools=tools))


async def call_tool(request: types.CallToolRequest) -> types.ServerResult:
    """Run a tool."""
    text = await TOOLS[request.params.name]()
    return types.ServerResult(types.CallToolResult(content=[types.TextContent(type="text", text=text)]))


if __name__ == "__main__":
    lowlevel.request_handlers[types.ListToolsRequest] = list_tools
    lowlevel.request_handlers[types.CallToolRequest] = call_tool
    asyncio.run(serve_sdk1(server, parse_options(("legacy",), TRANSPORTS)))
