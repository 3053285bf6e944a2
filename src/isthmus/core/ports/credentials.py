"""What the hub shows of itself to servers. `credentials` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from isthmus.model.names import ServerName


class Credentials(Protocol):
    """Knows the secret part of a request to a server; a caller's own credential never goes upstream.

    One of these is for one server and in one name: everybody's, or one caller's. Links of two names share none.
    """

    @property
    def generation(self) -> int:
        """Rises whenever `headers_for` has something else to say; a link that keeps headers looks at it."""

    def headers_for(self, server: ServerName) -> Mapping[str, str]:
        """The headers to send to this server now."""
