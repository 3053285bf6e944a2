"""T18: a tool's schema refers to an address, and the validator fetches it.

The answer: nothing is ever fetched for a schema, and a tool of which one points outside itself is left out, on every
frontend, for a reason that the operator finds in the server's state, in `isthmus access`, in the log and in the audit;
its neighbours stay. A standard `$schema` is known without being fetched, and no reason. The conformance suite's
scenario of this is run in `tests/conformance`; what leads out of a schema is in
`tests/unit/core/catalog/test_references.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.core.catalog.argument_validation import UnusableSchema, compile_check
from isthmus.model.calls import Result
from isthmus.model.fault_table import UnknownTool
from tests.faults.scripted import Scripted, hub_of
from tests.hubs import Raw, serving
from tests.security.fickle import Fickle, announced, command, said, until
from tests.security.fickle_server import tool
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


def test_a_schema_that_points_outside_itself_is_not_used_and_the_reason_is_reported() -> None:
    with Sink() as sink, dialled() as whom:
        for schema in schemas(sink.port):
            with pytest.raises(UnusableSchema, match=r"cannot be used: ."):
                compile_check(msgspec.Raw(json.dumps(schema).encode()), limit_bytes=1 << 18)
    assert whom == []


async def test_no_host_is_asked_for_a_schema_and_the_tool_is_left_out(tmp_path: Path) -> None:
    with Sink() as sink, dialled() as whom:
        server = Scripted()
        plain = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
        outside = list(enumerate(schemas(sink.port)))
        tools = [(f"in{n}", {"inputSchema": each}) for n, each in outside]
        tools += [(f"out{n}", {"inputSchema": plain, "outputSchema": each}) for n, each in outside]
        server.tools = [{"name": "fine", "inputSchema": plain}, *({"name": name, **more} for name, more in tools)]
        async with server, hub_of(tmp_path, {"s": server.entry}) as hub:
            await hub.ready("s")
            assert isinstance(await hub.call("s.fine"), Result)
            for name, _ in tools:
                assert isinstance(await hub.call(f"s.{name}", a=[1]), UnknownTool), name
        assert set(whom) == {str(server.entry["url"]).removeprefix("http://").removesuffix("/mcp")}


async def test_the_operator_learns_why_in_four_places_and_once(tmp_path: Path) -> None:
    fickle = Fickle(tmp_path / "lists.json")
    fetching = tool("fetching", inputSchema={"type": "object", "properties": {"a": {"$ref": "http://192.0.2.1/x"}}})
    why = "its inputSchema refers to http://192.0.2.1/x, which is not in it and not fetched"
    fickle.lists(tool("fine"), fetching)
    async with serving(tmp_path, {"fickle": fickle.entry}) as hub, Raw(hub.url) as raw:
        await until(lambda: is_listed(raw, "fickle.fine"), "the others are there")
        fickle.lists(tool("fine"), fetching, tool("more"))
        await announced(raw)
        await until(lambda: is_listed(raw, "fickle.more"), "it was listed again")
        assert "fickle.fetching" not in await raw.names()
        refused, unknown = await raw.call("fickle.fetching"), await raw.call("fickle.nope")
        assert json.dumps(refused).replace("fickle.fetching", "X") == json.dumps(unknown).replace("fickle.nope", "X")
        assert len(said(hub, "a tool is left out")) == 1
        assert why in said(hub, "a tool is left out")[0]
        state = await raw.http.get(f"http://127.0.0.1:{hub.port}/v1/servers/fickle")
        assert state.json()["notes"] == [f"'fetching' left out: {why}"]
        assert f"fickle.fetching is left out: {why}" in await command(tmp_path, "access", "local")

        async def is_in_the_log() -> bool:
            output = await command(tmp_path, "audit", "tail")
            assert output.count("definition.refused") <= 1
            return "definition.refused" in output and why in output

        await until(is_in_the_log, "it is in the audit log, which is written in batches")


async def is_listed(raw: Raw, name: str) -> bool:
    return name in await raw.names()


def test_a_standard_schema_is_known_without_being_fetched() -> None:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "properties": {"a": {"type": "integer"}}}
    with dialled() as whom:
        check = compile_check(msgspec.Raw(json.dumps(schema).encode()), limit_bytes=1 << 18)
        assert check(msgspec.Raw(b'{"a": 1}')) is None
        assert check(msgspec.Raw(b'{"a": "x"}')) is not None
    assert whom == []
