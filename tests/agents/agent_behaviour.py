"""The behaviour of the official SDKs' agents in both generations; the first word of a message chooses it.

The agents run in environments with different SDKs, so this module imports none of them: `Reply` is the interface.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Any, Protocol

import uvicorn

from tests.peers.serving import note

STEPS = 3
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+M8AAQUBAScY42YAAAAASUVORK5CYII="
FILE_URL = "https://files.example/report.pdf"


@dataclass(frozen=True, slots=True)
class Options:
    """How an agent was asked to run."""

    binding: str
    silent: bool
    port: int
    public: int


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--binding", choices=("JSONRPC", "HTTP+JSON"), default="JSONRPC")
    parser.add_argument("--silent", action="store_true", help="an agent that cannot stream")
    parser.add_argument("--port", type=int, default=0, help="0: any free one, printed as `PORT n` on stdout")
    parser.add_argument("--public", type=int, default=0, help="the port that the card names, if it is another one")
    return Options(**vars(parser.parse_args()))


def listen(port: int) -> socket.socket:
    """Listen on loopback; the address is known before the card that names it is written."""
    return socket.create_server(("127.0.0.1", port))


def serve(app: Any, listener: socket.socket) -> None:
    """Serve until killed; `PORT n` is on stdout once connections are accepted."""
    print("PORT", listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


class Reply(Protocol):
    """The reply to one message, with the classes of one SDK."""

    text: str
    is_follow_up: bool
    """Whether the message is the next one of a task."""

    async def begin(self) -> None:
        """Announce the task."""

    async def report(self, text: str) -> None:
        """Report that the task is working."""

    async def make(self, *parts: object, id: str, is_more: bool = False) -> None:
        """Send an artifact, or append to one."""

    async def end(self, how: str, text: str = "") -> None:
        """Set the final state, or one that waits for input, with this message."""

    async def say(self, text: str) -> None:
        """Answer with a message, without any task."""

    def text_part(self, text: str) -> object: ...
    def data_part(self, data: dict[str, object]) -> object: ...
    def file_part(self, content: str, name: str, media_type: str) -> object: ...
    def link_part(self, url: str, name: str, media_type: str) -> object: ...


async def respond(reply: Reply) -> None:
    """Do what the message asks for."""
    word, _, rest = reply.text.partition(" ")
    note(f"did {reply.text}")
    if reply.is_follow_up:
        await reply.make(reply.text_part(f"You said {reply.text}"), id="answer")
        await reply.end("completed")
    elif word == "say":
        await reply.say(rest)
    else:
        await reply.begin()
        await _work(reply, word, rest)


async def _work(reply: Reply, word: str, rest: str) -> None:
    match word:
        case "steps":
            for step in range(1, STEPS + 1):
                await reply.report(f"step {step}")
            for position, piece in enumerate(("one, ", "two, ", "three")):
                await reply.make(reply.text_part(piece), id="text", is_more=position > 0)
            await reply.end("completed")
        case "parts":
            parts = (
                reply.data_part({"n": 1, "text": "é"}),
                reply.file_part(PIXEL, "pixel.png", "image/png"),
                reply.link_part(FILE_URL, "report.pdf", "application/pdf"),
            )
            await reply.make(*parts, id="parts")
            await reply.end("completed", "That is all.")
        case "ask":
            await reply.end("input_required", "Which one?")
        case "login":
            await reply.end("auth_required", "Log in at https://login.example/")
        case "fail" | "reject":
            await reply.end("failed" if word == "fail" else "rejected", f"Cannot {rest}")
        case "until":
            await reply.report("waiting")
            while not os.path.exists(rest):  # noqa: ASYNC110, ASYNC240 (a test creates it, and cannot notify this process)
                await asyncio.sleep(0.01)
            await reply.make(reply.text_part("done"), id="done")
            await reply.end("completed")
        case "hold":
            await reply.report(f"holding {rest}")
            await asyncio.Event().wait()
        case _:
            await reply.make(reply.text_part(rest), id="echo")
            await reply.end("completed")
