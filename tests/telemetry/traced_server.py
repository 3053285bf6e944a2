"""A server on the official SDK, mcp 2.x, whose own spans go where `OTEL_EXPORTER_OTLP_ENDPOINT` says."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

ODD = 'odd "name" \\ <script>alert(1)</script>'

server: MCPServer[Any] = MCPServer("traced", log_level="ERROR")


@server.tool()
async def echo(text: str) -> str:
    """Give the text back."""
    return text


@server.tool()
async def fail() -> str:
    """Report an error."""
    raise ToolError("it did not work")


@server.tool()
async def context(ctx: Context[Any, Any]) -> str:
    """What came in `_meta`."""
    meta = ctx.request_context.meta
    return str(dict(meta) if meta else {})


@server.tool(name=ODD)
async def odd() -> str:
    """A name that must be escaped."""
    return "odd"


if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    server.run("stdio")
