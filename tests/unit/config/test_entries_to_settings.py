"""Server entries become settings."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.config.client_entries_to_hub import entries_of, entry_of
from isthmus.config.client_formats import CODEX, OWN, STANDARD
from isthmus.config.entries_to_settings import (
    EntryContext,
    LoadedServers,
    look_alikes,
    process_limits,
    read_server,
    size_of,
)
from isthmus.config.files import ParsedFile
from isthmus.config.findings import ConfigError, Place
from isthmus.config.variables import Variables
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.settings import Limits
from isthmus.transport.process_limits import ProcessLimits
from isthmus.upstream.server_settings import (
    AgentSettings,
    DeclaredTool,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)

# -- Server entries as people write them --------------------------------------------------------------------

HOME = Path("/home/me")
VALUES = {"TOKEN": "hunter22", "LONG": "long-secret-" * 10, "SECONDS": "5", "OFF": "true"}
URL = "https://search.example/mcp"


FOLDER = Path("/etc/hub")


def reading(limits: Limits | None = None) -> EntryContext:
    return EntryContext(Variables(VALUES, FOLDER, HOME), FOLDER, HOME, limits or Limits())


def one(
    fields: object, *, is_own: bool = True, name: str = "a", limits: Limits | None = None
) -> tuple[ServerSettings | None, list[str]]:
    file, dialect = (FOLDER / "isthmus.toml", OWN) if is_own else (FOLDER / "mcp.json", STANDARD)
    entry = entry_of(name, fields, Place(file, "servers").at(name), dialect)
    server, findings = read_server(entry, reading(limits))
    return server, [str(finding) for finding in findings]


def several(table: dict[str, Any]) -> LoadedServers:
    roster = LoadedServers()
    entries, _ = entries_of(ParsedFile(FOLDER / "isthmus.toml", table, OWN), HOME)
    roster.add(entries, reading())
    return roster


def test_a_command_makes_a_stdio_server() -> None:
    fields = {
        "command": "npx",
        "args": ["-y", "server", 8080],
        "env": {"A": 1, "B": True, "C": None, "D": "d"},
        "cwd": "work",
        "era": "legacy",
    }
    server, findings = one(fields)
    assert findings == []
    assert server == ServerSettings(
        name=server.name if server else "",  # type: ignore[arg-type]
        reach=StdioSettings(
            "npx", ("-y", "server", "8080"), {"A": "1", "B": "true", "D": "d"}, "/etc/hub/work", "legacy"
        ),
    )


def test_a_url_makes_an_http_server() -> None:
    server, findings = one({"url": URL, "headers": {"X-Team": "blue"}, "timeout": 5, "max_calls": 2, "max_queued": 0})
    assert findings == []
    assert server is not None
    assert server.reach == HttpSettings(URL, {"X-Team": "blue"})
    assert (server.timeout, server.max_calls, server.max_queued, server.disabled) == (5, 2, 0, False)


@pytest.mark.parametrize(
    ("cwd", "expected"),
    [("~", "/home/me"), ("~/work", "/home/me/work"), ("/abs", "/abs"), ("", None), (None, None)],
)
def test_a_working_folder_is_seen_from_the_file(cwd: str | None, expected: str | None) -> None:
    server, _ = one({"command": "a", "cwd": cwd})
    assert server is not None
    assert isinstance(server.reach, StdioSettings)
    assert server.reach.cwd == expected


def test_a_command_in_the_home_folder_is_found() -> None:
    server, _ = one({"command": "~/bin/server"})
    assert server is not None
    assert server.reach == StdioSettings("/home/me/bin/server")


@pytest.mark.parametrize("key", ["type", "transport", "transportType"])
@pytest.mark.parametrize(
    ("word", "beside"),
    [
        ("stdio", "command"),
        ("local", "command"),
        ("http", "url"),
        ("streamable-http", "url"),
        ("streamable_http", "url"),
        ("streamableHttp", "url"),
        ("streamablehttp", "url"),
    ],
)
def test_every_word_for_a_transport_is_understood(key: str, word: str, beside: str) -> None:
    server, findings = one({beside: URL, key: word})
    assert (server is not None, findings) == (True, [])


@pytest.mark.parametrize(
    ("fields", "is_disabled"),
    [
        ({}, False),
        ({"disabled": True}, True),
        ({"enabled": False}, True),
        ({"enabled": True, "disabled": True}, True),
        ({"disabled": "${OFF}"}, True),
    ],
)
def test_an_entry_can_be_switched_off_in_either_way(fields: dict[str, object], *, is_disabled: bool) -> None:
    server, _ = one({"command": "a", **fields})
    assert server is not None
    assert server.disabled == is_disabled


def test_a_server_that_says_nothing_gets_the_limits_of_the_hub() -> None:
    server, _ = one({"command": "a"}, limits=Limits(call_seconds=7, max_calls=3, max_queued=4))
    assert server is not None
    assert (server.timeout, server.max_calls, server.max_queued) == (7, 3, 4)


def test_variables_are_replaced_everywhere_and_remembered_as_secrets() -> None:
    fields = {"url": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}, "timeout": "${SECONDS}"}
    server, findings = one(fields)
    assert findings == []
    assert server is not None
    assert server.reach == HttpSettings(URL, {"Authorization": "Bearer hunter22"})
    assert server.timeout == 5
    assert {"hunter22", "Bearer hunter22"} <= server.secrets
    server, _ = one({"command": "${TOKEN}", "args": ["--x=${TOKEN}"], "env": {"A": "env:TOKEN"}})
    assert server is not None
    assert server.reach == StdioSettings("hunter22", ("--x=hunter22",), {"A": "hunter22"})


def test_a_reference_in_another_clients_env_is_literal() -> None:
    server, findings = one({"command": "a", "env": {"DATABASE": "file:data.db"}}, is_own=False)
    assert findings == []
    assert server is not None
    assert server.reach == StdioSettings("a", env={"DATABASE": "file:data.db"})


def test_an_unresolved_variable_stays_and_is_reported() -> None:
    server, findings = one({"command": "a", "args": ["${GONE}"], "env": {"A B": "${ALSO}"}})
    assert server is not None
    assert server.reach == StdioSettings("a", ("${GONE}",), {"A B": "${ALSO}"})
    assert findings == [
        "isthmus.toml: servers.a.args.0 has '${GONE}', which is not set; it stays as it is",
        "isthmus.toml: servers.a.env.\"A B\" has '${ALSO}', which is not set; it stays as it is",
    ]


def test_unknown_keys_are_kept_and_reported_only_in_our_own_file() -> None:
    fields = {"command": "a", "tiemout": 5, "autoApprove": ["${GONE}"]}
    server, findings = one(fields)
    assert server is not None
    assert server.extra == {"tiemout": 5, "autoApprove": ["${GONE}"]}
    assert findings == [
        "isthmus.toml: servers.a.tiemout is not known and has no effect (did you mean timeout?)",
        "isthmus.toml: servers.a.autoApprove is not known and has no effect",
    ]
    assert one(fields, is_own=False) == (server, [])


def test_keys_of_the_other_transport_are_reported_only_in_our_own_file() -> None:
    fields = {"url": URL, "env": {}, "args": []}
    assert one(fields)[1] == [
        "isthmus.toml: servers.a.args has no effect beside url",
        "isthmus.toml: servers.a.env has no effect beside url",
    ]
    assert one(fields, is_own=False)[1] == []


@pytest.mark.parametrize(
    ("word", "reach"), [("stdio", StdioSettings), ("sse", HttpSettings), ("ws", WebSocketSettings)]
)
def test_of_a_command_and_an_address_the_word_for_the_transport_says_which(word: str, reach: type[Reach]) -> None:
    server, findings = one({"command": "a", "url": "ws://a" if word == "ws" else URL, "type": word}, is_own=True)
    assert server is not None
    assert isinstance(server.reach, reach)
    idle, used = ("url", "command") if word == "stdio" else ("command", "url")
    assert findings == [f"isthmus.toml: servers.a.{idle} has no effect beside {used}"]


def test_milliseconds_of_other_programs_are_understood() -> None:
    server, findings = one({"command": "a", "timeout": 60000}, is_own=False)
    assert server is not None
    assert server.timeout == 60
    assert findings == ["mcp.json: servers.a.timeout is over 600, so it is read as milliseconds: 60 seconds"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (None, "servers.a must be a table, not null"),
        ("npx", "servers.a must be a table, not 'npx'"),
        ({}, "servers.a needs `command` or `url`"),
        ({"command": "", "url": None}, "servers.a needs `command` or `url`"),
        ({"command": "a", "url": URL}, "servers.a must have a command or a url, not both"),
        ({"command": "a", "url": URL, "type": "auto"}, "servers.a must have a command or a url, not both"),
        (
            {"command": "a", "url": URL, "type": "stdio", "transport": "sse"},
            "servers.a must have a command or a url, not both",
        ),
        ({"command": 5}, "servers.a.command must be a text, not 5"),
        ({"command": " "}, "servers.a.command must be the name or path of a program, not ' '"),
        ({"command": "a", "args": "-y"}, "servers.a.args must be a list of texts, not a text"),
        ({"command": "a", "env": ["A=1"]}, "servers.a.env must be a table, not a list"),
        ({"command": "a", "env": {"A": []}}, "servers.a.env.A must be a text, not a list"),
        ({"command": "a", "cwd": 5}, "servers.a.cwd must be a text, not 5"),
        ({"command": "a", "timeout": 0}, "servers.a.timeout must be over 0 and at most 86400 seconds, not 0"),
        ({"command": "a", "timeout": "soon"}, "servers.a.timeout must be a number, not 'soon'"),
        (
            {"command": "a", "timeout": 86_401},
            "servers.a.timeout must be over 0 and at most 86400 seconds, not 86401",
        ),
        ({"command": "a", "max_calls": 0}, "servers.a.max_calls must be at least 1, not 0"),
        ({"command": "a", "max_calls": 1.5}, "servers.a.max_calls must be a whole number, not 1.5"),
        ({"command": "a", "disabled": "maybe"}, "servers.a.disabled must be true or false, not 'maybe'"),
        ({"command": "a", "era": "old"}, "servers.a.era must be one of auto, legacy, modern, not 'old'"),
        ({"command": "a", "era": ["old"]}, "servers.a.era must be one of auto, legacy, modern, not a list"),
        ({"command": "a", "type": "http"}, "servers.a.type must be stdio beside command, not 'http'"),
        (
            {"url": URL, "transport": "local"},
            "servers.a.transport must be http, sse, ws, rpc or auto beside url, not 'local'",
        ),
        (
            {"url": URL, "type": "WS"},
            "servers.a.type must be http, sse, rpc or auto beside an address with https://, not 'WS'",
        ),
        (
            {"url": "ws://a", "transport": "http"},
            "servers.a.transport must be ws or auto beside an address with ws://, not 'http'",
        ),
        ({"url": "ftp://a", "type": "ws"}, "servers.a.url must start with ws:// or wss://, not 'ftp'"),
        (
            {"url": URL, "type": "pigeon"},
            "servers.a.type must be one of stdio, http, sse, ws, rpc, agent, python, auto, not 'pigeon'",
        ),
        ({"rpc": URL, "type": "http"}, "servers.a.type must be rpc beside rpc, not 'http'"),
        ({"rpc": URL, "command": "a"}, "servers.a must have a command or a url, not command and rpc"),
        ({"rpc": 5}, "servers.a.rpc must be a text, not a number"),
        ({"rpc": "ftp://a"}, "servers.a.rpc must start with http:// or https://, not 'ftp'"),
        ({"url": "ftp://a", "type": "rpc"}, "servers.a.url must start with http:// or https://, not 'ftp'"),
        ({"rpc": URL, "tools": ["a"]}, "servers.a.tools must be a table, not a list"),
        ({"rpc": URL, "tools": {"t": 5}}, "servers.a.tools.t must be a table, not 5"),
        (
            {"rpc": URL, "tools": {"t": {"input_schema": "object"}}},
            "servers.a.tools.t.input_schema must be a table, not 'object'",
        ),
        (
            {"rpc": URL, "tools": {"t": {"input_schema": {"default": date(2026, 1, 1)}}}},
            "servers.a.tools.t.input_schema must have only values that JSON has, not dates or infinite numbers",
        ),
        ({"agent": URL, "type": "http"}, "servers.a.type must be agent beside agent, not 'http'"),
        ({"agent": URL, "url": URL}, "servers.a must have a command or a url, not url and agent"),
        ({"agent": 5}, "servers.a.agent must be a text, not a number"),
        ({"agent": "ftp://a"}, "servers.a.agent must start with http:// or https://, not 'ftp'"),
        ({"agent": "http://a:0"}, "servers.a.agent must name a host and a port that can be dialled, not others"),
        ({"agent": URL, "origins": "a"}, "servers.a.origins must be a list of texts, not 'a'"),
        ({"agent": URL, "origins": ["a"]}, "servers.a.origins.0 must start with http:// or https://, not 'a'"),
        (
            {"agent": URL, "origins": ["https://a", "https://b/c"]},
            "servers.a.origins.1 must be a scheme, a host and a port, not more than that",
        ),
        ({"python": "a b"}, "servers.a.python must be package.module or package.module:function, not 'a b'"),
        ({"command": "a", "isolation": "none"}, "servers.a.isolation must be one of shared, caller, call, not 'none'"),
        ({"command": "a", "include_tools": "*"}, "servers.a.include_tools must be a list of texts, not '*'"),
        ({"command": "a", "defaults": {"t": 5}}, "servers.a.defaults.t must be a table, not a number"),
        ({"command": "a", "cache": []}, "servers.a.cache must be a table, not a list"),
        ({"command": "a", "cache": {"ttl": "x"}}, "servers.a.cache.ttl must be a number, not 'x'"),
        ({"command": "a", "cache": {"ttl": 0}}, "servers.a.cache.ttl must be over 0 and at most 86400 seconds, not 0"),
        ({"url": URL, "transport": {}}, "servers.a.transport must be a text, not a table"),
        (
            {"url": "http://[", "type": "http"},
            "servers.a.url must be an address, not a text that cannot be split (Invalid IPv6 URL)",
        ),
        ({"url": "ftp://a"}, "servers.a.url must start with http:// or https://, not 'ftp'"),
        (
            {"url": URL, "headers": {"A": "env:GONE"}},
            "servers.a.headers.A must name a variable that is set, not env:GONE",
        ),
        (
            {"url": URL, "headers": {"A": "keyring:"}},
            "servers.a.headers.A must be keyring:NAME or keyring:SERVICE/NAME, not keyring:",
        ),
    ],
)
def test_a_broken_entry_gives_the_exact_error(fields: object, message: str) -> None:
    assert one(fields) == (None, [f"isthmus.toml: {message}"])


def reach_of(fields: dict[str, object], *, is_own: bool = True) -> Reach | None:
    server, findings = one(fields, is_own=is_own)
    assert findings == []
    return None if server is None else server.reach


@pytest.mark.parametrize(
    ("fields", "reach"),
    [
        ({"url": URL, "type": "sse"}, HttpSettings(URL, carrier="sse")),
        ({"url": URL, "type": "http"}, HttpSettings(URL, carrier="http")),
        ({"url": URL, "type": "auto"}, HttpSettings(URL)),
        ({"url": URL, "type": "remote"}, HttpSettings(URL)),
        ({"url": URL, "type": ""}, HttpSettings(URL)),
        ({"url": "wss://a/ws"}, WebSocketSettings("wss://a/ws")),
        ({"url": "ws://a", "type": "websocket", "headers": {"A": "b"}}, WebSocketSettings("ws://a", {"A": "b"})),
        ({"rpc": URL, "headers": {"A": "b"}}, JsonRpcSettings(URL, {"A": "b"})),
        ({"url": URL, "user_headers": ["X-User-Id"]}, HttpSettings(URL, user_headers=("X-User-Id",))),
        ({"rpc": URL, "user_headers": ["X-User-Id"]}, JsonRpcSettings(URL, user_headers=("X-User-Id",))),
        ({"url": URL, "type": "rpc", "user_headers": ["X-User"]}, JsonRpcSettings(URL, user_headers=("X-User",))),
        ({"agent": URL, "headers": {"A": "b"}}, AgentSettings(URL, {"A": "b"})),
        ({"agent": URL, "type": "a2a", "origins": ["https://b"]}, AgentSettings(URL, origins=("https://b",))),
        ({"url": URL, "type": "rpc"}, JsonRpcSettings(URL)),
        ({"python": "tools.maths:add"}, PythonSettings("tools.maths:add")),
        ({"python": "tools", "path": "lib"}, PythonSettings("tools", "/etc/hub/lib")),
    ],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_every_way_to_a_server_is_understood(fields: dict[str, object], reach: Reach, *, is_own: bool) -> None:
    assert reach_of(fields, is_own=is_own) == reach


def test_user_headers_may_be_written_as_other_keys_of_mcp_json_are() -> None:
    fields: dict[str, object] = {"url": URL, "userHeaders": ["X-User-Id"]}
    assert reach_of(fields, is_own=False) == HttpSettings(URL, user_headers=("X-User-Id",))


@pytest.mark.parametrize(
    ("fields", "beside"),
    [
        ({"command": "a"}, "command"),
        ({"url": "ws://a"}, "a WebSocket, which has headers only when it is opened"),
    ],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_user_headers_that_cannot_be_sent_are_reported(fields: dict[str, Any], beside: str, *, is_own: bool) -> None:
    server, findings = one({**fields, "user_headers": ["X-User-Id"]}, is_own=is_own)
    assert server is not None
    assert [received.partition(": ")[2] for received in findings] == [
        f"servers.a.user_headers has no effect beside {beside}"
    ]


def test_tools_of_a_plain_server_are_declared() -> None:
    tools = {"read": {"description": "Read.", "input_schema": {"type": "object", "required": ["${x}"]}}, "list": {}}
    assert reach_of({"rpc": URL, "tools": tools}) == JsonRpcSettings(
        URL,
        tools=(
            DeclaredTool("read", "Read.", {"type": "object", "required": ["${x}"]}),
            DeclaredTool("list"),
        ),
    )


def test_tool_settings_become_rules() -> None:
    server, findings = one({
        "command": "a",
        "include_tools": ["read", "list"],
        "exclude_tools": ["list"],
        "defaults": {"read": {"key": "${TOKEN}", "depth": {"max": 3}}},
        "cache": {"tools": ["read"], "ttl": 5},
        "isolation": "caller",
    })  # fmt: skip
    assert findings == []
    assert server is not None
    assert server.isolation == "caller"
    assert server.rules == ToolRules(
        only=("read", "list"),
        hidden=("list",),
        defaults={"read": {"key": "hunter22", "depth": {"max": 3}}},
        cached=("read",),
        cache_seconds=5,
    )
    assert "hunter22" in server.secrets


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (["safe", "ours"], {"*": ("safe", "ours")}),
        ({"read": ["safe"], "*": ["ours"], "none": []}, {"read": ("safe",), "*": ("ours",)}),
        ([], {}),
    ],
)
def test_trust_and_tags_of_a_server_become_rules(tags: object, said: dict[str, tuple[str, ...]]) -> None:
    server, findings = one({"command": "a", "trusted": True, "tags": tags})
    assert findings == []
    assert server is not None
    assert server.rules == ToolRules(is_trusted=True, tags=said)
    assert server.rules.changes_nothing


def test_in_another_clients_file_a_server_is_not_called_trusted() -> None:
    fields = {"command": "a", "trusted": True, "tags": ["safe"]}
    entry = entry_of("a", fields, Place(FOLDER / "config.toml", "mcp_servers").at("a"), CODEX)
    server, _ = read_server(entry, reading())
    assert server is not None
    assert server.rules == ToolRules()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"trusted": "very"}, "servers.a.trusted must be true or false, not 'very'"),
        ({"tags": "safe"}, "servers.a.tags must be a list of texts, not 'safe'"),
        ({"tags": {"read": "safe"}}, "servers.a.tags.read must be a list of texts, not 'safe'"),
        ({"tags": [" safe"]}, "servers.a.tags must have only printable texts, not ' safe'"),
    ],
)
def test_a_mistake_about_trust_costs_the_server(fields: dict[str, Any], said: str) -> None:
    server, findings = one({"command": "a", **fields})
    assert server is None
    assert said in findings[0]


def test_mistyped_keys_below_an_entry_are_reported() -> None:
    fields = {"rpc": URL, "tools": {"t": {"descripton": "x"}}, "cache": {"tool": []}}
    assert one(fields)[1] == [
        "isthmus.toml: servers.a.tools.t.descripton is not known and has no effect (did you mean description?)",
        "isthmus.toml: servers.a.cache.tool is not known and has no effect (did you mean tools?)",
    ]


def test_an_address_that_looks_like_the_earlier_transport_is_reported() -> None:
    server, findings = one({"url": "https://a.example/sse/", "type": "http"})
    assert server is not None
    assert server.reach == HttpSettings("https://a.example/sse/", carrier="http")
    assert findings == [
        "isthmus.toml: servers.a.type is http, but an address that ends in /sse usually has the earlier transport"
    ]


def test_an_entry_that_nests_too_deep_is_refused() -> None:
    fields: dict[str, object] = {"command": "a"}
    for _ in range(40):
        fields = {"command": "a", "defaults": fields}
    assert one(fields) == (None, ["isthmus.toml: servers.a must nest at most 32 levels deep, not deeper"])


def test_settings_of_other_clients_are_kept_silently() -> None:
    server, findings = one({"command": "a", "extra": {"autoApprove": ["read"]}})
    assert findings == []
    assert server is not None
    assert server.extra == {"autoApprove": ["read"]}


def test_a_timeout_stays_below_the_hard_stop_of_the_hub() -> None:
    server, findings = one({"command": "a", "timeout": 50}, limits=Limits(call_seconds=30, hard_seconds=40))
    assert server is None
    assert findings == ["isthmus.toml: servers.a.timeout must be at most limits.hard_seconds (40), not 50"]


@pytest.mark.parametrize(
    ("name", "mended", "message"),
    [
        (
            "builtin",
            "builtin-34b4bc",
            "servers.builtin is the name of the hub's own tools, so the server is called builtin-34b4bc",
        ),
        (
            "My Server.v2",
            "My-Server-v2",
            'servers."My Server.v2" cannot be the name of a server, so the server is called My-Server-v2 '
            "(use 1 to 50 letters, digits, _ and -)",
        ),
        (
            "…",
            "server-f4c5f3",
            'servers."…" cannot be the name of a server, so the server is called server-f4c5f3 '
            "(use 1 to 50 letters, digits, _ and -)",
        ),
    ],
)
def test_an_illegal_name_is_changed_and_reported(name: str, mended: str, message: str) -> None:
    server, findings = one({"command": "a"}, name=name)
    assert server is not None
    assert (server.name, findings) == (mended, [f"isthmus.toml: {message}"])


def test_a_changed_name_takes_no_other_servers_name() -> None:
    entry = {"command": "a"}
    roster = several({"servers": {"a b": entry, "a.b": entry, "a-b": entry}})
    assert list(roster.servers) == ["a-b-9ef6ba", "a-b-b5c322", "a-b"]


@pytest.mark.parametrize("names", [["天气", "翻译", "a b", "a.b"], ["a.b", "翻译", "a b", "天气"]])
def test_a_made_name_depends_on_the_servers_own_name_alone(names: list[str]) -> None:
    roster = several({"servers": {name: {"command": "a"} for name in names}})
    assert roster.called == {"天气": "server-44c909", "翻译": "server-339dcc", "a b": "a-b-9ef6ba", "a.b": "a-b-b5c322"}


@pytest.mark.parametrize(
    "fields",
    [
        {"command": "a", "timeout": "${TOKEN}"},
        {"command": "a", "timeout": "${LONG}"},
        {"command": "a", "type": "x ${TOKEN}"},
        {"command": "a", "max_calls": "hunter22", "args": ["--token", "hunter22"]},
        {"url": "hunter22://a", "headers": {"Authorization": "hunter22"}},
        {"url": "hunter22://${TOKEN}"},
        {"url": URL, "headers": {"Authorization": ["hunter22"]}},
        {"url": URL, "headers": "hunter22"},
        {"url": URL, "headers": {"Authorization": "hunter22\n"}},
        {"command": "a", "env": {"TOKEN": {"x": "hunter22"}}},
        {"command": "a", "env": "TOKEN=hunter22"},
        {"command": "a", "args": "--token hunter22"},
    ],
)
def test_no_message_contains_a_secret(fields: dict[str, object]) -> None:
    server, findings = one(fields)
    assert server is None
    assert findings
    assert not any("hunter22" in finding or "long-secret" in finding for finding in findings)


def test_a_broken_entry_costs_only_itself() -> None:
    roster = several({"mcpServers": {"good": {"command": "a"}, "bad": {}}, "servers": {"also": {"url": URL}}})
    assert list(roster.servers) == ["good", "also"]
    assert [finding.path for finding in roster.findings] == ["mcpServers.bad"]


def test_a_name_under_both_roots_is_taken_once() -> None:
    roster = several({"mcpServers": {"a": {"command": "first"}}, "servers": {"a": {"command": "second"}}})
    assert [server.reach for server in roster.servers.values()] == [StdioSettings("first")]
    assert [str(finding) for finding in roster.findings] == [
        "isthmus.toml: servers.a is already under mcpServers and is skipped"
    ]


def test_names_that_look_alike_are_reported() -> None:
    entry = {"command": "a"}
    roster = several({"servers": {"web-search": entry, "Web_Search": entry, "web": entry}})
    assert len(roster.servers) == 3
    assert [str(finding) for finding in look_alikes(roster)] == [
        "isthmus.toml: servers has names that differ only by case or by - and _: web-search, Web_Search"
    ]


def test_something_else_in_place_of_the_entries_refuses_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^isthmus.toml: servers must be a table, not a list$"):
        several({"servers": [{"name": "a"}]})


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.datetimes(),
    st.sampled_from(["${TOKEN}", "${X:-", "env:TOKEN", "file:\0", "keyring:a", "stdio", "sse", "http://[", URL, "~/"]),
)
VALUES_OF_ANY_SHAPE = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        "command",
        "args",
        "env",
        "cwd",
        "url",
        "headers",
        "era",
        "timeout",
        "max_calls",
        "max_queued",
        "disabled",
        "enabled",
        "type",
        "transport",
        "transportType",
        "rpc",
        "agent",
        "origins",
        "python",
        "path",
        "tools",
        "defaults",
        "cache",
        "isolation",
        "include_tools",
        "exclude_tools",
        "env_file",
        "extra",
        "tiemout",
    ]
)
ENTRIES = st.one_of(
    VALUES_OF_ANY_SHAPE,
    st.dictionaries(KEYS, VALUES_OF_ANY_SHAPE, max_size=6),
    st.dictionaries(KEYS, VALUES_OF_ANY_SHAPE, max_size=6).map(lambda entry: {**entry, "command": "a"}),
    st.dictionaries(KEYS, VALUES_OF_ANY_SHAPE, max_size=6).map(lambda entry: {**entry, "url": URL}),
)


@given(st.text(), ENTRIES, st.booleans())
@example("a", {"command": "a", "timeout": 10**400}, True)
@example("a", {"command": "a", "era": {"x": 1}}, True)
def test_no_entry_raises_and_each_is_accepted_or_reported(name: str, fields: object, is_own: bool) -> None:  # noqa: FBT001
    server, findings = one(fields, name=name, is_own=is_own)
    assert server is not None or findings


@pytest.mark.parametrize("name", ["Host", "connection", "Content-Length", "TRANSFER-ENCODING"])
def test_headers_that_http_itself_needs_are_refused_by_name(name: str) -> None:
    server, findings = one({"url": URL, "headers": {name: "x"}})
    assert server is None
    [received] = findings
    assert "servers.a" in received
    assert f"not have {name!r}" in received


@pytest.mark.parametrize("name", ["Accept", "content-type", "Authorization"])
def test_headers_that_are_not_http_itself_are_taken(name: str) -> None:
    server, findings = one({"url": URL, "headers": {name: "x"}})
    assert findings == []
    assert server is not None


# -- paths, and what has no effect ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("./s.sh", "/etc/hub/s.sh"),
        ("../x", "/etc/hub/../x"),
        ("bin/tool", "/etc/hub/bin/tool"),
        ("~/bin/tool", "/home/me/bin/tool"),
        ("/usr/bin/tool", "/usr/bin/tool"),
        ("npx", "npx"),
    ],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_a_command_that_is_a_path_is_seen_from_the_folder_of_its_file(
    command: str, started: str, *, is_own: bool
) -> None:
    reach = reach_of({"command": command, "cwd": "work"}, is_own=is_own)
    assert reach == StdioSettings(started, cwd="/etc/hub/work")


@pytest.mark.parametrize(
    ("fields", "beside"),
    [
        ({"rpc": URL}, "rpc"),
        ({"agent": URL}, "agent"),
        ({"python": "a.b"}, "python"),
        ({"url": URL, "type": "rpc"}, 'type = "rpc"'),
    ],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_an_era_without_a_choice_is_reported(fields: dict[str, Any], beside: str, *, is_own: bool) -> None:
    server, findings = one({**fields, "era": "modern"}, is_own=is_own)
    assert server is not None
    assert [received.partition(": ")[2] for received in findings] == [f"servers.a.era has no effect beside {beside}"]


def test_an_unreadable_file_of_variables_is_reported_with_server_key_and_file() -> None:
    server, findings = one({"command": "a", "env_file": "gone.env"})
    assert server is not None
    assert findings == [
        "isthmus.toml: servers.a.env_file names /etc/hub/gone.env, which cannot be read (No such file or directory); "
        "the server starts without its variables (create that file, as lines of NAME=value, or correct env_file)"
    ]


def test_an_irregular_file_is_reported_and_not_read() -> None:
    server, [received] = one({"command": "a", "env_file": "/dev/zero"})
    assert server is not None
    assert "names /dev/zero, which cannot be read (Not a regular file)" in received
    server, [received] = one({"command": "a", "args": ["${file:/dev/zero}"]})
    assert server is not None
    assert received == (
        "isthmus.toml: servers.a.args.0 has '${file:/dev/zero}', "
        "which is not a short text file that can be read; it stays as it is"
    )
    assert one({"command": "a", "env": {"A": "file:/dev/zero"}}) == (
        None,
        ["isthmus.toml: servers.a.env.A must name a readable file, not file:/dev/zero (Not a regular file)"],
    )


def test_the_certificates_of_a_server_are_read_with_its_entry(tmp_path: Path) -> None:
    text = trustme.CA().cert_pem.bytes().decode()
    (tmp_path / "ca.pem").write_text(text)
    for fields in ({"url": URL}, {"url": "wss://h/"}, {"rpc": URL}, {"agent": URL}):
        server, findings = one({**fields, "ca": str(tmp_path / "ca.pem")})
        assert server is not None
        assert (server.ca, findings) == (text, [])
        assert "CERTIFICATE" not in repr(server)


def test_an_invalid_certificate_file_costs_the_server(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("x")
    server, [received] = one({"url": URL, "ca": str(tmp_path / "ca.pem")})
    assert (server, "ca must be a file of certificates in PEM form" in received) == (None, True)
    server, [received] = one({"url": URL, "ca": "gone.pem"})
    assert (server, "ca must be a file that can be read, not 'gone.pem'" in received) == (None, True)


def test_in_another_clients_file_ca_is_its_own_word() -> None:
    entry = entry_of("a", {"url": URL, "ca": "gone.pem"}, Place(FOLDER / "config.toml", "mcp_servers.a"), CODEX)
    server, findings = read_server(entry, reading())
    assert server is not None
    assert (server.ca, findings, server.extra) == ("", [], {"ca": "gone.pem"})
    server, [received] = one({"command": "a", "ca": ""})
    assert server is not None
    assert "servers.a.ca has no effect beside command" in received


# -- Server entries become settings -------------------------------------------------------------------------

# -- Entries ------------------------------------------------------------------------------------------------


def test_limits_are_read_with_their_units() -> None:
    table = {"memory": "1GiB", "files": 256, "processes": "32", "cpu_seconds": 60}
    assert process_limits(table) == ProcessLimits(1 << 30, 256, 32, 60)
    assert process_limits({}) == ProcessLimits()


@pytest.mark.parametrize(
    ("written", "size"), [("512MiB", 512 << 20), ("64 KiB", 64 << 10), ("1Ti", 1 << 40), ("4096B", 4096), (4096, 4096)]
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(written: object, size: int) -> None:
    assert size_of("memory", written) == size


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"memory": "much"}, "limits.memory must be a size like 512MiB or 1GiB, not 'much'"),
        ({"memory": "1KiB"}, "limits.memory must be at least 16777216, not 1024"),
        ({"memory": 1.5}, "limits.memory must be a size like 512MiB or 1GiB, not 1.5"),
        ({"files": "many"}, "limits.files must be a whole number, not 'many'"),
        ({"files": 0}, "limits.files must be at least 1, not 0"),
        ({"fiels": 3}, "limits must have only memory, files, processes, cpu_seconds, not 'fiels'"),
        (3, "limits must be a table, not 3"),
    ],
)
def test_senseless_values_are_reported(table: object, expected: str) -> None:
    with pytest.raises(ValueError, match=expected.replace(".", r"\.")):
        process_limits(table)
