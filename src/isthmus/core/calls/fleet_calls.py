"""The calls of fleets: one call of a fleet's tool becomes calls of its members.

A fleet is a server whose link is the hub itself. A call of its tool passes the stages like any other: permissions, its
schema, approvals, its queue. `FleetLink` then starts a call at one member, or at several, which passes the same stages
for that member, and is audited with the fleet's name. `app` makes the `Fleets` of a hub.

An argument of the tool says which members are meant (`core.catalog.fleets.MEMBER_ARGUMENT`): the id of one, `all`,
`any`, or none, which leaves the choice to the fleet. A conversation keeps the member that was chosen for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import ref

import msgspec
import structlog

from isthmus.core.calls.running_call import InFlight, OpenQuestion
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.fleets import (
    ALL_MEMBERS,
    ANY_MEMBER,
    MEMBERS_TOOL,
    Fleet,
    FleetSettings,
    hidden_by,
)
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.tool_rules import labels_of
from isthmus.core.ports import HoldableExchange, SessionExchange
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import (
    NO_CAPABILITIES,
    NOT_ASKED,
    Call,
    Event,
    LogMessage,
    OnReply,
    Outcome,
    Progress,
    Question,
    Result,
    Surface,
)
from isthmus.model.fault_table import (
    ApprovalPending,
    BadArguments,
    Cancelled,
    Executed,
    Fault,
    NotConnected,
    TimedOut,
    UnknownTool,
)
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName, name_filter

if TYPE_CHECKING:
    from isthmus.core.calls.hub import Hub

log = structlog.get_logger(__name__)

MEMBER_KEY = "isthmus/member"
"""The member of a result's `_meta` that names the member of the fleet that answered."""

MARKED_BYTES_MAX = 4 * 1024 * 1024
"""A longer result is passed on without that name: reading it would hold the event loop."""

FLEET_CALLS = 4096
"""Running calls of one fleet. The members' own queues limit what reaches each of them."""

CONVERSATIONS_MAX = 10_000
"""Conversations of one fleet that keep their member; the one without a call for longest loses it."""

NAMED_MAX = 10
"""Members that an error names."""

TIMEOUT_SHARE = 0.9
"""The part of the caller's own timeout after which gathered results are returned: the rest is for returning them."""

TASK_CAPABILITIES = "extensions."
"""Clients' capabilities beside those to be asked something. A member must not answer with a task or anything else that
only its own server can continue."""

IDLE = (False, False, 0)
"""The load of a member that is connected, has a closed breaker and no calls."""

STARTED_AT_ONCE = 64
"""Calls that are started before the event loop gets a turn."""

SUMMARY_BYTES = 400
"""About what a gathered result says besides its rows."""

ROW_BYTES = 200
"""About what the row and the line of a member take besides its result."""

HELD_ADVICE = "Call this member alone then: a call of all would run the others again"
"""What the caller does about a member that waits for a person when the deadline has passed."""

DEADLINE = "the fleet's deadline has passed"
ANSWERED = "another member of the fleet has answered"

Mode: TypeAlias = Literal["all", "any"]

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.encode


class Fleets:
    """The fleets of one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._fleets: dict[ServerName, Fleet] = {}
        self._links: dict[ServerName, FleetLink] = {}
        self.hides = hidden_by(())
        self.calls_elsewhere: Mapping[str, int] = {}
        """The calls of members that another node of the cluster owns or runs, about a second ago: there are all."""

    def calls_of(self, member: ServerName) -> int:
        """How many calls a member has, as far as this node knows."""
        queue = self._hub.server_queues[member]
        calls = queue.running + queue.queued
        return max(calls, self.calls_elsewhere.get(member, 0)) if self.calls_elsewhere else calls

    def members(self) -> set[ServerName]:
        """The members of all fleets."""
        return {member for fleet in self._fleets.values() for member in fleet.members}

    def __contains__(self, name: object) -> bool:
        return name in self._fleets

    def __getitem__(self, name: ServerName) -> Fleet:
        return self._fleets[name]

    def change(self, settings: Mapping[ServerName, FleetSettings]) -> None:
        """Apply other settings. Running calls of a fleet that is changed or removed finish."""
        present = {name: fleet.settings for name, fleet in self._fleets.items()}
        if present == settings:
            return
        hub = self._hub
        for name in [name for name in self._fleets if name not in settings]:
            del self._fleets[name], self._links[name]
            hub.close_server_queue(name)
        statuses = {name: each for name, each in hub.snapshot.server_statuses.items() if name not in settings}
        for name, wanted in settings.items():
            if present.get(name) == wanted:
                continue
            if name not in self._fleets and name in hub.server_queues:
                log.error("a fleet has the name of a server, and is left out", fleet=name)
                continue
            fleet = self._fleets[name] = Fleet(name, wanted)
            fleet.update(statuses)
            # The breaker of each member decides about that member: one that fails must not stop the others.
            never = 2**31
            limits = replace(hub.limits, breaker_failures=never, breaker_calls=never)
            server_queue = ServerQueue(name, limits, max_calls=FLEET_CALLS, timeout=limits.hard_seconds)
            link = self._links[name] = FleetLink(hub, fleet, self)
            server_queue.attach(link)
            hub.open_server_queue(server_queue, fleet.status)
        self.hides = hidden_by(fleet.settings for fleet in self._fleets.values())
        hub.change_fleets(self)

    def called_by(self, inflight: InFlight) -> Sequence[Tool]:
        """The tools of the members that a call of several members of a fleet reaches; none for other calls."""
        link = self._links.get(inflight.target.feature.server)
        return () if link is None else link.called_by(inflight)

    def join(
        self, server_statuses: dict[ServerName, ServerStatus], changed: Mapping[ServerName, ServerStatus | None]
    ) -> None:
        """Add the fleets to the servers of a new snapshot."""
        others = {name: status for name, status in changed.items() if name not in self._fleets}
        for name, fleet in self._fleets.items():
            fleet.update(others)
            server_statuses[name] = fleet.status
            if fleet.status.reason is not None:
                self._hub.server_queues[name].explain(fleet.status.reason)


class FleetLink:
    """The link of a fleet: it calls the members. See `core.ports.Link`."""

    def __init__(self, hub: Hub, fleet: Fleet, fleets: Fleets) -> None:
        self.hub = hub
        self.fleet = fleet
        self._fleets = fleets
        self._kept: OrderedDict[tuple[str, str, str], ServerName] = OrderedDict()
        """The members of conversations: by tenant, caller and session."""
        self._order: OrderedDict[ServerName, None] = OrderedDict()
        """All members, the longest unused first: it is chosen of those that are equally busy."""
        self._changes = 0
        """`Fleet.changes` of that order."""

    def send(self, inflight: InFlight) -> None:
        """Start the calls of members."""
        statuses = self.hub.snapshot.server_statuses  # brings the fleet up to date: the call may have waited
        fleet, name = self.fleet, inflight.name
        if name == MEMBERS_TOOL:
            self._watch(inflight)
            inflight.finish(self._list_members(inflight))
            return
        if name not in fleet.tools:
            inflight.finish(UnknownTool(inflight.call.name))
            return
        try:
            given, wanted = self._split(inflight)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            inflight.finish(BadArguments(inflight.call.name, str(error)))
            return
        members = self._allowed_members(inflight, wanted, statuses)
        if not members or (wanted and wanted not in (ALL_MEMBERS, ANY_MEMBER) and wanted not in members):
            inflight.finish(self._refusal(inflight, wanted, sorted(members)))
        elif wanted in (ALL_MEMBERS, ANY_MEMBER):
            mode: Mode = "all" if wanted == ALL_MEMBERS else "any"
            unlisted = self._unlisted(inflight.call.caller, name) if mode == "all" else ()
            self._watch(inflight)
            _MemberCalls(self, inflight, mode, sorted(members), given, unlisted).start()
        else:
            member = ServerName(wanted) if wanted else self._choose(inflight, members)
            self._watch(inflight, member)
            _OneCall(inflight, member).start(self.hub, self.call_of(inflight, member, given))

    def _watch(self, inflight: InFlight, member: ServerName | None = None) -> None:
        """Have a large result cut, by the limit of the member if only that answers."""
        if self.hub.is_cutting and self.hub.cuts is not None:
            self.hub.cuts.watch(inflight, member)

    def called_by(self, inflight: InFlight) -> Sequence[Tool]:
        """The tools of the members that a call of several members reaches; none if it is for one."""
        statuses = self.hub.snapshot.server_statuses
        if inflight.name not in self.fleet.tools:
            return ()
        try:
            _, wanted = self._split(inflight)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return ()
        if wanted not in (ALL_MEMBERS, ANY_MEMBER):
            return ()
        found = self.fleet.variant(inflight.name)
        return [found[member] for member in self._allowed_members(inflight, wanted, statuses)]

    def may_have_run(self, inflight: InFlight) -> bool:
        """Whether a member may have run the tool."""
        carriage = inflight.carriage
        return isinstance(carriage, _OneCall | _MemberCalls) and carriage.may_have_run

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Cancel the calls of all members."""
        if isinstance(inflight.carriage, _OneCall | _MemberCalls):
            inflight.carriage.cancel(reason)

    def call_of(self, inflight: InFlight, member: ServerName, arguments: msgspec.Raw, *, is_alone: bool = True) -> Call:
        """The call of one member; unless it `is_alone`, the member cannot ask the caller anything.

        Permission for the fleet's tool includes that of its members: `_reachable` has left out those that the caller is
        denied.
        """
        call = inflight.call
        caller_id = next((each.caller_id for each in _chain(call.caller.grants) if each.caller_id is not None), None)
        caps = {each for each in call.client_caps if not each.startswith(TASK_CAPABILITIES)} if is_alone else ()
        return msgspec.structs.replace(
            call,
            caller=msgspec.structs.replace(call.caller, grants=Grants(("*",), caller_id=caller_id)),
            surface=Surface("own", member, expose="all"),
            name=inflight.name,
            arguments=arguments,
            extra=call.extra if is_alone else {},
            client_caps=frozenset(caps) if caps else NO_CAPABILITIES,
            comes_back=False,
            request_id=None,
            tool="",
            fleet=self.fleet.name,
            fleet_set=call.set,
        )

    # -- which members -------------------------------------------------------------------------------------------------

    def _split(self, inflight: InFlight) -> tuple[msgspec.Raw, str]:
        """The arguments of the members' tool, and which members are meant. Raises if they cannot be read."""
        given = inflight.call.arguments
        arguments = _MEMBERS.decode(given)
        if (raw := arguments.pop(self.fleet.tools[inflight.name].argument, None)) is None:
            return given, ""
        return msgspec.Raw(_encode(arguments)), msgspec.json.decode(raw, type=str)

    def _allowed_members(
        self, inflight: InFlight, wanted: str, statuses: Mapping[ServerName, ServerStatus]
    ) -> Collection[ServerName]:
        """The members that may be called; for any answer, those that only read."""
        members = self._reachable(inflight.call.caller, inflight.name, statuses)
        if wanted != ANY_MEMBER:
            return members
        readers = self.fleet.readers(inflight.name)
        return {member for member in members if member in readers}

    def _reachable(
        self, caller: Caller, tool: str, statuses: Mapping[ServerName, ServerStatus]
    ) -> Collection[ServerName]:
        """The members with this tool, without those that the caller is denied."""
        found = self.fleet.variant(tool)
        if not self._has_denials(caller):
            return found.keys()
        policy = self.hub.snapshot.policy(caller.grants)
        return {
            member
            for member, each in found.items()
            if not policy.denies(member, each.name, labels_of(each, statuses[member].rules))
        }

    def _unlisted(self, caller: Caller, tool: str) -> list[ServerName]:
        """Members that were never connected: they may have the tool, and `all` includes them."""
        members = [name for name, each in self.fleet.members.items() if each.state != "ready" and not each.has_lists]
        if not members:
            return []
        policy = self.hub.snapshot.policy(caller.grants)
        return [member for member in members if not policy.denies(member, FeatureName(tool))]

    def _visible_members(self, caller: Caller) -> Collection[ServerName]:
        """The members without those of which the caller is denied every tool of the fleet."""
        if not self._has_denials(caller):
            return self.fleet.members.keys()
        policy, tools = self.hub.snapshot.policy(caller.grants), self.fleet.tools

        def is_denied(member: ServerName, status: ServerStatus) -> bool:
            listed = [each for each in status.tools if each.name in tools]
            if not listed:  # it was never connected, and may have any of them
                return all(policy.denies(member, FeatureName(name)) for name in tools)
            return all(policy.denies(member, each.name, labels_of(each, status.rules)) for each in listed)

        return {member for member, status in self.fleet.members.items() if not is_denied(member, status)}

    def _has_denials(self, caller: Caller) -> bool:
        return self.hub.custom_policy is not None or any(each.deny for each in _chain(caller.grants))

    def _choose(self, inflight: InFlight, members: Collection[ServerName]) -> ServerName:
        """The member of this conversation if it is connected; otherwise the least busy one."""
        call, exchange, queues = inflight.call, inflight.exchange, self.hub.server_queues
        session = call.session or call.sharer
        if not session and isinstance(exchange, SessionExchange):
            session = exchange.session_id
        key = (call.caller.tenant, call.caller.name, session)
        chosen = self._kept.get(key) if session else None
        if chosen is None or chosen not in members or not queues[chosen].has_link:
            chosen = self._least_busy(members)
        if session:
            self._kept[key] = chosen
            self._kept.move_to_end(key)
            if len(self._kept) > CONVERSATIONS_MAX:
                self._kept.popitem(last=False)
        if chosen in self._order:
            self._order.move_to_end(chosen)
        return chosen

    def _least_busy(self, members: Collection[ServerName]) -> ServerName:
        """A connected member without calls, if there is one; nearly always that is one of the first."""
        if self._changes != self.fleet.changes:
            kept = [member for member in self._order if member in self.fleet.members]
            new = [member for member in sorted(self.fleet.members) if member not in self._order]
            self._order, self._changes = OrderedDict.fromkeys([*new, *kept]), self.fleet.changes
        found: tuple[tuple[bool, bool, int], ServerName] | None = None
        for member in self._order:
            if member in members:
                queue = self.hub.server_queues[member]
                load = (not queue.has_link, queue.breaker_state == "open", self._fleets.calls_of(member))
                if load == IDLE:
                    return member
                if found is None or load < found[0]:
                    found = load, member
        assert found is not None, "members have joined since the order was made"
        return found[1]

    def _refusal(self, inflight: InFlight, wanted: str, members: Collection[ServerName]) -> Fault:
        """Why a call reaches no member."""
        call, fleet = inflight.call, self.fleet
        if wanted == ANY_MEMBER and not members:
            return BadArguments(
                call.name,
                f"{ANY_MEMBER!r} is for tools that only read, and no member is known to: leave it out, or the operator"
                f" lists {inflight.name} in read_only of the fleet {fleet.name}",
            )
        if wanted in self._unlisted(call.caller, inflight.name):
            return self.hub.server_queues[ServerName(wanted)].not_connected()
        if not members:
            return NotConnected(fleet.name, "no member of the fleet has this tool for you")
        named = ", ".join(list(members)[:NAMED_MAX])
        more = f" and {len(members) - NAMED_MAX} more, which {MEMBERS_TOOL} lists" if len(members) > NAMED_MAX else ""
        return BadArguments(
            call.name,
            f"{fleet.tools[inflight.name].argument} must be {ALL_MEMBERS!r}, {ANY_MEMBER!r} or a member that has the"
            f" tool ({named}{more}), not {wanted[:100]!r}",
        )

    def _list_members(self, inflight: InFlight) -> Outcome:
        try:
            wanted = msgspec.json.decode(inflight.call.arguments, type=_MembersQuery)
        except msgspec.MsgspecError as error:
            return BadArguments(inflight.call.name, str(error))
        fits, queues = name_filter(wanted.pattern), self.hub.server_queues
        shown = self._visible_members(inflight.call.caller)
        members = [name for name in sorted(shown) if fits(name)]
        rows = [
            {"id": name, "state": self.fleet.members[name].state, "calls": self._fleets.calls_of(name)}
            for name in members[: wanted.limit]
            if name in queues
        ]
        lines = [f"{row['id']}: {row['state']}, {row['calls']} calls" for row in rows]
        lines.append(f"{len(rows)} of {len(members)} members")
        return _result("\n".join(lines), {"fleet": self.fleet.name, "members": rows, "total": len(members)})


class _MembersQuery(msgspec.Struct, frozen=True):
    """The arguments of `fleet_members`; its schema has checked them."""

    pattern: str = "*"
    limit: int = 100


def _chain(grants: Grants | None) -> Iterator[Grants]:
    while grants is not None:
        yield grants
        grants = grants.within


# -- one member --------------------------------------------------------------------------------------------------------


class _OneCall:
    """A call that one member answers: what the member reports and asks goes to the caller. See `Exchange`."""

    __slots__ = ("_ended", "_inner", "_member", "_outer", "_questions")

    def __init__(self, outer: InFlight, member: ServerName) -> None:
        self._outer = outer
        self._member = member
        self._inner: InFlight | None = None
        self._ended: Outcome | None = None
        """How the member's call ended, if that was before it was known."""
        self._questions: dict[OnReply, OpenQuestion] = {}
        """The caller's open questions, by the member's."""

    def start(self, hub: Hub, call: Call) -> None:
        """Start the member's call."""
        self._outer.carriage = self
        self._inner = hub.start(call, self, ref(self._outer))
        if self._ended is not None:
            self.end(self._ended)

    @property
    def may_have_run(self) -> bool:
        """Whether the member may have run the tool."""
        return self._inner is not None and _may_have_run(self._inner)

    def cancel(self, reason: str) -> None:
        """The caller has given up."""
        if self._inner is not None:
            self._inner.cancel(reason)

    def emit(self, event: Event) -> None:
        """See `Exchange`."""
        self._outer.emit(event)

    def ask(self, question: Question, reply: OnReply) -> None:
        """See `Exchange`."""
        asked = self._outer.ask(question, reply)
        if asked is not None:
            self._questions = {mine: theirs for mine, theirs in self._questions.items() if theirs.is_open}
            self._questions[reply] = asked

    def retract(self, reply: OnReply) -> None:
        """See `RetractingExchange`."""
        if (asked := self._questions.pop(reply, None)) is not None:
            asked.retract()

    def retract_later(self, reply: OnReply) -> None:
        """See `RetractingExchange`; the question ends with the caller's own call."""

    def held(self, notice: Question) -> None:
        """See `HoldableExchange`."""
        if isinstance(self._outer.exchange, HoldableExchange):
            self._outer.exchange.held(notice)

    def released(self) -> None:
        """See `HoldableExchange`."""
        if isinstance(self._outer.exchange, HoldableExchange):
            self._outer.exchange.released()

    def end(self, outcome: Outcome) -> None:
        """See `Exchange`."""
        if not self._outer.is_done:
            inner = self._inner
            if inner is None:  # it ended before `start` returned: `start` goes on
                self._ended = outcome
                return
            self._outer.is_unreached = not _may_have_run(inner)
            self._outer.finish(_marked(outcome, self._member))


def _marked(outcome: Outcome, member: ServerName) -> Outcome:
    """The outcome with the member's name in its `_meta`."""
    if isinstance(outcome, Fault) or outcome.is_bare or len(memoryview(outcome.payload)) > MARKED_BYTES_MAX:
        return outcome
    try:
        result = _MEMBERS.decode(outcome.payload)
        meta = _MEMBERS.decode(result.get("_meta", b"{}"))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return outcome  # it is not an object, and the caller's frontend deals with that
    meta[MEMBER_KEY] = msgspec.Raw(_encode(member))
    result["_meta"] = msgspec.Raw(_encode(meta))
    return msgspec.structs.replace(outcome, payload=msgspec.Raw(_encode(result)))


def _may_have_run(inflight: InFlight) -> bool:
    outcome = inflight.outcome
    if outcome is None:
        return inflight.may_have_run
    return outcome.executed != "no" if isinstance(outcome, Fault) else inflight.was_sent


# -- several members ---------------------------------------------------------------------------------------------------


class _MemberCall:
    """A call of one member among several. It is the caller's side of that call; see `Exchange`."""

    __slots__ = ("_gathering", "done_share", "ended", "inflight", "member")

    def __init__(self, gathering: _MemberCalls, member: ServerName) -> None:
        self._gathering = gathering
        self.member = member
        self.inflight: InFlight | None = None
        self.ended: Outcome | None = None
        """How it ended, if that was before it was known."""
        self.done_share = 0.0
        """How much of it is done, as far as it has reported that."""

    def emit(self, event: Event) -> None:
        """See `Exchange`."""
        self._gathering.reported(self, event)

    def ask(self, question: Question, reply: OnReply) -> None:
        """Decline: nobody could tell whose question it is, and the others would wait."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """See `Exchange`."""
        if self.inflight is None:
            self.ended = outcome
        else:
            self._gathering.member_call_ended(self, self.inflight, outcome)


class _MemberRow(msgspec.Struct):
    """How the call of one member ended, as the caller gets it."""

    member: ServerName
    ok: bool
    executed: Executed
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    omitted_bytes: int | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="omittedBytes")
    """The length of a result that is left out."""


class _MemberCalls:
    """The calls of several members for one call: until all have ended, or the first good answer.

    No asyncio task waits: the end of each call starts the next, and the last one ends the caller's.
    """

    def __init__(
        self,
        link: FleetLink,
        outer: InFlight,
        mode: Mode,
        members: Collection[ServerName],
        arguments: msgspec.Raw,
        unlisted: Collection[ServerName] = (),
    ) -> None:
        """Members that are `unlisted` are not called, and have their row."""
        self._link = link
        self._outer = outer
        self._mode = mode
        self._arguments = arguments
        self._total = len(members) + len(unlisted)
        self._waiting = deque(members)
        self._calls: dict[ServerName, _MemberCall] = {}
        """Those that run."""
        self._rows: list[_MemberRow] = []
        self._lines: list[str] = []
        self._is_done = False
        self._is_late = False
        self._is_starting = False
        self._timer: asyncio.TimerHandle | None = None
        self._settings = link.fleet.settings
        self._seconds = self._settings.deadline
        if outer.call.timeout is not None:
            self._seconds = min(self._seconds, outer.call.timeout * TIMEOUT_SHARE)
        self._share_bytes = self._settings.result_bytes // self._total
        cuts = link.hub.cuts if link.hub.is_cutting else None
        if cuts is not None and (limit := cuts.limit_of(outer)):
            # So that the whole is not cut: each result is in the text and in its row.
            fitting = ((limit - SUMMARY_BYTES) // self._total - ROW_BYTES) // 2
            self._share_bytes = max(0, min(self._share_bytes, fitting))
        self._progress = 0.0
        self._has_run = False
        for member in unlisted:
            self._add(member, link.hub.server_queues[member].not_connected(), was_sent=False)

    def start(self) -> None:
        """Call the first members."""
        self._outer.carriage = self
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._on_deadline)
        self._start_some()

    @property
    def may_have_run(self) -> bool:
        """Whether a member may have run the tool."""
        return self._has_run or any(
            call.inflight is not None and _may_have_run(call.inflight) for call in self._calls.values()
        )

    def cancel(self, reason: str) -> None:
        """Cancel all calls without a result."""
        self._is_done = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        for call in list(self._calls.values()):
            if call.inflight is not None:
                call.inflight.cancel(reason)

    def _on_deadline(self) -> None:
        """Return what there is: cancel the calls that run; the others are not made."""
        self._is_late = True
        for member in self._waiting:
            self._add(member, TimedOut(member, self._seconds, executed="no"), was_sent=False)
        self._waiting.clear()
        for call in list(self._calls.values()):
            if call.inflight is not None and call.inflight.is_held:
                call.inflight.expire()  # the fault names the approval
            elif call.inflight is not None:
                call.inflight.cancel(DEADLINE)
        self._finish_if_done()

    def _start_some(self) -> None:
        """Start as many calls as may run; one that ends at once leads back here, and the outer loop goes on."""
        if self._is_starting:
            return
        self._is_starting = True
        hub, started = self._link.hub, 0
        while self._waiting and len(self._calls) < self._settings.at_once and not self._is_done:
            if started == STARTED_AT_ONCE:
                asyncio.get_running_loop().call_soon(self._start_some)
                break
            member = self._waiting.popleft()
            call = self._calls[member] = _MemberCall(self, member)
            made = self._link.call_of(self._outer, member, self._arguments, is_alone=False)
            call.inflight = hub.start(made, call, ref(self._outer))
            if call.ended is not None:
                self.member_call_ended(call, call.inflight, call.ended)
            started += 1
        self._is_starting = False
        self._finish_if_done()

    def member_call_ended(self, call: _MemberCall, inflight: InFlight, outcome: Outcome) -> None:
        """A call of a member has ended."""
        del self._calls[call.member]
        was_sent = inflight.was_sent
        if self._is_done:
            return
        if self._is_late and isinstance(outcome, Cancelled):
            outcome = TimedOut(call.member, self._seconds, executed=outcome.executed)
        if self._mode == "any" and isinstance(outcome, Result) and not outcome.is_error:
            self._has_run = was_sent or self.may_have_run
            self.cancel(ANSWERED)
            if not self._outer.is_done:
                self._outer.is_unreached = not self._has_run
                self._outer.finish(_marked(outcome, call.member))
            return
        self._add(call.member, outcome, was_sent=was_sent)
        self._report(call, 1.0, "done" if self._rows[-1].ok else "failed")
        self._start_some()

    def _finish_if_done(self) -> None:
        if self._is_done or self._is_starting or self._waiting or self._calls:
            return
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._outer.is_done:
            self._outer.is_unreached = not self._has_run
            self._outer.finish(self._gathered())

    # -- progress ------------------------------------------------------------------------------------------------------

    def reported(self, call: _MemberCall, event: Event) -> None:
        """A member has reported progress, or logged something."""
        if self._is_done:
            return
        if isinstance(event, LogMessage):
            logger = _text(event.members.get("logger"))
            name = f"{call.member}/{logger}" if logger else call.member
            self._outer.emit(LogMessage(event.level, {**event.members, "logger": msgspec.Raw(_encode(name))}))
            return
        self._outer.heartbeat()
        done, total = _number(event.members.get("progress")), _number(event.members.get("total"))
        share = min(done / total, 1.0) if total else done / (done + 1)
        self._report(call, share, _text(event.members.get("message")) or f"{100 * share:.0f} %")

    def _report(self, call: _MemberCall, share: float, message: str) -> None:
        """Report the progress of all members as one, which only grows."""
        call.done_share = max(call.done_share, share)
        running = [each.done_share for each in self._calls.values()]
        if self._mode == "any":
            total, progress = 1, max([*running, self._progress])
        else:
            total, progress = self._total, len(self._rows) + sum(running)
        if progress > self._progress and not self._outer.is_done:
            self._progress = progress
            said = {"progress": round(progress, 4), "total": total, "message": f"{call.member}: {message}"}
            self._outer.emit(Progress({key: msgspec.Raw(_encode(value)) for key, value in said.items()}))

    # -- the result ----------------------------------------------------------------------------------------------------

    def _add(self, member: ServerName, outcome: Outcome, *, was_sent: bool) -> None:
        """Note how the call of a member has ended."""
        if isinstance(outcome, Fault):
            advice = f". {HELD_ADVICE}" if isinstance(outcome, ApprovalPending) else ""
            error: dict[str, Any] = {"reason": outcome.reason, "message": f"{outcome.message}{advice}"}
            if outcome.approval is not None:
                error["approval"] = outcome.approval
            if outcome.retry_after is not None:
                error["retryAfter"] = outcome.retry_after
            row = _MemberRow(member, ok=False, executed=outcome.executed, error=error)
            line = f"failed: {error['message']} (executed: {outcome.executed})"
        else:
            row = _MemberRow(member, ok=not outcome.is_error, executed="yes" if was_sent else "no")
            length = len(memoryview(outcome.payload))
            if length > self._share_bytes:
                row.omitted_bytes = length
                line = f"a result of {length} bytes, which is too long here: call this member alone"
            else:
                row.result = msgspec.Raw(bytes(outcome.payload))  # not a part of a larger buffer
                line = _text_of(outcome)
            if outcome.is_error:
                line = f"failed: {line} (executed: {row.executed})"
        self._has_run = self._has_run or row.executed != "no"
        self._rows.append(row)
        self._lines.append(f"{member}: {line}")

    def _gathered(self) -> Result:
        good = sum(row.ok for row in self._rows)
        order = sorted(range(len(self._rows)), key=lambda at: self._rows[at].member)
        late = f"; the deadline of {self._seconds:g} s has passed" if self._is_late else ""
        lines = [f"{good} of {self._total} members succeeded{late}"]
        # The failures first: a text that is too long is cut at its end.
        lines += (self._lines[at] for is_ok in (False, True) for at in order if self._rows[at].ok == is_ok)
        structured = {
            "fleet": self._link.fleet.name,
            "tool": self._outer.name,
            "succeeded": good,
            "failed": self._total - good,
            "late": self._is_late,
            "members": [self._rows[at] for at in order],
        }
        return _result("\n".join(lines), structured, is_error=not good)


class _TextBlock(msgspec.Struct):
    """A part of a result."""

    type: str
    text: str = ""


class _TextContent(msgspec.Struct):
    """The part of a result that is shown as text."""

    content: list[_TextBlock] = []


def _text_of(result: Result) -> str:
    """The text of a result; other content is named."""
    try:
        content = msgspec.json.decode(result.payload, type=_TextContent).content
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return bytes(result.payload).decode("utf-8", "replace")
    return "\n".join(block.text if block.type == "text" else f"[{block.type}]" for block in content)


def _result(text: str, structured: dict[str, Any], *, is_error: bool = False) -> Result:
    payload: dict[str, Any] = {"content": [{"type": "text", "text": text}], "structuredContent": structured}
    if is_error:
        payload["isError"] = True
    return Result(msgspec.Raw(_encode(payload)), is_error=is_error)


def _number(raw: msgspec.Raw | None) -> float:
    try:
        return 0.0 if raw is None else max(0.0, msgspec.json.decode(raw, type=float))
    except msgspec.MsgspecError:
        return 0.0


def _text(raw: msgspec.Raw | None) -> str:
    try:
        return "" if raw is None else msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
