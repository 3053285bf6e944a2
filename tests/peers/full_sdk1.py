"""A full server on the official SDK, mcp 1.x, of the legacy era; `content` has its content.

It runs in an environment of its own (`launch.mcp1_python`). Subscriptions and levels are kept for each session, as
the SDK leaves both to the server.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary, WeakSet

from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.prompts import Prompt
from mcp.server.fastmcp.resources import BinaryResource, FunctionResource, TextResource
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.session import ServerSession
from mcp.types import Completion, PromptReference
from pydantic import AnyUrl, BaseModel

from tests.peers import content
from tests.peers.serving import Options, parse_options
from tests.peers.serving_sdk1 import TRANSPORTS, serve_sdk1


class PartlyListedServer(FastMCP):
    """A server with one resource that it does not list."""

    async def list_resources(self):
        """Every resource but the unlisted one."""
        return [found for found in await super().list_resources() if str(found.uri) != content.UNLISTED_URI]


server = PartlyListedServer("full-sdk1", log_level="CRITICAL")
levels: WeakKeyDictionary[ServerSession, str] = WeakKeyDictionary()
watchers: WeakSet[ServerSession] = WeakSet()
touches = 0


class Sum(BaseModel):
    """What `add` returns; gives the tool its output schema."""

    sum: int


@server.tool()
async def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(sum=a + b)


@server.tool()
async def slow(seconds: float, steps: int, ctx: Context) -> str:
    """Take a while, and report progress after each step."""
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        await ctx.report_progress(step, steps, f"step {step}")
    return f"{steps} steps"


@server.tool()
async def log_some(ctx: Context) -> str:
    """Log once at each level, but for those below what this session asked for."""
    lowest = content.LEVELS.index(levels.get(ctx.session, "debug"))
    for level in content.LEVELS[lowest:]:
        await ctx.log(level, content.log_text(level), logger_name=content.LOGGER)
    return "logged"


@server.tool()
async def grow_tools(name: str, ctx: Context) -> str:
    """Add a tool called `name` and say that the list has changed."""
    server.add_tool(add, name=name)
    await ctx.session.send_tool_list_changed()
    return name


@server.tool()
async def grow_prompts(name: str, ctx: Context) -> str:
    """Add a prompt called `name` and say that the list has changed."""
    server.add_prompt(Prompt.from_function(plain, name=name))
    await ctx.session.send_prompt_list_changed()
    return name


@server.tool()
async def grow_resources(name: str, ctx: Context) -> str:
    """Add a resource at the address `name` and say that the list has changed."""
    server.add_resource(TextResource(uri=name, name=name, text=name))
    await ctx.session.send_resource_list_changed()
    return name


@server.tool()
async def touch(ctx: Context) -> str:
    """Change the watched resource and notify its subscribers."""
    global touches  # noqa: PLW0603 (the server is the process)
    touches += 1
    for session in list(watchers):
        await session.send_resource_updated(AnyUrl(content.WATCHED_URI))
    return content.watched_text(touches)


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


@server.completion()
async def complete(ref, argument, context):
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


def keep_levels_and_watchers() -> None:
    """Answer what the SDK leaves to its lower layer: levels and subscriptions."""
    lowlevel = server._mcp_server

    @lowlevel.set_logging_level()
    async def set_level(level: str) -> None:
        levels[lowlevel.request_context.session] = level

    @lowlevel.subscribe_resource()
    async def subscribe(uri: AnyUrl) -> None:
        watchers.add(lowlevel.request_context.session)

    @lowlevel.unsubscribe_resource()
    async def unsubscribe(uri: AnyUrl) -> None:
        watchers.discard(lowlevel.request_context.session)


def announce() -> None:
    """Make the handshake say that the lists change and that resources can be watched."""
    lowlevel = server._mcp_server  # the SDK has no public way to the former, and never says the latter
    plain_options = lowlevel.create_initialization_options

    def truthful(*_, **__):
        options = plain_options(NotificationOptions(True, True, True))
        options.capabilities.resources.subscribe = True
        return options

    lowlevel.create_initialization_options = truthful


async def run(options: Options) -> None:
    """Serve until the pipe closes or a signal comes."""
    add_slow_lists()
    keep_levels_and_watchers()
    announce()
    await serve_sdk1(server, options)


if __name__ == "__main__":
    asyncio.run(run(parse_options(("legacy",), TRANSPORTS)))
