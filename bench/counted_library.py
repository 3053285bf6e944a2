"""`python -m bench.counted_library URL`: a program with the hub inside, whose calls are counted as in `counted_hub`.

For each line that it reads it calls the echo of the server at this URL, on the hub's own loop, and prints the text.
Started by `bench.ways`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import isthmus
from bench.counted_hub import install
from isthmus.library import run

LOOPS: list[asyncio.AbstractEventLoop] = []
"""The hub's own loop, which runs in another thread than signals do."""


async def main(url: str) -> None:
    """Call until there are no more lines."""
    loop = asyncio.get_running_loop()
    LOOPS.append(loop)
    async with isthmus.connect({"modern": {"url": url}}) as hub:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            result = await hub.call("modern.echo", text=line.strip())
            print(result.text, flush=True)


def on_loop(function: Callable[[], None]) -> None:
    """Call a function in the hub's own thread."""
    LOOPS[0].call_soon_threadsafe(function)


if __name__ == "__main__":
    install(Path(os.environ["BENCH_STEPS"]), on_loop)
    run(main(sys.argv[1]))
