"""Creates the links of a hub: one class for each transport, with the server's credentials."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol, assert_never

from isthmus import __version__
from isthmus.core.background import BackgroundTasks
from isthmus.core.ports import Credentials
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import ServerTasks
from isthmus.credentials.server_logins import Login, LoginNeeded, Logins, NotReady, StaticCredentials
from isthmus.model.calls import ClientCapabilities
from isthmus.model.credentials import Subject
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress, Guarded
from isthmus.upstream.a2a.link import AgentLink
from isthmus.upstream.a2a.remote_task import TaskIds
from isthmus.upstream.base_link import BaseLink, ConnectFailed
from isthmus.upstream.http_shared import CallerHeaders
from isthmus.upstream.plain_jsonrpc import CallerNamedRpcLink, RpcLink
from isthmus.upstream.python.link import PythonLink
from isthmus.upstream.reconnector import HOPS_MAX
from isthmus.upstream.replay import ReplayLink
from isthmus.upstream.server_settings import (
    AgentSettings,
    Carrier,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    ReplaySettings,
    ServerSettings,
    StdioSettings,
    TargetHttpSettings,
    WebSocketSettings,
)
from isthmus.upstream.sse import SseLink
from isthmus.upstream.stdio import Programs, StdioLink
from isthmus.upstream.streamable_http import StreamableLink
from isthmus.upstream.websocket import SocketLink
from isthmus.wire.mcp.messages import Implementation

ME = Implementation("isthmus", __version__, "Isthmus")

HOPS_VARIABLE = "ISTHMUS_HOPS"
"""Tells a child process how many hubs started each other; a hub may start itself by mistake."""

HOPS_DIGITS_MAX = 3
UNAUTHORIZED = 401


class Placing(Protocol):
    """Connects to programs that one node of a cluster runs for all: `app.placement`."""

    async def connect(self, settings: ServerSettings, start: Callable[[], Awaitable[BaseLink]]) -> BaseLink:
        """A link to the node that runs it; `start` starts it here. Raises `ConnectFailed`."""

    @property
    def grace(self) -> float:
        """How long calls wait until another node runs it."""


class Links:
    """Creates links, with what all links of one hub share."""

    def __init__(
        self,
        limits: Limits,
        environment: Mapping[str, str],
        background: BackgroundTasks,
        tasks: ServerTasks,
        egress: Egress | None = None,
        client_caps: ClientCapabilities | None = None,
        logins: Logins | None = None,
    ) -> None:
        """`tasks` receives the task states that servers report themselves.

        `client_caps` are declared to every server for all callers, so that all see the same list.
        Without `logins` servers receive only their configured headers.
        """
        self.limits = limits
        self._client_caps = client_caps
        self.are_shared = False
        """All calls come from one program, so no caller needs its own link for server requests."""
        self._tasks = tasks
        self._environment = environment
        self._background = background
        self.egress = egress or Egress()
        self._guarded = Guarded(self.egress)
        self.task_ids = TaskIds()
        self._programs = Programs()
        self.logins = logins
        self.placing: Placing | None = None
        """Finds the node that runs a program, in a cluster."""

    async def connect(self, settings: ServerSettings, carrier: Carrier, subject: Subject | None = None) -> BaseLink:
        """Make a link, not yet initialized, for all callers or for one; raises `ConnectFailed`."""
        if settings.owners and self.placing is not None:
            return await self.placing.connect(settings, partial(self._connect_here, settings, carrier, subject))
        return await self._connect_here(settings, carrier, subject)

    async def _connect_here(self, settings: ServerSettings, carrier: Carrier, subject: Subject | None) -> BaseLink:
        login = self._login(settings, subject)
        if login is None:
            credentials = StaticCredentials({settings.name: getattr(settings.reach, "headers", {})})
            link = await self._reach(settings, carrier, credentials)
            if settings.secrets:
                link.redact = settings.redact
        else:
            try:
                await login.ready()
            except LoginNeeded as needed:
                raise _login_needed(str(needed)) from needed
            except NotReady as not_ready:
                raise ConnectFailed(str(not_ready)) from not_ready
            link = await self._reach_with_login(login, settings, carrier)
        link.on_task, link.on_progress = self._tasks.notified, self._tasks.progressed
        if self._client_caps is not None:
            link.questions.client_caps, link.lists_by_client = self._client_caps, False
        if self.are_shared:
            link.can_ask = False
        return link

    def _login(self, settings: ServerSettings, subject: Subject | None) -> Login | None:
        reach = settings.reach
        if self.logins is None or isinstance(reach, TargetHttpSettings | StdioSettings | PythonSettings):
            return None
        url, credentials = over_http(reach.url), settings.credentials
        return self.logins.login_for(settings.name, url, reach.headers, credentials, subject, settings.ca)

    async def _reach_with_login(self, login: Login, settings: ServerSettings, carrier: Carrier) -> BaseLink:
        try:
            link = await self._reach(settings, carrier, login)
        except ConnectFailed as failed:
            if failed.status == UNAUTHORIZED and not login.refused():
                raise _login_needed(f"{words} ({failed})" if (words := login.login_hint()) else str(failed)) from failed
            raise
        link.on_credentials_refused = login.refused
        link.login_hint = login.login_hint
        link.redact = lambda text: settings.redact(login.hide(text))
        return link

    async def _reach(self, settings: ServerSettings, carrier: Carrier, credentials: Credentials) -> BaseLink:
        reach = settings.reach
        match reach:
            case StdioSettings():
                return await self._stdio_link(settings.name, reach)
            case TargetHttpSettings():
                return self._target_link(settings, reach, carrier, credentials)
            case HttpSettings():
                egress = self._egress_to(settings)
                link = self._http_link(settings, reach.url, carrier, credentials, egress)
                link.caller_headers = CallerHeaders(reach.user_headers)
                return link
            case WebSocketSettings():
                socket = SocketLink(
                    settings.name,
                    ME,
                    self.limits,
                    url=reach.url,
                    credentials=credentials,
                    egress=self._egress_to(settings),
                    background=self._background,
                )
                await socket.start()
                return socket
            case JsonRpcSettings():
                return RpcLink(
                    settings.name,
                    ME,
                    self.limits,
                    reach=reach,
                    credentials=credentials,
                    egress=self._egress_to(settings),
                    background=self._background,
                    max_calls=settings.max_calls,
                )
            case AgentSettings():
                agent = AgentLink(
                    settings.name,
                    ME,
                    self.limits,
                    reach=reach,
                    credentials=credentials,
                    egress=self._egress_to(settings),
                    background=self._background,
                    max_calls=settings.max_calls,
                )
                agent.task_ids = self.task_ids
                return agent
            case ReplaySettings():
                return ReplayLink(settings.name, ME, self.limits, reach.player)
            case PythonSettings():
                background, most = self._background, settings.max_calls
                return PythonLink(settings.name, ME, self.limits, reach=reach, background=background, max_calls=most)
            case _:
                assert_never(reach)

    def _egress_to(self, settings: ServerSettings) -> Egress:
        return self.egress.trusting(settings.ca) if settings.ca else self.egress

    async def _stdio_link(self, server: ServerName, reach: StdioSettings) -> StdioLink:
        hops = hops_in(self._environment)
        if hops >= HOPS_MAX:
            raise ConnectFailed(f"{hops} hubs have started each other; this one starts no further processes")
        process = StdioLink(server, ME, self.limits)
        env = {**reach.env, HOPS_VARIABLE: str(hops + 1)}
        program = await self._programs.check(server, reach, self._environment)
        await process.start(dataclasses.replace(reach, env=env), self._environment, program)
        return process

    def _http_link(
        self, settings: ServerSettings, url: str, carrier: Carrier, credentials: Credentials, egress: Egress
    ) -> SseLink | StreamableLink:
        kind = SseLink if carrier == "sse" else StreamableLink
        return kind(
            settings.name,
            ME,
            self.limits,
            url=url,
            credentials=credentials,
            egress=egress,
            background=self._background,
            max_calls=settings.max_calls,
        )

    def _target_link(
        self, settings: ServerSettings, reach: TargetHttpSettings, carrier: Carrier, credentials: Credentials
    ) -> BaseLink:
        """A link to an address that a caller named; it connects to that address only."""
        egress = self.egress if reach.is_trusted else self._guarded
        url, *others = reach.urls_for(carrier)
        if carrier == "rpc":
            plain = CallerNamedRpcLink(
                settings.name,
                ME,
                self.limits,
                reach=JsonRpcSettings(url),
                credentials=credentials,
                egress=egress,
                background=self._background,
                max_calls=settings.max_calls,
            )
            plain.places = others
            plain.requests.dedicate_to_caller()
            return plain
        link = self._http_link(settings, url, carrier, credentials, egress)
        link.stays = True
        link.requests.dedicate_to_caller()
        return link


_OVER_HTTP = {"ws": "http", "wss": "https"}


def _login_needed(why: str) -> ConnectFailed:
    failed = ConnectFailed(why)
    failed.wants_login = True
    return failed


def over_http(url: str) -> str:
    """The HTTP schemes of WebSocket addresses: a login uses HTTP."""
    scheme, _, rest = url.partition(":")
    return f"{_OVER_HTTP.get(scheme.lower(), scheme)}:{rest}"


def hops_in(environment: Mapping[str, str]) -> int:
    """The number of hubs that started each other before this one."""
    text = environment.get(HOPS_VARIABLE, "")
    return int(text) if text.isdecimal() and len(text) <= HOPS_DIGITS_MAX else 0
