"""A double of a name server: it gives another answer each time, and sends no queries.

Addresses in digits, however oddly they are spelt, are read as the system reads them. It stands in at the resolver's
port of the egress guard, or in the place of `socket.getaddrinfo` in a process of its own.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.transport.egress import DialAddress, HttpOrigin

PUBLIC = "93.184.216.34"
"""An address that may be dialled, as far as the guard knows; tests let nothing out to it."""

Answers = Mapping[str, Sequence[Sequence[str]]]
"""By name: what is answered the first time, the second, and so on; behind the last comes the first again."""


class Names:
    """What is answered about names."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._asked: dict[str, int] = {}
        self._lock = threading.Lock()
        self.checked: set[str] = set()
        """All that was ever answered."""

    @property
    def asked(self) -> dict[str, int]:
        """How often each name was asked about."""
        return dict(self._asked)

    def addresses(self, host: str) -> list[str]:
        """The addresses of a host now; raises `OSError` if it has none."""
        with self._lock:
            rounds = self._answers.get(host.rstrip(".").lower())
            if rounds is None:
                return [str(found[4][0]) for found in self._in_digits(host)]
            turn = self._asked[host] = self._asked.get(host, 0) + 1
        answer = list(rounds[(turn - 1) % len(rounds)])
        self.checked.update(answer)
        return answer

    def _in_digits(self, host: str) -> list[tuple[Any, ...]]:
        return _getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)

    async def __call__(self, origin: HttpOrigin) -> list[DialAddress]:
        """See `transport.egress.Resolver`."""
        return [
            DialAddress(_family(address), _sockaddr(address, origin.port)) for address in self.addresses(origin.host)
        ]

    def getaddrinfo(self, host: Any, port: Any, *rest: Any, **more: Any) -> list[tuple[Any, ...]]:
        """As `socket.getaddrinfo`, of which `None` and the empty host are the listeners' own."""
        if not host:
            return _getaddrinfo(host, port, *rest, **more)
        text = host.decode() if isinstance(host, bytes) else str(host)
        number = int(port or 0)
        return [
            (_family(address), socket.SOCK_STREAM, socket.IPPROTO_TCP, "", _sockaddr(address, number))
            for address in self.addresses(text)
        ]


_getaddrinfo = socket.getaddrinfo


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _sockaddr(address: str, port: int) -> tuple[Any, ...]:
    if ":" not in address:
        return address, port
    found: tuple[Any, ...] = _getaddrinfo(address, port, flags=socket.AI_NUMERICHOST)[0][4]
    return found


def answer_from_now() -> None:
    """In a process of its own, that of a hub: know only the names that the environment has."""
    names = Names({"localhost": [["127.0.0.1"]], **json.loads(os.environ["DIALLED_NAMES"])})
    socket.getaddrinfo = names.getaddrinfo
