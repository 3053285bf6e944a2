"""Looks up host names that callers chose, in threads of their own.

A name server may take half a minute over a name, and nothing frees the thread that waits for it. In the loop's own
threads, which are few, a handful of such names would keep every configured server's from being found.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

PLACES = 8
"""Names that are looked up at once. A thread is cheap; what they could be used for, against a name server, is not."""

WAITING_MAX = 1000
"""Those who may wait for a place; whoever comes then is to try again later."""

Found: TypeAlias = Sequence[tuple[Any, ...]]
"""What `socket.getaddrinfo` returns."""

Look: TypeAlias = Callable[[str, int], Found]


def look_up(host: str, port: int) -> Found:
    """Ask the system, however long that takes."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class TooManyNames(OSError):
    """So many names are being looked up that another one has to wait its turn elsewhere."""

    def __init__(self) -> None:
        super().__init__("too many host names are being looked up; try again later")


class Lookups:
    """Looks names up, a few at a time, in the order in which they came."""

    def __init__(self, look: Look = look_up) -> None:
        self._look = look
        self._places = asyncio.Semaphore(PLACES)
        self._waiting = 0

    async def find(self, host: str, port: int) -> Found:
        """The addresses of a host.

        Raises:
            TooManyNames: nobody else can wait now.
            OSError: there are none.
        """
        if self._waiting >= WAITING_MAX:
            raise TooManyNames
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Found] = loop.create_future()
        # Not an executor: the process waits for its threads when it ends, and these may take their time.
        looking = threading.Thread(target=self._find, args=(loop, found, host, port), name="look-up", daemon=True)
        looking.start()
        return await found

    def _find(self, loop: asyncio.AbstractEventLoop, found: asyncio.Future[Found], host: str, port: int) -> None:
        """In its thread: look, and tell the loop."""
        outcome: Found | Exception
        try:
            outcome = self._look(host, port)
        except (OSError, ValueError) as error:  # it knows none, or the name is none
            outcome = error
        try:
            loop.call_soon_threadsafe(self._tell, found, outcome)
        except RuntimeError:
            return  # the loop is closed, and nobody waits any more

    def _tell(self, found: asyncio.Future[Found], outcome: Found | Exception) -> None:
        """Back in the loop: only now is the place free, even if who wanted to know has long gone."""
        self._places.release()
        if found.done():
            return
        if isinstance(outcome, Exception):
            found.set_exception(outcome)
        else:
            found.set_result(outcome)
