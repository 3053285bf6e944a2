"""Run the mcp 1.x client from a test: steps in, answers out. The client is the script `client_sdk1`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tests.peers.launch import quick_command

Step = Mapping[str, Any]
Answer = dict[str, Any]

RUN_SECONDS = 240.0
"""For all steps together; the script itself bounds each one."""
LINE_BYTES = 1 << 26
"""The answers of a whole session are one line."""


async def run_sdk1(
    steps: Sequence[Step],
    *,
    url: str | None = None,
    sse: bool = False,
    headers: Mapping[str, str] | None = None,
    server: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> list[Answer]:
    """Do `steps` in one session against `url` (HTTP+SSE if `sse`, else as its scheme says) or a `server` command.

    There is one answer per step.

    Raises:
        RuntimeError: The client could not connect or broke off; the message holds what it wrote to stderr.
    """
    process = await asyncio.create_subprocess_exec(
        *quick_command("client_sdk1", *(["--sse"] if sse else []), *_target(url, headers or {}, server)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        said, complained = await asyncio.wait_for(process.communicate(json.dumps(steps).encode()), RUN_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    answers: list[Answer] = [json.loads(line) for line in said.splitlines()]
    if process.returncode != 0 or len(answers) != len(steps):
        raise RuntimeError(f"the mcp 1.x client ended after {answers}: {complained.decode(errors='replace')[-4000:]}")
    return answers


class Sdk1Client:
    """One process of that client for many sessions at a time, because it imports its SDK for a second.

    It starts with the first session. Its creator closes it.
    """

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._awaited: dict[int, asyncio.Future[Any]] = {}

    async def run(self, steps: Sequence[Step], *, url: str, sse: bool = False) -> list[Answer]:
        """Do `steps` in one session, as `run_sdk1` does.

        Raises:
            RuntimeError: The client could not connect or broke off; the message says where.
        """
        process = await self._started()
        assert process.stdin is not None
        number, outcome = len(self._awaited), asyncio.get_running_loop().create_future()
        self._awaited[number] = outcome
        options = [*(["--sse"] if sse else []), *_target(url, {}, ())]
        process.stdin.write(json.dumps([number, options, steps]).encode() + b"\n")
        said = await asyncio.wait_for(outcome, RUN_SECONDS)
        answers: list[Answer] = said["answers"]
        if "error" in said or len(answers) != len(steps):
            raise RuntimeError(f"the mcp 1.x client ended after {answers}: {said.get('error')}")
        return answers

    async def aclose(self) -> None:
        """End the process."""
        if self._process is None or self._reader is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reader

    async def _started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None:
                pipe = asyncio.subprocess.PIPE
                words = quick_command("client_sdk1", "--many")
                self._process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=LINE_BYTES)
                self._reader = asyncio.ensure_future(self._read(self._process))
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = json.loads(line)
            self._awaited[said["number"]].set_result(said)
        for outcome in self._awaited.values():
            if not outcome.done():
                outcome.set_exception(RuntimeError("the mcp 1.x client ended; its reason is on stderr"))


def _target(url: str | None, headers: Mapping[str, str], server: Sequence[str]) -> list[str]:
    if url is None:
        return ["--command", *server]
    return [
        "--url",
        url,
        *(word for name, value in headers.items() for word in ("--header", f"{name}:{value}")),
    ]
