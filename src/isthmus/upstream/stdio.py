"""Servers that the hub starts as child processes: the link, and the checks of their programs before each start.

A link carries one line per message on the standard streams. `Programs` checks that a program is the one that the
operator meant: the operator writes the command, but others may have replaced the program, changed a script, or put code
into a folder that everybody can write to. An entry may pin digests (`sha256`), and `[hub] open_programs` says whether
files that everybody can write to are started. A file can be changed between the check and the start, so write
permissions are checked as well. Called by `app.links`.
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
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import structlog

from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.transport.process import ProcessChannel, SpawnFailed, child_environment
from isthmus.upstream.base_link import BaseLink, ChannelWriter, ConnectFailed
from isthmus.upstream.server_settings import PIN_ARGV, PIN_PROGRAM, StdioSettings
from isthmus.wire import lines
from isthmus.wire.lines import Oversized
from isthmus.wire.mcp.messages import Implementation

log = structlog.get_logger(__name__)

OUTPUT_LINE_BYTES = 4_000
OUTPUT_LINES = 400
"""The longest unfinished line, and the most lines of one read, that are reported: more would not be kept."""

LAST_WORDS_LENGTH = 2_000
"""How much of a lost process's standard error the operator sees: a traceback. The error may be at its top (Node.js)."""


class StdioLink(BaseLink):
    """One child process. Many requests share its pipe; responses are matched by id."""

    carrier = "stdio"
    is_duplex = True
    start_seconds = 60.0
    takes_methods = True

    def __init__(self, server: ServerName, me: Implementation, limits: Limits) -> None:
        super().__init__(server, me, limits)
        self._decoder = lines.LineDecoder(limits.reply_bytes)
        self._process: ProcessChannel | None = None
        self._writer: ChannelWriter = ChannelWriter(lines.frame)

    async def start(self, reach: StdioSettings, parent: Mapping[str, str], program: str | None = None) -> None:
        """Start the process, from `program` if that file was checked. Raises `ConnectFailed`."""
        try:
            self._process = await ProcessChannel.spawn(
                [reach.command, *reach.args],
                env=child_environment(reach.env, parent),
                cwd=reach.cwd,
                program=program,
                on_bytes=self._received,
                on_lost=self._on_broken,
                on_drained=self._writer.flush,
                limits=reach.limits,
            )
        except SpawnFailed as failed:
            raise ConnectFailed(str(failed)) from failed
        self._writer.channel = self._process

    @property
    def pid(self) -> int | None:
        """The process id."""
        return None if self._process is None else self._process.pid

    @property
    def last_output(self) -> str | None:
        """The end of the process's standard error; without any, what it wrote to standard output by mistake."""
        tail = "" if self._process is None else self._process.stderr_tail.strip()
        if not tail and self.garbage:
            return f"{self.garbage} (on standard output, where only messages of MCP may be)"
        return tail[-LAST_WORDS_LENGTH:] or None

    def report_output(self, on_lines: Callable[[Sequence[bytes]], None]) -> None:
        """See `BaseLink.report_output`."""
        rest = b""

        def feed(data: bytes) -> None:
            nonlocal rest
            *whole, rest = (rest + data).split(b"\n")
            rest = rest[-OUTPUT_LINE_BYTES:]
            if whole:
                on_lines([line for line in map(bytes.rstrip, whole[-OUTPUT_LINES:]) if line])

        if self._process is not None:
            self._process.watch_stderr(feed)

    def _received(self, chunk: bytes) -> None:
        for line in self._decoder.feed(chunk):
            if isinstance(line, Oversized):
                self._fail(f"it sent a line of over {line.limit_bytes} bytes")
                return
            self.read(line)


# -- checks of programs --------------------------------------------------------------------------------------------

DIGESTS_KEPT: Final = 256
"""Files that are not read again while their stat is unchanged."""

SETTLED_NANOSECONDS: Final = 2_000_000_000
"""File system clocks are coarse: a file changed just now may change again and look the same."""


class Programs:
    """The programs of one hub's servers; each path that everybody can write to is logged once."""

    def __init__(self) -> None:
        self._warned: set[tuple[ServerName, Path]] = set()

    async def check(self, server: ServerName, reach: StdioSettings, environment: Mapping[str, str]) -> str | None:
        """The file to execute, if it was checked; None to let the system find it.

        Raises:
            ConnectFailed: a digest differs, or everybody can write to it and that is not allowed.
        """
        program = program_of(reach, environment)
        for path in open_paths(reach, program):
            if not reach.may_be_open:
                raise _refused(reach, f"everybody on this machine can write to {path}; chmod o-w it, or move it")
            if (server, path) not in self._warned:
                self._warned.add((server, path))
                log.warning("every user can write to the program or folder of a server", server=server, path=str(path))
        if not reach.sha256:
            return None
        if program is None:
            raise _refused(reach, "it was not found, and so not checked")
        await asyncio.to_thread(check_digests, reach, program)
        return str(program)


def _refused(reach: StdioSettings, why: str) -> ConnectFailed:
    return ConnectFailed(f"{reach.command!r} could not be started: {why}")


def program_of(reach: StdioSettings, environment: Mapping[str, str]) -> Path | None:
    """The file that a command means, seen from its working directory; None if no such file exists."""
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
            try:
                now = file.stat()
                is_settled = time.time_ns() - now.st_ctime_ns > SETTLED_NANOSECONDS
                shown, found = str(file), _cached_digest(file, _identity(now)) if is_settled else _digest(file)
            except OSError as error:
                why = f"{file} cannot be read to have its sha256 checked: {error.strerror}"
                raise _refused(reach, why) from error
        if found != wanted:
            raise _refused(
                reach, f"sha256 is {found} and not {wanted}, of {shown}; if that is right, write it into the entry"
            )


def digest_of_words(words: Sequence[str]) -> str:
    """SHA-256 of the JSON array of a command and its arguments, without blanks, variables replaced."""
    text = json.dumps(list(words), ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _identity(file: os.stat_result) -> tuple[int, ...]:
    """What changes with a file; only the system can set the last one."""
    return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns


@lru_cache(maxsize=DIGESTS_KEPT)
def _cached_digest(file: Path, _known_by: tuple[int, ...]) -> str:
    return _digest(file)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
