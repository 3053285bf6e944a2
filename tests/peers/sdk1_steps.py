"""Run the mcp 1.x client from a test: steps in, answers out. The client is the script `client_sdk1`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tests.peers.launch import command

Step = Mapping[str, Any]
Answer = dict[str, Any]

RUN_SECONDS = 240.0
"""For all steps together; the script itself bounds each one."""


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
        *command("client_sdk1", *(["--sse"] if sse else []), *_target(url, headers or {}, server)),
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


def _target(url: str | None, headers: Mapping[str, str], server: Sequence[str]) -> list[str]:
    if url is None:
        return ["--command", *server]
    return [
        "--url",
        url,
        *(word for name, value in headers.items() for word in ("--header", f"{name}:{value}")),
    ]
