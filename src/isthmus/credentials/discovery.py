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


class TokenSource(msgspec.Struct, frozen=True):
    """Where tokens for a server come from: its authorization server, the resource to name, the scopes to request."""

    server: ServerMetadata
    resource: str
    scope: str = ""
    is_bound: bool = False
    """Whether tokens should be bound to a key (RFC 9449)."""


async def find_token_source(fetcher: Fetcher, url: str, settings: OAuthSettings) -> TokenSource:
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
        return TokenSource(server, resource, is_bound=settings.dpop == "always")
    try:
        if settings.issuer:
            server = await _metadata_of_issuer(fetcher, settings.issuer, settings)
            # Only the server knows whether it accepts bound tokens; it is asked where that matters.
            is_open = server.binds_tokens and settings.dpop == "auto"
            challenge = (await _challenge(fetcher, url))[0] if is_open else Challenge()
            return TokenSource(server, resource, is_bound=_is_bound(settings, server, challenge, None))
        challenge, is_login_required = await _challenge(fetcher, url)
        metadata = await _resource_metadata(fetcher, url, challenge)
        if metadata is None:
            server = await _own_authorization_server(fetcher, url, settings, is_login_required=is_login_required)
            return TokenSource(server, resource, challenge.scope, _is_bound(settings, server, challenge, None))
        server = await _first_usable_server(fetcher, metadata, settings)
    except (UrlRefused, FetchFailed) as failed:
        raise DiscoveryFailed(str(failed)) from failed
    scope = challenge.scope or " ".join(word for word in metadata.scopes_supported if _SCOPE_WORD.fullmatch(word))
    named = resource if settings.resource else metadata.resource or resource
    return TokenSource(server, named, scope, _is_bound(settings, server, challenge, metadata))


def _is_bound(
    settings: OAuthSettings, server: ServerMetadata, challenge: Challenge, metadata: ResourceMetadata | None
) -> bool:
    """Whether to request bound tokens: as configured, else if both servers support them.

    An authorization server that binds tokens may serve servers that only accept bearer tokens; these would refuse a
    bound one.
    """
    if settings.dpop != "auto":
        return settings.dpop == "always"
    if metadata is not None and metadata.dpop_bound_access_tokens_required:
        return True
    accepts_bound = challenge.wants_proof or (
        metadata is not None and ALGORITHM in metadata.dpop_signing_alg_values_supported
    )
    return accepts_bound and server.binds_tokens


async def find_issuer(fetcher: Fetcher, issuer: str) -> ServerMetadata:
    """The metadata of a configured authorization server.

    Raises:
        DiscoveryFailed: there is no usable metadata.
    """
    try:
        return await _metadata_of_issuer(fetcher, issuer, OAuthSettings())
    except (UrlRefused, FetchFailed) as failed:
        raise DiscoveryFailed(str(failed)) from failed


# -- the server's metadata --------------------------------------------------------------------------------------------


async def _challenge(fetcher: Fetcher, url: str) -> tuple[Challenge, bool]:
    """The challenge to a request without a token, and whether the server refused the request."""
    try:
        probed = await fetcher.post_json("the server", url, PROBE, PROBE_HEADERS)
    except FetchFailed:
        return Challenge(), False
    if probed.status not in (UNAUTHORIZED, FORBIDDEN):
        return Challenge(), False
    return read_challenge(probed.headers.get("www-authenticate", "")), True


async def _resource_metadata(fetcher: Fetcher, url: str, challenge: Challenge) -> ResourceMetadata | None:
    """The server's metadata, from the challenge's address or the well-known ones; None if no address has it."""
    if challenge.resource_metadata:
        response = await fetcher.get("what its challenge names", challenge.resource_metadata)
        return _decode_resource(response, url) if response.status == OK else None
    origin, path = _parts(url)
    for place in dict.fromkeys(
        (f"/.well-known/oauth-protected-resource{path}", "/.well-known/oauth-protected-resource")
    ):
        response = await fetcher.get("its metadata", origin + place)
        if response.status == OK:
            return _decode_resource(response, url)
    return None


def _decode_resource(response: HttpResponse, url: str) -> ResourceMetadata:
    metadata = _decoded(response, ResourceMetadata, "its metadata")
    if not _covers(metadata.resource, url):
        raise DiscoveryFailed("its metadata describes another resource than the configured address")
    return metadata


def _covers(resource: str, url: str) -> bool:
    """Whether metadata describes the server at this address: same origin, and its path or a parent."""
    try:
        (resource_origin, above), (own_origin, path) = _parts(resource), _parts(url)
    except ValueError:
        return False
    return resource_origin == own_origin and f"{path}/".startswith(f"{above}/")


def _parts(url: str) -> tuple[str, str]:
    """An address's normalized origin, and its path without the last slash."""
    parts = urlsplit(url)
    port = {"http": 80, "https": 443}.get(parts.scheme)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    shown = "" if parts.port in (None, port) else f":{parts.port}"
    return f"{parts.scheme}://{host}{shown}", parts.path.rstrip("/")


# -- the authorization server's metadata -------------------------------------------------------------------------------


async def _first_usable_server(fetcher: Fetcher, metadata: ResourceMetadata, settings: OAuthSettings) -> ServerMetadata:
    if not metadata.authorization_servers:
        raise DiscoveryFailed("its metadata names no authorization server")
    refusals: list[str] = []
    for issuer in metadata.authorization_servers[:SERVERS_MAX]:
        try:
            if settings.shows_secrets and not fetcher.is_named(issuer):
                # Otherwise any server could name its own authorization server and receive the secret.
                owner = (
                    "who gave the client_secret" if settings.client_secret else "the one that identity tokens are for"
                )
                raise DiscoveryFailed(f"it names {issuer}, which is not trusted; set issuer to {owner}")
            return await _metadata_of_issuer(fetcher, issuer, settings)
        except (UrlRefused, FetchFailed, DiscoveryFailed) as failed:
            refusals.append(str(failed))
    raise DiscoveryFailed("; ".join(refusals))


async def _metadata_of_issuer(fetcher: Fetcher, issuer: str, settings: OAuthSettings) -> ServerMetadata:
    fetcher.check("the issuer", issuer)
    for place in metadata_urls(issuer):
        response = await fetcher.get("the authorization server", place)
        if response.status == OK:
            metadata = _decoded(response, ServerMetadata, "the authorization server's metadata")
            if metadata.issuer != issuer:
                raise DiscoveryFailed("the authorization server's metadata names another issuer")
            if not metadata.token_endpoint:
                raise DiscoveryFailed("the authorization server's metadata names no token_endpoint")
            for name in _ENDPOINTS:
                if url := getattr(metadata, name):
                    await fetcher.check_place(f"its {name}", url)
            # Configured endpoints override discovered ones.
            return msgspec.structs.replace(
                metadata,
                authorization_endpoint=settings.authorization_endpoint or metadata.authorization_endpoint,
                device_authorization_endpoint=settings.device_endpoint or metadata.device_authorization_endpoint,
            )
        if response.status not in NOT_THERE:
            raise DiscoveryFailed(f"the metadata request to the authorization server failed: HTTP {response.status}")
    raise DiscoveryFailed("the authorization server has no metadata; configure its token_endpoint")


def metadata_urls(issuer: str) -> list[str]:
    """The possible addresses of an issuer's metadata, in order of preference (RFC 8414 and OpenID Connect)."""
    origin, path = _parts(issuer)
    urls = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
    ]
    return [*urls, f"{origin}{path}/.well-known/openid-configuration"] if path else urls


async def _own_authorization_server(
    fetcher: Fetcher, url: str, settings: OAuthSettings, *, is_login_required: bool
) -> ServerMetadata:
    """The server itself: under the 2025-03-26 revision servers issue their own tokens, with or without metadata."""
    origin, _ = _parts(url)
    try:
        return await _metadata_of_issuer(fetcher, origin, settings)
    except DiscoveryFailed:
        if not is_login_required:
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


def _decoded(response: HttpResponse, kind: type[M], what: str) -> M:
    try:
        members = msgspec.json.decode(response.body, type=dict[str, msgspec.Raw])
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
    if (scheme := _SCHEME.search(header)) is None:
        return Challenge()
    given: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(header[scheme.end() :]):
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
