"""Servers that callers name: permission, identity, and lifetime."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.ports import OpenTarget, TargetSpec
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller, Grants
from isthmus.model.fault_table import Bug, Cancelled, Draining, Fault, NotConnected, TargetRefused, TooManyTargets
from isthmus.model.names import ServerName
from isthmus.telemetry.call_metrics import CallMetrics
from isthmus.transport.egress import DialAddress, Egress, HttpOrigin
from isthmus.upstream.base_link import WrongCarrier
from isthmus.upstream.server_settings import (
    HttpSettings,
    JsonRpcSettings,
    ServerSettings,
    StdioSettings,
    TargetHttpSettings,
)
from isthmus.upstream.targets import named_servers as module
from isthmus.upstream.targets.named_servers import NamedServer, NamedServers, ways_to
from isthmus.upstream.targets.settings import TargetSettings, read_address
from tests.unit.upstream.scripted import SECONDS, Kept, Scripted

PUBLIC, PRIVATE = "93.184.216.34", "10.0.0.1"
PLANNER = Caller("planner", "t", Grants(("shop",)), may_name_targets=True)
WRITER = Caller("writer", "t", Grants(()), may_name_targets=True)
GUEST = Caller("guest", "t", Grants(("shop",)))
SHOP = ServerSettings(ServerName("shop"), HttpSettings("https://shop.example.com/mcp?key=1"))
VAULT = ServerSettings(ServerName("vault"), JsonRpcSettings("https://vault.example.com/rpc"))
LOCAL = ServerSettings(ServerName("local"), StdioSettings("server"))
ODD = ServerSettings(ServerName("odd"), HttpSettings("https://odd.example.com/a//b"))
A, B, C = "https://a.example.com", "https://b.example.com", "https://c.example.com"
SETTINGS = TargetSettings(("https://*.example.com", "http://10.0.0.1:9000"), ("Authorization",))


class Names:
    """A resolver that answers with one address after the other, the last for ever."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def __call__(self, origin: HttpOrigin) -> list[DialAddress]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [DialAddress(socket.AF_INET, (answer, origin.port))]


class Scene:
    """A hub with configured servers, and the annex for those that callers name."""

    def __init__(self) -> None:
        self.kept = Kept()
        self.hub = Hub(Limits(), CallMetrics())
        for server in (SHOP, VAULT, LOCAL, ODD):
            self.hub.open_server_queue(
                ServerQueue(server.name, self.hub.limits), ServerStatus(server.name, "ready", is_settled=True)
            )
        self.names = Names(PUBLIC)
        self.configured: tuple[ServerSettings, ...] = (SHOP, VAULT, LOCAL, ODD)
        self.targets = NamedServers(
            self.hub,
            self.kept.hub,
            self.kept.supervisor,
            self.kept.background,
            Egress(resolver=self.names),
            SETTINGS,
            lambda: self.configured,
        )

    def aim(self, url: str = A, caller: Caller = PLANNER, **more: Any) -> NamedServer:
        """What a caller may name."""
        found = self.targets.find(caller, TargetSpec(url, **more))
        assert isinstance(found, NamedServer), found
        return found

    def refusal(self, url: str = A, caller: Caller = PLANNER, **more: Any) -> str:
        """Why a caller may not name an address."""
        found = self.targets.find(caller, TargetSpec(url, **more))
        assert isinstance(found, TargetRefused), found
        return found.message

    def going(self, url: str = A, caller: Caller = PLANNER, **more: Any) -> asyncio.Future[OpenTarget | Fault]:
        """On the way to a server."""
        over: asyncio.Future[OpenTarget | Fault] = asyncio.get_running_loop().create_future()
        self.aim(url, caller, **more).open(over.set_result)
        return over

    async def open(self, url: str = A, caller: Caller = PLANNER, **more: Any) -> OpenTarget:
        """A server that was reached."""
        async with asyncio.timeout(SECONDS):
            opened = await self.going(url, caller, **more)
        assert isinstance(opened, OpenTarget), opened
        return opened

    async def fault(self, url: str = A, caller: Caller = PLANNER, **more: Any) -> Fault:
        """Why a server was not."""
        async with asyncio.timeout(SECONDS):
            opened = await self.going(url, caller, **more)
        assert isinstance(opened, Fault), opened
        return opened

    @property
    def server_status(self) -> list[str]:
        """The servers of the annex."""
        return [*self.kept.hub.snapshot.server_statuses]

    def change(self, **more: Any) -> None:
        """Have other settings."""
        self.targets.settings = TargetSettings(**{"allow": SETTINGS.allow, "headers": SETTINGS.headers, **more})


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.targets.aclose()
    await made.kept.aclose()


# -- where a server is looked for --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "ways"),
    [
        ("http://h.a", [("http", "/mcp"), ("sse", "/sse"), ("rpc", "/messages/"), ("rpc", "/")]),
        ("http://h.a/x", [("http", "/x"), ("sse", "/x"), ("rpc", "/x")]),
        ("http://h.a/x/sse", [("sse", "/x/sse"), ("http", "/x/sse"), ("rpc", "/x/sse")]),
        ("http://h.a/x/messages/", [("http", "/x/messages/"), ("sse", "/x/sse"), ("rpc", "/x/messages/")]),
        ("http://h.a?k=1", [("http", "/mcp?k=1"), ("sse", "/sse?k=1"), ("rpc", "/messages/?k=1"), ("rpc", "/?k=1")]),
    ],
)
def test_a_server_is_looked_for_where_it_may_be(url: str, ways: list[tuple[str, str]]) -> None:
    assert list(ways_to(read_address(url))) == [(carrier, f"http://h.a{path}") for carrier, path in ways]


# -- who may name what -------------------------------------------------------------------------------------------------


async def test_whose_tenant_is_held_to_less_than_everything_names_nothing_else(scene: Scene) -> None:
    held = msgspec.structs.replace(PLANNER, grants=PLANNER.grants.bounded_by(Grants(("shop", "files"))))
    assert not isinstance(scene.targets.find(PLANNER, TargetSpec(A)), Fault)
    assert "its tenant or this frontend" in scene.refusal(A, held)
    assert scene.targets.find(held, TargetSpec("https://shop.example.com")) == "shop"


async def test_the_address_of_a_configured_server_is_that_server(scene: Scene) -> None:
    for url in ("https://shop.example.com", "https://shop.example.com/mcp", "https://SHOP.example.com:443/%6dcp/"):
        for caller in (PLANNER, GUEST):
            assert scene.targets.find(caller, TargetSpec(url)) == "shop"
    assert "does not accept mcp_headers" in scene.refusal("https://shop.example.com", headers={"Authorization": "x"})


async def test_targets_with_different_queries_are_distinct(scene: Scene) -> None:
    assert scene.targets.find(PLANNER, TargetSpec("https://shop.example.com/mcp?key=1")) == "shop"
    assert "[targets] allow" in scene.refusal("https://shop.example.com/mcp?key=2")


async def test_of_two_servers_at_one_address_it_is_the_one_that_the_caller_may_see(scene: Scene) -> None:
    scene.configured = (ServerSettings(ServerName("vault"), SHOP.reach), SHOP, LOCAL)
    assert scene.targets.find(PLANNER, TargetSpec("https://shop.example.com")) == "shop"


async def test_for_a_hidden_server_a_caller_gets_the_error_of_any_address(scene: Scene) -> None:
    for path in ("/rpc", "/rpc/", "/rpc?x=1"):
        hidden = scene.refusal(f"https://vault.example.com{path}")
        assert hidden == scene.refusal("https://not.example.org").replace("not.example.org", "vault.example.com")


async def test_an_address_must_be_listed_and_its_caller_trusted_with_that(scene: Scene) -> None:
    assert scene.aim(A).reach.ways == ways_to(read_address(A))
    assert "Caller guest may name configured servers only; with targets = true" in scene.refusal(A, GUEST)
    anyone = scene.refusal(A, replace(GUEST, is_anyone=True))
    assert "[targets] open = true would let every caller of this hub name addresses" in anyone
    assert "[targets] allow" in scene.refusal("https://a.example.org")
    assert "no usable address" in scene.refusal("https://a.example.com", path="/..")
    assert not scene.aim(A).reach.is_trusted
    assert scene.aim("http://10.0.0.1:9000").reach.is_trusted


async def test_only_those_places_are_looked_at_that_are_allowed(scene: Scene) -> None:
    scene.change(allow=("https://*.example.com/sse",))
    assert scene.aim(A).reach.ways == (("sse", f"{A}/sse"),)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Cookie": "x"}, "Header Cookie may not be sent; [targets] headers would have to list it"),
        ({"Authorization": "x", "authorization": "y"}, "name each once"),
        ({"Authorization": "hunter22" * 3000}, "characters in all at most"),
        ({"Authorization": "hunter22\r\nX-Evil: 1"}, "mcp_headers.authorization must be one line"),
        ({"Authorization": "hunter22\u20ac"}, "mcp_headers.authorization must be one line"),
    ],
)
async def test_headers_are_those_that_are_listed(scene: Scene, headers: dict[str, str], words: str) -> None:
    said = scene.refusal(A, headers=headers)
    assert words in said
    assert "hunter22" not in said


async def test_neither_a_wish_nor_an_aim_shows_its_headers(scene: Scene) -> None:
    named = TargetSpec(A, headers={"Authorization": "hunter22"})
    assert "hunter22" not in f"{named!r}{scene.targets.find(PLANNER, named)!r}"


# -- reaching one ------------------------------------------------------------------------------------------------------


async def test_a_server_is_reached_in_the_annex_and_nowhere_else(scene: Scene) -> None:
    opened = await scene.open()
    assert opened.hub is scene.kept.hub
    assert scene.server_status == [opened.server]
    assert opened.server.startswith("a.example.com#")
    assert opened.server not in scene.hub.snapshot.server_statuses


async def test_the_link_is_used_again_by_the_same_caller_with_the_same_headers_only(scene: Scene) -> None:
    first = await scene.open(headers={"Authorization": "x"})
    assert (await scene.open(headers={"authorization": "x"})).server == first.server
    others = [
        await scene.open(headers={"Authorization": "y"}),
        await scene.open(),
        await scene.open(caller=WRITER, headers={"Authorization": "x"}),
        await scene.open(path="/mcp", headers={"Authorization": "x"}),
        await scene.open(B, headers={"Authorization": "x"}),
    ]
    assert len({first.server, *(other.server for other in others)}) == 6
    assert all(part != "x" for key in scene.targets._servers for part in key)


async def test_a_name_that_leads_into_a_private_network_is_refused(scene: Scene) -> None:
    scene.names.answers = [PRIVATE]
    fault = await scene.fault()
    assert isinstance(fault, TargetRefused)
    assert "a.example.com may not be dialled: its address is private" in fault.message
    assert "list this host literally" in fault.message
    assert (scene.server_status, scene.kept.links) == ([], [])


async def test_a_literally_listed_address_is_not_resolved(scene: Scene) -> None:
    scene.names.answers = [PRIVATE]
    await scene.open("http://10.0.0.1:9000")
    reach = scene.kept.links[0].settings
    assert reach is not None
    assert isinstance(reach.reach, TargetHttpSettings)
    assert reach.reach.is_trusted


async def test_how_a_server_is_spoken_to_is_found_out_and_remembered(scene: Scene) -> None:
    scene.kept.prepare = speaks("sse")
    first = await scene.open()
    assert [link.by for link in scene.kept.links] == ["http", "sse"]
    scene.targets._forget(scene.targets._key(scene.aim()))
    scene.kept.links.clear()
    assert (await scene.open()).server != first.server
    assert [link.by for link in scene.kept.links] == ["sse"]


async def test_of_many_it_is_forgotten_how_the_first_are_spoken_to(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 1)
    scene.kept.prepare = speaks("sse")
    for url in (A, B):
        await scene.open(url)
    for url in (A, B):
        scene.targets._forget(scene.targets._key(scene.aim(url)))
    scene.kept.links.clear()
    for url in (B, A):
        await scene.open(url)
    assert [link.by for link in scene.kept.links] == ["sse", "http", "sse"]


def speaks(*carriers: str) -> Callable[[Scripted], None]:
    def prepare(link: Scripted) -> None:
        link.carrier = link.by
        if link.by not in carriers:
            link.refusal = WrongCarrier(f"it does not speak {link.by}")

    return prepare


async def test_a_server_without_mcp_is_distinguished(scene: Scene) -> None:
    scene.kept.prepare = speaks("rpc")
    assert (await scene.open()).is_plain


async def test_an_unreachable_server_is_dropped_at_once_and_tried_anew_the_next_time(scene: Scene) -> None:
    scene.kept.prepare = speaks()
    fault = await scene.fault()
    assert isinstance(fault, NotConnected)
    assert "it does not speak http; it does not speak sse; it does not speak rpc" in fault.message
    await scene.kept.until(lambda: not scene.kept.supervisor.reconnectors and not scene.server_status)
    scene.kept.prepare = speaks("http")
    await scene.open()


async def test_a_server_that_wants_a_login_says_where(scene: Scene) -> None:
    def prepare(link: Scripted) -> None:
        link.refusal = NotConnected(link.server, "it answered HTTP 401", status=401, login="https://login.example")

    scene.kept.prepare = prepare
    fault = await scene.fault()
    assert isinstance(fault, NotConnected)
    assert fault.login == "https://login.example"


async def test_a_server_that_does_not_answer_in_time_is_dropped(scene: Scene) -> None:
    scene.hub.limits = Limits(call_seconds=0.01)
    hold(scene)
    fault = await scene.fault()
    assert "it did not answer in time" in fault.message
    assert scene.server_status == []


async def test_a_target_forbidden_while_connecting_is_not_called(scene: Scene) -> None:
    held = hold(scene)
    going = scene.going()
    await scene.kept.until(lambda: len(scene.kept.links) == 1)
    scene.targets.change(TargetSettings(), [PLANNER])
    held.set()
    assert isinstance(await going, NotConnected)


async def test_a_lost_server_is_reached_anew(scene: Scene) -> None:
    first = await scene.open()
    scene.kept.refuse("no")
    scene.kept.links[-1].die("gone")
    await scene.kept.until(lambda: scene.kept.hub.snapshot.server_statuses[first.server].state == "retrying")
    scene.kept.refuse(None)
    assert (await scene.open()).server != first.server


async def test_headers_echoed_by_a_server_are_redacted(scene: Scene) -> None:
    def prepare(link: Scripted) -> None:
        link.refusal = WrongCarrier("who sends Bearer hunter22 or hunter22 is unknown")

    scene.kept.prepare = prepare
    fault = await scene.fault(headers={"Authorization": "Bearer hunter22"})
    assert "who sends *** or *** is unknown" in fault.message


async def test_there_are_only_so_many_on_their_way_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPENING_MAX", 1)
    held = hold(scene)
    going = scene.going()
    assert isinstance(await scene.fault(), TooManyTargets)
    held.set()
    assert isinstance(await going, OpenTarget)


async def test_no_caller_takes_all_connection_attempts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPENING_MAX", 4)
    held = hold(scene)
    going = [scene.going(), scene.going(B)]
    assert isinstance(await scene.fault(C), TooManyTargets)
    going += [scene.going(C, WRITER), scene.going(A, WRITER)]
    held.set()
    async with asyncio.timeout(SECONDS):
        assert all(isinstance(opened, OpenTarget) for opened in await asyncio.gather(*going))
    assert isinstance(await scene.open(C), OpenTarget), "those who arrived are on no way"


async def test_a_call_to_a_known_server_takes_no_attempt(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPENING_MAX", 2)
    known = await scene.open()
    await scene.kept.until(lambda: scene.targets.running() == 0)
    held = hold(scene)
    going = scene.going(B)
    await scene.kept.until(lambda: len(scene.kept.links) == 2)
    assert isinstance(await scene.fault(C), TooManyTargets)
    assert (await scene.open()).server == known.server
    held.set()
    assert isinstance(await going, OpenTarget)


async def test_several_callers_at_once_share_one_attempt(scene: Scene) -> None:
    held = hold(scene)
    going = [scene.going() for _ in range(3)]
    await scene.kept.until(lambda: len(scene.kept.links) == 1)
    held.set()
    servers = {opened.server for opened in await asyncio.gather(*going)}
    assert len(servers) == len(scene.kept.links) == 1


def hold(scene: Scene) -> asyncio.Event:
    """Have servers wait with their greeting until the event is set."""
    opened = asyncio.Event()

    def prepare(link: Scripted) -> None:
        link.greeting = opened

    scene.kept.prepare = prepare
    return opened


# -- giving up ---------------------------------------------------------------------------------------------------------


async def test_a_cancelled_caller_gets_nothing_more(scene: Scene) -> None:
    held = hold(scene)
    received: list[OpenTarget | Fault] = []
    turn_back = scene.aim().open(received.append)
    await scene.kept.until(lambda: len(scene.kept.links) == 1)
    assert scene.targets.running() == 1
    turn_back()
    held.set()
    await scene.kept.until(
        lambda: scene.kept.hub.snapshot.server_statuses[ServerName(scene.server_status[0])].state == "ready"
    )
    assert (received, scene.targets.running()) == ([], 0)


async def test_when_the_hub_shuts_down_connecting_callers_get_an_error_and_no_new_one_starts(scene: Scene) -> None:
    hold(scene)
    going = scene.going()
    await scene.kept.until(lambda: len(scene.kept.links) == 1)
    scene.targets.cancel_all("the hub is shutting down")
    fault = await going
    assert isinstance(fault, Cancelled)
    assert fault.executed == "no"
    scene.hub.refuse_new_calls()
    assert isinstance(await scene.fault(), Draining)


async def test_a_defect_while_connecting_is_reported_as_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.targets, "_admit", None)
    assert isinstance(await scene.fault(), Bug)


# -- letting them go ---------------------------------------------------------------------------------------------------


async def test_an_unused_server_is_dropped_after_a_while(scene: Scene) -> None:
    scene.change(idle=0.01)
    await scene.open()
    link = scene.kept.links[0]
    await scene.kept.until(lambda: link.is_closed)
    assert scene.server_status == []


async def test_a_used_server_is_kept(scene: Scene) -> None:
    scene.change(idle=0.01)
    opened = await scene.open()
    server_queue = scene.kept.hub.server_queues[opened.server]
    server_queue.running = 1
    until = asyncio.get_running_loop().time() + 0.05
    await scene.kept.until(lambda: asyncio.get_running_loop().time() > until)
    assert scene.server_status == [opened.server]
    server_queue.running = 0
    await scene.kept.until(lambda: not scene.server_status)


async def test_for_one_more_the_one_goes_that_was_used_longest_ago(scene: Scene) -> None:
    scene.change(max=4)
    first, second = await scene.open(A), await scene.open(B)
    assert (await scene.open(A)).server == first.server
    third = await scene.open(C)
    assert scene.server_status == [first.server, third.server]
    assert second.server not in scene.server_status


async def test_no_caller_takes_all_the_room_and_servers_in_use_stay(scene: Scene) -> None:
    scene.change(max=2)
    busy = await scene.open(A)
    scene.kept.hub.server_queues[busy.server].running = 1
    assert isinstance(await scene.fault(B), TooManyTargets)
    others = await scene.open(B, WRITER)
    scene.kept.hub.server_queues[others.server].running = 1
    assert isinstance(await scene.fault(C, Caller("third", "t", Grants(()), may_name_targets=True)), TooManyTargets)
    for server in (busy.server, others.server):
        scene.kept.hub.server_queues[server].running = 0


@pytest.mark.parametrize(
    ("settings", "callers", "stays"),
    [
        (SETTINGS, [PLANNER], True),
        (TargetSettings(SETTINGS.allow), [PLANNER], False),
        (TargetSettings(("https://b.example.com",), SETTINGS.headers), [PLANNER], False),
        (TargetSettings((A,), SETTINGS.headers), [PLANNER], False),
        (SETTINGS, [WRITER], False),
    ],
    ids=["the same", "a header less", "an address less", "another trust", "a caller less"],
)
async def test_a_target_that_is_no_longer_allowed_is_closed(
    scene: Scene, settings: TargetSettings, callers: list[Caller], *, stays: bool
) -> None:
    await scene.open(headers={"Authorization": "x"})
    scene.targets.change(settings, callers)
    assert bool(scene.server_status) is stays
