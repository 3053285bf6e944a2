"""The difference between two configurations, and the part that a running hub can apply."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.app.reload_diff import FIXED, ConfigDiff, changed_settings, compare, keep_fixed_settings
from isthmus.config.settings import Configuration, HubSettings, Origin, RelayParts
from isthmus.core.settings import Limits
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.identity.relay_tokens import TokenSettings
from isthmus.model.callers import Caller, Grants
from isthmus.model.names import ServerName
from isthmus.model.relay import AgentRules
from isthmus.storage.settings import StorageSettings
from isthmus.upstream.dialin.settings import DialInSettings
from isthmus.upstream.server_settings import ServerSettings, StdioSettings

HUB = HubSettings()
PLANNER = (b"digest", Caller("planner", "default", Grants(("*",))))
IMPORTED = Path("/home/me/.cursor/mcp.json")


def server(name: str, command: str = "run") -> ServerSettings:
    return ServerSettings(ServerName(name), StdioSettings(command))


def having(*servers: ServerSettings, hub: HubSettings = HUB) -> Configuration:
    return Configuration(None, hub, servers)


def test_two_readings_of_one_file_do_not_differ() -> None:
    assert not compare(having(server("a"), server("b")), having(server("b"), server("a")))


def test_servers_are_compared_by_name() -> None:
    old = having(server("stays"), server("goes"), server("changes"))
    new = having(server("changes", "other"), server("stays"), server("comes"))
    assert compare(old, new) == ConfigDiff(
        added=(server("comes"),), changed=(server("changes", "other"),), removed=(ServerName("goes"),)
    )


def test_callers_are_compared_as_a_whole() -> None:
    old = having()
    assert compare(old, replace(old, callers=(PLANNER,))).callers_changed
    assert not compare(replace(old, callers=(PLANNER,)), replace(old, callers=(PLANNER,))).callers_changed


def test_settings_are_named_as_a_file_spells_them() -> None:
    new = HubSettings(port=1, log_file="/tmp/x", limits=Limits(call_seconds=5.0))
    assert changed_settings(having(), having(hub=new)) == ("hub.port", "log.file", "limits.call_seconds")


def test_changed_agent_settings_are_applied_and_named() -> None:
    new = replace(having(), a2a=A2aSettings(name="Other", keep=5.0))
    assert compare(having(), new).settings == ("a2a.name", "a2a.keep")
    assert keep_fixed_settings(having(), new).a2a == new.a2a


def test_the_port_of_grpc_stays_until_the_next_start() -> None:
    new = replace(having(), a2a=A2aSettings(name="Other", grpc_port=50051, grpc_url="grpc.example"))
    usable = keep_fixed_settings(having(), new)
    assert usable.a2a == A2aSettings(name="Other", grpc_url="grpc.example")
    assert changed_settings(usable, new) == ("a2a.grpc_port",)


def relay(key: str, wait: float, *, enabled: bool = True, **agents: AgentRules) -> RelayParts:
    frontend = RelaySettings(enabled=enabled, wait=wait, agents=agents)
    return RelayParts(TokenSettings(key=key), DialInSettings(agents=agents), frontend)


def test_changed_relay_settings_are_applied_and_named_without_the_key() -> None:
    old = replace(having(), relay=relay("hunter22", 5, kitchen=AgentRules(grace=1), cellar=AgentRules()))
    new = replace(having(), relay=relay("hunter23", 6, kitchen=AgentRules(grace=2), attic=AgentRules()))
    difference = compare(old, new)
    assert sorted(difference.settings) == [
        "relay.agents.attic", "relay.agents.cellar", "relay.agents.kitchen", "relay.key", "relay.wait",
    ]  # fmt: skip
    assert "hunter" not in repr(difference)
    assert keep_fixed_settings(old, new).relay == new.relay


def test_whether_there_is_a_relay_stays_until_the_next_start() -> None:
    old = replace(having(), relay=relay("hunter22", 5))
    new = replace(having(), relay=relay("hunter22", 6, enabled=False))
    usable = keep_fixed_settings(old, new)
    assert usable.relay == relay("hunter22", 6)
    assert changed_settings(usable, new) == ("relay.enabled",)


def test_a_journal_that_is_to_be_elsewhere_needs_a_restart() -> None:
    new = replace(having(), storage=StorageSettings("postgresql://h/d"))
    assert keep_fixed_settings(having(), new).storage == StorageSettings()
    assert changed_settings(having(), new) == ("storage.url",)
    assert changed_settings(new, new) == ()


OTHER = {
    "audit": "strict",
    "console": False,
    "host": "localhost",
    "port": 1,
    "public_url": "https://hub.example",
    "names": "llm",
    "state": "/elsewhere",
    "tools": ("gadgets",),
}


@pytest.mark.parametrize("name", FIXED["hub"])
def test_settings_that_need_a_restart_stay(name: str) -> None:
    wanted = HubSettings(**{name: OTHER[name]})  # type: ignore[arg-type]
    assert keep_fixed_settings(having(), having(hub=wanted)).hub == HUB
    assert changed_settings(having(), having(hub=wanted)) == (f"hub.{name}",)


@pytest.mark.parametrize("name", FIXED["limits"])
def test_fixed_limits_of_the_listener_stay_and_others_change(name: str) -> None:
    wanted = Limits(**{name: 123_456, "call_seconds": 5.0})  # type: ignore[arg-type]
    usable = keep_fixed_settings(having(), having(hub=HubSettings(limits=wanted)))
    assert usable.hub.limits == Limits(call_seconds=5.0)


def test_settings_that_need_a_restart_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operating.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("|") and "They need a restart" in line]
    named = {f"{table}.{name}" for table, names in FIXED.items() for name in names}
    assert set(re.findall(r"`([a-z0-9_.]+)`", row.split("|")[1])) == named


def test_a_broken_entry_keeps_the_form_it_had() -> None:
    read = replace(having(server("b", "other")), broken=(ServerName("a"), ServerName("new")))
    usable = keep_fixed_settings(having(server("a"), server("b")), read)
    assert usable.servers == (server("b", "other"), server("a"))


def test_servers_of_an_imported_file_that_is_broken_stay_until_it_is_read_again() -> None:
    origins = {"servers.a": Origin(IMPORTED, "mcpServers.a"), "servers.b": Origin(Path("own.toml"), "servers.b")}
    running = replace(having(server("a"), server("b")), origins=origins)
    unread = replace(having(), unread=(IMPORTED,))

    once = keep_fixed_settings(running, unread)
    assert once.servers == (server("a"),)
    assert keep_fixed_settings(once, unread).servers == (server("a"),)
    assert keep_fixed_settings(once, having()).servers == ()


def test_an_entry_of_the_same_name_elsewhere_wins_over_the_one_that_is_kept() -> None:
    read = replace(having(server("a", "other")), broken=(ServerName("a"),))
    assert keep_fixed_settings(having(server("a")), read).servers == (server("a", "other"),)


# -- variables that were set -----------------------------------------------------------------------------------


def borrowing(command: str, *unset: str) -> Configuration:
    """One server whose command is in a variable, which is set or not."""
    origins = {"servers.a": Origin(IMPORTED, "mcpServers.a"), "servers.a.command": Origin(IMPORTED, "c", ("X",))}
    return replace(having(server("a", command)), origins=origins, unresolved={ServerName("a"): unset} if unset else {})


def test_a_variable_that_is_no_longer_set_leaves_its_server_as_it_was() -> None:
    usable = keep_fixed_settings(borrowing("run"), borrowing("${X}", "${X}"))
    assert usable.servers == (server("a"),)
    assert usable.unresolved == {}
    assert [str(finding) for finding in usable.warnings] == [
        "mcp.json: mcpServers.a keeps its earlier settings: ${X} is no longer set"
    ]
    assert keep_fixed_settings(usable, borrowing("${X}", "${X}")) == usable, "the next look finds the same"


def test_a_variable_that_never_was_set_is_no_loss() -> None:
    unset = borrowing("${X}", "${X}")
    assert keep_fixed_settings(unset, unset) == unset
    assert keep_fixed_settings(having(), unset).servers == unset.servers
    new = borrowing("${Y}", "${Y}")
    assert keep_fixed_settings(borrowing("run"), new).servers == new.servers
