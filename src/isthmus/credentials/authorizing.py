"""A login in a browser: the address to visit, and what comes back from there (RFC 7636, RFC 9207).

Texts in, texts out; `callback` listens for what comes back, and nobody here opens a browser: the address is a
stranger's, and is shown to the person who is to decide.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from isthmus.credentials.discovery import PKCE, ServerMetadata
from isthmus.credentials.tokens import Client

WORDS_LENGTH_MAX = 200


class LoginRefused(Exception):
    """What came back is no login; the message says why."""


def _token() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Authorization:
    """One visit: nobody else can have its answer taken for theirs."""

    state: str = field(default_factory=_token, repr=False)
    verifier: str = field(default_factory=_token, repr=False)

    @property
    def challenge(self) -> str:
        """What the verifier is held against by those who may not know it yet."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def address(self, server: ServerMetadata, client: Client, resource: str, scope: str, thumbprint: str = "") -> str:
        """Where the person has to go; with a `thumbprint`, the code is good only for who has that key (RFC 9449).

        Raises:
            LoginRefused: the authorization server has no such place, or does not bind codes to who asked for them.
        """
        if not server.authorization_endpoint:
            raise LoginRefused("the authorization server has no page to log in at; try --device")
        if PKCE not in server.code_challenge_methods_supported:
            raise LoginRefused(f"the authorization server does not say that it supports PKCE with {PKCE}")
        asked = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": client.redirect,
            "state": self.state,
            "code_challenge": self.challenge,
            "code_challenge_method": PKCE,
            "resource": resource,
            **({"scope": scope} if scope else {}),
            **({"dpop_jkt": thumbprint} if thumbprint else {}),
        }
        mark = "&" if "?" in server.authorization_endpoint else "?"
        return f"{server.authorization_endpoint}{mark}{urlencode(asked)}"

    def code_in(self, answer: Mapping[str, str], server: ServerMetadata) -> str:
        """The code in what a browser came back with.

        Raises:
            LoginRefused: it is not the answer to this visit, of another issuer, or a refusal.
        """
        if not hmac.compare_digest(answer.get("state", "").encode(), self.state.encode()):
            raise LoginRefused("what came back is not the answer to this login")
        _check_issuer(answer.get("iss"), server)
        if error := answer.get("error"):
            raise LoginRefused(f"the authorization server says {_printable(error)}")
        code = answer.get("code", "")
        if not code:
            raise LoginRefused("what came back has no code")
        return code


def _check_issuer(said: str | None, server: ServerMetadata) -> None:
    """Two authorization servers may lead back to one place; each has to say which it is (RFC 9207)."""
    if said is None:
        if server.authorization_response_iss_parameter_supported:
            raise LoginRefused("what came back does not say which authorization server it is of")
    elif server.issuer and said != server.issuer:
        raise LoginRefused("what came back is of another authorization server")


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:WORDS_LENGTH_MAX]
