"""Network namespaces: processes of a test on machines of their own, as far as the network goes, and their cables.

A socket and a process belong to the namespace of the thread that makes them, so `Machine.inside` is all that is needed
to start something there. `Machine.forwarded` makes a port of a machine's loopback reachable from the test.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def missing_for_namespaces() -> str | None:
    """Why namespaces cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if shutil.which("ip") is None:
        return "the program ip is missing; install it: apt-get install iproute2"
    name = f"isthmus-probe-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"ip netns add failed (CAP_SYS_ADMIN is needed): {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


def needs_namespaces() -> None:
    """Skip a test, loudly, where namespaces cannot be made; in CI it fails."""
    problem = missing_for_namespaces()
    if problem is None:
        return
    if os.environ.get("CI"):
        pytest.fail(problem)
    pytest.skip(problem)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def _enter(descriptor: int) -> None:
    if _LIBC.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns failed")


class Machine:
    """A network namespace with a loopback of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.addresses: list[str] = []
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets and processes that are made in this block belong to this machine; do not wait in it."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            _enter(there)
            try:
                yield
            finally:
                _enter(home)
        finally:
            os.close(home)
            os.close(there)

    @asynccontextmanager
    async def forwarded(self, port: int) -> AsyncIterator[int]:
        """A port of the test's own loopback that leads to this one of the machine's."""
        tasks: set[asyncio.Task[None]] = set()

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with suppress(OSError):
                    while data := await reader.read(65536):
                        writer.write(data)
                        await writer.drain()
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with self.inside():
                there = socket.socket()
            there.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(there, ("127.0.0.1", port))
                their_reader, their_writer = await asyncio.open_connection(sock=there)
            except OSError:
                there.close()
                writer.close()
                return
            for work in (copy(reader, their_writer), copy(their_reader, writer)):
                task = asyncio.create_task(work)
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def process_ids(self) -> list[int]:
        """The processes that run here."""
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        return [int(word) for word in done.stdout.split()]


class Cable:
    """Connects two machines; pulled, it loses everything without a word to either."""

    def __init__(self, one: Machine, other: Machine, number: int) -> None:
        self.addresses = (f"10.213.{number}.1", f"10.213.{number}.2")
        self._far = (other.name, f"v{number}b")
        near = f"v{number}a"
        _ip("link", "add", near, "netns", one.name, "type", "veth", "peer", "name", self._far[1], "netns", other.name)
        for machine, device, address in zip((one, other), (near, self._far[1]), self.addresses, strict=True):
            _ip("-n", machine.name, "addr", "add", f"{address}/24", "dev", device)
            _ip("-n", machine.name, "link", "set", device, "up")

    def pull(self) -> None:
        """Cut it."""
        _ip("-n", self._far[0], "link", "set", self._far[1], "down")

    def plug(self) -> None:
        """Connect it again."""
        _ip("-n", self._far[0], "link", "set", self._far[1], "up")


class Network:
    """Machines and cables of one test; none of it is reachable from elsewhere."""

    def __init__(self) -> None:
        self._machines: list[Machine] = []
        self._numbers = count(1)

    def machine(self, name: str) -> Machine:
        """Make a machine."""
        made = Machine(f"isthmus-{os.getpid()}-{name}")
        self._machines.append(made)
        return made

    def cable(self, one: Machine, other: Machine) -> Cable:
        """Connect two machines; the second one has the second address."""
        return Cable(one, other, next(self._numbers))

    def close(self) -> None:
        """Remove all; their processes must have ended."""
        left = {machine.name: pids for machine in self._machines if (pids := machine.process_ids())}
        for machine in self._machines:
            with suppress(AssertionError):
                _ip("netns", "del", machine.name)
        assert not left, f"processes were left behind: {left}"


def started_nats(machine: Machine, program: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    """A NATS server on a machine, at all of its addresses."""
    with machine.inside(), log.open("wb") as output:
        return subprocess.Popen(
            [str(program), "-a", "0.0.0.0", "-p", str(port)], stdin=subprocess.DEVNULL, stderr=output
        )
