"""What the hub shows of itself to servers. `credentials` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from isthmus.model.names import ServerName


class RequestSigner(Protocol):
    """Proves with each request that the hub holds the key that its token is bound to (RFC 9449)."""

    def proof_for(self, method: str, url: str, authorization: str) -> str | None:
        """The `DPoP` header of one request that shows this `Authorization`; None if that needs no proof."""

    def wants_nonce(self, url: str, status: int, headers: Mapping[str, str]) -> bool:
        """Take note of a reply; True if it refuses a request because its proof had no nonce, or an old one.

        Such a request did not run, and the next proof has the nonce that the reply names.
        """


class Credentials(Protocol):
    """Knows the secret part of a request to a server; a caller's own credential never goes upstream.

    One of these is for one server and in one name: everybody's, or one caller's. Links of two names share none.
    """

    @property
    def generation(self) -> int:
        """Rises whenever `headers_for` has something else to say; a link that keeps headers looks at it."""

    @property
    def signer(self) -> RequestSigner | None:
        """What signs the requests of a new link; None where the headers are all that a server is shown."""

    def headers_for(self, server: ServerName) -> Mapping[str, str]:
        """The headers to send to this server now."""
