"""The durable tasks of a hub as people see them: lists, one task, its changes, cancelling. REST serves them.

The engine stores what each frontend needs to know of its tasks; this module reads it for A2A and for the hub's MCP
tasks, and decides who sees what.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import get_args

import msgspec
import structlog
from msgspec import Raw

from isthmus.app.hub import RunningHub
from isthmus.core.admin_ports import TaskAddress, TaskDetails, TaskEntry, TaskList, TaskQuery, TaskReport
from isthmus.core.event_loop import LONG_BYTES, pause_after
from isthmus.core.journal import Document, DocumentPlace, place_of
from isthmus.core.tasks.live_task import LiveTask, Report, TaskKey, decode_or_log
from isthmus.core.tasks.record import TASK, TaskOwner, TaskRecord, is_approval
from isthmus.frontends.a2a.caller_messages import message_bytes
from isthmus.frontends.a2a.task_view import brief_of
from isthmus.frontends.mcp.hub_tasks import QUEUED, REALM, expiry_of, info_of
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING, Progress
from isthmus.model.fault_table import Executed, Fault, TaskEnded, UnknownTask
from isthmus.model.tasks import Message, TaskState
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.messages import read_string

log = structlog.get_logger(__name__)

STATES: tuple[TaskState, ...] = get_args(TaskState)

READ_AT_ONCE = 100
READ_MAX = 1_000
"""Tasks that one request reads at most. With filters that few tasks match, a page may be short and name a next one."""

ID_LENGTH_MAX = 256
TEXT_LENGTH_MAX = 500
"""Longer messages of servers are cut."""

MESSAGES_BYTES_MAX = 256 * 1024
RESULT_BYTES_MAX = 1024 * 1024
"""Longer results are left out: A2A and MCP have them whole."""

FEED_SECONDS = 0.1
"""How often followers of the list receive changed tasks, however many have changed."""

FED_AT_ONCE = 200
FED_MAX = 1_000
"""Changed tasks that wait for a slow reader; beyond it the reader misses the oldest."""


class TaskBrowser:
    """Implements `core.admin_ports.TaskAdmin`."""

    def __init__(self, running: RunningHub, now: Callable[[], float] = time.time) -> None:
        self._running = running
        self._hub = running.hub
        self._engine = running.tasks
        self._journal = running.journal
        self._now = now
        self._feeds: list[TaskFeed] = []
        self._timer: asyncio.TimerHandle | None = None

    # -- lists -------------------------------------------------------------------------------------------------------

    async def list(self, viewer: Caller, query: TaskQuery, *, limit: int, cursor: str) -> TaskList:
        """One page. Raises `ValueError` for a cursor that no page has."""
        before = _read_cursor(cursor) if cursor else None
        owners = self._owners_in(viewer, query)
        states = query.states or STATES
        is_narrowed = bool(query.server or query.tool or query.caller)
        found: list[TaskEntry] = []
        for _ in range(0, READ_MAX, READ_AT_ONCE):
            at_once = READ_AT_ONCE if is_narrowed else min(limit - len(found), READ_AT_ONCE)
            documents = await self._journal.newest(TASK, states, owners=owners, limit=at_once, before=before)
            if not documents:
                return TaskList(tuple(found))
            for document in documents:
                before = place_of(document)
                entry = self._entry_in(document, viewer, query)
                if entry is not None:
                    found.append(entry)
                if len(found) == limit:
                    return TaskList(tuple(found), _write_cursor(before))
                await pause_after(len(document.body or b""))
        return TaskList(tuple(found), "" if before is None else _write_cursor(before))

    def _owners_in(self, viewer: Caller, query: TaskQuery) -> tuple[str, ...]:
        """The owners of the tasks in a list; none stand for all of them."""
        if not viewer.is_operator:
            return tuple(owner.key for owner in _owners(viewer.tenant, viewer.name))
        if query.caller and query.tenant:
            return tuple(owner.key for owner in _owners(query.tenant, query.caller))
        return ()

    def _entry_in(self, document: Document, viewer: Caller, query: TaskQuery) -> TaskEntry | None:
        if query.caller and document.owner.split("\n")[1:2] != [query.caller]:
            return None  # without reading the task
        try:
            record = self._engine.current_record(document)
            return None if record is None else self._entry_for(record, viewer, query)
        except msgspec.MsgspecError as error:  # another version of the hub wrote it
            log.error("a stored task cannot be decoded", task=document.id, error=str(error))
            return None

    def _entry_for(self, record: TaskRecord, viewer: Caller, query: TaskQuery) -> TaskEntry | None:
        """The entry of a task, if this viewer may see it and the filter matches."""
        if not self._is_visible(record, viewer):
            return None
        entry = self._entry(record, with_content=_is_own(record, viewer))
        for wanted, value in (
            (query.server, entry.server),
            (query.caller, entry.caller),
            (query.tenant, entry.tenant),
        ):
            if wanted and wanted != value:
                return None
        if query.states and entry.state not in query.states:
            return None
        if query.tool and query.tool not in (entry.tool, (entry.tool or "").removeprefix(f"{entry.server}.")):
            return None
        return entry

    def follow_list(
        self, viewer: Caller, query: TaskQuery, feed: Callable[[Sequence[TaskEntry]], bool]
    ) -> Callable[[], None]:
        """Pass changed tasks to `feed` in batches, until the returned function is called."""
        followed = TaskFeed(viewer, query, feed)
        self._feeds.append(followed)
        self._engine.on_changed = self._on_changed

        def unfollow() -> None:
            self._feeds.remove(followed)
            if not self._feeds:
                self._engine.on_changed = None

        return unfollow

    def _on_changed(self, live: LiveTask) -> None:
        for feed in self._feeds:
            feed.changed[live.key] = live
            if len(feed.changed) > FED_MAX:
                del feed.changed[next(iter(feed.changed))]
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FEED_SECONDS, self._feed_all)

    def _feed_all(self) -> None:
        self._timer = None
        for feed in list(self._feeds):
            changed = list(feed.changed.items())[:FED_AT_ONCE]
            entries = [entry for _, live in changed if (entry := self._fed_entry(live, feed)) is not None]
            if not entries or feed.send(entries):
                for key, _ in changed:
                    del feed.changed[key]
        if any(feed.changed for feed in self._feeds):
            self._timer = asyncio.get_running_loop().call_later(FEED_SECONDS, self._feed_all)

    def _fed_entry(self, live: LiveTask, feed: TaskFeed) -> TaskEntry | None:
        if live.stored is None:
            return None
        try:
            # Whatever its state is now: the follower may still show a task that has left the list.
            return self._entry_for(live.stored, feed.viewer, msgspec.structs.replace(feed.query, states=()))
        except msgspec.MsgspecError:  # another version of the hub wrote it
            return None

    # -- one task ----------------------------------------------------------------------------------------------------

    async def get(self, viewer: Caller, address: TaskAddress, *, with_content: bool) -> TaskDetails | Fault:
        """One task. Raises `ValueError` if several callers have a task with this id."""
        live = await self._find(viewer, address)
        if live is None:
            return UnknownTask()
        return self._details_of(live, viewer, with_content=with_content)

    async def follow(
        self,
        viewer: Caller,
        address: TaskAddress,
        feed: Callable[[TaskDetails | TaskReport], None],
        *,
        with_content: bool,
    ) -> Callable[[], None] | Fault:
        """Pass a task to `feed` as it is now and with every change, until the returned function is called."""
        live = await self._find(viewer, address)
        if live is None:
            return UnknownTask()
        shows_content = self._shows_content(live.record, viewer, with_content=with_content)
        follower = TaskFollower(feed, partial(self._details, with_content=shows_content), shows_content=shows_content)
        live.listeners[follower] = None
        follower.task_changed(live.stored or live.record)

        def unfollow() -> None:
            live.listeners.pop(follower, None)

        return unfollow

    async def cancel(self, viewer: Caller, address: TaskAddress, *, with_content: bool) -> TaskDetails | Fault:
        """Cancel a task. Raises like `get`."""
        live = await self._find(viewer, address)
        if live is None:
            return UnknownTask()
        is_own, owner = _is_own(live.record, viewer), live.record.owner
        why = f"{'the caller' if is_own else 'an operator'} cancelled the task"
        if live.holder and not live.record.is_terminal:
            if (fault := await self._engine.cancel_elsewhere(live, why)) is not None:
                return fault
        elif not self._engine.cancel(live, why):
            return TaskEnded(live.record.state)
        if not is_own:
            about = {"caller": owner.name, "tenant": owner.tenant, "by": viewer.name}
            self._running.note("task.cancelled", id=live.record.id, **about)
        await self._engine.wait_stored(live)
        return self._details_of(live, viewer, with_content=with_content)

    async def _find(self, viewer: Caller, address: TaskAddress) -> LiveTask | None:
        if not 0 < len(address.id) <= ID_LENGTH_MAX:
            return None
        caller, tenant = address.caller or viewer.name, address.tenant or viewer.tenant
        if (caller, tenant) != (viewer.name, viewer.tenant) and not viewer.is_operator:
            return None
        owners = [*_owners(tenant, caller)]
        found = await self._first(viewer, owners, address.id)
        if found is not None or address.caller or not viewer.is_operator:
            return found
        records = [decode_or_log(each) for each in await self._journal.named(TASK, address.id, limit=3)]
        others = {record.owner for record in records if record is not None}
        if len({(owner.tenant, owner.name) for owner in others}) > 1:
            raise ValueError("Several callers have a task with this id: add caller=NAME and tenant=NAME")
        return await self._first(viewer, sorted(others, key=lambda owner: owner.key), address.id)

    async def _first(self, viewer: Caller, owners: Sequence[TaskOwner], id: str) -> LiveTask | None:
        for owner in owners:
            live = await self._engine.find(owner, id)
            if live is not None and self._is_visible(live.stored or live.record, viewer):
                return live
        return None

    # -- who sees what -----------------------------------------------------------------------------------------------

    def _is_visible(self, record: TaskRecord, viewer: Caller) -> bool:
        if record.owner.realm == REALM:
            if record.is_terminal and self._now() >= expiry_of(record):
                return False
            if not viewer.is_operator:
                view = self._hub.snapshot.view(viewer.grants, EVERYTHING)
                return _is_own(record, viewer) and info_of(record).server in view.servers
        return viewer.is_operator or _is_own(record, viewer)

    def _shows_content(self, record: TaskRecord, viewer: Caller, *, with_content: bool) -> bool:
        """Whether to show messages and results. If an operator reads another caller's, the audit log notes it."""
        if _is_own(record, viewer):
            return True
        if with_content:
            owner = record.owner
            self._running.note("task.read", id=record.id, caller=owner.name, tenant=owner.tenant, by=viewer.name)
        return with_content

    # -- what is shown -----------------------------------------------------------------------------------------------

    def _entry(self, record: TaskRecord, *, with_content: bool) -> TaskEntry:
        server, tool = self._target_of(record)
        outcome, executed = _outcome_of(record)
        report = self._engine.last_report(record)
        has_progress = report is not None and isinstance(report.event, Progress)
        return TaskEntry(
            id=record.id,
            protocol="mcp" if record.owner.realm == REALM else "a2a",
            state=_state_of(record),
            server=server,
            tool=tool,
            caller=record.owner.name,
            tenant=record.owner.tenant,
            created=record.created,
            updated=record.updated,
            outcome=outcome,
            executed=executed,
            message=_message_of(record, with_content=with_content),
            progress=_report(report, shows_content=with_content).data if report and has_progress else None,
        )

    def _details_of(self, live: LiveTask, viewer: Caller, *, with_content: bool) -> TaskDetails:
        record = live.stored or live.record
        return self._details(record, with_content=self._shows_content(record, viewer, with_content=with_content))

    def _details(self, record: TaskRecord, *, with_content: bool) -> TaskDetails:
        entry = self._entry(record, with_content=with_content)
        ending, asked = record.ending, record.asked
        result_bytes = 0 if ending is None else len(memoryview(ending.result))
        question = result = error = None
        if with_content and asked is not None:
            question = Raw(render({"method": msgspec.json.encode(asked.method), "params": asked.params}))
        if with_content and ending is not None and 0 < result_bytes <= RESULT_BYTES_MAX:
            result = ending.result
        if with_content and ending is not None and ending.code is not None:
            members: dict[str, Payload] = {
                "code": b"%d" % ending.code,
                "message": msgspec.json.encode(ending.message),
            }
            if 0 < len(memoryview(ending.data)) <= RESULT_BYTES_MAX:
                members["data"] = ending.data
            error = Raw(render(members))
        return TaskDetails(
            **{name: getattr(entry, name) for name in TaskEntry.__struct_fields__},
            context=record.context,
            content=with_content,
            messages=_newest_messages(record.said) if with_content else (),
            question=question,
            result=result,
            result_bytes=result_bytes,
            error=error,
        )

    def _target_of(self, record: TaskRecord) -> tuple[str | None, str | None]:
        """The server and the tool of a task."""
        if record.owner.realm == REALM:
            info = info_of(record)
            return info.server, f"{info.server}.{info.tool}" if info.tool else None
        if len(memoryview(record.brief)) > LONG_BYTES:  # a caller chose a long id for its command
            return None, None
        brief = brief_of(record)
        tool = brief.called or brief.tool
        server = tool.partition(".")[0]
        if record.pending is not None and record.pending.server:
            server = record.pending.server
        elif not brief.called and server not in self._hub.server_queues:
            server = "" if record.ending is None else record.ending.server or ""
        return server or None, tool or None


class TaskFeed:
    """A follower of the list, and the tasks that changed meanwhile."""

    def __init__(self, viewer: Caller, query: TaskQuery, send: Callable[[Sequence[TaskEntry]], bool]) -> None:
        self.viewer = viewer
        self.query = query
        self.send = send
        self.changed: dict[TaskKey, LiveTask] = {}


class TaskFollower:
    """A follower of one task; see `core.tasks.live_task.TaskListener`."""

    def __init__(
        self,
        feed: Callable[[TaskDetails | TaskReport], None],
        details: Callable[[TaskRecord], TaskDetails],
        *,
        shows_content: bool,
    ) -> None:
        self._feed = feed
        self._details = details
        self._shows_content = shows_content

    def task_changed(self, record: TaskRecord) -> None:
        """Pass the whole task on."""
        self._feed(self._details(record))

    def task_reported(self, record: TaskRecord, report: Report) -> None:
        """Pass the report on; a line of the log is content."""
        if self._shows_content or isinstance(report.event, Progress):
            self._feed(_report(report, shows_content=self._shows_content))


def _owners(tenant: str, name: str) -> tuple[TaskOwner, TaskOwner]:
    """The two owner keys of a caller's tasks: A2A and MCP."""
    return TaskOwner(tenant, name), TaskOwner(tenant, name, REALM)


def _is_own(record: TaskRecord, viewer: Caller) -> bool:
    return (record.owner.tenant, record.owner.name) == (viewer.tenant, viewer.name)


def _state_of(record: TaskRecord) -> TaskState:
    # As the journal has it: a stored task whose call was sent is working.
    return "working" if record.state == "submitted" and record.phase == "sent" else record.state


def _outcome_of(record: TaskRecord) -> tuple[str | None, Executed | None]:
    ending = record.ending
    if not record.is_terminal:
        return None, None
    if ending is None:  # cancelled before it had a call
        return "cancelled", "no"
    if ending.reason:
        return ending.reason, ending.executed
    return "tool_error" if ending.is_error else "result", "yes"


def _message_of(record: TaskRecord, *, with_content: bool) -> str | None:
    """A sentence about the present state. What a server asks is content."""
    if record.ending is not None:
        return record.ending.message[:TEXT_LENGTH_MAX] or None
    if record.phase == "waiting" and (record.asked is None or not is_approval(record.asked)):
        return QUEUED
    if record.asked is not None:
        is_read = with_content and len(memoryview(record.asked.params)) <= LONG_BYTES
        text = read_string((object_members(record.asked.params) or {}).get("message")) if is_read else None
        return (text or "The server asks the caller something")[:TEXT_LENGTH_MAX]
    return "The task waits for a message that names a tool" if record.state == "input_required" else None


def _report(report: Report, *, shows_content: bool) -> TaskReport:
    members = report.event.members
    if not isinstance(report.event, Progress):
        return TaskReport("log", report.at, Raw(render(members)))
    known: dict[str, object] = {}
    for name in ("progress", "total"):
        with suppress(KeyError, msgspec.MsgspecError):  # absent, or no number
            known[name] = _decode_number(members[name])
    text = read_string(members.get("message")) if shows_content else None
    if text is not None:
        known["message"] = text[:TEXT_LENGTH_MAX]
    return TaskReport("progress", report.at, Raw(msgspec.json.encode(known)))


def _newest_messages(said: Sequence[Message]) -> tuple[Message, ...]:
    """The last messages that fit."""
    kept: list[Message] = []
    room = MESSAGES_BYTES_MAX
    for message in reversed(said):
        room -= message_bytes(message)
        if room < 0:
            break
        kept.append(message)
    return tuple(reversed(kept))


_decode_number = msgspec.json.Decoder(int | float).decode
_decode_place = msgspec.json.Decoder(tuple[float, str, str]).decode


def _write_cursor(place: DocumentPlace) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def _read_cursor(cursor: str) -> DocumentPlace:
    try:
        return _decode_place(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, UnicodeError) as error:
        raise ValueError("cursor is invalid: use the `next` of a page") from error
