"""T20: a proxy in the environment, a password in `.netrc` or an unexpected scheme diverts traffic.

The answer: the client is our own and reads neither. Only http, https, ws and wss are dialled, no matter where the
address comes from. There is no setting for a proxy.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isthmus.transport.egress import HTTP_SCHEMES, PORTS, SOCKET_SCHEMES, parse_url
from isthmus.upstream.server_settings import AgentSettings, HttpSettings, JsonRpcSettings, WebSocketSettings
from isthmus.upstream.targets.settings import read_address
from tests.faults.scripted import Scripted
from tests.hubs import PATIENT, Raw, serving
from tests.security.sink import Sink, recorded, watched_environment
from tests.security.source import strings, with_words
from tests.security.vectors import listed

OTHERS = listed("""
    gopher unix http+unix https+unix file ftp ftps ldap dict jar data javascript tcp telnet ssh sftp mailto about blob
    view-source httpx h2 h2c grpc ws+unix postgresql redis netdoc
""")


async def test_proxies_and_passwords_of_the_environment_have_no_effect(tmp_path: Path) -> None:
    with Sink() as sink:
        proxy = f"http://user:secret@127.0.0.1:{sink.port}"
        names = [f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "ALL", "WS", "WSS", "FTP", "SOCKS")]
        proxies = {spelt: proxy for name in names for spelt in (name, name.lower())}
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password secret\ndefault login u password p\n")
        (tmp_path / ".netrc").chmod(0o600)
        env = {
            **watched_environment(tmp_path / "dialled"),
            **proxies,
            "NO_PROXY": "",
            "HOME": str(tmp_path),
            "NETRC": str(tmp_path / ".netrc"),
        }
        async with (
            Scripted() as server,
            serving(tmp_path, {"s": server.entry}, limits=PATIENT, env=env) as hub,
            Raw(hub.url) as caller,
        ):
            assert "result" in await caller.call("s.t")
        assert all("authorization" not in request.headers for request in server.heard)
        assert set(recorded(tmp_path / "dialled")) == {str(server.entry["url"])[7:-4]}


@pytest.mark.parametrize("scheme", OTHERS)
def test_no_other_scheme_is_dialled(scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:9/"
    for schemes in (HTTP_SCHEMES, SOCKET_SCHEMES):
        with pytest.raises(ValueError, match="must start with"):
            parse_url(url, schemes)
    for settings in (HttpSettings, WebSocketSettings, JsonRpcSettings, AgentSettings):
        with pytest.raises(ValueError, match="must start with"):
            settings(url)
    with pytest.raises(ValueError, match="must start with"):
        read_address(url)


def test_there_are_four_schemes() -> None:
    assert set(PORTS) == {"http", "https", "ws", "wss"}


def test_nothing_of_the_package_reads_a_proxy_or_a_netrc() -> None:
    """Texts in the code, without comments: the names do not even appear."""
    for name, found in with_words(r"(?i)http_proxy|https_proxy|all_proxy|netrc|getproxies"):
        for text in strings(found):
            assert not re.search(r"(?i)(http|https|all|no)_proxy|netrc|getproxies", text), name
