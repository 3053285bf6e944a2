"""Who may come in over HTTP: the place (Host, Origin) and the person (a key), decided for every face alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import msgspec

from isthmus.faces.http.brake import Brake
from isthmus.faces.http.origin import OriginGuard, preflight_lines
from isthmus.model.callers import Caller, Face, Unprovable

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
Fields: TypeAlias = Mapping[bytes, bytes]
"""Headers by their names; those given twice as one list (see `bodies.joined`), which is no host, origin or key."""
Identify: TypeAlias = Callable[[Fields], Caller | Unprovable | None]
"""Makes a caller of a request's headers; None if they hold no valid credential."""

Request: TypeAlias = MutableMapping[str, Any]
"""What a request is to an application (the scope of ASGI): its `method`, `raw_path` and `headers`."""
BASES = "isthmus.bases"
"""Where a request that is no HTTP of the hub's own says what the addresses before its path are."""
Prove: TypeAlias = Callable[[Fields, Request], Caller | Unprovable | None]
"""Makes a caller of a token that is bound to a key, and the proof of it for this very request (RFC 9449)."""

CHALLENGE = b'Bearer realm="isthmus"'
RETRY = (b"retry-after", b"5")


class Denied(msgspec.Struct, frozen=True):
    """Why a request does not come in."""

    status: int
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    is_guess: bool = False
    """Whether a credential was shown that is not, and never was, anybody's."""


PLAIN_DENIAL = Denied(
    401, "A valid key is needed: send Authorization: Bearer KEY or X-Api-Key: KEY", ((b"www-authenticate", CHALLENGE),)
)

TOO_MANY = 429
SLOWED = "Too many wrong keys came from this address, and this one is wrong, too; a right one is let in at once"


def slowed(seconds: int) -> Denied:
    """What somebody is told who shows wrong keys one after the other."""
    return Denied(TOO_MANY, SLOWED, ((b"retry-after", b"%d" % seconds),))


Refuse: TypeAlias = Callable[[Fields, Face], Denied]
"""Says what a request is told whose sender nobody knows."""


class Gate:
    """Checks every request before a face reads it."""

    refuse: Refuse = staticmethod(lambda _fields, _face: PLAIN_DENIAL)
    """Replaced where there is more to say: where a token is to be had, and what is wrong with one that was shown."""

    on_turned_away: Callable[[str, int], None] = staticmethod(lambda _face, _status: None)
    """Is told by the faces of everybody whom they turn away, with what status; replaced by who keeps book of that."""

    prove: Prove | None = None
    """Set where there are issuers, whose tokens may be bound to keys."""

    def __init__(self, origins: OriginGuard, identify: Identify) -> None:
        self.brake = Brake()
        self._origins = origins
        self._identify = identify

    def change(self, origins: OriginGuard, identify: Identify) -> None:
        """Decide by these from now on."""
        self._origins = origins
        self._identify = identify

    def admit(self, fields: Fields, face: Face, request: Request | None = None) -> Caller | Denied:
        """The caller as it comes by a face, or why there is none; without the request, no proof of a key is taken."""
        refusal = self._origins.check(fields)
        if refusal is not None:
            return Denied(refusal.status, refusal.message)
        return self.know(fields, face, request)

    def caller_of(self, fields: Fields, request: Request) -> Caller | None:
        """Whose request it is, for whoever counts; a wrong credential is not counted as a guess here."""
        known = self._identify(fields)
        if known is None and self.prove is not None:
            known = self.prove(fields, request)
        return known if isinstance(known, Caller) else None

    def place(self, fields: Fields) -> Denied | None:
        """Why nobody comes in from where this does; None if one may, whose credential is for the face to ask."""
        refusal = self._origins.check(fields)
        return None if refusal is None else Denied(refusal.status, refusal.message)

    def cors_lines(self, origin: bytes) -> bytes:
        """See `OriginGuard.cors_lines`."""
        return self._origins.cors_lines(origin)

    def preflight(self, fields: Fields) -> bytes | None:
        """How a browser is answered that asks what a listed page may send; None if this is no such request."""
        origin = fields.get(b"origin")
        if origin is None or b"access-control-request-method" not in fields or not self.cors_lines(origin):
            return None
        return preflight_lines(fields)

    def know(self, fields: Fields, face: Face, request: Request | None = None) -> Caller | Denied:
        """The same by the key alone, where no browser can be made to come and there is no Host or Origin to ask for."""
        known = self._identify(fields)
        if known is None and request is not None and self.prove is not None:
            known = self.prove(fields, request)
        if isinstance(known, Caller):
            return known.on(face) if known.faces else known
        if isinstance(known, Unprovable):
            return Denied(503, known.reason, (RETRY,))
        denied = self.refuse(fields, face)
        if denied.is_guess and (seconds := self.brake.failed_here()):
            return slowed(seconds)
        return denied
