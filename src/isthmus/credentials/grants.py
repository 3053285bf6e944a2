"""Requests to a token endpoint: one for each way to come by a token, and one way to read what it answers.

`resource` is sent with all of them (RFC 8707), so that a token for one server is good at no other. Called by `logins`
and `app.login`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from isthmus.credentials.clients import proof_of
from isthmus.credentials.discovery import ServerMetadata
from isthmus.credentials.dpop import SCHEME, USE_NONCE, Prover
from isthmus.credentials.fetch import Fetched, Fetcher, FetchFailed
from isthmus.credentials.tokens import TOKEN_LENGTH_MAX, OAuthClient, StoredToken
from isthmus.model.credentials import OAuthSettings

OK = 200
PASSING = (408, 425, 429)
REFUSALS = (400, 401)
"""With what a token endpoint refuses; another status without its words may be anybody's who stands before it."""
SERVER_TROUBLE = 500

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - the name of a kind
SUBJECT_TYPE = "urn:ietf:params:oauth:token-type:jwt"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
"""A company's word, signed by its identity provider, that somebody may have a token of another authorization server."""

WORDS_LENGTH_MAX = 200
SECRET_LENGTH_MIN = 8
BEGINNING = 16
"""So much of a secret is enough to know it by."""

LIFE_SECONDS_MAX = 10 * 365 * 86_400.0
"""No token is taken to hold for longer, whatever is said of it."""

_CODE = re.compile(r"[a-z_]{1,64}")


class GrantRefused(Exception):
    """The authorization server said no, and will say so again; `code` is its own word for why."""

    def __init__(self, code: str, words: str = "") -> None:
        super().__init__(f"{code} ({words})" if words else code)
        self.code = code


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """A token endpoint, and who asks there for what."""

    fetcher: Fetcher
    server: ServerMetadata
    client: OAuthClient
    settings: OAuthSettings
    resource: str
    prover: Prover | None = None
    """Binds tokens to a key (RFC 9449); None has bearer tokens asked for."""

    async def by_client(self, scope: str) -> StoredToken:
        """A token of the hub's own. Raises `GrantRefused`, `FetchFailed` or `UrlRefused`, as all of these do."""
        return await self._token({"grant_type": "client_credentials", **_scope(scope), **self._audience()})

    async def by_code(self, code: str, verifier: str) -> StoredToken:
        """A token for the code with which a browser came back."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self.client.redirect}
        return await self._token({**form, "code_verifier": verifier})

    async def by_device(self, code: str) -> StoredToken:
        """A token, if the person has agreed by now (RFC 8628)."""
        return await self._token({"grant_type": DEVICE, "device_code": code})

    async def by_refresh(self, token: StoredToken) -> StoredToken:
        """The next token; where no new refresh token is given, the present one stays."""
        got = await self._token({"grant_type": "refresh_token", "refresh_token": token.refresh})
        return msgspec.structs.replace(got, refresh=got.refresh or token.refresh, scope=got.scope or token.scope)

    async def by_exchange(self, subject_token: str, scope: str) -> StoredToken:
        """A token for the server in the name of whoever was given `subject_token` (RFC 8693)."""
        form = {
            "grant_type": EXCHANGE,
            "subject_token": subject_token,
            "subject_token_type": SUBJECT_TYPE,
            "requested_token_type": ACCESS_TOKEN,
        }
        return await self._token({**form, **_scope(scope), **self._audience()})

    async def by_assertion(self, assertion: str, scope: str) -> StoredToken:
        """A token for somebody else's signed word (RFC 7523): of a workload's platform, or an identity provider."""
        return await self._token({"grant_type": JWT_BEARER, "assertion": assertion, **_scope(scope)})

    async def id_jag(self, identity_token: str, audience: str, scope: str) -> str:
        """The identity provider's word that a person may have a token of another authorization server, the `audience`.

        This endpoint is the identity provider's.
        """
        form = {
            "grant_type": EXCHANGE,
            "subject_token": identity_token,
            "subject_token_type": ID_TOKEN,
            "requested_token_type": ID_JAG,
            "audience": audience,
        }
        said, secret = await self._posted({**form, **_scope(scope)})
        if said.status != OK:
            raise _refusal(said, secret)
        return _read_grant(said)

    def _audience(self) -> dict[str, str]:
        return {"audience": self.settings.audience} if self.settings.audience else {}

    async def _token(self, form: Mapping[str, str]) -> StoredToken:
        said, secret = await self._posted(form)
        if said.status != OK:
            raise _refusal(said, secret)
        token = _read(said, can_be_bound=self.prover is not None)
        if self.settings.dpop == "always" and not token.is_bound:
            raise GrantRefused("unsupported_token_type", "it gave a bearer token, and dpop is always wanted")
        return token

    async def _posted(self, form: Mapping[str, str]) -> tuple[Fetched, list[str]]:
        """What the endpoint says to a form, and what of the form must not be repeated to anybody."""
        said, secret = await self._post(form)
        if self.prover is None or not self.prover.take_nonce(self.server.token_endpoint, said.headers):
            return said, secret
        if said.status in REFUSALS and _error(said).error == USE_NONCE:
            # Nothing of it was spent (RFC 9449, section 8): once more, with the nonce that it named.
            said, secret = await self._post(form)
            self.prover.take_nonce(self.server.token_endpoint, said.headers)
        return said, secret

    async def _post(self, form: Mapping[str, str]) -> tuple[Fetched, list[str]]:
        place = self.server.token_endpoint
        fields, headers = proof_of(self.client, self.settings, self.server)
        sent = {**form, "resource": self.resource, **fields}
        if self.prover is not None:
            headers = {**headers, "dpop": self.prover.proof("POST", place)}
        said = await self.fetcher.post("the token endpoint", place, sent, headers)
        return said, [*(value for name, value in sent.items() if name not in _PUBLIC), self.client.secret]


def _scope(scope: str) -> dict[str, str]:
    return {"scope": scope} if scope else {}


class _TokenResponse(msgspec.Struct):
    access_token: str
    token_type: str = "Bearer"  # noqa: S105 - the name of a kind
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None


def _read(said: Fetched, *, can_be_bound: bool = False) -> StoredToken:
    try:
        answer = msgspec.json.decode(said.body, type=_TokenResponse)
        seconds = _life(answer.expires_in)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        raise FetchFailed("the token endpoint's answer cannot be read") from None
    kind = answer.token_type.lower()
    if kind != "bearer" and not (kind == SCHEME and can_be_bound):
        raise GrantRefused("unsupported_token_type", "it is no bearer token")
    for text in (answer.access_token, answer.refresh_token or "-"):
        if not is_token(text):
            raise FetchFailed("the token endpoint gave a token that no header can carry")
    now = time.time()
    until = None if seconds is None else now + seconds
    is_bound = kind == SCHEME
    return StoredToken(answer.access_token, until, now, answer.refresh_token or "", answer.scope or "", is_bound)


class _Grant(msgspec.Struct):
    access_token: str
    issued_token_type: str = ""


def _read_grant(said: Fetched) -> str:
    try:
        answer = msgspec.json.decode(said.body, type=_Grant)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise FetchFailed("the identity provider's answer cannot be read") from None
    if answer.issued_token_type != ID_JAG or not is_token(answer.access_token):
        # An access token, say, is not for the other authorization server to see.
        raise GrantRefused("unsupported_token_type", "the identity provider gave something else than an ID-JAG")
    return answer.access_token


def is_token(text: str) -> bool:
    """Whether a text has the form of a token."""
    return 0 < len(text) <= TOKEN_LENGTH_MAX and text.isascii() and text.isprintable() and " " not in text


def _life(said: float | str | None) -> float | None:
    """How long a token holds; None if nobody says, which no time at all is another way of."""
    seconds = 0.0 if said is None else float(said)
    return min(seconds, LIFE_SECONDS_MAX) if seconds > 0 else None


class _TokenError(msgspec.Struct):
    error: str = ""
    error_description: str = ""


def _error(said: Fetched) -> _TokenError:
    try:
        return msgspec.json.decode(said.body, type=_TokenError)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _TokenError()


def _refusal(said: Fetched, secret: Sequence[str]) -> GrantRefused | FetchFailed:
    if said.status in PASSING or said.status >= SERVER_TROUBLE:
        return FetchFailed(f"the token endpoint answered HTTP {said.status}")
    told = _error(said)
    if _CODE.fullmatch(told.error):
        return GrantRefused(told.error, _without(secret, told.error_description))
    is_refusal = said.status in REFUSALS
    return (
        GrantRefused(f"HTTP {said.status}")
        if is_refusal
        else FetchFailed(f"the token endpoint answered HTTP {said.status}")
    )


def _without(secret: Sequence[str], words: str) -> str:
    """What an authorization server says, unless it says a secret, or begins to: long ones are often cut off."""
    words = "".join(letter for letter in words if letter.isprintable())
    is_told = any(len(value) >= SECRET_LENGTH_MIN and value[:BEGINNING] in words for value in secret)
    return "" if is_told else words[:WORDS_LENGTH_MAX]


_PUBLIC = frozenset(
    {"grant_type", "resource", "scope", "client_id", "subject_token_type", "requested_token_type", "audience"}
)
