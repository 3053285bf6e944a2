"""From an instruction to what a task does about it: a call to start, or an end that needs none.

Pure decisions over the caller's view. A tool that the caller may not see is as unknown as one that is not there.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.catalog.names import AmbiguousName, Pair, canonical, resolve
from isthmus.core.catalog.view import Route, View
from isthmus.core.ports import Exchange, OpenTarget, TargetAddress, TargetSpec
from isthmus.core.tasks.live_task import RunningWork
from isthmus.core.tasks.record import StoredOutcome, state_after, stored_outcome
from isthmus.frontends.a2a.caller_messages import (
    EMPTY,
    BadInstruction,
    CommandInstruction,
    Form,
    Instruction,
    Saying,
    ToolInstruction,
)
from isthmus.frontends.a2a.task_view import StoredInstruction
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, TASK_KINDS, Call, ClientCapabilities, LogLevel, Outcome, Result, Surface
from isthmus.model.faults import BadArguments, Cancelled, Fault, NotConnected, TargetRefused
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.tasks import ABSENT, Message, TaskState
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.calls import INPUT_MEMBERS, METHODS, CallRequest, passed_extra, passed_meta, read_request
from isthmus.wire.mcp.lists import SHAPES, ListShape, array_of, write_entry
from isthmus.wire.mcp.tasks import TASK


class TargetCall:
    """Reaches a server and does there what `do` says: a call, or an end that needs none."""

    def __init__(self, aim: TargetAddress, do: Callable[[OpenTarget], Call | Outcome]) -> None:
        self._aim = aim
        self._do = do

    def start(self, exchange: Exchange) -> RunningWork:
        """See `core.tasks.live_task.TaskWork`."""
        return _Way(self._aim, self._do, exchange)


class _Way:
    """An errand that has begun; see `core.tasks.live_task.RunningWork`."""

    def __init__(self, aim: TargetAddress, do: Callable[[OpenTarget], Call | Outcome], exchange: Exchange) -> None:
        self._do = do
        self._exchange = exchange
        self._call: RunningWork | None = None
        self._outcome: Outcome | None = None
        self._give_up = aim.open(self._reached)

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None as long as it has not."""
        return self._outcome if self._call is None else self._call.outcome

    def cancel(self, why: str) -> None:
        """Give it up; what was never sent has not run."""
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
"""What a task can be asked: it waits, and its caller's next message is the answer."""

LOG_LEVEL: LogLevel = "info"
"""From here on what a server logs is told to those who follow its task."""

LLM = Surface("llm")

CALLED = frozenset(METHODS.values())

TASK_METHODS = frozenset(METHODS[kind] for kind in TASK_KINDS)

ALL = Grants(("*",))
"""What a caller may do at a server that it named itself."""

OFFERED_MAX = 5
"""Tools that are offered to who did not say which."""


class TaskPlan(msgspec.Struct, frozen=True):
    """What is to be done: the call, or how the task stands without one."""

    brief: StoredInstruction
    call: Call | TargetCall | None = None
    ending: StoredOutcome | None = None
    state: TaskState = "submitted"
    offer: tuple[str, ...] = ()
    """Tools that fit, told to who did not say which."""
    note: str = ""
    """What the operator should know."""
    is_closed: bool = False
    """The server that it needs was never reached: what it has is not known."""

    @property
    def is_sure(self) -> bool:
        """Whether it is known what to call, so that servers that are starting do not matter."""
        return self.call is not None and not self.is_closed


class Views(Protocol):
    """Looks up what a caller sees."""

    def view(self, surface: Surface) -> View:
        """The caller's view of a surface."""

    def knows(self, server: str) -> bool:
        """Whether there is such a server for this caller."""

    def closed(self, server: str) -> NotConnected | None:
        """Why a server that the caller may see lists nothing, if that is because it was never reached."""

    def unreached(self, surface: Surface, name: str) -> NotConnected | None:
        """Why a tool that the caller could use is not there, if that is because its server was never reached."""

    def away(self, server: str) -> NotConnected | None:
        """Why a server that the caller may see is not connected, whatever it has listed before; None if it is."""

    def find(self, named: TargetSpec) -> ServerName | TargetAddress | Fault:
        """What the caller means by an address; see `core.ports.TargetResolver`."""


class Words(msgspec.Struct, frozen=True):
    """What there is to do something about plain words with: the tool for them, and where they were said."""

    tool: str | None
    message: Message
    context: str


def plan(instruction: Instruction, caller: Caller, views: Views, words: Words) -> TaskPlan:
    """What a task does about an instruction, in its context."""
    made = _plan(instruction, caller, views, words)
    if isinstance(made.call, Call):
        return replace(made, call=_in_context(words.context, made.call))
    return made


def _in_context(context: str, call: Call) -> Call:
    """A call as one of a context: all of these reach the same process of a server."""
    return replace(call, session=context, shares_link=True)


def _plan(instruction: Instruction, caller: Caller, views: Views, words: Words) -> TaskPlan:
    match instruction:
        case BadInstruction():
            return _failed(_refusal("bad_instruction", instruction.message), _brief(instruction))
        case ToolInstruction():
            return _plan_tool(instruction, caller, views, words)
        case CommandInstruction():
            return _plan_command(instruction, caller, views, words.context)
        case Saying():
            return _plan_saying(instruction, caller, views, words)


# -- tools -------------------------------------------------------------------------------------------------------------


def _plan_tool(instruction: ToolInstruction, caller: Caller, views: Views, words: Words) -> TaskPlan:
    brief = StoredInstruction(instruction.form, instruction.name)
    found = _find(instruction, views)
    if isinstance(found, str):
        arguments = _arguments(instruction, words, views.view(EVERYTHING).find_tool(found))
        if arguments is None:
            return _failed(_refusal("bad_instruction", f"{found} takes no text: give its arguments as data"), brief)
        return TaskPlan(brief, _call(caller, EVERYTHING, found, arguments))
    closed = _unreached_tool(instruction, views)
    return _failed(found, brief) if closed is None else TaskPlan(brief, _turned_away(closed), is_closed=True)


def _unreached_tool(instruction: ToolInstruction, views: Views) -> NotConnected | None:
    """Why nobody knows the tools of the server that is named, if that is because it was never reached."""
    name, server = instruction.name, instruction.server
    if server is not None:
        return views.unreached(EVERYTHING, f"{server}.{name.removeprefix(f'{server}.')}")
    return views.unreached(EVERYTHING, name) or views.unreached(LLM, name)


class _Closed(msgspec.Struct, frozen=True):
    """An aim at a server that nobody can reach yet; see `core.ports.TargetAddress`."""

    why: Fault

    def open(self, then: Callable[[OpenTarget | Fault], None]) -> Callable[[], None]:
        then(self.why)
        return lambda: None


def _turned_away(why: Fault) -> TargetCall:
    """What a task does that can only be told why nothing can be done yet, as it would be of a call."""
    return TargetCall(_Closed(why), lambda _: why)


def _call(caller: Caller, surface: Surface, name: str, arguments: Raw) -> Call:
    """A call of a task: whoever follows it wants to hear all of it."""
    return Call(
        caller,
        surface,
        name,
        arguments,
        wants_progress=True,
        log_level=LOG_LEVEL,
        client_caps=CAN_BE_ASKED,
        face="a2a",
        lasts=True,
    )


def _find(instruction: ToolInstruction, views: Views) -> str | StoredOutcome:
    """The name in the view of everything that an instruction means."""
    view = views.view(EVERYTHING)
    name, server = instruction.name, instruction.server
    if server is None:
        if name in view.routes:
            return name
        # `filesystem.readFile` alone means the server filesystem, and all of it is what that calls its method.
        whole = f"{name.partition('.')[0]}.{name}" if instruction.form == "execute" else name
        return whole if view.find_unlisted(whole) is not None else _find_otherwise(name, views)
    for tool in (name, name.removeprefix(f"{server}.")):
        full = canonical((ServerName(server), FeatureName(tool)))
        if view.find_tool(full) is not None:
            return full
    return _unknown(f"{server}.{name}", view)


def _find_otherwise(name: str, views: Views) -> str | StoredOutcome:
    """The same by a tool's own name, or by the one that language models are given."""
    view = views.view(EVERYTHING)
    try:
        pair = resolve(name, _pairs(view))
    except AmbiguousName as several:
        return _refusal("unknown_tool", str(several))
    named = views.view(LLM)
    if pair is None and (route := named.routes.get(name) or named.by_alias(name)) is not None:
        pair = route.feature.server, route.feature.name
    return _unknown(name, view) if pair is None else canonical(pair)


def _pairs(view: View) -> list[Pair]:
    return [(route.feature.server, route.feature.name) for route in view.routes.values()]


def _unknown(name: str, view: View) -> StoredOutcome:
    near = difflib.get_close_matches(name, view.routes, n=3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return _refusal("unknown_tool", f"Unknown tool: {name}{meant}")


# -- methods of MCP ----------------------------------------------------------------------------------------------------


def _plan_command(instruction: CommandInstruction, caller: Caller, views: Views, context: str) -> TaskPlan:
    id = instruction.id or _new_id()
    brief = StoredInstruction("command", instruction.method, id)
    read = _read(instruction)
    if isinstance(read, str):
        return _failed(_refusal("bad_instruction", read), brief)
    brief = brief if read is None else StoredInstruction("command", read.name, id)
    aimed = _aimed(instruction, views)
    if isinstance(aimed, Fault):
        return TaskPlan(brief, ending=stored_outcome(aimed), state=state_after(aimed))
    if aimed is None:
        return _failed(_refusal("unknown_server", f"Unknown server: {instruction.target}"), brief)
    if not isinstance(aimed, str):
        return TaskPlan(brief, TargetCall(aimed, partial(_do_there, instruction, caller, context)))
    # A list may be told of a server that was there before; that it answers may not.
    closed = views.away(aimed) if instruction.method == "ping" else views.closed(aimed)
    surface = Surface("own", aimed)
    is_denied = read is not None and read.kind == "tool" and views.unreached(surface, read.name) is None
    if closed is not None and not is_denied:
        return TaskPlan(brief, _turned_away(closed), is_closed=True)
    done = _do(instruction, caller, surface, views.view(surface))
    if isinstance(done, Call):
        return TaskPlan(brief, done)
    return _failed(_refusal("bad_instruction", done), brief) if isinstance(done, str) else _done(done.payload, brief)


def _aimed(instruction: CommandInstruction, views: Views) -> ServerName | TargetAddress | Fault | None:
    """What an instruction's target is: a configured server, one to be reached, or why it is none; None if unknown."""
    if "://" in instruction.target:
        return views.find(TargetSpec(instruction.target, instruction.path, instruction.headers))
    if not views.knows(instruction.target):
        return None
    if instruction.headers:
        return TargetRefused(f"Server {instruction.target} is configured here and gets no headers of its callers")
    return ServerName(instruction.target)


def _read(instruction: CommandInstruction) -> CallRequest | str | None:
    """The call that an instruction asks for, or what is wrong with that; None if it asks for none."""
    if instruction.method not in CALLED:
        return None
    return read_request(instruction.method, object_members(instruction.params) or {})


def _do(
    instruction: CommandInstruction, caller: Caller, surface: Surface, view: View, *, is_named: bool = False
) -> Call | Result | str:
    """What is to be done at a server that is there: a call, nothing because this is its result, or why it cannot be.

    `is_named` says that the caller named the server itself, which nobody else uses then.
    """
    read = _read(instruction)
    if isinstance(read, CallRequest):
        return _call_as(read, caller, surface, is_named=is_named)
    if (shape := SHAPES.get(instruction.method)) is not None:
        return Result(Raw(_list(shape, view)))
    if instruction.method == "ping":
        return Result(EMPTY)
    if view.find_tool(instruction.method) is not None:  # of a server that is no MCP server, methods are the tools
        return _call(caller, surface, instruction.method, instruction.params)
    if is_named and read is None:
        return _method_call(instruction, caller, surface)
    known = sorted({*(CALLED - TASK_METHODS), *SHAPES, "ping"})
    return read or f"mcp_method {instruction.method!r} is none of {', '.join(known)}"


def _method_call(instruction: CommandInstruction, caller: Caller, surface: Surface) -> Call | Result | str:
    """A method that the hub does not know, for a server that nobody else uses."""
    if instruction.method == "notifications/initialized":
        return Result(EMPTY)  # the hub said so when it greeted the server
    if instruction.method.startswith("notifications/"):
        return f"mcp_method {instruction.method!r} is a notification, which has no answer"
    members = object_members(instruction.params) or {}
    meta = object_members(members.get("_meta", EMPTY)) or {}
    call = _call(caller, surface, instruction.method, instruction.params)
    return replace(call, meta=passed_meta(meta, _nobodys), kind="method")


def _call_as(read: CallRequest, caller: Caller, surface: Surface, *, is_named: bool) -> Call | str:
    """A call as a request wants it, saying what is its caller's own to say; or why there is none."""
    if read.kind in TASK_KINDS and not is_named:
        # A configured server's ids do not say whose they are: those that do are given and read over MCP.
        return f"mcp_method {METHODS[read.kind]} is for servers that callers name by their addresses, or for MCP itself"
    ours = INPUT_MEMBERS if is_named else INPUT_MEMBERS | {TASK}
    call = _call(caller, surface, read.name, read.arguments)
    meta, extra = passed_meta(read.meta, _nobodys), passed_extra(read.extra, ours)
    return replace(call, meta=meta, extra=extra, kind=read.kind)


def _nobodys(_: str) -> None:
    """What a server calls the task to which a command says it relates: callers of the agent are told of none."""


def _do_there(instruction: CommandInstruction, caller: Caller, context: str, opened: OpenTarget) -> Call | Outcome:
    """The same at a server that a caller named: all of it is its caller's to call."""
    guest, surface = replace(caller, grants=ALL), Surface("own", opened.server)
    if opened.is_plain:
        done: Call | Result | str = _call(guest, surface, instruction.method, instruction.params)
    elif instruction.method == "initialize" and opened.initialize_result is not None:
        done = Result(opened.initialize_result)  # a second one would begin another session, or be refused
    else:
        done = _do(instruction, guest, surface, opened.hub.snapshot.view(ALL, surface), is_named=True)
    if isinstance(done, str):
        return BadArguments("execute_mcp_command", done)
    if isinstance(done, Call):
        return _in_context(context, replace(done, request_id=instruction.id or None))
    return done


def _list(shape: ListShape, view: View) -> bytes:
    routes = _routes(shape, view)
    entries = array_of(write_entry(shape, route.exposed, route.feature.definition) for route in routes)
    return render({shape.member: entries})


def _routes(shape: ListShape, view: View) -> Iterable[Route]:
    tables = {
        "tools": view.routes,
        "prompts": view.prompts,
        "resources": view.resources,
        "resourceTemplates": view.templates,
    }
    return tables[shape.member].values()


# -- words -------------------------------------------------------------------------------------------------------------


def _plan_saying(saying: Saying, caller: Caller, views: Views, words: Words) -> TaskPlan:
    if saying.form is not None:
        return plan(BadInstruction(saying.form, f"an object is needed: {_NEEDED[saying.form]}"), caller, views, words)
    view = views.view(EVERYTHING)
    found = None if words.tool is None else _find(ToolInstruction(words.tool, EMPTY), views)
    route = view.find_tool(found) if isinstance(found, str) else None
    arguments = None if route is None else _saying_arguments(saying.text, words, route)
    if isinstance(found, str) and arguments is not None:
        return TaskPlan(StoredInstruction("tool", found), _call(caller, EVERYTHING, found, arguments))
    note = f"text_tool {found} has no argument named text" if isinstance(found, str) else ""
    return TaskPlan(StoredInstruction(), state="input_required", offer=_fitting(saying.text, view), note=note)


_NEEDED: dict[Form, str] = {
    "tool": "tool, arguments",
    "execute": "target_mcp_server_id, tool_name, arguments",
    "command": "mcp_target_url, mcp_method, mcp_params",
}


def _arguments(instruction: ToolInstruction, words: Words, route: Route | None) -> Raw | None:
    """What a tool is to be told; None if that is words and it takes none."""
    if route is None or not instruction.words.strip():
        return instruction.arguments
    return _saying_arguments(instruction.words, words, route)


def _saying_arguments(text: str, words: Words, route: Route) -> Raw | None:
    """What a tool is told of words: all there is to know, unless it says by its schema what it takes.

    None if it does not take the words themselves.
    """
    given: dict[str, Payload] = {
        "text": msgspec.json.encode(text),
        "message_id": msgspec.json.encode(words.message.id),
        "context_id": msgspec.json.encode(words.context),
        "metadata": words.message.metadata or b"{}",
    }
    schema = object_members(route.feature.definition.get("inputSchema", EMPTY)) or {}
    taken = object_members(schema.get("properties", EMPTY))
    if not taken:
        return Raw(render(given))
    return Raw(render({name: value for name, value in given.items() if name in taken})) if "text" in taken else None


def _fitting(text: str, view: View) -> tuple[str, ...]:
    """Tools whose names share words with a text; if none does, the first ones there are."""
    words = {word for word in text.lower().replace(".", " ").replace("_", " ").split() if len(word) > 2}
    scored = sorted(view.routes, key=lambda name: -len(words & set(name.lower().replace(".", "_").split("_"))))
    return tuple(scored[:OFFERED_MAX])


# -- ends that need no call --------------------------------------------------------------------------------------------


def _refusal(reason: str, message: str) -> StoredOutcome:
    return StoredOutcome(reason=reason, message=message, executed="no")


def _failed(ending: StoredOutcome, brief: StoredInstruction) -> TaskPlan:
    return TaskPlan(brief, ending=ending, state="failed")


def _done(result: Raw, brief: StoredInstruction) -> TaskPlan:
    return TaskPlan(brief, ending=StoredOutcome(result), state="completed")


def _brief(bad: BadInstruction) -> StoredInstruction:
    return StoredInstruction(bad.form, "", bad.id or _new_id() if bad.form == "command" else ABSENT)


def _new_id() -> Raw:
    """What a command's answer repeats whose caller gave it no id."""
    return Raw(msgspec.json.encode(secrets.token_hex(8)))
