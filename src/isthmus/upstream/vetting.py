"""What a server lists on a link of single callers: nothing is called there that looks otherwise than it is shown.

What callers are shown is listed on the keeper's own link. A process, a session or a login of one caller's may list
something else, and a change there would be nobody's to see. Where changes are withheld, the keeper has such a link
looked at before the first call goes on it, and again when its server announces a change or the list has grown old.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import InFlight
from isthmus.core.catalog.review import Review
from isthmus.model.features import Tool
from isthmus.upstream.link import BaseLink
from isthmus.upstream.listing import Listing, sharing


class Vetted:
    """One such link, and its tools as they were listed on it last; none as long as nobody minds how they look."""

    def __init__(self, link: BaseLink, review: Review, shown: Callable[[], Listing]) -> None:
        self._link = link
        self._review = review
        self._shown = shown
        self._tools: dict[str, Tool] = {}

    async def look(self) -> None:
        """Read its tools. Raises `Fault` if it does not list them."""
        if self._review.withholds(self._link.server):
            read = await self._link.list_features({"tools"}, client_caps=self._link.client_caps)
            tools = sharing(read, self._shown()).tools
            await self._review.prepare(tools)
            self._tools = {tool.name: tool for tool in tools}

    def may_send(self, inflight: InFlight) -> bool:
        """Whether a call may go on the link; what is not listed there is left to the server."""
        tool = self._tools.get(inflight.name) if inflight.call.kind == "tool" else None
        return tool is None or self._review.passes_apart(tool, self._link.client_caps)


def is_shown(hub: Hub, inflight: InFlight) -> bool:
    """Whether the caller of a tool is shown it, as things stand now: for calls that waited on the keeper's own link."""
    call = inflight.call
    if call.kind != "tool" or not hub.review.withholds(inflight.target.feature.server):
        return True
    return hub.snapshot.find_tool(call.caller.grants, call.surface, call.client_caps, call.name) is not None
