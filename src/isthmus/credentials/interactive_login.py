"""How a person logs in: in a browser (RFC 7636, RFC 9207), or with a code on another device (RFC 8628).

In a browser, `Callback` listens for the redirect that comes back. The hub never opens a browser: the address comes from
a stranger, so it is shown to the person, who decides. With a code, the hub polls the token endpoint. `app.login` calls
this.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from isthmus.credentials.client_registration import OAuthClient
from isthmus.credentials.discovery import PKCE, ServerMetadata
from isthmus.credentials.fetch import FetchFailed
from isthmus.credentials.token_endpoint import (
    GrantRefused,
    StoredToken,
    TokenEndpoint,
    proof_of,
)
from isthmus.transport.http_client import HttpResponse

# -- in a browser -----------------------------------------------------------------------------------------------


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
        # Several authorization servers may redirect to one address; each must name itself (RFC 9207).
        issuer = answer.get("iss")
        if issuer is None and server.authorization_response_iss_parameter_supported:
            raise LoginRefused("the redirect does not name its authorization server")
        if issuer is not None and server.issuer and issuer != server.issuer:
            raise LoginRefused("the redirect comes from another authorization server")
        if error := answer.get("error"):
            text = "".join(letter for letter in error if letter.isprintable())[:WORDS_LENGTH_MAX]
            raise LoginRefused(f"the authorization server says {text}")
        code = answer.get("code", "")
        if not code:
            raise LoginRefused("the redirect has no code")
        return code


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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                answer = read_callback(head)
                if answer is not None and not hmac.compare_digest(answer["state"].encode(), self._state):
                    answer = None
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


def read_callback(head: bytes) -> Mapping[str, str] | None:
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


# -- on another device ------------------------------------------------------------------------------------------


OK = 200
INTERVAL_SECONDS = 5.0
INTERVAL_SECONDS_MAX = 60.0
CODE_LENGTH_MAX = 64


class DeviceLogin(msgspec.Struct, frozen=True):
    """The address to visit and the code to enter there."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""
    expires_in: float = 600.0
    interval: float = INTERVAL_SECONDS

    def __repr__(self) -> str:
        return f"Device(verification_uri={self.verification_uri!r})"


async def begin_device_login(endpoint: TokenEndpoint, scope: str) -> DeviceLogin:
    """Request a code. Raises `LoginRefused`, `FetchFailed` or `UrlRefused`."""
    place = endpoint.server.device_authorization_endpoint
    if not place:
        raise LoginRefused("the authorization server does not support the device flow; try without --device")
    fields, headers = proof_of(endpoint.client, endpoint.settings, endpoint.server)
    form = {"client_id": endpoint.client.id, "resource": endpoint.resource, **fields}
    form = {**form, **({"scope": scope} if scope else {})}
    device = read_device_login(await endpoint.fetcher.post("its device endpoint", place, form, headers))
    for name in ("verification_uri", "verification_uri_complete"):
        if url := getattr(device, name):
            await endpoint.fetcher.check_place(f"its {name}", url)
    return device


def read_device_login(response: HttpResponse) -> DeviceLogin:
    """Return the code in a response. Raises `LoginRefused`."""
    if response.status != OK:
        raise LoginRefused(f"the device endpoint answered HTTP {response.status}")
    try:
        device = msgspec.json.decode(response.body, type=DeviceLogin)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise LoginRefused("the device endpoint's response is malformed") from None
    if not (0 < len(device.user_code) <= CODE_LENGTH_MAX and device.user_code.isprintable()):
        raise LoginRefused("the device endpoint sent no usable code")
    return device


async def wait_for_device(
    endpoint: TokenEndpoint,
    device: DeviceLogin,
    within: float,
    sleep: Callable[[float], asyncio.Future[None]] | None = None,
) -> StoredToken:
    """Poll until the person has agreed. Raises like `begin_device_login`, or `TimeoutError`."""
    interval = min(max(device.interval, 1.0), INTERVAL_SECONDS_MAX)
    async with asyncio.timeout(min(within, device.expires_in)):
        while True:
            await (asyncio.sleep(interval) if sleep is None else sleep(interval))
            try:
                return await endpoint.by_device(device.device_code)
            except FetchFailed:
                interval = min(interval * 2, INTERVAL_SECONDS_MAX)  # it may be unreachable only for a moment
            except GrantRefused as refused:
                if refused.code == "slow_down":
                    interval = min(interval + 5.0, INTERVAL_SECONDS_MAX)
                elif refused.code != "authorization_pending":
                    raise LoginRefused(f"the authorization server says {refused}") from refused
