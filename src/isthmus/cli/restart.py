"""`isthmus restart`: restarts one server of a running hub."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import click

from isthmus.cli.documents import read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.find_hub import source_of
from isthmus.cli.logs import POLL_SECONDS, UNNAMED, name_in_hub, read_log
from isthmus.cli.options import with_json, with_source, with_wait
from isthmus.cli.output import first_line, print_json, print_output
from isthmus.cli.relay import hub_of
from isthmus.cli.rest_client import HubClient, RemoteSource
from isthmus.cli.run_command import quiet_logs, run_command


@click.command()
@click.argument("server")
@with_source
@with_wait
@with_json
def restart(server: str, hub: str | None, config: Path | None, wait: float, *, is_json: bool) -> int:
    """Restart SERVER: the old one serves until the new one is ready, and finishes its calls."""
    if not server:
        raise click.UsageError(UNNAMED)
    quiet_logs()
    return run_command(restart_server(hub_of(source_of(hub, config)), server, wait=wait, is_json=is_json))


async def restart_server(source: RemoteSource, server: str, *, wait: float, is_json: bool) -> Exit:
    """Restart a server, and wait for what becomes of it.

    Raises:
        CommandFailed: there is no such server, or it did not start.
    """
    began = time.monotonic()
    async with aclosing(HubClient(source, is_needed=True)) as hub:
        server = await name_in_hub(hub, server)
        before = read_log(await hub.log(server))
        after = before[-1].number if before else 0
        document = await hub.restart(server)
        ended: list[str] = []
        while not ended and time.monotonic() - began < wait:
            lines = read_log(await hub.log(server, after))
            ended = [line.text for line in lines if line.source == "hub" and not line.text.startswith("restarting")]
            if not ended:
                await asyncio.sleep(POLL_SECONDS / 2)
        if not ended:
            advice = f"`isthmus servers --watch` shows when it is ready, `isthmus logs {server}` what it says."
            text = f"{server} is not ready after {wait:g} s; the hub goes on trying"
            raise CommandFailed(Exit.CALL_FAILED, text, advice)
        why = ended[0]
        if not why.startswith("ready"):
            info = next((each for each in read_servers(await hub.servers()) if each.name == server), None)
            if info is not None and info.reason:
                why = why.replace(info.reason, info.trouble)  # with the last line of its standard error
            advice = f"`isthmus logs {server}` shows its last words."
            raise CommandFailed(Exit.CALL_FAILED, f"{server} is {first_line(why)}", advice)
    if is_json:
        print_json(document)
    else:
        print_output(f"{server} is {why} after {time.monotonic() - began:.1f} s")
    return Exit.SUCCESS
