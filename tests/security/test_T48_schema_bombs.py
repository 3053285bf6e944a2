"""T48: a schema that takes for ever to compile or to check, or a pattern that does.

Patterns run in linear time, schemas have a size and an amount of work, and one that exceeds them costs its own check
only: the server makes its own. By structure: work is counted before it is done (`core.catalog.argument_validation`),
not timed. `tests/unit/core/catalog/test_argument_validation.py` shows the single bounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.core.catalog.argument_validation import UnusableSchema, compile_check
from isthmus.core.settings import Limits
from tests.hubs import Raw, serving
from tests.security.fickle import Fickle, until
from tests.security.fickle_server import tool

LIMIT = Limits().schema_bytes


def doubling(levels: int) -> dict[str, Any]:
    """A schema of a few lines that unfolds to two to the power of its levels."""
    defs: dict[str, Any] = {"a0": {"type": "object"}}
    for level in range(1, levels + 1):
        defs[f"a{level}"] = {"allOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"$defs": defs, "$ref": f"#/$defs/a{levels}"}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


DEEP = "deeper than JSON may be"

BOMBS: dict[str, dict[str, Any]] = {
    "two to the twentieth": doubling(20),
    "ten megabytes": {"type": "object", "description": "x" * 10_000_000},
    "a reference to itself": {"$defs": {"x": {"$ref": "#/$defs/x"}}, "$ref": "#/$defs/x"},
    "a reference to a network": {"$ref": "http://127.0.0.1:9/schema"},
    DEEP: nested(100),
    "a pattern that is too large": {"properties": {"x": {"pattern": "(((a{1,100}){1,100}){1,100})"}}},
}

PATTERNS = ["(a+)+$", "^(a|a)*$", "^(a|aa)+$", "^(.*a){25}$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y"]


@pytest.mark.parametrize("label", BOMBS)
def test_a_bomb_is_refused_or_harmless(label: str) -> None:
    schema = msgspec.Raw(msgspec.json.encode(BOMBS[label]))
    try:
        check = compile_check(schema, limit_bytes=LIMIT)
    except UnusableSchema:
        return  # the server makes its own check
    assert check(msgspec.Raw(b"{}")) is None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_takes_no_longer_than_its_text(pattern: str) -> None:
    """With a backtracking engine none of these would end in the lifetime of this test."""
    schema = msgspec.Raw(msgspec.json.encode({"properties": {"x": {"pattern": pattern}}}))
    check = compile_check(schema, limit_bytes=LIMIT)
    check(msgspec.Raw(b'{"x":"%b!"}' % (b"a" * 10_000)))


@pytest.mark.parametrize("pattern", [r"(a+)\1", "(?=a)b", "(?<!a)b"])
def test_a_pattern_that_needs_backtracking_is_not_run(pattern: str) -> None:
    with pytest.raises(UnusableSchema):
        compile_check(msgspec.Raw(msgspec.json.encode({"pattern": pattern})), limit_bytes=LIMIT)


@pytest.mark.asyncio
async def test_a_server_with_bombs_costs_only_its_own_checks(tmp_path: Path) -> None:
    fickle = Fickle(tmp_path / "lists.json")
    listed = [bomb for label, bomb in BOMBS.items() if label != DEEP]  # a list with that one in it is refused whole
    bombs = [tool(f"t{at}") | {"inputSchema": {"type": "object", **bomb}} for at, bomb in enumerate(listed)]
    fickle.lists(*[bomb for bomb in bombs if len(msgspec.json.encode(bomb)) < 100_000], tool("fine"))
    async with serving(tmp_path, {"fickle": fickle.entry}) as hub, Raw(hub.url) as raw:

        async def is_there() -> bool:
            return "fickle.fine" in await raw.names()

        await until(is_there, "the server is listed")
        for name in await raw.names():
            if name.startswith("fickle."):
                assert "result" in await raw.call(name, {"x": "a" * 100}), name
