"""T51: a server keeps a call open for ever, by comments, progress or tiny events, or sends an event without end.

Answer: comments and events that say nothing about a call do not prolong it. Progress does, up to `hard_seconds` in all
(an hour unless the operator says otherwise). The call ends with `executed: unknown`, and its slot is free again. An
answer or an event of more than `reply_bytes` ends the call where it becomes too long. `tests/faults/test_flood.py`
shows what floods cost others, and `test_bad_neighbours.py` the same over every carrier.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from isthmus.core.settings import Limits
from isthmus.model.fault_table import BadReply, TimedOut
from isthmus.model.names import ServerName
from tests.faults.scripted import EVENTS, ReceivedRequest, Scripted, hub_of
from tests.faults.watching import eventually, resident_bytes

TIMEOUT = 0.4
REPLY_BYTES = 1 << 20


class Endless(Scripted):
    """Answers a call with a stream that never comes to its end."""

    def __init__(self, piece: bytes, pause: float = 0.005) -> None:
        super().__init__()
        self._piece = piece
        self._pause = pause
        self.sent = 0
        self.ended = asyncio.Event()

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        token = str(request.message["params"].get("_meta", {}).get("progressToken", 0))
        out.write(EVENTS)
        piece = self._piece.replace(b"TOKEN", token.encode())
        try:
            while not out.is_closing():
                out.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await out.drain()
                self.sent += len(piece)
                await asyncio.sleep(self._pause)
        finally:
            self.ended.set()


PROGRESS = (
    b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":TOKEN,"progress":1}}\n\n'
)


@pytest.mark.parametrize(
    ("piece", "limits"),
    [
        (b": still here\n\n", {}),
        (b"data: 1\n\n", {}),
        (b"\n", {}),
        (PROGRESS, {"hard_seconds": 2 * TIMEOUT, "call_seconds": TIMEOUT}),
    ],
    ids=repr,
)
async def test_a_stream_that_never_ends_ends_at_the_deadline(
    tmp_path: Path, piece: bytes, limits: dict[str, float]
) -> None:
    async with (
        Endless(piece) as server,
        hub_of(tmp_path, {"a": {**server.entry, "timeout": TIMEOUT}}, limits=limits) as hub,
    ):
        await hub.ready("a")
        began = asyncio.get_running_loop().time()
        _, ending = hub.start("a.t", wants_progress=True)
        outcome = await asyncio.wait_for(ending.outcome, 10)
        assert isinstance(outcome, TimedOut)
        assert outcome.executed == "unknown"
        assert limits.get("hard_seconds", TIMEOUT) <= asyncio.get_running_loop().time() - began < TIMEOUT + 5
        assert hub.running.hub.server_queues[ServerName("a")].running == 0
        await asyncio.wait_for(server.ended.wait(), 10)  # and the server is let go


async def test_an_event_of_gigabytes_ends_where_it_becomes_too_long(tmp_path: Path) -> None:
    async with (
        Endless(b"x" * (1 << 18), 0) as server,
        hub_of(tmp_path, {"a": {**server.entry, "timeout": 30}}, limits={"reply_bytes": REPLY_BYTES}) as hub,
    ):
        await hub.ready("a")
        before = resident_bytes(os.getpid())
        outcome = await hub.call("a.t")
        assert isinstance(outcome, BadReply)
        await asyncio.wait_for(server.ended.wait(), 10)
        assert server.sent < 64 * REPLY_BYTES
        assert resident_bytes(os.getpid()) - before < 64 << 20
        await eventually(lambda: hub.running.hub.server_queues[ServerName("a")].running == 0, "its slot is free")


def test_no_call_takes_longer_than_an_hour_unless_the_operator_says_so() -> None:
    assert Limits().hard_seconds == 3600
    with pytest.raises(ValueError, match="hard_seconds must be at most 86400"):
        Limits(hard_seconds=86_401)
