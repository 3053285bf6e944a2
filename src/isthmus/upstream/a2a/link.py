"""An agent of A2A 1.0 or 0.3: its card is its list of tools, and a call of one is a commission.

The card is read when the agent is greeted and whenever its list is read again, so that changed skills change the list.
Nothing is heard of an agent by itself. The supervisor owns such links; lanes send calls on them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Set

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports.credentials import Credentials
from isthmus.core.settings import Limits
from isthmus.model.calls import Call
from isthmus.model.faults import BadArguments, BadReply, NotConnected
from isthmus.model.features import TOPICS, Ability, Topic
from isthmus.model.names import ServerName
from isthmus.model.questions import NO_CAPABILITIES, ClientCapabilities
from isthmus.transport.egress import Egress, Origin, parse_url
from isthmus.transport.http import HttpClient, Ticket, client_for, request_head
from isthmus.upstream.agent.commission import Commission
from isthmus.upstream.agent.contacts import Contact, card_targets, choose
from isthmus.upstream.agent.farewell import Farewell
from isthmus.upstream.agent.fetch import Fetch, Fetched
from isthmus.upstream.agent.given import GivenTasks
from isthmus.upstream.agent.lingering import LINGERING_MAX, Lingering
from isthmus.upstream.agent.messages import Told, told_by
from isthmus.upstream.agent.skills import Offered, listing_of, offers_of
from isthmus.upstream.agent.visit import Visit, VisitOwner
from isthmus.upstream.dialect import LegacyDialect
from isthmus.upstream.link import ASK_SECONDS, BaseLink, ConnectFailed
from isthmus.upstream.listing import PAGE_BYTES_MAX, TTL_SECONDS_MIN, Listing
from isthmus.upstream.replies import ADVICE, OK, login_place
from isthmus.upstream.settings import AgentSettings, Era
from isthmus.upstream.waiters import Waiter
from isthmus.wire.a2a.cards import HUBS, SCHEMAS, Card
from isthmus.wire.a2a.client import Asked
from isthmus.wire.a2a.client_bindings import Outgoing
from isthmus.wire.a2a.negotiate import PARAMETER
from isthmus.wire.a2a.operations import Cancel, Problem, Send, Subscribe
from isthmus.wire.a2a.read_cards import read_card
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.hubs import read_hubs
from isthmus.wire.mcp.messages import Implementation

FAREWELLS_MAX = 2
"""Tasks given up of which the agent was told and may still answer, after a moment in which it is any number."""

TOLD_SECONDS = 1.0

SPARE_CONNECTIONS = 2 + LINGERING_MAX + FAREWELLS_MAX
"""Connections beside those for calls: the card and a ping, calls that are over, and tasks that are given up."""

CLOSE_SECONDS = 1.0
"""How long a link that is closed waits for that."""

NOT_MODIFIED = 304
NOT_FOUND = (404, 405, 410)
"""What is answered where there is no card."""

JSON = "application/json"
CARD_ACCEPT = "application/json, application/a2a+json"

KNOWN = frozenset((HUBS, SCHEMAS))
"""Extensions of A2A that mean something here."""

_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]{0,200}"')
_MAX_AGE = re.compile(r"(?:^|[,\s])max-age\s*=\s*(\d{1,9})", re.IGNORECASE)


class AgentLink(BaseLink):
    """An agent's place, and the commissions that are run there."""

    can_ask = False
    """It may ask, but what it lists and does is the same for everybody, whatever they can be asked."""
    carrier = "agent"

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        *,
        reach: AgentSettings,
        credentials: Credentials,
        egress: Egress,
        background: BackgroundTasks,
        max_calls: int,
    ) -> None:
        super().__init__(server, me, limits)
        self.dialect = LegacyDialect("A2A")
        self._egress = egress
        self._background = background
        self._max_calls = max_calls
        self._origins = reach.origins
        self._home, target = parse_url(reach.url)
        self._card_targets = card_targets(target)
        self._credentials = credentials
        self._clients: dict[Origin, HttpClient] = {}
        self._card: Card | None = None
        self._tag = ""
        self._ttl_seconds: float | None = None
        self._contact: Contact | None = None
        self._notes: tuple[str, ...] = ()
        """What is odd about the card."""
        self._offers: dict[str, Offered] = {}
        self.given = GivenTasks()
        """Who may go on with which task; the links of a hub share one, which whoever makes them sets."""
        self.lingering = Lingering()
        self._commissions: set[Commission] = set()
        self._farewells: dict[Farewell, None] = {}  # the oldest first

    @property
    def _headers(self) -> dict[str, str]:
        """What the agent is shown now."""
        return {name.lower(): value for name, value in self._credentials.headers_for(self.server).items()}

    @property
    def can_stream(self) -> bool:
        """Whether the agent tells of its tasks while they run."""
        return self._card is not None and self._card.can_stream

    @property
    def is_hub(self) -> bool:
        """Whether it is another hub, which says more exactly what it means."""
        return bool(self.hubs)

    @property
    def is_lost(self) -> bool:
        """Whether nothing more can be sent."""
        return self.lost.done()

    # -- the card --------------------------------------------------------------------------------------------------

    async def greet(self, era: Era) -> None:
        """Read the card and choose the place to speak to.

        Raises:
            ConnectFailed: there is no card, or none that can be used.
            Fault: it cannot be had.
        """
        await self._read_card(self.start_seconds)

    async def ping(self, within: float) -> None:
        """See whether the agent is still there; whatever it answers."""
        await self._fetch(self._card_targets[0], within)

    async def look_round(self) -> None:
        """Which hubs there are is said in the card."""
        await self._read_again()

    async def _read_card(self, within: float) -> None:
        fetched = await self._fetch_card(within)
        self._ttl_seconds = _max_age(fetched.headers.get("cache-control", ""))
        if fetched.status == NOT_MODIFIED:
            return
        card = read_card(fetched.body)
        if isinstance(card, str):
            raise ConnectFailed(card)
        contact = choose(card, self._home, self._origins, self.limits.depth)
        if isinstance(contact, str):
            raise ConnectFailed(contact)
        self._settle(*await self._extended(card, contact, within))
        # The card that only we see may change without the one that everybody sees.
        tag = fetched.headers.get("etag", "")
        self._tag = tag if _TAG.fullmatch(tag) and not card.has_extended else ""

    async def _extended(self, card: Card, contact: Contact, within: float) -> tuple[Card, Contact]:
        """The card for those who prove who they are, if there is one that can be used; else this one."""
        self._notes = _required(card)
        if not card.has_extended or not self._headers:
            return card, contact
        more = await self._fetch_extended(contact, within)
        if isinstance(more, str):
            self._notes = (*self._notes, f"it does not give the card that it promises: {more}")
            return card, contact
        other = choose(more, self._home, self._origins, self.limits.depth)
        return more, contact if isinstance(other, str) else other

    async def _fetch_extended(self, contact: Contact, within: float) -> Card | str:
        id = self.next_id()
        try:
            fetched = await self._get(contact.origin, self._head(contact, contact.binding.write_card(id)), within)
        except (NotConnected, BadReply) as failed:
            return failed.why
        body = contact.binding.read_card(id, fetched.status, fetched.body)
        return body.message if isinstance(body, Problem) else read_card(body)

    async def _read_again(self) -> None:
        """A card that cannot be had or used any more is a bad answer: the calls that the agent works on go on."""
        try:
            await self._read_card(ASK_SECONDS)
        except ConnectFailed as failed:
            raise BadReply(self.server, str(failed)) from failed
        except NotConnected as refused:
            if refused.status is None:
                raise
            raise BadReply(self.server, refused.why) from refused

    def _settle(self, card: Card, contact: Contact) -> None:
        hubs = next((each.params for each in card.extensions if each.uri == HUBS), b"")
        self.hubs = read_hubs(hubs)
        self._card, self._contact = card, contact
        self._offers = offers_of(card, self.server)
        self.dialect = LegacyDialect(f"A2A {contact.binding.version}")

    async def _fetch_card(self, within: float) -> Fetched:
        """Ask for the card where it may be; where it is found, it is looked for first from then on."""
        fetched = Fetched(0, {}, b"")
        for target in self._card_targets:
            fetched = await self._fetch(target, within)
            if fetched.status == OK or (fetched.status == NOT_MODIFIED and self._tag):
                self._card_targets = (target, *(other for other in self._card_targets if other != target))
                return fetched
            if fetched.status not in NOT_FOUND:
                break
            self._tag = ""  # what is elsewhere is another document
        raise self._no_card(fetched)

    def _no_card(self, fetched: Fetched) -> NotConnected:
        status = fetched.status
        detail = f"it answered HTTP {status} where its card should be{ADVICE.get(status, '')}"
        return NotConnected(self.server, detail, status=status, login=login_place(status, fetched.headers))

    async def _fetch(self, target: str, within: float) -> Fetched:
        known = {"if-none-match": self._tag} if self._tag else {}
        head = request_head("GET", target, self._home, {**self._headers, **known, "accept": CARD_ACCEPT})
        return await self._get(self._home, (head, None), within)

    async def _get(self, origin: Origin, request: tuple[bytes, bytes | None], within: float) -> Fetched:
        fetch = Fetch(self.server, PAGE_BYTES_MAX)
        fetch.ticket = self._client(origin).send(*request, fetch)
        try:
            async with asyncio.timeout(within):
                return await fetch.done
        except TimeoutError:
            raise BadReply(self.server, f"no card within {within:g} s") from None
        finally:
            fetch.ticket.abort()

    def abilities(self) -> frozenset[Ability]:
        """Tools, and nothing else."""
        return frozenset(("tools",))

    async def list_features(
        self,
        topics: Set[Topic] = frozenset(TOPICS),
        known: Listing | None = None,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
    ) -> Listing:
        """The skills of the card, which is read again if it was listed before.

        Raises:
            Fault: it cannot be had now, or cannot be used.
        """
        if known is not None and "tools" not in topics:
            return known
        if known is not None:
            await self._read_again()
        return listing_of(self._offers.values(), self.limits, self._ttl_seconds, self._notes)

    # -- commissions ---------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Tell the agent what it is to do."""
        offered = self._offers.get(inflight.name)
        if offered is None or self.is_lost:
            inflight.finish(NotConnected(self.server, f"it has no skill {inflight.name} any more"))
            return
        told = self._told(offered, inflight.call)
        if isinstance(told, str):
            inflight.finish(BadArguments(inflight.call.name, told))
            return
        commission = inflight.carriage = Commission(self, inflight, told)
        self._commissions.add(commission)
        commission.begin()

    def _told(self, offered: Offered, call: Call) -> Told | str:
        told = told_by(offered, call.arguments)
        if isinstance(told, str) or not told.task or self.given.has(call.caller, self.server, told.task):
            return told
        return f"task_id {told.task[:100]!r} is no task that you were given here; leave it out to begin a new one"

    def visit(self, asked: Asked, owner: VisitOwner) -> Visit:
        """Send a request to the place where the agent is spoken to."""
        contact = self._contact
        assert contact is not None, "the card was read before anything was sent"
        visit = Visit(self, contact.binding, self.next_id(), asked, owner)
        visit.ticket = self._dial(contact, visit)
        return visit

    def _dial(self, contact: Contact, visit: Visit) -> Ticket:
        asked = visit.asked
        is_stream = isinstance(asked, Subscribe) or (isinstance(asked, Send) and asked.is_stream)
        accept = "text/event-stream, application/json" if is_stream else JSON
        head, body = self._head(contact, contact.binding.write(visit.id, asked), accept)
        return self._client(contact.origin).send(head, body, visit)

    def _head(self, contact: Contact, outgoing: Outgoing, accept: str = JSON) -> tuple[bytes, bytes | None]:
        """A request as it is sent: its head, and its body."""
        own = {"accept": accept, PARAMETER.lower(): contact.binding.version}
        if outgoing.body is not None:
            own["content-type"] = JSON
        headers = {**self._headers, **own}
        return request_head(outgoing.verb, contact.target(outgoing.path), contact.origin, headers), outgoing.body

    def over(self, commission: Commission) -> None:
        """See `CommissionOwner`."""
        self._commissions.discard(commission)

    def took_up(self, inflight: InFlight, task: str) -> None:
        """See `CommissionOwner`: from now on its caller may go on with it."""
        self.given.add(inflight.call.caller, self.server, task)

    def give_up_task(self, task: str) -> None:
        """Tell the agent that nobody waits for a task; what it answers is of no interest."""
        if not self.is_lost:
            farewell = Farewell(self._ended)
            self._farewells[farewell] = None
            farewell.begin(self.visit(Cancel(task), farewell))
            asyncio.get_running_loop().call_later(TOLD_SECONDS, self._end_farewells)

    def _ended(self, farewell: Farewell) -> None:
        self._farewells.pop(farewell, None)

    def _end_farewells(self) -> None:
        """What an agent was told and does not answer holds few connections; what waits for one has yet to be told."""
        while len(self._farewells) > FAREWELLS_MAX and (oldest := next(iter(self._farewells))).has_left:
            oldest.end()

    def may_have_run(self, inflight: InFlight) -> bool:
        """What waits for a connection has not left."""
        return not isinstance(inflight.carriage, Commission) or inflight.carriage.may_have_run

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Give the task up over there."""
        if isinstance(inflight.carriage, Commission):
            inflight.carriage.give_up()

    async def aclose(self) -> None:
        """Close every connection; whatever is still on one ends as lost, and its agent is told to stop."""
        for commission in list(self._commissions):
            commission.take_leave()
        self._lose("closed by the hub")
        for commission in list(self._commissions):
            commission.close()
        await self._say_farewell()
        for client in self._clients.values():
            await client.aclose()

    async def _say_farewell(self) -> None:
        """Let what was just given up reach the agent, for a moment."""
        pending = {farewell.done for farewell in self._farewells}
        if pending:
            await asyncio.wait(pending, timeout=CLOSE_SECONDS)

    def _client(self, origin: Origin) -> HttpClient:
        if origin not in self._clients:
            self._clients[origin] = client_for(
                self._credentials.signer,
                origin,
                self._egress,
                self._background,
                is_configured=True,
                limit=self._max_calls + SPARE_CONNECTIONS,
                connect_seconds=self.limits.connect_seconds,
            )
        return self._clients[origin]

    # -- what agents have no words for -----------------------------------------------------------------------------

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        waiter.fail(NotConnected(self.server, f"it is an agent, and does not know {method}"))

    def _forget(self, waiter: Waiter) -> None:
        """Nobody waits for anything but commissions."""

    def _notify(self, method: str, params: Payload | None) -> None:
        """An agent is told nothing but messages."""

    def listen(self) -> None:
        """An agent tells nothing beside its tasks."""


def _required(card: Card) -> tuple[str, ...]:
    """What an agent wants its clients to know that the hub does not; it may refuse every message for that."""
    unknown = [extension.uri for extension in card.extensions if extension.is_required and extension.uri not in KNOWN]
    return tuple(f"it requires the extension {uri[:200]!r}, which is not known here" for uri in unknown)


def _max_age(control: str) -> float | None:
    """How long a card says that it holds; None if it does not say, or not at all."""
    found = _MAX_AGE.search(control)
    return None if found is None else max(float(found[1]), TTL_SECONDS_MIN)
