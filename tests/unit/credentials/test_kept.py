"""Sealing of stored credentials."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from isthmus.credentials.sealing import KEY_FILE, StoredSealer, stored_key


def test_sealed_text_opens_only_with_its_own_context(tmp_path: Path) -> None:
    sealer = StoredSealer(stored_key(tmp_path))
    sealed = sealer.seal(b"secret", b"https://push.example")
    assert "secret" not in sealed
    assert sealer.seal(b"secret", b"https://push.example") == sealed, "it can be seen to be kept already"
    assert sealer.seal(b"secret", b"https://other.example") != sealed
    assert StoredSealer(stored_key(tmp_path)).open(sealed, b"https://push.example") == b"secret"
    assert sealer.open(sealed, b"https://other.example") is None
    assert StoredSealer(os.urandom(32)).open(sealed, b"https://push.example") is None


@pytest.mark.parametrize("text", ["", "AAAA", "not base64", "\u00e9", "A" * 60])
def test_unsealed_text_does_not_open(tmp_path: Path, text: str) -> None:
    assert StoredSealer(stored_key(tmp_path)).open(text, b"x") is None


def test_where_one_text_ends_and_the_other_begins_makes_a_difference(tmp_path: Path) -> None:
    sealer = StoredSealer(stored_key(tmp_path))
    assert sealer.seal(b"bc", b"a")[:16] != sealer.seal(b"c", b"ab")[:16]


def test_the_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert stored_key(state) == stored_key(state)
    assert [file.name for file in state.iterdir()] == [KEY_FILE]
    assert stat.S_IMODE((state / KEY_FILE).stat().st_mode) == 0o600


def test_a_damaged_key_is_no_key(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_text("abcd")
    with pytest.raises(ValueError, match="does not contain the key"):
        stored_key(tmp_path)
