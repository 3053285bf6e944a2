"""`isthmus audit`: its output and its exit codes."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from pathlib import Path

import pytest

from isthmus.app.audit import close_audit, open_audit
from isthmus.app.audit_reader import logs_of
from isthmus.app.serve import open_journal
from isthmus.cli.audit import show_tail
from isthmus.cli.main import main
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.audit import START, Fact, Point, RecordEncoder, follow
from isthmus.storage.audit_log_folders import slot_file
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.settings import StorageSettings
from isthmus.storage.sqlite import FILE
from tests.unit.core.doubles import DONE, SERVER, call


async def write(state: Path) -> None:
    """A log with a call and an event in it."""
    configuration = Configuration(None, HubSettings(state=str(state)))
    journal = await open_journal(configuration)
    log = await open_audit(configuration, journal)
    assert log is not None
    log.audit.add((time.time(), call("=cmd|'/c calc'"), SERVER, DONE, 0.5, True, ""))
    log.audit.note("definition.changed", server="files", tool="read\x1b[2J\n")
    await close_audit(log, journal)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    asyncio.run(write(tmp_path / "state"))
    file = tmp_path / "isthmus.toml"
    file.write_text(f"[hub]\nstate = {json.dumps(str(tmp_path / 'state'))}")
    return file


def run(config: Path, *words: str) -> int:
    return main(["audit", *words, "--config", str(config)])


def test_where_an_extension_keeps_the_hubs_own_log_those_beside_it_are_read(tmp_path: Path) -> None:
    foreign = StorageSettings("lines:/x", is_foreign=True)
    configuration = Configuration(None, HubSettings(state=str(tmp_path)), storage=foreign)
    slot_file(tmp_path, 1).parent.mkdir(parents=True)
    slot_file(tmp_path, 1).touch()
    assert [kept.slot for kept in asyncio.run(logs_of(configuration))] == [1]


def test_a_log_that_is_whole_is_said_to_be(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "verify") == 0
    said = capsys.readouterr().out
    assert "The audit log is intact: 4 records, 1 to 4." in said
    assert run(config, "verify", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["good"], output["records"], output["first"], output["last"], output["bad"]) == (True, 4, 1, 4, None)
    assert output["digest"] in said
    assert output["key"] in said


def test_the_first_bad_record_is_named_and_the_command_ends_with_one(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (config.parent / "state" / FILE).unlink()
    for file in (config.parent / "state").glob(f"{FILE}-*"):
        file.unlink()
    assert run(config, "verify") == 1
    assert "record 1: it is missing at the end" in capsys.readouterr().err


def test_where_there_is_no_log_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "isthmus.toml"
    file.write_text(f"[hub]\nstate = {json.dumps(str(tmp_path / 'none'))}")
    for words in (["tail"], ["export"]):
        assert run(file, *words) == 1
        assert "there is no journal at" in capsys.readouterr().err
    assert run(file, "verify") == 1
    said = capsys.readouterr().err
    assert "its key is missing" in said
    assert "A hub that never ran has no log" in said


def test_the_end_of_it_is_shown_for_people(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "tail", "-n", "3") == 0
    called, changed, ended = capsys.readouterr().out.splitlines()
    assert "default/anyone by the hub  =cmd|'/c calc'  result, executed: yes, 0.5 s" in called
    assert "definition.changed  server=files tool=read\\u001b[2J\\u000a" in changed
    assert ended.rstrip().endswith("hub.stopped")
    assert run(config, "tail", "-n", "0") == 0
    assert capsys.readouterr().out == ""


def test_records_of_earlier_versions_verify_and_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have `face` in place of `frontend`; the chain is over the bytes as they were stored."""
    encode = RecordEncoder.record

    def record_as_before(self: RecordEncoder, fact: Fact) -> tuple[float, bytes]:
        at, content = encode(self, fact)
        return at, content.replace(b'"frontend":""', b'"face":"rest"')

    with monkeypatch.context() as patched:
        patched.setattr(RecordEncoder, "record", record_as_before)
        asyncio.run(write(tmp_path / "state"))
    config = tmp_path / "isthmus.toml"
    config.write_text(f"[hub]\nstate = {json.dumps(str(tmp_path / 'state'))}")
    assert run(config, "verify") == 0
    assert "The audit log is intact: 4 records, 1 to 4." in capsys.readouterr().out
    assert run(config, "tail", "-n", "3") == 0
    assert "default/anyone by rest  =cmd|'/c calc'  result, executed: yes, 0.5 s" in capsys.readouterr().out
    assert run(config, "export", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert (rows[1]["frontend"], rows[1]["other"]) == ("rest", "")
    assert run(config, "export") == 0
    assert '"face":"rest"' in capsys.readouterr().out, "an export has the stored bytes"


def test_an_export_can_be_followed_without_the_hub(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "export") == 0
    point = START
    for line in capsys.readouterr().out.splitlines():
        response = json.loads(line)
        content = line.partition('"record":')[2].removesuffix("}").encode()
        point = follow(point, content)
        assert point == Point(response["number"], bytes.fromhex(response["digest"]))
    assert point.number == 4


def test_an_export_for_spreadsheets_has_no_formulas(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "export", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["event"] for row in rows] == ["hub.started", "call", "definition.changed", "hub.stopped"]
    assert rows[1]["name"] == "'=cmd|'/c calc'"
    assert json.loads(rows[2]["other"])["tool"] == "read\x1b[2J\n"


def test_a_time_narrows_an_export(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, count in (
        (["--since", "1h"], 4),
        (["--until", "1h"], 0),
        (["--since", "2020-01-01"], 4),
        (["--until", "2020-01-01T00:00:00Z"], 0),
    ):
        assert run(config, "export", *words) == 0
        assert len(capsys.readouterr().out.splitlines()) == count
    assert run(config, "export", "--since", "yesterday") == 2
    assert "--since must be a time like" in capsys.readouterr().err


async def test_the_end_can_be_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.cli.audit.FOLLOW_SECONDS", 0.005)
    await write(tmp_path / "state")
    file = tmp_path / "isthmus.toml"
    file.write_text(f"[hub]\nstate = {json.dumps(str(tmp_path / 'state'))}")
    following = asyncio.ensure_future(show_tail(file, 0, follows=True, is_json=True))
    await asyncio.sleep(0)
    await write(tmp_path / "state")
    seen: list[str] = []
    async with asyncio.timeout(5):
        while len(seen) < 4:
            await asyncio.sleep(0.005)
            seen += capsys.readouterr().out.splitlines()
    following.cancel()
    assert [json.loads(line)["number"] for line in seen][-4:] == [5, 6, 7, 8]


# -- several logs ----------------------------------------------------------------------------------------------------


async def write_beside(state: Path, *, ends_well: bool = True) -> None:
    """Two logs on slots, each with an event and a call that began."""
    configuration = Configuration(None, HubSettings(state=str(state)))
    journals = MemoryJournal(), MemoryJournal()
    logs = [await open_audit(configuration, journal, "stdio") for journal in journals]
    for log, journal in zip(logs, journals, strict=True):
        assert log is not None
        log.audit.note("beside")
        log.audit.add((time.time(), call(), SERVER, None, 0.0, False, "begun"))
        if ends_well:
            await close_audit(log, journal)
        else:
            await log.audit.aclose()
            await log.close()


@pytest.fixture
def state(config: Path) -> Path:
    """A log with two others beside it."""
    asyncio.run(write_beside(config.parent / "state"))
    return config.parent / "state"


def test_all_logs_are_looked_through_and_open_calls_counted(
    config: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, "verify") == 0
    said = capsys.readouterr().out
    assert "The audit log is intact: 4 records, 1 to 4." in said
    assert "The audit log in slot 2 is intact: 4 records, 1 to 4." in said
    assert said.count("unfinished calls: 1") == 2
    asyncio.run(write_beside(state, ends_well=False))
    asyncio.run(write_beside(state))
    assert run(config, "verify", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert [(slot["slot"], slot["open"], slot["lost"]) for slot in output["slots"]] == [(1, 1, 1), (2, 1, 1)]
    assert (output["good"], output["records"], output["open"]) == (True, 4, 0)
    assert run(config, "verify") == 0
    assert capsys.readouterr().out.count("lost calls: 1") == 2


@pytest.mark.parametrize("how", ["gone", "another's"])
def test_a_log_on_a_seat_that_is_gone_or_another_is_said_so(
    config: Path, state: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    slot_file(state, 2).unlink()
    if how == "gone":
        slot_file(state, 2).parent.joinpath("journal.lock").unlink()
        slot_file(state, 2).parent.rmdir()
    else:
        slot_file(state, 2).write_bytes(slot_file(state, 1).read_bytes())
        (state / "audit" / "checkpoint-2").write_bytes((state / "audit" / "checkpoint-1").read_bytes())
    assert run(config, "verify") == 1
    why = "slot 2, record 1: it is missing" if how == "gone" else "slot 2, the checkpoint is not signed"
    assert why in capsys.readouterr().err
    assert run(config, "verify", "--json") == 1
    output = json.loads(capsys.readouterr().out)
    assert (output["good"], output["bad"], [slot["good"] for slot in output["slots"]]) == (False, None, [True, False])


def test_audit_tail_merges_all_logs(config: Path, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "tail", "-n", "3") == 0
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["2/2", "2/3", "2/4"]
    assert run(config, "export") == 0
    output = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["record"]["at"] for each in output] == sorted(each["record"]["at"] for each in output)
    assert [each["number"] for each in output if each.get("slot") == 1] == [1, 2, 3, 4]
    assert len([each for each in output if "slot" not in each]) == 4
    assert run(config, "export", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["slot"] for row in rows} == {"", "1", "2"}


def test_logs_on_seats_need_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(write_beside(tmp_path / "state"))
    file = tmp_path / "isthmus.toml"
    file.write_text(f"[hub]\nstate = {json.dumps(str(tmp_path / 'state'))}")
    assert run(file, "verify") == 0
    assert "The audit log is intact" not in capsys.readouterr().out
    assert run(file, "tail") == 0
