"""Takes a changed configuration into a running hub: files are watched, read anew, and what differs is done.

The file that a hub was started with is the one it follows. A file that cannot be used, or is gone, changes nothing,
and a broken entry costs only itself. What differs is decided in
`app.config_diff`, when to look in `app.reload`; servers are changed by `RunningHub.apply`, and whoever makes a
`Reloader` says what else a new configuration means to it (who may call, how to log).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import structlog
from watchfiles import awatch

from isthmus.app.config_diff import ConfigDiff, changed_settings, keep_fixed_settings
from isthmus.app.hub import RunningHub
from isthmus.config.codes import MISSING_FILE
from isthmus.config.files import search_paths
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.load import load
from isthmus.config.settings import Configuration

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


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a configuration comes from: all that `load` needs to find it again."""

    path: Path | None
    environment: Mapping[str, str]
    cwd: Path
    home: Path
    host: str | None = None
    port: int | None = None

    def load(self, *, file: Path | None = None) -> Configuration:
        """Read it; `file` is read instead of looking for one.

        Raises:
            ConfigError: it cannot be used.
        """
        return load(file or self.path, self.environment, self.cwd, self.home, host=self.host, port=self.port)

    def ahead_of(self, file: Path) -> Path | None:
        """Return the file that a hub started now would read instead, because its place comes first."""
        searched = search_paths(self.path, self.environment, self.cwd, self.home)
        earlier = searched[: searched.index(file)] if file in searched else ()
        return next((place for place in earlier if os.path.isfile(place)), None)

    def files(self, configuration: Configuration) -> tuple[Path, ...]:
        """Every file whose coming, going or change may change the configuration."""
        return (*search_paths(self.path, self.environment, self.cwd, self.home), *configuration.files)


class Reloader:
    """Keeps a running hub in step with its files. Its tasks belong to the hub's crew."""

    def __init__(
        self,
        running: RunningHub,
        source: Source,
        on_change: Callable[[Configuration], None] = lambda _: None,
        on_reloaded: Callable[[Configuration], None] | None = None,
    ) -> None:
        """`on_change` takes a configuration before any server does; raising ValueError or ConfigError refuses it.

        `on_reloaded` hears of each that was taken and differs from the one before.
        """
        self._running = running
        self._source = source
        self._on_change = on_change
        self._on_reloaded = on_reloaded
        self._asked = asyncio.Event()
        self._urgent = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ahead: Path | None = None
        """The file that comes before the one that is followed, if there is one; told of already."""

    def start(self) -> None:
        """Watch the files from now on."""
        watch = Watch(self._files, self._asked.set)
        self._tasks.append(self._running.background.spawn("watch of the configuration", watch.run()))
        self._tasks.append(self._running.background.spawn("reload", self._reload_when_asked()))

    def stop(self) -> None:
        """Take no more changes: a hub that goes away starts nothing."""
        for task in self._tasks:
            task.cancel()

    def ask(self) -> None:
        """Read the configuration now, whether or not a file changed, and say so in any case."""
        self._urgent.set()
        self._asked.set()

    def _files(self) -> tuple[Path, ...]:
        return self._source.files(self._running.configuration)

    async def _reload_when_asked(self) -> None:
        while True:
            await self._asked.wait()
            await quiet(self._files, self._urgent)  # whoever asks has finished writing
            was_urgent = self._urgent.is_set()
            self._asked.clear()
            self._urgent.clear()
            try:
                await self.reload(reports_always=was_urgent)
            except Exception:  # a defect met in one version of a file must not keep the next one from being read
                log.exception("configuration not reloaded: a defect in the hub")

    async def reload(self, *, reports_always: bool = False) -> ConfigDiff | None:
        """Read the files, do what differs and log it; None if they were refused."""
        try:
            read, ahead = await asyncio.to_thread(self._read)
            self._tell_ahead(ahead)
            taken = keep_fixed_settings(self._running.configuration, read)
            self._on_change(taken)
        except ConfigError as error:
            _refuse([str(finding) for finding in error.findings])
            return None
        except ValueError as error:
            _refuse([str(error)])
            return None
        before = self._running.configuration
        difference = self._running.apply(taken)
        _tell_new(taken.warnings, before.warnings)
        waiting = changed_settings(taken, read)
        if difference and self._on_reloaded is not None:
            self._on_reloaded(taken)
        if difference or waiting or reports_always:
            log.info("configuration reloaded", **_in_words(difference, len(taken.callers), waiting))
        return difference

    def _read(self) -> tuple[Configuration, Path | None]:
        """Read the file that the hub runs with, whatever another start would find, which is returned as well.

        One that somebody else puts into the working folder must not say who may call.
        """
        file = self._running.configuration.file
        if file is not None:
            _check_is_there(file)
        return self._source.load(file=file), None if file is None else self._source.ahead_of(file)

    def _tell_ahead(self, file: Path | None) -> None:
        if file is not None and file != self._ahead:
            followed = str(self._running.configuration.file)
            told = "another file comes first and is not followed: it needs a restart"
            log.warning(told, file=str(file), followed=followed)
        self._ahead = file


def _check_is_there(file: Path) -> None:
    """Raises: ConfigError if it is not; that a hub runs without a file is not said by taking it away."""
    if not os.path.isfile(file):
        advice = "restart the hub if it is to run without it"
        raise ConfigError(Place(None, str(file)).finding("is gone", advice=advice, code=MISSING_FILE))


def _tell_new(warnings: Iterable[Finding], told: Container[Finding]) -> None:
    for finding in warnings:
        if finding not in told:
            log.warning("configuration", finding=str(finding))


def _refuse(findings: list[str]) -> None:
    log.error("configuration refused, the one before stays", findings="; ".join(findings))


def _in_words(difference: ConfigDiff, callers: int, waiting: tuple[str, ...]) -> dict[str, object]:
    """Return what differs, without what does not."""
    told: dict[str, object] = {
        "added": [server.name for server in difference.added],
        "changed": [server.name for server in difference.changed],
        "removed": list(difference.removed),
        "settings": list(difference.settings),
        "callers": callers if difference.callers_changed else None,
        "needs_a_restart": list(waiting),
    }
    return {word: names for word, names in told.items() if names not in ([], None)}
