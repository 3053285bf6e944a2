"""Traces, over real sockets: official SDKs on both ends, the hub between them, and a receiver that gets all spans."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.frontends import task_server
from tests.frontends.wire import until
from tests.hubs import META, PATIENT, TRUSTED, HubProcess, run, serving, stdio
from tests.peers.launch import CHECKOUT, sdk_python
from tests.telemetry import traced_server
from tests.telemetry.receiver import ReceivedSpan, Receiver, receiving

SECONDS = 120.0
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "200"}


def traced(receiver: Receiver | None = None) -> dict[str, Any]:
    """The server's entry; with a receiver it sends spans of its own."""
    words = [sys.executable, traced_server.__file__]
    env = {} if receiver is None else {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "server"}
    return stdio(words, env={**env, "OTEL_SDK_DISABLED": str(receiver is None).lower()})


async def call(
    hub: HubProcess, tool: str, arguments: Mapping[str, Any], *, meta: Mapping[str, str] | None = None, **headers: str
) -> dict[str, Any]:
    """Call a tool over MCP; its result."""
    params = {"name": tool, "arguments": arguments, "_meta": {**META, **(meta or {})}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    fields = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": META["io.modelcontextprotocol/protocolVersion"],
        "mcp-method": "tools/call",
        "mcp-name": tool,
        **headers,
    }
    async with httpx2.AsyncClient(verify=TRUSTED, timeout=SECONDS) as http:
        answer = await http.post(hub.url, json=body, headers={key: str(value) for key, value in fields.items()})
    text = answer.text
    found = text if text.startswith("{") else next(line[6:] for line in text.splitlines() if line.startswith("data: {"))
    return dict(json.loads(found)["result"])


def named(receiver: Receiver, service: str, name: str) -> ReceivedSpan:
    [found] = [each for each in receiver.spans if (each.service, each.span.name) == (service, name)]
    return found


def is_child(child: ReceivedSpan, parent: ReceivedSpan) -> bool:
    return (child.span.trace_id, child.span.parent_span_id) == (parent.span.trace_id, parent.span.span_id)


async def test_one_trace_goes_from_an_a2a_client_through_the_hub_to_an_mcp_server(tmp_path: Path) -> None:
    with receiving() as receiver:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, **SOON}
        async with serving(tmp_path, {"tools": traced(receiver)}, env=env, limits=PATIENT) as hub:
            script = CHECKOUT / "tests" / "telemetry" / "traced_client.py"
            process = await asyncio.create_subprocess_exec(
                *(sdk_python("a2a10"), str(script), f"http://localhost:{hub.port}", "tools.echo"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "NO_PROXY": "*", **env, "OTEL_SERVICE_NAME": "agent"},
            )
            said, complained = await asyncio.wait_for(process.communicate(), SECONDS)
            assert process.returncode == 0, complained.decode()
            assert b"TASK_STATE_COMPLETED" in said
            services = {"agent", "isthmus", "server"}
            names = {"turn of an agent", "execute_tool tools.echo", "tools/call echo"}
            await asyncio.to_thread(
                receiver.wait_for,
                lambda: (
                    services <= {each.service for each in receiver.spans}
                    and names <= {each.span.name for each in receiver.spans}
                    and len([each for each in receiver.spans if each.span.name == "tools/call echo"]) == 2
                ),
            )
    agent = named(receiver, "agent", "turn of an agent")
    inbound = named(receiver, "isthmus", "execute_tool tools.echo")
    outbound = named(receiver, "isthmus", "tools/call echo")
    server = named(receiver, "server", "tools/call echo")
    # The official client has spans of its own between the turn and its request.
    above = [each for each in receiver.spans if each.service == "agent"]
    at: ReceivedSpan | None = inbound
    while at is not None and at != agent:
        at = next((each for each in above if is_child(at, each)), None)
    assert at == agent
    assert is_child(outbound, inbound)
    assert is_child(server, outbound)
    assert [each.kind for each in (inbound, outbound, server)] == ["SERVER", "CLIENT", "SERVER"]
    assert inbound.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "tools.echo",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "isthmus.frontend": "a2a",
        "isthmus.server": "tools",
        "isthmus.outcome": "ok",
        "isthmus.executed": "yes",
    }
    assert outbound.attributes == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "echo",
        "network.transport": "pipe",
        "isthmus.server": "tools",
    }
    assert inbound.span.start_time_unix_nano <= outbound.span.start_time_unix_nano <= outbound.span.end_time_unix_nano


async def test_the_parent_is_in_meta_and_the_context_of_http_is_a_link(tmp_path: Path) -> None:
    with receiving() as receiver:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, **SOON}
        async with serving(tmp_path, {"tools": traced()}, env=env, limits=PATIENT) as hub:
            await call(hub, "tools.echo", {"text": "x"}, meta={"traceparent": PARENT}, traceparent=OTHER)
            await call(hub, "tools.fail", {}, traceparent=PARENT)
            await asyncio.to_thread(receiver.wait_for, lambda: len(receiver.spans) == 4)
            histogram = "mcp.server.operation.duration", "mcp.client.operation.duration"
            await asyncio.to_thread(receiver.wait_for, lambda: {*histogram} <= receiver.metrics.keys())
    both, failed = (
        named(receiver, "isthmus", "tools/call tools.echo"),
        named(receiver, "isthmus", "tools/call tools.fail"),
    )
    for span in (both.span, failed.span):
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, "b7ad6b7169203331")
    assert [link.trace_id.hex() for link in both.span.links] == ["1" * 32]
    assert not failed.span.links
    assert failed.span.status.code == failed.span.status.STATUS_CODE_ERROR
    assert failed.attributes["error.type"] == "tool_error"
    points = receiver.metrics["mcp.client.operation.duration"].histogram.data_points
    assert sum(point.count for point in points) == 2
    assert 0.01 in points[0].explicit_bounds
    assert receiver.metrics["mcp.server.operation.duration"].unit == "s"


async def test_a_call_that_its_server_runs_as_a_task_is_reported_as_a_call_of_the_tool(tmp_path: Path) -> None:
    tasks = stdio([sys.executable, task_server.__file__, "legacy"])
    with receiving() as receiver:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, **SOON}
        async with (
            serving(tmp_path, {"tasks": tasks}, env=env, hub={"audit": "batched"}, limits=PATIENT) as hub,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", verify=TRUSTED, timeout=SECONDS) as http,
        ):
            assert (await call(hub, "tasks.only", {}))["content"] == task_server.DONE["content"]
            [ended] = (await http.get("/v1/activity")).json()["calls"]
            counted = [line for line in (await http.get("/metrics")).text.splitlines() if 'server="tasks"' in line]
            await asyncio.to_thread(receiver.wait_for, lambda: len(receiver.spans) >= 2)
        audit = await run("audit", "export", "--config", str(tmp_path / "isthmus.json"), folder=tmp_path)
    assert (ended["kind"], ended["name"]) == ("tool", "tasks.only")
    [total] = [line for line in counted if line.startswith("isthmus_calls_total")]
    assert 'tool="only",method="tools/call"' in total
    records = [json.loads(line)["record"] for line in audit.out.splitlines()]
    assert [(each["kind"], each["name"]) for each in records if "kind" in each] == [("tool", "tasks.only")]
    assert {each.span.name for each in receiver.spans} == {"tools/call tasks.only", "tools/call only"}


async def test_without_tracing_the_context_is_forwarded_as_it_is_and_baggage_ends_at_the_hub(tmp_path: Path) -> None:
    async with serving(tmp_path, {"tools": traced()}, limits=PATIENT) as hub:
        meta = {"traceparent": PARENT, "tracestate": "vendor=1", "baggage": "user=admin", "Baggage": "user=root"}
        response = (await call(hub, "tools.context", {}, meta=meta))["content"][0]["text"]
        assert f"'traceparent': '{PARENT}'" in response
        assert "'tracestate': 'vendor=1'" in response
        assert "admin" not in response
        assert "root" not in response
        response = (await call(hub, "tools.context", {}, traceparent=OTHER, tracestate="x=y", baggage="a=b"))[
            "content"
        ][0]
        assert f"'traceparent': '{OTHER}'" in response["text"]
        assert "'tracestate': 'x=y'" in response["text"]
        assert "baggage" not in response["text"]
        response = (await call(hub, "tools.context", {}, traceparent="nonsense"))["content"][0]
        assert "traceparent" not in response["text"]


async def test_a_collector_that_is_away_costs_spans_and_no_call(tmp_path: Path) -> None:
    with receiving() as receiver:
        receiver.failures = [400]
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-team=a%20b", **SOON}
        async with serving(tmp_path, {"tools": traced()}, env=env, limits=PATIENT) as hub:
            assert (await call(hub, "tools.echo", {"text": "x"}))["content"][0]["text"] == "x"
            await asyncio.to_thread(receiver.wait_for, lambda: bool(receiver.headers))
            assert receiver.headers[0]["x-team"] == "a b"

            async def is_counted() -> bool:
                async with httpx2.AsyncClient(verify=TRUSTED) as http:
                    text = (await http.get(f"http://127.0.0.1:{hub.port}/metrics")).text
                return 'isthmus_traced_calls_total{result="dropped"} 1' in text

            await until(is_counted)


async def test_logs_carry_the_ids_of_the_call_and_of_its_trace(tmp_path: Path) -> None:
    async with serving(tmp_path, {"tools": traced()}, log={"level": "debug"}, limits=PATIENT) as hub:
        await call(hub, "tools.echo", {"text": "x"}, traceparent=PARENT)

        async def is_logged() -> bool:
            lines = [json.loads(line) for line in hub.said if line.startswith("{")]
            return any(line["event"] == "call" and line.get("trace_id") == TRACE and line["call"] for line in lines)

        await until(is_logged)


@pytest.mark.parametrize("value", ["grpc", "http/json"])
async def test_a_protocol_that_the_hub_does_not_speak_is_logged_and_nothing_is_sent(tmp_path: Path, value: str) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": value}
    async with serving(tmp_path, env=env) as hub:
        assert any("no telemetry is sent" in line and value in line for line in hub.said)


class Listening:
    """A server over HTTP that answers as MCP or as plain JSON-RPC, and keeps the headers of calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], dict[str, Any]]] = []

    def answer(self, request: dict[str, Any], headers: dict[str, str]) -> dict[str, Any] | None:
        match request["method"]:
            case "initialize":
                about = {"name": "listening", "version": "1"}
                return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
            case "tools/list":
                return {"tools": [{"name": "hear", "inputSchema": {"type": "object"}}]}
            case "tools/call" | "hear":
                self.calls.append((headers, request.get("params") or {}))
                return {"content": [{"type": "text", "text": "heard"}]}
            case _:
                return None


@contextmanager
def listening() -> Iterator[tuple[Listening, str]]:
    server = Listening()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = json.loads(self.rfile.read(int(headers["content-length"])))
            result = server.answer(request, headers)
            received = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no"}}
            body = json.dumps({"jsonrpc": "2.0", "id": request.get("id"), **received}).encode()
            self.send_response(200 if "id" in request else 202)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body) if "id" in request else 0))
            self.end_headers()
            self.wfile.write(body if "id" in request else b"")

        def do_GET(self) -> None:
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{http.server_port}/mcp"
        finally:
            http.shutdown()
            thread.join()


@pytest.mark.parametrize("way", ["url", "rpc"])
async def test_servers_over_http_get_the_context_in_headers_too(tmp_path: Path, way: str) -> None:
    with listening() as (server, url):
        entry = {"url": url, "type": "http"} if way == "url" else {"rpc": url}
        async with serving(tmp_path, {"far": entry}, limits=PATIENT) as hub:
            await call(hub, "far.hear", {}, traceparent=PARENT, tracestate="vendor=1", baggage="user=admin")
            await call(hub, "far.hear", {})
    (headers, params), (bare, _) = server.calls
    assert (headers["traceparent"], headers["tracestate"]) == (PARENT, "vendor=1")
    assert "baggage" not in headers
    assert "traceparent" not in bare
    assert ("_meta" in params and params["_meta"].get("traceparent") == PARENT) == (way == "url")
