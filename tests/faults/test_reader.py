"""The process that reads long messages is killed or hangs: calls are answered all the same, and no process is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from isthmus.app.parser_process import WORKER
from tests.frontends.wire import BASE, Reply, connected, encoded, rendered, until
from tests.hubs import HubProcess, serving

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
]


LONG = 2_000_000


def readers(hub: int) -> list[int]:
    """The readers of a hub."""
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = status.read_bytes().decode(errors="replace").split("\0")
            parent = int(status.with_name("stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it has ended
        if WORKER in words and parent == hub:
            found.append(int(status.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def call(text: str) -> bytes:
    body = encoded({"text": text, "more": "x" * LONG})
    return rendered("POST", "/v1/tools/builtin.echo", [*BASE, ("content-length", str(len(body)))], body)


async def answer(hub: HubProcess, text: str) -> Reply:
    async with connected(hub.port) as wire:
        await wire.say(call(text))
        return await wire.reply()


async def reader_of(hub: HubProcess) -> int:
    """Send long messages until the hub has a reader that reads them."""

    async def reads() -> bool:
        found = readers(hub.pid)
        amounts = [bytes_read(pid) for pid in found]
        for _ in range(3):
            assert (await answer(hub, "hi")).status == 200
            amounts += [bytes_read(pid) for pid in found]
        # While it starts, it reads its modules, but not as much for every message.
        return len(found) == 1 and all(after - before > LONG for before, after in pairwise(amounts))

    await until(reads)
    return readers(hub.pid)[0]


def bytes_read(pid: int) -> int:
    """How much a process has read so far, from files and sockets."""
    return int(Path(f"/proc/{pid}/io").read_text().partition("rchar: ")[2].split()[0])


@pytest.mark.parametrize("times", [1, 2])
async def test_a_call_survives_its_reader(tmp_path: Path, times: int) -> None:
    async with serving(tmp_path) as hub:
        for _ in range(times):
            reader = await reader_of(hub)
            os.kill(reader, signal.SIGSTOP)  # it holds whatever it is given
            waiting = [asyncio.ensure_future(answer(hub, f"call {number}")) for number in range(3)]
            assert (await answer_short(hub)).status == 200, "others are served meanwhile"
            os.kill(reader, signal.SIGKILL)
            for number, reply in enumerate(await asyncio.gather(*waiting)):
                assert reply.status == 200
                assert reply.json["structuredContent"]["text"] == f"call {number}"


async def answer_short(hub: HubProcess) -> Reply:
    body = encoded({"text": "hi"})
    async with connected(hub.port) as wire:
        headers = [*BASE, ("content-length", str(len(body)))]
        await wire.say(rendered("POST", "/v1/tools/builtin.echo", headers, body))
        return await wire.reply()


async def test_a_hub_leaves_no_reader(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        reader = await reader_of(hub)
    assert not is_alive(reader)


async def test_a_killed_hub_leaves_no_reader(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ended with -9"):
        await killed_with_a_reader(tmp_path)


async def killed_with_a_reader(folder: Path) -> None:
    async with serving(folder) as hub:
        reader = await reader_of(hub)
        hub.process.kill()
        await until(lambda: _has_ended(reader))


async def _has_ended(pid: int) -> bool:
    return not is_alive(pid)
