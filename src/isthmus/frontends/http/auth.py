"""Authentication over HTTP, shared by all frontends: the caller's key, and the limit of wrong keys.

`FailedAuthLimit` counts failures per address and nothing else. A valid key always passes, because behind a proxy all
callers share one address; so accepted requests never get there. `Authenticator` counts wrong credentials in headers;
frontends with other credentials (a form, a query) count them themselves. It first lets `frontends.http.origins` check
Host and Origin.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import msgspec
import structlog

from isthmus.frontends.http.browser_sessions import SAFE_METHODS, Sessions, has_csrf_token
from isthmus.frontends.http.origins import OriginGuard, preflight_lines
from isthmus.frontends.http.settings import client_address
from isthmus.model.callers import Caller, FrontendName, Unprovable

log = structlog.get_logger(__name__)

WRONG_KEYS_PER_MINUTE: Final = 60

WINDOW_SECONDS: Final = 60.0

ROUNDING_SECONDS: Final = 1e-6
"""Rounding error of summed times."""

ADDRESSES_MAX: Final = 4096
"""Addresses that are remembered; beyond it, the one whose last failure is oldest is dropped."""

REPORT_SECONDS: Final = 60.0
"""The shortest interval between two log messages, however many wrong keys come."""

Client: TypeAlias = tuple[str, int] | None
"""The address of a client, as in ASGI; None on a socket without addresses."""

UNKNOWN: Final = ("", 0)

COMING_FROM: ContextVar[Client | str] = ContextVar("coming_from")
"""The address of the request that this task serves, set by the router. It is not set before a request has a task: the
request is authenticated again then and must not be counted twice."""


class FailedAuthLimit:
    """Limits the wrong keys per address and minute; beyond it they are answered with 429."""

    def __init__(self, per_minute: int = WRONG_KEYS_PER_MINUTE, now: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self.refused = 0
        """Requests answered with 429 since the start."""
        self.on_refused: Callable[[str, int], None] = lambda _address, _count: None
        """Called with each log message: an address, and the number of refusals since the last one, in all."""
        self.on_failed: Callable[[str], None] = lambda _address: None
        """Called with the address of each wrong key within the limit."""
        self._now = now
        self._paid_at: dict[str, float] = {}
        """By address, when all its failures are forgotten; the latest failure comes last."""
        self._reported_at = -math.inf
        self._reported = 0

    def failed(self, client: Client | str) -> int:
        """Count a wrong key; returns the seconds to wait before the next try, 0 if it may come at once."""
        address = client_address(client if isinstance(client, str) else (client or UNKNOWN)[0])
        now, over = self._now(), self.count(address)
        if over <= 0:
            self.on_failed(address)
            return 0
        self.refused += 1
        if now - self._reported_at >= REPORT_SECONDS:
            count, self._reported = self.refused - self._reported, self.refused
            self._reported_at = now
            log.warning("too many wrong keys: further ones are answered with 429", address=address, refused=count)
            self.on_refused(address, count)
        return math.ceil(over)

    def count(self, address: str) -> float:
        """Count a wrong key, which may have been sent to another node; returns the seconds above the limit."""
        now = self._now()
        paid_at = max(now, self._paid_at.pop(address, now)) + WINDOW_SECONDS / self.per_minute
        over = paid_at - now - WINDOW_SECONDS - ROUNDING_SECONDS
        # Failures beyond the limit do not prolong it: others may share the address.
        self._paid_at[address] = paid_at if over <= 0 else paid_at - WINDOW_SECONDS / self.per_minute
        if len(self._paid_at) > ADDRESSES_MAX:
            del self._paid_at[next(iter(self._paid_at))]
        return over

    def failed_here(self) -> int:
        """The same for the request that this task serves; 0 if its address is unknown."""
        client = COMING_FROM.get(UNKNOWN)
        return 0 if client is UNKNOWN else self.failed(client)


Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
Fields: TypeAlias = Mapping[bytes, bytes]
"""Headers by name; repeated ones are joined (`request_cycle.join_headers`), which is never a valid host or key."""
Identify: TypeAlias = Callable[[Fields], Caller | Unprovable | None]
"""Returns the caller of a request by its headers; None if they contain no valid credential."""

Request: TypeAlias = MutableMapping[str, Any]
"""The ASGI scope of a request: its `method`, `raw_path` and `headers`."""
BASES = "isthmus.bases"
"""The scope member with the base URLs of a request that did not come through the hub's HTTP listener (gRPC)."""
Prove: TypeAlias = Callable[[Fields, Request], Caller | Unprovable | None]
"""Returns the caller of a DPoP-bound token with a proof for this request (RFC 9449)."""
ClaimProof: TypeAlias = Callable[[Fields, Request], Awaitable[None]]
"""Finds out whether another node has accepted the proof of this request; `Prove` refuses it then."""

CHALLENGE = b'Bearer realm="isthmus"'
RETRY = (b"retry-after", b"5")


class Denied(msgspec.Struct, frozen=True):
    """Why a request is denied."""

    status: int
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    is_guess: bool = False
    """Whether the credential is not, and never was, valid."""


PLAIN_DENIAL = Denied(
    401,
    "A valid key is needed: send Authorization: Bearer KEY or X-Api-Key: KEY. "
    "The hub's operator makes one with: isthmus token create NAME --allow PATTERN",
    ((b"www-authenticate", CHALLENGE),),
)

TOO_MANY = 429
SLOWED = "Too many wrong keys came from this address, and this one is wrong too. Wait, or send a valid key."


def slowed(seconds: int) -> Denied:
    """The denial after too many wrong keys."""
    return Denied(TOO_MANY, SLOWED, ((b"retry-after", b"%d" % seconds),))


Refuse: TypeAlias = Callable[[Fields, FrontendName], Denied]
"""Returns the denial of a request without a valid credential."""


class Authenticator:
    """Authenticates every request before a frontend reads it."""

    refuse: Refuse = staticmethod(lambda _fields, _frontend: PLAIN_DENIAL)
    """Replaced to say where to get a token, and what is wrong with the token that was sent."""

    on_turned_away: Callable[[str, int], None] = staticmethod(lambda _frontend, _status: None)
    """Called by the frontends for each denied request with the frontend and the status; replaced by the metrics."""

    prove: Prove | None = None
    """Set if there are trusted issuers, whose tokens may be bound to keys."""

    claim_proof: ClaimProof | None = None
    """Set in a cluster with a database. To be awaited before a request with a proof is authenticated."""

    sessions: Sessions | None = None
    """Set if the console is on: its pages send a cookie to the REST API instead of a key."""

    def __init__(self, origins: OriginGuard, identify: Identify) -> None:
        self.failed_auth_limit = FailedAuthLimit()
        self._origins = origins
        self._identify = identify

    def change(self, origins: OriginGuard, identify: Identify) -> None:
        """Use these from now on."""
        self._origins = origins
        self._identify = identify

    def admit(self, fields: Fields, frontend: FrontendName, request: Request | None = None) -> Caller | Denied:
        """The caller of a request to a frontend, or its denial; without `request`, DPoP proofs are not accepted."""
        refusal = self._origins.check(fields)
        if refusal is not None:
            return Denied(refusal.status, refusal.message)
        if b"cookie" in fields and frontend == "rest" and request is not None and self.sessions is not None:
            has_key = b"authorization" in fields or b"x-api-key" in fields
            session = None if has_key else self.sessions.find(fields)
            if session is not None:
                if request["method"] not in SAFE_METHODS and not has_csrf_token(session, fields):
                    return Denied(403, "A request of a signed-in page needs the session's X-Csrf-Token.")
                fields = {**fields, b"authorization": session.authorization}
        return self.identify(fields, frontend, request)

    def caller_of(self, fields: Fields, request: Request) -> Caller | None:
        """The caller of a request, for counting; a wrong credential does not count as an attempt here."""
        known = self._identify(fields)
        if known is None and self.prove is not None:
            known = self.prove(fields, request)
        return known if isinstance(known, Caller) else None

    def place(self, fields: Fields) -> Denied | None:
        """Check Host and Origin only, for frontends that check the credential themselves."""
        refusal = self._origins.check(fields)
        return None if refusal is None else Denied(refusal.status, refusal.message)

    def cors_lines(self, origin: bytes) -> bytes:
        """See `OriginGuard.cors_lines`."""
        return self._origins.cors_lines(origin)

    def preflight(self, fields: Fields) -> bytes | None:
        """The response headers for a CORS preflight from a listed origin; None for any other request."""
        origin = fields.get(b"origin")
        if origin is None or b"access-control-request-method" not in fields or not self.cors_lines(origin):
            return None
        return preflight_lines(fields)

    def identify(self, fields: Fields, frontend: FrontendName, request: Request | None = None) -> Caller | Denied:
        """The same by the credential alone, for transports that browsers cannot use (no Host or Origin)."""
        known = self._identify(fields)
        if known is None and request is not None and self.prove is not None:
            known = self.prove(fields, request)
        if isinstance(known, Caller):
            return known.on(frontend) if known.frontends else known
        if isinstance(known, Unprovable):
            return Denied(503, known.reason, (RETRY,))
        denied = self.refuse(fields, frontend)
        if denied.is_guess and (seconds := self.failed_auth_limit.failed_here()):
            return slowed(seconds)
        return denied
