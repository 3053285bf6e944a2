"""How the configuration and each server stand."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.app import server_diagnosis as module
from isthmus.app.server_diagnosis import (
    CODES,
    NOT_STARTED,
    SLOW_SECONDS,
    ConfiguredServer,
    ServerReport,
    check_server,
)
from isthmus.cli.doctor import (
    check_arguments,
    check_names,
    check_schemas,
    check_uris,
    examine,
    show_codes,
)
from isthmus.cli.documents import ListedFeature
from isthmus.cli.exits import Exit
from isthmus.cli.find_hub import LocalSource
from isthmus.cli.rest_client import RemoteSource
from isthmus.config import finding_codes
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.view import ServerState
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.upstream.server_settings import (
    AgentSettings,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)
from tests.hubs import PATIENT, serving, stdio, write_config
from tests.peers.launch import command
from tests.security.authority import Authority, Protected, entry_of

RAW = command("raw_server")
DEAD = {"command": "/no/such/program", "args": ["--token", "s3cret-of-mine"]}


def config(folder: Path, servers: dict[str, Any], **tables: Any) -> LocalSource:
    return LocalSource(write_config(folder, servers, **tables))


async def test_all_well_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers = {"raw": stdio(RAW), "off": {"command": "x", "disabled": True}}
    assert await examine(config(tmp_path, servers), wait=20, is_json=False) == Exit.SUCCESS
    out = capsys.readouterr().out
    assert out.startswith(f"configuration: {tmp_path / 'isthmus.json'}\n")
    assert "✓  raw      ready     4 tools" in out
    assert "MCP 2026-07-28" in out
    assert out.endswith("all servers are well\n")


@pytest.mark.parametrize(
    ("servers", "hub"), [({"raw": stdio(RAW), "odd": {}}, {}), ({"raw": stdio(RAW)}, {"host": "0.0.0.0"})]
)
async def test_a_problem_of_the_configuration_is_in_the_summary_and_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], servers: dict[str, Any], hub: dict[str, Any]
) -> None:
    assert await examine(config(tmp_path, servers, hub=hub), wait=20, is_json=False) == Exit.CONFIGURATION
    out = capsys.readouterr().out
    assert out.endswith("the servers in the table are well\nthe configuration has 1 problem: see above\n"), out
    assert "all servers" not in out


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"tools": ["raw.gone"]}, "approvals.pay.tools: has raw.gone, which matches nothing"),
        (
            {"tools": ["raw.*"], "arguments": {"amuont": {"above": 1}}},
            "approvals.pay.arguments.amuont: names an argument that raw.* does not have: "
            "the rule holds every call of it",
        ),
    ],
)
async def test_a_mistyped_rule_for_approvals_is_in_the_summary_and_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: dict[str, Any], problem: str
) -> None:
    hub = config(tmp_path, {"raw": stdio(RAW)}, approvals={"pay": rule})
    assert await examine(hub, wait=20, is_json=False) == Exit.CONFIGURATION
    out = " ".join(capsys.readouterr().out.split())
    assert f" {problem} " in out, out
    assert out.endswith("the servers in the table are well the configuration has 1 problem: see above"), out


async def test_a_broken_server_ends_with_1_and_a_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], deaf_port: int
) -> None:
    servers = {
        "dead": DEAD,
        "away": {"url": f"http://127.0.0.1:{deaf_port}/mcp"},
        "odd": stdio([*RAW, "--mode", "lying_list:duplicates"]),
    }
    assert await examine(config(tmp_path, servers), wait=20, is_json=False) == Exit.CALL_FAILED
    out = capsys.readouterr().out
    assert "✗  dead     retrying" in out
    place = f"of {tmp_path / 'isthmus.json'}"
    assert "✗ ISD-102 dead: '/no/such/program' could not be started" in out
    assert f"    fix: in servers.dead {place}, correct command, or install /no/such/program\n" in out
    assert "✗ ISD-103 away: connection refused" in out
    assert f"    fix: in servers.away {place}, correct url, or start the server\n" in out
    assert "· ISD-401 odd: 'pay' is listed twice" in out
    assert out.endswith("2 of 4 servers failed: away, dead\n")
    assert "s3cret" not in out


async def test_a_server_that_has_not_answered_yet_is_to_be_given_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = {"slow": stdio(["/bin/sh", "-c", "while read line; do :; done"])}
    assert await examine(config(tmp_path, servers), wait=0.2, is_json=False) == Exit.CALL_FAILED
    out = capsys.readouterr().out
    assert "✗ ISD-109 slow: it has not answered yet\n    fix: wait longer" in out
    assert out.endswith("1 of 2 servers failed: slow\n")


async def test_a_server_that_needs_a_login_is_reported_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Authority() as authority, Protected(authority) as server:
        assert await examine(config(tmp_path, {"s": entry_of(server)}), wait=20, is_json=False) == Exit.CALL_FAILED
    out = capsys.readouterr().out
    assert "✗ ISD-116 s: it requires a login" in out


async def test_findings_in_the_configuration_end_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert await examine(config(tmp_path, {"bad": {"url": 5}}), wait=20, is_json=False) == Exit.CONFIGURATION
    out = capsys.readouterr().out
    assert "  ISC-201 isthmus.json: servers.bad.url must be a text, not a number\n    fix: write what" in out


async def test_programs_get_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await examine(config(tmp_path, {"raw": stdio(RAW), "dead": DEAD}), wait=20, is_json=True) == 1
    output = json.loads(capsys.readouterr().out)
    assert output["configuration"] == {"file": str(tmp_path / "isthmus.json"), "findings": [], "access": "open"}
    builtin, dead, raw = output["servers"]
    not_started, told_secret = output["findings"]
    assert not_started == {
        "code": "ISD-102",
        "kind": "command-not-started",
        "server": "dead",
        "message": dead["reason"],
        "fix": f"in servers.dead of {tmp_path / 'isthmus.json'}, correct command, or install /no/such/program",
    }
    assert (told_secret["code"], told_secret["server"]) == ("ISD-203", "dead")
    assert (builtin["state"], builtin["seconds"]) == ("ready", None)
    assert (dead["state"], dead["tools"]) == ("retrying", 0)
    assert (raw["tools"], raw["era"]) == (4, "2026-07-28")
    assert raw["seconds"] > 0


async def test_without_a_file_there_are_the_built_in_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISTHMUS_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert await examine(LocalSource(None), wait=20, is_json=False) == Exit.SUCCESS
    said = capsys.readouterr().out
    assert said.startswith("configuration: no file found, so there are only the built-in tools\n")
    assert "access: open: every program on this machine may call everything" in said


async def test_without_a_file_the_servers_of_the_environment_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, deaf_port: int
) -> None:
    monkeypatch.delenv("ISTHMUS_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_SERVER_MAP", f'{{"files": "http://127.0.0.1:{deaf_port}"}}')
    monkeypatch.chdir(tmp_path)
    await examine(LocalSource(None), wait=5, is_json=False)
    assert capsys.readouterr().out.startswith("configuration: no file found; servers come from MCP_SERVER_MAP\n")


async def test_a_running_hub_is_examined_through_its_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path, {"raw": stdio(RAW), "dead": DEAD}, limits=PATIENT) as served:
        source = RemoteSource(served.url)
        assert await examine(source, wait=20, is_json=False) == Exit.CALL_FAILED
        out = capsys.readouterr().out
        assert out.startswith(f"hub: {served.url}, reached in ")
        assert "✓  raw      ready     4 tools" in out
        assert await examine(source, wait=20, is_json=True) == Exit.CALL_FAILED
        output = json.loads(capsys.readouterr().out)
        assert output["hub"]["url"] == served.url
        assert [server["server"] for server in output["servers"]] == ["builtin", "dead", "raw"]
        assert [(found["code"], found["fix"]) for found in output["findings"]] == [("ISD-102", NOT_STARTED.fix)]


@pytest.mark.parametrize("is_json", [True, False])
def test_every_kind_of_finding_can_be_listed(capsys: pytest.CaptureFixture[str], *, is_json: bool) -> None:
    assert show_codes(is_json=is_json) == Exit.SUCCESS
    out = capsys.readouterr().out
    assert all(code.number in out and code.name in out for code in (*CODES, *finding_codes.CODES))
    assert not is_json or len(json.loads(out)["codes"]) == len(CODES) + len(finding_codes.CODES)


# -- diagnosis -----------------------------------------------------------------------------------------------------

RPC = JsonRpcSettings("http://x/rpc")
AGENT = AgentSettings("http://x")
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "operating.md"


def entry(reach: Reach, secrets: frozenset[str] = frozenset()) -> ConfiguredServer:
    return ConfiguredServer(ServerSettings(ServerName("a"), reach, secrets=secrets), "servers.a of x.toml")


def offer(name: str, **definition: Any) -> ListedFeature:
    raws = {key: msgspec.Raw(json.dumps(value).encode()) for key, value in definition.items()}
    return ListedFeature(name, name.partition(".")[0], raws)


def findings_of(patient: ServerReport, of: ConfiguredServer | None = None) -> list[tuple[str, str]]:
    return [(found.code.number, found.fix) for found in check_server(patient, of)]


def test_numbers_are_unique_and_in_order_and_differ_from_those_of_configurations() -> None:
    numbers = [code.number for code in CODES]
    assert numbers == sorted(set(numbers))
    assert not {code.name for code in CODES} & {code.name for code in finding_codes.CODES}


def test_every_code_is_in_the_document_as_it_is() -> None:
    rows = [line.strip("| ").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ISD-")]
    assert [(row[0], row[1].strip("`"), row[3]) for row in rows] == [
        (code.number, code.name, code.fix[0].upper() + code.fix[1:]) for code in CODES
    ]


def test_of_a_server_that_is_well_there_is_nothing_to_say() -> None:
    assert check_server(ServerReport("a", "ready", seconds=SLOW_SECONDS), entry(StdioSettings("run"))) == []


def test_a_process_that_died_is_reported_with_its_last_output_and_its_command_without_secrets() -> None:
    patient = ServerReport("a", "retrying", "exited with code 3", said="Traceback\n  ValueError: boom\n")
    (found,) = check_server(patient, entry(StdioSettings("run", ("--key", "hunter2")), frozenset({"hunter2"})))
    assert (found.code, found.message) == (module.DIED, "exited with code 3; its last output: ValueError: boom")
    assert found.fix == "run it by hand, with its secrets instead of ***, and read its output: run --key '***'"
    assert found.is_grave


def test_a_program_without_the_machines_certificates_is_given_them() -> None:
    said = "error: Failed to fetch\n  cause: invalid peer certificate: UnknownIssuer\nhint: Consider x"
    (found,) = check_server(ServerReport("a", "retrying", "exited with code 2", said=said), entry(StdioSettings("uvx")))
    assert found.fix == f"in servers.a of x.toml, give it this machine's certificates: {module.CERTIFICATE_ENV}"


@pytest.mark.parametrize(
    ("reason", "reach", "code", "fix"),
    [
        ("'x' could not be started: no", StdioSettings("x"), "ISD-102", "correct command, or install x"),
        ("'x' could not be started: its working directory '/y' does not", StdioSettings("x"), "ISD-102", "correct cwd"),
        (
            "connection refused by 127.0.0.1:9",
            HttpSettings("http://x"),
            "ISD-103",
            "in servers.a of x.toml, correct url, or start the",
        ),
        ("it answered HTTP 401; check", HttpSettings("http://x"), "ISD-104", "valid credential"),
        ("it answered a POST of MCP with HTTP 405", HttpSettings("http://x"), "ISD-105", "remove type"),
        (
            "it answered HTTP 404 instead of opening a WebSocket",
            WebSocketSettings("ws://x"),
            "ISD-105",
            "does not accept WebSockets",
        ),
        (
            "it answered a POST of MCP with HTTP 404; it gives no event stream: it answered HTTP 404",
            HttpSettings("http://x"),
            "ISD-106",
            "correct url",
        ),
        ("HTTP 503 without a usable JSON-RPC answer", HttpSettings("http://x"), "ISD-107", "its own log"),
        ("HTTP 200 without a usable JSON-RPC answer", HttpSettings("http://x"), "ISD-106", "correct url"),
        ("there is no Python module called x", PythonSettings("x"), "ISD-108", "correct python"),
        ("it has no tools/list: declare", RPC, "ISD-111", "each as [servers.a.tools.TOOL]"),
        ("it has no tools/list (Missing session ID): declare", RPC, "ISD-105", "write url instead of rpc"),
        ("it answered HTTP 406", RPC, "ISD-105", "write url instead of rpc"),
        (
            "it has no tools/list (no): declare",
            JsonRpcSettings("http://x/mcp"),
            "ISD-105",
            "write url instead of rpc",
        ),
        ("HTTP 404 without a usable JSON-RPC answer", RPC, "ISD-106", "correct rpc"),
        ("it answered HTTP 404 where its card should be", AGENT, "ISD-106", "correct agent: there is no A2A card"),
        ("https://b is not where its card is; if it is", AGENT, "ISD-114", "add the card's addresses to origins"),
        ("connection refused by http://x", AGENT, "ISD-103", "start the agent, or correct agent"),
        ("it answered HTTP 308", AGENT, "ISD-112", "set agent to the address that it redirects to"),
        ("it answered HTTP 308; configure the address", RPC, "ISD-112", "set rpc to the address that it redirects to"),
        (
            "it redirects to https://y.example, which is not http://x; configure",
            HttpSettings("http://x"),
            "ISD-112",
            "set url to https://y.example",
        ),
        (
            "it does not speak MCP 2026-07-28, as its configuration says it should",
            StdioSettings("x", era="modern"),
            "ISD-113",
            "in servers.a of x.toml, remove era",
        ),
        ("it refused to initialize: no (1)", StdioSettings("x", era="legacy"), "ISD-113", "remove era"),
        ("it refused to initialize: no (1)", StdioSettings("x"), "ISD-110", "own log"),
        ("something nobody has thought of", HttpSettings("http://x"), "ISD-110", "own log"),
        (None, HttpSettings("http://x"), "ISD-110", "own log"),
    ],
)
def test_each_reason_has_its_code_and_its_fix(reason: str | None, reach: Reach, code: str, fix: str) -> None:
    ((number, advice),) = findings_of(ServerReport("a", "retrying", reason), entry(reach))
    assert number == code
    assert fix.replace("its own log", "own log") in advice


def test_of_a_running_hub_only_general_advice_can_be_given() -> None:
    assert findings_of(ServerReport("a", "retrying", "exited with code 1")) == [("ISD-101", module.DIED.fix)]
    assert findings_of(ServerReport("a", "starting", "it has not answered yet")) == [("ISD-109", module.NO_ANSWER.fix)]
    assert findings_of(ServerReport("a", "away", "exited with code 1")) == [("ISD-115", module.AWAY.fix)]


@pytest.mark.parametrize(
    ("command", "fix"), [("/usr/bin/npx", "install the server beforehand: npx"), ("run", "nothing, unless")]
)
def test_a_slow_start_is_odd_and_not_grave(command: str, fix: str) -> None:
    (found,) = check_server(ServerReport("a", "ready", seconds=SLOW_SECONDS + 1), entry(StdioSettings(command)))
    assert (found.code, found.is_grave) == (module.SLOW, False)
    assert found.fix.startswith(fix)


def test_a_disabled_server_and_notes_are_reported() -> None:
    cut = "its list of tools has over 1000 entries and was cut; to read all of it, raise limits.tools_per_server"
    old = "its lists could not be read again; the last ones are shown: silence"
    notes = ("'x' is listed twice; the first is used", cut, old, "its list of tools runs in a circle and was cut")
    numbers = [number for number, _ in findings_of(ServerReport("a", "ready", notes=notes))]
    assert numbers == ["ISD-401", "ISD-402", "ISD-409", "ISD-401"]
    long = "it sent a line of over 100 bytes; to allow that, raise limits.reply_bytes"
    assert findings_of(ServerReport("a", "retrying", long)) == [("ISD-119", module.TOO_LONG.fix)]
    assert findings_of(ServerReport("a", "disabled"), entry(StdioSettings("x"))) == [
        ("ISD-501", "in servers.a of x.toml, remove disabled to use it")
    ]


def test_withheld_tools_are_to_be_approved() -> None:
    notes = ("'pay' is withheld: run isthmus approve a.pay", "3 more are withheld")
    for of in (None, entry(StdioSettings("x"))):
        found = check_server(ServerReport("a", "ready", notes=notes), of)
        assert [(one.code, one.message, one.is_grave) for one in found] == [
            (module.WITHHELD, "'pay' is withheld", False),
            (module.WITHHELD, "3 more are withheld", False),
        ]
        assert {one.fix for one in found} == {"review and approve them: isthmus approve a"}


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("it requires a login: run isthmus login a", "log in: isthmus login a"),
        (
            "it wants the scope 'b: run isthmus login a; rm x'",
            "log in with the scope in the message: isthmus login a --scope SCOPE",
        ),
    ],
)
def test_the_fix_of_a_missing_login_is_a_command_without_words_of_the_server(reason: str, fix: str) -> None:
    found = findings_of(ServerReport("a", "login", reason), entry(HttpSettings("http://x")))
    assert found == [("ISD-116", fix)]


def test_a_secret_with_quotes_is_hidden_in_the_command() -> None:
    secret = "hunter'2 \"hunter"
    of = entry(StdioSettings("run", ("a b", "--key", secret)), frozenset({secret}))
    assert findings_of(ServerReport("a", "retrying", "exited with code 3"), of) == [
        ("ISD-101", "run it by hand, with its secrets instead of ***, and read its output: run 'a b' --key '***'")
    ]


@pytest.mark.parametrize(
    ("state", "reason", "fix"),
    [
        ("retrying", "'x' could not be started: no", "in servers.a of x.toml, correct command, or install x"),
        ("login", "it requires a login: x", "log in: isthmus login a"),
        ("away", "it has disconnected", module.AWAY.fix),
        ("retrying", "something nobody has thought of", None),
        ("starting", "it has not answered yet", None),
        ("disabled", "disabled", None),
        ("ready", None, None),
    ],
)
def test_a_running_hub_has_a_fix_for_a_server_with_a_known_reason(
    state: ServerState, reason: str | None, fix: str | None
) -> None:
    assert module.fix_of(ServerStatus(ServerName("a"), state, reason), entry(StdioSettings("x"))) == fix


# -- what servers offer, seen together -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "is_told"),
    [
        (("--token", "s3cret-0123"), True),
        (("--api-key=s3cret-0123",), True),
        (("postgresql://me:s3cret-0123@db/x",), True),
        (("-y", "server", "--root", "/home/me"), False),
    ],
)
def test_a_secret_in_the_list_of_processes_is_reported(args: tuple[str, ...], *, is_told: bool) -> None:
    found = check_arguments(entry(StdioSettings("server", args)))
    assert [each.code.number for each in found] == (["ISD-203"] if is_told else [])
    assert "s3cret" not in repr(found)
    assert check_arguments(entry(RPC)) == []


def test_names_that_language_models_would_confuse_are_reported() -> None:
    (found,) = check_names([offer("web.search_query"), offer("web_search.query"), offer("other.tool")])
    assert found.code == module.NAMES_CLASH
    assert found.message.startswith("web.search_query and web_search.query would both be mcp_web_search_query")


def test_a_name_that_is_too_long_for_language_models_is_reported() -> None:
    (found,) = check_names([offer(f"files.{'x' * 64}"), offer("files.short")])
    assert (found.code, found.server) == (module.NAME_CUT, "files")


def test_a_uri_that_several_servers_have_is_reported_once() -> None:
    found = check_uris([offer("isthmus://hub/a/file:///x"), offer("isthmus://hub/b/file:///x"), offer("file:///y")])
    assert [(one.code, one.message) for one in found] == [(module.SHARED_URI, "a and b have the same URI: file:///x")]


@pytest.mark.parametrize(
    ("definition", "is_told"),
    [
        ({"inputSchema": {"type": "object"}}, False),
        ({}, False),
        ({"inputSchema": {"$ref": "http://elsewhere.example/schema"}}, True),
    ],
)
def test_a_schema_that_cannot_be_checked_is_reported(definition: Mapping[str, Any], *, is_told: bool) -> None:
    found = check_schemas([offer("a.tool", **definition)], Limits())
    assert [one.code for one in found] == [module.NOT_CHECKED] * is_told
