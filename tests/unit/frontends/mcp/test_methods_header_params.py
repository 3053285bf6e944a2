"""Arguments repeated in headers are compared with the tool that the caller sees."""

from __future__ import annotations

import json

import msgspec
import pytest

from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.frontends.mcp import methods
from isthmus.frontends.mcp.methods import HeaderParamCheck
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Call, Surface
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from tests.unit.core.doubles import ANYONE, raw

SERVER = ServerName("routed")
HEADER = b"mcp-param-region"


def tool(name: str, region: dict[str, object]) -> Tool:
    schema = {"type": "object", "properties": {"region": {"type": "string", **region}}}
    return Tool.of(SERVER, FeatureName(name), {"inputSchema": msgspec.Raw(json.dumps(schema).encode())})


MARKED = tool("where", {"x-mcp-header": "Region"})
PLAIN = tool("plain", {})
SNAPSHOT = Snapshot(1, {SERVER: ServerStatus(SERVER, "ready", tools=(MARKED, PLAIN))}, CheckCache(limit_bytes=1 << 20))


def call(name: str, caller: Caller = ANYONE, surface: Surface = EVERYTHING) -> Call:
    return Call(caller, surface, name, raw({"region": "eu"}))


@pytest.mark.parametrize("surface", [EVERYTHING, Surface("own", SERVER)])
def test_a_header_must_repeat_the_argument_under_whichever_name_the_tool_is_called(surface: Surface) -> None:
    asked = call("where" if surface.server else "routed.where", surface=surface)
    for headers, is_believed in (({HEADER: b"eu"}, True), ({HEADER: b"us"}, False), ({}, False)):
        assert (HeaderParamCheck().find_mismatch(asked, SNAPSHOT, headers) is None) == is_believed


def test_a_tool_without_annotations_is_called_without_headers() -> None:
    assert HeaderParamCheck().find_mismatch(call("routed.plain"), SNAPSHOT, {}) is None


def test_a_caller_that_may_not_see_a_tool_learns_nothing_of_its_annotations() -> None:
    stranger = Caller("stranger", "t", Grants(("other.*",)))
    assert HeaderParamCheck().find_mismatch(call("routed.where", stranger), SNAPSHOT, {}) is None
    assert HeaderParamCheck().find_mismatch(call("routed.nothing"), SNAPSHOT, {}) is None


def test_remembered_descriptions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "KNOWN_SCHEMAS_MAX", 1)
    asked = HeaderParamCheck()
    for _ in range(3):
        assert asked.find_mismatch(call("routed.plain"), SNAPSHOT, {}) is None
        assert asked.find_mismatch(call("routed.where"), SNAPSHOT, {}) is not None
