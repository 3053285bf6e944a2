"""The tasks that servers run for callers, so that they can be listed, and reported only to their owners.

This lives in memory and holds what servers reported last. Links report (a task was created, its state changed),
frontends list and listen. Ids are the servers' own, and only valid for one connection: a server that numbers its tasks
starts again with each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec
import structlog

from isthmus.core.ports import ReportProgress
from isthmus.model.callers import Caller
from isthmus.model.calls import ClientCapabilities, Progress, Surface
from isthmus.model.names import ServerName
from isthmus.model.tasks import ServerTaskState

log = structlog.get_logger(__name__)

EACH_MAX = 1_000
ALL_MAX = 10_000
"""Tasks of one caller, and in all. For one more, the task that ended first is dropped, or the oldest if none has ended.
"""

KEEP_SECONDS = 86_400.0
"""How long a task is remembered after its last report, if its server sets no TTL."""

Owner: TypeAlias = tuple[str, str]


class LinkSession:
    """One connection of a link. Reports on it are about tasks that were created on it."""

    __slots__ = ("is_lost", "is_process")

    def __init__(self, *, is_process: bool = False) -> None:
        """`is_process` says that the process behind it ends with it, including its tasks."""
        self.is_process = is_process
        self.is_lost = False


@dataclass(eq=False, slots=True)
class ServerTask:
    """A task of one caller."""

    number: int
    """Its number among its caller's tasks."""
    owner: Owner
    server: ServerName
    place: LinkSession | None
    """The connection that it was created on; None if unknown."""
    session: str
    """The session that requested it, where that may have a link of its own."""
    state: ServerTaskState
    until: float
    """When it is dropped."""
    made_at: float
    is_end_reported: bool = False
    request: int = -1
    """The id of the request that created it; its server reports progress under this id."""
    report: ReportProgress | None = None
    has_caller_id: bool = False
    """Its id is the one that the caller knows: a hub task, or a task that another node reports."""
    is_private: bool = False
    """Other sessions do not receive its reports, because the caller may be anyone."""

    @property
    def name(self) -> tuple[ServerName, str]:
        """What a caller's id for it stands for."""
        return self.server, self.state.id


OnTaskUpdate: TypeAlias = Callable[[ServerTask, bool], None]
"""Receives a task, and whether its status has changed."""


class ListedTask(msgspec.Struct, frozen=True):
    """A task as its caller sees it."""

    number: int
    """See `ServerTask.number`; each node of a cluster counts for itself."""
    made: float
    """When it was created, in seconds since the epoch."""
    state: msgspec.Raw
    is_gone: bool = False
    """Its server no longer knows it: it counts for the page, and is not shown."""


class FollowedTasks(Protocol):
    """Tasks at another node that a subscription follows."""

    @property
    def ids(self) -> Sequence[str]:
        """Those that the caller may follow."""

    def start(self) -> None:
        """Notify of their states from now on."""

    def stop(self) -> None:
        """Follow them no longer."""


class OtherNodes(Protocol):
    """The tasks at other nodes of a cluster: `app.shared_server_tasks`."""

    async def listed(
        self, caller: Caller, servers: Sequence[ServerName], after: Mapping[str, int], most: int
    ) -> dict[str, Sequence[ListedTask]]:
        """A caller's tasks of these servers, by node and there by number, which is higher than in `after`."""

    async def follow(
        self,
        caller: Caller,
        surface: Surface,
        client_caps: ClientCapabilities,
        ids: Sequence[str],
        notify: Callable[[Mapping[str, msgspec.Raw]], None],
    ) -> Sequence[FollowedTasks]:
        """Follow tasks of a caller by the ids that it knows, each at the node that the id names."""

    def report(self, task: ServerTask, *, is_other: bool) -> None:
        """Notify the caller's listeners there."""


class _DropOrder:
    """Tasks in the order in which they are dropped: ended ones by their end, then the others by their creation."""

    def __init__(self) -> None:
        self._over: dict[ServerTask, None] = {}
        self._open: dict[ServerTask, None] = {}
        self.last = 0
        """The number of the latest task."""

    def __len__(self) -> int:
        return len(self._over) + len(self._open)

    def __iter__(self) -> Iterator[ServerTask]:
        yield from self._over
        yield from self._open

    def put(self, task: ServerTask) -> None:
        queue = self._over if task.state.is_terminal else self._open
        if task not in queue:
            self._open.pop(task, None)
            queue[task] = None

    def drop(self, task: ServerTask) -> None:
        self._over.pop(task, None)
        self._open.pop(task, None)

    def first(self) -> ServerTask:
        return next(iter(self._over or self._open))


class ServerTasks:
    """The server tasks of all callers of one hub."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all = _DropOrder()
        self._of: dict[Owner, _DropOrder] = {}
        self._named: dict[tuple[ServerName, str], list[ServerTask]] = {}
        self._reporting: dict[tuple[LinkSession, int], ServerTask] = {}
        self._listeners: dict[Owner, dict[object, tuple[str, OnTaskUpdate]]] = {}
        self.other_nodes: OtherNodes | None = None

    def __len__(self) -> int:
        return len(self._all)

    # -- reports of links ----------------------------------------------------------------------------------------------

    def created(
        self,
        caller: Caller,
        server: ServerName,
        place: LinkSession | None,
        state: ServerTaskState,
        *,
        session: str = "",
        request: int = -1,
        report: ReportProgress | None = None,
    ) -> None:
        """A task was created for a caller; `report` is called with progress of the `request` that created it."""
        owner = _owner(caller)
        # A server that reuses an id has forgotten the earlier task.
        for task in list(self._named.get((server, state.id), ())):
            is_given_anew = task.place is place and (task.owner == owner or task.state.is_terminal)
            if is_given_anew or not self._is_alive(task) or _is_lost(task.place):
                self._drop(task)
        own = self._of.setdefault(owner, _DropOrder())
        while len(own) >= EACH_MAX:
            self._drop(own.first())
        while len(self._all) >= ALL_MAX:
            self._drop(self._all.first())
        own.last += 1
        now = self._clock()
        until = _until(state, now, now)
        task = ServerTask(own.last, owner, server, place, session, state, until, now, request=request, report=report)
        task.is_private = caller.is_anyone
        if report is not None and place is not None:
            self._reporting[place, request] = task
        self._named.setdefault(task.name, []).append(task)
        own.put(task)
        self._all.put(task)

    def answered(self, caller: Caller, server: ServerName, place: LinkSession | None, state: ServerTaskState) -> None:
        """A server returned the state of a task to its caller."""
        owner = _owner(caller)
        own = [task for task in self._named.get((server, state.id), ()) if task.owner == owner]
        here = [task for task in own if task.place is place]
        for task in here or [task for task in own if _is_lost(task.place)]:
            self._update(task, state)

    def notified(self, server: ServerName, place: LinkSession, state: ServerTaskState) -> None:
        """A server sent a notification with the state of a task: only its caller's listeners receive it.

        Without a known caller it is dropped; the end of a task is reported once.
        """
        here = [task for task in self._named.get((server, state.id), ()) if task.place is place]
        if len(here) != 1 or here[0].is_end_reported or not self._is_alive(here[0]):
            return
        task, before = here[0], here[0].state
        self._update(task, state)
        if before.is_terminal and not state.is_terminal:
            return  # outdated
        task.is_end_reported = state.is_terminal
        self._notify(task, is_other=state.is_terminal or state.status != before.status)

    def announce(self, task: ServerTask, state: ServerTaskState) -> None:
        """The state of a hub task changed: notify its caller's listeners."""
        is_other = state.is_terminal or state.status != task.state.status
        task.state = state
        self._notify(task, is_other=is_other)

    def progressed(self, place: LinkSession, request: int, event: Callable[[], Progress]) -> None:
        """A server reports progress of a request that it has answered with a task."""
        task = self._reporting.get((place, request))
        if task is None or task.report is None or task.state.is_terminal or not self._is_alive(task):
            return
        try:
            task.report(event())
        except Exception:  # as in `_notify`
            log.exception("a listener of a task failed", server=task.server)

    def _update(self, task: ServerTask, state: ServerTaskState) -> None:
        if task.state.is_terminal and not state.is_terminal:
            return  # reported before the end, received after it
        task.state = state
        task.until = _until(state, task.made_at, self._clock())
        self._of[task.owner].put(task)
        self._all.put(task)

    def _drop(self, task: ServerTask) -> None:
        self._of[task.owner].drop(task)
        self._all.drop(task)
        if task.place is not None and self._reporting.get((task.place, task.request)) is task:
            del self._reporting[task.place, task.request]
        named = self._named[task.name]
        named.remove(task)
        if not named:
            del self._named[task.name]

    # -- requests of frontends -----------------------------------------------------------------------------------------

    def tasks_for(self, caller: Caller, session: str = "") -> list[ServerTask]:
        """The tasks that a caller can see in this session, by creation."""
        owner = _owner(caller)
        own = list(self._of.get(owner, ()))
        for task in own:
            if not self._is_alive(task):
                self._drop(task)
        meant = [task for task in own if self._find_by_id(owner, session, task.name) is task]
        return sorted(meant, key=lambda task: task.number)

    def forget(self, task: ServerTask) -> None:
        """Drop a task that its server no longer knows."""
        if task in self._named.get(task.name, ()):
            self._drop(task)

    def belongs_to_other(self, caller: Caller, server: ServerName, id: str) -> bool:
        """Whether an id that a caller was given now stands only for tasks of others."""
        owner = _owner(caller)
        named = self._named.get((server, id), ())
        owners = {task.owner for task in named if self._is_alive(task) and not _is_lost(task.place)}
        return bool(owners) and owner not in owners

    def listen(self, caller: Caller, session: str, notify: OnTaskUpdate) -> Callable[[], None]:
        """Call `notify` with every reported task of a caller, until the returned function is called."""
        owner, key = _owner(caller), object()
        self._listeners.setdefault(owner, {})[key] = (session, notify)

        def stop() -> None:
            listeners = self._listeners.get(owner, {})
            listeners.pop(key, None)
            if not listeners:
                self._listeners.pop(owner, None)

        return stop

    def _notify(self, task: ServerTask, *, is_other: bool) -> None:
        """Notify the session that requested it, if it listens; otherwise all of its caller's, unless it is private."""
        listeners = list(self._listeners.get(task.owner, {}).values())
        own = [listener for listener in listeners if task.session and listener[0] == task.session]
        if self.other_nodes is not None and not (own or task.is_private):
            self.other_nodes.report(task, is_other=is_other)
        self._notify_listeners(task, own if task.is_private else own or listeners, is_other=is_other)

    def reported_elsewhere(self, owner: Owner, server: ServerName, state: ServerTaskState, *, is_other: bool) -> None:
        """Another node reports a task of a caller."""
        task = ServerTask(0, owner, server, None, "", state, 0.0, 0.0, has_caller_id=True)
        self._notify_listeners(task, list(self._listeners.get(owner, {}).values()), is_other=is_other)

    def _notify_listeners(
        self, task: ServerTask, listeners: Sequence[tuple[str, OnTaskUpdate]], *, is_other: bool
    ) -> None:
        for session, notify in listeners:
            if not task.has_caller_id and self._find_by_id(task.owner, session, task.name) is not task:
                continue
            try:
                notify(task, is_other)
            except Exception:  # one broken listener must not affect the others, or the link
                log.exception("a listener of a task failed", server=task.server)

    def _find_by_id(self, owner: Owner, session: str, name: tuple[ServerName, str]) -> ServerTask | None:
        """The task that a caller's id stands for in one of its sessions; None if that is ambiguous.

        Sessions may have processes of their own, which number their tasks alike.
        """
        found = [task for task in self._named.get(name, ()) if task.owner == owner and self._is_alive(task)]
        if len(found) > 1:
            found = [task for task in found if task.session == session]
        return found[0] if len(found) == 1 else None

    def _is_alive(self, task: ServerTask) -> bool:
        has_died = task.place is not None and task.place.is_process and task.place.is_lost
        return task.until > self._clock() and not has_died


def _is_lost(place: LinkSession | None) -> bool:
    return place is None or place.is_lost


def _until(state: ServerTaskState, made_at: float, reported_at: float) -> float:
    return reported_at + KEEP_SECONDS if state.ttl_seconds is None else made_at + state.ttl_seconds


def hub_task(caller: Caller, server: ServerName, session: str, state: ServerTaskState) -> ServerTask:
    """A task of the hub itself, as listeners receive it."""
    owner = _owner(caller)
    return ServerTask(0, owner, server, None, session, state, 0.0, 0.0, has_caller_id=True, is_private=caller.is_anyone)


def _owner(caller: Caller) -> Owner:
    return caller.tenant, caller.name
