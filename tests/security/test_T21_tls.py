"""T21: an attacker on the network impersonates a server: by a wrong or expired certificate, or by broken TLS.

The answer: TLS 1.2 at least, names and dates verified, by the system's roots or by what `[servers.X] ca` names for one
server, which then trusts nothing else. There is no setting that skips it, for one server or for all.
"""

from __future__ import annotations

import ast
import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from isthmus.app.links import Links
from isthmus.config.load import load
from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import ServerTasks
from isthmus.model.names import ServerName
from isthmus.transport.egress import DialFailed, Egress, HttpOrigin, tls_settings
from isthmus.upstream.server_settings import HttpSettings, ServerSettings
from tests.faults.scripted import Scripted
from tests.hubs import PATIENT, Raw, serving, write_config
from tests.security.rebinding import Names
from tests.security.source import with_words
from tests.unit.transport.doubles import Server

NAME = "server.example"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


@asynccontextmanager
async def speaking(leaf: trustme.LeafCert, version: ssl.TLSVersion | None = None) -> AsyncIterator[HttpOrigin]:
    """A server with a certificate, and perhaps with one version of TLS only."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(theirs)
    if version is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that is the point
            theirs.minimum_version = theirs.maximum_version = version
            theirs.set_ciphers("ALL:@SECLEVEL=0")
    async with Server(theirs) as server:
        yield HttpOrigin("https", NAME, server.origin.port)


async def dial(origin: HttpOrigin, authority: trustme.CA | None) -> str:
    """Connect, and say by which version of TLS, or why not."""
    egress = Egress(resolver=Names({NAME: [["127.0.0.1"]], "other.example": [["127.0.0.1"]]}))
    if authority is not None:
        egress = egress.trusting(pem(authority))
    try:
        transport, _ = await egress.dial(origin, asyncio.Protocol, is_configured=True, within=10.0)
    except DialFailed as failed:
        return failed.reason
    version = str(transport.get_extra_info("ssl_object").version())
    transport.abort()
    await asyncio.sleep(0)
    return version


async def test_a_certificate_of_the_named_authority_is_taken() -> None:
    authority = trustme.CA()
    async with speaking(authority.issue_cert(NAME)) as origin:
        assert await dial(origin, authority) == "TLSv1.3"


async def test_a_servers_own_certificate_may_be_named_instead() -> None:
    leaf, other = trustme.CA().issue_cert(NAME), trustme.CA().issue_cert(NAME)
    egress = Egress(resolver=Names({NAME: [["127.0.0.1"]]}))
    async with speaking(leaf) as origin:
        pinned = egress.trusting(leaf.cert_chain_pems[0].bytes().decode())
        transport, _ = await pinned.dial(origin, asyncio.Protocol, is_configured=True, within=10.0)
        transport.abort()
        with pytest.raises(DialFailed, match="certificate verify failed"):
            await egress.trusting(other.cert_chain_pems[0].bytes().decode()).dial(
                origin, asyncio.Protocol, is_configured=True, within=10.0
            )


async def test_one_that_has_expired_is_refused() -> None:
    authority = trustme.CA()
    async with speaking(
        authority.issue_cert(NAME, not_before=datetime(2019, 1, 1, tzinfo=UTC), not_after=LONG_AGO)
    ) as origin:
        assert "certificate has expired" in await dial(origin, authority)


async def test_one_for_another_name_is_refused() -> None:
    authority = trustme.CA()
    async with speaking(authority.issue_cert("other.example")) as origin:
        assert "Hostname mismatch" in await dial(origin, authority)


async def test_a_certificate_without_or_of_another_authority_is_refused() -> None:
    authority, other = trustme.CA(), trustme.CA()
    async with speaking(authority.issue_cert(NAME)) as origin:
        assert "certificate verify failed" in await dial(origin, None)
        assert "certificate verify failed" in await dial(origin, other)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_broken_versions_are_not_spoken(version: ssl.TLSVersion) -> None:
    authority = trustme.CA()
    async with speaking(authority.issue_cert(NAME), version) as origin:
        assert await lax_version(origin) == version
        assert "TLSv1" not in await dial(origin, authority)


async def lax_version(origin: HttpOrigin) -> ssl.TLSVersion:
    """The TLS version of a client that accepts any: the server does speak it."""
    anything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
    anything.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    anything.set_ciphers("ALL:@SECLEVEL=0")
    _, writer = await asyncio.open_connection("127.0.0.1", origin.port, ssl=anything)
    spoken = str(writer.get_extra_info("ssl_object").version())
    writer.transport.abort()
    return {"TLSv1": ssl.TLSVersion.TLSv1, "TLSv1.1": ssl.TLSVersion.TLSv1_1}[spoken]


async def test_the_oldest_that_is_spoken_is_1_2() -> None:
    authority = trustme.CA()
    async with speaking(authority.issue_cert(NAME), ssl.TLSVersion.TLSv1_2) as origin:
        assert await dial(origin, authority) == "TLSv1.2"


def test_there_is_nothing_lax_about_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    for context in (tls_settings(), tls_settings(pem(trustme.CA()))):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.keylog_filename is None
    assert len(tls_settings(pem(trustme.CA())).get_ca_certs()) == 1, "who names an authority trusts no other"


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "nothing", "\0"])
def test_an_invalid_certificate_is_reported(text: str) -> None:
    if text:
        with pytest.raises(ValueError, match="no certificate in PEM form"):
            tls_settings(text)
    assert len(tls_settings(f"# Zertifikate für alle\n{pem(trustme.CA())}").get_ca_certs()) == 1


def test_the_code_has_no_way_to_skip_it() -> None:
    """No `CERT_NONE`, no unverified context, and `check_hostname` is nowhere set."""
    lax = {"CERT_NONE", "CERT_OPTIONAL", "_create_unverified_context", "check_hostname", "verify_mode"}
    for name, found in with_words(r"CERT_|unverified|check_hostname|verify_mode|verify|cert_reqs"):
        for node in found:
            if isinstance(node, ast.Attribute):
                assert node.attr not in lax, name
            if isinstance(node, ast.keyword):
                assert node.arg not in {"verify_ssl", "verify", "check_hostname", "cert_reqs"}, name


# -- in a running hub --------------------------------------------------------------------------------------------------


class Secure(Scripted):
    """A server behind TLS."""

    def __init__(self, leaf: trustme.LeafCert) -> None:
        super().__init__()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        leaf.configure_cert(self._context)

    async def __aenter__(self) -> Secure:
        self._server = await asyncio.start_server(self._converse, "127.0.0.1", 0, ssl=self._context)
        port = self._server.sockets[0].getsockname()[1]
        self.entry = {"url": f"https://127.0.0.1:{port}/mcp", "era": "legacy"}
        return self


async def test_a_server_of_a_private_authority_is_called_if_its_entry_names_it(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    (tmp_path / "ours.pem").write_text(pem(authority))
    (tmp_path / "theirs.pem").write_text(pem(other))
    async with Secure(authority.issue_cert("127.0.0.1")) as server:
        servers = {
            "named": {**server.entry, "ca": "ours.pem"},
            "unnamed": server.entry,
            "wrong": {**server.entry, "ca": "theirs.pem"},
        }
        async with serving(tmp_path, servers, limits=PATIENT) as hub, Raw(hub.url) as caller:
            assert [name for name in await caller.names() if name.endswith(".t")] == ["named.t"]
            assert "result" in await caller.call("named.t")
            assert sum("certificate verify failed" in line for line in hub.said) >= 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "servers.s.ca must be a file that can be read"),
        ("nothing", "servers.s.ca must be a file of certificates in PEM form"),
        ("\0" * (2 << 20), "servers.s.ca must be a file of certificates in PEM form"),
    ],
)
def test_a_file_that_names_no_authority_costs_its_server(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "x.pem").write_text(content)
    config = write_config(tmp_path, {"s": {"url": "https://server.example/mcp", "ca": "x.pem"}})
    found = load(config, {}, tmp_path, tmp_path)
    assert not found.servers
    assert any(words in str(finding) for finding in found.warnings), found.warnings


async def test_an_authority_is_of_its_server_alone() -> None:
    background = BackgroundTasks("links")
    links = Links(Limits(), {}, background, ServerTasks(lambda: 0.0))
    reach = HttpSettings("https://server.example/mcp")
    plain, own = ServerSettings(ServerName("a"), reach), ServerSettings(ServerName("b"), reach, ca=pem(trustme.CA()))
    assert links._egress_to(plain) is links.egress
    assert links._egress_to(own) is not links.egress
    await background.aclose()
