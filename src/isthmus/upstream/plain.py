"""A plain JSON-RPC endpoint at an address that a caller named: its methods are called as the caller names them.

It is an unlisted server (see `upstream.rpc`) of which no operator says that JSON-RPC is spoken there: that is found out
first. It may as well take MCP's methods without MCP's greeting.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from isthmus.model.faults import BadReply, NotConnected, ServerError
from isthmus.model.features import TOPICS, Topic
from isthmus.model.questions import NO_CAPABILITIES, ClientCapabilities
from isthmus.transport.egress import parse_url
from isthmus.upstream.listing import Listing
from isthmus.upstream.rpc import RpcLink
from isthmus.upstream.settings import Era
from isthmus.wire.mcp.lists import TOOLS


class PlainLink(RpcLink):
    """The endpoint, and the requests on their way."""

    is_known_endpoint = False
    places: Sequence[str] = ()
    """Where else to look for the endpoint, at the same origin, if it is not where the link was made for."""

    async def greet(self, era: Era) -> None:
        """Find out where JSON-RPC is spoken: any answer to `tools/list` in JSON-RPC shows that.

        Raises:
            Fault: it is spoken nowhere.
        """
        for place in (None, *self.places):
            if place is not None:
                self._target = parse_url(place)[1]
                self._head = self._new_head()
            try:
                await self.ask(TOOLS.method, b"{}", self.start_seconds)
            except ServerError:
                return
            except (BadReply, NotConnected) as failed:
                is_answer = isinstance(failed, BadReply) or failed.status is not None
                if not is_answer or place == (self.places or (None,))[-1]:
                    raise
            else:
                return

    async def list_features(
        self,
        topics: Set[Topic] = frozenset(TOPICS),
        known: Listing | None = None,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
    ) -> Listing:
        """Nothing: its caller names what it wants."""
        return Listing(is_unlisted=True)
