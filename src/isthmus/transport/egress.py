"""The one egress guard: every outgoing connection of the hub is dialled here.

A name is resolved once, the *resolved* addresses are checked against our own deny table, and the checked address itself
is dialled, so no second answer of a name server can lead elsewhere. Addresses that the operator configured are exempt
from the table and still pinned. The environment's proxies are ignored.

Names that callers chose are looked up in threads of their own (`Lookups`). A name server may take half a minute for a
name, and nothing frees the thread that waits for it. In the loop's few threads, some such names would delay the lookups
of every configured server. Slow names of one domain do not delay those of other domains either.

The guard does not know what a connection carries, keeps none, and retries nothing. The HTTP client and WebSockets call
it; `config` checks certificates with `tls_settings`.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

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
"""Networks that callers' addresses may not lead to. Our own table: `ipaddress.is_global` allows a dozen of these and
differs between patch releases of Python."""

PUBLIC_IPV6: Final = ipaddress.IPv6Network("2000::/3")
"""All global unicast IPv6; other addresses are refused even if no line above names them."""

DENIED_ENDINGS: Final = ("localhost", "local", "internal")
"""Names of private networks; refused before a name server is asked."""

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII)
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
    """The peer of a connection: scheme, host (lower case, ASCII, no brackets) and port. Made by `parse_url`."""

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
    """Split `url` into its origin and the request target (path and query, ASCII; a fragment is dropped).

    Raises:
        ValueError: not an absolute URL of these schemes, or one that two parsers could read differently.
    """
    # An invalid URL is logged; a password or a token in it is not.
    shown = repr(re.sub(r"\?.*", "?…", re.sub(r"//[^/]*@", "//…@", url), flags=re.DOTALL))
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
    host = _parse_host(parts.hostname or "", shown, is_ipv6="[" in parts.netloc)
    origin = HttpOrigin(parts.scheme, host, port or PORTS[parts.scheme])
    query = f"?{parts.query}" if parts.query else ""
    return origin, quote((parts.path or "/") + query, safe=_TARGET_SAFE)


def _parse_host(host: str, shown: str, *, is_ipv6: bool) -> str:
    if is_ipv6:
        try:
            if "%" in host:
                raise ValueError("zones are not supported")
            return str(ipaddress.IPv6Address(host))
        except ValueError as error:
            raise ValueError(f"{shown} names a host that is not a valid IPv6 address: {error}") from error
    if not host:
        raise ValueError(f"{shown} names no host")
    try:
        name = host.encode("idna").decode("ascii").lower()
    except UnicodeError as error:
        raise ValueError(f"{shown} names a host that is not a valid domain name: {error}") from error
    if not _HOST_NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"{shown} names a host that is not a valid domain name: {host!r}")
    return name


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


# -- looking up names that callers chose ---------------------------------------------------------------------------

PLACES = 16
"""Names that are looked up at once: more could be used to attack a name server."""

PLACES_PER_DOMAIN = 2
"""How many of them may belong to one domain: its owner may delay each by half a minute."""

WAITING_MAX = 1000
"""Lookups that may wait for a place, a quarter of them for names of one domain; further ones fail."""

AddressInfo: TypeAlias = Sequence[tuple[Any, ...]]
"""What `socket.getaddrinfo` returns."""

Look: TypeAlias = Callable[[str, int], AddressInfo]
OnFound: TypeAlias = Callable[["AddressInfo | Exception"], None]


def look_up(host: str, port: int) -> AddressInfo:
    """Ask the system, however long that takes."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class TooManyNames(OSError):
    """Too many names are being looked up; try again later."""

    def __init__(self) -> None:
        super().__init__("too many host names are being looked up; try again later")


class _DomainPlaces:
    """The places of one domain, and how many lookups use or await one."""

    __slots__ = ("places", "users", "waiting")

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(PLACES_PER_DOMAIN)
        self.users = 0
        self.waiting = 0


class Lookups:
    """Looks names up in threads, a few at a time; within a domain in order of arrival."""

    def __init__(self, look: Look = look_up) -> None:
        self._look = look
        self._places = asyncio.Semaphore(PLACES)
        self._shares: dict[str, _DomainPlaces] = {}
        self._waiting = 0

    async def find(self, host: str, port: int) -> AddressInfo:
        """The addresses of a host.

        Raises:
            TooManyNames: too many lookups wait, or the system gives no thread.
            OSError: the host has no address.
        """
        domain = domain_of(host)
        share = self._shares.get(domain) or _DomainPlaces()
        if self._waiting >= WAITING_MAX or share.waiting >= max(1, WAITING_MAX // 4):
            raise TooManyNames
        self._shares[domain] = share
        share.users += 1
        try:
            await self._wait(share)
        except BaseException:
            self._leave(domain, share)
            raise
        loop = asyncio.get_running_loop()
        found: asyncio.Future[AddressInfo] = loop.create_future()
        on_found = functools.partial(self._found, found, domain, share)
        # Not an executor: at its end a process waits for the threads of one, and these may take long.
        thread = threading.Thread(
            target=self._look_in_thread, args=(loop, on_found, host, port), name="look-up", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._free(domain, share)
            raise TooManyNames from error
        return await found

    async def _wait(self, share: _DomainPlaces) -> None:
        """Wait for one of the domain's places, then for one of all places."""
        self._waiting += 1
        share.waiting += 1
        try:
            await share.places.acquire()
            try:
                await self._places.acquire()
            except BaseException:
                share.places.release()
                raise
        finally:
            self._waiting -= 1
            share.waiting -= 1

    def _look_in_thread(self, loop: asyncio.AbstractEventLoop, on_found: OnFound, host: str, port: int) -> None:
        outcome: AddressInfo | Exception
        try:
            outcome = self._look(host, port)
        except (OSError, ValueError) as error:  # no address, or an invalid name
            outcome = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(on_found, outcome)

    def _found(
        self,
        found: asyncio.Future[AddressInfo],
        domain: str,
        share: _DomainPlaces,
        outcome: AddressInfo | Exception,
    ) -> None:
        """Back in the loop. The place is free only now, even if the caller has long given up."""
        self._free(domain, share)
        if found.done():
            return
        if isinstance(outcome, Exception):
            found.set_exception(outcome)
        else:
            found.set_result(outcome)

    def _free(self, domain: str, share: _DomainPlaces) -> None:
        self._places.release()
        share.places.release()
        self._leave(domain, share)

    def _leave(self, domain: str, share: _DomainPlaces) -> None:
        share.users -= 1
        if not share.users:
            del self._shares[domain]


def domain_of(host: str) -> str:
    """The domain of a host, roughly: `co.uk` has many owners."""
    return ".".join(host.rstrip(".").lower().split(".")[-2:])


class _NamedResolver:
    """Resolves the names that callers chose, without delaying others."""

    def __init__(self) -> None:
        self._lookups = Lookups()

    async def __call__(self, origin: HttpOrigin) -> list[DialAddress]:
        """As `resolve`; a numeric address needs no thread."""
        try:
            ipaddress.ip_address(origin.host)
        except ValueError:
            found = await self._lookups.find(origin.host, origin.port)
        else:
            found = look_up(origin.host, origin.port)
        return [DialAddress(family, sockaddr) for family, _, _, _, sockaddr in found]


# -- the guard -----------------------------------------------------------------------------------------------------


def tls_settings(authority: str = "") -> ssl.SSLContext:
    """TLS settings for connections to servers, with the system's roots or one `authority` (PEM) alone.

    Certificates are always verified, and TLS 1.2 is the oldest version, whatever the system allows. Unlike Python's
    default, no session keys are written to the file that the environment names.

    Raises:
        ValueError: `authority` contains no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not authority:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context
    try:
        # Text between certificates is ignored: it may be in any encoding.
        context.load_verify_locations(cadata="\n".join(_CERTIFICATE.findall(authority)))
    except (ssl.SSLError, ValueError):
        raise ValueError("it holds no certificate in PEM form") from None
    # The certificate of the server itself is accepted in place of an authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class Egress:
    """The guard. One per hub; its only state are the TLS settings, which all connections share, and lookups."""

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
        reasons: list[str] = []
        for index, address in enumerate(addresses):
            # An address that swallows packets must leave time for the ones after it.
            left = deadline - asyncio.get_running_loop().time()
            share = left / (len(addresses) - index)
            try:
                async with asyncio.timeout(share):
                    return await self._connect(origin, address, protocol_factory)
            except TimeoutError:
                # `except OSError` below would catch it too, without the time in its message.
                reasons.append(f"no answer from {address} within {max(share, 0):.1f} s")
            except OSError as error:
                reasons.append(_in_words(error, address))
        raise DialFailed(origin, "; ".join(reasons) or f"no address for host {origin.host}")

    async def refusal(self, origin: HttpOrigin, *, within: float) -> str | None:
        """Why a caller's `origin` may not be dialled, as far as is known now; None if there is no objection.

        A name without an address may have one later. `dial` checks again.
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
        # Reading the system's roots takes 28 ms, so it happens once, and only if needed.
        return self._given_tls if self._given_tls is not None else tls_settings()


class Guarded(Egress):
    """A guard for addresses that callers named: none of them may be private."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    async def dial(
        self, origin: HttpOrigin, protocol_factory: Callable[[], P], *, is_configured: bool, within: float
    ) -> tuple[asyncio.Transport, P]:
        """Connect as `Egress.dial` does, but never as a configured address."""
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
