"""Applies configuration changes to a running hub: watches the files, reads them again and applies the differences.

The hub follows the file that it was started with. An unusable or missing file changes nothing, and a broken entry is
skipped. `app.reload_diff` computes the differences, `RunningHub.apply` changes servers, and the creator of a
`Reloader` passes a function that applies the rest (callers, logging).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import structlog
from watchfiles import awatch

from isthmus.app.database_config import DatabaseConfig, database_config, load_configuration
from isthmus.app.hub import RunningHub
from isthmus.app.reload_diff import ConfigDiff, changed_settings, keep_fixed_settings
from isthmus.app.workers import Worker
from isthmus.config.files import search_paths
from isthmus.config.finding_codes import MISSING_FILE
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration

LOOK_SECONDS = 2.0
"""How often the files are checked without a file system event."""

STEP_SECONDS = 0.1
"""How long file system events are collected; also how often the watching thread wakes up."""

STORED_LOOK_SECONDS = 0.2
"""How often the hub checks for a new version in the database; the check reads memory."""

QUIET_SECONDS = 0.2
"""How long files must stay unchanged before they are read: many programs write in several steps."""

RESTLESS_SECONDS = 5.0
"""After this time, files are read even if they keep changing."""

Files: TypeAlias = Callable[[], Iterable[Path]]
"""Returns the files to watch."""

Look: TypeAlias = tuple[int, ...] | None
"""Identifies a version of a file without reading it; None if it is missing."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The versions of the files in order, and the folders to watch with their inodes."""

    looks: tuple[Look, ...]
    folders: dict[Path, int]


async def survey(files: Files) -> Survey:
    """Check the files in a thread, because a network folder may be slow."""
    return await asyncio.to_thread(_survey, tuple(files()))


def _survey(files: tuple[Path, ...]) -> Survey:
    folders: dict[Path, int] = {}
    for file in files:
        places = [file]
        with suppress(OSError, RuntimeError):  # a symbolic link to itself
            places.append(file.resolve())
        for place in places:
            # If the folder is missing, the nearest existing parent: its creation must be noticed.
            folder = next((above for above in place.parents if above.is_dir()), Path(place.anchor))
            look = _file_state(folder)
            folders[folder] = 0 if look is None else look[0]
    return Survey(tuple(map(_file_state, files)), folders)


def _file_state(file: Path) -> Look:
    try:
        seen = file.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


async def quiet(files: Files, hurry: asyncio.Event) -> None:
    """Wait until the files stop changing, or a reload is requested."""
    clock = asyncio.get_running_loop().time
    patience = clock() + RESTLESS_SECONDS
    before: Survey | None = None
    while not hurry.is_set() and (now := await survey(files)) != before and clock() < patience:
        before = now
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_SECONDS):
                await hurry.wait()


class Watch:
    """Watches files and calls `on_change` when one of them changes. The set of files may change, too.

    The first call comes at once, because the files may have changed since they were read.
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
                # For example, no watches are left, or a folder was just deleted; the next check finds another.
                if not self._has_complained:
                    self._has_complained = True
                    message = "files cannot be watched; they are polled instead"
                    log.warning(message, reason=str(error), every=LOOK_SECONDS)
                await asyncio.sleep(LOOK_SECONDS)
                seen = await self._compare(seen)

    async def _follow(self, seen: Survey) -> Survey:
        """Receive file system events of these folders until the set of folders changes."""
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


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a configuration: everything that `load` needs to find it again."""

    path: Path | None
    environment: Mapping[str, str]
    cwd: Path
    home: Path
    host: str | None = None
    port: int | None = None
    log_level: str | None = None
    worker: Worker | None = None
    """Which worker reads it, if there are several."""

    def load(self, *, file: Path | None = None) -> Configuration:
        """Load the configuration, from `file` if given.

        Raises:
            ConfigError: the configuration cannot be used.
        """
        loaded = load_configuration(
            file or self.path,
            self.environment,
            self.cwd,
            self.home,
            host=self.host,
            port=self.port,
            log_level=self.log_level,
        )
        return loaded if self.worker is None else self.worker.adapt(loaded)

    def ahead_of(self, file: Path) -> Path | None:
        """Return a file that takes precedence and that a hub started now would read instead."""
        searched = search_paths(self.path, self.environment, self.cwd, self.home)
        earlier = searched[: searched.index(file)] if file in searched else ()
        return next((place for place in earlier if os.path.isfile(place)), None)

    def files(self, configuration: Configuration) -> tuple[Path, ...]:
        """Every file whose creation, deletion or change may change the configuration."""
        return (*search_paths(self.path, self.environment, self.cwd, self.home), *configuration.files)


class Reloader:
    """Keeps a running hub up to date with its files. Its tasks belong to the hub's background tasks."""

    def __init__(
        self,
        running: RunningHub,
        source: Source,
        on_change: Callable[[Configuration], None] = lambda _: None,
        on_reloaded: Callable[[Configuration], None] | None = None,
    ) -> None:
        """`on_change` receives a configuration before any server changes; ValueError or ConfigError refuses it.

        `on_reloaded` is called after each applied change.
        """
        self._running = running
        self._source = source
        self._on_change = on_change
        self._on_reloaded = on_reloaded
        self._asked = asyncio.Event()
        self._urgent = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ahead: Path | None = None
        """A file with precedence over the followed one that was already reported."""

    def start(self) -> None:
        """Start watching the files."""
        watch = Watch(self._files, self._asked.set)
        self._tasks.append(self._running.background.spawn("watch of the configuration", watch.run()))
        self._tasks.append(self._running.background.spawn("reload", self._reload_when_asked()))
        configuration = self._running.configuration
        if configuration.cluster.config == "database" and (stored := database_config(configuration)) is not None:
            self._tasks.append(self._running.background.spawn("stored configuration", self._follow(stored)))

    def stop(self) -> None:
        """Stop applying changes: a hub that shuts down starts nothing."""
        for task in self._tasks:
            task.cancel()

    def reload_now(self) -> None:
        """Read the configuration now, even if no file changed, and log the result in any case."""
        self._urgent.set()
        self._asked.set()

    async def _follow(self, stored: DatabaseConfig) -> None:
        """Apply each version of the database; also the one that was stored while this hub started."""
        seen = stored.revision
        self._asked.set()
        while True:
            if (now := stored.revision) != seen:
                seen = now
                self.reload_now()
            await asyncio.sleep(STORED_LOOK_SECONDS)

    def _files(self) -> tuple[Path, ...]:
        return self._source.files(self._running.configuration)

    async def _reload_when_asked(self) -> None:
        while True:
            await self._asked.wait()
            await quiet(self._files, self._urgent)  # a requested reload means that the files are complete
            was_urgent = self._urgent.is_set()
            self._asked.clear()
            self._urgent.clear()
            try:
                await self.reload(reports_always=was_urgent)
            except Exception:  # a defect that one version of a file triggers must not prevent the next reload
                log.exception("configuration not reloaded: a defect in the hub")

    async def reload(self, *, reports_always: bool = False) -> ConfigDiff | None:
        """Read the files, apply and log the differences; None if they were refused."""
        try:
            read, ahead = await asyncio.to_thread(self._read)
            if ahead is not None and ahead != self._ahead:
                message = "another file takes precedence but is not used until a restart"
                log.warning(message, file=str(ahead), followed=str(self._running.configuration.file))
            self._ahead = ahead
            taken = keep_fixed_settings(self._running.configuration, read)
            self._on_change(taken)
        except ConfigError as error:
            self._refuse([str(finding) for finding in error.findings])
            return None
        except ValueError as error:
            self._refuse([str(error)])
            return None
        problem = f"cannot be used here: {', '.join(read.broken)}" if read.broken else ""
        self._running.report_configuration(problem)
        before = self._running.configuration
        difference = self._running.apply(taken)
        for finding in taken.warnings:
            if finding not in before.warnings:
                log.warning("configuration", finding=str(finding))
        waiting = changed_settings(taken, read)
        if difference and self._on_reloaded is not None:
            self._on_reloaded(taken)
        if before.file is None and taken.file is not None and waiting:
            message = (
                "a file was found; until a restart, commands here do not find this hub and their keys do not apply"
            )
            keep = f'to keep its keys, logins and tasks, first write [hub] state = "{before.hub.state}" into the file'
            fix = "stop this hub and start it again with the same command"
            log.warning(message, file=str(taken.file), fix=fix, keep=keep)
        if difference or waiting or reports_always:
            log.info("configuration reloaded", **_in_words(difference, len(taken.callers), waiting))
        return difference

    def _read(self) -> tuple[Configuration, Path | None]:
        """Read the hub's own file; also return the file that a new start would prefer.

        A file that another user puts into the working folder must not decide who may call.
        """
        file = self._running.configuration.file
        if file is not None and not os.path.isfile(file):  # deleting it does not mean running without one
            advice = "restart the hub to run without it"
            raise ConfigError(Place(None, str(file)).finding("is gone", advice=advice, code=MISSING_FILE))
        return self._source.load(file=file), None if file is None else self._source.ahead_of(file)

    def _refuse(self, findings: list[str]) -> None:
        text = "; ".join(findings)
        log.error("configuration refused; the previous one stays in use", findings=text)
        self._running.report_configuration(f"refused: {text}")


def _in_words(difference: ConfigDiff, callers: int, waiting: tuple[str, ...]) -> dict[str, object]:
    """Return only the differences."""
    differences: dict[str, object] = {
        "added": [server.name for server in difference.added],
        "changed": [server.name for server in difference.changed],
        "removed": list(difference.removed),
        "settings": list(difference.settings),
        "callers": callers if difference.callers_changed else None,
        "needs_a_restart": list(waiting),
    }
    return {word: names for word, names in differences.items() if names not in ([], None)}
