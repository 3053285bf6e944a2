"""Serves the console at `/console/`: static files, and the sessions of browsers that sign in with a key.

`/docs` is one of these files: the OpenAPI document of the REST API for people.

Everything that the console shows and does goes through the REST API. The files are small and are kept in memory,
compressed, after the first request.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from isthmus import __version__
from isthmus.frontends.http.auth import Authenticator, Denied, Fields
from isthmus.frontends.http.browser_sessions import Sessions, has_csrf_token
from isthmus.frontends.http.request_cycle import (
    JSON,
    PEER,
    Message,
    Peer,
    Receive,
    Send,
    accepted_types,
    header_lines,
    is_json,
    join_headers,
    read_body,
    respond,
)
from isthmus.model.callers import Caller

PATH = "/console"
SESSION_PATH = f"{PATH}/session"
DOCS_PATH = "/docs"
DOCS_FILE = "docs.html"
FOLDER = Path(__file__).parent / "static"

TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}

CONTENT_SECURITY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    b" media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

SECURITY = (
    (b"content-security-policy", CONTENT_SECURITY),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

KEY_LENGTH_MAX = 8_192
"""Longer than any key or signed token."""


class StaticFile(msgspec.Struct, frozen=True):
    """A file of the console, as it is and compressed."""

    content: bytes
    packed: bytes
    type: bytes
    tag: bytes


@functools.cache
def static_files() -> dict[str, StaticFile]:
    """All files of the console by name. Only these exist: a request's path never reaches the file system."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in TYPES:
            content = path.read_bytes()
            tag = b'"%b"' % hashlib.sha256(content).hexdigest()[:20].encode()
            packed = gzip.compress(content, 9, mtime=0)
            found[path.relative_to(FOLDER).as_posix()] = StaticFile(content, packed, TYPES[path.suffix], tag)
    return found


class ConsoleHttp:
    """The console of one hub."""

    def __init__(
        self, auth: Authenticator, sessions: Sessions, needs_key: Callable[[], bool], *, is_https: bool
    ) -> None:
        """`needs_key` says whether callers are configured; `is_https` whether browsers reach the hub by HTTPS."""
        self._auth = auth
        self._sessions = sessions
        self._needs_key = needs_key
        self._cookie = f"Path=/; HttpOnly; SameSite=Strict{'; Secure' if is_https else ''}"

    def is_at(self, path: str) -> bool:
        """Whether a path belongs to the console."""
        return path in (PATH, DOCS_PATH) or path.startswith(f"{PATH}/")

    def is_visit(self, scope: Message) -> bool:
        """Whether a person opens the hub's address in a browser; programs get the agent card there."""
        is_get = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
        return is_get and b"text/html" in accepted_types(join_headers(scope["headers"]))

    async def serve(self, scope: Message, receive: Receive, _: Send) -> None:
        """Serve one request."""
        peer: Peer = scope["extensions"][PEER]
        fields = join_headers(scope["headers"])
        path: str = scope["path"]
        if (denied := self._auth.place(fields)) is not None:
            return respond(peer, denied.status, denied.message)
        if path == SESSION_PATH:
            return await self._serve_session(peer, scope, fields, receive)
        if scope["method"] not in ("GET", "HEAD"):
            return respond(peer, 405, "Use GET", [(b"allow", b"GET, HEAD")])
        if path == DOCS_PATH:
            name = DOCS_FILE
        elif path.startswith(f"{PATH}/"):
            name = path.removeprefix(f"{PATH}/") or "index.html"
        else:
            # Relative, because a proxy may serve the hub under a path.
            return respond(peer, 303, "", [(b"location", b"console/"), (b"vary", b"accept")])
        file = static_files().get(name)
        if file is None:
            return respond(peer, 404, "The console has no such file", SECURITY)
        headers = [(b"etag", file.tag), (b"cache-control", b"no-cache"), (b"vary", b"accept-encoding"), *SECURITY]
        if fields.get(b"if-none-match") == file.tag:
            return respond(peer, 304, "", headers)
        body = file.content
        if b"gzip" in fields.get(b"accept-encoding", b""):
            body = file.packed
            headers.append((b"content-encoding", b"gzip"))
        return peer.answer(200, header_lines([(b"content-type", file.type), *headers]), body)

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def _serve_session(self, peer: Peer, scope: Message, fields: Fields, receive: Receive) -> None:
        match scope["method"]:
            case "GET" | "HEAD":
                caller = self._auth.admit(fields, "rest", scope)
                self._answer_session(peer, None if isinstance(caller, Denied) else caller, fields)
            case "POST":
                await self._sign_in(peer, fields, receive)
            case "DELETE":
                session = self._sessions.find(fields)
                if session is not None and not has_csrf_token(session, fields):
                    return respond(peer, 403, "The request needs the session's X-Csrf-Token")
                self._sessions.end(fields)
                self._answer_session(peer, None, {}, f"{self._sessions.cookie}=; Max-Age=0; {self._cookie}")
            case _:
                respond(peer, 405, "Use GET, POST or DELETE", [(b"allow", b"DELETE, GET, HEAD, POST")])
        return None

    async def _sign_in(self, peer: Peer, fields: Fields, receive: Receive) -> None:
        body = peer.take_body()
        if body is None and (body := await read_body(receive)) is None:
            return None
        try:
            key = msgspec.json.decode(body, type=_SignIn).key.strip() if is_json(fields) else ""
        except msgspec.DecodeError:
            key = ""
        if not key or len(key) > KEY_LENGTH_MAX or not key.isascii() or not key.isprintable():
            return respond(peer, 400, 'Send a JSON object with the "key" of a caller')
        caller = self._auth.identify({b"authorization": b"Bearer " + key.encode()}, "rest")
        if isinstance(caller, Denied):
            text = caller.message if caller.status != 401 else "This key is not valid, or it has expired."
            return respond(peer, caller.status, text, [line for line in caller.headers if line[0] == b"retry-after"])
        token, _ = self._sessions.begin(key, caller.name, caller.tenant)
        cookie = f"{self._sessions.cookie}={token}"
        return self._answer_session(peer, caller, {b"cookie": cookie.encode()}, f"{cookie}; {self._cookie}")

    def _answer_session(self, peer: Peer, caller: Caller | None, fields: Fields, cookie: str | None = None) -> None:
        session = self._sessions.find(fields)
        document = {
            "caller": None if caller is None else caller.name,
            "tenant": None if caller is None else caller.tenant,
            "operator": caller is not None and caller.is_operator,
            "needsKey": self._needs_key(),
            "csrf": None if session is None or caller is None else session.csrf,
            "version": __version__,
        }
        headers = [(b"cache-control", b"no-store"), *SECURITY]
        if cookie is not None:
            headers.append((b"set-cookie", cookie.encode()))
        peer.answer(200, JSON + header_lines(headers), msgspec.json.encode(document))


class _SignIn(msgspec.Struct):
    key: str
