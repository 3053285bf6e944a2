"""Runs scripts: each tool call in one is a call of the hub, with its caller's permissions, limits and audit records.

A durable script belongs to a task. `code.script_record` stores what it needs to continue. The state of the sandbox and
the calls that it waits for are stored before a call is sent; an outcome is stored with the next calls, or alone after
`OUTCOME_SECONDS`. After a crash of the hub, a call that was

    stored as sent, with its outcome   the script continues with that outcome
    stored as sent, without one        the call raises in the script: lost, executed: unknown
    stored as not sent                 it is sent now

No call is sent twice. The process in which scripts run (`code.sandbox_in_hub`) and the event loop exchange messages
only.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import MappingProxyType

import msgspec
import structlog
from msgspec import Raw

from isthmus.code.sandbox_in_child import SLEPT, ScriptEnd, ScriptSource, ScriptStop, ScriptTool
from isthmus.code.sandbox_in_hub import (
    EXTRA,
    CallAnswer,
    Sandbox,
    SandboxedScript,
    ToolFailure,
    is_installed,
    library_version,
)
from isthmus.code.script_record import (
    ScriptProgress,
    ScriptRecord,
    ScriptStore,
    SealedState,
    StoredCall,
    first_document,
    new_progress,
    prune,
)
from isthmus.code.script_schedule import CallerKey, ScriptSchedule
from isthmus.code.settings import CodeSettings
from isthmus.code.signatures import SCHEMA_BYTES_MAX, python_names, signatures, words_in
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.catalog.view import View
from isthmus.core.journal import Document, Journal, WriteResult
from isthmus.core.ports import Exchange, HoldableExchange, RetractingExchange, Sealer
from isthmus.core.tasks.engine import TaskExchange
from isthmus.core.tasks.live_task import Report, TaskListener
from isthmus.core.tasks.record import TaskRecord
from isthmus.model.callers import Caller
from isthmus.model.calls import (
    EVERYTHING,
    NO_CAPABILITIES,
    Call,
    ClientCapabilities,
    Event,
    LogLevel,
    OnReply,
    Outcome,
    Question,
    Reply,
    Result,
    Surface,
)
from isthmus.model.fault_table import ApprovalPending, Cancelled, Draining, Executed, Fault, NotWritten, Overloaded
from isthmus.model.names import ServerName
from isthmus.transport.process import SpawnFailed
from isthmus.wire.jsonrpc import Malformed, decode_object, object_members

log = structlog.get_logger(__name__)

SCRIPTS = ServerName("run_code")
"""What scripts are called where faults name a server."""

NO_ARGUMENTS = Raw(b"{}")

VIEWS_MAX = 32
"""Views whose Python names are remembered."""

SIGNED = ("inputSchema", "outputSchema", "description")
"""The members of a definition that a signature is written from."""

SEALED_HERE_BYTES = 64 * 1024
"""A larger state is encrypted on a thread: megabytes take milliseconds."""

SIGNATURES_MAX = 100
"""How many signatures one answer has at most."""

LOST = "lost: The hub stopped while the call was running, and it is unknown how far it got (executed: unknown)"
"""What a script learns of a call that an earlier hub sent."""

TOOL_ERROR_LENGTH_MAX = 2_000

OUTCOME_SECONDS = 0.002
"""How long the outcome of a call waits for the script's next stop, to be written with it in one transaction."""

LINES_MAX = 20
"""How many lines of a script a request for approval names."""


class ScriptRequest(msgspec.Struct, frozen=True):
    """A script to run, for whom, and as whose calls."""

    caller: Caller
    surface: Surface
    code: str
    timeout: float | None = None
    """Seconds for the whole script; `[code] seconds` is the most."""
    id: str = ""
    """The script's id in audit records: its task's, or a new one."""
    client_caps: ClientCapabilities = NO_CAPABILITIES
    session: str = ""
    frontend: str = ""
    wants_progress: bool = False
    log_level: LogLevel | None = None
    meta: Mapping[str, Raw] = {}
    shares_link: bool = False
    lasts: bool = False
    """Its calls belong to a task; see `Call.lasts`."""


def all_tools(surface: Surface) -> Surface:
    """The surface on which a script calls: without the tools of the hub, so that no script runs another."""
    return msgspec.structs.replace(surface, expose="all")


def request_of(call: Call, code: str, timeout: float | None) -> ScriptRequest:
    """The request to run a script whose calls are made like this one."""
    return ScriptRequest(
        call.caller,
        all_tools(call.surface),
        code,
        timeout,
        client_caps=call.client_caps,
        session=call.session,
        frontend=call.frontend,
        wants_progress=call.wants_progress,
        log_level=call.log_level,
        meta=call.meta,
        shares_link=call.shares_link,
        lasts=call.lasts,
    )


_encode = msgspec.json.Encoder().encode


class ApprovalNotice(msgspec.Struct, frozen=True):
    """What a call that waits for approval shows: see `HoldableExchange`."""

    approval: str = ""
    tool: str = ""


class ScriptTools(msgspec.Struct, frozen=True):
    """The tools of a view by their Python names."""

    view: View
    exposed: Mapping[str, str]
    """By Python name."""

    def stubs(self, names: Sequence[str]) -> str:
        """The signatures of these tools."""
        routes = self.view.routes
        return signatures((name, self.exposed[name], routes[self.exposed[name]].feature.definition) for name in names)

    def sources(self, names: Sequence[str]) -> tuple[ScriptTool, ...]:
        """What the sandbox needs to know of these tools."""
        routes = self.view.routes
        return tuple(
            ScriptTool(name, self.exposed[name], _signed_members(routes[self.exposed[name]].feature.definition))
            for name in names
        )

    def used_in(self, code: str) -> list[str]:
        """The tools that a script may name."""
        return sorted(words_in(code) & self.exposed.keys())


def _signed_members(definition: Mapping[str, Raw]) -> dict[str, bytes]:
    """The members that a signature is written from; `signatures` reads no longer ones."""
    found = {name: memoryview(definition[name]) for name in SIGNED if name in definition}
    return {name: bytes(each) for name, each in found.items() if len(each) <= SCHEMA_BYTES_MAX}


class Scripts:
    """The scripts of one hub."""

    def __init__(
        self,
        hub: Hub,
        background: BackgroundTasks,
        settings: CodeSettings,
        now: Callable[[], float],
        journal: Journal,
        sealer: Callable[[], Sealer],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`sealer` encrypts the states of durable scripts; it is called for the first of them."""
        self.hub = hub
        self.background = background
        self.now = now
        self.journal = journal
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.schedule: ScriptSchedule[RunningScript] = ScriptSchedule(settings.workers)
        self._sealer_of = sealer
        self._sealer: Sealer | None = None
        self.sandbox = Sandbox(background, environment)
        self._tools: OrderedDict[int, ScriptTools] = OrderedDict()
        self._is_closed = False
        self._handed_over: list[RunningScript] = []
        self.calls_changed = asyncio.Event()
        """A call of a script has ended, waits for a person, or was stored."""

    # -- what a model sees -----------------------------------------------------------------------------------------

    def tools_of(self, view: View) -> ScriptTools:
        """The tools of a view by their Python names; computed once for each view."""
        known = self._tools.get(id(view))
        if known is not None and known.view is view:
            self._tools.move_to_end(id(view))
            return known
        tools = ScriptTools(view, {name: exposed for exposed, name in python_names(view.routes).items()})
        self._tools[id(view)] = tools
        if len(self._tools) > VIEWS_MAX:
            self._tools.popitem(last=False)
        return tools

    async def signatures(self, view: View, wanted: Sequence[str] = ()) -> str:
        """The Python signatures of the tools of a view: all, or those that are named by either of their names."""
        if is_installed() and not self._is_closed:  # a script follows
            with suppress(SpawnFailed):  # which will report it
                await self.sandbox.prepare(self.settings.cpu_seconds)
        # On a thread: a hundred large schemas take a tenth of a second.
        return await self.loop.run_in_executor(None, self._signatures, self.tools_of(view), wanted)

    def _signatures(self, tools: ScriptTools, wanted: Sequence[str]) -> str:
        by_exposed = {exposed: name for name, exposed in tools.exposed.items()}
        found = [by_exposed.get(name, name) for name in wanted]
        unknown = [name for name in found if name not in tools.exposed]
        names = [name for name in dict.fromkeys(found) if name in tools.exposed] if wanted else sorted(tools.exposed)
        text = tools.stubs(names[:SIGNATURES_MAX])
        notes = [f"# Unknown tool: {name!a}" for name in unknown[:SIGNATURES_MAX]]
        if len(names) > SIGNATURES_MAX:
            notes.append(f"# {len(names) - SIGNATURES_MAX} more tools: name those that you need.")
        return "\n".join([text, *notes])

    # -- running ---------------------------------------------------------------------------------------------------

    def start(self, request: ScriptRequest, exchange: Exchange) -> RunningScript:
        """Run a script; `exchange.end` is called exactly once, perhaps before this returns."""
        return self.start_script(RunningScript(self, request, exchange, ""))

    def start_script(self, script: RunningScript) -> RunningScript:
        """Start a script, or let it wait for a worker, or end it."""
        code = script.request.code
        if not is_installed():
            script.refuse(EXTRA)
        elif self._is_closed:
            script.finish(Draining())
        elif (
            len(code) > self.settings.script_bytes or len(code.encode("utf-8", "replace")) > self.settings.script_bytes
        ):
            script.refuse(f"The script is longer than [code] script_bytes: {self.settings.script_bytes}")
        elif self.schedule.queued_count >= self.settings.queued and not script.is_durable:
            script.finish(Overloaded(SCRIPTS, self.schedule.running_count, self.schedule.queued_count))
        else:
            self.schedule.add(script)
        return script

    async def prune(self) -> None:
        """Delete what a crash left of scripts that have ended."""
        await prune(self.journal, self.now() - self.settings.seconds)

    def task(self, call: Call, code: str, timeout: float | None) -> ScriptTask:
        """A durable script as the work of a task; its calls are made like this one."""
        return ScriptTask(self, request_of(call, code, timeout))

    def continued(self, caller: Caller, id: str) -> ScriptTask:
        """A durable script of an earlier hub; everything but its caller is in the journal."""
        request = ScriptRequest(
            caller, EVERYTHING, "", id=id, wants_progress=True, log_level="info", shares_link=True, lasts=True
        )
        return ScriptTask(self, request)

    def first_document(self, request: ScriptRequest, owner: str) -> Document:
        """The record of a durable script that has not started; store it with its task."""
        seconds = min(request.timeout or self.settings.seconds, self.settings.seconds)
        record = ScriptRecord(
            request.code,
            self.now() + seconds,
            request.surface,
            request.session,
            request.client_caps,
            request.frontend,
        )
        return first_document(owner, request.id, self.now(), record)

    @property
    def sealer(self) -> Sealer:
        """Encrypts the states of durable scripts."""
        if self._sealer is None:
            self._sealer = self._sealer_of()
        return self._sealer

    def change(self, settings: CodeSettings) -> None:
        """Apply other settings; scripts that run keep theirs."""
        self.settings = settings
        self.schedule.slots = settings.workers

    def hand_over_durable(self) -> None:
        """Leave the durable scripts to the next hub: they make no more calls. See `wait_handed_over`."""
        self._is_closed = True
        self.schedule.close()
        for script in self.schedule.all():
            if script.is_durable and not script.is_done():
                self._handed_over.append(script)
                script.hand_over()

    async def wait_handed_over(self) -> None:
        """Wait for the running calls of the scripts that were handed over: the next hub needs their outcomes."""
        while any(script.has_running_calls for script in self._handed_over):
            self.calls_changed.clear()
            await self.calls_changed.wait()

    def close(self) -> None:
        """End everything."""
        self.hand_over_durable()
        for script in self.schedule.all():
            script.cancel("the hub is shutting down")


class RunningScript:
    """One script; see `core.tasks.live_task.RunningWork`. Its methods are called on the event loop."""

    def __init__(self, scripts: Scripts, request: ScriptRequest, exchange: Exchange, owner: str) -> None:
        """`owner` is the task's owner if the script is durable, otherwise empty."""
        self._scripts = scripts
        self._settings = scripts.settings
        self._loop = scripts.loop
        self._exchange = exchange
        self.request = request if request.id else msgspec.structs.replace(request, id=secrets.token_hex(8))
        self.outcome: Outcome | None = None
        self._sandboxed: SandboxedScript | None = None
        self.is_task = False
        """No call of the hub has its result, so the script itself has it cut."""
        self._names: Mapping[str, str] = {}
        """The tools that the script names, by their Python names."""
        self._lines: dict[str, tuple[int, ...]] = {}
        """The lines that name a tool, by its exposed name."""
        # -- its calls
        self._calls: dict[int, StoredCall] = {}
        """The calls that the script waits for."""
        self._sent = 0
        """How many calls were started in all, or will be."""
        self._storing = 0
        """How many of them are being stored as sent."""
        self._starting: deque[StoredCall] = deque()
        """Those that are stored as sent, and wait for their turn."""
        self._inflight: dict[int, InFlight] = {}
        """Those that run."""
        self._not_run = 0
        """How many of them ended, and certainly did not run."""
        self._printed = ""
        """What it had printed at its last stop."""
        # -- its clock
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._time_limit = ""
        """How long it may take, in words."""
        self._paused: dict[object, StoredCall] = {}
        """What people are asked, and for which calls: the clock stands still meanwhile."""
        self._seconds_left = 0.0
        """How much time it had when its clock stopped."""
        self._held: dict[int, Question] = {}
        """What the calls that wait for approval show."""
        # -- what is stored of a durable script
        self._store: ScriptStore | None = None
        if owner:
            self._store = ScriptStore(scripts.journal, lambda: scripts.sealer, owner, self.request.id)
        self._progress: ScriptProgress | None = None
        """What is stored, once it has been loaded."""
        self._sealing: deque[tuple[ScriptStop, asyncio.Future[SealedState]]] = deque()
        """Stops whose states are encrypted on threads; they are stored in their order."""
        self._outcome_timer: asyncio.TimerHandle | None = None
        """Stores outcomes if the script does not stop soon."""
        self._is_restored = False
        """It continues, and has not got the answers that an earlier hub stored."""
        self._is_handed_over = False
        self.on_handed_over: Callable[[], None] | None = None
        """Called when the script is left to the next hub."""

    @property
    def owner(self) -> CallerKey:
        """Its caller, who has at most half of the slots."""
        return self.request.caller.tenant, self.request.caller.name

    @property
    def may_have_run(self) -> bool:
        """Whether one of its calls may have run."""
        return self._executed() != "no"

    @property
    def is_blocked_on_people(self) -> bool:
        """Whether it can do nothing before a person answers: each call that it has sent waits for one."""
        asking = {each.id for each in self._paused.values()}
        waiting = (call.known is None and (call.id in asking or not call.is_sent) for call in self._calls.values())
        return bool(asking) and all(waiting) and not self.is_done()

    @property
    def has_running_calls(self) -> bool:
        """Whether one of its calls may end without a person's answer, or is being stored as sent."""
        return self._storing > 0 or not self._inflight.keys() <= {each.id for each in self._paused.values()}

    @property
    def is_durable(self) -> bool:
        """Whether it continues after a crash of the hub."""
        return self._store is not None

    def is_done(self) -> bool:
        """Whether it has ended, or was left to the next hub."""
        return self.outcome is not None or self._is_handed_over

    # -- starting --------------------------------------------------------------------------------------------------

    def start_worker(self) -> None:
        """See `ScheduledScript`."""
        self._scripts.background.spawn(f"script {self.request.id}", self._run(), on_crash=self._crashed)

    async def _run(self) -> None:
        """Start the script in a worker, or continue it there."""
        state = None if self._store is None else await self._load(self._store)
        if self.is_done():
            return
        request, scripts = self.request, self._scripts
        most = self._settings.seconds
        seconds = min(request.timeout or most, most)
        self._time_limit = f"it had {seconds:g} s, {'[code] seconds' if seconds == most else 'the timeout of the call'}"
        if state is not None:  # it may have had a timeout
            self._time_limit = f"[code] seconds is {most:g}, and the call may have had a timeout"
        if self._progress is not None:
            seconds = self._progress.seconds_left or self._progress.deadline - scripts.now()
            self._progress.deadline, self._progress.seconds_left = scripts.now() + seconds, 0.0
        self._set_timer(seconds)
        view = await scripts.hub.view_for(request.caller, request.surface, request.client_caps)
        if self.is_done():
            return
        tools = scripts.tools_of(view)
        used = tools.used_in(request.code)
        self._names = {name: tools.exposed[name] for name in used}
        source = ScriptSource(
            request.code,
            tools.sources(used),
            self._settings,
            state,
            self._printed,
            self._sent,
            self.is_durable,
        )
        try:
            self._sandboxed = await scripts.sandbox.start(source, self)
        except SpawnFailed as error:
            self.refuse(f"The sandbox did not start: {error}", ScriptEnd(0, "crashed"))
        if self._sandboxed is not None and self.is_done():
            self._sandboxed.cancel()

    async def _load(self, store: ScriptStore) -> bytes | None:
        """Read what an earlier hub stored; None if the script has made no call, or cannot continue."""
        try:
            loaded = await store.load()
        except OSError as error:
            self.finish(NotWritten(f"The state of the script could not be read: {error}", executed="unknown"))
            return None
        except msgspec.MsgspecError:
            self._refuse_to_continue("another version of Isthmus stored it")
            return None
        if loaded is None:
            self.finish(NotWritten("The state of the script is not in the journal", executed="unknown"))
            return None
        record, progress = loaded.record, loaded.progress
        self._progress = progress or new_progress(record.deadline)
        self.request = msgspec.structs.replace(
            self.request,
            code=record.code,
            surface=record.surface,
            session=record.session,
            client_caps=record.client_caps,
            frontend=record.frontend,
        )
        if progress is None:
            return None
        self._printed = progress.printed
        self._restore_calls(progress)
        if progress.library != library_version():
            said = f"version {progress.library} of pydantic-monty wrote its state, and {library_version()} is installed"
            self._refuse_to_continue(said)
        elif loaded.state is None:
            self._refuse_to_continue("its stored state is missing or was changed")
        return loaded.state

    def _refuse_to_continue(self, why: str) -> None:
        said = f"The script cannot continue: {why}. Calls that it made are not undone."
        self.refuse(said, ScriptEnd(0, "crashed", self._printed))

    def _restore_calls(self, progress: ScriptProgress) -> None:
        """Take over the calls of an earlier hub: what was sent and has no outcome is not sent again."""
        self._calls = {call.id: call for call in progress.calls}
        self._sent = progress.count
        self._is_restored = True
        for call in self._calls.values():
            if call.is_held:
                call.is_sent = call.is_held = False  # the next request finds the same approval
                self._sent -= 1
            elif call.is_sent and call.known is None and call.tool:
                call.failure = LOST
            elif not call.tool:
                call.is_sent = False  # it sleeps again

    def _crashed(self, error: BaseException) -> None:
        """A defect of the hub ended `run`."""
        self.finish(NotWritten(f"The script could not be started: {type(error).__name__}", executed="unknown"))

    # -- what the sandbox reports (see `ScriptHost`) -------------------------------------------------------------------

    def stopped(self, at: ScriptStop) -> None:
        """See `ScriptHost`."""
        if at.state is None or self._store is None or self.is_done():
            self._on_stopped(at, None)
            return
        seal = self._store.sealing(at.state)
        if len(at.state) <= SEALED_HERE_BYTES and not self._sealing:
            self._on_stopped(at, seal())
        else:
            self._sealing.append((at, sealing := self._loop.run_in_executor(None, seal)))
            sealing.add_done_callback(lambda _: self._on_sealed())

    def _on_sealed(self) -> None:
        while self._sealing and self._sealing[0][1].done():
            at, sealed = self._sealing.popleft()
            self._on_stopped(at, sealed.result())

    def ended(self, end: ScriptEnd) -> None:
        """See `ScriptHost`."""
        self._sandboxed = None
        self._scripts.schedule.remove(self)
        if self.is_done():
            return
        if end.kind == "returned":
            self.finish(self._result({"result": Raw(end.result.encode()), "printed": end.printed}, end))
        else:
            self.refuse(end.message, end)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _on_stopped(self, at: ScriptStop, sealed: SealedState | None) -> None:
        if self.is_done():
            return
        waiting = {id: call for id, call in self._calls.items() if id in at.pending}
        new = {call.id: StoredCall(call.id, call.tool, call.arguments) for call in at.calls}
        self._calls = {**waiting, **new}
        self._printed = at.printed
        self._update_schedule()
        self._send_next(sealed)
        if self._is_restored and self._sandboxed is not None:
            self._is_restored = False
            for call in waiting.values():
                if (known := call.known) is not None:
                    self._sandboxed.answer(call.id, known)

    def _send_next(self, sealed: SealedState | None = None) -> None:
        """Choose the calls that may be sent now, store that, and send them."""
        unsent = [call for call in self._calls.values() if not call.is_sent and call.known is None]
        room = self._settings.calls_at_once - len(self._inflight) - len(self._starting) - self._storing
        chosen = [call for call in unsent if call.tool][: max(room, 0)]
        self._sent += len(chosen)
        self._storing += len(chosen)
        chosen += [call for call in unsent if not call.tool]
        for call in chosen:
            call.is_sent = True
        self._write(sealed, partial(self._send, chosen))

    def _send(self, chosen: Sequence[StoredCall]) -> None:
        """Start these calls, which are stored as sent."""
        for call in chosen:
            if call.tool:
                self._storing -= 1
                self._starting.append(call)
            elif self.is_done():
                call.is_sent = False
            else:
                self._loop.call_later(float(call.arguments), self._answer, call, SLEPT)
        if self.is_done():
            self._drop_unstarted()
            self._scripts.calls_changed.set()
        elif self._starting:
            self._scripts.schedule.start_calls(self)

    def start_one_call(self) -> None:
        """Start the call whose turn it is, and wait for another turn if there are more."""
        if not self._starting:  # it has ended
            return
        call = self._starting.popleft()
        if self._starting:
            self._scripts.schedule.start_calls(self)
        made = self._make_call(call)
        if isinstance(made, ToolFailure):
            self._not_run += 1
            self._answer(call, made)
        else:
            inflight = self._scripts.hub.start(made, ScriptExchange(self, call, self._exchange))
            if inflight.outcome is None:
                self._inflight[call.id] = inflight

    def _drop_unstarted(self) -> None:
        """The script is over: do not send calls that wait for their turn, and store that for the next hub."""
        if not self._starting:
            return
        for call in self._starting:
            call.is_sent = False
        self._sent -= len(self._starting)
        self._starting.clear()
        if self._is_handed_over:
            self._write_calls()

    @property
    def _made(self) -> int:
        """How many calls were started."""
        return self._sent - self._storing - len(self._starting)

    def _make_call(self, call: StoredCall) -> Call | ToolFailure:
        request = self.request
        text = call.arguments.encode("utf-8", "replace")
        if len(text) > self._scripts.hub.limits.request_bytes:
            return ToolFailure(f"bad_arguments: they have {len(text)} bytes, which is too long (executed: no)")
        arguments = decode_object(text)
        if isinstance(arguments, Malformed):
            return ToolFailure(f"bad_arguments: {arguments.message} (executed: no)")
        return Call(
            request.caller,
            request.surface,
            call.tool,
            arguments,
            meta=dict(request.meta),
            wants_progress=request.wants_progress,
            log_level=request.log_level,
            client_caps=request.client_caps,
            session=request.session,
            frontend=request.frontend,
            lasts=request.lasts,
            shares_link=request.shares_link,
            script=request.id,
            script_lines=self._lines_of(call.tool),
        )

    def _lines_of(self, tool: str) -> tuple[int, ...]:
        """The lines of the script that name a tool. The sandbox does not tell which of them is running."""
        lines = self._lines.get(tool)
        if lines is None:
            name = next((name for name, exposed in self._names.items() if exposed == tool), "")
            code = self.request.code.splitlines()
            found = (number for number, line in enumerate(code, 1) if name and name in words_in(line))
            lines = self._lines[tool] = tuple(islice(found, LINES_MAX))
        return lines

    def call_ended(self, call: StoredCall, outcome: Outcome) -> None:
        """A call of the script has ended."""
        self._inflight.pop(call.id, None)
        call.is_held = False
        is_not_run = isinstance(outcome, Fault) and outcome.executed == "no"
        is_decided = isinstance(outcome, Fault) and outcome.approval is not None
        self._not_run += is_not_run
        self.released(call)
        if self._is_handed_over and is_not_run and not is_decided:  # the next hub sends it
            call.is_sent = False
            self._sent -= 1
            self._write_calls()
        elif self.outcome is None:
            self._answer(call, answer_of(outcome, self._settings.result_bytes))
        self._scripts.calls_changed.set()

    def _answer(self, call: StoredCall, answer: CallAnswer) -> None:
        if self.outcome is not None:
            return
        if isinstance(answer, ToolFailure):
            call.failure = answer.message
        else:
            call.answer = answer
        self._update_schedule()
        if self._sandboxed is not None and not self._is_handed_over:
            self._sandboxed.answer(call.id, answer)
        if self._is_handed_over:
            self._write_calls()
        elif any(not each.is_sent for each in self._calls.values()):
            self._send_next()
        elif self.is_durable and self._outcome_timer is None:
            self._outcome_timer = self._loop.call_later(OUTCOME_SECONDS, self._write_calls)

    # -- waiting for people ------------------------------------------------------------------------------------------

    def _set_timer(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_later(max(seconds, 0.0), self._expire)

    def pause(self, reason: object, call: StoredCall) -> None:
        """Stop the script's clock: a person is asked something, and may answer in days.

        The next hub must know both: what was left of the time, and that a held call was not sent.
        """
        if self._timer is not None and not self._paused:
            self._timer.cancel()
            self._seconds_left = max(self._due - self._loop.time(), 1.0)
            if self._progress is not None:
                self._progress.seconds_left = self._seconds_left
        inflight = self._inflight.get(call.id)
        # A call of a fleet was sent, although one of its members may wait for approval.
        call.is_held = inflight is not None and inflight.is_held
        self._paused[reason] = call
        self._scripts.calls_changed.set()
        self._update_schedule()
        self._write_calls()

    def unpause(self, reason: object) -> None:
        """Let the clock run again once nobody is asked anything."""
        if self._paused.pop(reason, None) is None or self.is_done():
            return
        self._scripts.schedule.update(self)
        if self._paused:
            return
        self._set_timer(self._seconds_left)
        if self._progress is not None:
            self._progress.deadline, self._progress.seconds_left = self._scripts.now() + self._seconds_left, 0.0

    def _update_schedule(self) -> None:
        if self._paused:
            self._scripts.schedule.update(self)

    def held(self, call: StoredCall, notice: Question) -> None:
        """A call waits for an operator's approval."""
        self.pause(call.id, call)
        self._held[call.id] = notice
        self._show_hold()

    def released(self, call: StoredCall) -> None:
        """A call waits for approval no longer."""
        if self._held.pop(call.id, None) is not None:
            self._show_hold()
        self.unpause(call.id)

    def _show_hold(self) -> None:
        if isinstance(self._exchange, HoldableExchange) and not self.is_done():
            if self._held:
                self._exchange.held(next(iter(self._held.values())))
            else:
                self._exchange.released()

    def may_send(self, call: StoredCall, inflight: InFlight, send: Callable[[InFlight], None]) -> bool:
        """Whether a call may be sent now; otherwise `send` is called once it is stored that it may have been sent."""
        if not call.is_held or not self.is_durable:
            return True
        call.is_held = False
        self._write(None, partial(send, inflight))
        return False

    # -- storing -----------------------------------------------------------------------------------------------------

    def _write(self, state: SealedState | None, then: Callable[[], None]) -> None:
        """Store where a durable script is, then call `then`; of others nothing is stored."""
        store, progress = self._store, self._progress
        if store is None or progress is None:
            then()
            return
        if self._outcome_timer is not None:
            self._outcome_timer.cancel()
            self._outcome_timer = None
        progress.printed = self._printed
        progress.calls = list(self._calls.values())
        progress.count = self._sent
        store.write(self._scripts.now(), progress, state, partial(self._on_stored, then))

    def _write_calls(self) -> None:
        """Store the calls as they are, with their outcomes; nothing waits for it."""
        self._write(None, lambda: None)

    def _on_stored(self, then: Callable[[], None], result: WriteResult) -> None:
        if result == "kept":
            then()
        elif self.outcome is None:
            said = "The state of the script could not be stored, so it was ended; the hub's log says why"
            self.finish(NotWritten(said, executed=self._executed()))

    def delete_stored(self) -> None:
        """Delete what is stored, in the background."""
        if self._store is not None:
            with suppress(RuntimeError):  # the hub is closing
                self._scripts.background.spawn(f"delete script {self.request.id}", self._store.delete())

    # -- ending ------------------------------------------------------------------------------------------------------

    def _executed(self) -> Executed:
        held = sum(inflight.is_held for inflight in self._inflight.values())
        return "unknown" if self._made > self._not_run + held else "no"

    def refuse(self, message: str, end: ScriptEnd | None = None) -> None:
        """End the script with an error that its author reads."""
        end = end or ScriptEnd(0, "refused")
        error_fields = {"error": end.kind, "message": message, "printed": end.printed}
        self.finish(self._result(error_fields, msgspec.structs.replace(end, message=message)))

    def _result(self, members: Mapping[str, object], end: ScriptEnd) -> Result:
        """The result as structured content, and as the text that a model reads."""
        body = {**members, "calls": self._made, "script": self.request.id}
        shown = end.result if end.kind == "returned" and (end.result != "null" or not end.printed) else end.message
        text = "\n".join(each for each in (end.printed.rstrip("\n"), shown) if each)
        is_error = end.kind != "returned"
        content = [{"type": "text", "text": text}]
        whole = {"content": content, "structuredContent": body, "isError": is_error}
        return Result(Raw(_encode(whole)), is_error, is_untyped=True)

    def _expire(self) -> None:
        calls = f" Calls that it had made: {self._made}." if self._made else ""
        said = f"The script did not end in time: {self._time_limit}.{calls}"
        self.refuse(said, ScriptEnd(0, "limit", self._printed))

    def cancel(self, why: str) -> None:
        """See `core.tasks.live_task.RunningWork`."""
        self.finish(Cancelled(why, executed=self._executed()))

    def expire_held(self, notice: ApprovalNotice) -> Fault:
        """End a script whose caller waits no longer for an approval; how it ended."""
        fault = ApprovalPending(notice.tool, notice.approval, executed=self._executed())
        self.finish(fault)
        return fault

    def finish(self, outcome: Outcome) -> None:
        """End the script; its running calls are cancelled."""
        if self.is_done():
            return
        self.outcome = outcome
        self._stop()
        for inflight in list(self._inflight.values()):
            inflight.cancel("the script ended")
        hub = self._scripts.hub
        if self.is_task and hub.is_cutting and hub.cuts is not None:
            hub.cuts.cut(self._own_call(), outcome, self._exchange.end)
        else:
            self._exchange.end(outcome)

    def _own_call(self) -> Call:
        """The call of `run_code` that a task stands for."""
        request = self.request
        return Call(request.caller, request.surface, SCRIPTS, NO_ARGUMENTS, frontend=request.frontend)

    def hand_over(self) -> None:
        """Leave a durable script to the next hub. Its running calls end here; their outcomes are stored."""
        if self.outcome is None and not self._is_handed_over:
            self._is_handed_over = True
            if self._outcome_timer is not None:
                self._write_calls()
            self._stop()
            if self.on_handed_over is not None:
                self.on_handed_over()

    def _stop(self) -> None:
        self._drop_unstarted()
        for timer in (self._timer, self._outcome_timer):
            if timer is not None:
                timer.cancel()
        if self._sandboxed is None:
            self._scripts.schedule.remove(self)
        else:  # the schedule keeps it until the sandbox has ended it
            self._sandboxed.cancel()


class ScriptTask:
    """A script as the work of a task; see `core.tasks.live_task.ResumableWork`."""

    def __init__(self, scripts: Scripts, request: ScriptRequest) -> None:
        self._scripts = scripts
        self._request = request

    def first_documents(self, owner: str, id: str) -> tuple[Document, ...]:
        """See `ResumableWork`."""
        return (self._scripts.first_document(msgspec.structs.replace(self._request, id=id), owner),)

    def start(self, exchange: Exchange) -> RunningScript:
        """See `ResumableWork`."""
        live = exchange.live if isinstance(exchange, TaskExchange) else None
        request = self._request if live is None else msgspec.structs.replace(self._request, id=live.record.id)
        owner = live.key[0] if live is not None and live.record.resumes else ""
        script = RunningScript(self._scripts, request, exchange, owner)
        script.is_task = True
        if isinstance(exchange, TaskExchange) and script.is_durable:
            script.on_handed_over = exchange.leave
            exchange.live.listeners[_ForgetWhenEnded(script, exchange.live.listeners)] = None
        return self._scripts.start_script(script)


class _ForgetWhenEnded:
    """Deletes what is stored of a script once the end of its task is stored; see `TaskListener`."""

    def __init__(self, script: RunningScript, listeners: dict[TaskListener, None]) -> None:
        self._script = script
        self._listeners = listeners

    def task_changed(self, record: TaskRecord) -> None:
        if record.is_terminal:
            self._listeners.pop(self, None)
            self._script.delete_stored()

    def task_reported(self, record: TaskRecord, report: Report) -> None:
        """Reports change nothing."""


class ScriptExchange:
    """The caller's side of a call that a script makes: see `Exchange` and `HoldableExchange`.

    Progress and questions go to the script's caller.
    """

    __slots__ = ("_answered", "_call", "_outer", "_script")

    def __init__(self, script: RunningScript, call: StoredCall, outer: Exchange) -> None:
        self._script = script
        self._call = call
        self._outer = outer
        self._answered: dict[OnReply, OnReply] = {}
        """What the caller answers, by what the call's server waits for."""

    def emit(self, event: Event) -> None:
        """See `Exchange`."""
        if self._script.outcome is None:
            self._outer.emit(event)

    def ask(self, question: Question, reply: OnReply) -> None:
        """See `Exchange`."""
        script = self._script
        script.pause(reply, self._call)

        def answered(given: Reply) -> None:
            script.unpause(reply)
            reply(given)

        self._answered[reply] = answered
        self._outer.ask(question, answered)

    def retract(self, reply: OnReply) -> None:
        """See `RetractingExchange`."""
        self._script.unpause(reply)
        answered = self._answered.pop(reply, None)
        if answered is not None and isinstance(self._outer, RetractingExchange):
            self._outer.retract(answered)

    def retract_later(self, reply: OnReply) -> Callable[[], None] | None:
        """See `RetractingExchange`; a script's questions end with their calls."""
        return None

    def held(self, notice: Question) -> None:
        """See `HoldableExchange`."""
        self._script.held(self._call, notice)

    def released(self) -> None:
        """See `HoldableExchange`."""
        self._script.released(self._call)

    def may_send(self, inflight: InFlight, send: Callable[[InFlight], None]) -> bool:
        """See `core.ports.DurableExchange`."""
        return self._script.may_send(self._call, inflight, send)

    def end(self, outcome: Outcome) -> None:
        """See `Exchange`."""
        self._script.call_ended(self._call, outcome)


# -- what a call returns to a script -----------------------------------------------------------------------------------


class _Block(msgspec.Struct):
    type: str
    text: str = ""


_BLOCKS = msgspec.json.Decoder(list[_Block])


def answer_of(outcome: Outcome, bytes_max: int) -> CallAnswer:
    """What a call returns: its structured content, its text, or its content; a failure says whether the tool ran."""
    if isinstance(outcome, Fault):
        later = "" if outcome.retry_after is None else f"; retry after {outcome.retry_after:g} s"
        return ToolFailure(f"{outcome.reason}: {outcome.message} (executed: {outcome.executed}{later})")
    payload = outcome.payload
    if len(memoryview(payload)) > bytes_max:
        said = f"the result has {len(memoryview(payload))} bytes, and [code] result_bytes is {bytes_max}"
        return ToolFailure(f"too_long: {said} (executed: yes)")
    if outcome.is_bare and not outcome.is_error:
        return bytes(payload).decode()
    members = object_members(payload) or {}
    text = _text_of(members.get("content"))
    if outcome.is_error:
        said = text or bytes(members.get("structuredContent", payload)).decode()
        return ToolFailure(f"tool_error: {said[:TOOL_ERROR_LENGTH_MAX]} (executed: yes)")
    structured = members.get("structuredContent")
    if structured is not None and bytes(structured) != b"null":
        return bytes(structured).decode()
    if text is not None:
        return _encode(text).decode()
    return bytes(members.get("content", b"[]")).decode()


def _text_of(content: Raw | None) -> str | None:
    """The text of a result, if it has nothing else."""
    if content is None:
        return None
    try:
        blocks = _BLOCKS.decode(content)
    except msgspec.MsgspecError:
        return None
    return "\n".join(each.text for each in blocks) if all(each.type == "text" for each in blocks) else None
