"""`isthmus access`: what a caller can reach and why, and what another configuration would change of that for whom.

Whether something is reached is read from the hub's own table (`core.catalog.reasons`). What servers offer comes from a
running hub, or from servers that are started for this; who may do what comes from the configuration and from the keys
in its state folder.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from isthmus.app.extensions import narrowing_of
from isthmus.app.hub import LOCAL
from isthmus.app.identity import Identities
from isthmus.cli.config import configuration_of, refused
from isthmus.cli.documents import ListedFeature, read_listing
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.hub import LocalSource, RemoteSource, open_hub, start_local_hub
from isthmus.cli.output import aligned, print_error, print_json, print_output
from isthmus.config.extensions import EXTENSIONS
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.core.access.policy import BY_NARROWING, Why
from isthmus.core.catalog.checks import CheckCache
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.pins import WITHHOLDING, PinKey, Pinning, Pins, known_of
from isthmus.core.catalog.reasons import AccessReason, explain_access
from isthmus.core.catalog.review import Review
from isthmus.core.catalog.rules import NO_TOOL_RULES
from isthmus.core.catalog.snapshot import ListName, ServerStatus, Snapshot
from isthmus.model.callers import FACES, Caller, Face, Grants, narrowed_on
from isthmus.model.features import Prompt, Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.storage.definitions import FILE, DefinitionStore
from isthmus.upstream.python.builtin import OPERATORS
from isthmus.upstream.settings import ServerSettings
from isthmus.upstream.supervisor import starts_the_same
from isthmus.wire.mcp.lists import PROMPTS, TOOLS


async def snapshot_of(source: RemoteSource | LocalSource, configuration: Configuration, *, wait: float) -> Snapshot:
    """What servers offer now, as this configuration labels it.

    A running hub tells the tools and prompts that the key in ISTHMUS_KEY sees.

    Raises:
        CommandFailed: there is no hub to ask.
    """
    if isinstance(source, LocalSource):
        return _snapshot(_pinned(await _started(configuration, None, wait), configuration), configuration)
    async with open_hub(source, wait=wait) as hub:
        tools = read_listing(await hub.list(TOOLS), TOOLS).offers
        prompts = read_listing(await hub.list(PROMPTS), PROMPTS).offers
    return _snapshot(_told(tools, prompts, configuration), configuration)


async def snapshots_of(old: Configuration, new: Configuration, *, wait: float) -> tuple[Snapshot, Snapshot]:
    """What servers offer under one configuration and under the other."""
    before = {server.name: server for server in old.servers}
    same = {
        server.name for server in new.servers if server.name in before and starts_the_same(before[server.name], server)
    }
    others = {server.name for server in new.servers} - same
    server_statuses = await _started(old, None, wait)
    started = await _started(new, others, wait) if others else {}
    kept = {
        name: server_status for name, server_status in server_statuses.items() if name in same or name not in before
    }
    changed = _ruled({**kept, **started}, new)
    return _snapshot(_pinned(server_statuses, old), old), _snapshot(_pinned(changed, new), new)


async def _started(
    configuration: Configuration, only: Iterable[ServerName] | None, wait: float
) -> dict[ServerName, ServerStatus]:
    own = await start_local_hub(_unpinned(configuration), os.environ, within=wait, only=only)
    try:
        return dict(own.running.hub.snapshot.server_statuses)
    finally:
        await own.aclose()


def _unpinned(configuration: Configuration) -> Configuration:
    """The same without pins: who asks what would be must not have it noted as seen."""
    servers = tuple(replace(server, pin=None) for server in configuration.servers)
    return replace(configuration, servers=servers, hub=replace(configuration.hub, pin="off"))


def _ruled(
    server_statuses: Mapping[ServerName, ServerStatus], configuration: Configuration
) -> dict[ServerName, ServerStatus]:
    """The same standings with what a configuration says of the servers' tools."""
    rules = {server.name: server.rules for server in configuration.servers}
    return {
        name: msgspec.structs.replace(server_status, rules=rules[name]) if name in rules else server_status
        for name, server_status in server_statuses.items()
    }


def _pinned(
    server_statuses: Mapping[ServerName, ServerStatus], configuration: Configuration
) -> dict[ServerName, ServerStatus]:
    """The same without the tools that a hub would withhold; nothing is noted of what is seen here.

    Raises:
        CommandFailed: what tools looked like cannot be read.
    """
    modes: dict[ServerName, Pinning] = {
        server.name: server.pin or configuration.hub.pin for server in configuration.servers
    }
    if not WITHHOLDING & set(modes.values()):
        return dict(server_statuses)
    pins = Pins(_known(Path(configuration.hub.state)), lambda server: modes.get(server, "off"), lambda _: None)
    review = Review(pins)
    return {name: review.of(server_status) for name, server_status in server_statuses.items()}


def _known(folder: Path) -> dict[PinKey, bytes]:
    if not (folder / FILE).exists():
        return {}
    try:
        with closing(DefinitionStore(folder)) as file:
            return known_of(file.known())
    except (OSError, sqlite3.Error) as error:
        said = f"what tools looked like cannot be read from {folder / FILE}: {error}"
        raise CommandFailed(Exit.CONFIGURATION, said, "Run this as whoever runs the hub.") from error


def _told(
    tools: Iterable[ListedFeature], prompts: Iterable[ListedFeature], configuration: Configuration
) -> dict[ServerName, ServerStatus]:
    """Standings made of what a running hub lists; what it hides it does not list, and so only labels are added."""
    labels = {
        server.name: replace(NO_TOOL_RULES, is_trusted=server.rules.is_trusted, tags=server.rules.tags)
        for server in configuration.servers
    }
    labels[BUILTIN] = OPERATORS
    offered: dict[ServerName, tuple[list[Tool], list[Prompt]]] = {}
    for offer in tools:
        of = offered.setdefault(ServerName(offer.server), ([], []))
        of[0].append(Tool.of(ServerName(offer.server), _own_name(offer), dict(offer.definition)))
    for offer in prompts:
        of = offered.setdefault(ServerName(offer.server), ([], []))
        of[1].append(Prompt.of(ServerName(offer.server), _own_name(offer), dict(offer.definition)))
    return {
        name: ServerStatus(
            name, "ready", tools=tuple(of[0]), prompts=tuple(of[1]), rules=labels.get(name, NO_TOOL_RULES)
        )
        for name, of in offered.items()
    }


def _own_name(offer: ListedFeature) -> FeatureName:
    return FeatureName(offer.name.removeprefix(f"{offer.server}."))


def _snapshot(server_statuses: Mapping[ServerName, ServerStatus], configuration: Configuration) -> Snapshot:
    return Snapshot(0, server_statuses, CheckCache(limit_bytes=0), narrowing_of(configuration))


NAMES_MAX = 20
"""Of more callers, only the first are named to somebody who named none of them."""

NAME_WIDTH = 36
"""A longer name does not stand beside a reason, where 80 columns are all there is."""


@dataclass(frozen=True, slots=True)
class AccessQuery:
    """What is to be told of a caller."""

    name: str
    face: Face | None
    is_json: bool


async def show_access(
    source: RemoteSource | LocalSource, config: Path | None, asked: AccessQuery, *, wait: float
) -> Exit:
    """Print what a caller can reach and why, and what denies it the rest.

    Raises:
        CommandFailed: nobody has this name, or there is no hub to ask.
    """
    configuration = configuration_of(config)
    callers = _named(asked.name, configuration)
    snapshot = await snapshot_of(source, configuration, wait=wait)
    told = [
        (_as_it_comes(caller, asked.face), explain_access(snapshot, _as_it_comes(caller, asked.face).grants))
        for caller in callers
    ]
    if asked.is_json:
        print_json(msgspec.json.encode([_document(caller, found) for caller, found in told]))
    else:
        print_output("\n\n".join("\n".join(_lines(caller, found)) for caller, found in told))
    tell_missing(snapshot)
    return Exit.SUCCESS


# -- callers -----------------------------------------------------------------------------------------------------------


def callers_of(configuration: Configuration) -> list[Caller]:
    """Everybody whom the hub of this configuration would know by a key, in the order of their names.

    One with several keys that say the same is told of once. Who comes with a token of an issuer is `ISSUER/*`, and
    `ISSUER/* SCOPE` with that scope. Where no callers are configured it is whoever is at this machine.

    Raises:
        CommandFailed: the list of keys cannot be read.
    """
    try:
        identities = Identities(configuration)
    except ConfigError as error:
        raise refused(error) from error
    known = {replace(caller, key=_minted(caller)) for caller in identities.callers()}
    known.update(_by_tokens(configuration))
    return sorted(known, key=lambda caller: (caller.name, caller.key)) or [LOCAL]


def _by_tokens(configuration: Configuration) -> Iterable[Caller]:
    """Whoever comes with a token of an issuer, as far as nothing more is known of it; and so with each scope."""
    for issuer in configuration.issuers:
        tenant = issuer.tenant if issuer.tenant_claim is None else "?"
        plain = Caller(f"{issuer.name}/*", tenant, issuer.grants)
        yield configuration.tenants.bound(plain)
        for scope, allow in issuer.scopes.items():
            grants = replace(issuer.grants, allow=(*issuer.grants.allow, *allow))
            yield configuration.tenants.bound(replace(plain, name=f"{issuer.name}/* {scope}", grants=grants))


def _minted(caller: Caller) -> str:
    """The id of a key in the state folder; all keys that the file gives a caller are alike."""
    return "" if caller.key.startswith("file:") else caller.key


def _named(name: str, configuration: Configuration) -> list[Caller]:
    known = callers_of(configuration)
    found = [caller for caller in known if caller.name == name]
    if found:
        return found
    names = list(dict.fromkeys(caller.name for caller in known))
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    there = f"There are: {', '.join(names[:NAMES_MAX])}{more}."
    if name in configuration.named:
        there = "The configuration has it, and leaves it out: `isthmus config check` says why."
    elif known == [LOCAL]:
        there = f"No callers are configured: whoever is at this machine comes in, as {LOCAL.name}."
    raise CommandFailed(Exit.USAGE, f"there is no caller {name!r}", there)


def _as_it_comes(caller: Caller, face: Face | None) -> Caller:
    return caller if face is None else caller.on(face)


POLICIES = Place(None, EXTENSIONS).at("policy").path


def places_of(caller: Caller) -> tuple[str, ...]:
    """Where each of the sets is written that a caller's permissions are made of, the innermost first."""
    issuer, slash, _ = caller.name.partition("/*")
    own = Place(None, "issuers").at(issuer) if slash else Place(None, "callers").at(caller.name)
    narrowed = [own.at("faces", face).path for face in reversed(narrowed_on(caller))]
    said = f"key {caller.key}" if caller.key else own.path
    return (*narrowed, said, Place(None, "tenants").at(caller.tenant).path, POLICIES)


# -- for a person ------------------------------------------------------------------------------------------------------


def _lines(caller: Caller, found: Sequence[AccessReason]) -> Iterable[str]:
    yield _heading(caller)
    reached = [reason for reason in found if reason.is_reached]
    for listed, group in groupby(reached, key=lambda reason: reason.listed):
        yield from ("", f"{listed} that it can reach:", *_explained(list(group), caller))
    if not reached:
        yield from ("", "It can reach nothing.")
    rest = [reason for reason in found if not reason.is_reached]
    if rest:
        yield from ("", "not for it, which is told that there is no such thing:", *_explained(rest, caller))
    yield from _notes(caller, rest)
    yield from _idle_denials(caller, found)


def _heading(caller: Caller) -> str:
    key = f", by key {caller.key}" if caller.key else ""
    face = "" if caller.face is None else f", on {caller.face}"
    return f"{caller.name} (tenant {caller.tenant}{key}{face})"


def _explained(found: Sequence[AccessReason], caller: Caller) -> Iterable[str]:
    """Names and reasons side by side; a name that is too long for that has a line of its own."""
    width = max((len(reason.exposed) for reason in found if len(reason.exposed) <= NAME_WIDTH), default=0)
    for reason in found:
        first, *more = _why(reason, caller)
        if len(reason.exposed) > width:
            yield f"  {reason.exposed}"
            more = [first, *more]
        else:
            yield f"  {reason.exposed.ljust(width)}  {first}"
        yield from (f"  {'':{width}}  {each}" for each in more)


def _why(reason: AccessReason, caller: Caller) -> list[str]:
    """What decided, in words; of what bounds a caller only what is not everything is worth a word."""
    places = places_of(caller)
    return [_said(why, places) for why in reason.why if not (why[1] and why[2] == "*" and why[0] == "allow")]


def _said(why: Why, places: Sequence[str]) -> str:
    listed, depth, pattern = why
    if depth == BY_NARROWING:
        return f"{pattern} of {places[depth]} refuses it"
    return f"not in {places[depth]}.allow" if pattern is None else f"{pattern} in {places[depth]}.{listed}"


def _notes(caller: Caller, rest: Iterable[AccessReason]) -> Iterable[str]:
    """What the operator may have expected to be otherwise."""
    wanted = {pattern for allow in _allows(caller.grants) for pattern in allow}
    claims: dict[str, set[str]] = {}
    for reason in rest:
        if reason.why[0][2] is None and (claimed := (reason.labels.suspected - reason.labels.believed) & wanted):
            claims.setdefault(reason.route.feature.server, set()).update(claimed)
    for server, said in claims.items():
        yield from ("", f"{server} says {', '.join(sorted(said))} of what it has;")
        yield f"that counts with servers.{server}.trusted = true."
    if caller.can_name_targets:
        yield from ("", "It may also name servers by their addresses, as far as [targets] allows them.")
    if caller.is_operator:
        yield from ("", "It is an operator: over REST it is shown how every server stands, and what that logs.")
    others = [face for face, _ in caller.faces] if caller.face is None else []
    if others:
        yield from ("", f"On some faces it is held to less: see --face {' or --face '.join(others)}.")


def _idle_denials(caller: Caller, found: Sequence[AccessReason]) -> Iterable[str]:
    """What is denied by a name that nothing has, as far as is known: it may be mistyped, and then denies nothing."""
    names = {f"{each.route.feature.server}.{each.route.feature.name}" for each in found}
    servers = {str(each.route.feature.server) for each in found}
    for place, grants in zip(places_of(caller), _chain(caller.grants), strict=False):
        for pattern in grants.deny:
            server, _, name = pattern.partition(".")
            if server in servers and name not in ("", "*") and pattern not in names:
                yield from ("", f"{pattern} in {place}.deny: {server} has nothing of that name.")


def _chain(grants: Grants | None) -> Iterable[Grants]:
    while grants is not None:
        yield grants
        grants = grants.within


def _allows(grants: Grants | None) -> Iterable[tuple[str, ...]]:
    return (each.allow for each in _chain(grants))


def tell_missing(snapshot: Snapshot, of: str = "") -> None:
    """Say of which servers it is not known what they have, and what nobody is shown before it is approved."""
    missing = [
        server_status
        for server_status in snapshot.server_statuses.values()
        if server_status.state not in ("ready", "disabled")
    ]
    for server_status in missing:
        print_error(
            f"{server_status.server}{of} is {server_status.state}: {server_status.reason or 'it has not answered'}"
        )
    if missing:
        print_error("What these have beside what is shown is not known.")
    withheld = [
        f"{server_status.server}.{tool}"
        for server_status in snapshot.server_statuses.values()
        for tool in server_status.withheld
    ]
    for name in withheld[:NAMES_MAX]:
        print_error(f"{name}{of} is withheld from everybody: isthmus approve {name}")
    if len(withheld) > NAMES_MAX:
        print_error(f"So are {len(withheld) - NAMES_MAX} more: isthmus approve lists them.")
    left_out = {
        f"{each.server}.{tool}": why
        for each in snapshot.server_statuses.values()
        for tool, why in each.left_out.items()
    }
    for name, why in list(left_out.items())[:NAMES_MAX]:
        print_error(f"{name}{of} is left out: {why}")
    if len(left_out) > NAMES_MAX:
        print_error(f"So are {len(left_out) - NAMES_MAX} more: isthmus doctor lists them.")


# -- for a program -----------------------------------------------------------------------------------------------------


def _document(caller: Caller, found: Sequence[AccessReason]) -> Mapping[str, object]:
    places = places_of(caller)
    return {
        "caller": caller.name,
        "tenant": caller.tenant,
        "key": caller.key or None,
        "face": caller.face,
        "faces": [face for face, _ in caller.faces],
        "features": [
            {
                "list": reason.listed,
                "name": reason.exposed,
                "server": reason.route.feature.server,
                "reached": reason.is_reached,
                "why": [{"list": why[0], "place": places[why[1]], "pattern": why[2]} for why in reason.why],
                "labels": sorted(reason.labels.believed),
                "claimed": sorted(reason.labels.suspected - reason.labels.believed),
            }
            for reason in found
        ],
    }


Who: TypeAlias = tuple[str, str, Face | None]
"""A caller by its name and, if it has one of its own in the state folder, its key; and the face that it comes by."""

What: TypeAlias = tuple[ListName, str]
"""A list and a name in it."""

COMPARED = ("timeout", "max_calls", "max_queued", "isolation", "pin")
"""Settings of a server that its callers may notice."""

TARGETS = "servers that it names by their addresses, as far as [targets] allows them"
OPERATOR = "how every server stands, and what that logs (operator)"

RightChange: TypeAlias = Literal["appear", "vanish"]


@dataclass(slots=True)
class AccessChange:
    """What is otherwise for one caller."""

    who: Who
    tenant: str
    appearing: list[What] = field(default_factory=list)
    vanishing: list[What] = field(default_factory=list)
    changing: dict[What, list[str]] = field(default_factory=dict)
    targets: RightChange | None = None
    """What becomes of its right to name servers by their addresses."""
    operator: RightChange | None = None
    """What becomes of its right to see how every server stands."""

    def __bool__(self) -> bool:
        return bool(self.appearing or self.vanishing or self.changing or self.targets or self.operator)


async def show_difference(old_file: Path | None, new_file: Path, *, wait: float, is_json: bool) -> Exit:
    """Print what would change; `CALL_FAILED` if anything does, so that a script can ask.

    Raises:
        CommandFailed: one of the configurations cannot be used.
    """
    old, new = configuration_of(old_file), configuration_of(new_file)
    before, after = await snapshots_of(old, new, wait=wait)
    found = [each for each in differences((old, before), (new, after)) if each]
    if is_json:
        print_json(msgspec.json.encode([_change_document(each) for each in found]))
    elif found:
        print_output("\n\n".join("\n".join(_change_lines(each)) for each in found))
    else:
        print_error("Nobody would notice a difference.")
    for finding in new.warnings:
        print_error(str(finding))
    tell_missing(before, " of the old configuration")
    tell_missing(after, " of the new configuration")
    return Exit.CALL_FAILED if found else Exit.SUCCESS


# -- comparing ---------------------------------------------------------------------------------------------------------


def differences(old: tuple[Configuration, Snapshot], new: tuple[Configuration, Snapshot]) -> Iterator[AccessChange]:
    """What each caller of either would notice, in the order of their names."""
    known = callers_of(old[0]), callers_of(new[0])
    held = {who for callers in known for caller in callers for who in _held(caller)}
    before, after = (_forms(callers, held) for callers in known)
    for who in sorted({**before, **after}, key=lambda who: (who[0], who[1], who[2] or "")):
        was, is_now = before.get(who), after.get(who)
        caller = is_now or was
        assert caller is not None, "it is in one of them"
        told = AccessChange(who, caller.tenant)
        told.targets = _change(*(each is not None and each.can_name_targets for each in (was, is_now)))
        told.operator = _change(*(each is not None and each.is_operator for each in (was, is_now)))
        yield _difference(told, _reached(was, old[1]), _reached(is_now, new[1]), _settings(old[0], new[0]))


def _held(caller: Caller) -> list[Who]:
    """A caller as each face has it that holds it to less."""
    return [(caller.name, caller.key, face) for face in FACES if caller.on(face).grants != caller.grants]


def _forms(callers: Iterable[Caller], held: Container[Who]) -> dict[Who, Caller]:
    """Callers at large, and on the faces that hold them to less here, or in what this is compared with."""
    forms: dict[Who, Caller] = {}
    for caller in callers:
        forms[caller.name, caller.key, None] = caller
        ways: list[Who] = [(caller.name, caller.key, face) for face in FACES]
        forms.update({who: caller.on(face) for who, face in zip(ways, FACES, strict=True) if who in held})
    return forms


def _change(*may: bool) -> RightChange | None:
    """What becomes of a right, by whether it was there and is now."""
    was, is_now = may
    return None if was == is_now else "appear" if is_now else "vanish"


def _reached(caller: Caller | None, snapshot: Snapshot) -> dict[What, AccessReason]:
    if caller is None:
        return {}
    found = explain_access(snapshot, caller.grants)
    return {(reason.listed, reason.exposed): reason for reason in found if reason.is_reached}


def _difference(
    told: AccessChange,
    before: Mapping[What, AccessReason],
    after: Mapping[What, AccessReason],
    settings: Mapping[str, list[str]],
) -> AccessChange:
    told.appearing = [what for what in after if what not in before]
    told.vanishing = [what for what in before if what not in after]
    for what in (what for what in after if what in before):
        changes = [*_changes(before[what], after[what]), *settings.get(after[what].route.feature.server, ())]
        if changes:
            told.changing[what] = changes
    return told


def _changes(before: AccessReason, after: AccessReason) -> Iterator[str]:
    if before.route.feature.digest != after.route.feature.digest:
        yield "definition"
    if before.route.keep_seconds != after.route.keep_seconds:
        yield f"cache {before.route.keep_seconds:g} → {after.route.keep_seconds:g} s"
    if before.labels.believed != after.labels.believed:
        yield "tags or hints"


def _settings(old: Configuration, new: Configuration) -> dict[str, list[str]]:
    """By server: which of its settings are others, and how."""
    before = {server.name: server for server in old.servers}
    return {
        server.name: [
            f"{name} {_shown(was)} → {_shown(now)}"
            for name in COMPARED
            if (was := _setting(before[server.name], name, old)) != (now := _setting(server, name, new))
        ]
        for server in new.servers
        if server.name in before
    }


def _setting(server: ServerSettings, name: str, configuration: Configuration) -> object:
    value = getattr(server, name)
    return configuration.hub.pin if name == "pin" and value is None else value


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- telling -----------------------------------------------------------------------------------------------------------


def _change_lines(difference: AccessChange) -> Iterator[str]:
    name, key, face = difference.who
    by = f", by key {key}" if key else ""
    on = "" if face is None else f", on {face}"
    yield f"{name} (tenant {difference.tenant}{by}{on})"
    yield from _marked("+", difference.appearing)
    yield from _marked("-", difference.vanishing)
    for change, right in ((difference.targets, TARGETS), (difference.operator, OPERATOR)):
        if change is not None:
            yield f"  {'+' if change == 'appear' else '-'} {right}"
    rows = [(f"  ~ {_name(what)}", ", ".join(changes)) for what, changes in difference.changing.items()]
    yield from aligned(rows)


def _marked(mark: str, found: Iterable[What]) -> Iterator[str]:
    return (f"  {mark} {_name(what)}" for what in found)


def _name(what: What) -> str:
    listed, exposed = what
    return exposed if listed == "tools" else f"{exposed} ({listed.removesuffix('s')})"


def _change_document(difference: AccessChange) -> Mapping[str, object]:
    name, key, face = difference.who
    return {
        "caller": name,
        "tenant": difference.tenant,
        "key": key or None,
        "face": face,
        "appear": [_entry(what) for what in difference.appearing],
        "vanish": [_entry(what) for what in difference.vanishing],
        "change": [{**_entry(what), "what": changes} for what, changes in difference.changing.items()],
        "targets": difference.targets,
        "operator": difference.operator,
    }


def _entry(what: What) -> dict[str, object]:
    return {"list": what[0], "name": what[1]}
