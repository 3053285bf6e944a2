"""A secret that a hub makes for itself."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from isthmus.app.key_files import offer_secret


def test_the_first_one_stays_is_read_by_its_user_alone_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    offer_secret(file, 16)
    first = file.read_text()
    offer_secret(file, 16)
    assert file.read_text() == first
    assert len(bytes.fromhex(first)) == 16
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_cannot_keep_it_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        offer_secret(tmp_path / "nowhere" / "secret", 16)
