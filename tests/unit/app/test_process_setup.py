"""Processes left by a killed hub are ended by the next one on its state folder, and no others."""

from __future__ import annotations

import asyncio
import ctypes
import operator
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from isthmus.app import process_setup
from isthmus.app.process_setup import FOLDER, family_in, return_memory
from isthmus.core.event_loop import in_turn
from isthmus.transport import process_tree
from isthmus.transport.process_tree import begin_family, end_marked
from tests.faults.watching import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the mark is Linux's")

RLIMIT_LOCKS = 10


@pytest.fixture(autouse=True)
def no_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "_family", None)


@contextmanager
def marked(mark: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process with this mark, that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        resource.prlimit(child.pid, RLIMIT_LOCKS, (mark, mark))
        try:
            yield child
        finally:
            child.kill()


def families(state: Path) -> list[int]:
    return [int(file.name, 16) for file in (state / FOLDER).iterdir() if file.name != "lock"]


def test_processes_with_the_mark_of_a_dead_hub_are_ended(tmp_path: Path) -> None:
    with family_in(tmp_path):
        (family,) = families(tmp_path)
    assert families(tmp_path) == []
    (tmp_path / FOLDER / f"{family:x}").touch()  # as a killed one leaves it
    with marked((family << 24) + 7) as left, marked(((family + 1) << 24) + 7) as other, family_in(tmp_path):
        assert left.wait(10) == -9
        assert other.poll() is None
        assert family not in families(tmp_path)


def test_processes_of_a_running_hub_of_the_same_folder_are_left_alone(tmp_path: Path) -> None:
    with family_in(tmp_path):
        (family,) = families(tmp_path)
        with marked(family << 24) as child, family_in(tmp_path):
            assert len(families(tmp_path)) == 2
            assert child.poll() is None


def test_other_unusable_files_and_folders_do_not_prevent_a_start(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "notes").write_text("mine")
    with family_in(tmp_path):
        assert (tmp_path / FOLDER / "notes").read_text() == "mine"
        (tmp_path / FOLDER / "notes").unlink()
    (tmp_path / "file").touch()
    with family_in(tmp_path / "file"):
        pass


def test_those_above_are_spared() -> None:
    """A server may start the next hub itself."""
    soft, hard = resource.getrlimit(RLIMIT_LOCKS)
    family = begin_family()
    assert family is not None
    resource.setrlimit(RLIMIT_LOCKS, (family << 24, hard))
    try:
        assert end_marked(family) == set()
    finally:
        resource.setrlimit(RLIMIT_LOCKS, (soft, hard))


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_memory_is_returned_twice_after_the_last_long_message(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []

    class Library:
        malloc_trim = staticmethod(trims.append)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    monkeypatch.setattr(process_setup, "CHECK_SECONDS", 0)
    returning = asyncio.create_task(return_memory())
    await turns(20)
    assert trims == []
    for expected in ([0, 0], [0, 0, 0, 0]):
        in_turn(lambda: None)
        await eventually(partial(operator.eq, trims, expected), "memory was returned")
        await turns(50)
        assert trims == expected
    returning.cancel()


async def test_an_allocator_that_cannot_return_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    async with asyncio.timeout(5):
        await return_memory()
