"""Addresses that a caller or a server names, checked by us and by the system. Called by `fuzz.targets`.

Whatever the system takes for a numeric address, in whichever spelling, must be refused if it does not lead into the
public internet. The table beside which ours is checked is Python's own, and what that lets through.
"""

from __future__ import annotations

import ipaddress
import socket

from isthmus.transport.egress import DialAddress, EgressRefused, HttpOrigin, parse_url, permitted

SCHEMES = ("http", "https")

BEYOND_PYTHON = [
    ipaddress.ip_network(text)
    for text in (
        "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96", "::ffff:0:0:0/96", "fec0::/10", "ff00::/8",
        "192.0.0.0/24", "224.0.0.0/4", "168.63.129.16/32",
    )
]  # fmt: skip
"""What `ipaddress.is_global` lets through and is not to be dialled."""


class LetThrough(AssertionError):
    """An address that leads into a private network would have been dialled."""


def addresses(data: bytes) -> None:
    """An address is refused in words, or it is public however it is spelt."""
    text = data.decode("utf-8", "surrogateescape")
    for url in (text, f"http://{text}/", f"https://{text}:443/x?y"):
        try:
            origin, target = parse_url(url, SCHEMES)
        except ValueError:
            continue
        if not target.isascii() or not target.startswith("/") or any(sign in target for sign in " \r\n"):
            raise LetThrough(f"the request for {url!r} would begin with {target!r}")
        _check(origin)


def _check(origin: HttpOrigin) -> None:
    for numeric in _resolved(origin.host):
        try:
            permitted(
                origin, [DialAddress(socket.AF_INET6 if ":" in numeric else socket.AF_INET, (numeric, origin.port))]
            )
        except EgressRefused:
            continue
        if _is_private(numeric):
            raise LetThrough(f"{origin} leads to {numeric}")


def _resolved(host: str) -> list[str]:
    """What the system makes of a host without asking anybody."""
    try:
        found = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in found]


def _is_private(numeric: str) -> bool:
    address = ipaddress.ip_address(numeric.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return not address.is_global or any(address in network for network in BEYOND_PYTHON)
