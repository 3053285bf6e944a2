"""`isthmus call`, `prompt` and `read`: one call, with its progress, to its one outcome."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from isthmus.cli import faults
from isthmus.cli.arguments import arguments_of
from isthmus.cli.documents import Offer, read_listing, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.faults import Told
from isthmus.cli.naming import choose
from isthmus.cli.opening import opened
from isthmus.cli.output import harmless, say, write
from isthmus.cli.progress import ProgressLine
from isthmus.cli.reached import Asked, Reached
from isthmus.cli.results import readable, readable_contents, readable_messages, readable_value
from isthmus.cli.sources import Own, Running
from isthmus.model.events import Event, Progress
from isthmus.model.outcomes import Result
from isthmus.wire.mcp.lists import PROMPTS, TOOLS


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line."""

    name: str
    words: Sequence[str]
    whole: str | None
    """All arguments as one JSON object, instead of words."""
    is_json: bool


async def call_tool(source: Running | Own, wanted: Wanted, *, wait: float) -> Exit:
    """Call a tool and print how it ended.

    Raises:
        CommandFailed: there is no such hub or tool, an argument is wrong, or the call ended in a fault.
    """
    async with opened(source, wait=wait, name=wanted.name, is_to_call=True) as hub:
        offer = await _chosen(hub, wanted.name)
        arguments = arguments_of(wanted.words, wanted.whole, offer.definition.get("inputSchema"), read_text)
        outcome = await _perform(hub, Asked("tool", offer.name, arguments))
    return _tell(outcome, offer.name, readable, is_json=wanted.is_json)


async def _chosen(hub: Reached, name: str) -> Offer:
    """The tool that is meant: a listed one, or the method of a server that lists none."""
    try:
        return choose(name, read_listing(await hub.list(TOOLS), TOOLS))
    except CommandFailed:
        server, _, method = name.partition(".")
        told = read_servers(await hub.servers()) if method else []
        if not any(each.name == server and each.unlisted for each in told):
            raise
        return Offer(name, server, {})


async def write_prompt(source: Running | Own, wanted: Wanted, *, wait: float) -> Exit:
    """Have a prompt written out and print it.

    Raises:
        CommandFailed: as of `call_tool`.
    """
    async with opened(source, wait=wait, name=wanted.name, shape=PROMPTS, is_to_call=True) as hub:
        offer = choose(wanted.name, read_listing(await hub.list(PROMPTS), PROMPTS), PROMPTS)
        arguments = arguments_of(wanted.words, wanted.whole, None, read_text)
        outcome = await _perform(hub, Asked("prompt", offer.name, arguments))
    return _tell(outcome, offer.name, readable_messages, is_json=wanted.is_json)


async def read_resource(source: Running | Own, uri: str, *, wait: float, is_json: bool) -> Exit:
    """Read a resource and print it.

    Raises:
        CommandFailed: as of `call_tool`.
    """
    async with opened(source, wait=wait, is_to_call=True) as hub:
        outcome = await _perform(hub, Asked("resource", uri, msgspec.Raw(b"{}")))
    return _tell(outcome, uri, readable_contents, is_json=is_json)


def read_text(name: str) -> str:
    """Return the text of a file, or of standard input for `-`."""
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return content.decode()


async def _perform(hub: Reached, asked: Asked) -> Result | Told:
    """Wait for the outcome and show progress meanwhile."""
    line = ProgressLine(sys.stderr)

    def show(event: Event) -> None:
        if isinstance(event, Progress):
            line.show(event)

    try:
        return await hub.perform(asked, show)
    finally:
        line.clear()


# -- telling -------------------------------------------------------------------------------------------------


def _tell(outcome: Result | Told, name: str, in_words: Callable[[msgspec.Raw], str], *, is_json: bool) -> Exit:
    if isinstance(outcome, Told):
        if is_json:
            write(faults.as_json(outcome).decode())
        raise faults.failed(outcome)
    if is_json:
        write(bytes(outcome.payload).decode())
        return Exit.CALL_FAILED if outcome.is_error else Exit.WELL
    text = readable_value(outcome.payload) if outcome.is_bare else in_words(outcome.payload)
    return _tell_result(outcome, name, text)


def _tell_result(result: Result, name: str, text: str) -> Exit:
    if result.is_error:
        # On stderr: what is written to a file or a pipe should be what was asked for, or nothing.
        say(text)
        raise CommandFailed(
            Exit.CALL_FAILED,
            f"{harmless(name)} ran and reported an error (above)",
            "Mend what it complains of and call it again; `isthmus tools --json` shows what it takes.",
        )
    if text:
        write(text)
    return Exit.WELL
