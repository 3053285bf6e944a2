"""`isthmus record` and `isthmus replay` as people run them: commands, matching, timing, secrets, damaged files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import PromptReference

from tests import hubs
from tests.cassettes.test_replay import odd_server
from tests.cassettes.wire import teed_client
from tests.fork_server import quick_isthmus
from tests.frontends.set_server import command
from tests.hubs import CHECKOUT, PATIENT, Raw, environment, isthmus, started, write_config
from tests.peers.client_sdk2 import client_over_http, client_over_stdio
from tests.peers.launch import mcp1_python

SECONDS = 60.0
SDK1 = CHECKOUT / "tests" / "matrix" / "asked_sdk1.py"
SQUARES = [{"n": 2, "ms": 0}, {"n": 3, "ms": 0}]


async def run(folder: Path, *words: str) -> tuple[int, str, str]:
    """How a command ended, and what it printed and said."""
    ended = await hubs.run(*words, folder=folder, env={"HOME": str(folder)})
    return ended.code, ended.out, ended.err


@asynccontextmanager
async def recording(folder: Path, *options: str) -> AsyncIterator[str]:
    """The address of a hub that records into calls.jsonl."""
    config = write_config(folder, {"odd": odd_server()}, limits=PATIENT)
    async with started(folder, "calls.jsonl", "--config", str(config), *options, command="record") as hub:
        yield hub.url


@asynccontextmanager
async def replaying(folder: Path, *options: str) -> AsyncIterator[str]:
    """The address of a hub that replays it."""
    async with started(folder, "calls.jsonl", *options, command="replay") as hub:
        yield hub.url


async def record_calls(folder: Path, *calls: tuple[str, dict[str, Any]], options: tuple[str, ...] = ()) -> list[Any]:
    """Record these calls, one after the other; return the lines of the cassette."""
    async with recording(folder, *options) as url, client_over_http(url) as client:
        for tool, arguments in calls:
            await client.call_tool(tool, arguments)
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().split("\n")[:-1]]


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cassette of two calls."""
    folder = tmp_path_factory.mktemp("squares")
    asyncio.run(record_calls(folder, *(("odd.square", given) for given in SQUARES)))
    return folder


async def test_a_command_is_recorded_and_replayed_without_its_servers(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"odd": odd_server()}, limits=PATIENT)
    call = quick_isthmus("call", "odd.square", "n=7", "ms=0")
    options = ("--config", str(config), "calls.jsonl", "--", *call)
    assert (await run(tmp_path, "record", *options))[:2] == (0, "49\n")
    config.unlink()

    assert await run(tmp_path, "replay", "calls.jsonl", "--", *call) == (0, "49\n", "")
    code, _, said = await run(tmp_path, "replay", "calls.jsonl", "--", *call[:-2], "n=8", "ms=0")
    assert code == 1
    assert "The nearest is odd.square in line" in said
    assert "arguments.n is 7 there and 8 here" in said
    assert "1 of 1 calls of calls.jsonl were not made" in said


async def test_the_exit_code_and_the_address_are_those_of_the_command(squares: Path) -> None:
    script = "import os, sys; print(os.environ['ISTHMUS_HUB'], sys.argv[1]); sys.exit(7)"
    words = ("replay", "calls.jsonl", "--match", "lenient", "--", isthmus()[0], "-c", script, "at={url}")
    code, printed, _ = await run(squares, *words)
    assert code == 7
    assert re.fullmatch(r"(http://127\.0\.0\.1:\d+) at=\1/mcp\n", printed)


async def test_an_unknown_command_is_reported(squares: Path) -> None:
    code, _, said = await run(squares, "replay", "calls.jsonl", "--", "no-such-program")
    assert (code, "'no-such-program' could not be started" in said) == (2, True)


async def test_a_command_without_calls_replaces_no_cassette_and_replays_no_strict_one(squares: Path) -> None:
    before = (squares / "calls.jsonl").read_bytes()
    config = write_config(squares, {"odd": odd_server()}, limits=PATIENT)
    record = ("record", "calls.jsonl", "--config", str(config), "--")
    for words, expected in ((["no-such-program"], 2), ([isthmus()[0], "-c", "exit(7)"], 7)):
        code, _, said = await run(squares, *record, *words)
        assert (code, "no call was recorded: the cassette stays as it was" in said) == (expected, True), said
        assert (squares / "calls.jsonl").read_bytes() == before
    idle = ("--", isthmus()[0], "-c", "pass")
    code, _, said = await run(squares, "replay", "calls.jsonl", *idle)
    assert (code, "2 of 2 calls of calls.jsonl were not made" in said) == (1, True)
    assert await run(squares, "replay", "calls.jsonl", "--match", "lenient", *idle) == (0, "", "")


async def test_strict_replay_wants_the_same_order_and_each_call_once(squares: Path) -> None:
    two, three = SQUARES
    async with replaying(squares) as url, client_over_http(url) as client:
        with pytest.raises(MCPError, match=r"The next call .* arguments\.n is 2 there and 3 here"):
            await client.call_tool("odd.square", three)
        await client.call_tool("odd.square", two)
        await client.call_tool("odd.square", three)
        with pytest.raises(MCPError, match=r"All 2 calls of calls\.jsonl were made") as refused:
            await client.call_tool("odd.square", three)
        data = refused.value.error.data
        assert isinstance(data, dict)
        assert (data["reason"], data["executed"], data["server"]) == ("not_recorded", "no", "odd")


async def test_lenient_replay_takes_any_order_and_repeats(squares: Path) -> None:
    two, three = SQUARES
    async with replaying(squares, "--match", "lenient") as url, client_over_http(url) as client:
        for given in (three, two, three, {"ms": 0.0, "n": 2}):
            result = await client.call_tool("odd.square", given)
            assert f'"{int(given["n"]) ** 2}"' in result.model_dump_json()
        with pytest.raises(MCPError, match=r"has no such call .* arguments\.more is missing there and 1 here"):
            await client.call_tool("odd.square", {**two, "more": 1})
        with pytest.raises(MCPError, match=r"it is odd\.square there and odd\.big here"):
            await client.call_tool("odd.big", {})


async def test_a_cassette_is_served_over_stdio(squares: Path) -> None:
    command = quick_isthmus("replay", str(squares / "calls.jsonl"), "--stdio", "-q")
    async with client_over_stdio(command, env=environment()) as client:
        assert "odd.square" in {tool.name for tool in (await client.list_tools()).tools}
        assert '"4"' in (await client.call_tool("odd.square", SQUARES[0])).model_dump_json()


async def test_calls_take_as_long_as_recorded_if_wanted(tmp_path: Path) -> None:
    given = {"n": 5, "ms": 300}
    lines = await record_calls(tmp_path, ("odd.square", given))
    (ms,) = [line["ms"] for line in lines if "result" in line]
    assert ms >= 300
    async with replaying(tmp_path, "--timing", "recorded") as url, client_over_http(url) as client:
        began = time.monotonic()
        await client.call_tool("odd.square", given)
        assert time.monotonic() - began >= 0.29


async def test_recording_again_without_times_gives_the_same_bytes(tmp_path: Path) -> None:
    calls = [("odd.square", SQUARES[0]), ("odd.unicode", {}), ("odd.square", SQUARES[1])]
    lines = await record_calls(tmp_path, *calls, options=("--no-timing",))
    assert not any("ms" in line for line in lines)
    first = (tmp_path / "calls.jsonl").read_bytes()
    await record_calls(tmp_path, *calls, options=("--no-timing",))
    assert (tmp_path / "calls.jsonl").read_bytes() == first
    assert [name for name in os.listdir(tmp_path) if name.startswith("calls")] == ["calls.jsonl"]


async def test_secrets_of_the_server_and_of_arguments_are_not_in_the_file_and_calls_still_match(tmp_path: Path) -> None:
    login = {"user": "zoe", "password": "correct horse", "pin": 4711}
    calls = [("odd.login", login), ("odd.tells", {})]
    lines = await record_calls(tmp_path, *calls)
    text = (tmp_path / "calls.jsonl").read_text()
    assert "key-0123456789" not in text
    assert "correct horse" not in text
    assert "4711" not in text
    call = next(line for line in lines if line.get("call") == "login")
    assert call["arguments"] == {"user": "zoe", "password": "***", "pin": "***"}
    async with replaying(tmp_path) as url, client_over_http(url) as client:
        result = await client.call_tool("odd.login", {**login, "password": "another", "pin": 1})
        assert "zoe logged in with *** and ***" in result.model_dump_json()
        await client.call_tool("odd.tells", {})


async def test_a_value_of_the_environment_may_be_a_word_of_json_or_of_the_protocol(tmp_path: Path) -> None:
    (tmp_path / "odd.env").write_text("DEBUG=true\nPORT=8080\nFORMAT=text\nKIND=object\n")
    config = write_config(tmp_path, {"odd": {**odd_server(), "env_file": "odd.env"}}, limits=PATIENT)
    for words in (("record", "--config", str(config)), ("replay",)):
        hub = started(tmp_path, *words[1:], "calls.jsonl", command=words[0])
        async with hub as process, client_over_http(process.url) as client:
            assert (await client.call_tool("odd.fails", {})).is_error
            await client.call_tool("odd.square", {"n": 8080, "ms": 0})


async def test_an_answer_that_differs_is_refused_in_strict_mode_only(tmp_path: Path) -> None:
    async with recording(tmp_path) as url, teed_client(url, "legacy") as (client, _):
        await client.call_tool("odd.asks", {})
    file = tmp_path / "calls.jsonl"
    file.write_text(file.read_text().replace('"reply":{"action":"accept","content":{"colour":"blue"}}', '"reply":{}'))
    async with replaying(tmp_path, "--match", "lenient") as url, teed_client(url, "legacy") as (client, _):
        assert "blue" in (await client.call_tool("odd.asks", {})).model_dump_json()
    async with replaying(tmp_path) as url, teed_client(url, "legacy") as (client, _):
        failure = ""
        try:
            await client.call_tool("odd.asks", {})
        except MCPError as error:
            failure = error.error.message
    assert "answers a question of odd.asks" in failure
    assert "answer.action is missing there" in failure


async def test_a_cassette_of_a_legacy_client_answers_a_modern_one(tmp_path: Path) -> None:
    async with recording(tmp_path) as url, teed_client(url, "legacy") as (client, _):
        before = await client.call_tool("odd.asks", {})
    async with replaying(tmp_path) as url, teed_client(url, "2026-07-28") as (client, _):
        assert (await client.call_tool("odd.asks", {})).content == before.content


async def test_a_client_on_the_legacy_sdk_gets_the_same_events_and_questions(tmp_path: Path) -> None:
    forms = {"colour": {"colour": "grün"}, "name": {}}
    behaviour = {"can": ["elicitation"], "action": "accept", "forms": forms}
    steps = {"asks": ["odd.asks", {}], "square": ["odd.square", SQUARES[0]], "refuses": ["odd.refuses", {}]}

    async def visit(url: str) -> Any:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(mcp1_python(), str(SDK1), stdin=pipe, stdout=pipe)
        todo = {"behaviours": {"zoe": behaviour}, "visits": [[url, steps]]}
        printed, _ = await asyncio.wait_for(process.communicate(json.dumps(todo).encode()), SECONDS)
        return json.loads(printed)

    async with recording(tmp_path) as url:
        recorded = await visit(url)
    assert recorded[0]["zoe"]["asks"]["asked"] == [["elicitation/create", "Which colour?"]]
    assert recorded[0]["zoe"]["refuses"]["error"] == "no: é"
    async with replaying(tmp_path) as url:
        assert await visit(url) == recorded


async def test_the_configuration_can_record_as_well(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"odd": odd_server()}, limits=PATIENT, hub={"cassette": "mine.jsonl"})
    async with started(tmp_path, "--config", str(config)) as hub, client_over_http(hub.url) as client:
        await client.call_tool("odd.square", SQUARES[0])
        assert not (tmp_path / "mine.jsonl").exists()
    assert '"call":"square"' in (tmp_path / "mine.jsonl").read_text()


async def test_names_are_those_of_the_recording_hub(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"odd": odd_server()}, limits=PATIENT, hub={"names": "llm"})
    for words in (("record", "--config", str(config)), ("replay",)):
        hub = started(tmp_path, *words[1:], "calls.jsonl", command=words[0])
        async with hub as process, client_over_http(process.url) as client:
            assert '"4"' in (await client.call_tool("mcp_odd_square", SQUARES[0])).model_dump_json()


SCRIPT = """
first = await odd_square(n=2, ms=0)
second = await odd_square(n=3, ms=0)
long = await odd_big()
[first, second, len(str(long)), "x" * 5000]
"""


async def test_agents_in_search_and_code_mode_are_replayed(tmp_path: Path) -> None:
    modes: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "search": [("call_tool", {"name": "odd.square", "arguments": SQUARES[0]})],
        "code": [("run_code", {"code": SCRIPT})],
    }
    for expose, calls in modes.items():
        hub = {"expose": expose, "max_result_bytes": 4096}
        config = write_config(tmp_path, {"odd": odd_server()}, hub=hub, limits=PATIENT)
        seen = []
        async with started(tmp_path, "calls.jsonl", "--config", str(config), command="record") as recording_hub:
            seen.append(await _see(recording_hub.url, calls))
        lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
        assert lines[0] == {"cassette": 1, **hub}
        made = [(line["call"], line["arguments"], line.get("overlaps", False)) for line in lines if "call" in line]
        squares = [("square", given, False) for given in SQUARES]
        assert made == (squares[:1] if expose == "search" else [*squares, ("big", {}, False)])
        async with replaying(tmp_path) as url:
            seen.append(await _see(url, calls))
        assert seen[0] == seen[1]


async def _see(url: str, calls: list[tuple[str, dict[str, Any]]]) -> tuple[list[str], list[str]]:
    """The tools of a hub, and what calls return, without the ids that each hub makes itself."""
    async with client_over_http(url) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        results = [(await client.call_tool(name, arguments)).model_dump_json() for name, arguments in calls]
    own = r'isthmus://results/[\w-]+|"script":"\w+"|\d{4}-\d\d-\d\dT[\d:]+Z'
    return names, [re.sub(own, "", result) for result in results]


async def test_rules_of_the_server_are_applied_before_recording(tmp_path: Path) -> None:
    rules = {"include_tools": ["square"], "defaults": {"square": {"ms": 0}}}
    config = write_config(tmp_path, {"odd": {**odd_server(), **rules}}, limits=PATIENT)
    for words in (("record", "--config", str(config)), ("replay",)):
        hub = started(tmp_path, *words[1:], "calls.jsonl", command=words[0])
        async with hub as process, client_over_http(process.url) as client:
            assert [tool.name for tool in (await client.list_tools()).tools if "odd" in tool.name] == ["odd.square"]
            assert '"81"' in (await client.call_tool("odd.square", {"n": 9})).model_dump_json()


async def test_arguments_that_the_hub_adds_to_a_call_by_call_tool_are_not_recorded(tmp_path: Path) -> None:
    rules = {"defaults": {"square": {"ms": 0}}}
    config = write_config(tmp_path, {"odd": {**odd_server(), **rules}}, hub={"expose": "search"}, limits=PATIENT)
    for words in (("record", "--config", str(config)), ("replay",)):
        hub = started(tmp_path, *words[1:], "calls.jsonl", command=words[0])
        async with hub as process, client_over_http(process.url) as client:
            answer = await client.call_tool("call_tool", {"name": "odd.square", "arguments": {"n": 9}})
            assert '"81"' in answer.model_dump_json()
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert [line["arguments"] for line in lines if "call" in line] == [{"n": 9}]


async def test_a_killed_hub_leaves_the_cassette_as_it_was(tmp_path: Path) -> None:
    await record_calls(tmp_path, ("odd.square", SQUARES[0]))
    before = (tmp_path / "calls.jsonl").read_bytes()
    config = write_config(tmp_path, {"odd": odd_server()}, limits=PATIENT)

    async def killed() -> None:
        async with started(tmp_path, "calls.jsonl", "--config", str(config), command="record") as hub:
            async with client_over_http(hub.url) as client:
                await client.call_tool("odd.big", {})
            os.kill(hub.pid, signal.SIGKILL)

    with pytest.raises(AssertionError, match="the hub ended with"):
        await killed()
    assert (tmp_path / "calls.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text[:-5], r"line \d+: the line has no end: the file was cut"),
        (lambda text: text[: text.rindex('{"end"')], r"line \d+: the last line is missing"),
        (lambda text: text.replace('"result":{"content"', '"result":{"content'), r"line 14: it is not a JSON object"),
        (lambda text: text.replace('"call":"square"', '"call":7', 1), r"line 13: Expected `str`, got `int`"),
    ],
)
async def test_a_damaged_cassette_is_refused_with_the_line(
    squares: Path, tmp_path: Path, change: Any, problem: str
) -> None:
    (tmp_path / "calls.jsonl").write_text(change((squares / "calls.jsonl").read_text()))
    code, _, said = await run(tmp_path, "replay", "calls.jsonl")
    assert code == 3
    assert re.search(problem, said)
    assert "Record it again" in said


async def test_a_cassette_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"odd": odd_server()})
    code, _, said = await run(tmp_path, "record", "missing/calls.jsonl", "--config", str(config), "--port", "0")
    assert code == 3
    assert "hub.cassette cannot be written" in said


async def test_refusals_by_rules_are_replayed_and_others_happen_again(tmp_path: Path) -> None:
    rules: dict[str, Any] = {
        "budgets": {"few": {"calls": 2, "tools": ["odd.square"]}},
        "approvals": {"large": {"tools": ["odd.square"], "arguments": {"n": {"above": 100}}}},
    }
    calls: list[tuple[str, dict[str, Any]]] = [
        ("odd.square", {"n": 2, "ms": 0}),
        ("odd.square", {"n": 1000, "ms": 0}),
        ("odd.square", {"n": 1000, "ms": 0}),
        ("odd.square", {"n": "two", "ms": 0}),
        ("odd.nothing", {}),
        ("odd.square", {"n": 3, "ms": 0}),
        ("odd.square", {"n": 4, "ms": 0}),
    ]

    async def make(url: str) -> list[Any]:
        async with Raw(url) as raw:
            ends = [await raw.call(*each) for each in calls]
        return [each.get("error") or {"content": each["result"]["content"]} for each in ends]

    config = write_config(tmp_path, {"odd": {**odd_server(), "timeout": 0.5}}, limits=PATIENT, **rules)
    async with started(tmp_path, "calls.jsonl", "--config", str(config), command="record") as hub:
        recorded = await make(hub.url)
    reasons = [each.get("data", {}).get("reason") for each in recorded]
    pending = "approval_pending"
    assert reasons == [None, pending, pending, "bad_arguments", "unknown_tool", None, "budget_exceeded"]
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().split("\n")[:-1]]
    assert lines[-1] == {"end": {"calls": 5}}
    async with replaying(tmp_path) as url:
        replayed = await make(url)
    ids = {each["data"].pop("approval", None) for each in recorded if "data" in each} - {None}
    assert len(ids) == 1
    shown = json.loads(json.dumps(recorded).replace(ids.pop(), "ap_1"))
    assert {each["data"].pop("approval", None) for each in replayed if "data" in each} == {"ap_1", None}
    assert replayed == shown


WORK = '''
def create_issue(repo: str, title: str) -> str:
    """Create an issue."""
    return f"{repo}: {title}"
'''
BOT = "key-of-bot-0123456789"
RECORD_OTHER = ("record", "other.jsonl", "--config", "isthmus.json", "--")


@pytest.fixture(scope="module")
def fixed_by_a_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cassette of a call in a set that fixes an argument, and the configuration of the set."""
    folder = tmp_path_factory.mktemp("fixed")
    (folder / "work.py").write_text(WORK)
    report = {"name": "report", "fixed": {"repo": "a-private-repo"}}
    sets = {"support": {"tools": ["work.create_issue"], "tool": {"work.create_issue": report}}}
    callers = {"bot": {"key": BOT, "allow": ["*"], "set": "support"}}
    config = write_config(folder, {"work": {"python": "work", "path": "."}}, sets=sets, callers=callers)

    async def record() -> None:
        words = ("record", "calls.jsonl", "--config", str(config), "--", *quick_isthmus("call", "report", "title=x"))
        ended = await hubs.run(*words, folder=folder, env={"HOME": str(folder), "ISTHMUS_KEY": BOT})
        assert (ended.code, ended.out) == (0, "a-private-repo: x\n"), ended

    asyncio.run(record())
    return folder


async def test_a_recorded_command_needs_no_key_although_the_hub_has_callers(fixed_by_a_set: Path) -> None:
    for words in (("create_issue", "repo=r"), ("--set", "support", "report")):
        record = (*RECORD_OTHER, *quick_isthmus("call", *words, "title=x"))
        code, printed, said = await run(fixed_by_a_set, *record)
        assert (code, printed) == (0, "r: x\n" if "repo=r" in words else "a-private-repo: x\n"), said
        assert sum('"call":' in line for line in (fixed_by_a_set / "other.jsonl").read_text().split("\n")) == 1


async def test_a_recorded_command_uses_a_key_of_its_own_if_it_has_one(fixed_by_a_set: Path) -> None:
    record = (*RECORD_OTHER, *quick_isthmus("call", "create_issue", "title=x"))
    for key, code, expected in ((BOT, 1, "there is no tool 'create_issue'"), ("wrong" * 5, 5, "rejected the key")):
        ended = await hubs.run(*record, folder=fixed_by_a_set, env={"HOME": str(fixed_by_a_set), "ISTHMUS_KEY": key})
        assert (ended.code, expected in ended.err) == (code, True), ended


@pytest.mark.parametrize(
    "words",
    [
        ("call", "create_issue", "title=x"),
        ("call", "create_issue", "title=x", "repo=other"),
        ("call", "--set", "support", "report", "title=x"),
    ],
)
async def test_a_call_with_fixed_arguments_of_a_set_is_replayed_with_and_without_the_set(
    fixed_by_a_set: Path, words: tuple[str, ...]
) -> None:
    config = ("--config", "isthmus.json") if "--set" in words else ()
    replay = ("replay", "calls.jsonl", *config, "--", *quick_isthmus(*words))
    assert await run(fixed_by_a_set, *replay) == (0, "a-private-repo: x\n", "")


async def test_fixed_arguments_of_a_set_are_not_in_the_cassette_and_others_must_be_equal(fixed_by_a_set: Path) -> None:
    (call,) = [line for line in (fixed_by_a_set / "calls.jsonl").read_text().split("\n") if '"call":' in line]
    assert json.loads(call) == {
        "arguments": {"title": "x"},
        "call": "create_issue",
        "fixed": ["repo"],
        "server": "work",
    }
    replay = ("replay", "calls.jsonl", "--", *quick_isthmus("call", "create_issue", "title=y"))
    code, _, said = await run(fixed_by_a_set, *replay)
    assert (code, 'arguments.title is "x" there and "y" here' in said, "repo" in said) == (1, True, False)


async def test_prompts_with_fixed_arguments_of_a_set_are_replayed_without_their_values(tmp_path: Path) -> None:
    change = {"name": "look_over", "fixed": {"repo": "a/private"}}
    sets = {"papers": {"prompts": ["one.review"], "prompt": {"one.review": change}}}
    config = write_config(tmp_path, {"one": hubs.stdio(command())}, sets=sets, limits=PATIENT)
    ref = PromptReference(type="ref/prompt", name="look_over")

    async def conversation(hub: hubs.HubProcess) -> list[Any]:
        async with client_over_http(hub.url_of("papers")) as client:
            got = await client.get_prompt("look_over", {"change": "7"})
            plain = await client.complete(ref, {"name": "change", "value": "7"})
            return [got, plain, await client.complete(ref, {"name": "change", "value": "7"}, {"tone": "kind"})]

    words = ("calls.jsonl", "--config", str(config))
    async with started(tmp_path, *words, command="record") as hub:
        recorded = await conversation(hub)
    lines = (tmp_path / "calls.jsonl").read_text().split("\n")
    calls = [json.loads(line) for line in lines if '"call":' in line]
    assert [call["fixed"] for call in calls] == [["repo"]] * 3
    assert "private" not in json.dumps(calls)
    async with started(tmp_path, *words, command="replay") as hub:
        assert await conversation(hub) == recorded
