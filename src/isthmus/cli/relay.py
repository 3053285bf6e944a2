"""`isthmus relay`: shows the servers and devices of a hub's relay, and forgets servers that are away."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from isthmus.cli.documents import DeviceInfo, DialledServerInfo, read_devices, read_dialled
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.find_hub import LocalSource, find_hub, source_of
from isthmus.cli.options import CommandGroup, with_json, with_source
from isthmus.cli.output import (
    Row,
    aligned,
    counted,
    first_line,
    in_place,
    print_error,
    print_json,
    print_output,
    show_table,
    terminal_width,
)
from isthmus.cli.rest_client import HubClient, RemoteSource, unless_away
from isthmus.cli.run_command import quiet_logs, run_command
from isthmus.config.findings import closest_match

REFRESH_SECONDS = 1.0

HEAD = ("ID", "NAME", "STATE", "OFFERS", "SINCE", "CLIENT", "REMARK")
STYLES = ("bold", "cyan", "", "", "", "", "")
WIDE = 100
"""Columns that a table with ids and names takes."""

DEVICE = "device"
STATUS_ADVICE = "`isthmus relay status` lists the servers and their states."
NOT_CONNECTED = "No server or device is connected to the relay, and none is expected back."


@click.group(cls=CommandGroup)
def relay() -> None:
    """Show the relay of a running hub, or forget servers that are away."""


@relay.command(short_help="List the agents, their servers and the devices.")
@with_source
@click.option("--watch", "is_watched", is_flag=True, help="Refresh every second, until Ctrl-C.")
@click.option("--tools", "has_tools", is_flag=True, help="List the servers' tools, too.")
@with_json
def status(hub: str | None, config: Path | None, *, is_watched: bool, has_tools: bool, is_json: bool) -> int:
    """List the agents, the servers that dialled in under them, and the connected devices."""
    if is_watched and is_json:
        raise click.UsageError("--watch and --json exclude each other.")
    quiet_logs()
    source = hub_of(source_of(hub, config))
    if not is_watched:
        return run_command(show_status(source, is_json=is_json, has_tools=has_tools))
    try:
        return run_command(watch_status(source, has_tools=has_tools))
    except KeyboardInterrupt:
        return Exit.SUCCESS


@relay.command(short_help="Forget servers of an agent that are away.")
@click.argument("agent")
@click.argument("server_id", required=False)
@with_source
def forget(agent: str, server_id: str | None, hub: str | None, config: Path | None) -> int:
    """Forget AGENT's servers that are away, or one of them, with their tools. A server that dials in again is back."""
    quiet_logs()
    return run_command(forget_servers(hub_of(source_of(hub, config)), agent, server_id))


@dataclass(frozen=True, slots=True)
class RelayOverview:
    """The servers and devices of a hub's relay."""

    servers: Sequence[DialledServerInfo] = ()
    devices: Sequence[DeviceInfo] = ()
    has_tools: bool = False
    """Whether tools are listed, or only counted."""


def hub_of(source: RemoteSource | LocalSource) -> RemoteSource:
    """The running hub: the named one, else that of the configuration.

    Raises:
        CommandFailed: none runs.
    """
    found = source if isinstance(source, RemoteSource) else find_hub(source.file, is_needed=True)
    assert found is not None, "a hub that is needed is found"
    return found


async def show_status(source: RemoteSource, *, is_json: bool, has_tools: bool = False) -> Exit:
    """Print the servers and devices; with `has_tools`, the servers' tools, too.

    Raises:
        CommandFailed: the hub cannot be reached.
    """
    async with aclosing(HubClient(source, is_needed=True)) as hub:
        servers, devices = await hub.relay("servers"), await hub.relay("devices")
    if is_json:
        members = msgspec.json.decode(servers, type=dict[str, msgspec.Raw])
        print_json(msgspec.json.encode({**members, **msgspec.json.decode(devices, type=dict[str, msgspec.Raw])}))
        return Exit.SUCCESS
    overview = RelayOverview(read_dialled(servers), read_devices(devices), has_tools)
    groups = groups_of(overview, time.time())
    if not overview.servers and not overview.devices:
        print_error(NOT_CONNECTED)
    elif sys.stdout.isatty():
        names = {server.name == f"{server.agent}_{server.server_id}" for server in overview.servers}
        if terminal_width() < WIDE and names == {True} and not has_tools:
            groups = [(heading, [_narrow(row) for row in rows]) for heading, rows in groups]
            show_table(sys.stdout, groups, _narrow(STYLES), _narrow(HEAD), is_wrapped=True)
            print_error("\nTools of a server are called AGENT_ID.TOOL.")
        else:
            show_table(sys.stdout, groups, STYLES, HEAD)
    else:
        # For grep and awk: one line each, with its agent.
        agents = agents_of(overview)
        rows = [(agent, *row) for agent, (_, rows) in zip(agents, groups, strict=True) for row in rows]
        print_output("\n".join(aligned(rows)))
    return Exit.SUCCESS


async def watch_status(source: RemoteSource, *, has_tools: bool = False) -> Exit:
    """Show the servers and devices until interrupted. While the hub is away, the last state stays.

    Raises:
        CommandFailed: the hub rejects the key, or there is no terminal.
    """
    if not sys.stdout.isatty():
        raise CommandFailed(Exit.USAGE, "--watch needs a terminal", "Leave it out to print the status once.")
    overview = RelayOverview(has_tools=has_tools)
    async with aclosing(HubClient(source, is_needed=True)) as hub:
        with in_place(sys.stdout, HEAD) as show:
            while True:
                servers, problem = await unless_away(hub.relay("servers"))
                devices, problem = (None, problem) if servers is None else await unless_away(hub.relay("devices"))
                if servers is not None and devices is not None:
                    overview = RelayOverview(read_dialled(servers), read_devices(devices), has_tools)
                show([*groups_of(overview, time.time()), *([(problem, [])] if problem else [])], STYLES)
                await asyncio.sleep(REFRESH_SECONDS)


async def forget_servers(source: RemoteSource, agent: str, server_id: str | None) -> Exit:
    """Make the hub forget an agent's servers that are away, all or one, and print their names.

    Raises:
        CommandFailed: there is no such server, or the hub cannot be reached.
    """
    async with aclosing(HubClient(source, is_needed=True)) as hub:
        known = read_dialled(await hub.relay("servers"))
        for server in _forgettable(known, agent, server_id):
            if (why := await hub.forget(server.name)) is not None:
                text = f"{server.name} was not forgotten: {first_line(why)}"
                raise CommandFailed(Exit.CALL_FAILED, text, STATUS_ADVICE)
            print_output(f"forgot {first_line(server.name)}")
    return Exit.SUCCESS


def _forgettable(known: Sequence[DialledServerInfo], agent: str, server_id: str | None) -> list[DialledServerInfo]:
    meant = [server for server in known if server.agent == agent and server_id in (None, server.server_id)]
    away = [server for server in meant if server.state == "away"]
    if away:
        return away
    named = f"the agent {agent!r}" if server_id is None else f"the server {server_id!r} of the agent {agent!r}"
    if not meant:
        ids = {server.server_id for server in known if server.agent == agent}
        given, names = (server_id or "", ids) if ids else (agent, {server.agent for server in known})
        similar = closest_match(given, names)
        advice = f"Did you mean {similar}?" if similar else STATUS_ADVICE
        raise CommandFailed(Exit.CALL_FAILED, f"the hub does not know {named}", advice)
    why = f"{named} is connected" if server_id is not None else f"every server of {named} is connected"
    raise CommandFailed(
        Exit.CALL_FAILED, f"nothing was forgotten: {why}", "Only servers that are away can be forgotten."
    )


# -- printing --------------------------------------------------------------------------------------------------------


def agents_of(overview: RelayOverview) -> list[str]:
    """All agents with a server or a device."""
    servers, devices = overview.servers, overview.devices
    return sorted({server.agent for server in servers} | {device.agent for device in devices})


def groups_of(overview: RelayOverview, now: float) -> list[tuple[str, list[Row]]]:
    """The servers and devices of each agent as rows, under a heading."""
    if not overview.servers and not overview.devices:
        return [(NOT_CONNECTED, [])]
    groups: list[tuple[str, list[Row]]] = []
    for agent in agents_of(overview):
        servers = [server for server in overview.servers if server.agent == agent]
        devices = [device for device in overview.devices if device.agent == agent]
        rows = [row for server in servers for row in _server_rows(server, now, has_tools=overview.has_tools)]
        for device in devices:
            calls = f"{counted(device.calls, 'call')} now" if device.calls else f"{device.answered} answered"
            since, title = duration_text(now - device.since), first_line(device.title or "")
            rows.append((device.id, DEVICE, "connected", calls, since, device.client or "-", title))
        groups.append((f"{agent}: {counted(len(servers), 'server')}, {counted(len(devices), 'device')}", rows))
    return groups


def _server_rows(server: DialledServerInfo, now: float, *, has_tools: bool) -> Iterator[Row]:
    yield (
        server.server_id,
        server.name,
        server.state,
        counted(len(server.tools), "tool"),
        duration_text(now - server.since),
        server.client or "-",
        first_line(server.reason or server.title or ""),
    )
    for tool in server.tools if has_tools else ():
        yield server.server_id, f"{server.name}.{first_line(tool)}", "tool", "", "", "", ""


def _narrow(row: Row) -> Row:
    """A row without client and name, for a narrow terminal; the name follows from the agent and the id."""
    return (f"device {row[0]}" if row[1] == DEVICE else row[0], *row[2:5], *row[6:])


def duration_text(seconds: float) -> str:
    """A duration in its largest unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"
