"""`isthmus access`: what a caller can reach and why, and what another configuration would change.

Permissions come from the configuration and from the keys in its state folder; the hub's own table
(`core.catalog.snapshot`) decides what is reached. Tools and prompts come from a running hub, or from servers that are
started for this.
"""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import click
import msgspec
from msgspec.structs import replace

from isthmus.app.access import (
    AccessChange,
    What,
    callers_of,
    chain_of,
    deciding,
    differences,
    places_of,
    reason_words,
    table_of,
)
from isthmus.app.definition_pins import definition_store
from isthmus.app.extensions import extension_policy
from isthmus.app.hub import LOCAL
from isthmus.app.shared_state import is_shared
from isthmus.cli.config import configuration_of
from isthmus.cli.documents import ListedFeature, read_listing, read_servers
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.find_hub import LocalSource, find_hub, open_hub, source_of
from isthmus.cli.local_hub import start_local_hub
from isthmus.cli.options import with_json, with_private, with_source, with_wait
from isthmus.cli.output import aligned, print_error, print_json, print_output
from isthmus.cli.rest_client import RemoteSource
from isthmus.cli.run_command import quiet_logs, run_command
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.core.catalog.access_reasons import AccessReason, explain_access
from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.definition_review import Review
from isthmus.core.catalog.fleets import CARRIER, Fleet, hidden_by
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.pins import WITHHOLDING, Pinning, Pins, known_of
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.catalog.tool_rules import NO_TOOL_RULES
from isthmus.core.catalog.view import ExposedTools, ServerState
from isthmus.model.callers import FRONTENDS, Caller, Exposure, FrontendName
from isthmus.model.calls import EVERYTHING
from isthmus.model.features import Prompt, Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.storage.definition_store import FILE
from isthmus.storage.server_lists import ServerListFiles
from isthmus.upstream.listing import ListCache
from isthmus.upstream.python.builtin import OPERATORS
from isthmus.upstream.server_settings import ServerSettings, keys_of, starts_the_same
from isthmus.wire.mcp.lists import PROMPTS, TOOLS

NAMES_MAX = 20
"""How many names a message lists."""

NAME_WIDTH = 36
"""A longer name gets a line of its own, so that the reasons fit into 80 columns."""

COMPARED = tuple(key.field_name for key in keys_of(ServerSettings) if key.is_noticed)
"""Settings of a server that callers may notice."""

TARGETS = "servers named by address, as far as [targets] allows them"
OPERATOR = "the state and logs of every server (operator)"


@click.command("access")
@click.argument("caller", required=False)
@click.option("--frontend", type=click.Choice(FRONTENDS), help="On this frontend, which may allow the caller less.")
@click.option(
    "--diff",
    "new",
    type=click.Path(path_type=Path),
    metavar="NEW_CONFIG",
    help="Print what this configuration would change for each caller; exit 1 if anything.",
)
@with_source
@with_private
@with_wait
@with_json
def access_command(
    caller: str | None,
    frontend: Any,
    new: Path | None,
    hub: str | None,
    config: Path | None,
    wait: float,
    *,
    is_private: bool,
    is_json: bool,
) -> int:
    """Print what CALLER can reach and why, and what denies it the rest.

    Permissions are read from the configuration and its state folder. The running hub of the configuration has the lists
    of its servers; otherwise, and with --private, they are started. With --hub, tools and prompts are those that the
    hub lists for the key in ISTHMUS_KEY.
    """
    if (caller is None) == (new is None):
        raise click.UsageError("Name a caller, or compare with --diff NEW_CONFIG.")
    quiet_logs()
    if new is not None:
        if hub is not None or frontend is not None:
            raise click.UsageError(
                "--diff compares two files for all callers and frontends; it excludes --hub and --frontend."
            )
        return run_command(show_difference(config, new, wait=wait, is_private=is_private, is_json=is_json))
    source = source_of(hub, config if hub is None else None, is_private=is_private)
    return run_command(show_access(source, config, AccessQuery(str(caller), frontend, is_json), wait=wait))


@dataclass(frozen=True, slots=True)
class AccessQuery:
    """The caller to explain, and how."""

    name: str
    frontend: FrontendName | None
    is_json: bool


async def show_access(
    source: RemoteSource | LocalSource, config: Path | None, query: AccessQuery, *, wait: float
) -> Exit:
    """Print what a caller can reach and why, and what denies it the rest.

    Raises:
        CommandFailed: there is no such caller, or the hub cannot be reached.
    """
    configuration = configuration_of(config)
    callers = _find_callers(query.name, configuration)
    snapshot = await snapshot_of(source, configuration, wait=wait)
    if query.frontend is not None:
        callers = [caller.on(query.frontend) for caller in callers]
    explained = [
        (caller, snapshot.exposure(caller.grants, EVERYTHING), explain_access(snapshot, caller.grants))
        for caller in callers
    ]
    if query.is_json:
        print_json(msgspec.json.encode([_document(*each) for each in explained]))
    else:
        print_output("\n\n".join("\n".join(_lines(*each)) for each in explained))
    print_missing(snapshot)
    for name in sorted({caller.grants.set for caller in callers if caller.grants.set is not None}):
        if name not in configuration.sets:
            print_error(f"The set {name} does not exist, so its callers reach nothing: isthmus config check")
        for note in snapshot.set_notes(name):
            print_error(f"{Place(None, 'sets').at(name, *note.path).path} {note.text}")
    return Exit.SUCCESS


# -- callers ---------------------------------------------------------------------------------------------------------


def _find_callers(name: str, configuration: Configuration) -> list[Caller]:
    known = _callers_of(configuration)
    found = [caller for caller in known if caller.name == name]
    if found:
        return found
    if name in configuration.named:
        advice = "The configuration has it, but the entry is ignored: `isthmus config check` says why."
    elif known == [LOCAL]:
        advice = f"No callers are configured: every program on this machine is {LOCAL.name}."
    else:
        names = list(dict.fromkeys(caller.name for caller in known))
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        advice = f"Callers: {', '.join(names[:NAMES_MAX])}{more}."
    raise CommandFailed(Exit.USAGE, f"there is no caller {name!r}", advice)


def _callers_of(configuration: Configuration) -> list[Caller]:
    """Every caller that a hub with this configuration knows.

    Raises:
        CommandFailed: the key file cannot be read.
    """
    try:
        return callers_of(configuration)
    except ConfigError as error:
        raise refused(error) from error


# -- what servers offer ----------------------------------------------------------------------------------------------


async def snapshot_of(source: RemoteSource | LocalSource, configuration: Configuration, *, wait: float) -> Snapshot:
    """What servers offer now, with the labels of this configuration.

    A running hub lists the tools and prompts that the key in ISTHMUS_KEY may see.

    Raises:
        CommandFailed: the hub cannot be reached or started.
    """
    if isinstance(source, LocalSource):
        statuses = await _statuses(source, configuration, wait=wait)
        return _snapshot(_without_withheld(statuses, configuration), configuration)
    async with open_hub(source, wait=wait) as hub:
        tools = read_listing(await hub.list(TOOLS), TOOLS).features
        prompts = read_listing(await hub.list(PROMPTS), PROMPTS).features
    return _snapshot(_listed(tools, prompts, configuration), configuration)


async def snapshots_of(
    source: LocalSource, old: Configuration, new: Configuration, *, wait: float
) -> tuple[Snapshot, Snapshot]:
    """What servers offer under each configuration. A server that starts the same way in both is started once."""
    before = {server.name: server for server in old.servers}
    same = {
        server.name for server in new.servers if server.name in before and starts_the_same(before[server.name], server)
    }
    others = {server.name for server in new.servers} - same
    statuses = await _statuses(source, old, wait=wait)
    started = await _start(new, others, wait) if others else {}
    changed = {name: status for name, status in statuses.items() if name in same or name not in before} | started
    for server in new.servers:
        if server.name in changed:
            changed[server.name] = replace(changed[server.name], rules=server.rules)
    fleets = {name: status for name, status in statuses.items() if status.carrier == CARRIER}
    kept = {
        name: fleets[name]
        for name, settings in new.fleets.items()
        if name in fleets and settings.may_dial and settings == old.fleets.get(name)
    }
    changed = _with_fleets(changed, new, kept)
    return _snapshot(_without_withheld(statuses, old), old), _snapshot(_without_withheld(changed, new), new)


async def _statuses(
    source: LocalSource, configuration: Configuration, *, wait: float
) -> dict[ServerName, ServerStatus]:
    """The state and the lists of each server, before any rule is applied.

    A running hub has stored the lists of its servers. Those that it does not store are started here.
    """
    running = None if source.is_private else find_hub(source.file)
    if running is None:
        return await _start(configuration, None, wait)
    async with open_hub(running, wait=wait) as hub:
        infos = {info.name: info for info in read_servers(await hub.servers())}
        # Only the hub knows the servers that have dialled in.
        dialled = [name for name, settings in configuration.fleets.items() if settings.may_dial and name in infos]
        tools = read_listing(await hub.list(TOOLS), TOOLS).features if dialled else ()
    known: dict[ServerName, ServerStatus] = {}
    async with aclosing(ServerListFiles(Path(configuration.hub.state))) as files:
        cache = ListCache(files)
        for server in configuration.servers:
            info = infos.get(server.name)
            if info is None or info.unlisted:
                continue
            status = ServerStatus(server.name, cast(ServerState, info.state), info.reason, rules=server.rules)
            if info.state != "ready":
                known[server.name] = status
            elif (stored := await cache.recall(server)) is not None:
                lists = stored.listing
                listed = replace(
                    status,
                    tools=lists.tools,
                    prompts=lists.prompts,
                    resources=lists.resources,
                    templates=lists.templates,
                    abilities=stored.abilities,
                )
                # Lists are stored as the server sent them; the hub leaves out tools with foreign references.
                known[server.name] = Review().reviewed(listed)
    missing = {server.name for server in configuration.servers} - known.keys()
    statuses = await _start(configuration, missing, wait) | known
    offered = _listed(tools, (), configuration)
    fleets = {
        name: ServerStatus(
            name,
            cast(ServerState, infos[name].state),
            infos[name].reason,
            tools=offered[name].tools if name in offered else (),
            carrier=CARRIER,
        )
        for name in dialled
    }
    return _with_fleets(statuses, configuration, fleets)


def _with_fleets(
    statuses: Mapping[ServerName, ServerStatus],
    configuration: Configuration,
    known: Mapping[ServerName, ServerStatus],
) -> dict[ServerName, ServerStatus]:
    """The same servers with the fleets of a configuration: those that are known, and the others by their members."""
    servers = {name: status for name, status in statuses.items() if status.carrier != CARRIER}
    fleets: dict[ServerName, ServerStatus] = {}
    for name, settings in configuration.fleets.items():
        if name in known:
            fleets[name] = known[name]
        else:
            fleet = Fleet(name, settings)
            fleet.update(servers)
            fleets[name] = fleet.status
    return servers | fleets


async def _start(
    configuration: Configuration, only: Iterable[ServerName] | None, wait: float
) -> dict[ServerName, ServerStatus]:
    # Without pins: a preview must not record definitions as seen.
    servers = tuple(dataclasses.replace(server, pin=None) for server in configuration.servers)
    unpinned = dataclasses.replace(configuration.hub, pin="off")
    configuration = dataclasses.replace(configuration, servers=servers, hub=unpinned)
    hub = await start_local_hub(configuration, os.environ, within=wait, only=only)
    try:
        return dict(hub.running.hub.snapshot.server_statuses)
    finally:
        await hub.aclose()


def _without_withheld(
    statuses: Mapping[ServerName, ServerStatus], configuration: Configuration
) -> dict[ServerName, ServerStatus]:
    """The same statuses without the tools that a hub would withhold. Nothing is recorded as seen.

    Raises:
        CommandFailed: the stored definitions cannot be read.
    """
    modes: dict[ServerName, Pinning] = {
        server.name: server.pin or configuration.hub.pin for server in configuration.servers
    }
    if not WITHHOLDING & set(modes.values()):
        return dict(statuses)
    folder, known = Path(configuration.hub.state), {}
    if is_shared(configuration) or (folder / FILE).exists():
        try:
            with closing(definition_store(configuration)) as file:
                known = known_of(file.known())
        except ConfigError as error:
            raise refused(error) from error
        except (OSError, sqlite3.Error) as error:
            text = f"the stored tool definitions cannot be read from {folder / FILE}: {error}"
            raise CommandFailed(Exit.CONFIGURATION, text, "Run this as the user that runs the hub.") from error
    review = Review(Pins(known, lambda server: modes.get(server, "off"), lambda _: None))
    return {name: review.reviewed(status) for name, status in statuses.items()}


def _listed(
    tools: Sequence[ListedFeature], prompts: Sequence[ListedFeature], configuration: Configuration
) -> dict[ServerName, ServerStatus]:
    """Statuses from the lists of a running hub. It hides what it hides already, so only labels are added."""
    labels = {
        server.name: dataclasses.replace(NO_TOOL_RULES, is_trusted=server.rules.is_trusted, tags=server.rules.tags)
        for server in configuration.servers
    }
    labels[BUILTIN] = OPERATORS
    if any(not offer.server for offer in (*tools, *prompts)):
        text = "the key in ISTHMUS_KEY is bound to a set, which hides the servers of its tools"
        raise CommandFailed(Exit.USAGE, text, "Use a key that is bound to no set, or leave --hub out.")
    offered: dict[ServerName, tuple[list[Tool], list[Prompt]]] = {}
    for offer in tools:
        server = ServerName(offer.server)
        name = FeatureName(offer.name.removeprefix(f"{server}."))
        offered.setdefault(server, ([], []))[0].append(Tool.of(server, name, dict(offer.definition)))
    for offer in prompts:
        server = ServerName(offer.server)
        name = FeatureName(offer.name.removeprefix(f"{server}."))
        offered.setdefault(server, ([], []))[1].append(Prompt.of(server, name, dict(offer.definition)))
    return {
        server: ServerStatus(
            server, "ready", tools=tuple(of[0]), prompts=tuple(of[1]), rules=labels.get(server, NO_TOOL_RULES)
        )
        for server, of in offered.items()
    }


def _snapshot(statuses: Mapping[ServerName, ServerStatus], configuration: Configuration) -> Snapshot:
    exposed, policy = ExposedTools(configuration.hub.expose), extension_policy(configuration)
    hides = hidden_by(configuration.fleets.values())
    return Snapshot(
        0,
        statuses,
        CheckCache(limit_bytes=configuration.hub.limits.schema_bytes),
        policy,
        configuration.sets,
        exposed,
        hides,
    )


# -- printing one caller ---------------------------------------------------------------------------------------------


def _lines(caller: Caller, expose: Exposure, found: Sequence[AccessReason]) -> Iterable[str]:
    yield _heading(caller.name, caller.tenant, caller.key, caller.frontend)
    if caller.grants.set is not None:
        yield f"bound to the set {caller.grants.set}"
    if expose != "all":
        yield f'its lists have tools of the hub that find and call those below (expose = "{expose}")'
    reached = [reason for reason in found if reason.is_reached]
    for listed, group in groupby(reached, key=lambda reason: reason.listed):
        yield from ("", f"{listed} that it can reach:", *_explained(list(group), caller))
    if not reached:
        yield from ("", "It can reach nothing.")
    rest = [reason for reason in found if not reason.is_reached]
    if rest:
        yield from ("", 'denied (the caller sees "unknown tool"):', *_explained(rest, caller))
    yield from _notes(caller, rest)
    # Denied names that no known tool has: they may be mistyped, and then deny nothing.
    names = {f"{each.route.feature.server}.{each.route.feature.name}" for each in found}
    servers = {str(each.route.feature.server) for each in found}
    for place, grants in zip(places_of(caller), chain_of(caller.grants), strict=False):
        for pattern in grants.deny:
            server, _, name = pattern.partition(".")
            if server in servers and name not in ("", "*") and pattern not in names:
                yield from ("", f"{pattern} in {place}.deny: {server} has nothing of that name.")


def _heading(name: str, tenant: str, key: str, frontend: FrontendName | None) -> str:
    by = f", by key {key}" if key else ""
    on = "" if frontend is None else f", on {frontend}"
    return f"{name} (tenant {tenant}{by}{on})"


def _explained(found: Sequence[AccessReason], caller: Caller) -> Iterable[str]:
    """Names and reasons side by side; a long name gets a line of its own."""
    places = places_of(caller)
    width = max((len(reason.exposed) for reason in found if len(reason.exposed) <= NAME_WIDTH), default=0)
    for reason in found:
        words = reason_words(deciding(reason), places)
        if reason.set_note:
            words = [*words, reason.set_note] if reason.is_reached else [reason.set_note]
        first, *more = words
        if len(reason.exposed) > width:
            yield f"  {reason.exposed}"
            more = [first, *more]
        else:
            yield f"  {reason.exposed.ljust(width)}  {first}"
        yield from (f"  {'':{width}}  {each}" for each in more)


def _notes(caller: Caller, rest: Iterable[AccessReason]) -> Iterable[str]:
    """What may surprise the operator."""
    wanted = {pattern for grants in chain_of(caller.grants) for pattern in grants.allow}
    claims: dict[str, set[str]] = {}
    for reason in rest:
        if reason.why[0][2] is None and (claimed := (reason.labels.suspected - reason.labels.believed) & wanted):
            claims.setdefault(reason.route.feature.server, set()).update(claimed)
    for server, labels in claims.items():
        yield from ("", f"{server} labels its tools {', '.join(sorted(labels))};")
        yield f"that counts only with servers.{server}.trusted = true."
    if caller.can_name_targets:
        yield from ("", "It may also name servers by address, as far as [targets] allows them.")
    if caller.is_operator:
        yield from ("", "It is an operator: it sees state and logs of every server, and may restart it.")
    others = [frontend for frontend, _ in caller.frontends] if caller.frontend is None else []
    if others:
        yield from ("", f"Some frontends allow it less: see --frontend {' or --frontend '.join(others)}.")


def print_missing(snapshot: Snapshot, of: str = "") -> None:
    """Print which servers are missing, and which tools are withheld or left out."""
    statuses = snapshot.server_statuses.values()
    missing = [status for status in statuses if status.state not in ("ready", "disabled")]
    for status in missing:
        print_error(f"{status.server}{of} is {status.state}: {status.reason or 'it has not answered'}")
    if missing:
        print_error("Tools of servers that are not connected may be missing above.")
    withheld = [f"{status.server}.{tool}" for status in statuses for tool in status.withheld]
    for name in withheld[:NAMES_MAX]:
        print_error(f"{name}{of} is withheld from everybody: isthmus approve {name}")
    if len(withheld) > NAMES_MAX:
        print_error(f"So are {len(withheld) - NAMES_MAX} more: isthmus approve lists them.")
    left_out = [(f"{status.server}.{tool}", why) for status in statuses for tool, why in status.left_out.items()]
    for name, why in left_out[:NAMES_MAX]:
        print_error(f"{name}{of} is left out: {why}")
    if len(left_out) > NAMES_MAX:
        print_error(f"So are {len(left_out) - NAMES_MAX} more: isthmus doctor lists them.")


def _document(caller: Caller, expose: Exposure, found: Sequence[AccessReason]) -> Mapping[str, object]:
    places = places_of(caller)
    return {
        "caller": caller.name,
        "tenant": caller.tenant,
        "key": caller.key or None,
        "set": caller.grants.set,
        "expose": expose,
        "frontend": caller.frontend,
        "frontends": [frontend for frontend, _ in caller.frontends],
        "features": [
            {
                "list": reason.listed,
                "name": reason.exposed,
                "server": reason.route.feature.server,
                "tool": reason.route.feature.name,
                "reached": reason.is_reached,
                "why": [{"list": why[0], "place": places[why[1]], "pattern": why[2]} for why in reason.why],
                "labels": sorted(reason.labels.believed),
                "claimed": sorted(reason.labels.suspected - reason.labels.believed),
            }
            for reason in found
        ],
    }


# -- comparing two configurations ------------------------------------------------------------------------------------


async def show_difference(
    old_file: Path | None, new_file: Path, *, wait: float, is_json: bool, is_private: bool = False
) -> Exit:
    """Print what would change. The exit code is `CALL_FAILED` if anything does, for scripts.

    Raises:
        CommandFailed: one of the configurations cannot be used.
    """
    old, new = configuration_of(old_file), configuration_of(new_file)
    if "hub.state" not in new.origins:  # it is to replace the old file, and then has its keys
        new = dataclasses.replace(new, hub=dataclasses.replace(new.hub, state=old.hub.state))
    before, after = await snapshots_of(LocalSource(old_file, is_private), old, new, wait=wait)
    was, is_now = (_callers_of(old), table_of(before)), (_callers_of(new), table_of(after))
    found = [difference for difference in differences(was, is_now, _changed_settings(old, new)) if difference]
    if is_json:
        print_json(msgspec.json.encode([_change_document(each) for each in found]))
    elif found:
        print_output("\n\n".join("\n".join(_change_lines(each)) for each in found))
    else:
        print_error("Nothing changes for any caller.")
    for finding in new.warnings:
        print_error(str(finding))
    print_missing(before, " of the old configuration")
    print_missing(after, " of the new configuration")
    return Exit.CALL_FAILED if found else Exit.SUCCESS


def _changed_settings(old: Configuration, new: Configuration) -> dict[str, list[str]]:
    """By server: the settings that change, with their values."""
    before = {server.name: server for server in old.servers}
    changes: dict[str, list[str]] = {}
    for server in new.servers:
        if server.name not in before:
            continue
        for name in COMPARED:
            was, now = getattr(before[server.name], name), getattr(server, name)
            if name == "pin":
                was, now = was or old.hub.pin, now or new.hub.pin
            if was != now:
                changes.setdefault(server.name, []).append(f"{name} {_value(was)} → {_value(now)}")
    return changes


def _value(value: object) -> str:
    if value is None:
        return "unset"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _change_lines(change: AccessChange) -> Iterator[str]:
    name, key, frontend = change.subject
    yield _heading(name, change.tenant, key, frontend)
    yield from (f"  + {_feature_name(what)}" for what in change.appearing)
    yield from (f"  - {_feature_name(what)}" for what in change.vanishing)
    for right_change, right in ((change.targets, TARGETS), (change.operator, OPERATOR)):
        if right_change is not None:
            yield f"  {'+' if right_change == 'appear' else '-'} {right}"
    yield from aligned(
        [(f"  ~ {_feature_name(what)}", ", ".join(changes)) for what, changes in change.changing.items()]
    )


def _feature_name(what: What) -> str:
    listed, exposed = what
    return exposed if listed == "tools" else f"{exposed} ({listed.removesuffix('s')})"


def _change_document(change: AccessChange) -> Mapping[str, object]:
    name, key, frontend = change.subject
    return {
        "caller": name,
        "tenant": change.tenant,
        "key": key or None,
        "frontend": frontend,
        "appear": [{"list": listed, "name": exposed} for listed, exposed in change.appearing],
        "vanish": [{"list": listed, "name": exposed} for listed, exposed in change.vanishing],
        "change": [
            {"list": listed, "name": exposed, "what": changes} for (listed, exposed), changes in change.changing.items()
        ],
        "targets": change.targets,
        "operator": change.operator,
    }
