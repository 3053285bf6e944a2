"""A hub without faces, made of a configuration: what `serve`, `stdio` and the command line all start from."""

from __future__ import annotations

import time
from collections.abc import Mapping

from isthmus.app.difference import Difference, between
from isthmus.app.links import ME, Links
from isthmus.config.settings import Configuration
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.crew import Crew
from isthmus.credentials.sealing import ProcessSealer
from isthmus.faces.mcp.comebacks import Comebacks
from isthmus.faces.mcp.dialogue import Dialogue
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Surface
from isthmus.storage.memory import MemoryJournal
from isthmus.telemetry.counters import Counters
from isthmus.upstream.local import LocalLink, builtin_tools
from isthmus.upstream.supervisor import Supervisor

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
        self._comebacks = Comebacks(ProcessSealer(), configuration.hub.limits)
        self._links = Links(configuration.hub.limits, environment, self.crew, self.hub.tasks)
        self.supervisor = Supervisor(self.hub, self.crew, self._links.connect)
        builtin = LocalLink(BUILTIN, builtin_tools(MemoryJournal(), time.time), self.crew)
        self.supervisor.add_local(BUILTIN, builtin, builtin.tools)
        for server in configuration.servers:
            self.supervisor.add(server)

    def dialogue(self) -> Dialogue:
        """What MCP callers of this hub are told."""
        return Dialogue(self.hub, ME, comebacks=self._comebacks)

    def apply(self, configuration: Configuration) -> Difference:
        """Take another configuration: servers come, change and go, and nobody else notices.

        Limits hold for whatever starts from now on. Who may call is the face's to change.
        """
        difference = between(self.configuration, configuration)
        self.configuration = configuration
        self.hub.limits = self._links.limits = self._comebacks.limits = configuration.hub.limits
        for name in difference.removed:
            self.supervisor.remove(name)
        for server in difference.added:
            self.supervisor.add(server, is_awaited=False)
        for server in difference.changed:
            self.supervisor.change(server)
        return difference

    async def aclose(self) -> None:
        """Close every link in good order, then whatever still runs; cancelled, it leaves the order out."""
        try:
            await self.supervisor.aclose()
        finally:
            await self.crew.aclose()
