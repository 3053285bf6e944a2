"""The hub's own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config.settings import HubSettings, unfiled_settings
from isthmus.library.server_config import read_plan


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("::ffff:10.0.0.1", False),
        ("hub.example", False),
        ("localhost.example", False),
    ],
)
def test_loopback_addresses_are_recognised(host: str, *, is_loopback: bool) -> None:
    assert HubSettings(host=host).is_loopback == is_loopback


def test_the_defaults_listen_on_loopback() -> None:
    hub = HubSettings()
    assert (hub.host, hub.port, hub.is_loopback, hub.names) == ("127.0.0.1", 8765, True, "canonical")


@pytest.mark.parametrize("given", [None, {"enable_mcp": True, "mcp_servers": []}])
def test_a_hub_without_a_file_has_its_state_in_its_users_home(
    given: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in a folder named ~, wherever somebody started it: whose logins would these be?"""
    monkeypatch.setenv("HOME", str(tmp_path))
    home = str(tmp_path / ".local" / "state" / "isthmus")
    assert unfiled_settings({}).state == home
    assert read_plan(given, None, None).configuration.hub.state == home
    assert read_plan(None, "http://127.0.0.1:9", None).configuration.hub.state == home


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"host": ""}, "host must be an address or a host name, not ''"),
        ({"host": "http://a"}, "host must be an address or a host name, not 'http://a'"),
        ({"port": -1}, "port must be 0 to 65535, not -1"),
        ({"port": 65536}, "port must be 0 to 65535, not 65536"),
        ({"names": "short"}, "names must be one of canonical, llm, not 'short'"),
        ({"log_level": "loud"}, "log_level must be one of debug, info, warning, error, not 'loud'"),
        ({"log_format": "xml"}, "log_format must be one of auto, json, console, not 'xml'"),
        (
            {"hosts": ("hub.example", "*")},
            "hosts.1 must be a host name, with its port if it has one, not '*'",
        ),
        (
            {"origins": ("https://a.example/path",)},
            "origins.0 must be an origin like https://app.example, not 'https://a.example/path'",
        ),
        ({"tools": ("gadgets", "lib/gadgets.py")}, "tools.1 must be package.module, not 'lib/gadgets.py'"),
    ],
)
def test_a_bad_value_is_refused_by_name_rule_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="must be") as refused:
        HubSettings(**values)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("url", "is_published"),
    [
        (None, False),
        ("http://127.0.0.1:8765", False),
        ("http://[::1]:8765", False),
        ("http://localhost/hub", False),
        ("https://hub.example", True),
        ("http://192.168.1.5:8765", True),
    ],
)
def test_a_hub_is_published_where_its_address_is_not_this_machines(url: str | None, *, is_published: bool) -> None:
    assert HubSettings(public_url=url).is_published is is_published


@pytest.mark.parametrize("url", ["hub.example", "ftp://a", "http://", "http://a?b", "http://a:x", "http://a b"])
def test_a_public_url_must_be_one_that_others_can_use(url: str) -> None:
    with pytest.raises(ValueError, match=r"^public_url must be an http or https address without a query"):
        HubSettings(public_url=url)


def test_reasonable_values_are_accepted() -> None:
    HubSettings(
        port=0,
        public_url="https://hub.example/base",
        names="llm",
        hosts=("hub.example", "hub.example:8443", "[::1]:8765"),
        origins=("https://app.example", "http://localhost:3000", "vscode-webview://abc"),
    )
