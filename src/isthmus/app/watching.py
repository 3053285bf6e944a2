"""Notices when files change, come or go: at once where the system tells of it, within seconds elsewhere.

Folders are watched, not files, because most editors put a new file in the old one's place. What the system tells
is only a reason to look: whether anything changed is seen by comparing what the files look like, so a change is
found even where nobody tells of one (network folders, containers, too many watches). It reads no file. Used by
`app.reload`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import structlog
from watchfiles import awatch

log = structlog.get_logger(__name__)

LOOK_SECONDS = 2.0
"""How often the files are looked at when nobody tells of a change."""

STEP_SECONDS = 0.1
"""How long the system's news are gathered; it is also how often the watching thread wakes."""

QUIET_SECONDS = 0.2
"""How long files must look the same to count as written: many programs write in several steps."""

RESTLESS_SECONDS = 5.0
"""After this long, files that never look the same twice are taken as they are."""

Files: TypeAlias = Callable[[], Iterable[Path]]
"""Which files matter at the moment."""

Look: TypeAlias = tuple[int, ...] | None
"""What tells a file from its later self without reading it; None if it is not there."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What files look like, in their order, and the folders to watch with their inodes."""

    looks: tuple[Look, ...]
    folders: dict[Path, int]


async def survey(files: Files) -> Survey:
    """Look at files. In a thread: a network folder may take its time."""
    return await asyncio.to_thread(_survey, tuple(files()))


def _survey(files: tuple[Path, ...]) -> Survey:
    folders = [_folder(place) for file in files for place in (file, _resolved(file))]
    return Survey(tuple(map(_look, files)), {folder: _inode(folder) for folder in folders})


def _look(file: Path) -> Look:
    try:
        seen = file.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _folder(file: Path) -> Path:
    """The folder that a file is in; where it is missing, the nearest one above, because its coming is news too."""
    return next((above for above in file.parents if above.is_dir()), Path(file.anchor))


def _inode(folder: Path) -> int:
    look = _look(folder)
    return 0 if look is None else look[0]


def _resolved(file: Path) -> Path:
    try:
        return file.resolve()
    except (OSError, RuntimeError):  # a link that leads to itself
        return file


async def quiet(files: Files, hurry: asyncio.Event) -> None:
    """Wait until nobody seems to be writing the files any more, or somebody is in a hurry."""
    clock = asyncio.get_running_loop().time
    patience = clock() + RESTLESS_SECONDS
    before: Survey | None = None
    while not hurry.is_set() and (now := await survey(files)) != before and clock() < patience:
        before = now
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_SECONDS):
                await hurry.wait()


class Watch:
    """Watches files, and calls `on_change` when one of them changed. Which ones it watches may change as well.

    The first call comes as soon as it watches: whether they changed since they were read, it cannot know.
    """

    def __init__(self, files: Files, on_change: Callable[[], None]) -> None:
        self._files = files
        self._on_change = on_change
        self._has_complained = False

    async def run(self) -> None:
        """Watch until cancelled."""
        seen = await survey(self._files)
        self._on_change()
        while True:
            try:
                seen = await self._follow(seen)
            except OSError as error:
                # No watches left, say. A folder that has just gone ends here too; the next look finds another.
                self._complain(error)
                await asyncio.sleep(LOOK_SECONDS)
                seen = await self._compare(seen)

    async def _follow(self, seen: Survey) -> Survey:
        """Follow the system's news of some folders until others are the ones to watch."""
        folders = seen.folders
        news = awatch(
            *folders,
            watch_filter=None,
            step=round(STEP_SECONDS * 1000),
            rust_timeout=round(LOOK_SECONDS * 1000),
            yield_on_timeout=True,
            recursive=False,
            ignore_permission_denied=True,
        )
        try:
            async for _ in news:
                seen = await self._compare(seen)
                if seen.folders != folders:
                    break
        finally:
            await news.aclose()
        return seen

    async def _compare(self, seen: Survey) -> Survey:
        now = await survey(self._files)
        if now.looks != seen.looks:
            self._on_change()
        return now

    def _complain(self, error: OSError) -> None:
        if not self._has_complained:
            self._has_complained = True
            log.warning("files cannot be watched and are looked at instead", reason=str(error), every=LOOK_SECONDS)
