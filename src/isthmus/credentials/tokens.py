"""A login as it is kept: the token, how it is renewed, and where it came from. Values; `vault` seals them."""

from __future__ import annotations

import msgspec

TOKEN_LENGTH_MAX = 16 * 1024


class OAuthClient(msgspec.Struct, frozen=True):
    """What the hub is at an authorization server."""

    id: str
    secret: str = ""
    method: str = ""
    """How it proves itself at the token endpoint; empty for whatever fits."""
    redirect: str = ""
    """Where a browser is to come back to, as it was registered."""

    def __repr__(self) -> str:
        return f"Client(id={self.id!r}, method={self.method!r})"


class StoredToken(msgspec.Struct, frozen=True):
    """What a server is shown, and what another one is had for."""

    access: str
    expires_at: float | None = None
    """Seconds since the epoch; None if nobody said."""
    obtained_at: float = 0.0
    refresh: str = ""
    scope: str = ""
    is_bound: bool = False
    """Whether it is good only with a proof of the login's key (RFC 9449)."""

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at!r}, scope={self.scope!r})"

    def is_good(self, now: float, leeway: float = 0.0) -> bool:
        """Whether it holds for a while."""
        return self.expires_at is None or now + leeway < self.expires_at


class StoredLogin(msgspec.Struct, frozen=True):
    """One login, as it is written down."""

    token: StoredToken
    client: OAuthClient
    issuer: str
    token_endpoint: str
    resource: str
    """What the token is for. It is shown to nobody else."""
    url: str
    """The server's address when somebody logged in: a server that has moved elsewhere is not shown the token."""
    asked_scope: str = ""
    """What was asked for, beside what was granted."""
    proof_key: str = ""
    """The private key that its tokens are bound to, as PEM; empty where they are bearer tokens."""

    def __repr__(self) -> str:
        return f"Kept(issuer={self.issuer!r}, resource={self.resource!r}, token={self.token!r})"
