"""The server that the conformance suite knows by heart, on the official SDK: it passes the suite directly.

`python tests/conformance` serves it over stdio or Streamable HTTP, in both eras or in one. `run` starts it beside and
behind the hub; it imports nothing of the hub.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from typing import Any

from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import (
    EmptyResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    SetLevelRequestParams,
)

from tests.conformance import listings, resources, tools
from tests.conformance.questions import Context
from tests.conformance.replay import Book
from tests.peers.serving import App, EraGate, Message, Options, Receive, Send, parse_options, serve_http
from tests.peers.stdio_gate import serve_stdio

NAME = "conformance-fixture"
RETRY_MS = 100
"""How soon a caller should come back to a closed stream; short, because the suite waits for it."""


class Fixture(Server[Any]):
    """A server whose lists change, and which says so in the legacy handshake too."""

    def create_initialization_options(self, *_: Any, **__: Any) -> InitializationOptions:
        """What the handshake says; by itself the SDK announces changes in the modern era only."""
        changes = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(changes)


class Trimmed:
    """ASGI middleware that takes the spaces off header values, which the parser below leaves behind them."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        trimmed = [(name, value.strip(b" \t")) for name, value in scope.get("headers", ())]
        await self._app({**scope, "headers": trimmed}, receive, send)


async def list_tools(ctx: Context, params: object) -> ListToolsResult:
    """Every tool."""
    return ListToolsResult(tools=list(listings.TOOLS))


async def list_resources(ctx: Context, params: object) -> ListResourcesResult:
    """Every resource with an address of its own."""
    return ListResourcesResult(resources=list(listings.RESOURCES))


async def list_templates(ctx: Context, params: object) -> ListResourceTemplatesResult:
    """The template."""
    return ListResourceTemplatesResult(resource_templates=list(listings.TEMPLATES))


async def list_prompts(ctx: Context, params: object) -> ListPromptsResult:
    """Every prompt."""
    return ListPromptsResult(prompts=list(listings.PROMPTS))


async def agree(ctx: Context, params: object) -> EmptyResult:
    """Take note of a subscription or a level; the fixture's only text never changes, and it logs at one level."""
    return EmptyResult()


def make() -> Fixture:
    """The whole server, without a carrier."""
    fixture = Fixture(
        NAME,
        version="1.0",
        on_list_tools=list_tools,
        on_call_tool=tools.run,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=resources.read,
        on_subscribe_resource=agree,
        on_unsubscribe_resource=agree,
        on_subscriptions_listen=ListenHandler(tools.bus),
        on_list_prompts=list_prompts,
        on_get_prompt=resources.get,
        on_completion=resources.complete,
    )
    fixture.add_request_handler("logging/setLevel", SetLevelRequestParams, agree)
    fixture.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME))
    return fixture


async def serve(options: Options) -> None:
    """Serve until the pipe closes or a signal comes."""
    fixture = make()
    if options.transport == "http":
        app = fixture.streamable_http_app(event_store=Book(), retry_interval=RETRY_MS)
        await serve_http(Trimmed(EraGate(app, options.era)), options.port)
        return
    start = fixture.create_initialization_options()
    await serve_stdio(lambda read, write: fixture.run(read, write, start), options.era)


if __name__ == "__main__":
    # The suite means to be refused; the reasons are in the answers, and on stderr they would look like faults.
    logging.basicConfig(level=logging.CRITICAL)
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    asyncio.run(serve(parse_options(("both", "legacy", "modern"))))
