"""DefinitionWatcher real files: whatever way they are changed in, it is noticed, and nothing else is."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isthmus.app import reload as module
from isthmus.app.reload import FileWatcher, wait_until_stable

NOTICE_SECONDS = 20.0
"""Who waits for so long has found that a change goes unnoticed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


class Watched:
    """A watch at work, and how often it called."""

    def __init__(self) -> None:
        self.calls = 0
        self._called = asyncio.Event()

    def note(self) -> None:
        self.calls += 1
        self._called.set()

    async def notice(self) -> None:
        async with asyncio.timeout(NOTICE_SECONDS):
            await self._called.wait()
        self._called.clear()


@asynccontextmanager
async def watching(*files: Path) -> AsyncIterator[Watched]:
    watched = Watched()
    task = asyncio.ensure_future(FileWatcher(lambda: files, watched.note).run())
    await watched.notice()
    yield watched
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def rewrite(file: Path) -> None:
    file.write_text("longer than before")


def replace_by_rename(file: Path) -> None:
    beside = file.with_name("x.tmp")
    beside.write_text("new")
    beside.rename(file)


def remove(file: Path) -> None:
    file.unlink()


def keep_size_and_time(file: Path) -> None:
    seen = file.stat()
    file.write_text("new")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))


@pytest.mark.parametrize("change", [rewrite, replace_by_rename, remove, keep_size_and_time])
async def test_every_way_to_change_a_file_is_noticed(folder: Path, change: Callable[[Path], None]) -> None:
    file = folder / "mcp.json"
    file.write_text("old")
    async with watching(file) as watched:
        change(file)
        await watched.notice()


async def test_a_file_that_was_not_there_is_noticed_with_its_folders(folder: Path) -> None:
    file = folder / "deep" / "down" / "mcp.json"
    async with watching(file) as watched:
        file.parent.mkdir(parents=True)
        file.write_text("new")
        await watched.notice()
        rewrite(file)
        await watched.notice()


async def test_a_folder_that_is_replaced_is_watched_anew(folder: Path) -> None:
    file = folder / "conf" / "mcp.json"
    file.parent.mkdir()
    file.write_text("old")
    async with watching(file) as watched:
        file.parent.rename(folder / "gone")
        await watched.notice()
        file.parent.mkdir()
        file.write_text("new")
        await watched.notice()


async def test_the_target_of_a_symlink_is_watched_too(folder: Path) -> None:
    real = folder / "real" / "mcp.json"
    real.parent.mkdir()
    real.write_text("old")
    link = folder / "mcp.json"
    link.symlink_to(real)
    async with watching(link) as watched:
        rewrite(real)
        await watched.notice()


async def test_a_link_to_itself_is_only_a_file_that_is_not_there(folder: Path) -> None:
    link = folder / "mcp.json"
    link.symlink_to(link)
    async with watching(link) as watched:
        replace_by_rename(link)
        await watched.notice()


async def test_changes_of_other_files_are_ignored(folder: Path) -> None:
    file = folder / "mcp.json"
    file.write_text("old")
    async with watching(file) as watched:
        (folder / "other.json").write_text("noise")
        file.read_text()
        rewrite(file)
        await watched.notice()
        assert watched.calls == 2, "one to begin with, one for the change"


async def test_where_nothing_can_be_watched_files_are_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_watches_left(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "OS file watch limit reached")

    monkeypatch.setattr(module, "awatch", no_watches_left)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    file = folder / "mcp.json"
    async with watching(file) as watched:
        file.write_text("new")
        await watched.notice()


class Restless:
    """Files that have changed at every look, so many times."""

    def __init__(self, file: Path, times: int) -> None:
        self._file = file
        self.left = times

    def __call__(self) -> tuple[Path, ...]:
        if self.left:
            self.left -= 1
            self._file.write_text("x" * (self.left % 1000 + 1))
        return (self._file,)


async def test_files_count_as_written_when_they_look_the_same_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STABLE_SECONDS", 0.01)
    files = Restless(folder / "mcp.json", 5)
    async with asyncio.timeout(NOTICE_SECONDS):
        await wait_until_stable(files, asyncio.Event())
    assert files.left == 0


async def test_files_that_are_never_at_rest_are_taken_in_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STABLE_SECONDS_MAX", 0.3)
    monkeypatch.setattr(module, "STABLE_SECONDS", 0.01)
    async with asyncio.timeout(NOTICE_SECONDS):
        await wait_until_stable(Restless(folder / "mcp.json", 1_000_000), asyncio.Event())


async def test_an_urgent_reload_does_not_wait_for_quiet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STABLE_SECONDS", 3600.0)
    is_urgent = asyncio.Event()
    needing_restart = asyncio.ensure_future(wait_until_stable(Restless(folder / "mcp.json", 1), is_urgent))
    is_urgent.set()
    async with asyncio.timeout(NOTICE_SECONDS):
        await needing_restart
        await wait_until_stable(Restless(folder / "mcp.json", 1), is_urgent)
