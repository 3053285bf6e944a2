"""Budgets: counts the calls, the bytes of results and the cost of callers, and refuses calls that have no room left.

The hub asks `charge` in its last stage. A call is charged before it is sent, so calls at the same time cannot exceed a
limit together; if it provably did not run, the charge is returned. The bytes of a result count when the call ends.

    call ──▶ charge ──▶ no room in a budget: fault
                └─ room in all: counted ──▶ queue of the server ──▶ end: bytes counted, or the charge returned

Counters are in memory and in the journal. A background task writes those that changed, `WRITE_SECONDS` after the first
change, all together: a call never waits for that. A crash forgets what was counted since the last write.

Several hubs may count in one journal (`SharedJournal`). Each then counts only a small share of a limit that the
journal does not have: a call beyond that waits until its charge is written. If another hub has written meanwhile, its
counts are added first, and calls that have no room then are refused. So hubs exceed a limit together by at most
`AHEAD_SHARE`. While the journal is away, calls do not wait, and each hub counts for itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec
import structlog

from isthmus.core.access.budget_rules import COST_DIGITS, Budget, Per, Period, period_at
from isthmus.core.access.policy import AGENT, Labels, Policy, is_of_agent, is_of_label
from isthmus.core.admin_ports import BudgetCount, BudgetEntry, BudgetList
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import HELD, Held
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.catalog.tool_rules import NO_TOOL_RULES, labels_of
from isthmus.core.catalog.view import CALL_BY_ARGUMENT
from isthmus.core.journal import Document, Journal, SharedJournal, WriteResult
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Call, Kind, Outcome, Result
from isthmus.model.fault_table import BudgetExceeded, Fault
from isthmus.model.features import Feature, Tool
from isthmus.model.names import FeatureName, ServerName

if TYPE_CHECKING:
    from isthmus.core.calls.hub import Hub
    from isthmus.core.calls.running_call import InFlight, Keep

log = structlog.get_logger(__name__)

BUDGET = "budget"
"""The `Document.kind` of counters."""

OWNER = "budgets"
STATE = "counted"

WRITE_SECONDS = 0.5
"""How long changes are gathered before they are written; what a crash may forget, with the time of one write."""

AHEAD_SHARE = 0.05
"""The share of a limit that all hubs together may count without the journal, where several count in one."""
OWN_AHEAD_SHARE = 0.01
"""The most of it that one hub may count: one that has just joined is not known to the others yet."""

CONFLICTS_MAX = 100
"""How often counters are written again because another hub was faster; after that, the others are not waited for."""

RETRY_SECONDS = 5.0
"""The pause after a write that failed."""

CLOSE_SECONDS = 5.0
"""How long closing waits for the last write."""

SWEEP_SECONDS = 600.0
"""How often counters of periods that are over are removed."""

SWEEP_MAX = 10_000
"""Counters that are marked as over in one turn of the event loop."""

WRITE_MAX = 500
"""Counters in one write."""

READ_AT_ONCE = 500

COUNTERS_MAX = 100_000
"""All counters; beyond it calls that need another one are refused. Only tokens of issuers can have so many callers."""

CACHED_MAX = 20_000
"""Callers, and tools, whose budgets are cached."""

COUNTED: frozenset[Kind] = frozenset({"tool", "prompt", "resource", "method", "task_result"})
"""Calls that count. The result of a server's task counts its bytes only: the call that started it was counted."""

Key: TypeAlias = tuple[str, Per, Period, tuple[str, ...]]
"""Name of the budget, what a counter belongs to, its period, and whose it is."""

CallerAndSet: TypeAlias = tuple[str, str, str | None]
"""Tenant, caller and set of a call."""

Charged: TypeAlias = Fault | Held | None

Limit: TypeAlias = Literal["calls", "result_bytes", "cost"]

_NOUNS: Mapping[Limit, str] = {"calls": "calls", "result_bytes": "bytes of results", "cost": "cost units"}


class StoredCounter(msgspec.Struct, frozen=True):
    """A counter in the journal."""

    budget: str
    per: Per
    period: Period
    subject: tuple[str, ...]
    began: float
    calls: int
    result_bytes: int
    cost: float


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredCounter).decode


class _Counter:
    """What was counted in the present period of one subject."""

    __slots__ = (
        "began",
        "calls",
        "cost",
        "ends",
        "is_changed",
        "is_reported",
        "key",
        "number",
        "result_bytes",
        "stored",
        "version",
        "written",
    )

    def __init__(self, key: Key, number: int, began: float, ends: float) -> None:
        self.key = key
        self.number = number
        self.began = began
        self.ends = ends
        self.calls = 0
        self.result_bytes = 0
        self.cost = 0.0
        self.version = 0
        """The version of the stored document; 0 before the first write."""
        self.stored: StoredCounter | None = None
        """What the journal has, as far as this hub knows."""
        self.written: StoredCounter | None = None
        """The last document that was written, perhaps without success."""
        self.is_changed = False
        self.is_reported = False
        """Whether the audit log has that it is used up."""

    def renew(self, now: float) -> None:
        """Begin the period of this moment, if another one is over. A clock that goes back renews nothing."""
        if now >= self.ends:
            self.began, self.ends = period_at(self.key[2], now)
            self.calls = self.result_bytes = 0
            self.cost = 0.0
            self.is_reported = False

    def document(self, *, is_expired: bool) -> Document:
        """The next version of its document; one whose period is over is deleted."""
        self.written = StoredCounter(*self.key, self.began, self.calls, self.result_bytes, self.cost)
        text = None if is_expired else _encode(self.written)
        return Document(BUDGET, OWNER, _id_of(self.key), self.version + 1, self.ends, text, state=STATE)

    def add_others(self, document: Document | None) -> None:
        """Add what another node of a cluster has counted in the same period, since this hub last read or wrote."""
        self.version = 0 if document is None else document.version
        try:
            theirs = None if document is None else _decode(document.body or b"")
        except msgspec.MsgspecError:  # another version wrote it
            theirs = None
        before, self.stored = self.stored, theirs
        if theirs is None or theirs.began != self.began:
            return
        if before is None or before.began != self.began:
            before = StoredCounter(*self.key, self.began, 0, 0, 0.0)
        self.calls += theirs.calls - before.calls
        self.result_bytes += theirs.result_bytes - before.result_bytes
        self.cost = round(self.cost + theirs.cost - before.cost, COST_DIGITS)


class _MatchedBudgets(NamedTuple):
    """Budgets that are about a tool: what a call of it costs there, and the tool, as their counters know it."""

    costs: Mapping[str, float]
    subjects: Mapping[str, str]


class _Charge(NamedTuple):
    counter: _Counter
    began: float
    cost: float
    budget: Budget

    def is_ahead(self, share: float) -> bool:
        """Whether more than this share of a limit was counted that the journal does not have."""
        budget, counter, stored = self.budget, self.counter, self.counter.stored
        is_known = stored is not None and stored.began == counter.began
        calls, cost = (stored.calls, stored.cost) if stored is not None and is_known else (0, 0.0)
        if budget.calls is not None and counter.calls - calls > budget.calls * share:
            return True
        return budget.cost is not None and counter.cost - cost > budget.cost * share

    def is_exceeded(self) -> bool:
        """Whether more was counted than there is room for."""
        budget, counter = self.budget, self.counter
        if counter.began != self.began:
            return False
        if budget.calls is not None and counter.calls > budget.calls:
            return True
        return budget.cost is not None and counter.cost > budget.cost

    def undo(self) -> bool:
        """Take it back; False if its period is over."""
        if self.counter.began != self.began:
            return False
        self.counter.calls -= 1
        self.counter.cost = round(self.counter.cost - self.cost, COST_DIGITS)
        return True


class _ChargedCall(NamedTuple):
    """A call that waits until its charges are written."""

    inflight: InFlight
    charges: Sequence[_Charge]
    keep: Keep | None
    """The call's own, without that of its charges."""
    submit: Callable[[], None]


class CallBudgets:
    """The budgets of one hub, in memory and in the journal."""

    def __init__(
        self,
        journal: Journal,
        background: BackgroundTasks,
        record: Callable[..., None],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`record` writes an event into the audit log."""
        self._journal = journal
        self._background = background
        self._record = record
        self.now = now
        """The time since 1970: periods begin by the clock on the wall."""
        self.budgets: tuple[Budget, ...] = ()
        self.refusals: Counter[str] = Counter()
        """By budget, since the hub started."""
        self._counters: dict[Key, _Counter] = {}
        self._numbers = count(1)
        self._changed: dict[Key, _Counter] = {}
        """Counters to be written."""
        self._has_changes = asyncio.Event()
        self._writing = asyncio.Lock()
        """Held during a write: the next one needs the versions that it leaves."""
        self._is_writer_started = False
        self._is_failing = False
        self._shared = journal if isinstance(journal, SharedJournal) else None
        self._waiting: list[_ChargedCall] = []
        self._is_urgent = asyncio.Event()
        """Set while calls wait for a write."""
        self.on_written: Callable[[Sequence[Document]], None] = lambda _: None
        """Called with counters that were written."""
        self._received: list[Document] = []
        """Counters that other hubs wrote during a write of this one."""
        self.prefix = ""
        """What cursors of lists begin with: the order of counters is this hub's own."""
        self._about: dict[CallerAndSet, tuple[Budget, ...]] = {}
        self._matches: dict[tuple[Hub, ServerName, str, bytes, bool, ServerName], _MatchedBudgets] = {}
        self._snapshots: dict[Hub, Snapshot] = {}

    def change(self, budgets: Sequence[Budget]) -> None:
        """Apply other budgets. Counters of those with the same name, `per` and `period` continue."""
        if tuple(budgets) == self.budgets:
            return
        self.budgets = tuple(budgets)
        self._about.clear()
        self._matches.clear()
        if self.budgets and not self._is_writer_started:
            self._is_writer_started = True
            self._background.spawn("budgets", self._write_changes())

    async def load(self) -> None:
        """Read what the last hub counted. Call it before callers are admitted. Raises `OSError`."""
        now = self.now()
        while await self._journal.prune(BUDGET, (STATE,), before=now, limit=READ_AT_ONCE) >= READ_AT_ONCE:
            pass
        last: Document | None = None
        while found := await self._journal.all_in(BUDGET, (STATE,), limit=READ_AT_ONCE, after=last):
            last = found[-1]
            for document in found:
                try:
                    stored = _decode(document.body or b"")
                except msgspec.MsgspecError as error:  # one that another version wrote must not stop the hub
                    log.error("a stored counter of a budget cannot be decoded", id=document.id, error=str(error))
                    continue
                key = (stored.budget, stored.per, stored.period, stored.subject)
                counter = self._counters[key] = _Counter(key, next(self._numbers), stored.began, document.at)
                counter.version, counter.stored = document.version, stored
                counter.calls, counter.result_bytes, counter.cost = stored.calls, stored.result_bytes, stored.cost

    # -- the stage of a call -------------------------------------------------------------------------------------------

    def charge(self, hub: Hub, inflight: InFlight, submit: Callable[[Hub, InFlight], None]) -> Charged:
        """Count a call that is about to be sent in every budget that is about it, or return why it has no room.

        `HELD`: it is submitted as soon as the journal has what was counted, or ended if there is no room then.
        """
        charges = self._find_charges(hub, inflight)
        if isinstance(charges, Fault):
            return charges
        if not charges:
            return None
        keep, inflight.keep = inflight.keep, partial(self._on_end, charges, inflight.keep)
        if inflight.call.kind == "task_result":
            return None
        for counter, _, cost, _ in charges:
            counter.calls += 1
            counter.cost = round(counter.cost + cost, COST_DIGITS)
            self._note(counter)
        if self._shared is None or self._is_failing:
            return None
        share = min(OWN_AHEAD_SHARE, AHEAD_SHARE / self._shared.nodes)
        if not any(each.is_ahead(share) for each in charges):
            return None
        self._waiting.append(_ChargedCall(inflight, charges, keep, partial(submit, hub, inflight)))
        self._has_changes.set()
        self._is_urgent.set()
        return HELD

    def _refuse_waiting(self) -> None:
        """End the calls that have no room, now that what others counted is known; the last to come goes first."""
        now = self.now()
        for each in reversed(self._waiting):
            full = [charge for charge in each.charges if charge.is_exceeded()]
            if not full or each.inflight.is_done:
                continue
            each.inflight.keep = each.keep
            for charge in each.charges:
                if charge.undo():
                    self._note(charge.counter)
            faults = []
            for charge in full:
                if (fault := _check(charge.budget, charge.counter, charge.cost, now)) is not None:
                    faults.append((charge.counter.ends, fault))
                    self._refused(charge.budget, charge.counter, each.inflight.call)
            each.inflight.finish(_last_renewed(faults))

    def refusal(self, hub: Hub, inflight: InFlight) -> Fault | None:
        """Why a call has no room now; None if it has. Nothing is counted."""
        found = self._find_charges(hub, inflight)
        return found if isinstance(found, Fault) else None

    def _find_charges(self, hub: Hub, inflight: InFlight) -> list[_Charge] | Fault:
        """What a call costs in every budget that is about it, or why it has no room."""
        call = inflight.call
        caller_and_set = (call.caller.tenant, call.caller.name, call.set)
        about = self._about.get(caller_and_set)
        if about is None:
            about = self._find_about(caller_and_set)
        if not about or call.kind not in COUNTED:
            return []
        if hub.fleets is not None and inflight.target.feature.server in hub.fleets:
            return []  # the calls of its members count
        matched = self._match(hub, inflight.call, inflight.target.own or inflight.target.feature, inflight.name)
        now = self.now()
        charges: list[_Charge] = []
        full: list[tuple[float, BudgetExceeded]] = []
        for budget in about:
            cost = matched.costs.get(budget.name)
            if cost is None:
                continue
            counter = self._counter(budget, call, matched.subjects[budget.name], now)
            if counter is None:
                self.refusals[budget.name] += 1
                return _too_many(budget, now)
            charges.append(_Charge(counter, counter.began, cost, budget))
            if call.kind != "task_result" and (fault := _check(budget, counter, cost, now)) is not None:
                full.append((counter.ends, fault))
                self._refused(budget, counter, call)
        return _last_renewed(full) if full else charges

    def cost_with(self, hub: Hub, inflight: InFlight, name: str) -> float:
        """What a budget's counter for this call has cost in its period, with this call; 0 if it is not about it.

        A call of several members of a fleet costs what their calls cost together.
        """
        call, route, now = inflight.call, inflight.target, self.now()
        caller_and_set = (call.caller.tenant, call.caller.name, call.set)
        budget = next((each for each in self._find_about(caller_and_set) if each.name == name), None)
        if budget is None:
            return 0.0
        called: Sequence[Feature] = () if hub.fleets is None else hub.fleets.called_by(inflight)
        if called:
            call = msgspec.structs.replace(call, fleet=route.feature.server)
        costs: dict[tuple[str, ...], float] = {}
        for own, alike in _alike(budget, called or (route.own or route.feature,), hub.snapshot):
            matched = self._match(hub, call, own, inflight.name)
            if name not in matched.costs:
                continue
            is_own = budget.per == "tool" and called and matched.subjects[name].startswith(f"{own.server}.")
            for server in alike if is_own else alike[:1]:
                tool = f"{server}.{matched.subjects[name].partition('.')[2]}" if is_own else matched.subjects[name]
                subject = _subject(budget.per, call.caller, call.set, tool)
                added = matched.costs[name] * (1 if is_own else len(alike))
                costs[subject] = costs.get(subject, 0.0) + added
        found = 0.0
        for subject, cost in costs.items():
            counter = self._counters.get((budget.name, budget.per, budget.period, subject))
            if counter is not None:
                counter.renew(now)
            found = max(found, cost + (0.0 if counter is None else counter.cost))
        return round(found, COST_DIGITS)

    def use_of(self, hub: Hub, inflight: InFlight, name: str) -> str:
        """How much of a budget is used with this call, in words."""
        budget = next(each for each in self.budgets if each.name == name)
        limit = "" if budget.cost is None else f" of {budget.cost:g}"
        subject_text = _subject_text(budget.per, _subject(budget.per, inflight.call.caller, inflight.call.set, ""))
        cost = round(self.cost_with(hub, inflight, name), COST_DIGITS)
        return (
            f"with this call, the budget {name} has cost {cost:g}{limit} units this {budget.period} for {subject_text}"
        )

    def _find_about(self, caller_and_set: CallerAndSet) -> tuple[Budget, ...]:
        if len(self._about) > CACHED_MAX:
            self._about.clear()
        self._about[caller_and_set] = about = tuple(
            budget for budget in self.budgets if budget.is_about(*caller_and_set)
        )
        return about

    def _match(self, hub: Hub, call: Call, own: Feature, name: str) -> _MatchedBudgets:
        """The budgets that apply to a call of this tool; `name` is its name at the server."""
        snapshot = hub.snapshot
        if self._snapshots.get(hub) is not snapshot or len(self._matches) > CACHED_MAX:
            self._snapshots[hub] = snapshot
            self._matches.clear()
        # These may reach any tool of their server.
        is_blind = call.kind in ("method", "task_result") or name == CALL_BY_ARGUMENT
        fleet = ServerName(call.fleet)
        key = (hub, own.server, name, own.digest, is_blind, fleet)
        matched = self._matches.get(key)
        if matched is None:
            names = (FeatureName(name), own.name)
            costs: dict[str, float] = {}
            subjects: dict[str, str] = {}
            # A budget may name the member of a fleet, or the fleet: then the calls of all members count as one tool's.
            for feature in (own, Tool.of(fleet, own.name, own.definition)) if fleet else (own,):
                status = snapshot.server_statuses.get(feature.server)
                subject = _subject_of(feature, status, is_blind=is_blind)
                for budget in self.budgets:
                    if _covers(budget.tools or ("*",), feature, names, status, is_blind=is_blind):
                        cost = _cost(budget, feature, names, status, is_blind=is_blind)
                        costs[budget.name] = max(cost, costs.get(budget.name, 0.0))
                        subjects[budget.name] = subject
            matched = self._matches[key] = _MatchedBudgets(costs, subjects)
        return matched

    def _counter(self, budget: Budget, call: Call, tool: str, now: float) -> _Counter | None:
        """The counter of a call, in its present period; None if there are too many."""
        subject = _subject(budget.per, call.caller, call.set, tool)
        key = (budget.name, budget.per, budget.period, subject)
        counter = self._counters.get(key)
        if counter is None:
            if len(self._counters) >= COUNTERS_MAX:
                return None
            counter = self._counters[key] = _Counter(key, next(self._numbers), *period_at(budget.period, now))
        elif now >= counter.ends:
            counter.renew(now)
        return counter

    def _on_end(
        self,
        charges: Sequence[_Charge],
        keep: Keep | None,
        inflight: InFlight,
        outcome: Outcome,
    ) -> Outcome | None:
        """Count the bytes of a result; return the charge of a call that provably did not run."""
        now = self.now()
        if isinstance(outcome, Result):
            size = len(memoryview(outcome.payload))
            for counter, *_ in charges:
                counter.renew(now)
                counter.result_bytes += size
                self._note(counter)
        elif outcome.executed == "no" and inflight.call.kind != "task_result":
            for charge in charges:
                if charge.undo():
                    self._note(charge.counter)
        return outcome if keep is None else keep(inflight, outcome)

    def _refused(self, budget: Budget, counter: _Counter, call: Call) -> None:
        self.refusals[budget.name] += 1
        if not counter.is_reported:
            # Once for each counter and period; the record of each call has the reason of its end.
            counter.is_reported = True
            facts = {"budget": budget.name, "caller": call.caller.name, "tenant": call.caller.tenant, "tool": call.name}
            self._record("budget.exceeded", **facts, per=budget.per, renewed=_moment(counter.ends))
            log.warning("a budget is used up", **facts, per=budget.per, renewed=_moment(counter.ends))

    # -- the journal ---------------------------------------------------------------------------------------------------

    def _note(self, counter: _Counter) -> None:
        if not counter.is_changed:
            counter.is_changed = True
            self._changed[counter.key] = counter
            self._has_changes.set()

    async def _write_changes(self) -> None:
        """Write what changed, again and again, and remove counters whose period is over."""
        loop = asyncio.get_running_loop()
        swept = loop.time()
        while True:
            try:
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._has_changes.wait()
            except TimeoutError:
                pass
            if loop.time() - swept >= SWEEP_SECONDS:
                swept, now = loop.time(), self.now()
                over = [each for each in self._counters.values() if each.ends <= now]
                for at, counter in enumerate(over, 1):
                    self._note(counter)
                    if not at % SWEEP_MAX:
                        await asyncio.sleep(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._is_urgent.wait()
            if not await self.flush():
                await asyncio.sleep(RETRY_SECONDS)

    async def flush(self) -> bool:
        """Write what has changed until now; False if the journal did not store all of it."""
        async with self._writing:
            waiting = list(self._waiting)
            self._is_urgent.clear()
            left, result = len(self._changed), "kept"
            while left > 0 and self._changed and result == "kept":
                some = list(islice(self._changed.values(), WRITE_MAX))
                left -= len(some)
                result = await self._write(some)
                for _ in range(CONFLICTS_MAX):  # another hub has counted, too
                    if result == "conflict":
                        self._refuse_waiting()
                        result = await self._write([each for each in some if each.is_changed])
            del self._waiting[: len(waiting)]
            for each in waiting:
                each.submit()
            self._take_received()
            if self._waiting:  # they came during the write, which may have had their charges, too
                self._has_changes.set()
                self._is_urgent.set()
            elif not self._changed:
                self._has_changes.clear()
            return result == "kept"

    def receive(self, documents: Sequence[Document]) -> None:
        """Take counters that another hub has written to the journal."""
        self._received += documents
        if not self._writing.locked():
            self._take_received()

    def _take_received(self) -> None:
        """Add what others counted; not during a write, whose result says what this hub has added itself."""
        received, self._received = self._received, []
        for document in received:
            try:
                stored = _decode(document.body or b"")
            except msgspec.MsgspecError:  # another version wrote it
                continue
            key = (stored.budget, stored.per, stored.period, stored.subject)
            counter = self._counters.get(key)
            if counter is None:
                if len(self._counters) >= COUNTERS_MAX:
                    continue
                counter = self._counters[key] = _Counter(key, next(self._numbers), stored.began, document.at)
            if document.version > counter.version:  # messages may be repeated, or overtake each other
                counter.add_others(document)
        if received:
            self._refuse_waiting()  # the next write meets no conflict that would say so

    async def _write(self, counters: Sequence[_Counter]) -> WriteResult:
        """Write counters. After a conflict they have what others counted, and are to be written again."""
        now = self.now()
        documents: list[Document] = []
        for counter in counters:
            del self._changed[counter.key]
            counter.is_changed = False
            if counter.ends > now or counter.version:
                documents.append(counter.document(is_expired=counter.ends <= now))
        written: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        self._journal.write(documents, lambda result: None if written.done() else written.set_result(result))
        result = await written if documents else "kept"
        if result == "kept":
            self._is_failing = False
            self._stored(counters, documents)
            if documents:
                self.on_written([each for each in documents if each.body is not None])
            return result
        if result != "conflict" and not self._is_failing:
            self._is_failing = True
            log.error("counters of budgets could not be stored: a crash would forget them", result=result)
        for counter in counters:
            self._note(counter)
            if result != "refused":  # it may be stored, or something else is
                try:
                    kept = await self._journal.read(BUDGET, OWNER, _id_of(counter.key))
                except OSError:
                    return "unknown"
                if result == "unknown" and kept is not None and kept.version == counter.version + 1:
                    counter.stored = counter.written  # so it was stored
                if kept is None or kept.version != counter.version:
                    counter.add_others(kept)
        return result

    def _stored(self, counters: Iterable[_Counter], documents: Iterable[Document]) -> None:
        """Note the versions of stored counters, and remove those whose period is over."""
        by_id = {document.id: document for document in documents}
        for counter in counters:
            document = by_id.get(_id_of(counter.key))
            if document is not None:
                counter.version = 0 if document.body is None else document.version
                counter.stored = None if document.body is None else counter.written
            if not counter.version and not counter.is_changed and counter.ends <= self.now():
                self._counters.pop(counter.key, None)

    async def aclose(self) -> None:
        """Write what was counted last. Call it after the last call has ended."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.flush()
        except TimeoutError:
            log.error("counters of budgets could not be stored before the end")

    # -- for people ----------------------------------------------------------------------------------------------------

    def counts(self) -> Mapping[str, int]:
        """The number of counters of each configured budget."""
        found = Counter(key[0] for key in self._counters)
        return {budget.name: found[budget.name] for budget in self.budgets}

    def list(self, viewer: Caller, *, limit: int, after: str) -> BudgetList:
        """Budgets and what was counted: all for operators, else those about the viewer, with its own counters.

        Raises:
            ValueError: there is no such cursor.
        """
        after = after.removeprefix(self.prefix)
        if after and not after.isdecimal():
            raise ValueError("cursor is invalid: use the `next` of a page")
        if not viewer.is_operator:
            return self._own(viewer)
        now, since = self.now(), int(after or 0)
        known = {(budget.name, budget.per, budget.period): budget for budget in self.budgets}
        later = (each for each in self._counters.values() if each.number > since)
        live = (each for each in later if each.ends > now and each.key[:3] in known)
        page = list(islice(live, limit + 1))
        shown = tuple(_count_of(known[each.key[:3]], each, each.key[3]) for each in page[:limit])
        following = f"{self.prefix}{page[limit - 1].number}" if limit and len(page) > limit else None
        entries = tuple(_entry_of(each, self.refusals[each.name]) for each in self.budgets)
        return BudgetList(entries, shown, sum(self.counts().values()), following)

    def _own(self, viewer: Caller) -> BudgetList:
        now = self.now()
        about = [each for each in self.budgets if each.is_about(viewer.tenant, viewer.name, viewer.grants.set)]
        shown = []
        for budget in about:
            if budget.per in ("tool", "hub") or (budget.per == "set" and viewer.grants.set is None):
                continue  # what all others use as well is for operators
            subject = _subject(budget.per, viewer, viewer.grants.set, "")
            key = (budget.name, budget.per, budget.period, subject)
            counter = self._counters.get(key)
            if counter is None or counter.ends <= now:
                counter = _Counter(key, 0, *period_at(budget.period, now))
            shown.append(_count_of(budget, counter, subject))
        entries = tuple(_entry_of(each, None) for each in about)
        return BudgetList(entries, tuple(shown), len(shown), None)


def _last_renewed(full: Sequence[tuple[float, BudgetExceeded]]) -> BudgetExceeded:
    """Of several budgets that have no room, the last one to be renewed decides when another try can succeed."""
    return max(full, key=lambda each: (each[1].retry_after is None, each[0]))[1]


def _id_of(key: Key) -> str:
    """The `Document.id` of a counter; names may be longer than an id."""
    return hashlib.sha256(_encode(key)).hexdigest()


def _subject(per: Per, caller: Caller, set: str | None, tool: str) -> tuple[str, ...]:
    """Whose counter it is."""
    match per:
        case "caller":
            return caller.tenant, caller.name
        case "tenant":
            return (caller.tenant,)
        case "set":
            return (set or "",)
        case "tool":
            return (tool,)
        case "hub":
            return ()


def _subject_of(own: Feature, status: ServerStatus | None, *, is_blind: bool) -> str:
    """A tool as counters know it. Names that a caller can make up share a counter."""
    if "#" in own.server:  # a server that a caller named by its address
        return "#"
    listed = () if status is None or is_blind else (status.tools, *(each.tools for each in status.variants.values()))
    is_listed = any(tool.name == own.name for tools in listed for tool in tools)
    return f"{own.server}.{own.name if is_listed else '*'}"


def _alike(
    budget: Budget, features: Sequence[Feature], snapshot: Snapshot
) -> Iterable[tuple[Feature, list[ServerName]]]:
    """Tools of servers that a budget cannot tell apart: one of them, and the servers that have it.

    A fleet has thousands of members, and to match each of them would hold the event loop.
    """
    patterns = (*(budget.tools or ()), *(pattern for pattern, _ in budget.costs))
    named = {pattern.partition(".")[0] for pattern in patterns}
    groups: list[tuple[Feature, object, list[ServerName]]] = []
    for feature in features:
        status = snapshot.server_statuses.get(feature.server)
        about = None
        if status is not None:
            # Each device may have an agent of its own; few are named.
            agent = f"{AGENT}{status.agent}"
            about = (agent if any(each.startswith(agent) for each in patterns) else "", status.rules)
        if feature.server not in named:
            same = next((each for each in groups if each[0].digest == feature.digest and each[1] == about), None)
            if same is not None:
                same[2].append(feature.server)
                continue
        # One that is named has a group of its own, which nothing equals.
        groups.append((feature, object() if feature.server in named else about, [feature.server]))
    return ((feature, servers) for feature, _, servers in groups)


def _covers(
    patterns: tuple[str, ...],
    feature: Feature,
    names: tuple[FeatureName, ...],
    status: ServerStatus | None,
    *,
    is_blind: bool,
    is_sure: bool = False,
) -> bool:
    """Whether patterns are about a call, or may be; as in permissions, what servers claim is believed by neither."""
    rules = NO_TOOL_RULES if status is None else status.rules
    policy = Policy(
        Grants(("*",), patterns),
        lambda server: None if status is None or server != feature.server else status.agent,
        lambda _: rules.tags_of_all,
    )
    if is_blind:
        return not policy.may_use_all_of(feature.server)
    labels = labels_of(feature, rules)
    if is_sure:
        labels = Labels(labels.believed, labels.believed)
    return any(policy.denies(feature.server, name, labels) for name in names)


def _cost(
    budget: Budget,
    feature: Feature,
    names: tuple[FeatureName, ...],
    status: ServerStatus | None,
    *,
    is_blind: bool,
) -> float:
    """What a call costs: by the most exact pattern, and by the dearest of several.

    What only the server claims about a tool can make it dearer and not cheaper.
    """
    found = []
    for is_sure in (True, False):
        matching = [
            (0 if is_blind else _rank(pattern), cost)
            for pattern, cost in budget.costs
            if _covers((pattern,), feature, names, status, is_blind=is_blind, is_sure=is_sure)
        ]
        found.append(max(matching, default=(0, 1.0))[1])
    return max(found)


def _rank(pattern: str) -> int:
    """How exact a pattern is: a tool, a server, a group of tools, everything."""
    if pattern == "*":
        return 0
    if is_of_agent(pattern) or is_of_label(pattern):
        return 1
    return 2 if pattern.partition(".")[2] in ("", "*") else 3


def _check(budget: Budget, counter: _Counter, cost: float, now: float) -> BudgetExceeded | None:
    """The fault of a call that has no room. Results may be of any size: their budget is used up once it is reached."""
    full: Limit | None = None
    if budget.calls is not None and counter.calls >= budget.calls:
        full = "calls"
    elif budget.result_bytes is not None and counter.result_bytes >= budget.result_bytes:
        full = "result_bytes"
    elif budget.cost is not None and round(counter.cost + cost, COST_DIGITS) > budget.cost:
        full = "cost"
    if full is None:
        return None
    limit = getattr(budget, full)
    said = f"{getattr(counter, full):g}" if full == "cost" else str(getattr(counter, full))
    used = f"{said} of {limit:g}" if full == "cost" else f"{said} of {limit}"
    wanted = f", and this call costs {cost:g}" if full == "cost" else ""
    text = f"{used} {_NOUNS[full]} this {budget.period} for {_subject_text(budget.per, counter.key[3])}{wanted}"
    is_hopeless = limit == 0 or (full == "cost" and cost > limit)
    return BudgetExceeded(budget.name, text, _moment(counter.ends), None if is_hopeless else counter.ends - now)


def _too_many(budget: Budget, now: float) -> BudgetExceeded:
    ends = period_at(budget.period, now)[1]
    text = f"the hub has {COUNTERS_MAX} counters of budgets, and this call needs another one"
    return BudgetExceeded(budget.name, text, _moment(ends), ends - now)


def _subject_text(per: Per, subject: tuple[str, ...]) -> str:
    match per:
        case "caller":
            return f"the caller {subject[1]}"
        case "tenant":
            return f"the tenant {subject[0]}"
        case "set":
            return f"the set {subject[0]}" if subject[0] else "calls outside of sets"
        case "tool":
            return "this tool"  # the caller may know it by another name
        case "hub":
            return "the hub"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _entry_of(budget: Budget, refused: int | None) -> BudgetEntry:
    """A budget as people see it. Only operators learn whom else it is about, and how often it refused a call."""
    is_all = refused is not None
    return BudgetEntry(
        budget.name,
        budget.per,
        budget.period,
        budget.calls,
        budget.result_bytes,
        budget.cost,
        budget.callers if is_all else None,
        budget.tenants if is_all else None,
        budget.sets if is_all else None,
        budget.tools if is_all else None,
        dict(budget.costs) if is_all else None,
        refused,
    )


def _count_of(budget: Budget, counter: _Counter, subject: tuple[str, ...]) -> BudgetCount:
    names: dict[str, str] = {}
    match budget.per:
        case "caller":
            names = {"tenant": subject[0], "caller": subject[1]}
        case "tenant" | "set" | "tool":
            names = {budget.per: subject[0]}
        case "hub":
            pass
    return BudgetCount(
        budget.name,
        names,
        counter.began,
        counter.ends,
        counter.calls,
        counter.result_bytes,
        counter.cost,
    )
