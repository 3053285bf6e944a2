"""What is wrong with a server, told from what the hub says of it; that the hub says so is shown in `tests/cli`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.cli import doctor as module
from isthmus.cli.doctor import (
    CODES,
    SLOW_SECONDS,
    ConfiguredServer,
    ServerReport,
    of_arguments,
    of_names,
    of_schemas,
    of_server,
    of_uris,
)
from isthmus.cli.documents import ListedFeature
from isthmus.config import codes
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.upstream.settings import (
    AgentSettings,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)

RPC = JsonRpcSettings("http://x/rpc")
AGENT = AgentSettings("http://x")
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "operating.md"


def entry(reach: Reach, secrets: frozenset[str] = frozenset()) -> ConfiguredServer:
    return ConfiguredServer(ServerSettings(ServerName("a"), reach, secrets=secrets), "servers.a of x.toml")


def offer(name: str, **definition: Any) -> ListedFeature:
    raws = {key: msgspec.Raw(json.dumps(value).encode()) for key, value in definition.items()}
    return ListedFeature(name, name.partition(".")[0], raws)


def told(patient: ServerReport, of: ConfiguredServer | None = None) -> list[tuple[str, str]]:
    return [(found.code.number, found.mend) for found in of_server(patient, of)]


def test_numbers_are_unique_and_in_order_and_differ_from_those_of_configurations() -> None:
    numbers = [code.number for code in CODES]
    assert numbers == sorted(set(numbers))
    assert not {code.name for code in CODES} & {code.name for code in codes.CODES}


def test_every_code_is_in_the_document_as_it_is() -> None:
    rows = [line.strip("| ").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ISD-")]
    assert [(row[0], row[1].strip("`"), row[3]) for row in rows] == [
        (code.number, code.name, code.mend[0].upper() + code.mend[1:]) for code in CODES
    ]


def test_of_a_server_that_is_well_there_is_nothing_to_say() -> None:
    assert of_server(ServerReport("a", "ready", seconds=SLOW_SECONDS), entry(StdioSettings("run"))) == []


def test_a_process_that_died_is_told_with_its_last_words_and_its_command_without_secrets() -> None:
    patient = ServerReport("a", "retrying", "exited with code 3", said="Traceback\n  ValueError: boom\n")
    (found,) = of_server(patient, entry(StdioSettings("run", ("--key", "hunter2")), frozenset({"hunter2"})))
    assert (found.code, found.message) == (module.DIED, "exited with code 3; it said: ValueError: boom")
    assert found.mend == "see what it says when run by hand: run --key ***"
    assert found.is_grave


@pytest.mark.parametrize(
    ("reason", "reach", "code", "mend"),
    [
        ("'x' could not be started: no", StdioSettings("x"), "ISD-102", "correct command, or install x"),
        ("'x' could not be started: its working directory '/y' does not", StdioSettings("x"), "ISD-102", "correct cwd"),
        ("connection refused by 127.0.0.1:9", HttpSettings("http://x"), "ISD-103", "in servers.a of x.toml, start the"),
        ("it answered HTTP 401; check", HttpSettings("http://x"), "ISD-104", "valid credential"),
        ("it answered a POST of MCP with HTTP 405", HttpSettings("http://x"), "ISD-105", "take type out"),
        ("it answered HTTP 404 instead of opening a WebSocket", WebSocketSettings("ws://x"), "ISD-105", "no WebSocket"),
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
        ("it has no tools/list (Missing session ID): declare", RPC, "ISD-105", "write url in the place of rpc"),
        ("it answered HTTP 406", RPC, "ISD-105", "write url in the place of rpc"),
        ("it has no tools/list (no): declare", JsonRpcSettings("http://x/mcp"), "ISD-105", "write url in the place of rpc"),
        ("HTTP 404 without a usable JSON-RPC answer", RPC, "ISD-106", "correct rpc"),
        ("it answered HTTP 404 where its card should be", AGENT, "ISD-106", "correct agent: there is no card"),
        ("https://b is not where its card is; if it is", AGENT, "ISD-114", "add to origins what the card names"),
        ("connection refused by http://x", AGENT, "ISD-103", "start the agent, or correct agent"),
        ("it answered HTTP 308", AGENT, "ISD-112", "the address that it points to in agent"),
        ("it answered HTTP 308; configure the address", RPC, "ISD-112", "the address that it points to in rpc"),
        (
            "it redirects to https://y.example, which is not http://x; configure",
            HttpSettings("http://x"),
            "ISD-112",
            "write https://y.example in url",
        ),
        (
            "it does not speak MCP 2026-07-28, as its configuration says it should",
            StdioSettings("x", era="modern"),
            "ISD-113",
            "in servers.a of x.toml, take era out",
        ),
        ("it refused to initialize: no (1)", StdioSettings("x", era="legacy"), "ISD-113", "take era out"),
        ("it refused to initialize: no (1)", StdioSettings("x"), "ISD-110", "own log"),
        ("something nobody has thought of", HttpSettings("http://x"), "ISD-110", "own log"),
        (None, HttpSettings("http://x"), "ISD-110", "own log"),
    ],
)
def test_each_reason_has_its_code_and_what_mends_it(reason: str | None, reach: Reach, code: str, mend: str) -> None:
    ((number, advice),) = told(ServerReport("a", "retrying", reason), entry(reach))
    assert number == code
    assert mend.replace("its own log", "own log") in advice


def test_of_a_running_hub_only_general_advice_can_be_given() -> None:
    assert told(ServerReport("a", "retrying", "exited with code 1")) == [("ISD-101", module.DIED.mend)]
    assert told(ServerReport("a", "starting", "it has not answered yet")) == [("ISD-109", module.NO_ANSWER.mend)]
    assert told(ServerReport("a", "away", "exited with code 1")) == [("ISD-115", module.AWAY.mend)]


@pytest.mark.parametrize(
    ("command", "mend"), [("/usr/bin/npx", "install the server beforehand: npx"), ("run", "nothing, unless")]
)
def test_a_slow_start_is_odd_and_not_grave(command: str, mend: str) -> None:
    (found,) = of_server(ServerReport("a", "ready", seconds=SLOW_SECONDS + 1), entry(StdioSettings(command)))
    assert (found.code, found.is_grave) == (module.SLOW, False)
    assert found.mend.startswith(mend)


def test_a_disabled_server_and_notes_are_told() -> None:
    notes = ("'x' is listed twice; the first is used", "its list of tools has over 1000 entries and was cut")
    assert [number for number, _ in told(ServerReport("a", "ready", notes=notes))] == ["ISD-401", "ISD-402"]
    assert told(ServerReport("a", "disabled"), entry(StdioSettings("x"))) == [
        ("ISD-501", "in servers.a of x.toml, take disabled out to use it")
    ]


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
def test_a_secret_that_everybody_can_read_in_the_list_of_processes_is_told(
    args: tuple[str, ...], *, is_told: bool
) -> None:
    found = of_arguments(entry(StdioSettings("server", args)))
    assert [each.code.number for each in found] == (["ISD-203"] if is_told else [])
    assert "s3cret" not in repr(found)
    assert of_arguments(entry(RPC)) == []


def test_names_that_language_models_would_mistake_for_each_other_are_told() -> None:
    (found,) = of_names([offer("web.search_query"), offer("web_search.query"), offer("other.tool")])
    assert found.code == module.NAMES_CLASH
    assert found.message.startswith("web.search_query and web_search.query would both be mcp_web_search_query")


def test_a_name_that_is_too_long_for_language_models_is_told() -> None:
    (found,) = of_names([offer(f"files.{'x' * 64}"), offer("files.short")])
    assert (found.code, found.server) == (module.NAME_CUT, "files")


def test_a_uri_that_several_servers_have_is_told_once() -> None:
    found = of_uris([offer("isthmus://hub/a/file:///x"), offer("isthmus://hub/b/file:///x"), offer("file:///y")])
    assert [(one.code, one.message) for one in found] == [(module.SHARED_URI, "a and b have the same URI: file:///x")]


@pytest.mark.parametrize(
    ("definition", "is_told"),
    [
        ({"inputSchema": {"type": "object"}}, False),
        ({}, False),
        ({"inputSchema": {"$ref": "http://elsewhere.example/schema"}}, True),
    ],
)
def test_a_schema_that_cannot_be_checked_is_told(definition: Mapping[str, Any], *, is_told: bool) -> None:
    found = of_schemas([offer("a.tool", **definition)], Limits())
    assert [one.code for one in found] == [module.NOT_CHECKED] * is_told
