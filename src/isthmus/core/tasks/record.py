"""What is stored of a task, and how it is encoded.

A record is a value; the engine replaces it whole with every change. It holds the messages, how far the call got and how
it ended, independent of any protocol: frontends convert it for their callers. The call itself is stored only until it
may have been sent: after that it is never sent again.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.core.journal import Document
from isthmus.model.callers import Caller
from isthmus.model.calls import Call, Outcome, Result
from isthmus.model.fault_table import FAULTS, Executed, NotConnected, ServerError, restored_fault
from isthmus.model.names import ServerName
from isthmus.model.tasks import ABSENT, ENDED, Message, TaskState

TASK = "task"
"""The `Document.kind` of tasks."""

DEDUP_KEY = "repeat"
"""The `Document.kind` of idempotency keys."""

KEY_SECONDS = 24 * 3600.0
"""How long a key is valid."""

CallPhase: TypeAlias = Literal["idle", "waiting", "sent", "over"]
"""How far a task's call got. `idle`: there is no call. `waiting`: it was not sent. `sent`: it may have reached its
server. `over`: it has ended."""


class TaskOwner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The caller that owns a task. Its permissions are not stored; they are looked up when needed."""

    tenant: str
    name: str
    realm: str = ""
    """Separates the tasks of a frontend that keeps its own."""

    @property
    def key(self) -> str:
        """The `Document.owner` of this owner's documents; tenant names contain no line break."""
        return f"{self.tenant}\n{self.name}\n{self.realm}" if self.realm else f"{self.tenant}\n{self.name}"


def owner_of(caller: Caller, realm: str = "") -> TaskOwner:
    """The owner of tasks that this caller starts."""
    return TaskOwner(caller.tenant, caller.name, realm)


# -- how a call ended --------------------------------------------------------------------------------------------------


class StoredOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call ended: the server's result, or the fault."""

    result: Raw = ABSENT
    is_error: bool = False
    reason: str = ""
    message: str = ""
    executed: Executed = "yes"
    server: ServerName | None = None
    code: int | None = None
    data: Raw = ABSENT
    """The `data` of a server's own error."""
    retry_after: float | None = None
    is_bare: bool = False
    """See `Result.is_bare`."""
    approval: str | None = None
    """See `Fault.approval`."""


def stored_outcome(outcome: Outcome) -> StoredOutcome:
    """The stored form of an outcome."""
    if isinstance(outcome, Result):
        return StoredOutcome(outcome.payload, outcome.is_error, is_bare=outcome.is_bare)
    code, data = (outcome.code, outcome.data) if isinstance(outcome, ServerError) else (None, None)
    return StoredOutcome(
        reason=outcome.reason,
        message=outcome.message,
        executed=outcome.executed,
        server=outcome.server,
        code=code,
        data=ABSENT if data is None else data,
        retry_after=outcome.retry_after,
        approval=outcome.approval,
    )


def outcome_bytes(ending: StoredOutcome) -> int:
    """The approximate size of a stored outcome."""
    return len(memoryview(ending.result)) + len(memoryview(ending.data)) + len(ending.message)


def restored_outcome(ending: StoredOutcome) -> Outcome:
    """The outcome that was stored, as far as its fields were."""
    if ending.result:
        return Result(ending.result, ending.is_error, is_bare=ending.is_bare)
    fault = restored_fault(
        ending.reason if ending.code is None else ServerError.reason,
        ending.message,
        server=ending.server,
        executed=ending.executed,
        retry_after=ending.retry_after,
    )
    fault.approval = ending.approval
    if isinstance(fault, ServerError):
        fault.reason = ending.reason  # another hub has reasons of its own
        fault.code, fault.data = ending.code or 0, ending.data or None
    return fault


def state_after(outcome: Outcome) -> TaskState:
    """The state of a task whose call ended like this."""
    if isinstance(outcome, Result):
        return "failed" if outcome.is_error else "completed"
    row = FAULTS.get(outcome.reason)
    return "failed" if row is None else row.a2a_state


# -- the record --------------------------------------------------------------------------------------------------------


class StoredQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question of the task's server that waits for the caller's answer."""

    method: str
    params: Raw
    number: int = 0
    """Its number among the task's questions, from 1."""


APPROVAL_NOTICE = "isthmus/approval"
"""The `method` of what a task shows while its call waits for an operator's approval. Its caller does not answer it."""


def is_approval(asked: StoredQuestion) -> bool:
    """Whether a task waits for an operator, and not for its caller."""
    return asked.method == APPROVAL_NOTICE


class PushRecipient(msgspec.Struct, frozen=True, omit_defaults=True):
    """An address that changes of a task are pushed to, and the credentials to send there."""

    id: str
    url: str
    form: str
    """The protocol generation to encode notifications in, as the frontend that created it names it."""
    token: str = ""
    scheme: str = ""
    credentials: str = ""
    is_trusted: bool = False
    """Whether its creator may name private addresses, if the operator listed them."""
    key: str = ""
    """The id of the key that created it (`Caller.key`): it ends with that key."""
    host: str = ""
    """The host of the URL, if the URL is sealed."""


class PendingCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that was not sent yet, and is sent once its server is connected."""

    call: Call
    """Its caller has no grants here: permissions are looked up when the call is sent."""
    server: ServerName
    agent: str | None
    """The agent under which the server dialled in: another server that has its name now is a different one."""
    name: str
    """The server's own name for the tool."""
    since: float
    """When its timeout started."""
    waits_for_login: bool = False


class TaskRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that is stored of one task."""

    id: str
    owner: TaskOwner
    context: str
    origin: str
    """The protocol it was started in, as its frontend names it."""
    state: TaskState
    created: float
    updated: float
    version: int = 1
    said: tuple[Message, ...] = ()
    """The messages of both sides."""
    phase: CallPhase = "idle"
    asked: StoredQuestion | None = None
    """The open question."""
    ending: StoredOutcome | None = None
    brief: Raw = ABSENT
    """The frontend's own data; the engine does not read it."""
    metadata: Raw = ABSENT
    recipients: tuple[PushRecipient, ...] = ()
    besides: tuple[StoredQuestion, ...] = ()
    """Further open questions, to be asked next."""
    pending: PendingCall | None = None
    """The call, as long as it provably was not sent."""
    is_withdrawn: bool = False
    """Its caller cancelled it."""
    resumes: bool = False
    """Its work is stored beside it, and continues after a crash (`ResumableWork`)."""

    @property
    def is_terminal(self) -> bool:
        """Whether its state is final."""
        return self.state in ENDED


_decode = msgspec.json.Decoder(TaskRecord).decode
_encode = msgspec.json.Encoder().encode


def document_of(record: TaskRecord, owner: str = "") -> Document:
    """The journal's document of a record; `owner` is the key of its owner, if that is known."""
    body = _encode(record)
    # `submitted` → `working` is not written by itself: a stored record whose call was sent counts as working.
    state = "working" if record.state == "submitted" and record.phase == "sent" else record.state
    return Document(
        TASK, owner or record.owner.key, record.id, record.version, record.updated, body, record.context, state
    )


def record_of(document: Document) -> TaskRecord:
    """Decode a document; raises `msgspec.MsgspecError`."""
    return read_record(document.body or b"")


def shown_record(document: Document) -> TaskRecord:
    """The record of a task that another node may run; raises `msgspec.MsgspecError`."""
    record = record_of(document)
    return record if record.state == document.state else msgspec.structs.replace(record, state=document.state)


def read_record(text: bytes | Raw) -> TaskRecord:
    """Decode a record; raises `msgspec.MsgspecError`."""
    return _decode(text)


# -- questions that send the user to a URL -----------------------------------------------------------------------------

URL_REQUIRED = -32042
"""MCP's error code for "the user must visit a URL before this request can succeed"."""

ELICIT = "elicitation/create"


class _UrlElicitation(msgspec.Struct):
    mode: Literal["url"]
    url: str
    message: str = ""


class _RequiredElicitations(msgspec.Struct):
    elicitations: list[Raw]


_URL_ELICITATION = msgspec.json.Decoder(_UrlElicitation)
_REQUIRED_ELICITATIONS = msgspec.json.Decoder(_RequiredElicitations)


def _read_elicitation(params: Raw) -> _UrlElicitation | None:
    try:
        return _URL_ELICITATION.decode(params)
    except msgspec.MsgspecError:
        return None


def is_login(asked: StoredQuestion) -> bool:
    """Whether a question asks the user to visit a URL (a URL elicitation)."""
    return asked.method == ELICIT and _read_elicitation(asked.params) is not None


def login_question(outcome: Outcome) -> StoredQuestion | None:
    """What the user must do before a call that ended like this can be retried; None if a login would not help.

    Unlike an elicitation during a call, this question cannot be answered: the call has to be made again.
    """
    if isinstance(outcome, NotConnected) and outcome.login is not None:
        message = f"Server {outcome.server} requires you to log in"
        params = {"mode": "url", "message": message, "url": outcome.login, "server": outcome.server}
        return StoredQuestion(ELICIT, Raw(msgspec.json.encode(params)))
    if not isinstance(outcome, ServerError) or outcome.code != URL_REQUIRED:
        return None
    try:
        required = _REQUIRED_ELICITATIONS.decode(outcome.data or b"").elicitations
    except msgspec.MsgspecError:
        return None
    found = [(raw, elicitation) for raw in required if (elicitation := _read_elicitation(raw)) is not None]
    if len(found) <= 1:
        return StoredQuestion(ELICIT, found[0][0].copy()) if found else None
    # The user must visit all of them, and the task asks only once.
    others = "\n".join(f"{each.message} {each.url}".strip() for _, each in found[1:])
    first = found[0][1]
    message = f"{first.message}\n{others}".strip()
    several = {"mode": "url", "message": message, "url": first.url, "elicitations": required}
    return StoredQuestion(ELICIT, Raw(msgspec.json.encode(several)))
