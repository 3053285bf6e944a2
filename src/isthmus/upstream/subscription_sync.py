"""Keeps every link of one server in step with what callers want: subscriptions to resources, and the log level.

Which caller gets which notification is decided in `core.watch`, which all servers of a hub share. The reconnector uses
this for the shared link, the link pool for the others.
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
from isthmus.model.fault_table import Fault, NotConnected
from isthmus.model.names import ServerName
from isthmus.upstream.base_link import BaseLink, FollowerLink
from isthmus.upstream.response_waiters import HubRequest

log = structlog.get_logger(__name__)

SUBSCRIBE_AT_ONCE = 1_000
"""Subscriptions sent to one link before the first is answered."""


class SubscriptionSync:
    """Subscriptions at one server. A named link belongs to the pool; without a link, the shared one is used."""

    def __init__(self, hub: Hub, background: BackgroundTasks, server: ServerName) -> None:
        self._result_cache = hub.result_cache
        self._subscriptions = hub.subscriptions
        self._background = background
        self._server = server

    def followers(self) -> Mapping[Subscriber, Collection[str]]:
        """Subscriptions of callers that may have a link of their own."""
        return self._subscriptions.followers(self._server)

    # -- subscribing -----------------------------------------------------------------------------------------------

    async def follow(
        self, link: SubscriptionLink, uris: Sequence[str], then: Callable[[str], None] = lambda _: None
    ) -> None:
        """Subscribe a link to these resources and call `then` for each; a refusal is only logged."""
        for start in range(0, len(uris), SUBSCRIBE_AT_ONCE):
            await asyncio.gather(*(self._subscribe(link, uri, then) for uri in uris[start : start + SUBSCRIBE_AT_ONCE]))

    async def _subscribe(self, link: SubscriptionLink, uri: str, then: Callable[[str], None]) -> None:
        fault = await self._subscriptions.subscribe(link, uri)
        if fault is not None:
            level = log.debug if isinstance(fault, NotConnected) else log.warning
            level("server refused a subscription", server=self._server, reason=fault.message)
        then(uri)

    def subscribe_also(self, follower: Subscriber, links: Sequence[SubscriptionLink], uri: str) -> None:
        """Subscribe further links to what a caller follows, in the background."""
        pending = self._subscriptions.subscribe_also((self._server, uri), follower, links)
        self._background.spawn(f"subscriptions of {self._server}", pending)

    def resume(self, link: BaseLink) -> None:
        """Subscribe the shared link to everything that callers follow; updates may have been missed until then."""
        self._follow_soon(link, self.followed_uris(), self._missed)

    def resume_own(self, link: BaseLink) -> None:
        """Repeat the subscriptions of a pool's link whose server has forgotten them."""
        uris = self._subscriptions.subscribed(link)
        self.forget(link)
        self._follow_soon(link, uris, partial(self._missed, link=link))

    def _follow_soon(self, link: SubscriptionLink, uris: Sequence[str], then: Callable[[str], None]) -> None:
        if uris:
            self._background.spawn(f"subscriptions of {self._server}", self.follow(link, uris, then))

    def stop(self, link: BaseLink, uri: str) -> None:
        """Unsubscribe a link from a resource."""
        self._subscriptions.stop(link, uri)

    def forget(self, link: BaseLink) -> None:
        """A link is gone, or its server has forgotten the subscriptions."""
        self._subscriptions.forget(link)

    # -- updates ---------------------------------------------------------------------------------------------------

    def resume_share(self, share: FollowerLink, uris: Collection[str]) -> None:
        """Subscribe one caller, on a new link, to what it follows; updates may have been missed until then."""
        self._follow_soon(share, list(uris), partial(self._missed, link=share))

    def attend(self, link: BaseLink | FollowerLink) -> None:
        """Handle updates of a pool's link, or of one caller's share of a link."""
        link.on_updated = partial(self.updated, link=link)
        link.on_gap = partial(self.gap, link)

    def updated(self, uri: str, link: SubscriptionLink | None = None) -> None:
        """The server reports an update of a resource."""
        self._result_cache.forget(self._server, uri)
        self._subscriptions.updated(self._server, uri, link)

    def attend_for_all(self, link: BaseLink) -> None:
        """Handle updates of a pool's link as if they came from the shared one."""
        link.on_updated = self.updated
        link.on_gap = self.gap

    def followed_uris(self) -> list[str]:
        """All resources with subscribers."""
        return self._subscriptions.shared_uris(self._server)

    def gap(self, link: SubscriptionLink | None = None) -> None:
        """Updates may have been missed: notify all subscribers."""
        wanted = self.followed_uris() if link is None else self._subscriptions.subscribed(link)
        for uri in wanted:
            self._missed(uri, link)

    def _missed(self, uri: str, link: SubscriptionLink | None = None) -> None:
        self._result_cache.forget(self._server, uri)
        self._subscriptions.missed(self._server, uri, link)


ANSWER_SECONDS = 5.0
"""How long a call waits until its new link has the wanted log level."""


class LogLevelSync:
    """Sets the log level of one server's links. A link gets one request at a time, so that none overtakes another."""

    def __init__(self, levels: LogLevels, background: BackgroundTasks, server: ServerName) -> None:
        self._levels = levels
        self._background = background
        self._server = server
        self._links: set[BaseLink] = set()
        self._pending: dict[BaseLink, asyncio.Task[None]] = {}
        """Links with an unanswered request, and the task that waits for it."""
        self._due: set[BaseLink] = set()
        """Links that need another request afterwards."""

    def attend(self, link: BaseLink) -> None:
        """Set a link's log level now, and whenever it changes."""
        self._links = {known for known in self._links if not known.lost.done()} | {link}
        self.renew(link)

    async def prepare(self, link: BaseLink) -> None:
        """Set a new link's log level and wait: elsewhere its first call could overtake the request."""
        self.attend(link)
        if (pending := self._pending.get(link)) is not None:
            await asyncio.wait({pending}, timeout=ANSWER_SECONDS)

    def forget(self, link: BaseLink) -> None:
        """A link is gone, or belongs to another owner."""
        self._links.discard(link)

    def changed(self) -> None:
        """The wanted level has changed."""
        for link in self._links:
            self.renew(link)

    def renew(self, link: BaseLink) -> None:
        """Set a link's level at once, or after its pending request; its server may have forgotten it."""
        if link in self._pending:
            self._due.add(link)
        elif (own_request := self._send_level(link)) is not None:
            pending = self._background.spawn(f"log level of {self._server}", self._follow(link, own_request))
            self._pending[link] = pending
            self._levels.track(self._server, pending)

    def _send_level(self, link: BaseLink) -> HubRequest | None:
        """The request that was sent; None if there is nothing to set."""
        self._due.discard(link)
        level = self._levels.lowest
        return None if level is None or link.lost.done() else link.set_level(level)

    async def _follow(self, link: BaseLink, own_request: HubRequest | None) -> None:
        try:
            while own_request is not None:
                try:
                    await link.answered(own_request)
                except Fault as fault:
                    level = log.debug if isinstance(fault, NotConnected) else log.warning
                    level("server refused a log level", server=self._server, reason=fault.message)
                own_request = self._send_level(link) if link in self._due else None
        finally:
            del self._pending[link]
            self._due.discard(link)
