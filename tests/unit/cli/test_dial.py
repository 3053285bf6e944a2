"""From the words of `isthmus dial` to a plan: which servers, under which ids, to which hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.app.dial import ConnectionStatus, HubRefusal, LocalServerStatus
from isthmus.cli.dial import (
    DialOptions,
    connection_text,
    connection_texts,
    duration,
    name_of_command,
    name_of_url,
    plan_of,
    server_row,
)
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.model.names import ServerName
from isthmus.upstream.server_settings import HttpSettings, StdioSettings

URL = "ws://hub.example/mcp_endpoint/mcp/?token=abc"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    servers = {"files": {"command": "files"}, "web": {"url": "http://127.0.0.1:9/mcp"}, "off": {"command": "x"}}
    servers["off"]["disabled"] = True  # type: ignore[assignment]
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def ids(wanted: DialOptions, **environment: str) -> list[tuple[str, str]]:
    return [(offer.name, offer.server_id) for offer in plan_of(wanted, environment).offers]


def refusal(wanted: DialOptions, **environment: str) -> tuple[Exit, str]:
    with pytest.raises(CommandFailed) as failed:
        plan_of(wanted, environment)
    return failed.value.exit, failed.value.message


def test_a_command_is_one_server_named_after_its_program() -> None:
    plan = plan_of(DialOptions((URL, "python", "-u", "tools/calculator.py", "--fast")), {})
    assert [(offer.name, offer.server_id) for offer in plan.offers] == [("calculator", "calculator")]
    assert plan.configuration.servers[0].reach == StdioSettings("python", ("-u", "tools/calculator.py", "--fast"))
    assert str(plan.address) == "ws://hub.example/mcp_endpoint/mcp/"
    assert plan.address.token == "abc"


def test_an_address_is_one_server() -> None:
    plan = plan_of(DialOptions((URL,), url="http://127.0.0.1:8000/mcp"), {})
    assert plan.offers[0].server_id == "http-8000"
    assert plan.configuration.servers[0].reach == HttpSettings("http://127.0.0.1:8000/mcp")


def test_an_id_is_taken_as_it_is_given_on_the_command_line_or_in_the_address() -> None:
    assert ids(DialOptions((URL, "calc"), server_id="计算 1")) == [("1-ec341f", "计算 1")]
    assert ids(DialOptions((f"{URL}&server_id=calc-7", "python", "x.py"))) == [("calc-7", "calc-7")]
    assert ids(DialOptions((f"{URL}&server_id=old", "python", "x.py"), server_id="new")) == [("new", "new")]


def test_a_file_gives_all_its_servers_but_those_that_are_disabled(file: Path) -> None:
    assert ids(DialOptions((URL,), config=file)) == [("files", "files"), ("web", "web")]
    assert ids(DialOptions((URL,), config=file, only=("web",))) == [("web", "web")]
    assert ids(DialOptions((URL,), config=file, only=("web",), server_id="search")) == [("web", "search")]


def test_settings_of_mcp_pipe_keep_working(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ids(DialOptions(("calc",)), MCP_ENDPOINT=URL) == [("calc", "calc")]
    assert ids(DialOptions(()), MCP_ENDPOINT=URL, MCP_CONFIG=str(file)) == [("files", "files"), ("web", "web")]
    monkeypatch.chdir(tmp_path)
    file.rename(tmp_path / "mcp_config.json")
    assert ids(DialOptions(()), MCP_ENDPOINT=URL) == [("files", "files"), ("web", "web")]


def test_the_env_file_of_mcp_pipe_is_read(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(f"MCP_ENDPOINT='{URL}'\nMCP_CONFIG={file}\nISTHMUS_RELAY_TOKEN=from-the-file\n")
    assert ids(DialOptions(())) == [("files", "files"), ("web", "web")]
    assert plan_of(DialOptions(()), {}).address.token == "from-the-file"
    plan = plan_of(DialOptions(()), {"MCP_ENDPOINT": "ws://elsewhere", "ISTHMUS_RELAY_TOKEN": "mine"})
    assert (plan.address.origin.host, plan.address.token) == ("elsewhere", "mine"), "the environment wins"
    (tmp_path / ".env").write_text("MCP_ENDPOINT = 'ws://without an end\n")
    exit, received = refusal(DialOptions(("calc",)))
    assert exit == Exit.USAGE
    assert "line 1 is not NAME=value and is skipped" in received


def test_a_script_alone_is_run_as_the_pipe_ran_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "calculator.py").write_text("")

    def reach(*words: str) -> object:
        return plan_of(DialOptions((URL, *words)), {}).configuration.servers[0].reach

    assert ids(DialOptions(("calculator.py",)), MCP_ENDPOINT=URL) == [("calculator", "calculator")]
    assert reach("calculator.py") == StdioSettings("python3", ("calculator.py",))
    assert reach("missing.py") == StdioSettings("missing.py")
    assert reach("calculator.py", "--fast") == StdioSettings("calculator.py", ("--fast",))
    program = tmp_path / "bin" / "calculator.py"
    program.parent.mkdir()
    program.touch(0o755)
    assert reach("calculator.py") == StdioSettings("calculator.py"), "it is a command"


def test_each_unusable_address_has_advice_of_its_own() -> None:
    def advice(url: str) -> str:
        with pytest.raises(CommandFailed) as failed:
            plan_of(DialOptions((url, "calc")), {})
        return " ".join(failed.value.advice)

    assert advice("ws://hub") == "A token may be part of the address, or come by ISTHMUS_RELAY_TOKEN or --token-file."
    for url in ("ws://hub/mcp_endpoint/call/?token=abc", "ftp://hub"):
        assert advice(url) == "`isthmus token relay AGENT` at the hub prints the address at which servers dial in."


def test_where_the_token_comes_from(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")

    def token(url: str, given: Path | None = None, **environment: str) -> str:
        return plan_of(DialOptions((url, "calc"), token_file=given), environment).address.token

    assert token(URL) == "abc"
    assert token("http://hub", ISTHMUS_RELAY_TOKEN="by-name") == "by-name"
    assert token(URL, tmp_path / "token", ISTHMUS_RELAY_TOKEN="by-name") == "from-a-file"
    for name in ("nowhere", "bytes"):
        exit, received = refusal(DialOptions((URL, "calc"), token_file=tmp_path / name))
        assert exit == Exit.CONFIGURATION
        assert str(tmp_path / name) in received


def test_senseless_options_are_reported(file: Path, tmp_path: Path) -> None:
    assert refusal(DialOptions(("calc",))) == (
        Exit.USAGE,
        "no hub to dial: name its address first, or set MCP_ENDPOINT, also in ./.env",
    )
    exclusive = refusal(DialOptions((URL, "calc"), config=file, url="http://x"))
    assert exclusive == (
        Exit.USAGE,
        "a command and --url and --config exclude each other: name servers in one way",
    )
    assert refusal(DialOptions((URL,), config=file, only=("mail",))) == (
        Exit.USAGE,
        "there is no server 'mail'",
    )
    assert refusal(DialOptions((URL,), config=file, server_id="x")) == (
        Exit.USAGE,
        "--server-id is for one server, but there are several: files, web",
    )
    assert refusal(DialOptions((URL, "calc"), server_id="a\nb"))[0] == Exit.USAGE
    assert refusal(DialOptions((URL,), url="http://[bad"))[0] == Exit.USAGE
    assert refusal(DialOptions(("ws://hub", "calc")))[0] == Exit.USAGE
    (tmp_path / "empty.json").write_text('{"mcpServers": {}}')
    exit, received = refusal(DialOptions((URL,), config=tmp_path / "empty.json"))
    assert (exit, received) == (Exit.CONFIGURATION, f"there are no servers in {tmp_path / 'empty.json'}")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["calc"], "calc"),
        (["/opt/tools/calc.sh", "x"], "calc"),
        (["python3.12", "-u", "a/calc.py"], "calc"),
        (["python", "-m", "calc_server"], "calc_server"),
        (["npx", "-y", "@modelcontextprotocol/server-filesystem", "."], "server-filesystem"),
        (["uv", "run", "calc.py"], "calc"),
        (["uvx", "mcp-server-time"], "mcp-server-time"),
        (["python", "-"], "python"),
    ],
)
def test_a_command_has_a_name_that_a_person_would_give_it(command: list[str], name: str) -> None:
    assert name_of_command(command) == name


def test_names_of_addresses() -> None:
    assert name_of_url("https://search.example/mcp") == "search.example"
    assert name_of_url("http://localhost:8000/mcp") == "http-8000"
    assert name_of_url("http://[::1]/mcp") == "http-80"


# -- dial view -----------------------------------------------------------------------------------------------------

NOW = 1000.0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (ConnectionStatus("starting", 990), "waiting for a server"),
        (ConnectionStatus("connecting", 990), "connecting"),
        (ConnectionStatus("connecting", 990, "it went"), "connecting; it went"),
        (ConnectionStatus("connected", 877, is_muxed=True), "connected for 2 min 3 s, one connection for all"),
        (ConnectionStatus("connected", 995), "connected for 5 s, one connection"),
        (ConnectionStatus("pausing", 990, "connection refused", 1003.2), "reconnecting in 3 s: connection refused"),
        (ConnectionStatus("pausing", 990, "connection refused", 900), "reconnecting in 0 s: connection refused"),
    ],
)
def test_a_connection_in_words(line: ConnectionStatus, words: str) -> None:
    assert connection_text(line, NOW) == words
    assert connection_texts([line], NOW) == [words]


def test_several_connections_are_counted_and_a_problem_is_reported_once() -> None:
    well, ill = ConnectionStatus("connected", 990), ConnectionStatus("pausing", 990, "refused", 1001.0)
    assert connection_texts([], NOW) == ["waiting for a server"]
    assert connection_texts([well, ill, ill], NOW) == ["1 of 3 connections", "reconnecting in 1 s: refused"]


def test_a_server_in_a_row() -> None:
    server_status = ServerStatus(ServerName("calc"), "ready")
    assert server_row(LocalServerStatus("calc", server_status, "robot_calc", 2, 7), NOW) == (
        "calc",
        "ready",
        "0 tools",
        "7 calls, 2 now",
        "as robot_calc",
    )
    ill = ServerStatus(ServerName("calc"), "retrying", reason="exited with code 1\nand more \x1b[31m")
    assert server_row(LocalServerStatus("calc", ill, None, 0, 0), NOW)[1:] == (
        "retrying",
        "0 tools",
        "0 calls",
        "exited with code 1",
    )


def test_a_server_that_the_hub_refused_is_not_shown_as_one_that_is_there() -> None:
    refusal = HubRefusal("its agent has 32 servers", 1057.0)
    shown = LocalServerStatus("calc", ServerStatus(ServerName("calc"), "ready"), None, 0, 7, refusal)
    assert server_row(shown, NOW)[1:] == (
        "refused",
        "0 tools",
        "7 calls",
        "again in 57 s: its agent has 32 servers",
    )


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (7384, "2 h 3 min")])
def test_a_length_of_time(seconds: float, text: str) -> None:
    assert duration(seconds) == text
