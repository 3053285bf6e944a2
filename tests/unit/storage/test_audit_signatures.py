"""The log's key and its checkpoint, as files of their owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from isthmus.core.audit import Point, signed_text
from isthmus.storage.audit_signatures import (
    CHECKPOINT_BYTES,
    AuditKeyDamaged,
    AuditKeys,
    FileAuditSigner,
    open_keys,
    read_checkpoint,
    read_keys,
)


def point(number: int) -> Point:
    return Point(number, bytes([number]) * 32)


def kept(folder: Path, *numbers: int) -> AuditKeys:
    keys = open_keys(folder)
    made = FileAuditSigner(folder, keys, lambda: 7.0)
    for number in numbers:
        made.checkpoint(point(number))
    made.close()
    return keys


def test_the_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    first, again = open_keys(tmp_path / "state"), open_keys(tmp_path / "state")
    assert (first.name, first.digesting) == (again.name, again.digesting)
    folder = tmp_path / "state" / "audit"
    assert [file.name for file in folder.iterdir()] == ["key"]
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_two_hubs_that_make_it_at_once_have_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[AuditKeys] = []

    def link(source: Path, target: Path) -> None:
        monkeypatch.undo()
        others.append(open_keys(tmp_path))
        os.link(source, target)

    monkeypatch.setattr("os.link", link)
    mine = open_keys(tmp_path)
    assert mine.name == others[0].name


def test_looking_makes_no_key(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_keys(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "zz" * 32, "ab" * 31])
def test_a_damaged_key_is_no_key(tmp_path: Path, text: str) -> None:
    open_keys(tmp_path)
    (tmp_path / "audit" / "key").write_text(text)
    with pytest.raises(AuditKeyDamaged, match="does not hold the key"):
        open_keys(tmp_path)


def test_a_signature_is_of_one_text_by_one_key(tmp_path: Path) -> None:
    keys, other = open_keys(tmp_path / "one"), open_keys(tmp_path / "other")
    signature = keys.sign(b"text")
    assert keys.is_signed(b"text", signature)
    assert not keys.is_signed(b"other", signature)
    assert not other.is_signed(b"text", signature)
    assert not keys.is_signed(b"text", b"short")


def test_the_newest_checkpoint_counts(tmp_path: Path) -> None:
    keys = kept(tmp_path, 1, 2, 3)
    found = read_checkpoint(tmp_path, keys)
    assert found is not None
    assert (found.point, found.at) == (point(3), 7.0)
    assert keys.is_signed(signed_text("checkpoint", found.point, found.at), found.signature)


def test_one_that_was_cut_short_leaves_the_other(tmp_path: Path) -> None:
    keys = kept(tmp_path, 1, 2)
    file = tmp_path / "audit" / "checkpoint"
    data = file.read_bytes()
    file.write_bytes(data[: CHECKPOINT_BYTES + 40])
    found = read_checkpoint(tmp_path, keys)
    assert found is not None
    assert found.point == point(1)


def test_one_that_was_forged_does_not_hide_the_other(tmp_path: Path) -> None:
    keys = kept(tmp_path, 1, 2)
    file = tmp_path / "audit" / "checkpoint"
    file.write_bytes(file.read_bytes().replace(b'"number":2', b'"number":9'))
    found = read_checkpoint(tmp_path, keys)
    assert found is not None
    assert found.point == point(1)


def test_without_a_file_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path, open_keys(tmp_path)) is None


def test_a_disk_that_takes_nothing_costs_the_checkpoint_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = open_keys(tmp_path)
    made = FileAuditSigner(tmp_path, keys)

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", refuse)
    made.checkpoint(point(1))
    monkeypatch.undo()
    made.checkpoint(point(2))
    made.close()
    found = read_checkpoint(tmp_path, keys)
    assert found is not None
    assert found.point == point(2)
