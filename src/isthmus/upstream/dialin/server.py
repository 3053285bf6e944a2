"""One server that dials in: its link, which arrives initialized and listed, when it is listed again, and its state.

It has no task while idle: there may be ten thousand of them. Everything else is as in `upstream.reconnector`. Owned by
`upstream.dialin.agents`; `registry` decides how long a server may take to arrive and stay away.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Never

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.view import ServerState
from isthmus.core.ports import ListLoad
from isthmus.model.callers import Caller
from isthmus.model.calls import ClientCapabilities
from isthmus.model.credentials import Subject
from isthmus.model.features import TOPICS, Ability
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.base_link import BaseLink, ConnectFailed
from isthmus.upstream.dialin.link import FAILED, NORMAL, DialInLink, renamed
from isthmus.upstream.listing import Listing
from isthmus.upstream.reconnector import Reconnector
from isthmus.upstream.server_settings import Carrier, DialInServerSettings, ServerSettings

log = structlog.get_logger(__name__)

REFRESH_SECONDS = 600.0
"""The age at which a list is read again: ten times that of other servers, because there are many more of these."""

SPREAD = 0.2
"""Refresh up to 20 % early, at random, so that servers do not list together."""

REPLACED = "新连接替换"
"""The close reason of the original relay for a connection that another one replaces."""

_REACH = DialInServerSettings()


class DialInReconnector(Reconnector):
    """Maintains one server that dials in. It is hidden until it has connected once, or was loaded from the journal."""

    __slots__ = ("_on_state_change", "_refresh", "_unwatch", "_work")

    _is_dial_in = True

    absent: ServerState = "away"

    def __init__(
        self, hub: Hub, background: BackgroundTasks, name: ServerName, agent: str, on_state_change: Callable[[], None]
    ) -> None:
        """`on_state_change` is called when the server's state has changed."""
        super().__init__(hub, background, ServerQueue(name, hub.limits), ServerSettings(name, _REACH), _nowhere)
        self.is_hidden = True
        self.server_status = msgspec.structs.replace(self.server_status, agent=agent, carrier=DialInLink.carrier)
        self._on_state_change = on_state_change
        self._work: asyncio.Task[None] | None = None
        self._refresh: asyncio.TimerHandle | None = None
        self._unwatch: Callable[[], None] | None = None

    def _make_pool(self) -> None:
        """There is no pool: the only link is the one that connected."""

    @property
    def link(self) -> DialInLink | None:
        """The server's link; None while it is away."""
        return self._link if isinstance(self._link, DialInLink) else None

    @property
    def listing(self) -> Listing:
        """Its last list."""
        return self._listing

    def replace_list(self, listing: Listing) -> None:
        """Replace the list by a shorter one."""
        self._listing = listing
        self._publish_status(**self._listing_fields())

    # -- connecting ------------------------------------------------------------------------------------------------

    def list_stored(self, listing: Listing, abilities: frozenset[Ability], reason: str) -> None:
        """Show a stored server that has not connected yet."""
        self._listing = renamed(listing, self.settings.name)
        self.server_queue.explain(reason)
        self._publish_status(
            state=self.absent, reason=_in_words(reason), abilities=abilities, is_settled=True, **self._listing_fields()
        )
        self._show_once()

    def use_link(self, link: DialInLink) -> None:
        """Use an initialized and listed link, in place of the current one.

        Queued calls use the new link; calls that were sent on the old one end as lost.
        """
        before = self.link
        self._part_from(before)
        link.rename(self.settings.name)
        link.on_lost = lambda reason: self._publish_failure(reason, None)
        link.on_leaving = lambda: self._mark_away("its client has ended", is_failure=False)
        link.on_changed = self._relist_soon
        if link.dialect.era == "modern":
            link.on_gap = self._on_gap
        self._schedule.clear()
        self._ping_is_due = False
        # Another program may have connected.
        self.server_queue.refuse_tools(_tools_of(self._listing) - _tools_of(link.listing))
        self._listing = link.listing = renamed(link.listing, self.settings.name)
        self._use_link(link)
        self._show_once()
        if self._unwatch is None and "logging" in link.abilities():
            self._unwatch = self._hub.levels.watch(self._log_level_sync.changed)
        if before is not None:
            before.end(NORMAL, REPLACED, "another connection took its place")
        early, link.early = link.early, frozenset()
        for topic in early:
            self._relist_soon(topic)

    def _log_ready(self, link: BaseLink) -> None:
        log.info(
            "server dialled in",
            server=link.server,
            agent=self.server_status.agent,
            client=None if self.link is None else self.link.client,
            tools=len(self._listing.tools),
            protocol=link.dialect.version,
        )

    def _part_from(self, link: DialInLink | None) -> None:
        """Detach from a link: its callbacks do nothing from now on."""
        if link is not None:
            link.on_lost = link.on_updated = link.on_log = link.on_doubt = link.on_changed = link.on_gap = _ignore
            link.on_leaving = None
            self._subscription_sync.forget(link)
            self._log_level_sync.forget(link)
        if self._work is not None:
            self._work.cancel()
            self._work = None
        if self._refresh is not None:
            self._refresh.cancel()
            self._refresh = None

    def _show_once(self) -> None:
        if self.is_hidden:
            self.publish()
            self._on_state_change()

    def load_lists(self, caller: Caller, client_caps: ClientCapabilities) -> ListLoad | None:
        """See `core.ports.ListLoader`."""
        return None if self._link is None else super().load_lists(caller, client_caps)

    # -- listing ---------------------------------------------------------------------------------------------------

    def _plan_refresh(self) -> None:
        super()._plan_refresh()
        loop = asyncio.get_running_loop()
        early = (self._relist_at - loop.time()) * SPREAD * random.random()  # noqa: S311 - spread, not secrecy
        if self._refresh is not None:
            self._refresh.cancel()
        self._refresh = loop.call_at(self._relist_at - early, self.relist_soon)

    def _refresh_seconds(self) -> float:
        return REFRESH_SECONDS

    def relist_soon(self) -> None:
        """List the server again soon, because a change may not have been announced."""
        self._schedule.doubt(TOPICS)
        self._lists_by_capability.refresh()
        self._wake()

    def _wake(self) -> None:
        """Start a task for the pending work, unless one is running."""
        link = self.link
        if link is not None and self._work is None and not self.is_leaving:
            self._work = self._background.spawn(
                f"lists of {self.settings.name}", self._process_pending(link), on_crash=self.crashed
            )

    def crashed(self, error: BaseException) -> None:
        """Close the link after a defect in the hub; the client will connect again."""
        if self.link is not None:
            self.link.end(FAILED, "the hub failed", f"a defect in the hub: {error}")

    async def _process_pending(self, link: DialInLink) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not link.lost.done():
                if self._ping_is_due:
                    await self._ping(link)
                elif due := self._schedule.take(loop.time()):
                    await self._relist(link, due)
                elif pause := self._schedule.wait(loop.time()):
                    await asyncio.wait({link.lost}, timeout=pause)
                else:
                    return
        except ConnectFailed as failed:
            link.end(FAILED, str(failed), str(failed))
        finally:
            if self._work is asyncio.current_task():
                self._work = None

    # -- disconnecting ---------------------------------------------------------------------------------------------

    def _publish_failure(self, reason: str, last_output: str | None, login: str | None = None) -> None:
        """The link was lost: calls and lists show the reason."""
        self._mark_away(self.settings.reason(reason), is_failure=True)

    def _mark_away(self, reason: str, *, is_failure: bool) -> None:
        self._part_from(self.link)
        self._link = None
        log.info("server away", server=self.settings.name, reason=reason)
        self.server_queue.detach(reason, is_failure=is_failure)
        self._lists_by_capability.close()
        self._hub.subscriptions.attach(self.settings.name, None)
        self._publish_status(state=self.absent, reason=_in_words(reason))

    def release(self) -> DialInLink | None:
        """Return the link for use by another reconnector; calls that were sent on it continue."""
        link = self.link
        self._part_from(link)
        self._link = None
        return link

    def close(self, code: int, words: str, reason: str) -> None:
        """Remove the server and close its link."""
        link = self.release()
        self.is_leaving = True
        if not self.is_hidden:
            self.is_hidden = True
            self._hub.subscriptions.detach(self.settings.name)
            self._hub.close_server_queue(self.settings.name)
        self._lists_by_capability.end()
        self._on_state_change = _ignore
        if self._unwatch is not None:
            self._unwatch()
        self.server_queue.grace = 0.0
        self.server_queue.detach(reason, is_failure=False)
        if link is not None:
            link.end(code, words, reason)

    def _publish_status(self, **changes: object) -> None:
        before = self.server_status
        super()._publish_status(**changes)
        if self.server_status != before and not self.is_hidden:
            self._on_state_change()


def _tools_of(listing: Listing) -> set[FeatureName]:
    return {tool.name for tool in listing.tools}


def _in_words(reason: str) -> str:
    return f"it is not connected: {reason}"


def _ignore(*_: object) -> None:
    """The callback of a link that is no longer in use."""


async def _nowhere(settings: ServerSettings, carrier: Carrier, subject: Subject | None) -> Never:
    raise ConnectFailed("it dials in by itself")
