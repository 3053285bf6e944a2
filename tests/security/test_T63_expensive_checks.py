"""T63: arguments that take long to validate hold the event loop, and with it every other call.

Validation is synchronous, and schemas and arguments come from strangers. Work is estimated before it is done
(`core.catalog.argument_validation`); what is over budget is validated in a worker process with a time limit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hubs import HubProcess, Raw, serving
from tests.security.fickle import Fickle, until
from tests.security.fickle_server import tool
from tests.security.heavy_inputs import HELD

HELD_SECONDS = float(HELD)
"""No piece of work holds the event loop longer, in processor time of its thread."""


def fanned(width: int) -> dict[str, Any]:
    """Each number of an array meets `width` times `width` keywords."""
    inner = {"allOf": [{"type": "number"}] * width}
    return {
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"allOf": [{"$ref": "#/$defs/inner"}] * width}}},
        "$defs": {"inner": inner},
    }


def nested_unevaluated(levels: int) -> dict[str, Any]:
    """`unevaluatedProperties` evaluates what is beside it once more, so that levels multiply."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "unevaluatedProperties": {}, "allOf": [schema]}
    return schema


NUMBERS = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}}}}

REFUSED: dict[str, tuple[dict[str, Any], Any]] = {
    "every number meets 90,000 keywords": (fanned(300), {"x": list(range(10_000))}),
    "3,000 patterns read a long string": (
        {"type": "object", "properties": {"x": {"allOf": [{"pattern": f"^[ab]*(c{at})?$"} for at in range(3000)]}}},
        {"x": "ab" * 600_000},
    ),
    "schemas that are evaluated again and again": (nested_unevaluated(25), {f"p{at}": 1 for at in range(100)}),
    "exact fractions of long numbers": (
        {"type": "object", "properties": {"x": {"items": {"allOf": [{"multipleOf": 0.01}] * 10}}}},
        {"x": [1e300] * 90_000},
    ),
}

SLOW_BUT_FINE: dict[str, tuple[dict[str, Any], Any]] = {
    "a large array": (NUMBERS, {"x": list(range(90_000))}),
    "very many objects": ({"type": "object"}, {"x": [{"b": 1}] * 45_000}),
    "a schema of many properties": (
        {"type": "object", "properties": {f"p{at}": {"type": ["number", "null"]} for at in range(5_000)}},
        {f"p{at}": at for at in range(5_000)},
    ),
}


async def listed(hub: HubProcess, raw: Raw, *schemas: dict[str, Any]) -> None:
    async def are_there() -> bool:
        return f"fickle.t{len(schemas) - 1}" in await raw.names()

    await until(are_there, "the server is listed")
    assert hub.pid


async def busiest(raw: Raw, hub: HubProcess) -> float:
    """The longest piece of work so far."""
    answer = await raw.http.get(f"http://127.0.0.1:{hub.port}/v1/hub")
    figure: float = json.loads(answer.content)["event_loop"]["busy_seconds_max"]
    return figure


@pytest.mark.asyncio
@pytest.mark.parametrize("label", REFUSED)
async def test_a_check_that_takes_too_long_is_refused_and_delays_no_other_call(label: str, tmp_path: Path) -> None:
    schema, arguments = REFUSED[label]
    fickle = Fickle(tmp_path / "lists.json")
    fickle.lists(tool("t0") | {"inputSchema": schema})
    async with serving(tmp_path, {"fickle": fickle.entry}) as hub, Raw(hub.url) as raw:
        await listed(hub, raw, schema)
        first = await raw.call("fickle.t0", arguments)
        again = await raw.call("fickle.t0", arguments)
        for answer in (first, again):
            assert "schema too expensive" in answer["error"]["message"], answer
            assert answer["error"]["data"]["executed"] == "no"
        assert "result" in await raw.call("builtin.echo", {"text": "hi"})
        assert await busiest(raw, hub) < HELD_SECONDS


@pytest.mark.asyncio
async def test_large_arguments_are_still_checked_and_are_unrestricted_up(tmp_path: Path) -> None:
    fickle = Fickle(tmp_path / "lists.json")
    schemas = [schema for schema, _ in SLOW_BUT_FINE.values()]
    fickle.lists(*(tool(f"t{at}") | {"inputSchema": schema} for at, schema in enumerate(schemas)))
    async with serving(tmp_path, {"fickle": fickle.entry}) as hub, Raw(hub.url) as raw:
        await listed(hub, raw, *schemas)
        for at, (_, arguments) in enumerate(SLOW_BUT_FINE.values()):
            assert "result" in await raw.call(f"fickle.t{at}", arguments), at
        wrong = await raw.call("fickle.t0", {"x": [*range(90_000), "no number"]})
        assert "do not fit the tool's inputSchema" in wrong["error"]["message"]
        assert await busiest(raw, hub) < HELD_SECONDS
