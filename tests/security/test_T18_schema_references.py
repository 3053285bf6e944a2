"""T18: a tool's schema refers to an address, and whoever checks arguments against it fetches that.

The answer: nothing is ever fetched for a schema. One that points outside itself costs the check in the hub, for its
reason (`Unchecked`), and nothing else: the tool stays, since its server makes its own check, and a standard `$schema`
is known without being fetched. The conformance suite's scenario of this is run in `tests/conformance`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.core.catalog.schema import Unchecked, compile_check
from isthmus.model.outcomes import Result
from tests.faults.scripted import Scripted, hub_of
from tests.security.sink import Sink, dialled

OUTSIDE: list[dict[str, Any]] = [
    {"$ref": "URL"},
    {"properties": {"a": {"$ref": "URL#/definitions/a"}}},
    {"properties": {"a": {"$dynamicRef": "URL"}}},
    {"$schema": "URL"},
    {"$id": "URL", "properties": {"a": {"$ref": "other.json"}}},
    {"$defs": {"a": {"$ref": "URL"}}, "allOf": [{"$ref": "#/$defs/a"}]},
    {"properties": {"a": {"anyOf": [{"items": {"$ref": "//HOST/x"}}]}}},
    {"$ref": "file:///etc/passwd"},
    {"$schema": "http://json-schema.org/draft-07/schema#", "if": {"$ref": "URL"}},
]


def schemas(port: int) -> list[dict[str, Any]]:
    """All of them, with an address of a sink."""
    text = json.dumps(OUTSIDE).replace("URL", f"http://127.0.0.1:{port}/x").replace("HOST", f"127.0.0.1:{port}")
    return [{"type": "object", **schema} for schema in json.loads(text)]


def test_a_schema_that_points_outside_itself_is_not_used_and_the_reason_is_told() -> None:
    with Sink() as sink, dialled() as whom:
        for schema in schemas(sink.port):
            with pytest.raises(Unchecked, match=r"cannot be used: ."):
                compile_check(msgspec.Raw(json.dumps(schema).encode()), limit_bytes=1 << 18)
    assert whom == []


async def test_nobody_is_asked_for_a_schema_when_a_tool_is_listed_and_called(tmp_path: Path) -> None:
    with Sink() as sink, dialled() as whom:
        server = Scripted()
        tools = enumerate(schemas(sink.port))
        server.tools = [{"name": f"t{n}", "inputSchema": each, "outputSchema": each} for n, each in tools]
        async with server, hub_of(tmp_path, {"s": server.entry}) as hub:
            await hub.ready("s")
            for tool in server.tools:
                assert isinstance(await hub.call(f"s.{tool['name']}", a=[1]), Result)
        assert set(whom) == {str(server.entry["url"]).removeprefix("http://").removesuffix("/mcp")}


def test_a_standard_schema_is_known_without_being_fetched() -> None:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "properties": {"a": {"type": "integer"}}}
    with dialled() as whom:
        check = compile_check(msgspec.Raw(json.dumps(schema).encode()), limit_bytes=1 << 18)
        assert check(msgspec.Raw(b'{"a": 1}')) is None
        assert check(msgspec.Raw(b'{"a": "x"}')) is not None
    assert whom == []
