"""Looks up host names that callers chose, in threads of their own.

A name server may take half a minute over a name, and nothing frees the thread that waits for it. In the loop's own
threads, which are few, a handful of such names would keep every configured server's from being found. Nor do the names
of one domain, whose name server may be slow on purpose, keep those of others waiting.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

PLACES = 16
"""Names that are looked up at once. A thread is cheap; what they could be used for, against a name server, is not."""

SHARE = 2
"""Of these, those of one domain: whoever owns it may let each take half a minute."""

WAITING_MAX = 1000
"""Those who may wait for a place, a quarter of them for names of one domain; whoever comes then is to try again
later."""

Found: TypeAlias = Sequence[tuple[Any, ...]]
"""What `socket.getaddrinfo` returns."""

Look: TypeAlias = Callable[[str, int], Found]
Tell: TypeAlias = Callable[["Found | Exception"], None]


def look_up(host: str, port: int) -> Found:
    """Ask the system, however long that takes."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class TooManyNames(OSError):
    """So many names are being looked up that another one has to wait its turn elsewhere."""

    def __init__(self) -> None:
        super().__init__("too many host names are being looked up; try again later")


class _Share:
    """The places of one domain, and those who have one or wait for it."""

    __slots__ = ("places", "users", "waiting")

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(SHARE)
        self.users = 0
        self.waiting = 0


class Lookups:
    """Looks names up, a few at a time, those of each domain in the order in which they came."""

    def __init__(self, look: Look = look_up) -> None:
        self._look = look
        self._places = asyncio.Semaphore(PLACES)
        self._shares: dict[str, _Share] = {}
        self._waiting = 0

    async def find(self, host: str, port: int) -> Found:
        """The addresses of a host.

        Raises:
            TooManyNames: nobody else can wait now, or the system gives no thread.
            OSError: there are none.
        """
        domain = domain_of(host)
        share = self._shares.get(domain) or _Share()
        if self._waiting >= WAITING_MAX or share.waiting >= max(1, WAITING_MAX // 4):
            raise TooManyNames
        self._shares[domain] = share
        share.users += 1
        try:
            await self._wait(share)
        except BaseException:
            self._leave(domain, share)
            raise
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Found] = loop.create_future()
        tell = partial(self._tell, found, domain, share)
        # Not an executor: the process waits for its threads when it ends, and these may take their time.
        looking = threading.Thread(target=self._find, args=(loop, tell, host, port), name="look-up", daemon=True)
        try:
            looking.start()
        except RuntimeError as error:
            self._free(domain, share)
            raise TooManyNames from error
        return await found

    async def _wait(self, share: _Share) -> None:
        """Wait for a place of the domain's, and then for one of all."""
        self._waiting += 1
        share.waiting += 1
        try:
            await share.places.acquire()
            try:
                await self._places.acquire()
            except BaseException:
                share.places.release()
                raise
        finally:
            self._waiting -= 1
            share.waiting -= 1

    def _find(self, loop: asyncio.AbstractEventLoop, tell: Tell, host: str, port: int) -> None:
        """In its thread: look, and tell the loop."""
        outcome: Found | Exception
        try:
            outcome = self._look(host, port)
        except (OSError, ValueError) as error:  # it knows none, or the name is none
            outcome = error
        try:
            loop.call_soon_threadsafe(tell, outcome)
        except RuntimeError:
            return  # the loop is closed, and nobody waits any more

    def _tell(self, found: asyncio.Future[Found], domain: str, share: _Share, outcome: Found | Exception) -> None:
        """Back in the loop: only now is the place free, even if who wanted to know has long gone."""
        self._free(domain, share)
        if found.done():
            return
        if isinstance(outcome, Exception):
            found.set_exception(outcome)
        else:
            found.set_result(outcome)

    def _free(self, domain: str, share: _Share) -> None:
        self._places.release()
        share.places.release()
        self._leave(domain, share)

    def _leave(self, domain: str, share: _Share) -> None:
        share.users -= 1
        if not share.users:
            del self._shares[domain]


def domain_of(host: str) -> str:
    """What names have in common that one name server may answer: roughly, since `co.uk` has many owners."""
    return ".".join(host.rstrip(".").lower().split(".")[-2:])
