"""Who wants to hear that a resource was updated. However many they are, its server is asked once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeAlias

import structlog

from isthmus.core.ports.announcer import Announcer
from isthmus.model.faults import Fault, NotConnected
from isthmus.model.names import ServerName

log = structlog.get_logger(__name__)

Tell: TypeAlias = Callable[[], None]
Key: TypeAlias = tuple[ServerName, str]
"""A server, and what it calls the resource."""

LEVELS_MAX = 32
LENGTH_MAX = 2048
"""How far up it is looked for who follows the whole of which a part was updated; servers tell as often as they like."""


class Subscriptions:
    """The subscriptions of all callers of one hub. They outlast a lost link: the next one is asked again."""

    def __init__(self) -> None:
        self._listeners: dict[Key, list[Tell]] = {}
        self._announcers: dict[ServerName, Announcer] = {}
        self._asked: dict[Key, asyncio.Future[Fault | None]] = {}
        """What a server is being asked just now: who comes meanwhile waits for the same answer."""

    # -- callers ---------------------------------------------------------------------------------------------------

    async def add(self, key: Key, tell: Tell) -> Fault | None:
        """Have `tell` called at every update from now on; the fault if the server does not agree."""
        listeners = self._listeners.setdefault(key, [])
        is_first = not listeners
        listeners.append(tell)  # before the server is asked: it may tell of an update together with its answer
        fault = await (self._ask_for_all(key) if is_first else self._answer(key))
        if fault is not None:
            self._drop(key, tell)
        return fault

    async def _answer(self, key: Key) -> Fault | None:
        """What the server says to who asked first."""
        while (asked := self._asked.get(key)) is not None:
            await asyncio.wait({asked})
            if not asked.cancelled():
                return asked.result()
            if key not in self._asked:  # who asked has left before it heard: ask in its place
                return await self._ask_for_all(key)
        return None

    async def _ask_for_all(self, key: Key) -> Fault | None:
        asked = self._asked[key] = asyncio.get_running_loop().create_future()
        try:
            fault = await self._ask(key)
            asked.set_result(fault)
        finally:
            asked.cancel()
            if self._asked.get(key) is asked:
                del self._asked[key]
        return fault

    async def _ask(self, key: Key) -> Fault | None:
        server, uri = key
        announcer = self._announcers.get(server)
        if announcer is None:
            return NotConnected(server, "it cannot be asked to tell of updates now")
        try:
            await announcer.subscribe(uri)
        except Fault as fault:
            return fault
        return None

    def remove(self, key: Key, tell: Tell) -> None:
        """Stop telling; the last one to leave has the server told so too."""
        is_last = self._drop(key, tell) and key not in self._listeners
        if is_last and (announcer := self._announcers.get(key[0])) is not None:
            announcer.unsubscribe(key[1])

    def _drop(self, key: Key, tell: Tell) -> bool:
        listeners = self._listeners.get(key, [])
        if tell not in listeners:
            return False
        listeners.remove(tell)
        if not listeners:
            del self._listeners[key]
        return True

    # -- servers ---------------------------------------------------------------------------------------------------

    def wanted(self, server: ServerName) -> list[str]:
        """What a new link to this server has to ask for."""
        return [uri for name, uri in self._listeners if name == server]

    def attach(self, server: ServerName, announcer: Announcer | None) -> None:
        """Ask `announcer` from now on; None when there is nobody to ask."""
        if announcer is None:
            self._announcers.pop(server, None)
        else:
            self._announcers[server] = announcer

    def updated(self, server: ServerName, uri: str) -> None:
        """A server says that a resource of its was updated, perhaps a part of one that was asked about."""
        self._tell(server, [tell for whole in _and_above(uri) for tell in self._listeners.get((server, whole), ())])

    def missed(self, server: ServerName, uri: str) -> None:
        """A server could not be heard for a while: whoever follows this resource is told once, to look at it."""
        self._tell(server, list(self._listeners.get((server, uri), ())))

    def _tell(self, server: ServerName, listeners: list[Tell]) -> None:
        for tell in listeners:
            try:
                tell()
            except Exception:  # one broken listener must not keep the others, or the link, from the news
                log.exception("a listener of a resource failed", server=server)


def _and_above(uri: str) -> Iterator[str]:
    """A URI, and those of which it may be a part: its folders, written with a slash at the end or without."""
    yield uri
    for _ in range(LEVELS_MAX if len(uri) <= LENGTH_MAX else 0):
        uri = uri[:-1] if uri.endswith("/") else uri[: uri.rfind("/") + 1]
        if not uri:
            return
        yield uri
