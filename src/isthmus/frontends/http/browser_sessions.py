"""Browser sessions: a cookie stands for a key, so that pages of the console need not keep the key.

The key stays in the memory of the hub and is checked on every request, so a session ends with its key. A request that
changes something also needs the session's CSRF token in a header, which other sites can neither read nor send.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie

import msgspec

COOKIE = "isthmus_session"
"""The cookie's name, with that of the hub behind it: browsers send cookies to every port of a host."""
CSRF_HEADER = b"x-csrf-token"

SESSIONS_MAX = 1_000
"""The session that was unused for longest ends when one more begins."""

IDLE_SECONDS = 12 * 3600.0
"""A session that was unused for so long ends."""

SAFE_METHODS = ("GET", "HEAD")


class Session(msgspec.Struct):
    """A signed-in browser."""

    authorization: bytes
    """The `Authorization` header that the cookie stands for."""
    csrf: str
    used_at: float
    opened_at: float = 0.0
    caller: str = ""
    tenant: str = ""


class Sessions:
    """The sessions of one hub, in memory: a restart ends them."""

    def __init__(self, hub: str = "", now: Callable[[], float] = time.monotonic, *, prefix: str = "") -> None:
        """`hub` is a text that other hubs of the same host do not have; `prefix` begins the value of each cookie."""
        self._now = now
        self._prefix = prefix
        self.cookie = f"{COOKIE}_{hashlib.sha256(hub.encode()).hexdigest()[:8]}"
        self._sessions: dict[bytes, Session] = {}
        """By the hash of the cookie's value, the last used one at the end."""

    def begin(self, key: str, caller: str = "", tenant: str = "") -> tuple[str, Session]:
        """Begin a session with a valid key of this caller; returns the value of its cookie, too."""
        token, now = self._prefix + secrets.token_urlsafe(32), self._now()
        authorization = b"Bearer " + key.encode()
        session = Session(authorization, secrets.token_urlsafe(24), now, now, caller, tenant)
        self._sessions[_digest(token)] = session
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        return token, session

    def find(self, fields: Mapping[bytes, bytes]) -> Session | None:
        """The session of a request, if its cookie names one that has not ended."""
        token = _token(fields, self.cookie)
        digest = b"" if token is None else _digest(token)
        session = self._sessions.pop(digest, None)
        now = self._now()
        if session is None or now - session.used_at > IDLE_SECONDS:
            return None
        session.used_at = now
        self._sessions[digest] = session
        return session

    def open(self) -> list[Session]:
        """The sessions that have not ended."""
        return [session for session in self._sessions.values() if self._now() - session.used_at <= IDLE_SECONDS]

    def end(self, fields: Mapping[bytes, bytes]) -> None:
        """End the session of a request."""
        token = _token(fields, self.cookie)
        if token is not None:
            self._sessions.pop(_digest(token), None)


def has_csrf_token(session: Session, fields: Mapping[bytes, bytes]) -> bool:
    """Whether a request carries the token of its session."""
    return hmac.compare_digest(fields.get(CSRF_HEADER, b""), session.csrf.encode())


def _token(fields: Mapping[bytes, bytes], name: str) -> str | None:
    try:
        cookies = SimpleCookie(fields.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return None
    return cookies[name].value if name in cookies else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
