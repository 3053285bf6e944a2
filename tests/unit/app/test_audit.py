"""The audit log of a hub: its checks at start, and its events beside calls."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.app.audit import AuditLog, close_audit, open_audit, states_of
from isthmus.app.caller_identity import LiveCallers
from isthmus.app.definition_pins import DefinitionPins
from isthmus.app.hub import RunningHub
from isthmus.app.serve import open_journal
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.audit import CUT, STARTED, STOPPED, UNCLEAN, UNSIGNED, Point, follow
from isthmus.identity.minted_keys import mint
from isthmus.model.callers import Caller, Grants
from isthmus.model.credentials import Subject
from isthmus.model.names import ServerName
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_signatures import FileAuditSigner
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.sqlite import FILE
from isthmus.telemetry.audit_writer import AuditMode
from isthmus.upstream.server_settings import ServerSettings, StdioSettings


def configured(state: Path, audit: AuditMode = "batched") -> Configuration:
    return Configuration(None, HubSettings(state=str(state), audit=audit))


@asynccontextmanager
async def opened(state: Path, audit: AuditMode = "batched", *, ends_well: bool = True) -> AsyncIterator[AuditLog]:
    configuration = configured(state, audit)
    journal = await open_journal(configuration)
    log = await open_audit(configuration, journal)
    assert log is not None
    try:
        yield log
    finally:
        if ends_well:
            await close_audit(log, journal)
        else:
            await log.audit.aclose()
            await journal.aclose()
            await log.close()


async def records_in(state: Path) -> list[dict[str, Any]]:
    async with audit_sqlite.open_reader(state / FILE) as log:
        return [msgspec.json.decode(row.content) async for row in log.rows()]


async def events(state: Path) -> list[str]:
    return [each["event"] for each in await records_in(state)]


async def test_a_log_begins_and_ends_with_its_hub(tmp_path: Path) -> None:
    for _ in range(2):
        async with opened(tmp_path):
            pass
    assert await events(tmp_path) == [STARTED, STOPPED] * 2


async def test_an_end_that_did_not_come_is_noted_by_the_next_hub(tmp_path: Path) -> None:
    async with opened(tmp_path, ends_well=False):
        pass
    async with opened(tmp_path):
        pass
    assert await events(tmp_path) == [STARTED, UNCLEAN, STARTED, STOPPED]


async def test_a_hub_that_was_killed_before_its_first_checkpoint_has_left_no_log_that_looks_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(FileAuditSigner, "checkpoint", lambda *_: None)
        async with opened(tmp_path, ends_well=False):
            pass
    async with opened(tmp_path):
        pass
    assert await events(tmp_path) == [STARTED, UNCLEAN, STARTED, STOPPED]


async def test_rejections_at_the_end_are_recorded_before_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        log.audit.count_rejected("mcp", 401)
    assert await events(tmp_path) == [STARTED, "caller.refused", STOPPED]


@pytest.mark.parametrize("how", ["gone", "forged"])
async def test_a_checkpoint_that_is_not_good_is_noted(tmp_path: Path, how: str) -> None:
    async with opened(tmp_path):
        pass
    file = tmp_path / "audit" / "checkpoint"
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes().replace(b'"number":', b'"number":1'))
    async with opened(tmp_path):
        pass
    assert await events(tmp_path) == [STARTED, STOPPED, CUT, STARTED, STOPPED]


async def test_records_that_another_process_added_are_noted_before_the_hub_signs_them(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    forged = b'{"at":9.0,"event":"hub.stopped"}'
    with sqlite3.connect(tmp_path / FILE) as journal:
        number, digest = journal.execute("SELECT number, digest FROM audit ORDER BY number DESC LIMIT 1").fetchone()
        point = follow(Point(number, digest), forged)
        journal.execute("INSERT INTO audit VALUES (?, 9.0, ?, ?)", (point.number, forged, point.digest))
    journal.close()
    async with opened(tmp_path):
        pass
    assert await events(tmp_path) == [STARTED, STOPPED, STOPPED, UNSIGNED, STARTED, STOPPED]
    assert (await records_in(tmp_path))[3] | {"at": 0} == {"at": 0, "event": UNSIGNED, "after": 2, "records": 1}


async def test_without_a_place_that_lasts_strict_does_not_start_and_batched_does_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "state"
    assert await open_audit(configured(nowhere), MemoryJournal()) is None
    with pytest.raises(ConfigError, match='cannot be "strict"'):
        await open_audit(configured(nowhere, "strict"), MemoryJournal())
    assert await open_audit(configured(tmp_path, "off"), MemoryJournal()) is None


async def test_a_custom_journal_without_a_log_gets_one_beside_it_but_not_a_strict_one(
    tmp_path: Path,
) -> None:
    foreign: Any = type("Foreign", (), {"aclose": MemoryJournal.aclose})()
    log = await open_audit(configured(tmp_path), foreign)
    assert log is not None
    await close_audit(log, foreign)
    with pytest.raises(ConfigError, match="has no audit log"):
        await open_audit(configured(tmp_path, "strict"), foreign)


async def test_a_damaged_key_is_as_no_place(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    (tmp_path / "audit" / "key").write_text("none")
    journal = await open_journal(configured(tmp_path))
    assert await open_audit(configured(tmp_path), journal) is None
    with pytest.raises(ConfigError, match="does not hold the key"):
        await open_audit(configured(tmp_path, "strict"), journal)


async def test_changes_of_keys_are_recorded(tmp_path: Path) -> None:
    _, key = mint("planner", Grants(("*",)), "acme", targets=False, now=0.0, expires_at=None)
    _, other = mint("other", Grants(("*",)), "acme", targets=False, now=0.0, expires_at=None)
    replace = msgspec.structs.replace
    async with opened(tmp_path) as log:
        for keys in (
            (key,),
            (key, other),
            (replace(key, rotated_at=1.0), other),
            (replace(key, revoked_at=2.0), replace(other, expires_at=3.0)),
            (replace(key, revoked_at=2.0), replace(other, expires_at=3.0)),
        ):
            log._compare_keys(keys)
    found = [(each["event"], each["caller"]) for each in await records_in(tmp_path) if each["event"].startswith("key.")]
    assert found == [
        ("key.created", "planner"),
        ("key.created", "other"),
        ("key.rotated", "planner"),
        ("key.revoked", "planner"),
        ("key.expired", "other"),
    ]
    assert states_of((key,), 0.0)[key.id][0] == "good"


async def test_the_current_configuration_is_recorded_by_a_digest(tmp_path: Path) -> None:
    file = tmp_path / "isthmus.toml"
    file.write_text("one")
    state = tmp_path / "state"
    async with opened(state) as log:
        first = log.digest_of([file, tmp_path / "none"])
        log.reloaded(Configuration(file, HubSettings(), files=(file,)))
        file.write_text("two")
        assert log.digest_of([file]) != first
    assert [each["configuration"] for each in await records_in(state) if each["event"] == "configuration.reloaded"] == [
        first
    ]


async def test_old_records_are_taken_away_while_the_hub_runs(tmp_path: Path) -> None:
    async with opened(tmp_path, ends_well=False) as log:
        log.audit.note("old")
        log.audit.flush()
        running = asyncio.ensure_future(log.retain(lambda: -100.0))
        async with asyncio.timeout(5):
            while len(await records_in(tmp_path)) != 1:  # noqa: ASYNC110 - another thread writes, and cannot wake us
                await asyncio.sleep(0.005)
        running.cancel()
    assert await events(tmp_path) == ["old"]


async def test_a_changed_login_is_recorded_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        configuration = configured(tmp_path)
        access, pins = LiveCallers(configuration), DefinitionPins(configuration)
        running = RunningHub(configuration, {}, pins=pins, audit=log.audit)
        log.attach(running, access.open(), access.identities, pins)
        running.logins.on_changed(ServerName("files"), Subject("acme", "ann"))
        await running.aclose()
        await pins.aclose()
    changed = [each for each in await records_in(tmp_path) if each["event"] == "login.changed"]
    assert [(each["server"], each["caller"], each["tenant"]) for each in changed] == [("files", "ann", "acme")]


async def test_a_switched_server_is_recorded_with_its_operator(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        server = ServerSettings(ServerName("files"), StdioSettings("/no/such/program"))
        configuration = replace(configured(tmp_path), servers=(server,))
        access, pins = LiveCallers(configuration), DefinitionPins(configuration)
        running = RunningHub(configuration, {}, pins=pins, audit=log.audit)
        log.attach(running, access.open(), access.identities, pins)
        ann = Caller("ann", "acme", Grants(("*",)), is_operator=True)
        for is_on in (False, False, True):
            await running.switch_server(server.name, ann, is_on=is_on)
        await running.aclose()
        await pins.aclose()
    switched = [each for each in await records_in(tmp_path) if str(each["event"]).startswith("server.")]
    expected = [("server.disabled", "files", "ann", "acme", False), ("server.enabled", "files", "ann", "acme", False)]
    keys = ("event", "server", "caller", "tenant", "saved")
    assert [tuple(each[key] for key in keys) for each in switched] == expected
