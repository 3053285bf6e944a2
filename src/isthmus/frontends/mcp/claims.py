"""What a modern caller's headers claim of the arguments beside them, held against these.

A middleman may route or refuse by `Mcp-Param-*` headers, so that a call whose headers say something else than its body
is refused. The dialogue asks for every call that came over HTTP; nearly no tool has such headers, and which have is
found out once per description.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.core.catalog.snapshot import Snapshot
from isthmus.model.calls import Call
from isthmus.model.features import Feature
from isthmus.wire.mcp.params import Places, contradiction, demanded

KNOWN_MAX = 20_000
"""Descriptions remembered, more than a hub has tools; beyond it all are looked at anew."""


MARK = b"x-mcp-header"


class ParamClaims:
    """Knows which tools want arguments repeated."""

    def __init__(self) -> None:
        self._known: dict[bytes, Places] = {}
        self._snapshot: Snapshot | None = None
        self._is_wanted = False

    def refute(self, call: Call, snapshot: Snapshot, headers: Mapping[bytes, bytes]) -> str | None:
        """Why the headers cannot be believed, in words; None if they can, or nobody asks for any."""
        if snapshot is not self._snapshot:
            self._snapshot, self._is_wanted = snapshot, _is_anything_wanted(snapshot)
        if not self._is_wanted:
            return None
        route = snapshot.view(call.caller.grants, call.surface, call.client_caps).routes.get(call.name)
        places = () if route is None else self._places_of(route.feature)
        return contradiction(places, call.arguments, headers) if places else None

    def _places_of(self, tool: Feature) -> Places:
        places = self._known.get(tool.digest)
        if places is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            places = self._known[tool.digest] = demanded(tool.definition.get("inputSchema"))
        return places


def _is_anything_wanted(snapshot: Snapshot) -> bool:
    """Whether any tool may want arguments repeated: asked once per snapshot, so that calls need not."""
    return any(
        MARK in bytes(schema)
        for server_status in snapshot.server_statuses.values()
        for tools in (server_status.tools, *(variant.tools for variant in server_status.variants.values()))
        for tool in tools
        if (schema := tool.definition.get("inputSchema")) is not None
    )
