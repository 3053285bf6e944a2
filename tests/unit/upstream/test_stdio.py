"""Links to child processes, and the checks of their programs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from isthmus.core.settings import Limits
from isthmus.model.calls import LogMessage
from isthmus.model.fault_table import Lost
from isthmus.model.names import ServerName
from isthmus.upstream import base_link as link_module
from isthmus.upstream import stdio
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.server_settings import StdioSettings
from isthmus.upstream.stdio import Programs, StdioLink, check_digests, open_paths, program_of
from tests.conftest import Ledger
from tests.faults.watching import eventually
from tests.peers.launch import command
from tests.unit.core.doubles import SERVER
from tests.unit.upstream.doubles import ME, SOMEBODY, Scene, answer, message, over, text_of

pytestmark = pytest.mark.usefixtures("no_leftovers")


async def started(words: list[str], limits: Limits | None = None) -> Scene:
    link = StdioLink(SERVER, ME, limits or Limits())
    await link.start(StdioSettings(words[0], tuple(words[1:])), {})
    return Scene(link)


async def greeted(*options: str) -> Scene:
    scene = await started(command("raw_server", *options))
    await scene.link.handshake("auto")
    return scene


def saying(*words: bytes) -> list[str]:
    """A child that says this and then reads without a word."""
    script = f"import os,sys\nfor said in {list(words)!r}: os.write(1, said)\nfor _ in sys.stdin: pass"
    return [sys.executable, "-c", script]


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[Scene]:
    """A child that sends every line back as it came."""
    scene = await started([sys.executable, "-c", "import os\nwhile d := os.read(0, 65536): os.write(1, d)"])
    yield scene
    await scene.link.aclose()


@pytest.mark.parametrize(("era", "version"), [("legacy", "2025-11-25"), ("modern", "2026-07-28")])
async def test_servers_of_both_eras_are_greeted_listed_and_called(ledger: Ledger, era: str, version: str) -> None:
    scene = await greeted("--era", era, "--ledger", str(ledger.path))
    assert scene.link.dialect.version == version
    assert "pay" in {tool.name for tool in (await scene.link.list_features()).tools}
    listeners = [scene.start("pay", {"nonce": f"n{at}"})[1] for at in range(20)]
    assert [text_of(await over(listener)) for listener in listeners] == [f"n{at}" for at in range(20)]
    assert ledger.ran() == {f"n{at}": 1 for at in range(20)}
    await scene.link.aclose()


async def test_a_command_that_cannot_start_is_reported() -> None:
    with pytest.raises(ConnectFailed, match="no-such-program"):
        await started(["no-such-program"])


async def test_a_killed_server_loses_the_link_with_executed_unknown(ledger: Ledger) -> None:
    scene = await greeted("--ledger", str(ledger.path), "--mode", "sleep:60")
    assert isinstance(scene.link, StdioLink)
    listeners = [scene.start("pay", {"nonce": f"n{at}"})[1] for at in range(3)]
    await eventually(lambda: len(ledger.ran()) == 3, "all calls run")
    assert scene.link._writer.channel is not None
    scene.link._writer.channel.kill()
    for listener in listeners:
        fault = (await over(listener)).fault
        assert isinstance(fault, Lost)
        assert fault.executed == "unknown"
    assert [received[:5] for received in scene.callbacks] == ["lost:"]
    assert scene.start()[1].fault.executed == "no"
    await scene.link.aclose()


async def test_unwritten_calls_to_a_stuck_server_are_withdrawn_with_executed_no() -> None:
    scene = await started([sys.executable, "-c", "import time; time.sleep(60)"])
    large, _ = scene.start(arguments={"text": "x" * 1_000_000})
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the end of the turn in which it is written
    held, _ = scene.start()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert scene.link.may_have_run(large)
    assert not scene.link.may_have_run(held)
    _, listener = scene.start()
    assert isinstance(scene.link, StdioLink)
    scene.link._fail("enough")
    assert (await over(listener)).fault.executed == "no"
    await scene.link.aclose()


async def test_the_process_and_its_last_words_are_known() -> None:
    link = StdioLink(SERVER, ME, Limits())
    assert (link.pid, link.last_output) == (None, None)
    script = "import sys; sys.stderr.write('x' * 3000 + ' no such file\\n'); sys.exit(3)"
    await link.start(StdioSettings(sys.executable, ("-c", script)), {})
    assert link.pid is not None
    async with asyncio.timeout(10):
        assert "3" in await link.lost
    assert link.last_output is not None
    assert link.last_output.endswith("x no such file")
    assert len(link.last_output) == 2000
    await link.aclose()


async def test_a_line_without_end_ends_the_child() -> None:
    scene = await started(saying(b"x" * 5000), Limits(reply_bytes=4096))
    async with asyncio.timeout(10):
        assert await scene.link.lost == "it sent a line of over 4096 bytes"
    await scene.link.aclose()


async def test_lines_in_a_row_that_are_no_messages_end_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "GARBAGE_MAX", 10)
    good = message(method="notifications/tools/list_changed") + b"\n"
    scene = await started(saying(b"hello\n" * 10, good, b"hello\n" * 10, good, b"[]\n" * 11, good))
    async with asyncio.timeout(10):
        assert "over 10 lines in a row" in await scene.link.lost
    assert scene.callbacks[:2] == ["changed: tools"] * 2
    await scene.link.aclose()


async def test_answers_without_a_request_and_invalid_ids_are_ignored(echo: Scene) -> None:
    assert isinstance(echo.link, StdioLink)
    _, listener = echo.start()
    for id in (99, "1", 1.5, None):
        echo.link.read(message(id=id, result={}))
        echo.link.read(message(id=id, error={"code": 1, "message": "x"}))
    assert listener.ends == []
    echo.link.read(answer(1))
    assert text_of(await over(listener)) == "done"


async def test_progress_finds_its_call_and_a_log_line_the_only_caller(echo: Scene) -> None:
    assert isinstance(echo.link, StdioLink)
    _, mine = echo.start()
    line = message(method="notifications/message", params={"level": "info", "data": "hm"})
    echo.link.read(message(method="notifications/progress", params={"progressToken": 1, "progress": 0.5}))
    echo.link.read(message(method="notifications/progress", params={"progressToken": 7, "progress": 0.5}))
    echo.link.read(line)
    _, theirs = echo.start(caller=SOMEBODY)
    echo.link.read(line)
    assert len(mine.events) == 2
    assert isinstance(mine.events[1], LogMessage)
    assert theirs.events == []
    assert len(echo.logs) == 1


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


async def test_a_missing_pinned_program_is_not_searched_in_the_path(tmp_path: Path) -> None:
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
    monkeypatch.setattr(stdio, "SETTLED_NANOSECONDS", -(10**18))  # as if nothing had happened to it for long
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
    monkeypatch.setattr(stdio, "_identity", lambda _: (0, 0, 0, 0, 0))
    file = executable(tmp_path / "serve")
    check_digests(pinned(file), file)
    executable(file, OTHER)
    with pytest.raises(ConnectFailed):
        check_digests(pinned(file), file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file, gone = executable(tmp_path / "serve"), tmp_path / "gone.py"
    with pytest.raises(ConnectFailed, match=f"{gone} cannot be read to have its sha256 checked: No such file"):
        check_digests(pinned(file, **{str(gone): digest_of(ONE)}), file)
