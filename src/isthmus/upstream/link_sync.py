"""Has the links of one server tell of what callers follow, and says on whose behalf each of them told something.

It decides nothing about who hears what: that is `core.watch.subscriptions`, which all servers of a hub share. The
keeper asks it for its own link, which everybody shares; the pool for those on which not everybody's calls go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.ports import Subscriber, SubscriptionLink
from isthmus.core.watch.log_levels import LogLevels
from isthmus.model.faults import Fault, NotConnected
from isthmus.model.names import ServerName
from isthmus.upstream.link import BaseLink
from isthmus.upstream.waiters import HubRequest

log = structlog.get_logger(__name__)

SUBSCRIBE_AT_ONCE = 1_000
"""Resources of which a link is asked to tell updates before the first is answered."""


class SubscriptionSync:
    """What is followed at one server. Where a link is named it is a pool's, else the one that everybody shares."""

    def __init__(self, hub: Hub, background: BackgroundTasks, server: ServerName) -> None:
        self._recall = hub.result_cache
        self._subscriptions = hub.subscriptions
        self._background = background
        self._server = server

    def followers(self) -> Mapping[Subscriber, Collection[str]]:
        """What is followed by those who may have a link of their own."""
        return self._subscriptions.followers(self._server)

    # -- asking ----------------------------------------------------------------------------------------------------

    async def follow(self, link: BaseLink, uris: Sequence[str], then: Callable[[str], None] = lambda _: None) -> None:
        """Have a link tell of all of these, and do something then for each; what it refuses is no harm."""
        for start in range(0, len(uris), SUBSCRIBE_AT_ONCE):
            await asyncio.gather(*(self._ask(link, uri, then) for uri in uris[start : start + SUBSCRIBE_AT_ONCE]))

    async def _ask(self, link: BaseLink, uri: str, then: Callable[[str], None]) -> None:
        fault = await self._subscriptions.ask(link, uri)
        if fault is not None:
            level = log.debug if isinstance(fault, NotConnected) else log.warning
            level("server refused a subscription", server=self._server, reason=fault.message)
        then(uri)

    def subscribe_also(self, follower: Subscriber, links: Sequence[SubscriptionLink], uri: str) -> None:
        """Have further links tell of what somebody follows, while nobody waits."""
        asking = self._subscriptions.subscribe_also((self._server, uri), follower, links)
        self._background.spawn(f"subscriptions of {self._server}", asking)

    def resume(self, link: BaseLink) -> None:
        """Ask the common link for all that callers follow; they may have missed updates until it agrees."""
        self._follow_soon(link, self.wanted(), self._missed)

    def resume_own(self, link: BaseLink) -> None:
        """Ask a pool's link once more for what it told: its server has forgotten it."""
        uris = self._subscriptions.asked(link)
        self.forget(link)
        self._follow_soon(link, uris, partial(self._missed, link=link))

    def _follow_soon(self, link: BaseLink, uris: Sequence[str], then: Callable[[str], None]) -> None:
        if uris:
            self._background.spawn(f"subscriptions of {self._server}", self.follow(link, uris, then))

    def stop(self, link: BaseLink, uri: str) -> None:
        """Have a link tell no more of a resource."""
        self._subscriptions.stop(link, uri)

    def forget(self, link: BaseLink) -> None:
        """A link is gone, or its server has forgotten what it was asked."""
        self._subscriptions.forget(link)

    # -- hearing ---------------------------------------------------------------------------------------------------

    def attend(self, link: BaseLink) -> None:
        """Hear what a pool's link tells."""
        link.on_updated = partial(self.updated, link=link)
        link.on_gap = partial(self.gap, link)

    def updated(self, uri: str, link: BaseLink | None = None) -> None:
        """The server says that a resource was updated."""
        self._recall.forget(self._server, uri)
        self._subscriptions.updated(self._server, uri, link)

    def attend_for_all(self, link: BaseLink) -> None:
        """Hear what a pool's link tells as if the common one did: who follows anything does so for everybody."""
        link.on_updated = self.updated
        link.on_gap = self.gap

    def wanted(self) -> list[str]:
        """Everything that is followed."""
        return self._subscriptions.wanted(self._server)

    def gap(self, link: BaseLink | None = None) -> None:
        """A link told something that nobody heard, or a new one knows other things: have everybody look."""
        wanted = self.wanted() if link is None else self._subscriptions.asked(link)
        for uri in wanted:
            self._missed(uri, link)

    def _missed(self, uri: str, link: BaseLink | None = None) -> None:
        self._recall.forget(self._server, uri)
        self._subscriptions.missed(self._server, uri, link)


ANSWER_SECONDS = 5.0
"""How long a call waits for its new link to log as much as its caller wants."""


class LogLevelSync:
    """That of one server's links, each as long as it lives."""

    def __init__(self, levels: LogLevels, background: BackgroundTasks, server: ServerName) -> None:
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
        elif (own_request := self._ask(link)) is not None:
            asking = self._background.spawn(f"log level of {self._server}", self._follow(link, own_request))
            self._asking[link] = asking
            self._levels.ask(self._server, asking)

    def _ask(self, link: BaseLink) -> HubRequest | None:
        """What was asked, and has left; None if there is nothing to ask."""
        self._due.discard(link)
        level = self._levels.lowest
        return None if level is None or link.lost.done() else link.set_level(level)

    async def _follow(self, link: BaseLink, own_request: HubRequest | None) -> None:
        try:
            while own_request is not None:
                await self._answered(link, own_request)
                own_request = self._ask(link) if link in self._due else None
        finally:
            del self._asking[link]
            self._due.discard(link)

    async def _answered(self, link: BaseLink, own_request: HubRequest) -> None:
        """Wait for an answer; a refusal is no harm."""
        try:
            await link.answered(own_request)
        except Fault as fault:
            level = log.debug if isinstance(fault, NotConnected) else log.warning
            level("server refused a log level", server=self._server, reason=fault.message)
