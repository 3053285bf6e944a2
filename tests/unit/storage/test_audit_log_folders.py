"""Audit slots: one log for each running hub, reused when its hub has ended."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from isthmus.core.audit import Point
from isthmus.storage import audit_log_folders
from isthmus.storage.audit_log_folders import acquire_slot, list_slots, reopen_slot, slot_file
from isthmus.storage.audit_signatures import FileAuditSigner, open_keys, read_checkpoint


async def test_each_hub_has_one_of_its_own_and_the_first_free_one_is_taken(tmp_path: Path) -> None:
    first, journal = acquire_slot(tmp_path / "state")
    second, other = acquire_slot(tmp_path / "state")
    assert (first, second) == (1, 2)
    await journal.aclose()
    again, third = acquire_slot(tmp_path / "state")
    assert again == 1
    assert list_slots(tmp_path / "state") == [1, 2]
    for folder in (tmp_path / "state").rglob("seats/.."):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert reopen_slot(tmp_path / "state", 2) is None
    await other.aclose()
    await third.aclose()
    found = reopen_slot(tmp_path / "state", 2)
    assert found is not None
    await found.aclose()


async def test_one_that_is_damaged_is_passed_over(tmp_path: Path) -> None:
    slot_file(tmp_path, 1).parent.mkdir(parents=True)
    slot_file(tmp_path, 1).write_bytes(b"no database" * 1000)
    seat, journal = acquire_slot(tmp_path)
    assert seat == 2
    await journal.aclose()
    assert reopen_slot(tmp_path, 1) is None


async def test_where_none_can_be_had_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log_folders, "SLOTS_MAX", 1)
    _, journal = acquire_slot(tmp_path)
    with pytest.raises(OSError, match="all 1 audit logs"):
        acquire_slot(tmp_path)
    await journal.aclose()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        acquire_slot(tmp_path / "file" / "state")


def test_a_signature_for_one_log_is_invalid_for_another(tmp_path: Path) -> None:
    for seat in (0, 1, 2):
        seals = FileAuditSigner(tmp_path, open_keys(tmp_path, seat), slot=seat)
        seals.checkpoint(Point(1, bytes(32)))
        seals.close()
    names = [tmp_path / "audit" / name for name in ("checkpoint", "checkpoint-1", "checkpoint-2")]
    assert [name.exists() for name in names] == [True] * 3
    names[2].write_bytes(names[1].read_bytes())
    for seat, is_good in ((0, True), (1, True), (2, False)):
        keys = open_keys(tmp_path, seat)
        found = read_checkpoint(tmp_path, keys, seat)
        assert found is not None
        text = f"isthmus audit checkpoint 1 {bytes(32).hex()} {found.at!r}".encode()
        assert keys.is_signed(text, found.signature) is is_good
    assert open_keys(tmp_path, 1).name == open_keys(tmp_path).name
    assert list_slots(tmp_path) == [1, 2], "what vouches for a log tells that there was one"
