"""gRPC beside HTTP, where it is configured and its library is there; `serve` opens, drains and closes it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import urlsplit

from isthmus.app.hub import RunningHub
from isthmus.config.a2a import ROOT
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.frontends.a2a.http import A2aHttp
from isthmus.frontends.http.auth import Authenticator

NEEDED = ("grpc", "google.protobuf")


class Service(Protocol):
    """A way in beside the door."""

    async def drain(self, within: float) -> None:
        """Take nothing new, and let what is under way come to its end."""

    async def close(self) -> None:
        """Cut what is left."""


def check_grpc(configuration: Configuration, find: Callable[[str], object] = find_spec) -> None:
    """Raises: ConfigError if gRPC is configured and cannot be spoken."""
    if configuration.a2a.grpc_port is None or all(_is_there(name, find) for name in NEEDED):
        return
    said = "grpc_port needs a library that is not installed; get it with: pip install 'isthmus[grpc]'"
    raise ConfigError(Place(configuration.file, ROOT).mistake(ValueError(said)))


def _is_there(name: str, find: Callable[[str], object]) -> bool:
    try:
        return find(name) is not None
    except ModuleNotFoundError:  # of `google` itself
        return False


async def open_grpc(running: RunningHub, agent: A2aHttp, auth: Authenticator) -> Service | None:
    """Speak gRPC as well, and have the card say so; None where that is not configured.

    Raises:
        DoorError: the address cannot be listened on.
    """
    hub, port = running.configuration.hub, running.configuration.a2a.grpc_port
    if port is None:
        return None
    from isthmus.frontends.a2a.grpc import A2aGrpc, GrpcSettings  # noqa: PLC0415 - only who wants it has the library

    limits = hub.limits
    settings = GrpcSettings(hub.host, port, limits.request_bytes, limits.lag_seconds, connections=limits.connections)
    service = A2aGrpc(agent, auth, running.background, settings)
    bound = await service.open()
    service.bases = grpc_bases(hub.public_url, hub.host, bound)
    agent.speak_grpc(grpc_address(hub.public_url, bound))
    return service


def grpc_bases(public_url: str | None, host: str, port: int) -> tuple[str, ...]:
    """Where gRPC may be called, as clients would write it; its addresses have no scheme of their own."""
    if public_url is not None:
        return (f"https://{grpc_address(public_url, port)}", f"http://{grpc_address(public_url, port)}", public_url)
    hosts = dict.fromkeys(("localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host))
    return tuple(f"{scheme}://{each}:{port}" for each in hosts for scheme in ("http", "https"))


def grpc_address(public_url: str | None, port: int) -> str:
    """How the card names the port, as far as can be known here: at the host of the hub's own address."""
    host = "localhost" if public_url is None else urlsplit(public_url).hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
