"""Run the official TypeScript SDK from a test: steps in, answers out. The client is the script `npm/client.mjs`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, cast

from tests.hubs import environment
from tests.peers.node import FOLDER
from tests.peers.npm_servers import node
from tests.peers.sdk1_steps import Answer, Step

Major = Literal[1, 2]
Mode = Literal["legacy", "auto", "2026-07-28"]

RUN_SECONDS = 240.0
"""For all sessions together, which run at the same time."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One session: where, and what is done there."""

    steps: Mapping[str, Step]
    url: str | None = None
    sse: bool = False
    """Whether the address is of the earlier HTTP+SSE transport."""
    command: Sequence[str] = ()
    """What to start instead, over stdio."""


async def run_typescript(major: Major, mode: Mode, plans: Sequence[SessionPlan]) -> list[dict[str, Answer]]:
    """Run the sessions, all at once; the answers of each by its steps' names.

    Raises:
        RuntimeError: The client could not connect or broke off; the message holds what it wrote to stderr.
    """
    received = [{key: value for key, value in asdict(plan).items() if value} for plan in plans]
    process = await asyncio.create_subprocess_exec(
        node(),
        str(FOLDER / "client.mjs"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            job = json.dumps({"major": major, "mode": mode, "sessions": received}).encode()
            said, complained = await process.communicate(job)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"the TypeScript client broke off: {complained.decode(errors='replace')[-4000:]}")
    return cast("list[dict[str, Answer]]", json.loads(said))
