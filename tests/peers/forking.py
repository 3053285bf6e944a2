"""Starts official peers in a tenth of the time: a process that has loaded an SDK, and forks a peer on request.

An SDK takes most of a second to load, and a hub starts some servers once for every kind of caller. `quickly` turns the
words that start a peer into words that start the small program `forked` instead. What is forked here is the peer, with
the streams, the environment and the folder of that program; killing the program kills the peer.

Each process that runs tests has one such process for each interpreter. It ends when that process ends, in whichever
way. It runs in environments with different SDKs, so it knows the standard library only.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

REQUEST_BYTES = 1 << 20
PRELOADED = (
    "a2a.client",
    "a2a.types",
    "anyio._backends._asyncio",
    "fastmcp",
    "mcp.server.fastmcp",
    "mcp.server.mcpserver",
    "mcp.server.stdio",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
)
"""What the peers load; an environment does not have all of it."""
CLIENT = str(Path(__file__).with_name("forked.py"))

_running: dict[str, tuple[int, str]] = {}
"""The process that has the SDK, and the path of its socket, by the interpreter."""

pipes: set[int] = set()
"""The descriptors that keep these processes running until the tests end."""


def quickly(words: list[str]) -> list[str]:
    """The words that start the same peer forked: `words` are an interpreter, a script or its folder, and options."""
    python, *rest = words
    if python not in _running:
        _running[python] = _start(python)
    return [sys.executable, "-S", "-E", CLIENT, _running[python][1], *rest]


def servers() -> set[int]:
    """The processes that fork peers for this one."""
    return {pid for pid, _ in _running.values()}


def _start(python: str) -> tuple[int, str]:
    folder = tempfile.mkdtemp(prefix="peers-")
    path = f"{folder}/socket"
    # It ends when the other end of its standard input is closed.
    server = subprocess.Popen([python, __file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    keeps, says = server.stdin, server.stdout
    assert keeps is not None
    assert says is not None
    pipes.add(keeps.fileno())
    with says:
        says.readline()

    def stop() -> None:
        keeps.close()
        server.wait()
        Path(folder).rmdir()

    atexit.register(stop)
    return server.pid, path


# -- the process that has the SDK --------------------------------------------------------------------------------------


class Server:
    """Forks a peer for every program that asks; `run` returns the words of a peer in the process that is to be it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._poll = select.poll()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen()
        self._asking: dict[int, socket.socket] = {}
        self._peers: dict[int, int] = {}
        """The peers by the sockets of who asked for them."""
        self._endings: dict[int, int] = {}
        """Those sockets by what tells the end of each peer."""

    def run(self) -> list[str] | None:
        """Serve until the tests have ended, or become a peer."""
        for descriptor in (0, self._listener.fileno()):
            self._poll.register(descriptor, select.POLLIN)
        print("ready", flush=True)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == 0:
                    Path(self._path).unlink()
                    for pid in self._peers.values():
                        _kill(pid)
                    return None
                if (words := self._take(descriptor)) is not None:
                    return words

    def _take(self, descriptor: int) -> list[str] | None:
        if descriptor == self._listener.fileno():
            made, _ = self._listener.accept()
            self._asking[made.fileno()] = made
            self._poll.register(made, select.POLLIN)
        elif descriptor in self._endings:
            self._report(descriptor)
        elif descriptor in self._peers:  # who asked has been killed
            _kill(self._peers[descriptor])
            self._poll.unregister(descriptor)
        elif descriptor in self._asking:
            return self._fork(descriptor)
        return None

    def _fork(self, asked: int) -> list[str] | None:
        body, streams, _, _ = socket.recv_fds(self._asking[asked], REQUEST_BYTES, 3)
        if not body:
            self._poll.unregister(asked)
            self._asking.pop(asked).close()
            return None
        if (pid := os.fork()) == 0:
            return self._become(body, streams)
        for stream in streams:
            os.close(stream)
        ending = os.pidfd_open(pid)
        self._peers[asked] = pid
        self._endings[ending] = asked
        self._poll.register(ending, select.POLLIN)
        return None

    def _report(self, ending: int) -> None:
        asked = self._endings.pop(ending)
        code = os.waitstatus_to_exitcode(os.waitpid(self._peers.pop(asked), 0)[1])
        self._poll.unregister(ending)
        os.close(ending)
        with self._asking.pop(asked) as who, suppress(KeyError, OSError):  # it may have left
            self._poll.unregister(asked)
            who.send(b"%d" % (code if code >= 0 else 128 - code))

    def _become(self, body: bytes, streams: list[int]) -> list[str]:
        """Take over the streams, the folder and the environment of who asked, and nothing of this server."""
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        own = [self._listener, *self._asking.values()]
        highest = max(*streams, *self._endings, *(each.fileno() for each in own))
        for each in own:
            each.detach()
        os.closerange(3, highest + 1)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        words: list[str]
        words, environment, folder = json.loads(body)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        return words


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """Serve; in a forked process, be the peer."""
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    words = Server(sys.argv[1]).run()
    if words is not None:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
