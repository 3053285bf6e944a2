"""Who can reach what, and why: the one implementation behind `isthmus access` and the REST API.

The hub's own table (`core.catalog.snapshot`) decides what is reached; here it gets callers, and words for its reasons.
Work over thousands of features is a generator that yields None where others may have a turn.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import dataclasses
from bisect import bisect_right
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from isthmus.app.caller_identity import LOCAL_OPERATOR, Identities
from isthmus.app.hub import LOCAL, RunningHub
from isthmus.config.callers import patterns
from isthmus.config.extensions import EXTENSIONS
from isthmus.config.findings import Place
from isthmus.config.settings import Configuration
from isthmus.core.access.policy import BY_CUSTOM_POLICY, Why
from isthmus.core.access.tenants import Tenants
from isthmus.core.admin_ports import (
    AccessBy,
    AccessCaller,
    AccessCell,
    AccessFeature,
    AccessPage,
    AccessPageQuery,
    AccessPreview,
    AccessServer,
    AccessSummary,
    CallerChange,
    CallerDifference,
    ChangedFeature,
    RuleChange,
    RuleChanges,
    UnknownName,
)
from isthmus.core.catalog.access_reasons import AccessExplainer, AccessReason, ListedEntry, listed_entries
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.event_loop import in_passes
from isthmus.model.callers import FRONTENDS, Caller, FrontendName, Grants, narrowed_on
from isthmus.model.calls import EVERYTHING
from isthmus.model.features import LISTS, ListName
from isthmus.model.names import FeatureName, ServerName, name_filter

AccessSubject: TypeAlias = tuple[str, str, FrontendName | None]
"""A caller's name, the id of its key if the state folder has one, and the frontend that it uses."""

What: TypeAlias = tuple[ListName, str]
"""A list and a name in it."""

RowKey: TypeAlias = tuple[str, int, str]
"""The server of a feature, the position of its list, and its name."""

RightChange: TypeAlias = Literal["appear", "vanish"]

POLICIES = Place(None, EXTENSIONS).at("policy").path

SLICE = 400
"""Features between two pauses: each takes about three microseconds, and its labels as long again."""

CALLERS_MAX = 200
"""Callers in one answer; a hub may have thousands of keys."""

CELLS_MAX = 20_000
"""Cells in one answer, of about a hundred bytes each."""

CHANGES_MAX = 5_000
"""Features that a preview lists."""

KEPT_SECONDS = 60.0
"""How long the table of a snapshot is kept for the next request; it keeps old definitions in memory."""

PATTERNS_MAX = 1_000
"""Patterns of one list in a preview."""


# -- callers ---------------------------------------------------------------------------------------------------------


def callers_of(configuration: Configuration) -> list[Caller]:
    """Every caller that a hub with this configuration knows, sorted by name; without any, the local one.

    Raises:
        ConfigError: the key file cannot be read.
    """
    return listed_callers(Identities(configuration).callers(), configuration) or [LOCAL]


def listed_callers(callers: Iterable[Caller], configuration: Configuration) -> list[Caller]:
    """Callers with keys, each once if all its keys grant the same, and those of issuers, sorted by name.

    A caller with an issuer's token is `ISSUER/*`, or `ISSUER/* SCOPE` with that scope.
    """
    # All keys of a caller in the configuration file grant the same; only keys of the state folder differ.
    known = {replace(caller, key="" if caller.key.startswith("file:") else caller.key) for caller in callers}
    for issuer in configuration.issuers:
        tenant = issuer.tenant if issuer.tenant_claim is None else "?"
        plain = Caller(f"{issuer.name}/*", tenant, issuer.grants)
        known.add(configuration.tenants.bound(plain))
        for scope, allow in issuer.scopes.items():
            grants = replace(issuer.grants, allow=(*issuer.grants.allow, *allow))
            known.add(configuration.tenants.bound(replace(plain, name=f"{issuer.name}/* {scope}", grants=grants)))
    return sorted(known, key=lambda caller: (caller.name, caller.key))


def places_of(caller: Caller) -> tuple[str, ...]:
    """Where each set of a caller's permissions is configured, the innermost first."""
    issuer, slash, _ = caller.name.partition("/*")
    own = Place(None, "issuers").at(issuer) if slash else Place(None, "callers").at(caller.name)
    narrowed = [own.at("frontends", frontend).path for frontend in reversed(narrowed_on(caller))]
    permissions = f"key {caller.key}" if caller.key else own.path
    return (*narrowed, permissions, Place(None, "tenants").at(caller.tenant).path, POLICIES)


# -- reasons ---------------------------------------------------------------------------------------------------------


def deciding(reason: AccessReason) -> list[Why]:
    """What decided; an outer bound that allows everything decides nothing."""
    return [why for why in reason.why if not (why[1] and why[2] == "*" and why[0] == "allow")]


def reason_words(whys: Iterable[Why], places: Sequence[str]) -> list[str]:
    """Each reason as the pattern and the place where it is written."""
    words = []
    for listed, depth, pattern in whys:
        if depth == BY_CUSTOM_POLICY:
            words.append(f"{pattern} of {places[depth]} refuses it")
        elif pattern is None:
            words.append(f"not in {places[depth]}.allow")
        else:
            words.append(f"{pattern} in {places[depth]}.{listed}")
    return words


def chain_of(grants: Grants | None) -> Iterator[Grants]:
    """A permission set and its bounds, the innermost first."""
    while grants is not None:
        yield grants
        grants = grants.within


class CallerPolicy:
    """One caller with its policy for one snapshot, and the words for what it decides."""

    def __init__(self, caller: Caller, snapshot: Snapshot) -> None:
        self.caller = caller
        self.explainer = AccessExplainer(snapshot, caller.grants)
        self._places = places_of(caller)
        self._own_depth = len(narrowed_on(caller))
        self._cells: dict[tuple[tuple[Why, ...], str], AccessCell] = {}

    def cell(self, row: FeatureRow) -> AccessCell:
        """Whether the caller can reach a feature, and why."""
        if row.blocked is not None:
            return row.blocked
        return self._whole(row.server) if row.entry is None else self.explain(row.entry)

    def explain(self, entry: ListedEntry) -> AccessCell:
        """The same for a feature that is not blocked."""
        reason = self.explainer.explain(entry)
        cell = self._cells.get((reason.why, reason.set_note))
        if cell is None:  # most features are allowed or denied by the same few rules
            cell = self._cells[reason.why, reason.set_note] = self._in_words(reason)
        return cell

    def _in_words(self, reason: AccessReason) -> AccessCell:
        if reason.is_reached and self.caller.is_anyone:
            return AccessCell(True, "open", "the hub is open: it needs no keys")
        if reason.is_reached and self.caller == LOCAL_OPERATOR:
            return AccessCell(True, "local", "the key of this machine's user may call everything")
        if reason.set_note and not reason.is_reached:
            return AccessCell(False, "set", reason.set_note)
        whys = deciding(reason) or [*reason.why[:1]]
        words = [*reason_words(whys, self._places), *([reason.set_note] if reason.set_note else [])]
        return AccessCell(reason.is_reached, self._denied_by(whys[0][1]), "; ".join(words))

    def _denied_by(self, depth: int) -> AccessBy:
        if depth == BY_CUSTOM_POLICY:
            return "policy"
        if depth != self._own_depth:
            return "frontend" if depth < self._own_depth else "tenant"
        return "key" if self.caller.key else "issuer" if "/*" in self.caller.name else "caller"

    def _whole(self, server: ServerName) -> AccessCell:
        """The same for a server that lists nothing, whose methods are granted as a whole."""
        if self.explainer.set is not None:
            return AccessCell(False, "set", "a set has only what servers list")
        policy = self.explainer.policy
        why = policy.why(server, FeatureName("*"))
        is_open = all(listed == "allow" and pattern is not None for listed, _, pattern in why)
        if is_open and not policy.covers_all_of(server):
            text = "a rule denies some of its methods, and so all: their names are not known"
            return AccessCell(False, self._denied_by(self._own_depth), text)
        by = self._denied_by(why[0][1])
        return AccessCell(is_open, by, "; ".join(reason_words(why, self._places)))


# -- features --------------------------------------------------------------------------------------------------------


class FeatureRow(msgspec.Struct, frozen=True, eq=False):
    """A feature of a server, also one that nobody can reach."""

    server: ServerName
    listed: ListName
    exposed: str
    entry: ListedEntry | None
    """None if nobody can reach it, or if it stands for all methods of a server that lists nothing."""
    blocked: AccessCell | None = None
    """Why nobody can reach it."""

    @property
    def key(self) -> RowKey:
        """The order of rows."""
        return (self.server, LISTS.index(self.listed), self.exposed)


class FeatureTable:
    """All features of a snapshot."""

    def __init__(
        self, snapshot: Snapshot, entries: Mapping[What, ListedEntry], by_server: Mapping[ServerName, list[FeatureRow]]
    ) -> None:
        self.snapshot = snapshot
        self.entries = entries
        """The features that somebody can reach, by list and name."""
        self.by_server = by_server
        self.rows = [row for server in sorted(by_server) for row in by_server[server]]


def table_passes(snapshot: Snapshot) -> Generator[None, None, FeatureTable]:
    """Make the table of a snapshot."""
    entries: dict[What, ListedEntry] = {}
    by_server: dict[ServerName, list[FeatureRow]] = {}
    for number, entry in enumerate(listed_entries(snapshot)):
        if number % SLICE == 0:
            yield
        entries[entry.listed, entry.exposed] = entry
        server = entry.route.feature.server
        by_server.setdefault(server, []).append(FeatureRow(server, entry.listed, entry.exposed, entry))
    for status in snapshot.server_statuses.values():
        blocked = [] if status.state == "disabled" else [*_blocked_rows(status)]
        if blocked:
            yield
            rows = by_server.setdefault(status.server, [])
            rows += blocked
            rows.sort(key=lambda row: row.key)
    yield
    return FeatureTable(snapshot, entries, by_server)


def _blocked_rows(status: ServerStatus) -> Iterator[FeatureRow]:
    """The tools of a server that nobody sees, and why."""

    def blocked(tool: str, by: AccessBy, reason: str) -> FeatureRow:
        cell = AccessCell(False, by, reason)
        return FeatureRow(status.server, "tools", f"{status.server}.{tool}", None, cell)

    place, rules = Place(None, "servers").at(status.server).path, status.rules
    for tool in status.withheld:
        text = f"withheld from everybody until its definition is approved: isthmus approve {status.server}.{tool}"
        yield blocked(tool, "definition", text)
    for tool, why in status.left_out.items():
        yield blocked(tool, "server", f"left out: {why}")
    for listed in () if rules.changes_nothing else status.tools:
        if not rules.shows(listed.name):
            is_named = listed.name in rules.hidden or "*" in rules.hidden
            setting = f"in {place}.exclude_tools" if is_named else f"not in {place}.include_tools"
            yield blocked(listed.name, "server", setting)
    if status.is_unlisted:
        yield FeatureRow(status.server, "tools", f"{status.server}.*", None)


def table_of(snapshot: Snapshot) -> FeatureTable:
    """The same at once."""
    passes = table_passes(snapshot)
    while True:
        try:
            next(passes)
        except StopIteration as done:
            table: FeatureTable = done.value
            return table


# -- differences -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class AccessChange:
    """What changes for one caller; None stands for what no longer exists."""

    subject: AccessSubject
    tenant: str
    appearing: dict[What, ListedEntry] = field(default_factory=dict)
    vanishing: dict[What, ListedEntry | None] = field(default_factory=dict)
    changing: dict[What, list[str]] = field(default_factory=dict)
    targets: RightChange | None = None
    """The right to name servers by address."""
    operator: RightChange | None = None
    """The right to see the state of every server."""

    def __bool__(self) -> bool:
        return bool(self.appearing or self.vanishing or self.changing or self.targets or self.operator)


def differences(
    old: tuple[Sequence[Caller], FeatureTable],
    new: tuple[Sequence[Caller], FeatureTable],
    settings: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[AccessChange | None]:
    """What changes for each caller of either side, sorted by name; None is a pause.

    `settings` are the changed settings of each server, which concern everybody who can reach it.
    """
    known = old[0], new[0]
    # Frontends that allow a caller less, on either side, are compared by themselves.
    narrowed: set[AccessSubject] = {
        (caller.name, caller.key, frontend)
        for caller in (*known[0], *known[1])
        for frontend in FRONTENDS
        if caller.on(frontend).grants != caller.grants
    }
    before, after = (_by_frontend(callers, narrowed) for callers in known)
    for subject in sorted({**before, **after}, key=lambda subject: (subject[0], subject[1], subject[2] or "")):
        was, is_now = before.get(subject), after.get(subject)
        caller = is_now or was
        assert caller is not None, "it is in one of them"
        if old[1] is new[1] and was == is_now:
            yield None
            continue
        change = AccessChange(subject, caller.tenant)
        change.targets = _right_change(*(each is not None and each.can_name_targets for each in (was, is_now)))
        change.operator = _right_change(*(each is not None and each.is_operator for each in (was, is_now)))
        had, has = _Reach(was, old[1]), _Reach(is_now, new[1])
        for number, (what, entry) in enumerate(new[1].entries.items()):
            if number % SLICE == 0:
                yield None
            earlier = old[1].entries.get(what)
            was_reached, is_reached = earlier is not None and had.allows(earlier), has.allows(entry)
            if is_reached and not was_reached:
                change.appearing[what] = entry
            elif was_reached and not is_reached:
                change.vanishing[what] = entry
            elif is_reached and earlier is not None and old[1] is not new[1]:
                changes = _changes(earlier, entry, settings or {})
                if changes:
                    change.changing[what] = changes
        if old[1] is not new[1]:
            gone = (what for what in old[1].entries if what not in new[1].entries)
            change.vanishing |= {what: None for what in gone if had.allows(old[1].entries[what])}
            change.vanishing = dict(sorted(change.vanishing.items(), key=lambda each: _order(each[0])))
        yield change


def _order(what: What) -> tuple[int, str]:
    return LISTS.index(what[0]), what[1]


class _Reach:
    """What a caller reaches. Without a caller, nothing is reached."""

    def __init__(self, caller: Caller | None, table: FeatureTable) -> None:
        self._explainer = None if caller is None else AccessExplainer(table.snapshot, caller.grants)

    def allows(self, entry: ListedEntry) -> bool:
        return self._explainer is not None and self._explainer.allows(entry)


def _changes(was: ListedEntry, is_now: ListedEntry, settings: Mapping[str, Sequence[str]]) -> list[str]:
    """What a caller may notice of a feature that it can reach before and after."""
    changes = []
    if was.route.feature.digest != is_now.route.feature.digest:
        changes.append("definition")
    if was.route.keep_seconds != is_now.route.keep_seconds:
        changes.append(f"cache {was.route.keep_seconds:g} → {is_now.route.keep_seconds:g} s")
    if was.labels.believed != is_now.labels.believed:
        changes.append("tags or hints")
    return [*changes, *settings.get(is_now.route.feature.server, ())]


def _by_frontend(callers: Iterable[Caller], narrowed: Container[AccessSubject]) -> dict[AccessSubject, Caller]:
    """Callers in general, and on each frontend that allows them less."""
    found: dict[AccessSubject, Caller] = {}
    for caller in callers:
        found[caller.name, caller.key, None] = caller
        for frontend in FRONTENDS:
            subject: AccessSubject = (caller.name, caller.key, frontend)
            if subject in narrowed:
                found[subject] = caller.on(frontend)
    return found


def _right_change(was: bool, is_now: bool) -> RightChange | None:  # noqa: FBT001 - before and after
    return None if was == is_now else "appear" if is_now else "vanish"


# -- a running hub ---------------------------------------------------------------------------------------------------


class LiveAccess:
    """What the REST API says about the callers and servers of a running hub."""

    def __init__(self, running: RunningHub, identities: Identities) -> None:
        self._running = running
        self._identities = identities
        self._table: FeatureTable | None = None
        self._forgetting: asyncio.TimerHandle | None = None
        self._callers: Sequence[Caller] = ()
        self._callers_of: tuple[object, object] = (None, None)

    def callers(self) -> Sequence[Caller]:
        """Everybody whom the hub would let in. Callers of extensions are not known before they call."""
        live, configuration = self._identities.live, self._running.configuration
        if self._callers_of[0] is not live or self._callers_of[1] is not configuration:
            known = listed_callers(self._identities.callers(), configuration)
            self._callers = [*known, LOCAL_OPERATOR] if self._identities.wants_proof else known
            self._callers_of = (live, configuration)
        return self._callers

    async def _features(self) -> FeatureTable:
        hub = self._running.hub
        if hub.settling:  # servers that start get a moment, as for every list
            await hub.wait_connected(EVERYTHING)
        snapshot = hub.snapshot
        table = self._table
        if table is None or table.snapshot is not snapshot:
            table = self._table = await in_passes(table_passes(snapshot))
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget)
        return table

    def _forget(self) -> None:
        self._table = self._forgetting = None

    def _shown(
        self, pattern: str | None, frontend: FrontendName | None, snapshot: Snapshot
    ) -> tuple[list[CallerPolicy], int]:
        """The callers of an answer, and how many it leaves out."""
        found = self.callers()
        if pattern is not None:
            fits = name_filter(pattern)
            found = [caller for caller in found if fits(caller.name)]
            if not found:
                raise UnknownName("caller", pattern)
        if frontend is not None:
            found = [caller.on(frontend) for caller in found]
        shown = [CallerPolicy(caller, snapshot) for caller in found[:CALLERS_MAX]]
        return shown, len(found) - len(shown)

    async def page(self, query: AccessPageQuery) -> AccessPage:
        """A part of the matrix of callers and features."""
        table = await self._features()
        callers, left_out = self._shown(query.caller, query.frontend, table.snapshot)
        rows = table.rows
        if query.server is not None:
            if query.server not in self._running.hub.server_queues:
                raise UnknownName("server", query.server)
            rows = table.by_server.get(ServerName(query.server), [])
        fits = name_filter("*" if query.name is None else query.name)
        at = 0 if query.cursor is None else bisect_right(rows, _read_cursor(query.cursor), key=lambda row: row.key)
        most = max(1, min(query.limit, CELLS_MAX // max(1, len(callers))))

        def passes() -> Generator[None, None, AccessPage]:
            found: list[AccessFeature] = []
            cells, last = 0, None
            for number in range(at, len(rows)):
                if (number - at) % SLICE == 0 or cells > SLICE:
                    cells = 0
                    yield
                row = rows[number]
                if fits(row.exposed):
                    if len(found) == most:
                        return _page(callers, left_out, found, last)
                    found.append(
                        AccessFeature(row.listed, row.exposed, row.server, [caller.cell(row) for caller in callers])
                    )
                    cells, last = cells + len(callers), row
            return _page(callers, left_out, found, None)

        return await in_passes(passes())

    async def summary(self, caller: str | None, frontend: FrontendName | None) -> AccessSummary:
        """How much of each server each caller can reach."""
        table = await self._features()
        callers, left_out = self._shown(caller, frontend, table.snapshot)

        def passes() -> Generator[None, None, list[AccessServer]]:
            found = []
            for status in sorted(table.snapshot.server_statuses.values(), key=lambda status: status.server):
                rows = table.by_server.get(status.server, [])
                reached = yield from _counts_reached(callers, status.server, rows)
                found.append(AccessServer(status.server, status.state, len(rows), reached))
                yield
            return found

        return AccessSummary([_described(caller.caller) for caller in callers], left_out, await in_passes(passes()))

    async def preview(self, changes: RuleChanges) -> AccessPreview:
        """What other rules would give and take. Nothing is applied."""
        before = self.callers()
        after = changed_callers(before, self._running.configuration.tenants, changes)
        table = await self._features()

        now = {(caller.name, caller.key): caller for caller in after}

        def passes() -> Generator[None, None, list[CallerDifference]]:
            found: list[CallerDifference] = []
            left = CHANGES_MAX
            for change in differences((before, table), (after, table)):
                if change:
                    difference = yield from _difference(change, now, table.snapshot, left)
                    left -= len(difference.appear) + len(difference.vanish)
                    found.append(difference)
                yield
            return found

        found = await in_passes(passes())
        is_complete = all(len(each.appear) + len(each.vanish) == each.appears + each.vanishes for each in found)
        return AccessPreview(found, is_complete)


def _counts_reached(
    callers: Sequence[CallerPolicy], server: ServerName, rows: Sequence[FeatureRow]
) -> Generator[None, None, list[int]]:
    reachable = sum(row.blocked is None for row in rows)
    counts: list[int] = []
    checked = 0
    for caller in callers:
        explainer, count = caller.explainer, 0
        policy = explainer.policy
        if explainer.set is None and policy.may_use_all_of(server):  # for most callers: then no feature needs a check
            count = reachable
        elif policy.reads_labels or policy.is_narrowed or policy.may_see_server(server):
            for row in rows:
                checked += 1
                if checked % SLICE == 0:
                    yield
                count += caller.cell(row).allowed if row.entry is None else explainer.allows(row.entry)
        counts.append(count)
    return counts


def _described(caller: Caller) -> AccessCaller:
    own = caller.at_large.grants
    return AccessCaller(
        caller.name,
        caller.tenant,
        caller.key or None,
        caller.frontend,
        tuple(frontend for frontend, _ in caller.frontends),
        caller.is_operator,
        caller.can_name_targets,
        own.allow,
        own.deny,
        caller.grants.set,
    )


def _page(
    callers: Sequence[CallerPolicy], left_out: int, found: Sequence[AccessFeature], last: FeatureRow | None
) -> AccessPage:
    cursor = None if last is None else _write_cursor(last)
    return AccessPage([_described(caller.caller) for caller in callers], left_out, found, cursor)


def _write_cursor(row: FeatureRow) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(row.key)).decode().rstrip("=")


def _read_cursor(text: str) -> RowKey:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(data, type=tuple[str, int, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise ValueError("cursor must be the `next` of an earlier answer") from None


# -- other rules -----------------------------------------------------------------------------------------------------


def changed_callers(callers: Sequence[Caller], tenants: Tenants, changes: RuleChanges) -> list[Caller]:
    """The callers with other rules.

    Raises:
        ValueError: a pattern is malformed, or a caller has no rules that could change.
        UnknownName: there is no such caller or tenant.
    """
    known = dict(tenants.known)
    for name, rules in changes.tenants.items():
        if name not in known:
            raise UnknownName("tenant", name)
        bounds = _changed_grants(known[name].bounds or Grants(("*",)), rules, f"tenants.{name}")
        known[name] = dataclasses.replace(known[name], bounds=bounds)
    other = dataclasses.replace(tenants, known=known)
    names = {caller.name for caller in callers}
    if missing := [name for name in changes.callers if name not in names]:
        raise UnknownName("caller", missing[0])
    return [_changed_caller(caller, tenants, other, changes.callers.get(caller.name)) for caller in callers]


def _changed_caller(caller: Caller, before: Tenants, after: Tenants, change: CallerChange | None) -> Caller:
    if change is None and after == before:
        return caller
    if caller.is_anyone or caller == LOCAL_OPERATOR:
        if change is not None:
            raise ValueError(f"{caller.name} has no rules: it may call everything")
        return caller
    own = before.unbound(caller)
    if change is not None:
        place = f"callers.{caller.name}"
        frontends = dict(own.frontends)
        for name, rules in change.frontends.items():
            if rules is None:
                frontends.pop(name, None)
            else:
                held = frontends.get(name, Grants(("*",)))
                frontends[name] = _changed_grants(held, rules, f"{place}.frontends.{name}")
        grants = _changed_grants(own.grants, RuleChange(change.allow, change.deny), place)
        own = replace(own, grants=grants, frontends=tuple(frontends.items()))
    return after.bound(own)


def _changed_grants(grants: Grants, change: RuleChange, place: str) -> Grants:
    given = {
        key: [*patterns_given]
        for key, patterns_given in (("allow", change.allow), ("deny", change.deny))
        if patterns_given is not None
    }
    for key, each in given.items():
        if len(each) > PATTERNS_MAX:
            raise ValueError(f"{place}.{key} must have at most {PATTERNS_MAX} patterns, not {len(each)}")
        try:
            grants = replace(grants, **{key: patterns(key, given)})
        except ValueError as error:
            raise ValueError(f"{place}.{error}") from None
    return grants


def _difference(
    change: AccessChange, now: Mapping[tuple[str, str], Caller], snapshot: Snapshot, most: int
) -> Generator[None, None, CallerDifference]:
    """A change in words, with at most so many features."""
    name, key, frontend = change.subject
    caller = now[name, key]
    words = CallerPolicy(caller if frontend is None else caller.on(frontend), snapshot)
    appear = yield from _changed_features(words, change.appearing, most)
    vanish = yield from _changed_features(words, change.vanishing, most - len(appear))
    counts = len(change.appearing), len(change.vanishing)
    return CallerDifference(name, change.tenant, key or None, frontend, *counts, appear, vanish)


def _changed_features(
    words: CallerPolicy, found: Mapping[What, ListedEntry | None], most: int
) -> Generator[None, None, list[ChangedFeature]]:
    shown: list[ChangedFeature] = []
    for entry in islice(found.values(), most):
        if len(shown) % SLICE == SLICE - 1:
            yield
        assert entry is not None, "a preview has one table"
        cell = words.explain(entry)
        shown.append(ChangedFeature(entry.listed, entry.exposed, entry.route.feature.server, cell.by, cell.reason))
    return shown
