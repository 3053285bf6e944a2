"""What one server lists to clients with certain capabilities, where that differs from its common lists.

Why this exists: a server may list more tools to clients that it can ask something (elicitation, sampling, roots). A
legacy server learns the capabilities in `initialize`, a modern one with each request. With one list for everybody,
clients that can be asked would miss those tools, or the others would see tools that fail for them. So the first caller
with a set of capabilities makes the hub list the server for that set: a legacy server on a link of its own, a modern
one on the shared link. Most servers list the same to all; equal lists are stored once and not published. The
reconnector owns this and publishes the result.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.catalog.snapshot import FeatureLists
from isthmus.core.ports import ListLoad
from isthmus.model.callers import Caller
from isthmus.model.calls import ClientCapabilities
from isthmus.model.fault_table import Fault
from isthmus.model.features import TOPICS, Ability, Topic
from isthmus.model.names import ServerName
from isthmus.upstream.base_link import BaseLink, ConnectFailed
from isthmus.upstream.listing import Listing, RelistSchedule, offered, sharing

log = structlog.get_logger(__name__)

LinkForListing: TypeAlias = Callable[[Caller, ClientCapabilities], AbstractAsyncContextManager[BaseLink]]
"""Gives a link on which the server lists to clients with these capabilities, or raises `Fault`."""

CAPABILITIES_MAX = 64
CAPABILITIES_PER_CALLER_MAX = 8
"""Capability sets with known lists, in all and per caller; the one used longest ago is forgotten first."""

FORGET_SECONDS = 60.0
"""A set used more recently than this is not forgotten: made-up capabilities must not keep a server busy."""

RECENT_SECONDS = 300.0
"""For sets used more recently than this, changes are looked for even if that takes a link of its own."""

RETRY_SECONDS = 30.0
"""After a failed listing, the next caller has it tried again after this long."""


class _CapabilityLists:
    """The lists for one set of capabilities."""

    def __init__(self, client_caps: ClientCapabilities, caller: Caller, now: float) -> None:
        self.client_caps = client_caps
        self.caller = caller
        """The last caller; a legacy server may need a handshake in its name."""
        self.listing: Listing | None = None
        self.abilities: frozenset[Ability] = frozenset()
        self.schedule = RelistSchedule()
        self.schedule.doubt(TOPICS)
        self.used_at = now
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Starts the next reading when it is due."""
        self.failed_at: float | None = None
        self.learning = ListLoad(asyncio.get_running_loop().create_future(), now)

    def settle(self) -> None:
        if not self.learning.done.done():
            self.learning.done.set_result(None)


class ListsByCapability:
    """All capability sets of one server. `on_known` is called when there is something new to publish."""

    def __init__(
        self,
        server: ServerName,
        background: BackgroundTasks,
        link_for_listing: LinkForListing,
        *,
        is_at_hand: Callable[[ClientCapabilities], bool],
        on_known: Callable[[], None],
        on_changed: Callable[[Iterable[Topic]], None] = lambda _topics: None,
    ) -> None:
        """`is_at_hand` says whether lists for these capabilities can be read without a new link.

        `on_changed` is called when lists that were known have changed.
        """
        self._is_at_hand = is_at_hand
        self._server = server
        self._background = background
        self._link_for_listing = link_for_listing
        self._on_known = on_known
        self._on_changed = on_changed
        self._loop = asyncio.get_running_loop()
        self._variants: OrderedDict[ClientCapabilities, _CapabilityLists] = OrderedDict()
        self._is_open = False

    def load_lists(self, caller: Caller, client_caps: ClientCapabilities) -> ListLoad | None:
        """Make sure that this caller's lists are loaded; None if there is nothing to wait for."""
        variant = self._variants.get(client_caps) or self._admit(caller, client_caps)
        if variant is None:
            return None
        self._variants.move_to_end(client_caps)
        variant.caller = caller
        variant.used_at = self._loop.time()
        if variant.failed_at is not None and self._loop.time() - variant.failed_at > RETRY_SECONDS:
            variant.schedule.doubt(TOPICS)
        self._read_soon(variant)
        return None if variant.task is None or variant.learning.done.done() else variant.learning

    def _admit(self, caller: Caller, client_caps: ClientCapabilities) -> _CapabilityLists | None:
        now = self._loop.time()
        # A new set replaces the caller's own oldest one at its limit, and the oldest of all if there is no room.
        own = [variant for variant in self._variants.values() if variant.caller == caller]
        oldest = own[0] if len(own) >= CAPABILITIES_PER_CALLER_MAX else None
        if oldest is None and len(self._variants) >= CAPABILITIES_MAX:
            oldest = next(iter(self._variants.values()))
        if oldest is not None:
            if now - oldest.used_at < FORGET_SECONDS:
                return None
            _stop(self._variants.pop(oldest.client_caps))
        variant = self._variants[client_caps] = _CapabilityLists(client_caps, caller, now)
        return variant

    def inherit(self, before: ListsByCapability) -> None:
        """List for the same capabilities as the reconnector before."""
        for client_caps, variant in before._variants.items():
            self._admit(variant.caller, client_caps)

    async def wait_listed(self, within: float) -> None:
        """Wait until running listings have ended."""
        learning = [variant.learning.done for variant in self._variants.values() if variant.task is not None]
        if learning:
            await asyncio.wait(learning, timeout=within)

    def offers(self, base: Listing, abilities: frozenset[Ability]) -> dict[ClientCapabilities, FeatureLists]:
        """The lists that differ from the common ones (`base`)."""
        same = offered(base, abilities)
        offers = {}
        for client_caps, variant in self._variants.items():
            if variant.listing is not None:
                variant.listing = sharing(variant.listing, base)
                offers[client_caps] = offered(variant.listing, variant.abilities)
        return {client_caps: offer for client_caps, offer in offers.items() if offer != same}

    # -- the server comes, changes and goes ------------------------------------------------------------------------

    def start(self) -> None:
        """The server is connected: read all lists again."""
        self._is_open = True
        for variant in self._variants.values():
            variant.failed_at = None
        self.doubt(TOPICS)

    def close(self) -> None:
        """The server is not connected; known lists stay."""
        self._is_open = False
        for variant in self._variants.values():
            _stop(variant)

    def forget(self) -> None:
        """Drop all lists: everybody gets the common ones."""
        self.close()
        self._variants.clear()

    def end(self) -> None:
        """The server is gone for good. Breaks the reference cycle with the reconnector, so that both are freed."""
        self.forget()
        del self._link_for_listing, self._is_at_hand, self._on_known, self._on_changed

    def changed(self, topics: Iterable[Topic], client_caps: ClientCapabilities | None = None) -> None:
        """The server announced a change: to clients with these capabilities, or to the hub, which means to all."""
        found = self._variants.get(client_caps) if client_caps is not None else None
        for variant in self._variants.values() if client_caps is None else () if found is None else (found,):
            variant.schedule.announce(topics)
            self._read_soon(variant)

    def changed_elsewhere(self, topics: Sequence[Topic]) -> None:
        """Another node found a change, and may have told callers of it: they wait here until the lists are read."""
        for variant in self._variants.values():
            variant.schedule.announce_elsewhere(topics, self._loop.time())
            if variant.listing is not None and variant.learning.done.done():
                variant.learning = ListLoad(self._loop.create_future(), self._loop.time())
            self._read_soon(variant)

    def doubt(self, topics: Iterable[Topic]) -> None:
        """Something changed without an announcement: it may have changed for all."""
        for variant in self._variants.values():
            variant.schedule.doubt(topics)
            self._read_soon(variant)

    def refresh(self) -> None:
        """Look for unannounced changes, where that takes no new link or a caller asked recently."""
        now = self._loop.time()
        for variant in self._variants.values():
            if now - variant.used_at < RECENT_SECONDS or self._is_at_hand(variant.client_caps):
                variant.schedule.doubt(TOPICS)
                self._read_soon(variant)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_soon(self, variant: _CapabilityLists) -> None:
        """Read stale lists: now, or when they are due."""
        seconds = variant.schedule.wait(self._loop.time())
        if not self._is_open or variant.task is not None or seconds is None:
            return
        if variant.timer is not None:
            variant.timer.cancel()
            variant.timer = None
        if seconds:
            variant.timer = self._loop.call_later(seconds, self._read_soon, variant)
        else:
            variant.task = self._background.spawn(f"lists of {self._server} to some", self._read_while_due(variant))

    async def _read_while_due(self, variant: _CapabilityLists) -> None:
        try:
            while due := variant.schedule.take(self._loop.time()):
                before, own = variant.listing, variant.schedule.own
                topics = {*TOPICS} if before is None else {*due}
                delayed = {topic for topic, is_announced in due.items() if is_announced}
                try:
                    async with self._link_for_listing(variant.caller, variant.client_caps) as link:
                        variant.listing = await link.list_features(topics, variant.listing, variant.client_caps)
                        variant.abilities = link.abilities()
                except (Fault, ConnectFailed) as failed:
                    # Only callers with these capabilities are affected.
                    variant.failed_at = self._loop.time()
                    delayed = {*due}
                    reason = str(failed)
                    log.warning("server did not list for clients with capabilities", server=self._server, reason=reason)
                else:
                    variant.failed_at = None
                variant.schedule.rest(delayed, self._loop.time())
                variant.settle()
                self._on_known()
                if own and before is not None and variant.listing != before:
                    self._on_changed(own)
        finally:
            if variant.task is asyncio.current_task():  # else it was stopped, and another may be running
                variant.task = None
                variant.settle()
        self._read_soon(variant)  # the rest is due later


def _stop(variant: _CapabilityLists) -> None:
    task, variant.task = variant.task, None
    if task is not None:
        task.cancel()
    if variant.timer is not None:
        variant.timer.cancel()
        variant.timer = None
    variant.settle()
