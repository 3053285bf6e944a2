"""Plan a task: turn an instruction into a call, or into a result that needs no call.

Decisions over the caller's view, without I/O. A tool that the caller may not see is unknown. A call to a server that
the caller named by URL is a `TargetCall`: it connects to the server first. Called by `service`.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import TypeAlias

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.names import BUILTIN, AmbiguousName, canonical, resolve
from isthmus.core.catalog.view import Route, View
from isthmus.core.ports import Exchange, OpenTarget, TargetResolver, TargetSpec, UnopenedTarget
from isthmus.core.tasks.live_task import RunningWork, TaskWork
from isthmus.core.tasks.record import StoredOutcome, state_after, stored_outcome
from isthmus.frontends.a2a.caller_messages import (
    EMPTY,
    BadInstruction,
    CodeInstruction,
    CommandInstruction,
    Form,
    Instruction,
    Saying,
    ToolInstruction,
)
from isthmus.frontends.a2a.task_view import StoredInstruction
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import TASK_KINDS, Call, ClientCapabilities, LogLevel, Outcome, Result, Style, Surface
from isthmus.model.fault_table import (
    BadArguments,
    Cancelled,
    Fault,
    NotConnected,
    TargetRefused,
    UnclearInstruction,
    UnknownServer,
)
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.tasks import ABSENT, Message, TaskState
from isthmus.model.trace_context import REQUEST_TRACE, with_http_context
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.forwarded_methods import (
    INPUT_MEMBERS,
    METHODS,
    CallRequest,
    passed_extra,
    passed_meta,
    read_request,
)
from isthmus.wire.mcp.lists import SHAPES, array_of, write_entry
from isthmus.wire.mcp.tasks import TASK


class TargetCall:
    """Connects to a server by its URL and then runs `do`, which returns a call or an outcome."""

    def __init__(self, aim: UnopenedTarget, do: Callable[[OpenTarget], Call | Outcome]) -> None:
        self._aim = aim
        self._do = do

    def start(self, exchange: Exchange) -> RunningWork:
        """See `core.tasks.live_task.TaskWork`."""
        return _RunningTargetCall(self._aim, self._do, exchange)


class _RunningTargetCall:
    """A `TargetCall` that has started; see `core.tasks.live_task.RunningWork`."""

    def __init__(self, aim: UnopenedTarget, do: Callable[[OpenTarget], Call | Outcome], exchange: Exchange) -> None:
        self._do = do
        self._exchange = exchange
        self._call: RunningWork | None = None
        self._outcome: Outcome | None = None
        self._give_up = aim.open(self._reached)

    @property
    def outcome(self) -> Outcome | None:
        """The outcome; None while it runs."""
        return self._outcome if self._call is None else self._call.outcome

    def cancel(self, why: str) -> None:
        """Cancel it. A call that was not sent has not run."""
        if self._call is not None:
            self._call.cancel(why)
        elif self._outcome is None:
            self._give_up()
            self._end(Cancelled(why, executed="no"))

    def _reached(self, opened: OpenTarget | Fault) -> None:
        if self._outcome is not None:
            return
        if isinstance(opened, Fault):
            self._end(opened)
            return
        work = self._do(opened)
        if isinstance(work, Call):
            self._call = opened.hub.start(work, self._exchange)
        else:
            self._end(work)

    def _end(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._exchange.end(outcome)


CAN_BE_ASKED: ClientCapabilities = frozenset({"elicitation", "elicitation.form", "elicitation.url", "sampling"})
"""The input requests that a task supports: it waits, and the caller's next message is the answer."""

LOG_LEVEL: LogLevel = "info"
"""Log messages from this level on are sent to the streams of a task."""

REQUEST_SET: ContextVar[str | None] = ContextVar("request_set", default=None)
"""The set that the path of the present request names."""

CALLED = frozenset(METHODS.values())

TASK_METHODS = frozenset(METHODS[kind] for kind in TASK_KINDS)

ALL = Grants(("*",))
"""The caller's grants at a server that it named by URL."""

OFFERED_MAX = 5
"""How many tools are suggested if a message names none."""


MakeScriptTask: TypeAlias = Callable[[Call, str, float | None], TaskWork]
"""Makes the work of a script from a call like those that it makes, its text and its timeout."""

RUN_CODE = "run_code"


class TaskPlan(msgspec.Struct, frozen=True):
    """The plan of a task: a call, or the state of the task without one."""

    brief: StoredInstruction
    call: Call | TaskWork | None = None
    ending: StoredOutcome | None = None
    state: TaskState = "submitted"
    offer: tuple[str, ...] = ()
    """Tools to suggest, because the message names none."""
    note: str = ""
    """A warning for the operator's log."""
    is_closed: bool = False
    """The server was never reached, so its tools are unknown."""

    @property
    def is_sure(self) -> bool:
        """Whether the call is known, so that it need not wait for starting servers."""
        return self.call is not None and not self.is_closed


class CallerView:
    """What one caller sees of the hub."""

    def __init__(
        self, hub: Hub, caller: Caller, targets: TargetResolver | None, script_task: MakeScriptTask | None = None
    ) -> None:
        self.caller = caller
        self._hub = hub
        self._targets = targets
        self._script_task = script_task
        self._set = REQUEST_SET.get()
        self.hub_names = hub.exposed.names
        """Names that tools of the hub itself may have."""

    def surface(self, style: Style = "canonical", server: ServerName | None = None) -> Surface:
        """A surface of the request: of everything, of a server, or of the set that the path names."""
        return Surface(style, server, self._set)

    def view(self, surface: Surface) -> View:
        """The caller's view of a surface."""
        return self._hub.snapshot.view(self.caller.grants, surface)

    def script_maker(self) -> MakeScriptTask | None:
        """Makes the task of a script; None if the caller's tools are not exposed as code."""
        is_exposed = self._hub.snapshot.exposure(self.caller.grants, self.surface()) == "code"
        return self._script_task if is_exposed else None

    def has_server(self, server: str) -> bool:
        """Whether the caller may see a server of this name."""
        return server in self._hub.server_queues and server in self.view(self.surface()).servers

    def never_listed(self, server: str) -> NotConnected | None:
        """Why a server has listed nothing, if the hub has never reached it."""
        missing = self.view(self.surface()).missing.get(ServerName(server))
        return None if missing is None or missing.is_listed else self.not_connected(server)

    def redirected(self, call: Call) -> Call:
        """The call that a call of a tool of the hub stands for."""
        return self._hub.redirected(call)

    def hub_itself(self) -> UnopenedTarget:
        """The hub as the target of calls that it answers itself: no server's queue has them."""
        return _HubItself(OpenTarget(self._hub, BUILTIN))

    def unreached(self, surface: Surface, name: str) -> NotConnected | None:
        """Why a tool that the caller could use is not listed, if the hub has never reached its server."""
        return self._hub.unreached(self.caller.grants, surface, name)

    def not_connected(self, server: str) -> NotConnected | None:
        """Why a server is not connected, whatever it has listed before; None if it is."""
        name = ServerName(server)
        server_queue = self._hub.server_queues.get(name) if name in self.view(self.surface()).missing else None
        return None if server_queue is None else server_queue.not_connected()

    def find(self, target: TargetSpec) -> ServerName | UnopenedTarget | Fault:
        """The server behind a URL; see `core.ports.TargetResolver`."""
        if self._set is not None:
            return TargetRefused("A set has only servers that are configured; they cannot be named by URL")
        if self._targets is None:
            return TargetRefused("Servers must be named as configured; calling them by URL is not enabled")
        return self._targets.find(self.caller, target)


class SentMessage(msgspec.Struct, frozen=True):
    """The message that a task is planned for."""

    message: Message
    context: str
    text_tool: str | None
    """The tool for plain text, if one is configured."""


def plan(instruction: Instruction, views: CallerView, sent: SentMessage) -> TaskPlan:
    """Plan a task for an instruction."""
    made: TaskPlan
    match instruction:
        case ToolInstruction():
            made = _plan_tool(instruction, views, sent)
        case CommandInstruction():
            made = _plan_command(instruction, views, sent.context)
        case CodeInstruction():
            made = _plan_code(instruction, views, sent)
        case Saying():
            made = _plan_text(instruction, views, sent)
        case BadInstruction():
            id = instruction.id or _new_id() if instruction.form == "command" else ABSENT
            brief = StoredInstruction(instruction.form, "", id)
            return _failed(stored_outcome(UnclearInstruction(instruction.message)), brief)
    if isinstance(made.call, Call):
        call = made.call
        may_be_of_hub = call.name in views.hub_names and call.kind == "tool"
        if may_be_of_hub:
            call = views.redirected(call)
        name, server = call.name, call.surface.server
        called = name if server is None else f"{server}.{name}"
        brief = made.brief if made.brief.tool == called else replace(made.brief, called=called)
        if may_be_of_hub and name in views.view(call.surface).virtual:
            return replace(made, brief=brief, call=TargetCall(views.hub_itself(), lambda _: call))
        return replace(made, brief=brief, call=_in_context(sent.context, call))
    return made


def _in_context(context: str, call: Call) -> Call:
    """Bind a call to its context: all calls of a context reach the same server process."""
    return replace(call, session=context, shares_link=True)


# -- tools -------------------------------------------------------------------------------------------------------------


def _plan_tool(instruction: ToolInstruction, views: CallerView, sent: SentMessage) -> TaskPlan:
    brief = StoredInstruction(instruction.form, instruction.name)
    surface = views.surface()
    view = views.view(surface)
    found = _find(instruction, views, view)
    if isinstance(found, str):
        arguments: Raw | None = instruction.arguments
        if instruction.words.strip() and (route := view.find_tool(found)) is not None:
            arguments = _text_arguments(instruction.words, sent, route)
        if arguments is None:
            said = f"{found} takes no text: give its arguments as data"
            return _failed(stored_outcome(UnclearInstruction(said)), brief)
        return TaskPlan(brief, _call(views.caller, surface, found, arguments))
    # Perhaps the hub has never reached the named server: then its tools are unknown.
    name, server = instruction.name, instruction.server
    if server is not None:
        closed = views.unreached(views.surface(), f"{server}.{name.removeprefix(f'{server}.')}")
    else:
        closed = views.unreached(views.surface(), name) or views.unreached(views.surface("llm"), name)
    return _failed(found, brief) if closed is None else TaskPlan(brief, _unreached_call(closed), is_closed=True)


class _HubItself(msgspec.Struct, frozen=True):
    """This hub; see `core.ports.UnopenedTarget`."""

    opened: OpenTarget

    def open(self, then: Callable[[OpenTarget | Fault], None]) -> Callable[[], None]:
        then(self.opened)
        return lambda: None


class _UnreachedTarget(msgspec.Struct, frozen=True):
    """A server that the hub has not reached yet; see `core.ports.UnopenedTarget`."""

    why: Fault

    def open(self, then: Callable[[OpenTarget | Fault], None]) -> Callable[[], None]:
        then(self.why)
        return lambda: None


def _unreached_call(why: Fault) -> TargetCall:
    """A call that fails because its server was never reached."""
    return TargetCall(_UnreachedTarget(why), lambda _: why)


def _plan_code(instruction: CodeInstruction, views: CallerView, sent: SentMessage) -> TaskPlan:
    brief = StoredInstruction("tool", RUN_CODE)
    make = views.script_maker()
    if make is not None:
        model = _in_context(sent.context, _call(views.caller, views.surface(), RUN_CODE, EMPTY))
        return TaskPlan(brief, make(model, instruction.code, instruction.timeout))
    if sent.text_tool is not None:
        return _plan_text(Saying(instruction.given), views, sent)
    said = 'this hub runs no scripts for you: its operator can set expose = "code"; name a tool instead'
    return _failed(stored_outcome(UnclearInstruction(said)), brief)


def _call(caller: Caller, surface: Surface, name: str, arguments: Raw) -> Call:
    """A call of a task, with progress and log messages for its streams."""
    call = Call(
        caller,
        surface,
        name,
        arguments,
        wants_progress=True,
        log_level=LOG_LEVEL,
        client_caps=CAN_BE_ASKED,
        frontend="a2a",
        lasts=True,
    )
    trace = REQUEST_TRACE.get()
    return call if trace is None else with_http_context(call, *trace)


def _find(instruction: ToolInstruction, views: CallerView, view: View) -> str | StoredOutcome:
    """The name, in this view, of the tool that an instruction names."""
    name, server = instruction.name, instruction.server
    if view.set is not None:  # a set has one name for each tool
        route = view.routes.get(name) or view.virtual.get(name)
        return name if route is not None and server in (None, route.feature.server) else _unknown(name, view)
    if server is None:
        if name in view.routes or name in view.virtual:
            return name
        # `filesystem.readFile` alone means the server `filesystem`, whose method has that whole name.
        whole = f"{name.partition('.')[0]}.{name}" if instruction.form == "execute" else name
        return whole if view.find_unlisted(whole) is not None else _find_by_short_name(name, views, view)
    for tool in (name, name.removeprefix(f"{server}.")):
        full = canonical((ServerName(server), FeatureName(tool)))
        if view.find_tool(full) is not None:
            return full
    return _unknown(f"{server}.{name}", view)


def _find_by_short_name(name: str, views: CallerView, view: View) -> str | StoredOutcome:
    """Find a tool by its own name, or by the name that language models see."""
    try:
        pair = resolve(name, [(route.feature.server, route.feature.name) for route in view.routes.values()])
    except AmbiguousName as several:
        return _unknown_tool(str(several))
    named = views.view(views.surface("llm"))
    if pair is None and (route := named.routes.get(name) or named.by_alias(name)) is not None:
        pair = route.feature.server, route.feature.name
    return _unknown(name, view) if pair is None else canonical(pair)


def _unknown(name: str, view: View) -> StoredOutcome:
    near = difflib.get_close_matches(name, view.routes, n=3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return _unknown_tool(f"Unknown tool: {name}{meant}")


# -- methods of MCP ----------------------------------------------------------------------------------------------------


def _plan_command(instruction: CommandInstruction, views: CallerView, context: str) -> TaskPlan:
    id = instruction.id or _new_id()
    brief = StoredInstruction("command", instruction.method, id)
    read = _read(instruction)
    if isinstance(read, str):
        return _failed(stored_outcome(UnclearInstruction(read)), brief)
    brief = brief if read is None else StoredInstruction("command", read.name, id)
    aimed = _target_of(instruction, views)
    if isinstance(aimed, Fault):
        return TaskPlan(brief, ending=stored_outcome(aimed), state=state_after(aimed))
    if not isinstance(aimed, str):
        return TaskPlan(brief, TargetCall(aimed, partial(_do_at_target, instruction, views.caller, context)))
    # The list of a server that was connected before is still valid; a ping is not.
    closed = views.not_connected(aimed) if instruction.method == "ping" else views.never_listed(aimed)
    surface = views.surface("own", aimed)
    is_denied = read is not None and read.kind == "tool" and views.unreached(surface, read.name) is None
    if closed is not None and not is_denied:
        return TaskPlan(brief, _unreached_call(closed), is_closed=True)
    done = _do(instruction, views.caller, surface, views.view(surface))
    if isinstance(done, Call):
        return TaskPlan(brief, done)
    if isinstance(done, str):
        return _failed(stored_outcome(UnclearInstruction(done)), brief)
    return TaskPlan(brief, ending=StoredOutcome(done.payload), state="completed")


def _target_of(instruction: CommandInstruction, views: CallerView) -> ServerName | UnopenedTarget | Fault:
    """The target of an instruction: a configured server, one to connect to, or why it is refused."""
    if "://" in instruction.target:
        return views.find(TargetSpec(instruction.target, instruction.path, instruction.headers))
    if not views.has_server(instruction.target):
        return UnknownServer(instruction.target)
    if instruction.headers:
        return TargetRefused(
            f"Server {instruction.target} is configured here and does not accept mcp_headers of callers"
        )
    return ServerName(instruction.target)


def _read(instruction: CommandInstruction) -> CallRequest | str | None:
    """The call of an instruction; a string says what is wrong, None that it is not a call."""
    if instruction.method not in CALLED:
        return None
    return read_request(instruction.method, object_members(instruction.params) or {})


def _do(
    instruction: CommandInstruction, caller: Caller, surface: Surface, view: View, *, is_named: bool = False
) -> Call | Result | str:
    """What to do at a connected server: a call, or a result; a string says what is wrong.

    `is_named`: the caller named the server by URL, so that no other caller uses it.
    """
    read = _read(instruction)
    if isinstance(read, CallRequest):
        return _call_as(read, caller, surface, is_named=is_named)
    if (shape := SHAPES.get(instruction.method)) is not None:
        tables = {
            "tools": view.listed,
            "prompts": view.prompts,
            "resources": view.resources,
            "resourceTemplates": view.templates,
        }
        routes: Iterable[Route] = tables[shape.member].values()
        entries = array_of(write_entry(shape, route.exposed, route.feature.definition) for route in routes)
        return Result(Raw(render({shape.member: entries})))
    if instruction.method == "ping":
        return Result(EMPTY)
    if view.find_tool(instruction.method) is not None:  # a plain JSON-RPC server: its methods are the tools
        return _call(caller, surface, instruction.method, instruction.params)
    if is_named and read is None:
        return _method_call(instruction, caller, surface)
    known = sorted({*(CALLED - TASK_METHODS), *SHAPES, "ping"})
    return read or f"mcp_method {instruction.method!r} must be one of {', '.join(known)}"


def _method_call(instruction: CommandInstruction, caller: Caller, surface: Surface) -> Call | Result | str:
    """Call a method that the hub does not know, at a server that no other caller uses."""
    if instruction.method == "notifications/initialized":
        return Result(EMPTY)  # the hub has sent it already
    if instruction.method.startswith("notifications/"):
        return f"mcp_method {instruction.method!r} is a notification, which has no result"
    members = object_members(instruction.params) or {}
    meta = object_members(members.get("_meta", EMPTY)) or {}
    call = _call(caller, surface, instruction.method, instruction.params)
    return replace(call, meta={**call.meta, **passed_meta(meta, _no_task)}, kind="method")


def _call_as(read: CallRequest, caller: Caller, surface: Surface, *, is_named: bool) -> Call | str:
    """The call of a request; a string says what is wrong."""
    if read.kind in TASK_KINDS and not is_named:
        # Task ids of a configured server do not name their owner; only the MCP frontend adds that.
        return f"mcp_method {METHODS[read.kind]} needs a server that is named by URL, or the MCP endpoint of the hub"
    ours = INPUT_MEMBERS if is_named else INPUT_MEMBERS | {TASK}
    call = _call(caller, surface, read.name, read.arguments)
    meta, extra = {**call.meta, **passed_meta(read.meta, _no_task)}, passed_extra(read.extra, ours)
    return replace(call, meta=meta, extra=extra, kind=read.kind)


def _no_task(_: str) -> None:
    """A2A callers do not know the task ids of servers, so no id belongs to one."""


def _do_at_target(instruction: CommandInstruction, caller: Caller, context: str, opened: OpenTarget) -> Call | Outcome:
    """Do it at a server that the caller named by URL, where it may call everything."""
    guest, surface = replace(caller, grants=ALL), Surface("own", opened.server)
    if opened.is_plain:
        done: Call | Result | str = _call(guest, surface, instruction.method, instruction.params)
    elif instruction.method == "initialize" and opened.initialize_result is not None:
        done = Result(opened.initialize_result)  # a second initialize would start another session, or fail
    else:
        done = _do(instruction, guest, surface, opened.hub.snapshot.view(ALL, surface), is_named=True)
    if isinstance(done, str):
        return BadArguments("execute_mcp_command", done)
    if isinstance(done, Call):
        return _in_context(context, replace(done, request_id=instruction.id or None))
    return done


# -- words -------------------------------------------------------------------------------------------------------------


def _plan_text(saying: Saying, views: CallerView, sent: SentMessage) -> TaskPlan:
    if saying.form is not None:
        return plan(BadInstruction(saying.form, f"an object is needed: {_NEEDED[saying.form]}"), views, sent)
    view = views.view(views.surface())
    found = None if sent.text_tool is None else _find(ToolInstruction(sent.text_tool, EMPTY), views, view)
    route = view.find_tool(found) if isinstance(found, str) else None
    arguments = None if route is None else _text_arguments(saying.text, sent, route)
    if isinstance(found, str) and arguments is not None:
        return TaskPlan(StoredInstruction("tool", found), _call(views.caller, views.surface(), found, arguments))
    note = f"text_tool {found} has no argument named text" if isinstance(found, str) else ""
    return TaskPlan(StoredInstruction(), state="input_required", offer=_suggest_tools(saying.text, view), note=note)


_NEEDED: dict[Form, str] = {
    "tool": "tool, arguments",
    "execute": "target_mcp_server_id, tool_name, arguments",
    "command": "mcp_target_url, mcp_method, mcp_params",
}


def _text_arguments(text: str, sent: SentMessage, route: Route) -> Raw | None:
    """The arguments for plain text: all known values, or those in the tool's schema.

    None if the schema has no argument `text`.
    """
    given: dict[str, Payload] = {
        "text": msgspec.json.encode(text),
        "message_id": msgspec.json.encode(sent.message.id),
        "context_id": msgspec.json.encode(sent.context),
        "metadata": sent.message.metadata or b"{}",
    }
    schema = object_members(route.feature.definition.get("inputSchema", EMPTY)) or {}
    taken = object_members(schema.get("properties", EMPTY))
    if not taken:
        return Raw(render(given))
    return Raw(render({name: value for name, value in given.items() if name in taken})) if "text" in taken else None


def _suggest_tools(text: str, view: View) -> tuple[str, ...]:
    """Tools whose names share words with a text, or else the first tools."""
    words = {word for word in text.lower().replace(".", " ").replace("_", " ").split() if len(word) > 2}
    scored = sorted(view.routes, key=lambda name: -len(words & set(name.lower().replace(".", "_").split("_"))))
    return tuple(scored[:OFFERED_MAX])


# -- ends that need no call --------------------------------------------------------------------------------------------


def _unknown_tool(message: str) -> StoredOutcome:
    return StoredOutcome(reason="unknown_tool", message=message, executed="no")


def _failed(ending: StoredOutcome, brief: StoredInstruction) -> TaskPlan:
    return TaskPlan(brief, ending=ending, state="failed")


def _new_id() -> Raw:
    """An id for a command whose caller gave none."""
    return Raw(msgspec.json.encode(secrets.token_hex(8)))
