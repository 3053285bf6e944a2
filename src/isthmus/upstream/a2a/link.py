"""A link to an A2A 1.0 or 0.3 agent: its card is its list of tools, and each call is a remote task.

The card is read in the handshake and with every listing, so that changed skills change the list. An agent sends nothing
by itself. Reconnectors own such links; server queues send calls on them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports import Credentials
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller
from isthmus.model.calls import NO_CAPABILITIES, Call, ClientCapabilities
from isthmus.model.faults import BadArguments, BadReply, Fault, NotConnected
from isthmus.model.features import TOPICS, Ability, Topic
from isthmus.model.names import ServerName
from isthmus.model.tasks import Update
from isthmus.transport.egress import Egress, HttpOrigin, parse_url
from isthmus.transport.http import ConnectionLost, HttpClient, Ticket, client_for, request_head
from isthmus.upstream.a2a.agent_card import (
    AgentEndpoint,
    SkillTool,
    card_targets,
    choose_endpoint,
    listing_of,
    tools_of,
)
from isthmus.upstream.a2a.http_exchange import LINGERING_MAX, ExchangeOwner, HttpExchange, LingeringConnections
from isthmus.upstream.a2a.messages import TaskMessage, message_for
from isthmus.upstream.a2a.remote_task import RemoteTask
from isthmus.upstream.dialect import LegacyDialect
from isthmus.upstream.http_shared import ADVICE, OK, login_url
from isthmus.upstream.link import ASK_SECONDS, BaseLink, ConnectFailed
from isthmus.upstream.listing import PAGE_BYTES_MAX, TTL_SECONDS_MIN, Listing
from isthmus.upstream.settings import AgentSettings, Era
from isthmus.upstream.waiters import Waiter
from isthmus.wire.a2a.cards import HUBS, SCHEMAS, AgentCard, read_card
from isthmus.wire.a2a.client import ClientOperation, ClientRequest
from isthmus.wire.a2a.negotiate import VERSION_PARAMETER
from isthmus.wire.a2a.operations import A2aProblem, CancelTask, SendMessage, SubscribeToTask
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.messages import Implementation, read_hubs

CANCEL_SECONDS = 10.0
"""How long an agent may take to hear it."""


class CancelRequest:
    """Waits until the agent has answered a cancel request, or long enough."""

    def __init__(self, on_done: Callable[[CancelRequest], None]) -> None:
        self._on_done = on_done
        self._exchange: HttpExchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, exchange: HttpExchange) -> None:
        """Wait for the answer."""
        self._exchange = exchange
        self._timer = asyncio.get_running_loop().call_later(CANCEL_SECONDS, self.end)

    @property
    def has_left(self) -> bool:
        """Whether the agent may have heard it."""
        return self._exchange is not None and self._exchange.may_have_left

    def on_update(self, update: Update, *, is_whole: bool) -> None:
        """See `ExchangeOwner`."""
        self.end()

    def ended(self) -> None:
        """See `ExchangeOwner`."""
        self.end()

    def failed(self, fault: Fault) -> None:
        """See `ExchangeOwner`; the task may have ended by itself."""
        self.end()

    def end(self) -> None:
        """Wait no longer."""
        if self._timer is not None:
            self._timer.cancel()
        if self._exchange is not None:
            self._exchange.abandon()
        if not self.done.done():
            self.done.set_result(None)
        self._on_done(self)


class CardReply(NamedTuple):
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class CardFetch:
    """A reply that is collected; `done` is awaited by whoever asked, and raises `Fault`."""

    def __init__(self, server: ServerName, limit_bytes: int) -> None:
        self._server = server
        self._limit_bytes = limit_bytes
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()
        self.ticket: Ticket | None = None
        self.done: asyncio.Future[CardReply] = asyncio.get_running_loop().create_future()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the status and the headers."""
        self._status, self._headers = status, headers

    def on_body(self, chunk: bytes) -> None:
        """Take a part of the document."""
        self._body += chunk
        if len(self._body) > self._limit_bytes:
            self._fail(BadReply(self._server, f"a document of over {self._limit_bytes} bytes"))
            if self.ticket is not None:
                self.ticket.abort()

    def on_end(self) -> None:
        """The document is whole."""
        if not self.done.done():
            self.done.set_result(CardReply(self._status, self._headers, bytes(self._body)))

    def on_lost(self, lost: ConnectionLost) -> None:
        """The document never became whole."""
        self._fail(NotConnected(self._server, lost.reason))

    def _fail(self, fault: BadReply | NotConnected) -> None:
        if not self.done.done():
            self.done.set_exception(fault)


TASKS_OF_CALLER_MAX = 1_000
TASKS_MAX = 10_000
"""Of all callers together; the oldest are forgotten first."""


class _Owner(NamedTuple):
    tenant: str
    name: str


class _OwnedTask(NamedTuple):
    owner: _Owner
    server: ServerName
    id: str


class TaskOwners:
    """Which caller each remote task belongs to, so that nobody can continue another caller's task.

    In memory and bounded. All links to agents share one.
    """

    def __init__(self) -> None:
        self._all: dict[_OwnedTask, None] = {}
        self._of: dict[_Owner, dict[_OwnedTask, None]] = {}

    def add(self, caller: Caller, server: ServerName, id: str) -> None:
        """A caller was given a task, or has just gone on with it."""
        task = _owned_task(caller, server, id)
        self._forget(task)
        own = self._of.setdefault(task.owner, {})
        self._all[task] = own[task] = None
        if len(own) > TASKS_OF_CALLER_MAX:
            self._forget(next(iter(own)))
        elif len(self._all) > TASKS_MAX:
            self._forget(next(iter(self._all)))

    def has(self, caller: Caller, server: ServerName, id: str) -> bool:
        """Whether it is a task of this caller's."""
        return _owned_task(caller, server, id) in self._all

    def _forget(self, task: _OwnedTask) -> None:
        if task not in self._all:
            return
        del self._all[task]
        own = self._of[task.owner]
        del own[task]
        if not own:
            del self._of[task.owner]


def _owned_task(caller: Caller, server: ServerName, id: str) -> _OwnedTask:
    return _OwnedTask(_Owner(caller.tenant, caller.name), server, id)


CANCELS_MAX = 2
"""Tasks given up of which the agent was told and may still answer, after a moment in which it is any number."""

CANCEL_GRACE_SECONDS = 1.0

SPARE_CONNECTIONS = 2 + LINGERING_MAX + CANCELS_MAX
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
    """An agent's endpoint, and the remote tasks that run there."""

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
        self._clients: dict[HttpOrigin, HttpClient] = {}
        self._card: AgentCard | None = None
        self._tag = ""
        self._ttl_seconds: float | None = None
        self._contact: AgentEndpoint | None = None
        self._notes: tuple[str, ...] = ()
        """What is odd about the card."""
        self._tools: dict[str, SkillTool] = {}
        self.task_owners = TaskOwners()
        """Who may go on with which task; the links of a hub share one, which whoever makes them sets."""
        self.lingering = LingeringConnections()
        self._remote_tasks: set[RemoteTask] = set()
        self._cancel_requests: dict[CancelRequest, None] = {}  # the oldest first

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

    async def handshake(self, era: Era) -> None:
        """Read the card and choose the place to speak to.

        Raises:
            ConnectFailed: there is no card, or none that can be used.
            Fault: it cannot be had.
        """
        await self._read_card(self.start_seconds)

    async def ping(self, within: float) -> None:
        """See whether the agent is still there; whatever it answers."""
        await self._fetch(self._card_targets[0], within)

    async def refresh_hubs(self) -> None:
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
        contact = choose_endpoint(card, self._home, self._origins, self.limits.depth)
        if isinstance(contact, str):
            raise ConnectFailed(contact)
        self._use_card(*await self._extended(card, contact, within))
        # The card that only we see may change without the one that everybody sees.
        tag = fetched.headers.get("etag", "")
        self._tag = tag if _TAG.fullmatch(tag) and not card.has_extended else ""

    async def _extended(
        self, card: AgentCard, contact: AgentEndpoint, within: float
    ) -> tuple[AgentCard, AgentEndpoint]:
        """The card for those who prove who they are, if there is one that can be used; else this one."""
        self._notes = _unknown_extensions(card)
        if not card.has_extended or not self._headers:
            return card, contact
        more = await self._fetch_extended(contact, within)
        if isinstance(more, str):
            self._notes = (*self._notes, f"it does not give the card that it promises: {more}")
            return card, contact
        other = choose_endpoint(more, self._home, self._origins, self.limits.depth)
        return more, contact if isinstance(other, str) else other

    async def _fetch_extended(self, contact: AgentEndpoint, within: float) -> AgentCard | str:
        id = self.next_id()
        try:
            fetched = await self._get(contact.origin, self._head(contact, contact.binding.write_card(id)), within)
        except (NotConnected, BadReply) as failed:
            return failed.why
        body = contact.binding.read_card(id, fetched.status, fetched.body)
        return body.message if isinstance(body, A2aProblem) else read_card(body)

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

    def _use_card(self, card: AgentCard, contact: AgentEndpoint) -> None:
        hubs = next((each.params for each in card.extensions if each.uri == HUBS), b"")
        self.hubs = read_hubs(hubs)
        self._card, self._contact = card, contact
        self._tools = tools_of(card, self.server)
        self.dialect = LegacyDialect(f"A2A {contact.binding.version}")

    async def _fetch_card(self, within: float) -> CardReply:
        """Ask for the card where it may be; where it is found, it is looked for first from then on."""
        fetched = CardReply(0, {}, b"")
        for target in self._card_targets:
            fetched = await self._fetch(target, within)
            if fetched.status == OK or (fetched.status == NOT_MODIFIED and self._tag):
                self._card_targets = (target, *(other for other in self._card_targets if other != target))
                return fetched
            if fetched.status not in NOT_FOUND:
                break
            self._tag = ""  # what is elsewhere is another document
        raise self._no_card(fetched)

    def _no_card(self, fetched: CardReply) -> NotConnected:
        status = fetched.status
        detail = f"it answered HTTP {status} where its card should be{ADVICE.get(status, '')}"
        return NotConnected(self.server, detail, status=status, login=login_url(status, fetched.headers))

    async def _fetch(self, target: str, within: float) -> CardReply:
        known = {"if-none-match": self._tag} if self._tag else {}
        head = request_head("GET", target, self._home, {**self._headers, **known, "accept": CARD_ACCEPT})
        return await self._get(self._home, (head, None), within)

    async def _get(self, origin: HttpOrigin, request: tuple[bytes, bytes | None], within: float) -> CardReply:
        fetch = CardFetch(self.server, PAGE_BYTES_MAX)
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
        return listing_of(self._tools.values(), self.limits, self._ttl_seconds, self._notes)

    # -- commissions ---------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Tell the agent what it is to do."""
        offered = self._tools.get(inflight.name)
        if offered is None or self.is_lost:
            inflight.finish(NotConnected(self.server, f"it has no skill {inflight.name} any more"))
            return
        told = self._message(offered, inflight.call)
        if isinstance(told, str):
            inflight.finish(BadArguments(inflight.call.name, told))
            return
        remote_task = inflight.carriage = RemoteTask(self, inflight, told)
        self._remote_tasks.add(remote_task)
        remote_task.begin()

    def _message(self, offered: SkillTool, call: Call) -> TaskMessage | str:
        told = message_for(offered, call.arguments)
        if isinstance(told, str) or not told.task or self.task_owners.has(call.caller, self.server, told.task):
            return told
        return f"task_id {told.task[:100]!r} is no task that you were given here; leave it out to begin a new one"

    def start_exchange(self, asked: ClientOperation, owner: ExchangeOwner) -> HttpExchange:
        """Send a request to the place where the agent is spoken to."""
        contact = self._contact
        assert contact is not None, "the card was read before anything was sent"
        exchange = HttpExchange(self, contact.binding, self.next_id(), asked, owner)
        exchange.ticket = self._dial(contact, exchange)
        return exchange

    def _dial(self, contact: AgentEndpoint, exchange: HttpExchange) -> Ticket:
        asked = exchange.asked
        is_stream = isinstance(asked, SubscribeToTask) or (isinstance(asked, SendMessage) and asked.is_stream)
        accept = "text/event-stream, application/json" if is_stream else JSON
        head, body = self._head(contact, contact.binding.write(exchange.id, asked), accept)
        return self._client(contact.origin).send(head, body, exchange)

    def _head(self, contact: AgentEndpoint, outgoing: ClientRequest, accept: str = JSON) -> tuple[bytes, bytes | None]:
        """A request as it is sent: its head, and its body."""
        own = {"accept": accept, VERSION_PARAMETER.lower(): contact.binding.version}
        if outgoing.body is not None:
            own["content-type"] = JSON
        headers = {**self._headers, **own}
        return request_head(outgoing.verb, contact.target(outgoing.path), contact.origin, headers), outgoing.body

    def over(self, remote_task: RemoteTask) -> None:
        """See `RemoteTaskLink`."""
        self._remote_tasks.discard(remote_task)

    def task_started(self, inflight: InFlight, task: str) -> None:
        """See `RemoteTaskLink`: from now on its caller may continue the task."""
        self.task_owners.add(inflight.call.caller, self.server, task)

    def cancel_task(self, task: str) -> None:
        """Cancel a task; the response is ignored."""
        if not self.is_lost:
            cancel_request = CancelRequest(self._ended)
            self._cancel_requests[cancel_request] = None
            cancel_request.begin(self.start_exchange(CancelTask(task), cancel_request))
            asyncio.get_running_loop().call_later(CANCEL_GRACE_SECONDS, self._end_slow_cancels)

    def _ended(self, cancel_request: CancelRequest) -> None:
        self._cancel_requests.pop(cancel_request, None)

    def _end_slow_cancels(self) -> None:
        """What an agent was told and does not answer holds few connections; what waits for one has yet to be told."""
        while len(self._cancel_requests) > CANCELS_MAX and (oldest := next(iter(self._cancel_requests))).has_left:
            oldest.end()

    def may_have_run(self, inflight: InFlight) -> bool:
        """What waits for a connection has not left."""
        return not isinstance(inflight.carriage, RemoteTask) or inflight.carriage.may_have_run

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Give the task up over there."""
        if isinstance(inflight.carriage, RemoteTask):
            inflight.carriage.give_up()

    async def aclose(self) -> None:
        """Close every connection; whatever is still on one ends as lost, and its agent is told to stop."""
        for remote_task in list(self._remote_tasks):
            remote_task.cancel_if_known()
        self._lose("closed by the hub")
        for remote_task in list(self._remote_tasks):
            remote_task.close()
        await self._wait_for_cancels()
        for client in self._clients.values():
            await client.aclose()

    async def _wait_for_cancels(self) -> None:
        """Let what was just given up reach the agent, for a moment."""
        pending = {cancel_request.done for cancel_request in self._cancel_requests}
        if pending:
            await asyncio.wait(pending, timeout=CLOSE_SECONDS)

    def _client(self, origin: HttpOrigin) -> HttpClient:
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
        """Only remote tasks wait for responses."""

    def _notify(self, method: str, params: Payload | None) -> None:
        """Agents get no notifications."""

    def listen(self) -> None:
        """Agents send no notifications."""


def _unknown_extensions(card: AgentCard) -> tuple[str, ...]:
    """What an agent wants its clients to know that the hub does not; it may refuse every message for that."""
    unknown = [extension.uri for extension in card.extensions if extension.is_required and extension.uri not in KNOWN]
    return tuple(f"it requires the extension {uri[:200]!r}, which is not known here" for uri in unknown)


def _max_age(control: str) -> float | None:
    """How long a card says that it holds; None if it does not say, or not at all."""
    found = _MAX_AGE.search(control)
    return None if found is None else max(float(found[1]), TTL_SECONDS_MIN)
