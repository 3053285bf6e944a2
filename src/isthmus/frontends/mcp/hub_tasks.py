"""Tasks that the hub runs itself, for servers without tasks: the caller can leave and fetch the result later.

A legacy caller asks for a task. For a modern caller that supports tasks, a slow call becomes one. Both are tasks of
the one engine (`core.tasks`). A script of `run_code` is a task from its start, so that it continues after a crash; a
caller gets the result in its place if that comes soon. Tasks that servers run themselves are passed on and do not come
here. `methods` calls `HubTasks`, which is also the link of the calls about such tasks.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.approvals import HeldRequest, start_call_again
from isthmus.core.calls.hub import HELD, Hub, Stage, find, validate
from isthmus.core.calls.running_call import Deadlines, InFlight, OpenQuestion
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.view import View, VirtualRoute
from isthmus.core.journal import Journal
from isthmus.core.ports import Exchange, LateProgressExchange, ReportProgress, VirtualTool
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.live_task import (
    LiveTask,
    NewTask,
    Report,
    TaskListener,
    TaskNotStarted,
    TaskWork,
)
from isthmus.core.tasks.record import TASK as TASK_DOCUMENT
from isthmus.core.tasks.record import (
    StoredOutcome,
    StoredQuestion,
    TaskOwner,
    TaskRecord,
    is_approval,
    owner_of,
    restored_outcome,
)
from isthmus.core.watch.server_tasks import ServerTask, hub_task
from isthmus.frontends.mcp.exchange import McpExchange, code_of, data_of
from isthmus.frontends.mcp.input_required import CROWDED, GONE
from isthmus.frontends.mcp.settings import TaskSettings
from isthmus.frontends.mcp.tasks import is_hub_task_id, is_listed
from isthmus.model.callers import Caller
from isthmus.model.calls import (
    GIVEN_UP,
    NOT_ASKED,
    TASK_KINDS,
    TOO_LATE,
    Answered,
    Call,
    ClientCapabilities,
    Outcome,
    Progress,
    Question,
    Reply,
    Result,
    Surface,
)
from isthmus.model.fault_table import (
    BadArguments,
    Bug,
    Cancelled,
    Draining,
    Fault,
    NotWritten,
    TaskElsewhere,
    TaskEnded,
    UnknownTask,
)
from isthmus.model.features import Ability, Feature
from isthmus.model.names import ServerName
from isthmus.model.tasks import ServerTaskState
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.forwarded_methods import CAPABILITY_NEEDED, RESPONSES, wrap_bare_result
from isthmus.wire.mcp.messages import is_object, read_string
from isthmus.wire.mcp.tasks import (
    TASK,
    TASKS_CAPABILITY,
    TaskSummary,
    legacy_state,
    modern_state,
    read_ttl,
    related_to,
    state_of,
)

REALM = "mcp"
"""The realm of these tasks in the engine. Other frontends have their own."""

ENDED_SECONDS = 60.0
"""How long a task is stored after its end at least, however short a `ttl` its caller asked for."""

QUEUED = "The call waits for its server and has not been sent yet"

CHECKS: tuple[Stage, ...] = (find, validate)
"""A call that fails one of these is refused and does not become a task; nor does one of a tool of the hub itself."""

RETRY_SECONDS = 1.0
"""When to try again to make a task of a call whose server has too many tasks."""

EXPIRING_MAX = 10_000
"""Ended tasks with an expiry timer. Further ones are deleted when they are requested, or with the general retention."""

OnTaskState: TypeAlias = Callable[[Mapping[str, Payload]], None]

NO_ANSWERS: tuple[Reply, ...] = (GIVEN_UP, TOO_LATE, GONE, CROWDED, NOT_ASKED)
"""Replies that are not the caller's answer: the next caller that waits for the result is asked again. A question that
the task's creator could not be asked never reached the task."""


class HubTaskInfo(msgspec.Struct, frozen=True):
    """What this frontend stores with a task."""

    server: ServerName
    ttl_seconds: float
    """How long the task is stored, from its creation."""
    session: str = ""
    """The session that asked for it, for anonymous callers."""
    tool: str = ""
    """The server's own name for the tool."""


_decode_info = msgspec.json.Decoder(HubTaskInfo).decode


class DurableTool(VirtualTool, Protocol):
    """A tool of the hub itself whose calls are tasks that continue after a crash: `run_code`."""

    def task_work(self, call: Call) -> TaskWork | Fault:
        """The work of a call, whose arguments fit the schema."""


ACKNOWLEDGED = Result(Raw(b'{"resultType":"complete"}'), is_typed=True)


# -- states and results --------------------------------------------------------------------------------------------


def info_of(record: TaskRecord) -> HubTaskInfo:
    """What was stored with the task."""
    return _decode_info(record.brief)


def expiry_of(record: TaskRecord) -> float:
    """When an ended task is deleted."""
    return max(record.created + info_of(record).ttl_seconds, record.updated + ENDED_SECONDS)


def is_info_visible(info: HubTaskInfo, view: View, surface: Surface) -> bool:
    """Whether a task of this server, or of a tool of the hub itself, is visible on the surface."""
    if info.server == BUILTIN and info.tool in view.virtual:
        return True
    return surface.server in (None, info.server) and info.server in view.servers


def _summary(record: TaskRecord, status: str) -> TaskSummary:
    ending = record.ending
    message = QUEUED if record.phase == "waiting" else "" if ending is None else ending.message
    if record.asked is not None and is_approval(record.asked):
        message = read_string((object_members(record.asked.params) or {}).get("message")) or QUEUED
    return TaskSummary(record.id, status, record.created, record.updated, info_of(record).ttl_seconds, message)


def status_of(record: TaskRecord) -> str:
    """The status in the words of the legacy era."""
    match record.state:
        case "completed":
            return "completed"
        case "failed" | "rejected":
            return "failed"
        case "canceled":
            return "cancelled"
        case _:
            # An operator answers a request for approval, and not the caller.
            return "working" if record.asked is None or is_approval(record.asked) else "input_required"


def legacy_members(record: TaskRecord) -> dict[str, Payload]:
    """The state of a task for legacy callers."""
    return legacy_state(_summary(record, status_of(record)))


def notified_state(record: TaskRecord) -> ServerTaskState:
    """The state of a task for status notifications."""
    state = state_of({key: Raw(value) for key, value in legacy_members(record).items()})
    assert state is not None, "the hub's own words are readable"
    return state


def modern_members(record: TaskRecord) -> dict[str, Payload]:
    """The state of a task for modern callers, with its questions, result or error."""
    outcome = None if record.ending is None else _outcome_of(record.ending)
    # A tool that ran and reported an error has completed, in this era.
    status = "completed" if isinstance(outcome, Result) else status_of(record)
    members = modern_state(_summary(record, status))
    if status == "input_required":
        members["inputRequests"] = render(
            {
                key: render({"method": msgspec.json.encode(asked.method), "params": asked.params})
                for key, asked in questions_of(record).items()
            }
        )
    elif isinstance(outcome, Result):
        members["result"] = modern.as_modern(outcome.payload) or outcome.payload
    elif status == "failed" and outcome is not None:
        error: dict[str, Payload] = {
            "code": msgspec.json.encode(code_of(outcome)),
            "message": msgspec.json.encode(outcome.message),
            "data": data_of(outcome),
        }
        members["error"] = render(error)
    return members


def _outcome_of(ending: StoredOutcome) -> Outcome:
    outcome = restored_outcome(ending)
    return wrap_bare_result(outcome) if isinstance(outcome, Result) and outcome.is_bare else outcome


def questions_of(record: TaskRecord) -> dict[str, StoredQuestion]:
    """The open questions of a task, by the keys with which its caller answers."""
    asked = () if record.asked is None else (record.asked, *record.besides)
    return {f"q{each.number}": each for each in asked}


def created_legacy(record: TaskRecord) -> Result:
    """The response to a call that asked for a task. The status is "working", whatever happened since."""
    return Result(Raw(render({TASK: render(legacy_state(_summary(record, "working")))})))


def created_modern(record: TaskRecord) -> Result:
    """The response to a call that became a task."""
    members = modern_state(_summary(record, "working"))
    return Result(Raw(render({"resultType": b'"task"', **members})), is_typed=True)


def legacy_status(record: TaskRecord) -> Result:
    """The response to a legacy `tasks/get`."""
    return Result(Raw(render(legacy_members(record))))


def modern_status(record: TaskRecord) -> Result:
    """The response to a modern `tasks/get`."""
    return Result(Raw(render({"resultType": b'"complete"', **modern_members(record)})), is_typed=True)


def result_of(record: TaskRecord) -> Outcome:
    """The outcome of an ended task's call."""
    if record.ending is None:
        return Cancelled("the task was cancelled before it was started", executed="no")
    outcome = _outcome_of(record.ending)
    if isinstance(outcome, Fault):
        return outcome
    members = related_to(record.id, object_members(outcome.payload) or {})
    return Result(Raw(render(members)), outcome.is_error, is_typed="resultType" in members)


def question_of(record: TaskRecord) -> Question | None:
    """The open question of a task as a request that names the task; None if there is no question."""
    asked = record.asked
    if asked is None:
        return None
    members = related_to(record.id, object_members(asked.params) or {})
    return Question(asked.method, Raw(render(members)))


# -- listeners -----------------------------------------------------------------------------------------------------


class ResultWaiter:
    """A caller that waits in `tasks/result`. The task's questions are asked on its stream."""

    def __init__(self, engine: TaskEngine, inflight: InFlight, live: LiveTask) -> None:
        self._engine = engine
        self._inflight = inflight
        self._live = live
        self._number = 0
        """The number of the question that this caller was asked last."""
        self._is_mute = False
        """It cannot be asked, against its capabilities: its stream takes no requests, or has taken too many."""
        self._open: OpenQuestion | None = None
        live.listeners[self] = None
        self.task_changed(live.stored or live.record)

    def task_changed(self, record: TaskRecord) -> None:
        """See `core.tasks.live_task.TaskListener`."""
        if record.is_terminal:
            self.leave()
            self._inflight.finish(result_of(record))
            return
        number = 0 if record.asked is None else record.asked.number
        if self._open is not None and number != self._number:
            open_question, self._open = self._open, None
            open_question.retract()
        question = question_of(record)
        if question is not None and number != self._number and self._first_askable(question.method) is self:
            self._number = number
            self._open = self._inflight.ask(question, self._answered)

    def task_reported(self, record: TaskRecord, noted: Report) -> None:
        """Progress goes to the caller that created the task (`HubTaskNotifier`)."""

    def left(self) -> None:
        """See `core.tasks.live_task.ShutdownListener`; the caller can ask again."""
        self.leave()
        self._inflight.finish(Draining())

    def leave(self) -> None:
        """Stop waiting. An open question is asked of another waiting caller."""
        self._live.listeners.pop(self, None)
        self._pass_on()

    def _pass_on(self) -> None:
        record = self._live.stored or self._live.record
        if record.asked is None or self._live.record.is_terminal:
            return
        if (other := self._first_askable(record.asked.method)) is not None:
            other.task_changed(record)

    def _first_askable(self, method: str) -> ResultWaiter | None:
        """The waiting caller that is asked: each question goes to one caller that has the capability."""
        waiting = (each for each in self._live.listeners if isinstance(each, ResultWaiter))
        return next((each for each in waiting if each.can_be_asked(method)), None)

    def can_be_asked(self, method: str) -> bool:
        """Whether this caller has the capability for such a question."""
        return not self._is_mute and CAPABILITY_NEEDED.get(method) in self._inflight.call.client_caps

    def _answered(self, reply: Reply) -> None:
        self._open = None
        asked = self._live.record.asked
        if reply == NOT_ASKED:
            self._is_mute = True
            self._pass_on()
        elif reply not in NO_ANSWERS and asked is not None and asked.number == self._number:
            self._engine.answer(self._live, None, reply)


class HubTaskNotifier:
    """Notifies the caller's sessions of a task's status, and its creator of progress, after the creation response."""

    def __init__(
        self,
        hub: Hub,
        caller: Caller,
        server: ServerName,
        on_end: Callable[[LiveTask], None],
        *,
        session: str | None,
        report: ReportProgress | None = None,
    ) -> None:
        """`session` is the one that asked for the task; None for no status notifications."""
        self._hub = hub
        self._caller = caller
        self._server = server
        self._on_end = on_end
        self._session = session
        self._report = report
        self._live: LiveTask | None = None
        self._task: ServerTask | None = None

    def start(self, live: LiveTask) -> None:
        """The creation response was sent."""
        self._live = live
        if self._session is not None:
            self._task = hub_task(self._caller, self._server, self._session, notified_state(live.record))
        # uvloop may read from the server before it resumes the creation of the task: a quick task has reported by then.
        for noted in live.reports.after(0):
            self.task_reported(live.record, noted)
        if live.stored is not None and live.stored.state != "working":
            self.task_changed(live.stored)

    def task_changed(self, record: TaskRecord) -> None:
        """See `core.tasks.live_task.TaskListener`."""
        if self._live is None:
            return
        if self._task is not None:
            self._hub.tasks.announce(self._task, notified_state(record))
        if record.is_terminal:
            self._live.listeners.pop(self, None)
            self._on_end(self._live)

    def task_reported(self, record: TaskRecord, noted: Report) -> None:
        """Send progress to the creator, under its progress token."""
        event = noted.event
        if self._live is not None and self._report is not None and isinstance(event, Progress):
            self._report(msgspec.structs.replace(event, members=related_to(record.id, event.members)))


class EarlyResult:
    """Answers a modern call that is a task: with its result if that comes soon, otherwise with the task."""

    def __init__(self, engine: TaskEngine, inflight: InFlight) -> None:
        self._engine = engine
        self._inflight = inflight
        self._live: LiveTask | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, live: LiveTask, seconds: float) -> None:
        """The task is stored: wait at most this long for its end."""
        self._live = live
        if self._inflight.outcome is not None:  # the caller left meanwhile
            self.leave()
            return
        self._inflight.carriage = self
        self._timer = asyncio.get_running_loop().call_later(seconds, self._give_task)
        for noted in live.reports.after(0):
            self.task_reported(live.record, noted)
        if live.stored is not None:
            self.task_changed(live.stored)

    def task_changed(self, record: TaskRecord) -> None:
        """See `core.tasks.live_task.TaskListener`."""
        live = self._live
        if live is None:
            return
        if record.is_terminal:
            self._stop()
            # Nobody learns the id of this task. Later: other listeners are notified first.
            asyncio.get_running_loop().call_soon(self._engine.discard, live)
            self._inflight.finish(result_of(record) if record.ending is None else _outcome_of(record.ending))
        elif record.asked is not None:  # answered by `tasks/update`, or by an operator
            self._give_task()

    def task_reported(self, record: TaskRecord, noted: Report) -> None:
        """Pass on what the script's calls report, as long as the caller waits."""
        if self._live is not None:
            self._inflight.emit(noted.event)

    def left(self) -> None:
        """See `core.tasks.live_task.ShutdownListener`; the next hub continues the task."""
        self._give_task()

    def leave(self) -> None:
        """The caller has left and never learns the task's id: cancel it."""
        live = self._live
        if live is not None:
            self._stop()
            self._engine.cancel(live, "the caller cancelled the call")

    def _give_task(self) -> None:
        live = self._live
        if live is not None:
            self._stop()
            self._inflight.finish(created_modern(live.record))

    def _stop(self) -> None:
        if self._live is not None:
            self._live.listeners.pop(self, None)
            self._live = None
        if self._timer is not None:
            self._timer.cancel()


class HubTaskFollower:
    """Calls `notify` with the state of a task for a modern caller, at the start and on every change."""

    def __init__(self, live: LiveTask, notify: OnTaskState) -> None:
        self._live = live
        self._notify = notify

    def start(self) -> None:
        """Notify from now on."""
        record = self._live.stored or self._live.record
        if not record.is_terminal:
            self._live.listeners[self] = None
        self.task_changed(record)

    def task_changed(self, record: TaskRecord) -> None:
        """See `core.tasks.live_task.TaskListener`."""
        if record.is_terminal:
            self.stop()
        self._notify(modern_members(record))

    def task_reported(self, record: TaskRecord, noted: Report) -> None:
        """The modern era has no progress of tasks."""

    def stop(self) -> None:
        """Stop notifying."""
        self._live.listeners.pop(self, None)


# -- the tasks -----------------------------------------------------------------------------------------------------


class HubTasks:
    """The tasks that the hub runs for MCP callers."""

    def __init__(
        self,
        hub: Hub,
        engine: TaskEngine,
        journal: Journal,
        background: BackgroundTasks,
        settings: Callable[[], TaskSettings],
        retention: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        """`settings` and `retention` return the current values; the latter, for how many seconds tasks are stored."""
        self._hub = hub
        self._engine = engine
        self._journal = journal
        self._background = background
        self._settings = settings
        self._retention = retention
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._slow = Deadlines(self._loop)
        """Calls that become tasks unless they end soon."""
        self._expiring = 0
        self.durable_tool: DurableTool | None = None
        """See `DurableTool`; None if the hub runs no scripts."""

    @property
    def is_enabled(self) -> bool:
        """Whether the operator wants hub tasks."""
        return self._settings().provide

    def applies_to(self, view: View, server: ServerName, ability: Ability) -> bool:
        """Whether the hub runs this server's tools as tasks: only if the server does not do so itself."""
        return self.is_enabled and ability not in view.servers.get(server, frozenset({ability}))

    def is_requested(self, call: Call) -> bool:
        """Whether a legacy call asks for a task that the hub runs."""
        if call.kind != "tool" or TASK not in call.extra:
            return False
        if self._durable_route(call) is not None:
            return True
        view = self._hub.snapshot.view(call.caller.grants, call.surface, call.client_caps)
        route = view.routes.get(call.name)
        return route is not None and self.applies_to(view, route.feature.server, "tasks")

    def is_durable(self, route: VirtualRoute) -> bool:
        """Whether calls of this tool of the hub can be tasks."""
        return route.virtual is self.durable_tool

    def _durable_route(self, call: Call) -> VirtualRoute | None:
        if self.durable_tool is None or call.kind != "tool":
            return None
        route = self._hub.snapshot.find_virtual(call.caller.grants, call.surface, call.client_caps, call.name)
        return route if route is not None and self.is_durable(route) else None

    # -- creation --------------------------------------------------------------------------------------------------

    def create(self, call: Call, exchange: Exchange) -> InFlight:
        """Run a tool as a task; the response is the task."""
        inflight = self._hub.start_builtin(call, exchange, self)
        if (route := self._durable_route(call)) is not None:
            if (work := self._durable_work(inflight, route)) is not None:
                self._spawn("creating a task", inflight, self._create(inflight, call, exchange, work))
            return inflight
        ending = next((found for check in CHECKS if (found := check(self._hub, inflight)) is not None), None)
        if ending is None:
            self._spawn("creating a task", inflight, self._create(inflight, call, exchange))
        elif ending is not HELD:
            inflight.finish(ending)
        return inflight

    def start_durable(self, call: Call, exchange: Exchange) -> InFlight | None:
        """Start a script of a modern caller that supports tasks; None if the call is of any other tool."""
        if (route := self._durable_route(call)) is None:
            return None
        inflight = self._hub.start_builtin(call, exchange, self)
        if (work := self._durable_work(inflight, route)) is not None:
            self._spawn("a script that may become a task", inflight, self._start_durable(inflight, work))
        return inflight

    def _durable_work(self, inflight: InFlight, route: VirtualRoute) -> TaskWork | None:
        """The work of a call of `durable_tool`; None if the call was refused."""
        call, durable = inflight.call, self.durable_tool
        assert durable is not None, "`_durable_route` found it"
        detail = route.check(call.arguments)
        work = durable.task_work(call) if detail is None else BadArguments(call.name, detail)
        if (refused := self._hub.refusal(call.caller)) is not None:
            work = refused
        if isinstance(work, Fault):
            inflight.finish(work)
            return None
        return work

    async def _start_durable(self, inflight: InFlight, work: TaskWork) -> None:
        waiter = EarlyResult(self._engine, inflight)
        task = self._new_task(inflight.target.feature, inflight.call, waiter, self._retention(), work=work)
        try:
            live = await self._engine.begin(task)
        except TaskNotStarted as refused:
            inflight.finish(NotWritten(str(refused)))
            return
        waiter.start(live, self._settings().after)

    async def _create(self, inflight: InFlight, call: Call, exchange: Exchange, work: TaskWork | None = None) -> None:
        feature = inflight.target.feature
        report = exchange.reporter() if isinstance(exchange, LateProgressExchange) else None
        notifier = HubTaskNotifier(
            self._hub, call.caller, feature.server, self._ended, session=call.session, report=report
        )
        wanted = read_ttl(call.extra[TASK]) if TASK in call.extra else None
        ttl = min(wanted, self._retention()) if isinstance(wanted, float) else self._retention()
        # The call outlives its session, whose link stays open until the last call on it has ended.
        extra = {key: value for key, value in call.extra.items() if key != TASK}
        task_call = msgspec.structs.replace(call, extra=extra, lasts=True)
        try:
            task = self._new_task(feature, task_call, notifier, ttl, session=call.session, work=work)
            live = await self._engine.begin(task)
        except TaskNotStarted as refused:
            inflight.finish(NotWritten(str(refused)))
            return
        if inflight.outcome is None:
            inflight.finish(created_legacy(live.record))
        else:  # cancelled meanwhile: the caller never receives the task
            self._engine.cancel(live, "the caller cancelled the task")
        notifier.start(live)

    def _new_task(
        self,
        feature: Feature,
        call: Call,
        listener: TaskListener,
        ttl: float,
        *,
        session: str = "",
        is_running: bool = False,
        work: TaskWork | None = None,
    ) -> NewTask:
        return NewTask(
            call.caller,
            "",
            REALM,
            (),
            "working",
            None if is_running else work or call,
            brief=Raw(msgspec.json.encode(HubTaskInfo(feature.server, ttl, session, feature.name))),
            realm=REALM,
            listeners=(listener,),
            is_running=is_running,
        )

    def _ended(self, live: LiveTask) -> None:
        """Delete an ended task when its `ttl` has passed, if that is before the general retention."""
        record = live.record
        if info_of(record).ttl_seconds < self._retention() and self._expiring < EXPIRING_MAX:
            self._expiring += 1
            self._loop.call_later(max(0.0, expiry_of(record) - self._now()), self._expire, record.owner, record.id)

    def _expire(self, owner: TaskOwner, id: str) -> None:
        async def delete() -> None:
            with suppress(OSError):  # the next request for the task deletes it
                await self._unexpired(await self._engine.find(owner, id))

        self._expiring -= 1
        with suppress(RuntimeError):  # the hub is closing; the next request for the task deletes it
            self._background.spawn("a task's expiry", delete())

    # -- calls that become tasks -----------------------------------------------------------------------------------

    def watch(self, inflight: InFlight) -> None:
        """Make a task of a running call if it does not end soon; its caller supports tasks."""
        view = self._hub.snapshot.view(inflight.call.caller.grants, inflight.call.surface, inflight.call.client_caps)
        route = inflight.route
        if route is not None and self.applies_to(view, route.feature.server, "task_handles"):
            self._slow.add(_SlowCall(inflight, self._promote), self._settings().after)

    def _promote(self, inflight: InFlight) -> None:
        exchange = inflight.exchange
        if inflight.outcome is not None or not isinstance(exchange, McpExchange) or self._hub.is_draining:
            return
        approvals = self._hub.approvals
        waits_for_operator = inflight.is_held and not inflight.questions
        held = approvals.take(inflight) if waits_for_operator and approvals is not None else None
        if held is not None:
            self._background.spawn("a held call that becomes a task", self._make_held_task(held, exchange))
            return
        # A call that is still queued, asks its caller for approval or was just allowed would be stored as a task that
        # may have run.
        is_queued = inflight.is_held or (inflight.server_queue is not None and not inflight.may_have_run)
        if not is_queued and (inflight.server_queue is None or inflight.server_queue.admit_long_call(inflight)):
            self._background.spawn("a call that becomes a task", self._make_task(inflight, exchange))
        else:  # or its server has too many tasks now
            self._slow.add(_SlowCall(inflight, self._promote), RETRY_SECONDS)

    async def _make_task(self, inflight: InFlight, exchange: McpExchange) -> None:
        feature = inflight.target.feature
        notifier = HubTaskNotifier(self._hub, inflight.call.caller, feature.server, self._ended, session=None)
        new_task = self._new_task(feature, inflight.call, notifier, self._retention(), is_running=True)
        live: LiveTask | None = None
        with suppress(TaskNotStarted):
            live = await self._engine.begin(new_task)
        if live is None or inflight.outcome is not None or inflight.exchange is not exchange:
            if live is not None:
                self._engine.discard(live)  # the call was answered, or its caller was asked, meanwhile
            if inflight.server_queue is not None:
                inflight.server_queue.end_long_call(inflight)
            return
        # From now on the server's questions belong to the task, and are not answered by another call.
        inflight.call = msgspec.structs.replace(inflight.call, comes_back=False)
        self._engine.attach_call(live, inflight)
        inflight.prolong()
        exchange.end(created_modern(live.record))
        notifier.start(live)

    async def _make_held_task(self, held: HeldRequest, exchange: McpExchange) -> None:
        """Make a task of a call that waits for approval: the task makes the call anew, and joins its request."""
        inflight = held.inflight
        feature, call = inflight.target.feature, msgspec.structs.replace(held.call, comes_back=False)
        notifier = HubTaskNotifier(self._hub, call.caller, feature.server, self._ended, session=None)
        live: LiveTask | None = None
        with suppress(TaskNotStarted):
            live = await self._engine.begin(self._new_task(feature, call, notifier, self._retention()))
        if live is None:
            start_call_again(held)
            self._slow.add(_SlowCall(inflight, self._promote), RETRY_SECONDS)
        elif inflight.is_done:  # its caller has left meanwhile
            self._engine.cancel(live, "the caller cancelled the call")
        else:
            inflight.abandon()
            exchange.end(created_modern(live.record))
            notifier.start(live)

    # -- calls about tasks -----------------------------------------------------------------------------------------

    def answer(self, call: Call, exchange: Exchange) -> InFlight:
        """Answer a call about a hub task."""
        assert call.kind in TASK_KINDS, call.kind
        inflight = self._hub.start_builtin(call, exchange, self)
        self._spawn(f"answer about a task ({call.kind})", inflight, self._answer(inflight))
        return inflight

    async def _answer(self, inflight: InFlight) -> None:
        call = inflight.call
        try:
            live = await self.find(call.caller, call.surface, call.client_caps, call.name)
        except OSError as error:  # the journal is not available
            inflight.finish(NotWritten(str(error)))
            return
        if live is None:
            inflight.finish(UnknownTask())
            return
        if inflight.outcome is not None:
            return
        is_modern = TASKS_CAPABILITY in call.client_caps
        match call.kind:
            case "task_result":
                inflight.carriage = ResultWaiter(self._engine, inflight, live)
            case "task_cancel" | "task_update" if live.holder and not live.record.is_terminal:
                # Answers to questions reach only the node that asked them.
                fault: Fault | None = TaskElsewhere(live.record.id)
                if call.kind == "task_cancel":
                    fault = await self._engine.cancel_elsewhere(live, "the caller cancelled the task")
                inflight.finish(fault or (ACKNOWLEDGED if is_modern else legacy_status(live.record)))
            case "task_cancel":
                is_cancelled = self._engine.cancel(live, "the caller cancelled the task")
                await self._engine.wait_stored(live)
                if is_modern:
                    inflight.finish(ACKNOWLEDGED)
                elif is_cancelled:
                    inflight.finish(legacy_status(live.record))
                else:
                    inflight.finish(TaskEnded(status_of(live.record)))
            case "task_update":
                # Answers to questions that are not open are ignored.
                answers = object_members(call.extra.get(RESPONSES, b"")) or {}
                for key, asked in questions_of(live.record).items():
                    if key in answers and is_object(answers[key]):
                        self._engine.answer_question(live, asked.number, Answered(answers[key].copy()))
                await self._engine.wait_stored(live)
                inflight.finish(ACKNOWLEDGED)
            case _:
                record = live.stored or live.record
                inflight.finish(modern_status(record) if is_modern else legacy_status(record))

    async def holder_of(self, caller: Caller, id: str) -> str:
        """The node that runs a caller's task; empty if it is this one, if none does, or if it cannot be told now."""
        with suppress(OSError):
            live = await self._engine.find(owner_of(caller, REALM), id)
            return "" if live is None or live.record.is_terminal else live.holder
        return ""

    async def find(self, caller: Caller, surface: Surface, client_caps: ClientCapabilities, id: str) -> LiveTask | None:
        """A caller's task, if it is visible on this surface and has not expired."""
        if not is_hub_task_id(id) or not self.is_enabled:
            return None
        live = await self._unexpired(await self._engine.find(owner_of(caller, REALM), id))
        view = self._hub.snapshot.view(caller.grants, surface, client_caps)
        return live if live is not None and is_info_visible(info_of(live.record), view, surface) else None

    async def _unexpired(self, live: LiveTask | None) -> LiveTask | None:
        """The task itself; an expired one is deleted."""
        if live is None or not live.record.is_terminal or self._now() < expiry_of(live.record):
            return live
        await self._engine.wait_stored(live)
        self._engine.discard(live)
        return None

    async def list_page(
        self, caller: Caller, surface: Surface, view: View, token: str, limit: int, session: str = ""
    ) -> tuple[list[Payload], str]:
        """The states of a caller's tasks, the newest first, and the token of the next page.

        An anonymous caller gets only those that were asked for in this `session`.

        Raises:
            ValueError: the token is not one of a previous page.
        """
        page = await self._journal.page(TASK_DOCUMENT, owner_of(caller, REALM).key, limit=limit, token=token)
        found: list[Payload] = []
        for document in page.documents:
            record = self._engine.current_record(document)
            if record is None or (record.is_terminal and self._now() >= expiry_of(record)):
                continue
            info = info_of(record)
            if is_info_visible(info, view, surface) and is_listed(info.session, caller, session):
                found.append(render(legacy_members(record)))
        return found, page.next

    async def follow(
        self,
        caller: Caller,
        surface: Surface,
        client_caps: ClientCapabilities,
        id: str,
        notify: OnTaskState,
    ) -> HubTaskFollower | None:
        """A follower of a task; None if there is no such task, or the journal is not available."""
        with suppress(OSError):
            live = await self.find(caller, surface, client_caps, id)
            return None if live is None else HubTaskFollower(live, notify)
        return None

    # -- the link of the calls about tasks (see `core.ports.Link`) -------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Nothing is sent: these calls are answered here."""

    def may_have_run(self, inflight: InFlight) -> bool:
        """Calls about tasks run nothing; a script may have called tools."""
        return isinstance(inflight.carriage, EarlyResult)

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Stop waiting for a result; the task continues, unless its caller does not know it yet."""
        if isinstance(inflight.carriage, ResultWaiter | EarlyResult):
            inflight.carriage.leave()

    def _spawn(self, name: str, inflight: InFlight, work: Coroutine[Any, Any, None]) -> None:
        def crashed(_: BaseException) -> None:
            inflight.finish(Bug(secrets.token_hex(6)))

        try:
            self._background.spawn(name, work, on_crash=crashed)
        except RuntimeError:  # the hub is closing
            inflight.finish(Draining())


class _SlowCall:
    """Calls `then` when a call has taken too long; holds the call only weakly."""

    __slots__ = ("_inflight", "_then")

    def __init__(self, inflight: InFlight, then: Callable[[InFlight], None]) -> None:
        self._inflight = weakref.ref(inflight)
        self._then = then

    def expire(self) -> None:
        """See `core.calls.running_call.Expiring`."""
        if (inflight := self._inflight()) is not None:
            self._then(inflight)

    def cancel(self, why: str) -> None:
        """Nothing to do: the call ends its own exchange."""
