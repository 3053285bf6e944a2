"""OAuth over HTTP: `/oauth/token`, and the documents under `/.well-known/` by which clients find it and the issuers.

A token request is authenticated by the caller's name and key; the documents are public. If the hub needs no keys,
all these paths return 404, because clients that find the documents try to log in.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote_plus

import msgspec
from msgspec import Struct

from isthmus.frontends.http.auth import SLOWED, TOO_MANY, Authenticator, Fields, Headers
from isthmus.frontends.http.request_cycle import JSON, PEER, Message, Peer, Receive, Send, header_lines, join_headers
from isthmus.frontends.oauth.discovery import (
    AUTHORIZE_PATH,
    RESOURCE_PATH,
    SERVER_PATH,
    TOKEN_PATH,
    TrustedIssuer,
    is_own_resource,
    place_in,
    resource_document,
    server_document,
)
from isthmus.model.callers import FrontendName

BODY_BYTES_MAX = 64 * 1024
PARAMETERS_MAX = 32
FORM = b"application/x-www-form-urlencoded"

_REPEATABLE = ("resource",)
"""RFC 8707 lets a client name several; RFC 6749 forbids to repeat anything else."""

Code: TypeAlias = Literal[
    "invalid_request",
    "invalid_client",
    "unsupported_grant_type",
    "invalid_target",
    "unsupported_response_type",
    "temporarily_unavailable",
]


Credentials: TypeAlias = tuple[tuple[str | None, str], ...]
"""A client's name, if it was given, and a key."""


class TokenError(Struct, frozen=True):
    """An error response of RFC 6749."""

    code: Code
    description: str
    status: int = 400
    retry_after: int = 0
    """Seconds to wait; 0 for none."""


class TokenRequest(Struct, frozen=True):
    """A token request."""

    credentials: Credentials
    """All possible readings of the credentials; one of them must be valid."""
    resources: tuple[str, ...]


def read_token_request(content_type: bytes, authorization: bytes | None, body: bytes) -> TokenRequest | TokenError:
    """Read a token request, or return what is wrong with it."""
    if content_type.partition(b";")[0].strip().lower() != FORM:
        return TokenError("invalid_request", f"The body must be {FORM.decode()}", 415)
    parameters = _parameters(body)
    if isinstance(parameters, TokenError):
        return parameters
    single = {name: values[0] for name, values in parameters.items()}
    if "grant_type" not in single:
        return TokenError("invalid_request", "grant_type is missing")
    if single["grant_type"] != "client_credentials":
        return TokenError("unsupported_grant_type", "The grant_type must be client_credentials")
    credentials = _credentials(authorization, single)
    if isinstance(credentials, TokenError):
        return credentials
    return TokenRequest(credentials, tuple(parameters.get("resource", ())))


def _parameters(body: bytes) -> dict[str, list[str]] | TokenError:
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=PARAMETERS_MAX,
        )
    except ValueError:  # UnicodeDecodeError is one
        return TokenError("invalid_request", "The body is not a form")
    counts = Counter(name for name, _ in pairs if name not in _REPEATABLE)
    if any(count > 1 for count in counts.values()):
        return TokenError("invalid_request", "A parameter is given twice")
    parameters: dict[str, list[str]] = {}
    for name, value in pairs:
        if value:  # an empty parameter counts as absent
            parameters.setdefault(name, []).append(value)
    return parameters


def _credentials(authorization: bytes | None, parameters: Mapping[str, str]) -> Credentials | TokenError:
    name, key = parameters.get("client_id"), parameters.get("client_secret")
    if authorization is None:
        # The official MCP client (1.x) posts its secret without its id; the key alone identifies the caller.
        return TokenError("invalid_client", "client_secret is missing", 401) if key is None else ((name, key),)
    if key is not None:
        return TokenError("invalid_request", "Send client_secret once, in the header or in the body")
    found = _basic(authorization)
    if found is None:
        return TokenError("invalid_client", "Authorization must be Basic, with the client's id and secret", 401)
    if name is not None and all(name != each for each, _ in found):
        return TokenError("invalid_request", "The client_id must be the same in the header and in the body")
    return found


def _basic(authorization: bytes) -> Credentials | None:
    """The name and key of a Basic header: form-encoded, as in RFC 6749, and plain, as many clients write them."""
    scheme, _, text = authorization.strip().partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        name, colon, key = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    if not (name and colon and key):
        return None
    return tuple(dict.fromkeys(((unquote_plus(name), unquote_plus(key)), (name, key))))


LIFETIME_SECONDS = 3600
"""The lifetime of tokens; the `TokenIssuer` uses the same."""

FRONTEND: FrontendName = "rest"
"""The frontend name under which denied token requests are counted."""

_PUBLIC: Headers = (
    (b"cache-control", b"public, max-age=300"),
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"access-control-allow-headers", b"Content-Type, MCP-Protocol-Version"),
    (b"vary", b"host"),
)
"""Readable by every web page, like by every client."""

_SECRET: Headers = ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))
_BASIC = (b"www-authenticate", b'Basic realm="isthmus"')


class TokenIssuer(Protocol):
    """Issues tokens for keys."""

    def token_for(self, name: str | None, key: str) -> str | None:
        """A token for the caller with this key; None if there is no such caller or `name` is another's."""

    def issues_tokens(self) -> bool:
        """Whether any caller has a key."""


class OauthHttp:
    """The frontend. `address` returns the hub's base URL; None if the hub needs no keys."""

    def __init__(
        self,
        auth: Authenticator,
        giver: TokenIssuer,
        address: Callable[[Fields], str | None],
        issuers: Callable[[], Sequence[TrustedIssuer]],
        algorithms: Sequence[str] = (),
    ) -> None:
        """`algorithms` are those of DPoP proofs (RFC 9449)."""
        self._auth = auth
        self._giver = giver
        self._address = address
        self._issuers = issuers
        self._algorithms = algorithms

    def is_at(self, path: str) -> bool:
        """Whether a path belongs to this frontend."""
        return path in (TOKEN_PATH, AUTHORIZE_PATH, SERVER_PATH) or path.startswith(RESOURCE_PATH)

    async def serve(self, scope: Message, receive: Receive, _: Send) -> None:
        """Answer one request."""
        peer: Peer = scope["extensions"][PEER]
        fields = join_headers(scope["headers"])
        base = self._address(fields)
        path: str = scope["path"]
        document: dict[str, Any] | None = None
        gives = base is not None and self._giver.issues_tokens()
        if base is not None and path == SERVER_PATH:
            document = server_document(base) if gives else None
        elif base is not None and (place := place_in(path)) is not None:
            document = resource_document(base, place, self._issuers(), gives_tokens=gives, algorithms=self._algorithms)
        if path == TOKEN_PATH and base is not None and gives:
            await self._token(peer, scope["method"], fields, receive, base)
        elif path == AUTHORIZE_PATH and base is not None and gives:
            _send_error(peer, TokenError("unsupported_response_type", f"Tokens are issued only at {base}{TOKEN_PATH}"))
        elif document is None:
            peer.answer(404, JSON, b'{"error":"Not found"}')
        elif scope["method"] == "OPTIONS":
            peer.answer(204, header_lines(_PUBLIC), b"")
        elif scope["method"] in ("GET", "HEAD"):
            peer.answer(200, JSON + header_lines(_PUBLIC), msgspec.json.encode(document))
        else:
            peer.answer(405, JSON + header_lines([(b"allow", b"GET, HEAD, OPTIONS")]), b'{"error":"Use GET"}')

    async def _token(self, peer: Peer, method: str, fields: Fields, receive: Receive, base: str) -> None:
        if (denied := self._auth.place(fields)) is not None:
            self._auth.on_turned_away(FRONTEND, denied.status)
            peer.answer(denied.status, JSON + header_lines(_SECRET), msgspec.json.encode({"error": denied.message}))
            return
        if method != "POST":
            peer.answer(405, JSON + header_lines([(b"allow", b"POST"), *_SECRET]), b'{"error":"invalid_request"}')
            return
        body = await _short_body(peer, fields, receive)
        if body is None:
            _send_error(peer, TokenError("invalid_request", f"The body must have {BODY_BYTES_MAX} bytes or less", 413))
            return
        made = self._issue(fields, body, base)
        if isinstance(made, TokenError):
            _send_error(peer, made)
            return
        answer = {"access_token": made, "token_type": "Bearer", "expires_in": LIFETIME_SECONDS}
        peer.answer(200, JSON + header_lines(_SECRET), msgspec.json.encode(answer))

    def _issue(self, fields: Fields, body: bytes, base: str) -> str | TokenError:
        wanted = read_token_request(fields.get(b"content-type", b""), fields.get(b"authorization"), body)
        if isinstance(wanted, TokenError):
            return wanted
        if not all(is_own_resource(resource, base, self._issuers()) for resource in wanted.resources):
            return TokenError("invalid_target", f"The resource must be {base} or an address below it")
        for name, key in wanted.credentials:
            if (token := self._giver.token_for(name, key)) is not None:
                return token
        seconds = self._auth.failed_auth_limit.failed_here()
        status = TOO_MANY if seconds else 401
        self._auth.on_turned_away(FRONTEND, status)
        if seconds:
            return TokenError("temporarily_unavailable", SLOWED, status, seconds)
        return TokenError("invalid_client", "No caller of this name has this key", status)


def _send_error(peer: Peer, refused: TokenError) -> None:
    challenge = (_BASIC,) if refused.code == "invalid_client" else ()
    later = ((b"retry-after", b"%d" % refused.retry_after),) if refused.retry_after else ()
    body = msgspec.json.encode({"error": refused.code, "error_description": refused.description})
    peer.answer(refused.status, JSON + header_lines((*_SECRET, *challenge, *later)), body)


async def _short_body(peer: Peer, fields: Fields, receive: Receive) -> bytes | None:
    """The body; None if it is too long."""
    length = fields.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 9 or int(length) > BODY_BYTES_MAX:
        return None
    if (whole := peer.take_body()) is not None:
        return whole if len(whole) <= BODY_BYTES_MAX else None
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return bytes(body)
