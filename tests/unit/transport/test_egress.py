"""The egress guard: URLs, addresses, name lookups and TLS settings."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trustme

from isthmus.transport import egress as module
from isthmus.transport.egress import (
    PLACES,
    PLACES_PER_DOMAIN,
    AddressInfo,
    DialAddress,
    DialFailed,
    Egress,
    EgressRefused,
    Guarded,
    HttpOrigin,
    Lookups,
    TooManyNames,
    domain_of,
    parse_url,
    permitted,
    refusal_of,
    tls_settings,
)
from tests.unit.transport.doubles import Server


class Names:
    """A resolver that answers as told, one answer after the other, the last for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self, origin: HttpOrigin) -> list[DialAddress]:
        self.asked += 1
        addresses = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [DialAddress(socket.AF_INET, (address, origin.port)) for address in addresses]


async def dial(egress: Egress, origin: HttpOrigin, *, is_configured: bool = True, within: float = 5.0) -> str:
    """Dial, close again, and say whose address it was."""
    transport, _ = await egress.dial(origin, asyncio.Protocol, is_configured=is_configured, within=within)
    address = str(transport.get_extra_info("peername")[0])
    transport.abort()
    await asyncio.sleep(0)
    return address


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("http://example.com", HttpOrigin("http", "example.com", 80), "/"),
        ("https://Example.COM:8443/mcp?a=b#c", HttpOrigin("https", "example.com", 8443), "/mcp?a=b"),
        ("HTTP://[::1]:90/x", HttpOrigin("http", "::1", 90), "/x"),
        ("http://bücher.example/straße", HttpOrigin("http", "xn--bcher-kva.example", 80), "/stra%C3%9Fe"),
        ("http://127。0。0。1/", HttpOrigin("http", "127.0.0.1", 80), "/"),
        ("http://h/a%2Fb?q=%20&r=é", HttpOrigin("http", "h", 80), "/a%2Fb?q=%20&r=%C3%A9"),
    ],
)
def test_a_url_is_split_into_the_address_and_the_request(url: str, origin: HttpOrigin, target: str) -> None:
    assert parse_url(url) == (origin, target)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/x",
        "ftp://example.com",
        "file:///etc/passwd",
        "http+unix://x/",
        "http://",
        "http:///path",
        "http://user@example.com/",
        "http://good@127.0.0.1/",
        "http://a:0/",
        "http://a:65536/",
        "http://a:b/",
        "http://a b/",
        "http://a\r\nHost: b/",
        "http://a\t/",
        "http://a\\@b/",
        "http://a/\x00",
        "http://[::1",
        "http://[fe80::1%25lo]/",
        "http://[v1.x]/",
        "http://a..b/",
        "http://-a/",
        "http://a,b/",
        "http://" + "a" * 64 + ".example/",
    ],
)
def test_a_url_that_can_be_misread_is_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match=r"^'"):
        parse_url(url)


def test_an_error_about_a_url_contains_no_secret() -> None:
    for url in ("http://user:hunter2@h:x/", "http://h:x/?token=hunter2", "ftp://u:hunter2@h/"):
        with pytest.raises(ValueError, match="…") as caught:
            parse_url(url)
        assert "hunter2" not in str(caught.value)


def test_the_host_header_leaves_out_the_schemes_own_port() -> None:
    assert HttpOrigin("https", "h", 443).authority == "h"
    assert HttpOrigin("http", "h", 443).authority == "h:443"
    assert str(HttpOrigin("http", "::1", 80)) == "http://[::1]"


NOT_PUBLIC = """
    0.0.0.0 0.1.2.3 10.1.2.3 100.64.0.1 100.127.255.255 127.0.0.1 127.9.9.9 168.63.129.16 169.254.169.254
    172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255
    198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    :: ::1 ::169.254.169.254 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:10.0.0.1 ::ffff:0:a9fe:a9fe
    64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 2001::1 2001:0:1::1 2001:10::1 2001:db8::1 2002:a9fe:a9fe::1
    3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%lo fec0::1 ff02::1
"""


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_addresses_that_are_not_public_are_denied(address: str) -> None:
    assert refusal_of(address) is not None


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.1.1", "::ffff:8.8.8.8", "2606:4700::1111", "2a00::1"],
)
def test_public_addresses_are_not_denied(address: str) -> None:
    assert refusal_of(address) is None


async def test_a_configured_server_may_be_on_loopback(server: Server) -> None:
    assert await dial(Egress(), server.origin) == "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "0", "2130706433", "0x7f000001", "0177.0.0.1"])
async def test_a_callers_address_is_judged_by_its_resolved_addresses(server: Server, host: str) -> None:
    with pytest.raises(EgressRefused, match="may not be dialled"):
        await dial(Egress(), HttpOrigin("http", host, server.origin.port), is_configured=False)
    assert server.accepted == 0


@pytest.mark.parametrize("host", ["localhost", "a.localhost.", "metadata.google.internal", "printer.local"])
async def test_names_of_private_networks_are_refused_unresolved(host: str) -> None:
    names = Names(["8.8.8.8"])
    with pytest.raises(EgressRefused, match="private network"):
        await dial(Egress(resolver=names), HttpOrigin("http", host, 80), is_configured=False)
    assert names.asked == 0


async def test_a_name_is_resolved_once_and_the_checked_address_dialled(server: Server) -> None:
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    origin = HttpOrigin("http", "rebinding.example", server.origin.port)
    assert await dial(Egress(resolver=names), origin) == "127.0.0.1"
    assert names.asked == 1


async def test_every_new_connection_is_checked_again() -> None:
    egress = Egress(resolver=Names(["192.0.2.1"], ["127.0.0.1"]))
    for _ in range(2):
        with pytest.raises(EgressRefused):
            await dial(egress, HttpOrigin("http", "rebinding.example", 80), is_configured=False)


async def test_the_next_address_is_tried_when_one_fails(server: Server) -> None:
    origin = HttpOrigin("http", "two.example", server.origin.port)
    assert await dial(Egress(resolver=Names(["127.0.0.2", "127.0.0.1"])), origin) == "127.0.0.1"


def test_of_mixed_addresses_only_the_public_ones_are_left() -> None:
    origin = HttpOrigin("http", "mixed.example", 80)
    private, public = (DialAddress(socket.AF_INET, (address, 80)) for address in ("127.0.0.1", "8.8.8.8"))
    assert permitted(origin, [private, public]) == [public]
    with pytest.raises(EgressRefused, match=r"mixed\.example .* loopback"):
        permitted(origin, [private])


async def test_any_other_failure_is_reported_in_the_systems_words() -> None:
    egress = Egress(resolver=Names(["255.255.255.255"]))
    with pytest.raises(DialFailed, match=r"[a-z ]+ at 255\.255\.255\.255:80$"):
        await dial(egress, HttpOrigin("http", "broadcast.example", 80))


async def test_a_refused_connection_is_reported_with_its_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        origin = HttpOrigin("http", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(DialFailed) as caught:
            await dial(Egress(), origin)
    assert caught.value.reason == f"connection refused by 127.0.0.1:{origin.port}"
    assert caught.value.origin == origin


async def test_an_unknown_host_is_reported_by_name() -> None:
    with pytest.raises(DialFailed, match=r"no address for host no-such-host\.invalid"):
        await dial(Egress(), HttpOrigin("http", "no-such-host.invalid", 80))


async def test_a_silent_address_leaves_time_for_the_next(server: Server) -> None:
    with socket.socket() as full:
        # A listener whose queue is full: the kernel answers no further connection.
        full.bind(("127.0.0.3", server.origin.port))
        full.listen(0)
        with socket.socket() as first, socket.socket() as second:
            for sock in (first, second):
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            names = Names(["127.0.0.3", "127.0.0.1"])
            origin = HttpOrigin("http", "two.example", server.origin.port)
            assert await dial(Egress(resolver=names), origin, within=4.0) == "127.0.0.1"


async def test_a_silent_resolver_is_not_waited_for() -> None:
    async def never(origin: HttpOrigin) -> list[DialAddress]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(DialFailed, match="not resolved within"):
        await dial(Egress(resolver=never), HttpOrigin("http", "slow.example", 80), within=0.01)


async def test_tls_verifies_the_name_that_was_asked_for() -> None:
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("right.example").configure_cert(theirs)
    authority.configure_trust(ours)
    egress = Egress(ours, resolver=Names(["127.0.0.1"]))
    async with Server(theirs) as server:
        port = server.origin.port
        assert await dial(egress, HttpOrigin("https", "right.example", port)) == "127.0.0.1"
        with pytest.raises(DialFailed, match=r"TLS: certificate verify failed: Hostname mismatch"):
            await dial(egress, HttpOrigin("https", "wrong.example", port))
        with pytest.raises(DialFailed, match="TLS: certificate verify failed"):
            await dial(Egress(resolver=Names(["127.0.0.1"])), HttpOrigin("https", "right.example", port))


async def test_plain_http_behind_an_https_url_is_reported_as_a_tls_problem(server: Server) -> None:
    async def answer() -> None:
        peer = await server.accept()
        await peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    answering = asyncio.create_task(answer())
    with pytest.raises(DialFailed, match="TLS: "):
        await dial(Egress(), HttpOrigin("https", "127.0.0.1", server.origin.port))
    await answering


async def test_an_address_that_a_caller_named_is_never_private_for_any_dialler() -> None:
    async with Server() as server:
        names = Names(["127.0.0.1"])
        origin = HttpOrigin("http", "rebinding.example", server.origin.port)
        assert await dial(Egress(resolver=names), origin) == "127.0.0.1"
        guarded = Guarded(Egress(resolver=names))
        assert "loopback" in (await guarded.refusal(origin, within=5.0) or "")
        for egress in (guarded, guarded.trusting(trustme.CA().cert_pem.bytes().decode())):
            with pytest.raises(EgressRefused):
                await dial(egress, origin)


async def test_a_server_proves_itself_by_the_authority_that_is_named_and_by_no_other() -> None:
    authority, other = trustme.CA(), trustme.CA()
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("right.example").configure_cert(theirs)
    names = Names(["127.0.0.1"])
    async with Server(theirs) as server:
        origin = HttpOrigin("https", "right.example", server.origin.port)
        egress = Egress(resolver=names)
        assert await dial(egress.trusting(authority.cert_pem.bytes().decode()), origin) == "127.0.0.1"
        with pytest.raises(DialFailed, match="certificate verify failed"):
            await dial(egress.trusting(other.cert_pem.bytes().decode()), origin)
        with pytest.raises(EgressRefused):
            await dial(egress.trusting(authority.cert_pem.bytes().decode()), origin, is_configured=False)
    assert names.asked == 3, "by the same name server"


ADDRESS = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 80))]
SECONDS = 5


class NameServer:
    """Answers names at once, but for those that begin with `slow`."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked: list[str] = []
        self._really = socket.getaddrinfo

    def look(self, host: str, port: int) -> AddressInfo:
        self.asked.append(host)
        if host.startswith("slow"):
            self.release.wait()
        if host.startswith("no"):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return ADDRESS

    def getaddrinfo(self, host: str, port: int, *args: int, **named: int) -> AddressInfo:
        """As the system is asked."""
        return self.look(host, port) if host.endswith(".example") else self._really(host, port, *args, **named)


@pytest.fixture
def names() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.release.set()


@asynccontextmanager
async def stuck(names: NameServer, found: Lookups, count: int) -> AsyncIterator[list[asyncio.Task[AddressInfo]]]:
    """So many callers who wait for names that are not answered."""
    tasks = [asyncio.create_task(found.find(f"slow{number}", 80)) for number in range(count)]
    async with asyncio.timeout(SECONDS):
        while len(names.asked) < min(count, PLACES):  # noqa: ASYNC110 - threads ask
            await asyncio.sleep(0)
    try:
        yield tasks
    finally:
        names.release.set()
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_name_is_looked_up_or_has_no_address(names: NameServer) -> None:
    found = Lookups(names.look)
    assert await found.find("quick.example", 80) == ADDRESS
    with pytest.raises(socket.gaierror):
        await found.find("no.example", 80)


async def test_the_system_resolves_names_unless_another_resolver_is_set() -> None:
    (first, *_) = await Lookups().find("127.0.0.1", 80)
    assert first[4] == ("127.0.0.1", 80)


async def test_only_so_many_are_looked_up_at_once_and_the_next_in_its_turn(names: NameServer) -> None:
    found = Lookups(names.look)
    async with stuck(names, found, PLACES + 1) as tasks:
        assert len(names.asked) == PLACES
        names.release.set()
        async with asyncio.timeout(SECONDS):
            assert await tasks[-1] == ADDRESS


async def test_a_cancelled_lookup_frees_no_place_before_the_name_server_has_answered(names: NameServer) -> None:
    found = Lookups(names.look)
    async with stuck(names, found, PLACES) as tasks:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        another = asyncio.create_task(found.find("quick.example", 80))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(names.asked) == PLACES
        names.release.set()
        async with asyncio.timeout(SECONDS):
            assert await another == ADDRESS


def test_a_domain_is_the_same_however_it_is_spelt() -> None:
    assert {domain_of(host) for host in ("a.one.example", "B.ONE.Example", "c.d.one.example.", "one.example")} == {
        "one.example"
    }


async def test_the_names_of_one_domain_delay_no_other(names: NameServer) -> None:
    """The owner of a name server may delay each name by half a minute."""
    found = Lookups(names.look)
    slow = [asyncio.create_task(found.find(f"slow{number}.a.Evil.example.", 80)) for number in range(3 * PLACES)]
    async with asyncio.timeout(SECONDS):
        assert await found.find("quick.example", 80) == ADDRESS
        assert await found.find("evil.example.org", 80) == ADDRESS
        assert len([name for name in names.asked if name.startswith("slow")]) <= PLACES_PER_DOMAIN
        names.release.set()
        assert await asyncio.gather(*slow) == [ADDRESS] * len(slow)
    assert not found._shares, "nothing is remembered of a domain that nobody asks for"


async def test_waiting_lookups_of_one_domain_leave_room_for_others(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 8)
    found = Lookups(names.look)
    slow = [
        asyncio.create_task(found.find(f"slow{number}.evil.example", 80)) for number in range(PLACES_PER_DOMAIN + 2)
    ]
    await asyncio.sleep(0)
    with pytest.raises(TooManyNames):
        await found.find("one-more.evil.example", 80)
    async with asyncio.timeout(SECONDS):
        assert await found.find("quick.example", 80) == ADDRESS
        for task in slow:
            task.cancel()
        names.release.set()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_a_cancelled_wait_leaves_its_domains_places_to_the_next(names: NameServer) -> None:
    found = Lookups(names.look)
    async with stuck(names, found, PLACES):
        *gone, stays = [
            asyncio.create_task(found.find(f"quick{n}.one.example", 80)) for n in range(PLACES_PER_DOMAIN + 1)
        ]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        names.release.set()
        assert await asyncio.wait_for(stays, SECONDS) == ADDRESS


async def test_not_everybody_can_wait(names: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 1)
    found = Lookups(names.look)
    async with stuck(names, found, PLACES + 1):
        with pytest.raises(TooManyNames, match="try again later"):
            await found.find("quick.example", 80)


async def test_where_the_system_gives_no_thread_a_place_is_free_again(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    found = Lookups(names.look)
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", refuse)
        for number in range(PLACES + 1):
            with pytest.raises(TooManyNames):
                await asyncio.wait_for(found.find(f"quick{number}.example", 80), SECONDS)
    assert await asyncio.wait_for(found.find("quick.example", 80), SECONDS) == ADDRESS


def test_a_late_answer_for_a_name_without_a_waiter_is_harmless(names: NameServer) -> None:
    failed: list[object] = []

    async def leave() -> None:
        found = Lookups(names.look)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(found.find("slow.example", 80), 0.01)

    threading.excepthook, before = failed.append, threading.excepthook
    try:
        asyncio.run(leave())
        names.release.set()
        for thread in threading.enumerate():
            if thread.name == "look-up":
                thread.join(SECONDS)
    finally:
        threading.excepthook = before
    assert not failed


async def test_slow_names_of_callers_do_not_delay_a_configured_server(
    server: Server, names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    egress = Egress()
    wanted = [HttpOrigin("https", f"slow{number}.example", 443) for number in range(50)]
    looks = [asyncio.create_task(egress.refusal(origin, within=SECONDS)) for origin in wanted]
    async with asyncio.timeout(SECONDS):
        while not names.asked:  # noqa: ASYNC110 - threads ask
            await asyncio.sleep(0)
        configured = HttpOrigin("http", "localhost", server.origin.port)
        transport, _ = await egress.dial(configured, asyncio.Protocol, is_configured=True, within=SECONDS)
    transport.abort()
    names.release.set()
    await asyncio.gather(*looks)


def pem() -> str:
    return trustme.CA().cert_pem.bytes().decode()


def test_the_systems_roots_count_unless_an_authority_is_named() -> None:
    for context in (tls_settings(), tls_settings(pem())):
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert len(tls_settings(pem()).get_ca_certs()) == 1


def test_several_certificates_may_be_in_a_text_that_says_more_than_these() -> None:
    assert len(tls_settings(f"Unsere: {pem()}\nIhre: für alle\n{pem()}").get_ca_certs()) == 2


@pytest.mark.parametrize("text", ["x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "\0"])
def test_text_without_a_certificate_is_no_authority(text: str) -> None:
    with pytest.raises(ValueError, match="no certificate in PEM form"):
        tls_settings(text)
