"""The addresses of a hub: for clients on this machine, and for the relay's servers and devices."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.config.settings import HubSettings, local_origin

RELAY_PATH = "/mcp_endpoint"

_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


def configured_origin(settings: HubSettings) -> str:
    """The address of the hub that a configuration describes.

    Raises:
        CommandFailed: the port is only known once the hub runs.
    """
    if settings.port == 0:
        text = "the hub's address is unknown: the configuration has port 0"
        raise CommandFailed(Exit.USAGE, text, "Name its address on the command line, or its port under [hub].")
    return local_origin(settings.host, settings.port)


def relay_base(url: str) -> str:
    """The start of the relay's addresses, from any address of the hub.

    Raises:
        CommandFailed: the address is invalid.
    """
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, has_host = urlsplit(""), False
    is_plain = not (parts.query or parts.fragment or "@" in parts.netloc or any(map(str.isspace, url)))
    if not has_host or not is_plain or parts.scheme not in _SCHEMES:
        text = "--url must be the hub's address like ws://hub.example:8765, without a query"
        raise CommandFailed(Exit.USAGE, text, "Write it as the servers and devices reach the hub.")
    path = parts.path.partition(RELAY_PATH)[0].rstrip("/")
    return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{path}"


def server_address(base: str, token: str, server_id: str | None = None) -> str:
    """The address that a server dials."""
    named = "" if server_id is None else f"&server_id={quote(server_id, safe='')}"
    return f"{base}{RELAY_PATH}/mcp/?token={quote(token, safe='')}{named}"


def health_address(base: str, key: str) -> str:
    """Where a manager asks for the relay's health. It contains the key that makes tokens."""
    return f"http{base.removeprefix('ws')}{RELAY_PATH}/health?key={quote(key, safe='')}"


def device_address(base: str, token: str) -> str:
    """The address that a device calls."""
    return f"{base}{RELAY_PATH}/call/?token={quote(token, safe='')}"
