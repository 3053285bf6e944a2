"""Makes a link for each way in which a server can be reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from isthmus import __version__
from isthmus.core.crew import Crew
from isthmus.core.settings import Limits
from isthmus.credentials.memory import StaticCredentials
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress
from isthmus.upstream.functions import PythonLink
from isthmus.upstream.link import BaseLink
from isthmus.upstream.rpc import RpcLink
from isthmus.upstream.settings import (
    Carrier,
    HttpSettings,
    PythonSettings,
    RpcSettings,
    ServerSettings,
    SocketSettings,
    StdioSettings,
)
from isthmus.upstream.sse import SseLink
from isthmus.upstream.stdio import StdioLink
from isthmus.upstream.streamable.link import StreamableLink
from isthmus.upstream.websocket import SocketLink
from isthmus.wire.mcp.messages import Implementation

ME = Implementation("isthmus", __version__, "Isthmus")


class Links:
    """What links of one hub have in common."""

    def __init__(self, limits: Limits, environment: Mapping[str, str], crew: Crew) -> None:
        self.limits = limits
        self._environment = environment
        self._crew = crew
        self._egress = Egress()

    async def connect(self, settings: ServerSettings, carrier: Carrier) -> BaseLink:
        """Make a link that has not been greeted yet; raises `ConnectFailed`."""
        reach = settings.reach
        match reach:
            case StdioSettings():
                process = StdioLink(settings.name, ME, self.limits)
                await process.start(reach, self._environment)
                return process
            case HttpSettings():
                return self._http(settings, reach, carrier)
            case SocketSettings():
                socket = self._socket(settings.name, reach)
                await socket.start()
                return socket
            case RpcSettings():
                return self._rpc(settings, reach)
            case PythonSettings():
                return self._python(settings, reach)
            case _:
                assert_never(reach)

    def _http(self, settings: ServerSettings, reach: HttpSettings, carrier: Carrier) -> BaseLink:
        kind = SseLink if carrier == "sse" else StreamableLink
        return kind(
            settings.name,
            ME,
            self.limits,
            url=reach.url,
            credentials=StaticCredentials({settings.name: reach.headers}),
            egress=self._egress,
            crew=self._crew,
            max_calls=settings.max_calls,
        )

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

    def _python(self, settings: ServerSettings, reach: PythonSettings) -> PythonLink:
        return PythonLink(settings.name, ME, self.limits, reach=reach, crew=self._crew, max_calls=settings.max_calls)
