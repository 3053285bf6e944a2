"""A link to the operator's own Python functions, which run in the hub's process.

`upstream.python.runner` runs them. The functions are trusted: they can do whatever the hub can. Their authors import
`Context` from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.inflight import InFlight
from isthmus.core.settings import Limits
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities, LogLevel
from isthmus.model.faults import NotConnected
from isthmus.model.features import TOPICS, Ability, Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.dialect import LegacyDialect
from isthmus.upstream.link import BaseLink, ConnectFailed
from isthmus.upstream.listing import Listing
from isthmus.upstream.python.context import Context
from isthmus.upstream.python.modules import begin_to_load
from isthmus.upstream.python.runner import Runner, redirect_prints
from isthmus.upstream.python.signatures import Runnable
from isthmus.upstream.settings import Era, PythonSettings
from isthmus.upstream.waiters import Waiter, turned_away
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.messages import Implementation

__all__ = ["Context", "PythonLink"]


class PythonLink(BaseLink):
    """The functions that one target names."""

    can_ask = False  # as a link: its functions ask by the calls that they serve, and list the same to everybody
    carrier = "python"
    start_seconds = 60.0

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        *,
        reach: PythonSettings,
        background: BackgroundTasks,
        max_calls: int,
    ) -> None:
        super().__init__(server, me, limits)
        self.dialect = LegacyDialect("Python")
        self._reach = reach
        self._runner = Runner(server, limits, background, max_calls)
        self._functions: dict[str, Runnable] = {}
        self._notes: tuple[str, ...] = ()

    # -- greeting and listing --------------------------------------------------------------------------------------

    async def handshake(self, era: Era) -> None:
        """Import the module.

        Raises:
            ConnectFailed: it cannot be imported, or has nothing that can be a tool.
        """
        redirect_prints()
        try:
            async with asyncio.timeout(self.start_seconds):
                loaded = await asyncio.wrap_future(begin_to_load(self._reach))
        except TimeoutError:
            words = f"importing {self._reach.target} takes over {self.start_seconds:g} s"
            raise ConnectFailed(words) from None
        self._functions = {function.name: function for function in loaded.functions}
        self._notes = tuple(loaded.notes)

    async def ping(self, within: float) -> None:
        """It is always there."""

    def abilities(self) -> frozenset[Ability]:
        """Tools, and logging if a function can."""
        does_log = any(function.takes_context for function in self._functions.values())
        return frozenset(("tools", "logging") if does_log else ("tools",))

    async def list_features(
        self,
        topics: Set[Topic] = frozenset(TOPICS),
        known: Listing | None = None,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
    ) -> Listing:
        """The functions, which stay as they are."""
        tools = [Tool.of(self.server, FeatureName(f.name), f.definition()) for f in self._functions.values()]
        return Listing(tuple(tools), notes={"tools": self._notes})

    def set_level(self, level: LogLevel) -> None:
        """A function's every line is passed on; whoever hears it chooses."""

    # -- running ---------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Run the function."""
        function = self._functions.get(inflight.name)
        if function is None or self.lost.done():
            inflight.finish(NotConnected(self.server, f"it has no function {inflight.name} any more"))
            return
        self._runner.start(inflight, function)

    def may_have_run(self, inflight: InFlight) -> bool:
        """What has not begun is taken back by `withdraw`."""
        return self._runner.may_have_run(inflight)

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Cancel what runs on the loop, take back what has not begun; a thread goes on."""
        self._runner.withdraw(inflight)

    async def aclose(self) -> None:
        """Give every call up; threads end when their functions do."""
        self._lose("closed by the hub")
        self._runner.close("closed by the hub")

    # -- what such a link has no use for ---------------------------------------------------------------------------

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        waiter.fail(turned_away(self.server, f"functions are not asked {method}"))

    def _forget(self, waiter: Waiter) -> None:
        """Nobody ever waits."""

    def _notify(self, method: str, params: Payload | None) -> None:
        """There is nobody to tell."""

    def listen(self) -> None:
        """The functions do not change."""
