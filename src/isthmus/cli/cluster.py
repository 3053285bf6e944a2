"""`isthmus cluster`: shows the nodes of a cluster, the servers that each owns, and the state of the bus."""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path

import click
import msgspec

from isthmus.cli.exits import Exit
from isthmus.cli.find_hub import source_of
from isthmus.cli.options import CommandGroup, with_json, with_source
from isthmus.cli.output import harmless, print_error, print_json, print_table
from isthmus.cli.relay import hub_of
from isthmus.cli.rest_client import HubClient
from isthmus.cli.run_command import quiet_logs, run_command

NAMED_MAX = 5
"""More servers of a node are counted."""


class _Node(msgspec.Struct, rename="camel"):
    name: str
    is_self: bool
    since: float
    version: str
    servers: list[str]
    differs: list[str] = []
    config_version: int | None = None
    config_problem: str = ""
    silence: float | None = None
    lag: float | None = None


class _Bus(msgspec.Struct):
    state: str
    since: float
    reason: str = ""


class _Cluster(msgspec.Struct):
    node: str
    bus: _Bus
    nodes: list[_Node]


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Show the cluster of a running hub."""


@cluster.command(short_help="List the nodes and the servers that each owns.")
@with_source
@with_json
def status(hub: str | None, config: Path | None, *, is_json: bool) -> int:
    """List the nodes that the hub sees, the servers that each owns, and whether the bus is connected.

    HEARD is the time since something came from a node, LAG the time of a request to it and its answer.

    It names the nodes whose configuration differs from the hub's, and the tables that differ, and nodes that cannot use
    the newest configuration.

    The exit status is 4 if the bus is not connected: the hub serves its own servers then, and no others.
    """
    quiet_logs()

    async def run() -> Exit:
        async with aclosing(HubClient(hub_of(source_of(hub, config)), is_needed=True)) as client:
            document = await client.cluster()
        found = msgspec.json.decode(document, type=_Cluster)
        if is_json:
            print_json(document)
        else:
            heads = ("NODE", "VERSION", "SINCE", "HEARD", "LAG", "SERVERS")
            print_table(heads, [_row(node) for node in found.nodes], ("bold",) * len(heads))
            for node in found.nodes:
                if node.config_problem:
                    why = harmless(node.config_problem)
                    print_error(f"{harmless(node.name)} does not use all of the newest configuration: {why}")
                if node.differs:
                    tables = ", ".join(node.differs)
                    print_error(f"{harmless(node.name)} has another configuration than this node: {harmless(tables)}.")
        is_connected = found.bus.state == "connected"
        if not is_connected:
            why = f": {harmless(found.bus.reason)}" if found.bus.reason else ""
            print_error(f"The bus is not connected{why}. Other nodes may be there.")
        return Exit.SUCCESS if is_connected else Exit.UNREACHABLE

    return run_command(run())


def _row(node: _Node) -> tuple[str, ...]:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(node.since))
    named = ", ".join(node.servers[:NAMED_MAX])
    more = f" and {len(node.servers) - NAMED_MAX} more" if len(node.servers) > NAMED_MAX else ""
    name = f"{node.name} (this node)" if node.is_self else node.name
    last_seen = "-" if node.silence is None else f"{node.silence:.1f} s ago"
    lag = "-" if node.is_self else "no answer" if node.lag is None else f"{node.lag * 1000:.1f} ms"
    return harmless(name), harmless(node.version) or "?", since, last_seen, lag, harmless(f"{named}{more}") or "-"
