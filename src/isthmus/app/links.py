"""Makes a link for each way in which a server can be reached."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import assert_never

from isthmus import __version__
from isthmus.core.crew import Crew
from isthmus.core.settings import Limits
from isthmus.core.watch.tasks import Tasks
from isthmus.credentials.memory import StaticCredentials
from isthmus.model.names import ServerName
from isthmus.model.questions import Profile
from isthmus.transport.egress import Egress, Guarded
from isthmus.upstream.agent.given import GivenTasks
from isthmus.upstream.agent.link import AgentLink
from isthmus.upstream.functions import PythonLink
from isthmus.upstream.keeper import HOPS_MAX
from isthmus.upstream.link import BaseLink, ConnectFailed
from isthmus.upstream.plain import PlainLink
from isthmus.upstream.rpc import RpcLink
from isthmus.upstream.settings import (
    AgentSettings,
    Carrier,
    HttpSettings,
    NamedSettings,
    PythonSettings,
    RpcSettings,
    ServerSettings,
    SocketSettings,
    StdioSettings,
)
from isthmus.upstream.sse import SseLink
from isthmus.upstream.stdio import StdioLink
from isthmus.upstream.streamable.link import StreamableLink
from isthmus.upstream.user_headers import UserHeaders
from isthmus.upstream.websocket import SocketLink
from isthmus.wire.mcp.messages import Implementation

ME = Implementation("isthmus", __version__, "Isthmus")

HOPS_VARIABLE = "ISTHMUS_HOPS"
"""Tells a program how many hubs started each other down to it: by mistake, one may be a hub with the same file."""

HOPS_DIGITS_MAX = 3


class Links:
    """What links of one hub have in common."""

    def __init__(
        self,
        limits: Limits,
        environment: Mapping[str, str],
        crew: Crew,
        tasks: Tasks,
        egress: Egress | None = None,
        profile: Profile | None = None,
    ) -> None:
        """`tasks` hears how those stand of which servers tell by themselves.

        With a `profile`, servers are told that whoever lists them can be asked this, and list the same to everybody.
        """
        self.limits = limits
        self._profile = profile
        self.are_shared = False
        """Everybody who calls is one program: nobody needs a link of its own to be asked something."""
        self._tasks = tasks
        self._environment = environment
        self._crew = crew
        self._egress = egress or Egress()
        self._guarded = Guarded(self._egress)
        self._given = GivenTasks()

    @property
    def egress(self) -> Egress:
        """What all of them dial by."""
        return self._egress

    async def connect(self, settings: ServerSettings, carrier: Carrier) -> BaseLink:
        """Make a link that has not been greeted yet; raises `ConnectFailed`."""
        link = await self._reach(settings, carrier)
        link.on_task, link.on_progress = self._tasks.told, self._tasks.progressed
        if self._profile is not None:
            link.profile, link.can_vary = self._profile, False
        if self.are_shared:
            link.can_ask = False
        return link

    async def _reach(self, settings: ServerSettings, carrier: Carrier) -> BaseLink:
        reach = settings.reach
        match reach:
            case StdioSettings():
                return await self._process(settings.name, reach)
            case NamedSettings():
                return self._named(settings, reach, carrier)
            case HttpSettings():
                return self._http(settings, reach, carrier)
            case SocketSettings():
                socket = self._socket(settings.name, reach)
                await socket.start()
                return socket
            case RpcSettings():
                return self._rpc(settings, reach)
            case AgentSettings():
                return self._agent(settings, reach)
            case PythonSettings():
                return self._python(settings, reach)
            case _:
                assert_never(reach)

    async def _process(self, server: ServerName, reach: StdioSettings) -> StdioLink:
        hops = hops_in(self._environment)
        if hops >= HOPS_MAX:
            raise ConnectFailed(f"{hops} hubs have started each other, and this one starts nothing more")
        process = StdioLink(server, ME, self.limits)
        env = {**reach.env, HOPS_VARIABLE: str(hops + 1)}
        await process.start(dataclasses.replace(reach, env=env), self._environment)
        return process

    def _http(self, settings: ServerSettings, reach: HttpSettings, carrier: Carrier) -> BaseLink:
        kind = SseLink if carrier == "sse" else StreamableLink
        link = kind(
            settings.name,
            ME,
            self.limits,
            url=reach.url,
            credentials=StaticCredentials({settings.name: reach.headers}),
            egress=self._egress,
            crew=self._crew,
            max_calls=settings.max_calls,
        )
        link.user_headers = UserHeaders(reach.user_headers)
        return link

    def _named(self, settings: ServerSettings, reach: NamedSettings, carrier: Carrier) -> BaseLink:
        """A link to where a caller sent the hub: it goes there and nowhere else."""
        egress = self._egress if reach.is_trusted else self._guarded
        credentials = StaticCredentials({settings.name: reach.headers})
        url, most = reach.url_for(carrier), settings.max_calls
        if carrier == "rpc":
            plain = RpcSettings(url)
            return PlainLink(
                settings.name,
                ME,
                self.limits,
                reach=plain,
                credentials=credentials,
                egress=egress,
                crew=self._crew,
                max_calls=most,
            )
        kind = SseLink if carrier == "sse" else StreamableLink
        link = kind(
            settings.name,
            ME,
            self.limits,
            url=url,
            credentials=credentials,
            egress=egress,
            crew=self._crew,
            max_calls=most,
        )
        link.stays = True
        return link

    def _socket(self, server: ServerName, reach: SocketSettings) -> SocketLink:
        return SocketLink(
            server,
            ME,
            self.limits,
            url=reach.url,
            credentials=StaticCredentials({server: reach.headers}),
            egress=self._egress,
            crew=self._crew,
        )

    def _rpc(self, settings: ServerSettings, reach: RpcSettings) -> RpcLink:
        return RpcLink(
            settings.name,
            ME,
            self.limits,
            reach=reach,
            credentials=StaticCredentials({settings.name: reach.headers}),
            egress=self._egress,
            crew=self._crew,
            max_calls=settings.max_calls,
        )

    def _agent(self, settings: ServerSettings, reach: AgentSettings) -> AgentLink:
        link = AgentLink(
            settings.name,
            ME,
            self.limits,
            reach=reach,
            credentials=StaticCredentials({settings.name: reach.headers}),
            egress=self._egress,
            crew=self._crew,
            max_calls=settings.max_calls,
        )
        link.given = self._given
        return link

    def _python(self, settings: ServerSettings, reach: PythonSettings) -> PythonLink:
        return PythonLink(settings.name, ME, self.limits, reach=reach, crew=self._crew, max_calls=settings.max_calls)


def hops_in(environment: Mapping[str, str]) -> int:
    """How many hubs started each other before this one."""
    text = environment.get(HOPS_VARIABLE, "")
    return int(text) if text.isdecimal() and len(text) <= HOPS_DIGITS_MAX else 0
