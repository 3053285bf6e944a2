"""How the hub becomes a client of an authorization server: configured, by metadata document, or registered (RFC 7591).

`app.login` calls this. The requests for tokens are in `credentials.token_endpoint`.
"""

from __future__ import annotations

import json

import msgspec

from isthmus.credentials.discovery import ServerMetadata
from isthmus.credentials.fetch import Fetcher
from isthmus.model.credentials import OAuthSettings

CREATED = (200, 201)
BASIC, POST, NONE = "client_secret_basic", "client_secret_post", "none"
"""Authentication methods at a token endpoint."""


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


class NoClient(Exception):
    """The hub is no client of this authorization server and cannot register; the message says what to do."""


async def client_for(
    fetcher: Fetcher, server: ServerMetadata, settings: OAuthSettings, known: OAuthClient | None, redirect: str
) -> OAuthClient:
    """Find the hub's client: configured, a metadata document, registered earlier, or registered now.

    `known` is an earlier registration at this issuer. Raises `NoClient`, `UrlRefused` or `FetchFailed`.
    """
    if settings.client_id:
        return OAuthClient(settings.client_id, settings.client_secret, redirect=redirect)
    if settings.client_metadata and server.client_id_metadata_document_supported:
        return OAuthClient(settings.client_metadata, method=NONE, redirect=redirect)
    if known is not None:
        return known
    if not server.registration_endpoint:
        raise NoClient("the authorization server does not support registration; configure a client_id")
    return await _register(fetcher, server, redirect)


class _Registered(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


async def _register(fetcher: Fetcher, server: ServerMetadata, redirect: str) -> OAuthClient:
    known = server.token_endpoint_auth_methods_supported or [BASIC]
    method = next((way for way in (NONE, BASIC, POST) if way in known), NONE)
    grants = ["authorization_code", "refresh_token"]
    if server.device_authorization_endpoint:
        grants.append("urn:ietf:params:oauth:grant-type:device_code")
    wish = {
        "client_name": "Isthmus",
        "application_type": "native",
        "redirect_uris": [redirect],
        "grant_types": grants,
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    }
    request = json.dumps(wish).encode()
    response = await fetcher.post_json("its registration_endpoint", server.registration_endpoint, request)
    if response.status not in CREATED:
        refusal = f"the authorization server refused the registration (HTTP {response.status})"
        raise NoClient(f"{refusal}; configure a client_id")
    try:
        made = msgspec.json.decode(response.body, type=_Registered)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise NoClient("the authorization server's registration response is malformed") from None
    return OAuthClient(made.client_id, made.client_secret or "", made.token_endpoint_auth_method or method, redirect)
