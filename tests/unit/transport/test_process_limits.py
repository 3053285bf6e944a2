from __future__ import annotations

import asyncio
import errno
import os
import resource
import sys
from pathlib import Path

import pytest

from isthmus.transport.process import ProcessChannel, SpawnFailed
from isthmus.transport.process_limits import ProcessLimits, Unbounded, bound

SHOWS = (
    "import resource, sys\nsys.stdin.readline()\n"
    "print([resource.getrlimit(getattr(resource, 'RLIMIT_' + each))[1] for each in sys.argv[1:]], flush=True)\n"
    "sys.stdin.readline()"
)
"""Tells its limits when it is asked to."""


async def told(limits: ProcessLimits, *names: str) -> list[int]:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    channel = await ProcessChannel.spawn(
        [sys.executable, "-c", SHOWS, *names],
        env={},
        cwd=None,
        on_bytes=heard.set_result,
        on_lost=lambda why: None if heard.done() else heard.set_exception(AssertionError(why)),
        limits=limits,
    )
    try:
        channel.write(b"tell\n")
        answer = await asyncio.wait_for(heard, 30)
        return [int(each) for each in answer.decode().strip("[]\n").split(",")]
    finally:
        await channel.aclose()


async def test_a_child_is_held_to_its_limits() -> None:
    limits = ProcessLimits(memory_bytes=1 << 30, files=100, processes=50, cpu_seconds=60)
    names = ("AS", "NOFILE", "NPROC", "CPU", "CORE")
    assert await told(limits, *names) == [1 << 30, 100, 50, 60, 0]


async def test_without_any_it_has_what_the_hub_has_but_leaves_no_memory_behind() -> None:
    own = [resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)]
    assert await told(ProcessLimits(), "AS", "NOFILE", "CORE") == [*own, 0]


async def test_a_limit_above_the_hubs_own_is_the_hubs_own() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert await told(ProcessLimits(files=hard + 1), "NOFILE") == [hard]


@pytest.mark.parametrize("bad", [{"files": 0}, {"memory_bytes": 1024}, {"cpu_seconds": -1}])
def test_limits_with_which_nothing_runs_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be at least"):
        ProcessLimits(**bad)


def test_a_child_that_has_ended_already_is_not_missed() -> None:
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    os.waitpid(child, 0)
    bound(child, ProcessLimits(files=10))


@pytest.mark.parametrize("why", [errno.EPERM, errno.ENOSYS])
def test_what_the_system_does_not_let_us_bind_is_refused_only_if_it_must_be_bound(
    monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    def not_allowed(*_: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr("resource.prlimit", not_allowed)
    bound(os.getpid(), ProcessLimits())
    with pytest.raises(Unbounded):
        bound(os.getpid(), ProcessLimits(files=10))


async def test_where_there_is_no_way_to_limit_a_child_one_with_limits_is_not_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    bound(os.getpid(), ProcessLimits())
    with pytest.raises(SpawnFailed, match="on Linux only"):
        await ProcessChannel.spawn(
            ["/bin/cat"],
            env={},
            cwd=str(tmp_path),
            on_bytes=print,
            on_lost=print,
            limits=ProcessLimits(cpu_seconds=1),
        )
