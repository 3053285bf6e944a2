"""`isthmus access`: what a caller can reach and why, and what another configuration would change of that for whom.

Whether something is reached is read from the hub's own table (`core.catalog.reasons`). What servers offer comes from a
running hub, or from servers that are started for this; who may do what comes from the configuration and from the keys
in its state folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec
from msgspec.structs import replace

from isthmus.app.hub import LOCAL
from isthmus.app.identity import Identities
from isthmus.cli.access_sources import snapshot_of
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import say, write, write_json
from isthmus.cli.sources import Own, Running, configuration_of, refused
from isthmus.config.extensions import ROOT as EXTENSIONS
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.core.access.policy import BY_NARROWING, Why
from isthmus.core.catalog.reasons import Reason, reasons
from isthmus.core.catalog.snapshot import Snapshot
from isthmus.model.callers import Caller, Face, Grants, narrowed_on

NAMES_MAX = 20
"""Of more callers, only the first are named to somebody who named none of them."""

NAME_WIDTH = 36
"""A longer name does not stand beside a reason, where 80 columns are all there is."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be told of a caller."""

    name: str
    face: Face | None
    is_json: bool


async def show_access(source: Running | Own, config: Path | None, asked: Asked, *, wait: float) -> Exit:
    """Print what a caller can reach and why, and what denies it the rest.

    Raises:
        CommandFailed: nobody has this name, or there is no hub to ask.
    """
    configuration = configuration_of(config)
    callers = _named(asked.name, configuration)
    snapshot = await snapshot_of(source, configuration, wait=wait)
    told = [
        (_as_it_comes(caller, asked.face), reasons(snapshot, _as_it_comes(caller, asked.face).grants))
        for caller in callers
    ]
    if asked.is_json:
        write_json(msgspec.json.encode([_document(caller, found) for caller, found in told]))
    else:
        write("\n\n".join("\n".join(_lines(caller, found)) for caller, found in told))
    tell_missing(snapshot)
    return Exit.WELL


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


def _lines(caller: Caller, found: Sequence[Reason]) -> Iterable[str]:
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


def _explained(found: Sequence[Reason], caller: Caller) -> Iterable[str]:
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


def _why(reason: Reason, caller: Caller) -> list[str]:
    """What decided, in words; of what bounds a caller only what is not everything is worth a word."""
    places = places_of(caller)
    return [_said(why, places) for why in reason.why if not (why[1] and why[2] == "*" and why[0] == "allow")]


def _said(why: Why, places: Sequence[str]) -> str:
    listed, depth, pattern = why
    if depth == BY_NARROWING:
        return f"{pattern} of {places[depth]} refuses it"
    return f"not in {places[depth]}.allow" if pattern is None else f"{pattern} in {places[depth]}.{listed}"


def _notes(caller: Caller, rest: Iterable[Reason]) -> Iterable[str]:
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


def _idle_denials(caller: Caller, found: Sequence[Reason]) -> Iterable[str]:
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
        say(f"{server_status.server}{of} is {server_status.state}: {server_status.reason or 'it has not answered'}")
    if missing:
        say("What these have beside what is shown is not known.")
    withheld = [
        f"{server_status.server}.{tool}"
        for server_status in snapshot.server_statuses.values()
        for tool in server_status.withheld
    ]
    for name in withheld[:NAMES_MAX]:
        say(f"{name}{of} is withheld from everybody: isthmus approve {name}")
    if len(withheld) > NAMES_MAX:
        say(f"So are {len(withheld) - NAMES_MAX} more: isthmus approve lists them.")
    left_out = {
        f"{each.server}.{tool}": why
        for each in snapshot.server_statuses.values()
        for tool, why in each.left_out.items()
    }
    for name, why in list(left_out.items())[:NAMES_MAX]:
        say(f"{name}{of} is left out: {why}")
    if len(left_out) > NAMES_MAX:
        say(f"So are {len(left_out) - NAMES_MAX} more: isthmus doctor lists them.")


# -- for a program -----------------------------------------------------------------------------------------------------


def _document(caller: Caller, found: Sequence[Reason]) -> Mapping[str, object]:
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
