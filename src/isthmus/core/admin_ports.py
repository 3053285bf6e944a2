"""What operators see and change over the REST API, as protocols and the documents that they return.

`app`, `core.calls` and `telemetry` implement these; `frontends.rest` serves them, and the console and the command line
read them there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from isthmus.model.callers import Caller, FrontendName
from isthmus.model.calls import (
    Kind,
)
from isthmus.model.fault_table import Executed, Fault
from isthmus.model.names import ServerName
from isthmus.model.relay import Forgetting, RelayStatus
from isthmus.model.tasks import Message, TaskState

if TYPE_CHECKING:  # these classes use the protocols below
    pass


# -- calls, approvals, budgets and servers -----------------------------------------------------------------------------


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


# -- the cluster -------------------------------------------------------------------------------------------------------


class NodeReport(msgspec.Struct, frozen=True, rename="camel"):
    """A node of the cluster, as the one that is asked sees it."""

    name: str
    is_self: bool
    since: float
    """When it joined, in seconds since 1970; for the node itself, since when its bus is as it is."""
    version: str
    servers: tuple[str, ...]
    """The servers that it owns, by name."""
    differs: tuple[str, ...] = ()
    """The tables of its configuration that differ from those of the node that is asked."""
    config_version: int | None = None
    """The version of its configuration in the database, if it is from there."""
    config_problem: str = ""
    """Why it does not use all of the newest configuration; empty if it does."""
    epoch: str = ""
    """Its life: a node that starts again, or loses the bus, has another one. A text, since it has more digits than
    JavaScript keeps."""
    silence: float | None = None
    """For how many seconds nothing has come from it; None for the node that is asked."""
    lag: float | None = None
    """How many seconds a request to it and its answer take now; None for the node that is asked, and without an
    answer."""


class BusReport(msgspec.Struct, frozen=True):
    """The bus between the nodes."""

    state: Literal["connected", "away"]
    since: float
    reason: str
    """Why it is away; empty if it is not."""


class ClusterReport(msgspec.Struct, frozen=True):
    """The nodes that are present."""

    node: str
    bus: BusReport
    nodes: tuple[NodeReport, ...]


class ClusterReports(Protocol):
    """The cluster that the hub is a node of."""

    async def report(self) -> ClusterReport:
        """The nodes that are present now. Each is asked, so that its lag is known."""


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
