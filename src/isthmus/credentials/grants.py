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
from isthmus.credentials.fetching import Fetched, Fetcher, FetchFailed
from isthmus.credentials.tokens import TOKEN_LENGTH_MAX, Client, Token
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
class Endpoint:
    """A token endpoint, and who asks there for what."""

    fetcher: Fetcher
    server: ServerMetadata
    client: Client
    settings: OAuthSettings
    resource: str

    async def by_client(self, scope: str) -> Token:
        """A token of the hub's own. Raises `GrantRefused`, `FetchFailed` or `UrlRefused`, as all of these do."""
        return await self._token({"grant_type": "client_credentials", **_scope(scope), **self._audience()})

    async def by_code(self, code: str, verifier: str) -> Token:
        """A token for the code with which a browser came back."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self.client.redirect}
        return await self._token({**form, "code_verifier": verifier})

    async def by_device(self, code: str) -> Token:
        """A token, if the person has agreed by now (RFC 8628)."""
        return await self._token({"grant_type": DEVICE, "device_code": code})

    async def by_refresh(self, token: Token) -> Token:
        """The next token; where no new refresh token is given, the present one stays."""
        got = await self._token({"grant_type": "refresh_token", "refresh_token": token.refresh})
        return msgspec.structs.replace(got, refresh=got.refresh or token.refresh, scope=got.scope or token.scope)

    async def by_exchange(self, subject_token: str, scope: str) -> Token:
        """A token for the server in the name of whoever was given `subject_token` (RFC 8693)."""
        form = {
            "grant_type": EXCHANGE,
            "subject_token": subject_token,
            "subject_token_type": SUBJECT_TYPE,
            "requested_token_type": ACCESS_TOKEN,
        }
        return await self._token({**form, **_scope(scope), **self._audience()})

    def _audience(self) -> dict[str, str]:
        return {"audience": self.settings.audience} if self.settings.audience else {}

    async def _token(self, form: Mapping[str, str]) -> Token:
        fields, headers = proof_of(self.client, self.settings, self.server)
        sent = {**form, "resource": self.resource, **fields}
        said = await self.fetcher.post("the token endpoint", self.server.token_endpoint, sent, headers)
        if said.status == OK:
            return _read(said)
        secret = [value for name, value in sent.items() if name not in _PUBLIC]
        raise _refusal(said, [*secret, self.client.secret])


def _scope(scope: str) -> dict[str, str]:
    return {"scope": scope} if scope else {}


class _Answer(msgspec.Struct):
    access_token: str
    token_type: str = "Bearer"  # noqa: S105 - the name of a kind
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None


def _read(said: Fetched) -> Token:
    try:
        answer = msgspec.json.decode(said.body, type=_Answer)
        seconds = _life(answer.expires_in)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        raise FetchFailed("the token endpoint's answer cannot be read") from None
    if answer.token_type.lower() != "bearer":
        raise GrantRefused("unsupported_token_type", "it is no bearer token")
    for text in (answer.access_token, answer.refresh_token or "-"):
        if not (0 < len(text) <= TOKEN_LENGTH_MAX and text.isascii() and text.isprintable() and " " not in text):
            raise FetchFailed("the token endpoint gave a token that no header can carry")
    now = time.time()
    until = None if seconds is None else now + seconds
    return Token(answer.access_token, until, now, answer.refresh_token or "", answer.scope or "")


def _life(said: float | str | None) -> float | None:
    """How long a token holds; None if nobody says, which no time at all is another way of."""
    seconds = 0.0 if said is None else float(said)
    return min(seconds, LIFE_SECONDS_MAX) if seconds > 0 else None


class _Error(msgspec.Struct):
    error: str = ""
    error_description: str = ""


def _refusal(said: Fetched, secret: Sequence[str]) -> GrantRefused | FetchFailed:
    if said.status in PASSING or said.status >= SERVER_TROUBLE:
        return FetchFailed(f"the token endpoint answered HTTP {said.status}")
    try:
        told = msgspec.json.decode(said.body, type=_Error)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        told = _Error()
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


_PUBLIC = frozenset({"grant_type", "resource", "scope", "client_id", "subject_token_type", "requested_token_type"})
