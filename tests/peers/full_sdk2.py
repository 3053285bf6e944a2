"""A full server on the official SDK, mcp 2.x, of both eras; `content` has its content.

It serves both eras, or one if told so. In the legacy era subscriptions and levels are kept for each connection, as the
SDK leaves both to the server; in the modern era the SDK does both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast
from weakref import WeakSet

from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resources import BinaryResource, FunctionResource, TextResource
from mcp.server.models import InitializationOptions
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    EmptyResult,
    LoggingLevel,
    PromptReference,
    Resource,
    ResourceTemplateReference,
    SetLevelRequestParams,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel

from tests.peers import content
from tests.peers.serving import MODERN_VERSION, EraGate, Options, parse_options, serve_http
from tests.peers.stdio_gate import serve_stdio

LEVEL = "level"
"""The key under which a connection keeps the level that it asked for."""


class PartlyListedServer(MCPServer[Any]):
    """A server with one resource that it does not list."""

    async def list_resources(self) -> list[Resource]:
        """Every resource but the unlisted one."""
        return [found for found in await super().list_resources() if str(found.uri) != content.UNLISTED_URI]


server = PartlyListedServer("full-sdk2", version="2.0", log_level="CRITICAL")
watchers: WeakSet[Connection] = WeakSet()
touches = 0


class Sum(BaseModel):
    """What `add` returns; gives the tool its output schema."""

    sum: int


@server.tool()
async def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(sum=a + b)


@server.tool()
async def slow(seconds: float, steps: int, ctx: Context[Any, Any]) -> str:
    """Take a while, and report progress after each step."""
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        await ctx.report_progress(step, steps, f"step {step}")
    return f"{steps} steps"


@server.tool()
async def log_some(ctx: Context[Any, Any]) -> str:
    """Log once at each level, but for those below what this connection asked for."""
    lowest = content.LEVELS.index(connection_of(ctx).state.get(LEVEL, "debug"))
    for level in cast("Sequence[LoggingLevel]", content.LEVELS[lowest:]):
        await ctx.log(level, content.log_text(level), logger_name=content.LOGGER)
    return "logged"


@server.tool()
async def grow_tools(name: str, ctx: Context[Any, Any]) -> str:
    """Add a tool called `name` and say that the list has changed, in the way of the caller's era."""
    server.add_tool(add, name=name)
    await (ctx.notify_tools_changed() if is_modern(ctx) else ctx.session.send_tool_list_changed())
    return name


@server.tool()
async def grow_prompts(name: str, ctx: Context[Any, Any]) -> str:
    """Add a prompt called `name` and say that the list has changed, in the way of the caller's era."""
    server.add_prompt(Prompt.from_function(plain, name=name))
    await (ctx.notify_prompts_changed() if is_modern(ctx) else ctx.session.send_prompt_list_changed())
    return name


@server.tool()
async def grow_resources(name: str, ctx: Context[Any, Any]) -> str:
    """Add a resource at the address `name` and say that the list has changed, in the way of the caller's era."""
    server.add_resource(TextResource(uri=name, name=name, text=name))
    await (ctx.notify_resources_changed() if is_modern(ctx) else ctx.session.send_resource_list_changed())
    return name


@server.tool()
async def touch(ctx: Context[Any, Any]) -> str:
    """Change the watched resource and notify its subscribers, of either era."""
    global touches  # noqa: PLW0603 (the server is the process)
    touches += 1
    await ctx.notify_resource_updated(content.WATCHED_URI)
    for connection in list(watchers):
        await connection.send_resource_updated(content.WATCHED_URI)
    return content.watched_text(touches)


def is_modern(ctx: Context[Any, Any]) -> bool:
    """Whether the caller speaks the modern era."""
    return ctx.protocol_version == MODERN_VERSION


def connection_of(ctx: Context[Any, Any] | ServerRequestContext[Any, Any]) -> Connection:
    """What lasts longer than the request; the SDK hands it out under a private name only."""
    return ctx.session._connection


@server.prompt(name=content.PLAIN_PROMPT)
def plain() -> str:
    """A prompt without arguments."""
    return content.PLAIN


@server.prompt(name=content.GREET_PROMPT)
def greet(name: str, tone: str = "warm") -> str:
    """A prompt with arguments."""
    return content.greeting(name, tone)


@server.prompt(name=content.VISIT_PROMPT)
def visit(country: str, city: str) -> str:
    """A prompt whose arguments are completed."""
    return content.invitation(country, city)


@server.resource(content.TEMPLATE_URI, mime_type="text/plain")
def note(id: str) -> str:
    """A note by its id."""
    return content.note_text(id)


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion:
    """Complete the template's id and the places of a visit."""
    target = ref.name if isinstance(ref, PromptReference) else ref.uri
    known = (context.arguments if context else None) or {}
    return Completion(values=content.completions(target, argument.name, argument.value, known))


def add_slow_lists() -> None:
    """Put the resources with fixed addresses in place."""
    server.add_resource(TextResource(uri=content.TEXT_URI, name="text", text=content.TEXT))
    server.add_resource(TextResource(uri=content.UNLISTED_URI, name="unlisted", text=content.UNLISTED))
    server.add_resource(
        BinaryResource(uri=content.BINARY_URI, name="binary", data=content.BINARY, mime_type="application/octet-stream")
    )
    server.add_resource(
        FunctionResource(uri=content.WATCHED_URI, name="watched", fn=lambda: content.watched_text(touches))
    )


async def set_level(ctx: ServerRequestContext[Any, Any], params: SetLevelRequestParams) -> EmptyResult:
    """Keep the level for as long as the connection lasts."""
    connection_of(ctx).state[LEVEL] = params.level
    return EmptyResult()


async def subscribe(ctx: ServerRequestContext[Any, Any], params: SubscribeRequestParams) -> EmptyResult:
    """Begin to notify this connection of changes."""
    watchers.add(connection_of(ctx))
    return EmptyResult()


async def unsubscribe(ctx: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams) -> EmptyResult:
    """Stop notifying this connection of changes."""
    watchers.discard(connection_of(ctx))
    return EmptyResult()


def serve_legacy_requests() -> None:
    """Answer what the SDK leaves to its lower layer in the legacy era."""
    lowlevel = server._lowlevel_server
    lowlevel.add_request_handler("logging/setLevel", SetLevelRequestParams, set_level)
    lowlevel.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
    lowlevel.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)


def announce_list_changes() -> None:
    """Make the handshake say that the lists change; by itself the SDK says so in the modern era only."""
    lowlevel = server._lowlevel_server  # the SDK has no public way to this option
    plain_options = lowlevel.create_initialization_options

    def with_changes(*_: Any, **__: Any) -> InitializationOptions:
        return plain_options(NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True))

    lowlevel.create_initialization_options = with_changes  # type: ignore[method-assign]


def keep_only(kinds: Sequence[str]) -> None:
    """Become a server that has nothing but these, such as `prompts`; with none named it stays as it is."""
    handlers = server._lowlevel_server._request_handlers
    always = {"ping", "server", "subscriptions"}
    for method in [method for method in handlers if kinds and method.split("/")[0] not in {*always, *kinds}]:
        del handlers[method]


async def run(options: Options) -> None:
    """Serve until the pipe closes or a signal comes."""
    add_slow_lists()
    serve_legacy_requests()
    announce_list_changes()
    keep_only(options.only)
    if options.transport == "sse":
        await serve_http(server.sse_app(), options.port)
        return
    if options.transport == "http":
        app = server.streamable_http_app(json_response=options.json, stateless_http=options.stateless)
        await serve_http(EraGate(app, options.era), options.port)
        return
    lowlevel = server._lowlevel_server
    start = lowlevel.create_initialization_options()
    await serve_stdio(lambda read, write: lowlevel.run(read, write, start), options.era)


if __name__ == "__main__":
    asyncio.run(run(parse_options(("both", "legacy", "modern"))))
