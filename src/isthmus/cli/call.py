"""`isthmus call`: one call, with its progress, to its one outcome."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from isthmus.app.hub import LOCAL
from isthmus.cli import faults
from isthmus.cli.arguments import arguments_of
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.naming import choose
from isthmus.cli.opening import open_hub
from isthmus.cli.output import harmless, say, write
from isthmus.cli.progress import ProgressLine
from isthmus.cli.reached import Reached
from isthmus.cli.results import readable
from isthmus.cli.sources import Own, Running
from isthmus.model.calls import Call
from isthmus.model.events import Event
from isthmus.model.faults import Fault
from isthmus.model.outcomes import Outcome, Result

WITHDRAWAL_SECONDS = 0.1
"""How long a server may act on a withdrawal before its link is closed; many end at once when that happens."""


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
    hub = await open_hub(source, wait=wait, name=wanted.name)
    try:
        offer = choose(wanted.name, hub.offers(), hub.absences())
        schema = offer.tool.definition.get("inputSchema")
        arguments = arguments_of(wanted.words, wanted.whole, schema, read_text)
        outcome = await _perform(hub, offer.name, arguments)
    finally:
        await hub.aclose()
    return _tell(outcome, offer.name, hub, is_json=wanted.is_json)


def read_text(name: str) -> str:
    """Return the text of a file, or of standard input for `-`."""
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return content.decode()


async def _perform(hub: Reached, name: str, arguments: msgspec.Raw) -> Outcome:
    """Wait for the outcome; whoever stops waiting withdraws the call at the server too."""
    exchange = Watched(ProgressLine(sys.stderr))
    call = Call(LOCAL, hub.surface, name, arguments, wants_progress=True)
    inflight = hub.running.hub.start(call, exchange)
    try:
        return await exchange.outcome
    except asyncio.CancelledError:
        inflight.cancel("interrupted at the command line")
        await asyncio.sleep(WITHDRAWAL_SECONDS)
        raise
    finally:
        exchange.progress.clear()


class Watched:
    """The command line's end of a call: shows progress as it comes."""

    def __init__(self, progress: ProgressLine) -> None:
        self.progress = progress
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def emit(self, event: Event) -> None:
        """Show it."""
        self.progress.show(event)

    def end(self, outcome: Outcome) -> None:
        """Wake whoever waits, if somebody still does."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


# -- telling -------------------------------------------------------------------------------------------------


def _tell(outcome: Outcome, name: str, hub: Reached, *, is_json: bool) -> Exit:
    if isinstance(outcome, Fault):
        if is_json:
            write(faults.as_json(outcome, is_remote=hub.is_remote).decode())
        raise faults.failed(outcome, is_remote=hub.is_remote)
    if is_json:
        write(bytes(outcome.payload).decode())
        return Exit.CALL_FAILED if outcome.is_error else Exit.WELL
    return _tell_result(outcome, name)


def _tell_result(result: Result, name: str) -> Exit:
    text = readable(result.payload)
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
