"""The A2A agent, independent of the generation: send messages, and get, list and cancel tasks.

A caller only sees its own tasks; tasks of others do not exist for it. The HTTP and gRPC frontends read requests and
write responses; this module does the work.

Repeated messages run once, by their content and by idempotency keys. A client that got no response sends its message
again under the same id. It gets the task of the first message, until ten minutes after that has ended. The task's id is
derived from the message, so the journal itself knows which messages were received. A client that adds an
Idempotency-Key gets the first task for a day; the key is stored in the journal with the task.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import msgspec
import structlog
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.calls.hub import Hub
from isthmus.core.event_loop import LONG_BYTES, offload, pause_after
from isthmus.core.journal import Document, Journal, WriteResult
from isthmus.core.ports import TargetResolver
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.live_task import (
    KeyQuotaExceeded,
    LiveTask,
    NewTask,
    StorageQuotaExceeded,
    TaskExists,
    TaskNotStarted,
    TaskNotStored,
)
from isthmus.core.tasks.record import (
    DEDUP_KEY,
    KEY_SECONDS,
    TASK,
    TaskOwner,
    TaskRecord,
    is_approval,
    owner_of,
)
from isthmus.frontends.a2a.caller_messages import (
    Instruction,
    ReadMessage,
    Saying,
    ToolInstruction,
    digest_of,
    is_refusal,
    message_digest,
    object_in,
    read_instruction,
    read_message,
    read_reply,
    without_headers,
)
from isthmus.frontends.a2a.planning import CallerView, MakeScriptTask, SentMessage, TaskPlan, plan
from isthmus.frontends.a2a.push_notifications import PushNotifications, fault_problem
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.a2a.task_view import question_of, record_bytes, whole_task
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING
from isthmus.model.fault_table import NotWritten, TaskElsewhere
from isthmus.model.tasks import ENDED, WAITING, DataPart, FilePart, Message, TextPart
from isthmus.wire.a2a.operations import A2aProblem, CancelTask, DialectName, GetTask, ListTasks, SendMessage, TaskPage

log = structlog.get_logger(__name__)

PAGE_SIZE_MAX = 100
ID_LENGTH_MAX = 256
"""Ids chosen by callers are stored unchanged."""


DELIVERED_MAX = 10_000
"""How many delivered responses of 0.1 are remembered; beyond that, a repeated message counts as a retry."""

SAID_MAX = 1_000
"""Messages of one task; each change rewrites all of them."""

SAID_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of the messages after the first, for the same reason."""

SAID_AGAIN = "\nmessage "
"""Prefix of the internal idempotency key of a message. Keys of callers have no line break."""

CANCELLED = "the caller cancelled the task"

UNKNOWN_IF_RUN = A2aProblem(
    "internal",
    "The hub cannot check now whether this message ran before. It did not run this time; send it again later with "
    "the same id",
    {"executed": "unknown"},
)

TaskProgress: TypeAlias = tuple[str, int, int]
"""Progress of a task: its state, the number of messages, and the number of the open question."""


JOINED_SECONDS = 600.0
"""How long after its task's end the same message joins it. After that it is a new one: some clients restart their
message ids with every process."""


class _StoredKey(msgspec.Struct, frozen=True):
    digest: str
    task: str


_decode_key = msgspec.json.Decoder(_StoredKey).decode


class IdempotencyKey(msgspec.Struct, frozen=True):
    """A key that a caller has used: for which message and task, and when."""

    digest: str
    task: str
    version: int
    at: float

    def is_valid(self, now: float) -> bool:
        """Whether it still stands for its task."""
        return now < self.at + KEY_SECONDS


async def read_key(journal: Journal, owner: TaskOwner, key: str) -> IdempotencyKey | None:
    """The last use of a key, which may have expired."""
    document = await journal.read(DEDUP_KEY, owner.key, key)
    if document is None or document.body is None:
        return None
    stored = _decode_key(document.body)
    return IdempotencyKey(stored.digest, stored.task, document.version, document.at)


def key_document(
    owner: TaskOwner, key: str, digest: str, task: str, at: float, before: IdempotencyKey | None
) -> Document:
    """The document that stores a use of a key."""
    version = 1 if before is None else before.version + 1
    return Document(DEDUP_KEY, owner.key, key, version, at, msgspec.json.encode(_StoredKey(digest, task)))


class _FreeKey(msgspec.Struct, frozen=True):
    """An idempotency key that is free; `before` is its expired use."""

    name: str
    before: IdempotencyKey | None
    digest: str


class A2aService:
    """The operations of the agent. `settings` may be replaced at any time."""

    def __init__(
        self,
        hub: Hub,
        engine: TaskEngine,
        journal: Journal,
        settings: A2aSettings,
        now: Callable[[], float],
        pushing: PushNotifications,
        targets: TargetResolver | None = None,
    ) -> None:
        self.settings = settings
        self.pushing = pushing
        self.hub = hub
        self._engine = engine
        engine.write_question = question_of
        self._journal = journal
        self._now = now
        self._targets = targets
        self.context_prefix = ""
        """What the ids of new contexts begin with: the tag of this node."""
        self.script_task: MakeScriptTask | None = None
        """Makes the tasks of scripts, if the hub runs any."""
        self._last_warning = ""
        """The last warning, which is logged only once."""
        self._delivered: OrderedDict[tuple[str, str], TaskProgress] = OrderedDict()
        """Progress of 0.1 tasks at the last response to their callers; messages of 0.1 have no ids."""

    # -- sending messages --------------------------------------------------------------------------------------------

    async def send(
        self, caller: Caller, dialect: DialectName, said: SendMessage, key: str | None = None
    ) -> LiveTask | A2aProblem:
        """Begin a task, or continue one. If the idempotency `key` was used before, return its task."""
        if said.message.role != "user":
            return A2aProblem("invalid_params", "message.role must be user: only user messages are instructions")
        for part in said.message.parts:
            if isinstance(part, FilePart):  # refused instead of dropped: tools take JSON and text
                kind = (part.media_type or "any type")[:ID_LENGTH_MAX]
                return A2aProblem("content_type_not_supported", f"A file of {kind} is not supported: send text or data")
        if said.push is not None and (problem := await self.pushing.check(caller, dialect, said.push)) is not None:
            return problem
        if key is None:
            return await self._send(caller, dialect, said, None)
        if not 0 < len(key) <= ID_LENGTH_MAX:
            return A2aProblem("invalid_params", f"Idempotency-Key must have between 1 and {ID_LENGTH_MAX} characters")
        used = await self._find_key(owner_of(caller), key)
        if used is not None and used.is_valid(self._now()):
            return await self._task_of_key(caller, key, used, said)
        return await self._send(caller, dialect, said, _FreeKey(key, used, digest_of(said)))

    async def _send(
        self, caller: Caller, dialect: DialectName, said: SendMessage, key: _FreeKey | None
    ) -> LiveTask | A2aProblem:
        if said.task is not None:
            live = await self._engine.find(owner_of(caller), said.task)
            if live is not None:
                return await self._continue(caller, dialect, live, _with_id(said), key)
            if dialect != "0.1":
                return _not_found(said.task)
        if len(said.task or "") > ID_LENGTH_MAX or len(said.context or "") > ID_LENGTH_MAX:
            return A2aProblem("invalid_params", f"an id must have at most {ID_LENGTH_MAX} characters")
        if not said.message.id:
            if key is not None:
                return await self._begin_with_key(caller, dialect, said, key)
            return await self._begin_named(caller, dialect, _with_id(said))
        if key is not None:
            return await self._begin_once_with_key(caller, dialect, said, key)
        return await self._begin_once(caller, dialect, said)

    async def _begin_named(self, caller: Caller, dialect: DialectName, said: SendMessage) -> LiveTask | A2aProblem:
        """Begin a task with an id of the caller; continue it if a concurrent request has begun it."""
        begun = await self._begin(caller, dialect, said)
        if isinstance(begun, LiveTask) or said.task is None:
            return begun
        live = await self._engine.find(owner_of(caller), said.task)
        return begun if live is None else await self._continue(caller, dialect, live, said, None)

    async def _begin(
        self, caller: Caller, dialect: DialectName, said: SendMessage, besides: tuple[Document, ...] = ()
    ) -> LiveTask | A2aProblem:
        read = await read_message(owner_of(caller), said)
        task = said.task or secrets.token_hex(16)
        try:
            return await self._engine.begin(await self._new_task(caller, dialect, said, task, read, besides))
        except TaskNotStarted as refused:
            return _refusal(refused)

    # -- repeated messages ---------------------------------------------------------------------------------------------

    async def _begin_once(self, caller: Caller, dialect: DialectName, said: SendMessage) -> LiveTask | A2aProblem:
        """Begin a task, or return the task that this message began before."""
        owner = owner_of(caller)
        read = await read_message(owner, said)
        task = read.task
        while True:
            refused: TaskNotStarted | None = None
            if not self._engine.is_in_memory(owner, task):
                try:
                    return await self._engine.begin(await self._new_task(caller, dialect, said, task, read))
                except TaskNotStarted as error:
                    refused = error
            try:
                live = await self._engine.find(owner, task)
            except OSError:
                return UNKNOWN_IF_RUN
            if live is not None:
                return await self._repeat(caller, dialect, said, live)
            if isinstance(refused, TaskNotStored):
                return UNKNOWN_IF_RUN if self._engine.is_deleting(owner, task) else _refusal(refused)
            # A concurrent request failed to begin the task, or it was deleted meanwhile: try again.

    async def _repeat(
        self, caller: Caller, dialect: DialectName, said: SendMessage, live: LiveTask
    ) -> LiveTask | A2aProblem:
        """Handle a message that began a task before."""
        if is_joined(live.record, self._now()):
            return await self._join(caller, dialect, said, live)
        # The old task is too old to join. An internal key names the newest task of this message.
        owner, name = owner_of(caller), f"{SAID_AGAIN}{live.record.id}"
        used = await self._find_key(owner, name)
        newest = None if used is None else await self._engine.find(owner, used.task)
        if newest is not None and is_joined(newest.record, self._now()):
            return await self._join(caller, dialect, said, newest)
        return await self._begin_with_key(caller, dialect, said, _FreeKey(name, used, digest_of(said)))

    async def _join(
        self, caller: Caller, dialect: DialectName, said: SendMessage, live: LiveTask
    ) -> LiveTask | A2aProblem:
        problem = self._add_push_config(caller, live, dialect, said)
        await self._engine.wait_stored(live)
        return problem or live

    async def _begin_once_with_key(
        self, caller: Caller, dialect: DialectName, said: SendMessage, key: _FreeKey
    ) -> LiveTask | A2aProblem:
        """Begin a task with a key, or bind the key to the task that this message began before."""
        owner = owner_of(caller)
        read, begun = await read_message(owner, said), None
        task = read.task
        if not self._engine.is_in_memory(owner, task):
            begun = await self._begin_with_key(caller, dialect, said, key, task)
        live = None if isinstance(begun, LiveTask) else await self._engine.find(owner, task)
        if live is None:
            return begun or await self._begin_with_key(caller, dialect, said, key)
        if not is_joined(live.record, self._now()):
            return await self._begin_with_key(caller, dialect, said, key)
        with suppress(KeyQuotaExceeded):  # the message identifies the task without it
            await self._engine.storage_quota.reserve_key(
                owner, key_document(owner, key.name, key.digest, task, 0.0, key.before)
            )
            await self._store_key(owner, key, task)
        return await self._join(caller, dialect, said, live)

    async def _begin_with_key(
        self, caller: Caller, dialect: DialectName, said: SendMessage, key: _FreeKey, task: str = ""
    ) -> LiveTask | A2aProblem:
        """Begin a task with a key."""
        owner, task = owner_of(caller), task or said.task or secrets.token_hex(16)
        document = key_document(owner, key.name, key.digest, task, self._now(), key.before)
        try:
            await self._engine.storage_quota.reserve_key(owner, document)
        except KeyQuotaExceeded as refused:
            return _quota_problem(refused)
        begun = await self._begin(caller, dialect, replace(_with_id(said), task=task), (document,))
        if isinstance(begun, LiveTask):
            return begun
        # Perhaps a concurrent request used the key.
        used = await self._find_key(owner, key.name)
        if used is None or not used.is_valid(self._now()):
            return begun
        return await self._task_of_key(caller, key.name, used, said)

    async def _find_key(self, owner: TaskOwner, key: str) -> IdempotencyKey | None:
        """The use of a key; None if its task was never begun."""
        used = await read_key(self._journal, owner, key)
        if used is not None and await self._engine.wait_deleted(owner, used.task):
            used = await read_key(self._journal, owner, key)
        return used

    async def _task_of_key(
        self, caller: Caller, key: str, used: IdempotencyKey, said: SendMessage
    ) -> LiveTask | A2aProblem:
        """The task of a key."""
        if used.digest != digest_of(said):
            return A2aProblem("key_reused", f"Idempotency-Key {key!r} was used with another message")
        gone = A2aProblem("task_not_found", f"Task {used.task} of Idempotency-Key {key!r} is no longer stored")
        return await self._engine.find(owner_of(caller), used.task) or gone

    # -- planning -------------------------------------------------------------------------------------

    def _plan(self, caller: Caller, message: Message, context: str, read: Instruction) -> TaskPlan:
        views = CallerView(self.hub, caller, self._targets, self.script_task)
        made = plan(read, views, SentMessage(message, context, self.settings.text_tool))
        if made.note and made.note != self._last_warning:
            self._last_warning = made.note
            log.warning("text_tool cannot be used", reason=made.note)
        return made

    def _add_push_config(
        self, caller: Caller, live: LiveTask, dialect: DialectName, said: SendMessage
    ) -> A2aProblem | None:
        """Add the push notification config of a message to its task."""
        if said.push is None:
            return None
        return self.pushing.add(live, self.pushing.recipient(caller, dialect, said.push, live.record.id))

    async def _new_task(
        self,
        caller: Caller,
        dialect: DialectName,
        said: SendMessage,
        task: str,
        read: ReadMessage,
        besides: tuple[Document, ...] = (),
    ) -> NewTask:
        context = said.context or self.context_prefix + secrets.token_hex(16)
        made = self._plan(caller, said.message, context, read.instruction)
        if self.hub.settling and not made.is_sure:
            until = lambda: self._plan(caller, said.message, context, read.instruction).is_sure  # noqa: E731
            await self.hub.wait_connected(EVERYTHING, until=until)
            made = self._plan(caller, said.message, context, read.instruction)
        if read.size > LONG_BYTES:
            await pause_after(read.size)
        spoken: tuple[Message, ...] = (read.stored,)
        if made.state == "input_required":
            spoken = (*spoken, self._offer(made))
        return NewTask(
            caller,
            context,
            dialect,
            spoken,
            made.state,
            made.call,
            made.ending,
            Raw(msgspec.json.encode(made.brief)),
            said.metadata,
            task,
            besides,
            recipients=() if said.push is None else (self.pushing.recipient(caller, dialect, said.push, task),),
            waits_for_login=True,
        )

    def _offer(self, made: TaskPlan) -> Message:
        """A message that suggests tools, because the caller named none."""
        if not made.offer:
            return Message(secrets.token_hex(8), "agent", (TextPart("No tool is available to you."),))
        text = f"Which tool should run? For example {', '.join(made.offer)}."
        example = {"tool": made.offer[0], "arguments": {}}
        how = DataPart(Raw(msgspec.json.encode({"tools": made.offer, "example": example})), "application/json")
        return Message(secrets.token_hex(8), "agent", (TextPart(text), how))

    # -- continuing a task ---------------------------------------------------------------------------------------------

    async def _continue(
        self, caller: Caller, dialect: DialectName, live: LiveTask, said: SendMessage, key: _FreeKey | None
    ) -> LiveTask | A2aProblem:
        if live.holder:
            return fault_problem(TaskElsewhere(live.record.id))
        is_first, message = dialect == "0.1", without_headers(said.message)
        # A message that was sent before gets the same response.
        is_late = live.record.is_terminal and self._now() >= live.record.updated + JOINED_SECONDS
        is_elsewhere = said.context not in (None, live.record.context)
        is_known = not (is_late or is_elsewhere) and self._is_repeated(live.record, message, by_words=is_first)
        if not is_known:
            found = await self._check_quota(live, message, key)
            if isinstance(found, A2aProblem):
                return found
            live = found
        problem = None if is_known else self._handle_message(caller, live, said, is_first=is_first)
        problem = problem or self._add_push_config(caller, live, dialect, said)
        await self._engine.wait_stored(live)
        if key is not None and problem is None:
            # After the message: if the hub crashes in between, the message identifies itself.
            await self._store_key(owner_of(caller), key, live.record.id)
        return problem or live

    async def _check_quota(self, live: LiveTask, message: Message, key: _FreeKey | None) -> LiveTask | A2aProblem:
        """Check the caller's storage quota, and return the task again."""
        owner, quota = live.record.owner, self._engine.storage_quota
        try:
            await quota.check(owner, len(msgspec.json.encode(message)))
            if key is not None:
                await quota.reserve_key(
                    owner, key_document(owner, key.name, key.digest, live.record.id, 0.0, key.before)
                )
        except (StorageQuotaExceeded, KeyQuotaExceeded) as refused:
            return _quota_problem(refused)
        # While the journal was read, the task may have been unloaded and loaded again.
        return await self._engine.find(owner, live.record.id) or _not_found(live.record.id)

    async def _store_key(self, owner: TaskOwner, key: _FreeKey, task: str) -> None:
        kept: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        document = key_document(owner, key.name, key.digest, task, self._now(), key.before)
        self._journal.write((document,), kept.set_result)
        await kept

    def _handle_message(
        self, caller: Caller, live: LiveTask, said: SendMessage, *, is_first: bool
    ) -> A2aProblem | None:
        """Handle a message to a task. Callers of 0.1 may continue an ended task."""
        record, message = live.record, without_headers(said.message)
        if said.context is not None and said.context != record.context:
            return A2aProblem("invalid_params", f"task {record.id} belongs to another context")
        if record.state in ENDED and not is_first:
            return A2aProblem("unsupported_operation", f"task {record.id} has ended ({record.state})")
        if (problem := _limit_problem(record, message)) is not None:
            return problem
        if record.state in ENDED:
            self._engine.reopen(live)
            self._instruct(caller, live, message, said.message)
            return None
        if record.asked is not None and is_approval(record.asked):
            text = (
                f"task {record.id} waits for an operator's approval and continues by itself; it accepts no message now"
            )
            return A2aProblem("unsupported_operation", text)
        if record.asked is not None and record.phase == "idle":
            # The call waits for a login. It is made again, unless the message declines or has another instruction.
            if is_refusal(record.asked, message):
                self._engine.change(live, state="canceled", phase="over", asked=None, said=(*record.said, message))
            else:
                self._instruct(caller, live, message, _instruction_in((*record.said, said.message)))
            return None
        if record.asked is not None:
            return self._answer(live, message)
        if record.state == "input_required":
            self._instruct(caller, live, message, said.message)
            return None
        return self._store_text(live, message)

    def _is_repeated(self, record: TaskRecord, message: Message, *, by_words: bool) -> bool:
        """Whether a message repeats an earlier one, perhaps because the caller missed the response.

        Messages without ids are compared `by_words`. After a response that the task waits or has ended, the same words
        are a new message: two questions may have the same answer.
        """
        if not by_words:
            return any(each.id == message.id and _is_same(each, message) for each in record.said[1:])
        delivered = self._delivered.get((record.owner.key, record.id))
        if delivered == _progress(record) and (record.is_terminal or record.state in WAITING):
            return False
        last = next((each for each in reversed(record.said) if each.role == "user"), None)
        return last is not None and _is_same(replace(last, id=message.id), message)

    def _answer(self, live: LiveTask, message: Message) -> A2aProblem | None:
        asked = live.record.asked
        assert asked is not None, "the task has an open question"
        reply = read_reply(asked, message)
        if isinstance(reply, str):
            return A2aProblem("invalid_params", reply)
        if not self._engine.answer(live, message, reply):
            return A2aProblem("unsupported_operation", f"task {live.record.id} is no longer waiting for an answer")
        return None

    def _instruct(self, caller: Caller, live: LiveTask, message: Message, meant: Message) -> None:
        """Carry out the instruction in `meant`, which is this message or an earlier one."""
        live.waits_for_login = True
        made = self._plan(caller, meant, live.record.context, read_instruction(meant))
        brief = Raw(msgspec.json.encode(made.brief))
        said = (*live.record.said, message)
        if made.call is not None:
            self._engine.continue_with(live, message, made.call, brief)
        elif made.ending is not None:
            ended = {"state": made.state, "ending": made.ending, "phase": "over", "asked": None}
            self._engine.change(live, said=said, brief=brief, **ended)
        else:
            self._engine.change(live, said=(*said, self._offer(made)))

    def _store_text(self, live: LiveTask, message: Message) -> A2aProblem | None:
        """Store text that arrives while the tool runs. Data is refused, because it cannot reach the tool."""
        record = live.record
        has_values = any(isinstance(part, DataPart) or object_in(part) for part in message.parts)
        if has_values or not isinstance(read_instruction(message), Saying):
            return A2aProblem("unsupported_operation", f"task {record.id} is running and accepts only text now")
        self._engine.change(live, said=(*record.said, message))
        return None

    def delivered(self, record: TaskRecord) -> None:
        """A response with this state of the task has reached its caller."""
        if record.origin != "0.1":
            return
        key = (record.owner.key, record.id)
        self._delivered.pop(key, None)
        self._delivered[key] = _progress(record)
        if len(self._delivered) > DELIVERED_MAX:
            self._delivered.popitem(last=False)

    # -- reading tasks ------------------------------------------------------------------------------------------

    async def find(self, caller: Caller, id: str) -> LiveTask | A2aProblem:
        """One of the caller's tasks."""
        return await self._engine.find(owner_of(caller), id) or _not_found(id)

    async def get(self, caller: Caller, asked: GetTask) -> TaskRecord | A2aProblem:
        """The record of a task."""
        live = await self.find(caller, asked.task)
        return live if isinstance(live, A2aProblem) else (live.stored or live.record)

    async def list(self, caller: Caller, asked: ListTasks) -> TaskPage | A2aProblem:
        """The caller's tasks, last updated first."""
        if not 1 <= asked.page_size <= PAGE_SIZE_MAX:
            return A2aProblem(
                "invalid_params", f"pageSize must be between 1 and {PAGE_SIZE_MAX}, not {asked.page_size}"
            )
        try:
            page = await self._journal.page(
                TASK,
                owner_of(caller).key,
                group=asked.context or "",
                states=() if asked.state is None else (asked.state,),
                after=asked.updated_after or 0.0,
                limit=asked.page_size,
                token=asked.page_token,
            )
        except ValueError:
            return A2aProblem("invalid_params", "pageToken is invalid: use the nextPageToken of a result")
        tasks = [
            await offload(record_bytes(record), partial(whole_task, record))
            for document in page.documents
            if (record := self._engine.current_record(document)) is not None
        ]
        if not asked.has_artifacts:
            tasks = [replace(task, artifacts=()) for task in tasks]
        return TaskPage(tuple(tasks), page.total, page.next, asked.page_size)

    # -- cancelling -------------------------------------------------------------------------------------------------

    async def cancel(self, caller: Caller, asked: CancelTask) -> LiveTask | A2aProblem:
        """Cancel a task."""
        live = await self.find(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        if live.holder and not live.record.is_terminal:
            fault = await self._engine.cancel_elsewhere(live, CANCELLED)
            return live if fault is None else fault_problem(fault)
        if not self._engine.cancel(live, CANCELLED):
            return A2aProblem("task_not_cancelable", f"Task {asked.task} has ended ({live.record.state})")
        await self._engine.wait_stored(live)
        return live


def is_joined(record: TaskRecord, now: float) -> bool:
    """Whether a repeated message joins the task that it started; otherwise it is a new message.

    A caller that sent more messages to the task, or cancelled it, has received the first response: if it repeats the
    message after the task's end, it means a new task.
    """
    if not record.is_terminal:
        return True
    has_answer = record.is_withdrawn or sum(each.role == "user" for each in record.said) > 1
    return not has_answer and now < record.updated + JOINED_SECONDS


def _instruction_in(said: tuple[Message, ...]) -> Message:
    """The message with the instruction: the last one that has one, else the first."""
    spoken = [message for message in said if message.role == "user"]
    return next((each for each in reversed(spoken) if _has_instruction(each)), spoken[0])


def _has_instruction(message: Message) -> bool:
    """Whether a message has an instruction, not only text."""
    read = read_instruction(message)
    return not isinstance(read, Saying) and not (isinstance(read, ToolInstruction) and read.words)


def _progress(record: TaskRecord) -> TaskProgress:
    return record.state, len(record.said), 0 if record.asked is None else record.asked.number


def _refusal(refused: TaskNotStarted) -> A2aProblem:
    if isinstance(refused, TaskExists):
        return A2aProblem("invalid_params", str(refused))
    if isinstance(refused, StorageQuotaExceeded):
        return _quota_problem(refused)
    return fault_problem(NotWritten(str(refused)))


def _quota_problem(refused: TaskNotStored) -> A2aProblem:
    """The caller has reached its quota. It is not an internal error, because a retry does not help."""
    return A2aProblem("unsupported_operation", str(refused), {"executed": "no"})


def _limit_problem(record: TaskRecord, message: Message) -> A2aProblem | None:
    """The problem of a task that has reached its limits; a new task has room."""
    if len(record.said) >= SAID_MAX:
        return A2aProblem(
            "unsupported_operation", f"task {record.id} has {SAID_MAX} messages, which is the limit; begin a new task"
        )
    if sum(len(msgspec.json.encode(each)) for each in (*record.said[1:], message)) > SAID_BYTES_MAX:
        most = f"messages after the first may have {SAID_BYTES_MAX} bytes in all; begin a new task"
        return A2aProblem("unsupported_operation", f"task {record.id} has no room for this message: {most}")
    return None


def _is_same(one: Message, other: Message) -> bool:
    return one == other or message_digest(one) == message_digest(other)


def _with_id(said: SendMessage) -> SendMessage:
    """Add an id to the message if its generation has none."""
    if said.message.id:
        return said
    return replace(said, message=replace(said.message, id=secrets.token_hex(16)))


def _not_found(id: str) -> A2aProblem:
    return A2aProblem("task_not_found", f"Task not found: {id[:ID_LENGTH_MAX]}")
