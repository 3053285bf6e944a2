"""T69: a hub whose journal refuses every write is sent work all the same.

A write that fails has the journal try one of its own, again every second. While that fails, `/readyz` is 503, so that a
load balancer sends the work elsewhere; `/livez` and `/healthz` stay as they are.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.frontends.wire import until
from tests.hubs import TRUSTED, serving

pytestmark = pytest.mark.asyncio


def sending(id: str) -> dict[str, object]:
    """A message that becomes a task, which is stored."""
    parts = [{"data": {"tool": "builtin.echo", "arguments": {"text": "x"}}}]
    message = {"messageId": id, "role": "ROLE_USER", "parts": parts}
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}


@contextmanager
def no_writes(pid: int) -> Iterator[None]:
    """Have the system refuse whatever a process writes to files."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def test_it_is_not_ready_while_nothing_can_be_stored(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as hub,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=30, verify=TRUSTED) as http,
    ):

        async def is_ready() -> bool:
            return (await http.get("/readyz")).status_code == 200

        async def is_not_storing() -> bool:
            answer = await http.get("/readyz")
            return answer.status_code == 503 and answer.json()["status"] == "storage_failing"

        sent = await http.post("/a2a", json=sending("first"), headers={"a2a-version": "1.0"})
        assert "result" in sent.json(), sent.text[:300]
        await until(is_ready)
        with no_writes(hub.pid):
            refused = await http.post("/a2a", json=sending("second"), headers={"a2a-version": "1.0"})
            assert "error" in refused.json(), refused.text[:300]
            await until(is_not_storing)
            assert (await http.get("/livez")).status_code == (await http.get("/healthz")).status_code == 200
        await until(is_ready)  # by itself: nobody has sent anything
        assert any("the journal can be written again" in line for line in hub.said)
