"""A forked child has a loop of its own; inherited services refuse with advice, and the parent is unaffected."""

from __future__ import annotations

import asyncio
import sys

from tests.hubs import CHECKOUT, environment
from tests.library.programs.forks import FORKS

RUN_SECONDS = 60.0

ADVICE = "make and initialize a new ToolService in each worker, after the fork."


async def run(way: str) -> list[str]:
    """The lines that the program prints, if it ends well and says nothing else."""
    words = [sys.executable, "-X", "faulthandler", "-W", "error", "-m", "tests.library.programs.forks", way]
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=CHECKOUT,
        env=environment({"PYTHONPATH": f"{CHECKOUT / 'src'}:{CHECKOUT}"}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaints = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
    assert (process.returncode, complaints.decode()) == (0, ""), said.decode()
    return said.decode().splitlines()


async def test_a_child_cannot_use_inherited_services_and_makes_its_own() -> None:
    """The parent's threads are in the middle of calls meanwhile, and get their answers."""
    first, *lines, last = await run("fork")

    assert (first, last) == ("parent before", "parent after")
    assert lines.count("child own") == FORKS
    assert lines.count("ended 0") == FORKS
    refusals = [line for line in lines if line.startswith("child refused: ") and line.endswith(ADVICE)]
    assert len(refusals) == 4 * FORKS
    assert lines.count("child is the parent's loop here: False") == FORKS
    assert len(lines) == 7 * FORKS


async def test_forked_workers_make_their_own_and_need_not_shut_it_down() -> None:
    own = ["refused, one", "refused, two"]
    assert await run("workers") == ["parent before", *own, "one", "two", "parent after"]


async def test_spawned_workers_make_their_own() -> None:
    own = ["nothing inherited, one", "nothing inherited, two"]
    assert await run("spawn") == ["parent before", *own, "parent after"]


async def test_a_starting_service_starts_anew_in_a_child() -> None:
    """Also a client that was connected: it connects again when it is needed."""
    assert await run("halfway") == [
        "parent before",
        "child anew",
        "child client is connected: False",
        "child client",
        "ended 0",
        "parent client",
        "parent after",
    ]


async def test_a_child_can_change_a_registry_that_was_being_changed() -> None:
    assert await run("registry") == ["parent before", "child own", "ended 0", "parent late", "parent after"]
