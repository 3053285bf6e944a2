"""What the official SDKs' agents do, whichever generation they are of: as the message's first word says.

They run in environments with different SDKs, so this knows none of them, only what an agent must be able to do.
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
PLACE = "https://files.example/report.pdf"


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
    parser.add_argument("--port", type=int, default=0, help="0: any free one, told as `PORT n` on stdout")
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


class Doing(Protocol):
    """What is done about one message, in the words of one SDK."""

    text: str
    goes_on: bool
    """Whether the message is the next one of a task."""

    async def begin(self) -> None:
        """Tell that there is a task."""

    async def report(self, text: str) -> None:
        """Tell that it works."""

    async def make(self, *parts: object, id: str, is_more: bool = False) -> None:
        """Bring an artifact forth, or more of one."""

    async def end(self, how: str, text: str = "") -> None:
        """End it, or have it wait, with these words."""

    async def say(self, text: str) -> None:
        """Answer with a message, without any task."""

    def text_part(self, text: str) -> object: ...
    def data_part(self, data: dict[str, object]) -> object: ...
    def file_part(self, content: str, name: str, media_type: str) -> object: ...
    def link_part(self, url: str, name: str, media_type: str) -> object: ...


async def do(doing: Doing) -> None:
    """Do what the message says."""
    word, _, rest = doing.text.partition(" ")
    note(f"did {doing.text}")
    if doing.goes_on:
        await doing.make(doing.text_part(f"You said {doing.text}"), id="answer")
        await doing.end("completed")
    elif word == "say":
        await doing.say(rest)
    else:
        await doing.begin()
        await _work(doing, word, rest)


async def _work(doing: Doing, word: str, rest: str) -> None:
    match word:
        case "steps":
            for step in range(1, STEPS + 1):
                await doing.report(f"step {step}")
            for position, piece in enumerate(("one, ", "two, ", "three")):
                await doing.make(doing.text_part(piece), id="text", is_more=position > 0)
            await doing.end("completed")
        case "parts":
            parts = (
                doing.data_part({"n": 1, "text": "é"}),
                doing.file_part(PIXEL, "pixel.png", "image/png"),
                doing.link_part(PLACE, "report.pdf", "application/pdf"),
            )
            await doing.make(*parts, id="parts")
            await doing.end("completed", "That is all.")
        case "ask":
            await doing.end("input_required", "Which one?")
        case "login":
            await doing.end("auth_required", "Log in at https://login.example/")
        case "fail" | "reject":
            await doing.end("failed" if word == "fail" else "rejected", f"Cannot {rest}")
        case "until":
            await doing.report("waiting")
            while not os.path.exists(rest):  # noqa: ASYNC110, ASYNC240 (a test makes it, and cannot tell)
                await asyncio.sleep(0.01)
            await doing.make(doing.text_part("done"), id="done")
            await doing.end("completed")
        case "hold":
            await doing.report(f"holding {rest}")
            await asyncio.Event().wait()
        case _:
            await doing.make(doing.text_part(rest), id="echo")
            await doing.end("completed")
