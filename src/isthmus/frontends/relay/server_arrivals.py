"""Waiting for servers that have just connected: how long, and in which order responses are sent afterwards.

No asyncio task waits: servers are futures, and a timer ends each wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

ARRIVAL_SECONDS = 1.0
"""How long a list waits for servers that are connected and have not listed their tools."""

NODES_SECONDS = 1.0
"""How long other nodes may take to say which servers are connecting there. One that stands still does not say it."""

SILENT_MAX = 1024
"""How many silent servers are remembered, with a `server_id` and without."""

Waits: TypeAlias = tuple[Sequence["asyncio.Future[None]"], float]
"""What to wait for, and for how many seconds at most."""


class ArrivalPatience:
    """When devices began to wait for each server. All devices share it, so that a silent server delays once."""

    __slots__ = ("_doubted", "_loop", "_silent", "_since", "_unnamed", "ask_nodes")

    def __init__(self) -> None:
        """Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._since: WeakKeyDictionary[asyncio.Future[None], float] = WeakKeyDictionary()
        self._silent: dict[tuple[str, str], float] = {}
        """Servers that stayed silent when devices last waited for them, by agent and `server_id`."""
        self._unnamed: Counter[str] = Counter()
        """How many servers without a `server_id` stayed silent and disconnected, by agent."""
        self._doubted: WeakKeyDictionary[asyncio.Future[None], bool] = WeakKeyDictionary()
        self.ask_nodes: Callable[[], asyncio.Future[None] | None] = lambda: None
        """Asks the other nodes of a cluster which servers are connecting there. Done when they have answered."""

    def is_known(self, arrival: asyncio.Future[None]) -> bool:
        """Whether a device has asked about this server before."""
        return arrival in self._since or arrival in self._doubted

    def left(self, arrival: asyncio.Future[None], seconds: float, name: tuple[str, str] | None = None) -> float:
        """Seconds left of a wait that the first device began; 0 or less if none are left.

        `name` identifies a server with a `server_id` when it dials again.
        """
        now = self._loop.time()
        since = self._since.get(arrival)
        if since is None:
            since = self._since[arrival] = now if name is None else self._silent.get(name, now)
        return since + seconds - now

    def is_doubted(self, arrival: asyncio.Future[None], agent: str) -> bool:
        """Whether a server without a `server_id` is probably a silent one that dials again.

        Such servers cannot be distinguished, so for each one that disconnected silently the next one is doubted.
        """
        is_doubted = self._doubted.get(arrival)
        if is_doubted is None:
            is_doubted = self._doubted[arrival] = self._unnamed[agent] > 0
            self._unnamed[agent] -= is_doubted
            if not self._unnamed[agent]:
                del self._unnamed[agent]
        return is_doubted

    def arrival_ended(self, arrival: asyncio.Future[None], agent: str, server_id: str | None, *, is_here: bool) -> None:
        """A server was listed or has disconnected. Remember it if devices waited for it without success."""
        since, name = self._since.get(arrival), (agent, server_id or "")
        timed_out = since is not None and self._loop.time() - since >= ARRIVAL_SECONDS
        if is_here:
            self._silent.pop(name, None)
        elif server_id is None:
            if (timed_out or self._doubted.get(arrival)) and self._unnamed.total() < SILENT_MAX:
                self._unnamed[agent] += 1
        elif since is not None and timed_out:
            if name not in self._silent and len(self._silent) >= SILENT_MAX:
                del self._silent[next(iter(self._silent))]
            self._silent[name] = since


class ArrivalWait:
    """One wait for several servers. `on_arrival` is called after each, `on_due` once at the end."""

    __slots__ = ("_arrivals", "_find_more", "_on_arrival", "_on_due", "_open", "_timer")

    def __init__(
        self,
        waits: Waits,
        on_due: Callable[[], None],
        on_arrival: Callable[[], None] | None = None,
        find_more: Callable[[], Waits] | None = None,
    ) -> None:
        """`find_more` is called once, at the end of these waits, and returns further ones."""
        self._on_due = on_due
        self._on_arrival = on_arrival
        self._find_more = find_more
        self._begin(*waits)

    def _begin(self, arrivals: Sequence[asyncio.Future[None]], seconds: float) -> None:
        self._arrivals = arrivals
        self._open = len(arrivals)
        for arrival in arrivals:
            arrival.add_done_callback(self._arrived)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._be_due)

    def _arrived(self, _: asyncio.Future[None]) -> None:
        self._open -= 1
        if not self._open:
            self._be_due()
        elif self._on_arrival is not None:
            self._on_arrival()

    def _be_due(self) -> None:
        self.stop()
        find_more, self._find_more = self._find_more, None
        arrivals, seconds = ((), 0.0) if find_more is None else find_more()
        if arrivals:
            self._begin(arrivals, seconds)
        else:
            self._on_due()

    def stop(self) -> None:
        """Stop waiting, and remove the callbacks from the futures."""
        for arrival in self._arrivals:
            arrival.remove_done_callback(self._arrived)
        self._arrivals = ()
        self._timer.cancel()


class _QueuedResponse:
    """One response that is not sent yet."""

    __slots__ = ("_responses", "_wait", "id", "is_due", "send")

    def __init__(self, responses: ResponseQueue, id: bytes, send: Callable[[], None]) -> None:
        self._responses = responses
        self._wait: ArrivalWait | None = None
        self.id = id
        self.send = send
        self.is_due = False

    def wait_for(self, waits: Waits, find_more: Callable[[], Waits] | None) -> None:
        self._wait = ArrivalWait(waits, self._be_due, find_more=find_more)

    def _be_due(self) -> None:
        self.is_due = True
        self._responses.advance()

    def stop(self) -> None:
        if self._wait is not None:
            self._wait.stop()


class ResponseQueue:
    """The pending responses of one device, sent in the order of its requests."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: list[_QueuedResponse] = []

    def __len__(self) -> int:
        return len(self._queue)

    def add(
        self,
        id: bytes,
        send: Callable[[], None],
        waits: Waits = ((), 0.0),
        find_more: Callable[[], Waits] | None = None,
    ) -> None:
        """Call `send` when all servers have arrived or the time is over, in its turn; perhaps at once."""
        if not waits[0] and not self._queue:
            send()
            return
        response = _QueuedResponse(self, id, send)
        self._queue.append(response)
        if waits[0]:
            response.wait_for(waits, find_more)
        else:
            response.is_due = True

    def drop(self, id: bytes) -> None:
        """Drop the responses with this id, because the device has reused the id for another request."""
        for response in [response for response in self._queue if response.id == id]:
            response.stop()
            self._queue.remove(response)
        self.advance()

    def finish_now(self, id: bytes) -> None:
        """Send the responses with this id now, and all before them."""
        last = max((at for at, response in enumerate(self._queue) if response.id == id), default=-1)
        for response in self._queue[: last + 1]:
            response.stop()
            response.is_due = True
        self.advance()

    def advance(self) -> None:
        """Send the responses at the head of the queue that are due."""
        while self._queue and self._queue[0].is_due:
            self._queue.pop(0).send()

    def close(self) -> None:
        """Drop all responses."""
        for response in self._queue:
            response.stop()
        self._queue.clear()
