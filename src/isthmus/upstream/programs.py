"""Checks before each start of a server process that its program is the one that the operator meant.

The operator writes the command, but others may have replaced the program, changed a script, or put code into a folder
that everybody can write to. An entry may pin digests (`sha256`), and `[hub] open_programs` says whether files that
everybody can write to are started. Called by `app.links`.

A file can be changed between the check and the start, so write permissions are checked as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import structlog

from isthmus.model.names import ServerName
from isthmus.transport.process import child_environment
from isthmus.upstream.link import ConnectFailed
from isthmus.upstream.settings import PIN_ARGV, PIN_PROGRAM, StdioSettings

log = structlog.get_logger(__name__)

DIGESTS_KEPT: Final = 256
"""Files that are not read again while their stat is unchanged."""

SETTLED_NANOSECONDS: Final = 2_000_000_000

_Identity = tuple[int, int, int, int, int]


class Programs:
    """The programs of one hub's servers; each path that everybody can write to is logged once."""

    def __init__(self) -> None:
        self._told: set[tuple[ServerName, Path]] = set()

    async def check(self, server: ServerName, reach: StdioSettings, environment: Mapping[str, str]) -> str | None:
        """The file to execute, if it was checked; None to let the system find it.

        Raises:
            ConnectFailed: a digest differs, or everybody can write to it and that is not allowed.
        """
        program = program_of(reach, environment)
        self._look_at_rights(server, reach, program)
        if not reach.sha256:
            return None
        if program is None:
            raise _refused(reach, "it was not found, and so not checked")
        await asyncio.to_thread(check_digests, reach, program)
        return str(program)

    def _look_at_rights(self, server: ServerName, reach: StdioSettings, program: Path | None) -> None:
        for path in open_paths(reach, program):
            if not reach.may_be_open:
                raise _refused(reach, f"everybody on this machine can write to {path}; chmod o-w it, or move it")
            if (server, path) not in self._told:
                self._told.add((server, path))
                log.warning("everybody can write to what a server runs", server=server, path=str(path))


def _refused(reach: StdioSettings, why: str) -> ConnectFailed:
    return ConnectFailed(f"{reach.command!r} could not be started: {why}")


def program_of(reach: StdioSettings, environment: Mapping[str, str]) -> Path | None:
    """The file that a command means, seen from its working directory; None if there is none."""
    command = reach.command
    if Path(command).name != command:
        file = Path(reach.cwd or ".", command).absolute()
        return file if file.is_file() else None
    found = shutil.which(command, path=child_environment(reach.env, environment).get("PATH", os.defpath))
    return None if found is None else Path(found).absolute()


def open_paths(reach: StdioSettings, program: Path | None) -> list[Path]:
    """Which of the working directory, the program and its folder everybody can write to."""
    if sys.platform == "win32":
        return []  # modes say nothing about permissions there
    paths = [] if reach.cwd is None else [Path(reach.cwd)]
    if program is not None:
        file = program.resolve()
        paths += [program.parent, file.parent, file]
    return [path for path in dict.fromkeys(paths) if _is_open(path)]


def _is_open(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False  # a missing file is reported elsewhere


# -- digests -----------------------------------------------------------------------------------------------------------


def check_digests(reach: StdioSettings, program: Path) -> None:
    """Check the pinned digests. Reads whole files, so do not call it on the loop.

    Raises:
        ConnectFailed: a digest differs; the message names the file.
    """
    for what, wanted in reach.sha256.items():
        if what == PIN_ARGV:
            shown, found = "its command and arguments", digest_of_words([reach.command, *reach.args])
        else:
            file = program if what == PIN_PROGRAM else Path(what)
            shown, found = str(file), _digest_of(file, reach)
        if found != wanted:
            raise _refused(reach, f"sha256 is {found} and not {wanted}, of {shown}; if it is right, write it so")


def digest_of_words(words: Sequence[str]) -> str:
    """SHA-256 of the JSON array of a command and its arguments, without blanks, variables replaced."""
    text = json.dumps(list(words), ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _digest_of(file: Path, reach: StdioSettings) -> str:
    try:
        known_by = file.stat()
        # File system clocks are coarse: a file changed just now may change again and look the same.
        is_settled = time.time_ns() - known_by.st_ctime_ns > SETTLED_NANOSECONDS
        return _kept_digest(file, _identity(known_by)) if is_settled else _digest(file)
    except OSError as error:
        raise _refused(reach, f"{file} cannot be read to have its sha256 checked: {error.strerror}") from error


def _identity(file: os.stat_result) -> _Identity:
    """What changes with a file; only the system can set the last one."""
    return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns


@lru_cache(maxsize=DIGESTS_KEPT)
def _kept_digest(file: Path, _known_by: _Identity) -> str:
    return _digest(file)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
