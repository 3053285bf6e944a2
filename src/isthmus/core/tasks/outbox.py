"""Sends what is due: to each recipient in order, again and again until it has arrived or there is no hope.

What is due is in the journal; here is only remembered where to look. Each recipient of a task has a lane of its own,
in which one delivery is on its way at a time, so that order is kept and who does not answer holds up nobody else. An
attempt is a child of the crew; between attempts there is a timer and nothing else. `app` joins it with the engine,
with whoever writes the letters, and with the courier.
"""

from __future__ import annotations

import asyncio
import hashlib
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.ports.courier import Courier, Receipt
from isthmus.core.ports.journal import Document, Journal, Verdict
from isthmus.core.tasks.engine import Engine, Now
from isthmus.core.tasks.pushes import (
    DELIVERY,
    RETRY_AFTER_SECONDS_MAX,
    Delivery,
    DeliveryState,
    after,
    attempt_of,
    delivery_of,
    id_of,
    is_arrived,
    is_hopeless,
    pause_after,
)
from isthmus.core.tasks.record import Owner, Recipient, Record, read_record

log = structlog.get_logger(__name__)

AT_ONCE = 256
"""Attempts that are under way together."""

AT_ONCE_PER_HOST = 8
"""Of these, those to one host: one that never answers must leave room for the others."""

LANES_MAX = 10_000
"""One owner's recipients that are remembered; what is due to more than these waits in the journal until half of them
are done. Each owner has its own: who names many that do not answer holds up nobody else."""

MISSED_MAX = 10_000
"""What may become due while the journal is read; it is read again for the owners of what is more."""

READ_AT_ONCE = 500

READ_AGAIN_SECONDS = 1.0
"""After what the journal could not read, how long until it is asked again."""

AWAY_SECONDS = 60.0
"""How long what is due to somebody waits of whom nobody can say whether it is still let in, until it is asked again."""

BROKEN_SECONDS = 600.0
"""How long a lane waits on which an attempt broke: by a defect that may concern it alone, and come again."""


class Letter(msgspec.Struct, frozen=True):
    """One thing to be told, as it is sent."""

    url: str
    headers: Mapping[str, str]
    body: bytes


Write: TypeAlias = Callable[[Recipient, Record, str], Sequence[Letter]]
"""What a recipient is told of a change, one letter after the other; the last argument is what the delivery is known by
wherever it is repeated."""

Standing: TypeAlias = Literal["known", "away", "gone"]
"""Whether who named a recipient may still be told something: yes; nobody can say so now, but perhaps later; no more."""

Judge: TypeAlias = Callable[[Owner, str], Standing]
"""How it stands with an owner of tasks, and with the key that it named a recipient by."""

Key: TypeAlias = tuple[str, str, str]
"""The owner's, the task's id and the recipient's."""


class _Due(msgspec.Struct, frozen=True):
    """As much of a delivery as must be remembered."""

    key: Key
    number: int
    host: str
    next: float


class _Lane:
    """What is due to one recipient of one task."""

    __slots__ = ("due", "host", "key", "timer")

    def __init__(self, key: Key, host: _Host) -> None:
        self.key = key
        self.host = host
        self.due: list[int] = []
        """The numbers of its deliveries, the oldest first."""
        self.timer: asyncio.TimerHandle | None = None

    def add(self, number: int) -> None:
        """Remember a delivery."""
        if number not in self.due:
            insort(self.due, number)


class _Host:
    """The lanes that lead to one host, and those whose turn it is."""

    __slots__ = ("has_turn", "name", "ready", "running", "server_queues")

    def __init__(self, name: str) -> None:
        self.name = name
        self.server_queues = 0
        self.running = 0
        self.ready: deque[_Lane] = deque()
        self.has_turn = False


class Outbox:
    """The deliveries of one hub. Whoever makes it has a crew `run` it, and closes it before that crew."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        courier: Courier,
        write: Write,
        background: BackgroundTasks,
        now: Now,
        chance: Callable[[], float],
    ) -> None:
        """`chance` is uniform in [0, 1). Nothing is sent before `run`."""
        self._engine = engine
        self._journal = journal
        self._courier = courier
        self._write = write
        self._background = background
        self._now = now
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._server_queues: dict[Key, _Lane] = {}
        self._hosts: dict[str, _Host] = {}
        self._turns: deque[_Host] = deque()
        """The hosts with something ready and room for it, each in its turn."""
        self._running = 0
        self._is_closed = False
        self._counts: dict[str, int] = {}
        """The lanes of each owner."""
        self._behind: set[str] = set()
        """The owners of whom the journal has something due that is not remembered here; it knows the order."""
        self._is_reading = True
        """Whether it is being found out what the journal has."""
        self._missed: list[_Due] = []
        """What became due meanwhile."""
        self._room = asyncio.Event()
        self.judge: Judge = lambda _owner, _key: "known"
        """Says who may still be told something; whoever knows callers replaces it."""
        engine.on_due = self.take

    async def run(self) -> None:
        """Go on until cancelled, first with what was due before."""
        while True:
            self._room.clear()
            try:
                await self._catch_up()
            except OSError as error:
                log.warning("what is due could not be read", error=str(error))
                await asyncio.sleep(READ_AGAIN_SECONDS)
                continue
            if not any(self._has_room(owner) for owner in self._behind):
                await self._room.wait()

    def close(self) -> None:
        """Begin nothing more; what is due stays so."""
        self._is_closed = True
        for server_queue in self._server_queues.values():
            if server_queue.timer is not None:
                server_queue.timer.cancel()

    # -- what is due -------------------------------------------------------------------------------------------------

    def take(self, documents: Sequence[Document]) -> None:
        """Send these when their turn comes; they are kept."""
        for due in _readable(documents):
            if not self._is_reading:
                self._add(due)
            elif len(self._missed) < MISSED_MAX:
                # Even for a lane that is there: what comes before it may not have been read yet.
                self._missed.append(due)
            else:
                self._behind.add(due.key[0])

    async def _catch_up(self) -> None:
        """Remember all that is due, oldest first, as long as there is room."""
        self._is_reading = True
        self._missed.clear()
        self._behind.clear()
        last: Document | None = None
        while found := await self._journal.all_in(DELIVERY, ("due",), limit=READ_AT_ONCE, after=last):
            last = found[-1]
            for due in _readable(found):
                self._add(due)
        for due in self._missed:
            self._add(due)
        self._missed.clear()
        self._is_reading = False

    def _add(self, due: _Due) -> None:
        """Remember a delivery, unless there is no room, or others come first for which there was none."""
        owner = due.key[0]
        if (server_queue := self._server_queues.get(due.key)) is not None:
            server_queue.add(due.number)
        elif owner in self._behind or self._counts.get(owner, 0) >= LANES_MAX:
            self._behind.add(owner)
        else:
            server_queue = self._server_queues[due.key] = _Lane(due.key, self._host(due.host))
            self._counts[owner] = self._counts.get(owner, 0) + 1
            server_queue.add(due.number)
            self._wait(server_queue, due.next - self._now())

    def _has_room(self, owner: str) -> bool:
        return self._counts.get(owner, 0) <= LANES_MAX // 2

    def _host(self, name: str) -> _Host:
        host = self._hosts.setdefault(name, _Host(name))
        host.server_queues += 1
        return host

    def _leave(self, server_queue: _Lane) -> None:
        """Forget a lane."""
        del self._server_queues[server_queue.key]
        server_queue.host.server_queues -= 1
        if not server_queue.host.server_queues:
            del self._hosts[server_queue.host.name]
        owner = server_queue.key[0]
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]
        if owner in self._behind and self._has_room(owner):
            self._room.set()

    # -- whose turn it is --------------------------------------------------------------------------------------------

    def _wait(self, server_queue: _Lane, seconds: float) -> None:
        """Let a lane have its turn after a while, which no clock that was put back makes any longer."""
        if seconds > 0:
            server_queue.timer = self._loop.call_later(min(seconds, RETRY_AFTER_SECONDS_MAX), self._ready, server_queue)
        else:
            self._ready(server_queue)

    def _ready(self, server_queue: _Lane) -> None:
        server_queue.timer = None
        server_queue.host.ready.append(server_queue)
        self._line_up(server_queue.host)
        self._start_some()

    def _line_up(self, host: _Host) -> None:
        if host.ready and not host.has_turn and host.running < AT_ONCE_PER_HOST:
            host.has_turn = True
            self._turns.append(host)

    def _start_some(self) -> None:
        while self._turns and self._running < AT_ONCE and not self._is_closed:
            host = self._turns.popleft()
            host.has_turn = False
            self._start(host.ready.popleft())
            self._line_up(host)

    def _start(self, server_queue: _Lane) -> None:
        self._running += 1
        server_queue.host.running += 1
        self._background.spawn(
            f"delivery to {server_queue.host.name}",
            self._attempt(server_queue),
            on_crash=lambda _: self._over(server_queue, BROKEN_SECONDS),
        )

    async def _attempt(self, server_queue: _Lane) -> None:
        try:
            pause = await self._try(server_queue)
        except OSError as error:
            log.warning("a delivery could not be read", host=server_queue.host.name, error=str(error))
            pause = READ_AGAIN_SECONDS
        self._over(server_queue, pause if server_queue.due else None)

    def _over(self, server_queue: _Lane, pause: float | None) -> None:
        """An attempt is over; the next of its lane comes after a pause, or there is none."""
        self._running -= 1
        server_queue.host.running -= 1
        if pause is None:
            self._leave(server_queue)
        else:
            self._wait(server_queue, pause)
        self._line_up(server_queue.host)
        self._start_some()

    # -- one attempt -------------------------------------------------------------------------------------------------

    async def _try(self, server_queue: _Lane) -> float:
        """Try the next delivery of a lane, and return how long to wait before the next try."""
        owner, task, recipient = server_queue.key
        number = server_queue.due[0]
        document = await self._journal.read(DELIVERY, owner, id_of(task, recipient, number))
        if document is None or document.state != "due":
            server_queue.due.remove(number)
            return 0.0
        delivery = delivery_of(document)
        tried, state = await self._send(owner, delivery)
        if tried is delivery and state == "due":
            return AWAY_SECONDS
        if state != "due":
            server_queue.due.remove(number)
        await self._keep(after(document, tried, state))
        return tried.next - self._now() if state == "due" else 0.0

    async def _send(self, owner: str, delivery: Delivery) -> tuple[Delivery, DeliveryState]:
        """Send the letters of a delivery that have not arrived yet, up to the first that does not.

        One that is due and unchanged was not tried: it is open whether its owner may be told it.
        """
        live = await self._engine.find(_owner(owner), delivery.task)
        recipient = None if live is None else _find(live.record, delivery.recipient)
        if live is None or recipient is None:
            return delivery, "dropped"
        record = read_record(delivery.record) if delivery.record else live.kept or live.record
        for letter in self._write(recipient, record, _mark(owner, delivery))[delivery.told :]:
            # Before each: what goes before it may have taken its time, and the key been revoked meanwhile.
            if (server_status := self.judge(_owner(owner), recipient.key)) != "known":
                return delivery, "due" if server_status == "away" else "dropped"
            receipt = await self._carry(letter, is_trusted=recipient.is_trusted)
            delivery = self._after(delivery, receipt)
            if not is_arrived(receipt):
                return self._again(delivery, receipt)
        return delivery, "delivered"

    async def _carry(self, letter: Letter, *, is_trusted: bool) -> Receipt:
        return await self._courier.carry(letter.url, letter.headers, letter.body, is_trusted=is_trusted)

    def _after(self, delivery: Delivery, receipt: Receipt) -> Delivery:
        attempts = (*delivery.attempts, attempt_of(receipt, self._now()))
        told = delivery.told + is_arrived(receipt)
        _tell("sent" if is_arrived(receipt) else "not taken", delivery, receipt)
        return msgspec.structs.replace(delivery, attempts=attempts, told=told)

    def _again(self, delivery: Delivery, receipt: Receipt) -> tuple[Delivery, DeliveryState]:
        """When to try what has not arrived once more, if at all."""
        failures = len(delivery.attempts) - delivery.told
        if is_hopeless(receipt, failures):
            _tell("given up", delivery, receipt)
            return delivery, "failed"
        pause = pause_after(receipt, failures, self._chance())
        return msgspec.structs.replace(delivery, next=self._now() + pause), "due"

    async def _keep(self, document: Document) -> None:
        """Keep how a delivery stands. What is not kept is sent again after a restart, which is allowed."""
        kept: asyncio.Future[Verdict] = self._loop.create_future()
        self._journal.write((document,), partial(_settle, kept))
        if (verdict := await kept) != "kept":
            log.warning("how a delivery stands could not be kept", task=document.group, verdict=verdict)


def _tell(what: str, delivery: Delivery, receipt: Receipt) -> None:
    """Log what came of an attempt: not the address, which may hold a secret, and nothing that was sent."""
    say = log.info if is_arrived(receipt) else log.warning
    facts = {"task": delivery.task, "change": delivery.number, "host": delivery.host}
    say(f"push notification {what}", **facts, status=receipt.status, reason=receipt.reason or None)


def _readable(documents: Sequence[Document]) -> Iterator[_Due]:
    for document in documents:
        try:
            delivery = delivery_of(document)
        except msgspec.MsgspecError as error:  # one that another version wrote must not keep the others waiting
            log.error("a delivery cannot be read", delivery=document.id, error=str(error))
        else:
            key = (document.owner, delivery.task, delivery.recipient)
            yield _Due(key, delivery.number, delivery.host, delivery.next)


def _mark(owner: str, delivery: Delivery) -> str:
    """What a delivery is known by to its recipient: the same whenever it is sent."""
    name = f"{owner}\n{id_of(delivery.task, delivery.recipient, delivery.number)}"
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _owner(key: str) -> Owner:
    tenant, _, name = key.partition("\n")
    return Owner(tenant, name)


def _find(record: Record, id: str) -> Recipient | None:
    return next((each for each in record.recipients if each.id == id), None)


def _settle(kept: asyncio.Future[Verdict], verdict: Verdict) -> None:
    if not kept.done():
        kept.set_result(verdict)
