"""A child process as a channel: bytes to its stdin, bytes from its stdout, the last of its stderr.

The child leads a session and process group of its own, sees exactly the environment it is given and no
descriptor but the three pipes. When it goes, or stops talking, its group goes with it: no orphan, no zombie.

It does not frame or restart, nor bound what is buffered for a child that does not read (`buffered_bytes`
tells): the stdio upstream, which calls it, does.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

STDERR_BYTES: Final = 64 * 1024
"""How much of the end of stderr is kept: a long traceback and what led to it."""

EXIT_SECONDS: Final = 0.25
"""Between a child's exit and the end of its output, or the reverse, usually lie microseconds. After this time
the other is not waited for: a grandchild outside the group holds the pipe, or the child will not leave."""

KILL_SECONDS: Final = 2.0
"""How long the kernel gets to end a killed process; only one stuck in a system call needs it."""

KILL: Final = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL

INHERITED: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TERM",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
)
INHERITED_ON_WINDOWS: Final = (
    "APPDATA",
    "COMSPEC",
    "HOMEDRIVE",
    "HOMEPATH",
    "LOCALAPPDATA",
    "PATH",
    "PATHEXT",
    "PROGRAMDATA",
    "PROGRAMFILES",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "USERNAME",
    "USERPROFILE",
    "WINDIR",
)


class SpawnFailed(Exception):
    """`command` could not be started."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"{command!r} could not be started: {reason}")
        self.command = command
        self.reason = reason


def child_environment(declared: Mapping[str, str], parent: Mapping[str, str]) -> dict[str, str]:
    """Join what was declared for a child with the few variables of `parent` that programs need to run."""
    names = INHERITED_ON_WINDOWS if sys.platform == "win32" else INHERITED
    inherited = {
        name: parent[name]
        for name in names
        # Bash passes functions on as variables that begin like this, and runs what it finds there.
        if name in parent and not parent[name].startswith("()")
    }
    return {**inherited, **declared}


class ProcessChannel(asyncio.SubprocessProtocol):
    """A running child. `on_bytes` hears its output, then `on_lost` hears once, in words, why it ended."""

    def __init__(
        self,
        on_bytes: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        on_drained: Callable[[], None],
    ) -> None:
        """For `spawn`."""
        self._on_bytes = on_bytes
        self._on_drained = on_drained
        self._on_lost: Callable[[str], None] | None = on_lost
        self._transport: asyncio.SubprocessTransport
        self._stdin: asyncio.WriteTransport | None = None
        self._written = 0
        self._accepted = 0
        self._stderr = bytearray()
        self._held: list[bytes] | None = []
        self._closed_by_child: set[int] = set()
        self._is_exited = False
        self._is_closing = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        on_bytes: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        on_drained: Callable[[], None] = lambda: None,
    ) -> ProcessChannel:
        """Start `command` with the environment `env` (see `child_environment`).

        No callback comes before this returns. `on_drained` tells that a child which had fallen behind reads
        again, and has little left to read.

        Raises:
            SpawnFailed: there is no such command or directory, or it cannot be executed.
        """
        _check_startable(command, env, cwd)
        loop = asyncio.get_running_loop()
        try:
            _, channel = await loop.subprocess_exec(
                lambda: cls(on_bytes, on_lost, on_drained),
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                close_fds=True,
            )
        except (OSError, ValueError) as error:
            raise SpawnFailed(command[0], _in_words(error)) from error
        loop.call_soon(channel._hand_over)
        return channel

    @property
    def pid(self) -> int:
        """The child's process id, which is also its group's."""
        return self._transport.get_pid()

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the number of the signal that ended it, if one did."""
        return self._transport.get_returncode()

    @property
    def stderr_tail(self) -> str:
        """The last 64 KiB that it wrote to stderr."""
        return self._stderr[-STDERR_BYTES:].decode("utf-8", "replace")

    def write(self, data: bytes) -> int:
        """Send `data`; return the offset of its end in all that was ever written, for `has_left`."""
        self._written += len(data)
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)
            self._accepted = self._written
        return self._written

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the child.

        False means that it is still in our buffer, from where a living child may yet fetch it: the answer is
        final only once `on_lost` was called.
        """
        return offset <= self._accepted - self.buffered_bytes()

    def buffered_bytes(self) -> int:
        """How much the child has not taken yet."""
        return 0 if self._stdin is None else self._stdin.get_write_buffer_size()

    def kill(self) -> None:
        """End the child and its group now; `on_lost` follows."""
        self._signal_group(KILL)

    async def aclose(self, grace: float = 2.0) -> None:
        """Ask the child to leave by closing its stdin, then by SIGTERM, `grace` seconds each; then end it."""
        self._is_closing = True
        try:
            if self._stdin is not None:
                self._stdin.close()
            if not await self._is_over_within(grace):
                self._signal_group(signal.SIGTERM)
                await self._is_over_within(grace)
        finally:
            # Also when cancelled: a channel that somebody closes does not stay.
            self.kill()
        if not await self._is_over_within(KILL_SECONDS):
            self._conclude()

    async def _is_over_within(self, seconds: float) -> bool:
        await asyncio.wait([self._over], timeout=seconds)
        return self._over.done()

    def _signal_group(self, number: signal.Signals) -> None:
        # Once the child is reaped its number may be somebody else's.
        if self._is_exited:
            return
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._transport.kill()
            else:
                os.killpg(self.pid, number)

    # What the event loop tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Casts, because uvloop's transports are not asyncio's by class.
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._keep_stderr(data)
        elif self._held is not None:
            self._held.append(data)
        elif self._on_lost is not None:
            self._on_bytes(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._closed_by_child.add(fd)
        if fd == 0:
            self._close_account()
        self._review()

    def resume_writing(self) -> None:
        if self._on_lost is not None:
            self._on_drained()

    def process_exited(self) -> None:
        # Its number stays taken while its group has members, so this reaches them or nobody.
        self._signal_group(KILL)
        self._is_exited = True
        if self._on_lost is None:
            self._let_go()
        self._review()

    # What it makes of that.

    def _hand_over(self) -> None:
        held, self._held = self._held, None
        for data in held or ():
            self._on_bytes(data)
        self._review()

    def _keep_stderr(self, data: bytes) -> None:
        self._stderr += data
        if len(self._stderr) > 2 * STDERR_BYTES:
            del self._stderr[:-STDERR_BYTES]

    def _close_account(self) -> None:
        self._accepted -= self.buffered_bytes()
        self._stdin = None

    def _review(self) -> None:
        """Conclude if the child and its output have ended; if one of them has, give the other a moment."""
        if self._on_lost is None or self._held is not None:
            return
        if self._is_exited and {1, 2} <= self._closed_by_child:
            self._conclude()
        elif self._timer is None and (self._is_exited or self._has_stopped_talking()):
            self._timer = self._loop.call_later(EXIT_SECONDS, self._conclude)

    def _has_stopped_talking(self) -> bool:
        # One that we have asked to leave may take its time.
        return not self._is_closing and not self._closed_by_child.isdisjoint({0, 1})

    def _conclude(self) -> None:
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        # First the end, then the account: nothing that is counted as still here can be fetched after that.
        self.kill()
        self._close_account()
        if self._is_exited:
            self._let_go()
        on_lost(self._farewell())

    def _let_go(self) -> None:
        # Not before the exit, because asyncio's close() may then reap the child behind its watcher's back.
        self._transport.close()
        if not self._over.done():
            self._over.set_result(None)

    def _farewell(self) -> str:
        code = self.returncode
        if code is None:
            return "closed its output" if 1 in self._closed_by_child else "closed its input"
        return f"exited with code {code}" if code >= 0 else f"killed by signal {_signal_name(-code)}"


def _check_startable(command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
    # The loops report these failures differently, and neither names what is missing.
    if not command or not command[0]:
        raise SpawnFailed("", "the command is empty")
    name = command[0]
    if cwd is not None and not Path(cwd).is_dir():
        raise SpawnFailed(name, f"its working directory {cwd!r} does not exist")
    is_path = Path(name).name != name
    path = env.get("PATH", os.defpath)
    if not is_path and shutil.which(name, path=path) is None:
        raise SpawnFailed(name, "there is no such command on PATH; install it or give its full path")


def _in_words(error: OSError | ValueError) -> str:
    match error:
        case FileNotFoundError():
            return "there is no such file"
        case PermissionError():
            return "it may not be executed"
        case OSError(errno=errno.ENOEXEC):
            return "it is neither a program nor a script that begins with #!"
        case _:
            return str(error)


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
