"""T53: a server announces a hundred thousand changes a second, or a caller follows ten thousand resources.

Answer: of a storm of `list_changed` the first is acted on at once and then at most one a second; of updates a caller is
told the last, at the rate at which it reads. A session follows a thousand resources at most, and a caller has a
thousand sessions at most. A million events, with what they cost neighbours and memory: `tests/faults/test_storm.py`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from isthmus.frontends.mcp.http_streams import SESSIONS_MAX
from isthmus.frontends.mcp.subscriptions import SUBSCRIPTIONS_MAX
from tests.faults.caller import Caller
from tests.faults.scripted import hub_of
from tests.faults.watching import eventually
from tests.hubs import CHECKOUT, serving, stdio

STORM = [sys.executable, str(CHECKOUT / "tests" / "faults" / "storm_server.py")]
CHANGES = 50_000

BOOK_SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answers = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"resources": {"subscribe": True}},
                       "serverInfo": {"name": "shelf", "version": "1"}},
        "resources/list": {"resources": []},
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "shelf://{book}", "name": "book"}]},
        "resources/subscribe": {},
    }
    known = asked["method"] in answers
    end = {"result": answers[asked["method"]]} if known else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **end}), flush=True)
"""


async def test_fifty_thousand_changes_are_a_few_listings(tmp_path: Path) -> None:
    async with hub_of(tmp_path, {"bad": stdio(STORM, timeout=60)}) as hub:
        await hub.ready("bad")
        versions: set[int] = set()
        hub.running.hub.watch(lambda: versions.add(hub.running.hub.snapshot.version))
        began = asyncio.get_running_loop().time()
        await hub.call("bad.storm", kind="changed", count=CHANGES)
        seconds = asyncio.get_running_loop().time() - began
        # One at once, one a second, and one for what came last.
        assert 1 <= len(versions) <= seconds + 3
        assert hub.state("bad") == "ready"


async def test_a_session_may_follow_a_thousand_resources_at_most(tmp_path: Path) -> None:
    script = tmp_path / "shelf.py"
    script.write_text(BOOK_SERVER)
    async with (
        serving(tmp_path, {"a": stdio([sys.executable, str(script)])}) as hub,
        Caller(hub.port, era="legacy") as caller,
    ):
        await caller.initialize()

        async def code_of(book: int) -> int:
            request = caller.request_bytes("resources/subscribe", {"uri": f"shelf://{book}"}, id="1")
            error = (await caller.send(request)).message.error
            return 0 if error is None else int(error["code"])

        async def is_followed() -> bool:
            return await code_of(0) == 0

        await eventually(is_followed, "the server is there", within=20.0)
        codes = [await code_of(book) for book in range(1, SUBSCRIPTIONS_MAX + 10)]
        assert codes == [0] * (SUBSCRIPTIONS_MAX - 1) + [-32010] * 10
    assert (SUBSCRIPTIONS_MAX, SESSIONS_MAX) == (1_000, 1_000)
