"""What a request for one of the relay's WebSockets says: its token, the server's id, the subprotocol. Pure reading.

`faces.relay.http` calls it. Nothing of a query is ever shown: it may hold a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias
from urllib.parse import parse_qs

import msgspec

from isthmus.model.relay import BEARER_SUBPROTOCOL, MUX_SUBPROTOCOL, RELAY_SUBPROTOCOL

REFUSED_CODE = 1008

PARAMETERS_MAX = 16
"""Far more parameters than any address of the relay has."""

SERVER_ID_LENGTH_MAX = 64

MCP_SUBPROTOCOL = "mcp"

BAD_QUERY = "查询参数无效"
BAD_SERVER_ID = f"server_id须为1至{SERVER_ID_LENGTH_MAX}个可打印字符"
DIFFERENT_TOKENS = "提供了不同的token"

Query: TypeAlias = Mapping[str, Sequence[str]]


class Refused(msgspec.Struct, frozen=True):
    """Why a socket is closed as soon as it is open, in the words with which it is."""

    reason: str
    code: int = REFUSED_CODE
    is_guess: bool = False
    """Whether a token was shown that proves nothing."""


def read_query(query: bytes) -> Query | Refused:
    """The parameters of an address, each with all its values."""
    try:
        return parse_qs(query.decode(), keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX)
    except ValueError:
        return Refused(BAD_QUERY)


def read_token(fields: Mapping[bytes, bytes], query: Query) -> str | Refused:
    """The token: in a header, else among the subprotocols, else in the address; empty if there is none."""
    scheme, _, credential = fields.get(b"authorization", b"").decode("latin-1").partition(" ")
    tokens = [credential.strip()] if scheme.lower() == "bearer" else []
    tokens += [
        offer.removeprefix(BEARER_SUBPROTOCOL) for offer in _offered(fields) if offer.startswith(BEARER_SUBPROTOCOL)
    ]
    tokens += query.get("token", ())
    # A bare plus sign in an address is a space here, and the same token beside it must not look like another.
    if len({token.replace(" ", "+") for token in tokens}) > 1:
        return Refused(DIFFERENT_TOKENS)
    return tokens[0] if tokens else ""


def read_server_id(query: Query) -> str | Refused | None:
    """What a server wants to be called; None if it does not say."""
    given = query.get("server_id")
    if given is None:
        return None
    server_id = given[0]
    is_good = 0 < len(server_id) <= SERVER_ID_LENGTH_MAX and server_id.isprintable() and len(set(given)) == 1
    return server_id if is_good else Refused(BAD_SERVER_ID)


def choose(fields: Mapping[bytes, bytes], *, can_mux: bool) -> str | None:
    """The subprotocol to speak, of those that are offered."""
    offered = _offered(fields)
    known = (MUX_SUBPROTOCOL, RELAY_SUBPROTOCOL, MCP_SUBPROTOCOL) if can_mux else (RELAY_SUBPROTOCOL, MCP_SUBPROTOCOL)
    return next((subprotocol for subprotocol in known if subprotocol in offered), None)


def _offered(fields: Mapping[bytes, bytes]) -> list[str]:
    return [offer.strip() for offer in fields.get(b"sec-websocket-protocol", b"").decode("latin-1").split(",")]
