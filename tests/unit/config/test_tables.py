"""The hub's own tables."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from isthmus.cluster.settings import ClusterSettings
from isthmus.config.client_formats import CODEX, OWN, STANDARD
from isthmus.config.files import ParsedFile
from isthmus.config.finding_codes import BAD_AGENT, WEAK_KEY
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.load import load
from isthmus.config.settings import Configuration, RelayParts
from isthmus.config.tables import (
    A2A,
    HUB_TABLES,
    TARGETS,
    TASKS,
    accepted,
    read_cluster,
    read_hub,
    read_relay,
    read_settings,
    read_storage,
    read_table,
)
from isthmus.config.variables import Variables
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.mcp.settings import TaskSettings
from isthmus.model.relay import AgentRules
from isthmus.storage.settings import StorageSettings
from isthmus.upstream.targets.settings import TargetSettings

# -- Tables of plain values: types, unknown keys, ranges ----------------------------------------------------

HERE = ParsedFile(Path("/etc/hub/isthmus.toml"), {"t": {"a": 1, "b": 2}}, OWN)


def test_known_values_are_read_and_unknown_keys_reported() -> None:
    read, (finding,) = read_table(HERE, "t", {"a": int})
    assert read == {"a": 1}
    assert "t.b" in str(finding)
    assert read_table(HERE, "other", {"a": int}) == ({}, ())


def test_a_value_of_another_type_names_its_place() -> None:
    with pytest.raises(ConfigError, match=r"isthmus\.toml: t\.a must be a text, not 1"):
        read_table(HERE, "t", {"a": str})


def test_a_rejected_setting_names_its_place() -> None:
    def refuse() -> None:
        raise ValueError("a must be even, not 1")

    assert accepted(HERE, "t", lambda: 5) == 5
    with pytest.raises(ConfigError, match=r"isthmus\.toml: t\.a must be even, not 1"):
        accepted(HERE, "t", refuse)


# -- The hub's tables ---------------------------------------------------------------------------------------

FILE = Path("/etc/hub/isthmus.toml")
HOME = Path("/home/me")


def document(**table: object) -> ParsedFile:
    return ParsedFile(FILE, dict(table), OWN)


def test_with_no_file_the_defaults_hold_and_the_state_is_at_home() -> None:
    hub, findings = read_hub(None, {}, HOME, {})
    assert (hub.host, hub.port, hub.state, findings) == (
        "127.0.0.1",
        8765,
        "/home/me/.local/state/isthmus",
        (),
    )


def test_the_tables_fill_the_settings() -> None:
    hub, findings = read_hub(
        document(
            hub={
                "host": "0.0.0.0",
                "port": 9000,
                "state": "state",
                "hosts": ["hub.example"],
                "names": "llm",
            },
            limits={"call_seconds": 5, "max_calls": 2},
        ),
        {},
        HOME,
        {},
    )
    assert (hub.host, hub.port, hub.state, hub.names) == ("0.0.0.0", 9000, "/etc/hub/state", "llm")
    assert hub.hosts == ("hub.example",)
    assert (hub.limits.call_seconds, hub.limits.max_calls, hub.limits.max_queued) == (5, 2, 256)
    assert findings == ()


def test_settings_are_known_by_their_earlier_names_too() -> None:
    hub, findings = read_hub(
        document(hub={"allowed_hosts": ["a.example"], "allowed_origins": ["https://a"]}), {}, HOME, {}
    )
    assert (hub.hosts, hub.origins) == (("a.example",), ("https://a",))
    assert findings == ()


def test_command_line_settings_win() -> None:
    hub, _ = read_hub(document(hub={"host": "0.0.0.0", "port": 9000}), {}, HOME, {"host": "::1"})
    assert (hub.host, hub.port) == ("::1", 9000)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"log": {"level": "loud"}}, "isthmus.toml: log.level must be one of debug, info, warning, error, not 'loud'"),
        ({"log": {"file": 5}}, "isthmus.toml: log.file must be a text, not 5"),
        ({"log": {"file": ""}}, "isthmus.toml: log.file must be the path of a file, not ''"),
        ({"hub": {"port": "high"}}, "isthmus.toml: hub.port must be a whole number, not 'high'"),
        ({"hub": {"port": 70000}}, "isthmus.toml: hub.port must be 0 to 65535, not 70000"),
        ({"hub": {"host": 5}}, "isthmus.toml: hub.host must be a text, not 5"),
        ({"hub": {"allowed_hosts": "a"}}, "isthmus.toml: hub.allowed_hosts must be a list of texts, not 'a'"),
        (
            {"hub": {"allowed_hosts": [], "hosts": []}},
            "isthmus.toml: hub.allowed_hosts must be left out where hosts is given, not be beside it",
        ),
        ({"hub": []}, "isthmus.toml: hub must be a table, not a list"),
        ({"limits": {"depth": 4}}, "isthmus.toml: limits.depth must be at least 8, not 4"),
        ({"limits": {"depth": 9.5}}, "isthmus.toml: limits.depth must be a whole number, not 9.5"),
        ({"limits": {"call_seconds": "x"}}, "isthmus.toml: limits.call_seconds must be a number, not 'x'"),
        ({"limits": 5}, "isthmus.toml: limits must be a table, not 5"),
    ],
)
def test_a_bad_value_refuses_the_file(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_hub(document(**table), {}, HOME, {})
    assert str(refused.value) == message


def test_a_bad_value_of_the_command_line_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"^--port must be 0 to 65535, not 70000$"):
        read_hub(document(), {}, HOME, {"port": 70000})


def test_logging_has_a_table_of_its_own_that_wins_over_the_hub_s() -> None:
    hub, findings = read_hub(
        document(hub={"log_level": "error", "log_format": "json"}, log={"file": "logs/hub.log", "level": "debug"}),
        {},
        HOME,
        {},
    )
    assert findings == ()
    assert (hub.log_level, hub.log_format, hub.log_file) == ("debug", "json", "/etc/hub/logs/hub.log")


def test_a_limit_of_the_environment_stands_in_where_the_file_has_none() -> None:
    assert read_hub(None, {}, HOME, {}, 61)[0].limits.call_seconds == 61
    assert read_hub(document(limits={"depth": 9}), {}, HOME, {}, 61)[0].limits.call_seconds == 61
    assert read_hub(document(limits={"call_seconds": 5}), {}, HOME, {}, 61)[0].limits.call_seconds == 5
    assert read_hub(document(limits={"hard_seconds": 20}), {}, HOME, {}, 61)[0].limits.call_seconds == 20
    assert read_hub(document(limits={"hard_seconds": 20}), {}, HOME, {})[0].limits.call_seconds == 20


def test_a_log_table_in_a_foreign_file_is_ignored() -> None:
    hub, findings = read_hub(ParsedFile(FILE, {"hub": {"port": 1}, "log": "verbose"}, STANDARD), {}, HOME, {})
    assert (hub.port, hub.log_level, findings) == (1, "info", ())


def test_another_client_s_settings_are_not_the_hub_s() -> None:
    hub, findings = read_hub(ParsedFile(FILE, {"hub": {"port": 1}, "limits": 5}, CODEX), {}, HOME, {})
    assert (hub.port, findings) == (8765, ())


def test_unknown_keys_are_reported() -> None:
    _, findings = read_hub(document(hub={"prot": 1}, limits={"call_second": 1}), {}, HOME, {})
    assert [str(finding) for finding in findings] == [
        "isthmus.toml: hub.prot is not known and has no effect (did you mean port?)",
        "isthmus.toml: limits.call_second is not known and has no effect (did you mean call_seconds?)",
    ]


def test_every_field_of_a_settings_class_is_a_documented_key() -> None:
    not_keys = {
        "hub": {"limits"},
        "storage": {"is_foreign"},
        "cluster": {"is_enabled", "is_one_machine", "bus"},
        "relay": {"agents", "tenants"},
    }
    documented: dict[type, set[str]] = {}
    for table in HUB_TABLES.values():
        for settings in table.classes:
            documented.setdefault(settings, set()).update(table.prefix + key for key in table.docs)
    for settings, keys in documented.items():
        assert {field.name for field in fields(settings)} - keys - set().union(*not_keys.values()) == set()


# -- The agent's table --------------------------------------------------------------------------------------


def document_of_a2a(a2a: object) -> ParsedFile:
    return ParsedFile(FILE, {"a2a": a2a}, OWN)


def test_without_a_file_or_a_table_the_defaults_hold() -> None:
    assert read_settings(None, A2A, A2aSettings) == (A2aSettings(), ())
    assert read_settings(ParsedFile(FILE, {}, OWN), A2A, A2aSettings) == (A2aSettings(), ())


def test_the_table_fills_the_settings() -> None:
    table = {"name": "Hub", "description": "Does it", "text_tool": "a.b", "card": "strict", "keep": "60"}
    assert read_settings(document_of_a2a(table), A2A, A2aSettings) == (
        A2aSettings("Hub", "Does it", "a.b", "strict", 60.0),
        (),
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": 5}, "isthmus.toml: a2a.name must be a text, not 5"),
        ({"name": ""}, "isthmus.toml: a2a.name must not be empty"),
        ({"card": "loose"}, "isthmus.toml: a2a.card must be one of merged, strict, not 'loose'"),
        ({"keep": "long"}, "isthmus.toml: a2a.keep must be a number, not 'long'"),
        ({"keep": 0}, "isthmus.toml: a2a.keep must be a number of seconds above 0, not 0"),
        ({"grpc_port": "x"}, "isthmus.toml: a2a.grpc_port must be a whole number, not 'x'"),
        ({"grpc_port": 65536}, "isthmus.toml: a2a.grpc_port must be 0 to 65535, not 65536"),
        ({"grpc_url": " "}, "isthmus.toml: a2a.grpc_url must not be empty"),
        (5, "isthmus.toml: a2a must be a table, not 5"),
    ],
)
def test_a_bad_value_refuses_the_file_of_a2a(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(document_of_a2a(table), A2A, A2aSettings)
    assert str(refused.value) == message


def test_grpc_has_a_port_and_an_address() -> None:
    settings, received = read_settings(
        document_of_a2a({"grpc_port": 0, "grpc_url": "grpc.example:443"}), A2A, A2aSettings
    )
    assert (settings.grpc_port, settings.grpc_url, received) == (0, "grpc.example:443", ())


def test_an_unknown_key_is_reported() -> None:
    settings, (finding,) = read_settings(document_of_a2a({"text_tools": "a.b"}), A2A, A2aSettings)
    assert settings == A2aSettings()
    assert "text_tool" in str(finding)


def test_it_is_read_where_the_hub_has_a_place_and_nowhere_else() -> None:
    assert read_settings(ParsedFile(FILE, {"a2a": {"name": "Hub"}}, STANDARD), A2A, A2aSettings)[0].name == "Hub"
    assert read_settings(ParsedFile(FILE, {"a2a": {"name": 5}}, CODEX), A2A, A2aSettings) == (A2aSettings(), ())


# -- The table of tasks -------------------------------------------------------------------------------------


def document_of_tasks(tasks: object) -> ParsedFile:
    return ParsedFile(FILE, {"tasks": tasks}, OWN)


def test_without_a_file_or_a_table_the_defaults_hold_of_tasks() -> None:
    assert read_settings(None, TASKS, TaskSettings) == (TaskSettings(), ())
    assert read_settings(ParsedFile(FILE, {}, OWN), TASKS, TaskSettings) == (TaskSettings(), ())


def test_the_table_fills_the_settings_of_tasks() -> None:
    assert read_settings(document_of_tasks({"provide": False, "after": "0.5"}), TASKS, TaskSettings) == (
        TaskSettings(provide=False, after=0.5),
        (),
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"provide": 5}, "isthmus.toml: tasks.provide must be true or false, not 5"),
        ({"after": "soon"}, "isthmus.toml: tasks.after must be a number, not 'soon'"),
        ({"after": 0}, "isthmus.toml: tasks.after must be above 0 and at most 600 seconds, not 0"),
        ({"after": 601}, "isthmus.toml: tasks.after must be above 0 and at most 600 seconds, not 601"),
        ({"after": "nan"}, "isthmus.toml: tasks.after must be above 0 and at most 600 seconds, not nan"),
        (5, "isthmus.toml: tasks must be a table, not 5"),
    ],
)
def test_a_bad_value_refuses_the_file_of_tasks(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(document_of_tasks(table), TASKS, TaskSettings)
    assert str(refused.value) == message


def test_an_unknown_key_of_tasks_is_reported() -> None:
    settings, (finding,) = read_settings(document_of_tasks({"provides": True}), TASKS, TaskSettings)
    assert settings == TaskSettings()
    assert "provide" in str(finding)


def test_it_is_read_where_the_hub_has_a_place_and_nowhere_else_of_tasks() -> None:
    assert not read_settings(ParsedFile(FILE, {"tasks": {"provide": False}}, STANDARD), TASKS, TaskSettings)[0].provide
    assert read_settings(ParsedFile(FILE, {"tasks": {"provide": 5}}, CODEX), TASKS, TaskSettings) == (
        TaskSettings(),
        (),
    )


# -- The table that says which addresses callers may name ---------------------------------------------------


def document_of_targets(targets: object) -> ParsedFile:
    return ParsedFile(FILE, {"targets": targets}, OWN)


def test_without_a_file_or_a_table_nothing_may_be_named() -> None:
    assert read_settings(None, TARGETS, TargetSettings) == (TargetSettings(), ())
    assert read_settings(ParsedFile(FILE, {}, OWN), TARGETS, TargetSettings) == (TargetSettings(), ())


def test_the_table_fills_the_settings_of_targets() -> None:
    table = {"allow": ["https://*.example.com"], "headers": ["Authorization"], "idle": "60", "max": 8, "open": True}
    assert read_settings(document_of_targets(table), TARGETS, TargetSettings) == (
        TargetSettings(("https://*.example.com",), ("Authorization",), 60.0, 8, open=True),
        (),
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"allow": "https://a"}, "isthmus.toml: targets.allow must be a list of texts, not 'https://a'"),
        (
            {"allow": ["a.example"]},
            "isthmus.toml: targets.allow.0 must be like https://host, https://*.domain or http://127.0.0.1:9000/path, "
            "not 'a.example'",
        ),
        (
            {"headers": ["Host"]},
            "isthmus.toml: targets.headers.0 must not be one that the hub writes itself, not 'Host'",
        ),
        ({"idle": "long"}, "isthmus.toml: targets.idle must be a number, not 'long'"),
        ({"max": 0}, "isthmus.toml: targets.max must be at least 1, not 0"),
        (5, "isthmus.toml: targets must be a table, not 5"),
    ],
)
def test_a_bad_value_refuses_the_file_of_targets(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(document_of_targets(table), TARGETS, TargetSettings)
    assert str(refused.value) == message


def test_an_unknown_key_of_targets_is_reported() -> None:
    settings, (finding,) = read_settings(document_of_targets({"allows": []}), TARGETS, TargetSettings)
    assert settings == TargetSettings()
    assert "allow" in str(finding)


def test_it_is_read_where_the_hub_has_a_place_and_nowhere_else_of_targets() -> None:
    assert read_settings(ParsedFile(FILE, {"targets": 5}, CODEX), TARGETS, TargetSettings) == (TargetSettings(), ())


# -- The table that says where tasks are kept ---------------------------------------------------------------

SECRET = "hunter22"


def variables(folder: Path = Path("/etc/hub")) -> Variables:
    return Variables({"SECRET": SECRET, "DATABASE_URL": f"postgresql://u:{SECRET}@h/d"}, folder, folder)


def document_of_storage(storage: object) -> ParsedFile:
    return ParsedFile(FILE, {"storage": storage}, OWN)


def test_without_a_file_or_a_table_there_is_no_database() -> None:
    assert read_storage(None, variables()) == (StorageSettings(), ())
    assert read_storage(ParsedFile(FILE, {}, OWN), variables()) == (StorageSettings(), ())
    assert read_storage(ParsedFile(FILE, {"storage": 5}, CODEX), variables()) == (StorageSettings(), ())


@pytest.mark.parametrize(
    "url", [f"postgresql://u:{SECRET}@h/d", "postgresql://u:${SECRET}@h/d", "env:DATABASE_URL", "${DATABASE_URL}"]
)
def test_the_password_may_come_from_a_variable(url: str) -> None:
    assert read_storage(document_of_storage({"url": url}), variables()) == (
        StorageSettings(f"postgresql://u:{SECRET}@h/d"),
        (),
    )


def test_the_address_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://h/d\n")
    assert read_storage(document_of_storage({"url": "file:url"}), variables(tmp_path))[0].url == "postgresql://h/d"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"url": 5}, "isthmus.toml: storage.url must be a text, not a number"),
        ({"url": "mysql://u:hunter22@h/d"}, "isthmus.toml: storage.url must start with postgresql://, not 'mysql'"),
        (
            {"url": "postgresql://u:${MISSING}@h/d"},
            "isthmus.toml: storage.url must have only variables that are set, not ${MISSING}",
        ),
        ({"url": "env:MISSING"}, "isthmus.toml: storage.url must name a variable that is set, not env:MISSING"),
        (5, "isthmus.toml: storage must be a table, not 5"),
    ],
)
def test_a_bad_value_refuses_the_file_and_is_not_quoted(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_storage(document_of_storage(table), variables())
    assert str(refused.value) == message
    assert SECRET not in message


def test_an_unknown_key_of_storage_is_reported() -> None:
    _, (finding,) = read_storage(document_of_storage({"ulr": "postgresql://h/d"}), variables())
    assert str(finding) == "isthmus.toml: storage.ulr is not known and has no effect"


def test_it_is_read_with_the_rest_of_the_file_and_its_variables_are_named(tmp_path: Path) -> None:
    (tmp_path / "isthmus.toml").write_text('[storage]\nurl = "postgresql://u:${PG_PASSWORD}@h/d"\n')
    (tmp_path / ".env").write_text(f"PG_PASSWORD={SECRET}\n")
    found = load(None, {}, tmp_path, tmp_path)
    assert found.storage.url == f"postgresql://u:{SECRET}@h/d"
    assert found.origins["storage.url"].borrowed == ("PG_PASSWORD",)
    assert SECRET not in repr(found)
    assert found.warnings == ()


# -- The `[cluster]` table ----------------------------------------------------------------------------------

DATABASE = StorageSettings("postgresql://h/d")


def test_without_a_table_the_hub_is_alone(tmp_path: Path) -> None:
    assert load(None, {}, tmp_path, tmp_path).cluster == ClusterSettings()
    assert not ClusterSettings().is_on
    assert read_cluster(ParsedFile(FILE, {"cluster": 5}, CODEX), variables(), StorageSettings()) == (
        ClusterSettings(),
        (),
    )


@pytest.mark.parametrize("written", ['"nats://u:${SECRET}@h:4222"', '["nats://u:${SECRET}@h:4222", "tls://other"]'])
def test_nats_is_one_address_or_several(tmp_path: Path, written: str) -> None:
    (tmp_path / "isthmus.toml").write_text(f'[cluster]\nnats = {written}\nnode = "a"\ntls_ca = "ca.pem"\n')
    (tmp_path / ".env").write_text(f"SECRET={SECRET}\n")
    found = load(None, {}, tmp_path, tmp_path)
    assert found.cluster.nats == (f"nats://u:{SECRET}@h:4222", "tls://other")[: len(found.cluster.nats)]
    assert found.cluster.shown[0] == "nats://h:4222"
    assert (found.cluster.node_id(1), found.cluster.tls_ca) == ("a", str(tmp_path / "ca.pem"))
    assert SECRET not in repr(found)
    assert found.warnings == ()


@pytest.mark.parametrize("bad", [f"http://{SECRET}@h", f"nats://{SECRET}@", f"nats://{SECRET}@h:port", f"{SECRET} h"])
def test_a_bad_address_of_nats_is_refused_and_not_quoted(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.nats\.0 must be an address like nats://") as failed:
        read_cluster(ParsedFile(FILE, {"cluster": {"nats": [bad]}}, OWN), variables(), StorageSettings())
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize("node", ["", " ", "a\nb", "x" * 129])
def test_a_bad_name_of_a_node_is_refused(node: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.node must have"):
        read_cluster(ParsedFile(FILE, {"cluster": {"node": node}}, OWN), variables(), DATABASE)


def test_the_files_of_a_nodes_certificate_are_found_from_the_configuration(tmp_path: Path) -> None:
    table = '[cluster]\nnats = "tls://h"\ntls_cert = "node.pem"\ntls_key = "keys/node.key"\n'
    (tmp_path / "isthmus.toml").write_text(table)
    found = load(None, {}, tmp_path, tmp_path).cluster
    assert (found.tls_cert, found.tls_key) == (str(tmp_path / "node.pem"), str(tmp_path / "keys/node.key"))


def test_a_key_without_a_certificate_is_refused() -> None:
    document = ParsedFile(FILE, {"cluster": {"nats": "tls://h", "tls_key": "node.key"}}, OWN)
    with pytest.raises(ConfigError, match="tls_key needs tls_cert"):
        read_cluster(document, variables(), StorageSettings())


@pytest.mark.parametrize("seconds", [0.5, 301.0])
def test_a_lease_too_short_or_too_long_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.lease_seconds must be between 1 and 300"):
        read_cluster(ParsedFile(FILE, {"cluster": {"lease_seconds": seconds}}, OWN), variables(), DATABASE)


def test_nodes_need_a_bus_or_a_database_in_common() -> None:
    document = ParsedFile(FILE, {"cluster": {}}, OWN)
    with pytest.raises(ConfigError, match="cluster connects this hub with no other"):
        read_cluster(document, variables(), StorageSettings())
    found, _ = read_cluster(document, variables(), DATABASE)
    assert (found.is_enabled, found.is_on) == (True, False)


def test_hubs_of_one_machine_have_different_names() -> None:
    assert ClusterSettings().node_id(1) != ClusterSettings().node_id(2)


# -- The `[audit]` table, and `[hub] audit` -----------------------------------------------------------------


def read(folder: Path, text: str) -> Configuration:
    file = folder / "isthmus.toml"
    file.write_text(text)
    return load(file, {}, folder, folder)


def test_by_default_calls_are_written_in_batches_and_kept_for_ninety_days(tmp_path: Path) -> None:
    configuration = read(tmp_path, "")
    assert (configuration.hub.audit, configuration.audit.keep) == ("batched", 90 * 86_400.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [('"36h"', 36 * 3600.0), ('" 7D "', 7 * 86_400.0), ('"2w"', 14 * 86_400.0), ("90000", 90_000.0)],
)
def test_how_long_records_are_kept_is_a_time(tmp_path: Path, text: str, seconds: float) -> None:
    assert read(tmp_path, f"[audit]\nkeep = {text}").audit.keep == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[audit]\nkeep = "soon"', "audit.keep must be a time like 36h, 90d or 52w, not 'soon'"),
        ("[audit]\nkeep = []", "audit.keep must be a number, not a list"),
        ("[audit]\nkeep = 60", "audit.keep must be a day (1d) or more, not 60 s"),
        ('[hub]\naudit = "loose"', "hub.audit must be one of off, batched, strict, not 'loose'"),
    ],
)
def test_an_invalid_value_refuses_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)


def test_an_unknown_key_of_audit_is_reported(tmp_path: Path) -> None:
    (finding,) = read(tmp_path, "[audit]\nkeeps = 5").warnings
    assert "audit.keeps" in str(finding)


def test_another_clients_file_has_no_such_table(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}, "audit": {"keep": 5}}')
    assert load(file, {}, tmp_path, tmp_path).audit.keep == 90 * 86_400.0


# -- The table of the relay: three settings of one table, a key that is a secret, agents that cost only themselves

RELAY_SECRET = "0123456789abcdef0123456789abcdef"


def read_of_relay(table: object, folder: Path = Path("/etc/hub")) -> tuple[RelayParts, tuple[Finding, ...]]:
    variables = Variables({"RELAY_KEY": RELAY_SECRET}, folder, folder)
    return read_relay(ParsedFile(FILE, {"relay": table}, OWN), variables)


def agents(**entries: object) -> tuple[dict[str, AgentRules], list[str]]:
    parts, findings = read_of_relay({"agents": entries})
    assert parts.frontend.agents == parts.dialin.agents
    assert {finding.code for finding in findings} <= {BAD_AGENT}
    return dict(parts.frontend.agents), [str(finding) for finding in findings]


def test_without_a_file_or_a_table_there_are_the_defaults() -> None:
    variables = Variables({}, FILE.parent, FILE.parent)
    for document in (None, ParsedFile(FILE, {}, OWN), ParsedFile(FILE, {"relay": 5}, CODEX)):
        assert read_relay(document, variables) == (RelayParts(), ())


def test_each_value_reaches_the_part_that_goes_by_it() -> None:
    parts, findings = read_of_relay(
        {
            "enabled": False, "key": RELAY_SECRET, "compatible": False, "revoked": ["0a1b0a1b0a1b0a1b"],
            "aggregate": "first", "wait": 1, "timeout": 2, "frame_bytes": 5000, "grace": 3, "forget": 4,
            "max_servers": 5, "max_tools": 6,
            "max_agent_connections": 7, "max_connections": 8,
        }
    )  # fmt: skip
    assert findings == ()
    assert (parts.tokens.key, parts.tokens.compatible, parts.tokens.revoked) == (
        RELAY_SECRET,
        False,
        ("0a1b0a1b0a1b0a1b",),
    )
    frontend, dialin = parts.frontend, parts.dialin
    assert (frontend.enabled, frontend.aggregate, frontend.wait, frontend.timeout, frontend.frame_bytes) == (
        False,
        "first",
        1,
        2,
        5000,
    )
    assert (dialin.grace, dialin.forget, dialin.max_servers, dialin.max_tools) == (3, 4, 5, 6)
    assert (dialin.max_agent_connections, dialin.max_connections) == (7, 8)


@pytest.mark.parametrize("key", [RELAY_SECRET, "env:RELAY_KEY", "${RELAY_KEY}", "file:key"])
def test_the_key_comes_from_where_secrets_come_from(key: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(RELAY_SECRET + "\n")
    parts, findings = read_of_relay({"key": key}, tmp_path)
    assert (parts.tokens.key, findings) == (RELAY_SECRET, ())


def test_a_short_key_refuses_the_file_and_is_not_quoted() -> None:
    with pytest.raises(ConfigError, match=r"relay\.key must have 16 characters or more, not 8") as refused:
        read_of_relay({"key": "hunter22"})
    assert [finding.code for finding in refused.value.findings] == [WEAK_KEY]
    assert "hunter22" not in str(refused.value)


def test_a_key_is_tried_for_its_length_and_nothing_else() -> None:
    parts, findings = read_of_relay({"key": "changeme" * 2})
    assert (parts.tokens.key, findings) == ("changeme" * 2, ())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (5, "isthmus.toml: relay must be a table, not 5"),
        ({"enabled": "maybe"}, "isthmus.toml: relay.enabled must be true or false, not 'maybe'"),
        ({"key": 5}, "isthmus.toml: relay.key must be a text, not a number"),
        ({"key": ""}, "isthmus.toml: relay.key must not be empty"),
        ({"key": "sha256:" + "0" * 64}, "isthmus.toml: relay.key must be the key itself, not its digest"),
        ({"key": "env:GONE"}, "isthmus.toml: relay.key must name a variable that is set, not env:GONE"),
        ({"key": "${GONE}"}, "isthmus.toml: relay.key must have only variables that are set, not ${GONE}"),
        ({"revoked": ["isr1.abc.def"]}, "isthmus.toml: relay.revoked.0 must be the id of a token, 16 to 18 digits"),
        ({"aggregate": "most"}, "isthmus.toml: relay.aggregate must be one of all, first, not 'most'"),
        ({"wait": 0}, "isthmus.toml: relay.wait must be a number of seconds above 0, not 0"),
        ({"frame_bytes": 1}, "isthmus.toml: relay.frame_bytes must be at least 4096, not 1"),
        ({"grace": -1}, "isthmus.toml: relay.grace must be a number of seconds, 0 or more, not -1"),
        ({"max_servers": 0}, "isthmus.toml: relay.max_servers must be at least 1, not 0"),
        ({"max_tools": 1.5}, "isthmus.toml: relay.max_tools must be a whole number, not 1.5"),
        ({"agents": []}, "isthmus.toml: relay.agents must be a table, not a list"),
    ],
)
def test_a_bad_value_refuses_the_file_of_relay(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_of_relay(table)
    assert str(refused.value).startswith(message)


def test_an_unknown_key_of_relay_is_reported() -> None:
    _, findings = read_of_relay({"agent": {}})
    assert [str(finding) for finding in findings] == [
        "isthmus.toml: relay.agent is not known and has no effect (did you mean agents?)"
    ]


def test_settings_of_relay_agents_are_read() -> None:
    entry = {"name": "cook", "allow": ["builtin", "agent:cellar"], "deny": ["cook_knives.throw"], "grace": 30}
    assert agents(kitchen=entry, **{"acme/kitchen": {}}) == (
        {
            "kitchen": AgentRules("cook", ("builtin", "agent:cellar"), ("cook_knives.throw",), 30),
            "acme/kitchen": AgentRules(),
        },
        [],
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"allow": "builtin"}, "kitchen.allow must be a list of texts, not 'builtin'"),
        (
            {"allow": ["a*"]},
            "kitchen.allow.0 must be *, server.*, server.tool, agent:KEY, tag:NAME or hint:NAME, not 'a*'",
        ),
        ({"alow": ["a"], "name": "b"}, "kitchen must have only name, allow, deny, grace, not 'alow'"),
        ({"name": "a.b", "allow": ["a"]}, "kitchen.name must be 1 to 50 of A-Z a-z 0-9 _ - (no dot), not 'a.b'"),
        ({"name": 5}, "kitchen.name must be a text, not 5"),
        ({"grace": -1}, "kitchen.grace must be a number of seconds, 0 or more, not -1"),
    ],
)
def test_an_agent_with_a_mistake_in_it_is_left_out_whole(entry: object, expected: str) -> None:
    rules, findings = agents(kitchen=entry, cellar={"grace": 1})
    assert rules == {"cellar": AgentRules(grace=1)}
    (finding,) = findings
    assert finding.startswith(f"isthmus.toml: relay.agents.{expected}")
    assert finding.endswith(("(this entry is skipped)", "(did you mean allow? This entry is skipped)"))


@pytest.mark.parametrize(
    "entry", [{"deny": ["a*"]}, {"denny": ["a"]}, {"deny": ["a"], "grace": "soon"}, {"Deny": ["a"]}, ["deny"], "deny"]
)
def test_where_something_may_have_been_forbidden_a_mistake_forbids_everything(entry: object) -> None:
    rules, (finding,) = agents(kitchen=entry)
    assert rules == {"kitchen": AgentRules(deny=("*",))}
    assert finding.lower().endswith("until then its devices see nothing)")


@pytest.mark.parametrize("key", ["", " ", "a/b/c", "/a", "a/", "a" * 129])
def test_an_entry_under_a_name_that_no_agent_has_is_reported(key: str) -> None:
    rules, (finding,) = agents(**{key: {"grace": 1}})
    assert rules == {}
    assert "must be under the name of an agent" in finding


def test_it_is_part_of_a_configuration(tmp_path: Path) -> None:
    text = '[relay]\nkey = "env:RELAY_KEY"\nwait = 2\n[relay.agents."acme/kitchen"]\nallow = ["builtin"]\nnme = 5\n'
    (tmp_path / "isthmus.toml").write_text(text)
    configuration = load(None, {"RELAY_KEY": RELAY_SECRET}, tmp_path, tmp_path)
    assert (configuration.relay.frontend.wait, configuration.relay.tokens.key) == (2, RELAY_SECRET)
    assert [finding.code for finding in configuration.warnings] == [BAD_AGENT]
    assert configuration.origins["relay.key"].borrowed == ("env:RELAY_KEY",)
    assert configuration.origins['relay.agents."acme/kitchen".allow'].path == 'relay.agents."acme/kitchen".allow'
    assert RELAY_SECRET not in repr(configuration)
