"""`isthmus config`: checks, prints or stores the configuration. Other commands load theirs through here."""

from __future__ import annotations

import getpass
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import click
import msgspec

from isthmus.app.database_config import (
    ConfigConflict,
    ConfigVersion,
    DatabaseConfig,
    database_config,
    load_configuration,
    tables_to_push,
)
from isthmus.app.key_files import keys_in
from isthmus.app.shared_state import is_shared, key_store
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.options import CommandGroup, with_config, with_json
from isthmus.cli.output import counted, harmless, print_error, print_hanging, print_json, print_output, print_table
from isthmus.cli.run_command import quiet_logs
from isthmus.config.entries_to_settings import SECRET_KEYS
from isthmus.config.entry_secrets import plain_secrets, secrets_of
from isthmus.config.extensions import EXTENSIONS, GROUPS
from isthmus.config.files import FILE_BYTES_MAX, read_regular_file
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.load import AccessMode, access_mode, load, load_for_keys
from isthmus.config.named_tables import FLEET_KEYS
from isthmus.config.settings import Configuration, Origin, RelayParts
from isthmus.config.value_sources import Keys, line_numbers, split_path
from isthmus.core.access.approval_rules import ApprovalRule
from isthmus.core.catalog.sets import SetChange
from isthmus.core.catalog.tool_rules import CACHE_SECONDS, ToolRules
from isthmus.model.callers import Caller
from isthmus.model.credentials import OAuthSettings, ServerCredentials
from isthmus.transport.process_limits import ProcessLimits
from isthmus.upstream.server_settings import (
    SERVER_KEYS,
    DeclaredTool,
    ServerKey,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
    declared_values,
)

Weight: TypeAlias = Literal["error", "warning"]
"""With an error, the hub refuses to start; a warning costs one entry or has no effect."""

Pair: TypeAlias = tuple[str, object]

HIDDEN = "***"


@click.group(cls=CommandGroup)
def config() -> None:
    """Check or print the configuration, or store it for all nodes of a cluster."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@with_config
@with_json
def check(file: Path | None, config: Path | None, *, is_json: bool) -> int:
    """Check a configuration without starting anything."""
    if file is not None and config is not None:
        raise click.UsageError("FILE and --config are the same thing: give one of them.")
    return check_configuration(file or config, is_json=is_json)


@config.command()
@with_config
@click.option("--origin", "with_origin", is_flag=True, help="Print where each value comes from.")
@with_json
def show(config: Path | None, *, with_origin: bool, is_json: bool) -> int:
    """Print the configuration as the hub reads it, with secrets hidden."""
    configuration = configuration_of(config)
    values = [
        ConfigValue(path, value, _origin(path, configuration.origins)) for path, value in _all_values(configuration)
    ]
    lines = _LineNumbers() if with_origin else None
    if is_json:
        print_json(_values_as_json(configuration, values, lines))
        return Exit.SUCCESS
    rows: list[tuple[str, ...]] = [(value.path, msgspec.json.encode(value.value).decode()) for value in values]
    if lines is not None:
        rows = [(*row, lines.describe(value.origin)) for row, value in zip(rows, values, strict=True)]
    head = ("SETTING", "VALUE", "ORIGIN")[: 2 if lines is None else 3]
    rows = [tuple(harmless(cell, keep="") for cell in row) for row in rows]
    print_table(head, rows, ("cyan", "", "")[: len(head)], is_wrapped=True)
    if configuration.file is None:
        print_error("No configuration file was found: these are the defaults.")
    if configuration.warnings:
        print_error(f"{counted(len(configuration.warnings), 'finding')}: `isthmus config check` lists them.")
    return Exit.SUCCESS


# -- versions in the database of a cluster ---------------------------------------------------------------------------


@config.command(short_help="Store a configuration for all nodes of the cluster.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--base", type=int, metavar="VERSION", help="Refuse if this is not the latest version (0: none).")
@click.option("--note", default="", help="Why, for `isthmus config history`.")
@click.option("--force", "is_forced", is_flag=True, help="Store it even if some of its servers cannot be used.")
@with_config
@with_json
def push(file: Path, base: int | None, note: str, config: Path | None, *, is_forced: bool, is_json: bool) -> int:
    """Check FILE, and store it as the next version of the configuration in the database of the cluster.

    Nodes with `[cluster] config = "database"` apply it within a second. FILE has everything that nodes have in common;
    --config names the file of a node, which has the rest. Secrets should be references (env:NAME, file:PATH): they are
    resolved on each node, and here to check them.
    """
    stored = _database(config)
    try:
        text = read_regular_file(file, FILE_BYTES_MAX).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise CommandFailed(Exit.CONFIGURATION, f"{file} cannot be read: {error}") from error
    return _store(stored, file, text, base, note, config, is_forced=is_forced, is_json=is_json)


@config.command(short_help="Make an earlier version the newest one.")
@click.argument("version", type=int)
@click.option("--base", type=int, metavar="VERSION", help="Refuse if this is not the latest version.")
@click.option("--force", "is_forced", is_flag=True, help="Store it even if some of its servers cannot be used.")
@with_config
@with_json
def rollback(version: int, base: int | None, config: Path | None, *, is_forced: bool, is_json: bool) -> int:
    """Store an earlier version again, as the newest one."""
    stored = _database(config)
    old = _version(stored, version)
    file, note = Path(f"version-{version}{old.suffix}"), f"version {version} again"
    return _store(stored, file, old.text, base, note, config, is_forced=is_forced, is_json=is_json)


@config.command(short_help="List the stored versions.")
@with_config
@with_json
def history(config: Path | None, *, is_json: bool) -> int:
    """List the versions of the configuration in the database of the cluster, newest first."""
    found = list(reversed(_database(config).versions()))
    if is_json:
        print_json(msgspec.json.encode({"versions": [_version_as_json(version) for version in found]}))
    elif not found:
        print_error("No configuration was pushed yet.")
    else:
        rows = [(str(each.number), _time(each.at), each.author, each.digest[:12], each.note) for each in found]
        head = ("VERSION", "TIME", "AUTHOR", "DIGEST", "NOTE")
        print_table(head, [tuple(harmless(cell, keep="") for cell in row) for row in rows], ("bold", *[""] * 4))
    return Exit.SUCCESS


@config.command(short_help="Print a stored version.")
@click.option("--version", type=int, metavar="VERSION", help="Another version than the latest.")
@with_config
@with_json
def pull(version: int | None, config: Path | None, *, is_json: bool) -> int:
    """Print the text of a version as it was pushed; its number goes to standard error, for push --base."""
    found = _version(_database(config), version)
    if is_json:
        print_json(msgspec.json.encode({**_version_as_json(found), "text": found.text}))
    else:
        print_error(f"version {found.number}")
        print_output(found.text.rstrip("\n"))
    return Exit.SUCCESS


def _database(file: Path | None) -> DatabaseConfig:
    """The versions in the database that the file of a node names."""
    quiet_logs()
    try:
        found = database_config(load(file, os.environ, Path.cwd(), home()))
    except ConfigError as error:
        raise refused(error) from error
    if found is None:
        text = "this configuration has no database of a cluster"
        raise CommandFailed(Exit.CONFIGURATION, text, "It needs [cluster], and [storage] url = postgresql://…")
    return found


def _version(stored: DatabaseConfig, number: int | None) -> ConfigVersion:
    found = {version.number: version for version in stored.versions()}
    wanted = max(found, default=0) if number is None else number
    if wanted not in found:
        text = "no configuration was pushed yet" if not found else f"version {wanted} is not stored"
        raise CommandFailed(Exit.CONFIGURATION, text, "isthmus config history lists the versions.")
    return found[wanted]


def _store(
    stored: DatabaseConfig,
    file: Path,
    text: str,
    base: int | None,
    note: str,
    config: Path | None,
    *,
    is_forced: bool,
    is_json: bool,
) -> int:
    """Check a text as a node would, and store it."""
    try:
        tables = tables_to_push(file, text)
        node = load(config, os.environ, Path.cwd(), home())
        stored_tables = (0, tables)
        read = load(node.file, os.environ, Path.cwd(), home(), stored=stored_tables)
        access_of(read)
    except ConfigError as error:
        raise refused(error) from error
    for finding in read.warnings:
        print_error(f"warning: {finding} [{finding.code}]")
    for path in sorted(plain_secrets(tables)):
        print_error(
            f"warning: {path} has a secret in plain text, which everybody who can read the database sees: use env:NAME"
        )
    if read.broken and not is_forced:
        text = f"{counted(len(read.broken), 'server')} cannot be used: {', '.join(read.broken)}; nothing was stored"
        raise CommandFailed(Exit.CONFIGURATION, text, "Fix the findings, or store it as it is with --force.")
    version = ConfigVersion(0, text, file.suffix.lower(), f"{getpass.getuser()}@{platform.node()}", time.time(), note)
    try:
        new = stored.push(version, base)
    except ConfigConflict as conflict:
        advice = "Look at it with isthmus config pull, and name it with --base."
        problem = f"the latest version is {conflict.latest}, not {base}; nothing was stored"
        raise CommandFailed(Exit.CALL_FAILED, problem, advice) from conflict
    except OSError as error:
        raise CommandFailed(Exit.CONFIGURATION, str(error), "Look at isthmus config history first.") from error
    if is_json:
        print_json(msgspec.json.encode(_version_as_json(new)))
    else:
        print_output(f"version {new.number}")
        if node.cluster.config != "database":
            print_error('Nodes use it with [cluster] config = "database".')
    return Exit.SUCCESS


def _version_as_json(version: ConfigVersion) -> dict[str, object]:
    return {
        "version": version.number,
        "time": _time(version.at),
        "author": version.author,
        "digest": version.digest,
        "note": version.note,
    }


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- loading ---------------------------------------------------------------------------------------------------------


def configuration_of(
    file: Path | None, *, host: str | None = None, port: int | None = None, log_level: str | None = None
) -> Configuration:
    """Find and load the configuration.

    Raises:
        CommandFailed: it cannot be used; the message lists every finding.
    """
    try:
        return load_configuration(file, os.environ, Path.cwd(), home(), host=host, port=port, log_level=log_level)
    except ConfigError as error:
        raise refused(error) from error


def configuration_for_keys(file: Path | None) -> tuple[Configuration, str]:
    """The configuration, or only the parts that keys need together with the reason.

    An operator must be able to revoke a key without the environment variables that the hub was started with.

    Raises:
        CommandFailed: not even those parts can be read.
    """
    try:
        return load_configuration(file, os.environ, Path.cwd(), home()), ""
    except ConfigError as error:
        trouble = "\n  ".join(str(finding) for finding in error.findings)
    try:
        return load_for_keys(file, os.environ, Path.cwd(), home()), trouble
    except ConfigError as error:
        raise refused(error) from error


def home() -> Path:
    """The user's home folder; `~` itself where the system knows none."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("~")


def access_of(configuration: Configuration) -> AccessMode:
    """Whether a hub with this configuration requires keys or is open.

    Raises:
        ConfigError: the hub would refuse to start: it would be open to a network, or its keys cannot be read.
    """
    has_keys = keys_in(key_store(configuration)) is not None
    has_others = has_keys or bool(configuration.issuers) or bool(configuration.extensions.in_group("identity"))
    return access_mode(configuration.hub, configuration.callers, has_others=has_others, targets=configuration.targets)


def servers_folder(configuration: Configuration) -> str | None:
    """The folder of a file elsewhere, if its servers run there because their relative arguments mean it."""
    folder = None if configuration.file is None else os.path.normpath(configuration.file.parent)
    reaches = [server.reach for server in configuration.servers]
    is_used = any(isinstance(reach, StdioSettings) and reach.cwd == folder for reach in reaches)
    return folder if is_used and folder != str(Path.cwd()) else None


# -- config check ----------------------------------------------------------------------------------------------------


def check_configuration(file: Path | None, *, is_json: bool) -> Exit:
    """Print every finding. Any finding fails the check."""
    configuration: Configuration | None = None
    findings: list[tuple[Weight, Finding]] = []
    try:
        read = load_configuration(file, os.environ, Path.cwd(), home())
        findings = [("warning", finding) for finding in read.warnings]
        access_of(read)
        configuration = read
    except ConfigError as error:  # the hub would refuse it
        findings = [*(("error", finding) for finding in error.findings), *findings]
    if is_json:
        used = None if configuration is None else configuration.file
        document = {
            "file": None if used is None else str(used),
            "usable": configuration is not None,
            "findings": [finding_as_json(finding, weight) for weight, finding in findings],
        }
        print_json(msgspec.json.encode(document))
    else:
        _print_check(configuration, findings)
    return Exit.CONFIGURATION if findings else Exit.SUCCESS


def finding_as_json(finding: Finding, weight: Weight) -> dict[str, str | None]:
    """A finding for programs."""
    return {
        "weight": weight,
        "file": None if finding.file is None else str(finding.file),
        "path": finding.path,
        "value": finding.value,
        "message": finding.message,
        "advice": finding.advice,
        "code": finding.code.number,
        "kind": finding.code.name,
        "fix": finding.fix,
    }


def _print_check(configuration: Configuration | None, findings: Sequence[tuple[Weight, Finding]]) -> None:
    for weight, finding in findings:
        print_hanging(f"{weight}: {finding} [{finding.code}]", "  ")
    if configuration is None:
        print_error("The hub would refuse to start with this configuration. Fix the errors above.")
        return
    if configuration.file is None:
        print_output("no configuration file found: the hub would serve the built-in tools only")
    else:
        callers = {caller.name for _, caller in configuration.callers}
        keys = [key for key in keys_in(key_store(configuration)) or () if key.is_good(time.time())]
        counts = [counted(len(configuration.servers), "server")]
        if callers or not keys:
            counts.append(counted(len(callers), "caller"))
        if keys:
            counts.append(
                f"{counted(len(keys), 'key')} in the {'database' if is_shared(configuration) else 'state folder'}"
            )
        if configuration.issuers:
            counts.append(counted(len(configuration.issuers), "issuer"))
        where = f"listening on {configuration.hub.host}:{configuration.hub.port}"
        print_hanging(f"{configuration.file}: {', '.join(counts)}, {where}", "  ")
    if findings:
        print_error("The hub would start and ignore the entries above. Fix the warnings.")


# -- config show -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One value of the configuration."""

    path: str
    value: object
    origin: Origin | None
    """None for a default."""


def _values_as_json(configuration: Configuration, values: Sequence[ConfigValue], lines: _LineNumbers | None) -> bytes:
    listed: list[dict[str, object]] = []
    for value in values:
        entry: dict[str, object] = {"path": value.path, "value": value.value}
        if lines is not None:
            entry["origin"] = (
                None
                if (origin := value.origin) is None
                else {
                    "file": None if origin.file is None else str(origin.file),
                    "line": lines.line_of(origin),
                    "path": origin.path,
                    "borrowed": list(origin.borrowed),
                }
            )
        listed.append(entry)
    return msgspec.json.encode(
        {
            "file": None if configuration.file is None else str(configuration.file),
            "files": [str(file) for file in configuration.files if file.exists()],
            "values": listed,
            "findings": [finding_as_json(finding, "warning") for finding in configuration.warnings],
        }
    )


def _all_values(configuration: Configuration) -> Iterator[Pair]:
    hub = configuration.hub
    yield from ((f"hub.{name}", getattr(hub, name)) for name in _names(hub) if name != "limits")
    for table, settings in (("limits", hub.limits), ("a2a", configuration.a2a), ("targets", configuration.targets)):
        yield from ((f"{table}.{name}", getattr(settings, name)) for name in _names(settings))
    yield "storage.url", configuration.storage.shown
    # Without a key here, the state folder has one.
    yield "credentials.key", HIDDEN if configuration.credentials.key else None
    yield "audit.keep", configuration.audit.keep
    for name in _names(configuration.telemetry):
        value = getattr(configuration.telemetry, name)
        yield f"telemetry.{name}", HIDDEN if name == "metrics_key" and value else value
    for group in GROUPS:
        yield f"{EXTENSIONS}.{group}", [each.name for each in configuration.extensions.in_group(group)]
    yield from _relay_values(configuration.relay)
    for server in configuration.servers:
        yield from _below("servers", server.name, _server_values(server))
    for name, chosen in configuration.sets.items():
        others = (key for key in _names(chosen) if key not in (*chosen.changes, "variants"))
        picked: list[Pair] = [(key, getattr(chosen, key)) for key in others]
        for table, changes in chosen.changes.items():
            picked.append((table, {full: _set_change(each) for full, each in changes.items()}))
        yield from _below("sets", name, picked)
    for name, fleet in configuration.fleets.items():
        yield from _below("fleets", name, [(key, getattr(fleet, key)) for key in FLEET_KEYS])
    for rule in configuration.approvals:
        yield from _below("approvals", rule.name, _approval_values(rule))
    for budget in configuration.budgets:
        pairs: list[Pair] = [(key, getattr(budget, key)) for key in _names(budget) if key not in ("name", "costs")]
        yield from _below("budgets", budget.name, [*pairs, ("costs", dict(budget.costs))])
    for name, tenant in configuration.tenants.known.items():
        bounds = tenant.bounds
        limits: list[Pair] = [] if bounds is None else [("allow", bounds.allow), ("deny", bounds.deny)]
        yield from _below("tenants", name, [*limits, ("max_calls", tenant.max_calls)])
    keys_by_caller: dict[Caller, list[bytes]] = {}
    for digest, caller in configuration.callers:
        keys_by_caller.setdefault(caller, []).append(digest)
    for caller, digests in keys_by_caller.items():
        expires_at = configuration.expiries.get(digests[0])
        yield from _below("callers", caller.name, _caller_values(caller, len(digests), expires_at))
    for issuer in configuration.issuers:
        names = (name for name in _names(issuer) if name not in ("name", "grants", "scopes"))
        values: list[Pair] = [(name, getattr(issuer, name)) for name in names]
        values += [("allow", issuer.grants.allow), ("deny", issuer.grants.deny), ("set", issuer.grants.set)]
        values.append(("scopes", {scope: list(patterns) for scope, patterns in issuer.scopes.items()}))
        yield from _below("issuers", issuer.name, values)


def _below(table: str, name: str, pairs: Iterable[Pair]) -> Iterator[Pair]:
    place = Place(None, table).at(name)
    return ((place.at(key).path, value) for key, value in pairs)


def _names(settings: object) -> list[str]:
    return [field.name for field in fields(settings)]  # type: ignore[arg-type]


def _relay_values(relay: RelayParts) -> Iterator[Pair]:
    # Without a key here, the state folder has one, where `isthmus token` finds it too.
    yield "relay.key", None if relay.tokens.key is None else HIDDEN
    for part in (relay.tokens, relay.frontend, relay.dialin):
        names = (name for name in _names(part) if name not in ("key", "agents", "tenants"))
        yield from ((f"relay.{name}", getattr(part, name)) for name in names)
    for agent, rules in relay.frontend.agents.items():
        yield from _below("relay.agents", agent, msgspec.structs.asdict(rules).items())


def _caller_values(caller: Caller, keys: int, expires_at: float | None) -> Iterator[Pair]:
    yield "key", HIDDEN if keys == 1 else [HIDDEN] * keys
    yield "expires", None if expires_at is None else datetime.fromtimestamp(expires_at, UTC).isoformat()
    yield "tenant", caller.tenant
    yield "allow", caller.grants.allow
    yield "deny", caller.grants.deny
    yield "set", caller.grants.set
    yield "targets", caller.may_name_targets
    yield "operator", caller.is_operator
    yield "max_result_bytes", caller.max_result_bytes
    yield (
        "frontends",
        {frontend: {"allow": list(held.allow), "deny": list(held.deny)} for frontend, held in caller.frontends},
    )


def _approval_values(rule: ApprovalRule) -> Iterator[Pair]:
    """The keys of a rule; the address of a webhook may contain a secret."""
    for name in _names(rule):
        if name == "webhook":
            yield name, None if rule.webhook is None else HIDDEN
        elif name == "arguments":
            yield (
                name,
                {Place(None).at(*argument.path).path: {argument.test: argument.value} for argument in rule.arguments},
            )
        elif name != "name":
            yield name, getattr(rule, name)


def _set_change(change: SetChange) -> dict[str, object]:
    """The changes of one tool, prompt or resource; a fixed value may be a secret."""
    shown = {key: getattr(change, key) for key in _names(change)}
    shown |= {"fixed": sorted(change.fixed), "hide": list(change.hide)}
    return {key: value for key, value in shown.items() if value}


def _server_values(server: ServerSettings) -> Iterator[Pair]:
    reach = server.reach
    pairs = [(key.name, _server_value(key, value, server)) for key, value in declared_values(server)]
    transport = "ws" if isinstance(reach, WebSocketSettings) else getattr(reach, "carrier", None)
    pairs += [
        ("type", transport),
        ("era", reach.era),
        *_credential_values(server.credentials),
        *_rule_values(server.rules),
        # Only the names: the hub does not know these keys, so it does not know which values are secret.
        ("extra", sorted(server.extra)),
    ]
    return ((key, value) for key, value in dict(pairs).items() if value not in (None, (), {}, []))


def _server_value(key: ServerKey, value: object, server: ServerSettings) -> object:
    match value:
        case ProcessLimits():
            limits = ((name, getattr(value, name)) for name in _names(value))
            return {name.removesuffix("_bytes"): limit for name, limit in limits if limit is not None}
        case str() if key.name == "ca":
            return f"{value.count('BEGIN CERTIFICATE')} certificate(s)" if value else None
        case str():
            return server.redact(value)
        case tuple():
            return [each.name if isinstance(each, DeclaredTool) else server.redact(each) for each in value]
        case Mapping():
            named = secrets_of({key.name: dict(value)})  # even short ones are hidden
            return {
                name: HIDDEN if text in server.secrets or text in named else server.redact(text)
                for name, text in value.items()
            }
        case _:
            return value


def _credential_values(credentials: ServerCredentials) -> Iterator[Pair]:
    if credentials.oauth is not None:
        yield "oauth", _oauth_values(credentials.oauth)
    callers: dict[str, dict[str, object]] = {}
    for caller_id, own in credentials.own.items():
        values: dict[str, object] = {"headers": dict.fromkeys(own.headers, HIDDEN)} if own.headers else {}
        if own.oauth is not None:
            values["oauth"] = _oauth_values(own.oauth)
        callers[f"{caller_id.tenant}/{caller_id.name}"] = values
    yield "callers", callers
    if credentials.are_demanded:
        yield "credentials", "caller"


def _oauth_values(oauth: OAuthSettings) -> dict[str, object]:
    """The settings of a login that differ from the defaults, with secrets hidden."""
    usual = OAuthSettings()
    changed = {name: getattr(oauth, name) for name in _names(oauth) if getattr(oauth, name) != getattr(usual, name)}
    hidden: dict[str, object] = {name: HIDDEN for name in SECRET_KEYS if name in changed}
    return {"grant": oauth.grant, **changed, **hidden}


def _rule_values(rules: ToolRules) -> Iterator[Pair]:
    if rules.only is not None:
        yield "include_tools", list(rules.only) or ["(none)"]
    yield "exclude_tools", rules.hidden
    yield "defaults", {tool: sorted(arguments) for tool, arguments in rules.defaults.items()}
    if rules.cached or rules.cache_seconds != CACHE_SECONDS:
        yield "cache", {"tools": list(rules.cached), "ttl": rules.cache_seconds}
    if rules.is_trusted:
        yield "trusted", True
    yield "tags", {name: list(tags) for name, tags in rules.tags.items()}


def _origin(path: str, origins: Mapping[str, Origin]) -> Origin | None:
    if path in origins:
        return origins[path]
    server, _, key = path.rpartition(".")
    if not path.startswith("servers."):
        return None
    if key == "extra":
        return origins.get(server)
    if key not in SERVER_KEYS:
        return None
    declared = SERVER_KEYS[key]
    others = [f"{server}.{alias}" for alias in declared.aliases]
    others += [f"limits.{declared.limit}"] if declared.limit else []
    return next((origins[other] for other in others if other in origins), None)


class _LineNumbers:
    """The line of each value in its file. Each file is read once."""

    def __init__(self) -> None:
        self._files: dict[Path, dict[Keys, int]] = {}

    def line_of(self, origin: Origin) -> int | None:
        """The line of a value; None if it is unknown."""
        if origin.file is None:
            return None
        if origin.file not in self._files:
            self._files[origin.file] = line_numbers(origin.file)
        return self._files[origin.file].get(split_path(origin.path))

    def describe(self, origin: Origin | None) -> str:
        """Where a value comes from, for a person."""
        if origin is None:
            return "default"
        if origin.file is None:
            return origin.path if origin.path.startswith("--") else f"variable {origin.path}"
        line = self.line_of(origin)
        where = f"{origin.file}:{line}" if line is not None else f"{origin.file}"
        borrowed = f", with {', '.join(origin.borrowed)}" if origin.borrowed else ""
        return f"{where} {origin.path}{borrowed}"
