"""The client of a hub's REST API, by which commands reach every hub.

`HubClient` sends requests over HTTP to a running hub, and in memory to a hub that `cli.local_hub` starts.
`cli.find_hub` opens either. `cli.documents` reads the responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from isthmus.cli.documents import FeatureList, FindingInfo, ListedFeature, read_findings, read_listing, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.core.background import BackgroundTasks
from isthmus.model.callers import KEY_VARIABLE
from isthmus.model.calls import Event, Kind, Progress, Result
from isthmus.model.fault_table import FAULTS, Executed
from isthmus.transport.egress import Egress, parse_url
from isthmus.transport.http_client import ConnectionLost, HttpClient, ResponseSink, request_head
from isthmus.wire.jsonrpc import object_members
from isthmus.wire.lines import Oversized
from isthmus.wire.mcp.forwarded_methods import read_call_result, untouched_result
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListShape
from isthmus.wire.sse import SseDecoder

T = TypeVar("T")

SILENCE_SECONDS = 60.0
"""A hub that sends nothing for this long is taken for dead. An open stream has a keep-alive every quarter of it."""

RESPONSE_BYTES_MAX = 64 * 1024 * 1024
"""Enough for the lists of many servers; a longer response is a defect."""

URL_REQUIRED = -32042
"""The error code of MCP for a call that needs a page to be opened first."""

QUESTIONS = "form,url"
"""The kinds of questions that commands answer."""

OK = 200
FORBIDDEN = 403
REFUSED = (401, FORBIDDEN)
TOO_LARGE = 413
EVENT_STREAM = "text/event-stream"

SMALLER_ADVICE = "Send less, or raise request_bytes under [limits] in the hub's configuration."
OPERATOR_ADVICE = "Make an operator's key with `isthmus token create NAME --operator` where the hub runs."

_ADVICE = {
    "unknown_approval": "`isthmus approvals list` lists the calls that wait.",
}
"""What to do, by the reason of a refusal that is no fault of a call."""

LISTS = {
    TOOLS.method: "/v1/tools?expose=all",
    PROMPTS.method: "/v1/prompts",
    RESOURCES.method: "/v1/resources",
    TEMPLATES.method: "/v1/resources/templates",
}


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """A hub that is already running."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_found: bool = False
    """Whether the command found it by itself; its key is that of the local operator."""
    set_name: str | None = None
    """The only set that the command sees."""

    @property
    def has_key(self) -> bool:
        """Whether requests carry a key."""
        return "Authorization" in self.headers


@dataclass(frozen=True, slots=True)
class HubCall:
    """A call of a tool, a prompt or a resource by name, with arguments."""

    kind: Kind
    name: str
    arguments: msgspec.Raw


# -- failed calls ----------------------------------------------------------------------------------------------------

EXECUTED: dict[Executed, str] = {
    "no": "executed: no (the tool did not run)",
    "yes": "executed: yes (the server ran the call and answered)",
    "unknown": "executed: unknown (it may have run: check before you call it again)",
}


class CallFailure(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Why a call has no result: the problem that the hub reported."""

    message: str
    executed: Executed
    reason: str
    server: str | None = None
    error: msgspec.Raw | None = None
    """The server's own error: `code`, `message` and perhaps `data`."""
    retry_after: float | None = None
    """Seconds after which another try may succeed."""

    def pages(self) -> list[str]:
        """The pages that the server wants opened before it can be called (MCP, URL elicitation required)."""
        try:
            read = msgspec.json.decode(self.error or b"{}", type=_PagesRequired)
        except msgspec.MsgspecError:
            return []
        return [elicitation.url for elicitation in read.data.elicitations] if read.code == URL_REQUIRED else []


class _PageToOpen(msgspec.Struct):
    url: str


class _Pages(msgspec.Struct):
    elicitations: list[_PageToOpen] = []


class _PagesRequired(msgspec.Struct):
    code: int = 0
    data: _Pages = msgspec.field(default_factory=_Pages)


class _Problem(msgspec.Struct, rename="camel"):
    detail: str
    executed: Executed
    reason: str
    server: str | None = None
    error: msgspec.Raw = msgspec.Raw()
    retry_after: float | None = None


def read_failure(problem: bytes) -> CallFailure | None:
    """Read the problem+json of a hub; None if it is something else."""
    try:
        read = msgspec.json.decode(problem, type=_Problem)
    except (msgspec.MsgspecError, RecursionError):
        return None
    error = read.error.copy() if read.error else None
    return CallFailure(read.detail, read.executed, read.reason, read.server, error, read.retry_after)


def command_failed(failure: CallFailure) -> CommandFailed:
    """The error to print: what happened, whether the tool ran, and what to do next."""
    row = FAULTS.get(failure.reason, FAULTS["server_error"])
    if pages := failure.pages():
        opened = [f"Open {page}" for page in pages]
        return CommandFailed(Exit(row.exit), failure.message, *opened, "Then call it again.")
    return CommandFailed(Exit(row.exit), failure.message, EXECUTED[failure.executed], row.advice)


# -- the REST client ---------------------------------------------------------------------------------------------------


class SentRequest(Protocol):
    """A request whose response a `ResponseReader` waits for."""

    @property
    def may_have_left(self) -> bool:
        """False while the hub has provably not received all of it."""

    def abort(self) -> None:
        """Disconnect; ignored after the end of the response."""


class HubTransport(Protocol):
    """Carries REST requests to a hub."""

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, sink: ResponseSink
    ) -> SentRequest:
        """Send a request; `sink` receives its response."""

    async def aclose(self) -> None:
        """Close every connection in good order."""


class HttpTransport:
    """HTTP to a running hub: one connection, and a second for the answer to a question. It connects when needed."""

    def __init__(self, url: str) -> None:
        self._origin, _ = parse_url(url)
        self._background = BackgroundTasks("remote")
        self._client = HttpClient(self._origin, Egress(), self._background, is_configured=True, limit=2)

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, sink: ResponseSink
    ) -> SentRequest:
        """Send a request; `sink` receives its response."""
        return self._client.send(request_head(method, target, self._origin, headers), body, sink)

    async def aclose(self) -> None:
        """Close every connection in good order."""
        await self._client.aclose()
        await self._background.aclose()


class HubClient:
    """A client of a hub's REST API. The code that opened it closes it.

    Every method raises `CommandFailed` if the hub cannot be reached. A call is a stream with progress events.
    Cancelling it disconnects, and the hub cancels the call at the server.
    """

    def __init__(self, source: RemoteSource, transport: HubTransport | None = None, *, is_needed: bool = False) -> None:
        """Without a `transport` it connects over HTTP. `is_needed`: the command cannot use a local hub instead."""
        self.url = source.url
        self._source = source
        self._is_needed = is_needed
        self._base = parse_url(self.url)[1].rstrip("/").removesuffix("/mcp")
        self._transport = transport or HttpTransport(self.url)
        self.set_name: str | None = None
        """The only set whose tools, prompts and resources are listed and called; None for all."""

    async def list(self, shape: ListShape) -> bytes:
        """One of the lists, with the servers that are missing from it."""
        return await self._get(self._in_set(LISTS[shape.method]))

    async def servers(self) -> bytes:
        """The servers and their states."""
        return await self._get("/v1/servers")

    async def listing(self, shape: ListShape) -> FeatureList:
        """One of the lists, read. Operators see the last line of each missing server's standard error."""
        listing = read_listing(await self.list(shape), shape)
        if listing.missing:
            troubles = {server.name: server.trouble for server in read_servers(await self.servers())}
            for name, gone in listing.missing.items():
                reason = troubles.get(name) or gone.reason
                listing.missing[name] = msgspec.structs.replace(gone, reason=reason)
        return listing

    async def find_tool(self, name: str) -> ListedFeature | None:
        """The tool with exactly this name; None if it is not listed."""
        response = await self._request("GET", self._in_set(f"/v1/tools/{quote(name, safe='', errors='replace')}"))
        members = object_members(response.body) if response.status == OK else None
        if members is not None:
            return ListedFeature(name, name.partition(".")[0], members)
        if response.status in REFUSED:
            raise self._rejected(response)
        return None

    async def tool(self, name: str) -> bytes:
        """One tool, as its server describes it."""
        return await self._get(f"/v1/tools/{_path_part(name)}")

    async def log(self, server: str, after: int = 0) -> bytes:
        """The last lines of a server; for operators."""
        return await self._operate("GET", f"/v1/logs/{_path_part(server)}?after={after}")

    async def restart(self, server: str) -> bytes:
        """Start a server anew; for operators."""
        return await self._operate("POST", f"/v1/restart/{_path_part(server)}")

    async def stats(self) -> bytes:
        """How often each server was called, how long that took and how it ended; for operators."""
        return await self._operate("GET", "/v1/stats")

    async def approvals(self, state: str, cursor: str) -> bytes:
        """A page of calls that wait for a person; of all callers for operators."""
        given = {"state": state, "cursor": cursor, "limit": "100"}
        query = urlencode({name: value for name, value in given.items() if value})
        return await self._operate("GET", f"/v1/approvals?{query}")

    async def approval(self, id: str) -> bytes:
        """One of them."""
        return await self._operate("GET", f"/v1/approvals/{_path_part(id)}")

    async def decide(self, id: str, what: str, body: bytes) -> bytes:
        """Allow or deny a call that waits; for operators."""
        return await self._operate("POST", f"/v1/approvals/{what}/{_path_part(id)}", body)

    async def budgets(self, cursor: str) -> bytes:
        """Budgets, and a page of what was used of them; of all callers for operators."""
        query = urlencode({"limit": "500", **({"cursor": cursor} if cursor else {})})
        return await self._operate("GET", f"/v1/budgets?{query}")

    async def cluster(self) -> bytes:
        """The nodes of the hub's cluster; for operators."""
        return await self._operate("GET", "/v1/cluster")

    async def findings(self) -> Sequence[FindingInfo]:
        """The problems of the hub's configuration; none if this caller is no operator."""
        response = await self._request("GET", "/v1/configuration")
        return read_findings(response.body) if response.status == OK else []

    async def _operate(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Raises `CommandFailed` with the hub's own words if it refuses."""
        response = await self._request(method, path, body)
        if response.status == OK:
            return response.body
        failure = self._refusal(response)
        row = FAULTS.get(failure.reason)
        advice = _ADVICE.get(failure.reason) if row is None else row.advice
        raise CommandFailed(Exit.CALL_FAILED, failure.message, *([] if advice is None else [advice]))

    def _refusal(self, response: HubResponse) -> CallFailure:
        """Why the hub did not do it. Raises `CommandFailed` if the caller is no operator."""
        failure = read_failure(response.body)
        if failure is not None and response.status == FORBIDDEN:
            raise CommandFailed(Exit.NOT_ALLOWED, f"the hub at {self.url}: {failure.message}", OPERATOR_ADVICE)
        if failure is None or response.status in REFUSED:
            raise self._rejected(response)
        return failure

    async def relay(self, what: Literal["servers", "devices"]) -> bytes:
        """The servers that dialled in, or the relay's devices."""
        return await self._get(f"/v1/relay/{what}")

    async def forget(self, server: str) -> str | None:
        """Make the hub forget a dial-in server that is away. Returns the reason if it refused, else None."""
        response = await self._request("DELETE", f"/v1/relay/servers/{quote(server, safe='')}")
        return None if response.status == OK else self._refusal(response).message

    async def perform(
        self, call: HubCall, watch: Callable[[Event | HubQuestion | CallHeld], None], answer: Answerer | None = None
    ) -> Result | CallFailure:
        """Make a call and wait for its end. Cancelling this cancels the call at the server.

        With `answer` the server may ask questions; without it, `watch` receives the questions that the hub declined.
        """
        match call.kind:
            case "tool" | "prompt":
                method, path = "POST", f"/v1/{call.kind}s/{quote(call.name, safe='')}"
            case "resource":
                if any("\ud800" <= character <= "\udfff" for character in call.name):  # bytes that are not UTF-8
                    raise CommandFailed(Exit.USAGE, "the URI must be valid UTF-8")
                method, path = "GET", f"/v1/resources/read?{urlencode({'uri': call.name}, quote_via=quote)}"
            case _:
                raise NotImplementedError(call.kind)
        path = self._in_set(path)
        if answer is not None:
            path += f"{'&' if '?' in path else '?'}questions={QUESTIONS}"
        body = bytes(call.arguments) if method == "POST" else None
        answering = Answering(self._post_answer, answer, watch)
        try:
            response = await self._send(
                method, path, body, f"{EVENT_STREAM}, application/json", watch, answering.on_question
            )
        finally:
            await answering.aclose()
        if isinstance(response, ConnectionLost):
            if response.may_have_left:
                return CallFailure(f"Lost the hub during the call: {response.reason}", "unknown", "lost")
            raise self._unreachable(response.reason, EXECUTED["no"])
        if response.status == OK and response.event != "error":
            return _read_result(response.body, call.kind)
        failure = read_failure(response.body)
        # A call may end in a fault with the status of a rejected key, such as one that an operator denied.
        if failure is None or (response.status in REFUSED and failure.reason not in FAULTS):
            raise self._rejected(response)
        if failure.reason == "not_connected" and failure.server is not None:
            server = next(
                (server for server in read_servers(await self.servers()) if server.name == failure.server), None
            )
            if server is not None and server.reason and server.reason in failure.message:
                message = failure.message.replace(server.reason, server.trouble)
                failure = msgspec.structs.replace(failure, message=message)
        return failure

    def _in_set(self, path: str) -> str:
        if self.set_name is None:
            return path
        return f"{path}{'&' if '?' in path else '?'}set={quote(self.set_name, safe='', errors='replace')}"

    async def _post_answer(self, id: str, answer: Mapping[str, object]) -> None:
        # An answer that comes too late is no failure: the call's own end says what became of it.
        await self._send("POST", f"/v1/questions/{quote(id, safe='')}", msgspec.json.encode(answer))

    async def aclose(self) -> None:
        """Close the transport; a hub that was started for the command ends."""
        await self._transport.aclose()

    async def _get(self, path: str) -> bytes:
        response = await self._request("GET", path)
        if response.status == OK:
            return response.body
        raise self._rejected(response)

    async def _request(self, method: str, path: str, body: bytes | None = None) -> HubResponse:
        """Send a request. Raises `CommandFailed` if the hub cannot be reached."""
        response = await self._send(method, path, body)
        if isinstance(response, ConnectionLost):
            raise self._unreachable(response.reason)
        return response

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        accept: str = "application/json",
        watch: Callable[[Event | CallHeld], None] = lambda _: None,
        on_question: OnQuestion = lambda _name, _question: None,
    ) -> HubResponse | ConnectionLost:
        headers = {**self._source.headers, "Accept": accept}
        if body is not None:
            headers["Content-Type"] = "application/json"
        reader = ResponseReader(watch, on_question)
        reader.await_on(self._transport.send(method, self._base + path, headers, body, reader))
        return await reader.wait()

    def _rejected(self, response: HubResponse) -> CommandFailed:
        if response.status in REFUSED:
            return not_allowed(self.url, response.status, has_key=self._source.has_key)
        failure = read_failure(response.body)
        if failure is not None and failure.reason == "unknown_set":
            if self.set_name is None:
                advice = (
                    "The hub's operator can correct `set` in its entry under [callers] or [issuers], or add the set."
                )
                return CommandFailed(Exit.NOT_ALLOWED, f"the hub at {self.url}: {failure.message}", advice)
            advice = (
                "Sets are in [sets] of the hub's configuration. One without anything that you may use looks unknown."
            )
            return CommandFailed(Exit.USAGE, f"there is no set {self.set_name!r}", advice)
        if response.status == TOO_LARGE:
            text = f"the hub at {self.url} refused the request: it is too large"
            return CommandFailed(Exit.CALL_FAILED, text, EXECUTED["no"], SMALLER_ADVICE)
        detail = "" if failure is None else f" ({failure.message})"
        return self._unreachable(f"it responds with HTTP {response.status}{detail}")

    def _unreachable(self, why: str, *facts: str) -> CommandFailed:
        if self._source.is_found:
            private = "" if self._is_needed else ", or add --private to start one for this command"
            advice = [f"It may be stopping: try again{private}."]
        else:
            advice = ["Start one with `isthmus serve`, or name its address with --hub or ISTHMUS_HUB."]
            if not self._is_needed:
                advice.append("To work without a running hub, name a configuration with --config.")
        return CommandFailed(Exit.UNREACHABLE, f"cannot reach the hub at {self.url}: {why}", *facts, *advice)


async def unless_away(document: Awaitable[T]) -> tuple[T | None, str | None]:
    """A document of the hub, or why the hub cannot be reached, for commands that refresh their output.

    Raises:
        CommandFailed: the hub refused.
    """
    try:
        return await document, None
    except CommandFailed as failed:
        if failed.exit is not Exit.UNREACHABLE:
            raise
        return None, failed.message


def _path_part(name: str) -> str:
    """A name of the command line, which need not be UTF-8, as the end of a path."""
    return quote(name, safe="", errors="surrogateescape")


def _read_result(body: bytes, kind: Kind) -> Result | CallFailure:
    invalid = CallFailure("The hub sent an invalid response", "unknown", "bad_reply")
    if kind == "tool":
        try:
            msgspec.json.decode(body, type=msgspec.Raw)  # its form only: a number may be too large for Python
        except msgspec.MsgspecError:
            return invalid
        return untouched_result(body)
    result = read_call_result(body)
    return invalid if result is None else Result(msgspec.Raw(body), is_error=result.is_error)


def not_allowed(url: str, status: int, *, has_key: bool) -> CommandFailed:
    """The error for a hub that rejects the key, or requires one."""
    if has_key:
        text = f"the hub at {url} rejected the key (HTTP {status})"
        advice = f"The hub does not know the key in {KEY_VARIABLE}: ask its operator for another."
    else:
        text = f"the hub at {url} {'requires a key' if status != FORBIDDEN else 'refused access'} (HTTP {status})"
        advice = (
            f"Set {KEY_VARIABLE} to a key of that hub. On its machine, `isthmus token create NAME --allow '*'`"
            " makes one, and commands without --hub need none."
        )
    return CommandFailed(Exit.NOT_ALLOWED, text, advice)


class HubResponse(msgspec.Struct, frozen=True):
    """A response: its body, or the data of the event that ended its stream."""

    status: int
    body: bytes
    event: str | None = None


class HubQuestion(msgspec.Struct, frozen=True):
    """A question of a server during a call. Without an id, the hub has declined it."""

    id: str | None = None
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")

    def read_params(self) -> dict[str, Any]:
        """Its parameters in the form of MCP: `message` and `requestedSchema`, or `mode` and `url`."""
        read = msgspec.json.decode(self.params)
        return read if isinstance(read, dict) else {}


class CallHeld(msgspec.Struct, frozen=True):
    """The call waits for a person's approval."""

    approval: str
    message: str


Answerer: TypeAlias = Callable[[HubQuestion], Awaitable[Mapping[str, object]]]
OnQuestion: TypeAlias = Callable[[str, HubQuestion], None]
"""Receives an event's name, `question` or `retracted`, and its question."""


class Answering:
    """The open questions of one call, each until it is answered, retracted, or the call ends."""

    def __init__(
        self,
        post: Callable[[str, Mapping[str, object]], Awaitable[None]],
        answer: Answerer | None,
        watch: Callable[[HubQuestion], None],
    ) -> None:
        self._post = post
        self._answer = answer
        self._watch = watch
        self._background = BackgroundTasks("questions")
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def on_question(self, event: str, question: HubQuestion) -> None:
        """Answer a question in the background, or stop answering a retracted one."""
        id = question.id
        if event == "retracted":
            if id in self._tasks:
                self._tasks.pop(id).cancel()
        elif id is None or self._answer is None:
            self._watch(question)
        else:
            self._tasks[id] = self._background.spawn("question", self._reply(id, question, self._answer))

    async def _reply(self, id: str, question: HubQuestion, answer: Answerer) -> None:
        await self._post(id, await answer(question))

    async def aclose(self) -> None:
        """End the questions that are still open."""
        await self._background.aclose()


class ResponseReader:
    """Reads one response: collects a body, or passes events on until the result."""

    def __init__(
        self,
        watch: Callable[[Event | CallHeld], None],
        on_question: OnQuestion = lambda _name, _question: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[HubResponse | ConnectionLost] = self._loop.create_future()
        self._watch = watch
        self._on_question = on_question
        self._request: SentRequest | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._status = 0
        self._body = bytearray()
        self._decoder: SseDecoder | None = None

    def await_on(self, request: SentRequest) -> None:
        """Start the timer for a request that was just sent."""
        self._request = request
        self._restart_timer()

    async def wait(self) -> HubResponse | ConnectionLost:
        """Wait for the response; cancelling this closes the connection."""
        try:
            return await self._done
        finally:
            if self._silence is not None:
                self._silence.cancel()
            if self._request is not None:
                self._request.abort()

    def _restart_timer(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        why = f"it sent nothing for {SILENCE_SECONDS:g} s"
        self._silence = self._loop.call_later(SILENCE_SECONDS, self._give_up, why)

    def _give_up(self, why: str) -> None:
        # A hub of this process may respond before `send` returns.
        self._end(ConnectionLost(why, self._request is None or self._request.may_have_left))

    def _end(self, response: HubResponse | ConnectionLost) -> None:
        if not self._done.done():
            self._done.set_result(response)

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """The final status, never 1xx; header names in lower case, repeated ones joined by a comma."""
        self._restart_timer()
        self._status = status
        if headers.get("content-type", "").partition(";")[0].strip().lower() == EVENT_STREAM:
            self._decoder = SseDecoder(RESPONSE_BYTES_MAX)

    def on_body(self, chunk: bytes) -> None:
        """The next bytes of the body, without the framing of chunks."""
        self._restart_timer()
        if self._decoder is not None:
            for event in self._decoder.feed(chunk):
                if isinstance(event, Oversized):
                    self._give_up(f"its response is longer than {RESPONSE_BYTES_MAX} bytes")
                elif event.event in ("result", "error"):
                    self._end(HubResponse(self._status, event.data, event.event))
                elif event.event == "progress" and (members := object_members(event.data)) is not None:
                    self._watch(Progress(members))
                elif event.event == "held":
                    with suppress(msgspec.MsgspecError):
                        self._watch(msgspec.json.decode(event.data, type=CallHeld))
                elif event.event in ("question", "retracted"):
                    with suppress(msgspec.MsgspecError):  # a later version may send others
                        self._on_question(event.event, msgspec.json.decode(event.data, type=HubQuestion))
        elif len(self._body) + len(chunk) > RESPONSE_BYTES_MAX:
            self._give_up(f"its response is longer than {RESPONSE_BYTES_MAX} bytes")
        else:
            self._body += chunk

    def on_end(self) -> None:
        """The reply is complete."""
        if self._decoder is None:
            self._end(HubResponse(self._status, bytes(self._body)))
        else:
            self._give_up("its stream ended before the result")

    def on_lost(self, lost: ConnectionLost) -> None:
        """There will be no complete reply."""
        self._end(lost)
