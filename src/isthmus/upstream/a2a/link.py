"""A link to an A2A 1.0 or 0.3 agent: its card is its list of tools, and each call is a remote task.

The card is read in the handshake and with every listing, so that changed skills change the list. An agent sends nothing
by itself. Reconnectors own such links; server queues send calls on them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Set

from msgspec.structs import replace

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.ports import Credentials
from isthmus.core.settings import Limits
from isthmus.model.calls import ClientCapabilities
from isthmus.model.fault_table import BadArguments, BadReply, NotConnected
from isthmus.model.features import Ability, Topic
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress, HttpOrigin, parse_url
from isthmus.transport.http_client import HttpClient, HttpResponse, ResponseLost, ResponseTooLong, request_head
from isthmus.upstream.a2a.card_to_tools import (
    AgentEndpoint,
    SkillTool,
    card_targets,
    choose_endpoint,
    listing_of,
    tools_of,
)
from isthmus.upstream.a2a.mcp_conversion import message_for
from isthmus.upstream.a2a.remote_task import (
    DRAINING_MAX,
    CancelRequest,
    DrainingConnections,
    HttpExchange,
    RemoteTask,
    TaskIds,
)
from isthmus.upstream.base_link import ASK_SECONDS, BaseLink, ConnectFailed
from isthmus.upstream.http_shared import ADVICE, OK, login_url
from isthmus.upstream.listing import TTL_SECONDS_MIN, Listing
from isthmus.upstream.response_waiters import Waiter
from isthmus.upstream.server_settings import AgentSettings, Era
from isthmus.wire.a2a.cards import HUBS, SCHEMAS, AgentCard, read_card
from isthmus.wire.a2a.client import ClientOperation, ClientRequest
from isthmus.wire.a2a.negotiate import VERSION_PARAMETER
from isthmus.wire.a2a.operations import A2aProblem, CancelTask, SendMessage, SubscribeToTask
from isthmus.wire.mcp.forwarded_methods import LegacyDialect
from isthmus.wire.mcp.messages import Implementation, read_hubs

CANCELS_MAX = 2
"""Cancel requests that wait for a response after `CANCEL_GRACE_SECONDS`; before, their number is not limited."""

CANCEL_GRACE_SECONDS = 1.0

SPARE_CONNECTIONS = 2 + DRAINING_MAX + CANCELS_MAX
"""Connections besides those for calls: the card, a ping, lingering connections and cancel requests."""

CLOSE_SECONDS = 1.0
"""How long a link waits for its cancel requests when it closes."""

NOT_MODIFIED = 304
NOT_FOUND = (404, 405, 410)
"""Statuses that mean that there is no card at a URL."""

CARD_BYTES_MAX = 4 * 1024 * 1024
"""A card: a thousand skills of four kilobytes. It is read at once, which would hold up calls if it were longer."""

JSON = "application/json"
CARD_ACCEPT = "application/json, application/a2a+json"

KNOWN = frozenset((HUBS, SCHEMAS))
"""The A2A extensions that the hub supports."""

_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]{0,200}"')
_MAX_AGE = re.compile(r"(?:^|[,\s])max-age\s*=\s*(\d{1,9})", re.IGNORECASE)


class AgentLink(BaseLink):
    """An agent's endpoint, and the remote tasks that run there."""

    can_ask = False
    """An agent may ask questions, but its list does not depend on the client's capabilities."""
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
        """Warnings about the card, for the operator."""
        self._tools: dict[str, SkillTool] = {}
        self.task_ids = TaskIds()
        """Ids with which callers continue their tasks. The links of a hub share one; the factory of links sets it."""
        self.draining = DrainingConnections()
        self._remote_tasks: set[RemoteTask] = set()
        self._cancel_requests: dict[CancelRequest, None] = {}  # the oldest first

    @property
    def _headers(self) -> dict[str, str]:
        """The current credentials of the operator for this agent."""
        return {name.lower(): value for name, value in self._credentials.headers_for(self.server).items()}

    @property
    def can_stream(self) -> bool:
        """Whether the agent streams updates of its tasks."""
        return self._card is not None and self._card.can_stream

    @property
    def is_hub(self) -> bool:
        """Whether the agent is another hub, whose messages contain MCP values."""
        return bool(self.hubs)

    @property
    def is_lost(self) -> bool:
        """Whether the link can no longer send requests."""
        return self.lost.done()

    # -- the card --------------------------------------------------------------------------------------------------

    async def handshake(self, era: Era) -> None:
        """Read the card and choose an endpoint.

        Raises:
            ConnectFailed: there is no usable card.
            Fault: the card cannot be fetched.
        """
        await self._read_card(self.start_seconds)

    async def ping(self, within: float) -> None:
        """Check that the agent responds, with any status."""
        await self._fetch(self._card_targets[0], within)

    async def refresh_hubs(self) -> None:
        """Read the card again, which lists the hubs behind the agent."""
        await self._read_again()

    async def _read_card(self, within: float) -> None:
        fetched = await self._fetch_card(within)
        age = _MAX_AGE.search(fetched.headers.get("cache-control", ""))
        self._ttl_seconds = None if age is None else max(float(age[1]), TTL_SECONDS_MIN)
        if fetched.status == NOT_MODIFIED:
            return
        card = read_card(fetched.body)
        if isinstance(card, str):
            raise ConnectFailed(card)
        contact = choose_endpoint(card, self._home, self._origins, self.limits.depth)
        if isinstance(contact, str):
            raise ConnectFailed(contact)
        shown = card
        unknown = [
            extension.uri for extension in card.extensions if extension.is_required and extension.uri not in KNOWN
        ]
        self._notes = tuple(
            f"it requires the extension {uri[:200]!r}, which the hub does not support" for uri in unknown
        )
        if card.has_extended and self._headers:
            more = await self._fetch_extended(contact, within)
            if isinstance(more, str):
                self._notes = (*self._notes, f"it does not return the extended card that it announces: {more}")
            else:
                other = choose_endpoint(more, self._home, self._origins, self.limits.depth)
                shown, contact = more, contact if isinstance(other, str) else other
        self.hubs = read_hubs(next((extension.params for extension in shown.extensions if extension.uri == HUBS), b""))
        self._card, self._contact = shown, contact
        self._tools = tools_of(shown, self.server)
        self.dialect = LegacyDialect(f"A2A {contact.binding.version}")
        # The extended card may change without the public one, so its tag is not enough to skip reading.
        tag = fetched.headers.get("etag", "")
        self._tag = tag if _TAG.fullmatch(tag) and not card.has_extended else ""

    async def _fetch_extended(self, contact: AgentEndpoint, within: float) -> AgentCard | str:
        """The card for authenticated callers, or the reason why the agent did not send it."""
        id = self.requests.next_id()
        try:
            fetched = await self._get(contact.origin, self._head(contact, contact.binding.write_card(id)), within)
        except (NotConnected, BadReply) as failed:
            return failed.why
        body = contact.binding.read_card(id, fetched.status, fetched.body)
        return body.message if isinstance(body, A2aProblem) else read_card(body)

    async def _read_again(self) -> None:
        """Read the card of a connected agent. An unusable card is a `BadReply`, so that running calls go on."""
        try:
            await self._read_card(ASK_SECONDS)
        except ConnectFailed as failed:
            raise BadReply(self.server, str(failed)) from failed
        except NotConnected as refused:
            if refused.status is None:
                raise
            raise BadReply(self.server, refused.why) from refused

    async def _fetch_card(self, within: float) -> HttpResponse:
        """Try the possible URLs of the card; the one that works is tried first from then on."""
        fetched = HttpResponse(0, {}, b"")
        for target in self._card_targets:
            fetched = await self._fetch(target, within)
            if fetched.status == OK or (fetched.status == NOT_MODIFIED and self._tag):
                self._card_targets = (target, *(other for other in self._card_targets if other != target))
                return fetched
            if fetched.status not in NOT_FOUND:
                break
            self._tag = ""  # the next URL has another document
        status = fetched.status
        detail = f"it answered HTTP {status} where its card should be{ADVICE.get(status, '')}"
        raise NotConnected(self.server, detail, status=status, login=login_url(status, fetched.headers))

    async def _fetch(self, target: str, within: float) -> HttpResponse:
        known = {"if-none-match": self._tag} if self._tag else {}
        head = request_head("GET", target, self._home, {**self._headers, **known, "accept": CARD_ACCEPT})
        return await self._get(self._home, (head, None), within)

    async def _get(self, origin: HttpOrigin, request: tuple[bytes, bytes | None], within: float) -> HttpResponse:
        try:
            return await self._client(origin).fetch(*request, limit_bytes=CARD_BYTES_MAX, within=within)
        except TimeoutError:
            raise BadReply(self.server, f"no card within {within:g} s") from None
        except ResponseTooLong:
            raise BadReply(self.server, f"a document of over {CARD_BYTES_MAX} bytes") from None
        except ResponseLost as lost:
            raise NotConnected(self.server, str(lost)) from None

    def abilities(self) -> frozenset[Ability]:
        """Agents have only tools."""
        return frozenset(("tools",))

    async def _read_lists(self, topics: Set[Topic], known: Listing | None, client_caps: ClientCapabilities) -> Listing:
        """The skills of the card as tools. After the first list, the card is read again.

        Raises:
            Fault: the card cannot be fetched, or is unusable.
        """
        if known is not None and "tools" not in topics:
            return known
        if known is not None:
            await self._read_again()
        return listing_of(self._tools.values(), self.limits, self._ttl_seconds, self._notes)

    # -- calls -----------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Start the remote task of a call."""
        offered = self._tools.get(inflight.name)
        if offered is None or self.is_lost:
            inflight.finish(NotConnected(self.server, f"it no longer has a skill {inflight.name}"))
            return
        call = inflight.call
        message = message_for(offered, call.arguments)
        if isinstance(message, str):
            inflight.finish(BadArguments(call.name, message))
            return
        if message.task:
            own = self.task_ids.own(call.caller, self.server, message.task)
            if own is None:
                advice = "is not a task of yours here; leave it out to begin a new one"
                inflight.finish(BadArguments(call.name, f"task_id {message.task[:100]!r} {advice}"))
                return
            message = replace(message, task=own)
        remote_task = inflight.carriage = RemoteTask(self, inflight, message)
        self._remote_tasks.add(remote_task)
        remote_task.begin()

    def start_exchange(
        self, operation: ClientOperation, owner: RemoteTask | CancelRequest, headers: Mapping[str, str] | None = None
    ) -> HttpExchange:
        """Send a request to the agent's endpoint."""
        contact = self._contact
        assert contact is not None, "the card was read before anything was sent"
        exchange = HttpExchange(self, contact.binding, self.requests.next_id(), operation, owner)
        is_stream = isinstance(operation, SubscribeToTask) or (
            isinstance(operation, SendMessage) and operation.is_stream
        )
        accept = "text/event-stream, application/json" if is_stream else JSON
        head, body = self._head(contact, contact.binding.write(exchange.id, operation), accept, headers)
        exchange.ticket = self._client(contact.origin).send(head, body, exchange)
        return exchange

    def _head(
        self,
        contact: AgentEndpoint,
        outgoing: ClientRequest,
        accept: str = JSON,
        more: Mapping[str, str] | None = None,
    ) -> tuple[bytes, bytes | None]:
        """The head and the body of a request."""
        own = {"accept": accept, VERSION_PARAMETER.lower(): contact.binding.version}
        if outgoing.body is not None:
            own["content-type"] = JSON
        headers = {**(more or {}), **self._headers, **own}
        return request_head(outgoing.verb, contact.target(outgoing.path), contact.origin, headers), outgoing.body

    def remote_task_ended(self, remote_task: RemoteTask) -> None:
        """A remote task has ended."""
        self._remote_tasks.discard(remote_task)

    def public_task_id(self, inflight: InFlight, task: str) -> str:
        """The id with which the caller of a call continues its task."""
        return self.task_ids.public(inflight.call.caller, self.server, task)

    def cancel_task(self, task: str) -> None:
        """Cancel a task; the response is ignored."""
        if not self.is_lost:
            cancel_request = CancelRequest(lambda ended: self._cancel_requests.pop(ended, None))
            self._cancel_requests[cancel_request] = None
            cancel_request.begin(self.start_exchange(CancelTask(task), cancel_request))
            asyncio.get_running_loop().call_later(CANCEL_GRACE_SECONDS, self._end_slow_cancels)

    def _end_slow_cancels(self) -> None:
        """Free the connections of old cancel requests. Requests that still wait for a connection are kept."""
        while len(self._cancel_requests) > CANCELS_MAX and (oldest := next(iter(self._cancel_requests))).has_left:
            oldest.end()

    def may_have_run(self, inflight: InFlight) -> bool:
        """False while the message still waits for a connection."""
        return not isinstance(inflight.carriage, RemoteTask) or inflight.carriage.may_have_run

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Cancel the remote task of a call."""
        if isinstance(inflight.carriage, RemoteTask):
            inflight.carriage.give_up()

    async def aclose(self) -> None:
        """Cancel all tasks, end their calls as lost, and close all connections."""
        for remote_task in list(self._remote_tasks):
            remote_task.cancel_if_known()
        self._lose("closed by the hub")
        for remote_task in list(self._remote_tasks):
            remote_task.close()
        if pending := {cancel_request.done for cancel_request in self._cancel_requests}:
            await asyncio.wait(pending, timeout=CLOSE_SECONDS)
        for client in self._clients.values():
            await client.aclose()

    def _client(self, origin: HttpOrigin) -> HttpClient:
        if origin not in self._clients:
            self._clients[origin] = HttpClient(
                origin,
                self._egress,
                self._background,
                is_configured=True,
                limit=self._max_calls + SPARE_CONNECTIONS,
                connect_seconds=self.limits.connect_seconds,
                signer=self._credentials.signer,
            )
        return self._clients[origin]

    # -- parts of MCP that agents do not have ----------------------------------------------------------------------

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        waiter.fail(NotConnected(self.server, f"it is an agent, and does not know {method}"))

    def listen(self) -> None:
        """Agents send no notifications."""
