"""The server that forks hubs for the tests: what it reports, what it gives them, and what it refuses to share."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests import fork_server
from tests.fork_server import forked
from tests.hubs import END_SECONDS, environment, serving


async def test_a_process_has_its_own_words_environment_and_folder_and_its_exit_code_is_reported(tmp_path: Path) -> None:
    config = tmp_path / "broken.toml"
    config.write_text("[servers")
    env = {**environment(), "ISTHMUS_CONFIG": config.name}
    process = await forked(["serve"], env, tmp_path)

    said = (await process.stderr.read()).decode()

    assert (await process.wait(), process.returncode) == (3, 3)
    assert "broken.toml" in said
    with pytest.raises(ProcessLookupError):
        process.kill()


async def test_the_signal_that_ended_a_process_is_reported(tmp_path: Path) -> None:
    process = await forked(["serve", "--port", "0"], environment(), tmp_path)
    await process.stderr.readline()

    process.kill()

    assert await process.wait() == -signal.SIGKILL
    await process.stderr.read()


async def test_a_hub_has_no_descriptor_by_which_the_server_watches_the_hub_before(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with serving(tmp_path / "one"), serving(tmp_path / "two") as two:
        assert any("pidfd" in file for file in open_files(fork_server.start()))
        assert not any("pidfd" in file for file in open_files(two.pid))


def open_files(pid: int) -> set[str]:
    return {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}


async def test_hubs_end_when_the_process_that_runs_tests_is_gone(tmp_path: Path) -> None:
    process = await forked(["serve", "--port", "0"], environment(), tmp_path)
    while b"listening" not in (line := await process.stderr.readline()):
        assert line

    fork_server.stop()

    await asyncio.wait_for(process.stderr.read(), END_SECONDS)
    with pytest.raises(ValueError, match="invalid literal"):  # nobody reports its exit code
        await process.wait()


def test_a_module_that_draws_a_secret_as_it_is_loaded_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "drawing.py").write_text("import secrets\nKEY = secrets.token_hex()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fork_server, "PRELOADED", ("drawing",))

    with pytest.raises(RuntimeError, match="draws a secret"):
        fork_server._load()

    assert "drawing" not in sys.modules
