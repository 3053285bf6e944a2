"""A full server on FastMCP 4; `content` has its content.

It serves both eras, or one if told so. FastMCP has no resource subscriptions in either era and answers no
`subscriptions/listen`; it keeps levels itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from fastmcp import Context, FastMCP
from fastmcp.prompts import Prompt
from fastmcp.resources import BinaryResource, Resource, TextResource
from fastmcp.server.completions import CompletionReference
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp_types import (
    CompletionArgument,
    CompletionContext,
    ListResourcesRequest,
    LoggingLevel,
    PromptListChangedNotification,
    PromptReference,
    ResourceListChangedNotification,
    ToolListChangedNotification,
)
from pydantic import AnyUrl, BaseModel

from tests.peers import content
from tests.peers.serving import EraGate, Options, parse_options, serve_http
from tests.peers.stdio_gate import serve_stdio


class Unlisted(Middleware):
    """Keeps one resource out of the listing."""

    async def on_list_resources(
        self,
        context: MiddlewareContext[ListResourcesRequest],
        call_next: CallNext[ListResourcesRequest, Sequence[Resource]],
    ) -> Sequence[Resource]:
        """Every resource but the unlisted one."""
        return [found for found in await call_next(context) if str(found.uri) != content.UNLISTED_URI]


server: FastMCP[Any] = FastMCP("full-fastmcp", version="4.0", middleware=[Unlisted()])
touches = 0


class Sum(BaseModel):
    """What `add` returns; gives the tool its output schema."""

    sum: int


async def add_numbers(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(sum=a + b)


@server.tool
async def slow(seconds: float, steps: int, ctx: Context) -> str:
    """Take a while, and report progress after each step."""
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        await ctx.report_progress(step, steps, f"step {step}")
    return f"{steps} steps"


@server.tool
async def log_some(ctx: Context) -> str:
    """Log once at each level; FastMCP leaves out what this session did not ask for."""
    for level in cast("Sequence[LoggingLevel]", content.LEVELS):
        await ctx.log(content.log_text(level), level, logger_name=content.LOGGER)
    return "logged"


@server.tool
async def grow_tools(name: str, ctx: Context) -> str:
    """Add a tool called `name` and say that the list has changed."""
    server.tool(add_numbers, name=name)
    await ctx.send_notification(ToolListChangedNotification())
    return name


@server.tool
async def grow_prompts(name: str, ctx: Context) -> str:
    """Add a prompt called `name` and say that the list has changed."""
    server.add_prompt(Prompt.from_function(plain_text, name=name))
    await ctx.send_notification(PromptListChangedNotification())
    return name


@server.tool
async def grow_resources(name: str, ctx: Context) -> str:
    """Add a resource at the address `name` and say that the list has changed."""
    server.add_resource(TextResource(uri=AnyUrl(name), name=name, text=name))
    await ctx.send_notification(ResourceListChangedNotification())
    return name


@server.tool
async def touch() -> str:
    """Change the watched resource; there are no subscribers."""
    global touches  # noqa: PLW0603 (the server is the process)
    touches += 1
    return content.watched_text(touches)


def plain_text() -> str:
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


@server.resource(content.WATCHED_URI, name="watched", mime_type="text/plain")
def watched() -> str:
    """The resource that `touch` changes."""
    return content.watched_text(touches)


@server.completion
async def complete(
    ref: CompletionReference, argument: CompletionArgument, context: CompletionContext | None
) -> list[str]:
    """Complete the template's id and the places of a visit."""
    target = ref.name if isinstance(ref, PromptReference) else ref.uri
    known = (context.arguments if context else None) or {}
    return content.completions(target, argument.name, argument.value, known)


def add_slow_lists() -> None:
    """Put in place what is also added while running, and the resources with fixed addresses."""
    server.tool(add_numbers, name="add")
    server.add_prompt(Prompt.from_function(plain_text, name=content.PLAIN_PROMPT))
    server.add_resource(TextResource(uri=AnyUrl(content.TEXT_URI), name="text", text=content.TEXT))
    server.add_resource(TextResource(uri=AnyUrl(content.UNLISTED_URI), name="unlisted", text=content.UNLISTED))
    binary = BinaryResource(
        uri=AnyUrl(content.BINARY_URI), name="binary", data=content.BINARY, mime_type="application/octet-stream"
    )
    server.add_resource(binary)


async def run(options: Options) -> None:
    """Serve until the pipe closes or a signal comes."""
    add_slow_lists()
    if options.transport == "sse":
        await serve_http(server.http_app(path="/sse", transport="sse"), options.port)
        return
    if options.transport == "http":
        app = server.http_app(path="/mcp", json_response=options.json, stateless_http=options.stateless)
        await serve_http(EraGate(app, options.era), options.port)
        return
    lowlevel = server._mcp_server  # FastMCP runs stdio only on streams of its own
    start = lowlevel.create_initialization_options()
    async with server._lifespan_manager():  # as its own stdio runner does
        await serve_stdio(lambda read, write: lowlevel.run(read, write, start), options.era)


if __name__ == "__main__":
    asyncio.run(run(parse_options(("both", "legacy", "modern"))))
