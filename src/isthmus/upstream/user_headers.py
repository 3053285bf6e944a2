"""Headers that a caller gives with a call, on their way to a server that is configured to receive them.

By name: what a server is not configured to receive never leaves. Held by links that speak HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.core.calls.inflight import InFlight
from isthmus.model.faults import BadArguments
from isthmus.transport.http import header_lines

HEADERS_BYTES_MAX = 8 * 1024
"""All of them together: many servers take no more in a whole head, and answer no better than with a bare 431."""


class UserHeaders:
    """Which headers of callers one server receives."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower(): name for name in names}

    def lines_for(self, inflight: InFlight) -> bytes | None:
        """What a call's requests have in their head beside what all have; None if that cannot be written.

        Then the call has ended so. Nothing is quoted of what a header says: it may be a secret.
        """
        given = {name.lower(): value for name, value in inflight.call.headers.items()}
        try:
            lines = header_lines({name: given[low] for low, name in self._names.items() if low in given})
        except ValueError as error:
            inflight.fail(BadArguments(inflight.call.name, str(error)))
            return None
        if len(lines) > HEADERS_BYTES_MAX:
            detail = f"its headers have {len(lines)} bytes, and a server is sent {HEADERS_BYTES_MAX} at most"
            inflight.fail(BadArguments(inflight.call.name, detail))
            return None
        return lines
