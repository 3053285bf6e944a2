"""The functions of this process that one hub shows: those of `@tool`, and those that were given to this hub alone.

Each server of them is a lane with a `LocalLink`; `builtin` is always there. What is shown follows
`upstream.registered`: whenever that changes, the hub publishes anew. Made by `app.hub`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.rules import Rules
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.model.names import ServerName, parse_server_name
from isthmus.upstream.local import LocalLink, LocalTool
from isthmus.upstream.registered import REGISTRY, NameTaken, Registry
from isthmus.upstream.runner import Runner
from isthmus.upstream.signatures import Runnable

OPERATORS = Rules(is_trusted=True)
"""Functions of this process are the operator's own, and so is what they say of themselves."""


class HubFunctions:
    """What one hub shows of this process. On the hub's loop only, except that the registry changes in any thread."""

    def __init__(
        self,
        hub: Hub,
        background: BackgroundTasks,
        tools: list[LocalTool],
        *,
        is_settled: bool = True,
        registry: Registry = REGISTRY,
    ) -> None:
        """`tools` are the hub's own. Unless it `is_settled`, who lists them waits a moment for `settle`."""
        self._hub = hub
        self._background = background
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._is_settled = is_settled
        self._notes: tuple[str, ...] = ()
        self.version = registry.version
        """What is shown of the registry."""
        self._given: dict[ServerName, dict[str, Runnable]] = {BUILTIN: {}}
        self._links: dict[ServerName, LocalLink] = {}
        self._left: list[LocalLink] = []
        """Links of servers that are not shown any more, which may still work."""
        self._open(BUILTIN, tools)
        self._unwatch = registry.watch(self._registry_changed)

    # -- functions of this hub alone -------------------------------------------------------------------------------

    def add(self, function: Runnable, server: str = BUILTIN) -> None:
        """Show a function among the tools of a server, which is made for it unless it is `builtin`.

        Raises:
            NameTaken: the server has such a tool, or is no server of functions.
            ValueError: the server's name cannot be one.
        """
        name = parse_server_name(server)
        if name not in self._links and name in self._hub.server_queues:
            raise NameTaken(f"{name} is a server of the configuration: give the functions a server of their own")
        if name in self._links and function.name in self._links[name].names():
            raise NameTaken(f"there is a tool {name}.{function.name} already: remove it, or give this one another name")
        self._given.setdefault(name, {})[function.name] = function
        if name in self._links:
            self._show(name)
        else:
            self._open(name, [])

    def remove(self, name: str, server: str = BUILTIN) -> bool:
        """Take a function of this hub alone away; False if there is none. What it works on may finish."""
        given = self._given.get(ServerName(server), {})
        if given.pop(name, None) is None:
            return False
        if given or server == BUILTIN:
            self._show(ServerName(server))
        else:
            self._close(ServerName(server))
        return True

    # -- showing ---------------------------------------------------------------------------------------------------

    def settle(self, notes: tuple[str, ...]) -> None:
        """Nothing more is waited for; `notes` are for the operator."""
        self._is_settled = True
        self._notes = notes
        self._show(BUILTIN)

    def _registry_changed(self) -> None:
        if threading.get_ident() == self._thread:
            self._show(BUILTIN)
            return
        with suppress(RuntimeError):  # the loop is closed, and nobody lists anything
            self._loop.call_soon_threadsafe(self._show, BUILTIN)

    def _open(self, server: ServerName, tools: list[LocalTool]) -> None:
        server_queue = ServerQueue(server, self._hub.limits)
        runner = Runner(server, self._hub.limits, self._background, server_queue.max_calls)
        link = self._links[server] = LocalLink(server, tools, self._background, runner)
        link.functions = self._functions_of(server)
        server_queue.attach(link)
        self._hub.open_server_queue(server_queue, self._standing(server))

    def _show(self, server: ServerName) -> None:
        link = self._links.get(server)
        if link is not None:
            link.functions = self._functions_of(server)
            self._hub.publish(self._standing(server))

    def _functions_of(self, server: ServerName) -> Mapping[str, Runnable]:
        given = self._given[server]
        if server != BUILTIN:
            return dict(given)
        self.version = self._registry.version  # read first: what is added meanwhile counts as not shown
        return {**self._registry.functions(), **given}

    def _standing(self, server: ServerName) -> ServerStatus:
        link = self._links[server]
        return ServerStatus(
            server,
            "ready",
            tools=link.tools,
            abilities=link.abilities(),
            is_settled=self._is_settled or server != BUILTIN,
            notes=self._notes if server == BUILTIN else (),
            rules=OPERATORS,
        )

    # -- the end ---------------------------------------------------------------------------------------------------

    def _close(self, server: ServerName) -> None:
        self._left.append(self._links.pop(server))
        del self._given[server]
        self._hub.close_lane(server)

    def close(self) -> None:
        """Give every call up, and let the threads go."""
        self._unwatch()
        links, self._links, self._left = (*self._links.values(), *self._left), {}, []
        for link in links:
            link.close()
