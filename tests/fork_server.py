"""Starts hubs in a tenth of the time: a process that has loaded most of what a hub loads, and forks one on request.

Two thirds of a hub's start are imports, and the suite starts hundreds of hubs. `tests.hubs` uses this for those that
need nothing special of their process; a forked hub runs `isthmus serve` from there on, in a process, a folder and an
environment of its own. The tests of the command line start the real command.

Each process that runs tests has one server. It ends when that process closes its socket, in whichever way.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from isthmus.cli.main import WithoutRich, program

CHECKOUT = Path(__file__).resolve().parents[1]

PRELOADED = (
    "uvloop",
    "isthmus.cli.hub",
    "isthmus.app.links",
    "isthmus.app.validation",
    "isthmus.frontends.http.listener",
    "isthmus.frontends.a2a.http",
    "isthmus.frontends.oauth.http",
    "isthmus.frontends.relay.http",
    "isthmus.frontends.rest.http",
    "isthmus.frontends.wellknown.http",
    "isthmus.identity.issuers",
    "isthmus.upstream.targets.named_servers",
)
"""What a hub loads anyway, with all that these load. A module that draws a secret as it is loaded cannot be among them:
every hub would have the same one. `_load` refuses it."""

DRAWS_RUN = "isthmus.core.calls.inflight"
"""Nearly everything loads it, and it draws what its calls are named by in the log: each forked hub draws that again."""

REQUEST_BYTES = 1 << 20


class ForkedProcess:
    """A process that the server has forked, as `asyncio.subprocess.Process` shows one that we started ourselves."""

    def __init__(self, pid: int, stderr: asyncio.StreamReader, ended: asyncio.Task[int]) -> None:
        self.pid = pid
        self.stderr = stderr
        self._ended = ended

    @property
    def returncode(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait until it has ended."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send it a signal.

        Raises:
            ProcessLookupError: it has ended.
        """
        if self._ended.done():
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


async def forked(words: Sequence[str], env: Mapping[str, str], folder: Path) -> ForkedProcess:
    """Fork a process that runs `isthmus` with these words; only its standard error can be read."""
    loop = asyncio.get_running_loop()
    heard, said = os.pipe()
    ours, theirs = socket.socketpair()
    try:
        request = json.dumps([list(words), dict(env), str(folder)]).encode()
        socket.send_fds(_server().control, [request], [said, theirs.fileno()])
    finally:
        os.close(said)
        theirs.close()
    stderr = asyncio.StreamReader(limit=REQUEST_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stderr), os.fdopen(heard, "rb", 0))
    reports, writer = await asyncio.open_connection(sock=ours)

    async def ended() -> int:
        try:
            return int(await reports.readline())
        finally:
            writer.close()

    return ForkedProcess(int(await reports.readline()), stderr, asyncio.ensure_future(ended()))


class _Server(NamedTuple):
    process: subprocess.Popen[bytes]
    control: socket.socket


_running: list[_Server] = []


def start() -> int:
    """Start this process's server if it does not run yet, and return its pid."""
    return _server().process.pid


def _server() -> _Server:
    if not _running:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
            path = os.pathsep.join([str(CHECKOUT / "src"), str(CHECKOUT)])
            environment = {**os.environ, "PYTHONPATH": path}
            process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
        _running.append(_Server(process, ours))
        atexit.register(stop)
    return _running[0]


def stop() -> None:
    """End this process's server, if it runs."""
    while _running:
        server = _running.pop()
        server.control.close()
        server.process.wait()


# -- the server itself -------------------------------------------------------------------------------------------------


class _Request(NamedTuple):
    words: list[str]
    environment: dict[str, str]
    folder: str


def main() -> None:
    """Serve until the socket is closed; in a forked process, be `isthmus`."""
    sys.meta_path.insert(0, WithoutRich())  # as `program` does before it loads anything else
    _load()
    sys.meta_path.pop(0)
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    # What Python knows about standard error is of the server's.
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv[1:] = request.words
    sys.modules[DRAWS_RUN]._RUN = secrets.token_hex(3)  # type: ignore[attr-defined]
    sys.exit(program())


def _load() -> None:
    """Load what is preloaded.

    Raises:
        RuntimeError: a module draws a secret as it is loaded.
    """
    importlib.import_module(DRAWS_RUN)
    real = secrets.token_bytes
    is_loading = True

    def token_bytes(nbytes: int | None = None) -> bytes:
        if is_loading:
            raise RuntimeError("a module that draws a secret as it is loaded cannot be PRELOADED")
        return real(nbytes)

    secrets.token_bytes = token_bytes
    try:
        for name in PRELOADED:
            importlib.import_module(name)
    finally:
        is_loading = False
        secrets.token_bytes = real


def _serve(control: socket.socket) -> _Request | None:
    """Fork a process for every request and report its pid and its end.

    Returns:
        The request, in a process that was forked for it. None when the socket was closed.
    """
    reports: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in reports:
                poll.unregister(descriptor)
                pid, report = reports.pop(descriptor)
                os.close(descriptor)
                _report(report, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                report.close()
                continue
            body, received, _, _ = socket.recv_fds(control, REQUEST_BYTES, 2)
            if not body:
                for pid, _ in reports.values():
                    os.kill(pid, signal.SIGTERM)  # the tests were interrupted
                return None
            stderr, reported = received
            if (pid := os.fork()) == 0:
                os.dup2(stderr, 2)
                for open_socket in (control, *(report for _, report in reports.values())):
                    open_socket.detach()
                os.closerange(3, 3 + max(stderr, reported, descriptor, *reports, 0) + 1)
                return _Request(*json.loads(body))
            os.close(stderr)
            report = socket.socket(fileno=reported)
            _report(report, pid)
            ending = os.pidfd_open(pid)
            reports[ending] = pid, report
            poll.register(ending, select.POLLIN)


def _report(to: socket.socket, number: int) -> None:
    with suppress(OSError):  # who asked may have given up
        to.sendall(b"%d\n" % number)


if __name__ == "__main__":
    main()
