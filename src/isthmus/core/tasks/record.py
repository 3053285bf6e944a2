"""What is kept of a task, and how it is written down.

A record is a value; the engine replaces it whole with every change. It says what was said, how far the call came and
how that ended, all in no protocol's terms; faces make of it what their callers are shown. The call itself is kept only
until it may have been sent: after that it is never sent again.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.core.ports.journal import Document
from isthmus.model.callers import Caller
from isthmus.model.calls import Call
from isthmus.model.conversation import ABSENT, ENDED, Message, TaskState
from isthmus.model.faults import Executed, Fault, Lost, ServerError, leaves
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome, Result

TASK = "task"
"""The kind of document that a task is."""

Phase: TypeAlias = Literal["idle", "waiting", "sent", "over"]
"""How far a task's call has come: there is none; it was not sent, because its server is away; it may have reached its
server; it has ended."""


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose a task is: all that is kept of a caller. What it may do is looked up when it matters."""

    tenant: str
    name: str
    realm: str = ""
    """Which of its tasks are meant, where a face keeps its own apart."""

    @property
    def key(self) -> str:
        """What documents of this owner are filed under; no tenant's name holds a line break."""
        return f"{self.tenant}\n{self.name}\n{self.realm}" if self.realm else f"{self.tenant}\n{self.name}"


def owner_of(caller: Caller, realm: str = "") -> Owner:
    """What is kept of a caller."""
    return Owner(caller.tenant, caller.name, realm)


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call ended: the server's result, or why there is none."""

    result: Raw = ABSENT
    is_error: bool = False
    reason: str = ""
    message: str = ""
    executed: Executed = "yes"
    server: ServerName | None = None
    code: int | None = None
    data: Raw = ABSENT
    """What a server's own error said besides."""
    retry_after: float | None = None
    is_bare: bool = False
    """As of `Result`."""


def ending_of(outcome: Outcome) -> Ending:
    """What is kept of an outcome."""
    if isinstance(outcome, Result):
        return Ending(outcome.payload, outcome.is_error, is_bare=outcome.is_bare)
    code, data = (outcome.code, outcome.data) if isinstance(outcome, ServerError) else (None, None)
    return Ending(
        reason=outcome.reason,
        message=outcome.message,
        executed=outcome.executed,
        server=outcome.server,
        code=code,
        data=ABSENT if data is None else data,
        retry_after=outcome.retry_after,
    )


def bytes_of(ending: Ending) -> int:
    """What an ending takes, but for a few words."""
    return len(memoryview(ending.result)) + len(memoryview(ending.data)) + len(ending.message)


_FAULTS: dict[str, type[Fault]] = {leaf.reason: leaf for leaf in leaves()}


def outcome_of(ending: Ending) -> Outcome:
    """The outcome that an ending was made of, as far as it was kept."""
    if ending.result:
        return Result(ending.result, ending.is_error, is_bare=ending.is_bare)
    kind = _FAULTS.get(ending.reason, Lost)
    # Its message is made already, and what it was made of is not known any more.
    fault = kind.__new__(kind)
    Fault.__init__(fault, ending.message, server=ending.server, executed=ending.executed)
    fault.retry_after = ending.retry_after
    if isinstance(fault, ServerError):
        fault.code, fault.data = ending.code or 0, ending.data or None
    return fault


def state_after(outcome: Outcome) -> TaskState:
    """What a task is once its call has ended so."""
    if isinstance(outcome, Result):
        return "failed" if outcome.is_error else "completed"
    return _STATE_OF.get(outcome.reason, "failed")


_STATE_OF: dict[str, TaskState] = {
    "cancelled": "canceled",
    "overloaded": "rejected",
    "breaker_open": "rejected",
    "draining": "rejected",
    "target_refused": "rejected",
    "too_many_bytes": "rejected",
    "too_many_calls": "rejected",
    "too_many_targets": "rejected",
}
"""Reasons for which nothing was even tried, so that it may be tried again; and the caller's own wish."""


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the task's server asks, and waits for."""

    method: str
    params: Raw
    number: int = 0
    """Which of the task's questions it is, counted from 1."""


class Recipient(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where changes of a task are sent, and what proves there that they come from here."""

    id: str
    url: str
    form: str
    """The generation in whose words it is told, in the words of the face that named it."""
    token: str = ""
    scheme: str = ""
    credentials: str = ""
    is_trusted: bool = False
    """Whether it was named by somebody who may name private addresses, if the operator listed them."""
    key: str = ""
    """Which key named it (`Caller.key`): it ends with that, whatever others its caller has."""
    host: str = ""
    """Where the address leads to, if that is sealed."""


class Pending(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that was not sent, and is to be once its server is back."""

    call: Call
    """Its caller may do nothing here: what it may do is looked up when the call is sent."""
    server: ServerName
    agent: str | None
    """Under whom the server dialled in: another one that has its name now is not meant."""
    name: str
    """What the server itself calls what is asked for."""
    since: float
    """From when on its time runs."""
    waits_for_login: bool = False


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is kept of one task."""

    id: str
    owner: Owner
    context: str
    origin: str
    """The protocol that it was made in, in the words of the face that made it."""
    state: TaskState
    created: float
    updated: float
    version: int = 1
    said: tuple[Message, ...] = ()
    phase: Phase = "idle"
    asked: Asked | None = None
    ending: Ending | None = None
    brief: Raw = ABSENT
    """What the face needs to remember; nobody else reads it."""
    metadata: Raw = ABSENT
    recipients: tuple[Recipient, ...] = ()
    besides: tuple[Asked, ...] = ()
    """What its server asks at the same time, to be asked next."""
    pending: Pending | None = None
    """The call, as long as it is known that it was not sent."""
    is_withdrawn: bool = False
    """Its caller cancelled it."""

    @property
    def is_ended(self) -> bool:
        """Whether nothing follows."""
        return self.state in ENDED


_decode = msgspec.json.Decoder(Record).decode
_encode = msgspec.json.Encoder().encode


def document_of(record: Record) -> Document:
    """A record as the journal keeps it."""
    body = _encode(record)
    owner = record.owner.key
    # That its call was started is not written again: what is kept as sent is being worked on.
    state = "working" if record.state == "submitted" and record.phase == "sent" else record.state
    return Document(TASK, owner, record.id, record.version, record.updated, body, record.context, state)


def record_of(document: Document) -> Record:
    """What the journal kept; raises `msgspec.MsgspecError` if it is none."""
    return read_record(document.body or b"")


def read_record(text: bytes | Raw) -> Record:
    """A record as it was written; raises `msgspec.MsgspecError` if it is none."""
    return _decode(text)
