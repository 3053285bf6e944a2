"""isthmus.identity: callers by tickets that another program of yours hands out.

A ticket is `NAME.EXPIRY.MAC`: until when it is good, in seconds since 1970, and an HMAC of both under a secret that the
two programs share. It is shown as any key is: `Authorization: Bearer NAME.EXPIRY.MAC`.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping

from isthmus.model.callers import Caller, Grants


class Tickets:
    """See `isthmus.identity.verifier.Verifier`: asked on the way of every call, so that nothing here waits."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        """Raises: ValueError if the settings will not do; its text is shown, so that no secret belongs into it."""
        secret, allow = settings.get("secret"), settings.get("allow", [])
        if not isinstance(secret, str) or len(secret) < 32:
            raise ValueError("secret must be a text of at least 32 characters")
        if not isinstance(allow, list) or not all(isinstance(pattern, str) for pattern in allow):
            raise ValueError("allow must be a list of patterns")
        self._secret = secret.encode()
        self._grants = Grants(tuple(allow))
        self._tenant = str(settings.get("tenant", "default"))

    def caller_of(self, credential: bytes) -> Caller | None:
        """Whose ticket this is."""
        claim, _, mac = credential.rpartition(b".")
        # What comes from outside is compared in constant time, and as bytes: texts that are not ASCII would raise.
        if not hmac.compare_digest(mac, mac_of(self._secret, claim)):
            return None
        name, _, expiry = claim.decode().rpartition(".")
        return self._caller(name, expiry) if name and int(expiry) > time.time() else None

    def knows(self, caller: Caller) -> bool:
        """Whether a caller's ticket is good still; its key says which ticket that was."""
        expiry = caller.key.removeprefix("ticket:")
        return expiry.isdecimal() and int(expiry) > time.time() and caller == self._caller(caller.name, expiry)

    def _caller(self, name: str, expiry: str) -> Caller:
        return Caller(name, self._tenant, self._grants, key=f"ticket:{expiry}")


def mac_of(secret: bytes, claim: bytes) -> bytes:
    """What proves a claim, in hexadecimal."""
    return hmac.digest(secret, claim, "sha256").hex().encode()


def ticket(secret: str, name: str, seconds: float) -> str:
    """What the other program hands out."""
    claim = f"{name}.{int(time.time() + seconds)}".encode()
    return f"{claim.decode()}.{mac_of(secret.encode(), claim).decode()}"
