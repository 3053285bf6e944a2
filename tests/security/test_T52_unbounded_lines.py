"""T52: a server writes a line without end, bytes that are not text, or a flood to its standard error.

Answer: a line may have 16 MiB (`reply_bytes`, as any answer); one byte more and the process is ended, the calls on it
are told `executed: unknown`, and it is started again after a pause. Reading costs the same per byte however long the
line is, and nobody waits for it. Of standard error the last 64 KiB are kept (T25).
`tests/faults/test_bad_neighbours.py` has the same beside callers of other servers, and
`tests/unit/upstream/test_stdio.py` what is no message.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from isthmus.core.settings import Limits
from isthmus.model.fault_table import Lost
from isthmus.wire.lines import LineDecoder, Oversized
from tests.faults.scripted import hub_of
from tests.faults.watching import eventually
from tests.hubs import stdio
from tests.peers.launch import command

MIB = 1 << 20
CHUNK = 64 * 1024
STALL_SECONDS = 0.05


def test_sixty_four_mebibytes_without_an_end_are_reported_once_and_never_kept() -> None:
    limit = Limits().reply_bytes
    decoder = LineDecoder(limit)
    chunk = b"x" * CHUNK
    received, slowest = [], 0.0
    for _ in range(64 * MIB // CHUNK):
        began = time.thread_time()
        received += decoder.feed(chunk)
        slowest = max(slowest, time.thread_time() - began)
    assert [type(each) for each in received] == [Oversized]
    assert slowest < STALL_SECONDS


def test_the_line_after_one_that_was_too_long_is_read() -> None:
    decoder = LineDecoder(8)
    received = list(decoder.feed(b"x" * 100 + b"\n{}\n"))
    assert [type(each) for each in received] == [Oversized, bytes]
    assert received[1] == b"{}"


@pytest.mark.parametrize("chunk", [b"\x00" * 99 + b"\n", bytes(range(256)) + b"\n", b"\xff\xfe\n", b"\r\n\r\n"])
def test_bytes_that_are_no_text_are_split_into_lines(chunk: bytes) -> None:
    decoder = LineDecoder(1024)
    list(decoder.feed(chunk * 3))
    assert list(decoder.feed(b'{"a":1}\n'))[-1] == b'{"a":1}'


async def test_a_line_without_end_ends_the_process_which_is_started_again(tmp_path: Path) -> None:
    servers = {"bad": stdio(command("raw_server"), timeout=20)}
    async with hub_of(tmp_path, servers, limits={"reply_bytes": MIB}) as hub:
        await hub.ready("bad")
        outcome = await hub.call("bad.echo", text="x", mode=f"nonewline:{4 * MIB}")
        assert isinstance(outcome, Lost)
        assert (outcome.executed, "line of over" in outcome.message) == ("unknown", True)
        await eventually(lambda: hub.state("bad") == "ready", "it is back", within=20.0)
        assert sys.getsizeof(outcome.message) < 1000
