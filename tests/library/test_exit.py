"""A program that never shuts its service down ends at once, quietly, and its servers end with it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.conftest import state
from tests.hubs import CHECKOUT, environment

RUN_SECONDS = 30.0
GONE_SECONDS = 10.0


async def run(way: str, ledger: Path) -> tuple[int | None, list[str], str]:
    """How the program ended, what it printed, and what it complained of."""
    words = [
        sys.executable,
        "-X",
        "faulthandler",
        "-W",
        "error",
        "-m",
        "tests.library.programs.exits",
        way,
        str(ledger),
    ]
    process = await asyncio.create_subprocess_exec(
        *words,
        way,
        str(ledger),
        cwd=CHECKOUT,
        env=environment({"PYTHONPATH": f"{CHECKOUT / 'src'}:{CHECKOUT}"}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaints = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
    return process.returncode, said.decode().splitlines(), complaints.decode()


async def gone(pids: list[int]) -> None:
    """Wait until these processes have ended."""
    async with asyncio.timeout(GONE_SECONDS):
        while any(state(pid) != "gone" for pid in pids):  # noqa: ASYNC110 (they are nobody's children here)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("way", "code", "complaint"), [("raise", 1, "said goodbye\n"), ("killed", -15, "")])
async def test_a_program_ends_with_its_servers(tmp_path: Path, way: str, code: int, complaint: str) -> None:
    ended, [pids], complaints = await run(way, tmp_path / "ledger")

    assert (ended, complaints) == (code, complaint)
    assert len(pids.split()) == 2
    await gone([int(pid) for pid in pids.split()])


async def test_a_service_that_is_still_opening_is_closed_like_any_other(tmp_path: Path) -> None:
    ended, [_, pids], complaints = await run("opening", tmp_path / "ledger")

    assert (ended, complaints) == (0, "")
    assert len(pids.split()) == 3
    await gone([int(pid) for pid in pids.split()])


async def test_one_that_was_given_up_before_closes_its_servers_in_good_order(tmp_path: Path) -> None:
    ended, _, complaints = await run("given up", tmp_path / "ledger")

    assert (ended, complaints) == (0, "")
    assert (tmp_path / "notes").read_text().splitlines() == ["begun", "ended in good order"]


async def test_running_calls_are_cancelled_and_later_ones_refused(tmp_path: Path) -> None:
    """A thread hangs in a call, and a stream is open."""
    ledger = tmp_path / "ledger"
    ended, [pids, *late], complaints = await run("busy", ledger)

    assert (ended, complaints) == (0, "")
    await gone([int(pid) for pid in pids.split()])
    noted = ledger.read_text()
    assert [f'"cancelled": "{call}"' in noted for call in ("thread", "stream")] == [True, True]
    assert late == ["This ToolService is shut down.", "The program is ending and its hub is closed."]
