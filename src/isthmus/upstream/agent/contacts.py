"""Where an agent's card is, and which of the places that it names is spoken to.

Pure. A card is a stranger's word: it may not lead the operator's credentials to another host. The first place that can
be spoken to and may be is taken, as the specification wants. Called by the link.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

from isthmus.transport.egress import Origin, parse_url
from isthmus.wire.a2a.cards import JSONRPC, Card, Interface
from isthmus.wire.a2a.client import LatestClient, client_of
from isthmus.wire.a2a.client_bindings import ClientBinding, PlainBinding, RpcBinding
from isthmus.wire.a2a.client_v0_3_rest import EarlierPlainClient

CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where a card is below an agent's address, since 0.3 and before."""

PLAIN = "HTTP+JSON"


class Contact(NamedTuple):
    """Where an agent is spoken to, and how."""

    origin: Origin
    path: str
    query: str
    binding: ClientBinding

    def target(self, path: str) -> str:
        """The request target of a path behind the place's own."""
        query = f"?{self.query}" if self.query and "?" not in path else ""
        return f"{self.path.rstrip('/')}{path}{query}" if path else f"{self.path}{query}"


def card_targets(target: str) -> tuple[str, ...]:
    """The targets at which the card of an address may be: the address itself if it is a document's."""
    path = target.partition("?")[0].rstrip("/")
    return (target,) if path.endswith(".json") else tuple(path + known for known in CARDS)


def choose(card: Card, home: Origin, allowed: Iterable[str], max_depth: int) -> Contact | str:
    """The place of a card to speak to, or why there is none, in words that say what can be done."""
    trusted = {home, *(parse_url(origin)[0] for origin in allowed)}
    refusals: list[str] = []
    for interface in card.interfaces:
        contact = _contact(interface, home, trusted, max_depth)
        if isinstance(contact, Contact):
            return contact
        refusals.append(contact)
    return "its card names no place that can be spoken to: " + "; ".join(dict.fromkeys(refusals))


def _contact(interface: Interface, home: Origin, trusted: set[Origin], max_depth: int) -> Contact | str:
    binding = _binding(interface, max_depth)
    if binding is None:
        return f"{interface.binding[:40]} {interface.version[:20]} is not spoken"
    try:
        origin, target = parse_url(interface.url)
    except ValueError as error:
        return str(error)
    if origin not in trusted and not _is_near(origin, home):
        return f"{origin} is not where its card is; if it is to be trusted with the same headers, add it to origins"
    path, _, query = target.partition("?")
    return Contact(origin, path, query, binding)


def _binding(interface: Interface, max_depth: int) -> ClientBinding | None:
    client = client_of(interface.version)
    kind = interface.binding.upper()
    if client is None or kind not in (JSONRPC, PLAIN):
        return None
    if kind == JSONRPC:
        return RpcBinding(client, interface.tenant, max_depth)
    plain = client if isinstance(client, LatestClient) else EarlierPlainClient()
    return PlainBinding(plain, interface.tenant, max_depth)


def _is_near(origin: Origin, home: Origin) -> bool:
    """Whether it is the same host, and nobody can listen in on the way who could not before."""
    is_same = origin.host == home.host or (_is_local(origin.host) and _is_local(home.host))
    return is_same and (origin.is_secure or not home.is_secure)


def _is_local(host: str) -> bool:
    """Whether it is this machine: programs that were only tried out name it in any of these ways in their cards."""
    if host in ("localhost", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
