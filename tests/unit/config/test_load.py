"""A file and an environment become a configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.config.findings import ConfigError
from isthmus.config.load import access_mode, load
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.access.policy import Policy
from isthmus.identity.keys import KeyRing
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.server_settings import HttpSettings, StdioSettings
from isthmus.upstream.targets.settings import TargetSettings

KEY = "k3y-of-the-planner-0123"

EXAMPLE = """
[hub]
port = 9000

[limits]
call_seconds = 20

[servers.files]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-filesystem", "."]

[servers.search]
url = "https://search.example/mcp"
headers = { Authorization = "Bearer ${SEARCH_TOKEN}" }
timeout = 10

[servers.broken]
url = 5

[callers.planner]
key = "env:PLANNER_KEY"
allow = ["files.*", "search.query"]
"""


def loaded(folder: Path, name: str, text: str, environment: dict[str, str] | None = None) -> Configuration:
    (folder / name).write_text(text)
    return load(None, environment or {}, folder, folder / "home")


def test_a_whole_file_is_read_with_its_env_beside(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"PLANNER_KEY={KEY}\nSEARCH_TOKEN=from-file\n")
    configuration = loaded(tmp_path, "isthmus.toml", EXAMPLE, {"SEARCH_TOKEN": "from-environment"})
    assert configuration.file == tmp_path / "isthmus.toml"
    assert configuration.hub.port == 9000
    assert [(server.name, server.timeout) for server in configuration.servers] == [
        ("files", 20),
        ("search", 10),
    ]
    assert configuration.servers[1].reach == HttpSettings(
        "https://search.example/mcp", {"Authorization": "Bearer from-environment"}
    )
    assert [str(warning) for warning in configuration.warnings] == [
        "isthmus.toml: servers.broken.url must be a text, not a number"
    ]
    planner = KeyRing(configuration.callers).caller_of(KEY)
    assert planner is not None
    policy = Policy(planner.grants)
    assert policy.allows(ServerName("files"), FeatureName("read"))
    assert not policy.allows(ServerName("search"), FeatureName("index"))


def test_an_mcp_json_as_people_have_it_needs_no_change(tmp_path: Path) -> None:
    text = {
        "$schema": "https://example.org/schema",
        "inputs": [],
        "mcpServers": {
            "files": {
                "type": "stdio",
                "command": "npx",
                "args": ["-y", "x"],
                "autoApprove": ["read"],
                "env": {},
            },
            "search": {"type": "streamable-http", "url": "https://search.example/mcp", "disabled": False},
        },
    }
    configuration = loaded(tmp_path, "mcp.json", json.dumps(text))
    assert configuration.warnings == ()
    assert [server.reach for server in configuration.servers] == [
        StdioSettings("npx", ("-y", "x")),
        HttpSettings("https://search.example/mcp", carrier="http"),
    ]


def test_without_a_file_the_hub_has_its_defaults(tmp_path: Path) -> None:
    configuration = load(None, {}, tmp_path, tmp_path, port=0)
    assert configuration.file is None
    assert (configuration.hub.port, configuration.servers, configuration.callers) == (0, (), ())


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load(Path("gone.toml"), {}, tmp_path, tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_short_key_is_refused_wherever_the_hub_listens(tmp_path: Path, host: str) -> None:
    (tmp_path / "isthmus.toml").write_text('[callers.a]\nkey = "abc"\nallow = ["*"]')
    with pytest.raises(ConfigError, match="must have 16 characters or more, not 3"):
        load(None, {}, tmp_path, tmp_path, host=host)


def test_keys_and_their_end_are_read_from_a_file(tmp_path: Path) -> None:
    text = f'[callers.a]\nkey = ["{KEY}", "another-key-of-it"]\nexpires = 2027-01-01T00:00:00Z\nallow = ["*"]'
    configuration = loaded(tmp_path, "isthmus.toml", text)
    digests = [digest for digest, _ in configuration.callers]
    assert configuration.expiries == dict.fromkeys(digests, 1_798_761_600)
    assert (len(digests), configuration.warnings) == (2, ())


def test_unknown_tables_are_reported_in_our_own_file(tmp_path: Path) -> None:
    configuration = loaded(tmp_path, "isthmus.toml", "[server.a]\ncommand = 'a'\n[relays]\nkey = 'x'")
    assert [str(warning) for warning in configuration.warnings] == [
        "isthmus.toml: server is not known and has no effect (did you mean servers?)",
        "isthmus.toml: relays is not known and has no effect (did you mean relay?)",
    ]


@pytest.mark.parametrize(("name", "text"), [("isthmus.toml", "[caller.a]\nkey = 'x'"), ("mcp.json", '{"Callers": {}}')])
def test_a_mistyped_table_of_callers_refuses_the_file(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean callers?"):
        loaded(tmp_path, name, text)


def test_a_json_file_of_another_program_without_servers_is_reported(tmp_path: Path) -> None:
    configuration = loaded(tmp_path, "mcp.json", '{"theme": {}}')
    assert [str(warning) for warning in configuration.warnings] == [
        "mcp.json: has no servers (servers belong under mcpServers)"
    ]


def test_the_hub_is_open_on_loopback_and_keyed_once_a_caller_is_configured(tmp_path: Path) -> None:
    assert access_mode(HubSettings(), ()) == "open"
    callers = loaded(tmp_path, "isthmus.toml", f'[callers.a]\nkey = "{KEY}"').callers
    assert access_mode(HubSettings(), callers) == "keys"
    assert access_mode(HubSettings(host="0.0.0.0"), callers) == "keys"


def test_the_hub_is_never_open_to_a_network() -> None:
    with pytest.raises(ConfigError) as refused:
        access_mode(HubSettings(host="0.0.0.0"), ())
    assert str(refused.value) == (
        "hub.host must be loopback while no caller is configured, not '0.0.0.0' "
        '(make a key with: isthmus token create NAME --allow "*", or add [callers.NAME] with key = "env:NAME_KEY" and '
        'allow = ["*"], or listen on 127.0.0.1; isthmus serve --insecure accepts everybody who can reach it)'
    )


def test_the_hub_is_open_to_a_network_only_where_that_was_asked_for() -> None:
    assert access_mode(HubSettings(host="0.0.0.0"), (), is_insecure=True) == "open"


def test_callers_known_from_elsewhere_are_as_good() -> None:
    assert access_mode(HubSettings(), (), has_others=True) == "keys"
    assert access_mode(HubSettings(host="0.0.0.0"), (), has_others=True, is_insecure=True) == "keys"


def test_only_a_hub_for_this_machine_alone_lets_everybody_name_addresses(tmp_path: Path) -> None:
    everybody = TargetSettings(open=True)
    assert access_mode(HubSettings(), (), targets=everybody) == "open"
    callers = loaded(tmp_path, "isthmus.toml", f'[callers.a]\nkey = "{KEY}"').callers
    refused: list[Callable[[], object]] = [
        lambda: access_mode(HubSettings(), callers, targets=everybody),
        lambda: access_mode(HubSettings(), (), has_others=True, targets=everybody),
        lambda: access_mode(HubSettings(host="0.0.0.0"), (), is_insecure=True, targets=everybody),
        lambda: access_mode(HubSettings(public_url="https://hub.example"), (), targets=everybody),
    ]
    for decide in refused:
        with pytest.raises(ConfigError, match=r"^targets\.open must be false unless the hub listens on loopback only"):
            decide()


def test_unset_variables_are_known_by_server(tmp_path: Path) -> None:
    text = (
        '[servers.a]\ncommand = "${SET}"\nargs = ["${UNSET}", "${file:gone}"]\n[servers.b]\ncommand = "${UNSET:-b}"\n'
    )
    read = loaded(tmp_path, "isthmus.toml", text, {"SET": "run"})
    assert read.unresolved == {ServerName("a"): ("${UNSET}", "${file:gone}")}
