"""A plain JSON-RPC endpoint at an address that a caller named: its methods are called as the caller names them.

What is known of a configured one (`upstream.rpc`), that its methods are tools, nobody knows of this one: it may as well
take MCP's methods without MCP's greeting. It lists one tool, which stands for whatever a caller wants to say to it.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports.targets import REQUEST
from isthmus.model.faults import ServerError
from isthmus.model.features import TOPICS, Tool, Topic
from isthmus.model.outcomes import Result
from isthmus.model.questions import NOTHING, Profile
from isthmus.upstream.listing import Listing
from isthmus.upstream.rpc import RpcLink
from isthmus.upstream.settings import Era
from isthmus.upstream.waiters import CallWaiter
from isthmus.wire.jsonrpc import object_members
from isthmus.wire.mcp.lists import TOOLS
from isthmus.wire.mcp.messages import read_string


class PlainLink(RpcLink):
    """The endpoint, and the requests on their way."""

    async def greet(self, era: Era) -> None:
        """See whether JSON-RPC is spoken here: whatever it says to `tools/list` shows that.

        Raises:
            Fault: it is not.
        """
        try:
            await self.ask(TOOLS.method, b"{}", self.start_seconds)
        except ServerError:
            return

    async def list_features(
        self, topics: Set[Topic] = frozenset(TOPICS), known: Listing | None = None, profile: Profile = NOTHING
    ) -> Listing:
        """The one tool."""
        return Listing((Tool.of(self.server, REQUEST, {}),))

    def send(self, inflight: InFlight) -> None:
        """POST what the caller wants said: the arguments are a method and its parameters."""
        members = object_members(inflight.call.arguments) or {}
        method, params = read_string(members.get("method")) or "", members.get("params", b"{}")
        inflight.carriage = self._post(method, params, _Verbatim(inflight))


class _Verbatim(CallWaiter):
    """A caller's request, whose result is whatever it is."""

    __slots__ = ()

    def result(self, payload: msgspec.Raw) -> None:
        """End the call with the value as it is; one that says that it is an error is one."""
        members = object_members(payload) or {}
        self._end(Result(payload, bytes(members.get("isError", b"")) == b"true"))
