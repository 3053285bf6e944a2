"""The settings of issuers, which `config` reads from `[issuers]`. This module imports nothing slow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from isthmus.model.callers import Grants

Algorithm: TypeAlias = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
"""The accepted signature algorithms; symmetric ones and `none` are not among them."""

Binding: TypeAlias = Literal["optional", "required", "nonce"]
"""Whether an issuer's tokens must be bound to a key (RFC 9449), and whether proofs need the hub's nonce. A bound
token always needs a proof."""

LEEWAY_SECONDS_MAX = 60.0

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""As in RFC 6749: printable, without space, quotation mark or backslash."""


@dataclass(frozen=True, slots=True)
class IssuerSettings:
    """One `[issuers.NAME]`: an issuer whose tokens are trusted, and the permissions of their owners."""

    name: str
    issuer: str
    """Exactly as its tokens spell it in `iss`."""
    audience: tuple[str, ...]
    """Tokens must name one of these."""
    jwks: str | None = None
    """The address of its keys; if None, the issuer's metadata names it."""
    token_url: str | None = None
    """Its token endpoint for client credentials, for AgentVault's card."""
    algorithms: tuple[Algorithm, ...] = ALGORITHMS
    leeway: float = 30.0
    """How far its clock may differ, in seconds."""
    tenant: str = "default"
    tenant_claim: str | None = None
    """The claim that names the tenant; if set, a token without it is refused."""
    name_claim: str = "sub"
    grants: Grants = field(default_factory=lambda: Grants(()))
    """The permissions of every valid token."""
    scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The permissions that scopes add."""
    dpop: Binding = "optional"

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ValueError(f"must have a name of 1 to 50 letters, digits, _ and -, not {self.name!r}")
        _check_address("issuer", self.issuer, may_have_query=False)
        if self.jwks is not None:
            _check_address("jwks", self.jwks, may_have_query=True)
        if self.token_url is not None:
            _check_address("token_url", self.token_url, may_have_query=True)
        if not self.audience or not all(each.strip() for each in self.audience):
            raise ValueError("audience must name at least one audience of the tokens")
        if not self.algorithms:
            raise ValueError("algorithms must name at least one algorithm")
        for position, each in enumerate(self.algorithms):
            if each not in ALGORITHMS:
                raise ValueError(f"algorithms.{position} must be one of {', '.join(ALGORITHMS)}, not {each!r}")
        if not 0 <= self.leeway <= LEEWAY_SECONDS_MAX:
            raise ValueError(f"leeway must be 0 to {LEEWAY_SECONDS_MAX:g} seconds, not {self.leeway:g}")
        if self.dpop not in get_args(Binding):
            raise ValueError(f"dpop must be one of {', '.join(get_args(Binding))}, not {self.dpop!r}")
        for scope in self.scopes:
            if _SCOPE.fullmatch(scope) is None:
                raise ValueError(f"scopes must have names without spaces, not {scope!r}")


def _check_address(key: str, url: str, *, may_have_query: bool) -> None:
    shown = "an address with a user in it" if "@" in url else repr(url)  # there may be a password
    try:
        parts = urlsplit(url)
        _ = parts.port  # reading it checks it
    except ValueError as error:
        raise ValueError(f"{key} must be an https address, not {shown}") from error
    is_odd = any(character.isspace() or not character.isprintable() for character in url) or "@" in parts.netloc
    if is_odd or not parts.hostname or parts.fragment or (parts.query and not may_have_query):
        raise ValueError(f"{key} must be an https address without a user, a query or a fragment, not {shown}")
    # An attacker on the way could replace the keys.
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError(f"{key} must be an https address, or http on this machine, not {shown}")
