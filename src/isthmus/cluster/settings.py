"""The `[cluster]` settings, which `config` fills, and the limits and times of the bus between nodes.

Messages never quote an address, since it may hold a password.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

SCHEMES = ("nats", "tls")
NODE_BYTES_MAX = 128
FILES = ("credentials", "tls_ca", "tls_cert", "tls_key")
"""The settings that are paths."""
LEASE_SECONDS = (1.0, 300.0)
"""The shortest and the longest lease."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Without `nats` nodes have only their database in common, and nothing of the bus is imported."""

    nats: tuple[str, ...] = field(default=(), repr=False)
    """The addresses of the NATS servers."""
    node: str | None = None
    """The name of this node; None for its host and port, see `node_id`."""
    credentials: str | None = None
    """The file with the credentials for NATS; `config` makes it absolute."""
    tls_ca: str | None = None
    """The file with the certificate authority of the NATS servers; `config` makes it absolute."""
    tls_cert: str | None = None
    """The file with this node's own certificate; `config` makes it absolute."""
    tls_key: str | None = None
    """The file with its key, if it is not in `tls_cert`; `config` makes it absolute."""

    bus: str | None = None
    """The folder of the Unix sockets between the workers of one machine; `app.workers` sets it, no file does."""

    lease_seconds: float = 10.0
    """A node that does not renew its lease in the database for so long counts as dead."""
    config: Literal["file", "database"] = "file"
    """Where everything else is configured; see `app.database_config`."""
    is_enabled: bool = False
    """Whether the file has the table."""
    is_one_machine: bool = False
    """Whether the nodes are only the workers of one machine, which share a state folder; `app.workers` sets it."""

    def __post_init__(self) -> None:
        for position, url in enumerate(self.nats):
            _check_url(f"nats.{position}", url)
        if self.node is not None and not _is_name(self.node):
            raise ValueError(f"node must have 1 to {NODE_BYTES_MAX} printable characters, not {self.node[:40]!r}")
        least, most = LEASE_SECONDS
        if not least <= self.lease_seconds <= most:
            raise ValueError(f"lease_seconds must be between {least:g} and {most:g}, not {self.lease_seconds:g}")
        for key in FILES:
            value: str | None = getattr(self, key)
            if value is not None and (not value.strip() or "\0" in value):
                raise ValueError(f"{key} must be the path of a file, not {value!r}")
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("tls_key needs tls_cert, the certificate of this key")

    @property
    def is_on(self) -> bool:
        """Whether this hub has a bus to other nodes."""
        return bool(self.nats or self.bus)

    @property
    def shown(self) -> tuple[str, ...]:
        """The addresses without secrets; all nodes have the same."""
        return tuple(_without_secrets(url) for url in self.nats) or ((self.bus,) if self.bus else ())

    def node_id(self, port: int) -> str:
        """The name of this node. The default is the same after a restart, and tells hubs of one machine apart."""
        if self.node is not None:
            return self.node
        host = "".join(character for character in platform.node() if character.isprintable())
        return f"{host[:100] or 'node'}:{port or os.getpid()}"


def _is_name(text: str) -> bool:
    return text.isprintable() and bool(text.strip()) and len(text.encode("utf-8", "replace")) <= NODE_BYTES_MAX


def _check_url(key: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_usable = False
    if not is_usable or any(character.isspace() or ord(character) < 32 for character in url):
        raise ValueError(f"{key} must be an address like nats://host:4222")


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@dataclass(frozen=True, slots=True)
class BusSettings:
    """Limits and times that both implementations share. All nodes of a cluster should use the same times."""

    beat_seconds: float = 0.7
    """The interval of heartbeats."""
    silence_seconds: float = 2.4
    """A peer that was silent for so long is away: its channels break and its requests end. A node that dies is noticed
    within this time and a quarter of `beat_seconds`."""
    fresh_seconds: float = 0.25
    """A peer that sent something within this time gets messages without a ping first. It is the time after a cut in
    which
    a call may still leave, so that nobody can say whether it ran."""
    answer_seconds: float = 0.7
    """A peer that answers no ping, and sends nothing else, for so long is silent. It is over twice the delay that a
    busy machine causes now and then (0.3 s), and short enough to tell callers within a second. Nothing breaks then:
    only what was sent since, or waits to be sent, ends."""
    window_bytes: int = 256 * 1024
    """What a channel's writer may send before its reader has read: the memory that a slow reader costs each side."""
    unsent_bytes_max: int = 8 * 1024 * 1024
    """What a channel holds for a reader that stands still, before `send` raises `ChannelFull`."""
    message_bytes_max: int = 64 * 1024 * 1024
    """The longest message of a channel. A longer one is refused here, and breaks the channel if a peer sends it."""
    channels_max: int = 65_536
    """Channels and unanswered requests that one peer may have open here; further ones are refused."""
    close_seconds: float = 30.0
    """How long a closed channel may take to deliver what was sent before; it breaks then."""

    def __post_init__(self) -> None:
        if not 0 < self.beat_seconds < self.silence_seconds / 2:
            raise ValueError(f"beat_seconds must be positive and below silence_seconds / 2, not {self.beat_seconds:g}")
        if not 0 < self.answer_seconds < self.silence_seconds / 2:
            raise ValueError(
                f"answer_seconds must be positive and below silence_seconds / 2, not {self.answer_seconds:g}"
            )
        if self.window_bytes < 16 * 1024:
            raise ValueError(f"window_bytes must be at least 16384, not {self.window_bytes}")
