"""Links that are not shared by all callers: one per caller, per call, or per set of client capabilities.

A session (an MCP session, an A2A context, a session of a program) keeps the link of its first call until it ends or
makes no call for an hour: the process behind the link may hold its state.

To the server queue, a pool is a link: a call is sent on its own link, or waits until that is made. The pool owns and
closes its links; the reconnector's shared link, on which the server is listed, is not in it.

Client capabilities are part of the key because a legacy server learns them once, in `initialize`: on a shared link it
would ask callers that cannot answer, or never ask those that can.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.ports import Subscriber, SubscriptionLink
from isthmus.core.watch.server_tasks import LinkSession
from isthmus.model.callers import Caller
from isthmus.model.calls import NO_CAPABILITIES, Call, ClientCapabilities, LogMessage
from isthmus.model.credentials import Subject
from isthmus.model.fault_table import Fault, NotConnected, Overloaded, UnknownTool
from isthmus.model.features import TOPICS, Topic
from isthmus.upstream.base_link import BaseLink, ConnectFailed, FollowerLink
from isthmus.upstream.credential_redaction import Redact
from isthmus.upstream.server_settings import ServerSettings
from isthmus.upstream.subscription_sync import SubscriptionSync

log = structlog.get_logger(__name__)

SESSION_IDLE_SECONDS = 3600.0
"""How long an idle link is kept for its sessions or its caller: as long as an MCP session."""

NO_SESSION_IDLE_SECONDS = 300.0
"""How long an idle link is kept that had only calls outside of sessions."""

BOUND_SESSIONS_MAX = 1_000
"""Sessions that are bound to one shared link; the oldest is unbound first, and starts as a new session if it
returns."""

SUBSCRIBE_SECONDS = 5.0
"""How long a call waits until its new link has its caller's subscriptions."""

RECHECK_SECONDS = 1.0
"""How often the tools on such links are checked while a server announces changes all the time."""

MISSED_MAX = 1_000
"""Evicted links that are remembered because they had subscriptions."""


LISTS_ONLY = ("", "", "")
"""The scope of a link on which only lists were read, until a caller's first call uses it."""

OWNER_LENGTH = 3
"""Parts of a scope that identify the owner; a further part numbers links of the same owner."""


class LinkKey(NamedTuple):
    """The owner of a link. Links are never shared across keys.

    `scope` is a caller, one of its sessions (or an empty name, perhaps with a number, for calls that share links or
    have no session), a single call, or empty for everybody. `client_caps` are the client capabilities of its calls.
    `subject` is the caller whose own credentials are used; None for the common ones.
    """

    scope: tuple[str, ...]
    client_caps: frozenset[str] = frozenset()
    subject: Subject | None = None


class _PooledLink:
    """One link of the pool, with its calls; it may still be connecting."""

    def __init__(self, key: LinkKey) -> None:
        self.key = key
        self.link: BaseLink | None = None
        self.waiting: dict[InFlight, None] = {}
        self.calls = 0
        self.has_had_calls = False
        """A call was sent on it, which may have left state on the server."""
        self.is_done = False
        """Its session has ended."""
        self.bound_sessions: dict[LinkKey, None] = {}
        """Sessions bound to this shared link, each by the key that a link of its own would have."""
        self.is_resumed = False
        """A bound session has made a second call: if the server asks questions, no other session may start here."""
        self.borrowers = 0
        """How many listings use the link now."""
        self.made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends when the link is ready, or has failed; then `why` is the reason."""
        self.why = "the hub closed it"
        self.idle: asyncio.TimerHandle | None = None

    def stop_idle_timer(self) -> None:
        if self.idle is not None:
            self.idle.cancel()
            self.idle = None


class LinkPool:
    """The links of one server; at most as many as it may have calls."""

    def __init__(
        self,
        settings: ServerSettings,
        background: BackgroundTasks,
        connect: Callable[[ClientCapabilities, Subject | None], Awaitable[BaseLink]],
        on_log: Callable[[LogMessage], None],
        subscription_sync: SubscriptionSync,
    ) -> None:
        """`connect` makes and initializes a link; it raises `ConnectFailed` or a `Fault`."""
        self._settings = settings
        self._background = background
        self._connect = connect
        self._on_log = on_log
        self._subscription_sync = subscription_sync
        self._evicted: dict[LinkKey, None] = {}
        """Owners whose link was closed to make room; on their next link, subscribers are notified."""
        self._members: OrderedDict[LinkKey, _PooledLink] = OrderedDict()
        self._member_of: dict[InFlight, _PooledLink] = {}
        self._bound_to: dict[str, dict[LinkKey, _PooledLink]] = {}
        """Shared links that sessions are bound to, by session name."""
        self._calls = 0
        self._is_closed = False
        self._is_rechecking = False
        self._unchecked: dict[BaseLink, None] = {}
        """Links whose tools are to be checked for changes."""
        self.differs_by_client = False
        """The server learns client capabilities in the handshake, so that each set needs its own link."""
        self.is_duplex = False
        """Questions on a link may not name their call, so that two callers must not share one."""
        self.takes_methods = False
        """Whether the server accepts any MCP method, not only tool calls."""
        self._asks_between_calls = False
        """A question did not name its call: from now on each session, and each call outside of sessions, starts on a
        link without calls. Any two of them may belong to different programs.
        """
        self.shares_subscriptions = False
        """Subscriptions apply to everybody with calls on these links."""
        self.node_link: BaseLink | None = None
        """The shared link, if it leads to the node that runs the program: callers have their own links there."""
        self.on_changed: Callable[[ClientCapabilities, Topic], None] = lambda _client_caps, _topic: None
        """Called with changes that servers announce on these links, and the client capabilities of the link."""
        self.on_asked: Callable[[], None] = lambda: None
        """Called once, after a question on these links that did not name its call."""
        self.on_renewed: Callable[[BaseLink], None] = lambda _link: None
        """Called for a link whose server lost its session."""

    def __len__(self) -> int:
        return len(self._members)

    def __bool__(self) -> bool:
        """Whether there are such links, or will be soon."""
        return bool(self._members) or self.node_link is not None or self._settings.credentials.is_divided

    def adjust(self, settings: ServerSettings) -> None:
        """Change the limit; existing links stay."""
        self._settings = settings

    # -- for the server queue --------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Send the call on its own link, or make that link first."""
        if (own := self._member_of.get(inflight)) is not None and own.link is not None:
            own.link.send(inflight)  # again, with the answers to the server's questions
            return
        if (refusal := self._missing_credentials(inflight.call.caller)) is not None:
            inflight.fail(refusal)
            return
        member = self._member_for(inflight.call)
        if member is None:
            inflight.fail(Overloaded(self._settings.name, len(self._members), 0))
            return
        member.stop_idle_timer()
        if not member.has_had_calls:
            member.has_had_calls = True
            if member.link is not None:  # later questions between calls may belong to this call
                member.link.questions.can_wait = not _has_no_session(member.key)
        member.calls += 1
        self._member_of[inflight] = member
        self._members.move_to_end(member.key)
        if member.link is None:
            member.waiting[inflight] = None
        else:
            self._send(member.link, inflight)

    def _member_for(self, call: Call) -> _PooledLink | None:
        """The link that a call's session is bound to, or a link for its first call; None if there is no room."""
        client_caps = call.client_caps if self.differs_by_client else NO_CAPABILITIES
        is_bound = bool(client_caps and call.session) and self._settings.isolation != "call"
        session_key = LinkKey(
            (call.caller.tenant, call.caller.name, call.session), client_caps, self._subject_of(call.caller)
        )
        if is_bound and (home := self._bound_to.get(call.session, {}).get(session_key)) is not None:
            home.is_resumed = True
            return home
        key = self._key_in(session_key.subject, call.caller, client_caps, "" if call.shares_link else call.session)
        if self._asks_between_calls and _has_no_session(key):
            member = self._reusable(key)
            if member is None and key in self._members:  # a further link for calls without a session
                self._calls += 1
                key = key._replace(scope=(*key.scope, str(self._calls)))
            member = member or self._adopt(key) or self._admit(key)
        else:
            member = self._members.get(key) or self._adopt(key) or self._admit(key)
        if is_bound and member is not None and member.key != session_key:
            self._bound_to.setdefault(call.session, {})[session_key] = member
            member.bound_sessions[session_key] = None
            if len(member.bound_sessions) > BOUND_SESSIONS_MAX:
                self._unbind(next(iter(member.bound_sessions)))
        return member

    def _unbind(self, session_key: LinkKey) -> None:
        homes = self._bound_to.get(session_key.scope[2], {})
        if (home := homes.pop(session_key, None)) is not None:
            home.bound_sessions.pop(session_key, None)
            if not homes:
                del self._bound_to[session_key.scope[2]]

    def _reusable(self, key: LinkKey) -> _PooledLink | None:
        """The last used link of the same caller and capabilities on which a session may start.

        It has no calls, its server cannot ask about earlier ones, and no session has come back to it.
        """
        for member in reversed(self._members.values()):
            is_alike = member.key.scope[:3] == key.scope and member.key[1:] == key[1:]
            if is_alike and not (
                member.calls
                or member.is_resumed
                or self._may_get_late_question(member)
                or _has_unanswered_question(member)
            ):
                return member
        return None

    def _may_get_late_question(self, member: _PooledLink) -> bool:
        """Whether its server may still ask about an earlier call, so that no other session may start on it."""
        return (
            self._asks_between_calls
            and _has_no_session(member.key)
            and member.link is not None
            and member.link.questions.abandoned_session is not None
        )

    def _missing_credentials(self, caller: Caller) -> Fault | None:
        """The fault of a caller without the credentials of its own that the server demands; None if it may call."""
        credentials = self._settings.credentials
        if not credentials.are_demanded or credentials.has_own(Subject(caller.tenant, caller.name)):
            return None
        why = f"it is called with each caller's own credentials, and {caller.name} has none"
        return NotConnected(self._settings.name, why)

    def _subject_of(self, caller: Caller) -> Subject | None:
        """The subject of a caller with own credentials; None without."""
        subject = Subject(caller.tenant, caller.name, caller.rights)
        return subject if self._settings.credentials.has_own(subject) else None

    def _key_in(
        self, subject: Subject | None, caller: Caller, client_caps: ClientCapabilities, session: str = ""
    ) -> LinkKey:
        """The key of a link for this subject."""
        if self._settings.isolation == "call":
            self._calls += 1
            return LinkKey(("call", str(self._calls)), client_caps, subject)
        if (self.is_duplex or self._asks_between_calls) and client_caps:
            return LinkKey((caller.tenant, caller.name, session), client_caps, subject)
        if self._settings.isolation == "caller" or self.is_duplex or subject is not None:
            return LinkKey((caller.tenant, caller.name), client_caps, subject)
        return LinkKey((), client_caps)

    def _adopt(self, key: LinkKey) -> _PooledLink | None:
        """Use a link on which only lists were read for the first session of any caller.

        Not if its server asked something and got no answer: a new link asks again, when there is a call.
        """
        fresh = self._members.get(key._replace(scope=LISTS_ONLY))
        if fresh is None or fresh.has_had_calls or _has_unanswered_question(fresh):
            return None
        del self._members[fresh.key]
        fresh.key = key
        self._members[key] = fresh
        if fresh.link is not None and self._followed_uris(key):
            # Calls wait until the link has its caller's subscriptions.
            link, fresh.link = fresh.link, None
            fresh.made = asyncio.get_running_loop().create_future()
            self._background.spawn(f"link of {self._settings.name}", self._make(fresh, link))
        return fresh

    def _admit(self, key: LinkKey) -> _PooledLink | None:
        """Add a link, closing an idle one if there is no room."""
        if self._is_closed:
            return None
        if len(self._members) >= self._settings.max_calls:
            idle = self._link_to_evict()
            if idle is None:
                return None
            if not _has_no_session(idle.key) and self._followed_uris(idle.key):
                # Subscribers are notified on their next link: reading resources again now would need another link.
                self._evicted[idle.key] = None
                if len(self._evicted) > MISSED_MAX:
                    del self._evicted[next(iter(self._evicted))]
            self._retire(idle)
        member = self._members[key] = _PooledLink(key)
        self._background.spawn(f"link of {self._settings.name}", self._make(member))
        return member

    def _link_to_evict(self) -> _PooledLink | None:
        """The link to close for a new one: the longest idle link of the caller with most links.

        A caller cannot evict another's link by opening many. Links that a session relies on come later, links with
        subscriptions last.
        """
        idle = [member for member in self._members.values() if not (member.calls or member.borrowers)]
        followed = {self._link_key_of(follower) for follower in self._subscription_sync.followers()} if idle else ()
        held = Counter(_owner(member.key) for member in self._members.values())
        return min(
            idle,
            key=lambda each: (
                -held[_owner(each.key)],
                each.is_resumed or not _has_no_session(each.key),
                each.key in followed,
            ),
            default=None,
        )

    def may_have_run(self, inflight: InFlight) -> bool:
        """A call that waits for its link has not left."""
        member = self._member_of.get(inflight)
        return member is not None and member.link is not None and member.link.may_have_run(inflight)

    def link_session_of(self, inflight: InFlight) -> LinkSession | None:
        """The connection on which an unfinished call was answered; None if that connection has ended."""
        member = self._member_of.get(inflight)
        return None if member is None or member.link is None else member.link.link_session_of(inflight)

    def redactor_for(self, inflight: InFlight) -> Redact:
        """The redaction for the response to a call."""
        member = self._member_of.get(inflight)
        return self._settings.redact if member is None or member.link is None else member.link.redact

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Cancel the call at the server, if it got that far."""
        member = self._member_of.get(inflight)
        if member is not None and member.link is not None:
            member.link.withdraw(inflight, reason)

    def call_ended(self, inflight: InFlight) -> None:
        """A call has ended: its link is idle, or is closed."""
        member = self._member_of.pop(inflight, None)
        if member is None:
            return
        member.waiting.pop(inflight, None)
        member.calls -= 1
        self._release(member)

    def left(self, session: str) -> None:
        """Close the links of a session: at once, or after its last call."""
        for member in [member for member in self._members.values() if session and member.key.scope[2:3] == (session,)]:
            member.is_done = True
            self._release(member)
        for session_key in list(self._bound_to.get(session, ())):
            self._unbind(session_key)
        for key in [key for key in self._evicted if session and key.scope[2:3] == (session,)]:
            del self._evicted[key]

    def is_per_caller(self, client_caps: ClientCapabilities) -> bool:
        """Whether calls outside of sessions, of clients with these capabilities, have links for each caller here."""
        isolation = self._settings.isolation
        if self._settings.owners or isolation == "call":  # one node has all links, or none lasts
            return False
        return isolation == "caller" or bool(self.differs_by_client and self.is_duplex and client_caps)

    def _release(self, member: _PooledLink) -> None:
        if member.calls or member.borrowers or member.link is None or not self._has(member):
            return
        sessions = {session_key.scope[2] for session_key in member.bound_sessions}
        if self._may_get_late_question(member) and member.link.questions.abandoned_session not in sessions:
            self._subscription_sync.gap(member.link)  # while it still is the subscribers' link
            self._retire(member)
        elif self._settings.isolation == "call" or member.is_done:
            self._retire(member)
        elif member.idle is None:
            is_spare = _has_no_session(member.key) and not member.bound_sessions
            seconds = NO_SESSION_IDLE_SECONDS if is_spare else SESSION_IDLE_SECONDS
            member.idle = asyncio.get_running_loop().call_later(seconds, self._on_idle, member)

    def _on_idle(self, member: _PooledLink) -> None:
        member.idle = None
        if self._followed_uris(member.key):
            self._release(member)  # its process may send updates that no other process knows
        elif not member.borrowers:  # else it is released when it is given back
            self._retire(member)

    # -- for the reconnector ---------------------------------------------------------------------------------------

    def has_link_for(self, client_caps: ClientCapabilities) -> bool:
        """Whether there is a link with these client capabilities."""
        return self._latest(client_caps) is not None

    @asynccontextmanager
    async def borrowed(self, caller: Caller, client_caps: ClientCapabilities) -> AsyncIterator[BaseLink]:
        """Borrow a link with these client capabilities for listing; made for this caller if no link is free.

        Raises:
            Fault: there can be none now.
        """
        # With the common credentials: the result is listed to all clients with these capabilities.
        key = self._key_in(None, caller, client_caps)
        if _has_no_session(key):
            key = key._replace(scope=LISTS_ONLY)
        member = self._latest(client_caps) or self._admit(key)
        if member is None:
            raise Overloaded(self._settings.name, len(self._members), 0)
        member.borrowers += 1  # a link that is only used for listing still counts as idle
        try:
            while not member.made.done():
                await asyncio.wait({member.made})
            if member.link is None:
                raise NotConnected(self._settings.name, member.why)
            yield member.link
        finally:
            member.borrowers -= 1
            self._release(member)

    def _latest(self, client_caps: ClientCapabilities) -> _PooledLink | None:
        """The last used link with these capabilities, unless each call has its own."""
        if self._settings.isolation == "call":
            return None
        wanted = (client_caps, None)
        return next((member for member in reversed(self._members.values()) if member.key[1:] == wanted), None)

    # -- following -------------------------------------------------------------------------------------------------

    def own(self, follower: Subscriber) -> Sequence[SubscriptionLink]:
        """The existing links of this follower's calls that are not shared by all."""
        if (share := self._share_of(follower)) is not None:
            return [share]
        home = self._link_key_of(follower)
        if home is None:
            return []
        if _has_no_session(home):  # it may have several
            members = [member for member in self._members.values() if _without_number(member.key) == home]
        else:
            members = [self._members[home]] if home in self._members else []
        return [member.link for member in members if member.link is not None]

    def refusal(self, follower: Subscriber) -> Fault | None:
        """Why the server receives no requests for this subscriber."""
        return self._missing_credentials(follower.caller)

    def is_separate(self, follower: Subscriber) -> bool:
        """Whether the server knows this subscriber by its own credentials, so that shared updates do not concern it."""
        return self._subject_of(follower.caller) is not None or self._share_of(follower) is not None

    def _share_of(self, follower: Subscriber) -> FollowerLink | None:
        """The subscriptions of a follower at another node, where its calls may have a link of their own."""
        link, isolation = self.node_link, self._settings.isolation
        if link is None or isolation == "call" or not (follower.client_caps or isolation == "caller"):
            return None
        share = link.share_of(follower)
        if share is not None:
            self._subscription_sync.attend(share)
        return share

    def resume_shares(self) -> None:
        """The link to the node that runs the program is new: repeat the subscriptions of the program's callers."""
        for follower, uris in list(self._subscription_sync.followers().items()):
            if (share := self._share_of(follower)) is not None:
                self._subscription_sync.resume_share(share, uris)

    def subscribe_also(self, follower: Subscriber, links: Sequence[SubscriptionLink], uri: str) -> None:
        """Subscribe, in the background, on links that may replace this subscriber's own."""
        if not self._is_closed:
            self._subscription_sync.subscribe_also(follower, links, uri)

    def _link_key_of(self, follower: Subscriber) -> LinkKey | None:
        """The key of the link for a follower's calls; None if that is the shared one, or each call has its own."""
        client_caps = follower.client_caps if self.differs_by_client else NO_CAPABILITIES
        isolation = self._settings.isolation
        is_shared = isolation == "shared" and not client_caps and self._subject_of(follower.caller) is None
        if isolation == "call" or is_shared:
            return None
        subject = self._subject_of(follower.caller)
        session_key = LinkKey((follower.caller.tenant, follower.caller.name, follower.session), client_caps, subject)
        home = self._bound_to.get(follower.session, {}).get(session_key)
        return self._key_in(subject, follower.caller, client_caps, follower.session) if home is None else home.key

    def _followed_uris(self, key: LinkKey) -> list[str]:
        """Resources followed by the callers on such a link."""
        if self.shares_subscriptions:
            return self._subscription_sync.followed_uris()
        if self._settings.isolation == "call":
            return []
        home = _without_number(key)
        followed = self._subscription_sync.followers().items()
        return [uri for follower, uris in followed if self._link_key_of(follower) == home for uri in uris]

    async def _follow(self, member: _PooledLink, link: BaseLink) -> None:
        """Subscribe a link to the resources that its callers follow."""
        asked: dict[str, None] = {}
        try:
            async with asyncio.timeout(SUBSCRIBE_SECONDS):
                while new := [uri for uri in dict.fromkeys(self._followed_uris(member.key)) if uri not in asked]:
                    asked |= dict.fromkeys(new)
                    await self._subscription_sync.follow(link, new)
        except TimeoutError:
            log.warning("server did not acknowledge subscriptions in time", server=self._settings.name)

    async def subscribe_all(self, uri: str) -> None:
        """Subscribe every existing link; slow ones are not waited for."""
        links = [member.link for member in self._members.values() if member.link is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(SUBSCRIBE_SECONDS):
                await asyncio.gather(*(self._subscription_sync.follow(link, [uri]) for link in links))

    def unsubscribe_all(self, uri: str) -> None:
        """Unsubscribe every link."""
        for member in self._members.values():
            if member.link is not None:
                self._subscription_sync.stop(member.link, uri)

    # -- links -----------------------------------------------------------------------------------------------------

    async def _make(self, member: _PooledLink, link: BaseLink | None = None) -> None:
        try:
            if link is None:
                link = await self._try_to_make(member)
            if link is None:
                return
            try:
                # Before anything is sent: otherwise a first call's own updates could be missed.
                await self._follow(member, link)
            except BaseException:
                self._drop(member)
                self._refuse(member, "the hub closed it")
                await link.aclose()
                raise
            self._open(member, link)
        finally:
            member.made.set_result(None)

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
            await link.aclose()  # it was evicted, or the pool closed, while it was made
            return None

        def lost(_reason: str) -> None:
            # The link ends its calls itself; subscribers are notified here.
            if member.link is not None:
                self._subscription_sync.gap(member.link)
            self._retire(member)

        def unauthorized() -> None:
            # The next call gets a new link.
            link.on_credentials_refused()
            member.is_done = True

        link.on_lost, link.on_unauthorized, link.on_log = lost, unauthorized, self._on_log
        return link

    def _open(self, member: _PooledLink, link: BaseLink) -> None:
        """Send the waiting calls, and accept further ones."""
        self._attend(link, member.key.client_caps)
        member.link = link
        if member.key in self._evicted:
            del self._evicted[member.key]
            self._subscription_sync.gap(link)
        link.questions.can_wait = not (member.has_had_calls and _has_no_session(member.key))
        while member.waiting:
            inflight = next(iter(member.waiting))
            del member.waiting[inflight]
            inflight.heartbeat()
            inflight.note("sent")
            self._send(link, inflight)
            if self._asks_between_calls and not any(member.key.scope[2:3]):  # it does not belong to one session
                self._send_elsewhere(member, inflight.call.session)
        if not self._has(member):
            self._close(link)
        elif not (member.calls or member.borrowers) or link.lost.done():
            self._retire(member)  # its callers have left meanwhile

    def renew(self, subject: Subject) -> None:
        """A caller's credentials changed: its links are closed when idle."""
        at_large = subject.at_large
        for member in [
            member
            for member in self._members.values()
            if member.key.subject and member.key.subject.at_large == at_large
        ]:
            member.is_done = True
            self._release(member)

    def divide_by_program(self) -> None:
        """The server's questions do not name their call: from now on no two programs share a link."""
        self._asks_between_calls = True

    def _note_question(self) -> None:
        if not self._asks_between_calls:
            self.divide_by_program()
            self.on_asked()

    def _attend(self, link: BaseLink, client_caps: ClientCapabilities) -> None:
        """Handle notifications of this link."""

        def changed(topic: Topic) -> None:
            if topic == "tools":
                self._recheck_soon([link])
            self.on_changed(client_caps, topic)

        def renewed() -> None:
            # The server lost the session of this link, and may have changed.
            for topic in TOPICS:
                self.on_changed(client_caps, topic)
            self.on_renewed(link)
            self._subscription_sync.resume_own(link)

        link.questions.on_question, link.on_changed = self._note_question, changed
        if link.questions.has_asked:
            self._note_question()
        if not client_caps and "tasks" in link.abilities():
            link.listen()  # task status may arrive there
        link.on_renewed = renewed
        if self.shares_subscriptions:
            self._subscription_sync.attend_for_all(link)
        else:
            self._subscription_sync.attend(link)

    def recheck_all(self) -> None:
        """Look for unannounced changes on every link."""
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
                    if link.recheck is None or link.lost.done():
                        continue
                    with suppress(Fault):  # if it cannot list now, its known tools stay valid, or the link is lost
                        await link.recheck()
                await asyncio.sleep(RECHECK_SECONDS)
        finally:
            self._is_rechecking = False

    def _send(self, link: BaseLink, inflight: InFlight) -> None:
        if link.may_send is not None and not link.may_send(inflight):
            inflight.fail(UnknownTool(inflight.call.name))
        elif not inflight.call.lasts or inflight.is_cleared(self._send_cleared):
            link.send(inflight)

    def _send_cleared(self, inflight: InFlight) -> None:
        """The journal has recorded that the call may be sent: send it, on another link if its own is gone."""
        member = self._member_of.get(inflight)
        if inflight.is_done or member is None:
            return
        inflight.carriage = None
        if member.link is not None and not member.link.lost.done():
            inflight.note("sent")
            self._send(member.link, inflight)
            return
        del self._member_of[inflight]
        member.calls -= 1
        self.send(inflight)

    def _send_elsewhere(self, member: _PooledLink, session: str) -> None:
        """The server asks questions between calls, so sessions must not share this link: move other sessions' calls."""
        waiting, member.waiting = member.waiting, {}
        for inflight in waiting:
            del self._member_of[inflight]
            member.calls -= 1
            if inflight.call.session != session:
                homes = self._bound_to.get(inflight.call.session, {})
                for session_key in [session_key for session_key, home in homes.items() if home is member]:
                    self._unbind(session_key)
            self.send(inflight)

    def _refuse(self, member: _PooledLink, why: str) -> None:
        member.why = self._settings.reason(why)
        waiting, member.waiting = member.waiting, {}
        for inflight in waiting:
            inflight.fail(NotConnected(self._settings.name, member.why))

    def _has(self, member: _PooledLink) -> bool:
        """Whether the link is still in the pool; another link may have its key by now."""
        return self._members.get(member.key) is member

    def _drop(self, member: _PooledLink) -> None:
        if self._has(member):
            del self._members[member.key]
            for session_key in list(member.bound_sessions):
                self._unbind(session_key)

    def _retire(self, member: _PooledLink) -> None:
        """Remove a link from the pool, if it is there, and close it."""
        member.stop_idle_timer()
        if self._has(member):
            self._drop(member)
            if member.link is not None:
                self._close(member.link)

    def _close(self, link: BaseLink) -> None:
        self._background.spawn(f"closing a link of {self._settings.name}", link.aclose())

    async def aclose(self) -> None:
        """Close every link, all at once."""
        self._is_closed = True
        members, self._members, self._bound_to = list(self._members.values()), OrderedDict(), {}
        for member in members:
            member.stop_idle_timer()
            self._refuse(member, "the hub closed it")
        links = [member.link for member in members if member.link is not None]
        await asyncio.gather(*(link.aclose() for link in links), return_exceptions=True)


def _without_number(key: LinkKey) -> LinkKey:
    """The key without the number of the link."""
    return key if len(key.scope) <= OWNER_LENGTH else key._replace(scope=key.scope[:OWNER_LENGTH])


def _owner(key: LinkKey) -> tuple[str, ...]:
    """The caller of a link, in any session."""
    return key.scope[:2]


def _has_unanswered_question(member: _PooledLink) -> bool:
    """Whether a question of the server between calls got no answer; the server may not ask again on this link."""
    return member.link is not None and member.link.questions.has_unanswered


def _has_no_session(key: LinkKey) -> bool:
    """Whether the key is for calls that are not bound to a session."""
    return key.scope[2:3] == ("",)
