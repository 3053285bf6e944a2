"""T19: text of a caller or a server lands in a path, a query or a header, with another meaning there.

The answer: to MCP servers and JSON-RPC endpoints everything goes in a JSON body, at a target that is fixed when a link
is made. What has a path of its own, tasks and tenants of A2A agents over plain HTTP, is one percent-encoded segment
each. Header values that cannot stand in a line are refused, or written in the specification's base64 form; a tool whose
`x-mcp-header` names cannot be written, or differ only by case, is left out. `mcp_request_path`: `test_ssrf_matrix.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from isthmus.model.calls import Result
from isthmus.transport.egress import HttpOrigin
from isthmus.transport.http_client import header_lines, request_head
from isthmus.upstream.a2a.card_to_tools import AgentEndpoint
from isthmus.wire.a2a.client import ClientV10, RestClientBinding, RestClientV03
from isthmus.wire.a2a.operations import CancelTask, GetTask, SubscribeToTask
from isthmus.wire.mcp.modern import annotated_params, decode_header, encode_header, is_annotation_valid, param_headers
from tests.faults.scripted import ReceivedRequest, Scripted, hub_of, reply

ODD = [
    "../../admin",
    "..",
    ".",
    "%2e%2e%2f",
    "%2e%2e",
    "x?admin=1",
    "x#y",
    "x\r\nX-Evil: 1",
    "x\nX-Evil: 1",
    "@127.0.0.1",
    "//127.0.0.1/",
    "http://127.0.0.1/",
    "x\x00y",
    "a/../../b",
    "a\\..\\b",
    ";admin",
    "x y",
    "é\u2028",
    "",
]
HOME = HttpOrigin("https", "agent.example", 443)
texts = some.one_of(some.sampled_from(ODD), some.text(max_size=30))


@given(
    texts,
    texts,
    some.sampled_from([ClientV10(), RestClientV03()]),
    some.sampled_from([GetTask, CancelTask, SubscribeToTask]),
)
@example("..", "..", ClientV10(), GetTask)
def test_a_task_and_a_tenant_are_one_segment_each(task: str, tenant: str, client: Any, asked: Any) -> None:
    sent = RestClientBinding(client, tenant).write(1, asked(task))
    target = AgentEndpoint(HOME, "/agents/seven/", "", RestClientBinding(client, tenant)).target(sent.path)
    line = request_head(sent.verb, target, HOME, {}).split(b"\r\n")[0].decode()
    assert line == f"{sent.verb} {target} HTTP/1.1"
    assert target.startswith("/agents/seven/")
    steps = target.partition("?")[0].split("/")
    known = 5 + bool(tenant) + isinstance(client, RestClientV03)
    assert len(steps) == known, "as many steps as the operation has, whatever is said"
    for step in steps:
        assert unquote(step) not in (".", ".."), "nor a step up, as it is or once it is read"
        assert not re.search(r"[?#\\\s\x00-\x1f]", step)


class Endpoint(Scripted):
    """A plain JSON-RPC endpoint."""

    async def on(self, request: ReceivedRequest, out: Any) -> None:
        out.write(reply(request.result({"done": True})))


async def test_a_json_rpc_bridge_has_one_target_for_all_names_and_arguments(tmp_path: Path) -> None:
    async with Endpoint() as server:
        names = [odd for odd in ODD if odd]
        declared = {name: {"description": ""} for name in names}
        url = str(server.entry["url"]).replace("/mcp", "/rpc?of=ours")
        async with hub_of(tmp_path, {"s": {"rpc": url, "tools": declared}}) as hub:
            await hub.ready("s")
            for name in names:
                await hub.call(f"s.{name}", **{name: name})
            outcome = await hub.call("s.@127.0.0.1", path="../../admin")
        assert isinstance(outcome, Result)
        assert len(server.heard) > 1
        assert {(request.verb, request.path) for request in server.heard} == {("POST", "/rpc?of=ours")}
        assert all("x-evil" not in request.headers for request in server.heard)


@given(texts)
def test_the_name_of_a_tool_is_one_line_of_a_head(name: str) -> None:
    if any(0xD800 <= ord(letter) < 0xE000 for letter in name):
        return  # no JSON that comes in has one
    value = encode_header(name)
    lines = header_lines({"mcp-name": value})
    assert lines.count(b"\r\n") == 1
    assert lines.endswith(b"\r\n")
    assert decode_header(value) == name


@pytest.mark.parametrize("value", ["x\r\nX-Evil: 1", "x\nY: 1", "x\x00", "x\x7f", "\u2028"])
def test_header_values_with_line_breaks_are_not_written(value: str) -> None:
    with pytest.raises(ValueError, match="cannot carry") as refused:
        header_lines({"x-token": value})
    assert value not in str(refused.value)
    with pytest.raises(ValueError, match="is not a header name"):
        header_lines({value: "x"})


def marked(*headers: str) -> msgspec.Raw:
    """A schema whose properties are to be repeated in these headers."""
    properties = {f"p{n}": {"type": "string", "x-mcp-header": name} for n, name in enumerate(headers)}
    return msgspec.Raw(json.dumps({"type": "object", "properties": properties}).encode())


@pytest.mark.parametrize(
    "headers", [("Region\r\nX-Evil: 1",), ("a b",), ("",), ("a:b",), ("Region", "region"), ("é",), ("x\x00",)]
)
def test_a_tool_with_unwritable_headers_is_invalid(headers: tuple[str, ...]) -> None:
    assert not is_annotation_valid(marked(*headers))


def test_arguments_repeated_in_headers_are_one_line() -> None:
    places = annotated_params(marked("Region"))
    for odd in ODD:
        written = param_headers(places, msgspec.Raw(json.dumps({"p0": odd}).encode()))
        assert header_lines(written).count(b"\r\n") == len(written) == 1
