"""What the operator configured to send to a server: headers, and logins by OAuth, for all callers or for one.

Values only, checked when created and compared on reload. `config` fills them in, `upstream` checks whose they are, and
`credentials` uses them. No message and no `repr` contains a possible secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import urlsplit

from isthmus.model.relay import DEFAULT_TENANT

Grant: TypeAlias = Literal[
    "authorization_code", "device", "client_credentials", "token_exchange", "jwt_bearer", "enterprise_managed"
]
"""How the hub gets a token: a person logs in, in a browser here or on another device; the hub itself does; it exchanges
each caller's token (RFC 8693); it presents a workload's identity token (RFC 7523); or it exchanges an employee's
identity token at the company's identity provider for a grant to the server's authorization server."""

Dpop: TypeAlias = Literal["auto", "always", "never"]
"""Whether tokens are bound to a key of the hub (RFC 9449); `auto` if both servers support it."""

URL_LENGTH_MAX = 2_000
"""Longer URLs are rejected."""

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+( [\x21\x23-\x5b\x5d-\x7e]+)*")
_ORIGIN = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}|\*))?/?")
_VISIBLE = re.compile(r"[\x20-\x7e]+")


class Subject(NamedTuple):
    """The caller in whose name a server is called."""

    tenant: str
    name: str
    rights: str = ""
    """Distinguishes the caller's tokens by what they allow (`Caller.rights`); configuration applies to all of them."""

    @property
    def at_large(self) -> Subject:
        """The same caller with any token."""
        return Subject(self.tenant, self.name)


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """How to get a token for a server; missing settings are discovered from the server."""

    grant: Grant = "authorization_code"
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)
    """A PEM key that authenticates the client instead of a secret (RFC 7523)."""
    client_metadata: str = ""
    """The https URL of this client's metadata document, for authorization servers that accept one as client id."""
    issuer: str = ""
    token_endpoint: str = ""
    authorization_endpoint: str = ""
    device_endpoint: str = ""
    resource: str = ""
    """The resource of the token (RFC 8707); by default the server's own address."""
    audience: str = ""
    scope: str = ""
    origins: tuple[str, ...] = ()
    """Where a login may lead besides public https addresses: `http://localhost:9000`, `http://localhost:*`."""
    redirect_port: int = 0
    """The local port that the browser returns to; 0 takes a free one."""
    dpop: Dpop = "auto"
    identity_token: str = field(default="", repr=False)
    """The signed token to present for `jwt_bearer`, or to exchange for `enterprise_managed`."""
    identity_token_file: str = ""
    """A file that contains it instead, read for every request: platforms replace such files while the hub runs."""
    idp_issuer: str = ""
    """The company's identity provider, for `enterprise_managed`."""
    idp_token_endpoint: str = ""
    idp_client_id: str = ""
    """The hub's client id there, which may differ from its `client_id` at the server's authorization server."""
    idp_client_secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.grant not in get_args(Grant):
            raise ValueError(f"grant must be one of {', '.join(get_args(Grant))}, not {self.grant!r}")
        if self.dpop not in get_args(Dpop):
            raise ValueError(f"dpop must be one of {', '.join(get_args(Dpop))}, not {self.dpop!r}")
        for key in (
            "issuer",
            "token_endpoint",
            "authorization_endpoint",
            "device_endpoint",
            "resource",
            "idp_issuer",
            "idp_token_endpoint",
        ):
            _check_url(key, getattr(self, key), ("http", "https"))
        _check_url("client_metadata", self.client_metadata, ("https",))
        for key in ("client_id", "audience", "idp_client_id"):
            if getattr(self, key) and _VISIBLE.fullmatch(getattr(self, key)) is None:
                raise ValueError(f"{key} must be one line of printable ASCII")
        if self.scope and _SCOPE.fullmatch(self.scope) is None:
            raise ValueError(f"scope must be words separated by single spaces, not {self.scope!r}")
        for position, origin in enumerate(self.origins):
            if _ORIGIN.fullmatch(origin) is None:
                said = "a URL with a user" if "@" in origin else repr(origin)
                raise ValueError(f"origins.{position} must be like http://localhost:9000, not {said}")
        if not 0 <= self.redirect_port <= 65535:
            raise ValueError(f"redirect_port must be 0 to 65535, not {self.redirect_port}")
        self._check_client()
        self._check_identity_token()

    def _check_client(self) -> None:
        if self.client_secret and self.private_key:
            raise ValueError("client_secret must not be set beside private_key")
        if (self.client_secret or self.private_key) and not self.client_id:
            raise ValueError("client_id must be set beside client_secret or private_key")
        if self.grant in ("client_credentials", "token_exchange") and not (self.client_secret or self.private_key):
            raise ValueError(f"client_secret must be set, or private_key, for {self.grant}")
        if self.grant == "token_exchange" and not (self.issuer or self.token_endpoint):
            # Otherwise a server could name an authorization server of its own and receive callers' tokens.
            raise ValueError("issuer must be set, or token_endpoint, for token_exchange")
        if self.grant == "enterprise_managed":
            if not (self.idp_issuer or self.idp_token_endpoint):
                raise ValueError("idp_issuer must be set, or idp_token_endpoint, for enterprise_managed")
            if not self.idp_client_id:
                raise ValueError("idp_client_id must be set for enterprise_managed")
            if self.is_for_each and not (self.client_secret or self.private_key):
                # The server's lists are requested in the hub's own name.
                raise ValueError("client_secret must be set where callers' own tokens are exchanged")

    def _check_identity_token(self) -> None:
        if self.identity_token and self.identity_token_file:
            raise ValueError("identity_token must not be set beside identity_token_file")
        if self.identity_token and (_VISIBLE.fullmatch(self.identity_token) is None or " " in self.identity_token):
            raise ValueError("identity_token must be one word of printable ASCII")
        if self.identity_token_file and not PurePath(self.identity_token_file).is_absolute():
            # Not relative to a configuration file: it is opened long after that was read.
            raise ValueError(f"identity_token_file must be an absolute path, not {self.identity_token_file!r}")
        if self.grant == "jwt_bearer" and not self.has_identity_token:
            raise ValueError("identity_token_file must be set, or identity_token, for jwt_bearer")
        if self.has_identity_token and self.grant not in ("jwt_bearer", "enterprise_managed"):
            raise ValueError(f"identity_token must not be set for {self.grant}")

    @property
    def has_identity_token(self) -> bool:
        """Whether the operator configured an identity token."""
        return bool(self.identity_token or self.identity_token_file)

    @property
    def is_for_each(self) -> bool:
        """Whether every caller has a token of its own."""
        return self.grant == "token_exchange" or (self.grant == "enterprise_managed" and not self.has_identity_token)

    @property
    def shows_secrets(self) -> bool:
        """Whether the token endpoint receives something that would let its owner impersonate the hub elsewhere."""
        return bool(self.client_secret) or self.grant in ("jwt_bearer", "token_exchange")

    def allows(self, scheme: str, host: str, port: int) -> bool:
        """Whether the operator allows a login to lead to this origin."""
        named = (
            self.issuer,
            self.token_endpoint,
            self.authorization_endpoint,
            self.device_endpoint,
            self.idp_issuer,
            self.idp_token_endpoint,
        )
        for place in filter(None, (*named, *self.origins)):
            text = place.rstrip("/")
            parts = _split(text.removesuffix(":*"))
            if parts is None or (parts.scheme, parts.hostname.lower()) != (scheme, host):
                continue
            if text.endswith(":*") or port == (parts.port or {"http": 80, "https": 443}.get(parts.scheme)):
                return True
        return False


NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class OwnCredentials:
    """What a server receives when it is called in one caller's name."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    oauth: OAuthSettings | None = None


@dataclass(frozen=True, slots=True)
class ServerCredentials:
    """What a server receives beside its headers, and for which callers."""

    oauth: OAuthSettings | None = None
    own: Mapping[Subject, OwnCredentials] = field(default_factory=dict)
    """Callers that have credentials of their own."""
    are_demanded: bool = False
    """Whether a caller without credentials of its own is refused; otherwise it uses the common ones."""

    @property
    def is_divided(self) -> bool:
        """Whether callers use different credentials, so that they must not share links."""
        return bool(self.own) or self.are_demanded or (self.oauth is not None and self.oauth.is_for_each)

    def has_own(self, subject: Subject) -> bool:
        """Whether the server is called in this caller's own name."""
        return subject.at_large in self.own or (self.oauth is not None and self.oauth.is_for_each)

    @property
    def are_exchanged(self) -> bool:
        """Whether callers' tokens are exchanged, for at least some of them."""
        own = (each.oauth for each in self.own.values())
        return any(oauth is not None and oauth.is_for_each for oauth in (self.oauth, *own))


NO_CREDENTIALS = ServerCredentials()


def subject_of(text: str) -> Subject:
    """Parse `NAME`, or `TENANT/NAME` for another tenant than the default."""
    tenant, slash, name = text.partition("/")
    return Subject(tenant, name) if slash else Subject(DEFAULT_TENANT, text)


def written(subject: Subject) -> str:
    """The same as a key of a file; another tenant needs quotes."""
    is_usual = subject.tenant == DEFAULT_TENANT and "/" not in subject.name
    return subject.name if is_usual else f'"{subject.tenant}/{subject.name}"'


def _check_url(key: str, url: str, schemes: tuple[str, ...]) -> None:
    if not url:
        return
    parts = _split(url)
    if parts is None or parts.scheme not in schemes or not parts.hostname or "@" in parts.netloc:
        raise ValueError(f"{key} must be a URL with {' or '.join(schemes)}://")
    if parts.fragment or len(url) > URL_LENGTH_MAX:
        raise ValueError(f"{key} must have at most {URL_LENGTH_MAX} characters and no fragment")


def _split(url: str) -> _Parts | None:
    if not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        return _Parts(parts.scheme, parts.netloc, parts.hostname or "", parts.port, parts.fragment)
    except ValueError:
        return None


class _Parts(NamedTuple):
    scheme: str
    netloc: str
    hostname: str
    port: int | None
    fragment: str


ANYONE = OAuthSettings()
"""The login of a server without settings: everything is discovered."""
