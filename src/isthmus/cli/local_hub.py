"""A hub that a command starts in this process, without a port: the same REST frontend, reached in memory.

`cli.find_hub` opens it where no running hub is used; `access` and `doctor` also look inside.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

from isthmus.app.audit import AuditLog, open_audit
from isthmus.app.definition_pins import DefinitionPins
from isthmus.app.hub import LOCAL, RunningHub
from isthmus.app.state_folder import make_folder
from isthmus.cli.config import configuration_of
from isthmus.cli.exits import refused
from isthmus.cli.output import print_error
from isthmus.cli.rest_client import QUESTIONS, HubClient, RemoteSource, SentRequest
from isthmus.cli.run_command import quiet_logs
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.settings import HARD_SECONDS_MAX, MIB, Limits
from isthmus.frontends.http.auth import Authenticator, OriginGuard
from isthmus.frontends.http.request_cycle import PEER, Message
from isthmus.frontends.rest.http import RestHttp
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.names import ServerName
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.server_lists import ServerListFiles
from isthmus.transport.http_client import ConnectionLost, ResponseSink
from isthmus.upstream.python.builtin import builtin_tools
from isthmus.upstream.server_settings import HttpSettings, ServerSettings
from isthmus.wire.jsonrpc import Text, joined
from isthmus.wire.mcp.lists import TOOLS, ListShape

HUB = ServerName("hub")
"""The server name of a running hub where this process uses it as a server; it appears only in messages."""

COMMAND = "command"
"""The name of this hub and of its frontend in the audit log."""

ASKABLE = frozenset(["elicitation", *(f"elicitation.{mode}" for mode in QUESTIONS.split(","))])
"""What a command that answers questions declares to servers, as the REST frontend reads it."""

NO_WAIT_SECONDS = 0.001
"""The wait for `--wait 0`, since a limit must be positive."""

NOTICE_SECONDS = 1.0
"""After this long, a person wants to know which servers the command is waiting for."""

NO_CONFIGURATION = (
    "No configuration found, so there are only the built-in tools. `isthmus add NAME -- COMMAND` adds a server here; "
    "--config FILE names a configuration elsewhere."
)

WITHDRAWAL_SECONDS = 0.1
"""Time for a server to act on a cancellation before its link closes; many servers exit when it does."""

IN_MEMORY = RemoteSource("http://localhost/mcp")
"""The address that requests in memory carry; nothing listens there."""


class InMemoryRequest:
    """A request to a local hub: the `Peer` of the REST frontend, and a `SentRequest` of the command."""

    may_have_left = True

    def __init__(self, scope: Message, body: bytes, sink: ResponseSink) -> None:
        self.scope = scope
        self.body = body
        self.is_done = False
        self.was_aborted = False
        self._sink = sink
        self._disconnect_callbacks: list[Callable[[], None]] = []

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client disconnects before the response ends; soon, if it already has."""
        if self.was_aborted:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._disconnect_callbacks.append(callback)

    def take_body(self) -> bytes:
        """The whole request body, if it has arrived and none of it was received; else use `receive`."""
        return self.body

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        """Send a whole response; `lines` are `header_lines`, the length is added. Ignored after a disconnect."""
        self.begin(status, lines)
        self.end(joined(body))

    def begin(self, status: int, lines: bytes) -> None:
        """Start a response of unknown length; its first piece should follow soon."""
        if not self.is_done:
            pairs = (line.partition(": ") for line in lines.decode("latin-1").splitlines())
            self._sink.on_head(status, {name: value for name, _, value in pairs})

    def push(self, chunk: bytes) -> None:
        """Write a piece of a started response, without waiting."""
        if not self.is_done:
            self._sink.on_body(chunk)

    def end(self, chunk: bytes) -> None:
        """Write the last piece of a started response."""
        self.push(chunk)
        if not self.is_done:
            self.is_done = True
            self._sink.on_end()

    def buffered_bytes(self) -> int:
        """The size of the output that the client has not read."""
        return 0

    async def receive(self) -> Message:
        """Unused, as in ASGI: `take_body` has the whole body."""
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Unused, as in ASGI: the REST frontend responds by `answer` and `begin`."""
        raise NotImplementedError(message["type"])

    def abort(self) -> None:
        """Disconnect; ignored after the end of the response."""
        if not self.is_done:
            self.is_done = self.was_aborted = True
            for callback in self._disconnect_callbacks:
                callback()

    def fail(self, _: BaseException) -> None:
        """End a request that a defect of the hub left without a response."""
        self._sink.on_lost(
            ConnectionLost("a defect of the hub ended the request; its log has the error", may_have_left=True)
        )


class WrittenLists(ServerListFiles):
    """Stores the lists of servers for shells that complete names, and for the next hub; a command shows none of them.

    A command waits for its servers anyway.
    """

    async def read(self, key: str) -> bytes | None:
        """No stored list is used."""
        return None


class LocalHub:
    """A hub that runs in this process, and the transport to its REST frontend."""

    def __init__(
        self,
        running: RunningHub,
        pins: DefinitionPins,
        audit_log: AuditLog | None = None,
        lists: WrittenLists | None = None,
    ) -> None:
        self.running = running
        self._lists = lists
        self.client = HubClient(IN_MEMORY, self)
        self._pins = pins
        self._audit_log = audit_log
        # The person who may read the configuration may use all of it, as on a hub without callers.
        auth = Authenticator(OriginGuard(bind_host="localhost"), lambda _: LOCAL)
        self._rest = RestHttp(running.hub, auth, name=COMMAND, admin=running)
        self._requests: list[InMemoryRequest] = []
        self.settled_at: dict[ServerName, float] = {}
        """When each server's first connection attempt ended, by the loop's clock."""
        running.hub.watch(self._note_settled)

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, sink: ResponseSink
    ) -> SentRequest:
        """Send a request; `sink` receives its response."""
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
        """Close every connection in good order."""
        try:
            if any(request.was_aborted for request in self._requests):
                await asyncio.sleep(WITHDRAWAL_SECONDS)
        finally:  # a second signal cuts only the wait short
            await self.running.aclose()
            await self._pins.aclose()
            if self._lists is not None:
                await self._lists.aclose()
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


async def open_local_hub(
    file: Path | None, *, within: float, name: str | None, shape: ListShape, is_to_call: bool, is_askable: bool
) -> HubClient:
    """Start a hub from a configuration, for `cli.find_hub.open_hub`.

    Raises:
        CommandFailed: the configuration cannot be used.
    """
    quiet_logs()
    configuration = configuration_of(file)
    only = None if name is None else servers_for(name, configuration, shape)
    if configuration.file is None and not configuration.servers and only is None:
        print_error(NO_CONFIGURATION)
    if is_askable:
        servers = tuple(replace(server, client_caps=ASKABLE) for server in configuration.servers)
        configuration = replace(configuration, servers=servers)
    local = await start_local_hub(
        configuration, os.environ, within=within, only=only, is_to_call=is_to_call, keeps_lists=True
    )
    return local.client


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


async def start_local_hub(
    configuration: Configuration,
    environment: Mapping[str, str],
    *,
    within: float,
    only: Iterable[ServerName] | None = None,
    is_to_call: bool = False,
    keeps_lists: bool = False,
) -> LocalHub:
    """Start a hub without state and wait for its servers, or for `only` those that are needed.

    A hub that `is_to_call` opens the audit log; listing needs none. One that `keeps_lists` stores them.

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
    limits = replace(configuration.hub.limits, listing_seconds=max(within, NO_WAIT_SECONDS))
    # A cassette belongs to hubs that serve: a command would replace it by one call.
    configuration = replace(
        configuration, servers=servers, hub=replace(configuration.hub, limits=limits, cassette=None)
    )
    audit = None if audit_log is None else audit_log.audit
    lists = None
    if keeps_lists:
        with suppress(OSError):  # the command works without
            make_folder(Path(configuration.hub.state))
            lists = WrittenLists(Path(configuration.hub.state))
    running = RunningHub(configuration, environment, journal, pins=pins, lists=lists, audit=audit)
    hub = LocalHub(running, pins, audit_log, lists)
    notice = asyncio.get_running_loop().call_later(NOTICE_SECONDS, hub.print_waiting)
    try:
        await hub.running.hub.wait_connected(EVERYTHING)
    except BaseException:
        await hub.aclose()
        raise
    finally:
        notice.cancel()
    return hub


REMOTE_LIMITS = Limits(
    call_seconds=HARD_SECONDS_MAX, hard_seconds=HARD_SECONDS_MAX, tools_per_server=100_000, list_bytes=512 * MIB
)
"""The running hub sets its own limits and lists the tools of all its servers; these only bound a defect."""


def running_as_server(source: RemoteSource, set_name: str | None = None) -> tuple[Configuration, Surface]:
    """A configuration whose only server is the running hub, for `isthmus stdio`, which survives lost connections.

    With `set_name`, it is only that set of the running hub.
    """
    url = source.url if set_name is None else f"{source.url.rstrip('/')}/{quote(set_name, safe='')}"
    # The instructions of a set are the operator's, as they are without this hub in between.
    rules = ToolRules(is_trusted=True)
    server = ServerSettings(HUB, HttpSettings(url, source.headers), timeout=REMOTE_LIMITS.call_seconds, rules=rules)
    hub = HubSettings(limits=REMOTE_LIMITS, audit="off")  # the running hub keeps the audit log
    return Configuration(None, hub, (server,)), Surface("own", HUB)
