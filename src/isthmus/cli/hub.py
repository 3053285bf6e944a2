"""The hub that a command works against: a running one, or one started in this process for the command.

Commands reach both by the REST API: `HubClient` sends requests over HTTP to a running hub, and in memory to the REST
frontend of a `LocalHub`. Options and variables become a `RemoteSource` or a `LocalSource`; `open_hub` opens either.
`cli.documents` reads the responses.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec

from isthmus.app.audit import AuditLog, open_audit
from isthmus.app.definitions import DefinitionPins
from isthmus.app.hub import LOCAL, RunningHub
from isthmus.cli.config import configuration_of, refused
from isthmus.cli.documents import FeatureList, read_listing, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import print_error
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.background import BackgroundTasks
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.settings import HARD_SECONDS_MAX, Limits
from isthmus.frontends.http.auth import Authenticator, OriginGuard
from isthmus.frontends.http.request_cycle import PEER, Message
from isthmus.frontends.rest.http import RestHttp
from isthmus.model.calls import (
    EVERYTHING,
    Event,
    Kind,
    Progress,
    Result,
    Surface,
)
from isthmus.model.faults import FAULTS, Executed
from isthmus.model.names import ServerName
from isthmus.storage.memory import MemoryJournal
from isthmus.transport.egress import Egress, parse_url
from isthmus.transport.http import ConnectionLost, HttpClient, ResponseSink, request_head
from isthmus.upstream.python.builtin import builtin_tools
from isthmus.upstream.server_settings import HttpSettings, ServerSettings
from isthmus.wire.jsonrpc import object_members
from isthmus.wire.lines import Oversized
from isthmus.wire.mcp.calls import read_call_result, untouched_result
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListShape
from isthmus.wire.sse import SseDecoder

HUB_VARIABLE = "ISTHMUS_HUB"
KEY_VARIABLE = "ISTHMUS_KEY"
"""Keys come from the environment only: every user of a machine can read a command's arguments."""

ENDPOINT = "/mcp"

HUB = ServerName("hub")
"""The server name of a running hub where this process uses it as a server; it appears only in messages."""

COMMAND = "command"
"""The name of this hub and of its frontend in the audit log."""

NOTICE_SECONDS = 1.0
"""After this long, a person wants to know which servers the command is waiting for."""

WITHDRAWAL_SECONDS = 0.1
"""Time for a server to act on a cancellation before its link closes; many servers exit when it does."""

SILENCE_SECONDS = 60.0
"""A hub that sends nothing for this long is taken for dead. An open stream has a keep-alive every quarter of it."""

RESPONSE_BYTES_MAX = 64 * 1024 * 1024
"""Enough for the lists of many servers; a longer response is a defect."""

OK = 200
FORBIDDEN = 403
REFUSED = (401, FORBIDDEN)
EVENT_STREAM = "text/event-stream"

LISTS = {
    TOOLS.method: "/v1/tools",
    PROMPTS.method: "/v1/prompts",
    RESOURCES.method: "/v1/resources",
    TEMPLATES.method: "/v1/resources/templates",
}


# -- which hub -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """A hub that is already running."""

    reach: HttpSettings
    has_key: bool


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A hub to start in this process; without a file, the usual places are searched."""

    file: Path | None


def source_of(hub: str | None, config: Path | None) -> RemoteSource | LocalSource:
    """The hub that the options name. `--hub` and `--config` win over `ISTHMUS_HUB`, which wins over a file found here.

    Raises:
        CommandFailed: both options were given, or the address is invalid.
    """
    if hub is not None and config is not None:
        raise CommandFailed(
            Exit.USAGE,
            "--hub and --config exclude each other",
            "A running hub has its own configuration: give one of the two.",
        )
    address = hub if hub is not None or config is not None else os.environ.get(HUB_VARIABLE)
    if not address:
        return LocalSource(config)
    key = os.environ.get(KEY_VARIABLE, "")
    try:
        HttpSettings(address)  # before it is split: a malformed address is refused, not repaired
        parts = urlsplit(address)
        endpoint = parts._replace(path=ENDPOINT).geturl() if parts.path in ("", "/") else address
        reach = HttpSettings(endpoint, {"Authorization": f"Bearer {key}"} if key else {})
    except ValueError as error:
        if str(error).startswith("headers"):
            text = f"{KEY_VARIABLE} cannot be sent: a key is one line of plain text"
            advice = f"Set {KEY_VARIABLE} to the key exactly as the hub printed it."
            raise CommandFailed(Exit.CONFIGURATION, text, advice) from None
        advice = f"Write it like http://127.0.0.1:8765, after --hub or in {HUB_VARIABLE}."
        raise CommandFailed(Exit.USAGE, f"the hub's {error}", advice) from None
    return RemoteSource(reach, has_key=bool(key))


@dataclass(frozen=True, slots=True)
class HubCall:
    """A call of a tool, a prompt or a resource by name, with arguments."""

    kind: Kind
    name: str
    arguments: msgspec.Raw


@asynccontextmanager
async def open_hub(
    source: RemoteSource | LocalSource,
    *,
    wait: float,
    name: str | None = None,
    shape: ListShape = TOOLS,
    is_to_call: bool = False,
) -> AsyncIterator[HubClient]:
    """Open the hub, and close it at the end.

    With a `name`, a local hub starts only the servers that could have it. With `is_to_call`, it opens its audit log.

    Raises:
        CommandFailed: the configuration cannot be used.
    """
    if isinstance(source, RemoteSource):
        hub = HubClient(source)
    else:
        configuration = configuration_of(source.file)
        only = None if name is None else servers_for(name, configuration, shape)
        local = await start_local_hub(configuration, os.environ, within=wait, only=only, is_to_call=is_to_call)
        hub = local.client
    try:
        yield hub
    finally:
        await hub.aclose()


def servers_for(name: str, configuration: Configuration, shape: ListShape = TOOLS) -> set[ServerName] | None:
    """The servers that must start for `name`; None if any server could have it.

    A full name needs only its own server, a built-in tool needs none.
    """
    server = ServerName(name.partition(".")[0])
    if shape is TOOLS and (
        server == BUILTIN or any(name == tool.name for tool in builtin_tools(MemoryJournal(), time.time))
    ):
        return set()
    if "." in name and any(server == configured.name for configured in configuration.servers):
        return {server}
    return None


# -- failed calls ----------------------------------------------------------------------------------------------------

EXECUTED: dict[Executed, str] = {
    "no": "executed: no (the tool did not run)",
    "yes": "executed: yes (the server ran the call and answered)",
    "unknown": "executed: unknown (it may have run: check before you call it again)",
}


class CallFailure(msgspec.Struct, frozen=True):
    """Why a call has no result: the problem that the hub reported."""

    message: str
    executed: Executed
    reason: str
    server: str | None = None


class _Problem(msgspec.Struct):
    detail: str
    executed: Executed
    reason: str
    server: str | None = None


def read_failure(problem: bytes) -> CallFailure | None:
    """Read the problem+json of a hub; None if it is something else."""
    try:
        read = msgspec.json.decode(problem, type=_Problem)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return CallFailure(read.detail, read.executed, read.reason, read.server)


def command_failed(failure: CallFailure) -> CommandFailed:
    """The error to print: what happened, whether the tool ran, and what to do next."""
    row = FAULTS.get(failure.reason, FAULTS["server_error"])
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
    """One HTTP connection to a running hub. It connects with the first request."""

    def __init__(self, url: str) -> None:
        self._origin, _ = parse_url(url)
        self._background = BackgroundTasks("remote")
        self._client = HttpClient(self._origin, Egress(), self._background, is_configured=True, limit=1)

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, sink: ResponseSink
    ) -> SentRequest:
        """See `HubTransport`."""
        return self._client.send(request_head(method, target, self._origin, headers), body, sink)

    async def aclose(self) -> None:
        """See `HubTransport`."""
        await self._client.aclose()
        await self._background.aclose()


class HubClient:
    """A client of a hub's REST API. The code that opened it closes it.

    Every method raises `CommandFailed` if the hub cannot be reached. A call is a stream with progress events.
    Cancelling it disconnects, and the hub cancels the call at the server.
    """

    def __init__(self, source: RemoteSource, transport: HubTransport | None = None, *, is_needed: bool = False) -> None:
        """Without a `transport` it connects over HTTP. `is_needed`: the command cannot use a local hub instead."""
        self.url = source.reach.url
        self._source = source
        self._is_needed = is_needed
        self._base = parse_url(self.url)[1].rstrip("/").removesuffix("/mcp")
        self._transport = transport or HttpTransport(self.url)

    async def list(self, shape: ListShape) -> bytes:
        """One of the lists, with the servers that are missing from it."""
        return await self._get(LISTS[shape.method])

    async def servers(self) -> bytes:
        """The servers and their states."""
        return await self._get("/v1/servers")

    async def listing(self, shape: ListShape) -> FeatureList:
        """One of the lists, read. Operators see the last line of each missing server's standard error."""
        listing = read_listing(await self.list(shape), shape)
        if listing.absences:
            troubles = await self._troubles()
            for name, gone in listing.absences.items():
                reason = troubles.get(name, gone.reason)
                listing.absences[name] = msgspec.structs.replace(gone, reason=reason)
        return listing

    async def _troubles(self) -> dict[str, str]:
        return {server.name: server.trouble for server in read_servers(await self.servers()) if server.trouble}

    async def relay(self, what: Literal["servers", "devices"]) -> bytes:
        """The servers that dialled in, or the relay's devices."""
        return await self._get(f"/v1/relay/{what}")

    async def forget(self, server: str) -> str | None:
        """Make the hub forget a dialled-in server that is away. Returns why it did not, or None."""
        response = await self._request("DELETE", f"/v1/relay/servers/{quote(server, safe='')}")
        if isinstance(response, ConnectionLost):
            raise self._unreachable(response.reason)
        if response.status == OK:
            return None
        failure = read_failure(response.body)
        if failure is not None and response.status == FORBIDDEN:
            advice = "Make an operator's key with `isthmus token create NAME --operator` where the hub runs."
            raise CommandFailed(Exit.NOT_ALLOWED, f"the hub at {self.url}: {failure.message}", advice)
        if failure is None or response.status in REFUSED:
            raise self._rejected(response)
        return failure.message

    async def perform(self, call: HubCall, watch: Callable[[Event], None]) -> Result | CallFailure:
        """Make a call and wait for its end. Cancelling this cancels the call at the server."""
        match call.kind:
            case "tool" | "prompt":
                method, path = "POST", f"/v1/{call.kind}s/{quote(call.name, safe='')}"
            case "resource":
                if not is_unicode(call.name):
                    raise CommandFailed(Exit.USAGE, "the URI must be valid UTF-8")
                method, path = "GET", f"/v1/resources/read?{urlencode({'uri': call.name}, quote_via=quote)}"
            case _:
                raise NotImplementedError(call.kind)
        body = bytes(call.arguments) if method == "POST" else None
        response = await self._request(method, path, body, f"{EVENT_STREAM}, application/json", watch)
        if isinstance(response, ConnectionLost):
            if response.may_have_left:
                return CallFailure(f"Lost the hub during the call: {response.reason}", "unknown", "lost")
            raise self._unreachable(response.reason, EXECUTED["no"])
        if response.status == OK and response.event != "error":
            return _read_result(response.body, call.kind)
        failure = None if response.status in REFUSED else read_failure(response.body)
        if failure is None:
            raise self._rejected(response)
        if failure.reason == "not_connected" and failure.server is not None:
            server = next((each for each in read_servers(await self.servers()) if each.name == failure.server), None)
            if server is not None and server.reason and server.reason in failure.message:
                message = failure.message.replace(server.reason, server.trouble)
                failure = msgspec.structs.replace(failure, message=message)
        return failure

    async def aclose(self) -> None:
        """Close the transport; a hub that was started for the command ends."""
        await self._transport.aclose()

    async def _get(self, path: str) -> bytes:
        response = await self._request("GET", path)
        if isinstance(response, ConnectionLost):
            raise self._unreachable(response.reason)
        if response.status == OK:
            return response.body
        raise self._rejected(response)

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        accept: str = "application/json",
        watch: Callable[[Event], None] = lambda _: None,
    ) -> HubResponse | ConnectionLost:
        headers = {**self._source.reach.headers, "Accept": accept}
        if body is not None:
            headers["Content-Type"] = "application/json"
        reader = ResponseReader(watch)
        reader.await_on(self._transport.send(method, self._base + path, headers, body, reader))
        return await reader.wait()

    def _rejected(self, response: HubResponse) -> CommandFailed:
        if response.status in REFUSED:
            return not_allowed(self.url, response.status, has_key=self._source.has_key)
        failure = read_failure(response.body)
        detail = "" if failure is None else f" ({failure.message})"
        return self._unreachable(f"it responds with HTTP {response.status}{detail}")

    def _unreachable(self, why: str, *facts: str) -> CommandFailed:
        return CommandFailed(
            Exit.UNREACHABLE,
            f"cannot reach the hub at {self.url}: {why}",
            *facts,
            "Start one with `isthmus serve`, or name its address with --hub or ISTHMUS_HUB.",
            *(() if self._is_needed else ("To work without a running hub, name a configuration with --config.",)),
        )


def is_unicode(text: str) -> bool:
    """Whether a text of the command line has no bytes that are not UTF-8; Python keeps those as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


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
        advice = f"Set {KEY_VARIABLE} to the key of a caller that is configured there."
    return CommandFailed(Exit.NOT_ALLOWED, text, advice)


class HubResponse(msgspec.Struct, frozen=True):
    """A response: its body, or the data of the event that ended its stream."""

    status: int
    body: bytes
    event: str | None = None


class ResponseReader:
    """Reads one response: collects a body, or passes progress events on until the result."""

    def __init__(self, watch: Callable[[Event], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[HubResponse | ConnectionLost] = self._loop.create_future()
        self._watch = watch
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
        """See `ResponseSink`."""
        self._restart_timer()
        self._status = status
        if headers.get("content-type", "").partition(";")[0].strip().lower() == EVENT_STREAM:
            self._decoder = SseDecoder(RESPONSE_BYTES_MAX)

    def on_body(self, chunk: bytes) -> None:
        """See `ResponseSink`."""
        self._restart_timer()
        if self._decoder is not None:
            for event in self._decoder.feed(chunk):
                if isinstance(event, Oversized):
                    self._give_up(f"its response is longer than {RESPONSE_BYTES_MAX} bytes")
                elif event.event in ("result", "error"):
                    self._end(HubResponse(self._status, event.data, event.event))
                elif event.event == "progress" and (members := object_members(event.data)) is not None:
                    self._watch(Progress(members))
        elif len(self._body) + len(chunk) > RESPONSE_BYTES_MAX:
            self._give_up(f"its response is longer than {RESPONSE_BYTES_MAX} bytes")
        else:
            self._body += chunk

    def on_end(self) -> None:
        """See `ResponseSink`."""
        if self._decoder is None:
            self._end(HubResponse(self._status, bytes(self._body)))
        else:
            self._give_up("its stream ended before the result")

    def on_lost(self, lost: ConnectionLost) -> None:
        """See `ResponseSink`."""
        self._end(lost)


# -- a hub of this process -------------------------------------------------------------------------------------------

IN_MEMORY = RemoteSource(HttpSettings("http://localhost/mcp"), has_key=False)
"""The address that requests in memory carry; nothing listens there."""


class InMemoryRequest:
    """A request to a local hub: the `Peer` of the REST frontend, and a `SentRequest` of the command."""

    may_have_left = True

    def __init__(self, scope: Message, body: bytes, sink: ResponseSink) -> None:
        self.scope = scope
        self.body = body
        self.is_over = False
        self.was_aborted = False
        self._sink = sink
        self._disconnect_callbacks: list[Callable[[], None]] = []

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """See `Peer`."""
        if self.was_aborted:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._disconnect_callbacks.append(callback)

    def take_body(self) -> bytes:
        """See `Peer`."""
        return self.body

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """See `Peer`."""
        self.begin(status, lines)
        self.end(body)

    def begin(self, status: int, lines: bytes) -> None:
        """See `Peer`."""
        if not self.is_over:
            pairs = (line.partition(": ") for line in lines.decode("latin-1").splitlines())
            self._sink.on_head(status, {name: value for name, _, value in pairs})

    def push(self, chunk: bytes) -> None:
        """See `Peer`."""
        if not self.is_over:
            self._sink.on_body(chunk)

    def end(self, chunk: bytes) -> None:
        """See `Peer`."""
        self.push(chunk)
        if not self.is_over:
            self.is_over = True
            self._sink.on_end()

    def buffered_bytes(self) -> int:
        """See `Peer`."""
        return 0

    async def receive(self) -> Message:
        """Unused, as in ASGI: `take_body` has the whole body."""
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Unused, as in ASGI: the REST frontend responds by `answer` and `begin`."""
        raise NotImplementedError(message["type"])

    def abort(self) -> None:
        """See `SentRequest`."""
        if not self.is_over:
            self.is_over = self.was_aborted = True
            for callback in self._disconnect_callbacks:
                callback()

    def fail(self, _: BaseException) -> None:
        """End a request that a defect of the hub left without a response."""
        self._sink.on_lost(
            ConnectionLost("a defect of the hub ended the request; its log has the error", may_have_left=True)
        )


class LocalHub:
    """A hub that runs in this process, and the transport to its REST frontend."""

    def __init__(self, running: RunningHub, pins: DefinitionPins, audit_log: AuditLog | None = None) -> None:
        self.running = running
        self.client = HubClient(IN_MEMORY, self)
        self._pins = pins
        self._audit_log = audit_log
        # The person who may read the configuration may use all of it, as on a hub without callers.
        auth = Authenticator(OriginGuard(bind_host="localhost"), lambda _: LOCAL)
        self._rest = RestHttp(running.hub, auth, face=COMMAND)
        self._requests: list[InMemoryRequest] = []
        self.settled_at: dict[ServerName, float] = {}
        """When each server's first connection attempt ended, by the loop's clock."""
        running.hub.watch(self._note_settled)

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, sink: ResponseSink
    ) -> SentRequest:
        """See `HubTransport`."""
        path, _, query = target.partition("?")
        fields = {"host": "localhost", **headers}
        extensions: dict[str, InMemoryRequest] = {}
        scope: Message = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "query_string": query.encode("ascii"),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()],
            "extensions": extensions,
        }
        if body is not None:
            scope["headers"].append((b"content-length", b"%d" % len(body)))
        request = extensions[PEER] = InMemoryRequest(scope, body or b"", sink)
        self._requests.append(request)
        if not self._rest.take(request):
            work = self._rest.serve(scope, request.receive, request.send)
            self.running.background.spawn("request", work, on_crash=request.fail)
        return request

    async def aclose(self) -> None:
        """See `HubTransport`."""
        try:
            if any(request.was_aborted for request in self._requests):
                await asyncio.sleep(WITHDRAWAL_SECONDS)
        finally:  # a second signal cuts only the wait short
            await self.running.aclose()
            await self._pins.aclose()
            if self._audit_log is not None:
                await self._audit_log.stop()
                await self._audit_log.close()

    def _note_settled(self) -> None:
        now = asyncio.get_running_loop().time()
        server_statuses = self.running.hub.snapshot.server_statuses
        for name in self.running.supervisor.reconnectors:
            if server_statuses[name].is_settled:
                self.settled_at.setdefault(name, now)

    def print_waiting(self) -> None:
        """Tell a person at a terminal which servers the command is waiting for."""
        statuses = self.running.hub.snapshot.server_statuses.values()
        names = sorted(status.server for status in statuses if not status.is_settled)
        if names and sys.stderr.isatty():
            print_error(f"waiting for {', '.join(names)} …")


async def start_local_hub(
    configuration: Configuration,
    environment: Mapping[str, str],
    *,
    within: float,
    only: Iterable[ServerName] | None = None,
    is_to_call: bool = False,
) -> LocalHub:
    """Start a hub without state and wait for its servers, or for `only` those that are needed.

    A hub that `is_to_call` opens the audit log; listing needs none.

    Raises:
        CommandFailed: the definitions of pinned tools, or the audit log, cannot be opened.
    """
    journal = MemoryJournal()
    try:
        pins = DefinitionPins(configuration, is_lasting=False)
        audit_log = await open_audit(configuration, journal, COMMAND) if is_to_call else None
    except ConfigError as error:
        raise refused(error) from error
    needed = None if only is None else set(only)
    servers = tuple(server for server in configuration.servers if needed is None or server.name in needed)
    limits = replace(configuration.hub.limits, listing_seconds=within)
    configuration = replace(configuration, servers=servers, hub=replace(configuration.hub, limits=limits))
    audit = None if audit_log is None else audit_log.audit
    hub = LocalHub(RunningHub(configuration, environment, journal, pins=pins, audit=audit), pins, audit_log)
    notice = asyncio.get_running_loop().call_later(NOTICE_SECONDS, hub.print_waiting)
    try:
        await hub.running.hub.settle(EVERYTHING)
    except BaseException:
        await hub.aclose()
        raise
    finally:
        notice.cancel()
    return hub


REMOTE_LIMITS = Limits(call_seconds=HARD_SECONDS_MAX, hard_seconds=HARD_SECONDS_MAX, tools_per_server=100_000)
"""The running hub sets its own limits and lists the tools of all its servers; these only bound a defect."""


def running_as_server(source: RemoteSource) -> tuple[Configuration, Surface]:
    """A configuration whose only server is the running hub, for `isthmus stdio`, which survives lost connections."""
    server = ServerSettings(HUB, source.reach, timeout=REMOTE_LIMITS.call_seconds)
    hub = HubSettings(limits=REMOTE_LIMITS, audit="off")  # the running hub keeps the audit log
    return Configuration(None, hub, (server,)), Surface("own", HUB)
