"""Approvals: calls that wait until a person allows exactly this call.

A rule of the operator (`core.access.approval_rules`) matches a call after its arguments are complete. The call is held,
and a request is stored before anybody can see it. A decision is bound to a digest of the caller, the set, the tool, its
definition and the arguments, so it serves no other call. That a decision was used is stored before the call is sent:
after a crash it is used or not, and never serves twice.

    call ──▶ check ──▶ no rule, exempted, allowed for an hour ──────────────▶ next stage
               │  allowed once ──write that it is used──▶ proceed
               │  denied, or a budget has no room ──▶ fault
               └─ request ──write──▶ pending ──decision──write──▶ calls that wait are started again
                                        ├── expired: fault
                                        └── deadline of the call: fault; the request stays, and the same call joins it

The call of a task has no deadline while it is held: its time starts when it is allowed.

The hub asks `check` in one stage. `app` loads the requests of the last hub, and offers them to operators.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
import structlog

from isthmus.core.access.approval_rules import (
    ApprovalRule,
    ApprovedBy,
    ArgumentTest,
    UnclearArguments,
    canonical_text,
    may_have,
    read_arguments,
    request_digest,
)
from isthmus.core.access.policy import Policy
from isthmus.core.admin_ports import ApprovalAlreadyDecided, ApprovalEntry, ApprovalList, ApprovalVerdict
from isthmus.core.calls.hub import HELD, Held
from isthmus.core.calls.running_call import QUESTION_SECONDS, InFlight, OpenQuestion
from isthmus.core.catalog.pins import canonical_definition, fingerprint_of
from isthmus.core.catalog.snapshot import Snapshot, all_tools_of
from isthmus.core.catalog.tool_rules import NO_TOOL_RULES, hints_of, labels_of
from isthmus.core.catalog.view import CALL_BY_ARGUMENT
from isthmus.core.journal import Document, Journal, WriteResult
from isthmus.core.ports import HoldableExchange
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Answered, Call, Outcome, Question, Reply, Result
from isthmus.model.fault_table import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalPending,
    BadArguments,
    Fault,
    NotWritten,
    TooManyApprovals,
)
from isthmus.model.features import Tool
from isthmus.model.hidden_characters import all_escaped
from isthmus.model.names import FeatureName, ServerName

if TYPE_CHECKING:
    from isthmus.core.calls.hub import Hub

log = structlog.get_logger(__name__)

APPROVAL = "approval"
"""The `Document.kind` of approvals."""

HOUR_SECONDS = 3600.0
"""How long "the same call for an hour" is allowed."""

EACH_MAX = 100
"""Requests and unused decisions of one caller. A person reads each of them."""

ALL_MAX = 10_000
ALL_BYTES_MAX = 128 * 1024 * 1024
"""All requests and decisions; all of them are in memory."""

SWEEP_SECONDS = 1.0
"""How late an expired approval may be noticed; it never serves a call."""

TASK_DEADLINE_SECONDS = 30.0
"""How much later than the request the call of a task would expire, which therefore ends with the request."""

READ_AT_ONCE = 200

SCHEMAS_MAX = 1_000
SCHEMA_BYTES_MAX = 512 * 1024
"""Tools, and bytes of their schemas, that are read at once to find an argument, which takes up to 5 ms. Where a rule
matches more, one of the tools may have it."""

MATCHES_MAX = 20_000
"""Tools whose rules are cached."""

REASON_LENGTH_MAX = 1000
PAGE_MAX = 100

ELICIT = "elicitation/create"
NOTICE = "isthmus/approval"
"""The `method` of what a task shows while it waits (`core.tasks.record.APPROVAL_NOTICE`)."""

ApprovalState: TypeAlias = Literal["pending", "once", "hour", "denied"]
STATES: tuple[ApprovalState, ...] = ("pending", "once", "hour", "denied")

_VERDICTS: Mapping[ApprovalVerdict, ApprovalState] = {"allow": "once", "allow_hour": "hour", "deny": "denied"}
_EVENTS: Mapping[ApprovalState, str] = {
    "once": "approval.allowed",
    "hour": "approval.allowed",
    "denied": "approval.denied",
}


class Approval(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of a request and of the decision about it."""

    id: str
    digest: str
    rule: str
    by: ApprovedBy
    server: ServerName
    tool: str
    """The server's own name of the tool."""
    name: str
    """The name by which it was called."""
    caller: str
    tenant: str
    set: str | None
    frontend: str
    arguments: msgspec.Raw
    """As the caller sent them."""
    added: tuple[str, ...]
    """Names of arguments that the hub adds; their values are the operator's own and may be secrets."""
    requested: float
    expires: float
    seconds: float
    """How long a decision is valid."""
    state: ApprovalState = "pending"
    decided: float | None = None
    decided_by: str | None = None
    reason: str = ""
    script: str = ""
    """The id of the script that makes the call, and the lines of it that name the tool."""
    script_lines: tuple[int, ...] = ()
    why: str = ""
    """Why a person is asked, where the rule alone does not tell."""
    restored: int = 0
    """How often it was used by a call that provably did not run, and stored again."""

    @property
    def full_name(self) -> str:
        """The tool as operators know it."""
        return f"{self.server}.{self.tool}"

    @property
    def owner(self) -> str:
        """The `Document.owner`; tenant names contain no line break."""
        return f"{self.tenant}\n{self.caller}"


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Approval).decode


class HeldRequest(NamedTuple):
    """A call that waits for a decision: where it was started, and as its caller made it."""

    hub: Hub
    inflight: InFlight
    call: Call


class _ApprovalRecord:
    """A stored approval, and the calls that wait for it."""

    __slots__ = ("approval", "is_foreign", "is_stored", "is_writing", "questions", "version", "waiting")

    def __init__(self, approval: Approval, version: int = 0, *, is_foreign: bool = False) -> None:
        self.approval = approval
        self.version = version
        self.is_foreign = is_foreign
        """Whether another hub on the same journal requested it, and deletes it when it expires."""
        self.is_stored = version > 0
        self.is_writing = False
        self.waiting: list[HeldRequest] = []
        self.questions: list[OpenQuestion] = []
        """Open questions to callers that may decide themselves."""

    def document(self, approval: Approval | None) -> Document:
        """The next version of its document; None deletes it."""
        shown = approval or self.approval
        body = None if approval is None else _encode(approval)
        return Document(APPROVAL, shown.owner, shown.id, self.version + 1, shown.requested, body, state=shown.state)


class _MatchedRules(NamedTuple):
    """The rules that may be about a tool, in order, and the fingerprint of its definition."""

    rules: tuple[ApprovalRule, ...]
    fingerprint: bytes
    is_blind: bool
    """The call may reach any tool of its server, so that arguments say nothing about it."""


def _deciding_rule(matched: _MatchedRules, hub: Hub, inflight: InFlight) -> ApprovalRule | None:
    """The first rule that is about a call. Raises `UnclearArguments`."""
    call, arguments, budgets = inflight.call, None, hub.budgets
    for rule in matched.rules:
        if rule.is_about(call.caller.name):
            spent = rule.spent
            if spent is not None and (budgets is None or budgets.cost_with(hub, inflight, spent.budget) <= spent.above):
                continue
            if rule.arguments and arguments is None:
                arguments = read_arguments(call.arguments)
            if matched.is_blind or rule.passes(arguments):
                return rule
    return None


class _Credit(NamedTuple):
    """A call that was allowed once, and whose server asked something: it may be made again, with the answers.

    Only in memory, as the state of the question is: after a restart the caller asks again. Operators see it as allowed.
    """

    approval: Approval
    until: float


Record: TypeAlias = Callable[..., None]
"""Writes an event into the audit log: its name, and what it is about."""


class CallApprovals:
    """The approvals of one hub, in memory and in the journal."""

    def __init__(self, journal: Journal, now: Callable[[], float], record: Record) -> None:
        """`record` writes to the audit log."""
        self._journal = journal
        self._now = now
        self._record = record
        self._loop = asyncio.get_running_loop()
        self.has_operator = False
        """Whether operators can reach this hub; without them only callers can decide."""
        self.rules: tuple[ApprovalRule, ...] = ()
        self.announce: Callable[[Approval, ApprovalRule], None] | None = None
        """Announces a stored request; `app` sends webhooks."""
        self.on_changed: Callable[[str, str], None] | None = None
        """Called with the owner and id of an approval that this hub has changed in the journal."""
        self.look_again: Callable[[], Awaitable[None]] | None = None
        """Reads what other hubs have stored, for a decision about an approval that is not known here."""
        self._entries: dict[str, _ApprovalRecord] = {}
        self._by_digest: dict[str, _ApprovalRecord] = {}
        self._of: dict[str, dict[str, _ApprovalRecord]] = {}
        """By owner."""
        self._bytes = 0
        self._credits: dict[str, _Credit] = {}
        """By digest: calls that were allowed once and may be made again with answers."""
        self._used: WeakKeyDictionary[InFlight, Approval] = WeakKeyDictionary()
        """What allowed the calls that run."""
        self._asked: WeakKeyDictionary[InFlight, ApprovalRule] = WeakKeyDictionary()
        """The rules that held calls of fleets. One that has reached its members was allowed."""
        self._matches: dict[tuple[Hub, ServerName, str, bytes, bool], _MatchedRules] = {}
        self._snapshots: dict[Hub, Snapshot] = {}
        self._unreadable: set[str] = set()
        """The ids of documents that cannot be decoded."""
        self._removed: set[str] | None = None
        """The ids that were removed while all are read again; None at other times."""
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def waiting(self) -> int:
        """How many requests nobody has decided about."""
        return sum(each.approval.state == "pending" for each in self._entries.values())

    def change(self, rules: Sequence[ApprovalRule]) -> None:
        """Apply other rules. Calls that wait are checked again."""
        if tuple(rules) == self.rules:
            return
        self.rules = tuple(rules)
        self._matches.clear()
        for entry in list(self._entries.values()):
            if entry.is_stored and not entry.is_writing:
                self._start_again(entry)

    async def load(self) -> None:
        """Read what the last hub left in the journal. Raises `OSError`.

        Call it before callers are admitted.
        """
        async for document in self._stored():
            self._merge(document, is_foreign=False)

    async def reread(self) -> None:
        """Read all that the journal has now: other hubs cannot always announce what they change. Raises `OSError`.

        Only one task may do that.
        """
        known = [entry for entry in self._entries.values() if entry.is_stored and not entry.is_writing]
        found: set[str] = set()
        self._removed = removed = set[str]()
        try:
            async for document in self._stored():
                found.add(document.id)
                if document.id not in removed:  # it was read before
                    self._merge(document, is_foreign=True)
        finally:
            self._removed = None
        for entry in known:
            if entry.approval.id not in found:
                self._deleted(entry)

    async def _stored(self) -> AsyncIterator[Document]:
        last: Document | None = None
        while found := await self._journal.all_in(APPROVAL, STATES, limit=READ_AT_ONCE, after=last):
            last = found[-1]
            for document in found:
                yield document

    async def refresh(self, owner: str, id: str) -> None:
        """Another hub has changed this approval in the journal. Raises `OSError`."""
        document = await self._journal.read(APPROVAL, owner, id)
        if document is not None and document.body is not None:
            self._merge(document, is_foreign=True)
        elif (entry := self._entries.get(id)) is not None:
            self._deleted(entry)

    def _deleted(self, entry: _ApprovalRecord) -> None:
        """The journal does not have it: another hub has used it, or its time is over."""
        if self._entries.get(entry.approval.id) is entry and entry.is_stored and not entry.is_writing:
            self._remove(entry)
            self._start_again(entry)

    def _merge(self, document: Document, *, is_foreign: bool) -> None:
        entry = self._entries.get(document.id)
        if entry is not None and (
            entry.is_writing or (document.version, document.state) == (entry.version, entry.approval.state)
        ):
            return
        try:
            approval = _decode(document.body or b"")
        except msgspec.MsgspecError as error:  # one that another version wrote must not stop the hub
            if document.id not in self._unreadable:
                self._unreadable.add(document.id)
                log.error("a stored approval cannot be decoded", approval=document.id, error=str(error))
            return
        if entry is not None and (approval.restored, document.version) <= (entry.approval.restored, entry.version):
            return
        if entry is None:
            if approval.expires > self._now() or not is_foreign:
                entry = _ApprovalRecord(approval, document.version, is_foreign=is_foreign)
                self._add(entry)
                if approval.state != "pending" and approval.expires > self._now():
                    self._carry_out(entry)
        else:
            entry.approval, entry.version = approval, document.version
            if approval.state != "pending":
                self._carry_out(entry)

    def _changed(self, approval: Approval) -> None:
        if self.on_changed is not None:
            self.on_changed(approval.owner, approval.id)

    # -- the stage of a call -------------------------------------------------------------------------------------------

    def check(self, hub: Hub, inflight: InFlight, call: Call) -> Outcome | Held | None:
        """Whether a call may go on: None if it may, a fault if not, or `HELD` if it waits.

        `call` is the call as its caller made it, before the hub added arguments.
        """
        if call.kind not in ("tool", "method"):
            return None
        matched = self._match(hub, inflight, is_method=call.kind == "method")
        if not matched.rules:
            return None
        self._asked.pop(inflight, None)
        try:
            rule = _deciding_rule(matched, hub, inflight)
            if rule is None or not rule.approve or self._is_approved_fleet(inflight, rule):
                return None
            text = canonical_text(read_arguments(inflight.call.arguments))
        except UnclearArguments as error:
            return BadArguments(call.name, f"a person must approve this call, and {error}")
        server, caller = inflight.target.feature.server, call.caller
        if hub.fleets is not None and server in hub.fleets:
            self._asked[inflight] = rule
        parts = (caller.tenant, caller.name, call.set, call.kind, *_identity_of(server, hub), inflight.name, rule.by)
        digest = request_digest(*parts, matched.fingerprint, text)
        return self._decide_about(HeldRequest(hub, inflight, call), rule, digest)

    def _is_approved_fleet(self, inflight: InFlight, rule: ApprovalRule) -> bool:
        """Whether a fleet makes this call for one that was approved by the same rule: a person approves it once."""
        if not inflight.call.fleet or inflight.within is None or (outer := inflight.within()) is None:
            return False
        asked = self._asked.get(outer)
        # What tests of the arguments were left out differs from tool to tool.
        return asked is not None and replace(asked, arguments=()) == replace(rule, arguments=())

    def _match(self, hub: Hub, inflight: InFlight, *, is_method: bool) -> _MatchedRules:
        """The rules that may be about a call's tool."""
        snapshot, route = hub.snapshot, inflight.target
        if self._snapshots.get(hub) is not snapshot or len(self._matches) > MATCHES_MAX:
            self._snapshots[hub] = snapshot
            self._matches.clear()
        own = route.own or route.feature
        key = (hub, own.server, inflight.name, own.digest, is_method)
        matched = self._matches.get(key)
        if matched is None:
            tool = own if isinstance(own, Tool) else Tool.of(own.server, FeatureName(inflight.name), {})
            # Both may call any tool of their server by an argument.
            is_blind = is_method or tool.name == CALL_BY_ARGUMENT
            rules = tuple(
                rule if is_blind else self._without_lacking(rule, tool, snapshot)
                for rule in self.rules
                if _covers(rule, tool, snapshot, is_blind=is_blind)
            )
            matched = _MatchedRules(rules, fingerprint_of(canonical_definition(tool)), is_blind)
            self._matches[key] = matched
        return matched

    def _without_lacking(self, rule: ApprovalRule, tool: Tool, snapshot: Snapshot) -> ApprovalRule:
        """The rule without tests of arguments that it names in vain (`lacks_argument`): these cannot let a call run."""
        if not rule.approve or not rule.arguments:
            return rule
        names = {tool.server, f"{tool.server}.*", f"{tool.server}.{tool.name}"}
        patterns = [pattern for pattern in rule.tools if pattern in names]
        kept = tuple(
            test
            for test in rule.arguments
            if not any(lacks_argument(snapshot, pattern, test.path) for pattern in patterns)
        )
        return rule if len(kept) == len(rule.arguments) else replace(rule, arguments=kept)

    def _decide_about(self, held: HeldRequest, rule: ApprovalRule, digest: str) -> Fault | Held | None:
        call, now = held.call, self._now()
        if (fault := self._refusal(held, digest)) is not None:
            return fault
        credit = self._credits.get(digest)
        if credit is not None and now < credit.until and call.extra:
            del self._credits[digest]
            self._record("approval.used", **_facts(credit.approval))
            self._go_on(held, credit.approval)
            return None
        entry = self._by_digest.get(digest)
        if entry is not None and entry.approval.expires <= now and not entry.is_writing:
            self._expire(entry)
            entry = None
        if entry is None:
            if not self.has_operator and not (rule.by == "caller" and _can_be_asked(call)):
                return ApprovalDenied(
                    f"{held.inflight.target.feature.server}.{held.inflight.name}",
                    "",
                    "it needs an operator's approval, and only `isthmus serve` has operators. Run the hub with it, or "
                    'set by = "caller" in the rule',
                )
            return self._request(held, rule, digest)
        approval = entry.approval
        if entry.is_writing or approval.state == "pending":
            self._join(entry, held)
            return HELD
        if approval.state == "hour":
            self._record("approval.used", **_facts(approval))
            self._go_on(held, None)
            return None
        self._use(entry, held)
        return HELD

    def _refusal(self, held: HeldRequest, digest: str) -> Fault | None:
        """Why a call fails whatever a person says: one denied it, or a budget has no room."""
        entry = self._by_digest.get(digest)
        if entry is not None and entry.approval.expires > self._now() and not entry.is_writing:
            if entry.approval.state == "denied":
                return _denial(entry.approval)
            if entry.approval.state == "hour":
                return None
        hub, inflight = held.hub, held.inflight
        is_cached = inflight.target.keep_seconds and hub.result_cache.find(inflight, hub.now()) is not None
        return None if hub.budgets is None or is_cached else hub.budgets.refusal(hub, inflight)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _request(self, held: HeldRequest, rule: ApprovalRule, digest: str) -> Fault | Held:
        """Store a request, and hold the call."""
        call, inflight, now = held.call, held.inflight, self._now()
        given = msgspec.Raw(bytes(call.arguments))
        approval = Approval(
            f"ap_{secrets.token_hex(8)}",
            digest,
            rule.name,
            rule.by,
            inflight.target.feature.server,
            inflight.name,
            call.name,
            call.caller.name,
            call.caller.tenant,
            call.set,
            call.frontend,
            given,
            _added(call, inflight.call),
            now,
            now + rule.expires,
            rule.expires,
            script=call.script,
            script_lines=call.script_lines,
            why=self._why(rule, held),
        )
        own = self._of.get(approval.owner, {})
        if sum(each.approval.state != "denied" for each in own.values()) >= EACH_MAX:
            return TooManyApprovals(f"{call.caller.name} has", str(EACH_MAX), str(EACH_MAX))
        if len(self._entries) >= ALL_MAX or self._bytes + len(memoryview(given)) > ALL_BYTES_MAX:
            return TooManyApprovals("the hub has", str(len(self._entries)), f"{ALL_MAX} or {ALL_BYTES_MAX} bytes")
        entry = _ApprovalRecord(approval)
        entry.is_writing = True
        self._add(entry)
        self._join(entry, held)
        self._journal.write((entry.document(approval),), partial(self._on_requested, entry, rule))
        return HELD

    def _why(self, rule: ApprovalRule, held: HeldRequest) -> str:
        """Why a person is asked, where the rule alone does not tell."""
        whole = next((each for each in self.rules if each.name == rule.name), rule)
        if lacking := [".".join(test.path) for test in whole.arguments if test not in rule.arguments]:
            return f"the rule names an argument that the tool does not have: {', '.join(lacking)}"
        if rule.spent is None or held.hub.budgets is None:
            return ""
        use = held.hub.budgets.use_of(held.hub, held.inflight, rule.spent.budget)
        return f"{use}; above {rule.spent.above:g} a person is asked"

    def _on_requested(self, entry: _ApprovalRecord, rule: ApprovalRule, result: WriteResult) -> None:
        entry.is_writing = False
        if result != "kept":
            self._remove(entry)
            if result == "unknown":
                entry.version = 1
                self._journal.write((entry.document(None),), lambda _: None)
            for held in self._take_waiting(entry):
                held.inflight.finish(NotWritten("The request for approval could not be stored; the tool did not run"))
            return
        entry.version, entry.is_stored = 1, True
        self._changed(entry.approval)
        self._record("approval.requested", **_facts(entry.approval))
        first = self._by_digest.get(entry.approval.digest)
        if first is not None and first is not entry and first.approval.state != "pending":
            self._carry_out(first)  # another hub decided about the same call meanwhile
            return
        log.info(
            "a call waits for approval", advice=f"isthmus approvals show {entry.approval.id}", **_facts(entry.approval)
        )
        for held in list(entry.waiting):
            self._notify(entry, held)
        if self.announce is not None:
            self.announce(entry.approval, rule)

    def _join(self, entry: _ApprovalRecord, held: HeldRequest) -> None:
        """Let a call wait for a decision."""
        entry.waiting = [each for each in entry.waiting if not each.inflight.is_done]
        entry.waiting.append(held)
        approval = entry.approval
        seconds = approval.expires - self._now() + TASK_DEADLINE_SECONDS if held.call.lasts else _call_seconds(held)
        late = partial(ApprovalPending, approval.full_name, approval.id)
        held.inflight.begin_hold(seconds, held.hub.deadlines, late)
        if entry.is_stored:
            # Later: an exchange knows its call only when the call has been started.
            self._loop.call_soon(self._notify, entry, held)

    def take(self, inflight: InFlight) -> HeldRequest | None:
        """A call that waits for a decision, so that a task makes it instead; None if it does not wait for one.

        No decision starts it any more; `start_call_again` undoes that.
        """
        caller = inflight.call.caller
        for entry in self._of.get(_owner_key(caller), {}).values():
            for held in entry.waiting:
                if held.inflight is inflight:
                    entry.waiting.remove(held)
                    return held
        return None

    def _notify(self, entry: _ApprovalRecord, held: HeldRequest) -> None:
        """Tell the caller of a held call that it waits, and ask it if it may decide."""
        approval, inflight = entry.approval, held.inflight
        if inflight.is_done or not inflight.is_held or approval.state != "pending":
            return
        if approval.by == "caller" and _can_be_asked(held.call):
            asked = inflight.ask(_question(approval), partial(self._on_answer, entry))
            if asked is not None:
                entry.questions = [*(each for each in entry.questions if each.is_open), asked]
                return
        _show_wait(held, approval)

    def _on_answer(self, entry: _ApprovalRecord, reply: Reply) -> None:
        """A caller that may decide has answered."""
        if entry.is_writing or entry.approval.state != "pending":
            return
        answer = _read_answer(reply)
        if answer is None:  # an operator decides
            for held in entry.waiting:
                _show_wait(held, entry.approval)
        else:
            verdict, reason = answer
            self._decide(entry, verdict, f"{entry.approval.caller} (the caller)", reason, lambda _: None)

    # -- decisions -----------------------------------------------------------------------------------------------------

    async def decide(
        self, id: str, verdict: ApprovalVerdict, by: Caller, reason: str, *, overrides: bool = False
    ) -> ApprovalEntry | None:
        """Decide about a request; returns None for an unknown id.

        What was allowed can be denied until it is used. What was denied can be allowed only if the operator says that
        this `overrides` it: another operator may have denied it a moment ago.

        Raises:
            ApprovalAlreadyDecided: somebody has decided about it, or its time is over.
            OSError: the decision could not be stored.
        """
        if (credit := self._credit_of(id)) is not None:
            return self._revoke(credit, verdict, by, reason[:REASON_LENGTH_MAX])
        if id not in self._entries and self.look_again is not None:
            await self.look_again()
        entry = self._entries.get(id)
        if entry is None or not entry.is_stored:
            return None
        is_denied = entry.approval.state == "denied"
        is_open = entry.approval.state == "pending" or (overrides if is_denied else verdict == "deny")
        if entry.is_writing or not is_open or entry.approval.expires <= self._now():
            raise ApprovalAlreadyDecided(_state_text(entry.approval))
        written: asyncio.Future[WriteResult] = self._loop.create_future()
        then = partial(_set, written)
        self._decide(entry, verdict, by.name, reason[:REASON_LENGTH_MAX], then, is_read_again=True)
        result = await written
        if result == "conflict" and self.on_changed is not None:
            await self.refresh(entry.approval.owner, id)
            raise ApprovalAlreadyDecided(_state_text(entry.approval))
        if result != "kept":
            raise OSError(f"the decision could not be stored ({result})")
        return entry_of(entry.approval, by)

    def _credit_of(self, id: str) -> _Credit | None:
        now = self._now()
        return next((each for each in self._credits.values() if each.approval.id == id and now < each.until), None)

    def _revoke(self, credit: _Credit, verdict: ApprovalVerdict, by: Caller, reason: str) -> ApprovalEntry:
        """Deny what was allowed once and did not run. The same call needs another decision."""
        if verdict != "deny":
            raise ApprovalAlreadyDecided(_state_text(credit.approval))
        del self._credits[credit.approval.digest]
        denied = msgspec.structs.replace(
            credit.approval, state="denied", decided=self._now(), decided_by=by.name, reason=reason
        )
        self._record("approval.denied", **_facts(denied))
        return entry_of(denied, by)

    def _decide(
        self,
        entry: _ApprovalRecord,
        verdict: ApprovalVerdict,
        by: str,
        reason: str,
        then: Callable[[WriteResult], None],
        *,
        is_read_again: bool = False,
    ) -> None:
        """`is_read_again` says that `then` reads the journal if another hub was first."""
        now, state = self._now(), _VERDICTS[verdict]
        seconds = HOUR_SECONDS if state == "hour" else entry.approval.seconds
        decided = msgspec.structs.replace(
            entry.approval, state=state, decided=now, decided_by=by, reason=reason, expires=now + seconds
        )
        entry.is_writing = True
        keeps_conflict = is_read_again and self.on_changed is not None
        on_written = partial(self._on_decided, entry, decided, then, keeps_conflict=keeps_conflict)
        self._journal.write((entry.document(decided),), on_written)

    def _on_decided(
        self,
        entry: _ApprovalRecord,
        decided: Approval,
        then: Callable[[WriteResult], None],
        result: WriteResult,
        *,
        keeps_conflict: bool,
    ) -> None:
        entry.is_writing = False
        if result == "kept":
            entry.version += 1
            entry.approval = decided
            self._changed(decided)
            self._record(_EVENTS[decided.state], **_facts(decided))
            self._carry_out(entry)
            if decided.state == "denied":
                self._drop_old_denials(decided.owner)
        elif result == "unknown" or (result == "conflict" and not keeps_conflict):
            # What the journal has is not known here: nothing is allowed by it, and the caller asks again.
            self._remove(entry)
            for held in self._take_waiting(entry):
                held.inflight.finish(NotWritten("The decision could not be stored; the tool did not run"))
        then(result)

    def _carry_out(self, decided: _ApprovalRecord) -> None:
        """Start the calls again that wait for this decision, by this request or another one about the same call.

        Several hubs on one journal may request approval of the same call before they know of each other's request.
        Each deletes its own.
        """
        approval = decided.approval
        duplicates = [
            each
            for each in self._of[approval.owner].values()
            if each.approval.digest == approval.digest and each.approval.state == "pending" and not each.is_writing
        ]
        self._by_digest[approval.digest] = decided
        self._start_again(decided)
        for each in duplicates:
            if not each.is_foreign:
                self._delete(each)
            self._start_again(each)

    def _drop_old_denials(self, owner: str) -> None:
        denied = [each for each in self._of.get(owner, {}).values() if each.approval.state == "denied"]
        for entry in denied[: max(0, len(denied) - EACH_MAX)]:
            self._delete(entry)

    def _start_again(self, entry: _ApprovalRecord) -> None:
        """Start the calls that wait again, from their first stage: tool, permissions and rules may have changed."""
        for held in self._take_waiting(entry):
            start_call_again(held)

    def _take_waiting(self, entry: _ApprovalRecord) -> list[HeldRequest]:
        waiting, entry.waiting = entry.waiting, []
        questions, entry.questions = entry.questions, []
        for asked in questions:
            asked.retract()
        return waiting

    # -- using a decision ----------------------------------------------------------------------------------------------

    def _use(self, entry: _ApprovalRecord, held: HeldRequest) -> None:
        """Use up what was allowed once: the call proceeds when that is stored."""
        self._remove(entry)
        late = partial(NotWritten, "The use of the approval could not be stored; the tool did not run")
        held.inflight.begin_hold(_call_seconds(held), held.hub.deadlines, late)
        self._journal.write((entry.document(None),), partial(self._on_used, entry, held))

    def _on_used(self, entry: _ApprovalRecord, held: HeldRequest, result: WriteResult) -> None:
        inflight = held.inflight
        if result == "refused" and entry.approval.digest not in self._by_digest:
            self._add(entry)
        if result == "conflict":  # another hub was faster: this call needs another approval
            start_call_again(held)
            return
        if result != "kept":
            inflight.finish(NotWritten("The use of the approval could not be stored; the tool did not run"))
            return
        self._changed(entry.approval)
        if inflight.is_done:  # its caller gave up meanwhile, and nothing was sent
            self._used[inflight] = entry.approval
            self.not_sent(inflight)
            return
        self._record("approval.used", **_facts(entry.approval))
        inflight.end_hold()
        self._go_on(held, entry.approval)
        held.hub.proceed(inflight)

    def _go_on(self, held: HeldRequest, approval: Approval | None) -> None:
        """A call is about to be sent, because of this approval if it was allowed once."""
        inflight = held.inflight
        if approval is not None:
            self._used[inflight] = approval
            self._loop.call_soon(self._watch_end, inflight)

    def _watch_end(self, inflight: InFlight) -> None:
        """Learn how an allowed call ends. Later, because the stages set what is called at its end."""
        keep = inflight.keep

        def on_end(inflight: InFlight, outcome: Outcome) -> Outcome | None:
            if isinstance(outcome, Fault):
                did_not_run = outcome.executed == "no"
            else:  # the failures of all members of a fleet are a result
                did_not_run = outcome.is_error and not inflight.was_sent
            if did_not_run:
                self.not_sent(inflight)
            elif isinstance(outcome, Result) and outcome.asked_by is not None:
                self._credit(inflight, self._now() + QUESTION_SECONDS)
            return outcome if keep is None else keep(inflight, outcome)

        if inflight.outcome is None:
            inflight.keep = on_end
        elif inflight in self._used:
            on_end(inflight, inflight.outcome)

    def not_sent(self, inflight: InFlight) -> None:
        """A call provably did not run: if it was allowed once, the same call may be made as long as that is valid.

        The decision is stored again, for all hubs on this journal. If that fails, the caller asks again.
        """
        approval = self._used.pop(inflight, None)
        if approval is None or approval.expires <= self._now() or len(self._entries) >= ALL_MAX:
            return
        entry = _ApprovalRecord(msgspec.structs.replace(approval, restored=approval.restored + 1))
        entry.is_writing = True
        self._add(entry)
        self._journal.write((entry.document(entry.approval),), partial(self._on_restored, entry))

    def _on_restored(self, entry: _ApprovalRecord, result: WriteResult) -> None:
        entry.is_writing = False
        if result == "kept":
            entry.version, entry.is_stored = 1, True
            self._changed(entry.approval)
            self._carry_out(entry)
        else:
            self._remove(entry)
            self._start_again(entry)

    def _credit(self, inflight: InFlight, until: float) -> None:
        if (approval := self._used.pop(inflight, None)) is not None and len(self._credits) < ALL_MAX:
            shown = msgspec.structs.replace(approval, expires=until)
            self._credits[approval.digest] = _Credit(shown, until)
            self._sweep_later()

    # -- the end of approvals ------------------------------------------------------------------------------------------

    def _expire(self, entry: _ApprovalRecord) -> None:
        """The time of a request or of a decision is over."""
        approval = entry.approval
        if entry.is_foreign:
            self._remove(entry)
        else:
            self._delete(entry)
        if approval.state != "denied" and not entry.is_foreign:
            self._record("approval.expired", **_facts(approval), state=approval.state)
        for held in self._take_waiting(entry):
            held.inflight.finish(ApprovalExpired(approval.full_name, approval.id, approval.seconds))

    def _delete(self, entry: _ApprovalRecord) -> None:
        self._remove(entry)
        # If that fails, the next hub finds that it has expired.
        self._journal.write((entry.document(None),), lambda _: self._changed(entry.approval))

    def retain(self, is_current: Callable[[Caller], bool]) -> None:
        """Cancel held calls of all other callers: those removed, or whose permissions changed."""
        for entry in self._entries.values():
            for held in list(entry.waiting):
                if not is_current(held.call.caller):
                    held.inflight.cancel("the caller was removed, or its permissions changed")

    def stop_waiting(self) -> None:
        """End the held calls of callers that wait on a connection, because the hub is shutting down."""
        for entry in self._entries.values():
            for held in list(entry.waiting):
                if not held.call.lasts:
                    held.inflight.finish(ApprovalPending(entry.approval.full_name, entry.approval.id))

    def _add(self, entry: _ApprovalRecord) -> None:
        approval = entry.approval
        self._entries[approval.id] = entry
        if approval.state == "pending":  # another hub's request for the same call does not undo a decision
            self._by_digest.setdefault(approval.digest, entry)
        else:
            self._by_digest[approval.digest] = entry
        self._of.setdefault(approval.owner, {})[approval.id] = entry
        self._bytes += len(memoryview(approval.arguments))
        self._sweep_later()

    def _remove(self, entry: _ApprovalRecord) -> None:
        approval = entry.approval
        if self._entries.pop(approval.id, None) is None:
            return
        if self._removed is not None:
            self._removed.add(approval.id)
        if self._by_digest.get(approval.digest) is entry:
            del self._by_digest[approval.digest]
        own = self._of[approval.owner]
        del own[approval.id]
        if not own:
            del self._of[approval.owner]
        self._bytes -= len(memoryview(approval.arguments))

    def _sweep_later(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeping, now = None, self._now()
        self._credits = {digest: credit for digest, credit in self._credits.items() if now < credit.until}
        for entry in [each for each in self._entries.values() if each.approval.expires <= now and not each.is_writing]:
            self._expire(entry)
        if self._entries or self._credits:
            self._sweep_later()

    # -- for people ----------------------------------------------------------------------------------------------------

    def list(self, viewer: Caller, *, state: str = "", limit: int = PAGE_MAX, after: str = "") -> ApprovalList:
        """Requests and decisions, the oldest first: all for operators, else the viewer's own.

        Raises:
            ValueError: there is no such cursor, or state.
        """
        if state and state not in ("pending", "allowed", "denied"):
            raise ValueError(f"state must be pending, allowed or denied, not {state!r}")
        own, now = _owner_key(viewer), self._now()
        shown = self._entries if viewer.is_operator else self._of.get(own, {})
        since = _read_cursor(after)
        stored = [each.approval for each in shown.values() if each.is_stored]
        again = (each.approval for each in self._credits.values() if now < each.until)
        stored += [each for each in again if viewer.is_operator or each.owner == own]
        matching = [each for each in stored if not state or _public_state(each) == state]
        # The cursor of one that is gone still says where it was.
        later = sorted((each.requested, each.id, each) for each in matching if (each.requested, each.id) > since)
        page = [entry_of(each, viewer) for _, _, each in later[:limit]]
        following = f"{page[-1].requested!r}/{page[-1].id}" if page and len(later) > limit else None
        return ApprovalList(tuple(page), len(matching), following)

    def get(self, viewer: Caller, id: str) -> ApprovalEntry | None:
        """One of them; None if it does not exist, or is not for the viewer."""
        entry, credit = self._entries.get(id), self._credit_of(id)
        if credit is not None:
            approval = credit.approval
        elif entry is not None and entry.is_stored:
            approval = entry.approval
        else:
            return None
        is_own = (approval.tenant, approval.caller) == (viewer.tenant, viewer.name)
        return entry_of(approval, viewer) if viewer.is_operator or is_own else None


def lacks_argument(snapshot: Snapshot, pattern: str, path: Sequence[str]) -> bool:
    """Whether a pattern names a tool, or all tools of a server, and none of these has an argument at this path."""
    server, _, name = pattern.partition(".")
    status = snapshot.server_statuses.get(ServerName(server))
    if status is None or not status.has_lists or status.is_unlisted:
        return False
    tools = _readable(tool for tool in all_tools_of(status) if name in ("", "*", tool.name))
    return bool(tools) and not any(_may_have(tool, path) for tool in tools)


def lacking_arguments(rule: ApprovalRule, snapshot: Snapshot) -> Iterator[tuple[ArgumentTest, str, str]]:
    """The tests of arguments that no tool has: the test, the patterns of the tools, and what the rule does instead."""
    statuses = snapshot.server_statuses
    general = [pattern for pattern in rule.tools or ("*",) if ServerName(pattern.partition(".")[0]) not in statuses]
    is_complete = all(each.has_lists or each.state == "disabled" for each in statuses.values())
    matching: list[Tool] = []
    if rule.arguments and general and is_complete:
        listed = _readable(tool for status in statuses.values() for tool in all_tools_of(status))
        matching = [tool for tool in listed if _covers(rule, tool, snapshot, is_blind=False)]
    for test in rule.arguments:
        for pattern in rule.tools:
            if lacks_argument(snapshot, pattern, test.path):
                yield test, pattern, "the rule holds every call of it" if rule.approve else "the rule exempts nothing"
        if matching and not any(_may_have(tool, test.path) for tool in matching):
            tools = ", ".join(general) if rule.tools else "any destructive tool"
            yield test, tools, f"the rule {'holds' if rule.approve else 'exempts'} nothing"


def _readable(tools: Iterable[Tool]) -> list[Tool]:
    """The tools, or none if to read all of their schemas would hold up the event loop."""
    first = list(islice(tools, SCHEMAS_MAX + 1))
    size = sum(len(memoryview(tool.definition.get("inputSchema", b""))) for tool in first)
    return first if len(first) <= SCHEMAS_MAX and size <= SCHEMA_BYTES_MAX else []


def _may_have(tool: Tool, path: Sequence[str]) -> bool:
    try:
        return may_have(msgspec.json.decode(tool.definition.get("inputSchema", b"{}")), path)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True


def _covers(rule: ApprovalRule, tool: Tool, snapshot: Snapshot, *, is_blind: bool) -> bool:
    """Whether a rule may be about a tool, as far as the tool itself tells."""
    status = snapshot.server_statuses.get(tool.server)
    rules = NO_TOOL_RULES if status is None else status.rules

    def agent_of(server: ServerName) -> str | None:
        return None if status is None or server != tool.server else status.agent

    def tags_of(_: ServerName) -> tuple[str, ...]:
        return rules.tags_of_all

    labels = labels_of(tool, rules)
    if not rule.approve:
        # An exemption believes only what the operator does, and never one whose effect is unknown.
        if is_blind or (rule.destructive and not hints_of(tool)["destructive"]):
            return False
        return Policy(Grants(rule.tools or ("*",)), agent_of, tags_of).allows(tool.server, tool.name, labels)
    policy = Policy(Grants(("*",), rule.tools or ("*",)), agent_of, tags_of)
    if is_blind:
        return not policy.may_use_all_of(tool.server)
    if rule.destructive and not hints_of(tool)["destructive"]:
        return False
    return policy.denies(tool.server, tool.name, labels)


def _identity_of(server: ServerName, hub: Hub) -> tuple[str | None, ...]:
    """What a decision knows a server by.

    A name may pass to another agent's server. Names of servers that callers name by address (they contain a `#`) are
    given anew by each process.
    """
    status = hub.snapshot.server_statuses.get(server)
    return server, None if status is None else status.agent, hub.id if "#" in server else None


def _added(given: Call, whole: Call) -> tuple[str, ...]:
    """The names of the arguments that the hub adds."""
    if whole.arguments is given.arguments:
        return ()
    before, after = (msgspec.json.decode(each.arguments, type=dict[str, msgspec.Raw]) for each in (given, whole))
    return tuple(sorted(after.keys() - before.keys()))


def _owner_key(caller: Caller) -> str:
    """The `Approval.owner` of this caller's approvals."""
    return f"{caller.tenant}\n{caller.name}"


def _can_be_asked(call: Call) -> bool:
    """Whether the caller can show a form to its user."""
    modes = {each for each in call.client_caps if each.startswith("elicitation.")}
    return "elicitation" in call.client_caps and modes != {"elicitation.url"}


def _set(future: asyncio.Future[WriteResult], result: WriteResult) -> None:
    if not future.done():
        future.set_result(result)


def _facts(approval: Approval) -> dict[str, str]:
    """What log and audit say of an approval: never the arguments."""
    facts = {
        "approval": approval.id,
        "tool": approval.full_name,
        "caller": approval.caller,
        "tenant": approval.tenant,
        "set": approval.set,
        "rule": approval.rule,
        "digest": approval.digest,
        "by": approval.decided_by,
        "reason": approval.reason,
    }
    return {name: value for name, value in facts.items() if value}


def _call_seconds(held: HeldRequest) -> float:
    """How long a call may take, if nobody is asked."""
    hub, inflight, call = held.hub, held.inflight, held.inflight.call
    server_queue = hub.server_queues.get(inflight.target.feature.server)
    longest = hub.limits.hard_seconds if call.lasts or server_queue is None else server_queue.timeout
    return longest if call.timeout is None else min(call.timeout, longest)


def start_call_again(held: HeldRequest) -> None:
    """Start a call again from its first stage, unless it has ended."""
    inflight = held.inflight
    if not inflight.is_done:
        inflight.end_hold()
        if isinstance(inflight.exchange, HoldableExchange):
            inflight.exchange.released()
        inflight.carriage, inflight.call = None, held.call
        held.hub.start_again(inflight)


def _denial(approval: Approval) -> ApprovalDenied:
    denied = f"{approval.decided_by} denied it" if approval.by == "caller" else "an operator denied it"
    return ApprovalDenied(
        approval.full_name, approval.id, f"{denied}: {approval.reason}" if approval.reason else denied
    )


def _show_wait(held: HeldRequest, approval: Approval) -> None:
    if not held.inflight.is_done and isinstance(held.inflight.exchange, HoldableExchange):
        held.inflight.exchange.held(_notice(approval))


def _notice(approval: Approval) -> Question:
    """What a task shows while it waits."""
    text = f"{approval.full_name} waits for an operator's approval ({approval.id}). It continues by itself."
    about = {"message": text, "approval": approval.id, "tool": approval.full_name, "expires": approval.expires}
    return Question(NOTICE, msgspec.Raw(_encode(about)))


def _question(approval: Approval) -> Question:
    """The question to a caller that may decide itself."""
    # On one line and without invisible characters: nothing in a text may look like the end of the arguments.
    text = bytes(approval.arguments)
    text = msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text
    arguments = all_escaped(text.decode("utf-8", "replace"))
    added = f"\nThe hub adds: {', '.join(approval.added)}" if approval.added else ""
    decision = {
        "type": "string",
        "title": "Decision",
        "enum": ["once", "hour", "deny"],
        "enumNames": ["Allow once", "Allow the same call for an hour", "Deny"],
    }
    schema = {
        "type": "object",
        "properties": {"decision": decision, "reason": {"type": "string", "title": "Reason", "maxLength": 1000}},
        "required": ["decision"],
    }
    why = f" {approval.why[0].upper()}{approval.why[1:]}." if approval.why else ""
    message = f"Allow this call of {approval.full_name}?{why} Arguments:\n{arguments}{added}"
    return Question(ELICIT, msgspec.Raw(_encode({"mode": "form", "message": message, "requestedSchema": schema})))


class _DecisionContent(msgspec.Struct):
    decision: str = ""
    reason: str = ""


class _Answer(msgspec.Struct):
    action: str = ""
    content: _DecisionContent = msgspec.field(default_factory=_DecisionContent)


_ANSWERS: Mapping[str, ApprovalVerdict] = {"once": "allow", "hour": "allow_hour", "deny": "deny"}


def _read_answer(reply: Reply) -> tuple[ApprovalVerdict, str] | None:
    """The decision in an answer. None: the answer has no decision, and the request waits for an operator."""
    if not isinstance(reply, Answered):
        return None
    try:
        answer = msgspec.json.decode(reply.result, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    reason = answer.content.reason[:REASON_LENGTH_MAX]
    if answer.action == "decline":
        return "deny", reason
    if answer.action != "accept" or answer.content.decision not in _ANSWERS:
        return None
    return _ANSWERS[answer.content.decision], reason


def _public_state(approval: Approval) -> Literal["pending", "allowed", "denied"]:
    return "allowed" if approval.state in ("once", "hour") else "denied" if approval.state == "denied" else "pending"


def _state_text(approval: Approval) -> str:
    if approval.state == "pending":
        return "It is being decided, or its time is over"
    state, command = f"It was {_public_state(approval)} by {approval.decided_by}", "isthmus approvals"
    if approval.state == "denied":
        return f"{state}. To allow it nevertheless: {command} allow {approval.id} --override"
    return f"{state}. To take that back: {command} deny {approval.id}"


def entry_of(approval: Approval, viewer: Caller) -> ApprovalEntry:
    """An approval as people see it. Only operators learn who decided, and those who decide how much is used."""
    return ApprovalEntry(
        approval.id,
        _public_state(approval),
        approval.full_name,
        approval.name,
        approval.arguments,
        approval.added,
        approval.digest,
        approval.caller,
        approval.tenant,
        approval.set,
        approval.frontend,
        approval.rule,
        approval.by,
        approval.requested,
        approval.expires,
        approval.decided,
        approval.decided_by if viewer.is_operator else None,
        approval.reason or None,
        "hour" if approval.state == "hour" else "once" if approval.state == "once" else None,
        approval.script or None,
        approval.script_lines,
        (approval.why or None) if viewer.is_operator or approval.by == "caller" else None,
    )


def _read_cursor(text: str) -> tuple[float, str]:
    if not text:
        return 0.0, ""
    at, _, id = text.partition("/")
    try:
        return float(at), id
    except ValueError:
        raise ValueError("cursor is invalid: use the `next` of a page") from None
