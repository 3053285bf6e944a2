"""Argument checks: compiled when they are first needed, kept while they are the same, and bounded."""

from __future__ import annotations

from isthmus.core.catalog.schema import CheckCache, no_check
from tests.unit.core.doubles import raw, tool

TEXT = {"type": "object", "required": ["text"]}


def test_a_tool_without_a_usable_schema_is_not_checked_here() -> None:
    cache = CheckCache(limit_bytes=4096)
    assert cache.of(tool())(raw({})) is None
    assert cache.of(tool(inputSchema={"type": "nonsense"}))(raw({})) is None


def test_a_check_is_compiled_on_the_first_call_and_kept() -> None:
    cache = CheckCache(limit_bytes=4096)
    check = cache.of(tool(inputSchema=TEXT))
    assert len(cache._checks) == 0
    assert check(raw({})) == '"text" is a required property'
    assert cache.of(tool(inputSchema=TEXT))(raw({"text": 1})) is None
    assert len(cache._checks) == 1


def test_the_same_program_on_another_server_shares_its_checks() -> None:
    cache = CheckCache(limit_bytes=4096)
    for server in ("a", "b"):
        assert cache.of(tool("say", server, inputSchema=TEXT))(raw({})) == '"text" is a required property'
    assert len(cache._checks) == 1


def test_a_changed_schema_is_a_new_check() -> None:
    cache = CheckCache(limit_bytes=4096)
    assert cache.of(tool(inputSchema=TEXT))(raw({})) is not None
    assert cache.of(tool(inputSchema={"type": "object"}))(raw({})) is None


def test_the_number_of_checks_kept_is_bounded() -> None:
    cache = CheckCache(limit_bytes=4096, capacity=2)
    for name in ("a", "b", "c"):
        assert cache.of(tool(name, inputSchema=TEXT))(raw({})) is not None
    assert len(cache._checks) == 1


def test_what_has_no_schema_here_is_never_refused_here() -> None:
    assert no_check(raw(["anything"])) is None
