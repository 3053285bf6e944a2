"""A hub that a command works against, opened: what it offers, who is missing, and the way to call.

A running hub is reached as if it were a server: a small hub in this process has it as the only one and uses
its names as they are. So listing, calling, progress and cancellation are the same code for both kinds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from isthmus.app.hub import LOCAL, RunningHub
from isthmus.app.links import ME
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import say
from isthmus.cli.sources import KEY_VARIABLE, Running
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.settings import Limits
from isthmus.credentials.memory import StaticCredentials
from isthmus.faces.mcp.dialogue import MISSING_KEY
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.faults import Fault, NotConnected
from isthmus.model.features import Feature
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress
from isthmus.upstream.link import ConnectFailed
from isthmus.upstream.settings import ServerSettings
from isthmus.upstream.streamable.link import StreamableLink

HUB = ServerName("hub")
"""What the running hub is called inside this process; nobody sees it but in messages."""

NOTICE_SECONDS = 1.0
"""After this long a person wants to know what is being waited for."""

REFUSED = (401, 403)

REMOTE_LIMITS = Limits(call_seconds=600.0, tools_per_server=100_000)
"""The running hub sets its own limits, and lists the tools of all its servers; these only bound a defect."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as it can be called: its name here, and the server whose tool it is."""

    name: str
    server: str
    tool: Feature


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a server's tools cannot be called now; `is_listed` if they are named all the same."""

    state: str
    reason: str | None
    is_listed: bool


@dataclass(slots=True)
class Reached:
    """An open hub. Whoever opened it closes it."""

    running: RunningHub
    surface: Surface
    link: StreamableLink | None = None
    """The way to the running hub; None if the hub is this process's own."""
    told: Mapping[str, Absence] | None = None
    """Who is missing, as the running hub said."""
    settled_at: dict[ServerName, float] = field(default_factory=dict)
    """When the first attempt of each server of an own hub ended, on the loop's clock."""

    @property
    def is_remote(self) -> bool:
        """Whether the hub runs elsewhere."""
        return self.link is not None

    @property
    def era(self) -> str | None:
        """The version of MCP that the running hub is spoken to in."""
        return None if self.link is None else self.link.dialect.version

    def offers(self) -> list[Offer]:
        """Every tool that can be called, in the order of a listing."""
        routes = self.running.hub.snapshot.view(LOCAL.grants, self.surface).routes
        return [
            Offer(name, _server_in(name) if self.is_remote else route.feature.server, route.feature)
            for name, route in routes.items()
        ]

    def absences(self) -> dict[str, Absence]:
        """Every server that is missing from the listing, and why."""
        if self.told is not None:
            return dict(self.told)
        missing = self.running.hub.snapshot.view(LOCAL.grants, self.surface).missing
        return {name: Absence(gone.state, gone.reason, gone.is_listed) for name, gone in missing.items()}

    async def aclose(self) -> None:
        """Close every link in good order."""
        if self.link is not None:
            await self.link.aclose()
        await self.running.aclose()


def _server_in(name: str) -> str:
    """Read the server from a running hub's name, for people; other styles of name make one group."""
    server, dot, _ = name.partition(".")
    return server if dot else HUB


# -- a hub of this process -----------------------------------------------------------------------------------


async def start_own(
    configuration: Configuration,
    environment: Mapping[str, str],
    *,
    within: float,
    only: Iterable[ServerName] | None = None,
) -> Reached:
    """Start a hub without state and wait for its servers, or for `only` those that are needed."""
    reached = Reached(RunningHub(_for_a_command(configuration, within, only), environment), EVERYTHING)
    reached.running.hub.watch(lambda: _note_settled(reached))
    try:
        await _settle(reached.running)
    except BaseException:
        await reached.aclose()
        raise
    return reached


def _note_settled(reached: Reached) -> None:
    now = asyncio.get_running_loop().time()
    standings = reached.running.hub.snapshot.standings
    for name in reached.running.supervisor.keepers:
        if standings[name].is_settled:
            reached.settled_at.setdefault(name, now)


def _for_a_command(configuration: Configuration, within: float, only: Iterable[ServerName] | None) -> Configuration:
    needed = None if only is None else set(only)
    servers = tuple(server for server in configuration.servers if needed is None or server.name in needed)
    limits = replace(configuration.hub.limits, listing_seconds=within)
    return replace(configuration, servers=servers, hub=replace(configuration.hub, limits=limits))


async def _settle(running: RunningHub) -> None:
    """Wait for first attempts; a person who has to wait is told for whom."""
    notice = asyncio.get_running_loop().call_later(NOTICE_SECONDS, _tell_waiting, running)
    try:
        await running.hub.settle(EVERYTHING)
    finally:
        notice.cancel()


def _tell_waiting(running: RunningHub) -> None:
    standings = running.hub.snapshot.standings.values()
    names = [standing.server for standing in standings if not standing.is_settled]
    if names and sys.stderr.isatty():
        say(f"waiting for {', '.join(sorted(names))} …")


# -- a hub that runs already ---------------------------------------------------------------------------------


async def reach_running(source: Running) -> Reached:
    """Connect to a running hub and read its list.

    Raises:
        CommandFailed: it cannot be reached, or it does not let us in.
    """
    running = RunningHub(Configuration(None, HubSettings(limits=REMOTE_LIMITS)), {})
    link = StreamableLink(
        HUB,
        ME,
        REMOTE_LIMITS,
        url=source.reach.url,
        credentials=StaticCredentials({HUB: source.reach.headers}),
        egress=Egress(),
        crew=running.crew,
        max_calls=1,
    )
    reached = Reached(running, Surface("own", HUB), link)
    try:
        await link.greet("auto")
        listing = await link.list_features({"tools"})
        reached.told = _absences_in(await link.ask("tools/list", link.dialect.params()))
    except (Fault, ConnectFailed) as failed:
        await reached.aclose()
        raise _not_reached(source, failed) from failed
    except BaseException:
        await reached.aclose()
        raise
    running.supervisor.add_local(HUB, link, listing.tools)
    return reached


def running_as_server(source: Running) -> tuple[Configuration, Surface]:
    """Describe a hub whose only server is the running one, for faces that must outlast a lost connection."""
    server = ServerSettings(HUB, source.reach, timeout=REMOTE_LIMITS.call_seconds)
    hub = HubSettings(limits=REMOTE_LIMITS)
    return Configuration(None, hub, (server,)), Surface("own", HUB)


class _Missing(msgspec.Struct):
    state: str = "missing"
    reason: str | None = None
    listed: bool = False


class _Meta(msgspec.Struct):
    missing: dict[str, _Missing] = msgspec.field(name=MISSING_KEY, default_factory=dict)


class _Listing(msgspec.Struct):
    meta: _Meta = msgspec.field(name="_meta", default_factory=_Meta)


def _absences_in(listing: msgspec.Raw) -> dict[str, Absence]:
    """Read who is missing; a server that is no hub of ours says nothing of the kind."""
    try:
        told = msgspec.json.decode(listing, type=_Listing).meta.missing
    except msgspec.MsgspecError:
        return {}
    return {name: Absence(gone.state, gone.reason, gone.listed) for name, gone in told.items()}


def _not_reached(source: Running, failed: Fault | ConnectFailed) -> CommandFailed:
    url = source.reach.url
    if isinstance(failed, NotConnected) and failed.status in REFUSED:
        return not_allowed(url, failed.status, has_key=source.has_key)
    return CommandFailed(
        Exit.UNREACHABLE,
        f"cannot reach the hub at {url}: {_words(failed)}",
        "Start one with `isthmus serve`, or name its address with --hub or ISTHMUS_HUB.",
        "To do without a running hub, name a configuration with --config.",
    )


def _words(failed: Fault | ConnectFailed) -> str:
    """Say only why: that it is about the hub is said already."""
    text = failed.message if isinstance(failed, Fault) else str(failed)
    for known in (f"Lost server {HUB} during the call: ", f"Server {HUB} is not connected: "):
        text = text.removeprefix(known)
    return text.replace(f"Server {HUB} ", "it ")


def in_hub_terms(message: str) -> str:
    """Return a fault's message where its server is the running hub."""
    return message.replace(f"Lost server {HUB} during", "Lost the hub during").replace(f"Server {HUB} ", "The hub ")


def not_allowed(url: str, status: int, *, has_key: bool) -> CommandFailed:
    """Tell that the hub does not let us in."""
    advice = (
        f"The key in {KEY_VARIABLE} is not one the hub knows: ask whoever runs it for another."
        if has_key
        else f"Set {KEY_VARIABLE} to the key of a caller that is configured there."
    )
    return CommandFailed(Exit.NOT_ALLOWED, f"the hub at {url} does not let us in (HTTP {status})", advice)
