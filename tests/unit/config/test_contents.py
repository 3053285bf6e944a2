"""Only regular files are read, and only so much of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.config.contents import TooLong, contents_of


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12345")
    assert contents_of(file, 5) == b"12345"
    with pytest.raises(TooLong):
        contents_of(file, 4)


def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a regular file"):
        contents_of(tmp_path / "pipe", 5)


@pytest.mark.parametrize(
    ("path", "why"), [("/dev/zero", "Not a regular file"), ("/dev", "Is a directory"), ("/no/such", "No such file")]
)
def test_what_is_no_file_is_refused(path: str, why: str) -> None:
    with pytest.raises(OSError, match=why):
        contents_of(Path(path), 5)
