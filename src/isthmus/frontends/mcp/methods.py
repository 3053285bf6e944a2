"""The MCP methods, whatever transport carries them: both eras, no sockets, no sessions.

The transports (`http`, `duplex`) read a message, call `McpMethods`, and send the reply.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import time
from collections.abc import Collection, Mapping, Sequence

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.catalog.snapshot import Snapshot
from isthmus.core.catalog.view import Route, View, VirtualRoute
from isthmus.core.event_loop import in_passes
from isthmus.core.ports import HubExchange
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import ListedTask, ServerTask
from isthmus.frontends.mcp import tasks
from isthmus.frontends.mcp.exchange import AskableExchange, JsonRpcReply, call_reply, refuse
from isthmus.frontends.mcp.hub_tasks import HubTasks
from isthmus.frontends.mcp.input_required import ModernClientInput
from isthmus.frontends.mcp.subscriptions import CallerSubscriptions, McpClient
from isthmus.model.callers import Caller
from isthmus.model.calls import (
    LOG_LEVELS,
    NO_CAPABILITIES,
    NOT_ASKED,
    TASK_KINDS,
    Call,
    ClientCapabilities,
    Event,
    Kind,
    LogLevel,
    OnReply,
    Outcome,
    Question,
    Surface,
)
from isthmus.model.fault_table import NotWritten, ServerError
from isthmus.model.features import Ability
from isthmus.model.location_redaction import without_locations
from isthmus.model.names import ServerName
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, Request, object_members
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.forwarded_methods import EMPTY_OBJECT, INPUT_MEMBERS, STATE, passed_extra, read_request
from isthmus.wire.mcp.lists import (
    ENTRIES_BYTES,
    PROMPTS,
    RESOURCES,
    SHAPES,
    TEMPLATES,
    TOOLS,
    ListShape,
    array_of,
    write_entry,
)
from isthmus.wire.mcp.messages import (
    MODERN_EXTENSIONS,
    PROGRESS_TOKEN,
    TASKS_EXTENSION,
    Era,
    Implementation,
    Members,
    UnavailableServer,
    read_client_capabilities,
    read_level,
    read_string,
    write_missing,
)
from isthmus.wire.mcp.modern import ANNOTATION, HeaderParams, find_param_mismatch, required_params
from isthmus.wire.mcp.tasks import (
    REQUIRED,
    TASK,
    TASKS_CAPABILITY,
    TASKS_VERSION,
    list_result,
    read_ttl,
    with_task_support,
)

INITIALIZE_SECONDS = 2.0
"""How long `initialize` waits for starting servers; most local ones are ready by then."""

KEPT_RESULTS: frozenset[Ability] = frozenset({"resources"})
"""The capability that clients need to read results that were cut."""

LISTS: frozenset[Ability] = frozenset({"tools", "prompts", "resources"})

PAGE_MAX = 50
"""Tasks on a page of `tasks/list`, and servers queried for it at most."""

QUERY_SECONDS = 2.0
"""How long a server may take to return a task's state; after that its last known state is listed."""

KNOWN_SCHEMAS_MAX = 20_000
"""Tool schemas whose header parameters are cached, more than a hub has tools."""

NAMED: Mapping[str, Kind] = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}
"""Methods that name a feature, with its kind."""


class McpMethods:
    """Answers the requests to the hub itself, and makes calls of the requests to servers."""

    frontend = "mcp"
    """The frontend name that its calls carry."""

    def __init__(
        self,
        hub: Hub,
        me: Implementation,
        client_input: ModernClientInput | None = None,
        hub_tasks: HubTasks | None = None,
    ) -> None:
        """Without `client_input`, modern callers cannot be asked; without `hub_tasks`, only servers run tasks."""
        self.hub = hub
        self.client_input = client_input
        self.hub_tasks = hub_tasks
        self._me = me
        self._header_params = HeaderParamCheck()

    def is_known(self, request: Request, caller: Caller, surface: Surface) -> bool:
        """Whether the caller sees what a call names, so that the call need not wait for starting servers."""
        kind = NAMED.get(request.method)
        name = None if kind is None else read_string(request.params.get("uri" if kind == "resource" else "name"))
        if kind is None or name is None:
            return False
        return self.hub.snapshot.view(caller.grants, surface).is_known(kind, name)

    async def answer(self, request: Request, client: McpClient, era: Era, version: str = "") -> JsonRpcReply:
        """Answer every request that is neither a call nor a subscription.

        The client's capabilities and session, and `version`, are those of a legacy caller's session.
        """
        client = msgspec.structs.replace(client, client_caps=client_capabilities(request, era, client.client_caps))
        caller, surface, client_caps = client.caller, client.surface, client.client_caps
        match (request.method, era):
            case ("initialize", "legacy"):
                return await self._initialize(request, caller, surface, client_caps)
            case ("ping", "legacy"):
                return JsonRpcReply(jsonrpc.result(request.id, b"{}"))
            case ("server/discover", "modern"):
                view, abilities = await self._abilities(caller, surface, client_caps)
                hubs = {**view.hubs, self.hub.id: 0}
                if self._enabled_tasks() is not None and "tools" in abilities:
                    abilities |= {"task_handles"}
                result = modern.discover_result(modern.SUPPORTED, self._me, abilities, hubs, view.description)
                return JsonRpcReply(jsonrpc.result(request.id, result))
            case ("tasks/list", "legacy"):
                view = await self.hub.view_for(caller, surface, client_caps)
                return await self._list_tasks(request, LegacyTaskList(client, self._enabled_tasks()), view)
            case _ if (shape := SHAPES.get(request.method)) is not None:
                view = client.with_found(await self.hub.view_for(caller, surface, client_caps))
                can_ask = era == "legacy" and version >= TASKS_VERSION
                after = _read_list_cursor(request.params.get("cursor"))
                passes = list_passes(
                    view,
                    era,
                    shape,
                    self._enabled_tasks() if can_ask else None,
                    after=after,
                    page_bytes=self.hub.limits.list_page_bytes,
                )
                listed = await in_passes(passes)
                if listed is None:
                    return refuse(request.id, jsonrpc.INVALID_PARAMS, BAD_LIST_CURSOR)
                return JsonRpcReply(jsonrpc.result(request.id, listed))
            case _:
                return _method_not_found(request)

    async def _initialize(
        self, request: Request, caller: Caller, surface: Surface, client_caps: ClientCapabilities
    ) -> JsonRpcReply:
        requested = legacy.requested_version(request.params)
        if requested is None:
            return refuse(request.id, jsonrpc.INVALID_PARAMS, "initialize needs a protocolVersion, a string")
        view, abilities = await self._abilities(caller, surface, client_caps)
        version = legacy.negotiate(requested)
        hubs = {**view.hubs, self.hub.id: 0}
        if version >= TASKS_VERSION and self._enabled_tasks() is not None and "tools" in abilities:
            abilities |= {"tasks"}
        if not caller.is_anyone:  # an anonymous caller must not list the tasks of others
            abilities |= {"task_list"}
        result = legacy.initialize_result(version, self._me, abilities, hubs, view.description)
        return JsonRpcReply(jsonrpc.result(request.id, result))

    async def _abilities(
        self, caller: Caller, surface: Surface, client_caps: ClientCapabilities
    ) -> tuple[View, frozenset[Ability]]:
        """The caller's view, and the capabilities to announce.

        Clients give up on a server that does not answer `initialize` soon, often after ten seconds, so it waits less
        than a list does. A legacy client never uses a capability that was not announced: while a server is starting
        about which nothing is known, all lists are announced.
        """
        view = await self.hub.view_for(caller, surface, client_caps, within=INITIALIZE_SECONDS)
        claimed = view.claimed | KEPT_RESULTS if self.hub.is_cutting else view.claimed
        return view, claimed | LISTS if self.hub.awaits(view.servers) else claimed

    def _enabled_tasks(self) -> HubTasks | None:
        """The hub tasks, if the operator wants them."""
        return self.hub_tasks if self.hub_tasks is not None and self.hub_tasks.is_enabled else None

    async def _list_tasks(self, request: Request, task_list: LegacyTaskList, view: View) -> JsonRpcReply:
        if self._enabled_tasks() is None and not tasks.is_task_method(request.method, "legacy", view):
            return _method_not_found(request)
        cursor = request.params.get("cursor", msgspec.Raw(b"null"))
        page: bytes | None = None
        try:
            if bytes(cursor) == b"null" or read_string(cursor) is not None:
                page = await task_list.page(view, read_string(cursor))
        except OSError as error:  # the journal is not available
            return call_reply(request.id, NotWritten(str(error)), "legacy")
        if page is None:
            return refuse(request.id, jsonrpc.INVALID_PARAMS, "Invalid cursor")
        return JsonRpcReply(jsonrpc.result(request.id, page))

    # -- a legacy caller's subscriptions ---------------------------------------------------------------------------

    async def change_subscription(self, request: Request, subscriptions: CallerSubscriptions) -> JsonRpcReply | None:
        """Answer `logging/setLevel`, `resources/subscribe` and `resources/unsubscribe`; None for any other method."""
        if request.method == "logging/setLevel":
            level = read_level(request.params.get("level"))
            if level is not None:
                subscriptions.set_level(level)
            await self.hub.levels.settled(subscriptions.servers())
            if level is None:
                return refuse(request.id, jsonrpc.INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
            return JsonRpcReply(jsonrpc.result(request.id, b"{}"))
        if request.method not in ("resources/subscribe", "resources/unsubscribe"):
            return None
        uri = read_string(request.params.get("uri"))
        if uri is None:
            return refuse(request.id, jsonrpc.INVALID_PARAMS, f"{request.method} needs a uri, a string")
        if request.method == "resources/unsubscribe":
            subscriptions.unsubscribe(uri)
        elif (fault := await subscriptions.subscribe(uri)) is not None:
            return call_reply(request.id, fault, "legacy")
        return JsonRpcReply(jsonrpc.result(request.id, b"{}"))

    # -- calls -----------------------------------------------------------------------------------------------------

    def read_call(
        self,
        request: Request,
        caller: Caller,
        surface: Surface,
        meta: Members | None,
        level: LogLevel | None = None,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> tuple[Call, msgspec.Raw | None] | JsonRpcReply:
        """Make a call of a request; returns it with the caller's progress token.

        `meta` is a modern request's checked `_meta`, and `headers` are its HTTP headers. `level` and `client_caps` are
        those of a legacy caller's session.
        """
        asked = read_request(request.method, request.params, meta)
        if isinstance(asked, str):
            return refuse(request.id, jsonrpc.INVALID_PARAMS, asked)
        token = asked.meta.get(PROGRESS_TOKEN)
        if meta is not None:
            level = None
            if modern.LOG_KEY in meta and (level := read_level(meta[modern.LOG_KEY])) is not None:
                self.hub.levels.call(level)  # a legacy server learns the level by a request of its own
            client_caps = read_client_capabilities(meta.get(modern.CAPABILITIES_KEY), MODERN_EXTENSIONS)
        call = Call(  # by position: by name it takes three times as long, and every call comes through here
            caller,
            surface,
            asked.name,
            asked.arguments,
            {} if asked.meta.keys() <= modern.OWN_KEYS else tasks.server_meta(asked.meta, caller),
            asked.extra,
            token is not None,
            asked.kind,
            level,
            client_caps,
            "",
            meta is not None and self.client_input is not None,
            self.frontend,
        )
        if headers is not None and call.kind == "tool":
            checks, snapshot = self._header_params, self.hub.snapshot
            if checks.is_needed or snapshot is not checks.snapshot:
                mismatch = checks.find_mismatch(call, snapshot, headers)
                if mismatch is not None:
                    return refuse(request.id, modern.HEADER_MISMATCH, mismatch)
        if asked.extra or asked.kind in TASK_KINDS:
            # A caller's own answers and state are dropped where the hub does not expect any: a modern server would
            # believe them.
            expected = INPUT_MEMBERS if call.comes_back or call.kind in TASK_KINDS else frozenset()
            extra = passed_extra(call.extra, INPUT_MEMBERS, expected)
            if len(extra) != len(call.extra):
                call = msgspec.structs.replace(call, extra=extra)
            if call.kind in TASK_KINDS or TASK in call.extra:
                routed = self._route_task(request, call, "legacy" if meta is None else "modern")
                return routed if isinstance(routed, JsonRpcReply) else (routed, token)
        return call, token

    def _route_task(self, request: Request, call: Call, era: Era) -> Call | JsonRpcReply:
        """A call about a task, addressed to the task's server or the hub; or a call that asks for a task."""
        view = self.hub.snapshot.view(call.caller.grants, call.surface, call.client_caps)
        has_hub_tasks = self._enabled_tasks() is not None
        if call.kind not in TASK_KINDS:
            call = self.hub.redirected(call)
            call = tasks.with_supported_task(call, view, era, has_hub_tasks=has_hub_tasks)
            problem = read_ttl(call.extra[TASK]) if TASK in call.extra else None
            return refuse(request.id, jsonrpc.INVALID_PARAMS, problem) if isinstance(problem, str) else call
        if not tasks.is_task_method(request.method, era, view, has_hub_tasks=has_hub_tasks):
            return _method_not_found(request)
        if era == "modern" and TASKS_CAPABILITY not in call.client_caps:
            text = f"{request.method} needs a client with the extension {TASKS_EXTENSION}"
            return refuse(request.id, modern.MISSING_CAPABILITY, text, REQUIRED)
        if has_hub_tasks and tasks.is_hub_task_id(call.name):
            return msgspec.structs.replace(call, is_of_hub=True)
        routed = tasks.route_task_call(call, view, self.hub.tasks)
        return routed or refuse(request.id, jsonrpc.INVALID_PARAMS, tasks.NOT_FOUND)

    def read_listen_filter(
        self, request: Request, client_caps: ClientCapabilities
    ) -> modern.ListenFilter | JsonRpcReply:
        """What a `subscriptions/listen` asks for."""
        wanted = modern.read_listen_filter(request.params)
        if wanted is None:
            text = "subscriptions/listen needs notifications, an object"
            return refuse(request.id, jsonrpc.INVALID_PARAMS, text)
        if wanted.tasks and TASKS_CAPABILITY not in client_caps:
            text = f"taskIds need a client with the extension {TASKS_EXTENSION}"
            return refuse(request.id, modern.MISSING_CAPABILITY, text, REQUIRED)
        return wanted

    def start(self, call: Call, exchange: AskableExchange) -> InFlight | None:
        """Start a call, or resume a suspended one; None if it has been answered already."""
        if call.kind == "tool" and not call.extra and TASKS_CAPABILITY not in call.client_caps:  # nearly all
            return self.hub.start(call, exchange)
        hub_tasks = self._enabled_tasks()
        if hub_tasks is not None and call.is_of_hub:
            return hub_tasks.answer(call, exchange)
        if hub_tasks is not None and hub_tasks.is_requested(call):
            return hub_tasks.create(call, exchange)
        becomes_task = call.kind == "tool" and TASKS_CAPABILITY in call.client_caps
        if call.comes_back and STATE in call.extra and self.client_input is not None:
            inflight = self.client_input.resume(call, exchange, self.hub)
        elif hub_tasks is not None and becomes_task and (script := hub_tasks.start_durable(call, exchange)) is not None:
            return script
        else:
            inflight = self.hub.start(call, exchange)
        if hub_tasks is not None and becomes_task and inflight is not None:
            hub_tasks.watch(inflight)
        return inflight


def client_capabilities(request: Request, era: Era, known: ClientCapabilities = NO_CAPABILITIES) -> ClientCapabilities:
    """A caller's capabilities: a modern one sends them with every request, a legacy one with `initialize`."""
    if era == "modern":
        meta = object_members(request.params.get("_meta", b"")) or {}
        return read_client_capabilities(meta.get(modern.CAPABILITIES_KEY), MODERN_EXTENSIONS)
    return read_client_capabilities(request.params.get("capabilities")) if request.method == "initialize" else known


def _method_not_found(request: Request) -> JsonRpcReply:
    return refuse(request.id, jsonrpc.METHOD_NOT_FOUND, f"Method not found: {request.method}")


# -- lists ---------------------------------------------------------------------------------------------------------


BAD_LIST_CURSOR = "Invalid cursor: use the nextCursor of the last page, or none to list from the start again"


def _read_list_cursor(cursor: msgspec.Raw | None) -> str | None:
    """The name of the entry before a page; None for the first page, and a name that nothing has for a bad cursor."""
    if cursor is None or bytes(cursor) == b"null":
        return None
    try:
        return base64.urlsafe_b64decode((read_string(cursor) or "!").encode()).decode("utf-8", "surrogatepass")
    except ValueError:
        return ""


def render_list(view: View, era: Era, shape: ListShape = TOOLS, hub_tasks: HubTasks | None = None) -> bytes:
    """The first page of a list; with `hub_tasks`, tools say which of them can be tasks."""
    page_bytes = Limits().list_page_bytes
    rendered = jsonrpc.finish(list_passes(view, era, shape, hub_tasks, after=None, page_bytes=page_bytes))
    assert rendered is not None
    return rendered


def list_passes(
    view: View,
    era: Era,
    shape: ListShape,
    hub_tasks: HubTasks | None,
    *,
    after: str | None,
    page_bytes: int,
) -> jsonrpc.Passes[bytes | None]:
    """Render a page of a list: the first, or the one after the entry of this name; None if no entry has it.

    The name is the cursor, so that every node of a cluster continues a list, and a list that has changed meanwhile
    continues where the caller was. Pages are cached with the view, but only pages that follow from the first one: each
    entry that a caller names could be the start of another page.
    """
    has_tasks = hub_tasks is not None and shape is TOOLS
    key = f"{era} {shape.method} with tasks" if has_tasks else f"{era} {shape.method}"
    page_key = key if after is None else f"{key} after {after}"
    if rendered := view.memo.get(page_key):
        return rendered
    tables: dict[str, Mapping[str, Route]] = {
        TOOLS.method: view.listed,
        PROMPTS.method: view.prompts,
        RESOURCES.method: view.resources,
        TEMPLATES.method: view.templates,
    }

    def entry(route: Route) -> bytes:
        definition = route.feature.definition
        if has_tasks and hub_tasks is not None:
            if isinstance(route, VirtualRoute):  # `call_tool` runs what it names as a task if that can be one
                can_be_task = hub_tasks.is_durable(route)
            else:
                can_be_task = hub_tasks.applies_to(view, route.feature.server, "tasks")
            definition = with_task_support(definition) if can_be_task else definition
        return write_entry(shape, route.exposed, definition)

    table = tables[shape.method]
    names = iter(table)
    if after is not None and (after not in table or all(name != after for name in names)):
        return None
    written: list[bytes] = []
    size = unpaused = 0
    last: str | None = None
    cursor: str | None = None
    for name in names:
        text = entry(table[name])
        if last is not None and size + len(text) > page_bytes:
            cursor = base64.urlsafe_b64encode(last.encode("utf-8", "surrogatepass")).decode()
            break
        written.append(text)
        last, size, unpaused = name, size + len(text), unpaused + len(text)
        if unpaused > ENTRIES_BYTES:
            unpaused = 0
            yield
    if size > jsonrpc.LONG_BYTES:
        yield
    missing: dict[str, UnavailableServer] = {
        server: UnavailableServer(each.state, each.reason and without_locations(each.reason), each.is_listed)
        for server, each in view.missing.items()
    }
    write = modern.list_result if era == "modern" else legacy.list_result
    rendered = write(shape.member, array_of(written), write_missing(missing) if missing else None, cursor)
    if after is None or page_key in view.memo:
        view.memo[page_key] = rendered
        if cursor is not None:
            view.memo.setdefault(f"{key} after {last}", b"")  # not rendered yet, and will be kept
    return rendered


class LegacyTaskList:
    """The `tasks/list` of one legacy caller, as one of its sessions sees it: hub tasks first, then those of servers."""

    def __init__(self, client: McpClient, hub_tasks: HubTasks | None = None) -> None:
        """Without `hub_tasks` there are only tasks of servers."""
        self._hub = client.hub
        self._hub_tasks = hub_tasks
        self._caller = client.caller
        self._surface = client.surface
        self._client_caps = client.client_caps
        self._session = client.session

    async def page(self, view: View, cursor: str | None) -> bytes | None:
        """The result for a cursor, or the first page without one; None if the cursor is invalid."""
        listed: list[Payload] = []
        token = ""
        try:
            # Every error of these decoders is a ValueError.
            after: Mapping[str, int] | str = ""
            if cursor is not None:
                after = msgspec.json.decode(base64.urlsafe_b64decode(cursor.encode()), type=dict[str, int] | str)
            if isinstance(after, str) and self._hub_tasks is not None:
                listed, token = await self._hub_tasks.list_page(
                    self._caller, self._surface, view, after, PAGE_MAX, self._session
                )
            elif isinstance(after, str) and after:
                return None
        except ValueError:
            return None
        if token:
            return list_result(listed, _write_cursor(token))
        return await self._server_tasks(view, {} if isinstance(after, str) else after, listed)

    async def _server_tasks(self, view: View, after: Mapping[str, int], hub_tasks: Sequence[Payload]) -> bytes:
        """A page of hub tasks, filled up with those of servers, at all nodes, by creation."""
        servers = [
            server
            for server, abilities in view.servers.items()
            if "tasks" in abilities and self._surface.server in (None, server)
        ]
        here, room = tasks.node_prefix(), PAGE_MAX - len(hub_tasks)
        others = self._hub.tasks.other_nodes
        if others is None or self._caller.is_anyone:  # the session of an anonymous caller has all of its tasks
            found: Mapping[str, Sequence[ListedTask]] = {here: await self.own(servers, after.get(here, 0), room + 1)}
        else:
            own, elsewhere = await asyncio.gather(
                self.own(servers, after.get(here, 0), room + 1),
                others.listed(self._caller, servers, after, room + 1),
            )
            found = {here: own, **elsewhere}
        marked = [[(task, node) for task in each] for node, each in found.items()]
        page = list(heapq.merge(*marked, key=lambda each: each[0].made))
        last = dict(after)
        for task, node in page[:room]:
            last[node] = task.number
        listed = [task.state for task, _ in page[:room] if not task.is_gone]
        return list_result([*hub_tasks, *listed], _write_cursor(last) if len(page) > room else None)

    async def own(self, servers: Collection[ServerName], after: int, most: int) -> list[ListedTask]:
        """The caller's tasks of these servers at this node, by number. The states of running ones are queried."""
        found = [
            task
            for task in self._hub.tasks.tasks_for(self._caller, self._session)
            if task.number > after
            and task.server in servers
            and tasks.is_listed(task.session, self._caller, self._session)
        ][:most]
        # For a session at another node: a server may know a session's task only in the process of that session.
        running = [task for task in found if not task.state.is_terminal and (self._session or not task.session)]
        gone = await self._query_states(running)
        epoch = time.time() - self._hub.now()
        return [
            ListedTask(
                task.number,
                epoch + task.made_at,
                msgspec.Raw(tasks.public_state(task, self._caller)),
                is_gone=task in gone,
            )
            for task in found
        ]

    async def _query_states(self, running: Sequence[ServerTask]) -> set[ServerTask]:
        """Query the states of tasks, all at once; the hub stores the replies. Returns tasks that no longer exist."""
        queries = [_StateQuery(task) for task in running]
        session = self._session if self._client_caps else ""
        calls = []
        for query in queries:
            id, surface = query.task.state.id, Surface("own", query.task.server)
            call = Call(
                self._caller, surface, id, EMPTY_OBJECT, kind="task", client_caps=self._client_caps, session=session
            )
            calls.append(self._hub.start(call, query))
        try:
            if queries:
                await asyncio.wait([query.over for query in queries], timeout=QUERY_SECONDS)
        finally:
            for inflight in calls:  # a deadline would count as a failure of the server
                inflight.cancel("the list does not wait for it")
        gone = {query.task for query in queries if query.is_gone}
        for task in gone:
            if task.session in ("", self._session):  # otherwise the process of another session may have it
                self._hub.tasks.forget(task)
        return gone


class _StateQuery(HubExchange):
    """Queries the state of one task."""

    def __init__(self, task: ServerTask) -> None:
        self.task = task
        self.is_gone = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def emit(self, event: Event) -> None:
        """Events of a query are ignored."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """The caller asked for a list only."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """The server replied, or failed to."""
        self.is_gone = isinstance(outcome, ServerError) and outcome.code == jsonrpc.INVALID_PARAMS
        self.over.set_result(None)


def _write_cursor(last: Mapping[str, int] | str) -> str:
    """A cursor: by node the number of the last task of servers, or the journal's token for hub tasks."""
    return base64.urlsafe_b64encode(msgspec.json.encode(last)).decode()


# -- Mcp-Param-* headers -------------------------------------------------------------------------------------------


class HeaderParamCheck:
    """Checks a modern call's `Mcp-Param-*` headers against its arguments: a proxy may have routed by the headers.

    Hardly any tool has such headers. Which ones do is determined once per schema.
    """

    def __init__(self) -> None:
        self._by_digest: dict[bytes, HeaderParams] = {}
        self.snapshot: Snapshot | None = None
        self.is_needed = False
        """Whether a tool in this snapshot may have such headers; otherwise calls need no check."""

    def find_mismatch(self, call: Call, snapshot: Snapshot, headers: Mapping[bytes, bytes]) -> str | None:
        """How the headers contradict the arguments; None if they agree, or the tool has no such headers."""
        if snapshot is not self.snapshot:
            self.snapshot, self.is_needed = snapshot, _has_annotations(snapshot)
        if not self.is_needed:
            return None
        route = snapshot.view(call.caller.grants, call.surface, call.client_caps).routes.get(call.name)
        if route is None:
            return None
        digest = route.feature.digest
        params = self._by_digest.get(digest)
        if params is None:
            if len(self._by_digest) >= KNOWN_SCHEMAS_MAX:
                self._by_digest.clear()
            params = self._by_digest[digest] = required_params(route.feature.definition.get("inputSchema"))
        return find_param_mismatch(params, call.arguments, headers) if params else None


def _has_annotations(snapshot: Snapshot) -> bool:
    """Whether any tool may have header parameters: determined once per snapshot, so that calls need not."""
    mark = ANNOTATION.encode()
    return any(
        mark in bytes(schema)
        for server_status in snapshot.server_statuses.values()
        for tools in (server_status.tools, *(variant.tools for variant in server_status.variants.values()))
        for tool in tools
        if (schema := tool.definition.get("inputSchema")) is not None
    )
