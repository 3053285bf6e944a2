"""An agent on the official SDK of A2A 1.0 whose turn is a span: `traced_client URL TOOL`. Runs where that SDK is."""

from __future__ import annotations

import asyncio
import sys
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as wire
from google.protobuf.json_format import MessageToJson, ParseDict
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

SECONDS = 60.0


async def inject(request: httpx.Request) -> None:
    """What OpenTelemetry's instrumentation of httpx does."""
    propagate.inject(request.headers)


async def main() -> None:
    """Send one message within a span."""
    url, tool = sys.argv[1:]
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    part = {"data": {"tool": tool, "arguments": {"text": "hello"}}}
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [part]}
    with trace.get_tracer("agent").start_as_current_span("turn of an agent"):
        async with httpx.AsyncClient(timeout=SECONDS, event_hooks={"request": [inject]}) as http:
            card = await A2ACardResolver(http, url).get_agent_card()
            client = ClientFactory(ClientConfig(streaming=False, httpx_client=http)).create(card)
            async for event in client.send_message(ParseDict({"message": message}, wire.SendMessageRequest())):
                print(MessageToJson(event))
    provider.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
