"""What the core needs from the packages above it, as protocols: links, exchanges, the journal, audit, push, relay.

`upstream` implements links, pools, list loaders and targets; the frontends and the command line implement exchanges;
`storage` implements journals; `telemetry` records; `credentials` seals and signs; `transport` sends push
notifications; `app` joins them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from isthmus.core.audit import AuditRow, Fact, LogState, Point, Seal, SealKind
from isthmus.core.histograms import WriteMetrics
from isthmus.model.callers import Caller, FrontendName
from isthmus.model.calls import (
    NO_CAPABILITIES,
    Call,
    ClientCapabilities,
    Event,
    Kind,
    OnReply,
    Outcome,
    Progress,
    Question,
)
from isthmus.model.fault_table import Executed, Fault
from isthmus.model.features import Tool
from isthmus.model.names import ServerName
from isthmus.model.relay import Forgetting, RelayStatus
from isthmus.model.tasks import Message, TaskState

if TYPE_CHECKING:  # these classes use the protocols below
    from isthmus.core.calls.hub import Hub
    from isthmus.core.calls.running_call import InFlight
    from isthmus.core.watch.server_tasks import LinkSession

# -- tools of the hub itself -------------------------------------------------------------------------------------------


class VirtualTool(Protocol):
    """A tool of the hub itself. Views with an exposure other than `all` list such tools instead of servers' tools.

    `Hub.add_virtual_tools` adds it to an exposure. Calls of it pass `core.calls.hub.find`, as all calls do.
    """

    tool: Tool
    """Its definition; the server is `names.BUILTIN`."""

    def redirect(self, call: Call) -> Call | Fault | None:
        """The call to make in its place, with the name of another tool; None if it answers itself.

        The hub looks the other name up in the same view, and checks and sends that call like any other. The arguments
        are not checked yet: those of a call that is not redirected are checked by the schema afterwards.
        """

    def start(self, inflight: InFlight) -> None:
        """Answer a call that is not redirected, by `InFlight.finish`, now or later. Its deadline is set.

        To learn that it is cancelled or expired, set `inflight.link`.
        """

    def unknown(self, inflight: InFlight, name: str) -> None:
        """End a redirected call, because its caller's view has no tool of that name."""


# -- links to servers --------------------------------------------------------------------------------------------------


class Link(Protocol):
    """A live, initialized connection to one server.

    `send` starts the call without waiting and later ends it by `InFlight.finish`, perhaps before it returns. It never
    raises and never sends a call twice.
    """

    def send(self, inflight: InFlight) -> None:
        """Send the call."""

    def may_have_run(self, inflight: InFlight) -> bool:
        """False only if the request provably never left this process whole."""

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Drop the call, which ends here, and tell the server to stop working on it."""


class CallerLinks(Link, Protocol):
    """Several links to one server; each carries the calls of certain callers."""

    def __len__(self) -> int:
        """How many there are."""

    def call_ended(self, inflight: InFlight) -> None:
        """A call that was sent on the pool has ended."""

    def left(self, session: str) -> None:
        """A session has ended: links that only it used can be closed."""

    def is_per_caller(self, client_caps: ClientCapabilities) -> bool:
        """Whether calls outside of sessions, of clients with these capabilities, have links for each caller here.

        So each node of a cluster would have one.
        """


@runtime_checkable
class AnyMethodLink(Protocol):
    """A link or pool that may be able to send any JSON-RPC method to its server."""

    takes_methods: bool


@runtime_checkable
class TaskLink(Protocol):
    """A link or pool whose server may run calls as tasks."""

    def link_session_of(self, inflight: InFlight) -> LinkSession | None:
        """The connection on which an unfinished call was answered; None if that connection has ended."""


class ListLoad(NamedTuple):
    """A running request for a server's lists. `began` is its start by the loop's clock; `done` also ends on failure."""

    done: asyncio.Future[None]
    began: float


class ListLoader(Protocol):
    """Requests the lists that one server offers to clients with certain capabilities, and publishes them."""

    def load_lists(self, caller: Caller, client_caps: ClientCapabilities) -> ListLoad | None:
        """Make sure that this caller's lists are loaded; None if there is nothing to wait for."""


class ArgumentValidator(Protocol):
    """Checks arguments whose check would block the event loop; `app.validation` uses a worker process."""

    def validate(self, inflight: InFlight, then: Callable[[InFlight], None]) -> None:
        """Call `then` if the arguments are valid, now or later; otherwise end the call."""


# -- the caller's side of a call ---------------------------------------------------------------------------------------


class Exchange(Protocol):
    """The caller's side of one running call.

    All methods are synchronous and never wait: a slow caller must not block a link. An implementation that cannot
    deliver at once stores or drops by its own stated rule.
    """

    def emit(self, event: Event) -> None:
        """The server reported something; the call continues."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """The server sends a request to the caller; `reply` is called once, now or later, with the response."""

    def end(self, outcome: Outcome) -> None:
        """The call has ended; called exactly once, and nothing follows."""


ReportProgress: TypeAlias = Callable[[Progress], None]


@runtime_checkable
class LateProgressExchange(Protocol):
    """An exchange whose caller receives progress even after the call's response, as tasks report it."""

    def reporter(self) -> ReportProgress | None:
        """Sends progress to the caller and keeps only what that needs alive; None if the caller wants no progress."""


class HubExchange:
    """An exchange of the hub itself. A question that arrives meanwhile concerns one of the caller's own calls."""


@runtime_checkable
class FindingExchange(Protocol):
    """An exchange whose caller has a session, whose list of tools can grow."""

    def tools_found(self, names: Sequence[str]) -> None:
        """The caller searched for tools and found these: its list has them from now on."""


@runtime_checkable
class SessionExchange(Protocol):
    """An exchange whose caller may have a session, also where its calls do not name it (`Call.session`)."""

    @property
    def session_id(self) -> str:
        """The id of the session; empty without one."""


@runtime_checkable
class PausableExchange(Protocol):
    """An exchange whose caller can disconnect while the call runs and resume later."""

    def pause(self, seconds: float) -> None:
        """The server closed the call's stream for this long."""


@runtime_checkable
class RetractingExchange(Protocol):
    """An exchange that can tell its caller that a question no longer needs a response."""

    def retract(self, reply: OnReply) -> None:
        """Cancel the question that came with this `reply`; `reply` is no longer called."""

    def retract_later(self, reply: OnReply) -> Callable[[], None] | None:
        """A function that does the same after the call has ended, and keeps only what that needs alive."""


@runtime_checkable
class UnaskedExchange(Protocol):
    """An exchange that can tell its caller what it would have been asked, had it the client capabilities."""

    def unasked(self, question: Question) -> None:
        """The hub declined this question."""


@runtime_checkable
class ElicitationExchange(Protocol):
    """An exchange that can pass on `notifications/elicitation/complete`."""

    def elicitation_completed(self, id: msgspec.Raw) -> None:
        """The user has finished the URL elicitation that the server knows by this id."""

    def done_later(self) -> Callable[[msgspec.Raw], None] | None:
        """A function that does the same after the call has ended; None if that is impossible."""


@runtime_checkable
class DurableExchange(Protocol):
    """An exchange that stores whether its call was sent: it writes that first, and can itself wait for a server.

    Its calls have `Call.lasts` set.
    """

    def may_send(self, inflight: InFlight, send: Callable[[InFlight], None]) -> bool:
        """True if the call may be sent now; otherwise `send` is called once the journal has it."""

    def put_back(self, inflight: InFlight) -> bool:
        """Take back an unsent call, to start it again later; False if it should wait in its queue.

        A call that was taken back reports nothing more, not even an end.
        """


@runtime_checkable
class HoldableExchange(Protocol):
    """An exchange that can show that its call waits for a person's approval."""

    def held(self, notice: Question) -> None:
        """The call waits; nobody answers the notice, it only says for what."""

    def released(self) -> None:
        """A person has decided: the call continues, or waits for the next decision."""


# -- subscriptions to resources ----------------------------------------------------------------------------------------


class Subscriber(NamedTuple):
    """A caller that subscribes to a resource, with its capabilities and the session that it does so in."""

    caller: Caller
    client_caps: ClientCapabilities = NO_CAPABILITIES
    session: str = ""


class SubscriptionLink(Protocol):
    """A link on which resources can be subscribed to."""

    async def subscribe(self, uri: str) -> None:
        """Subscribe to updates of this resource; raises `Fault` if the server refuses or cannot be reached."""

    def unsubscribe(self, uri: str) -> None:
        """Unsubscribe; the response is ignored."""


class PrivateLinks(Protocol):
    """The links of one server that not all callers share."""

    def __bool__(self) -> bool:
        """Whether there are such links, or will be soon."""

    def refusal(self, follower: Subscriber) -> Fault | None:
        """Why the server receives no requests for this subscriber."""

    def is_separate(self, follower: Subscriber) -> bool:
        """Whether the server knows this subscriber by its own credentials, so that shared updates do not concern it."""

    def own(self, follower: Subscriber) -> Sequence[SubscriptionLink]:
        """The open links that carry this subscriber's calls."""

    def subscribe_also(self, follower: Subscriber, links: Sequence[SubscriptionLink], uri: str) -> None:
        """Subscribe, in the background, on links that may replace this subscriber's own."""


# -- the journal -------------------------------------------------------------------------------------------------------


class JournalEntry(msgspec.Struct, frozen=True):
    """Something that is only ever appended, such as a line of a conversation: kind, owner, time and content as JSON."""

    kind: str
    owner: str
    at: float
    content: msgspec.Raw


class Document(msgspec.Struct, frozen=True):
    """Something that is stored under an id and changes, such as a task.

    `version` is one more than that of the document it replaces; the first is 1. So of two writers that change the same
    document only the first succeeds. Lists can be filtered by `group` and `state` and are ordered by `at`. A document
    without a `body` is a tombstone: it deletes.

    `holder` says which node of a cluster works on it, as far as it was read from a `SharedJournal`: `HERE`, the number
    of another node, or empty if none does. What is written ignores it.
    """

    kind: str
    owner: str
    id: str
    version: int
    at: float
    body: bytes | None
    group: str = ""
    state: str = ""
    holder: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether another node works on it."""
        return self.holder not in ("", HERE)


HERE = "here"
"""The `Document.holder` of what this node works on."""

DOCUMENT_BYTES = 512
"""What a document takes besides its body: its key, in the table and in the indexes."""


def size_of(document: Document) -> int:
    """The bytes that a document counts as."""
    return DOCUMENT_BYTES + len(document.body or b"")


DocumentPlace: TypeAlias = tuple[float, str, str]
"""Where a document is in a list of all owners: its time, its owner and its id."""


def place_of(document: Document) -> DocumentPlace:
    """The place of a document."""
    return document.at, document.owner, document.id


WriteResult: TypeAlias = Literal["kept", "conflict", "refused", "unknown"]
"""`kept`: it is durable. `conflict`: the stored version is another one. `refused`: it was not written. `unknown`:
writing failed at the very end, so it may have been written."""

OnWritten: TypeAlias = Callable[[WriteResult], None]


class TrimResult(msgspec.Struct, frozen=True):
    """The ids of documents that were deleted to make room, and their bytes."""

    ids: tuple[str, ...]
    bytes: int


class Page(msgspec.Struct, frozen=True):
    """Some documents, the newest first, and the token of the next page."""

    documents: tuple[Document, ...]
    total: int
    next: str = ""


class Journal(Protocol):
    """Durable storage of entries and documents, in the order in which they were written.

    Every `async` method raises `OSError` on failure.
    """

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        """Write all of these or none; `done` is called once, later, from the event loop.

        `facts` are written to the audit log in the same transaction, where there is one (`AuditJournal`).
        """

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        """The document with this id."""

    async def page(
        self,
        kind: str,
        owner: str,
        *,
        group: str = "",
        states: Collection[str] = (),
        after: float = 0.0,
        limit: int,
        token: str = "",
    ) -> Page:
        """One owner's documents, the newest first: at most `limit`, fewer if they are large.

        Raises:
            ValueError: no page has this token.
        """

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        """Documents of all owners in one of these states, the oldest first; `after` is the last one seen.

        In a `SharedJournal`, not those that other nodes hold.
        At most `limit`, fewer if they are large; an empty list only at the end.
        """

    async def newest(
        self,
        kind: str,
        states: Collection[str],
        *,
        owners: Collection[str] = (),
        limit: int,
        before: DocumentPlace | None = None,
    ) -> list[Document]:
        """Documents in one of these states, the newest first; of all owners if none are named.

        `before` is the place of the last one seen. At most `limit`, fewer if they are large; an empty list only at the
        end.
        """

    async def named(self, kind: str, id: str, *, limit: int) -> list[Document]:
        """At most `limit` documents with this id, of all owners."""

    async def prune(self, kind: str, states: Collection[str], *, before: float, limit: int) -> int:
        """Delete at most `limit` documents in one of these states that are older than `before`; return the count."""

    async def weigh(self, kinds: Collection[str], owner: str) -> Mapping[tuple[str, str], int]:
        """The bytes of one owner's documents by kind and state, each counted as its body plus `DOCUMENT_BYTES`.

        Includes everything that was passed to `write` before.
        """

    async def trim(self, kind: str, owner: str, states: Collection[str], *, bytes: int, limit: int) -> TrimResult:
        """Delete one owner's oldest documents in one of these states: at least `bytes`, at most `limit` documents."""

    async def commit(self, entries: Sequence[JournalEntry]) -> None:
        """Return once the entries are as durable as this journal makes anything."""

    async def latest(self, kind: str, owner: str, limit: int) -> list[JournalEntry]:
        """The newest `limit` entries of one kind and owner, oldest first."""


@runtime_checkable
class HealthReportingJournal(Protocol):
    """A journal that knows whether writing works."""

    @property
    def is_failing(self) -> bool:
        """Whether the store currently refuses writes."""


@runtime_checkable
class MeasuredJournal(Protocol):
    """A journal that counts its writes."""

    write_metrics: WriteMetrics


@runtime_checkable
class SharedJournal(Journal, Protocol):
    """A journal that several nodes use at once, each under a lease.

    Of some documents one node is the holder, from the write that makes them unfinished until the one that ends them:
    only it can change them, and `all_in` has no others. When its lease has ended, one other node inherits them.
    """

    inherited: asyncio.Event
    """Set while there are documents to `inherit`."""
    on_lost: Callable[[], None]
    """Called when another node has inherited what this one held."""
    on_joined: Callable[[int], None]
    """Called with the number of each new lease of this node, which is the `holder` that others see."""

    @property
    def number(self) -> int | None:
        """The number of the lease; None before the first one."""

    @property
    def is_held(self) -> bool:
        """Whether the lease is held now, by this node's own clock."""

    @property
    def nodes(self) -> int:
        """How many nodes had a lease when this one last renewed its own; at least 1, which is this node."""

    async def inherit(self) -> list[Document]:
        """Become the holder of some documents of nodes that are gone; an empty list at the end. Raises `OSError`."""


@runtime_checkable
class ClockedJournal(Protocol):
    """A journal with a clock that all its nodes share, however wrong their own clocks are."""

    def now(self) -> float:
        """Seconds since 1970."""


class StateDocument(NamedTuple):
    """A document that all nodes share: its version, 0 if it is new, and its content; None deletes it."""

    version: int
    body: bytes | None


class SharedState(Protocol):
    """Small documents that all nodes of a cluster agree on: keys, logins, lists of the relay, tool definitions.

    Those of the kinds that are followed are in memory, which has each change within a second. Every method may be
    called from any thread; those that wait for the database raise `OSError`.
    """

    where: str
    """Where they are stored, for people; without secrets."""

    @property
    def is_current(self) -> bool:
        """Whether the database was read in the last seconds."""

    def revision(self, kind: str) -> int:
        """A number that changes whenever a document of this kind does; 0 if there never was one."""

    def all(self, kind: str) -> Mapping[str, StateDocument]:
        """The documents of a kind, by id."""

    def follow(self, kind: str) -> None:
        """Have this kind in memory from now on; keys, logins and lists of the relay are there from the start."""

    def read_now(self) -> None:
        """Wait until memory has what the database has now."""

    def write(self, kind: str, changes: Mapping[str, StateDocument]) -> bool:
        """Write all changes or none; False if the stored version of one is not that of its change.

        Memory has the result afterwards, also that of another writer.
        """

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """Keep other nodes out of a block with the same name; without a lock if the database is away for long."""


class ClosableJournal(Journal, Protocol):
    """A journal that its opener closes."""

    async def aclose(self) -> None:
        """Write what is queued, then close."""


class PeerTasks(Protocol):
    """Reaches the nodes that hold tasks. Without it, what only they can do is refused as `TaskElsewhere`."""

    async def cancel(self, node: str, owner: str, id: str, why: str) -> Fault | None:
        """Cancel a task that a node holds (`Document.holder`), and wait until that is stored."""


# -- audit and metrics -------------------------------------------------------------------------------------------------


class AuditNotary(Protocol):
    """Encodes facts as records and signs the log. Called by the journal's writer, not on the path of a call."""

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """The time of a fact, and its record."""

    def seal(self, kind: SealKind, point: Point) -> Seal:
        """Sign a point of the chain."""

    def checkpoint(self, point: Point) -> None:
        """The log is durable up to this point: store that outside of the log."""


@runtime_checkable
class AuditJournal(Protocol):
    """A journal that also stores an audit log."""

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        """Write all of these or none, the facts as the next records of the log; see `Journal.write`."""

    async def open_log(self, notary: AuditNotary) -> LogState:
        """Open the log for writing and return its state. Raises `OSError`."""

    async def prune_log(self, *, before: float, limit: int) -> int:
        """Delete some of the oldest records and store an anchor in their place; return how many were deleted."""


@runtime_checkable
class ChainedAuditJournal(AuditJournal, Protocol):
    """An audit journal in which each node of a cluster has a log of its own."""

    async def choose_chain(self, key: str, place: int) -> int:
        """Choose the log to open: that of this public key and this place below its state folder. Raises `OSError`."""


@runtime_checkable
class ReadableAuditJournal(AuditJournal, Protocol):
    """An audit journal whose log the writing hub can read. Without it, calls that a crash left open stay open."""

    async def log_rows(self, *, after: int, limit: int) -> Sequence[AuditRow]:
        """The records after this number, the oldest first. Raises `OSError`."""


@runtime_checkable
class AuditedExchange(Protocol):
    """An exchange that stores what happens to its call: the call's facts go into the same transaction."""

    @property
    def audits_start(self) -> bool:
        """Whether it writes the call's start itself, before the call is sent."""

    @property
    def audit_id(self) -> str:
        """The id that the records of its calls share."""

    def note(self, fact: Fact) -> None:
        """Write this fact with the next stored change, which is the call's end."""


class StrictAudit(Protocol):
    """Writes calls to the audit log before they are sent, and their ends before callers receive them."""

    waiting: int
    """Calls that wait for the audit log, to be sent or to be answered."""

    def begin(self, inflight: InFlight, send: Callable[[InFlight], None]) -> None:
        """Write that a call starts, then `send` it; end it if that cannot be written."""

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Write how a call ended, then `deliver` that; or the fault that it could not be written."""

    def start_fact(self, call: Call, id: str) -> Fact:
        """The fact that a call starts, for an exchange that writes it itself."""


class Recorder(Protocol):
    """Is called for every call, on the path of the call: implementations neither format nor write."""

    strict_audit: StrictAudit | None
    """None if calls do not wait for the audit log."""

    started: Callable[[InFlight], None] | None
    """Called when a call starts, before its tool is looked up. None if nobody listens, which costs nothing."""

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """A call has ended; `server` is None if no server was found, `inflight.was_sent` says whether it was sent."""

    def waited(self, inflight: InFlight, seconds: float) -> None:
        """A call is sent now that had to wait for a slot or a link since it started."""

    def late(self, server: ServerName) -> None:
        """A server answered a call that had already ended, or an unknown one."""


# -- credentials and signatures ----------------------------------------------------------------------------------------


class RequestSigner(Protocol):
    """Proves with each request that the hub holds the key that its token is bound to (DPoP, RFC 9449)."""

    def proof_for(self, method: str, url: str, authorization: str) -> str | None:
        """The `DPoP` header for a request with this `Authorization`; None if that needs no proof."""

    def wants_nonce(self, url: str, status: int, headers: Mapping[str, str]) -> bool:
        """Read a response; True if it rejects a request because the proof had no nonce, or an old one.

        Such a request did not run. The next proof contains the nonce from the response.
        """


class Credentials(Protocol):
    """The secret headers of requests to one server, for all callers or for one; callers' own keys never go upstream.

    Links that use different credentials are not shared.
    """

    @property
    def generation(self) -> int:
        """Increases whenever `headers_for` changes; a link that stores headers compares it."""

    @property
    def signer(self) -> RequestSigner | None:
        """Signs the requests of a new link; None if headers are enough."""

    def headers_for(self, server: ServerName) -> Mapping[str, str]:
        """The headers to send to this server now."""


class Sealer(Protocol):
    """Encrypts text that callers hold for the hub. A sealed text only opens with the same `bound_to`."""

    def seal(self, content: bytes, bound_to: bytes) -> str:
        """Content as a text that only this hub can open."""

    def open(self, sealed: str, bound_to: bytes) -> bytes | None:
        """The content; None if it was not sealed here, was changed, or is bound to something else."""


class Signer(Protocol):
    """Signs push notifications with a key whose public half is published."""

    def key_set(self) -> bytes:
        """The public key as a JSON Web Key Set; may take a fraction of a second. Raises: OSError, ValueError."""

    def token_for(self, body: bytes, now: float) -> str:
        """A token that proves that this hub sent this JSON body now. Raises: OSError, ValueError."""


class PushReceipt(msgspec.Struct, frozen=True):
    """The result of one push: the HTTP status, or the reason why no response came."""

    status: int | None = None
    reason: str = ""
    is_refused: bool = False
    """Pushing to this address is forbidden; the reason says why."""
    retry_after: float | None = None
    """Seconds that the receiver asks to wait."""


class PushSender(Protocol):
    """Sends bytes to an address that a caller named, once: it neither retries nor follows redirects.

    `is_trusted` means that the caller may name private addresses, if the operator listed them.
    """

    async def refusal(self, url: str, *, is_trusted: bool) -> str | None:
        """Why this address is forbidden, as far as is known now; None if it is allowed."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, is_trusted: bool) -> PushReceipt:
        """Send a POST request; never raises, and takes a bounded time."""


# -- servers at addresses that callers name ----------------------------------------------------------------------------


class TargetSpec(msgspec.Struct, frozen=True):
    """The server that a caller names: its address and the headers to send."""

    url: str
    path: str | None = None
    headers: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"TargetSpec({self.url!r})"  # headers are secrets


class OpenTarget(msgspec.Struct, frozen=True):
    """A connected server that only its caller can call: its own small hub, and its name there."""

    hub: Hub
    server: ServerName
    is_plain: bool = False
    """It speaks JSON-RPC but not MCP: every method is sent to it as the caller names it."""
    initialize_result: msgspec.Raw | None = None
    """What an MCP server returned to `initialize`."""


class UnopenedTarget(Protocol):
    """An allowed address that is not connected yet."""

    def open(self, then: Callable[[OpenTarget | Fault], None]) -> Callable[[], None]:
        """Connect, or reuse the link; `then` is called once, unless the returned function cancels that."""


class TargetResolver(Protocol):
    """Resolves addresses that callers name."""

    def find(self, caller: Caller, named: TargetSpec) -> ServerName | UnopenedTarget | Fault:
        """The configured server at this address, or an address to connect to, or why it is forbidden."""


# -- the relay ---------------------------------------------------------------------------------------------------------


class DialledInServer(Protocol):
    """One server of an agent: connected, or away and remembered."""

    @property
    def server_id(self) -> str:
        """Its id under its agent."""

    @property
    def server(self) -> ServerName:
        """Its name in the hub."""

    @property
    def is_here(self) -> bool:
        """Whether it is connected and has been listed."""

    @property
    def welcome(self) -> bytes:
        """Its result of `initialize` as a JSON object; empty if it gave none."""


class ConnectingServer(NamedTuple):
    """A server that is connected and not listed yet."""

    label: str
    """Its `server_id`, or a default if it gave none."""
    is_named: bool
    """Whether it gave a `server_id`."""
    ended: asyncio.Future[None]
    """Done once the server is listed; cancelled if it disconnects before."""


class AgentServers(Protocol):
    """The servers that dialled in under one agent; `upstream.dialin` implements it."""

    @property
    def agent(self) -> str:
        """The agent's key (`Claim.key`)."""

    def servers(self) -> Sequence[DialledInServer]:
        """Its servers, in the order in which they first connected; a new sequence after every change."""

    def arriving(self) -> Sequence[ConnectingServer]:
        """Servers that are connected and not listed yet."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when a server joins, leaves or changes, until the returned function is called."""


class EndedCall(msgspec.Struct, frozen=True):
    """A call that has ended, without its arguments and its result."""

    number: int
    """Increases by one from call to call."""
    at: float
    """When it ended, in seconds since the epoch."""
    seconds: float
    caller: str
    tenant: str
    frontend: str
    kind: Kind
    name: str
    server: ServerName | None
    """None if no server was found."""
    outcome: str
    """`result`, `tool_error`, or the reason of a fault."""
    executed: Executed
    message: str | None
    """What a fault says."""
    denied: bool = False
    """Whether what was called exists, and the caller may not use it."""


class CallStep(msgspec.Struct, frozen=True):
    """A point on the way of a call."""

    step: str
    """`received`, `held`, `decided`, `checked`, `queued`, `assigned`, `sent`, `first_byte`, `progress`, `log`,
    `question`, `answer` or `done`; `docs/rest.md` explains them."""
    seconds: float
    """Since the call was received."""


class CapturedText(msgspec.Struct, frozen=True, rename="camel"):
    """The beginning of a call's arguments or result, as JSON text."""

    text: str
    bytes: int
    """How long the whole is."""
    is_cut: bool
    is_redacted: bool
    """Whether a secret of the server was replaced by `***`."""


class CallDetails(msgspec.Struct, frozen=True, rename="camel"):
    """One call that has ended: its way, and what was captured of it."""

    call: EndedCall
    tool: str | None
    """The canonical name of the tool; None if it is no tool, or was not found."""
    steps: Sequence[CallStep]
    is_cut: bool
    """Whether events are left out because there were too many."""
    arguments: CapturedText | None
    result: CapturedText | None


class CaptureOrder(msgspec.Struct, frozen=True):
    """A request to capture arguments and results for some time, of all calls or of some."""

    by: Caller
    seconds: float
    server: str | None = None
    tool: str | None = None
    caller: str | None = None


class CaptureState(msgspec.Struct, frozen=True, rename="camel"):
    """Whether arguments and results are being captured, or were; for all operators to see."""

    is_on: bool
    by: str
    since: float
    until: float
    """When it ends or ended; both in seconds since the epoch."""
    calls: int
    """How many calls were captured."""
    server: str | None
    tool: str | None
    caller: str | None


class DefinitionReview(msgspec.Struct, frozen=True, rename="camel"):
    """A tool whose definition changed, or was never seen before, and waits for an operator."""

    server: str
    tool: str
    listed_to: str | None
    """The client capabilities that it is listed to; None for all clients."""
    fingerprint: str
    at: float
    """When the hub saw it, in seconds since the epoch."""
    before: str | None
    """The last accepted definition as JSON; None if the tool is new."""
    now: str


ApprovalVerdict: TypeAlias = Literal["allow", "allow_hour", "deny"]
"""Allow this call once, or the same call for an hour, or deny it."""


class ApprovalEntry(msgspec.Struct, frozen=True, rename="camel"):
    """A call that waits for a person, or about which a person has decided."""

    id: str
    state: Literal["pending", "allowed", "denied"]
    tool: str
    """`server.tool`."""
    name: str
    """The name by which the caller called it."""
    arguments: msgspec.Raw
    """As the caller sent them, whole."""
    added: tuple[str, ...]
    """Names of further arguments, which the hub adds."""
    digest: str
    """Of caller, set, tool, definition and arguments: a decision serves only calls with this digest."""
    caller: str
    tenant: str
    set: str | None
    frontend: str
    rule: str
    by: str
    """Who decides: `operator`, or `caller` where the caller's user is asked."""
    requested: float
    expires: float
    """When the request, or the decision, is no longer valid; both in seconds since the epoch."""
    decided: float | None
    decided_by: str | None
    """None for callers that are no operators."""
    reason: str | None
    scope: Literal["once", "hour"] | None
    """For what it was allowed."""
    script: str | None
    """The id of the script that makes the call."""
    script_lines: tuple[int, ...]
    """The lines of the script that name the tool."""
    why: str | None
    """Why a person is asked, where the rule alone does not tell: how much of a budget is used. For those who decide."""


class ApprovalList(msgspec.Struct, frozen=True):
    """Some approvals, the oldest first."""

    approvals: tuple[ApprovalEntry, ...]
    total: int
    """How many there are in that state."""
    next: str | None
    """The cursor of the next page."""


class ApprovalAlreadyDecided(Exception):
    """Somebody has decided about a request, or its time is over; the message says so."""


class ApprovalAdmin(Protocol):
    """Calls that wait for a person. Each caller sees its own, an operator those of all; only operators decide."""

    def list(self, viewer: Caller, *, state: str, limit: int, after: str) -> ApprovalList:
        """One page. Raises `ValueError` for a bad state or cursor."""

    def get(self, viewer: Caller, id: str) -> ApprovalEntry | None:
        """One of them; None if it does not exist for this viewer."""

    async def decide(
        self, id: str, verdict: ApprovalVerdict, by: Caller, reason: str, *, overrides: bool = False
    ) -> ApprovalEntry | None:
        """Decide about a request, also about a denied one if this `overrides` the denial; None if it does not exist.

        Raises `ApprovalAlreadyDecided` and `OSError`.
        """


class BudgetEntry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A budget as configured. Members that are None are not limited, or not for the viewer."""

    name: str
    per: str
    period: str
    calls: int | None = None
    result_bytes: int | None = None
    cost: float | None = None
    callers: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None
    sets: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    costs: Mapping[str, float] | None = None
    refused: int | None = None
    """Calls that it refused since the hub started."""


class BudgetCount(msgspec.Struct, frozen=True, rename="camel"):
    """What one caller, tenant, set or tool has used of a budget in the present period."""

    budget: str
    subject: Mapping[str, str]
    """Whose it is: names of a `caller` and its `tenant`, or of a `tenant`, `set` or `tool`; empty for the hub."""
    began: float
    renewed: float
    """When the next period begins, in seconds since 1970."""
    calls: int
    result_bytes: int
    cost: float


class BudgetList(msgspec.Struct, frozen=True):
    """Budgets, and some of their counters."""

    budgets: tuple[BudgetEntry, ...]
    counters: tuple[BudgetCount, ...]
    total: int
    """The number of counters, with those whose period has just ended."""
    next: str | None


class BudgetAdmin(Protocol):
    """What people may see of budgets: `core.calls.budgets`."""

    def list(self, viewer: Caller, *, limit: int, after: str) -> BudgetList:
        """Budgets and a page of counters. Raises `ValueError` for a bad cursor."""


class ConfigurationFinding(msgspec.Struct, frozen=True):
    """A problem of the configuration that the hub runs with."""

    code: str
    file: str | None
    path: str
    problem: str
    fix: str


class ServerPreviewEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One server that a person pasted, as the hub understands it."""

    name: str
    """A name that is free, or that of the same server in the hub."""
    wanted: str
    """The name that the paste has, or that its address or command suggests."""
    outcome: Literal["new", "same", "broken"]
    transport: str | None
    entry: Mapping[str, object]
    """Its keys in the hub's own file."""
    text: str
    """Its lines in the hub's own file."""
    command: str | None
    """The `isthmus add` that does the same; None if no option covers a key of the entry."""
    has_secrets: bool
    """Whether it contains a secret in plain text."""


class ServerPreview(msgspec.Struct, frozen=True, rename="camel"):
    """What a paste would add to the hub's configuration file. Nothing was written."""

    form: Literal["json", "toml", "yaml", "url", "command"]
    client: str | None
    """The client whose format it is, if that is known."""
    file: str
    is_new_file: bool
    place: str
    """Where in the file the text belongs, as a sentence."""
    text: str
    """All new servers, ready to be put there."""
    servers: Sequence[ServerPreviewEntry]
    findings: Sequence[ConfigurationFinding]


class SwitchedServer(msgspec.Struct, frozen=True):
    """A server that was enabled or disabled."""

    name: ServerName
    enabled: bool
    saved: bool
    """Whether the configuration file says so, too."""
    note: str
    """How long it stays so, as a sentence."""


class ServerFix(NamedTuple):
    """What to do about a server that cannot be used."""

    text: str
    """It may name files."""
    place: str | None
    """The file, and if known the line, of its entry; None if no change there helps."""


class HubAdmin(Protocol):
    """What operators may do with a running hub, and see of its calls."""

    async def preview_servers(self, text: str, name: str | None) -> ServerPreview | str:
        """What a pasted text would add to the configuration file; a text says why it is no server."""

    async def switch_server(self, server: ServerName, by: Caller, *, is_on: bool) -> SwitchedServer | None:
        """Enable or disable a server, which finishes its calls first; None if it is not a configured one."""

    async def pending_definitions(self) -> Sequence[DefinitionReview]:
        """The tools that are withheld until an operator approves their definition. Raises `OSError`."""

    async def approve_definition(self, server: str, tool: str, fingerprint: str) -> bool:
        """Approve the pending definition with this fingerprint; False if it is not pending. Raises `OSError`."""

    def findings(self) -> Sequence[ConfigurationFinding]:
        """The problems of the configuration."""

    def server_fix(self, server: ServerName) -> ServerFix | None:
        """What to do about a server that cannot be used, if its reason tells."""

    def fixes_version(self) -> int:
        """A number that changes when `server_fix` says something else of the same snapshot."""

    def latest_calls(self, count: int) -> Sequence[EndedCall]:
        """At most so many of the last calls, the oldest first."""

    def follow_calls(self, feed: Callable[[Sequence[EndedCall]], None]) -> Callable[[], None]:
        """Pass new calls to `feed` in batches, until the returned function is called.

        It is also called, perhaps without calls, when a capture has begun or ended.
        """

    def call_details(self, number: int, reader: Caller) -> CallDetails | None:
        """What is known of one of the last calls. The audit log notes who reads arguments and results."""

    def capture_state(self) -> CaptureState | None:
        """Whether arguments and results are being captured; None if nothing is captured and nothing was."""

    def start_capture(self, order: CaptureOrder) -> CaptureState:
        """Capture arguments and results from now on; what was captured before is deleted."""

    def end_capture(self, by: Caller, *, forget: bool) -> CaptureState | None:
        """Stop capturing, and delete what was captured if `forget`."""

    def restart(self, server: ServerName) -> bool:
        """Start a server anew, and replace it when the new one is ready; False if the hub does not start it."""

    def call_counts(self) -> dict[ServerName | None, Callable[[], Mapping[str, object]]]:
        """For each server, what reads its figures as JSON has them; None stands for calls that reached no server.

        Reading sorts up to 500 durations: with thousands of servers that is done in passes.
        """


# -- who can reach what, and what was done -----------------------------------------------------------------------------

AccessBy: TypeAlias = Literal[
    "caller", "key", "issuer", "frontend", "tenant", "set", "policy", "definition", "server", "open", "local"
]
"""What decides about a cell: the rules of the caller, of its key or issuer, of a frontend or a tenant; its set; a
policy of an extension; a definition that waits for approval; a setting of the server; or that the hub is open, or the
key local."""


class AccessPageQuery(msgspec.Struct, frozen=True):
    """Which part of the matrix is wanted. In `caller` and `name`, `*` stands for any characters."""

    caller: str | None = None
    server: str | None = None
    name: str | None = None
    frontend: FrontendName | None = None
    limit: int = 100
    cursor: str | None = None


class AccessCaller(msgspec.Struct, frozen=True):
    """One row of the matrix."""

    name: str
    tenant: str
    key: str | None
    """The id of a key of the state folder; such keys of one caller may grant different things."""
    frontend: FrontendName | None
    frontends: tuple[FrontendName, ...]
    """The frontends that allow it less."""
    operator: bool
    targets: bool
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    set: str | None
    """The set that the caller is bound to."""


class AccessCell(msgspec.Struct, frozen=True):
    """Whether one caller can reach one feature, and why."""

    allowed: bool
    by: AccessBy
    reason: str


class AccessFeature(msgspec.Struct, frozen=True):
    """One column of the matrix."""

    list: str
    name: str
    server: str
    cells: Sequence[AccessCell]
    """In the order of the callers."""


class AccessPage(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the matrix."""

    callers: Sequence[AccessCaller]
    callers_left_out: int
    features: Sequence[AccessFeature]
    next: str | None
    """The cursor of the next part."""


class AccessServer(msgspec.Struct, frozen=True):
    """How much of one server each caller can reach."""

    name: str
    state: str
    features: int
    reached: Sequence[int]
    """In the order of the callers."""


class AccessSummary(msgspec.Struct, frozen=True, rename="camel"):
    """The matrix by server."""

    callers: Sequence[AccessCaller]
    callers_left_out: int
    servers: Sequence[AccessServer]


class RuleChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Other rules for a caller, a tenant or a frontend; what is not given stays."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None


class CallerChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Other rules for a caller."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None
    frontends: Mapping[FrontendName, RuleChange | None] = {}
    """None removes the rules of a frontend."""


class RuleChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules to try without applying them, by the names of callers and tenants."""

    callers: Mapping[str, CallerChange] = {}
    tenants: Mapping[str, RuleChange] = {}


class ChangedFeature(msgspec.Struct, frozen=True):
    """A feature that a change gives or takes, and why it is then allowed or denied."""

    list: str
    name: str
    server: str
    by: AccessBy
    reason: str


class CallerDifference(msgspec.Struct, frozen=True):
    """What a change gives to a caller and takes from it; the numbers count also what is not listed."""

    caller: str
    tenant: str
    key: str | None
    frontend: FrontendName | None
    appears: int
    vanishes: int
    appear: Sequence[ChangedFeature]
    vanish: Sequence[ChangedFeature]


class AccessPreview(msgspec.Struct, frozen=True):
    """What a change would do."""

    changes: Sequence[CallerDifference]
    complete: bool
    """Whether everything that changes is listed."""


class UnknownName(LookupError):
    """A report is about something that does not exist."""

    def __init__(self, kind: Literal["caller", "server", "tenant"], name: str) -> None:
        super().__init__(f"Unknown {kind}: {name}")
        self.kind = kind


class AccessReports(Protocol):
    """Who can reach what. Every method raises `ValueError` for a bad request, and `UnknownName`."""

    async def page(self, query: AccessPageQuery) -> AccessPage:
        """A part of the matrix of callers and features."""

    async def summary(self, caller: str | None, frontend: FrontendName | None) -> AccessSummary:
        """How much of each server each caller can reach."""

    async def preview(self, changes: RuleChanges) -> AccessPreview:
        """What other rules would give and take. Nothing is applied."""


class AuditFilter(msgspec.Struct, frozen=True):
    """Which records are wanted. In `tool` and `event`, `*` stands for any characters."""

    caller: str | None = None
    server: str | None = None
    tool: str | None = None
    outcome: str | None = None
    event: str | None = None
    since: float = 0.0
    until: float = float("inf")


class AuditLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A record exactly as it is stored, so that the chain of an export can be verified without the hub."""

    slot: int = 0
    """The slot of its log; 0 for the log of the hub that serves."""
    number: int
    digest: str
    record: msgspec.Raw


class AuditPage(msgspec.Struct, frozen=True):
    """Some records, the newest first."""

    mode: str
    """The `audit` setting of the hub."""
    records: Sequence[AuditLine]
    next: str | None
    """The cursor of older records; also set if the search stopped before it found enough."""
    scanned: int
    """How many records were read."""


class AuditProgress(msgspec.Struct, frozen=True):
    """How far a verification is."""

    records: int
    total: int


class AuditBusy(Exception):
    """Another verification or too many exports run; the message says so."""


class NoAuditLog(Exception):
    """The hub keeps no log, and never did."""


class AuditReports(Protocol):
    """The audit logs of a hub. Every method raises `OSError` if a log cannot be read."""

    async def page(self, wanted: AuditFilter, limit: int, cursor: str | None) -> AuditPage:
        """The newest records before the cursor. Raises `ValueError` for a bad cursor."""

    def export(self, wanted: AuditFilter, ended: asyncio.Future[None]) -> AsyncGenerator[bytes]:
        """All records as JSON Lines, the oldest first, in pieces, until `ended` is done.

        Raises `AuditBusy` and `NoAuditLog`.
        """

    def verify(self, ended: asyncio.Future[None]) -> AsyncGenerator[AuditProgress | Mapping[str, object]]:
        """Verify all logs: progress, and at the end the verdict as JSON has it, unless `ended` is done before.

        Raises `AuditBusy` and `NoAuditLog`.
        """


class RelayAdmin(Protocol):
    """The operator's view of the relay."""

    async def status(self) -> RelayStatus:
        """All agents, servers and devices now, with those of other nodes."""

    def forget(self, server: ServerName) -> Forgetting:
        """Delete what is stored about a server that is away."""


# -- tasks and sessions, as people look at them ------------------------------------------------------------------------


class TaskQuery(msgspec.Struct, frozen=True):
    """Which tasks to list; what is empty does not narrow the list."""

    states: tuple[TaskState, ...] = ()
    server: str = ""
    tool: str = ""
    caller: str = ""
    tenant: str = ""


class TaskAddress(msgspec.Struct, frozen=True):
    """A task by its id; operators may add its caller, because two callers may use the same id."""

    id: str
    caller: str = ""
    tenant: str = ""


class TaskReport(msgspec.Struct, frozen=True):
    """What the call of a running task reported last: progress, or a line of its log."""

    kind: Literal["progress", "log"]
    at: float
    data: msgspec.Raw
    """As the server sent it. A viewer who may not see the task's content gets `progress` and `total` only."""


class TaskEntry(msgspec.Struct, frozen=True, rename="camel"):
    """What a list shows of a task."""

    id: str
    protocol: Literal["a2a", "mcp"]
    state: TaskState
    server: str | None
    """None if the task calls no configured server."""
    tool: str | None
    caller: str
    tenant: str
    created: float
    updated: float
    outcome: str | None
    """How it ended: `result`, `tool_error`, or the reason of a fault; None while it runs."""
    executed: Executed | None
    message: str | None
    """What a person should know: the open question, what went wrong, or what it waits for."""
    progress: msgspec.Raw | None
    """The last report of a running call with `progress`, `total` and `message`."""


class TaskDetails(TaskEntry, frozen=True, rename="camel"):
    """One task."""

    context: str
    content: bool
    """Whether the members below say what was said; without it they are empty."""
    messages: tuple[Message, ...]
    """The newest messages of both sides."""
    question: msgspec.Raw | None
    result: msgspec.Raw | None
    result_bytes: int
    """The size of the result, which is left out if it is long."""
    error: msgspec.Raw | None


class TaskList(msgspec.Struct, frozen=True):
    """Some tasks, the last changed first. There may be more whenever `next` is not empty."""

    tasks: tuple[TaskEntry, ...]
    next: str = ""


class TaskAdmin(Protocol):
    """The durable tasks of a hub: each caller sees its own, an operator those of all.

    The content of another caller's task (arguments, messages, result) is shown to an operator who asks for it.
    Reading raises `OSError`.
    """

    async def list(self, viewer: Caller, query: TaskQuery, *, limit: int, cursor: str) -> TaskList:
        """One page. Raises `ValueError` for a cursor that no page has."""

    def follow_list(
        self, viewer: Caller, query: TaskQuery, feed: Callable[[Sequence[TaskEntry]], bool]
    ) -> Callable[[], None]:
        """Pass changed tasks to `feed` in batches, until the returned function is called.

        A feed returns False if it cannot take them now; then they come with the next batch.
        """

    async def get(self, viewer: Caller, address: TaskAddress, *, with_content: bool) -> TaskDetails | Fault:
        """One task. Raises `ValueError` if several callers have a task with this id."""

    async def follow(
        self,
        viewer: Caller,
        address: TaskAddress,
        feed: Callable[[TaskDetails | TaskReport], None],
        *,
        with_content: bool,
    ) -> Callable[[], None] | Fault:
        """Pass a task to `feed` as it is now and with every change, until the returned function is called.

        Raises like `get`.
        """

    async def cancel(self, viewer: Caller, address: TaskAddress, *, with_content: bool) -> TaskDetails | Fault:
        """Cancel a task. Raises like `get`."""


class CallerSession(msgspec.Struct, frozen=True, rename="camel"):
    """An open session of a caller, without anything that would let somebody take it over."""

    frontend: str
    """`mcp`, `sse` or `console`."""
    caller: str
    tenant: str
    client: str | None
    """The name that the client gives itself, and its version."""
    client_version: str | None
    protocol: str | None
    """The version of the protocol."""
    since: float
    last_used: float
    calls: int
    """Calls that run now."""
    streams: int
    """Open event streams."""


class CallerStreams(msgspec.Struct, frozen=True):
    """How many event streams a caller has open at a frontend, those of sessions included."""

    frontend: str
    caller: str
    tenant: str
    streams: int


class SessionList(msgspec.Struct, frozen=True):
    """The sessions, the last used first, and open event streams by caller."""

    sessions: tuple[CallerSession, ...]
    total: int
    """How many sessions there are; the list has the last used ones."""
    streams: tuple[CallerStreams, ...]


class SessionAdmin(Protocol):
    """The open sessions of all frontends."""

    def describe(self, rest_streams: Iterable[Caller]) -> SessionList:
        """All of them; `rest_streams` has the caller of each stream that REST itself has open."""
