"""Where a hub is dialled, and by which token: read from what a person pastes. Pure; called by the command line.

The token is a secret: it is taken out of the address, shown nowhere, and put back only into what is dialled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from isthmus.transport.egress import SOCKET_SCHEMES, Origin, parse_url
from isthmus.transport.websocket import Endpoint

PATH = "/mcp_endpoint/mcp/"
"""Where servers dial in, at an Isthmus hub and at the original relay; the latter wants the last slash."""

DEVICE_PATH = "/mcp_endpoint/call"

OWN_TOKEN = "isr1."  # noqa: S105 - what our tokens begin with, and no token
"""Such a token is shown in a header instead of the address, which others on the way may write down."""

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class BadAddress(ValueError):
    """The address cannot be dialled; the message says why and quotes no query."""


class BadToken(BadAddress):
    """Only its token is missing, or is none."""


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A hub's address. `str` of it is fit to be shown."""

    origin: Origin
    path: str
    query: tuple[str, ...] = field(default=(), repr=False)
    """What else the address asks for, as it was written."""
    token: str = field(default="", repr=False)
    server_id: str | None = None
    """The one that the address names."""

    def __str__(self) -> str:
        return f"{self.origin}{self.path}"

    def endpoint(self, server_id: str | None, subprotocols: tuple[str, ...], limit_bytes: int) -> Endpoint:
        """What to dial, for one server or for several."""
        query = list(self.query)
        headers = {}
        if self.token.startswith(OWN_TOKEN):
            headers["Authorization"] = f"Bearer {self.token}"
        elif self.token:
            query.append(f"token={quote(self.token, safe='')}")
        if server_id is not None:
            query.append(f"server_id={quote(server_id, safe='')}")
        target = f"{self.path}?{'&'.join(query)}" if query else self.path
        return Endpoint(self.origin, target, subprotocols, limit_bytes, headers)


def read_address(url: str, token: str | None = None) -> HubAddress:
    """Read what was given; `token` wins over one in the address.

    Raises:
        BadAddress: it is no address of a hub; a `BadToken` if that is all that is wrong.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        raise BadAddress("the hub's address must begin with ws://, wss://, http:// or https://")
    try:
        origin, target = parse_url(f"{_SCHEMES[scheme.lower()]}://{rest}", SOCKET_SCHEMES)
    except ValueError as error:
        raise BadAddress(f"the hub's address cannot be used: {error}") from None
    parts = urlsplit(target)
    found: dict[str, str] = {}
    others: list[str] = []
    for item in parts.query.split("&") if parts.query else ():
        name, _, value = item.partition("=")
        if name in ("token", "server_id"):
            found[name] = unquote(value)  # a bare `+` stands for itself: base64 has it, and no token has a blank
        else:
            others.append(item)
    path = _path(parts.path, is_socket=scheme.lower() in SOCKET_SCHEMES)
    return HubAddress(origin, path, tuple(others), _token(token or found.get("token", "")), found.get("server_id"))


def _path(path: str, *, is_socket: bool) -> str:
    if DEVICE_PATH in path:
        raise BadAddress(f"{path} is where devices call; servers dial in at {PATH}")
    if is_socket and path.rstrip("/") and not path.endswith(PATH.rstrip("/")):
        return path
    return path.rstrip("/").removesuffix(PATH.rstrip("/")) + PATH


def _token(text: str) -> str:
    token = text.strip()
    if not token:
        raise BadToken("there is no token: paste the address as the hub printed it, with ?token=…")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadToken("the token must be one line of plain text without blanks")
    return token
