"""Requests to a token endpoint: client authentication, one request for each grant, the tokens.

`resource` is sent with all of them (RFC 8707), so that a token is valid at one server only. The hub becomes
a client in `credentials.client_registration`. `StoredLogin` is what `vault` encrypts. `server_logins`,
`interactive_login` and `app.login` call this.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from isthmus.credentials.client_registration import BASIC, NONE, POST, OAuthClient
from isthmus.credentials.discovery import ServerMetadata
from isthmus.credentials.fetch import Fetcher, FetchFailed
from isthmus.credentials.signed_jwts import SCHEME, USE_NONCE, Prover, assertion_of
from isthmus.model.credentials import OAuthSettings
from isthmus.transport.http_client import HttpResponse

# -- tokens ----------------------------------------------------------------------------------------------------


TOKEN_LENGTH_MAX = 16 * 1024


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


ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

Proof = tuple[dict[str, str], dict[str, str]]
"""Form fields and headers."""


def proof_of(client: OAuthClient, settings: OAuthSettings, server: ServerMetadata) -> Proof:
    """The form fields and headers that authenticate the client."""
    known = server.token_endpoint_auth_methods_supported
    if settings.private_key:
        signed = assertion_of(client.id, settings.private_key, server.issuer or server.token_endpoint)
        return {"client_id": client.id, "client_assertion_type": ASSERTION_TYPE, "client_assertion": signed}, {}
    if not client.secret:
        method = NONE
    elif client.method in (BASIC, POST, NONE):
        method = client.method
    else:
        method = POST if POST in known and BASIC not in known else BASIC
    if method == BASIC:
        pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
        return {}, {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    secret = {"client_secret": client.secret} if method == POST else {}
    # With an assertion as the grant, client authentication is optional (RFC 7521).
    return {**({"client_id": client.id} if client.id else {}), **secret}, {}


# -- grants -----------------------------------------------------------------------------------------------------


OK = 200
TEMPORARY = (408, 425, 429)
"""Statuses after which the same request may succeed later, as after those of server errors."""
REFUSALS = (400, 401)
"""Statuses of a token endpoint's refusal; other ones without an OAuth error may come from a proxy."""
SERVER_ERROR = 500

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - the name of a kind
SUBJECT_TYPE = "urn:ietf:params:oauth:token-type:jwt"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
"""An identity assertion: a company's identity provider permits a person a token of another authorization server."""

WORDS_LENGTH_MAX = 200
SECRET_LENGTH_MIN = 8
BEGINNING = 16
"""The length of a secret's start that identifies it in a text."""

LIFE_SECONDS_MAX = 10 * 365 * 86_400.0
"""The maximum assumed lifetime of a token, whatever the server says."""

_CODE = re.compile(r"[a-z_]{1,64}")


class GrantRefused(Exception):
    """The authorization server refused permanently; `code` is its error code."""

    def __init__(self, code: str, words: str = "") -> None:
        super().__init__(f"{code} ({words})" if words else code)
        self.code = code


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """A token endpoint, with the client, the resource and the scope of requests."""

    fetcher: Fetcher
    server: ServerMetadata
    client: OAuthClient
    settings: OAuthSettings
    resource: str
    prover: Prover | None = None
    """Binds tokens to a key (RFC 9449); None requests bearer tokens."""

    async def by_client(self, scope: str) -> StoredToken:
        """Request a token for the hub itself. All requests raise `GrantRefused`, `FetchFailed` or `UrlRefused`."""
        return await self._token({"grant_type": "client_credentials", **_scope(scope), **self._audience()})

    async def by_code(self, code: str, verifier: str) -> StoredToken:
        """Request a token for an authorization code."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self.client.redirect}
        return await self._token({**form, "code_verifier": verifier})

    async def by_device(self, code: str) -> StoredToken:
        """Request the token of a device flow, if the person has agreed by now (RFC 8628)."""
        return await self._token({"grant_type": DEVICE, "device_code": code})

    async def by_refresh(self, token: StoredToken) -> StoredToken:
        """Refresh a token. If the response has no refresh token, the present one stays."""
        got = await self._token({"grant_type": "refresh_token", "refresh_token": token.refresh})
        return msgspec.structs.replace(got, refresh=got.refresh or token.refresh, scope=got.scope or token.scope)

    async def by_exchange(self, subject_token: str, scope: str) -> StoredToken:
        """Exchange the `subject_token` for a token of the server in its owner's name (RFC 8693)."""
        form = {
            "grant_type": EXCHANGE,
            "subject_token": subject_token,
            "subject_token_type": SUBJECT_TYPE,
            "requested_token_type": ACCESS_TOKEN,
        }
        return await self._token({**form, **_scope(scope), **self._audience()})

    async def by_assertion(self, assertion: str, scope: str) -> StoredToken:
        """Request a token for a signed assertion of a workload platform or an identity provider (RFC 7523)."""
        return await self._token({"grant_type": JWT_BEARER, "assertion": assertion, **_scope(scope)})

    async def id_jag(self, identity_token: str, audience: str, scope: str) -> str:
        """Request an identity assertion (ID-JAG) for another authorization server, the `audience`.

        This endpoint must be the identity provider's.
        """
        form = {
            "grant_type": EXCHANGE,
            "subject_token": identity_token,
            "subject_token_type": ID_TOKEN,
            "requested_token_type": ID_JAG,
            "audience": audience,
        }
        response, secret = await self._send_with_nonce({**form, **_scope(scope)})
        if response.status != OK:
            raise read_refusal(response, secret)
        try:
            answer = msgspec.json.decode(response.body, type=_Grant)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise FetchFailed("the identity provider's response is malformed") from None
        if answer.issued_token_type != ID_JAG or not is_token(answer.access_token):
            # The other authorization server must not see an access token, for example.
            raise GrantRefused("unsupported_token_type", "the identity provider did not issue an ID-JAG")
        return answer.access_token

    def _audience(self) -> dict[str, str]:
        return {"audience": self.settings.audience} if self.settings.audience else {}

    async def _token(self, form: Mapping[str, str]) -> StoredToken:
        response, secret = await self._send_with_nonce(form)
        if response.status != OK:
            raise read_refusal(response, secret)
        token = read_token_response(response, can_be_bound=self.prover is not None)
        if self.settings.dpop == "always" and not token.is_bound:
            raise GrantRefused("unsupported_token_type", "it issued a bearer token, but dpop is required")
        return token

    async def _send_with_nonce(self, form: Mapping[str, str]) -> tuple[HttpResponse, list[str]]:
        """Send a form; return the response and the form's secrets, which no message may contain."""
        response, secret = await self._send(form)
        if self.prover is None or not self.prover.set_nonce(self.server.token_endpoint, response.headers):
            return response, secret
        if response.status in REFUSALS and _error(response).error == USE_NONCE:
            # Nothing was consumed (RFC 9449, section 8): retry with the server's nonce.
            response, secret = await self._send(form)
            self.prover.set_nonce(self.server.token_endpoint, response.headers)
        return response, secret

    async def _send(self, form: Mapping[str, str]) -> tuple[HttpResponse, list[str]]:
        place = self.server.token_endpoint
        fields, headers = proof_of(self.client, self.settings, self.server)
        sent = {**form, "resource": self.resource, **fields}
        if self.prover is not None:
            headers = {**headers, "dpop": self.prover.proof("POST", place)}
        response = await self.fetcher.post("the token endpoint", place, sent, headers)
        return response, [*(value for name, value in sent.items() if name not in _PUBLIC), self.client.secret]


def _scope(scope: str) -> dict[str, str]:
    return {"scope": scope} if scope else {}


class _TokenResponse(msgspec.Struct):
    access_token: str
    token_type: str = "Bearer"  # noqa: S105 - the name of a kind
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None


def read_token_response(response: HttpResponse, *, can_be_bound: bool = False) -> StoredToken:
    """Return the token of a successful response. Raises `FetchFailed` or `GrantRefused`."""
    try:
        answer = msgspec.json.decode(response.body, type=_TokenResponse)
        seconds = 0.0 if answer.expires_in is None else float(answer.expires_in)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        raise FetchFailed("the token endpoint's response is malformed") from None
    kind = answer.token_type.lower()
    if kind != "bearer" and not (kind == SCHEME and can_be_bound):
        raise GrantRefused("unsupported_token_type", "it is no bearer token")
    for text in (answer.access_token, answer.refresh_token or "-"):
        if not is_token(text):
            raise FetchFailed("the token endpoint issued a token that is not valid in a header")
    now = time.time()
    # A lifetime of zero is unknown.
    until = now + min(seconds, LIFE_SECONDS_MAX) if seconds > 0 else None
    is_bound = kind == SCHEME
    return StoredToken(answer.access_token, until, now, answer.refresh_token or "", answer.scope or "", is_bound)


class _Grant(msgspec.Struct):
    access_token: str
    issued_token_type: str = ""


def is_token(text: str) -> bool:
    """Whether a text has the form of a token."""
    return 0 < len(text) <= TOKEN_LENGTH_MAX and text.isascii() and text.isprintable() and " " not in text


class _TokenError(msgspec.Struct):
    error: str = ""
    error_description: str = ""


def _error(response: HttpResponse) -> _TokenError:
    try:
        return msgspec.json.decode(response.body, type=_TokenError)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _TokenError()


def read_refusal(response: HttpResponse, secret: Sequence[str]) -> GrantRefused | FetchFailed:
    """Return the error of another response; its text has none of these secrets."""
    if response.status in TEMPORARY or response.status >= SERVER_ERROR:
        return FetchFailed(f"the token endpoint answered HTTP {response.status}")
    reported = _error(response)
    if _CODE.fullmatch(reported.error):
        text = "".join(letter for letter in reported.error_description if letter.isprintable())
        # A long text may contain only the start of a secret.
        is_secret = any(len(value) >= SECRET_LENGTH_MIN and value[:BEGINNING] in text for value in secret)
        return GrantRefused(reported.error, "" if is_secret else text[:WORDS_LENGTH_MAX])
    if response.status in REFUSALS:
        return GrantRefused(f"HTTP {response.status}")
    return FetchFailed(f"the token endpoint answered HTTP {response.status}")


_PUBLIC = frozenset(
    {"grant_type", "resource", "scope", "client_id", "subject_token_type", "requested_token_type", "audience"}
)
