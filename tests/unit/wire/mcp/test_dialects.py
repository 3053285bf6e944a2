"""Requests in each era are written from the authorised call, with the required members and no others."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.model.calls import Call, Kind
from isthmus.wire.mcp.forwarded_methods import LegacyDialect, McpDialect, ModernDialect
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import call, raw

KEY = "io.modelcontextprotocol/"
ENVELOPE = {
    KEY + "protocolVersion": "2026-07-28",
    KEY + "clientInfo": {"name": "isthmus", "version": "1"},
    KEY + "clientCapabilities": {},
}
LEGACY = LegacyDialect()
MODERN = ModernDialect(Implementation("isthmus", "1"))


def written(dialect: McpDialect, asked: Call, name: str = "own") -> Any:
    return json.loads(dialect.call_params(asked, name, 7))


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("tool", {"name": "own", "arguments": {"a": 1}}),
        ("prompt", {"name": "own", "arguments": {"a": 1}}),
        ("resource", {"uri": "own"}),
        ("prompt_argument", {"ref": {"type": "ref/prompt", "name": "own"}, "argument": {"a": 1}}),
        ("uri_argument", {"ref": {"type": "ref/resource", "uri": "own"}, "argument": {"a": 1}}),
    ],
)
def test_every_kind_is_asked_for_under_its_servers_own_name(kind: Kind, members: dict[str, Any]) -> None:
    asked = call("shown.to.callers", {"a": 1}, kind=kind)
    assert written(LEGACY, asked) == members
    assert written(MODERN, asked) == {**members, "_meta": ENVELOPE}


def test_a_prompt_without_arguments_is_asked_for_without() -> None:
    assert written(LEGACY, call(kind="prompt")) == {"name": "own"}
    assert written(LEGACY, call()) == {"name": "own", "arguments": {}}


@pytest.mark.parametrize("kind", ["tool", "prompt", "resource", "uri_argument"])
def test_unknown_members_are_forwarded(kind: Kind) -> None:
    asked = msgspec.structs.replace(call(kind=kind), extra={"context": raw({"n": 1})}, meta={"trace": raw("t")})
    assert written(LEGACY, asked)["context"] == {"n": 1}
    assert written(LEGACY, asked)["_meta"] == {"trace": "t"}
    assert written(MODERN, asked)["_meta"] == {**ENVELOPE, "trace": "t"}


def test_progress_is_asked_for_under_a_token_of_this_hop() -> None:
    asked = msgspec.structs.replace(call(), wants_progress=True)
    assert written(LEGACY, asked)["_meta"] == {"progressToken": 7}
    assert written(MODERN, asked)["_meta"] == {**ENVELOPE, "progressToken": 7}


def test_only_a_modern_server_gets_the_log_level_with_the_call() -> None:
    asked = msgspec.structs.replace(call(), log_level="warning")
    assert "_meta" not in written(LEGACY, asked)
    assert written(MODERN, asked)["_meta"] == {**ENVELOPE, KEY + "logLevel": "warning"}


def test_other_requests_have_the_members_of_their_era() -> None:
    assert json.loads(LEGACY.params()) == {}
    assert json.loads(LEGACY.params({"uri": raw("x")})) == {"uri": "x"}
    assert json.loads(MODERN.params({"uri": raw("x")})) == {"uri": "x", "_meta": ENVELOPE}
    assert (LEGACY.probe, MODERN.probe) == ("ping", "server/discover")


def test_the_version_is_the_one_agreed_on() -> None:
    assert (LEGACY.version, LegacyDialect("2024-11-05").version, MODERN.version) == (
        "2025-11-25",
        "2024-11-05",
        "2026-07-28",
    )


def test_a_list_is_requested_with_the_client_capabilities_of_its_callers() -> None:
    client_caps = frozenset({"elicitation", "elicitation.url", "roots"})
    asked = json.loads(MODERN.params({"cursor": raw("c")}, client_caps))
    received: dict[str, Any] = {"elicitation": {"url": {}}, "roots": {}}
    assert asked == {"cursor": "c", "_meta": {**ENVELOPE, KEY + "clientCapabilities": received}}
    assert json.loads(MODERN.params({})) == {"_meta": ENVELOPE}
    assert json.loads(LEGACY.params({"cursor": raw("c")}, client_caps)) == {"cursor": "c"}
