"""Client authentication at token endpoints, and dynamic client registration (RFC 7591).

The registration request is the only I/O here.
"""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import msgspec

from isthmus.credentials.client_assertion import assertion_of
from isthmus.credentials.discovery import ServerMetadata
from isthmus.credentials.fetch import Fetcher
from isthmus.credentials.tokens import OAuthClient
from isthmus.model.credentials import OAuthSettings

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
CREATED = (200, 201)
BASIC, POST, NONE, SIGNED = "client_secret_basic", "client_secret_post", "none", "private_key_jwt"

Proof = tuple[dict[str, str], dict[str, str]]
"""Form fields and headers."""


class NoClient(Exception):
    """The hub is no client of this authorization server and cannot register; the message says what to do."""


def proof_of(client: OAuthClient, settings: OAuthSettings, server: ServerMetadata) -> Proof:
    """The form fields and headers that authenticate the client."""
    method = _method(client, settings, server)
    if method == SIGNED:
        signed = assertion_of(client.id, settings.private_key, server.issuer or server.token_endpoint)
        return {"client_id": client.id, "client_assertion_type": ASSERTION_TYPE, "client_assertion": signed}, {}
    if method == BASIC:
        pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
        return {}, {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    secret = {"client_secret": client.secret} if method == POST else {}
    # With an assertion as the grant, client authentication is optional (RFC 7521).
    return {**({"client_id": client.id} if client.id else {}), **secret}, {}


def _method(client: OAuthClient, settings: OAuthSettings, server: ServerMetadata) -> str:
    if settings.private_key:
        return SIGNED
    if not client.secret:
        return NONE
    if client.method in (BASIC, POST, NONE):
        return client.method
    known = server.token_endpoint_auth_methods_supported
    return POST if POST in known and BASIC not in known else BASIC


# -- becoming a client --------------------------------------------------------------------------------------------


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
    said = await fetcher.post_json("its registration_endpoint", server.registration_endpoint, json.dumps(wish).encode())
    if said.status not in CREATED:
        raise NoClient(f"the authorization server refused the registration (HTTP {said.status}); configure a client_id")
    try:
        made = msgspec.json.decode(said.body, type=_Registered)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise NoClient("the authorization server's registration response is malformed") from None
    return OAuthClient(made.client_id, made.client_secret or "", made.token_endpoint_auth_method or method, redirect)
