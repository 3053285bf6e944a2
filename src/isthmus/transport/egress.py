"""The one egress guard: every outgoing connection of the hub is dialled here.

A name is resolved once, the *resolved* addresses are checked against our own deny table, and the checked
address itself is dialled, so no second answer of a name server can lead elsewhere. Addresses that the
operator configured are exempt from the table and still pinned. The environment's proxies are ignored.

It does not know what a connection carries, keeps none, and retries nothing. `transport.http` and its siblings
call it.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from isthmus.transport.dns import Found, Lookups, TooManyNames, look_up
from isthmus.transport.tls import tls_settings

P = TypeVar("P", bound=asyncio.Protocol)
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
HTTP_SCHEMES: Final = ("http", "https")
SOCKET_SCHEMES: Final = ("ws", "wss")

DENIED: Final[Sequence[tuple[IpNetwork, str]]] = [
    (ipaddress.ip_network(network), what)
    for network, what in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud metadata"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "this host"),
        ("::1/128", "loopback"),
        ("::/96", "an embedded IPv4 address"),
        ("::ffff:0:0:0/96", "an embedded IPv4 address"),
        ("64:ff9b::/96", "an embedded IPv4 address"),
        ("64:ff9b:1::/48", "an embedded IPv4 address"),
        ("2001::/32", "an embedded IPv4 address"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "an embedded IPv4 address"),
        ("3fff::/20", "documentation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
]
"""Where a caller's address may not lead. Ours, because `ipaddress.is_global` lets a dozen of these through
and differs between patch releases of Python."""

PUBLIC_IPV6: Final = ipaddress.IPv6Network("2000::/3")
"""All global unicast IPv6 there is; whatever lies outside is refused even if no line above names it."""

DENIED_ENDINGS: Final = ("localhost", "local", "internal")
"""Names that mean a private network wherever they are used; refused before a name server hears of them."""

_HOST_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_.])?", re.ASCII)
_NOT_IN_URLS: Final = re.compile(r"[\x00-\x20\x7f\\]")
_TARGET_SAFE: Final = "/%:@!$&'()*+,;=~?-._"


class EgressRefused(Exception):
    """The guard does not dial `host`; nothing was sent."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"{host} may not be dialled: {reason}")
        self.host = host
        self.reason = reason


class DialFailed(Exception):
    """`origin` could not be reached; nothing was sent."""

    def __init__(self, origin: HttpOrigin, reason: str) -> None:
        super().__init__(f"{origin} cannot be reached: {reason}")
        self.origin = origin
        self.reason = reason


@dataclass(frozen=True, slots=True)
class HttpOrigin:
    """Whom one connects to: scheme, host (lower case, ASCII, no brackets) and port. Made by `parse_url`."""

    scheme: str
    host: str
    port: int

    @property
    def is_secure(self) -> bool:
        return self.scheme in ("https", "wss")

    @property
    def authority(self) -> str:
        """What a Host header says: the port is left out where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def parse_url(url: str, schemes: tuple[str, str] = HTTP_SCHEMES) -> tuple[HttpOrigin, str]:
    """Split `url` into whom to dial and the request target (path and query, ASCII; a fragment is dropped).

    Raises:
        ValueError: not an absolute URL of these schemes, or one that two parsers could read differently.
    """
    shown = _presentable(url)
    if _NOT_IN_URLS.search(url):
        # urlsplit would silently remove some of these, so what was checked would not be what was written.
        raise ValueError(f"{shown} contains a space, a backslash or a control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown} is not a valid URL: {error}") from error
    if parts.scheme not in schemes:
        raise ValueError(f"{shown} must start with {schemes[0]}:// or {schemes[1]}://")
    if "@" in parts.netloc:
        raise ValueError(f"{shown} must not hold a user name or password; use headers instead")
    if port == 0:
        raise ValueError(f"{shown} names port 0, which cannot be dialled")
    parse_host = _parse_ipv6 if "[" in parts.netloc else _parse_name
    origin = HttpOrigin(parts.scheme, parse_host(parts.hostname or "", shown), port or PORTS[parts.scheme])
    query = f"?{parts.query}" if parts.query else ""
    return origin, quote((parts.path or "/") + query, safe=_TARGET_SAFE)


def _presentable(url: str) -> str:
    # What was wrong with a URL ends up in logs; a password or a token in it must not.
    return repr(re.sub(r"\?.*", "?…", re.sub(r"//[^/]*@", "//…@", url), flags=re.DOTALL))


def _parse_name(host: str, shown: str) -> str:
    if not host:
        raise ValueError(f"{shown} names no host")
    try:
        name = host.encode("idna").decode("ascii").lower()
    except UnicodeError as error:
        raise ValueError(f"{shown} names a host that is not a valid domain name: {error}") from error
    if not _HOST_NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"{shown} names a host that is not a valid domain name: {host!r}")
    return name


def _parse_ipv6(host: str, shown: str) -> str:
    try:
        if "%" in host:
            raise ValueError("zones are not supported")
        return str(ipaddress.IPv6Address(host))
    except ValueError as error:
        raise ValueError(f"{shown} names a host that is not a valid IPv6 address: {error}") from error


def refusal_of(address: str) -> str | None:
    """Why `address`, a resolved numeric one, may not be dialled on a caller's behalf; None if it may."""
    ip: IpAddress = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    for network, what in DENIED:
        if ip in network:
            return f"its address is {what}"
    if ip.version == 6 and ip not in PUBLIC_IPV6:
        return "its address is reserved"
    return None


def _refusal_of_name(host: str) -> str | None:
    if host.rstrip(".").rpartition(".")[2] in DENIED_ENDINGS:
        return "its name belongs to a private network"
    return None


class DialAddress(NamedTuple):
    """One resolved address, in the form in which it is both checked and dialled."""

    family: int
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if self.family == socket.AF_INET6 else f"{host}:{port}"


async def resolve(origin: HttpOrigin) -> list[DialAddress]:
    """Ask the system for the addresses of `origin`.

    Raises:
        OSError: it knows none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    return [DialAddress(family, sockaddr) for family, _, _, _, sockaddr in found]


Resolver = Callable[[HttpOrigin], Awaitable[Sequence[DialAddress]]]


class _NamedResolver:
    """Asks the system for what callers name, where that keeps nobody else waiting."""

    def __init__(self) -> None:
        self._lookups = Lookups()

    async def __call__(self, origin: HttpOrigin) -> list[DialAddress]:
        """As `resolve`; an address in digits waits for no place."""
        look = self._look_at_once if _is_numeric(origin.host) else self._lookups.find
        return [DialAddress(family, sockaddr) for family, _, _, _, sockaddr in await look(origin.host, origin.port)]

    async def _look_at_once(self, host: str, port: int) -> Found:
        return look_up(host, port)


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Egress:
    """The guard. One per hub; stateless but for the TLS settings, which all connections share, and for lookups."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, resolver: Resolver | None = None) -> None:
        """`tls` replaces the default settings (system roots, names verified), as for a private authority.

        `resolver` replaces the system's, for configured addresses and for those that callers name.
        """
        self._given_tls = tls
        self._resolver = resolver or resolve
        self._named_resolver = resolver or _NamedResolver()

    def trusting(self, authority: str) -> Egress:
        """The same guard for a server that has to prove itself by this authority; see `tls_settings`."""
        other = Egress(tls_settings(authority), resolver=self._resolver)
        other._named_resolver = self._named_resolver
        return other

    async def dial(
        self, origin: HttpOrigin, protocol_factory: Callable[[], P], *, is_configured: bool, within: float
    ) -> tuple[asyncio.Transport, P]:
        """Connect to `origin`, trying its permitted addresses in turn, in `within` seconds altogether.

        `is_configured` says that the operator, not a caller, chose the origin; only then may it be private.

        Raises:
            EgressRefused: no address of the origin may be dialled.
            DialFailed: it has no address, or none that answered as it should.
        """
        if not is_configured and (reason := _refusal_of_name(origin.host)):
            raise EgressRefused(origin.host, reason)
        deadline = asyncio.get_running_loop().time() + within
        resolver = self._resolver if is_configured else self._named_resolver
        addresses = await self._resolve(resolver, origin, within)
        if not is_configured:
            addresses = permitted(origin, addresses)
        return await self._connect_any(origin, addresses, protocol_factory, deadline)

    async def refusal(self, origin: HttpOrigin, *, within: float) -> str | None:
        """Why a caller's `origin` may not be dialled, as far as can be told now; None if nothing speaks against it.

        A name without an address may have one later. Whatever is told here, `dial` looks for itself.
        """
        if (reason := _refusal_of_name(origin.host)) is not None:
            return reason
        try:
            permitted(origin, await self._resolve(self._named_resolver, origin, within))
        except EgressRefused as refused:
            return refused.reason
        except DialFailed:
            return None
        return None

    async def _resolve(self, resolver: Resolver, origin: HttpOrigin, within: float) -> Sequence[DialAddress]:
        try:
            async with asyncio.timeout(within):
                return await resolver(origin)
        except TimeoutError as error:
            raise DialFailed(origin, f"{origin.host} was not resolved within {within:g} s") from error
        except TooManyNames as error:
            raise DialFailed(origin, str(error)) from error
        except (OSError, UnicodeError) as error:
            raise DialFailed(origin, f"no address for host {origin.host}") from error

    async def _connect_any(
        self, origin: HttpOrigin, addresses: Sequence[DialAddress], factory: Callable[[], P], deadline: float
    ) -> tuple[asyncio.Transport, P]:
        reasons: list[str] = []
        for index, address in enumerate(addresses):
            # An address that swallows packets must leave time for the ones after it.
            left = deadline - asyncio.get_running_loop().time()
            share = left / (len(addresses) - index)
            try:
                async with asyncio.timeout(share):
                    return await self._connect(origin, address, factory)
            except TimeoutError:
                # `except OSError` below would take it too, without saying how long was waited.
                reasons.append(f"no answer from {address} within {max(share, 0):.1f} s")
            except OSError as error:
                reasons.append(_in_words(error, address))
        raise DialFailed(origin, "; ".join(reasons) or f"no address for host {origin.host}")

    async def _connect(
        self, origin: HttpOrigin, address: DialAddress, factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        loop = asyncio.get_running_loop()
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address.sockaddr)
            tls = self._tls if origin.is_secure else None
            # Certificates name hosts without the dot that makes a name absolute.
            name = origin.host.rstrip(".") if origin.is_secure else None
            return await loop.create_connection(factory, sock=sock, ssl=tls, server_hostname=name)
        except BaseException:
            sock.close()
            raise

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        # Reading the system's roots takes 28 ms, so it happens once, and only if somebody needs it.
        return self._given_tls if self._given_tls is not None else tls_settings()


class Guarded(Egress):
    """A guard's other face, for what dials addresses that callers named: none of them may be private."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    async def dial(
        self, origin: HttpOrigin, protocol_factory: Callable[[], P], *, is_configured: bool, within: float
    ) -> tuple[asyncio.Transport, P]:
        """Connect as `Egress.dial` does, whatever whoever dials takes the address for."""
        return await self._egress.dial(origin, protocol_factory, is_configured=False, within=within)

    async def refusal(self, origin: HttpOrigin, *, within: float) -> str | None:
        """See `Egress.refusal`."""
        return await self._egress.refusal(origin, within=within)

    def trusting(self, authority: str) -> Guarded:
        """See `Egress.trusting`."""
        return Guarded(self._egress.trusting(authority))


def permitted(origin: HttpOrigin, addresses: Sequence[DialAddress]) -> list[DialAddress]:
    """Leave only the addresses of `origin` that may be dialled on a caller's behalf.

    Raises:
        EgressRefused: none is left.
    """
    refusals = {address: refusal_of(str(address.sockaddr[0])) for address in addresses}
    public = [address for address, refusal in refusals.items() if refusal is None]
    if not public:
        raise EgressRefused(origin.host, next((r for r in refusals.values() if r), "it has no address"))
    return public


def _in_words(error: OSError, address: DialAddress) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"TLS: certificate verify failed: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()} at {address}"
        case ConnectionRefusedError():
            return f"connection refused by {address}"
        case _:
            return f"{(error.strerror or str(error) or type(error).__name__).lower()} at {address}"
