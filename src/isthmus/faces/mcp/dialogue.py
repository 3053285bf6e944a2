"""What the hub says to MCP callers, whatever carries it: both eras, no sockets, no sessions.

The HTTP and stdio carriers read a message, ask here what to do, and deliver the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import InFlight
from isthmus.core.catalog.view import Route, View
from isthmus.faces.mcp import tasks
from isthmus.faces.mcp.asker import Askable
from isthmus.faces.mcp.claims import ParamClaims
from isthmus.faces.mcp.comebacks import Comebacks
from isthmus.faces.mcp.faults import Era, code_of, error_reply
from isthmus.faces.mcp.interests import Interests
from isthmus.faces.mcp.kept_states import is_kept_id
from isthmus.faces.mcp.task_pages import TaskPages
from isthmus.model.callers import Caller
from isthmus.model.calls import TASK_KINDS, Call, Kind, Surface
from isthmus.model.events import LOG_LEVELS, Event, LogLevel, Progress
from isthmus.model.faults import Cancelled, Fault, NotWritten
from isthmus.model.features import Ability
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.places import without_places
from isthmus.model.questions import NOTHING, Profile
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, Request, object_members, render
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.capabilities import LATER, read_profile
from isthmus.wire.mcp.inputs import STATE
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, SHAPES, TEMPLATES, TOOLS, ListShape, array_of, write_entry
from isthmus.wire.mcp.messages import (
    LOGGED,
    PROGRESS,
    PROGRESS_TOKEN,
    Implementation,
    Members,
    progress_params,
    read_level,
    read_string,
)
from isthmus.wire.mcp.missing import Missing, write_missing
from isthmus.wire.mcp.passing import ANSWERS, passed_extra
from isthmus.wire.mcp.requests import read_request
from isthmus.wire.mcp.results import as_tool_result
from isthmus.wire.mcp.tasks import EXTENSION, KNOWN, REQUIRED, TASK, TASKS_VERSION, read_ttl, with_support

if TYPE_CHECKING:
    from isthmus.faces.mcp.kept_tasks import KeptTasks

_NAMED: Mapping[str, Kind] = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}
"""Calls that name what they are about, and as what."""

GREETING_SECONDS = 2.0
"""How long a greeting waits for servers that are starting; most local ones are there by then."""

LISTS: frozenset[Ability] = frozenset({"tools", "prompts", "resources"})

VERSIONS = (*modern.VERSIONS, *reversed(legacy.VERSIONS))
"""Every version spoken here, newest first."""


class Answer(msgspec.Struct, frozen=True):
    """A finished JSON-RPC message; `code` is its error code, or None for a result."""

    body: bytes
    code: int | None = None


def refuse(id: Payload | None, code: int, message: str, data: Payload | None = None) -> Answer:
    """An error as an answer."""
    return Answer(jsonrpc.error(id, code, message, data), code)


class Dialogue:
    """Answers what callers ask of the hub itself, and makes calls of what they ask of servers."""

    face = "mcp"
    """The way in that its calls are said to have come by."""

    def __init__(
        self,
        hub: Hub,
        me: Implementation,
        instructions: str | None = None,
        comebacks: Comebacks | None = None,
        kept: KeptTasks | None = None,
    ) -> None:
        """Without `comebacks`, modern callers cannot be asked anything; without `kept`, tasks are servers' alone."""
        self.hub = hub
        self.comebacks = comebacks
        self.kept = kept
        self._me = me
        self._instructions = instructions
        self._claims = ParamClaims()

    def era_of(self, request: Request, version_header: str | None) -> Era:
        """The era that a request speaks."""
        return "modern" if modern.is_modern(request, version_header, legacy.VERSIONS) else "legacy"

    def check(self, request: Request, claims: modern.Claims | None) -> Members | Answer:
        """Check a modern request's envelope, and over HTTP its headers; returns the members of its `_meta`."""
        checked = modern.check(request, claims, VERSIONS)
        if isinstance(checked, modern.Rejection):
            return refuse(request.id, checked.code, checked.message, checked.data)
        return checked

    def is_known(self, request: Request, caller: Caller, surface: Surface) -> bool:
        """Whether the caller sees what a call names, so that it need not wait for servers that are starting."""
        kind = _NAMED.get(request.method)
        name = None if kind is None else read_string(request.params.get("uri" if kind == "resource" else "name"))
        if kind is None or name is None:
            return False
        return self.hub.snapshot.view(caller.grants, surface).find(kind, name) is not None

    async def answer(
        self,
        request: Request,
        caller: Caller,
        surface: Surface,
        era: Era,
        profile: Profile = NOTHING,
        session: str = "",
        version: str = "",
    ) -> Answer:
        """Answer everything that is not a call and not a stream.

        `profile` is what an earlier caller said once for all that it can be asked, `session` its conversation and
        `version` what it speaks.
        """
        profile = profile_of(request, era, profile)
        match (request.method, era):
            case ("initialize", "legacy"):
                return await self._initialize(request, caller, surface, profile)
            case ("ping", "legacy"):
                return Answer(jsonrpc.result(request.id, b"{}"))
            case ("server/discover", "modern"):
                view, can = await self._greeting(caller, surface, profile)
                hubs = {**view.hubs, self.hub.id: 0}
                can = self._with_tasks(can, "task_handles")
                result = modern.discover_result(VERSIONS, self._me, can, self._instructions, hubs)
                return Answer(jsonrpc.result(request.id, result))
            case ("tasks/list", "legacy"):
                pages = TaskPages(self.hub, caller, surface, self._keeping(), profile=profile, session=session)
                return await self._list_tasks(request, pages, await self.hub.view_for(caller, surface, profile))
            case _ if (shape := SHAPES.get(request.method)) is not None:
                view = await self.hub.view_for(caller, surface, profile)
                can_ask = era == "legacy" and version >= TASKS_VERSION
                return _list(shape, request, view, era, self._keeping() if can_ask else None)
            case _:
                return _unknown_method(request)

    async def _initialize(self, request: Request, caller: Caller, surface: Surface, profile: Profile) -> Answer:
        requested = legacy.requested_version(request.params)
        if requested is None:
            return refuse(request.id, jsonrpc.INVALID_PARAMS, "initialize needs a protocolVersion, a string")
        view, can = await self._greeting(caller, surface, profile)
        version = legacy.negotiate(requested)
        hubs = {**view.hubs, self.hub.id: 0}
        if version >= TASKS_VERSION:
            can = self._with_tasks(can, "tasks")
        if not caller.is_anyone:  # who cannot be told from others is not to be listed theirs
            can |= {"task_list"}
        result = legacy.initialize_result(version, self._me, can, self._instructions, hubs)
        return Answer(jsonrpc.result(request.id, result))

    async def _greeting(self, caller: Caller, surface: Surface, profile: Profile) -> tuple[View, frozenset[Ability]]:
        """What a caller sees, and the capabilities to tell of.

        Clients give up on a server that does not answer the greeting soon, often after ten seconds, so it waits less
        than a list does. A legacy client never asks for what the greeting left out: while a server is starting of
        which nothing is known, all lists are promised.
        """
        view = await self.hub.view_for(caller, surface, profile, within=GREETING_SECONDS)
        return view, view.claimed | LISTS if self.hub.awaits(view.servers) else view.claimed

    # -- tasks of the hub's own ------------------------------------------------------------------------------------

    def _keeping(self) -> KeptTasks | None:
        """Who keeps tasks where servers do not, if that is wanted."""
        return self.kept if self.kept is not None and self.kept.are_offered else None

    def _with_tasks(self, can: frozenset[Ability], ability: Ability) -> frozenset[Ability]:
        """What can be called can also be run as a task, in its era's way."""
        return can | {ability} if self._keeping() is not None and "tools" in can else can

    async def _list_tasks(self, request: Request, pages: TaskPages, view: View) -> Answer:
        """A page of a caller's own tasks."""
        if self._keeping() is None and not tasks.are_spoken(request.method, "legacy", view):
            return _unknown_method(request)
        cursor = request.params.get("cursor", msgspec.Raw(b"null"))
        try:
            page = await pages.page(view, read_string(cursor)) if _is_cursor(cursor) else None
        except OSError as error:  # the journal's word for what it cannot do now
            return answer_call(request.id, NotWritten(str(error)), "legacy")
        if page is None:
            return refuse(request.id, jsonrpc.INVALID_PARAMS, "Invalid cursor")
        return Answer(jsonrpc.result(request.id, page))

    # -- what a legacy caller wants beside its calls ---------------------------------------------------------------

    async def note(self, request: Request, interests: Interests) -> Answer | None:
        """Take what the caller wants to be told from now on; None if the request is about something else."""
        match request.method:
            case "logging/setLevel":
                answer = _set_level(request, interests)
                await self.hub.levels.settled(interests.servers())
                return answer
            case "resources/subscribe" | "resources/unsubscribe":
                return await _follow(request, interests)
            case _:
                return None

    # -- calling ---------------------------------------------------------------------------------------------------

    def read_call(
        self,
        request: Request,
        caller: Caller,
        surface: Surface,
        meta: Members | None,
        level: LogLevel | None = None,
        profile: Profile = NOTHING,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> tuple[Call, msgspec.Raw | None] | Answer:
        """Make a call of a request for one, with the caller's own token for progress.

        `meta` is a modern request's envelope, and `headers` are those that came with it over HTTP; `level` and
        `profile` are what an earlier caller said once for all its calls.
        """
        asked = read_request(request.method, request.params, meta)
        if isinstance(asked, str):
            return refuse(request.id, jsonrpc.INVALID_PARAMS, asked)
        token = asked.meta.get(PROGRESS_TOKEN)
        if meta is not None:
            level = self._level(meta) if modern.LOG_KEY in meta else None
            profile = read_profile(meta.get(modern.CAPABILITIES_KEY), LATER)
        call = Call(  # by position: by name it takes three times as long, and every call comes through here
            caller,
            surface,
            asked.name,
            asked.arguments,
            tasks.own_meta(asked.meta, caller),
            asked.extra,
            token is not None,
            asked.kind,
            level,
            profile,
            "",
            meta is not None and self.comebacks is not None,
            self.face,
        )
        if headers is not None and call.kind == "tool":
            refutation = self._claims.refute(call, self.hub.snapshot, headers)
            if refutation is not None:
                return refuse(request.id, modern.HEADER_MISMATCH, refutation)
        if asked.extra or asked.kind in TASK_KINDS:
            meant = self._meant(request, call, "legacy" if meta is None else "modern")
            return meant if isinstance(meant, Answer) else (meant, token)
        return call, token

    def _meant(self, request: Request, call: Call, era: Era) -> Call | Answer:
        """A call that says more than what is called and with which arguments, as the hub understands it."""
        call = _own_answers(call)
        return self._aimed(request, call, era) if call.kind in TASK_KINDS or TASK in call.extra else call

    def _level(self, meta: Members) -> LogLevel | None:
        """How much a modern call wants to hear, of which an earlier server can be told only beside it."""
        level = read_level(meta[modern.LOG_KEY])
        if level is not None:
            self.hub.levels.call(level)
        return level

    def _aimed(self, request: Request, call: Call, era: Era) -> Call | Answer:
        """A call about a task, or one that asks for it, to the server whose it is."""
        view = self.hub.snapshot.view(call.caller.grants, call.surface, call.profile)
        kept = self._keeping()
        if call.kind not in TASK_KINDS:
            return self._asking(request, tasks.asked_for(call, view, era, are_kept=kept is not None))
        if not tasks.are_spoken(request.method, era, view, are_kept=kept is not None):
            return _unknown_method(request)
        if era == "modern" and KNOWN not in call.profile:
            text = f"{request.method} needs a client that knows {EXTENSION}"
            return refuse(request.id, modern.MISSING_CAPABILITY, text, REQUIRED)
        if kept is not None and is_kept_id(call.name):
            return msgspec.structs.replace(call, is_of_hub=True)
        return tasks.aimed(call, view, self.hub.tasks) or refuse(request.id, jsonrpc.INVALID_PARAMS, tasks.NOT_FOUND)

    def _asking(self, request: Request, call: Call) -> Call | Answer:
        """A call that asks for a task, if it does so in a way that can be understood."""
        wrong = read_ttl(call.extra[TASK]) if TASK in call.extra else None
        return refuse(request.id, jsonrpc.INVALID_PARAMS, wrong) if isinstance(wrong, str) else call

    def read_wanted(self, request: Request, profile: Profile) -> modern.Wanted | Answer:
        """What a modern caller's subscription asks to be told of."""
        wanted = modern.read_wanted(request.params)
        if wanted is None:
            text = "subscriptions/listen needs notifications, an object"
            return refuse(request.id, jsonrpc.INVALID_PARAMS, text)
        if wanted.tasks and KNOWN not in profile:
            text = f"To hear of tasks needs a client that knows {EXTENSION}"
            return refuse(request.id, modern.MISSING_CAPABILITY, text, REQUIRED)
        return wanted

    def start(self, call: Call, exchange: Askable) -> InFlight | None:
        """Start a call, or go on with the one that its caller comes back to; None if it has been answered already."""
        if call.kind == "tool" and not call.extra and KNOWN not in call.profile:  # as nearly all are
            return self.hub.start(call, exchange)
        kept = self._keeping()
        if kept is not None and call.is_of_hub:
            return kept.ask(call, exchange)
        if kept is not None and kept.is_wanted(call):
            return kept.create(call, exchange)
        if not call.comes_back or STATE not in call.extra or self.comebacks is None:
            inflight: InFlight | None = self.hub.start(call, exchange)
        else:
            inflight = self.comebacks.go_on(call, exchange, self.hub)
        if kept is not None and KNOWN in call.profile and call.kind == "tool" and inflight is not None:
            kept.watch(inflight)
        return inflight


def profile_of(request: Request, era: Era, known: Profile = NOTHING) -> Profile:
    """What a caller says it can be asked: a modern one with every request, an earlier one when it is greeted."""
    if era == "modern":
        meta = object_members(request.params.get("_meta", b"")) or {}
        return read_profile(meta.get(modern.CAPABILITIES_KEY), LATER)
    return read_profile(request.params.get("capabilities")) if request.method == "initialize" else known


def _is_cursor(raw: msgspec.Raw) -> bool:
    return bytes(raw) == b"null" or read_string(raw) is not None


def _unknown_method(request: Request) -> Answer:
    return refuse(request.id, jsonrpc.METHOD_NOT_FOUND, f"Method not found: {request.method}")


def _set_level(request: Request, interests: Interests) -> Answer:
    level = read_level(request.params.get("level"))
    if level is None:
        return refuse(request.id, jsonrpc.INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
    interests.set_level(level)
    return Answer(jsonrpc.result(request.id, b"{}"))


async def _follow(request: Request, interests: Interests) -> Answer:
    uri = read_string(request.params.get("uri"))
    if uri is None:
        return refuse(request.id, jsonrpc.INVALID_PARAMS, f"{request.method} needs a uri, a string")
    if request.method == "resources/unsubscribe":
        interests.unfollow(uri)
    elif (fault := await interests.follow(uri)) is not None:
        return answer_call(request.id, fault, "legacy")
    return Answer(jsonrpc.result(request.id, b"{}"))


def _own_answers(call: Call) -> Call:
    """A call without a state and answers that are not its caller's to bring: a modern server would believe them.

    Who is asked by requests brings none with a call; who comes back brings them in one spelling, which the hub reads.
    """
    kept = ANSWERS if call.comes_back or call.kind in TASK_KINDS else frozenset()
    extra = passed_extra(call.extra, ANSWERS, kept)
    return call if len(extra) == len(call.extra) else msgspec.structs.replace(call, extra=extra)


def _list(shape: ListShape, request: Request, view: View, era: Era, kept: KeptTasks | None) -> Answer:
    if bytes(request.params.get("cursor", b"null")) != b"null":
        # The whole list is one page, so no cursor of ours is out there.
        return refuse(request.id, jsonrpc.INVALID_PARAMS, "Invalid cursor: the list has one page")
    return Answer(jsonrpc.result(request.id, list_bytes(view, era, shape, kept)))


def list_bytes(view: View, era: Era, shape: ListShape = TOOLS, kept: KeptTasks | None = None) -> bytes:
    """A list's result, rendered once per view and era; with `kept`, tools say which of them the hub runs as tasks."""
    is_offering = kept is not None and shape is TOOLS
    key = f"{era} {shape.method} with tasks" if is_offering else f"{era} {shape.method}"
    rendered = view.memo.get(key)
    if rendered is None:
        entries = array_of(
            write_entry(shape, route.exposed, _shown(route, view, kept if is_offering else None))
            for route in _of(view, shape)
        )
        write = modern.list_result if era == "modern" else legacy.list_result
        rendered = view.memo[key] = write(shape.member, entries, _missing(view))
    return rendered


def _shown(route: Route, view: View, kept: KeptTasks | None) -> Members:
    definition = route.feature.definition
    is_kept = kept is not None and kept.are_for(view, route.feature.server, "tasks")
    return with_support(definition) if is_kept else definition


def _of(view: View, shape: ListShape) -> Iterable[Route]:
    tables = {
        TOOLS.method: view.routes,
        PROMPTS.method: view.prompts,
        RESOURCES.method: view.resources,
        TEMPLATES.method: view.templates,
    }
    return tables[shape.method].values()


def _missing(view: View) -> bytes | None:
    if not view.missing:
        return None
    reasons = {server: each.reason and without_places(each.reason) for server, each in view.missing.items()}
    return write_missing(
        {server: Missing(each.state, reasons[server], each.is_listed) for server, each in view.missing.items()}
    )


def withdrawn(id: Payload) -> Answer:
    """The answer to a call that its caller withdrew before it was started."""
    return answer_call(id, Cancelled("by the caller", executed="no"), "legacy")


def answer_call(id: Payload, outcome: Outcome, era: Era, kind: Kind = "tool") -> Answer:
    """How a call ended, in the caller's era."""
    if isinstance(outcome, Fault):
        return Answer(error_reply(id, outcome, era), code_of(outcome, era))
    return Answer(jsonrpc.result(id, _in_era(outcome, era, kind)))


def _in_era(result: Result, era: Era, kind: Kind) -> Payload:
    if result.is_bare:
        result = as_tool_result(result)
    if result.is_typed == (era == "modern"):
        return result.payload
    # Only an object was accepted as a result, so there is always something to translate.
    if era == "modern":
        if result.is_untyped and kind != "resource":
            return modern.typed(result.payload)
        return modern.as_modern(result.payload, is_cacheable=kind == "resource") or result.payload
    return modern.as_legacy(result.payload) or result.payload


def event_notification(event: Event, token: Payload | None) -> bytes | None:
    """An event of a call as the caller hears it, progress under the caller's own token; None if it has none."""
    if isinstance(event, Progress):
        return None if token is None else jsonrpc.notification(PROGRESS, progress_params(token, event.members))
    return jsonrpc.notification(LOGGED, render(event.members))


def updated_params(uri: str) -> dict[str, Payload]:
    """What a caller is told of a resource that was updated."""
    return {"uri": msgspec.json.encode(uri)}
