"""Finds the authorization server of an MCP server, from the server's challenge to the OAuth endpoints.

The challenge is the WWW-Authenticate header of a refused request (RFC 6750, RFC 9728). RFC 9728 leads from the server
to an issuer, and RFC 8414 or OpenID Connect from there to its endpoints. Configured values are not looked up. Each
document must be about its own source: otherwise a server could request tokens for another server, or an authorization
server could impersonate another. `app.login` and `logins` call this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from isthmus.credentials.fetch import Fetcher, FetchFailed, UrlRefused
from isthmus.credentials.signed_jwts import ALGORITHM
from isthmus.model.credentials import OAuthSettings
from isthmus.transport.http_client import HttpResponse

OK = 200
NOT_THERE = (400, 404, 405, 410)
UNAUTHORIZED = 401
FORBIDDEN = 403

PKCE = "S256"
PROBE = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}'
"""Sent without a token in order to be refused: the challenge may contain the metadata's address."""

PROBE_HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
_ENDPOINTS = ("token_endpoint", "authorization_endpoint", "registration_endpoint", "device_authorization_endpoint")
_SCOPE_WORD = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""One scope (RFC 6749, section 3.3)."""

SERVERS_MAX = 8
"""How many authorization servers of a resource's metadata are considered."""


class DiscoveryFailed(Exception):
    """The authorization server cannot be found; the message tells the operator why."""


class ResourceMetadata(msgspec.Struct, frozen=True):
    """The metadata of a server (RFC 9728)."""

    resource: str
    authorization_servers: list[str] = []
    scopes_supported: list[str] = []
    dpop_signing_alg_values_supported: list[str] = []
    dpop_bound_access_tokens_required: bool = False


class ServerMetadata(msgspec.Struct, frozen=True):
    """The metadata of an authorization server (RFC 8414), as far as the hub uses it."""

    issuer: str = ""
    token_endpoint: str = ""
    authorization_endpoint: str = ""
    registration_endpoint: str = ""
    device_authorization_endpoint: str = ""
    scopes_supported: list[str] = []
    code_challenge_methods_supported: list[str] = []
    token_endpoint_auth_methods_supported: list[str] = []
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False
    dpop_signing_alg_values_supported: list[str] = []

    @property
    def binds_tokens(self) -> bool:
        """Whether it can bind tokens to the hub's kind of key (RFC 9449)."""
        return ALGORITHM in self.dpop_signing_alg_values_supported


class ServerAddress(msgspec.Struct, frozen=True):
    """The authorization server, the resource that tokens are for, and the scopes that the server wants."""

    server: ServerMetadata
    resource: str
    scope: str = ""
    is_bound: bool = False
    """Whether tokens should be bound to a key (RFC 9449)."""


async def find_place(fetcher: Fetcher, url: str, settings: OAuthSettings) -> ServerAddress:
    """Find the authorization server of the server at this address.

    Raises:
        DiscoveryFailed: no authorization server was found, or it cannot be used.
    """
    resource = settings.resource or without_fragment(url)
    if settings.token_endpoint:
        server = ServerMetadata(
            issuer=settings.issuer,
            token_endpoint=settings.token_endpoint,
            authorization_endpoint=settings.authorization_endpoint,
            device_authorization_endpoint=settings.device_endpoint,
            code_challenge_methods_supported=[PKCE],
        )
        return ServerAddress(server, resource, is_bound=settings.dpop == "always")
    try:
        if settings.issuer:
            server = await _server(fetcher, settings.issuer, settings)
            # Only the server knows whether it accepts bound tokens; it is asked where that matters.
            is_open = server.binds_tokens and settings.dpop == "auto"
            challenge = (await _challenge(fetcher, url))[0] if is_open else Challenge()
            return ServerAddress(server, resource, is_bound=_is_bound(settings, server, challenge, None))
        challenge, is_shut = await _challenge(fetcher, url)
        found = await _resource(fetcher, url, challenge)
        if found is None:
            server = await _server_beside(fetcher, url, settings, is_shut=is_shut)
            return ServerAddress(server, resource, challenge.scope, _is_bound(settings, server, challenge, None))
        server = await _server_of(fetcher, found, settings)
    except (UrlRefused, FetchFailed) as failed:
        raise DiscoveryFailed(str(failed)) from failed
    scope = challenge.scope or " ".join(word for word in found.scopes_supported if _SCOPE_WORD.fullmatch(word))
    named = resource if settings.resource else found.resource or resource
    return ServerAddress(server, named, scope, _is_bound(settings, server, challenge, found))


def _is_bound(
    settings: OAuthSettings, server: ServerMetadata, challenge: Challenge, found: ResourceMetadata | None
) -> bool:
    """Whether to request bound tokens: as configured, else if both servers support them.

    An authorization server that binds tokens may serve servers that only accept bearer tokens; these would refuse a
    bound one.
    """
    if settings.dpop != "auto":
        return settings.dpop == "always"
    if found is not None and found.dpop_bound_access_tokens_required:
        return True
    is_known = challenge.wants_proof or (found is not None and ALGORITHM in found.dpop_signing_alg_values_supported)
    return is_known and server.binds_tokens


async def find_issuer(fetcher: Fetcher, issuer: str) -> ServerMetadata:
    """The metadata of a configured authorization server.

    Raises:
        DiscoveryFailed: there is no usable metadata.
    """
    try:
        return await _server(fetcher, issuer, OAuthSettings())
    except (UrlRefused, FetchFailed) as failed:
        raise DiscoveryFailed(str(failed)) from failed


# -- the server's metadata --------------------------------------------------------------------------------------------


async def _challenge(fetcher: Fetcher, url: str) -> tuple[Challenge, bool]:
    """The challenge to a request without a token, and whether the server refused the request."""
    try:
        asked = await fetcher.post_json("the server", url, PROBE, PROBE_HEADERS)
    except FetchFailed:
        return Challenge(), False
    if asked.status not in (UNAUTHORIZED, FORBIDDEN):
        return Challenge(), False
    return read_challenge(asked.headers.get("www-authenticate", "")), True


async def _resource(fetcher: Fetcher, url: str, challenge: Challenge) -> ResourceMetadata | None:
    """The server's metadata, from the challenge's address or the well-known ones; None if no address has it."""
    if challenge.resource_metadata:
        said = await fetcher.get("what its challenge names", challenge.resource_metadata)
        return _checked_resource(said, url) if said.status == OK else None
    origin, path = _parts(url)
    for place in dict.fromkeys(
        (f"/.well-known/oauth-protected-resource{path}", "/.well-known/oauth-protected-resource")
    ):
        said = await fetcher.get("its metadata", origin + place)
        if said.status == OK:
            return _checked_resource(said, url)
    return None


def _checked_resource(said: HttpResponse, url: str) -> ResourceMetadata:
    found = _decoded(said, ResourceMetadata, "its metadata")
    if not _covers(found.resource, url):
        raise DiscoveryFailed("its metadata describes another resource than the configured address")
    return found


def _covers(resource: str, url: str) -> bool:
    """Whether metadata describes the server at this address: same origin, and its path or a parent."""
    try:
        (said, above), (own, path) = _parts(resource), _parts(url)
    except ValueError:
        return False
    return said == own and f"{path}/".startswith(f"{above}/")


def _parts(url: str) -> tuple[str, str]:
    """An address's normalized origin, and its path without the last slash."""
    parts = urlsplit(url)
    port = {"http": 80, "https": 443}.get(parts.scheme)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    shown = "" if parts.port in (None, port) else f":{parts.port}"
    return f"{parts.scheme}://{host}{shown}", parts.path.rstrip("/")


# -- the authorization server's metadata -------------------------------------------------------------------------------


async def _server_of(fetcher: Fetcher, found: ResourceMetadata, settings: OAuthSettings) -> ServerMetadata:
    if not found.authorization_servers:
        raise DiscoveryFailed("its metadata names no authorization server")
    refusals: list[str] = []
    for issuer in found.authorization_servers[:SERVERS_MAX]:
        try:
            if settings.shows_secrets and not fetcher.is_named(issuer):
                # Otherwise any server could name its own authorization server and receive the secret.
                owner = (
                    "who gave the client_secret" if settings.client_secret else "the one that identity tokens are for"
                )
                raise DiscoveryFailed(f"it names {issuer}, which is not trusted; set issuer to {owner}")
            return await _server(fetcher, issuer, settings)
        except (UrlRefused, FetchFailed, DiscoveryFailed) as failed:
            refusals.append(str(failed))
    raise DiscoveryFailed("; ".join(refusals))


async def _server(fetcher: Fetcher, issuer: str, settings: OAuthSettings) -> ServerMetadata:
    fetcher.check("the issuer", issuer)
    for place in metadata_urls(issuer):
        said = await fetcher.get("the authorization server", place)
        if said.status == OK:
            found = _decoded(said, ServerMetadata, "the authorization server's metadata")
            if found.issuer != issuer:
                raise DiscoveryFailed("the authorization server's metadata names another issuer")
            if not found.token_endpoint:
                raise DiscoveryFailed("the authorization server's metadata names no token_endpoint")
            for name in _ENDPOINTS:
                if url := getattr(found, name):
                    await fetcher.check_place(f"its {name}", url)
            # Configured endpoints override discovered ones.
            return msgspec.structs.replace(
                found,
                authorization_endpoint=settings.authorization_endpoint or found.authorization_endpoint,
                device_authorization_endpoint=settings.device_endpoint or found.device_authorization_endpoint,
            )
        if said.status not in NOT_THERE:
            raise DiscoveryFailed(f"the metadata request to the authorization server failed: HTTP {said.status}")
    raise DiscoveryFailed("the authorization server has no metadata; configure its token_endpoint")


def metadata_urls(issuer: str) -> list[str]:
    """The possible addresses of an issuer's metadata, in order of preference (RFC 8414 and OpenID Connect)."""
    origin, path = _parts(issuer)
    urls = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
    ]
    return [*urls, f"{origin}{path}/.well-known/openid-configuration"] if path else urls


async def _server_beside(fetcher: Fetcher, url: str, settings: OAuthSettings, *, is_shut: bool) -> ServerMetadata:
    """Servers of the 2025-03-26 revision are their own authorization servers, with or without metadata."""
    origin, _ = _parts(url)
    try:
        return await _server(fetcher, origin, settings)
    except DiscoveryFailed:
        if not is_shut:
            raise DiscoveryFailed("it does not require a login and publishes no metadata for one") from None
    return ServerMetadata(
        issuer="",
        token_endpoint=f"{origin}/token",
        authorization_endpoint=f"{origin}/authorize",
        registration_endpoint=f"{origin}/register",
        code_challenge_methods_supported=[PKCE],
    )


# -- documents --------------------------------------------------------------------------------------------------------

M = TypeVar("M", ResourceMetadata, ServerMetadata)


def _decoded(said: HttpResponse, kind: type[M], what: str) -> M:
    try:
        members = msgspec.json.decode(said.body, type=dict[str, msgspec.Raw])
        known = {name: raw for name, raw in members.items() if name in kind.__struct_fields__ and bytes(raw) != b"null"}
        return msgspec.convert({name: msgspec.json.decode(raw) for name, raw in known.items()}, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise DiscoveryFailed(f"{what} cannot be read") from None


def without_fragment(url: str) -> str:
    """The address in the form of a resource indicator (RFC 8707)."""
    return url.partition("#")[0]


# -- challenges -------------------------------------------------------------------------------------------------


SCOPE_LENGTH_MAX = 1_000

_SCHEME = re.compile(r"(?:^|,)\s*(?:bearer|dpop)\b", re.IGNORECASE)
_DPOP = re.compile(r"(?:^|,)\s*dpop\b(?!\s*=)", re.IGNORECASE)
_PARAMETER = re.compile(r'\b(resource_metadata|scope|error)\s*=\s*(?:"([^"\\]*)"|([^\s,"]+))', re.IGNORECASE)
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*")
_ERROR = re.compile(r"[a-z_]{1,64}")


@dataclass(frozen=True, slots=True)
class Challenge:
    """The parameters of a challenge that the hub uses; empty if they were absent."""

    resource_metadata: str = ""
    scope: str = ""
    error: str = ""
    wants_proof: bool = False
    """Whether the server accepts tokens that are bound to a key (RFC 9449)."""


def read_challenge(header: str) -> Challenge:
    """Read a WWW-Authenticate header, starting at the first challenge for a token."""
    if (found := _SCHEME.search(header)) is None:
        return Challenge()
    given: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(header[found.end() :]):
        given.setdefault(name.lower(), quoted or bare)
    scope, error = given.get("scope", ""), given.get("error", "")
    return Challenge(
        resource_metadata=given.get("resource_metadata", ""),
        scope=scope if len(scope) <= SCOPE_LENGTH_MAX and _SCOPE.fullmatch(scope) else "",
        error=error if _ERROR.fullmatch(error) else "",
        wants_proof=_DPOP.search(header) is not None,
    )


def joined(*scopes: str) -> str:
    """Join several scopes without duplicates, in order."""
    return " ".join(dict.fromkeys(word for scope in scopes for word in scope.split()))
