"""One call, from words to its outcome."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.cli.call import (
    ERA_CANNOT_ASK,
    NOT_ASKABLE,
    Conversation,
    FeatureRequest,
    OutcomeOptions,
    arguments_of,
    call_tool,
    choose,
    read_resource,
    read_text,
    readable,
    readable_contents,
    readable_messages,
    write_prompt,
)
from isthmus.cli.call_progress import CLEAR_LINE, StatusLine, progress_text
from isthmus.cli.documents import FeatureList, ListedFeature, MissingServerInfo
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.find_hub import LocalSource
from isthmus.cli.local_hub import servers_for
from isthmus.cli.rest_client import RemoteSource
from isthmus.config.settings import Configuration, HubSettings
from isthmus.model.calls import Progress, Result
from isthmus.model.names import ServerName
from isthmus.upstream.server_settings import ServerSettings, StdioSettings
from isthmus.wire.mcp.lists import PROMPTS
from tests.conftest import Ledger
from tests.hubs import PATIENT, environment, serving, stdio, write_config
from tests.peers import content
from tests.peers.launch import command, quick_command

FAILING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    answers = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "f", "version": "1"}},
        "tools/list": {"tools": [{"name": "fail", "inputSchema": {"type": "object"}},
                                 {"name": "quiet", "inputSchema": {"type": "object"}},
                                 {"name": "huge", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [], "isError": False} if "quiet" in line else
                      {"content": [{"type": "text", "text": "no such file"}], "isError": True},
    }
    if "id" in asked:
        known = asked["method"] in answers
        ended = {"result": answers[asked["method"]]} if known else {"error": {"code": -32601, "message": "?"}}
        if "huge" in line:
            ended = {"result": {"content": [{"type": "text", "text": "ok"}], "size": float("inf")}}
        said = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **ended})
        print(said.replace("Infinity", "1e999"), flush=True)
"""


@pytest.fixture
def config(tmp_path: Path, ledger: Ledger) -> LocalSource:
    servers = {
        "raw": stdio(command("raw_server", "--ledger", str(ledger.path))),
        "failing": stdio([sys.executable, "-c", FAILING]),
    }
    return LocalSource(write_config(tmp_path, servers))


def wanted(name: str, *words: str) -> FeatureRequest:
    return FeatureRequest(name, words)


JSON = OutcomeOptions(is_json=True)


async def test_text_is_printed_and_without_a_terminal_no_progress(
    config: LocalSource, capsys: pytest.CaptureFixture[str]
) -> None:
    call = wanted("raw.echo", "text=hello", "mode=progress:2")
    assert await call_tool(config, call, wait=20) == Exit.SUCCESS
    output = capsys.readouterr()
    assert output.out == "hello\n"
    assert output.err == ""


async def test_json_is_the_result_as_the_server_gave_it(
    config: LocalSource, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await call_tool(config, wanted("raw.echo", "text=a"), JSON, wait=20) == Exit.SUCCESS
    assert json.loads(capsys.readouterr().out)["content"] == [{"type": "text", "text": "a"}]


async def test_a_number_that_python_cannot_hold_is_no_failure(
    config: LocalSource, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await call_tool(config, wanted("failing.huge"), wait=20) == Exit.SUCCESS
    assert capsys.readouterr().out == "ok\n"
    assert await call_tool(config, wanted("failing.huge"), JSON, wait=20) == Exit.SUCCESS
    assert "1e999" in capsys.readouterr().out


async def test_a_uri_that_is_not_utf_8_is_refused_in_a_sentence(tmp_path: Path) -> None:
    source = LocalSource(write_config(tmp_path, {"shelf": stdio(quick_command("full_sdk2"))}))
    with pytest.raises(CommandFailed, match="must be valid UTF-8") as failed:
        await read_resource(source, "memo://shelf/\udcff", wait=30)
    assert failed.value.exit == Exit.USAGE


async def test_a_result_without_content_prints_nothing(config: LocalSource, capsys: pytest.CaptureFixture[str]) -> None:
    assert await call_tool(config, wanted("failing.quiet"), wait=20) == Exit.SUCCESS
    assert capsys.readouterr().out == ""


async def test_a_tool_that_says_no_ends_with_1_and_its_words_on_stderr(
    config: LocalSource, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandFailed) as failed:
        await call_tool(config, wanted("failing.fail"), wait=20)
    assert failed.value.exit == Exit.CALL_FAILED
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "no such file\n")
    assert await call_tool(config, wanted("failing.fail"), JSON, wait=20) == Exit.CALL_FAILED
    assert json.loads(capsys.readouterr().out)["isError"] is True


def test_a_server_that_would_have_asked_gets_the_advice_to_let_it_ask() -> None:
    refused = Result(msgspec.Raw(b'{"content":[{"type":"text","text":"Client does not support elicitation"}]}'), True)
    with pytest.raises(CommandFailed) as failed:
        Conversation("a.b", OutcomeOptions()).print_outcome(refused, "a.b", readable)
    assert failed.value.advice[0] == NOT_ASKABLE
    with pytest.raises(CommandFailed) as failed:
        Conversation("a.b", OutcomeOptions(answers=("accept",))).print_outcome(refused, "a.b", readable)
    assert NOT_ASKABLE not in failed.value.advice
    text = "elicitation via server-initiated requests is unavailable on 2026-07-28 connections"
    refused = Result(msgspec.Raw(json.dumps({"content": [{"type": "text", "text": text}]}).encode()), True)
    with pytest.raises(CommandFailed) as failed:
        Conversation("a.b", OutcomeOptions()).print_outcome(refused, "a.b", readable)
    assert failed.value.advice[0] == ERA_CANNOT_ASK


async def test_a_fault_says_whether_the_tool_ran(config: LocalSource, capsys: pytest.CaptureFixture[str]) -> None:
    call = wanted("raw.pay", "nonce=1", "mode=die_after_ledger")
    with pytest.raises(CommandFailed) as failed:
        await call_tool(config, call, JSON, wait=20)
    assert failed.value.exit == Exit.CALL_FAILED
    assert failed.value.advice[0].startswith("executed: unknown")
    assert json.loads(capsys.readouterr().out)["error"]["reason"] == "lost"


async def test_a_running_hubs_fault_is_printed_in_its_own_words(tmp_path: Path) -> None:
    async with serving(tmp_path, {"raw": stdio(command("raw_server"))}, limits=PATIENT) as served:
        source = RemoteSource(served.url)
        with pytest.raises(CommandFailed) as failed:
            await call_tool(source, wanted("raw.pay", "nonce=1", "mode=die_after_ledger"), wait=20)
        assert failed.value.message.startswith("Lost server raw during the call")
        assert failed.value.advice[0].startswith("executed: unknown")


async def test_an_interrupted_command_cancels_the_call_at_the_server(config: LocalSource, ledger: Ledger) -> None:
    calling = asyncio.ensure_future(call_tool(config, wanted("raw.pay", "nonce=1", "mode=sleep:60"), wait=20))
    async with asyncio.timeout(20):
        while not ledger.lines():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    calling.cancel()
    with pytest.raises(CommandFailed) as stopped:
        await calling
    assert stopped.value.advice[0].startswith("executed: unknown")
    assert '"cancelled": "1"' in ledger.lines()[-1]


def test_arguments_are_read_from_files_and_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "note").write_text("from a file")
    assert read_text(str(tmp_path / "note")) == "from a file"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from stdin")))
    assert read_text("-") == "from stdin"


async def test_a_prompt_is_written_out_and_a_resource_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = LocalSource(write_config(tmp_path, {"shelf": stdio(quick_command("full_sdk2"))}))
    assert await write_prompt(source, wanted("greet", "name=Ada"), wait=30) == Exit.SUCCESS
    assert capsys.readouterr().out == f"user: {content.greeting('Ada', 'warm')}\n"
    assert await read_resource(source, content.UNLISTED_URI, wait=30) == Exit.SUCCESS
    assert capsys.readouterr().out == f"{content.UNLISTED}\n"
    with pytest.raises(CommandFailed) as failed:
        await read_resource(source, "memo://shelf/none", JSON, wait=30)
    assert failed.value.exit == Exit.CALL_FAILED
    assert json.loads(capsys.readouterr().out)["error"]["server"] == "shelf"


# -- naming --------------------------------------------------------------------------------------------------------


def offer(name: str) -> ListedFeature:
    return ListedFeature(name, name.partition(".")[0], {})


OFFERS = [offer(name) for name in ("builtin.echo", "files.read", "files.a.b", "web.echo", "web.read", "mcp_web_get")]
GONE = {"search": MissingServerInfo("retrying", "connection refused", is_listed=False)}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("files.read", "files.read"),
        ("files.a.b", "files.a.b"),
        ("a.b", "files.a.b"),
        ("echo", "builtin.echo"),
        ("mcp.echo", "web.echo"),
        ("mcp_web_get", "mcp_web_get"),
    ],
)
def test_full_short_and_mcp_names_are_found(name: str, meant: str) -> None:
    assert choose(name, FeatureList(OFFERS, {})).name == meant


def failure(name: str, absences: dict[str, MissingServerInfo] | None = None) -> CommandFailed:
    with pytest.raises(CommandFailed) as failed:
        choose(name, FeatureList(OFFERS, absences or {}))
    return failed.value


def test_a_short_name_of_several_tools_lists_them() -> None:
    failed = failure("read")
    assert failed.exit == Exit.USAGE
    assert failed.message == "'read' could be any of these:\n  files.read\n  web.read"


def test_a_mistyped_name_brings_suggestions() -> None:
    failed = failure("file.raed")
    assert failed.exit == Exit.CALL_FAILED
    assert "Did you mean files.read" in failed.advice[0]


def test_a_mistyped_short_name_suggests_every_tool_that_has_it() -> None:
    assert "builtin.echo or web.echo" in failure("ecoh").advice[0]


def test_an_unknown_name_points_to_the_list_and_names_missing_servers() -> None:
    assert failure("zzz", GONE).advice == ("`isthmus tools` lists all tools. Not connected, so not listed: search.",)


def test_a_tool_of_a_missing_server_says_why_it_is_missing() -> None:
    failed = failure("search.query", GONE)
    assert failed.exit == Exit.CALL_FAILED
    assert failed.message == "cannot call search.query: server search is not connected: connection refused"
    assert "executed: no" in failed.advice[0]
    assert failure("mcp_search_query", GONE).message.startswith("cannot call mcp_search_query: server search is not")
    starting = {"search": MissingServerInfo("starting", None, is_listed=False)}
    assert failure("search.query", starting).message.endswith("it is starting")


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("files.read", {"files"}),
        ("builtin.echo", set()),
        ("echo", set()),
        ("read", None),
        ("mcp.read", None),
        ("other.read", None),
        ("files", None),
    ],
)
def test_only_the_servers_that_can_have_the_tool_are_started(name: str, needed: set[str] | None) -> None:
    servers = tuple(ServerSettings(ServerName(name), StdioSettings("x")) for name in ("files", "web"))
    assert servers_for(name, Configuration(None, HubSettings(), servers)) == needed


def test_a_prompt_has_no_built_in_namesake() -> None:
    servers = (ServerSettings(ServerName("files"), StdioSettings("x")),)
    assert servers_for("echo", Configuration(None, HubSettings(), servers), PROMPTS) is None


def test_words_about_prompts_speak_of_prompts() -> None:
    with pytest.raises(CommandFailed) as failed:
        choose("zzz", FeatureList([], {}), PROMPTS)
    assert failed.value.message == "there is no prompt 'zzz'"
    assert failed.value.advice == ("`isthmus prompts` lists all prompts.",)


# -- arguments -----------------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "shape": {"$ref": "#/$defs/Shape"},
        "lost": {"$ref": "#/$defs/Lost"},
        "free": {},
        "odd": True,
    },
    "$defs": {"Shape": {"type": "object"}},
}

FILES = {"note": "from a file\n", "-": "[1, 2]"}


def read(name: str) -> str:
    if name in FILES:
        return FILES[name]
    raise FileNotFoundError(2, "No such file or directory")


def made(*words: str, whole: str | None = None, schema: Any = SCHEMA) -> str:
    raw = None if schema is None else msgspec.Raw(json.dumps(schema).encode())
    return bytes(arguments_of(words, whole, raw, read)).decode()


def refusal(*words: str, whole: str | None = None) -> CommandFailed:
    with pytest.raises(CommandFailed) as failed:
        made(*words, whole=whole)
    assert failed.value.exit == Exit.USAGE
    assert failed.value.advice
    return failed.value


@pytest.mark.parametrize(
    ("word", "member"),
    [
        ("text=3", '"text":"3"'),
        ("text=", '"text":""'),
        ("text=a=b:=c", '"text":"a=b:=c"'),
        ("count=3", '"count":3'),
        ("count=123456789012345678901234567890", '"count":123456789012345678901234567890'),
        ("ratio=1.10e3", '"ratio":1.10e3'),
        ("flag=true", '"flag":true'),
        ('list=["a"]', '"list":["a"]'),
        ("maybe=null", '"maybe":null'),
        ("either=3", '"either":"3"'),
        ('shape={"a": 1}', '"shape":{"a": 1}'),
        ("lost=3", '"lost":"3"'),
        ("free=3", '"free":"3"'),
        ("odd=3", '"odd":"3"'),
        ("unknown=3", '"unknown":"3"'),
        ("text:=3", '"text":3'),
        ("text:= [1 ] ", '"text":[1 ]'),
        ("text=@note", '"text":"from a file\\n"'),
        ("list=@-", '"list":[1, 2]'),
        ("unknown:=@-", '"unknown":[1, 2]'),
    ],
)
def test_a_word_becomes_a_value_of_the_schemas_type(word: str, member: str) -> None:
    assert made(word) == "{" + member + "}"


def test_words_keep_their_order_and_none_are_an_empty_object() -> None:
    assert made("count=1", "text=b", "flag=false") == '{"count":1,"text":"b","flag":false}'
    assert made() == "{}"


@pytest.mark.parametrize("schema", [None, [], {"properties": 3}, {"type": "object"}])
def test_without_a_usable_schema_everything_is_text(schema: Any) -> None:
    assert made("count=3", schema=schema) == '{"count":"3"}'


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("count=abc", "count must be an integer, got 'abc'"),
        ("count=1.5", "count must be an integer, got '1.5'"),
        ("flag=1", "flag must be true or false, got '1'"),
        ("maybe=x", "maybe must be an integer or null, got 'x'"),
        ("text:=", "text must be JSON"),
        ("count=NaN", "count must be an integer"),
        ("list=" + "[" * 100_000, "list must be a JSON array"),
        ("word", "expected name=value, got 'word'"),
        ("=3", "expected name=value, got '=3'"),
        ("text=@nowhere", "text: cannot read 'nowhere': No such file or directory"),
        ("text=\udcff", "text is not UTF-8 text"),
        ("text:=\udcff", "text must be JSON"),
    ],
)
def test_a_bad_word_is_named(word: str, said: str) -> None:
    assert refusal(word).message.startswith(said)


def test_a_missing_argument_is_named_before_the_call() -> None:
    schema = SCHEMA | {"required": ["text", "count"]}
    with pytest.raises(CommandFailed, match=r"^text and count are missing: isthmus call it text=TEXT count=NUMBER$"):
        made(schema=schema)
    with pytest.raises(CommandFailed, match=r"^count is missing: add count=NUMBER$") as failed:
        made(whole='{"text": ""}', schema=schema)
    assert failed.value.exit == Exit.USAGE
    assert failed.value.advice[0] == "`isthmus tools it` shows its arguments."


def test_a_name_cannot_be_given_twice() -> None:
    assert refusal("text=a", "text:=1").message == "text is given twice"


def test_a_text_that_begins_with_an_at_sign_has_its_own_advice() -> None:
    assert refusal("text=@nowhere").advice == ("If the text itself begins with @, write text:='\"@nowhere\"'.",)


def test_all_arguments_can_come_as_one_object() -> None:
    assert made(whole=' {"count": 1.50} ') == '{"count": 1.50}'


@pytest.mark.parametrize("whole", ["[]", "3", '{"a":1,"a":2}', "{", "@nowhere"])
def test_one_object_must_be_one(whole: str) -> None:
    assert "--args" in refusal(whole=whole).message


def test_words_and_one_object_exclude_each_other() -> None:
    assert refusal("text=a", whole="{}").message == "--args and name=value exclude each other"


def test_a_schema_that_is_no_json_says_nothing() -> None:
    assert bytes(arguments_of(["count=3"], None, msgspec.Raw(b"{"), read)) == b'{"count":"3"}'


# -- progress ------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(**members: str) -> Progress:
    return Progress({key: msgspec.Raw(text.encode()) for key, text in members.items()})


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (report(progress="3", total="10", message='"half\\u001b[2J"'), "3/10  half\\u001b[2J  0:07"),
        (report(progress="0.50"), "0.50  0:07"),
        (report(progress="1", total="null"), "1  0:07"),
        (report(progress="1", total="0"), "1/0  0:07"),
        (report(message='"only words"'), "only words  0:07"),
        (report(), "files.read  0:07"),
        (None, "files.read  0:07"),
    ],
)
def test_progress_is_printed_with_all_its_parts_and_the_time(event: Progress | None, words: str) -> None:
    assert progress_text(event, "files.read", 7.9, 40) == words


def test_a_known_total_is_a_bar_and_the_line_fits() -> None:
    half = progress_text(report(progress="5", total="10", message='"' + "x" * 99 + '"'), "files.read", 61, 79)
    assert half.startswith("━" * 12 + "╌" * 12 + "  50%  5/10  xxx")
    assert half.endswith("x  1:01")
    assert len(half) == 79


def test_a_terminal_has_one_line_which_is_cut_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Terminal()
    line = StatusLine(terminal, clock=lambda: 0.0)
    line.clear()
    line.show(report(progress="1", message='"' + "x" * 50 + '"'))
    line.pause()
    line.show(report(progress="2"))
    line.resume()
    line.stop()
    assert terminal.getvalue() == f"{CLEAR_LINE}1  xxxxxxxxxx  0:00{CLEAR_LINE}"


# -- results -------------------------------------------------------------------------------------------------------


def shown(**result: Any) -> str:
    return readable(msgspec.Raw(json.dumps(result).encode()))


def test_texts_are_shown_as_they_are_one_below_the_other() -> None:
    assert shown(content=[{"type": "text", "text": "a\x1b"}, {"type": "text", "text": "b"}]) == "a\x1b\nb"


@pytest.mark.parametrize(
    ("block", "line"),
    [
        (
            {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
            "[image image/png, 5 bytes: --save writes it]",
        ),
        ({"type": "audio", "data": ""}, "[audio, 0 bytes: --save writes it]"),
        ({"type": "resource_link", "uri": "file:///a", "name": "a"}, "[link a file:///a]"),
        ({"type": "resource", "resource": {"uri": "x:", "text": "inside"}}, "inside"),
        (
            {"type": "resource", "resource": {"uri": "x:", "blob": "aGVs"}},
            "[resource x:, 3 bytes: --save writes it]",
        ),
        ({"type": "hologram"}, "[hologram: --json shows it]"),
        ({"type": "text", "text": 3}, "[text: --json shows it]"),
        (3, "[content without a type: --json shows it]"),
    ],
)
def test_everything_else_is_a_line(block: object, line: str) -> None:
    assert shown(content=[block]) == line


def test_structured_content_is_shown_where_there_is_no_other() -> None:
    payload = msgspec.Raw(b'{"content":[],"structuredContent":{"n":1.10}}')
    assert readable(payload) == '{\n  "n": 1.10\n}'
    assert shown(content=[{"type": "text", "text": "a"}], structuredContent={"n": 1}) == "a"


@pytest.mark.parametrize("result", [{}, {"content": 3}, {"content": None}])
def test_a_result_without_content_shows_nothing(result: dict[str, Any]) -> None:
    assert shown(**result) == ""


def test_a_prompt_is_printed_with_the_role_of_each_message() -> None:
    messages = [{"role": "user", "content": {"type": "text", "text": "hi"}}, {"role": "user"}]
    payload = msgspec.Raw(msgspec.json.encode({"messages": messages}))
    assert readable_messages(payload) == "user: hi\n\n[not a message: --json shows it]"


def test_a_resource_is_shown_part_by_part() -> None:
    parts = [{"uri": "x:", "text": "a"}, {"uri": "y:", "blob": "aGVs", "mimeType": "a/b"}]
    payload = msgspec.Raw(msgspec.json.encode({"contents": parts}))
    assert readable_contents(payload) == "a\n[resource y: a/b, 3 bytes: --save writes it]"


async def test_a_call_at_a_running_hub_loads_neither_the_hub_nor_its_log(tmp_path: Path) -> None:
    script = (
        "import sys; from isthmus.cli.main import main; main(sys.argv[1:]);"
        "print(*(name for name in sorted(sys.modules) if name.startswith(('isthmus.', 'structlog', 'rich', 'uvloop'))))"
    )
    async with serving(tmp_path) as served:
        words = ["call", "--hub", served.url, "builtin.echo", "text=hi"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, *words, stdout=asyncio.subprocess.PIPE, env=environment()
        )
        out, _ = await process.communicate()
    said, loaded = out.decode().splitlines()
    assert said == "hi"
    heavy = ("isthmus.app", "isthmus.config", "isthmus.frontends", "isthmus.telemetry", "isthmus.upstream")
    assert [name for name in loaded.split() if name.startswith((*heavy, "structlog", "rich", "uvloop"))] == []
    assert len(loaded.split()) <= 41, "every module takes a millisecond of every command"


@pytest.mark.parametrize(
    ("extra", "word", "message"),
    [
        ({}, "pth=x", "pth is not an argument of files.read_file; did you mean path?"),
        ({"additionalProperties": False}, "zzz=x", "zzz is not an argument of files.read_file"),
        ({}, "zzz=x", None),
        ({"additionalProperties": True}, "pth=x", None),
    ],
)
def test_a_misspelt_argument_is_named_before_the_call(extra: dict[str, Any], word: str, message: str | None) -> None:
    schema = msgspec.Raw(json.dumps({"type": "object", "properties": {"path": {"type": "string"}}, **extra}).encode())
    if message is None:
        assert arguments_of([word], None, schema, read_text, "files.read_file")
        return
    with pytest.raises(CommandFailed) as failed:
        arguments_of([word], None, schema, read_text, "files.read_file")
    assert (failed.value.exit, failed.value.message) == (Exit.USAGE, message)
