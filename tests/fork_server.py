"""Starts hubs in a tenth of the time: a process that has imported the hub, and forks one on request.

Most of a hub's start are imports, and the suite starts hundreds of hubs. `tests.hubs` uses this for those that need
nothing special of their process; a forked hub runs `isthmus serve` from there on, in a process, a folder and an
environment of its own. Other commands, which tests run to see what a hub did, are forked as well; `quick_isthmus` has
the words that start one from a program or a terminal. Tests of how the command loads, and of what signals and closed
streams do to it, start the real one.

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
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.cli.main import WithoutRich, program

CHECKOUT = Path(__file__).resolve().parents[1]

PRELOADED = (
    "anyio._backends._asyncio",
    "uvicorn.lifespan.off",
    "uvloop",
    "isthmus.cli.serve",
    "isthmus.cli.find_hub",
    "isthmus.app.links",
    "isthmus.app.validation",
    "isthmus.frontends.http.listener",
    "isthmus.frontends.a2a.http",
    "isthmus.frontends.oauth.http",
    "isthmus.frontends.relay.http",
    "isthmus.frontends.rest.http",
    "isthmus.frontends.wellknown.http",
    "isthmus.identity.jwt_callers",
    "isthmus.upstream.targets.named_servers",
)
"""What a hub loads anyway, with all that these load. Some draw a secret as they are loaded: each forked hub draws that
again."""

KNOWS_START = "isthmus.app.metrics_endpoint"
"""It notes when it is loaded, as the start of the hub."""

REQUEST_BYTES = 1 << 20
CLIENT = str(Path(__file__).with_name("forked_isthmus.py"))


class ForkedProcess:
    """A process that the server has forked, as `asyncio.subprocess.Process` shows one that we started ourselves."""

    def __init__(
        self, pid: int, stdout: asyncio.StreamReader | None, stderr: asyncio.StreamReader, ended: asyncio.Task[int]
    ) -> None:
        self.pid = pid
        self.stdout = stdout
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


async def forked(
    words: Sequence[str], env: Mapping[str, str], folder: Path, *, given: bytes | None = None
) -> ForkedProcess:
    """Fork a process that runs `isthmus` with these words; its standard error can be read.

    With `given`, which is what it reads from standard input, its standard output can be read too.
    """
    stderr, said = await _pipe()
    stdout, theirs = None, [said]
    if given is not None:
        assert len(given) < select.PIPE_BUF
        reading, writing = os.pipe()
        os.write(writing, given)
        os.close(writing)
        stdout, printed = await _pipe()
        theirs += [reading, printed]
    ours, reported = socket.socketpair()
    try:
        request = json.dumps([list(words), dict(env), str(folder)]).encode()
        socket.send_fds(_server().control, [request], [reported.fileno(), *theirs])
    finally:
        reported.close()
        for descriptor in theirs:
            os.close(descriptor)
    reports, writer = await asyncio.open_connection(sock=ours)

    async def ended() -> int:
        try:
            return int(await reports.readline())
        finally:
            writer.close()

    return ForkedProcess(int(await reports.readline()), stdout, stderr, asyncio.ensure_future(ended()))


async def _pipe() -> tuple[asyncio.StreamReader, int]:
    """What another process writes can be read, and the descriptor that it writes to."""
    received, said = os.pipe()
    reader = asyncio.StreamReader(limit=REQUEST_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(received, "rb", 0))
    return reader, said


class _Server(NamedTuple):
    process: subprocess.Popen[bytes]
    control: socket.socket
    folder: str
    """It has the socket at which `forked_isthmus` asks."""


_running: list[_Server] = []


def start() -> int:
    """Start this process's server if it does not run yet, and return its pid."""
    return _server().process.pid


def quick_isthmus(*words: str) -> list[str]:
    """The words that start `isthmus` forked, with the streams, signals, environment and folder of who starts them."""
    return [sys.executable, "-S", "-E", CLIENT, f"{_server().folder}/socket", *words]


def _server() -> _Server:
    if not _running:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = tempfile.mkdtemp(prefix="isthmus-")
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"{folder}/socket")
            listener.listen()
            numbers = theirs.fileno(), listener.fileno()
            words = [sys.executable, "-m", "tests.fork_server", *map(str, numbers)]
            path = os.pathsep.join([str(CHECKOUT / "src"), str(CHECKOUT)])
            environment = {**os.environ, "PYTHONPATH": path}
            process = subprocess.Popen(words, pass_fds=numbers, stdin=subprocess.DEVNULL, env=environment)
        _running.append(_Server(process, ours, folder))
        atexit.register(stop)
    return _running[0]


def stop() -> None:
    """End this process's server, if it runs."""
    while _running:
        server = _running.pop()
        server.control.close()
        server.process.wait()
        shutil.rmtree(server.folder, ignore_errors=True)


# -- the server itself -------------------------------------------------------------------------------------------------


class _Request(NamedTuple):
    words: list[str]
    environment: dict[str, str]
    folder: str


def main() -> None:
    """Serve until the socket is closed; in a forked process, be `isthmus`."""
    sys.meta_path.insert(0, WithoutRich())  # as `program` does before it loads anything else
    secrets_drawn = _load()
    sys.meta_path.pop(0)
    gc.freeze()
    request = _ForkServer(*(socket.socket(fileno=int(number)) for number in sys.argv[1:])).serve()
    if request is None:
        return
    # What Python knows about the standard streams is of the server's.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv[1:] = request.words
    for drawn in secrets_drawn:
        drawn.draw_again()
    sys.modules[KNOWS_START].STARTED_AT = time.time()  # type: ignore[attr-defined]
    sys.exit(program())


class _Drawn(NamedTuple):
    """A secret that a module drew as it was loaded, and where it is kept: alone, or within a text."""

    value: bytes
    places: list[tuple[dict[str, Any], str]]

    def draw_again(self) -> None:
        """Replace it: no two hubs may have the same."""
        new = secrets.token_bytes(len(self.value))
        for names, name in self.places:
            kept = names[name]
            names[name] = kept.replace(self.value.hex(), new.hex()) if isinstance(kept, str) else new


def _load() -> list[_Drawn]:
    """Load what is preloaded, and find the secrets that were drawn by it.

    Raises:
        RuntimeError: a secret is not where it can be replaced.
    """
    found: list[tuple[str, bytes]] = []
    real = secrets.token_bytes

    def token_bytes(nbytes: int | None = None) -> bytes:
        value = real(nbytes)
        frame = sys._getframe(1)
        while frame.f_globals["__name__"] == "secrets" and frame.f_back is not None:
            frame = frame.f_back
        found.append((frame.f_globals["__name__"], value))
        return value

    secrets.token_bytes = token_bytes
    try:
        for name in PRELOADED:
            importlib.import_module(name)
    finally:
        secrets.token_bytes = real
    return [_place_of(module, value) for module, value in found]


def _place_of(module: str, value: bytes) -> _Drawn:
    def is_kept(kept: object) -> bool:
        return value.hex() in kept if isinstance(kept, str) else isinstance(kept, bytes) and kept == value

    loaded = [vars(each) for each in list(sys.modules.values())]
    places = [(names, name) for names in loaded for name, kept in list(names.items()) if is_kept(kept)]
    if not any(names["__name__"] == module for names, _ in places):
        raise RuntimeError(f"{module} draws a secret as it is loaded, and hides it: it cannot be PRELOADED")
    return _Drawn(value, places)


class _ForkServer:
    """Forks a process for every request, and reports its pid and its end."""

    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        self._control = control
        self._listener = listener
        self._poll = select.poll()
        self._running: dict[int, tuple[int, socket.socket]] = {}
        """Each process and where to report its end, by the descriptor that tells it."""
        self._asking: dict[int, int] = {}
        """The processes of programs that wait for them, by the descriptors of their sockets."""

    def serve(self) -> _Request | None:
        """Serve until the tests have ended.

        Returns:
            The request, in a process that was forked for it. None when the socket was closed.
        """
        for each in (self._control, self._listener):
            self._poll.register(each, select.POLLIN)
        while True:
            descriptor = self._poll.poll()[0][0]  # one at a time: what follows may have closed the others
            if descriptor in self._running:
                self._end(descriptor)
            elif descriptor in self._asking:
                self._poll.unregister(descriptor)
                os.kill(self._asking.pop(descriptor), signal.SIGKILL)  # who waits for it was killed
            else:
                is_asked = descriptor == self._listener.fileno()
                source = self._listener.accept()[0] if is_asked else self._control
                body, received, _, _ = socket.recv_fds(source, REQUEST_BYTES, 4)
                if not body and is_asked:
                    continue
                if not body:
                    for pid, _ in self._running.values():
                        os.kill(pid, signal.SIGTERM)  # the tests were interrupted
                    return None
                report = source if is_asked else socket.socket(fileno=received.pop(0))
                if (request := self._fork(body, report, received)) is not None:
                    return request

    def _fork(self, body: bytes, report: socket.socket, streams: list[int]) -> _Request | None:
        if (pid := os.fork()) == 0:
            for stream, number in zip(streams, (2, 0, 1), strict=False):
                os.dup2(stream, number)
            sockets = (self._control, self._listener, report, *(each for _, each in self._running.values()))
            highest = max(*(each.detach() for each in sockets), *streams, *self._running)
            os.closerange(3, highest + 1)
            return _Request(*json.loads(body))
        for stream in streams:
            os.close(stream)
        _report(report, pid)
        ending = os.pidfd_open(pid)
        self._running[ending] = pid, report
        self._poll.register(ending, select.POLLIN)
        if report.type == socket.SOCK_SEQPACKET:
            self._asking[report.fileno()] = pid
            self._poll.register(report, select.POLLIN)
        return None

    def _end(self, ending: int) -> None:
        pid, report = self._running.pop(ending)
        self._poll.unregister(ending)
        os.close(ending)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if self._asking.pop(report.fileno(), None) is not None:
            self._poll.unregister(report)
        _report(report, code)
        report.close()


def _report(to: socket.socket, number: int) -> None:
    with suppress(OSError):  # who asked may have given up
        to.sendall(b"%d\n" % number)


if __name__ == "__main__":
    main()
