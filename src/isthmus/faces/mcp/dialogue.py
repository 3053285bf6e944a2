"""What the hub says to MCP callers, whatever carries it: both eras, no sockets, no sessions.

The HTTP and stdio carriers read a message, ask here what to do, and deliver the answer.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.snapshot import View
from isthmus.faces.mcp.faults import code_of, error_reply
from isthmus.model.callers import Caller
from isthmus.model.calls import Call, Surface
from isthmus.model.events import Event
from isthmus.model.faults import Cancelled, Fault
from isthmus.model.outcomes import Outcome, Result
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, Request
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.tools import (
    PROGRESS,
    PROGRESS_TOKEN,
    CallRequest,
    Implementation,
    Members,
    progress_params,
    read_call,
    tool_array,
    tool_definition,
)

Era: TypeAlias = Literal["legacy", "modern"]

VERSIONS = (*modern.VERSIONS, *reversed(legacy.VERSIONS))
"""Every version spoken here, newest first."""

MISSING_KEY = "isthmus/missing"
"""Where a listing says in `_meta` which servers it lacks, and why."""


class Answer(msgspec.Struct, frozen=True):
    """A finished JSON-RPC message; `code` is its error code, or None for a result."""

    body: bytes
    code: int | None = None


def refuse(id: Payload | None, code: int, message: str, data: Payload | None = None) -> Answer:
    """An error as an answer."""
    return Answer(jsonrpc.error(id, code, message, data), code)


class Dialogue:
    """Answers what callers ask of the hub itself, and makes calls of what they ask of servers."""

    def __init__(self, hub: Hub, me: Implementation, instructions: str | None = None) -> None:
        self.hub = hub
        self._me = me
        self._instructions = instructions

    def era_of(self, request: Request, version_header: str | None) -> Era:
        """The era that a request speaks."""
        return "modern" if modern.is_modern(request, version_header, legacy.VERSIONS) else "legacy"

    def check(self, request: Request, claims: modern.Claims | None) -> Members | Answer:
        """Check a modern request's envelope, and over HTTP its headers; returns the members of its `_meta`."""
        checked = modern.check(request, claims, VERSIONS)
        if isinstance(checked, modern.Rejection):
            return refuse(request.id, checked.code, checked.message, checked.data)
        return checked

    async def answer(self, request: Request, caller: Caller, surface: Surface, era: Era) -> Answer:
        """Answer everything that is not a call and not a stream."""
        match (request.method, era):
            case ("initialize", "legacy"):
                return self._initialize(request)
            case ("ping", "legacy"):
                return Answer(jsonrpc.result(request.id, b"{}"))
            case ("server/discover", "modern"):
                result = modern.discover_result(VERSIONS, self._me, self._instructions)
                return Answer(jsonrpc.result(request.id, result))
            case ("tools/list", _):
                return await self._list(request, caller, surface, era)
            case _:
                text = f"Method not found: {request.method}"
                return refuse(request.id, jsonrpc.METHOD_NOT_FOUND, text)

    def _initialize(self, request: Request) -> Answer:
        requested = legacy.requested_version(request.params)
        if requested is None:
            return refuse(request.id, jsonrpc.INVALID_PARAMS, "initialize needs a protocolVersion, a string")
        result = legacy.initialize_result(legacy.negotiate(requested), self._me, self._instructions)
        return Answer(jsonrpc.result(request.id, result))

    # -- listing ---------------------------------------------------------------------------------------------------

    async def _list(self, request: Request, caller: Caller, surface: Surface, era: Era) -> Answer:
        if bytes(request.params.get("cursor", b"null")) != b"null":
            # The whole list is one page, so no cursor of ours is out there.
            return refuse(request.id, jsonrpc.INVALID_PARAMS, "Invalid cursor: the list has one page")
        view = await self.hub.view(caller.grants, surface)
        return Answer(jsonrpc.result(request.id, list_bytes(view, era)))

    # -- calling ---------------------------------------------------------------------------------------------------

    def read_call(
        self, request: Request, caller: Caller, surface: Surface, meta: Members | None
    ) -> tuple[Call, msgspec.Raw | None] | Answer:
        """Make a call of a `tools/call`, with the caller's own token for progress."""
        asked = read_call(request.params, meta)
        if isinstance(asked, str):
            return refuse(request.id, jsonrpc.INVALID_PARAMS, asked)
        token = asked.meta.get(PROGRESS_TOKEN)
        call = Call(
            caller=caller,
            surface=surface,
            name=asked.name,
            arguments=asked.arguments,
            meta=_passed_on(asked),
            extra=asked.extra,
            wants_progress=token is not None,
        )
        return call, token


_HOP_KEYS = frozenset(key.casefold() for key in (*modern.OWN_KEYS, PROGRESS_TOKEN))
"""Members of `_meta` that are written anew towards the server. In no spelling may the caller's own stand beside
them: to a server that ignores case, `ProgressToken` would name the progress of somebody else's call."""


def _passed_on(asked: CallRequest) -> dict[str, msgspec.Raw]:
    if asked.meta.keys() <= modern.OWN_KEYS:
        return {}
    return {key: value for key, value in asked.meta.items() if key.casefold() not in _HOP_KEYS}


def list_bytes(view: View, era: Era) -> bytes:
    """The result of `tools/list`, rendered once per view and era."""
    rendered = view.memo.get(era)
    if rendered is None:
        tools = tool_array(tool_definition(route.exposed, route.tool.definition) for route in view.routes.values())
        write = modern.list_result if era == "modern" else legacy.list_result
        rendered = view.memo[era] = write(tools, _missing(view))
    return rendered


def _missing(view: View) -> bytes | None:
    if not view.missing:
        return None
    told = {
        server: {"state": missing.state, "reason": missing.reason, "listed": missing.is_listed}
        for server, missing in view.missing.items()
    }
    return msgspec.json.encode({MISSING_KEY: told})


def withdrawn(id: Payload) -> Answer:
    """The answer to a call that its caller withdrew before it was started."""
    return answer_call(id, Cancelled("by the caller", executed="no"), "legacy")


def answer_call(id: Payload, outcome: Outcome, era: Era) -> Answer:
    """How a call ended, in the caller's era."""
    if isinstance(outcome, Fault):
        return Answer(error_reply(id, outcome), code_of(outcome))
    return Answer(jsonrpc.result(id, _in_era(outcome, era)))


def _in_era(result: Result, era: Era) -> Payload:
    if result.is_typed == (era == "modern"):
        return result.payload
    translate = modern.as_modern if era == "modern" else modern.as_legacy
    # Only an object was accepted as a result, so there is always something to translate.
    return translate(result.payload) or result.payload


def event_notification(event: Event, token: Payload) -> bytes:
    """An event of a call as the caller hears it, under the caller's own token."""
    return jsonrpc.notification(PROGRESS, progress_params(token, event.members))
