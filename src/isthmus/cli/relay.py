"""`isthmus relay`: the agents of a running hub, the servers that dialled in under them, and their devices.

`status` shows them, `forget` has the hub forget servers that are away.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from isthmus.cli.addresses import configured_origin
from isthmus.cli.documents import DeviceTold, DialledTold, read_devices, read_dialled
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import Row, aligned, first_line, in_place, say, show_table, write, write_json
from isthmus.cli.remote import RemoteHub
from isthmus.cli.sources import Own, Running, configuration_of, source_of

REFRESH_SECONDS = 1.0

STYLES = ("bold", "cyan", "", "", "", "", "")
WHO_IS_THERE = "`isthmus relay status` says who is there and who is away."
NOBODY = "Nobody is connected to the relay, and nobody is expected back."


@dataclass(frozen=True, slots=True)
class Status:
    """The relay as a hub tells it."""

    servers: Sequence[DialledTold] = ()
    devices: Sequence[DeviceTold] = ()
    has_tools: bool = False
    """Whether tools are named, or only counted."""


def hub_of(source: Running | Own) -> Running:
    """Return the hub to ask: the one that is named, else the one that the configuration describes.

    Raises:
        CommandFailed: nothing says where it is.
    """
    if isinstance(source, Running):
        return source
    found = source_of(configured_origin(configuration_of(source.file).hub), None)
    assert isinstance(found, Running), "an address is that of a running hub"
    return found


async def show_status(source: Running, *, is_json: bool, has_tools: bool = False) -> Exit:
    """Print who is there; `has_tools` names the servers' tools, too.

    Raises:
        CommandFailed: there is no hub to ask.
    """
    hub = RemoteHub(source, is_needed=True)
    try:
        servers, devices = await hub.relay("servers"), await hub.relay("devices")
    finally:
        await hub.aclose()
    if is_json:
        write_json(_joined(servers, devices))
    else:
        _show(Status(read_dialled(servers), read_devices(devices), has_tools))
    return Exit.WELL


async def watch_status(source: Running, *, has_tools: bool = False) -> Exit:
    """Show who is there, anew every second, until interrupted. A hub that goes away is waited for.

    Raises:
        CommandFailed: the hub does not let us in, or there is no terminal to show it on.
    """
    if not sys.stdout.isatty():
        raise CommandFailed(Exit.USAGE, "--watch needs a terminal", "Leave it out, and ask again when you like.")
    hub, status = RemoteHub(source, is_needed=True), Status(has_tools=has_tools)
    try:
        with in_place(sys.stdout) as show:
            while True:
                status, trouble = await _look(hub, status)
                show([*groups_of(status, time.time()), *([(trouble, [])] if trouble else [])], STYLES)
                await asyncio.sleep(REFRESH_SECONDS)
    finally:
        await hub.aclose()


async def _look(hub: RemoteHub, before: Status) -> tuple[Status, str | None]:
    """Ask; a hub that cannot be reached just now leaves what was seen last, and why."""
    try:
        servers, devices = await hub.relay("servers"), await hub.relay("devices")
        return Status(read_dialled(servers), read_devices(devices), before.has_tools), None
    except CommandFailed as failed:
        if failed.exit is not Exit.UNREACHABLE:
            raise
        return before, failed.message


async def forget_servers(source: Running, agent: str, server_id: str | None) -> Exit:
    """Have the hub forget an agent's servers that are away, all of them or one, and print their names.

    Raises:
        CommandFailed: there is none that could be forgotten, or no hub to ask.
    """
    hub = RemoteHub(source, is_needed=True)
    try:
        known = read_dialled(await hub.relay("servers"))
        for server in _forgettable(known, agent, server_id):
            if (why := await hub.forget(server.name)) is not None:
                said = f"{server.name} was not forgotten: {first_line(why)}"
                raise CommandFailed(Exit.CALL_FAILED, said, WHO_IS_THERE)
            write(f"forgot {first_line(server.name)}")
    finally:
        await hub.aclose()
    return Exit.WELL


def _forgettable(known: Sequence[DialledTold], agent: str, server_id: str | None) -> list[DialledTold]:
    meant = [server for server in known if server.agent == agent and server_id in (None, server.server_id)]
    away = [server for server in meant if server.state == "away"]
    if away:
        return away
    named = f"the agent {agent!r}" if server_id is None else f"the server {server_id!r} of the agent {agent!r}"
    if not meant:
        raise CommandFailed(Exit.CALL_FAILED, f"the hub does not know {named}", WHO_IS_THERE)
    why = f"{named} is connected" if server_id is not None else f"every server of {named} is connected"
    raise CommandFailed(Exit.CALL_FAILED, f"nothing was forgotten: {why}", "Only who is away can be forgotten.")


def _joined(servers: bytes, devices: bytes) -> bytes:
    members = msgspec.json.decode(servers, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**members, **msgspec.json.decode(devices, type=dict[str, msgspec.Raw])})


# -- showing ---------------------------------------------------------------------------------------------------------


def _show(status: Status) -> None:
    groups = groups_of(status, time.time())
    if not status.servers and not status.devices:
        say(NOBODY)
    elif sys.stdout.isatty():
        show_table(sys.stdout, groups, STYLES)
    else:
        # For grep and awk: a line each, with whose it is.
        agents = agents_of(status)
        rows = [(agent, *row) for agent, (_, rows) in zip(agents, groups, strict=True) for row in rows]
        write("\n".join(aligned(rows)))


def agents_of(status: Status) -> list[str]:
    """Return everybody under whose name somebody is there."""
    named = {server.agent for server in status.servers} | {device.agent for device in status.devices}
    return sorted(named)


def groups_of(status: Status, now: float) -> list[tuple[str, list[Row]]]:
    """Return the servers and devices of each agent as rows, under a heading."""
    if not status.servers and not status.devices:
        return [(NOBODY, [])]
    return [_group(agent, status, now) for agent in agents_of(status)]


def _group(agent: str, status: Status, now: float) -> tuple[str, list[Row]]:
    servers = [server for server in status.servers if server.agent == agent]
    devices = [device for device in status.devices if device.agent == agent]
    heading = f"{agent}: {_counted(len(servers), 'server')}, {_counted(len(devices), 'device')}"
    rows = [row for server in servers for row in _of_server(server, now, has_tools=status.has_tools)]
    return heading, [*rows, *(_of_device(device, now) for device in devices)]


def _of_server(server: DialledTold, now: float, *, has_tools: bool) -> Iterator[Row]:
    yield (
        server.server_id,
        server.name,
        server.state,
        _counted(len(server.tools), "tool"),
        lasted(now - server.since),
        server.client or "-",
        first_line(server.reason or server.title or ""),
    )
    for tool in server.tools if has_tools else ():
        yield server.server_id, f"{server.name}.{first_line(tool)}", "tool", "", "", "", ""


def _of_device(device: DeviceTold, now: float) -> Row:
    calls = f"{_counted(device.calls, 'call')} now" if device.calls else f"{device.answered} answered"
    since = lasted(now - device.since)
    return device.id, "device", "connected", calls, since, device.client or "-", first_line(device.title or "")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def lasted(seconds: float) -> str:
    """Return a span of time as a person would say it."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"
