"""Sends push notifications: to each recipient in order, with retries until one is delivered or given up.

Due deliveries are in the journal; in memory is only where to find them. Each recipient of a task has a queue of its
own with one attempt at a time, so that order is kept and a silent recipient delays no other. An attempt is a background
task; between attempts there is only a timer. `app` connects it with the engine, the frontend's encoder and the HTTP
client.
"""

from __future__ import annotations

import asyncio
import hashlib
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.journal import Document, Journal, WriteResult
from isthmus.core.ports import PushReceipt, PushSender
from isthmus.core.tasks.engine import Now, TaskEngine
from isthmus.core.tasks.push_delivery import (
    DELIVERY,
    RETRY_AFTER_SECONDS_MAX,
    Delivery,
    DeliveryState,
    attempt_of,
    delivery_document,
    delivery_id,
    delivery_of,
    is_delivered,
    is_hopeless,
    pause_after,
)
from isthmus.core.tasks.record import PushRecipient, TaskOwner, TaskRecord, read_record

log = structlog.get_logger(__name__)

AT_ONCE = 256
"""Attempts that run at the same time."""

AT_ONCE_PER_HOST = 8
"""Attempts to one host: a silent host must leave room for others."""

QUEUES_MAX = 10_000
"""Delivery queues of one owner; its further deliveries wait in the journal until half of these queues are empty. The
limit is per owner, so that one owner's many silent recipients delay no other owner."""

MISSED_MAX = 10_000
"""Deliveries that may become due while the journal is read. If there are more, the journal is read again for their
owners."""

READ_AT_ONCE = 500

READ_AGAIN_SECONDS = 1.0
"""How long to wait after a failed read of the journal."""

AWAY_SECONDS = 60.0
"""How long a delivery waits if it is unknown whether its owner is still allowed in."""

BROKEN_SECONDS = 600.0
"""How long a queue waits after an attempt crashed: the defect may concern only it, and happen again."""


class PushRequest(msgspec.Struct, frozen=True):
    """One HTTP request of a delivery."""

    url: str
    headers: Mapping[str, str]
    body: bytes


RenderPush: TypeAlias = Callable[[PushRecipient, TaskRecord, str], Sequence[PushRequest]]
"""The requests of one change for one recipient, in order; the last argument is an id that stays the same in retries."""

OwnerStatus: TypeAlias = Literal["known", "away", "gone"]
"""Whether an owner may still receive notifications. `away`: unknown now, perhaps known later."""

CheckOwner: TypeAlias = Callable[[TaskOwner, str], OwnerStatus]
"""The status of an owner, and of the key by which it created a recipient."""

QueueKey: TypeAlias = tuple[str, str, str]
"""The owner's key, the task's id and the recipient's id."""


class _Due(msgspec.Struct, frozen=True):
    """What memory holds of a delivery."""

    key: QueueKey
    number: int
    host: str
    next: float


class _DeliveryQueue:
    """The due deliveries of one recipient of one task."""

    __slots__ = ("due", "host", "key", "timer")

    def __init__(self, key: QueueKey, host: _Host) -> None:
        self.key = key
        self.host = host
        self.due: list[int] = []
        """The numbers of its deliveries, the oldest first."""
        self.timer: asyncio.TimerHandle | None = None

    def add(self, number: int) -> None:
        """Add a delivery."""
        if number not in self.due:
            insort(self.due, number)


class _Host:
    """The delivery queues of one host, and those that are ready for an attempt."""

    __slots__ = ("has_turn", "name", "queues", "ready", "running")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues = 0
        self.running = 0
        self.ready: deque[_DeliveryQueue] = deque()
        self.has_turn = False


class PushOutbox:
    """The deliveries of one hub. Its creator runs it as a background task and closes it before the others."""

    def __init__(
        self,
        engine: TaskEngine,
        journal: Journal,
        courier: PushSender,
        write: RenderPush,
        background: BackgroundTasks,
        now: Now,
        chance: Callable[[], float],
    ) -> None:
        """`chance` is uniform in [0, 1). Nothing is sent before `run`."""
        self._engine = engine
        self._journal = journal
        self._client = courier
        self._render = write
        self._background = background
        self._now = now
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._queues: dict[QueueKey, _DeliveryQueue] = {}
        self._hosts: dict[str, _Host] = {}
        self._turns: deque[_Host] = deque()
        """Hosts with a ready queue and room for an attempt, in turn."""
        self._running = 0
        self._is_closed = False
        self._counts: dict[str, int] = {}
        """The number of queues per owner."""
        self._behind: set[str] = set()
        """Owners with due deliveries that are only in the journal."""
        self._is_reading = True
        """The journal is being read."""
        self._missed: list[_Due] = []
        """Deliveries that became due meanwhile."""
        self._room = asyncio.Event()
        self.check_owner: CheckOwner = lambda _owner, _key: "known"
        """Whether an owner may still receive notifications; `app` replaces it."""
        engine.on_due = self.add

    async def run(self) -> None:
        """Run until cancelled, starting with what is already due."""
        while True:
            self._room.clear()
            try:
                await self._read_due()
            except OSError as error:
                log.warning("due deliveries could not be read", error=str(error))
                await asyncio.sleep(READ_AGAIN_SECONDS)
                continue
            if not any(self._has_room(owner) for owner in self._behind):
                await self._room.wait()

    def close(self) -> None:
        """Start no further attempts; what is due stays due."""
        self._is_closed = True
        for queue in self._queues.values():
            if queue.timer is not None:
                queue.timer.cancel()

    # -- due deliveries ------------------------------------------------------------------------------------------------

    def add(self, documents: Sequence[Document]) -> None:
        """Send these stored deliveries in their turn."""
        for due in _decode_due(documents):
            if not self._is_reading:
                self._add(due)
            elif len(self._missed) < MISSED_MAX:
                # Even if the queue exists: earlier deliveries may not have been read yet.
                self._missed.append(due)
            else:
                self._behind.add(due.key[0])

    async def _read_due(self) -> None:
        """Read all due deliveries, the oldest first, as long as there is room."""
        self._is_reading = True
        self._missed.clear()
        self._behind.clear()
        last: Document | None = None
        while found := await self._journal.all_in(DELIVERY, ("due",), limit=READ_AT_ONCE, after=last):
            last = found[-1]
            for due in _decode_due(found):
                self._add(due)
        for due in self._missed:
            self._add(due)
        self._missed.clear()
        self._is_reading = False

    def _add(self, due: _Due) -> None:
        """Queue a delivery, unless there is no room or earlier ones of its owner are still in the journal."""
        owner = due.key[0]
        if (queue := self._queues.get(due.key)) is not None:
            queue.add(due.number)
        elif owner in self._behind or self._counts.get(owner, 0) >= QUEUES_MAX:
            self._behind.add(owner)
        else:
            host = self._hosts.setdefault(due.host, _Host(due.host))
            host.queues += 1
            queue = self._queues[due.key] = _DeliveryQueue(due.key, host)
            self._counts[owner] = self._counts.get(owner, 0) + 1
            queue.add(due.number)
            self._schedule(queue, due.next - self._now())

    def _has_room(self, owner: str) -> bool:
        return self._counts.get(owner, 0) <= QUEUES_MAX // 2

    # -- scheduling attempts -------------------------------------------------------------------------------------------

    def _schedule(self, queue: _DeliveryQueue, seconds: float) -> None:
        """Make a queue ready after some seconds; a clock that was set back must not make that much longer."""
        if seconds > 0:
            queue.timer = self._loop.call_later(min(seconds, RETRY_AFTER_SECONDS_MAX), self._set_ready, queue)
        else:
            self._set_ready(queue)

    def _set_ready(self, queue: _DeliveryQueue) -> None:
        queue.timer = None
        queue.host.ready.append(queue)
        self._enqueue(queue.host)
        self._start_attempts()

    def _enqueue(self, host: _Host) -> None:
        if host.ready and not host.has_turn and host.running < AT_ONCE_PER_HOST:
            host.has_turn = True
            self._turns.append(host)

    def _start_attempts(self) -> None:
        while self._turns and self._running < AT_ONCE and not self._is_closed:
            host = self._turns.popleft()
            host.has_turn = False
            self._start(host.ready.popleft())
            self._enqueue(host)

    def _start(self, queue: _DeliveryQueue) -> None:
        self._running += 1
        queue.host.running += 1
        self._background.spawn(
            f"delivery to {queue.host.name}",
            self._attempt(queue),
            on_crash=lambda _: self._on_attempt_ended(queue, BROKEN_SECONDS),
        )

    async def _attempt(self, queue: _DeliveryQueue) -> None:
        try:
            pause = await self._try(queue)
        except OSError as error:
            log.warning("a delivery could not be read", host=queue.host.name, error=str(error))
            pause = READ_AGAIN_SECONDS
        self._on_attempt_ended(queue, pause if queue.due else None)

    def _on_attempt_ended(self, queue: _DeliveryQueue, pause: float | None) -> None:
        """Schedule the queue's next attempt; None if it is empty."""
        self._running -= 1
        queue.host.running -= 1
        if pause is None:
            del self._queues[queue.key]
            queue.host.queues -= 1
            if not queue.host.queues:
                del self._hosts[queue.host.name]
            owner = queue.key[0]
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]
            if owner in self._behind and self._has_room(owner):
                self._room.set()
        else:
            self._schedule(queue, pause)
        self._enqueue(queue.host)
        self._start_attempts()

    # -- one attempt ---------------------------------------------------------------------------------------------------

    async def _try(self, queue: _DeliveryQueue) -> float:
        """Try the queue's first delivery; return the seconds until the next attempt."""
        owner, task, recipient = queue.key
        number = queue.due[0]
        document = await self._journal.read(DELIVERY, owner, delivery_id(task, recipient, number))
        if document is None or document.state != "due" or document.is_elsewhere:
            queue.due.remove(number)
            return 0.0
        delivery = delivery_of(document)
        tried, state = await self._send(owner, delivery)
        if tried is delivery and state == "due":
            return AWAY_SECONDS
        if state != "due":
            queue.due.remove(number)
        await self._store(delivery_document(document, tried, state))
        return tried.next - self._now() if state == "due" else 0.0

    async def _send(self, owner_key: str, delivery: Delivery) -> tuple[Delivery, DeliveryState]:
        """Send the requests of a delivery that have not arrived, up to the first failure.

        Returns the same delivery as `due` if nothing was tried, because its owner's status is unknown.
        """
        tenant, _, name = owner_key.partition("\n")
        owner = TaskOwner(tenant, name)
        live = await self._engine.find(owner, delivery.task)
        recipients = () if live is None else live.record.recipients
        recipient = next((each for each in recipients if each.id == delivery.recipient), None)
        if live is None or recipient is None:
            return delivery, "dropped"
        record = read_record(delivery.record) if delivery.record else live.stored or live.record
        # Receivers see the same id in every retry.
        id_text = f"{owner_key}\n{delivery_id(delivery.task, delivery.recipient, delivery.number)}"
        id = hashlib.blake2b(id_text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        for request in self._render(recipient, record, id)[delivery.delivered :]:
            # Before each: the previous request may have taken long, and the key may be revoked by now.
            if (status := self.check_owner(owner, recipient.key)) != "known":
                return delivery, "due" if status == "away" else "dropped"
            trusted = recipient.is_trusted
            receipt = await self._client.post(request.url, request.headers, request.body, is_trusted=trusted)
            attempts = (*delivery.attempts, attempt_of(receipt, self._now()))
            delivery = msgspec.structs.replace(
                delivery, attempts=attempts, delivered=delivery.delivered + is_delivered(receipt)
            )
            _log_attempt("sent" if is_delivered(receipt) else "not accepted", delivery, receipt)
            if not is_delivered(receipt):
                failures = len(delivery.attempts) - delivery.delivered
                if is_hopeless(receipt, failures):
                    _log_attempt("given up", delivery, receipt)
                    return delivery, "failed"
                pause = pause_after(receipt, failures, self._chance())
                return msgspec.structs.replace(delivery, next=self._now() + pause), "due"
        return delivery, "delivered"

    async def _store(self, document: Document) -> None:
        """Store the state of a delivery. If that fails, it is sent again after a restart, which is allowed."""
        written: asyncio.Future[WriteResult] = self._loop.create_future()
        self._journal.write((document,), lambda result: None if written.done() else written.set_result(result))
        if (result := await written) != "kept":
            log.warning("the state of a delivery could not be stored", task=document.group, verdict=result)


def _log_attempt(what: str, delivery: Delivery, receipt: PushReceipt) -> None:
    """Log an attempt without its URL, which may contain a secret, and without its content."""
    write = log.info if is_delivered(receipt) else log.warning
    facts = {"task": delivery.task, "change": delivery.number, "host": delivery.host}
    write(f"push notification {what}", **facts, status=receipt.status, reason=receipt.reason or None)


def _decode_due(documents: Sequence[Document]) -> Iterator[_Due]:
    for document in documents:
        try:
            delivery = delivery_of(document)
        except msgspec.MsgspecError as error:  # a delivery that another version wrote must not delay the others
            log.error("a stored delivery cannot be decoded", delivery=document.id, error=str(error))
        else:
            key = (document.owner, delivery.task, delivery.recipient)
            yield _Due(key, delivery.number, delivery.host, delivery.next)
