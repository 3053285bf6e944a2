"""Configured programs that one node of the cluster runs for all others (`placement = "one"`, `pool = N`).

Which node runs a program is a document of the shared database that the node holds by its own lease
(`storage.postgres_cluster`): it is taken by compare-and-set, it is free again when the lease has ended, and a node that
cannot renew its lease stops the program. The node announces the program in its directory once it answers
(`app.cluster_servers`), and all others connect to it there. On each node the server has its usual reconnector, queue
and lists; only `connect` knows where the program runs.

A node that shuts down gives its programs away first: another node starts them, all nodes connect there, and only then
the old processes end.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec
import structlog

from isthmus.app.hub import RunningHub
from isthmus.app.task_takeovers import FREE, OWNED, PLACED
from isthmus.cluster.bus import Bus, BusFault, NodeId
from isthmus.core.journal import HERE, Document, SharedJournal, WriteResult
from isthmus.model.names import ServerName
from isthmus.upstream.base_link import BaseLink, ConnectFailed
from isthmus.upstream.dialin.link import NodeServer, PlacedLink
from isthmus.upstream.server_settings import ServerSettings

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.2
"""How often a node looks at its lease, and at programs that no node runs."""

SETTLE_SECONDS = 1.6
"""How long a node that joins waits before it starts a program: two heartbeats, in which it learns of the others."""

RANK_SECONDS = 2.0
"""How long a node waits for each node that should start a program before it does."""

LOADS: Final = "loads"
"""The topic of how many calls the processes of pools have, by server."""

LOAD_SECONDS = 1.0
"""How often a node publishes the loads of its processes, and looks for one that is less busy."""

CONNECT_SECONDS = 30.0
"""How long one attempt to connect waits until some node runs the program."""

START_SECONDS = 20.0
"""How long a program may take to start at another node while calls wait."""

PROBLEM_LEASES = 3
"""For how many leases a node where a program did not start comes after the other nodes."""

ANSWER_SECONDS = 10.0
"""How long a node that leaves keeps a program that has asked a caller something: as long again is left to start it
elsewhere."""

NOT_HERE = "the lease of this node has ended, and another node may run it"

OpenLink = Callable[[NodeId, NodeServer], Awaitable[PlacedLink]]


class StartFailure(NamedTuple):
    """A node at which a program does not start."""

    reason: str
    since: float
    keeps: bool
    """The node tries again, and no other node does."""


class PlacedServer:
    """One program, as this node sees it."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.document: Document | None = None
        """What this node holds; None if it does not run the program."""
        self.number: int | None = None
        """The lease under which it is held."""
        self.entry: NodeServer | None = None
        """What this node announces."""
        self.is_tried = False
        """Whether this node has tried to start it since it holds the document."""
        self.owners: dict[NodeId, NodeServer] = {}
        """The other nodes that run it."""
        self.problems: dict[NodeId, StartFailure] = {}
        """The other nodes where it does not start."""
        self.known_problem = ""
        """The last one that was published here."""
        self.loads: dict[NodeId, int] = {}
        """Of a pool: how many calls the processes of other nodes had about a second ago."""
        self.used: NodeId | None = None
        """The node of the newest link."""
        self.links: set[BaseLink] = set()
        """Links to processes of this node."""
        self.short_since: float | None = None
        """Since when too few nodes run it."""
        self.waiting = 0
        """Links that wait until some node runs it."""
        self.changed = asyncio.Event()


class PlacedServers:
    """Decides on this node where programs run; see `app.links.Placing`."""

    def __init__(self, bus: Bus, lease_seconds: float) -> None:
        self.grace = lease_seconds + START_SECONDS
        self._problem_seconds = PROBLEM_LEASES * lease_seconds
        self.is_leaving = False
        self._gives_away_at = 0.0
        """When this node, which leaves, gives also those programs away that wait for callers."""
        self.announce: Callable[[NodeServer, NodeServer | None], None] = lambda _key, _entry: None
        """Announces a program of this node to the others, or that it runs it no longer."""
        self.sessions: Callable[[NodeServer], int] = lambda _: 0
        """How many nodes use a program of this node."""
        self.can_move: Callable[[], bool] = lambda: bool(bus.peers())
        """Whether another node takes programs of this one."""
        self.open_link: OpenLink | None = None
        self._bus = bus
        self._loop = asyncio.get_running_loop()
        self._placed: dict[ServerName, PlacedServer] = {}
        self._announced: dict[ServerName, dict[NodeId, NodeServer]] = {}
        """What other nodes say of their programs, also of those that this node does not place now."""
        self._running: RunningHub | None = None
        self._journal: SharedJournal | None = None
        self._joined = asyncio.Event()
        self._began = 0.0
        bus.subscribe(LOADS, self._note_loads)

    def join(self, running: RunningHub) -> None:
        """Begin: the hub, its journal and the directories are there."""
        if not isinstance(running.journal, SharedJournal):
            return
        self._running, self._journal = running, running.journal
        self._began = self._loop.time()
        self._joined.set()
        running.background.spawn("placement", self._look_for_ever())
        running.background.spawn("loads of pools", self._balance_for_ever())

    # -- links -----------------------------------------------------------------------------------------------------

    async def connect(self, settings: ServerSettings, start: Callable[[], Awaitable[BaseLink]]) -> BaseLink:
        """See `app.links.Placing`."""
        placed = self._placed.get(settings.name) or self._add(settings)
        placed.settings = settings
        if placed.waiting:  # this link will replace the one that waits: its server wants to know why, too
            placed.known_problem = ""
        placed.waiting += 1
        try:
            target = await self._find(placed)
        except TimeoutError:
            raise ConnectFailed("no node of the cluster runs it now") from None
        finally:
            placed.waiting -= 1
        placed.used = target
        if target == self._bus.node:
            return await self._start(placed, start)
        assert self.open_link is not None
        try:
            return await self.open_link(target, placed.owners[target])
        except BusFault as fault:
            raise ConnectFailed(f"it runs on node {target}, which cannot be reached: {fault}") from fault

    async def _find(self, placed: PlacedServer) -> NodeId:
        """Wait for a node to call. A program that does not start is awaited, once its reason is published.

        Raises `ConnectFailed` or `TimeoutError`.
        """
        async with asyncio.timeout(CONNECT_SECONDS):
            await self._joined.wait()
        while (target := self._target(placed)) is None:
            problem = next((f"node {node}: {failure.reason}" for node, failure in placed.problems.items()), "")
            if problem != placed.known_problem:
                placed.known_problem = problem
                if problem:
                    raise ConnectFailed(f"it does not start on {problem}")
            placed.changed.clear()
            async with asyncio.timeout(None if problem else CONNECT_SECONDS):
                await placed.changed.wait()
        placed.known_problem = ""
        return target

    async def _start(self, placed: PlacedServer, start: Callable[[], Awaitable[BaseLink]]) -> BaseLink:
        placed.is_tried = True
        link = await start()
        number = placed.number

        def fence() -> str | None:
            return None if self._is_held(number) else NOT_HERE

        link.fence = fence
        placed.links.add(link)
        link.lost.add_done_callback(lambda _: placed.links.discard(link))
        return link

    def _is_held(self, number: int | None) -> bool:
        return self._journal is not None and number == self._journal.number and self._journal.is_held

    def _target(self, placed: PlacedServer) -> NodeId | None:
        """The node to call: this one, the one that is in use, or another one that runs it."""
        is_here = placed.document is not None and self._is_held(placed.number)
        if is_here and not self.is_leaving:
            return self._bus.node
        staying = [node for node, entry in placed.owners.items() if not entry.is_leaving]
        if placed.used in staying:
            return placed.used
        if staying:  # the least busy one; nodes without a process are spread over those that are equally busy
            name = placed.settings.name
            return min(staying, key=lambda node: (placed.loads.get(node, 0), _score(self._bus.node, node, name)))
        if is_here:
            return self._bus.node
        return next(iter(placed.owners), None)

    # -- what other nodes say --------------------------------------------------------------------------------------

    def set_owner(self, node: NodeId, server: str, entry: NodeServer | None) -> None:
        """Another node runs a program, or does so no longer."""
        name = ServerName(server)
        announced = self._announced.setdefault(name, {})
        announced.pop(node, None)
        if entry is not None:
            announced[node] = entry
        elif not announced:
            del self._announced[name]
        placed = self._placed.get(name)
        if placed is not None:
            self._note(placed, node, entry)
        elif self._running is not None:
            settings = next((each for each in self._running.configuration.servers if each.name == name), None)
            if entry is None or settings is None or not settings.owners:
                return
            placed = self._add(settings)
        else:
            return
        self._retarget(placed)

    def _add(self, settings: ServerSettings) -> PlacedServer:
        """Place a program; other nodes may run it already, if it was disabled here for a moment."""
        placed = self._placed[settings.name] = PlacedServer(settings)
        for node, entry in self._announced.get(settings.name, {}).items():
            self._note(placed, node, entry)
        return placed

    def _note(self, placed: PlacedServer, node: NodeId, entry: NodeServer | None) -> None:
        placed.owners.pop(node, None)
        placed.problems.pop(node, None)
        if entry is None:
            placed.loads.pop(node, None)
        elif entry.problem:
            placed.problems[node] = StartFailure(entry.problem, self._loop.time(), not entry.is_leaving)
        else:
            placed.owners[node] = entry

    def is_served(self, server: str) -> bool:
        """Whether other nodes may use a program of this one."""
        placed = self._placed.get(ServerName(server))
        is_started = placed is not None and placed.entry is not None and not placed.entry.problem
        return placed is not None and is_started and self._is_held(placed.number)

    def _retarget(self, placed: PlacedServer) -> None:
        """Connect to another node if the program runs elsewhere now."""
        placed.changed.set()
        target = self._target(placed)
        is_moved = target is not None and target != placed.used and not placed.waiting
        if self._running is not None and is_moved:
            self._running.supervisor.move(placed.settings)

    # -- pools -----------------------------------------------------------------------------------------------------

    async def _balance_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOAD_SECONDS)
            pools = [placed for placed in self._placed.values() if placed.settings.owners > 1]
            own = {placed.settings.name: self._load(placed) for placed in pools if placed.entry is not None}
            if own and self._bus.peers():
                self._bus.publish(LOADS, msgspec.json.encode(own))
            for placed in pools:
                self._balance(placed)

    def _note_loads(self, node: NodeId, payload: bytes) -> None:
        for name, load in msgspec.json.decode(payload, type=dict[str, int]).items():
            placed = self._placed.get(ServerName(name))
            if placed is not None and node in placed.owners:
                placed.loads[node] = load

    def _load(self, placed: PlacedServer) -> int:
        """The calls of this node's queue: all that its process has, or what this node sends to another one."""
        queue = None if self._running is None else self._running.hub.server_queues.get(placed.settings.name)
        return 0 if queue is None else queue.running + queue.queued

    def _balance(self, placed: PlacedServer) -> None:
        """Use another process if it would be less busy with the calls of this node, too, than the one in use is."""
        used = placed.used
        staying = [node for node, entry in placed.owners.items() if not entry.is_leaving]
        if placed.document is not None or used not in staying or placed.waiting:
            return
        least = min(placed.loads.get(node, 0) for node in staying)
        # One of two tries: several nodes that see the same loads would otherwise move together.
        if least + self._load(placed) < placed.loads.get(used, 0) and random.getrandbits(1):
            placed.used = None
            self._retarget(placed)

    # -- ownership -------------------------------------------------------------------------------------------------

    async def _look_for_ever(self) -> None:
        while True:
            for placed in tuple(self._placed.values()):
                try:
                    await self._check(placed)
                except OSError as error:
                    log.debug("placement not decided", server=placed.settings.name, error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def _check(self, placed: PlacedServer) -> None:
        if placed.document is not None and not self._is_held(placed.number):
            self._stop(placed, NOT_HERE)
        name, running = placed.settings.name, self._running
        assert running is not None
        settings = next((each for each in running.configuration.servers if each.name == name), None)
        if settings is None or settings.disabled or not settings.owners:
            await self._forget(placed)
            return
        placed.settings = settings
        if placed.document is not None:
            reconnector = running.supervisor.reconnectors.get(name)
            if reconnector is not None and (placed.entry is None or placed.entry.problem):
                status = reconnector.server_status
                if reconnector.active_link in placed.links:
                    self._announce(placed)
                elif placed.is_tried and status.state == "retrying":
                    await self._report_failure(placed, status.reason or "")
            if self.is_leaving and (name not in running.asking() or self._loop.time() >= self._gives_away_at):
                if placed.entry is not None:
                    self._announce(placed, placed.entry.problem)
                await self._free(placed)
            return
        staying = sum(not entry.is_leaving for entry in placed.owners.values())
        if placed.entry is not None and staying >= settings.owners:
            self._withdraw(placed)  # it starts elsewhere: that it did not start here matters no longer
        staying += sum(failure.keeps for failure in placed.problems.values())
        if staying >= settings.owners or self.is_leaving:
            placed.short_since = None
            return
        if placed.short_since is None:
            placed.short_since = self._loop.time()
        if self._is_next(placed, settings.owners - staying):
            await self._claim(placed)

    def _is_next(self, placed: PlacedServer, missing: int) -> bool:
        """Whether this node should try to run the program now: the highest scores first, the others if these do not."""
        now = self._loop.time()
        if not self._bus.state.is_connected or now < self._began + SETTLE_SECONDS:
            return False
        name = placed.settings.name
        others = self._others(placed)
        if placed.entry is not None:  # it did not start here
            rank = len(others)
        else:
            mine = _score(self._bus.node, name)
            rank = sum(_score(node, name) > mine for node in others)
        assert placed.short_since is not None
        return rank < missing or now - placed.short_since > RANK_SECONDS * (rank + 1 - missing)

    def _others(self, placed: PlacedServer) -> list[NodeId]:
        """The other nodes that may start the program: they do not run it, and no attempt has failed there lately."""
        late = self._loop.time() - self._problem_seconds
        failed = {node for node, failure in placed.problems.items() if failure.keeps or failure.since > late}
        return [node for node in self._bus.peers() if node not in placed.owners and node not in failed]

    async def _report_failure(self, placed: PlacedServer, reason: str) -> None:
        """Tell why the program does not start here, and let another node try, if there is one."""
        is_given_away = bool(self._others(placed))
        if is_given_away:
            await self._free(placed)
            placed.document = placed.number = placed.used = None
        self._announce(placed, reason, is_leaving=is_given_away)

    async def _claim(self, placed: PlacedServer) -> None:
        """Take the first free document; all may be held by nodes whose leases have not ended yet."""
        journal, name = self._journal, placed.settings.name
        assert journal is not None
        number = journal.number
        for slot in range(placed.settings.owners):
            id = f"{name}/{slot}"
            found = await journal.read(PLACED, "", id)
            if found is not None and found.is_elsewhere:
                continue
            version = 1 if found is None else found.version + 1
            body = self._bus.node.encode()
            await self._write(Document(PLACED, "", id, version, time.time(), body, state=OWNED))
            taken = await journal.read(PLACED, "", id)
            if taken is not None and taken.holder == HERE and taken.state == OWNED and self._is_held(number):
                placed.document, placed.number, placed.short_since, placed.is_tried = taken, number, None, False
                self._withdraw(placed)  # what it said about the last attempt
                log.info("this node runs a program for the cluster", server=name, node=self._bus.node)
                self._retarget(placed)
                return

    async def _write(self, document: Document) -> WriteResult:
        written: asyncio.Future[WriteResult] = self._loop.create_future()
        assert self._journal is not None
        self._journal.write([document], lambda result: None if written.done() else written.set_result(result))
        return await written

    def _announce(self, placed: PlacedServer, problem: str = "", *, is_leaving: bool = False) -> None:
        entry = _entry(placed.settings.name, is_leaving=is_leaving or self.is_leaving, problem=problem)
        placed.entry = entry
        self.announce(entry, entry)

    def _stop(self, placed: PlacedServer, why: str) -> None:
        """Run it no longer, at once."""
        log.error("a program of the cluster is stopped here", server=placed.settings.name, reason=why)
        placed.document = placed.number = None
        self._withdraw(placed)
        assert self._running is not None
        for link in tuple(placed.links):
            self._running.background.spawn(f"end of {placed.settings.name}", link.aclose())

    def _withdraw(self, placed: PlacedServer) -> None:
        entry, placed.entry = placed.entry, None
        if entry is not None:
            self.announce(entry, None)

    async def _free(self, placed: PlacedServer) -> None:
        """Let another node take it. Raises `OSError` if that is not stored: then `_look` tries again."""
        held = placed.document
        if held is None or held.state != OWNED or not self._is_held(placed.number):
            return
        assert self._journal is not None
        free = Document(PLACED, "", held.id, held.version + 1, time.time(), held.body, state=FREE)
        result = await self._write(free)
        if result != "kept":
            stored = await self._journal.read(PLACED, "", held.id)
            if stored is not None and stored.holder == HERE and stored.state == OWNED:
                placed.document = stored
                raise OSError(f"the write was not stored: {result}")
        placed.document = free

    async def _forget(self, placed: PlacedServer) -> None:
        """Its configuration places it no longer, or it is gone.

        At once: a link that is wanted again while this waits for the database needs a new `PlacedServer`.
        """
        name = placed.settings.name
        del self._placed[name]
        self._withdraw(placed)
        try:
            await self._free(placed)
        except OSError:
            self._placed.setdefault(name, placed)
            raise
        placed.document = placed.number = None

    async def hand_over(self) -> None:
        """This node leaves: return once other nodes run its programs, and nobody uses those of this node, or cannot."""
        self.is_leaving = True  # from now on `_look` takes no program, and frees those that run here
        self._gives_away_at = self._loop.time() + ANSWER_SECONDS
        if not self._bus.peers():
            return
        while self._waits_for_others():  # noqa: ASYNC110 - links have several owners
            await asyncio.sleep(LOOK_SECONDS / 4)
        for placed in self._placed.values():
            self._withdraw(placed)

    def _waits_for_others(self) -> bool:
        return self.can_move() and any(map(self._is_used_here, self._placed.values()))

    def _is_used_here(self, placed: PlacedServer) -> bool:
        """Whether this node runs it, and it is not free yet or has a link of some node."""
        assert self._running is not None
        if placed.document is None or not self._is_held(placed.number):
            return False
        reconnector = self._running.supervisor.reconnectors.get(placed.settings.name)
        is_local = reconnector is not None and reconnector.active_link in placed.links
        is_remote = placed.entry is not None and self.sessions(placed.entry) > 0
        return placed.document.state == OWNED or is_local or is_remote


def _entry(server: ServerName, *, is_leaving: bool, problem: str) -> NodeServer:
    return NodeServer(
        "", "", server, server, is_named=True, came=0.0, is_placed=True, is_leaving=is_leaving, problem=problem
    )


def _score(*words: str) -> bytes:
    """Rendezvous hashing: of several nodes the one with the highest score comes first, for each server another one."""
    return hashlib.blake2b("\0".join(words).encode(), digest_size=8).digest()
