"""A hub without faces, made of a configuration: what `serve`, `stdio` and the command line all start from."""

from __future__ import annotations

import time
from collections.abc import Mapping

from isthmus import __version__
from isthmus.config.settings import Configuration
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.crew import Crew
from isthmus.credentials.memory import StaticCredentials
from isthmus.faces.mcp.dialogue import Dialogue
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Surface
from isthmus.storage.memory import MemoryJournal
from isthmus.telemetry.counters import Counters
from isthmus.transport.egress import Egress
from isthmus.upstream.link import BaseLink
from isthmus.upstream.local import LocalLink, builtin_tools
from isthmus.upstream.settings import HttpSettings, ServerSettings, StdioSettings
from isthmus.upstream.stdio import StdioLink
from isthmus.upstream.streamable.link import StreamableLink
from isthmus.upstream.supervisor import Supervisor
from isthmus.wire.mcp.tools import Implementation

ME = Implementation("isthmus", __version__, "Isthmus")

LOCAL = Caller("local", "local", Grants(("*",)))
"""Who calls where no callers are configured: the person at this machine."""


class RunningHub:
    """A hub, its servers and its background tasks; whoever makes it closes it."""

    def __init__(self, configuration: Configuration, environment: Mapping[str, str]) -> None:
        """Start every server in the background and return at once. Needs a running loop."""
        self.configuration = configuration
        self.crew = Crew()
        self.counters = Counters()
        self.hub = Hub(configuration.hub.limits, self.counters)
        self.surface = Surface(configuration.hub.names)
        self._environment = environment
        self._egress = Egress()
        self._credentials = StaticCredentials(
            {s.name: s.reach.headers for s in configuration.servers if isinstance(s.reach, HttpSettings)}
        )
        self.supervisor = Supervisor(self.hub, self.crew, self._connect)
        builtin = LocalLink(BUILTIN, builtin_tools(MemoryJournal(), time.time), self.crew)
        self.supervisor.add_local(BUILTIN, builtin, builtin.tools)
        for server in configuration.servers:
            self.supervisor.add(server)

    def dialogue(self) -> Dialogue:
        """What MCP callers of this hub are told."""
        return Dialogue(self.hub, ME)

    async def _connect(self, settings: ServerSettings) -> BaseLink:
        limits = self.configuration.hub.limits
        if isinstance(settings.reach, StdioSettings):
            link = StdioLink(settings.name, ME, limits)
            await link.start(settings.reach, self._environment)
            return link
        return StreamableLink(
            settings.name,
            ME,
            limits,
            url=settings.reach.url,
            credentials=self._credentials,
            egress=self._egress,
            crew=self.crew,
            max_calls=settings.max_calls,
        )

    async def aclose(self) -> None:
        """Close every link in good order, then whatever still runs; cancelled, it leaves the order out."""
        try:
            await self.supervisor.aclose()
        finally:
            await self.crew.aclose()
