"""T43: a caller or a server writes lines into the log that look like the hub's own.

Answer: whatever is logged goes through one place (`telemetry.logs`), which makes one line of JSON of each event,
escapes what could end or forge a line, and bounds its length. Shown for that place with every kind of value, and for a
hub whose every input that gets logged is hostile. How terminals are kept from being driven is T42.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.telemetry import logs
from tests.frontends.wire import until
from tests.hubs import TRUSTED, HubProcess, Raw, serving, stdio
from tests.peers.launch import command

LINE_LENGTH_MAX = 8 * 1024
"""Not the hub's own word for it: that is what is examined here."""

FORGED = '\n{"level":"info","event":"granted"}\r\n\u2028\x85\x1b[2J{"event":"granted"}'
LONG = "x" * 1_048_576
HOSTILE = (FORGED, LONG, FORGED * 2_000, "\x00" * 100_000, "\U000e0041" * 50_000)


def lines_of(text: str) -> list[dict[str, Any]]:
    """The events of a log, each of which must be a line of its own and not too long."""
    # Not `splitlines`: what JSON does not escape, such as U+2028, may stand in a line and does not end it.
    lines = text.removesuffix("\n").split("\n")
    assert all(len(line.encode()) <= LINE_LENGTH_MAX for line in lines)
    assert all(line.isprintable() for line in lines)
    return [json.loads(line) for line in lines]


@pytest.fixture
def log(tmp_path: Path) -> Any:
    logs.configure("debug", "json", str(tmp_path / "log"))
    yield structlog.get_logger("test")
    structlog.reset_defaults()


@pytest.mark.parametrize("hostile", HOSTILE, ids=["forged", "long", "both", "nulls", "tags"])
def test_any_event_is_one_short_line(tmp_path: Path, log: Any, hostile: str) -> None:
    values: list[Any] = [
        hostile,
        [hostile] * 100,
        {hostile: hostile, "list": [hostile, {"deep": hostile}]},
        {f"{number}{hostile}": hostile for number in range(50)},
        OSError(hostile),
        (hostile, {hostile}),
        hostile.encode(),
    ]
    for value in values:
        log.warning("an event", value=value)
        log.warning(hostile, one=value, two=value, three=value, four=value, five=value, six=value)
    output = lines_of((tmp_path / "log").read_text())
    assert len(output) == 2 * len(values)
    assert all(event["level"] == "warning" for event in output)


@pytest.mark.parametrize("hostile", HOSTILE, ids=["forged", "long", "both", "nulls", "tags"])
def test_an_exception_is_one_short_line_too(tmp_path: Path, log: Any, hostile: str) -> None:
    try:
        raise ValueError(hostile)
    except ValueError:
        log.exception("it failed", tool=hostile)
    (received,) = lines_of((tmp_path / "log").read_text())
    assert (received["event"], received["level"]) == ("it failed", "error")


@settings(max_examples=60)
@given(
    st.recursive(
        st.text() | st.binary() | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_value_is_one_line(value: Any) -> None:
    event = logs._bound_values(None, "", {"event": "an event", "value": value})
    (received,) = lines_of(logs._one_line(None, "", event))
    assert received["event"] == "an event"


async def test_no_input_of_a_hub_adds_a_line_to_its_log(tmp_path: Path) -> None:
    hub_log = tmp_path / "hub.log"
    dying = f"import sys; sys.stderr.write({FORGED * 3!r}); sys.exit({FORGED!r})"
    servers = {
        "raw": stdio(command("raw_server")),
        "garbage": stdio(command("raw_server", "--mode", "garbage")),
        "dying": stdio([sys.executable, "-c", dying]),
    }
    async with serving(tmp_path, servers, log={"level": "debug", "format": "json", "file": str(hub_log)}) as hub:
        await until(lambda: _is_listed(hub))
        await _be_hostile(hub)
    output = lines_of(hub_log.read_text())
    assert output
    assert not [event for event in output if event.get("event") == "granted"]
    assert all({"event", "level", "ts"} <= event.keys() for event in output)


async def _is_listed(hub: HubProcess) -> bool:
    async with Raw(hub.url) as caller:
        return any(name.startswith("raw.") for name in await caller.names())


async def _be_hostile(hub: HubProcess) -> None:
    """Put what looks like a line into each place of a request that a log might quote."""
    spelt = FORGED.encode("ascii", "backslashreplace").decode()
    async with httpx2.AsyncClient(verify=TRUSTED, base_url=f"http://127.0.0.1:{hub.port}", timeout=20) as http:
        body = {
            "jsonrpc": "2.0",
            "id": FORGED,
            "method": FORGED,
            "params": {"name": FORGED, "arguments": {FORGED: FORGED}},
        }
        asked = [
            http.post("/mcp", json=body),
            http.post("/mcp", json={**body, "method": "tools/call"}),
            http.post("/mcp", json={**body, "method": "initialize"}),
            http.post("/mcp", content=FORGED.encode(), headers={"content-type": "application/json"}),
            http.post("/a2a", json={**body, "method": "message/send"}),
            http.post("/v1/tools/raw.echo", json={"text": FORGED, "mode": FORGED}),
            http.post(f"/v1/tools/{quote(FORGED, safe='')}", json={}),
            http.get("/v1/servers", headers={"user-agent": spelt, "origin": spelt, "authorization": f"Bearer {spelt}"}),
            http.get("/mcp_endpoint/health", params={"key": FORGED}),
            http.get("/sse", headers={"x-api-key": spelt, "host": "x"}),
            http.post("/v1/tools/raw.echo", json={"text": LONG, LONG: 1}),
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert any(isinstance(answer, httpx2.Response) for answer in answers)
