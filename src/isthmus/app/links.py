"""Makes a link for each way in which a server can be reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from isthmus import __version__
from isthmus.core.crew import Crew
from isthmus.core.settings import Limits
from isthmus.credentials.memory import StaticCredentials
from isthmus.transport.egress import Egress
from isthmus.upstream.link import BaseLink
from isthmus.upstream.settings import (
    Carrier,
    HttpSettings,
    PythonSettings,
    RpcSettings,
    ServerSettings,
    SocketSettings,
    StdioSettings,
)
from isthmus.upstream.stdio import StdioLink
from isthmus.upstream.streamable.link import StreamableLink
from isthmus.wire.mcp.messages import Implementation

ME = Implementation("isthmus", __version__, "Isthmus")


class Links:
    """What links of one hub have in common."""

    def __init__(self, limits: Limits, environment: Mapping[str, str], crew: Crew) -> None:
        self._limits = limits
        self._environment = environment
        self._crew = crew
        self._egress = Egress()

    async def connect(self, settings: ServerSettings, carrier: Carrier) -> BaseLink:
        """Make a link that has not been greeted yet; raises `ConnectFailed`."""
        name, limits, reach = settings.name, self._limits, settings.reach
        match reach:
            case StdioSettings():
                process = StdioLink(name, ME, limits)
                await process.start(reach, self._environment)
                return process
            case HttpSettings():
                return self._http(settings, reach, carrier)
            case SocketSettings():
                from isthmus.upstream.websocket import SocketLink  # noqa: PLC0415 - until it is there

                credentials = StaticCredentials({name: reach.headers})
                socket = SocketLink(
                    name, ME, limits, url=reach.url, credentials=credentials, egress=self._egress, crew=self._crew
                )
                await socket.start()
                return socket
            case RpcSettings():
                from isthmus.upstream.rpc import RpcLink

                credentials = StaticCredentials({name: reach.headers})
                return RpcLink(
                    name,
                    ME,
                    limits,
                    reach=reach,
                    credentials=credentials,
                    egress=self._egress,
                    crew=self._crew,
                    max_calls=settings.max_calls,
                )
            case PythonSettings():
                from isthmus.upstream.functions import PythonLink

                return PythonLink(name, ME, limits, reach=reach, crew=self._crew, max_calls=settings.max_calls)
            case _:
                assert_never(reach)

    def _http(self, settings: ServerSettings, reach: HttpSettings, carrier: Carrier) -> BaseLink:
        from isthmus.upstream.sse import SseLink

        kind: Any = SseLink if carrier == "sse" else StreamableLink
        link: BaseLink = kind(
            settings.name,
            ME,
            self._limits,
            url=reach.url,
            credentials=StaticCredentials({settings.name: reach.headers}),
            egress=self._egress,
            crew=self._crew,
            max_calls=settings.max_calls,
        )
        return link
