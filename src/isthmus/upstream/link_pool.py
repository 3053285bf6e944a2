"""Links that not everybody shares: one for each caller, for each call, or for those who can be asked the same.

A conversation (an MCP session, an A2A context, a session of a program) keeps the link of its first call until it ends
or makes no call for an hour: the process behind the link may have state that it relies on.

To the lane, a pool is a link: a call that comes finds its own, or waits until that is made. Every link of a pool
belongs to the pool and is closed by it; the keeper's own link, on which the server is listed, is not in it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports import Subscriber, SubscriptionLink
from isthmus.core.watch.server_tasks import LinkSession
from isthmus.model.callers import Caller
from isthmus.model.calls import NO_CAPABILITIES, Call, ClientCapabilities, LogMessage
from isthmus.model.credentials import Subject
from isthmus.model.faults import Fault, NotConnected, Overloaded, UnknownTool
from isthmus.model.features import TOPICS, Topic
from isthmus.upstream.link import BaseLink, ConnectFailed
from isthmus.upstream.link_sync import SubscriptionSync
from isthmus.upstream.redaction import Redact
from isthmus.upstream.settings import ServerSettings

log = structlog.get_logger(__name__)

CONVERSATION_SECONDS = 3600.0
"""How long a link is kept without a call for the conversations on it, or for its caller: as long as an MCP session."""

SPARE_SECONDS = 300.0
"""The same for one on which there are only calls outside of any conversation."""

GUESTS_MAX = 1_000
"""Conversations on a link that they share, the latest: an earlier one that comes back begins as a new one does."""

FOLLOW_SECONDS = 5.0
"""How long a call waits for its new link to say that it tells of what its caller follows."""

RECHECK_SECONDS = 1.0
"""How often a server that announces changes all the time is looked at on such links."""

MISSED_MAX = 1_000
"""Closed links of which it is remembered that something was followed on them."""


BASE_LENGTH = 3
"""Parts of a scope that say whose link it is; another tells links apart that are the same's."""


class LinkKey(NamedTuple):
    """Whose link it is. Links are never shared across keys.

    `scope` is a caller, one of its conversations (or, for those that share links and for its calls outside of any, an
    empty name, perhaps with a number), a single call, or empty for everybody. `client_caps` is what those can be asked
    whose calls it carries. `subject` is in whose own name the server is called on it; None where it is shown what all
    callers have in common.
    """

    scope: tuple[str, ...]
    client_caps: frozenset[str] = frozenset()
    subject: Subject | None = None


class _PooledLink:
    """One link of the pool, or one that is being made, and the calls that are its."""

    def __init__(self, key: LinkKey) -> None:
        self.key = key
        self.link: BaseLink | None = None
        self.waiting: dict[InFlight, None] = {}
        self.calls = 0
        self.has_carried = False
        """Some call has been on it, which may have left its mark on the server."""
        self.is_over = False
        """The conversation that it is for has ended."""
        self.guests: dict[LinkKey, None] = {}
        """Conversations that keep this link and share it, each by the key that a link of its own would have."""
        self.is_kept = False
        """One of them has come back: from when the server asks, no other begins here."""
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


class LinkPool:
    """The links of one server that has one for each caller or call; at most as many as it may have calls."""

    def __init__(
        self,
        settings: ServerSettings,
        background: BackgroundTasks,
        connect: Callable[[ClientCapabilities, Subject | None], Awaitable[BaseLink]],
        on_log: Callable[[LogMessage], None],
        subscription_sync: SubscriptionSync,
    ) -> None:
        """`connect` makes a link and greets the server; it raises `ConnectFailed` or a `Fault`."""
        self._settings = settings
        self._background = background
        self._connect = connect
        self._on_log = on_log
        self._subscription_sync = subscription_sync
        self._missed: dict[LinkKey, None] = {}
        """Those whose link was closed to make room, with all that it knew: their next one has them look."""
        self._members: OrderedDict[LinkKey, _PooledLink] = OrderedDict()
        self._of: dict[InFlight, _PooledLink] = {}
        self._homes: dict[str, dict[LinkKey, _PooledLink]] = {}
        """Which links are kept by conversations that share them, by the name of the conversation."""
        self._calls = 0
        self._is_closed = False
        self._is_rechecking = False
        self._unchecked: dict[BaseLink, None] = {}
        """Links on which it is to be looked whether tools still look as they did."""
        self.differs_by_client = False
        """The server wants to know when it is greeted what can be asked, and so of each profile on its own link."""
        self.is_duplex = False
        """A question on a link need not say which call it is about, so that no two callers may share one."""
        self.takes_methods = False
        """Whether its server can be asked for any method of MCP, and not for tools alone."""
        self._asks = False
        """There was such a question: conversations that begin, and calls outside of any, do so on a link without calls.

        Any two of these may be two programs'."""
        self.shares_subscriptions = False
        """Who follows a resource does so for everybody whose calls go on these links."""
        self.on_changed: Callable[[ClientCapabilities, Topic], None] = lambda _profile, _topic: None
        """Hears what servers announce on its links, and to callers of which profile."""
        self.on_renewed: Callable[[BaseLink], None] = lambda _link: None
        """Hears of a link whose server forgot what it was asked."""

    def __len__(self) -> int:
        return len(self._members)

    def __bool__(self) -> bool:
        """See `core.ports.PrivateLinks`."""
        return bool(self._members) or self._settings.credentials.is_divided

    def adjust(self, settings: ServerSettings) -> None:
        """Allow more or fewer links from now on; those that are there stay."""
        self._settings = settings

    # -- what the lane sees ----------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Send the call on its own link, or make that first."""
        if (own := self._of.get(inflight)) is not None and own.link is not None:
            own.link.send(inflight)  # once more, with answers to what the server asked
            return
        if (refusal := self._without_own(inflight.call.caller)) is not None:
            inflight.fail(refusal)
            return
        member = self._member_for(inflight.call)
        if member is None:
            inflight.fail(Overloaded(self._settings.name, len(self._members), 0))
            return
        member.rouse()
        if not member.has_carried:
            self._begin(member)
        member.calls += 1
        self._of[inflight] = member
        self._members.move_to_end(member.key)
        if member.link is None:
            member.waiting[inflight] = None
        else:
            self._send(member.link, inflight)

    def _member_for(self, call: Call) -> _PooledLink | None:
        """The link that a call's conversation keeps, or one for its first call; None if there can be none now."""
        client_caps = call.client_caps if self.differs_by_client else NO_CAPABILITIES
        is_bound = bool(client_caps and call.session) and self._settings.isolation != "call"
        guest = LinkKey(
            (call.caller.tenant, call.caller.name, call.session), client_caps, self._subject_of(call.caller)
        )
        if is_bound and (home := self._homes.get(call.session, {}).get(guest)) is not None:
            home.is_kept = True
            return home
        key = self._key_in(guest.subject, call.caller, client_caps, "" if call.shares_link else call.session)
        if self._asks and _has_no_session(key):
            member = self._vacant(key) or self._admit(self._another(key))
        else:
            member = self._members.get(key) or self._adopt(key) or self._admit(key)
        if is_bound and member is not None and member.key != guest:
            self._bind(guest, member)
        return member

    def _bind(self, guest: LinkKey, member: _PooledLink) -> None:
        """Let a conversation keep a link that it shares."""
        self._homes.setdefault(guest.scope[2], {})[guest] = member
        member.guests[guest] = None
        if len(member.guests) > GUESTS_MAX:
            self._unbind(next(iter(member.guests)))

    def _unbind(self, guest: LinkKey) -> None:
        homes = self._homes.get(guest.scope[2], {})
        if (home := homes.pop(guest, None)) is not None:
            home.guests.pop(guest, None)
            if not homes:
                del self._homes[guest.scope[2]]

    def _vacant(self, key: LinkKey) -> _PooledLink | None:
        """A link of the same caller and profile on which a conversation may begin, the one that was used last.

        No call is on it, none that is over can be heard of any more, and no conversation has come back to it.
        """
        for member in reversed(self._members.values()):
            is_alike = member.key.scope[:3] == key.scope and member.key[1:] == key[1:]
            if is_alike and not (member.calls or member.is_kept or self._is_worn(member) or _has_declined(member)):
                return member
        return None

    def _another(self, key: LinkKey) -> LinkKey:
        """The key of one more link for the calls of no conversation."""
        if key not in self._members:
            return key
        self._calls += 1
        return key._replace(scope=(*key.scope, str(self._calls)))

    def _is_worn(self, member: _PooledLink) -> bool:
        """Whether its server may still ask about a call that is over, so that no other conversation may begin on it."""
        return (
            self._asks
            and _has_no_session(member.key)
            and member.link is not None
            and member.link.abandoned_session is not None
        )

    def _begin(self, member: _PooledLink) -> None:
        """A first call comes: what is asked later, while there is none, may be about this one."""
        member.has_carried = True
        if member.link is not None:
            member.link.can_wait = not _has_no_session(member.key)

    def _without_own(self, caller: Caller) -> Fault | None:
        """Why a caller cannot be called for, where everybody needs credentials of their own."""
        credentials = self._settings.credentials
        if not credentials.are_demanded or credentials.has_own(Subject(caller.tenant, caller.name)):
            return None
        why = f"it is called with each caller's own credentials, and {caller.name} has none"
        return NotConnected(self._settings.name, why)

    def _subject_of(self, caller: Caller) -> Subject | None:
        """In whose own name the server is called for a caller, if it is."""
        subject = Subject(caller.tenant, caller.name, caller.rights)
        return subject if self._settings.credentials.has_own(subject) else None

    def _key_in(
        self, subject: Subject | None, caller: Caller, client_caps: ClientCapabilities, session: str = ""
    ) -> LinkKey:
        """The key of a link in this name."""
        if self._settings.isolation == "call":
            self._calls += 1
            return LinkKey(("call", str(self._calls)), client_caps, subject)
        if (self.is_duplex or self._asks) and client_caps:
            return LinkKey((caller.tenant, caller.name, session), client_caps, subject)
        if self._settings.isolation == "caller" or self.is_duplex or subject is not None:
            return LinkKey((caller.tenant, caller.name), client_caps, subject)
        return LinkKey((), client_caps)

    def _adopt(self, key: LinkKey) -> _PooledLink | None:
        """A link on which there were only lists so far is that of its caller's first conversation that calls.

        Not one whose server asked meanwhile and was answered by nobody: a new one asks again, and there is a call.
        """
        fresh = self._members.get(key._replace(scope=(*key.scope[:2], "")))
        if fresh is None or fresh.has_carried or _has_declined(fresh) or self._wanted(fresh.key):
            return None
        del self._members[fresh.key]
        fresh.key = key
        self._members[key] = fresh
        if fresh.link is not None and self._wanted(key):
            self._hold(fresh, fresh.link)
        return fresh

    def _admit(self, key: LinkKey) -> _PooledLink | None:
        """Make room for one more, if need be by closing one that was idle for long."""
        if self._is_closed:
            return None
        if len(self._members) >= self._settings.max_calls:
            idle = self._idlest()
            if idle is None:
                return None
            self._give_way(idle)
        member = self._members[key] = _PooledLink(key)
        self._background.spawn(f"link of {self._settings.name}", self._make(member))
        return member

    def _idlest(self) -> _PooledLink | None:
        """The one that was idle for longest, of the caller who has most: nobody's goes because of another's many.

        One that a conversation keeps, on which it may have left something, comes later, and one on which it follows
        something last.
        """
        idle = [each for each in self._members.values() if not (each.calls or each.borrowers)]
        followed = {self._home(follower) for follower in self._subscription_sync.followers()} if idle else ()
        held = Counter(_owner(member.key) for member in self._members.values())
        return min(
            idle,
            key=lambda each: (-held[_owner(each.key)], _is_kept(each), each.key in followed),
            default=None,
        )

    def _give_way(self, member: _PooledLink) -> None:
        """Close a link; who followed something on it is told to look when it has another.

        Not at once: whoever looks needs a link, for which the next one would have to give way.
        """
        if not _has_no_session(member.key) and self._wanted(member.key):
            self._missed[member.key] = None
            if len(self._missed) > MISSED_MAX:
                del self._missed[next(iter(self._missed))]
        self._retire(member)

    def may_have_run(self, inflight: InFlight) -> bool:
        """What waits for its link has not left."""
        member = self._of.get(inflight)
        return member is not None and member.link is not None and member.link.may_have_run(inflight)

    def link_session_of(self, inflight: InFlight) -> LinkSession | None:
        """See `core.ports.TaskLink`."""
        member = self._of.get(inflight)
        return None if member is None or member.link is None else member.link.link_session_of(inflight)

    def redactor_for(self, inflight: InFlight) -> Redact:
        """See `upstream.redaction.Redacting`."""
        member = self._of.get(inflight)
        return self._settings.redact if member is None or member.link is None else member.link.redact

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

    def left(self, session: str) -> None:
        """Close what was a conversation's alone: at once, or when its last call is over."""
        for member in [member for member in self._members.values() if session and member.key.scope[2:3] == (session,)]:
            member.is_over = True
            self._rest(member)
        for guest in list(self._homes.get(session, ())):
            self._unbind(guest)
        for key in [key for key in self._missed if session and key.scope[2:3] == (session,)]:
            del self._missed[key]

    def _rest(self, member: _PooledLink) -> None:
        if member.calls or member.borrowers or member.link is None or not self._has(member):
            return
        if self._is_worn(member) and member.link.abandoned_session not in {guest.scope[2] for guest in member.guests}:
            self._subscription_sync.gap(member.link)  # while it still is the link of those who follow something on it
            self._retire(member)
        elif self._settings.isolation == "call" or member.is_over:
            self._retire(member)
        elif member.idle is None:
            is_spare = _has_no_session(member.key) and not member.guests
            seconds = SPARE_SECONDS if is_spare else CONVERSATION_SECONDS
            member.idle = asyncio.get_running_loop().call_later(seconds, self._expire, member)

    def _expire(self, member: _PooledLink) -> None:
        member.idle = None
        if self._wanted(member.key):
            self._rest(member)  # its process may know what no other does, and tell of it
        elif not member.borrowers:  # else it rests again when it is given back
            self._retire(member)

    # -- what the keeper sees --------------------------------------------------------------------------------------

    def has(self, client_caps: ClientCapabilities) -> bool:
        """Whether there is a link of callers of this profile."""
        return self._latest(client_caps) is not None

    @asynccontextmanager
    async def borrowed(self, caller: Caller, client_caps: ClientCapabilities) -> AsyncIterator[BaseLink]:
        """A link of callers of this profile, made for this one if there is none; it stays the pool's.

        Raises:
            Fault: there can be none now.
        """
        # In everybody's name: what is listed on it is listed to all of this profile.
        member = self._latest(client_caps) or self._admit(self._key_in(None, caller, client_caps))
        if member is None:
            raise Overloaded(self._settings.name, len(self._members), 0)
        member.borrowers += 1  # which makes it no less idle: what is only listed on is not in use
        try:
            while not member.made.done():
                await asyncio.wait({member.made})
            if member.link is None:
                raise NotConnected(self._settings.name, member.why)
            yield member.link
        finally:
            member.borrowers -= 1
            self._rest(member)

    def _latest(self, client_caps: ClientCapabilities) -> _PooledLink | None:
        """The member of this profile that was used last, unless each call has its own."""
        if self._settings.isolation == "call":
            return None
        wanted = (client_caps, None)
        return next((member for member in reversed(self._members.values()) if member.key[1:] == wanted), None)

    # -- following -------------------------------------------------------------------------------------------------

    def own(self, follower: Subscriber) -> list[BaseLink]:
        """Those links on which this one's calls go, and not everybody's, as far as they are there."""
        home = self._home(follower)
        if home is None:
            return []
        if _has_no_session(home):  # it may have several
            members = [member for member in self._members.values() if _base(member.key) == home]
        else:
            members = [self._members[home]] if home in self._members else []
        return [member.link for member in members if member.link is not None]

    def refusal(self, follower: Subscriber) -> Fault | None:
        """See `core.ports.PrivateLinks`."""
        return self._without_own(follower.caller)

    def is_separate(self, follower: Subscriber) -> bool:
        """See `core.ports.PrivateLinks`."""
        return self._subject_of(follower.caller) is not None

    def subscribe_also(self, follower: Subscriber, links: Sequence[SubscriptionLink], uri: str) -> None:
        """See `core.ports.PrivateLinks`."""
        if not self._is_closed:
            self._subscription_sync.subscribe_also(follower, links, uri)

    def _home(self, follower: Subscriber) -> LinkKey | None:
        """The key of the link for a follower's calls; None if that is everybody's, or each has another."""
        client_caps = follower.client_caps if self.differs_by_client else NO_CAPABILITIES
        isolation = self._settings.isolation
        is_shared = isolation == "shared" and not client_caps and self._subject_of(follower.caller) is None
        if isolation == "call" or is_shared:
            return None
        subject = self._subject_of(follower.caller)
        guest = LinkKey((follower.caller.tenant, follower.caller.name, follower.session), client_caps, subject)
        home = self._homes.get(follower.session, {}).get(guest)
        return self._key_in(subject, follower.caller, client_caps, follower.session) if home is None else home.key

    def _wanted(self, key: LinkKey) -> list[str]:
        """What those follow whose calls go on such a link."""
        if self.shares_subscriptions:
            return self._subscription_sync.wanted()
        if self._settings.isolation == "call":
            return []
        home = _base(key)
        followed = self._subscription_sync.followers().items()
        return [uri for follower, uris in followed if self._home(follower) == home for uri in uris]

    async def _follow(self, member: _PooledLink, link: BaseLink) -> None:
        """Have a link tell of what is followed by those whose calls it is to carry."""
        asked: dict[str, None] = {}
        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                while new := [uri for uri in dict.fromkeys(self._wanted(member.key)) if uri not in asked]:
                    asked |= dict.fromkeys(new)
                    await self._subscription_sync.follow(link, new)
        except TimeoutError:
            log.warning("server does not say whether it tells of updates", server=self._settings.name)

    async def subscribe_all(self, uri: str) -> None:
        """Have every link that is there tell of a resource; what does not answer soon is not waited for."""
        links = [member.link for member in self._members.values() if member.link is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(FOLLOW_SECONDS):
                await asyncio.gather(*(self._subscription_sync.follow(link, [uri]) for link in links))

    def unsubscribe_all(self, uri: str) -> None:
        """Have no link tell of a resource any more."""
        for member in self._members.values():
            if member.link is not None:
                self._subscription_sync.stop(member.link, uri)

    def _hold(self, member: _PooledLink, link: BaseLink) -> None:
        """Let calls wait until their link, which was there before, tells of what their caller follows."""
        member.link = None
        member.made = asyncio.get_running_loop().create_future()
        self._background.spawn(f"link of {self._settings.name}", self._make(member, link))

    # -- links -----------------------------------------------------------------------------------------------------

    async def _make(self, member: _PooledLink, link: BaseLink | None = None) -> None:
        try:
            if link is None:
                link = await self._try_to_make(member)
            if link is not None:
                await self._prepare(member, link)
        finally:
            member.made.set_result(None)

    async def _prepare(self, member: _PooledLink, link: BaseLink) -> None:
        """Nothing is sent before what is followed is asked for: else a first call's own updates could be missed."""
        try:
            await self._follow(member, link)
        except BaseException:
            self._drop(member)
            self._refuse(member, "the hub gives it up")
            await link.aclose()
            raise
        self._open(member, link)

    async def _try_to_make(self, member: _PooledLink) -> BaseLink | None:
        try:
            link = await self._connect(member.key.client_caps, member.key.subject)
        except (Fault, ConnectFailed) as failed:
            self._drop(member)
            self._refuse(member, str(getattr(failed, "why", failed)))
            return None
        except BaseException:
            self._drop(member)
            self._refuse(member, "it could not be connected for this call")
            raise
        if not self._has(member):
            await link.aclose()  # its place was taken, or the pool closed, while it was made
            return None
        link.on_lost = lambda _reason: self._lost(member)
        link.on_unauthorized = partial(self._on_unauthorized, member, link)
        link.on_log = self._on_log
        return link

    def _open(self, member: _PooledLink, link: BaseLink) -> None:
        """Send what waits for this link, and from now on whatever is its."""
        self._attend(link, member.key.client_caps)
        member.link = link
        if member.key in self._missed:
            del self._missed[member.key]
            self._subscription_sync.gap(link)
        self._send_waiting(member, link)
        if not self._has(member):
            self._close(link)
        elif not (member.calls or member.borrowers) or link.lost.done():
            self._retire(member)  # whoever wanted it has left meanwhile

    def _on_unauthorized(self, member: _PooledLink, link: BaseLink) -> None:
        """The server does not take any more what it is shown on this link: the next call has another one made."""
        link.on_credentials_refused()
        member.is_over = True

    def renew(self, subject: Subject) -> None:
        """The server is shown something else in a caller's name: links on which it heard the old go when they rest."""
        whose = subject.at_large
        for member in [
            each for each in self._members.values() if each.key.subject and each.key.subject.at_large == whose
        ]:
            member.is_over = True
            self._rest(member)

    def _note_question(self) -> None:
        """The server does not say which call its questions are about: from now on no two programs share a link."""
        self._asks = True

    def _attend(self, link: BaseLink, client_caps: ClientCapabilities) -> None:
        """Hear what is told on this link, which the keeper's own need not tell."""
        link.on_question = self._note_question
        self._asks |= link.has_asked
        link.on_changed = partial(self._changed, link, client_caps)
        if not client_caps and "tasks" in link.abilities():
            link.listen()  # it may tell there how they stand
        link.on_renewed = partial(self._renewed, link, client_caps)
        if self.shares_subscriptions:
            self._subscription_sync.attend_for_all(link)
        else:
            self._subscription_sync.attend(link)

    def _changed(self, link: BaseLink, client_caps: ClientCapabilities, topic: Topic) -> None:
        if topic == "tools":
            self._recheck_soon([link])
        self.on_changed(client_caps, topic)

    def recheck_all(self) -> None:
        """Look for what nobody announced, on every link."""
        self._recheck_soon([member.link for member in self._members.values() if member.link is not None])

    def _recheck_soon(self, links: Sequence[BaseLink]) -> None:
        self._unchecked |= dict.fromkeys(link for link in links if link.recheck is not None)
        if self._unchecked and not self._is_rechecking:
            self._is_rechecking = True
            self._background.spawn(f"lists of {self._settings.name} to single callers", self._recheck_while_due())

    async def _recheck_while_due(self) -> None:
        try:
            while links := self._unchecked:
                self._unchecked = {}
                for link in links:
                    await _recheck(link)
                await asyncio.sleep(RECHECK_SECONDS)
        finally:
            self._is_rechecking = False

    def _renewed(self, link: BaseLink, client_caps: ClientCapabilities) -> None:
        """The server forgot what it was asked on this link, and may have changed."""
        for topic in TOPICS:
            self.on_changed(client_caps, topic)
        self.on_renewed(link)
        self._subscription_sync.resume_own(link)

    def _send_waiting(self, member: _PooledLink, link: BaseLink) -> None:
        link.can_wait = not (member.has_carried and _has_no_session(member.key))
        while member.waiting:
            inflight = next(iter(member.waiting))
            del member.waiting[inflight]
            inflight.heartbeat()
            self._send(link, inflight)
            if self._asks and not _is_conversations(member.key):
                self._send_elsewhere(member, inflight.call.session)

    def _send(self, link: BaseLink, inflight: InFlight) -> None:
        if link.may_send is not None and not link.may_send(inflight):
            inflight.fail(UnknownTool(inflight.call.name))
        elif not inflight.call.lasts or inflight.is_cleared(self._send_cleared):
            link.send(inflight)

    def _send_cleared(self, inflight: InFlight) -> None:
        """It is written that a call may be sent: send it, on another link if its own is gone meanwhile."""
        member = self._of.get(inflight)
        if inflight.is_over or member is None:
            return
        inflight.carriage = None
        if member.link is not None and not member.link.lost.done():
            self._send(member.link, inflight)
            return
        del self._of[inflight]
        member.calls -= 1
        self.send(inflight)

    def _send_elsewhere(self, member: _PooledLink, session: str) -> None:
        """It was found out only now that these had better not share a link, unless they are of this conversation."""
        waiting, member.waiting = member.waiting, {}
        for inflight in waiting:
            del self._of[inflight]
            member.calls -= 1
            if inflight.call.session != session:
                homes = self._homes.get(inflight.call.session, {})
                for guest in [guest for guest, home in homes.items() if home is member]:
                    self._unbind(guest)
            self.send(inflight)

    def _refuse(self, member: _PooledLink, why: str) -> None:
        member.why = self._settings.reason(why)
        waiting, member.waiting = member.waiting, {}
        for inflight in waiting:
            inflight.fail(NotConnected(self._settings.name, member.why))

    def _has(self, member: _PooledLink) -> bool:
        """Whether it is still in the pool: another one may have its key by now."""
        return self._members.get(member.key) is member

    def _drop(self, member: _PooledLink) -> None:
        if self._has(member):
            del self._members[member.key]
            for guest in list(member.guests):
                self._unbind(guest)

    def _retire(self, member: _PooledLink) -> None:
        """Take a link out of the pool, if it is in it, and close it."""
        member.rouse()
        if self._has(member):
            self._drop(member)
            if member.link is not None:
                self._close(member.link)

    def _close(self, link: BaseLink) -> None:
        self._background.spawn(f"closing a link of {self._settings.name}", link.aclose())

    def _lost(self, member: _PooledLink) -> None:
        """A link broke. It tells the calls on it itself; who followed something on it is told to look."""
        if member.link is not None:
            self._subscription_sync.gap(member.link)
        self._retire(member)

    async def aclose(self) -> None:
        """Close every link, all at once."""
        self._is_closed = True
        members, self._members, self._homes = list(self._members.values()), OrderedDict(), {}
        for member in members:
            member.rouse()
            self._refuse(member, "the hub gives it up")
        links = [member.link for member in members if member.link is not None]
        await asyncio.gather(*(link.aclose() for link in links), return_exceptions=True)


async def _recheck(link: BaseLink) -> None:
    if link.recheck is not None and not link.lost.done():
        with suppress(Fault):  # one that cannot list now is taken for what it was, or is lost
            await link.recheck()


def _base(key: LinkKey) -> LinkKey:
    """The key of the first of those links among which a call may choose."""
    return key if len(key.scope) <= BASE_LENGTH else key._replace(scope=key.scope[:BASE_LENGTH])


def _owner(key: LinkKey) -> tuple[str, ...]:
    """Whose link it is, in whichever of their conversations."""
    return key.scope[:2]


def _has_declined(member: _PooledLink) -> bool:
    """Whether its server asked something while there was no call, and may not ask a second time."""
    return member.link is not None and member.link.has_unanswered_question


def _is_conversations(key: LinkKey) -> bool:
    """Whether it is for the calls of one conversation."""
    return any(key.scope[2:3])


def _is_kept(member: _PooledLink) -> bool:
    """Whether a conversation has come back to it, or it is one's alone."""
    return member.is_kept or not _has_no_session(member.key)


def _has_no_session(key: LinkKey) -> bool:
    """Whether it is for those calls of a caller whose conversations have no link of their own."""
    return key.scope[2:3] == ("",)
