"""Who wants to hear that a resource was updated. However many they are, its server is asked once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import structlog

from isthmus.core.ports.announcer import Announcer
from isthmus.model.faults import Fault, NotConnected
from isthmus.model.names import ServerName

log = structlog.get_logger(__name__)

Tell: TypeAlias = Callable[[], None]
Key: TypeAlias = tuple[ServerName, str]
"""A server, and what it calls the resource."""


class Subscriptions:
    """The subscriptions of all callers of one hub. They outlast a lost link: the next one is asked again."""

    def __init__(self) -> None:
        self._listeners: dict[Key, list[Tell]] = {}
        self._announcers: dict[ServerName, Announcer] = {}

    # -- callers ---------------------------------------------------------------------------------------------------

    async def add(self, key: Key, tell: Tell) -> Fault | None:
        """Have `tell` called at every update from now on; the fault if the server does not agree."""
        listeners = self._listeners.setdefault(key, [])
        is_first = not listeners
        listeners.append(tell)  # before the server is asked: it may tell of an update together with its answer
        fault = await self._ask(key) if is_first else None
        if fault is not None:
            self._drop(key, tell)
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
        for tell in tuple(self._listeners.get((server, uri), ())):
            try:
                tell()
            except Exception:  # one broken listener must not keep the others, or the link, from the news
                log.exception("a listener of a resource failed", server=server)
