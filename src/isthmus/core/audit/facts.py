"""What the audit log is told, and the records that it makes of it.

A fact is made on the path of a call and costs next to nothing; it becomes a record later, elsewhere. Records hold who,
what, when and how it ended, and neither arguments nor results: of the arguments a keyed digest, so that two calls can
be seen to be alike, and an argument that is known can be proved, but none be guessed without the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

from isthmus.model.calls import Call
from isthmus.model.faults import Executed, Fault
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome

TEXT_LENGTH_MAX = 256
"""Callers choose names, and servers theirs: a record stays a line."""

MEMBERS_MAX = 24

Value: TypeAlias = str | int | float | bool | None

Ended: TypeAlias = tuple[float, Call, ServerName | None, Outcome | None, float, bool, str]
"""A call that is over: when, which, its server, how it ended (None: it is about to be sent), after how many seconds,
whether it was sent, and what its records are known by if it has several. A bare tuple: every call makes one."""


class Happening(msgspec.Struct, frozen=True):
    """Something else that happened: a key that was revoked, a definition that changed, a hub that started."""

    at: float
    event: str
    about: Mapping[str, Value]


class Written(msgspec.Struct, frozen=True, gc=False):
    """A fact that is a record already, so that the call need not be held for it any longer."""

    at: float
    content: bytes


Fact: TypeAlias = Ended | Happening | Written

STARTED = "hub.started"
STOPPED = "hub.stopped"
UNCLEAN = "hub.unclean"
"""The hub before this one did not come to its end: what it had not written yet is not here."""
UNSIGNED = "audit.unsigned"
"""Records at the end that no checkpoint vouched for, though the hub before came to its end: somebody else's."""
REFUSED = "caller.refused"
"""Requests that were not let in, by which face and how many, for want of a credential or for where they came from."""
LOST = "audit.lost"
"""Records that could not be written, and how many they were."""


class CallRecord(msgspec.Struct, omit_defaults=True):
    """A call, as it is kept."""

    at: float
    event: str
    caller: str
    tenant: str
    face: str
    kind: str
    name: str
    arguments: str
    server: str | None = None
    outcome: str = ""
    executed: str = ""
    seconds: float = -1.0
    session: str = ""
    id: str = ""
    key: str = ""
    """By which of its keys the caller came."""


class Scribe:
    """Writes facts as records."""

    def __init__(self, key: bytes) -> None:
        self._keyed = blake2b(key=key, digest_size=16)
        self._encoder = msgspec.json.Encoder()

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """The time of a fact and its record; a text that cannot be written costs only itself."""
        if isinstance(fact, Written):
            return fact.at, fact.content
        try:
            return self._record(fact)
        except UnicodeError:
            at = fact.at if isinstance(fact, Happening) else fact[0]
            return at, self._encoder.encode({"at": at, "event": "audit.unwritable"})

    def _record(self, fact: Ended | Happening) -> tuple[float, bytes]:
        if isinstance(fact, tuple):
            return self._of_call(*fact)
        at = fact.at
        told: dict[str, Value] = {"at": at, "event": fact.event}
        for key, value in list(fact.about.items())[:MEMBERS_MAX]:
            told.setdefault(key, _short(value))
        return at, self._encoder.encode(told)

    def _of_call(
        self,
        at: float,
        call: Call,
        server: ServerName | None,
        outcome: Outcome | None,
        seconds: float,
        was_sent: bool,  # noqa: FBT001 - a member of the fact, which is a tuple
        id: str,
    ) -> tuple[float, bytes]:
        caller = call.caller
        known = (
            at,
            "call" if outcome is not None else "call.begun",
            caller.name[:TEXT_LENGTH_MAX],
            caller.tenant[:TEXT_LENGTH_MAX],
            call.face,
            call.kind,
            _named(call),
            self.digest(call.arguments),
            server,
        )
        session = self.digest(call.session.encode(errors="replace"))[:16] if call.session else ""
        id = id[:TEXT_LENGTH_MAX]
        if outcome is None:
            return at, self._encoder.encode(CallRecord(*known, session=session, id=id, key=caller.key))
        word, executed = said_of(outcome, was_sent=was_sent)
        record = CallRecord(*known, word, executed, round(seconds, 6), session, id, caller.key)
        return at, self._encoder.encode(record)

    def digest(self, data: Any) -> str:
        """What can be compared with another one's, and says nothing to who has not the key."""
        keyed = self._keyed.copy()
        keyed.update(data)
        return keyed.hexdigest()


def said_of(outcome: Outcome, *, was_sent: bool) -> tuple[str, Executed]:
    """How a call ended, in a word, and whether it ran."""
    if isinstance(outcome, Fault):
        return outcome.reason, outcome.executed
    if outcome.asked_by is not None:
        return "asked", "unknown"
    return ("tool_error" if outcome.is_error else "result"), ("yes" if was_sent else "no")


def _named(call: Call) -> str:
    """What was asked for; what follows a question mark in an address may be a secret, and so may who goes there."""
    if call.kind not in ("resource", "uri_argument"):
        return call.name[:TEXT_LENGTH_MAX]
    address = call.name.partition("?")[0].partition("#")[0]
    scheme, slashes, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"[:TEXT_LENGTH_MAX]


def _short(value: Value) -> Value:
    return value[:TEXT_LENGTH_MAX] if isinstance(value, str) else value
