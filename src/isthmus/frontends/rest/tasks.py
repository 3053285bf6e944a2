"""Durable tasks over REST: lists, one task, cancelling, and streams of their changes. `http` passes requests here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias, get_args

import msgspec

from isthmus.core.admin_ports import TaskAddress, TaskAdmin, TaskDetails, TaskEntry, TaskQuery, TaskReport
from isthmus.frontends.http.request_cycle import CROWDED_BYTES, STREAM, KeepAlive, Peer
from isthmus.frontends.rest.problem_details import Problem, problem_of, refusal
from isthmus.model.callers import Caller
from isthmus.model.fault_table import Fault
from isthmus.model.tasks import ENDED, TaskState
from isthmus.wire import sse

LIMIT_DEFAULT = 50
LIMIT_MAX = 100

STATES: tuple[TaskState, ...] = get_args(TaskState)


class TaskEventStream:
    """A stream of events, which begins with the first one."""

    def __init__(self, streams: dict[asyncio.Future[None], Caller], caller: Caller, peer: Peer) -> None:
        """`streams` are those of the frontend, which ends them when the hub stops or the caller is removed."""
        self._streams = streams
        self._caller = caller
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.is_open = False
        """Whether the first event was sent."""

    @property
    def is_crowded(self) -> bool:
        """Whether the caller reads slowly."""
        return self._peer.buffered_bytes() > CROWDED_BYTES

    def push(self, event: str, value: object) -> None:
        """Send an event, unless the stream has ended."""
        if self._ended.done():
            return
        if not self.is_open:
            self.is_open = True
            self._peer.begin(200, STREAM)
        self._peer.push(sse.frame(msgspec.json.encode(value), event=event))

    def end(self) -> None:
        """End the stream."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def run(self, unfollow: Callable[[], None]) -> None:
        """Keep the stream open until it ends, then call `unfollow`."""
        self._streams[self._ended] = self._caller
        keep_alive = KeepAlive(self._peer, self._loop)
        self._peer.on_disconnect(self.end)
        try:
            await self._ended
            self._peer.end(b"")
        finally:
            self._streams.pop(self._ended)
            unfollow()
            keep_alive.stop()


class TaskRequest(msgspec.Struct, frozen=True):
    """A request about tasks."""

    admin: TaskAdmin
    caller: Caller
    parameters: Mapping[str, str]
    argument: str
    stream: TaskEventStream | None
    """Set if the caller wants a stream."""

    @property
    def address(self) -> TaskAddress:
        """The task that it names."""
        return TaskAddress(self.argument, self.parameters.get("caller", ""), self.parameters.get("tenant", ""))


TaskResponder: TypeAlias = Callable[[TaskRequest], Awaitable["bytes | Problem | None"]]


async def answer_about_tasks(respond: TaskResponder, request: TaskRequest) -> bytes | Problem | None:
    """The answer of a responder, or the problem that prevents it; None if it was a stream."""
    try:
        return await respond(request)
    except OSError as error:
        return refusal("storage_failed", str(error))
    except ValueError as error:
        return refusal("bad_request", str(error))


async def list_tasks(request: TaskRequest) -> bytes | Problem | None:
    """A page of tasks; as a stream, changed ones too. Raises `ValueError` for a bad parameter."""
    if request.caller.is_anyone and not request.caller.is_operator:
        text = "Callers without a key cannot be told apart, so their tasks are not listed: get a task by its id"
        return refusal("forbidden", text)
    query, given = _read_query(request), request.parameters.get("limit", str(LIMIT_DEFAULT))
    limit = int(given) if given.isdecimal() and len(given) <= len(str(LIMIT_MAX)) else 0
    if not 1 <= limit <= LIMIT_MAX:
        raise ValueError(f"limit must be a whole number from 1 to {LIMIT_MAX}, not {given!r}")
    cursor, stream = request.parameters.get("cursor", ""), request.stream
    if stream is None:
        return msgspec.json.encode(await request.admin.list(request.caller, query, limit=limit, cursor=cursor))

    def send(entries: Sequence[TaskEntry]) -> bool:
        if not stream.is_open or stream.is_crowded:
            return False
        stream.push("tasks", {"tasks": entries})
        return True

    # Followed first: what changes while the page is read comes after it.
    unfollow = request.admin.follow_list(request.caller, query, send)
    try:
        page = await request.admin.list(request.caller, query, limit=limit, cursor=cursor)
    except BaseException:
        unfollow()
        raise
    stream.push("tasks", page)
    await stream.run(unfollow)
    return None


async def get_task(request: TaskRequest) -> bytes | Problem | None:
    """One task; as a stream, until it has ended. Raises `ValueError` for a bad parameter."""
    given = request.parameters.get("content", "false")
    if given not in ("true", "false"):
        raise ValueError(f"content must be true or false, not {given!r}")
    stream, with_content = request.stream, given == "true"
    if stream is None:
        return _answer(await request.admin.get(request.caller, request.address, with_content=with_content))

    def send(news: TaskDetails | TaskReport) -> None:
        if isinstance(news, TaskDetails):
            stream.push("task", news)
            if news.state in ENDED:
                stream.end()
        elif not stream.is_crowded:
            stream.push(news.kind, {"at": news.at, "data": news.data})

    unfollow = await request.admin.follow(request.caller, request.address, send, with_content=with_content)
    if isinstance(unfollow, Fault):
        return problem_of(unfollow)
    await stream.run(unfollow)
    return None


async def cancel_task(request: TaskRequest) -> bytes | Problem:
    """Cancel a task."""
    return _answer(await request.admin.cancel(request.caller, request.address, with_content=False))


def _answer(found: TaskDetails | Fault) -> bytes | Problem:
    return problem_of(found) if isinstance(found, Fault) else msgspec.json.encode(found)


def _read_query(request: TaskRequest) -> TaskQuery:
    given, parameters = request.parameters.get("state"), request.parameters
    states: tuple[TaskState, ...] = ()
    if given is not None:
        wanted = given.split(",")
        states = tuple(state for state in STATES if state in wanted)
        if set(wanted) != set(states):
            raise ValueError(f"state must be one or several of {', '.join(STATES)}, with commas between, not {given!r}")
    return TaskQuery(
        states,
        parameters.get("server", ""),
        parameters.get("tool", ""),
        parameters.get("caller", ""),
        parameters.get("tenant", ""),
    )
