"""A program that forks after it has made a service, in one of several ways; each line that it prints is a finding.

`python -m tests.library.programs.forks WAY`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Any

from isthmus.library import (
    BlockingToolService,
    MCPClient,
    MCPServerConfig,
    ServiceClosedError,
    ToolDef,
    ToolRegistry,
    ToolRequest,
    ToolService,
    ToolStreamChunk,
)
from isthmus.library.loop_thread import LoopThread
from tests.conftest import children
from tests.library.services import POLL_SECONDS, raw_server, with_servers

# Python says so itself from 3.12 on; that it works all the same is what is shown here.
warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)

FORKS = 3

CHILD_SECONDS = 20
"""After which a child that hangs is ended by the system."""

PARENT: BlockingToolService | None = None


def configuration() -> dict[str, Any]:
    """The same in every process."""
    return with_servers(raw_server())


def echo(tools: BlockingToolService, text: str) -> str:
    """Call the server."""
    return tools.execute_tool(ToolRequest("raw.echo", parameters={"text": text})).text


def say(*words: object) -> None:
    """Print a line in one piece, since children print too."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def refused(tools: BlockingToolService, attempt: Callable[[BlockingToolService], object]) -> str:
    """How an inherited service takes it."""
    try:
        return f"taken: {attempt(tools)!r}"
    except ServiceClosedError as error:
        return f"refused: {error}"


def in_child(tools: BlockingToolService, inherited: LoopThread) -> None:
    """What a child finds: what it inherited refuses, and what it makes works."""
    say("child", refused(tools, lambda tools: echo(tools, "inherited")))
    say("child", refused(tools, lambda tools: tools.list_tools()))
    say("child", refused(tools, lambda tools: tools.initialize()))
    say("child", refused(tools, lambda tools: list[ToolStreamChunk](tools.execute_tool_stream(ToolRequest("echo")))))
    with BlockingToolService(configuration()) as own:
        say("child", echo(own, "own"))
        # The thread of the child's loop may get the number that the parent's had.
        say("child", "is the parent's loop here:", LoopThread.shared().call(inherited.is_current))


def fork(tools: BlockingToolService) -> None:
    """By hand; the child ends as a program does, with everything that Python then tidies up."""
    inherited = LoopThread.shared()
    child = os.fork()
    if child == 0:
        in_child(tools, inherited)
        sys.exit(0)
    say("ended", os.waitpid(child, 0)[1])


def fork_busy(tools: BlockingToolService) -> None:
    """While threads of the parent are in the middle of calls."""
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            assert echo(tools, "busy") == "busy"

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(FORKS):
        fork(tools)
    stop.set()
    for thread in threads:
        thread.join()


def work(text: str) -> str:
    """In a worker: with what was inherited if there is any, with a service of its own anyway."""
    inherited = refused(PARENT, lambda tools: echo(tools, text)) if PARENT is not None else "nothing inherited"
    with BlockingToolService(configuration()) as own:
        return f"{inherited.partition(':')[0]}, {echo(own, text)}"


def leave(text: str) -> str:
    """In a worker: a service that nobody shuts down."""
    own = BlockingToolService(configuration())
    own.__enter__()
    return echo(own, text)


def pool(method: str, function: Callable[[str], str]) -> None:
    """Workers of `multiprocessing`."""
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as workers:
        for found in workers.map(function, ["one", "two"]):
            say(found)


def fork_halfway() -> None:
    """While a service and a client are on their way to a server that keeps silent."""
    silent = raw_server("--mode", "hang_init")
    service = ToolService()
    client = MCPClient(MCPServerConfig(**raw_server()))
    asyncio.run(client.connect())
    before = children()

    def begin() -> None:
        with suppress(ServiceClosedError):  # the program ends before the server answers
            asyncio.run(service.initialize(with_servers(silent)))

    threading.Thread(target=begin, daemon=True).start()
    while not children() - before:
        time.sleep(POLL_SECONDS)  # it has no other way to tell
    child = os.fork()
    if child == 0:
        asyncio.run(in_child_halfway(service, client))
        sys.exit(0)
    say("ended", os.waitpid(child, 0)[1])
    say("parent", asyncio.run(client.call_tool("echo", {"text": "client"})))
    asyncio.run(client.close())


def fork_registering() -> None:
    """While a thread of the parent is in the middle of changing a registry."""
    registry = ToolRegistry()
    is_in, may_go_on = threading.Event(), threading.Event()

    def coming() -> Iterator[ToolDef]:
        is_in.set()
        may_go_on.wait()
        yield ToolDef("late", "", {}, str)

    thread = threading.Thread(target=lambda: registry.exchange([], coming()))
    thread.start()
    is_in.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_SECONDS)
        registry.register(ToolDef("own", "", {}, str))
        say("child", *registry.names)
        sys.exit(0)
    say("ended", os.waitpid(child, 0)[1])
    may_go_on.set()
    thread.join()
    say("parent", *registry.names)


async def in_child_halfway(service: ToolService, client: MCPClient) -> None:
    """The threads that were starting it are gone in the child: it starts anew."""
    await service.initialize({"enable_mcp": False})
    say("child", (await service.execute_tool(ToolRequest("echo", parameters={"text": "anew"}))).text)
    await service.shutdown()
    say("child", "client is connected:", client.is_connected)
    say("child", await client.call_tool("echo", {"text": "client"}))
    await client.close()


def main(way: str) -> None:
    """Make a service, fork, and show that the parent's service goes on."""
    global PARENT  # noqa: PLW0603 - what a forked worker inherits
    with BlockingToolService(configuration()) as tools:
        PARENT = tools
        say("parent", echo(tools, "before"))
        match way:
            case "fork":
                fork_busy(tools)
            case "workers":
                pool("fork", work)
                pool("fork", leave)
            case "halfway":
                fork_halfway()
            case "registry":
                fork_registering()
            case "spawn":
                pool("spawn", work)
            case _:
                raise AssertionError(way)
        say("parent", echo(tools, "after"))


if __name__ == "__main__":
    main(sys.argv[1])
