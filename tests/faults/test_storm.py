"""Many notifications of one server (a million with ISTHMUS_SOAK=1): memory stays bounded, and no news come late."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.event_listener import TOOLS_CHANGED, EventListener, listening
from tests.faults.storm_server import URI
from tests.faults.watching import IS_SOAK, resident_bytes
from tests.hubs import HubProcess, Raw, serving, stdio
from tests.matrix.field import until_complete

STORM = [sys.executable, str(Path(__file__).with_name("storm_server.py"))]
COUNT = 1_000_000 if IS_SOAK else 200_000
GROWTH_BYTES = 64 * COUNT
"""What the hub may need more meanwhile: kept, the events alone would be twice this."""
LATE_SECONDS = 10.0
"""When a neighbour's news count as lost on a busy machine; on an idle one they take milliseconds."""
PAUSE_SECONDS = 0.05
"""Between two looks at the neighbour: without it, most of what the machine does would be looking."""
RECEIVED_MAX = COUNT // 100
"""Of a storm, a caller that reads is told its share of what it lasts, not its events."""


async def touched(hub: HubProcess, server: str, ear: EventListener) -> float:
    """Seconds until an update of this server is received."""
    past = ear.received.count(URI)
    began = asyncio.get_running_loop().time()
    async with Raw(hub.url_of(server)) as caller:
        answer: dict[str, Any] = await caller.call("touch")
        assert "result" in answer, answer
    await ear.wait_for(URI, past)
    return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("kind", ["updated", "changed"])
async def test_a_storm_of_events_of_one_server_costs_no_memory_and_delays_no_caller(tmp_path: Path, kind: str) -> None:
    async with (
        serving(tmp_path, {"bad": stdio(STORM, timeout=240), "good": stdio(STORM)}) as hub,
        Raw(hub.url_of("bad"), seconds=240) as caller,
        asyncio.timeout(240),
    ):
        await until_complete(hub.url)
        async with listening(hub.url_of("bad"), [URI]) as flooded, listening(hub.url_of("good"), [URI]) as neighbour:
            await touched(hub, "good", neighbour)
            before = resident_bytes(hub.pid)
            raging = asyncio.ensure_future(caller.ask("tools/call", _storm(kind)))
            lates, peak = [], before
            while not raging.done():
                lates.append(await touched(hub, "good", neighbour))
                peak = max(peak, resident_bytes(hub.pid))
                await asyncio.wait([raging], timeout=PAUSE_SECONDS)
            ended = await raging
            # What came last must be heard, however much was left out before it.
            await touched(hub, "bad", flooded)
    changes = flooded.received.count(TOOLS_CHANGED)
    print(f"{kind}: {len(lates)} touches, latest {max(lates):.3f} s, {(peak - before) >> 20} MiB more,", end=" ")
    print(f"{flooded.received.count(URI)} updates and {changes} changes received")
    assert ended["result"]["content"][0]["text"] == f"told {COUNT} times"
    assert max(lates) < LATE_SECONDS
    assert peak - before < GROWTH_BYTES
    assert len(flooded.received) < RECEIVED_MAX
    assert (flooded.received.count(URI) > 1) if kind == "updated" else (changes > 0)


def _storm(kind: str) -> dict[str, Any]:
    return {"name": "storm", "arguments": {"kind": kind, "count": COUNT}}
