"""Several hub processes behind one port (`isthmus serve --workers N`): a parent that starts, watches and ends them.

Each worker is a whole hub and a node of a cluster, whose bus are Unix sockets in a private folder. All bind the port
with SO_REUSEPORT, so the system gives each new connection to one of them. The parent serves nothing: it keeps the port,
starts a worker again that has ended, and passes signals on. It has no event loop and no threads, so it can fork.
`cli.serve` calls it.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from isthmus.app.state_folder import RunningHubInfo, announced, configuration_name, new_operator_key
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration, local_origin
from isthmus.config.tables import A2A, STORAGE

log = structlog.get_logger(__name__)

WORKERS_MAX = 64

RESTART_SECONDS = (0.2, 30.0)
"""How long the parent waits before it starts an ended worker again: at first, and at most. The time doubles."""

STEADY_SECONDS = 30.0
"""A worker that ran for so long is started again at once."""

KILL_SECONDS = 10.0
"""How long after the time for a drain a worker may take to end, before it is killed."""

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several hubs that share a port."""

    number: int
    """From 1."""
    bus: str
    """The folder of the Unix sockets between the workers."""
    operator_key: str
    """The key of the local operator, which all workers accept: a command reaches any of them."""
    on_open: Callable[[], None] = field(default=lambda: None, compare=False)
    """Tells the parent that it serves."""

    def adapt(self, configuration: Configuration) -> Configuration:
        """The configuration of this worker: a node with a name of its own."""
        cluster, port = configuration.cluster, configuration.hub.port
        node = f"{cluster.node_id(port)}-{self.number}"
        bus = None if cluster.nats else self.bus  # with NATS, workers of all machines are nodes of one cluster
        # Commands read the file: without its own table, keys and logins stay in the state folder, which workers share.
        changed = replace(cluster, node=node, bus=bus, is_enabled=True, is_one_machine=not cluster.is_enabled)
        return replace(configuration, cluster=changed)


def check_workers(configuration: Configuration, count: int) -> None:
    """Raises: ConfigError if the workers would not have their tasks in common."""
    if count > 1 and not (configuration.storage.url or "").startswith(("postgresql:", "postgres:")):
        said = f"is needed for --workers {count}: all workers store their tasks in one PostgreSQL database"
        advice = '[storage] url = "postgresql://hub@localhost/isthmus"; or run one process, without --workers'
        raise ConfigError(Place(configuration.file, STORAGE).at("url").finding(said, advice=advice))
    if count > 1 and configuration.a2a.grpc_port == 0:
        said = f"must be a port with --workers {count}: with 0, each worker would choose another one"
        raise ConfigError(Place(configuration.file, A2A).at("grpc_port").finding(said))


class _Life:
    """One process of a worker."""

    __slots__ = ("began", "is_open", "number", "pid", "pipe")

    def __init__(self, number: int, pid: int, pipe: int) -> None:
        self.number = number
        self.pid = pid
        self.pipe = pipe
        """It writes a byte here when it serves."""
        self.is_open = False
        self.began = time.monotonic()


class Parent:
    """Starts the workers and keeps them running until a signal."""

    def __init__(self, configuration: Configuration, count: int, run: Callable[[Worker], int]) -> None:
        """`run` is the work of a worker, in its own process; it returns the exit code."""
        self._configuration = configuration
        self._count = count
        self._run_worker = run
        self._lives: dict[int, _Life] = {}
        self._restarts: dict[int, float] = {}
        """When the worker of a number is started again."""
        self._failures: dict[int, int] = {}
        self._signals: list[int] = []
        self._is_ending = False
        self._kill_at = float("inf")
        self._folder = ""
        self._key = new_operator_key()
        self._code = 0

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; return the exit code."""
        # Unix sockets have short paths, and a state folder may have a long one.
        self._folder = tempfile.mkdtemp(prefix="isthmus-")
        try:
            with self._catching_signals() as wakeup:
                self._serve(wakeup)
                self._watch(wakeup, lambda: bool(self._lives))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._code

    def _serve(self, wakeup: int) -> None:
        """Start all workers, and watch them until they have to end."""
        self._start(1)  # alone, so that an unusable configuration or database is reported once
        self._watch(wakeup, lambda: not self._is_ending and (1 not in self._lives or not self._lives[1].is_open))
        if self._is_ending:
            return
        for number in range(2, self._count + 1):
            self._start(number)
        hub, name = self._configuration.hub, configuration_name(self._configuration.file, os.environ)
        info = RunningHubInfo(os.getpid(), local_origin(hub.host, hub.port), self._key, name)
        with announced(Path(hub.state), info) as failed:
            if failed is not None:
                log.warning("commands cannot find this hub: use --hub", url=info.origin, reason=str(failed))
            self._watch(wakeup, lambda: not self._is_ending)

    # -- workers -------------------------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        self._restarts.pop(number, None)
        pipe, opened = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_worker(number, opened, parent)
        os.close(opened)
        os.set_blocking(pipe, False)
        self._lives[number] = _Life(number, pid, pipe)

    def _be_worker(self, number: int, opened: int, parent: int) -> None:
        code = 1
        try:
            end_with_parent(parent)
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            for life in self._lives.values():
                os.close(life.pipe)
            structlog.contextvars.bind_contextvars(worker=number)

            def on_open() -> None:
                with suppress(OSError):
                    os.write(opened, b"1")
                    os.close(opened)

            code = self._run_worker(Worker(number, self._folder, self._key, on_open))
        except KeyboardInterrupt:
            code = 130
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _on_ended(self, pid: int, status: int) -> None:
        life = next((each for each in self._lives.values() if each.pid == pid), None)
        if life is None:
            return
        self._read_pipe(life)
        os.close(life.pipe)
        del self._lives[life.number]
        code = os.waitstatus_to_exitcode(status)
        if self._is_ending:
            self._code = self._code or max(code, 0)
        elif not life.is_open and not self._failures.get(life.number) and life.number == 1:
            self._code = code if code > 0 else 1  # it has said why
            self._end(signal.SIGTERM)
        else:
            is_steady = life.is_open and time.monotonic() - life.began > STEADY_SECONDS
            failures = 0 if is_steady else self._failures.get(life.number, 0)
            self._failures[life.number] = failures + 1
            first, most = RESTART_SECONDS
            seconds = min(most, first * 2**failures)
            log.error(
                "a worker has ended; it is started again", worker=life.number, status=code, seconds=round(seconds, 1)
            )
            self._restarts[life.number] = time.monotonic() + seconds

    # -- waiting -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _catching_signals(self) -> Iterator[int]:
        wakeup, written = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(written, False)
        before = {}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            before[number] = signal.signal(number, lambda number, _: self._signals.append(number))
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        try:
            yield wakeup
        finally:
            signal.set_wakeup_fd(-1)
            for each, handler in before.items():
                signal.signal(each, handler)
            os.close(wakeup)
            os.close(written)

    def _watch(self, wakeup: int, goes_on: Callable[[], bool]) -> None:
        """Handle signals and ends of workers while this is true."""
        while goes_on():
            waits = [each for each in self._restarts.values() if not self._is_ending] + [self._kill_at]
            seconds = min(waits) - time.monotonic()
            opening = [life for life in self._lives.values() if not life.is_open]
            pipes = [wakeup, *(life.pipe for life in opening)]
            select.select(pipes, (), (), None if seconds == float("inf") else max(0.0, seconds))
            with suppress(BlockingIOError):
                os.read(wakeup, 4096)
            for life in opening:
                self._read_pipe(life)
            signals, self._signals = self._signals, []
            for number in signals:
                if number in (signal.SIGTERM, signal.SIGINT):
                    self._end(number)
                elif number == signal.SIGHUP:
                    self._send(signal.SIGHUP)
            self._reap()
            now = time.monotonic()
            for number in [each for each, at in self._restarts.items() if at <= now]:
                if not self._is_ending:
                    self._start(number)
            if now >= self._kill_at:
                self._kill_at = float("inf")
                self._send(signal.SIGKILL)

    def _read_pipe(self, life: _Life) -> None:
        with suppress(BlockingIOError, OSError):
            if os.read(life.pipe, 1):
                life.is_open = True
            elif not life.is_open:
                time.sleep(0.01)  # the pipe is closed: its worker is about to be reaped

    def _reap(self) -> None:
        while self._lives:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._on_ended(pid, status)

    def _end(self, number: int) -> None:
        """Pass the signal on: the first one lets workers drain, a second one ends them at once."""
        if not self._is_ending:
            self._is_ending = True
            self._restarts.clear()
            self._kill_at = time.monotonic() + self._configuration.hub.limits.drain_seconds + KILL_SECONDS
        self._send(signal.SIGTERM if number == signal.SIGTERM else number)

    def _send(self, number: int) -> None:
        for life in self._lives.values():
            with suppress(ProcessLookupError):
                os.kill(life.pid, number)


def end_with_parent(parent: int) -> None:
    """Let the system end this process in good order if its parent dies; without it, a killed parent leaves workers."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before
            os.kill(os.getpid(), signal.SIGTERM)
