"""The list of keys on disk: whole or not there, the owner's alone, and safe with many writers at once."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isthmus.app.key_files import FILE, FOLDER, TRUST_SECONDS, KeyFile, LiveKeys, keys_in
from isthmus.config.finding_codes import KEY_STORE
from isthmus.config.findings import ConfigError
from isthmus.identity.minted_keys import Keys, MintedKey, StoreDamaged, mint
from isthmus.model.callers import Grants


def made(name: str) -> MintedKey:
    return mint(name, Grants(("*",)), "default", targets=False, now=1.0, expires_at=None)[1]


def add(state: Path, name: str) -> MintedKey:
    key = made(name)
    KeyFile(state).change(lambda keys: (*keys, key))
    return key


def test_without_a_folder_there_are_no_keys(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "state")
    assert not file.exists()
    assert keys_in(KeyFile(tmp_path / "state")) is None
    assert not (tmp_path / "state").exists()


def test_added_keys_are_stored(tmp_path: Path) -> None:
    first = add(tmp_path / "state", "planner")
    second = add(tmp_path / "state", "reader")
    assert KeyFile(tmp_path / "state").read() == (first, second)
    assert sorted(path.name for path in (tmp_path / "state").rglob("*")) == [FOLDER, FILE, "lock"]


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        add(tmp_path / "state", "planner")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").rglob("*")}
    assert modes == {FOLDER: 0o700, FILE: 0o600, "lock": 0o600}
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_an_aborted_change_changes_nothing(tmp_path: Path) -> None:
    key = add(tmp_path, "planner")
    file = KeyFile(tmp_path)
    version = file.revision()

    def refuse(_: Keys) -> Keys:
        raise LookupError

    with pytest.raises(LookupError):
        file.change(refuse)
    assert (file.read(), file.revision()) == ((key,), version)
    assert sorted(os.listdir(tmp_path / FOLDER)) == [FILE, "lock"]


def test_a_change_can_be_seen_from_outside(tmp_path: Path) -> None:
    add(tmp_path, "planner")
    file = KeyFile(tmp_path)
    version = file.revision()
    file.change(lambda keys: keys)
    assert file.revision() != version


@pytest.mark.parametrize("place", [FOLDER, f"{FOLDER}/{FILE}"])
@pytest.mark.parametrize("bit", [stat.S_IWGRP, stat.S_IWOTH])
def test_a_list_that_others_can_write_is_not_trusted(tmp_path: Path, place: str, bit: int) -> None:
    add(tmp_path, "planner")
    path = tmp_path / place
    path.chmod(path.stat().st_mode | bit)
    with pytest.raises(StoreDamaged, match="other users can write"):
        KeyFile(tmp_path).read()


def test_a_list_that_is_gone_from_its_folder_was_lost(tmp_path: Path) -> None:
    add(tmp_path, "planner")
    file = KeyFile(tmp_path)
    file.path.unlink()
    assert file.exists()
    with pytest.raises(FileNotFoundError):
        file.change(lambda keys: keys)
    with pytest.raises(ConfigError, match=r"keys\.json cannot be used: it is gone") as refused:
        keys_in(KeyFile(tmp_path))
    assert [finding.code for finding in refused.value.findings] == [KEY_STORE]


def test_an_unreadable_folder_is_not_taken_for_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("isthmus.app.key_files.os.lstat", refuse)
    with pytest.raises(ConfigError, match=r"Permission denied .*\[hub\] state"):
        keys_in(KeyFile(tmp_path))


def test_a_damaged_list_is_reported_without_its_content(tmp_path: Path) -> None:
    key = add(tmp_path, "planner")
    file = KeyFile(tmp_path)
    file.path.write_bytes(file.path.read_bytes()[:-5])
    with pytest.raises(ConfigError, match="truncated") as refused:
        keys_in(KeyFile(tmp_path))
    assert key.digest not in str(refused.value)


def test_a_list_too_long_to_be_one_is_damaged(tmp_path: Path) -> None:
    add(tmp_path, "planner")
    with KeyFile(tmp_path).path.open("r+b") as stream:
        stream.truncate(17 * 1024 * 1024)
    with pytest.raises(StoreDamaged, match="longer"):
        KeyFile(tmp_path).read()


def _add_some(state: Path, who: int) -> None:
    for number in range(5):
        add(state, f"caller-{who}-{number}")


def test_of_many_writers_at_once_no_entry_is_lost(tmp_path: Path) -> None:
    """From the first key on: the first process creates the folder. Threads are locked out like processes."""
    state = tmp_path / "state"
    with ThreadPoolExecutor(4) as writers:
        for done in [writers.submit(_add_some, state, who) for who in range(4)]:
            done.result(30)
    names = {key.name for key in KeyFile(state).read()}
    assert names == {f"caller-{who}-{number}" for who in range(4) for number in range(5)}
    assert os.listdir(state) == [FOLDER]


def test_a_link_to_a_volume_that_is_not_there_is_a_list_that_is_lost(tmp_path: Path) -> None:
    """Otherwise a hub would start open to all on this machine, because a disk is missing."""
    (tmp_path / FOLDER).symlink_to(tmp_path / "not-mounted")
    assert KeyFile(tmp_path).exists()
    with pytest.raises(ConfigError, match="it is gone"):
        keys_in(KeyFile(tmp_path))


def _owned(monkeypatch: pytest.MonkeyPatch, *places: Path, by: int) -> None:
    """Fake the owner of these files."""
    ask = os.stat

    def tell(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        version = ask(path, follow_symlinks=follow_symlinks)
        return os.stat_result((*version[:4], by, *version[5:])) if path in places else version

    monkeypatch.setattr("isthmus.app.key_files.os.stat", tell)


@pytest.mark.parametrize("name", [FOLDER, f"{FOLDER}/{FILE}"])
def test_a_list_of_another_user_is_not_gone_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Who may write to the state folder could put one there that only its owner can write to."""
    add(tmp_path, "planner")
    _owned(monkeypatch, tmp_path / name, by=4242)
    with pytest.raises(StoreDamaged, match="belongs to another user"):
        KeyFile(tmp_path).read()
    _owned(monkeypatch, tmp_path, tmp_path / name, by=4242)
    assert KeyFile(tmp_path).read(), "whose the state folder is, the list may be"


def test_files_made_by_root_belong_to_the_owner_of_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, int] = {}
    _owned(monkeypatch, tmp_path, by=4242)
    monkeypatch.setattr("isthmus.app.key_files.os.geteuid", lambda: 0)
    monkeypatch.setattr("isthmus.app.key_files.os.chown", lambda path, uid, _: given.update({Path(path).name: uid}))
    add(tmp_path, "planner")
    names = {name.partition(f"{FILE}.")[1] or name.rpartition("-")[0] or name for name in given}
    assert names == {f".{FOLDER}", FILE, f"{FILE}.", "lock"}, "the lock too, or the hub's own user could revoke nothing"
    assert set(given.values()) == {4242}


def test_no_list_at_all_never_gets_old(tmp_path: Path) -> None:
    now = 0.0
    minted = LiveKeys(KeyFile(tmp_path), lambda: now)
    now += TRUST_SECONDS + 1
    assert not minted.is_unreadable_for_long
