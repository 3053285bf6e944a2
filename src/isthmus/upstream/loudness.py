"""Has every link of one server log as much as callers want: the keeper's own, and those of single callers.

How much that is, `core.watch.levels` decides, which all servers of a hub share. A link is asked one thing at a time, so
that no request overtakes a later one. Kept by the keeper.
"""

from __future__ import annotations

import asyncio

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.watch.levels import Levels
from isthmus.model.faults import Fault, NotConnected
from isthmus.model.names import ServerName
from isthmus.upstream.link import BaseLink
from isthmus.upstream.waiters import Inquiry

log = structlog.get_logger(__name__)

ANSWER_SECONDS = 5.0
"""How long a call waits for its new link to log as much as its caller wants."""


class Loudness:
    """That of one server's links, each as long as it lives."""

    def __init__(self, levels: Levels, background: BackgroundTasks, server: ServerName) -> None:
        self._levels = levels
        self._background = background
        self._server = server
        self._links: set[BaseLink] = set()
        self._asking: dict[BaseLink, asyncio.Task[None]] = {}
        """Those that have not answered the last request, and who waits for that."""
        self._due: set[BaseLink] = set()
        """Those of them that are to be asked again then."""

    def attend(self, link: BaseLink) -> None:
        """Ask a link for what is wanted now, and from now on whenever that changes."""
        self._links = {known for known in self._links if not known.lost.done()} | {link}
        self.renew(link)

    async def prepare(self, link: BaseLink) -> None:
        """The same, and wait until it has answered: where requests can overtake each other, its first call would."""
        self.attend(link)
        if (asking := self._asking.get(link)) is not None:
            await asyncio.wait({asking}, timeout=ANSWER_SECONDS)

    def forget(self, link: BaseLink) -> None:
        """A link is gone, or another's from now on."""
        self._links.discard(link)

    def changed(self) -> None:
        """Something else is wanted."""
        for link in self._links:
            self.renew(link)

    def renew(self, link: BaseLink) -> None:
        """Ask a link at once, or when it has answered; its server may have forgotten what it was asked."""
        if link in self._asking:
            self._due.add(link)
        elif (inquiry := self._ask(link)) is not None:
            asking = self._background.spawn(f"log level of {self._server}", self._follow(link, inquiry))
            self._asking[link] = asking
            self._levels.ask(self._server, asking)

    def _ask(self, link: BaseLink) -> Inquiry | None:
        """What was asked, and has left; None if there is nothing to ask."""
        self._due.discard(link)
        level = self._levels.lowest
        return None if level is None or link.lost.done() else link.set_level(level)

    async def _follow(self, link: BaseLink, inquiry: Inquiry | None) -> None:
        try:
            while inquiry is not None:
                await self._answered(link, inquiry)
                inquiry = self._ask(link) if link in self._due else None
        finally:
            del self._asking[link]
            self._due.discard(link)

    async def _answered(self, link: BaseLink, inquiry: Inquiry) -> None:
        """Wait for an answer; a refusal is no harm."""
        try:
            await link.answered(inquiry)
        except Fault as fault:
            level = log.debug if isinstance(fault, NotConnected) else log.warning
            level("server refused a log level", server=self._server, reason=fault.message)
