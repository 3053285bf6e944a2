"""What servers listed when they were last there, one small file each below the state folder.

A file is replaced whole and is never needed: one that cannot be read or written costs a warning. `app` opens the
folder; `upstream.list_cache` says what is in the files.
"""

from __future__ import annotations

import asyncio
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

import structlog

log = structlog.get_logger(__name__)

FOLDER: Final = "lists"

BYTES_MAX: Final = 2 * 1024 * 1024
"""A longer list is not kept: reading it would delay the start."""

FILES_MAX: Final = 1000
"""With more files the oldest are deleted: those of entries that were removed or edited."""


class ServerListFiles:
    """The folder. One thread reads and writes, so that a slow disk holds up nobody."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER
        self._worker = ThreadPoolExecutor(1, "lists")
        self._has_warned = False

    async def read(self, key: str) -> bytes | None:
        """What was written under this key; None if there is nothing, or nothing that can be read."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._read, key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("what a server listed last cannot be read", file=f"{FOLDER}/{key}.json", reason=str(error))
            return None

    def write(self, key: str, body: bytes) -> None:
        """Keep this under the key, soon."""
        with suppress(RuntimeError):  # the hub is closing, and somebody listed something at the last moment
            self._worker.submit(self._write, key, body)

    async def aclose(self) -> None:
        """Write what is waiting."""
        await asyncio.get_running_loop().run_in_executor(None, self._worker.shutdown)

    # In the thread.

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _read(self, key: str) -> bytes:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(os.open(self._path(key), flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > BYTES_MAX:
                raise ValueError(f"it is no file of at most {BYTES_MAX} bytes")
            return file.read(BYTES_MAX)

    def _write(self, key: str, body: bytes) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = self._folder / f"{token_hex(8)}.new"
            try:
                with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(body)
                draft.replace(self._path(key))
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
            self._delete_oldest()
        except OSError as error:
            if not self._has_warned:
                log.warning("what servers list cannot be kept for the next start", reason=str(error))
            self._has_warned = True

    def _delete_oldest(self) -> None:
        with os.scandir(self._folder) as entries:
            files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        if len(files) > FILES_MAX:
            for entry in sorted(files, key=lambda each: each.stat().st_mtime)[: len(files) - FILES_MAX]:
                Path(entry.path).unlink(missing_ok=True)
