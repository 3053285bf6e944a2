"""What lies between two configurations: decided here, done by `app.hub` and `app.reload`.

Plain functions over values: nothing is started, read or logged. A running hub cannot take everything from a newer
configuration: what it keeps of the older one is decided here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from isthmus.config.codes import BAD_EXTENSION, UNRESOLVED_VARIABLE
from isthmus.config.extensions import ROOT as EXTENSIONS
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.settings import Configuration, HubSettings, RelayParts
from isthmus.core.settings import Limits
from isthmus.faces.a2a.settings import A2aSettings
from isthmus.faces.mcp.settings import TaskSettings
from isthmus.faces.relay.settings import RelaySettings
from isthmus.model.names import ServerName
from isthmus.storage.settings import StorageSettings
from isthmus.upstream.settings import ServerSettings
from isthmus.upstream.targets.settings import TargetSettings

Key = TypeVar("Key", bound=str)
Value = TypeVar("Value")

FIXED_SETTINGS = ("host", "port", "public_url", "names", "state", "tools", "audit")
"""What callers and the system were told when the hub started, and what was imported; another value needs another
start."""

FIXED_A2A = ("grpc_port",)
"""What the agent listens on."""

FIXED_RELAY = ("enabled",)
"""Whether there is a relay at all."""

FIXED_LIMITS = (
    "request_bytes",
    "caller_bytes",
    "tenant_bytes",
    "lag_bytes",
    "lag_seconds",
    "schema_bytes",
    "connections",
    "connections_per_address",
)
"""What the door and the checks of arguments were made with."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What a newer configuration has otherwise than the one before."""

    added: tuple[ServerSettings, ...] = ()
    changed: tuple[ServerSettings, ...] = ()
    removed: tuple[ServerName, ...] = ()
    settings: tuple[str, ...] = ()
    """The settings of the hub that changed, as a file spells them."""
    are_callers_other: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.settings or self.are_callers_other)


def between(old: Configuration, new: Configuration) -> Difference:
    """Compare two configurations, servers by their names."""
    before = {server.name: server for server in old.servers}
    after = {server.name: server for server in new.servers}
    return Difference(
        added=tuple(server for name, server in after.items() if name not in before),
        changed=tuple(server for name, server in after.items() if name in before and before[name] != server),
        removed=tuple(name for name in before if name not in after),
        settings=(
            *differing(old.hub, new.hub),
            *differing_a2a(old.a2a, new.a2a),
            *_differing_tasks(old.tasks, new.tasks),
            *_differing_targets(old.targets, new.targets),
            *differing_relay(old.relay, new.relay),
        ),
        are_callers_other=set(old.callers) != set(new.callers)
        or (old.expiries, old.tenants, old.issuers) != (new.expiries, new.tenants, new.issuers),
    )


def differing(old: HubSettings, new: HubSettings) -> tuple[str, ...]:
    """Return the settings that have other values, as a file spells them."""
    before, after = _by_path(old), _by_path(new)
    return tuple(path for path in after if before[path] != after[path])


def differing_a2a(old: A2aSettings, new: A2aSettings) -> tuple[str, ...]:
    """Return the settings of the agent that have other values, as a file spells them."""
    names = (item.name for item in fields(A2aSettings))
    return tuple(f"a2a.{name}" for name in names if getattr(old, name) != getattr(new, name))


def _differing_tasks(old: TaskSettings, new: TaskSettings) -> tuple[str, ...]:
    names = (item.name for item in fields(TaskSettings))
    return tuple(f"tasks.{name}" for name in names if getattr(old, name) != getattr(new, name))


def _differing_targets(old: TargetSettings, new: TargetSettings) -> tuple[str, ...]:
    names = (item.name for item in fields(TargetSettings))
    return tuple(f"targets.{name}" for name in names if getattr(old, name) != getattr(new, name))


def differing_relay(old: RelayParts, new: RelayParts) -> tuple[str, ...]:
    """Return the settings of the relay that have other values, as a file spells them; agents one by one."""
    before, after = _relay_by_path(old), _relay_by_path(new)
    return tuple(path for path in {**before, **after} if before.get(path) != after.get(path))


def _relay_by_path(relay: RelayParts) -> dict[str, object]:
    parts = (relay.face, relay.dialin, relay.tokens)
    own = {f"relay.{item.name}": getattr(part, item.name) for part in parts for item in fields(part)}
    del own["relay.agents"], own["relay.tenants"]
    place = Place(None, "relay.agents")
    return own | {place.at(agent).path: rules for agent, rules in relay.face.agents.items()}


def differing_storage(old: StorageSettings, new: StorageSettings) -> tuple[str, ...]:
    """Return whether the journal is to be elsewhere, as a file spells that."""
    return () if old == new else ("storage.url",)


def _by_path(hub: HubSettings) -> dict[str, object]:
    own = {_path(item.name): getattr(hub, item.name) for item in fields(HubSettings) if item.name != "limits"}
    return own | {f"limits.{item.name}": getattr(hub.limits, item.name) for item in fields(Limits)}


def _path(name: str) -> str:
    return f"log.{name.removeprefix('log_')}" if name.startswith("log_") else f"hub.{name}"


def applicable(running: Configuration, read: Configuration) -> Configuration:
    """Return what a hub that runs with one configuration can take of another one that was read.

    What needs a restart stays as it is. A server whose entry is broken now, or was in a file that is, or has lost
    a variable, keeps the form it had: a slip of the pen costs nobody a server that works.

    Raises:
        ConfigError: it names other extensions. Code is loaded at a start only, and who may call what is said by theirs.
    """
    _check_extensions(running, read)
    lost = {server.name: found for server in running.servers if (found := _lost(server.name, running, read))}
    kept = tuple(server for server in running.servers if server.name in lost or _stays(server.name, running, read))
    names = {server.name for server in kept}
    return replace(
        read,
        hub=_with_fixed(running.hub, read.hub),
        storage=running.storage,
        relay=replace(read.relay, face=_with_fixed_relay(running.relay.face, read.relay.face)),
        a2a=replace(read.a2a, **{name: getattr(running.a2a, name) for name in FIXED_A2A}),
        servers=(*(server for server in read.servers if server.name not in names), *kept),
        warnings=(*read.warnings, *(_of_loss(name, found, running) for name, found in lost.items())),
        # What they had and where it came from stays known, or the next look would take them for gone or for new.
        unresolved=_mixed(running.unresolved, read.unresolved, lambda name: name in names),
        origins=_mixed(running.origins, read.origins, lambda path: _is_of(path, names)),
    )


def _check_extensions(running: Configuration, read: Configuration) -> None:
    if running.extensions != read.extensions:
        said = "must be as they were when the hub started, with the same settings"
        advice = "restart the hub to have others"
        raise ConfigError(Place(read.file, EXTENSIONS).finding(said, advice=advice, code=BAD_EXTENSION))


def _lost(name: ServerName, running: Configuration, read: Configuration) -> tuple[str, ...]:
    """Return what a server borrowed from variables that are no longer set."""
    unset = set(read.unresolved.get(name, ())) - set(running.unresolved.get(name, ()))
    origins = [origin for path, origin in running.origins.items() if _is_of(path, {name})]
    had = {f"${{{lent}}}" for origin in origins for lent in origin.borrowed}
    return tuple(sorted(unset & had))


def _of_loss(name: ServerName, lost: tuple[str, ...], running: Configuration) -> Finding:
    origin = running.origins[f"servers.{name}"]
    said = f"keeps the form it had: {', '.join(lost)} is no longer set"
    return Place(origin.file, origin.path).finding(said, code=UNRESOLVED_VARIABLE)


def _mixed(old: Mapping[Key, Value], new: Mapping[Key, Value], is_kept: Callable[[Key], bool]) -> dict[Key, Value]:
    """Return what is old of the servers that are kept, and what is new of the others."""
    kept = {key: value for key, value in old.items() if is_kept(key)}
    return {key: value for key, value in new.items() if not is_kept(key)} | kept


def _is_of(path: str, names: Container[str]) -> bool:
    """Whether a path leads to one of these servers, or into it."""
    root, _, below = path.partition(".")
    return root == "servers" and below.partition(".")[0] in names


def _stays(name: ServerName, running: Configuration, read: Configuration) -> bool:
    if any(server.name == name for server in read.servers):
        return False
    origin = running.origins.get(f"servers.{name}")
    return name in read.broken or (origin is not None and origin.file in read.unread)


def _with_fixed_relay(running: RelaySettings, read: RelaySettings) -> RelaySettings:
    return replace(read, **{name: getattr(running, name) for name in FIXED_RELAY})


def _with_fixed(running: HubSettings, read: HubSettings) -> HubSettings:
    limits = replace(read.limits, **{name: getattr(running.limits, name) for name in FIXED_LIMITS})
    return replace(read, limits=limits, **{name: getattr(running, name) for name in FIXED_SETTINGS})
