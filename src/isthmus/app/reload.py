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
from isthmus.config.files import FileVersion, search_paths, version_of
from isthmus.config.finding_codes import MISSING_FILE
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration

POLL_SECONDS = 2.0
"""How often the files are checked without a file system event."""

STEP_SECONDS = 0.1
"""How long file system events are collected; also how often the watching thread wakes up."""

DATABASE_POLL_SECONDS = 0.2
"""How often the hub checks for a new version in the database; the check reads memory."""

STABLE_SECONDS = 0.2
"""How long files must stay unchanged before they are read: many programs write in several steps."""

STABLE_SECONDS_MAX = 5.0
"""After this time, files are read even if they keep changing."""

Files: TypeAlias = Callable[[], Iterable[Path]]
"""Returns the files to watch."""


@dataclass(frozen=True, slots=True)
class FileVersions:
    """The version of each file, in order, and the folders to watch with their inodes."""

    versions: tuple[FileVersion | None, ...]
    folders: dict[Path, int]


async def read_versions(files: Files) -> FileVersions:
    """Read the versions in a thread, because a network folder may be slow."""
    return await asyncio.to_thread(_read_versions, tuple(files()))


def _read_versions(files: tuple[Path, ...]) -> FileVersions:
    folders: dict[Path, int] = {}
    for file in files:
        places = [file]
        with suppress(OSError, RuntimeError):  # a symbolic link to itself
            places.append(file.resolve())
        for place in places:
            # If the folder is missing, watch the nearest existing parent, to notice when it is created.
            folder = next((above for above in place.parents if above.is_dir()), Path(place.anchor))
            look = _version_of(folder)
            folders[folder] = 0 if look is None else look[0]
    return FileVersions(tuple(map(_version_of, files)), folders)


def _version_of(file: Path) -> FileVersion | None:
    try:
        return version_of(file.stat())
    except OSError:
        return None


async def wait_until_stable(files: Files, is_urgent: asyncio.Event) -> None:
    """Wait until the files stop changing, or `is_urgent` is set."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + STABLE_SECONDS_MAX
    before: FileVersions | None = None
    while not is_urgent.is_set() and (now := await read_versions(files)) != before and clock() < deadline:
        before = now
        with suppress(TimeoutError):
            async with asyncio.timeout(STABLE_SECONDS):
                await is_urgent.wait()


class FileWatcher:
    """Watches files and calls `on_change` when one of them changes. The set of files may change, too.

    The first call comes at once, because the files may have changed since they were read.
    """

    def __init__(self, files: Files, on_change: Callable[[], None]) -> None:
        self._files = files
        self._on_change = on_change
        self._has_logged_polling = False

    async def run(self) -> None:
        """Watch until cancelled."""
        seen = await read_versions(self._files)
        self._on_change()
        while True:
            try:
                seen = await self._follow(seen)
            except OSError as error:
                # The system has no watches left, for example, or a folder was just deleted.
                if not self._has_logged_polling:
                    self._has_logged_polling = True
                    message = "files cannot be watched; they are polled instead"
                    log.warning(message, reason=str(error), every=POLL_SECONDS)
                await asyncio.sleep(POLL_SECONDS)
                seen = await self._compare(seen)

    async def _follow(self, seen: FileVersions) -> FileVersions:
        """Compare the files at each file system event until the set of folders changes."""
        folders = seen.folders
        news = awatch(
            *folders,
            watch_filter=None,
            step=round(STEP_SECONDS * 1000),
            rust_timeout=round(POLL_SECONDS * 1000),
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

    async def _compare(self, seen: FileVersions) -> FileVersions:
        now = await read_versions(self._files)
        if now.versions != seen.versions:
            self._on_change()
        return now


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConfigurationSource:
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

    def preceding_file(self, file: Path) -> Path | None:
        """Return a file that takes precedence and that a hub started now would read instead."""
        searched = search_paths(self.path, self.environment, self.cwd, self.home)
        earlier = searched[: searched.index(file)] if file in searched else ()
        return next((place for place in earlier if os.path.isfile(place)), None)

    def files(self, configuration: Configuration) -> tuple[Path, ...]:
        """Every file whose creation, deletion or change may change the configuration."""
        return (*search_paths(self.path, self.environment, self.cwd, self.home), *configuration.files)


class Reloader:
    """Applies changed files to a running hub, as background tasks of that hub."""

    def __init__(
        self,
        running: RunningHub,
        source: ConfigurationSource,
        on_change: Callable[[Configuration], None] = lambda _: None,
        on_reloaded: Callable[[Configuration], None] | None = None,
    ) -> None:
        """`on_change` receives a configuration before any server changes; it refuses it by ValueError or ConfigError.

        `on_reloaded` is called after each applied change.
        """
        self._running = running
        self._source = source
        self._on_change = on_change
        self._on_reloaded = on_reloaded
        self._requested = asyncio.Event()
        self._is_urgent = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._logged_preceding_file: Path | None = None
        """A file with precedence over the followed one that was already reported."""

    def start(self) -> None:
        """Start watching the files."""
        watch = FileWatcher(self._files, self._requested.set)
        self._tasks.append(self._running.background.spawn("watch of the configuration", watch.run()))
        self._tasks.append(self._running.background.spawn("reload", self._reload_on_request()))
        configuration = self._running.configuration
        if configuration.cluster.config == "database" and (stored := database_config(configuration)) is not None:
            self._tasks.append(self._running.background.spawn("stored configuration", self._follow(stored)))

    def stop(self) -> None:
        """Stop applying changes: a hub that shuts down starts nothing."""
        for task in self._tasks:
            task.cancel()

    def reload_now(self) -> None:
        """Read the configuration now, even if no file changed, and log the result in any case."""
        self._is_urgent.set()
        self._requested.set()

    async def _follow(self, stored: DatabaseConfig) -> None:
        """Apply each version of the database; also the one that was stored while this hub started."""
        seen = stored.revision
        self._requested.set()
        while True:
            if (now := stored.revision) != seen:
                seen = now
                self.reload_now()
            await asyncio.sleep(DATABASE_POLL_SECONDS)

    def _files(self) -> tuple[Path, ...]:
        return self._source.files(self._running.configuration)

    async def _reload_on_request(self) -> None:
        while True:
            await self._requested.wait()
            await wait_until_stable(
                self._files, self._is_urgent
            )  # a reload by command means that the files are complete
            was_urgent = self._is_urgent.is_set()
            self._requested.clear()
            self._is_urgent.clear()
            try:
                await self.reload(reports_always=was_urgent)
            except Exception:  # a defect must not prevent the next reload
                log.exception("configuration not reloaded: a defect in the hub")

    async def reload(self, *, reports_always: bool = False) -> ConfigDiff | None:
        """Read the files, apply and log the differences; None if they were refused."""
        try:
            read, preceding = await asyncio.to_thread(self._read)
            if preceding is not None and preceding != self._logged_preceding_file:
                message = "another file takes precedence but is not used until a restart"
                log.warning(message, file=str(preceding), followed=str(self._running.configuration.file))
            self._logged_preceding_file = preceding
            usable = keep_fixed_settings(self._running.configuration, read)
            self._on_change(usable)
        except ConfigError as error:
            self._refuse([str(finding) for finding in error.findings])
            return None
        except ValueError as error:
            self._refuse([str(error)])
            return None
        problem = f"cannot be used here: {', '.join(read.broken)}" if read.broken else ""
        self._running.report_configuration(problem)
        before = self._running.configuration
        difference = self._running.apply(usable)
        for finding in usable.warnings:
            if finding not in before.warnings:
                log.warning("configuration", finding=str(finding))
        needing_restart = changed_settings(usable, read)
        if difference and self._on_reloaded is not None:
            self._on_reloaded(usable)
        if before.file is None and usable.file is not None and needing_restart:
            message = (
                "a file was found; until a restart, commands here do not find this hub and their keys do not apply"
            )
            keep = f'to keep its keys, logins and tasks, first write [hub] state = "{before.hub.state}" into the file'
            fix = "stop this hub and start it again with the same command"
            log.warning(message, file=str(usable.file), fix=fix, keep=keep)
        if difference or needing_restart or reports_always:
            log.info("configuration reloaded", **_log_fields(difference, len(usable.callers), needing_restart))
        return difference

    def _read(self) -> tuple[Configuration, Path | None]:
        """Read the hub's own file; also return the file that a new start would prefer.

        A file that another user puts into the working folder must not decide who may call.
        """
        file = self._running.configuration.file
        if file is not None and not os.path.isfile(file):  # deleting it does not mean running without one
            advice = "restart the hub to run without it"
            raise ConfigError(Place(None, str(file)).finding("is gone", advice=advice, code=MISSING_FILE))
        return self._source.load(file=file), None if file is None else self._source.preceding_file(file)

    def _refuse(self, findings: list[str]) -> None:
        text = "; ".join(findings)
        log.error("configuration refused; the previous one stays in use", findings=text)
        self._running.report_configuration(f"refused: {text}")


def _log_fields(difference: ConfigDiff, callers: int, needing_restart: tuple[str, ...]) -> dict[str, object]:
    """What the log says about a reload: only what changed."""
    differences: dict[str, object] = {
        "added": [server.name for server in difference.added],
        "changed": [server.name for server in difference.changed],
        "removed": list(difference.removed),
        "settings": list(difference.settings),
        "callers": callers if difference.callers_changed else None,
        "needs_a_restart": list(needing_restart),
    }
    return {word: names for word, names in differences.items() if names not in ([], None)}
