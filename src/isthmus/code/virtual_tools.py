"""`run_code` and `tool_signatures`: the tools of the hub that callers with `expose = "code"` see; see `VirtualTool`."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Raw

from isthmus.code.scripts import ApprovalNotice, RunningScript, Scripts, ScriptTask, all_tools, request_of
from isthmus.core.calls.running_call import HeldCall, InFlight
from isthmus.core.calls.search_tools import virtual_tool
from isthmus.core.catalog.view import View
from isthmus.model.calls import Call, Event, OnReply, Outcome, Question, Result
from isthmus.model.fault_table import BadArguments, Bug, Fault, UnknownTool

RUN_CODE = "run_code"
TOOL_SIGNATURES = "tool_signatures"

NAMES_MAX = 100

ABOUT = (
    "Run a Python script that calls tools. Every tool is an async function with keyword arguments: "
    "`issues = await github_list_issues(repo='a/b')`. tool_signatures has their signatures; search_tools finds them. "
    "asyncio.gather runs calls side by side. A failed call raises RuntimeError, whose text says the reason and whether "
    "the tool ran (executed: no, yes or unknown). The result is the value of the last expression, and what the script "
    "prints. Types are checked before anything runs. There are no files, no network, no environment and no packages; "
    "asyncio, json, re, math, datetime and the usual built-ins are there. Classes cannot be derived from others."
)


class _RunCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `run_code`."""

    code: str
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None


class _ToolSignatures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `tool_signatures`."""

    names: Annotated[list[str], msgspec.Meta(max_length=NAMES_MAX)] = []


class RunCode:
    """Runs a script; each call in it is a call of its caller."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self.tool = virtual_tool(
            RUN_CODE,
            {
                "title": "Run code",
                "description": ABOUT,
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "code": {"type": "string", "description": "The script."},
                        "timeout": {
                            "type": "number",
                            "exclusiveMinimum": 0,
                            "description": "Seconds for the whole script.",
                        },
                    },
                    "required": ["code"],
                    "additionalProperties": False,
                },
            },
        )

    def redirect(self, call: Call) -> Call | Fault | None:
        """See `VirtualTool`."""
        return None

    def start(self, inflight: InFlight) -> None:
        """See `VirtualTool`."""
        given = _read_script(inflight.call)
        if isinstance(given, Fault):
            inflight.finish(given)
            return
        link = _ScriptLink()
        inflight.link = link
        request = request_of(inflight.call, given.code, given.timeout)
        link.script = self._scripts.start(request, _InFlightExchange(inflight, link))

    def task_work(self, call: Call) -> ScriptTask | Fault:
        """The script as the work of a task, which continues after a crash; see `frontends.mcp.hub_tasks`."""
        given = _read_script(call)
        return given if isinstance(given, Fault) else self._scripts.task(call, given.code, given.timeout)

    def unknown(self, inflight: InFlight, name: str) -> None:
        """See `VirtualTool`; calls are not redirected."""
        inflight.finish(UnknownTool(name))


def _read_script(call: Call) -> _RunCode | BadArguments:
    try:
        return msgspec.json.decode(call.arguments, type=_RunCode)
    except msgspec.MsgspecError as error:
        return BadArguments(RUN_CODE, str(error))


class _ScriptLink:
    """Lets the caller of `run_code` cancel its script; see `core.ports.Link`."""

    script: RunningScript | None = None

    def send(self, inflight: InFlight) -> None:
        """The script has started already."""

    def may_have_run(self, inflight: InFlight) -> bool:
        """Whether a call of the script may have run."""
        return self.script is not None and self.script.may_have_run

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """End the script and its calls."""
        if self.script is not None:
            self.script.cancel(reason)


class _InFlightExchange:
    """What a script reports goes to the caller of `run_code`; see `Exchange` and `HoldableExchange`."""

    __slots__ = ("_inflight", "_is_late", "_link")

    def __init__(self, inflight: InFlight, link: _ScriptLink) -> None:
        self._inflight = inflight
        self._link = link
        self._is_late = False

    def emit(self, event: Event) -> None:
        """See `Exchange`."""
        self._inflight.emit(event)

    def ask(self, question: Question, reply: OnReply) -> None:
        """See `Exchange`."""
        self._inflight.ask(question, reply)

    def held(self, notice: Question) -> None:
        """A call of the script waits for approval: at its deadline, the call of `run_code` says so."""
        self._inflight.carriage = HeldCall(None, partial(self._end_late, notice))

    def released(self) -> None:
        """See `HoldableExchange`."""
        self._inflight.carriage = None

    def _end_late(self, notice: Question) -> Fault:
        assert self._link.script is not None, "it has made a call"
        self._is_late = True
        return self._link.script.expire_held(msgspec.json.decode(notice.params, type=ApprovalNotice))

    def end(self, outcome: Outcome) -> None:
        """See `Exchange`."""
        if not self._inflight.is_done and not self._is_late:
            self._inflight.finish(outcome)


class ToolSignatures:
    """Writes the Python signatures of the tools that its caller may call."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self.tool = virtual_tool(
            TOOL_SIGNATURES,
            {
                "title": "Tool signatures",
                "description": "The Python signatures of tools, for scripts of run_code: all tools that you may call, "
                f"or those that you name. At most {NAMES_MAX} at once.",
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "names": {
                            "type": "array",
                            "items": {"type": "string"},
                            "maxItems": NAMES_MAX,
                            "description": "Names of tools, as search_tools returns them or as scripts call them.",
                        },
                    },
                    "additionalProperties": False,
                },
                "annotations": {"readOnlyHint": True},
            },
        )

    def redirect(self, call: Call) -> Call | Fault | None:
        """See `VirtualTool`."""
        return None

    def start(self, inflight: InFlight) -> None:
        """See `VirtualTool`."""
        call = inflight.call
        try:
            given = msgspec.json.decode(call.arguments, type=_ToolSignatures)
        except msgspec.MsgspecError as error:
            inflight.finish(BadArguments(TOOL_SIGNATURES, str(error)))
            return
        view = self._scripts.hub.snapshot.view(call.caller.grants, all_tools(call.surface), call.client_caps)

        def on_crash(_: BaseException) -> None:
            inflight.finish(Bug(secrets.token_hex(6)))

        answer = self._answer(inflight, view, given.names)
        self._scripts.background.spawn(TOOL_SIGNATURES, answer, on_crash=on_crash)

    async def _answer(self, inflight: InFlight, view: View, names: list[str]) -> None:
        text = await self._scripts.signatures(view, names)
        content = {"content": [{"type": "text", "text": text}], "isError": False}
        if not inflight.is_done:
            inflight.finish(Result(Raw(msgspec.json.encode(content)), is_untyped=True))

    def unknown(self, inflight: InFlight, name: str) -> None:
        """See `VirtualTool`; calls are not redirected."""
        inflight.finish(UnknownTool(name))
