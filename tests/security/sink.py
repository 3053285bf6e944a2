"""Listeners that must receive nothing, on every kind of local address, and a record of this process's connections.

`Sink` is the deny-all sink of the threat table: one port on 127.0.0.1, on ::1 and on an address of this machine that
others can reach, where there is one. `dialled` is stronger: it sees every address that is connected to before a packet
leaves, public ones and those of other networks too, and lets nothing out of this machine.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

RECORD = "DIALLED_RECORD"
"""Names the file in which a hub of its own process notes whom it dials; see `watched/sitecustomize.py`."""

PORTS_TRIED = 20

_watching: list[list[str]] = []
_has_hook = False


class Sink:
    """Listens where no process may connect; `connections` returns those that did."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.port = 0

    def __enter__(self) -> Self:
        wanted = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, own_address())]
        known = [(family, address) for family, address in wanted if address and can_bind(family, address)]
        for _ in range(PORTS_TRIED):
            try:
                for family, address in known:
                    self._listen(family, address)
            except OSError:  # the port that is free on one address is taken on another
                self._close()
            else:
                return self
        raise OSError("no port is free on all of this machine's addresses")

    def _listen(self, family: socket.AddressFamily, address: str) -> None:
        listener = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(listener)
        listener.bind((address, self.port))
        listener.setblocking(False)
        listener.listen()
        self.port = listener.getsockname()[1]

    def _close(self) -> None:
        while self._sockets:
            self._sockets.pop().close()
        self.port = 0

    def __exit__(self, *_: object) -> None:
        try:
            assert self.connections() == [], "a process connected to the sink"
        finally:
            for listener in self._sockets:
                listener.close()

    def connections(self) -> list[str]:
        """The peers that connected since the last look; the kernel accepts them by itself."""
        found = []
        for listener in self._sockets:
            while True:
                try:
                    connection, peer = listener.accept()
                except BlockingIOError:
                    break
                connection.close()
                found.append(f"{peer} to {listener.getsockname()}")
        return found


def can_bind(family: socket.AddressFamily, address: str) -> bool:
    """Whether this machine has the address: not all have ::1."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def own_address() -> str:
    """An address of this machine that is not loopback; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of a datagram socket: it only chooses a route, and sends nothing
        except OSError:
            return ""
        found = str(probe.getsockname()[0])
    return "" if found.startswith("127.") else found


# -- whom a process dials ----------------------------------------------------------------------------------------------


@contextmanager
def dialled() -> Iterator[list[str]]:
    """Every address that this process connects to in the block, as `host:port`; none but loopback's gets through."""
    install_hook()
    found: list[str] = []
    _watching.append(found)
    try:
        yield found
    finally:
        _watching.remove(found)


def install_hook() -> None:
    """Look at what is dialled from now on. Python keeps such a hook for as long as the process lives."""
    global _has_hook  # noqa: PLW0603 - a process has one
    if not _has_hook:
        _has_hook = True
        sys.addaudithook(_look)


def _look(event: str, details: tuple[Any, ...]) -> None:
    if event != "socket.connect" or not _watching:
        return
    dialling, address = details
    if dialling.family not in (socket.AF_INET, socket.AF_INET6) or dialling.type != socket.SOCK_STREAM:
        return
    for found in _watching:
        found.append(f"{address[0]}:{address[1]}")
    if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise ConnectionRefusedError(f"a test lets nothing out of this machine: {address[0]}")


class _Written(list[str]):
    """A list of whom was dialled that is a file's lines."""

    def append(self, line: str) -> None:
        with open(os.environ[RECORD], "a", encoding="ascii") as file:
            file.write(line + "\n")


def record_from_now() -> None:
    """In a process of its own, that of a hub: note whom it dials in the file that the environment names."""
    install_hook()
    _watching.append(_Written())


def watched_environment(record: Path, names: Mapping[str, list[list[str]]] | None = None) -> dict[str, str]:
    """The environment of a hub that notes whom it dials, and knows only these names; see `rebinding`."""
    checkout = Path(__file__).resolve().parents[2]
    folders = (Path(__file__).parent / "watched", checkout / "src", checkout)
    return {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        RECORD: str(record),
        "DIALLED_NAMES": json.dumps(names or {}),
    }


def recorded(record: Path) -> list[str]:
    """Whom a hub dialled so far."""
    return record.read_text().splitlines() if record.exists() else []
