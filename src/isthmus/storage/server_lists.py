"""The last tool lists of servers, one small file each in the state folder.

Files are replaced as a whole and never required: an unreadable or unwritable one costs a warning. `app` opens the
folder; `upstream` defines the contents.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

import structlog

log = structlog.get_logger(__name__)

FOLDER: Final = "lists"

BYTES_MAX: Final = 80 * 1024 * 1024
"""A longer file is not one of ours."""

FILES_MAX: Final = 1000
"""Beyond it the oldest files are deleted; they belong to removed or edited entries."""


class ServerListFiles:
    """The folder of the lists. One thread reads and writes, so a slow disk does not block the loop."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER
        self._worker = ThreadPoolExecutor(1, "lists")
        self._has_warned = False

    async def read(self, key: str) -> bytes | None:
        """Read the file of a key; None if it is missing or unreadable."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._read, key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("cannot read the stored list of a server", file=f"{FOLDER}/{key}.json", reason=str(error))
            return None

    def write(self, key: str, body: Callable[[], bytes]) -> None:
        """Write the file of a key soon. The thread calls `body`: to write thousands of tools takes a while."""
        with suppress(RuntimeError):  # a list came while the hub is closing
            self._worker.submit(self._write, key, body)

    async def aclose(self) -> None:
        """Finish all writes."""
        await asyncio.get_running_loop().run_in_executor(None, self._worker.shutdown)

    # In the thread.

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _read(self, key: str) -> bytes:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(os.open(self._path(key), flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > BYTES_MAX:
                raise ValueError(f"it is not a regular file of at most {BYTES_MAX} bytes")
            return file.read(BYTES_MAX)

    def _write(self, key: str, body: Callable[[], bytes]) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = self._folder / f"{token_hex(8)}.new"
            try:
                with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(body())
                draft.replace(self._path(key))
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
            with os.scandir(self._folder) as entries:
                files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
            if len(files) > FILES_MAX:
                for entry in sorted(files, key=lambda each: each.stat().st_mtime)[: len(files) - FILES_MAX]:
                    Path(entry.path).unlink(missing_ok=True)
        except OSError as error:
            if not self._has_warned:
                log.warning("cannot store the lists of servers for the next start", reason=str(error))
            self._has_warned = True
