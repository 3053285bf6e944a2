"""What a call needs from the packages above the core, as protocols: links, exchanges, audit, credentials, push, relay.

`upstream` implements links, pools, list loaders and targets; the frontends and the command line implement exchanges;
`telemetry` records; `credentials` seals and signs; `transport` sends push notifications; `app` joins them. What must
last is in `core.journal`, what operators see in `core.admin_ports`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from isthmus.core.audit import Fact
from isthmus.model.callers import Caller
from isthmus.model.calls import (
    NO_CAPABILITIES,
    Call,
    ClientCapabilities,
    Event,
    OnReply,
    Outcome,
    Progress,
    Question,
)
from isthmus.model.fault_table import Fault
from isthmus.model.features import Tool
from isthmus.model.names import ServerName

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


# -- audit and metrics -------------------------------------------------------------------------------------------------


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
    """Encrypts what callers hold for the hub, or what is stored. It only opens with the same `bound_to`."""

    def seal(self, content: bytes, bound_to: bytes) -> str:
        """Content as a text that only this hub can open."""

    def open(self, sealed: str, bound_to: bytes) -> bytes | None:
        """The content; None if it was not sealed here, was changed, or is bound to something else."""

    def seal_bytes(self, content: bytes, bound_to: bytes) -> bytes:
        """See `seal`: the same as bytes, for what needs not be a text."""

    def open_bytes(self, sealed: bytes, bound_to: bytes) -> bytes | None:
        """See `open`: the content of what `seal_bytes` returned."""


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
