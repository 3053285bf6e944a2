"""Links that not everybody shares: one for each caller, for each call, or for those who can be asked the same.

To the lane, a pool is a link: a call that comes finds its own, or waits until that is made. Every link of a pool
belongs to the pool and is closed by it; the keeper's own link, on which the server is listed, is not in it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import structlog

from isthmus.core.calls.inflight import InFlight
from isthmus.core.crew import Crew
from isthmus.model.callers import Caller
from isthmus.model.events import Log
from isthmus.model.faults import Fault, NotConnected, Overloaded
from isthmus.model.features import TOPICS, Topic
from isthmus.model.questions import NOTHING, Profile
from isthmus.upstream.link import BaseLink, ConnectFailed
from isthmus.upstream.settings import ServerSettings

log = structlog.get_logger(__name__)

IDLE_SECONDS = 300.0
"""How long a caller's link is kept without a call."""


class LinkKey(NamedTuple):
    """Whose link it is. Links are never shared across keys.

    `scope` is a caller, one of its conversations, a single call, or empty for everybody. `profile` is what those can
    be asked whose calls it carries. The credential that is shown (`generation`) is the same for every link of a
    server so far; a change of it starts the server anew.
    """

    scope: tuple[str, ...]
    profile: frozenset[str] = frozenset()
    generation: int = 0


class _Member:
    """One link of the pool, or one that is being made, and the calls that are its."""

    def __init__(self, key: LinkKey) -> None:
        self.key = key
        self.link: BaseLink | None = None
        self.waiting: dict[InFlight, None] = {}
        self.calls = 0
        self.has_carried = False
        """Some call has been on it, which may have left its mark on the server."""
        self.borrowers = 0
        """Who reads lists on it just now."""
        self.made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends when there is a link, or there will be none, and then `why` says why."""
        self.why = "the hub gives it up"
        self.idle: asyncio.TimerHandle | None = None

    def rouse(self) -> None:
        if self.idle is not None:
            self.idle.cancel()
            self.idle = None


class Pool:
    """The links of one server that has one for each caller or call; at most as many as it may have calls."""

    def __init__(
        self,
        settings: ServerSettings,
        crew: Crew,
        connect: Callable[[Profile], Awaitable[BaseLink]],
        on_log: Callable[[Log], None],
    ) -> None:
        """`connect` makes a link and greets the server; it raises `ConnectFailed` or a `Fault`."""
        self._settings = settings
        self._crew = crew
        self._connect = connect
        self._on_log = on_log
        self._members: OrderedDict[LinkKey, _Member] = OrderedDict()
        self._of: dict[InFlight, _Member] = {}
        self._calls = 0
        self._is_closed = False
        self.is_profiled = False
        """The server wants to know when it is greeted what can be asked, and so of each profile on its own link."""
        self.is_duplex = False
        """A question on a link need not say which call it is about, so that no two callers may share one."""
        self.on_changed: Callable[[Profile, Topic], None] = lambda _profile, _topic: None
        """Hears what servers announce on links of those who can be asked something."""

    def __len__(self) -> int:
        return len(self._members)

    def adjust(self, settings: ServerSettings) -> None:
        """Allow more or fewer links from now on; those that are there stay."""
        self._settings = settings

    # -- what the lane sees ----------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Send the call on its own link, or make that first."""
        if (own := self._of.get(inflight)) is not None and own.link is not None:
            own.link.send(inflight)  # once more, with answers to what the server asked
            return
        key = self._key(inflight)
        member = self._members.get(key) or self._adopt(key) or self._admit(key)
        if member is None:
            inflight.finish(Overloaded(self._settings.name, len(self._members), 0))
            return
        member.rouse()
        member.has_carried = True
        member.calls += 1
        self._of[inflight] = member
        self._members.move_to_end(key)
        if member.link is None:
            member.waiting[inflight] = None
        else:
            member.link.send(inflight)

    def _key(self, inflight: InFlight) -> LinkKey:
        call = inflight.call
        return self._key_of(call.caller, call.profile if self.is_profiled else NOTHING, call.session)

    def _key_of(self, caller: Caller, profile: Profile, session: str = "") -> LinkKey:
        if self._settings.isolation == "call":
            self._calls += 1
            return LinkKey(("call", str(self._calls)), profile)
        if self.is_duplex and profile:
            return LinkKey((caller.tenant, caller.name, session), profile)
        if self._settings.isolation == "caller" or self.is_duplex:
            return LinkKey((caller.tenant, caller.name), profile)
        return LinkKey((), profile)

    def _adopt(self, key: LinkKey) -> _Member | None:
        """A link on which there were only lists so far is that of its caller's first conversation that calls."""
        fresh = self._members.get(key._replace(scope=(*key.scope[:2], "")))
        if fresh is None or fresh.has_carried:
            return None
        del self._members[fresh.key]
        fresh.key = key
        self._members[key] = fresh
        return fresh

    def _admit(self, key: LinkKey) -> _Member | None:
        """Make room for one more, if need be by closing the one that was idle for longest."""
        if self._is_closed:
            return None
        if len(self._members) >= self._settings.max_calls:
            idle = next((each for each in self._members.values() if not (each.calls or each.borrowers)), None)
            if idle is None:
                return None
            self._retire(idle)
        member = self._members[key] = _Member(key)
        self._crew.spawn(f"link of {self._settings.name}", self._make(member))
        return member

    def may_have_run(self, inflight: InFlight) -> bool:
        """What waits for its link has not left."""
        member = self._of.get(inflight)
        return member is not None and member.link is not None and member.link.may_have_run(inflight)

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Tell the server, if the call got that far."""
        member = self._of.get(inflight)
        if member is not None and member.link is not None:
            member.link.withdraw(inflight, reason)

    def ended(self, inflight: InFlight) -> None:
        """A call is over: its link is idle, or has served its purpose."""
        member = self._of.pop(inflight, None)
        if member is None:
            return
        member.waiting.pop(inflight, None)
        member.calls -= 1
        self._rest(member)

    def _rest(self, member: _Member) -> None:
        if member.calls or member.borrowers or member.link is None or not self._has(member):
            return
        if self._settings.isolation == "call":
            self._retire(member)
        elif member.idle is None:
            member.idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._expire, member)

    def _expire(self, member: _Member) -> None:
        member.idle = None
        if not member.borrowers:  # else it rests again when it is given back
            self._retire(member)

    # -- what the keeper sees --------------------------------------------------------------------------------------

    def has(self, profile: Profile) -> bool:
        """Whether there is a link of callers of this profile."""
        return self._latest(profile) is not None

    @asynccontextmanager
    async def borrowed(self, caller: Caller, profile: Profile) -> AsyncIterator[BaseLink]:
        """A link of callers of this profile, made for this one if there is none; it stays the pool's.

        Raises:
            Fault: there can be none now.
        """
        member = self._latest(profile) or self._admit(self._key_of(caller, profile))
        if member is None:
            raise Overloaded(self._settings.name, len(self._members), 0)
        member.borrowers += 1  # which makes it no less idle: what is only listed on is not in use
        try:
            await asyncio.wait({member.made})
            if member.link is None:
                raise NotConnected(self._settings.name, self._settings.redact(member.why))
            yield member.link
        finally:
            member.borrowers -= 1
            self._rest(member)

    def _latest(self, profile: Profile) -> _Member | None:
        """The member of this profile that was used last, unless each call has its own."""
        if self._settings.isolation == "call":
            return None
        return next((member for member in reversed(self._members.values()) if member.key.profile == profile), None)

    # -- links -----------------------------------------------------------------------------------------------------

    async def _make(self, member: _Member) -> None:
        try:
            await self._try_to_make(member)
        finally:
            member.made.set_result(None)

    async def _try_to_make(self, member: _Member) -> None:
        try:
            link = await self._connect(member.key.profile)
        except (Fault, ConnectFailed) as failed:
            self._drop(member)
            self._refuse(member, str(getattr(failed, "why", failed)))
            return
        except BaseException:
            self._drop(member)
            self._refuse(member, "it could not be connected for this call")
            raise
        if not self._has(member):
            await link.aclose()  # its place was taken, or the pool closed, while it was made
            return
        link.on_lost = lambda _reason: self._retire(member)  # the link tells the calls on it so itself
        link.on_log = self._on_log
        link.on_crowded = self._separate
        if member.key.profile:
            self._attend(link, member.key.profile)
        member.link = link
        self._send_waiting(member, link)
        if not (member.calls or member.borrowers) or link.lost.done():
            self._retire(member)  # whoever wanted it has left meanwhile

    def _separate(self) -> None:
        """The server does not say which call its questions are about: from now on each caller has its own link."""
        self.is_duplex = True

    def _attend(self, link: BaseLink, profile: Profile) -> None:
        """Hear of changes of what is listed on this link, which the keeper's own need not tell."""
        link.on_changed = partial(self.on_changed, profile)
        link.on_renewed = partial(self._all_changed, profile)

    def _all_changed(self, profile: Profile) -> None:
        for topic in TOPICS:
            self.on_changed(profile, topic)

    def _send_waiting(self, member: _Member, link: BaseLink) -> None:
        while member.waiting:
            inflight = next(iter(member.waiting))
            del member.waiting[inflight]
            link.send(inflight)

    def _refuse(self, member: _Member, why: str) -> None:
        member.why = why
        waiting, member.waiting = member.waiting, {}
        for inflight in waiting:
            inflight.finish(NotConnected(self._settings.name, self._settings.redact(why)))

    def _has(self, member: _Member) -> bool:
        """Whether it is still in the pool: another one may have its key by now."""
        return self._members.get(member.key) is member

    def _drop(self, member: _Member) -> None:
        if self._has(member):
            del self._members[member.key]

    def _retire(self, member: _Member) -> None:
        """Take a link out of the pool, if it is in it, and close it."""
        member.rouse()
        if self._has(member):
            self._drop(member)
            if member.link is not None:
                self._crew.spawn(f"closing a link of {self._settings.name}", member.link.aclose())

    async def aclose(self) -> None:
        """Close every link, all at once."""
        self._is_closed = True
        members, self._members = list(self._members.values()), OrderedDict()
        for member in members:
            member.rouse()
            self._refuse(member, "the hub gives it up")
        links = [member.link for member in members if member.link is not None]
        await asyncio.gather(*(link.aclose() for link in links), return_exceptions=True)
