"""T58: the audit log is tampered with, or misses events.

Answer: each record's digest covers the one before, how far the log goes is signed outside of the database, and
`isthmus audit verify` names the first record that is not as it was written. With `audit = "strict"` a call is in the
log before it is sent and its end before anybody hears of it: shown by killing the hub at random times, and by a disk
that takes nothing more.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import pytest_asyncio

from isthmus.app.audit import close_audit, open_audit
from isthmus.app.serve import open_journal
from isthmus.cli.audit import verify_log
from isthmus.cli.config import configuration_of
from isthmus.cli.exits import CommandFailed
from isthmus.cli.main import main
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.audit import AuditRow, Point, RecordEncoder, Verification, follow
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_log_folders import list_slots, slot_file
from isthmus.storage.audit_signatures import MAIN_LOG, read_checkpoint, read_keys
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.sqlite import FILE
from tests.conftest import Ledger
from tests.databases import running as database_running
from tests.fork_server import quick_isthmus
from tests.frontends.wire import until
from tests.hubs import (
    CHECKOUT,
    PATIENT,
    TRUSTED,
    HubProcess,
    Raw,
    environment,
    serving,
    started,
    stdio,
    write_config,
)
from tests.peers.launch import command
from tests.security.audited_child import BESIDE, LEDGER, TOLD

SOAK = bool(os.environ.get("ISTHMUS_SOAK"))
KILLS = 1_000 if SOAK else 20
SECONDS_MAX = 0.06
"""How long a hub lives at most before it is killed: some die while they open their log, the others in mid-call."""

STRICT = {"hub": {"audit": "strict"}}


def payer(ledger: Path) -> dict[str, Any]:
    return stdio(command("raw_server", "--ledger", str(ledger)))


async def pay(hub: HubProcess, *nonces: str) -> list[httpx2.Response]:
    """Call once with each of these, all at the same time."""
    async with httpx2.AsyncClient(verify=TRUSTED, timeout=30) as http:
        url = f"http://127.0.0.1:{hub.port}/v1/tools/bank.pay"
        return list(await asyncio.gather(*(http.post(url, json={"nonce": nonce}) for nonce in nonces)))


async def paying(hub: HubProcess) -> None:
    """Wait until the server is there."""

    async def is_there() -> bool:
        return (await pay(hub, "warm"))[0].status_code == 200

    await until(is_there)


async def rows_of(state: Path, slot: int = MAIN_LOG) -> list[AuditRow]:
    async with audit_sqlite.open_reader(slot_file(state, slot) if slot else state / FILE) as log:
        return [row async for row in log.rows()]


def records(rows: list[AuditRow]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(row.content) for row in rows]


# -- tampering -------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub's folder, which has ended, with a dozen records and an older copy of its database."""
    folder = tmp_path_factory.mktemp("audited")
    servers = {"bank": payer(folder / "ledger.jsonl")}
    async with serving(folder, servers, **STRICT) as hub:
        await paying(hub)
    shutil.copytree(folder / "state", folder / "older")
    async with started(folder, "--config", str(folder / "isthmus.json")) as hub:
        await paying(hub)
        await pay(hub, "a", "b")
    return folder


@pytest.fixture
def tampered(written: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may do anything to."""
    shutil.copytree(written / "state", tmp_path / "state")
    shutil.copytree(written / "older", tmp_path / "older")
    write_config(tmp_path, {})
    return tmp_path


def verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["audit", "verify", "--json", "--config", str(folder / "isthmus.json")])
    return code, msgspec.json.decode(capsys.readouterr().out)


async def fault_in(folder: Path) -> str | None:
    """What a log is said to have wrong with it."""
    try:
        await verify_log(folder / "isthmus.json", is_json=False)
    except CommandFailed as failed:
        return failed.message
    return None


def run_sql(folder: Path, *statements: str) -> None:
    connection = sqlite3.connect(folder / "state" / FILE, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_an_untouched_log_is_whole(tampered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, received = verify(tampered, capsys)
    assert (code, received["good"], received["bad"]) == (0, True, None)
    assert received["records"] == received["last"] >= 10


SWAP = "UPDATE audit SET content = (SELECT content FROM audit AS other WHERE other.number = 9 - audit.number)"
REPLACED = "CAST(replace(CAST(content AS TEXT), '\"yes\"', '\"not\"') AS BLOB)"
TAMPERINGS: dict[str, tuple[tuple[str, ...], int]] = {
    "edited": ((f"UPDATE audit SET content = {REPLACED} WHERE number = 3",), 3),
    "deleted": (("DELETE FROM audit WHERE number = 4",), 4),
    "deleted and renumbered": (
        ("DELETE FROM audit WHERE number = 4", "UPDATE audit SET number = number - 1 WHERE number > 4"),
        4,
    ),
    "deleted from the start": (("DELETE FROM audit WHERE number < 3",), 1),
    "reordered": ((f"{SWAP} WHERE number IN (4, 5)",), 4),
    "added": (("INSERT INTO audit SELECT number + 1000, at, content, digest FROM audit WHERE number = 2",), 0),
    "given another time": (("UPDATE audit SET at = at + 1 WHERE number = 5",), 5),
    "edited as a text": (("UPDATE audit SET content = replace(content, 'yes', 'not') WHERE number = 3",), 3),
    "made a number": (("UPDATE audit SET content = 5 WHERE number = 3",), 3),
    "made no record": (("UPDATE audit SET content = x'227bff22' WHERE number = 3",), 3),
    "given a text for a digest": (("UPDATE audit SET digest = 'abc' WHERE number = 3",), 3),
    "given a time that is none": (("UPDATE audit SET at = 1e300 WHERE number = 3",), 3),
    "given an anchor of texts": (("INSERT INTO audit_anchor VALUES (1, 2, 'a', 1.0, 'b')",), 3),
    "given a forged anchor": (
        (
            "INSERT INTO audit_anchor SELECT 1, number, digest, at, x'00' FROM audit WHERE number = 2",
            "DELETE FROM audit WHERE number < 3",
        ),
        3,
    ),
}


@pytest.mark.parametrize("how", TAMPERINGS)
def test_records_changed_in_the_database_are_named(
    tampered: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    statements, number = TAMPERINGS[how]
    _, before = verify(tampered, capsys)
    run_sql(tampered, *statements)
    code, received = verify(tampered, capsys)
    assert (code, received["good"]) == (1, False)
    assert received["bad"]["record"] == (number or before["last"] + 1)
    for words in (["tail", "-n", "99"], ["export"], ["export", "--format", "csv"]):
        assert main(["audit", *words, "--config", str(tampered / "isthmus.json")]) == 0, "the rest is still shown"
        assert capsys.readouterr().out


@pytest.mark.parametrize("is_whole", [True, False])
def test_records_that_another_program_appended_are_not_reported_as_signed(
    tampered: Path, capsys: pytest.CaptureFixture[str], *, is_whole: bool
) -> None:
    """The chain goes on without the hub's key; how far the hub vouches for it does not."""
    _, before = verify(tampered, capsys)
    head = Point(before["last"], bytes.fromhex(before["digest"]))
    forged = {"at": 1.0, "event": "call", "tenant": "t", "caller": "eve", "frontend": "mcp", "name": "bank.pay"}
    content = msgspec.json.encode(forged if is_whole else {"at": 1.0, "event": "call", "name": "bank.pay"})
    point = follow(head, content)
    connection = sqlite3.connect(tampered / "state" / FILE, isolation_level=None)
    connection.execute("INSERT INTO audit VALUES (?, 1.0, ?, ?)", (point.number, content, point.digest))
    connection.close()
    code, received = verify(tampered, capsys)
    assert (code, before["unsigned"], received["unsigned"]) == (0, 0, 1)
    assert main(["audit", "verify", "--config", str(tampered / "isthmus.json")]) == 0
    assert "unsigned records at the end: 1" in capsys.readouterr().out
    assert main(["audit", "tail", "-n", "99", "--config", str(tampered / "isthmus.json")]) == 0


def test_a_tail_that_was_cut_off_is_named(tampered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, before = verify(tampered, capsys)
    run_sql(tampered, f"DELETE FROM audit WHERE number > {before['last'] - 2}")
    code, received = verify(tampered, capsys)
    assert (code, received["bad"]["record"]) == (1, before["last"] - 1)


def test_a_database_that_was_rolled_back_is_named(tampered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (tampered / "state").glob("journal.db*"):
        file.unlink()
    for file in (tampered / "older").glob("journal.db*"):
        shutil.copy(file, tampered / "state")
    code, received = verify(tampered, capsys)
    assert code == 1
    assert "missing at the end" in received["bad"]["why"]


@pytest.mark.parametrize("gone", ["checkpoint", "key"])
def test_a_checkpoint_or_a_key_that_is_gone_is_said_so(
    tampered: Path, capsys: pytest.CaptureFixture[str], gone: str
) -> None:
    (tampered / "state" / "audit" / gone).unlink()
    code, received = verify(tampered, capsys)
    assert code == 1
    assert gone in received["bad"]["why"]


def test_a_database_that_is_gone_is_said_so(tampered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (tampered / "state").glob("journal.db*"):
        file.unlink()
    code, received = verify(tampered, capsys)
    assert (code, received["bad"]["record"]) == (1, 1)


async def test_a_hub_that_starts_with_a_log_that_was_cut_says_so_for_good(tampered: Path) -> None:
    run_sql(tampered, "DELETE FROM audit WHERE number > 4")
    async with started(tampered, "--config", str(tampered / "isthmus.json")) as hub:
        assert any("the audit log does not match its checkpoint" in line for line in hub.said)
    assert "record 5: the hub recorded here" in (await fault_in(tampered) or "")


# -- what is in it ---------------------------------------------------------------------------------------------------


async def test_calls_events_and_strangers_are_in_the_log_within_a_moment(tmp_path: Path, ledger: Ledger) -> None:
    callers = {"planner": {"key": "a-key-of-the-planner", "allow": ["bank.pay"]}}
    async with serving(tmp_path, {"bank": payer(ledger.path)}, callers=callers) as hub:
        key = {"authorization": "Bearer a-key-of-the-planner"}
        async with httpx2.AsyncClient(verify=TRUSTED, base_url=f"http://127.0.0.1:{hub.port}/v1/tools/") as http:

            async def is_there() -> bool:
                return (await http.post("bank.pay", json={"nonce": "x"}, headers=key)).status_code == 200

            await until(is_there)
            await http.post("bank.echo", json={"text": "denied"}, headers=key)
            await http.post("bank.pay", json={"nonce": 5}, headers=key)
            await http.post("bank.pay", json={"nonce": "y"}, headers={"authorization": "Bearer nobodys-key-at-all"})
    received = records(await rows_of(tmp_path / "state"))
    assert [received[0]["event"], received[-1]["event"]] == ["hub.started", "hub.stopped"]
    ends = [(each["name"], each["outcome"], each["executed"]) for each in received if each["event"] == "call"]
    assert ends[-3:] == [
        ("bank.pay", "result", "yes"),
        ("bank.echo", "unknown_tool", "no"),
        ("bank.pay", "bad_arguments", "no"),
    ]
    assert all(
        (each["caller"], each["frontend"]) == ("planner", "rest") for each in received if each["event"] == "call"
    )
    assert [(each["status"], each["count"]) for each in received if each["event"] == "caller.refused"] == [(401, 1)]


async def test_every_way_in_is_named(tmp_path: Path, ledger: Ledger) -> None:
    async with serving(tmp_path, {"bank": payer(ledger.path)}) as hub:
        await paying(hub)
        async with Raw(hub.url) as caller:
            assert "result" in await caller.call("bank.pay", {"nonce": "by mcp"})
        data = {"tool": "bank.pay", "arguments": {"nonce": "by a2a"}}
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": data}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        async with httpx2.AsyncClient(verify=TRUSTED, base_url=f"http://127.0.0.1:{hub.port}", timeout=30) as http:
            answer = await http.post("/a2a", json=body, headers={"a2a-version": "1.0"})
            assert "COMPLETED" in answer.text, answer.text
    received = [each for each in records(await rows_of(tmp_path / "state")) if each["event"] == "call"]
    assert {each["frontend"] for each in received if each["outcome"] == "result"} == {"rest", "mcp", "a2a"}


async def test_the_log_is_in_a_database_too(tmp_path: Path, ledger: Ledger) -> None:
    with database_running() as database:
        tables = {"storage": {"url": database.url()}, **STRICT}
        async with serving(tmp_path, {"bank": payer(ledger.path)}, **tables) as hub:
            await paying(hub)
            assert await fault_in(tmp_path) is None
        schema = tables["storage"]["url"].rpartition("=")[2]
        database.psql(f"DELETE FROM {schema}.audit WHERE number = 2")
        assert "record 2: it is missing" in (await fault_in(tmp_path) or "")


# -- loss ------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60 + KILLS)
def test_every_call_that_ran_or_was_answered_is_in_the_log_though_the_hub_was_killed(tmp_path: Path) -> None:
    chance = random.Random(58)
    words = [sys.executable, "-m", "tests.security.audited_child"]
    paths = {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), environment()["PYTHONPATH"]])}
    with killing(words, {**environment(), **paths}) as kill:
        for number in range(KILLS):
            kill(f"{tmp_path} {number} {chance.random() * SECONDS_MAX:.4f}")
            if number % 100 == 99 or number == KILLS - 1:
                asyncio.run(check(tmp_path, number, MAIN_LOG))
                asyncio.run(check(tmp_path, number, 1))
    assert list_slots(tmp_path) == [1], "what the system freed was taken again"
    asyncio.run(check_ends(tmp_path))


@contextmanager
def killing(words: list[str], env: dict[str, str]) -> Iterator[Callable[[str], None]]:
    """What starts and kills hubs, one after the other."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=CHECKOUT, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def kill(order: str) -> None:
        print(order, file=process.stdin, flush=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"

    try:
        yield kill
    finally:
        process.stdin.close()
        process.stdout.close()
        assert process.wait(20) == 0


async def check(state: Path, kills: int, slot: int) -> None:
    """Every call that ran has begun in the log, and every call with an answer has ended there."""
    keys = read_keys(state, slot)
    verification = Verification(None, read_checkpoint(state, keys, slot), keys.is_signed)
    rows = await rows_of(state, slot)
    for row in rows:
        verification.check_row(row)
    assert verification.end() is None
    received = records(rows)
    begun = {each["arguments"] for each in received if each["event"] == "call.begun"}
    ended = {each["arguments"] for each in received if each["event"] == "call"}
    scribe = RecordEncoder(keys.digesting)

    def digests(file: str) -> list[str]:
        lines = (state / f"{file}{BESIDE if slot else ''}").read_text().split()
        return [scribe.digest(msgspec.json.encode({"nonce": nonce})) for nonce in lines]

    ran = digests(LEDGER)
    assert len(ran) > kills / 2, "there must be something to lose"
    assert set(ran) <= begun
    assert set(digests(TOLD)) <= ended
    assert max(Counter(ran).values()) == 1
    assert "hub.unclean" in {each["event"] for each in received}


async def check_ends(state: Path) -> None:
    """Once a hub has started and ended, every call that began has one end: its own, or that it was lost."""
    configuration = Configuration(None, HubSettings(state=str(state), audit="strict"))
    for slot, journal in ((MAIN_LOG, await open_journal(configuration)), (1, MemoryJournal())):
        await close_audit(await open_audit(configuration, journal), journal)
        received = records(await rows_of(state, slot))
        begun = Counter(each["id"] for each in received if each["event"] == "call.begun")
        ended = Counter(each["id"] for each in received if each["event"] in ("call", "call.lost") and each.get("id"))
        assert begun == ended
        assert "call.lost" in {each["event"] for each in received}, "there must have been something to close"


@contextmanager
def a_full_disk(pid: int, state: Path) -> Iterator[None]:
    """Have the system refuse whatever would make the files of a process grow."""
    size = (state / f"{FILE}-wal").stat().st_size
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def test_strict_sends_nothing_where_the_log_cannot_be_written_and_a_kill_is_noted_by_the_next_hub(
    tmp_path: Path, ledger: Ledger
) -> None:
    config = write_config(tmp_path, {"bank": payer(ledger.path)}, **STRICT)
    running = started(tmp_path, "--config", str(config))
    hub = await running.__aenter__()
    await paying(hub)
    with a_full_disk(hub.pid, tmp_path / "state"):
        (refused,) = await pay(hub, "not sent")
        assert refused.status_code == 503
        assert (refused.json()["reason"], refused.json()["executed"]) == ("not_written", "no")
    assert "not sent" not in ledger.ran()
    assert (await pay(hub, "sent"))[0].status_code == 200
    hub.process.send_signal(signal.SIGKILL)
    with pytest.raises(AssertionError, match="the hub ended with -9"):
        await running.__aexit__(None, None, None)
    assert await fault_in(tmp_path) is None
    assert ledger.ran()["sent"] == 1
    async with started(tmp_path, "--config", str(config)) as hub:
        assert any("did not shut down cleanly" in line for line in hub.said)
    assert "hub.unclean" in [each["event"] for each in records(await rows_of(tmp_path / "state"))]


async def test_where_the_log_cannot_be_written_batched_goes_on_and_writes_later(tmp_path: Path, ledger: Ledger) -> None:
    state = tmp_path / "state"
    async with serving(tmp_path, {"bank": payer(ledger.path)}) as hub:
        await paying(hub)

        async def is_written() -> bool:
            return any(each.get("name") == "bank.pay" for each in records(await rows_of(state)))

        async def is_said() -> bool:
            return any("cannot write the audit log" in line for line in hub.said)

        await until(is_written)
        with a_full_disk(hub.pid, state):
            assert (await pay(hub, "meanwhile"))[0].status_code == 200
            await until(is_said)
    digest = RecordEncoder(read_keys(state).digesting).digest(b'{"nonce":"meanwhile"}')
    assert [each["outcome"] for each in records(await rows_of(state)) if each.get("arguments") == digest] == ["result"]


# -- beside the hub that serves --------------------------------------------------------------------------------------


class OverStreams:
    """A hub over standard streams, and the one program that calls it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, config: Path) -> OverStreams:
        pipe = asyncio.subprocess.PIPE
        words = quick_isthmus("stdio", "--config", str(config))
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=-3, env=environment())
        streams = cls(process)
        streams.ask(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=WHO)
        await streams.receive()
        return streams

    def ask(self, id: int, method: str, **params: Any) -> None:
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        self.process.stdin.write(msgspec.json.encode(message) + b"\n")

    def pay(self, id: int, nonce: str, mode: str = "echo") -> None:
        self.ask(id, "tools/call", name="bank.pay", arguments={"nonce": nonce, "mode": mode})

    async def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            output: dict[str, Any] = msgspec.json.decode(await self.process.stdout.readline())
        return output


WHO = {"name": "test", "version": "1"}


async def test_a_stdio_hub_is_audited_and_its_open_records_are_closed_by_the_next_hub(
    tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, {"bank": payer(ledger.path)}, hub={"audit": "strict"}, limits=PATIENT)
    configuration = configuration_of(config)
    hub = await OverStreams.start(config)
    hub.pay(2, "one")
    assert "result" in await hub.receive()
    hub.pay(3, "hangs", "drop")

    async def has_run() -> bool:
        return "hangs" in ledger.ran()

    await until(has_run)
    beside, journal = MemoryJournal(), MemoryJournal()
    other = await open_audit(configuration, beside)  # while the first runs
    hub.process.kill()
    await hub.process.wait()
    assert await fault_in(tmp_path) is None
    await close_audit(await open_audit(configuration, journal), journal)
    await close_audit(other, beside)
    capsys.readouterr()
    await verify_log(config, is_json=True)
    output = msgspec.json.decode(capsys.readouterr().out)
    assert (output["good"], output["records"]) == (True, 0)
    assert [(each["open"], each["lost"]) for each in output["slots"]] == [(0, 1), (0, 0)]
    found = records(await rows_of(tmp_path / "state", 1))
    assert [(each["frontend"], each["outcome"]) for each in found if each["event"] == "call"] == [("stdio", "result")]
    (lost,) = [each for each in found if each["event"] == "call.lost"]
    assert (lost["name"], lost["frontend"], lost["executed"]) == ("bank.pay", "stdio", "unknown")
