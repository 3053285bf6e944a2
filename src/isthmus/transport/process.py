"""A child process as a channel: bytes to its stdin, bytes from its stdout, the last of its stderr.

The child leads its own session and process group. It gets exactly the environment it is given, three pipes and no other
descriptor, within its limits (`transport.process_limits`). When it ends, or closes its output, its group ends with it,
daemons included (`transport.process_tree`): no orphans, no zombies.

Framing, restarting and bounding the data for a child that does not read (`buffered_bytes`) is up to the stdio upstream.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from isthmus.transport.flow_control import ReadQuota
from isthmus.transport.process_limits import ProcessLimits, Unbounded, bound
from isthmus.transport.process_tree import end_family, marking, reap, settle_mark

HIGH_WATER_BYTES: Final = 64 * 1024
"""More than this in a buffer makes the event loop report when the child has caught up; the default of both loops."""

STDERR_BYTES: Final = 64 * 1024
"""Bytes of the end of stderr that are kept: a long traceback and the lines before it."""

EXIT_SECONDS: Final = 0.25
"""A child's exit and the end of its output are usually microseconds apart. After this time the hub no longer waits for
the second: a grandchild outside the group holds the pipe, or the child does not exit."""

LAST_LOOK_SECONDS: Final = 0.01
"""Long enough for the loop to read once more what has arrived."""

KILL_SECONDS: Final = 2.0
"""How long the kernel gets to end a killed process; only one stuck in a system call needs it."""

REAP_SECONDS: Final = 0.2
"""Long enough for killed processes to be gone; those that are ours by then are zombies."""

UNLIMITED: Final = ProcessLimits()

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
    """The variables that were declared for a child, and the few of `parent` that programs need to run."""
    names = INHERITED_ON_WINDOWS if sys.platform == "win32" else INHERITED
    inherited = {
        name: parent[name]
        for name in names
        # Bash passes functions on as variables that begin like this, and runs what it finds there.
        if name in parent and not parent[name].startswith("()")
    }
    return {**inherited, **declared}


class _Pipe(asyncio.Protocol):
    """One of the child's three pipes, as the event loop sees it."""

    def __init__(self, channel: ProcessChannel, fd: int) -> None:
        self._channel = channel
        self._fd = fd

    def data_received(self, data: bytes) -> None:
        self._channel.pipe_received(self._fd, data)

    def resume_writing(self) -> None:
        self._channel.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.pipe_closed(self._fd)


class ProcessChannel:
    """A running child. `on_bytes` receives its output; at its end `on_lost` is called once, with the reason in words.

    It is started by `subprocess` and not by the loop, because uvloop leaves copies of the pipes, and whatever
    else is inheritable, open in the child: such a child could not even close its own output.
    """

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        on_bytes: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        on_drained: Callable[[], None],
    ) -> None:
        """For `spawn`."""
        self._child = child
        self._mark: int | None = None
        self._on_bytes = on_bytes
        self._on_drained = on_drained
        self._on_lost: Callable[[str], None] | None = on_lost
        self._stdin: asyncio.WriteTransport | None = None
        self._outputs: list[asyncio.ReadTransport] = []
        self._written = 0
        self._accepted = 0
        self._stderr = bytearray()
        self._on_stderr: Callable[[bytes], None] = lambda _: None
        self._held: list[bytes] | None = []
        self._read_quota = ReadQuota(self._receive, pause=self._pause, resume=self._read_on)
        self._closed_by_child: set[int] = set()
        self._is_exited = False
        self._is_closing = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def spawn(  # noqa: PLR0913 - all but the first are named
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        on_bytes: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        on_drained: Callable[[], None] = lambda: None,
        limits: ProcessLimits = UNLIMITED,
        program: str | None = None,
        over_sockets: bool = False,
        own_session: bool = True,
    ) -> ProcessChannel:
        """Start `command` with the environment `env` (see `child_environment`), under `limits`.

        With a `program`, that file is executed under the name that the command begins with. `over_sockets`, its stdin
        and stdout are sockets: a write into a pipe waits while a child of low priority reads from it. Without its
        `own_session`, it leads only its group: Linux may share cores between sessions, and then the low priority of a
        child counts within its session alone.

        No callback comes before this returns. `on_drained` is called when a child that had fallen behind has caught up.

        Raises:
            SpawnFailed: there is no such command or directory, it cannot be executed, or the limits cannot be set.
        """
        with marking() as mark:
            child = _start(command, env, cwd, program, over_sockets=over_sockets, own_session=own_session)
        settle_mark(child.pid, mark)
        try:
            bound(child.pid, limits)
        except Unbounded as error:
            with child:
                os.killpg(child.pid, signal.SIGKILL)
            raise SpawnFailed(command[0], str(error)) from error
        channel = cls(child, on_bytes, on_lost, on_drained)
        channel._mark = mark
        channel._watch_exit()
        try:
            # Shielded: uvloop closes the descriptor of a half connected pipe, and its file closes it again.
            await asyncio.shield(channel._connect_pipes())
        except BaseException:
            channel._on_lost = None  # pipes that are being connected close after that
            channel.kill()
            channel._close_pipes()
            raise
        channel._loop.call_soon(channel._hand_over)
        return channel

    async def _connect_pipes(self) -> None:
        child, loop = self._child, self._loop
        self._stdin, _ = await loop.connect_write_pipe(lambda: _Pipe(self, 0), child.stdin)
        for fd, pipe in ((1, child.stdout), (2, child.stderr)):
            transport, _ = await loop.connect_read_pipe(functools.partial(_Pipe, self, fd), pipe)
            self._outputs.append(transport)
        if self._on_lost is None:
            self._close_pipes()

    def _watch_exit(self) -> None:
        if sys.platform == "linux":
            with suppress(OSError):  # forbidden in some sandboxes
                pidfd = os.pidfd_open(self._child.pid)

                def exited() -> None:
                    self._loop.remove_reader(pidfd)
                    os.close(pidfd)
                    self._exited()

                self._loop.add_reader(pidfd, exited)
                return

        def wait() -> None:
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
            else:
                self._child.wait()
            with suppress(RuntimeError):  # the loop was closed first
                self._loop.call_soon_threadsafe(self._exited)

        threading.Thread(target=wait, name=f"wait-{self._child.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The child's process id, which is also its group's."""
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the number of the signal that ended it, if one did."""
        return self._child.returncode if self._is_exited else None

    def watch_stderr(self, on_bytes: Callable[[bytes], None]) -> None:
        """Report everything that it wrote to stderr so far, what follows, and a line break at its end."""
        self._on_stderr = on_bytes
        if self._stderr:
            on_bytes(bytes(self._stderr))

    @property
    def stderr_tail(self) -> str:
        """The last 64 KiB that it wrote to stderr."""
        return self._stderr[-STDERR_BYTES:].decode("utf-8", "replace")

    def write(self, data: bytes | memoryview) -> int:
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

    @property
    def is_full(self) -> bool:
        """Whether so much waits for the child that `on_drained` will be called."""
        return self.buffered_bytes() > HIGH_WATER_BYTES

    def kill(self) -> None:
        """End the child and all that it has started now; `on_lost` follows."""
        self._signal_group(signal.SIGKILL)

    async def aclose(self, grace: float = 2.0) -> None:
        """Ask the child to leave by closing its stdin, then by SIGTERM, `grace` seconds each; then end it."""
        self._is_closing = True
        try:
            if self._stdin is not None:
                self._stdin.close()
            if not await self._ends_within(grace):
                self._signal_group(signal.SIGTERM)
                await self._ends_within(grace)
        finally:
            # Also when cancelled: closing always ends the child.
            self.kill()
        if not await self._ends_within(KILL_SECONDS):
            self._conclude()

    async def _ends_within(self, seconds: float) -> bool:
        await asyncio.wait([self._over], timeout=seconds)
        return self._over.done()

    def _signal_group(self, number: signal.Signals) -> None:
        # Once the child is reaped, its number may belong to another process.
        if self._is_exited:
            return
        if number == signal.SIGKILL:
            if others := end_family(self._child.pid, self._mark):
                self._loop.call_later(REAP_SECONDS, reap, others)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)

    # -- callbacks of the pipes and the system -----------------------------------------------------------------------

    def pipe_received(self, fd: int, data: bytes) -> None:
        """The child wrote something."""
        if fd == 2:
            self._on_stderr(data)
            self._stderr += data
            if len(self._stderr) > 2 * STDERR_BYTES:
                del self._stderr[:-STDERR_BYTES]
        elif self._held is not None:
            self._held.append(data)
        else:
            self._read_quota.feed(data)

    def _receive(self, data: bytes) -> None:
        if self._on_lost is not None:
            self._on_bytes(data)

    def _pause(self) -> None:
        self._outputs[0].pause_reading()

    def _read_on(self) -> None:
        if not self._outputs[0].is_closing():
            self._outputs[0].resume_reading()

    def drained(self) -> None:
        """The child has caught up with what was written to it."""
        if self._on_lost is not None:
            self._on_drained()

    def pipe_closed(self, fd: int) -> None:
        """A pipe was closed by either side."""
        self._closed_by_child.add(fd)
        if fd == 0:
            self._close_account()
        elif fd == 1:
            self._read_quota.finish()
        elif self._stderr and not self._stderr.endswith(b"\n"):
            self._on_stderr(b"\n")
        self._review()

    def _exited(self) -> None:
        # Before it is reaped: until then its number, which is also the group's, cannot be reused.
        self.kill()
        self._child.wait()
        self._is_exited = True
        if self._on_lost is None:
            self._end_wait()
        self._review()

    # -- how it ends -------------------------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        held, self._held = self._held, None
        for data in held or ():
            self._on_bytes(data)
        self._review()

    def _close_account(self) -> None:
        self._accepted -= self.buffered_bytes()
        self._stdin = None

    def _review(self) -> None:
        """Conclude if the child and its output have ended; if one of them has, give the other a moment."""
        if self._on_lost is None or self._held is not None:
            return
        if self._is_exited and {1, 2} <= self._closed_by_child:
            self._conclude()
            return
        # A child that was asked to leave may take its time.
        has_closed = not self._is_closing and not self._closed_by_child.isdisjoint({0, 1})
        if self._timer is None and (self._is_exited or has_closed):
            self._timer = self._loop.call_later(EXIT_SECONDS, self._look_once_more)

    def _look_once_more(self) -> None:
        # A loop that stood still runs its timers before it reads: what the child said last may still be unread.
        self._timer = self._loop.call_later(LAST_LOOK_SECONDS, self._conclude)

    def _conclude(self) -> None:
        self._read_quota.finish()
        self._read_quota.stop()
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        # Close first, then count: afterwards the child cannot fetch bytes that were counted as unsent.
        self.kill()
        self._close_pipes()
        if self._is_exited:
            self._end_wait()
        code = self.returncode
        if code is None:
            on_lost("closed its output" if 1 in self._closed_by_child else "closed its input")
        elif code >= 0:
            on_lost(f"exited with code {code}")
        else:
            name = f" ({signal.Signals(-code).name})" if -code in set(signal.Signals) else ""
            on_lost(f"killed by signal {-code}{name}")

    def _close_pipes(self) -> None:
        # A grandchild that left the group may hold their other ends for ever.
        stdin = self._stdin
        self._close_account()
        if stdin is not None and not stdin.is_closing():
            stdin.abort()
        for output in self._outputs:
            output.close()

    def _end_wait(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


async def run_foreground(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a program on this process's own standard streams; return its exit code. If cancelled, end it.

    Raises:
        SpawnFailed: it cannot be started.
    """
    child = _start_here(command, env)
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        code = child.wait()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(code))

    threading.Thread(target=wait, name=f"end of {command[0]}", daemon=True).start()
    try:
        return await ended
    finally:
        if child.returncode is None:
            child.terminate()


def start_reporting(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a program in this process's folder and environment; its starter reads its standard error."""
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    return subprocess.Popen(command, stdin=none, stdout=none, stderr=pipe)  # noqa: S603 - no shell, and our own program


def _start_here(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    _check_startable(command, env, None)
    try:
        return subprocess.Popen(command, env=env)  # noqa: S603 - the user's own command, and no shell
    except (OSError, ValueError) as error:
        raise SpawnFailed(command[0], str(error)) from error


def _start(
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    program: str | None,
    *,
    over_sockets: bool,
    own_session: bool,
) -> subprocess.Popen[bytes]:
    _check_startable(command, env, cwd)
    pipe = subprocess.PIPE
    pairs = [socket.socketpair(), socket.socketpair()] if over_sockets else []
    try:
        child = subprocess.Popen(  # noqa: S603 - the operator's own command, and no shell
            command,
            executable=program,
            bufsize=0,
            stdin=pairs[0][1].fileno() if pairs else pipe,
            stdout=pairs[1][1].fileno() if pairs else pipe,
            stderr=pipe,
            env=env,
            cwd=cwd,
            close_fds=True,
            start_new_session=own_session,
            process_group=None if own_session else 0,
        )
        if pairs:
            child.stdin = os.fdopen(pairs[0][0].detach(), "wb", 0)
            child.stdout = os.fdopen(pairs[1][0].detach(), "rb", 0)
        return child
    except FileNotFoundError as error:
        raise SpawnFailed(command[0], "there is no such file") from error
    except PermissionError as error:
        raise SpawnFailed(command[0], "it may not be executed") from error
    except (OSError, ValueError) as error:
        is_format = isinstance(error, OSError) and error.errno == errno.ENOEXEC
        reason = "it is neither a program nor a script that begins with #!" if is_format else str(error)
        raise SpawnFailed(command[0], reason) from error
    finally:
        for pair in pairs:
            for end in pair:
                end.close()  # a detached one is closed by its file


def _check_startable(command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
    # The system gives the same error for all of these.
    if not command or not command[0]:
        raise SpawnFailed("", "the command is empty")
    name = command[0]
    if cwd is not None and not Path(cwd).is_dir():
        raise SpawnFailed(name, f"its working directory {cwd!r} does not exist")
    path = env.get("PATH", os.defpath)
    # Many write a command as they would type it: the whole is no program, but its first word is one.
    first, *rest = name.split() or [""]
    is_line = bool(rest) and shutil.which(first, path=path) is not None
    if is_line and shutil.which(name, path=path) is None and not Path(cwd or "", name).exists():
        advice = "if this is a line for a shell, put all but its first word into args"
        raise SpawnFailed(name, f"there is no such command; {advice}")
    if Path(name).name == name and shutil.which(name, path=path) is None:
        advice = "install it or give its full path"
        raise SpawnFailed(name, f"there is no such command on PATH; {advice}")
