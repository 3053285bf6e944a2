"""Compares two configurations, and decides what a running hub can apply of a newer one.

Plain functions over values: nothing is started, read or logged. `app.hub` applies a `ConfigDiff`, `app.reload` calls
both functions. Whether a changed server needs a new link, `upstream.server_settings.starts_the_same` says; the settings
of the hub that need a restart of the whole process are listed in `FIXED`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from isthmus.config.extensions import EXTENSIONS
from isthmus.config.finding_codes import BAD_EXTENSION, UNRESOLVED_VARIABLE
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.model.names import ServerName
from isthmus.upstream.server_settings import ServerSettings

Key = TypeVar("Key", bound=str)
Value = TypeVar("Value")

FIXED: Mapping[str, tuple[str, ...]] = {
    "hub": ("host", "port", "public_url", "names", "state", "tools", "audit", "console"),
    "limits": (
        "request_bytes",
        "caller_bytes",
        "tenant_bytes",
        "lag_bytes",
        "lag_seconds",
        "schema_bytes",
        "connections",
        "connections_per_address",
    ),
    "a2a": ("grpc_port",),
    "cluster": ("nats", "node", "credentials", "tls_ca", "tls_cert", "tls_key", "lease_seconds", "config"),
    "relay": ("enabled",),
    "storage": ("url",),
    "telemetry": ("metrics_tools", "otlp_endpoint", "sample_ratio"),
}
"""By table: the settings that a running hub cannot change. Callers know the address and the names, and the listener,
the storage and the validation of arguments are built with the values of the start."""


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """What a newer configuration changes."""

    added: tuple[ServerSettings, ...] = ()
    changed: tuple[ServerSettings, ...] = ()
    removed: tuple[ServerName, ...] = ()
    settings: tuple[str, ...] = ()
    """Paths of the hub's settings that changed, as a file writes them."""
    callers_changed: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.settings or self.callers_changed)


def compare(old: Configuration, new: Configuration) -> ConfigDiff:
    """Return what differs, servers by their names."""
    before = {server.name: server for server in old.servers}
    after = {server.name: server for server in new.servers}
    return ConfigDiff(
        added=tuple(server for name, server in after.items() if name not in before),
        changed=tuple(server for name, server in after.items() if name in before and before[name] != server),
        removed=tuple(name for name in before if name not in after),
        settings=changed_settings(old, new),
        callers_changed=set(old.callers) != set(new.callers)
        or (old.expiries, old.tenants, old.issuers) != (new.expiries, new.tenants, new.issuers),
    )


def changed_settings(old: Configuration, new: Configuration) -> tuple[str, ...]:
    """Return the paths of the hub's settings that differ, agents of the relay one by one; never a value."""
    before, after = _settings_by_path(old), _settings_by_path(new)
    return tuple(path for path in {**before, **after} if before.get(path) != after.get(path))


def _settings_by_path(configuration: Configuration) -> dict[str, object]:
    hub, relay = configuration.hub, configuration.relay
    found: dict[str, object] = {}
    for item in fields(hub):
        name = item.name
        path = f"log.{name.removeprefix('log_')}" if name.startswith("log_") else f"hub.{name}"
        found[path] = getattr(hub, name)
    tables: tuple[tuple[str, object], ...] = (
        ("limits", hub.limits),
        ("a2a", configuration.a2a),
        ("tasks", configuration.tasks),
        ("targets", configuration.targets),
        ("storage", configuration.storage),
        ("cluster", configuration.cluster),
        ("telemetry", configuration.telemetry),
        ("relay", relay.frontend),
        ("relay", relay.dialin),
        ("relay", relay.tokens),
    )
    found |= {Place(None, "sets").at(name).path: settings for name, settings in configuration.sets.items()}
    found |= {Place(None, "fleets").at(name).path: settings for name, settings in configuration.fleets.items()}
    found["approvals"] = tuple(rule.name for rule in configuration.approvals)  # their order counts
    found |= {Place(None, "approvals").at(rule.name).path: rule for rule in configuration.approvals}
    found |= {Place(None, "budgets").at(budget.name).path: budget for budget in configuration.budgets}
    for table, settings in tables:
        found |= {f"{table}.{item.name}": getattr(settings, item.name) for item in fields(settings)}  # type: ignore[arg-type]
    internal = ("storage.is_foreign", "cluster.is_enabled", "cluster.is_one_machine")
    for path in (*internal, "hub.limits", "relay.agents", "relay.tenants"):
        del found[path]  # not keys of a file, or compared one by one
    place = Place(None, "relay.agents")
    return found | {place.at(agent).path: rules for agent, rules in relay.frontend.agents.items()}


LOCAL_SETTINGS = ("hub.host", "hub.port", "hub.state", "log.", "cluster.", "storage.")
"""Settings that nodes of a cluster need not have in common."""

DIGEST_BYTES = 8


def digests_of(configuration: Configuration) -> dict[str, str]:
    """A digest of each table of the configuration that nodes of a cluster should have in common, servers included.

    Paths below the folder of the file count as relative to it. The digests do not depend on the process.
    """
    parts: dict[str, object] = {
        path: value for path, value in _settings_by_path(configuration).items() if not path.startswith(LOCAL_SETTINGS)
    }
    parts |= {f"servers.{server.name}": server for server in configuration.servers}
    parts["callers"] = (configuration.callers, configuration.expiries)
    parts["tenants"] = configuration.tenants
    parts["issuers"] = configuration.issuers
    parts["code"] = configuration.code
    parts["credentials"] = configuration.credentials.key_id
    folder = None if configuration.file is None else str(configuration.file.parent)
    tables: dict[str, list[object]] = {}
    for path in sorted(parts):
        tables.setdefault(path.partition(".")[0], []).append([path, _plain(parts[path], folder)])
    return {
        table: hashlib.blake2b(msgspec.json.encode(found), digest_size=DIGEST_BYTES).hexdigest()
        for table, found in tables.items()
    }


def _plain(value: object, folder: str | None) -> object:
    """A value as JSON that is the same in every process."""
    if isinstance(value, str | Path):
        text = str(value)
        is_below = folder is not None and (text == folder or text.startswith(f"{folder}/"))
        return f".{text[len(folder) :]}" if is_below and folder is not None else text
    if isinstance(value, Mapping):
        named = {str(key): each for key, each in value.items()}
        return [[key, _plain(named[key], folder)] for key in sorted(named)]
    if isinstance(value, set | frozenset):
        return sorted(msgspec.json.encode(_plain(each, folder)).decode() for each in value)
    if isinstance(value, tuple | list):
        return [_plain(each, folder) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    if is_dataclass(value):
        return [[item.name, _plain(getattr(value, item.name), folder)] for item in fields(value)]
    if isinstance(value, msgspec.Struct):
        return [[name, _plain(getattr(value, name), folder)] for name in value.__struct_fields__]
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


def keep_fixed_settings(running: Configuration, read: Configuration) -> Configuration:
    """Return the part of a newly read configuration that a running hub can use.

    `FIXED` settings keep their value. So does a server whose entry is now broken, is in an imported file that cannot be
    read, or uses a variable that is no longer set: an editing mistake must not stop a working server.

    Raises:
        ConfigError: the extensions differ. Their code is loaded only at the start, and it decides who may call what.
    """
    if running.extensions != read.extensions:
        message = "must be as they were when the hub started, with the same settings"
        place = Place(read.file, EXTENSIONS)
        raise ConfigError(place.finding(message, advice="restart the hub to change them", code=BAD_EXTENSION))
    lost = {server.name: found for server in running.servers if (found := _lost_variables(server.name, running, read))}
    findings = []
    for name, variables in lost.items():
        origin = running.origins[f"servers.{name}"]
        message = f"keeps its earlier settings: {', '.join(variables)} is no longer set"
        findings.append(Place(origin.file, origin.path).finding(message, code=UNRESOLVED_VARIABLE))
    kept = tuple(server for server in running.servers if server.name in lost or _is_kept(server.name, running, read))
    names = {server.name for server in kept}
    limits = _with_fixed("limits", running.hub.limits, read.hub.limits)
    return replace(
        read,
        hub=replace(_with_fixed("hub", running.hub, read.hub), limits=limits),
        storage=running.storage,
        cluster=running.cluster,
        telemetry=_with_fixed("telemetry", running.telemetry, read.telemetry),
        relay=replace(read.relay, frontend=_with_fixed("relay", running.relay.frontend, read.relay.frontend)),
        a2a=_with_fixed("a2a", running.a2a, read.a2a),
        servers=(*(server for server in read.servers if server.name not in names), *kept),
        warnings=(*read.warnings, *findings),
        # Keep what is known of these servers, or the next reload would take them for removed or for new.
        unresolved=_mixed(running.unresolved, read.unresolved, lambda name: name in names),
        origins=_mixed(running.origins, read.origins, lambda path: _is_below(path, names)),
    )


def _with_fixed(table: str, running: Value, read: Value) -> Value:
    return replace(read, **{name: getattr(running, name) for name in FIXED[table]})  # type: ignore[type-var]


def _lost_variables(name: ServerName, running: Configuration, read: Configuration) -> tuple[str, ...]:
    """Return the variables of a server that were set and no longer are."""
    unset = set(read.unresolved.get(name, ())) - set(running.unresolved.get(name, ()))
    origins = [origin for path, origin in running.origins.items() if _is_below(path, {name})]
    had = {f"${{{variable}}}" for origin in origins for variable in origin.borrowed}
    return tuple(sorted(unset & had))


def _is_kept(name: ServerName, running: Configuration, read: Configuration) -> bool:
    if any(server.name == name for server in read.servers):
        return False
    origin = running.origins.get(f"servers.{name}")
    return name in read.broken or (origin is not None and origin.file in read.unread)


def _mixed(old: Mapping[Key, Value], new: Mapping[Key, Value], is_kept: Callable[[Key], bool]) -> dict[Key, Value]:
    """Return the old values of the servers that are kept, and the new values of all others."""
    kept = {key: value for key, value in old.items() if is_kept(key)}
    return {key: value for key, value in new.items() if not is_kept(key)} | kept


def _is_below(path: str, names: Container[str]) -> bool:
    """Whether a path is one of these servers, or below it."""
    root, _, below = path.partition(".")
    return root == "servers" and below.partition(".")[0] in names
