"""The REST API: `/v1` and `/openapi.json`. Tools have their canonical names here, whatever `/mcp` lists.

A request to a server becomes a call, and a caller that disconnects cancels it. Calls whose short body is already here,
which are nearly all, start without an asyncio task (`take`); everything else is an ASGI application (`serve`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Literal, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from isthmus.core.admin_ports import (
    AccessReports,
    ApprovalAdmin,
    ApprovalAlreadyDecided,
    ApprovalVerdict,
    AuditReports,
    BudgetAdmin,
    CaptureOrder,
    CaptureState,
    ClusterReports,
    EndedCall,
    HubAdmin,
    RelayAdmin,
    SessionAdmin,
    TaskAdmin,
)
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.view import View
from isthmus.core.event_loop import LONG_BYTES, in_passes, pause_after, read_message
from isthmus.frontends.http.auth import Authenticator, Denied, Fields
from isthmus.frontends.http.nodes import ALONE, Nodes, new_id
from isthmus.frontends.http.request_cycle import (
    CROWDED_BYTES,
    FIELDS,
    JSON,
    PEER,
    STREAM,
    DrainAwarePeer,
    IncomingRequest,
    KeepAlive,
    Message,
    Peer,
    Receive,
    Send,
    accepted_types,
    header_lines,
    is_json,
    join_headers,
    read_body,
)
from isthmus.frontends.rest import openapi
from isthmus.frontends.rest.access import access_page, access_summary, preview_access
from isthmus.frontends.rest.audit import audit_page, export_audit, verify_audit
from isthmus.frontends.rest.listings import (
    Query,
    RelayView,
    entity_tag,
    entry_document,
    list_passes,
    log_document,
    page_passes,
    search_passes,
    server_document,
    servers_document,
    servers_tag,
    short_list_passes,
    stats_passes,
)
from isthmus.frontends.rest.operation_table import ACTIONS, ROUTER, Operation, RouteMatch
from isthmus.frontends.rest.problem_details import Problem, denial, problem_of, refusal
from isthmus.frontends.rest.tasks import (
    TaskEventStream,
    TaskRequest,
    TaskResponder,
    answer_about_tasks,
    cancel_task,
    get_task,
    list_tasks,
)
from isthmus.model.callers import Caller
from isthmus.model.calls import (
    EVERYTHING,
    LOG_LEVELS,
    NO_CAPABILITIES,
    NOT_ASKED,
    Answered,
    Call,
    ClientCapabilities,
    Event,
    LogLevel,
    LogMessage,
    OnReply,
    Outcome,
    Question,
    Surface,
    is_at_least,
)
from isthmus.model.fault_table import Fault, UnknownPrompt, UnknownTool
from isthmus.model.names import ServerName
from isthmus.model.trace_context import PARENT_HEADER, STATE_HEADER, with_http_context
from isthmus.wire import sse
from isthmus.wire.jsonrpc import Malformed, decode_object, object_members, object_passes, render, unreadable
from isthmus.wire.mcp.forwarded_methods import EMPTY_OBJECT, read_request
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListShape
from isthmus.wire.mcp.messages import is_object, read_string

PARAMETERS_MAX = 16
"""Far more parameters than any operation has."""

NUMBER_LENGTH_MAX = 15

QUERY_LENGTH_MAX = 200

PREVIEW_BYTES_MAX = 512 * 1024
"""Reading a longer body at once would hold the event loop."""

ENTRIES_MAX = 10_000
"""Entries on a page of a list."""

BAD_CURSOR = "cursor must be the next of the page before; list from the start again"

APPROVALS_MAX = 100
APPROVALS_DEFAULT = 50
"""Approvals of one page. Each has its arguments, which may have 64 KiB."""

BUDGETS_MAX = 500
BUDGETS_DEFAULT = 100
"""Counters of one page."""

ACTIVITY_MAX = 500
ACTIVITY_DEFAULT = 100

SHORT_FIELDS = ("title", "description")
"""What a short list may have beside names. Few, because each choice is rendered and kept for itself."""

REVALIDATED = (b"cache-control", b"private, no-cache")
"""For documents with an entity tag."""

DEFAULT_LEVEL: LogLevel = "info"

Answer: TypeAlias = "bytes | Problem"


CaptureSeconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=600)]
CaptureName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class CaptureRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/activity/capture`."""

    seconds: CaptureSeconds
    server: CaptureName | None = None
    tool: CaptureName | None = None
    caller: CaptureName | None = None


class AllowRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/approvals/allow/{id}`."""

    scope: Literal["once", "hour"] = msgspec.field(default="once", name="for")
    override: bool = False
    """Allow it although somebody has denied it."""


class DenyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/approvals/deny/{id}`."""

    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


DecisionRequest = TypeVar("DecisionRequest", AllowRequest, DenyRequest)


class RestParts(msgspec.Struct, frozen=True):
    """What only a serving hub offers. The paths of a part that is None do not exist."""

    tasks: TaskAdmin | None = None
    sessions: SessionAdmin | None = None
    access: AccessReports | None = None
    audit: AuditReports | None = None
    approvals: ApprovalAdmin | None = None
    budgets: BudgetAdmin | None = None
    cluster: ClusterReports | None = None


NO_PARTS = RestParts()


class RestHttp:
    """The REST frontend."""

    def __init__(
        self,
        hub: Hub,
        auth: Authenticator,
        relay: RelayAdmin | None = None,
        loop_figures: Callable[[], object] = dict,
        *,
        name: str = "rest",
        admin: HubAdmin | None = None,
        parts: RestParts = NO_PARTS,
        nodes: Nodes = ALONE,
    ) -> None:
        """Without a `relay` its paths do not exist. `loop_figures` reports how late the event loop runs.

        Without an `admin` nothing can be restarted, and no calls are counted.

        `name` is the name of this frontend in the audit log.
        """
        self.hub = hub
        self.name = name
        self.relay = relay
        self.loop_figures = loop_figures
        self.admin = admin
        self.parts = parts
        self.nodes = nodes
        self.loop = asyncio.get_running_loop()
        self.questions: dict[str, OpenRestQuestion] = {}
        """Questions that wait for an answer, by id."""
        self.streams: dict[asyncio.Future[None], Caller] = {}
        """Streams that have no end of their own, with their callers; a stream ends when its future is done."""
        self._auth = auth

    def end_streams(self) -> None:
        """End the streams that would keep a closing hub open."""
        self.retain(())

    def retain(self, callers: Container[Caller]) -> None:
        """End the streams of all other callers: those removed, or whose permissions changed."""
        for ended, caller in self.streams.items():
            if caller not in callers and not ended.done():
                ended.set_result(None)

    def take(self, arrival: IncomingRequest) -> bool:
        """Start a call at once, if the request is one and needs no wait."""
        scope = arrival.scope
        match = ROUTER.find(scope["path"])
        operation = None if match is None else match.methods.get(scope["method"])
        if match is None or operation is None or not operation.is_call or self.hub.settling:
            return False
        fields = scope.get(FIELDS) or join_headers(scope["headers"])
        caller = self._auth.admit(fields, "rest", scope)
        if isinstance(caller, Denied):
            return False
        request = RestRequest(self, caller, operation, match, scope, fields, arrival)
        if (problem := request.check()) is not None:
            answer_problem(arrival, problem)
        elif not self.nodes.has_others or request.forward(scope, arrival.body) is None:
            request.start_call(arrival.body, None)
        return True

    async def serve(self, scope: Message, receive: Receive, _: Send) -> None:
        """Serve one request."""
        peer: Peer = scope["extensions"][PEER]
        fields = join_headers(scope["headers"])
        caller = self.admit(fields, scope)
        if isinstance(caller, Denied):
            return answer_problem(peer, denial(caller))
        match = ROUTER.find(scope["path"])
        if match is None:
            text = "Unknown path: /openapi.json describes all paths"
            return answer_problem(peer, refusal("unknown_path", text))
        operation = match.methods.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if operation is None:
            text = f"Use {match.allow.decode()}"
            return answer_problem(peer, refusal("method_not_allowed", text, ((b"allow", match.allow),)))
        request = RestRequest(self, caller, operation, match, scope, fields, peer)
        if (problem := request.check()) is not None:
            return answer_problem(peer, problem)
        if operation.is_call:
            return await request.call(receive, scope)
        if operation.body is not None and not await request.read_body(receive, scope):
            return None
        return await request.respond()

    def admit(self, fields: Fields, scope: Message) -> Caller | Denied:
        """Authenticate the caller, and count a refusal."""
        caller = self._auth.admit(fields, "rest", scope)
        if isinstance(caller, Denied):
            self._auth.on_turned_away("rest", caller.status)
        return caller


class RestRequest:
    """One HTTP request to an operation that exists."""

    __slots__ = (
        "_body",
        "_frontend",
        "_headers",
        "_hub",
        "_is_head",
        "_peer",
        "_query",
        "argument",
        "caller",
        "operation",
        "surface",
    )

    def __init__(
        self,
        frontend: RestHttp,
        caller: Caller,
        operation: Operation,
        match: RouteMatch,
        scope: Message,
        fields: Fields,
        peer: Peer,
    ) -> None:
        self._frontend = frontend
        self._hub = frontend.hub
        self._peer = peer
        self._headers = fields
        self._is_head = scope["method"] == "HEAD"
        self._query = _read_query(scope["query_string"], operation)
        self.caller = caller
        self.operation = operation
        self.argument = match.argument
        self.surface = EVERYTHING
        self._body = b""

    def check(self) -> Problem | None:
        """Check the query and the headers before the body is read."""
        if isinstance(self._query, str):
            return refusal("bad_request", self._query)
        if (name := self._query.get("set")) is not None:
            self.surface = Surface(set=name)
            # As for a server: an unknown set must not push a view out of the cache, and a hidden one looks unknown.
            view = self._hub.snapshot.view(self.caller.grants, self.surface) if name in self._hub.sets else None
            if view is None or not view.servers:
                return refusal("unknown_set", f"Unknown set: {name}")
        has_body = self._headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self._headers
        if self.operation.body is not None and has_body and not is_json(self._headers):
            return refusal("not_json", "Content-Type must be application/json")
        return None

    def parameter(self, name: str) -> str | None:
        """A parameter of the query."""
        return self._parameters().get(name)

    def _parameters(self) -> Query:
        assert isinstance(self._query, dict), "check() refuses an invalid query"
        return self._query

    # -- operations of the hub -------------------------------------------------------------------------------------

    async def respond(self) -> None:
        """Respond with a document of the hub, or with a problem."""
        answer = await RESPONDERS[self.operation.id](self)
        if isinstance(answer, Problem):
            answer_problem(self._peer, answer)
        elif answer is not None:
            self._peer.answer(200, JSON, answer)

    def _list_refusal(self, query: str | None, fields: str | None) -> Problem | None:
        if (bound := self.caller.grants.set) is not None and bound not in self._hub.sets:
            return refusal("unknown_set", f"{self.caller.name} is bound to the set {bound}, which does not exist")
        if query is not None and not 0 < len(query) <= QUERY_LENGTH_MAX:
            return refusal("bad_request", f"query must have 1 to {QUERY_LENGTH_MAX} characters")
        if query is not None and fields is not None:
            return refusal("bad_request", "query and fields cannot be combined")
        return None

    async def list(self, shape: ListShape) -> Answer | None:
        """A list of all servers, or of one; with `query`, what matches; with `fields`, only these members.

        With `limit` or `cursor` it is a page of that.
        """
        server, query, given, view = self.parameter("server"), self.parameter("query"), self.parameter("fields"), None
        if (refused := self._list_refusal(query, given)) is not None:
            return refused
        size = self._page_size()
        if isinstance(size, Problem):
            return size
        if (expose := self.parameter("expose")) is not None:
            if expose != "all":
                return refusal("bad_request", f"expose must be all, not {expose!r}")
            if self._hub.snapshot.exposure(self.caller.grants, self.surface) != "all":  # else that view is there
                self.surface = msgspec.structs.replace(self.surface, expose="all")
        if server is None:
            view = await self.view()
        # The snapshot caches a view for each name; unknown names must not push out those in use.
        elif server in self._hub.server_queues:
            surface = msgspec.structs.replace(self.surface, server=ServerName(server))
            view = await self._hub.view(self.caller.grants, surface)
        if view is None or (server is not None and not view.servers):
            return _unknown_server(server or "")
        is_operator = self.caller.is_operator
        if query is not None:
            return await in_passes(search_passes(view, query, is_operator=is_operator))
        if given is None and size is None:
            return await in_passes(list_passes(view, shape, is_operator=is_operator))
        wanted = [] if given is None else given.split(",")
        if unknown := [each for each in wanted if each not in ("name", *SHORT_FIELDS)]:
            return refusal("bad_request", f"fields may be name, {', '.join(SHORT_FIELDS)}, not {unknown[0]!r}")
        fields = [each for each in SHORT_FIELDS if each in wanted]
        if size is not None:
            cursor, members = self.parameter("cursor") or "", None if given is None else fields
            page = await in_passes(page_passes(view, shape, size, cursor, members, is_operator=is_operator))
            return refusal("bad_request", BAD_CURSOR) if page is None else page
        tag = entity_tag(view.digest, f"-{','.join(fields)}")
        if not self._has(tag):
            self._send_tagged(tag, await in_passes(short_list_passes(view, shape, fields)))
        return None

    def _page_size(self) -> int | Problem | None:
        """How many entries of a list the caller wants; None for all of them."""
        given = self.parameter("limit")
        if given is None and self.parameter("cursor") is None:
            return None
        if self.parameter("query") is not None:
            return refusal("bad_request", "query cannot be combined with limit and cursor")
        if given is None:
            return ENTRIES_MAX
        size = int(given) if given.isdecimal() and len(given) <= NUMBER_LENGTH_MAX else 0
        if not 0 < size <= ENTRIES_MAX:
            return refusal("bad_request", f"limit must be a whole number from 1 to {ENTRIES_MAX}, not {given!r}")
        return size

    def _has(self, tag: bytes) -> bool:
        """Whether the caller has the document with this tag already: then a 304 was sent."""
        is_known = self._headers.get(b"if-none-match") == tag
        if is_known:
            self._peer.answer(304, header_lines([(b"etag", tag), REVALIDATED]), b"")
        return is_known

    def _send_tagged(self, tag: bytes, document: bytes) -> None:
        self._peer.answer(200, JSON + header_lines([(b"etag", tag), REVALIDATED]), document)

    async def entry(self, shape: ListShape, unknown: Callable[[str], Fault]) -> Answer:
        """One entry of a list."""
        document = entry_document(await self.view(), shape, self.argument)
        if document is not None:
            return document
        down = self._hub.unreached(self.caller.grants, self.surface, self.argument) if shape is TOOLS else None
        return problem_of(down or unknown(self.argument))

    async def view(self) -> View:
        """The caller's view."""
        return await self._hub.view(self.caller.grants, self.surface)

    async def hub(self) -> Answer:
        """The state of the hub itself."""
        return self._refused("read this") or msgspec.json.encode({"event_loop": self._frontend.loop_figures()})

    async def stats(self) -> Answer:
        """The figures of all servers."""
        admin = self._admin("read this")
        if isinstance(admin, Problem):
            return admin
        return await in_passes(stats_passes(self._hub, admin, self._frontend.loop_figures()))

    async def log(self) -> Answer:
        """The last lines of a server."""
        if (refused := self._refused("read the log of a server")) is not None:
            return refused
        given = self.parameter("after") or "0"
        if not given.isdecimal() or len(given) > NUMBER_LENGTH_MAX:
            return refusal("bad_request", f"after must be the number of a line, not {given!r}")
        if self.argument not in self._hub.server_queues:
            return _unknown_server(self.argument)
        return log_document(self._hub, ServerName(self.argument), int(given))

    async def definitions(self) -> Answer:
        """The tools that wait for approval."""
        admin = self._admin("review definitions")
        if isinstance(admin, Problem):
            return admin
        try:
            return msgspec.json.encode({"pending": await admin.pending_definitions()})
        except OSError as error:
            return refusal("storage_failed", str(error))

    async def approve(self) -> Answer:
        """Approve a definition that the operator has read."""
        admin = self._admin("approve definitions")
        if isinstance(admin, Problem):
            return admin
        read = decode_object(self._body, max_depth=self._hub.limits.depth)
        members = None if isinstance(read, Malformed) else object_members(read)
        fingerprint = None if members is None else read_string(members.get("fingerprint"))
        if fingerprint is None:
            return refusal("bad_request", 'The body must be an object with the "fingerprint" of the definition')
        server, _, tool = self.argument.partition(".")
        try:
            if not await admin.approve_definition(server, tool, fingerprint):
                text = "has no pending definition with this fingerprint: it was approved, or changed again"
                return refusal("unknown_definition", f"{self.argument} {text}")
        except OSError as error:
            return refusal("storage_failed", str(error))
        return msgspec.json.encode({"name": self.argument, "fingerprint": fingerprint})

    async def approvals(self) -> Answer:
        """Calls that wait for a person, of this caller or of all."""
        admin = self._frontend.parts.approvals
        if admin is None:
            return _not_offered()
        given = self.parameter("limit") or str(APPROVALS_DEFAULT)
        limit = int(given) if given.isdecimal() and len(given) <= NUMBER_LENGTH_MAX else APPROVALS_MAX + 1
        if limit > APPROVALS_MAX:
            return refusal("bad_request", f"limit must be a whole number from 0 to {APPROVALS_MAX}, not {given!r}")
        state, cursor = self.parameter("state") or "", self.parameter("cursor") or ""
        try:
            return msgspec.json.encode(admin.list(self.caller, state=state, limit=limit, after=cursor))
        except ValueError as error:
            return refusal("bad_request", str(error))

    async def approval(self) -> Answer:
        """One call that waits for a person."""
        admin = self._frontend.parts.approvals
        if admin is None:
            return _not_offered()
        found = admin.get(self.caller, self.argument)
        return _unknown_approval(self.argument) if found is None else msgspec.json.encode(found)

    async def allow_call(self) -> Answer:
        """Allow a call that waits."""
        wanted = self._decision(AllowRequest)
        if isinstance(wanted, Problem):
            return wanted
        verdict: ApprovalVerdict = "allow_hour" if wanted.scope == "hour" else "allow"
        return await self._decide(verdict, "", overrides=wanted.override)

    async def deny_call(self) -> Answer:
        """Deny a call that waits."""
        wanted = self._decision(DenyRequest)
        return wanted if isinstance(wanted, Problem) else await self._decide("deny", wanted.reason)

    def _decision(self, shape: type[DecisionRequest]) -> DecisionRequest | Problem:
        if (refused := self._refused("decide about calls")) is not None:
            return refused
        read = decode_object(self._body or b"{}", max_depth=self._hub.limits.depth)
        try:
            if isinstance(read, Malformed):
                raise ValueError(read.message)
            return msgspec.json.decode(read, type=shape)
        except ValueError as error:
            return refusal("bad_request", f"The body is not as /openapi.json describes it: {error}")

    async def _decide(self, verdict: ApprovalVerdict, reason: str, *, overrides: bool = False) -> Answer:
        admin = self._frontend.parts.approvals
        if admin is None:
            return _not_offered()
        try:
            decided = await admin.decide(self.argument, verdict, self.caller, reason, overrides=overrides)
        except ApprovalAlreadyDecided as late:
            return refusal("already_decided", str(late))
        except OSError as error:
            return refusal("storage_failed", str(error))
        return _unknown_approval(self.argument) if decided is None else msgspec.json.encode(decided)

    async def budgets(self) -> Answer:
        """Budgets and what was used of them, by this caller or by all."""
        admin = self._frontend.parts.budgets
        if admin is None:
            return _not_offered()
        given = self.parameter("limit") or str(BUDGETS_DEFAULT)
        limit = int(given) if given.isdecimal() and len(given) <= NUMBER_LENGTH_MAX else BUDGETS_MAX + 1
        if limit > BUDGETS_MAX:
            return refusal("bad_request", f"limit must be a whole number from 0 to {BUDGETS_MAX}, not {given!r}")
        try:
            return msgspec.json.encode(admin.list(self.caller, limit=limit, after=self.parameter("cursor") or ""))
        except ValueError as error:
            return refusal("bad_request", str(error))

    async def cluster(self) -> Answer:
        """The nodes of the cluster."""
        cluster = self._frontend.parts.cluster
        if (refused := self._refused("see the cluster")) is not None:
            return refused
        if cluster is None:
            return refusal("unknown_path", "This hub is no node of a cluster: set `nats` in [cluster]")
        return msgspec.json.encode(await cluster.report())

    async def configuration(self) -> Answer:
        """The problems of the configuration."""
        admin = self._admin("see the configuration")
        if isinstance(admin, Problem):
            return admin
        return msgspec.json.encode({"findings": admin.findings()})

    async def activity(self) -> Answer | None:
        """The last calls; as a stream, new ones too."""
        admin = self._admin("see the calls of all callers")
        if isinstance(admin, Problem):
            return admin
        given = self.parameter("limit") or str(ACTIVITY_DEFAULT)
        limit = int(given) if given.isdecimal() and len(given) <= NUMBER_LENGTH_MAX else ACTIVITY_MAX + 1
        if limit > ACTIVITY_MAX:
            return refusal("bad_request", f"limit must be a whole number from 0 to {ACTIVITY_MAX}, not {given!r}")
        calls = admin.latest_calls(limit)
        if not self._wants_stream():
            return msgspec.json.encode({"calls": calls, "capture": admin.capture_state()})
        peer = self._peer
        known: list[CaptureState | None] = [None]

        def send(calls: Sequence[EndedCall]) -> None:
            # A slow reader misses calls; their numbers show how many.
            if peer.buffered_bytes() <= CROWDED_BYTES:
                peer.push(sse.frame(msgspec.json.encode(calls), event="calls"))
                if (state := admin.capture_state()) != known[0]:
                    known[0] = state
                    peer.push(sse.frame(msgspec.json.encode(state), event="capture"))

        peer.begin(200, STREAM)
        send(calls)
        keep_alive = KeepAlive(peer, self._frontend.loop)
        unfollow = admin.follow_calls(send)
        try:
            with self._open_stream() as ended:
                await ended
            peer.end(b"")
        finally:
            unfollow()
            keep_alive.stop()
        return None

    @contextmanager
    def _open_stream(self) -> Iterator[asyncio.Future[None]]:
        """A stream of this caller; the future is done when the stream is to end."""
        ended: asyncio.Future[None] = self._frontend.loop.create_future()
        self._frontend.streams[ended] = self.caller
        self._peer.on_disconnect(lambda: None if ended.done() else ended.set_result(None))
        try:
            yield ended
        finally:
            self._frontend.streams.pop(ended)

    async def access(self, write: Callable[[AccessReports, Query], Awaitable[Answer]]) -> Answer:
        """Who can reach what."""
        reports = self._refused("see who can reach what") or self._frontend.parts.access
        if isinstance(reports, Problem):
            return reports
        return _not_offered() if reports is None else await write(reports, self._parameters())

    async def preview_access(self) -> Answer:
        """What other rules would change."""
        depth = self._hub.limits.depth
        return await self.access(lambda reports, _: preview_access(reports, self._body, depth))

    async def audit(self) -> Answer | None:
        """A page of the audit log, or all of it."""
        reports = self._audit()
        if isinstance(reports, Problem):
            return reports
        query = self._parameters()
        if (form := query.get("format", "jsonl")) != "jsonl":
            return refusal("bad_request", f"format must be jsonl, not {form!r}")
        is_export = "format" in query or b"application/x-ndjson" in accepted_types(self._headers)
        if not is_export or self._is_head:
            return await audit_page(reports, query)
        with self._open_stream() as ended:
            # `serve` gets a peer that says when its output has left.
            return await export_audit(reports, query, cast("DrainAwarePeer", self._peer), ended)

    async def verify(self) -> Answer | None:
        """Check that the audit log has not been altered."""
        reports = self._audit()
        if isinstance(reports, Problem):
            return reports
        with self._open_stream() as ended:
            return await verify_audit(reports, self._peer, ended, is_streamed=self._wants_stream())

    def _audit(self) -> AuditReports | Problem:
        return self._refused("read the audit log") or self._frontend.parts.audit or _not_offered()

    async def call_details(self) -> Answer:
        """The way of one call, with what was captured of it."""
        admin = self._admin("see the calls of all callers")
        if isinstance(admin, Problem):
            return admin
        if not self.argument.isdecimal() or len(self.argument) > NUMBER_LENGTH_MAX:
            return refusal("bad_request", f"The end of the path must be the number of a call, not {self.argument!r}")
        details = admin.call_details(int(self.argument), self.caller)
        if details is None:
            text = f"Call {self.argument} is not among the last {ACTIVITY_MAX}; the audit log has all calls"
            return refusal("unknown_call", text)
        return msgspec.json.encode(details)

    async def start_capture(self) -> Answer:
        """Capture arguments and results for some time."""
        admin = self._admin("capture arguments and results")
        if isinstance(admin, Problem):
            return admin
        read = decode_object(self._body, max_depth=self._hub.limits.depth)
        try:
            if isinstance(read, Malformed):
                raise ValueError(read.message)
            wanted = msgspec.json.decode(read, type=CaptureRequest)
        except ValueError as error:
            return refusal("bad_request", f'The body must be an object with the "seconds" of the capture: {error}')
        if wanted.seconds == 0:
            return msgspec.json.encode({"capture": admin.end_capture(self.caller, forget=False)})
        order = CaptureOrder(self.caller, wanted.seconds, wanted.server, wanted.tool, wanted.caller)
        return msgspec.json.encode({"capture": admin.start_capture(order)})

    async def forget_captured(self) -> Answer:
        """End the capture and delete what it caught."""
        admin = self._admin("capture arguments and results")
        if isinstance(admin, Problem):
            return admin
        return msgspec.json.encode({"capture": admin.end_capture(self.caller, forget=True)})

    async def restart(self) -> Answer:
        """Restart a server."""
        admin, name = self._frontend.admin, ServerName(self.argument)
        if (refused := self._refused("restart a server")) is not None:
            return refused
        if name not in self._hub.server_queues:
            return _unknown_server(name)
        if admin is None or not admin.restart(name):
            text = f"{name} cannot be restarted: it is built in, disabled, or dialled in from elsewhere"
            return refusal("not_restartable", text)
        return server_document(self._hub, self.caller, name, admin) or _unknown_server(name)

    async def preview_servers(self) -> Answer:
        """What a pasted text would add to the configuration."""
        admin = self._admin("add servers")
        if isinstance(admin, Problem):
            return admin
        if len(self._body) > PREVIEW_BYTES_MAX:
            text = f"The text is too long, over {PREVIEW_BYTES_MAX // 1024} KiB. Save it as a file: isthmus import FILE"
            return refusal("not_a_server", text)
        read = decode_object(self._body, max_depth=self._hub.limits.depth)
        members = None if isinstance(read, Malformed) else object_members(read)
        pasted = None if members is None else read_string(members.get("text"))
        if members is None or pasted is None:
            return refusal("bad_request", 'The body must be an object with the pasted "text"')
        name = None
        if "name" in members and not (name := read_string(members["name"])):
            return refusal("bad_request", '"name" must be a text that is not empty; leave it out otherwise')
        found = await admin.preview_servers(pasted, name)
        return refusal("not_a_server", found) if isinstance(found, str) else msgspec.json.encode(found)

    async def switch(self, *, is_on: bool) -> Answer:
        """Enable or disable a server."""
        admin, name = self._admin("enable and disable servers"), ServerName(self.argument)
        if isinstance(admin, Problem):
            return admin
        if name not in self._hub.server_queues:
            return _unknown_server(name)
        switched = await admin.switch_server(name, self.caller, is_on=is_on)
        if switched is None:
            return refusal("not_switchable", f"{name} is built in, or dialled in from elsewhere")
        return msgspec.json.encode(switched)

    def _admin(self, what: str) -> HubAdmin | Problem:
        """The hub as operators see it; a problem for other callers, and where a hub offers none of it."""
        return self._refused(what) or self._frontend.admin or _not_offered()

    def _refused(self, what: str) -> Problem | None:
        if self.caller.is_operator:
            return None
        return refusal("forbidden", f"Only operators may {what}: set `operator = true` for the caller")

    async def about_tasks(self, respond: TaskResponder) -> Answer | None:
        """Answer a request about tasks."""
        if self._frontend.parts.tasks is None:
            return refusal("unknown_path", "This hub does not offer this")
        stream = TaskEventStream(self._frontend.streams, self.caller, self._peer) if self._wants_stream() else None
        assert isinstance(self._query, dict), "check() refuses an invalid query"
        request = TaskRequest(self._frontend.parts.tasks, self.caller, self._query, self.argument, stream)
        return await answer_about_tasks(respond, request)

    async def sessions(self) -> Answer:
        """The open sessions of callers."""
        if (refused := self._refused("see the sessions of callers")) is not None:
            return refused
        if self._frontend.parts.sessions is None:
            return refusal("unknown_path", "This hub does not offer this")
        return msgspec.json.encode(self._frontend.parts.sessions.describe(self._frontend.streams.values()))

    async def describe(self) -> Answer:
        """The OpenAPI document."""
        return openapi.document()

    async def servers(self) -> None:
        """All servers, without waiting for any."""
        tag = servers_tag(self._hub, self.caller, self._frontend.admin)
        if not self._has(tag):
            self._send_tagged(tag, servers_document(self._hub, self.caller, self._frontend.admin))

    async def server(self) -> Answer:
        """One server."""
        document = server_document(self._hub, self.caller, self.argument, self._frontend.admin)
        return document or _unknown_server(self.argument)

    async def relay(self, write: Callable[[RelayView, Query], bytes | None]) -> Answer:
        """A document of the relay."""
        if self._frontend.relay is None:
            return _no_relay()
        status = await self._frontend.relay.status()
        document = write(RelayView(self._hub, status, self.caller), self._parameters())
        return refusal("unknown_agent", f"Unknown agent: {self.argument}") if document is None else document

    async def relay_agent(self) -> Answer:
        """One agent."""
        return await self.relay(lambda view, _: view.get_agent(self.argument))

    async def forget(self) -> Answer:
        """Forget a server that dialled in."""
        relay, name = self._frontend.relay, ServerName(self.argument)
        if (refused := self._refused("forget a server")) is not None:
            return refused
        if relay is None:
            return _no_relay()
        known = RelayView(self._hub, await relay.status(), self.caller).get_server(name)
        match relay.forget(name):
            case "forgotten":
                assert known is not None, "a forgotten server was known"
                return known
            case "connected":
                return refusal("not_away", f"{name} is connected: only a server that is away can be forgotten")
            case "unknown":
                return refusal("unknown_server", f"No server of this name has dialled in: {name}")

    async def read_body(self, receive: Receive, scope: Message) -> bool:
        """Read the body of a request that is no call; False if the caller is gone or was refused meanwhile."""
        body = self._peer.take_body()
        if body is None and ((body := await read_body(receive)) is None or not self._is_admitted_again(scope)):
            return False
        self._body = body
        return True

    async def answer_question(self) -> Answer:
        """Pass a caller's answer on to the server that waits for it."""
        read = decode_object(self._body, max_depth=self._hub.limits.depth)
        members = None if isinstance(read, Malformed) else object_members(read)
        action = None if members is None else read_string(members.get("action"))
        if members is None or action not in ACTIONS:
            return refusal("bad_request", f'The body must be an object with an "action": {", ".join(ACTIONS)}')
        if not is_object(members.get("content", EMPTY_OBJECT)):
            return refusal("bad_request", '"content" must be an object')
        asked = self._frontend.questions.get(self.argument)
        # Another caller's question looks like one that does not exist.
        if asked is None or asked.caller != (self.caller.tenant, self.caller.name):
            return refusal(
                "unknown_question", "No such question waits: it was answered or retracted, or its call is over"
            )
        del self._frontend.questions[self.argument]
        asked.reply(
            Answered(msgspec.Raw(render({key: members[key] for key in ("action", "content") if key in members})))
        )
        return msgspec.json.encode({"id": self.argument, "action": action})

    # -- calls -----------------------------------------------------------------------------------------------------

    async def call(self, receive: Receive, scope: Message) -> None:
        """Start a call once its body has arrived and starting servers had a moment, and wait for its end.

        If the caller has disconnected by then, the call is not made.
        """
        body = self._peer.take_body()
        if body is None and ((body := await read_body(receive)) is None or not self._is_admitted_again(scope)):
            return
        if self._frontend.nodes.has_others and (over := self.forward(scope, body)) is not None:
            await over
            return
        left = asyncio.Event()
        self._peer.on_disconnect(left.set)
        await self._hub.wait_connected(EVERYTHING, until=self._is_known)
        if left.is_set():
            return
        finished: asyncio.Future[None] = self._frontend.loop.create_future()
        read = None
        if self.operation.body is not None and len(body) > LONG_BYTES:
            whole = partial(decode_object, body, max_depth=self._hub.limits.depth)
            read = await read_message(whole, object_passes, unreadable, self.caller)
            await pause_after(len(body))
            if left.is_set():
                return
        call = self._read_call(body, read)
        self._begin(call, lambda: None if finished.done() else finished.set_result(None))
        await finished

    def forward(self, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Forward a call to the node where its caller has a process of the server for itself; see `Nodes`."""
        nodes, call = self._frontend.nodes, self._call_of(EMPTY_OBJECT)
        client_caps = self._client_caps(is_streamed=True)
        if not isinstance(call, Call) or isinstance(client_caps, Problem):
            return None
        found = self._hub.snapshot.view(self.caller.grants, self.surface, client_caps).find(call.kind, call.name)
        if found is None or not self._hub.has_link_per_caller((found.route.feature.server,), client_caps):
            return None
        return nodes.forward_caller(self.caller, self._peer, scope, body)

    def _is_known(self) -> bool:
        """Whether the caller sees the target of the call, so that it need not wait for starting servers."""
        call = self._call_of(EMPTY_OBJECT)
        view = self._hub.snapshot.view(self.caller.grants, self.surface)
        return isinstance(call, Call) and view.is_known(call.kind, call.name)

    def _is_admitted_again(self, scope: Message) -> bool:
        """Authenticate again: a key may be revoked while the body arrives."""
        caller = self._frontend.admit(self._headers, scope)
        if isinstance(caller, Denied):
            answer_problem(self._peer, denial(caller))
            return False
        self.caller = caller
        return True

    def start_call(self, body: bytes, on_end: Callable[[], None] | None) -> None:
        """Start a call, or refuse it. `on_end` is called after the response."""
        self._begin(self._read_call(body), on_end)

    def _begin(self, call: Call | Problem, on_end: Callable[[], None] | None) -> None:
        if isinstance(call, Problem):
            answer_problem(self._peer, call)
            return on_end() if on_end is not None else None
        if call.client_caps:
            exchange: RestExchange = AskingExchange(self._peer, call, self._frontend)
        else:
            exchange = RestExchange(self._peer, call.log_level, self._frontend.loop)
        exchange.on_end = on_end
        inflight = self._hub.start(call, exchange)
        if inflight.outcome is None:
            self._peer.on_disconnect(partial(inflight.cancel, "the caller closed the connection"))
            exchange.open()
        return None

    def _read_call(self, body: bytes, read: msgspec.Raw | Malformed | None = None) -> Call | Problem:
        """The call that a request asks for; `read` is its body, if that has been read."""
        timeout, given = None, self.parameter("timeout")
        if given is not None:
            try:
                timeout = float(given)
            except ValueError:
                timeout = math.nan
            if not 0 < timeout < math.inf:
                return refusal("bad_request", "timeout must be a number of seconds above 0")
        level = self._level()
        if isinstance(level, Problem):
            return level
        arguments = EMPTY_OBJECT
        if self.operation.body is not None and body:
            if read is None:
                read = decode_object(body, max_depth=self._hub.limits.depth)
            if isinstance(read, Malformed):
                return refusal("bad_request", read.message[0].upper() + read.message[1:])
            arguments = read
        call = self._call_of(arguments)
        if isinstance(call, Problem):
            return call
        client_caps = self._client_caps(is_streamed=level is not None)
        if isinstance(client_caps, Problem):
            return client_caps
        if level is not None:
            self._hub.levels.call(level)
        if PARENT_HEADER in self._headers:
            call = with_http_context(call, self._headers[PARENT_HEADER], self._headers.get(STATE_HEADER))
        return msgspec.structs.replace(
            call,
            timeout=timeout,
            log_level=level,
            wants_progress=level is not None,
            client_caps=client_caps,
            frontend=self._frontend.name,
        )

    def _client_caps(self, *, is_streamed: bool) -> ClientCapabilities | Problem:
        """What the caller can be asked."""
        given = self.parameter("questions")
        if given is None:
            return NO_CAPABILITIES
        modes = given.split(",")
        if not set(modes) <= {"form", "url"}:
            return refusal("bad_request", "questions must be form, url, or both with a comma between")
        if not is_streamed:
            return refusal("bad_request", "questions arrive in a stream: send Accept: text/event-stream")
        return frozenset(["elicitation", *(f"elicitation.{mode}" for mode in modes)])

    def _call_of(self, arguments: msgspec.Raw) -> Call | Problem:
        match self.operation.id:
            case "call_tool":
                return Call(self.caller, self.surface, self.argument, arguments)
            case "write_prompt":
                return Call(self.caller, self.surface, self.argument, arguments, kind="prompt")
            case "read_resource":
                return Call(self.caller, self.surface, self.parameter("uri") or "", arguments, kind="resource")
            case _:
                completion = read_request("completion/complete", object_members(arguments) or {}, {})
                if isinstance(completion, str):
                    return refusal("bad_request", completion)
                name, extra, kind = completion.name, completion.extra, completion.kind
                return Call(self.caller, self.surface, name, completion.arguments, extra=extra, kind=kind)

    def _level(self) -> LogLevel | Problem | None:
        """The lowest log level of the stream; None if the caller wants no stream."""
        given = self.parameter("log") or DEFAULT_LEVEL
        level = next((level for level in LOG_LEVELS if level == given), None)
        if level is None:
            return refusal("bad_request", f"log must be one of {', '.join(LOG_LEVELS)}")
        return level if self._wants_stream() else None

    def _wants_stream(self) -> bool:
        """Only callers that name the type get a stream: every client sends `*/*`."""
        return b"text/event-stream" in accepted_types(self._headers) and not self._is_head


class RestExchange:
    """The caller's side of a call. With a `level` the response is a stream, with log messages from that level on."""

    __slots__ = ("_keep_alive", "_level", "_loop", "_peer", "on_end")

    def __init__(self, peer: Peer, level: LogLevel | None, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._level = level
        self._loop = loop
        self._keep_alive: KeepAlive | None = None
        self.on_end: Callable[[], None] | None = None

    def open(self) -> None:
        """Begin the stream, if the caller wants one. Calls that fail before this get their own HTTP status."""
        if self._level is not None and self._keep_alive is None:
            self._peer.begin(200, STREAM)
            self._peer.push(sse.comment())
            self._keep_alive = KeepAlive(self._peer, self._loop)

    def emit(self, event: Event) -> None:
        """Send an event, if the caller wants a stream and reads it."""
        if self._level is None or (isinstance(event, LogMessage) and not is_at_least(event.level, self._level)):
            return
        self.open()
        if self._peer.buffered_bytes() <= CROWDED_BYTES:
            name = "log" if isinstance(event, LogMessage) else "progress"
            self._peer.push(sse.frame(render(event.members), event=name))

    def ask(self, question: Question, reply: OnReply) -> None:
        """Decline: this caller does not answer."""
        reply(NOT_ASKED)

    def unasked(self, question: Question) -> None:
        """Tell the caller of a question that was declined, because it did not say that it answers any."""
        self._send_question(None, question)

    def held(self, notice: Question) -> None:
        """See `HoldableExchange`."""
        if self._level is not None:
            self.open()
            self._peer.push(sse.frame(notice.params, event="held"))

    def released(self) -> None:
        """See `HoldableExchange`. What the call does next says enough."""

    def _send_question(self, id: str | None, question: Question) -> None:
        if self._level is not None:
            self.open()
            asked: dict[str, object] = {"id": id, "method": question.method, "params": question.params}
            self._peer.push(sse.frame(msgspec.json.encode(asked), event="question"))

    def end(self, outcome: Outcome) -> None:
        """Send the result or the problem."""
        if isinstance(outcome, Fault):
            problem = problem_of(outcome)
            if self._keep_alive is None:
                answer_problem(self._peer, problem)
            else:
                self._peer.end(sse.frame(problem.body(), event="error"))
        elif self._level is None:
            size = len(memoryview(outcome.payload))
            is_long = size > LONG_BYTES  # a copy of megabytes takes a millisecond
            self._peer.answer(200, JSON, (memoryview(outcome.payload),) if is_long else bytes(outcome.payload))
        else:
            self.open()
            self._peer.end(sse.frame(outcome.payload, event="result"))
        if self._keep_alive is not None:
            self._keep_alive.stop()
        on_end, self.on_end = self.on_end, None  # breaks a reference cycle
        if on_end is not None:
            on_end()


class OpenRestQuestion(NamedTuple):
    """A question that waits for an answer: its caller, and where the answer goes."""

    caller: tuple[str, str]
    """Tenant and name."""
    reply: OnReply


class AskingExchange(RestExchange):
    """The same for a caller that answers questions: they are events of its stream, and it posts the answers."""

    __slots__ = ("_asked", "_caller", "_nodes", "_questions")

    def __init__(self, peer: Peer, call: Call, frontend: RestHttp) -> None:
        super().__init__(peer, call.log_level, frontend.loop)
        self._caller = (call.caller.tenant, call.caller.name)
        self._questions = frontend.questions
        self._nodes = frontend.nodes
        self._asked: dict[OnReply, str] = {}

    def ask(self, question: Question, reply: OnReply) -> None:
        """See `Exchange`."""
        id = new_id(self._nodes, 12)
        self._asked[reply] = id
        self._questions[id] = OpenRestQuestion(self._caller, reply)
        self._send_question(id, question)

    def retract(self, asked: OnReply) -> None:
        """See `RetractingExchange`."""
        id = self._asked.pop(asked, None)
        if id is not None and self._questions.pop(id, None) is not None:
            self._peer.push(sse.frame(msgspec.json.encode({"id": id}), event="retracted"))

    def retract_later(self, asked: OnReply) -> Callable[[], None] | None:
        """See `RetractingExchange`. A question ends with its call."""
        self._questions.pop(self._asked.pop(asked, ""), None)
        return None

    def end(self, outcome: Outcome) -> None:
        """See `Exchange`."""
        for id in self._asked.values():
            self._questions.pop(id, None)
        self._asked.clear()
        super().end(outcome)


def _read_query(query: bytes, operation: Operation) -> dict[str, str] | str:
    """The parameters of a query; a string says what is wrong. Unknown parameters are errors, not ignored."""
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
    except ValueError:
        return f"The query has over {PARAMETERS_MAX} parameters"
    known = {parameter.name for parameter in operation.query}
    given = dict(pairs)
    if len(given) != len(pairs):
        return "A parameter of the query is given twice"
    if unknown := sorted(given.keys() - known):
        return f"Unknown parameter {unknown[0]!r}; known: {', '.join(sorted(known)) or 'none'}"
    absent = [
        parameter.name for parameter in operation.query if parameter.is_required and not given.get(parameter.name)
    ]
    return f"The parameter {absent[0]} is required" if absent else given


def answer_problem(peer: Peer, problem: Problem) -> None:
    """Send a problem with its status."""
    peer.answer(problem.status, problem.lines(), problem.body())


def _no_relay() -> Problem:
    return refusal("unknown_path", "This hub has no relay: set `enabled = true` in [relay]")


def _not_offered() -> Problem:
    return refusal("unknown_path", "This hub does not offer this")


def _unknown_approval(id: str) -> Problem:
    text = f"There is no approval {id!r}: it was used, it expired, or it never existed"
    return refusal("unknown_approval", text)


def _unknown_server(name: str) -> Problem:
    return refusal("unknown_server", f"Unknown server: {name}")


RESPONDERS: dict[str, Callable[[RestRequest], Awaitable[Answer | None]]] = {
    "list_tools": lambda request: request.list(TOOLS),
    "get_tool": lambda request: request.entry(TOOLS, UnknownTool),
    "list_resources": lambda request: request.list(RESOURCES),
    "list_templates": lambda request: request.list(TEMPLATES),
    "list_prompts": lambda request: request.list(PROMPTS),
    "get_prompt": lambda request: request.entry(PROMPTS, UnknownPrompt),
    "answer_question": RestRequest.answer_question,
    "get_hub": RestRequest.hub,
    "get_stats": RestRequest.stats,
    "get_log": RestRequest.log,
    "get_activity": RestRequest.activity,
    "get_call": RestRequest.call_details,
    "start_capture": RestRequest.start_capture,
    "forget_captured": RestRequest.forget_captured,
    "list_definitions": RestRequest.definitions,
    "approve_definition": RestRequest.approve,
    "list_approvals": RestRequest.approvals,
    "list_budgets": RestRequest.budgets,
    "get_approval": RestRequest.approval,
    "allow_call": RestRequest.allow_call,
    "deny_call": RestRequest.deny_call,
    "get_cluster": RestRequest.cluster,
    "get_configuration": RestRequest.configuration,
    "get_access": lambda request: request.access(access_page),
    "get_access_servers": lambda request: request.access(access_summary),
    "preview_access": RestRequest.preview_access,
    "get_audit": RestRequest.audit,
    "verify_audit": RestRequest.verify,
    "preview_servers": RestRequest.preview_servers,
    "enable_server": lambda request: request.switch(is_on=True),
    "disable_server": lambda request: request.switch(is_on=False),
    "restart_server": RestRequest.restart,
    "list_servers": RestRequest.servers,
    "get_server": RestRequest.server,
    "list_relay_agents": lambda request: request.relay(RelayView.list_agents),
    "get_relay_agent": RestRequest.relay_agent,
    "list_relay_servers": lambda request: request.relay(RelayView.list_servers),
    "forget_relay_server": RestRequest.forget,
    "list_relay_tools": lambda request: request.relay(RelayView.list_tools),
    "list_relay_devices": lambda request: request.relay(RelayView.list_devices),
    "list_tasks": lambda request: request.about_tasks(list_tasks),
    "get_task": lambda request: request.about_tasks(get_task),
    "cancel_task": lambda request: request.about_tasks(cancel_task),
    "list_sessions": RestRequest.sessions,
    "describe": RestRequest.describe,
}
"""The method for each operation that is not a call; None if it has answered by itself."""
