"""An authorization server for tests, and an MCP server that accepts only its tokens.

Both are real listeners in the test's own loop. `Authority` writes down every form that it is sent, and gives tokens as
a test wants it to; `visit` is the person with a browser.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt

from tests.faults.scripted import ReceivedRequest, Scripted, reply


class Authority:
    """Gives tokens, which are numbered: `token-1` and `refresh-1` are the first."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.metadata: dict[str, Any] = {}
        """What of its metadata is otherwise than usual."""
        self.forms: list[dict[str, str]] = []
        """What the token endpoint was sent."""
        self.heads: list[dict[str, str]] = []
        self.registrations: list[dict[str, Any]] = []
        self.asked: list[dict[str, str]] = []
        """What the page to log in at was asked for."""
        self.paths: list[str] = []
        self.expires_in: float | None = 3600
        self.first_expires_in: list[float] = []
        """How long the first tokens are good; those after them, `expires_in`."""
        self.gives_refresh = True
        self.refusals: list[tuple[int, dict[str, str]]] = []
        """What the token endpoint answers next, instead of with a token."""
        self.refused_grants: dict[str, tuple[int, dict[str, str]]] = {}
        """What it answers whenever a token is asked for in this way."""
        self.callback: dict[str, str] = {}
        """What a browser is sent back with otherwise than usual; an empty text leaves something out."""
        self.good: set[str] = set()
        """Tokens that the server takes."""
        self.prefix = ""
        """What its tokens begin with."""
        self._numbers = itertools.count(1)
        self._tls = tls
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()
        self._challenge = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._converse, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._tls else ''}://{self._host}:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
                fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                body = await reader.readexactly(int(fields.get("content-length", "0")))
                out.write(self._answer(head[0].split()[1], fields, body))
        out.close()

    def _answer(self, target: str, fields: dict[str, str], body: bytes) -> bytes:
        parts = urlsplit(target)
        self.paths.append(parts.path)
        match parts.path:
            case "/.well-known/oauth-authorization-server":
                return reply(self.document())
            case "/register":
                self.registrations.append(json.loads(body))
                return reply({"client_id": f"client-{len(self.registrations)}"}, status=201)
            case "/authorize":
                return self._authorize(dict(parse_qsl(parts.query)))
            case "/device":
                return reply(self._device())
            case "/token":
                self.heads.append(fields)
                return self._token(dict(parse_qsl(body.decode())))
            case _:
                return reply(None, status=404)

    def document(self) -> dict[str, Any]:
        """Its metadata."""
        usual = {
            "issuer": self.url,
            "token_endpoint": f"{self.url}/token",
            "authorization_endpoint": f"{self.url}/authorize",
            "registration_endpoint": f"{self.url}/register",
            "device_authorization_endpoint": f"{self.url}/device",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "private_key_jwt"],
            "authorization_response_iss_parameter_supported": True,
        }
        return {name: value for name, value in {**usual, **self.metadata}.items() if value is not None}

    def _device(self) -> dict[str, Any]:
        return {
            "device_code": "device-code",
            "user_code": "WDJB-MJHT",
            "verification_uri": f"{self.url}/enter",
            "interval": 1,
            "expires_in": 60,
        }

    def _authorize(self, asked: dict[str, str]) -> bytes:
        self.asked.append(asked)
        self._challenge = asked.get("code_challenge", "")
        back = {"code": "the-code", "state": asked["state"], "iss": self.url, **self.callback}
        query = urlencode({name: value for name, value in back.items() if value})
        return reply(None, status=302, headers={"location": f"{asked['redirect_uri']}?{query}"})

    def _token(self, form: dict[str, str]) -> bytes:
        self.forms.append(form)
        if self.refusals:
            status, received = self.refusals.pop(0)
            return reply(received, status=status)
        if form["grant_type"] in self.refused_grants:
            status, received = self.refused_grants[form["grant_type"]]
            return reply(received, status=status)
        if form["grant_type"] == "authorization_code" and not self._is_bound(form):
            return reply({"error": "invalid_grant"}, status=400)
        number = next(self._numbers)
        token = f"{self.prefix}token-{number}"
        self.good.add(token)
        told_: dict[str, Any] = {"access_token": token, "token_type": "Bearer"}
        expires_in = self.first_expires_in.pop(0) if self.first_expires_in else self.expires_in
        if expires_in is not None:
            told_["expires_in"] = expires_in
        if self.gives_refresh and form["grant_type"] not in ("client_credentials", "urn:x"):
            told_["refresh_token"] = f"{self.prefix}refresh-{number}"
        return reply(told_)

    def _is_bound(self, form: Mapping[str, str]) -> bool:
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == self._challenge

    def count(self, grant: str) -> int:
        """How often a token was asked for in this way."""
        return sum(form["grant_type"] == grant for form in self.forms)


class Protected(Scripted):
    """A server that takes tokens of an authority, and says where that is."""

    def __init__(self, authority: Authority) -> None:
        super().__init__()
        self.authority = authority
        self.challenge: str | None = None
        """What it says instead of where its metadata is."""
        self.resource: dict[str, Any] = {}
        """What of its metadata is otherwise than usual."""
        self.shown: list[str] = []
        """What it was shown with each request, in order."""
        self.turned_away = 0

    @property
    def url(self) -> str:
        return str(self.entry["url"])

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        origin = self.url.removesuffix("/mcp")
        if request.path.startswith("/.well-known/oauth-protected-resource"):
            usual = {"resource": self.url, "authorization_servers": [self.authority.url]}
            out.write(reply({**usual, **self.resource}))
            return
        token = request.headers.get("authorization", [""])[0]
        self.shown.append(token)
        if token.removeprefix("Bearer ") in self.authority.good and token.startswith("Bearer "):
            await super().on(request, out)
            return
        self.turned_away += 1
        place = f'Bearer resource_metadata="{origin}/.well-known/oauth-protected-resource/mcp"'
        said = place if self.challenge is None else self.challenge
        out.write(reply(None, status=401, headers={"www-authenticate": said} if said else {}))


# -- tokens that are bound to a key (RFC 9449) ---------------------------------------------------------------------


class Proof(NamedTuple):
    """A proof that was found to be good, and the thumbprint of its key."""

    claims: Mapping[str, Any]
    thumbprint: str


def checked(proof: str, method: str, url: str, token: str = "") -> Proof:
    """What a proof says; fails the test if it is not as RFC 9449, section 4.3, wants it. PyJWT checks, not the hub."""
    head = jwt.get_unverified_header(proof)
    assert (head["typ"], head["alg"]) == ("dpop+jwt", "ES256")
    assert set(head["jwk"]) == {"kty", "crv", "x", "y"}, "and no private member"
    claims = jwt.decode(proof, jwt.PyJWK(head["jwk"], "ES256").key, algorithms=["ES256"])
    assert (claims["htm"], claims["htu"]) == (method, url)
    assert abs(claims["iat"] - time.time()) < 60
    assert claims.get("ath") == (_encoded(hashlib.sha256(token.encode()).digest()) if token else None)
    members = {name: head["jwk"][name] for name in ("crv", "kty", "x", "y")}
    return Proof(claims, _encoded(hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest()))


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class BindingAuthority(Authority):
    """Binds tokens to the keys that it is shown, and may want a nonce."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata = {"dpop_signing_alg_values_supported": ["ES256"]}
        self.proofs: list[Proof] = []
        self.keys: dict[str, str] = {}
        """The thumbprint of the key that each token is bound to."""
        self.nonce = ""
        self.is_content = True
        """Whether the right nonce is enough; else it wants another one each time."""

    def _token(self, form: dict[str, str]) -> bytes:
        given = self.heads[-1].get("dpop")
        if given is None:
            return super()._token(form)
        proof = checked(given, "POST", f"{self.url}/token")
        self.proofs.append(proof)
        if self.nonce and (proof.claims.get("nonce") != self.nonce or not self.is_content):
            self.forms.append(form)
            return reply({"error": "use_dpop_nonce"}, status=400, headers={"dpop-nonce": self.nonce})
        answer = super()._token(form)
        response = json.loads(answer.partition(b"\r\n\r\n")[2])
        if "access_token" not in response:
            return answer
        self.keys[response["access_token"]] = proof.thumbprint
        return reply({**response, "token_type": "DPoP"})


class BoundServer(Protected):
    """Takes bound tokens alone, and may want a nonce with some requests."""

    def __init__(self, authority: BindingAuthority) -> None:
        super().__init__(authority)
        self.binding = authority
        self.proofs: list[Proof] = []
        self.nonce = ""
        self.wants_for = ""
        """The one method for which it wants the nonce; empty for all."""
        self.is_content = True
        self.ran: list[str] = []
        """The methods of all requests that it did not refuse."""

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        scheme, _, token = request.headers.get("authorization", [""])[0].partition(" ")
        if request.path.startswith("/.well-known/") or scheme != "DPoP" or token not in self.authority.good:
            self.challenge = 'DPoP algs="ES256"'
            await super().on(request, out)
            return
        self.shown.append(f"{scheme} {token}")
        (given,) = request.headers["dpop"]
        proof = checked(given, request.verb, self.url.removesuffix("/mcp") + request.path, token)
        assert proof.thumbprint == self.binding.keys[token]
        assert proof.claims["jti"] not in {each.claims["jti"] for each in self.proofs}
        self.proofs.append(proof)
        is_asked = self.nonce and self.wants_for in ("", request.method)
        if is_asked and (proof.claims.get("nonce") != self.nonce or not self.is_content):
            words = {"www-authenticate": 'DPoP error="use_dpop_nonce"', "dpop-nonce": self.nonce}
            out.write(reply({"error": "use_dpop_nonce"}, status=401, headers=words))
            return
        self.ran.append(request.method)
        await Scripted.on(self, request, out)


def entry_of(server: Protected, **oauth: Any) -> dict[str, Any]:
    """A server's entry that lets a login lead to its authority, which is on this machine."""
    return {**server.entry, "oauth": {"origins": [server.authority.url], **oauth}}


async def visit(address: str) -> int:
    """Be the person with a browser: go there, and come back to where one is sent; the last status."""
    location = await _get(address)
    if not location.startswith("http://127.0.0.1:"):
        return 0
    await _get(location)
    return 1


async def _get(address: str) -> str:
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    target = f"{parts.path}?{parts.query}"
    writer.write(f"GET {target} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    return next((line[10:] for line in head.split("\r\n") if line.lower().startswith("location: ")), "")
