"""Signals end a command in order."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from pathlib import Path

import pytest

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.run_command import DESCRIPTORS_WANTED, run_command, run_service


async def signalled(number: signal.Signals, noted: list[str]) -> None:
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        await asyncio.sleep(0)
        noted.append("cleaned up")
        raise


async def answer() -> int:
    return 42


async def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_a_service_may_have_more_descriptors_than_the_usual_limit(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        allowed = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
        assert run_service(soft_limit(), str(tmp_path)) == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_run_command_and_run_service_return_the_result(tmp_path: Path) -> None:
    assert run_command(answer()) == 42
    assert run_service(answer(), str(tmp_path)) == 42


def test_an_interrupt_cancels_the_work_and_lets_it_clean_up() -> None:
    noted: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_command(signalled(signal.SIGINT, noted))
    assert noted == ["cleaned up"]


def test_sigterm_cancels_the_work_and_has_a_code_of_its_own() -> None:
    noted: list[str] = []
    with pytest.raises(CommandFailed) as failed:
        run_command(signalled(signal.SIGTERM, noted))
    assert failed.value.exit == Exit.TERMINATED
    assert noted == ["cleaned up"]


def test_without_uvloop_the_loop_is_asyncios_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    assert run_service(answer(), str(tmp_path)) == 42
