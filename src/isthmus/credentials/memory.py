"""Credentials that were configured and do not change: a server's headers."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.model.names import ServerName


class StaticCredentials:
    """Headers by server, as configured."""

    generation = 0
    signer = None

    def __init__(self, headers: Mapping[ServerName, Mapping[str, str]]) -> None:
        self._headers = headers

    def headers_for(self, server: ServerName) -> Mapping[str, str]:
        """The server's headers; none if it has none."""
        return self._headers.get(server, {})
