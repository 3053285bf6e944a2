"""A login in a browser: the address to visit, and the redirect that comes back (RFC 7636, RFC 9207).

`Callback` listens for the redirect. The hub never opens a browser: the address comes from a stranger, so it is shown
to the person, who decides.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

from isthmus.credentials.discovery import PKCE, ServerMetadata
from isthmus.credentials.tokens import OAuthClient

WORDS_LENGTH_MAX = 200


class LoginRefused(Exception):
    """The login failed; the message says why."""


def _token() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Authorization:
    """One login attempt, with a secret state and verifier that tie the redirect to it."""

    state: str = field(default_factory=_token, repr=False)
    verifier: str = field(default_factory=_token, repr=False)

    @property
    def challenge(self) -> str:
        """The PKCE challenge: the digest of the verifier."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def address(
        self, server: ServerMetadata, client: OAuthClient, resource: str, scope: str, thumbprint: str = ""
    ) -> str:
        """The address to visit. With a `thumbprint`, the code is bound to that key (RFC 9449).

        Raises:
            LoginRefused: the authorization server has no authorization endpoint, or does not support PKCE.
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
        """Return the code of a redirect.

        Raises:
            LoginRefused: the redirect belongs to another login or issuer, or reports an error.
        """
        if not hmac.compare_digest(answer.get("state", "").encode(), self.state.encode()):
            raise LoginRefused("the redirect does not belong to this login")
        _check_issuer(answer.get("iss"), server)
        if error := answer.get("error"):
            raise LoginRefused(f"the authorization server says {_printable(error)}")
        code = answer.get("code", "")
        if not code:
            raise LoginRefused("the redirect has no code")
        return code


def _check_issuer(said: str | None, server: ServerMetadata) -> None:
    """Several authorization servers may redirect to one address; each must name itself (RFC 9207)."""
    if said is None:
        if server.authorization_response_iss_parameter_supported:
            raise LoginRefused("the redirect does not name its authorization server")
    elif server.issuer and said != server.issuer:
        raise LoginRefused("the redirect comes from another authorization server")


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:WORDS_LENGTH_MAX]


HOST = "127.0.0.1"
PATH = "/callback"
HEAD_BYTES_MAX = 16 * 1024
HEAD_SECONDS = 5.0

_PAGE = b"You may close this page and go back.\n"
_ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff\r\n"
    b"cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
    % (len(_PAGE), _PAGE)
)
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Callback:
    """Listens for one redirect. The opener closes it."""

    def __init__(self, state: str) -> None:
        """Only requests with this `state` are accepted; only the person who logs in knows it."""
        self._state = state.encode()
        self._server: asyncio.Server | None = None
        self._answer: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self.port = 0

    @property
    def address(self) -> str:
        """The redirect address for the authorization server."""
        return f"http://{HOST}:{self.port}{PATH}"

    async def open(self, port: int) -> None:
        """Listen on a port, or on a free one. Raises `OSError` if it is taken."""
        self._server = await asyncio.start_server(self._serve, HOST, port, limit=HEAD_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]

    async def answer(self, within: float) -> Mapping[str, str]:
        """The parameters of the redirect. Raises `TimeoutError`."""
        async with asyncio.timeout(within):
            return await self._answer

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    def _mine(self, answer: Mapping[str, str] | None) -> Mapping[str, str] | None:
        is_mine = answer is not None and hmac.compare_digest(answer["state"].encode(), self._state)
        return answer if is_mine else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                answer = self._mine(_read(head))
                writer.write(_NOT_FOUND if answer is None else _ANSWER)
                await writer.drain()
            if answer is not None and not self._answer.done():
                self._answer.set_result(answer)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not a browser, or it has disconnected
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _read(head: bytes) -> Mapping[str, str] | None:
    """The parameters of a request to the redirect path; None for any other request."""
    verb, _, rest = head.partition(b"\r\n")[0].partition(b" ")
    target, _, version = rest.partition(b" ")
    if verb != b"GET" or not version.startswith(b"HTTP/1."):
        return None
    parts = urlsplit(target.decode("latin-1"))
    fields = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=50) if parts.path == PATH else []
    if len({name for name, _ in fields}) != len(fields):
        return None  # a repeated parameter is ambiguous
    return dict(fields) if "state" in dict(fields) else None
