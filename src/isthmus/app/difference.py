"""What lies between two configurations: decided here, done by `app.hub` and `app.reload`.

Plain functions over values: nothing is started, read or logged. A running hub cannot take everything from a newer
configuration: what it keeps of the older one is decided here as well.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from isthmus.config.settings import Configuration, HubSettings, Origin
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.upstream.settings import ServerSettings

FIXED_SETTINGS = ("host", "port", "public_url", "names", "state")
"""What callers and the system were told when the hub started; another value needs another start."""

FIXED_LIMITS = ("request_bytes", "lag_bytes", "lag_seconds", "schema_bytes")
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
        settings=differing(old.hub, new.hub),
        are_callers_other=set(old.callers) != set(new.callers),
    )


def differing(old: HubSettings, new: HubSettings) -> tuple[str, ...]:
    """Return the settings that have other values, as a file spells them."""
    before, after = _by_path(old), _by_path(new)
    return tuple(path for path in after if before[path] != after[path])


def _by_path(hub: HubSettings) -> dict[str, object]:
    own = {_path(item.name): getattr(hub, item.name) for item in fields(HubSettings) if item.name != "limits"}
    return own | {f"limits.{item.name}": getattr(hub.limits, item.name) for item in fields(Limits)}


def _path(name: str) -> str:
    return f"log.{name.removeprefix('log_')}" if name.startswith("log_") else f"hub.{name}"


def applicable(running: Configuration, read: Configuration) -> Configuration:
    """Return what a hub that runs with one configuration can take of another one that was read.

    What needs a restart stays as it is. A server whose entry is broken now, or was in a file that is, keeps the
    form it had: a slip of the pen costs nobody a server that works.
    """
    kept = tuple(server for server in running.servers if _stays(server.name, running, read))
    return replace(
        read,
        hub=_with_fixed(running.hub, read.hub),
        servers=(*read.servers, *kept),
        # Where they came from stays known, or the next look at a broken file would take them for gone.
        origins={**_origins_of(kept, running), **read.origins},
    )


def _origins_of(servers: tuple[ServerSettings, ...], of: Configuration) -> dict[str, Origin]:
    paths = [f"servers.{server.name}" for server in servers]
    return {path: of.origins[path] for path in paths if path in of.origins}


def _stays(name: ServerName, running: Configuration, read: Configuration) -> bool:
    if any(server.name == name for server in read.servers):
        return False
    origin = running.origins.get(f"servers.{name}")
    return name in read.broken or (origin is not None and origin.file in read.unread)


def _with_fixed(running: HubSettings, read: HubSettings) -> HubSettings:
    limits = replace(read.limits, **{name: getattr(running.limits, name) for name in FIXED_LIMITS})
    return replace(read, limits=limits, **{name: getattr(running, name) for name in FIXED_SETTINGS})
