"""What callers of the agent can do, in no generation's words: say something, ask after tasks, follow them, end them.

Every operation is the caller's own: a task of somebody else is one that does not exist. Used by the face over HTTP;
it writes nothing itself.
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
from isthmus.core.catalog.view import View
from isthmus.core.pauses import aside, pause_after
from isthmus.core.ports.journal import Document, Journal, Verdict
from isthmus.core.ports.targets import Aim, Named, Targets
from isthmus.core.tasks.draft import Draft, NotBegun, NotKept, Taken, TooManyKeys, TooMuchKept, TooMuchSaid
from isthmus.core.tasks.engine import Engine
from isthmus.core.tasks.live import Live
from isthmus.core.tasks.record import TASK, Asked, Owner, Record, owner_of
from isthmus.core.tasks.repeats import JOINED_SECONDS, Keyed, digest_of, is_joined, read_key, task_of, write_key
from isthmus.faces.a2a.instructions import (
    Instruction,
    Saying,
    ToolInstruction,
    object_in,
    read_instruction,
    without_headers,
)
from isthmus.faces.a2a.planning import Plan, Words, plan
from isthmus.faces.a2a.pushing import Pushing
from isthmus.faces.a2a.replies import is_refusal, read_reply
from isthmus.faces.a2a.settings import A2aSettings
from isthmus.faces.a2a.shown import question_of, shown
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.conversation import ENDED, WAITING, Artifact, Data, File, Message, Part, Task, Text
from isthmus.model.faults import Fault, NotConnected, TargetRefused
from isthmus.model.names import ServerName
from isthmus.wire.a2a.operations import Cancel, DialectName, Get, List, Problem, Send, TaskPage

log = structlog.get_logger(__name__)

PAGE_SIZE_MAX = 100
ID_LENGTH_MAX = 256
"""Ids that callers choose are kept as they are, and may not be a book."""


HANDED_OVER_MAX = 10_000
"""Of more, the first are forgotten: who then says the same again is told the same again."""

SAID_MAX = 1_000
"""Messages of one task: each change writes all of them again."""

SAID_BYTES_MAX = 4 * 1024 * 1024
"""All that is said after a task has begun, for the same reason."""

SAID_AGAIN = "\nmessage "
"""Before a task's id, what the key of its message is known by. No caller's own key has a line break."""

UNSURE = Problem(
    "internal",
    "The hub cannot look up now whether this message ran before. It did not run this time; send it again later with "
    "the same id",
    {"executed": "unknown"},
)

Stand: TypeAlias = tuple[str, int, int]
"""How a task stood: its state, how much was said and what was asked."""


class _Views:
    """What one caller sees; see `planning.Views`."""

    def __init__(self, hub: Hub, caller: Caller, targets: Targets | None) -> None:
        self._hub = hub
        self._caller = caller
        self._targets = targets

    def view(self, surface: Surface) -> View:
        return self._hub.snapshot.view(self._caller.grants, surface)

    def knows(self, server: str) -> bool:
        return server in self._hub.lanes and server in self.view(EVERYTHING).servers

    def closed(self, server: str) -> NotConnected | None:
        missing = self.view(EVERYTHING).missing.get(ServerName(server))
        return None if missing is None or missing.is_listed else self.away(server)

    def unreached(self, surface: Surface, name: str) -> NotConnected | None:
        return self._hub.unreached(self._caller.grants, surface, name)

    def away(self, server: str) -> NotConnected | None:
        name = ServerName(server)
        lane = self._hub.lanes.get(name) if name in self.view(EVERYTHING).missing else None
        return None if lane is None else lane.absence()

    def find(self, named: Named) -> ServerName | Aim | Fault:
        if self._targets is None:
            return TargetRefused("Servers are named here as they are configured, and not by their addresses")
        return self._targets.find(self._caller, named)


class _Fresh(msgspec.Struct, frozen=True):
    """A key that stands for nothing now; it may have before."""

    name: str
    before: Keyed | None
    digest: str


class Desk:
    """Takes what callers ask and answers with tasks or problems. `settings` may be replaced at any time."""

    def __init__(
        self,
        hub: Hub,
        engine: Engine,
        journal: Journal,
        settings: A2aSettings,
        now: Callable[[], float],
        pushing: Pushing,
        targets: Targets | None = None,
    ) -> None:
        self.settings = settings
        self.pushing = pushing
        self._hub = hub
        self._engine = engine
        engine.write_question = question_of
        self._journal = journal
        self._now = now
        self._targets = targets
        self._noted = ""
        """What the operator was told last: once is enough."""
        self._handed_over: OrderedDict[tuple[str, str], Stand] = OrderedDict()
        """How tasks of the first generation stood when their callers were told last; its messages have no ids."""

    # -- saying something --------------------------------------------------------------------------------------------

    async def send(self, caller: Caller, dialect: DialectName, said: Send, key: str | None = None) -> Live | Problem:
        """Begin a task, or go on with one; with a `key` that was used before, what came of that is the answer."""
        if said.message.role != "user":
            return Problem("invalid_params", "message.role must be the user's: only those are instructions")
        if (problem := _unusable(said.message)) is not None:
            return problem
        if said.push is not None and (problem := await self.pushing.check(caller, dialect, said.push)) is not None:
            return problem
        if key is None:
            return await self._send(caller, dialect, said, None)
        if not 0 < len(key) <= ID_LENGTH_MAX:
            return Problem("invalid_params", f"Idempotency-Key must have between 1 and {ID_LENGTH_MAX} characters")
        used = await self._used(owner_of(caller), key)
        if used is not None and used.holds(self._now()):
            return await self._under(caller, key, used, said)
        return await self._send(caller, dialect, said, _Fresh(key, used, _digest(said)))

    async def _send(self, caller: Caller, dialect: DialectName, said: Send, key: _Fresh | None) -> Live | Problem:
        if said.task is not None:
            live = await self._engine.find(owner_of(caller), said.task)
            if live is not None:
                return await self._continue(caller, dialect, live, _with_id(said), key)
            if dialect != "0.1":
                return _not_found(said.task)
        if len(said.task or "") > ID_LENGTH_MAX or len(said.context or "") > ID_LENGTH_MAX:
            return Problem("invalid_params", f"an id must have at most {ID_LENGTH_MAX} characters")
        if not said.message.id:
            if key is not None:
                return await self._keyed(caller, dialect, said, key)
            return await self._begin_named(caller, dialect, _with_id(said))
        if key is not None:
            return await self._once_under(caller, dialect, said, key)
        return await self._once(caller, dialect, said)

    async def _begin_named(self, caller: Caller, dialect: DialectName, said: Send) -> Live | Problem:
        """Begin a task under its caller's own name, which may have been given at the same time."""
        begun = await self._begin(caller, dialect, said)
        if isinstance(begun, Live) or said.task is None:
            return begun
        live = await self._engine.find(owner_of(caller), said.task)
        return begun if live is None else await self._continue(caller, dialect, live, said, None)

    async def _begin(
        self, caller: Caller, dialect: DialectName, said: Send, besides: tuple[Document, ...] = ()
    ) -> Live | Problem:
        try:
            return await self._engine.begin(await self._draft(caller, dialect, said, besides))
        except NotBegun as refused:
            return _refusal(refused)

    # -- saying it again ---------------------------------------------------------------------------------------------

    async def _once(self, caller: Caller, dialect: DialectName, said: Send) -> Live | Problem:
        """Begin a task, unless this message began one: then that is the answer."""
        owner = owner_of(caller)
        task = await aside(weight_of(said.message), partial(_task_of, owner, said))
        while True:
            refused: NotBegun | None = None
            if not self._engine.is_in_mind(owner, task):
                try:
                    return await self._engine.begin(await self._draft(caller, dialect, replace(said, task=task), ()))
                except NotBegun as error:
                    refused = error
            try:
                live = await self._engine.find(owner, task)
            except OSError:
                return UNSURE
            if live is not None:
                return await self._again(caller, dialect, said, live)
            if isinstance(refused, NotKept):
                return UNSURE if self._engine.is_undoing(owner, task) else _refusal(refused)
            # Two came at once and the first was not begun, or the task was taken away meanwhile: this one is the first.

    async def _again(self, caller: Caller, dialect: DialectName, said: Send, live: Live) -> Live | Problem:
        """What comes of a message that began a task before."""
        if is_joined(live.record, self._now()):
            return await self._join(caller, dialect, said, live)
        # It is a new one. Which is the newest of those that it began, a key says: the id is the oldest's.
        owner, name = owner_of(caller), f"{SAID_AGAIN}{live.record.id}"
        used = await self._used(owner, name)
        newest = None if used is None else await self._engine.find(owner, used.task)
        if newest is not None and is_joined(newest.record, self._now()):
            return await self._join(caller, dialect, said, newest)
        return await self._keyed(caller, dialect, said, _Fresh(name, used, _digest(said)))

    async def _join(self, caller: Caller, dialect: DialectName, said: Send, live: Live) -> Live | Problem:
        problem = self._address(caller, live, dialect, said)
        await self._engine.until_kept(live)
        return problem or live

    async def _once_under(self, caller: Caller, dialect: DialectName, said: Send, key: _Fresh) -> Live | Problem:
        """Begin a task under a key, unless this message began one: then the key is for that."""
        owner = owner_of(caller)
        task, begun = await aside(weight_of(said.message), partial(_task_of, owner, said)), None
        if not self._engine.is_in_mind(owner, task):
            begun = await self._keyed(caller, dialect, said, key, task)
        live = None if isinstance(begun, Live) else await self._engine.find(owner, task)
        if live is None:
            return begun or await self._keyed(caller, dialect, said, key)
        if not is_joined(live.record, self._now()):
            return await self._keyed(caller, dialect, said, key)
        with suppress(TooManyKeys):  # the message is known without it
            await self._engine.allowance.take_key(owner, write_key(owner, key.name, key.digest, task, 0.0, key.before))
            await self._keep_key(owner, key, task)
        return await self._join(caller, dialect, said, live)

    async def _keyed(
        self, caller: Caller, dialect: DialectName, said: Send, key: _Fresh, task: str = ""
    ) -> Live | Problem:
        """Begin a task under a key."""
        owner, task = owner_of(caller), task or said.task or secrets.token_hex(16)
        document = write_key(owner, key.name, key.digest, task, self._now(), key.before)
        try:
            await self._engine.allowance.take_key(owner, document)
        except TooManyKeys as refused:
            return _too_much_of(refused)
        begun = await self._begin(caller, dialect, replace(_with_id(said), task=task), (document,))
        if isinstance(begun, Live):
            return begun
        # Perhaps somebody used the key at the same time.
        used = await self._used(owner, key.name)
        if used is None or not used.holds(self._now()):
            return begun
        return await self._under(caller, key.name, used, said)

    async def _used(self, owner: Owner, key: str) -> Keyed | None:
        """What a key was used for, which is nothing if the task that it would stand for was not begun."""
        used = await read_key(self._journal, owner, key)
        if used is not None and await self._engine.until_undone(owner, used.task):
            used = await read_key(self._journal, owner, key)
        return used

    async def _under(self, caller: Caller, key: str, used: Keyed, said: Send) -> Live | Problem:
        """The task that a key stands for."""
        if used.digest != _digest(said):
            return Problem("key_reused", f"Idempotency-Key {key!r} was used with another message")
        gone = Problem("task_not_found", f"Task {used.task} of Idempotency-Key {key!r} is not kept any more")
        return await self._engine.find(owner_of(caller), used.task) or gone

    # -- what a message comes to -------------------------------------------------------------------------------------

    def _plan(self, caller: Caller, message: Message, context: str, read: Instruction) -> Plan:
        views = _Views(self._hub, caller, self._targets)
        made = plan(read, caller, views, Words(self.settings.text_tool, message, context))
        if made.note and made.note != self._noted:
            self._noted = made.note
            log.warning("the tool for plain words cannot be told any", why=made.note)
        return made

    def _address(self, caller: Caller, live: Live, dialect: DialectName, said: Send) -> Problem | None:
        """Have what follows told where the message says."""
        if said.push is None:
            return None
        return self.pushing.add(live, self.pushing.recipient(caller, dialect, said.push, live.record.id))

    async def _draft(self, caller: Caller, dialect: DialectName, said: Send, besides: tuple[Document, ...]) -> Draft:
        context, task = said.context or secrets.token_hex(16), said.task or secrets.token_hex(16)
        read = await aside(weight_of(said.message), partial(read_instruction, said.message))
        await self._hub.settle(EVERYTHING, until=lambda: self._plan(caller, said.message, context, read).is_sure)
        made = self._plan(caller, said.message, context, read)
        await pause_after(weight_of(said.message))
        spoken: tuple[Message, ...] = (without_headers(said.message),)
        if made.state == "input_required":
            spoken = (*spoken, self._offer(made))
        return Draft(
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

    def _offer(self, made: Plan) -> Message:
        """Say which tools there are to who did not say which."""
        if not made.offer:
            return _agent("No tool is available to you.")
        text = f"Which tool shall be run? For instance {', '.join(made.offer)}."
        example = {"tool": made.offer[0], "arguments": {}}
        how = Data(Raw(msgspec.json.encode({"tools": made.offer, "example": example})), "application/json")
        return Message(secrets.token_hex(8), "agent", (Text(text), how))

    # -- going on ----------------------------------------------------------------------------------------------------

    async def _continue(
        self, caller: Caller, dialect: DialectName, live: Live, said: Send, key: _Fresh | None
    ) -> Live | Problem:
        is_first, message = dialect == "0.1", without_headers(said.message)
        is_known = self._is_known(live.record, said, message, is_first=is_first)
        if not is_known:
            found = await self._with_room(live, message, key)
            if isinstance(found, Problem):
                return found
            live = found
        problem = None if is_known else self._go_on(caller, live, said, is_first=is_first)
        problem = problem or self._address(caller, live, dialect, said)
        await self._engine.until_kept(live)
        if key is not None and problem is None:
            # After what it stands for: a crash between the two costs nothing, since the message is known by then.
            await self._keep_key(owner_of(caller), key, live.record.id)
        return problem or live

    async def _with_room(self, live: Live, message: Message, key: _Fresh | None) -> Live | Problem:
        """The task, if there is room for this beside the caller's others."""
        owner, allowance = live.record.owner, self._engine.allowance
        try:
            await allowance.check(owner, len(msgspec.json.encode(message)))
            if key is not None:
                await allowance.take_key(owner, write_key(owner, key.name, key.digest, live.record.id, 0.0, key.before))
        except (TooMuchKept, TooManyKeys) as refused:
            return _too_much_of(refused)
        # If the journal was asked, the task may have been forgotten and called back as another since.
        return await self._engine.find(owner, live.record.id) or _not_found(live.record.id)

    async def _keep_key(self, owner: Owner, key: _Fresh, task: str) -> None:
        kept: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        document = write_key(owner, key.name, key.digest, task, self._now(), key.before)
        self._journal.write((document,), kept.set_result)
        await kept

    def _go_on(self, caller: Caller, live: Live, said: Send, *, is_first: bool) -> Problem | None:
        """Take a message; the first generation goes on with what has ended, too."""
        record, message = live.record, without_headers(said.message)
        if said.context is not None and said.context != record.context:
            return Problem("invalid_params", f"task {record.id} belongs to another context")
        if record.state in ENDED and not is_first:
            return Problem("unsupported_operation", f"task {record.id} has ended ({record.state})")
        if (problem := _too_much(record, message)) is not None:
            return problem
        if record.state in ENDED:
            self._engine.reopen(live)
            self._instruct(caller, live, message, said.message)
            return None
        if record.asked is not None and record.phase == "idle":
            self._retry(caller, live, record.asked, message, said.message)
            return None
        if record.asked is not None:
            return self._answer(live, message)
        if record.state == "input_required":
            self._instruct(caller, live, message, said.message)
            return None
        return self._note(live, message)

    def _is_known(self, record: Record, said: Send, message: Message, *, is_first: bool) -> bool:
        """Whether this message was sent to its task before, and is to be answered as it was then."""
        is_late = record.is_ended and self._now() >= record.updated + JOINED_SECONDS
        is_elsewhere = said.context not in (None, record.context)
        return not (is_late or is_elsewhere) and self._is_said_again(record, message, by_words=is_first)

    def _is_said_again(self, record: Record, message: Message, *, by_words: bool) -> bool:
        """Whether it was said before, by somebody who may only have missed the answer to it.

        Messages without ids are the same `by_words`. Who was told how the task stands, and that it waits or has ended,
        means it anew: two questions may have the same answer.
        """
        if not by_words:
            return any(each.id == message.id and _is_same(each, message) for each in record.said[1:])
        told = self._handed_over.get((record.owner.key, record.id))
        if told == _stand(record) and (record.is_ended or record.state in WAITING):
            return False
        last = next((each for each in reversed(record.said) if each.role == "user"), None)
        return last is not None and _is_same(replace(last, id=message.id), message)

    def _answer(self, live: Live, message: Message) -> Problem | None:
        asked = live.record.asked
        assert asked is not None, "only who is asked answers"
        reply = read_reply(asked, message)
        if isinstance(reply, str):
            return Problem("invalid_params", reply)
        if not self._engine.answer(live, message, reply):
            return Problem("unsupported_operation", f"task {live.record.id} does not wait for an answer any more")
        return None

    def _retry(self, caller: Caller, live: Live, asked: Asked, message: Message, heard: Message) -> None:
        """Have done what waited for somebody to log in, unless that is declined or something else is wanted now."""
        before = live.record.said
        if is_refusal(asked, message):
            self._engine.change(live, state="canceled", phase="over", asked=None, said=(*before, message))
        else:
            self._instruct(caller, live, message, _instruction_in((*before, heard)))

    def _instruct(self, caller: Caller, live: Live, message: Message, meant: Message) -> None:
        """The instruction that was missing, `meant` by this message as it was heard or by an earlier one."""
        live.waits_for_login = True
        made = self._plan(caller, meant, live.record.context, read_instruction(meant))
        brief = Raw(msgspec.json.encode(made.brief))
        said = (*live.record.said, message)
        if made.call is not None:
            self._engine.carry_on(live, message, made.call, brief)
        elif made.ending is not None:
            ended = {"state": made.state, "ending": made.ending, "phase": "over", "asked": None}
            self._engine.change(live, said=said, brief=brief, **ended)
        else:
            self._engine.change(live, said=(*said, self._offer(made)))

    def _note(self, live: Live, message: Message) -> Problem | None:
        """Keep words that are said while the tool runs; what it would have to be told is refused, as it cannot be."""
        record = live.record
        if not _is_words(message):
            return Problem("unsupported_operation", f"task {record.id} is being worked on and takes no data now")
        self._engine.change(live, said=(*record.said, message))
        return None

    def delivered(self, record: Record) -> None:
        """A caller has been answered so about its task."""
        if record.origin == "0.1":
            self._note_handed_over(record)

    def _note_handed_over(self, record: Record) -> None:
        key = (record.owner.key, record.id)
        self._handed_over.pop(key, None)
        self._handed_over[key] = _stand(record)
        if len(self._handed_over) > HANDED_OVER_MAX:
            self._handed_over.popitem(last=False)

    # -- asking after tasks ------------------------------------------------------------------------------------------

    async def find(self, caller: Caller, id: str) -> Live | Problem:
        """One of the caller's tasks."""
        return await self._engine.find(owner_of(caller), id) or _not_found(id)

    async def get(self, caller: Caller, asked: Get) -> Record | Problem:
        """How one stands."""
        live = await self.find(caller, asked.task)
        return live if isinstance(live, Problem) else (live.kept or live.record)

    async def list(self, caller: Caller, asked: List) -> TaskPage | Problem:
        """The caller's tasks, those updated last first."""
        if not 1 <= asked.page_size <= PAGE_SIZE_MAX:
            return Problem("invalid_params", f"pageSize must be between 1 and {PAGE_SIZE_MAX}, not {asked.page_size}")
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
            return Problem("invalid_params", "pageToken is not one that was given")
        tasks = [
            _listed(await aside(weight_of_record(record), partial(shown, record)), asked)
            for document in page.documents
            if (record := self._engine.newest(document)) is not None
        ]
        return TaskPage(tuple(tasks), page.total, page.next, asked.page_size)

    # -- ending them -------------------------------------------------------------------------------------------------

    async def cancel(self, caller: Caller, asked: Cancel) -> Live | Problem:
        """Give one up."""
        live = await self.find(caller, asked.task)
        if isinstance(live, Problem):
            return live
        if not self._engine.cancel(live, "the caller gave the task up"):
            return Problem("task_not_cancelable", f"Task {asked.task} has ended ({live.record.state})")
        await self._engine.until_kept(live)
        return live


def _instruction_in(said: tuple[Message, ...]) -> Message:
    """The message that says what is to be done: the last one with an instruction, else the first."""
    spoken = [message for message in said if message.role == "user"]
    return next((each for each in reversed(spoken) if _has_instruction(each)), spoken[0])


def _has_instruction(message: Message) -> bool:
    """Whether a message says what is to be done, and not only in words."""
    read = read_instruction(message)
    return not isinstance(read, Saying) and not (isinstance(read, ToolInstruction) and read.words)


def _stand(record: Record) -> Stand:
    return record.state, len(record.said), 0 if record.asked is None else record.asked.number


def _refusal(refused: NotBegun) -> Problem:
    if isinstance(refused, Taken):
        return Problem("invalid_params", str(refused))
    if isinstance(refused, TooMuchKept | TooMuchSaid):
        return _too_much_of(refused)
    return Problem("internal", str(refused), {"executed": "no"})


def _too_much_of(refused: NotKept) -> Problem:
    """The caller has reached a bound of its own, which is no failure of ours: to try again does not help."""
    return Problem("unsupported_operation", str(refused), {"executed": "no"})


def _too_much(record: Record, message: Message) -> Problem | None:
    """Refuse what a task has no room for; a new one has."""
    if len(record.said) >= SAID_MAX:
        return Problem("unsupported_operation", f"task {record.id} has {SAID_MAX} messages, which is the most")
    if sum(len(msgspec.json.encode(each)) for each in (*record.said[1:], message)) > SAID_BYTES_MAX:
        most = f"{SAID_BYTES_MAX} bytes is the most that can be said after it has begun"
        return Problem("unsupported_operation", f"task {record.id} has no room for this message: {most}")
    return None


def _is_words(message: Message) -> bool:
    """Whether a message has neither an instruction nor values."""
    has_values = any(isinstance(part, Data) or object_in(part) for part in message.parts)
    return not has_values and isinstance(read_instruction(message), Saying)


def _unusable(message: Message) -> Problem | None:
    """Say of a file that nobody here takes one, instead of losing it: tools take JSON, and words."""
    for part in message.parts:
        if isinstance(part, File):
            kind = (part.media_type or "any type")[:ID_LENGTH_MAX]
            return Problem("content_type_not_supported", f"A file of {kind} cannot be taken: only text and data can")
    return None


def weight_of_record(record: Record) -> int:
    """How long a task is, about: what was said in it, and what came of it."""
    result = 0 if record.ending is None else len(memoryview(record.ending.result))
    return result + sum(map(weight_of, record.said))


def weight_of_task(task: Task) -> int:
    """The same of a task as it is shown."""
    return sum(map(weight_of, task.history)) + sum(map(weight_of, task.artifacts))


def weight_of(said: Message | Artifact) -> int:
    """How long the parts of a message are, about."""
    return sum(map(_weight, said.parts))


def _weight(part: Part) -> int:
    match part:
        case Text():
            return len(part.text)
        case Data():
            return len(memoryview(part.data))
        case File():
            return len(part.content or "")


def _task_of(owner: Owner, said: Send) -> str:
    """The id of the task that a message begins: of what is kept of it, and so not of the secrets in it."""
    return task_of(owner, digest_of(without_headers(said.message), said.context))


def _digest(said: Send) -> str:
    """What messages have in common that are the same under a key."""
    return digest_of(without_headers(said.message), said.task, said.context, said.metadata or None)


def _is_same(one: Message, other: Message) -> bool:
    return one == other or digest_of(one) == digest_of(other)


def _with_id(said: Send) -> Send:
    """The same, with an id for its message: not every generation has them."""
    if said.message.id:
        return said
    return replace(said, message=replace(said.message, id=secrets.token_hex(16)))


def _listed(task: Task, asked: List) -> Task:
    return task if asked.has_artifacts else replace(task, artifacts=())


def _not_found(id: str) -> Problem:
    return Problem("task_not_found", f"Task not found: {id[:ID_LENGTH_MAX]}")


def _agent(text: str) -> Message:
    return Message(secrets.token_hex(8), "agent", (Text(text),))
