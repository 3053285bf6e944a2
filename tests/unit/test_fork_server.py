"""The server that forks hubs for the tests: its reports, its resources, and its refusals."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fork_server
from tests.fork_server import forked
from tests.hubs import END_SECONDS, Raw, environment, serving


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


@pytest.fixture
def preloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The file of a module that is all that is preloaded."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fork_server, "PRELOADED", ("drawing",))
    yield tmp_path / "drawing.py"
    sys.modules.pop("drawing", None)


def test_random_values_of_a_module_are_drawn_again_after_a_fork(preloaded: Path) -> None:
    preloaded.write_text(
        "import secrets\nKEY = secrets.token_bytes(9)\nOTHER = KEY\nMARK = f'a-{secrets.token_hex(4)}-b'\n"
    )
    drawn = fork_server._load()
    module = sys.modules["drawing"]
    before = dict(vars(module))

    for each in drawn:
        each.draw_again()

    assert module.KEY == module.OTHER != before["KEY"]
    assert len(module.KEY) == 9
    assert re.fullmatch("a-[0-9a-f]{8}-b", module.MARK)
    assert before["MARK"] != module.MARK


def test_a_module_with_hidden_random_values_is_refused(preloaded: Path) -> None:
    preloaded.write_text("import secrets\nclass Keys:\n    own = secrets.token_bytes()\n")

    with pytest.raises(RuntimeError, match="draws a secret"):
        fork_server._load()


async def test_two_hubs_have_no_secret_in_common(tmp_path: Path) -> None:
    seen = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        async with serving(tmp_path / name) as hub, Raw(hub.url) as caller:
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
            seen.append((await caller.post(body)).headers["mcp-session-id"])
            figures = (await caller.http.get(hub.url.replace("/mcp", "/metrics"))).text
            seen += re.findall(r"^process_start_time_seconds (\S+)$", figures, re.MULTILINE)
    assert len(set(seen)) == 4
