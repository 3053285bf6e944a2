"""`search_tools` and `call_tool`, the tools of the hub itself that views with `expose = "search"` list.

A search runs in a thread, on an index of the caller's own view (`core.catalog.search_ranking`). Indexes are kept while
they are used, and follow the snapshot: after a change only changed tools are indexed anew. `app.hub` adds these tools.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec
import structlog

from isthmus.core.access.policy import TAG
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.search_ranking import QUERY_LENGTH_MAX, SUGGESTIONS_MAX, ToolIndex
from isthmus.core.catalog.snapshot import Snapshot
from isthmus.core.catalog.tool_rules import labels_of
from isthmus.core.catalog.view import Route, View
from isthmus.core.ports import FindingExchange
from isthmus.model.callers import Grants
from isthmus.model.calls import NO_CAPABILITIES, Call, ClientCapabilities, Result, Surface
from isthmus.model.descriptions import on_one_line
from isthmus.model.fault_table import BadArguments, Fault, UnknownTool
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName

log = structlog.get_logger(__name__)

SEARCH_TOOLS = "search_tools"
CALL_TOOL = "call_tool"

NO_ARGUMENTS = msgspec.Raw(b"{}")

LIMIT = 10
LIMIT_MAX = 50
"""How many tools a search returns, at most: the model asked for few."""

LINE_LENGTH_MAX = 160
"""The length of a tool's line, without its name."""

FULL_BYTES_MAX = 256 * 1024
"""Definitions of one answer; further tools are returned without theirs."""

SERVERS_NAMED_MAX = 50
"""Servers that the answer names if nothing was found."""

INDEXED_TOOLS_MAX = 100_000
"""Tools in all indexes together, of which each takes a few kilobytes. The index that was not used for longest is
dropped; the next search of that view builds it again."""

Key: TypeAlias = tuple[Grants, Surface, ClientCapabilities]


def virtual_tool(name: str, definition: dict[str, Any]) -> Tool:
    """The definition of a tool of the hub itself."""
    members = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in definition.items()}
    return Tool.of(BUILTIN, FeatureName(name), members)


# -- indexes of views --------------------------------------------------------------------------------------------------


class _ViewIndex:
    """The index of one view; used by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._index: ToolIndex | None = None
        self.view: View | None = None
        """The view that the index has been requested for; for the event loop."""
        self._indexed: View | None = None
        self.size = 0

    def run(
        self, view: View, snapshot: Snapshot, query: str, limit: int, server: str | None, tag: str | None
    ) -> list[str]:
        """Bring the index up to date and search it."""
        with self._lock:
            if self._index is None:
                self._index = ToolIndex()
            if self._indexed is not view:
                self._index.update(view.routes, _tags(view, snapshot))
                self._indexed, self.size = view, len(self._index)
            return self._index.search(query, limit, server=server, tag=tag)

    def close(self) -> None:
        """Free its memory; a search that comes later builds it again."""
        with self._lock:
            if self._index is not None:
                self._index.close()
            self._index = self._indexed = None
            self.size = 0


def _tags(view: View, snapshot: Snapshot) -> dict[str, list[str]]:
    """The tags of tools, as far as permissions believe them: the operator's, and those of trusted servers."""
    tags: dict[str, list[str]] = {}
    for name, route in view.routes.items():
        status = snapshot.server_statuses.get(route.feature.server)
        if status is not None and (status.rules.tags or status.rules.is_trusted):
            believed = labels_of(route.own or route.feature, status.rules).believed
            tags[name] = [label.removeprefix(TAG) for label in believed if label.startswith(TAG)]
    return tags


class ToolSearch:
    """Searches views in threads: one for searches, and one in which indexes are built and changed."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._loop = asyncio.get_running_loop()
        self._indexes: OrderedDict[Key, _ViewIndex] = OrderedDict()
        self._searching = ThreadPoolExecutor(1, "tool-search")
        self._building = ThreadPoolExecutor(1, "tool-index")

    def tools(self) -> tuple[SearchTools, CallTool]:
        """The tools of views with `expose = "search"`."""
        return SearchTools(self), CallTool(self)

    def close(self) -> None:
        """Stop both threads, which finish what they do and then free the indexes."""
        self._searching.shutdown(wait=False, cancel_futures=True)
        for entry in self._indexes.values():
            self._building.submit(entry.close)
        self._indexes.clear()
        self._building.shutdown(wait=False)

    def find(
        self,
        call: Call,
        query: str,
        then: Callable[[View, list[str] | BaseException], None],
        *,
        limit: int = LIMIT,
        server: str | None = None,
        tag: str | None = None,
    ) -> None:
        """Search the tools that the caller of this call may call, and pass the names on, the best first."""
        snapshot, surface = self.hub.snapshot, msgspec.structs.replace(call.surface, expose=None)
        view = snapshot.view(call.caller.grants, call.surface, call.client_caps)
        # Clients with other capabilities mostly see the same view.
        is_varied = view is not snapshot.view(call.caller.grants, call.surface)
        key = (call.caller.grants, surface, call.client_caps if is_varied else NO_CAPABILITIES)
        entry = self._indexes.get(key)
        if entry is None:
            entry = self._indexes[key] = _ViewIndex()
        self._indexes.move_to_end(key)
        # While an index is built or changed, its searches wait in that thread, and other views' searches do not.
        is_ready = entry.view is view and entry.size == len(view.routes)
        entry.view = view
        work = partial(entry.run, view, snapshot, query, limit, server, tag)
        done = self._loop.run_in_executor(self._searching if is_ready else self._building, work)
        done.add_done_callback(partial(self._deliver, view, then))

    def _deliver(
        self,
        view: View,
        then: Callable[[View, list[str] | BaseException], None],
        done: asyncio.Future[list[str]],
    ) -> None:
        if done.cancelled():  # the hub is closing
            return
        then(view, done.exception() or done.result())
        total = sum(entry.size for entry in self._indexes.values())
        while total > INDEXED_TOOLS_MAX and len(self._indexes) > 1:
            _, oldest = self._indexes.popitem(last=False)
            total -= oldest.size
            self._building.submit(oldest.close)


# -- search_tools ------------------------------------------------------------------------------------------------------


class _Search(msgspec.Struct, frozen=True):
    """The arguments of `search_tools`; its schema has checked them."""

    query: str = ""
    server: str | None = None
    tag: str | None = None
    limit: int = LIMIT
    detail: Literal["names", "full"] = "names"


class SearchTools:
    """Finds tools by what they do."""

    def __init__(self, search: ToolSearch) -> None:
        self._search = search
        self.tool = virtual_tool(
            SEARCH_TOOLS,
            {
                "title": "Search tools",
                "description": "Find tools by what they do. Returns names with one line each; with detail = full also"
                " their input schemas. Call what you find by its name, or with call_tool.",
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "query": {
                            "type": "string",
                            "maxLength": QUERY_LENGTH_MAX,
                            "description": "What the tool should do, in a few words, such as: create github issue.",
                        },
                        "server": {"type": "string", "description": "Only tools of this server."},
                        "tag": {"type": "string", "description": "Only tools with this tag."},
                        "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT},
                        "detail": {"enum": ["names", "full"], "default": "names"},
                    },
                    "required": ["query"],
                    "additionalProperties": False,
                },
                "annotations": {"readOnlyHint": True, "openWorldHint": False},
            },
        )

    def redirect(self, call: Call) -> Call | Fault | None:
        """It answers itself."""
        return None

    def start(self, inflight: InFlight) -> None:
        """Search, and answer with what was found."""
        call = inflight.call
        wanted = msgspec.json.decode(call.arguments, type=_Search)

        def answer(view: View, found: list[str] | BaseException) -> None:
            if isinstance(found, BaseException):
                log.error("a search for tools failed", exc_info=found, **inflight.ids())
                inflight.finish(_error_result(str(found)))
                return
            # The caller may have lost a tool meanwhile.
            now = self._search.hub.snapshot.view(call.caller.grants, call.surface, call.client_caps).routes
            routes = [route for name in found if (route := now.get(name)) is not None]
            if isinstance(inflight.exchange, FindingExchange) and not inflight.is_done:
                inflight.exchange.tools_found([route.exposed for route in routes])
            inflight.finish(_search_result(wanted, routes, view))

        self._search.find(call, wanted.query, answer, limit=wanted.limit, server=wanted.server, tag=wanted.tag)

    def unknown(self, inflight: InFlight, name: str) -> None:
        """Never called: it redirects no call."""
        raise AssertionError("search_tools redirects no call")


def _search_result(wanted: _Search, routes: Sequence[Route], view: View) -> Result:
    tools: list[dict[str, Any]] = []
    size = 0
    for route in routes:
        definition = route.feature.definition
        size += sum(len(memoryview(value)) for value in definition.values())
        if wanted.detail == "full" and size <= FULL_BYTES_MAX:
            tools.append({**definition, "name": route.exposed})
        else:
            tools.append({"name": route.exposed, "description": _line(route)})
    if not routes:
        text = _why_none(wanted, view)
    elif wanted.detail == "full":
        text = msgspec.json.encode(tools).decode()
    else:
        text = "\n".join(
            f"{tool['name']}: {tool['description']}" if tool["description"] else tool["name"] for tool in tools
        )
    content = [{"type": "text", "text": text}]
    return Result(msgspec.Raw(msgspec.json.encode({"content": content, "structuredContent": {"tools": tools}})))


def _why_none(wanted: _Search, view: View) -> str:
    """Why a search finds nothing, and what to try."""
    servers = sorted({route.feature.server for route in view.routes.values()})
    named = ", ".join(servers[:SERVERS_NAMED_MAX]) + (", …" if len(servers) > SERVERS_NAMED_MAX else "")
    where = f"Servers with tools: {named or 'none'}."
    if wanted.server is not None and wanted.server not in servers:
        return f"No server {wanted.server!r} has tools here. {where}"
    of_server = "" if wanted.server is None else f" of {wanted.server}"
    if wanted.tag is not None:
        return f"No tool{of_server} with the tag {wanted.tag!r} matches. Leave the tag out, or use other words."
    return f"No tool{of_server} matches. Use other words, or fewer.{'' if of_server else f' {where}'}"


def _error_result(text: str) -> Result:
    payload = {"content": [{"type": "text", "text": text}], "isError": True}
    return Result(msgspec.Raw(msgspec.json.encode(payload)), is_error=True)


def _line(route: Route) -> str:
    """The beginning of a tool's description, else its title, on one line."""
    for member in ("description", "title"):
        try:
            text = msgspec.json.decode(route.feature.definition.get(member, b'""'), type=str)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if line := on_one_line(text, LINE_LENGTH_MAX):
            return line
    return ""


# -- call_tool ---------------------------------------------------------------------------------------------------------


class _NamedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `call_tool`."""

    name: str
    arguments: msgspec.Raw = NO_ARGUMENTS


class CallTool:
    """Calls the tool that its arguments name: the call is one of that tool in everything."""

    def __init__(self, search: ToolSearch) -> None:
        self._search = search
        self.tool = virtual_tool(
            CALL_TOOL,
            {
                "title": "Call tool",
                "description": "Call a tool that search_tools found. Its inputSchema says which arguments it takes:"
                " search_tools returns that with detail = full.",
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "description": "The name of the tool, as search_tools returns it."},
                        "arguments": {"type": "object", "description": "The arguments of the tool."},
                    },
                    "required": ["name"],
                    "additionalProperties": False,
                },
            },
        )

    def redirect(self, call: Call) -> Call | Fault | None:
        """The call of the named tool."""
        try:
            named = msgspec.json.decode(call.arguments, type=_NamedCall)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return BadArguments(call.name, f"{error}; it takes name, a string, and arguments, an object")
        arguments = named.arguments
        if bytes(memoryview(arguments)[:1]) != b"{":
            if bytes(arguments) != b"null":
                return BadArguments(call.name, "arguments must be an object")
            arguments = NO_ARGUMENTS
        if named.name == call.name:
            return BadArguments(call.name, "name must be the name of another tool")
        return msgspec.structs.replace(call, name=named.name, arguments=arguments, is_by_argument=True)

    def start(self, inflight: InFlight) -> None:
        """Never called: every call is redirected or refused."""
        raise AssertionError("call_tool answers no call itself")

    def unknown(self, inflight: InFlight, name: str) -> None:
        """End a call whose tool the caller does not see, with the names of tools that it may mean."""

        def answer(view: View, found: list[str] | BaseException) -> None:
            if isinstance(found, BaseException):
                log.error("a search for similar tools failed", exc_info=found, **inflight.ids())
                found = []
            inflight.finish(UnknownTool(name, tuple(found)))

        self._search.find(inflight.call, name, answer, limit=SUGGESTIONS_MAX)
