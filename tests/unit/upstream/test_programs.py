"""Which file a command means, who can write to it, and whether it is still the one that its entry says."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from isthmus.model.names import ServerName
from isthmus.upstream import programs
from isthmus.upstream.link import ConnectFailed
from isthmus.upstream.programs import Programs, check_digests, open_paths, program_of
from isthmus.upstream.settings import StdioSettings

FILES = ServerName("files")
ONE, OTHER = "#!/bin/sh\necho one\n", "#!/bin/sh\necho two\n"


def executable(file: Path, text: str = ONE) -> Path:
    file.parent.mkdir(mode=0o755, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def pinned(file: Path, **more: str) -> StdioSettings:
    return StdioSettings(str(file), sha256={"program": digest_of(ONE), **more})


# -- which file --------------------------------------------------------------------------------------------------------


def test_a_path_is_seen_from_the_folder_in_which_the_process_starts(tmp_path: Path) -> None:
    file = executable(tmp_path / "bin" / "serve")
    assert program_of(StdioSettings("bin/serve", cwd=str(tmp_path)), {}) == file
    assert program_of(StdioSettings("bin/serve", cwd=str(tmp_path / "bin")), {}) is None


@pytest.mark.parametrize("env", [{}, {"PATH": "/usr/bin"}])
def test_a_name_is_looked_for_where_the_process_will_look(tmp_path: Path, env: Mapping[str, str]) -> None:
    file = executable(tmp_path / "serve")
    found = program_of(StdioSettings("serve", env=env), {"PATH": str(tmp_path)})
    assert found == (None if env else file), "the entry's own PATH comes first"


async def test_what_is_pinned_and_not_there_is_not_left_to_the_system_to_find(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match="it was not found, and so not checked"):
        await Programs().check(FILES, pinned(tmp_path / "gone"), {})


# -- who can write to it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", ["links", "real", "real/serve", "cwd"])
def test_of_a_link_both_folders_count_and_so_does_where_the_process_starts(tmp_path: Path, opened: str) -> None:
    file = executable(tmp_path / "real" / "serve")
    for folder in ("links", "cwd"):
        (tmp_path / folder).mkdir(mode=0o755)
    link = tmp_path / "links" / "serve"
    link.symlink_to(file)
    reach = StdioSettings(str(link), cwd=str(tmp_path / "cwd"))
    assert open_paths(reach, link) == []
    (tmp_path / opened).chmod(0o777)
    assert open_paths(reach, link) == [tmp_path / opened]


# -- whether it is the one ---------------------------------------------------------------------------------------------


def test_a_program_with_its_old_size_and_times_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SETTLED_NANOSECONDS", -(10**18))  # as if nothing had happened to it for long
    file = executable(tmp_path / "serve")
    before = file.stat()
    check_digests(pinned(file), file)
    file.write_text(OTHER)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ConnectFailed, match=f"sha256 is {digest_of(OTHER)} and not {digest_of(ONE)}"):
        check_digests(pinned(file), file)


def test_one_that_was_just_changed_is_read_again_though_its_clock_may_not_have_ticked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_identity", lambda _: (0, 0, 0, 0, 0))
    file = executable(tmp_path / "serve")
    check_digests(pinned(file), file)
    executable(file, OTHER)
    with pytest.raises(ConnectFailed):
        check_digests(pinned(file), file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file, gone = executable(tmp_path / "serve"), tmp_path / "gone.py"
    with pytest.raises(ConnectFailed, match=f"{gone} cannot be read to have its sha256 checked: No such file"):
        check_digests(pinned(file, **{str(gone): digest_of(ONE)}), file)
