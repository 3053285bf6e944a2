"""Joins cassettes to hubs: where a hub records, and the configuration of a hub that replays.

`serve`, `stdio` and the library record if their configuration says so; `isthmus record` and `isthmus replay` are the
commands for it, and `isthmus.testing` is for tests.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.calls.running_call import InFlight
from isthmus.core.cassette_matching import Match, Player, Timing, read_cassette
from isthmus.core.catalog.sets import SetSettings
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.telemetry.call_recorder import CassetteRecorder, CassetteSettings, Redact
from isthmus.upstream.credential_redaction import redact_whole
from isthmus.upstream.server_settings import ReplaySettings, ServerSettings

NO_SETS: Mapping[str, SetSettings] = MappingProxyType({})

NEVER = 1_000_000_000
"""So many failures never happen: a replayed fault must not open a circuit breaker."""


def open_recorder(configuration: Configuration, redact_for: Callable[[InFlight], Redact]) -> CassetteRecorder | None:
    """Begin to record, if the configuration says so.

    Raises:
        ConfigError: the file cannot be written.
    """
    settings = configuration.hub
    if settings.cassette is None:
        return None
    file = Path(settings.cassette)
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        recording = CassetteSettings(
            file, settings.names, settings.cassette_timing, settings.expose, settings.max_result_bytes
        )
        return CassetteRecorder(recording, redact_for, redact_whole)
    except OSError as error:
        problem = f"cannot be written: {file}: {error.strerror or error}"
        raise ConfigError(Place(configuration.file, "hub").at("cassette").finding(problem)) from error


def open_player(file: Path, match: Match = "strict", timing: Timing = "none") -> Player:
    """Read a cassette to replay it.

    Raises:
        CassetteError: it is damaged.
        OSError: it cannot be read.
    """
    return Player(read_cassette(file.read_bytes()), file.name, match, timing)


@dataclass(frozen=True, slots=True)
class ReplayPlace:
    """Where a replaying hub listens, and its state folder, which should be a temporary one."""

    state: str
    host: str = "127.0.0.1"
    port: int = 8765


def replay_configuration(
    player: Player, place: ReplayPlace, sets: Mapping[str, SetSettings] = NO_SETS
) -> Configuration:
    """The configuration of a hub whose servers are those of a cassette. It needs no file, keys or network."""
    head = player.cassette.head
    limits = Limits(breaker_failures=NEVER, breaker_calls=NEVER)
    hub = HubSettings(
        host=place.host,
        port=place.port,
        names=head.names,
        expose=head.expose,
        max_result_bytes=head.max_result_bytes,
        pin="off",
        state=place.state,
        audit="off",
        limits=limits,
    )
    servers = (
        ServerSettings(ServerName(name), ReplaySettings("cassette", player=player)) for name in player.cassette.servers
    )
    return Configuration(None, hub, tuple(servers), sets)
