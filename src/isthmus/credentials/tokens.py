"""The values of a stored login: the token, its client and its origin. `vault` encrypts them."""

from __future__ import annotations

import msgspec

TOKEN_LENGTH_MAX = 16 * 1024


class OAuthClient(msgspec.Struct, frozen=True):
    """The hub's registration at an authorization server."""

    id: str
    secret: str = ""
    method: str = ""
    """The authentication method at the token endpoint; empty selects one automatically."""
    redirect: str = ""
    """The registered redirect address."""

    def __repr__(self) -> str:
        return f"Client(id={self.id!r}, method={self.method!r})"


class StoredToken(msgspec.Struct, frozen=True):
    """An access token and its refresh token."""

    access: str
    expires_at: float | None = None
    """Seconds since the epoch; None if unknown."""
    obtained_at: float = 0.0
    refresh: str = ""
    scope: str = ""
    is_bound: bool = False
    """Whether it is valid only with a proof of the login's key (RFC 9449)."""

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at!r}, scope={self.scope!r})"

    def is_good(self, now: float, leeway: float = 0.0) -> bool:
        """Whether it is valid for a while."""
        return self.expires_at is None or now + leeway < self.expires_at


class StoredLogin(msgspec.Struct, frozen=True):
    """One stored login."""

    token: StoredToken
    client: OAuthClient
    issuer: str
    token_endpoint: str
    resource: str
    """The resource that the token is for. It is sent nowhere else."""
    url: str
    """The server's address at login. After a change of address the token is not sent."""
    asked_scope: str = ""
    """The requested scope; the token has the granted one."""
    proof_key: str = ""
    """The private key that its tokens are bound to, as PEM; empty for bearer tokens."""

    def __repr__(self) -> str:
        return f"Kept(issuer={self.issuer!r}, resource={self.resource!r}, token={self.token!r})"
