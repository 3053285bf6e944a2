"""What one server lists to callers that it can ask something, where that is not what it lists to everybody.

A server may list more to who can answer its questions. It is asked when the first such caller comes: an earlier one on
a link on which it was greeted in that caller's name, a modern one on the keeper's own. Kept by the keeper, which
publishes what comes out; faces ask through the hub.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.catalog.snapshot import FeatureLists
from isthmus.core.ports import ListLoad
from isthmus.model.callers import Caller
from isthmus.model.calls import ClientCapabilities
from isthmus.model.faults import Fault
from isthmus.model.features import TOPICS, Ability, Topic
from isthmus.model.names import ServerName
from isthmus.upstream.link import BaseLink, ConnectFailed
from isthmus.upstream.listing import Listing, RelistSchedule, offered, sharing

log = structlog.get_logger(__name__)

Lend: TypeAlias = Callable[[Caller, ClientCapabilities], AbstractAsyncContextManager[BaseLink]]
"""Gives a link on which the server lists to callers of this profile, or raises `Fault`."""

CAPABILITIES_MAX = 64
CAPABILITIES_PER_CALLER_MAX = 8
"""Profiles of which it is known what they are listed, and those among them for which one caller asked last; of more,
those are forgotten that were asked for longest ago."""

FORGET_SECONDS = 60.0
"""None is forgotten that asked no longer ago than this: made-up profiles must not have a server asked all the time."""

RECENT_SECONDS = 300.0
"""For callers that asked no longer ago than this, changes are looked for even if that takes a link of its own."""

RETRY_SECONDS = 30.0
"""A server that would not list to a profile is asked again by its next caller after this long."""


class _CapabilityLists:
    """One profile's."""

    def __init__(self, client_caps: ClientCapabilities, caller: Caller, now: float) -> None:
        self.client_caps = client_caps
        self.caller = caller
        """Who asked last; an earlier server may have to be greeted in its name."""
        self.listing: Listing | None = None
        self.abilities: frozenset[Ability] = frozenset()
        self.schedule = RelistSchedule()
        self.schedule.doubt(TOPICS)
        self.asked_at = now
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Has it read when what was announced has rested."""
        self.failed_at: float | None = None
        self.learning = ListLoad(asyncio.get_running_loop().create_future(), now)

    def settle(self) -> None:
        if not self.learning.done.done():
            self.learning.done.set_result(None)


class ListsByCapability:
    """Those of one server. `on_known` is called whenever there is something new to publish."""

    def __init__(
        self,
        server: ServerName,
        background: BackgroundTasks,
        lend: Lend,
        *,
        is_at_hand: Callable[[ClientCapabilities], bool],
        on_known: Callable[[], None],
    ) -> None:
        """`is_at_hand` says that it takes no new link to read what a profile is listed."""
        self._is_at_hand = is_at_hand
        self._server = server
        self._background = background
        self._link_for_listing = lend
        self._on_known = on_known
        self._loop = asyncio.get_running_loop()
        self._of: OrderedDict[ClientCapabilities, _CapabilityLists] = OrderedDict()
        self._is_open = False

    def load_lists(self, caller: Caller, client_caps: ClientCapabilities) -> ListLoad | None:
        """See `core.ports.ListLoader`."""
        variant = self._of.get(client_caps) or self._admit(caller, client_caps)
        if variant is None:
            return None
        self._of.move_to_end(client_caps)
        variant.caller = caller
        variant.asked_at = self._loop.time()
        if variant.failed_at is not None and self._loop.time() - variant.failed_at > RETRY_SECONDS:
            variant.schedule.doubt(TOPICS)
        self._read_soon(variant)
        return None if variant.task is None or variant.learning.done.done() else variant.learning

    def _admit(self, caller: Caller, client_caps: ClientCapabilities) -> _CapabilityLists | None:
        now = self._loop.time()
        oldest = self._to_forget(caller)
        if oldest is not None:
            if now - oldest.asked_at < FORGET_SECONDS:
                return None
            _stop(self._of.pop(oldest.client_caps))
        variant = self._of[client_caps] = _CapabilityLists(client_caps, caller, now)
        return variant

    def _to_forget(self, caller: Caller) -> _CapabilityLists | None:
        """Which one goes for one more of this caller's: its own, if it has its share; None if there is room."""
        own = [variant for variant in self._of.values() if variant.caller == caller]
        if len(own) >= CAPABILITIES_PER_CALLER_MAX:
            return own[0]
        return next(iter(self._of.values())) if len(self._of) >= CAPABILITIES_MAX else None

    def inherit(self, before: ListsByCapability) -> None:
        """Find out what those are listed who asked whoever kept the server before."""
        for client_caps, variant in before._of.items():
            self._admit(variant.caller, client_caps)

    async def known(self, within: float) -> None:
        """Wait until what is being found out is known, or cannot be."""
        learning = [variant.learning.done for variant in self._of.values() if variant.task is not None]
        if learning:
            await asyncio.wait(learning, timeout=within)

    def offers(self, base: Listing, abilities: frozenset[Ability]) -> dict[ClientCapabilities, FeatureLists]:
        """What those are listed who are listed something else than everybody (`base`)."""
        same = offered(base, abilities)
        offers = {}
        for client_caps, variant in self._of.items():
            if variant.listing is not None:
                variant.listing = sharing(variant.listing, base)
                offers[client_caps] = offered(variant.listing, variant.abilities)
        return {client_caps: offer for client_caps, offer in offers.items() if offer != same}

    # -- the server comes, changes and goes ------------------------------------------------------------------------

    def open(self) -> None:
        """There is a server to ask: whoever wanted to know is told, and what was known is looked at anew."""
        self._is_open = True
        for variant in self._of.values():
            variant.failed_at = None
        self.doubt(TOPICS)

    def close(self) -> None:
        """There is nobody to ask; what is known stays so."""
        self._is_open = False
        for variant in self._of.values():
            _stop(variant)

    def forget(self) -> None:
        """Nobody is listed anything else than everybody."""
        self.close()
        self._of.clear()

    def end(self) -> None:
        """The server is never asked again. Whoever keeps it has this one and is had by it; untied, both are freed."""
        self.forget()
        del self._link_for_listing, self._is_at_hand, self._on_known

    def changed(self, topics: Iterable[Topic], client_caps: ClientCapabilities | None = None) -> None:
        """The server announced a change, to callers of one profile or to the hub itself, which stands for all."""
        found = self._of.get(client_caps) if client_caps is not None else None
        for variant in self._of.values() if client_caps is None else () if found is None else (found,):
            variant.schedule.announce(topics)
            self._read_soon(variant)

    def doubt(self, topics: Iterable[Topic]) -> None:
        """Something changed that nobody announced: it may have for all."""
        for variant in self._of.values():
            variant.schedule.doubt(topics)
            self._read_soon(variant)

    def refresh(self) -> None:
        """Look for what nobody announced, where that takes no new link or somebody asked of late."""
        now = self._loop.time()
        for variant in self._of.values():
            if now - variant.asked_at < RECENT_SECONDS or self._is_at_hand(variant.client_caps):
                variant.schedule.doubt(TOPICS)
                self._read_soon(variant)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_soon(self, variant: _CapabilityLists) -> None:
        """Read what is stale: at once, or when it has rested."""
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
                await self._read(variant, due)
                variant.settle()
                self._on_known()
        finally:
            if variant.task is asyncio.current_task():  # else it was stopped, and another may be at work
                variant.task = None
                variant.settle()
        self._read_soon(variant)  # what has to rest first

    async def _read(self, variant: _CapabilityLists, due: Mapping[Topic, bool]) -> None:
        topics = {*TOPICS} if variant.listing is None else {*due}
        weary = {topic for topic, is_announced in due.items() if is_announced}
        try:
            async with self._link_for_listing(variant.caller, variant.client_caps) as link:
                variant.listing = await link.list_features(topics, variant.listing, variant.client_caps)
                variant.abilities = link.abilities()
        except (Fault, ConnectFailed) as failed:
            # It costs callers of this profile what they alone are listed, and nobody else anything.
            variant.failed_at = self._loop.time()
            weary = {*due}
            log.warning("server did not list to callers that it can ask", server=self._server, reason=str(failed))
        else:
            variant.failed_at = None
        variant.schedule.rest(weary, self._loop.time())


def _stop(variant: _CapabilityLists) -> None:
    task, variant.task = variant.task, None
    if task is not None:
        task.cancel()
    if variant.timer is not None:
        variant.timer.cancel()
        variant.timer = None
    variant.settle()
