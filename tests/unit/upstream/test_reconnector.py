"""A server is kept connected: attempts, lists, watching, retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from isthmus.core.calls.server_queue import LOG_LINES_MAX
from isthmus.core.catalog.definition_review import Review
from isthmus.core.catalog.pins import Pinning, Pins
from isthmus.core.ports import Subscriber
from isthmus.model.calls import EVERYTHING, LogMessage
from isthmus.model.fault_table import BadReply, Lost, NotConnected, ServerError
from isthmus.upstream import listing as paces
from isthmus.upstream import reconnector as module
from isthmus.upstream.base_link import BaseLink, ConnectFailed, WrongCarrier
from isthmus.upstream.link_pool import LinkPool
from isthmus.upstream.listing import ListCache, Listing
from isthmus.upstream.reconnector import Backoff, ToolGuard
from isthmus.upstream.server_set import Supervisor
from isthmus.upstream.server_settings import HttpSettings, StdioSettings, TargetHttpSettings
from isthmus.wire.mcp.messages import ServerCapabilities
from tests.unit.core.doubles import ANYONE, Stage, call, prompt, raw, ready, tool
from tests.unit.upstream.scripted import NAME, SECONDS, Kept, Scripted, finish, settings

ADDRESS = HttpSettings("http://localhost/mcp")
ANNOUNCING = msgspec.convert({"tools": {"listChanged": True}}, ServerCapabilities)


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    made = Kept()
    yield made
    await made.aclose()


async def test_a_server_is_ready_once_it_was_greeted_and_listed(kept: Kept) -> None:
    kept.keep()
    assert kept.server_status.state == "starting"
    await kept.until(lambda: kept.server_status.state == "ready")
    assert [tool.name for tool in kept.server_status.tools] == ["read"]
    assert (kept.server_status.era, kept.server_status.carrier) == ("2026-07-28", "script")
    assert "subscribe" in kept.server_status.abilities


# -- lists ---------------------------------------------------------------------------------------------------------


async def test_an_announced_change_is_listed_once_however_often_it_is_announced(kept: Kept) -> None:
    link = await kept.ready()
    link.names.append("write")
    for _ in range(1000):
        link.on_changed("tools")
    await kept.until(lambda: len(kept.server_status.tools) == 2)
    assert link.listings == [{"tools", "prompts", "resources"}, {"tools"}]


async def test_a_change_that_is_announced_while_a_server_is_listed_for_the_first_time_is_not_lost(kept: Kept) -> None:
    def hasty(link: Scripted) -> None:
        listing = link.list_features

        async def list_and_change(*given: Any) -> Listing:
            listed = await listing(*given)
            if len(link.listings) == 1:
                link.names.append("write")
                link.on_changed("tools")
            return listed

        link.list_features = list_and_change  # type: ignore[method-assign, assignment]

    kept.prepare = hasty
    link = await kept.ready()
    await kept.until(lambda: len(kept.server_status.tools) == 2)
    assert link.listings == [{"tools", "prompts", "resources"}, {"tools"}]


async def test_lists_wait_for_one_reading_after_the_news_of_another_node_however_often_a_list_changes(
    kept: Kept,
) -> None:
    link = await kept.ready()
    listing = link.list_features

    async def list_and_change(*given: Any) -> Listing:
        listed = await listing(*given)
        link.on_changed("tools")
        return listed

    link.list_features = list_and_change  # type: ignore[method-assign, assignment]
    kept.supervisor.reconnectors[NAME].lists_changed(("tools",))
    assert kept.hub.settling
    await kept.until(lambda: not kept.hub.settling)
    assert link.listings == [{"tools", "prompts", "resources"}, {"tools"}]


async def test_lists_wait_for_a_reading_that_begins_after_news_of_another_node(kept: Kept) -> None:
    link = await kept.ready()
    listing, began, gate = link.list_features, asyncio.Event(), asyncio.Event()

    async def list_slowly(*given: Any) -> Listing:
        listed = await listing(*given)
        began.set()
        await gate.wait()
        return listed

    link.list_features = list_slowly  # type: ignore[method-assign, assignment]
    link.on_changed("tools")
    await began.wait()
    kept.supervisor.reconnectors[NAME].lists_changed(("tools",))
    asked = asyncio.ensure_future(kept.hub.wait_connected(EVERYTHING))
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(SECONDS):
        await asked
    assert not kept.hub.settling
    assert link.listings == [{"tools", "prompts", "resources"}, {"tools"}, {"tools"}]


async def test_a_link_that_is_lost_while_its_list_is_looked_at_is_not_taken_up(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be long, and is looked at a little at a time."""
    states: list[str] = []

    async def lose(_features: Any) -> None:
        kept.refuse("it is gone")
        kept.links[0].die("it fell")
        kept.hub.watch(lambda: states.append(kept.server_status.state))

    monkeypatch.setattr(kept.hub.review, "prepare", lose)
    kept.keep()
    await kept.until(lambda: kept.server_status.reason is not None and "gone" in kept.server_status.reason)
    assert "ready" not in states


async def test_a_server_with_change_notifications_is_listed_at_these_and_once(kept: Kept) -> None:
    asked: list[int] = []

    def told(link: Scripted) -> None:
        def listen() -> None:
            asked.append(len(link.listings))
            link._expect_listening()
            link._listen_done()

        link.capabilities = ANNOUNCING
        link.listen = listen  # type: ignore[method-assign]

    kept.prepare = told
    link = await kept.ready()
    link.on_changed("prompts")
    await kept.until(lambda: len(link.listings) == 2)
    assert (asked, link.listings[1]) == ([0], {"prompts"})


@pytest.mark.parametrize("is_refused", [True, False])
async def test_a_server_that_confirms_its_notifications_late_is_listed_again(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    monkeypatch.setattr(module, "LISTEN_ACK_SECONDS", 0.0)

    def slow(link: Scripted) -> None:
        link.capabilities = ANNOUNCING
        link.listen = link._expect_listening  # type: ignore[method-assign]

    kept.prepare = slow
    link = await kept.ready()
    assert len(link.listings) == 1
    link._listen_done(BadReply(NAME, "no such stream") if is_refused else None)
    await asyncio.sleep(0)
    link.on_changed("prompts")
    await kept.until(lambda: len(link.listings) == 2)
    assert link.listings[1] == ({"prompts"} if is_refused else {"tools", "prompts", "resources"})


async def test_an_unannounced_change_is_found_by_polling(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PING_SECONDS", 0.005)
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.01)
    link = await kept.ready()
    link.names.append("write")
    await kept.until(lambda: len(kept.server_status.tools) == 2)


async def test_a_list_is_asked_for_when_its_server_says_that_it_goes_stale(kept: Kept) -> None:
    def brief(link: Scripted) -> None:
        link.ttl_seconds = {"tools": 0.01, "prompts": 3000.0, "resources": 3000.0}

    kept.prepare = brief
    link = await kept.ready()
    link.names.append("write")
    await kept.until(lambda: len(kept.server_status.tools) == 2)


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [
        ({}, 60.0),
        ({"tools": 5.0, "prompts": 500.0, "resources": 500.0}, 5.0),
        ({"tools": 500.0, "prompts": 500.0, "resources": 500.0}, 500.0),
        ({"tools": 500.0}, 60.0),  # of the others it says nothing
        ({"tools": 1e9, "prompts": 1e9, "resources": 1e9}, 3600.0),
    ],
)
async def test_lists_hold_as_long_as_their_server_says_and_others_a_minute(
    kept: Kept, ttl: dict[str, float], seconds: float
) -> None:
    def holding(link: Scripted) -> None:
        link.ttl_seconds = ttl  # type: ignore[assignment]

    kept.prepare = holding
    before = kept.hub.now()
    await kept.ready()
    await kept.until(lambda: kept.supervisor.reconnectors[NAME]._relist_at > 0)
    due = kept.supervisor.reconnectors[NAME]._relist_at
    assert before + seconds <= due <= kept.hub.now() + seconds


@pytest.mark.parametrize("refusal", [BadReply(NAME, "nonsense"), ServerError(NAME, -32603, "broken")])
async def test_a_failed_list_keeps_the_link_and_the_known_tools(kept: Kept, refusal: BadReply | ServerError) -> None:
    link = await kept.ready()
    link.list_refusal = refusal
    link.on_changed("tools")
    await kept.until(lambda: len(link.listings) == 2)
    assert [tool.name for tool in kept.server_status.tools] == ["read"]
    assert (kept.server_status.state, link.pings) == ("ready", 0)


async def test_a_list_request_without_an_answer_is_repeated_once_the_server_answers(kept: Kept) -> None:
    link = await kept.ready()
    link.list_refusal = NotConnected(NAME, "nobody there")
    link.names.append("write")
    link.on_changed("tools")
    await kept.until(lambda: len(link.listings) == 2)
    link.list_refusal = None
    await kept.until(lambda: len(kept.server_status.tools) == 2)
    assert link.pings == 1


async def test_a_server_without_a_first_list_is_not_ready(kept: Kept) -> None:
    def listless(link: Scripted) -> None:
        link.list_refusal = BadReply(NAME, "nonsense")

    kept.prepare = listless
    kept.keep()
    await kept.until(lambda: kept.server_status.state == "retrying")
    assert kept.server_status.reason == "nonsense"


# -- silence, doubt and loss ---------------------------------------------------------------------------------------


async def test_an_idle_server_that_does_not_answer_a_ping_is_tried_again(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PING_SECONDS", 0.005)
    link = await kept.ready()
    await kept.until(lambda: link.pings > 0)
    link.is_silent = True
    await kept.until(lambda: len(kept.links) > 1 and kept.server_status.state == "ready")
    assert link.is_closed


async def test_a_doubt_has_the_server_asked_and_one_with_calls_is_left_to_them(kept: Kept) -> None:
    link = await kept.ready()
    running, _ = kept.start()
    link.is_silent = True
    link.on_doubt()
    await kept.until(lambda: link.pings == 1)
    assert (kept.server_status.state, running.outcome) == ("ready", None)
    finish(running)
    link.is_silent = False


async def test_a_lost_server_keeps_its_tools_and_says_why(kept: Kept) -> None:
    link = await kept.ready()
    kept.refuse("no such command hunter22")
    link.die("killed by signal 9")
    assert (kept.server_status.state, kept.server_status.reason) == ("retrying", "killed by signal 9")
    assert [tool.name for tool in kept.server_status.tools] == ["read"]
    await kept.until(lambda: kept.server_status.reason == "no such command ***")
    fault = kept.start()[1].fault
    assert isinstance(fault, NotConnected)
    assert fault.why == "no such command ***"
    kept.refuse(None)
    await kept.until(lambda: kept.server_status.state == "ready")


async def test_a_server_that_died_of_the_probe_is_initialized_the_earlier_way_next(kept: Kept) -> None:
    def fragile(link: Scripted) -> None:
        link.dies_of_probe = True

    kept.prepare = fragile
    await kept.ready()
    assert [link.greeted_as for link in kept.links] == [["auto"], ["legacy"]]


async def test_an_era_that_was_found_out_is_remembered_and_one_that_is_configured_is_kept_to(kept: Kept) -> None:
    link = await kept.ready()
    link.die("gone")
    await kept.until(lambda: len(kept.links) == 2 and kept.server_status.state == "ready")
    assert kept.links[1].greeted_as == ["modern"]
    kept.supervisor.change(settings(StdioSettings("server", era="legacy")))
    await kept.until(lambda: len(kept.links) == 3)
    await kept.until(lambda: kept.links[2].greeted_as == ["legacy"])


async def test_a_defect_in_a_reconnector_is_shown_and_costs_only_its_server(kept: Kept) -> None:
    def broken(link: Scripted) -> None:
        raise ZeroDivisionError("a defect")

    kept.prepare = broken
    kept.keep()
    await kept.until(lambda: kept.server_status.state == "stopped")
    assert "a defect" in (kept.server_status.reason or "")


async def test_calls_do_not_wait_for_a_server_whose_reconnector_has_a_defect(kept: Kept) -> None:
    """They waited because its list is known from an earlier run."""
    lists = ListCache(MemoryLists())
    lists.store(settings(), Listing((tool("read"),)), frozenset({"tools"}))
    connecting = asyncio.Event()

    async def broken(*_: Any) -> BaseLink:
        await connecting.wait()
        raise ZeroDivisionError("a defect")

    Supervisor(kept.hub, kept.background, broken, lists).add(settings())
    await kept.until(lambda: kept.server_status.is_recalled)
    held, _ = kept.start()
    assert held.outcome is None
    connecting.set()
    await kept.until(lambda: kept.server_status.state == "stopped")
    for outcome in (held.outcome, kept.start()[0].outcome):
        assert isinstance(outcome, NotConnected)
        assert "a defect in the hub" in str(outcome)


class MemoryLists:
    """See `known_lists.ListStore`."""

    def __init__(self) -> None:
        self._bodies: dict[str, bytes] = {}

    async def read(self, key: str) -> bytes | None:
        return self._bodies.get(key)

    def write(self, key: str, body: Callable[[], bytes]) -> None:
        self._bodies[key] = body()


# -- carriers ------------------------------------------------------------------------------------------------------


def speaks(*carriers: str) -> Callable[[Scripted], None]:
    def prepare(link: Scripted) -> None:
        if link.by not in carriers:
            link.refusal = WrongCarrier(f"it does not speak {link.by}")

    return prepare


async def test_the_next_carrier_is_tried_when_a_server_does_not_speak_the_first_and_remembered(kept: Kept) -> None:
    kept.prepare = speaks("sse")
    link = await kept.ready(reach=ADDRESS)
    assert [made.by for made in kept.links] == ["http", "sse"]
    assert kept.links[0].is_closed
    link.die("gone")
    await kept.until(lambda: len(kept.links) > 2 and kept.server_status.state == "ready")
    assert {made.by for made in kept.links[2:]} == {"sse"}


async def test_a_remembered_transport_that_fails_is_forgotten(kept: Kept) -> None:
    kept.prepare = speaks("sse")
    link = await kept.ready(reach=ADDRESS)
    kept.prepare = speaks("http")
    link.die("moved")
    await kept.until(lambda: kept.server_status.state == "ready" and kept.links[-1].by == "http")
    assert [made.by for made in kept.links] == ["http", "sse", "sse", "http"]


async def test_a_server_without_a_working_transport_reports_the_error_of_each(kept: Kept) -> None:
    kept.prepare = speaks()
    kept.keep(reach=ADDRESS)
    await kept.until(lambda: kept.server_status.state == "retrying")
    assert kept.server_status.reason == "it does not speak http; it does not speak sse"


async def test_another_failure_tries_no_other_carrier(kept: Kept) -> None:
    def refusing(link: Scripted) -> None:
        link.refusal = ConnectFailed("HTTP 401")

    kept.prepare = refusing
    kept.keep(reach=ADDRESS)
    await kept.until(lambda: len(kept.links) >= 2)
    assert {made.by for made in kept.links} == {"http"}
    assert kept.server_status.reason == "HTTP 401"


@pytest.mark.parametrize("carrier", ["http", "sse"])
async def test_a_configured_carrier_is_the_only_one_tried(kept: Kept, carrier: str) -> None:
    kept.prepare = speaks()
    kept.keep(reach=HttpSettings("http://localhost/mcp", carrier=carrier))  # type: ignore[arg-type]
    await kept.until(lambda: len(kept.links) >= 2)
    assert {made.by for made in kept.links} == {carrier}


NAMED = TargetHttpSettings(
    "http://h/mcp", ways=(("http", "http://h/mcp"), ("sse", "http://h/sse"), ("rpc", "http://h/m"))
)


@pytest.mark.parametrize(
    "answer",
    [
        ServerError(NAME, -32601, "no such method"),
        BadReply(NAME, "HTTP 500"),
        ConnectFailed("it refused to initialize"),
        NotConnected(NAME, "it answered HTTP 406", status=406),
    ],
)
async def test_an_address_that_a_caller_named_is_tried_with_every_transport(kept: Kept, answer: Exception) -> None:
    def prepare(link: Scripted) -> None:
        link.refusal = None if link.by == "rpc" else answer

    kept.prepare = prepare
    link = await kept.ready(reach=NAMED)
    assert [made.by for made in kept.links] == ["http", "sse", "rpc"]
    link.die("gone")
    await kept.until(lambda: len(kept.links) > 3 and kept.server_status.state == "ready")
    assert {made.by for made in kept.links[3:]} == {"rpc"}


@pytest.mark.parametrize(
    "failure",
    [
        NotConnected(NAME, "connection refused"),
        NotConnected(NAME, "it answered HTTP 401", status=401),
        Lost(NAME, "it hung up", executed="unknown"),
    ],
)
async def test_an_unreachable_or_protected_address_gets_only_one_attempt(kept: Kept, failure: Exception) -> None:
    def prepare(link: Scripted) -> None:
        link.refusal = failure

    kept.prepare = prepare
    kept.keep(reach=NAMED)
    await kept.until(lambda: kept.server_status.state == "retrying")
    assert {made.by for made in kept.links} == {"http"}


PLACE = "https://a.example/in"


def shut() -> ConnectFailed:
    failed = ConnectFailed("it answered HTTP 401")
    failed.login, failed.status = PLACE, 401
    return failed


@pytest.mark.parametrize("failure", [shut(), NotConnected(NAME, "it answered HTTP 401", status=401, login=PLACE)])
async def test_a_login_before_the_first_message_is_reported_to_callers(kept: Kept, failure: Exception) -> None:
    def prepare(link: Scripted) -> None:
        link.refusal = failure

    kept.prepare = prepare
    kept.keep()
    await kept.until(lambda: kept.server_status.state == "login")
    assert kept.hub.server_queues[NAME].not_connected().login == PLACE


async def test_a_server_that_wants_a_login_is_tried_again_only_when_something_has_changed(kept: Kept) -> None:
    def prepare(link: Scripted) -> None:
        link.refusal = NotConnected(NAME, "it answered HTTP 401", status=401)

    kept.prepare = prepare
    kept.keep()
    kept.supervisor.reconnectors[NAME]._backoff.next = lambda chance: 0.0  # type: ignore[method-assign]
    await kept.until(lambda: kept.server_status.state == "login")
    kept.hub.server_queues[NAME].not_connected()  # somebody calls, too soon after the last look
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(kept.links) == 1
    kept.prepare = lambda _link: None
    kept.supervisor.renew(NAME, None)
    await kept.until(lambda: kept.server_status.state == "ready")
    assert len(kept.links) == 2


async def test_a_call_to_a_server_that_wants_a_login_triggers_another_attempt(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGIN_RETRY_SECONDS", 0.0)

    def prepare(link: Scripted) -> None:
        link.refusal = NotConnected(NAME, "it answered HTTP 401", status=401)

    kept.prepare = prepare
    kept.keep()
    await kept.until(lambda: kept.server_status.state == "login")
    kept.prepare = lambda _link: None
    kept.hub.server_queues[NAME].not_connected()
    await kept.until(lambda: kept.server_status.state == "ready")


async def test_a_token_that_can_be_renewed_is_no_reason_to_wait_for_a_login(kept: Kept) -> None:
    def prepare(link: Scripted) -> None:
        link.on_credentials_refused = lambda: True
        link.refusal = NotConnected(NAME, "it answered HTTP 401", status=401) if len(kept.links) < 1 else None

    kept.prepare = prepare
    await kept.ready()
    assert len(kept.links) == 2


async def test_a_link_whose_token_was_refused_is_given_up_and_the_server_asked_for(kept: Kept) -> None:
    link = await kept.ready()
    link.login_hint = lambda: "it requires a login: run isthmus login files"
    link.ping_fault = NotConnected(NAME, "it answered HTTP 401", status=401)
    kept.supervisor.renew(NAME, None)
    await kept.until(lambda: kept.server_status.state == "login")
    assert kept.server_status.reason == "it requires a login: run isthmus login files (it answered HTTP 401)"


async def test_a_server_that_answers_in_no_known_way_is_reported_with_all_answers(kept: Kept) -> None:
    kept.prepare = speaks()
    kept.keep(reach=NAMED)
    await kept.until(lambda: kept.server_status.state == "retrying")
    assert kept.server_status.reason == "it does not speak http; it does not speak sse; it does not speak rpc"


async def test_the_next_transport_is_tried_if_one_cannot_connect(kept: Kept) -> None:
    kept.refusal = WrongCarrier("no")
    kept.keep(reach=ADDRESS)
    await kept.until(lambda: kept.server_status.state == "retrying")
    assert kept.server_status.reason == "no; no"


# -- what callers want beside their calls --------------------------------------------------------------------------


async def test_a_legacy_server_gets_the_log_level(kept: Kept) -> None:
    def earlier(link: Scripted) -> None:
        link.is_modern = False

    kept.prepare = earlier
    kept.hub.levels.want("somebody", "warning")
    link = await kept.ready()
    await kept.until(lambda: link.asked == [("logging/setLevel", {"level": "warning"})])
    kept.hub.levels.want("another", "debug")
    await kept.until(lambda: link.asked[1:] == [("logging/setLevel", {"level": "debug"})])
    link.on_renewed()
    await kept.until(lambda: link.asked[2:] == [("logging/setLevel", {"level": "debug"})])


async def test_a_level_is_asked_for_on_the_links_of_callers_too_and_again_where_it_was_forgotten(kept: Kept) -> None:
    kept.prepare = lambda link: setattr(link, "is_modern", False)
    await kept.ready(isolation="caller")
    inflight, _ = kept.start()
    await kept.until(lambda: len(kept.links) == 2 and kept.links[1].sent == [inflight])
    own = kept.links[1]
    kept.hub.levels.call("info")
    assert own.asked == [("logging/setLevel", {"level": "info"})], "before anything that is sent next"
    await kept.until(lambda: len(kept.background) == 1)
    own.on_renewed()
    await kept.until(lambda: own.asked == [("logging/setLevel", {"level": "info"})] * 2)
    finish(inflight)


async def test_a_change_that_is_announced_on_a_callers_link_has_everybodys_list_looked_at(kept: Kept) -> None:
    base = await kept.ready(isolation="caller")
    inflight, _ = kept.start()
    await kept.until(lambda: len(kept.links) == 2 and kept.links[1].sent == [inflight])
    base.names.append("write")
    kept.links[1].on_changed("tools")
    await kept.until(lambda: len(kept.server_status.tools) == 2)
    finish(inflight)


@pytest.mark.parametrize("is_modern", [True, False])
async def test_a_server_without_logging_gets_no_level(kept: Kept, *, is_modern: bool) -> None:
    def unable(link: Scripted) -> None:
        link.is_modern = is_modern
        link.can = link.can - {"logging"} if not is_modern else link.can

    kept.prepare = unable
    kept.hub.levels.want("somebody", "warning")
    link = await kept.ready()
    await kept.until(lambda: len(kept.background) == 1)
    assert link.asked == []


async def test_subscriptions_are_renewed_after_a_loss_and_a_refusal_is_harmless(kept: Kept) -> None:
    def earlier(link: Scripted) -> None:
        link.is_modern = False

    def refusing(link: Scripted) -> None:
        earlier(link)
        link.refuses.add("resources/subscribe")

    kept.prepare = earlier
    link = await kept.ready()
    assert await kept.hub.subscriptions.add((NAME, "file:///x"), lambda: None) is None
    kept.prepare = refusing
    link.die("gone")
    assert isinstance(await kept.hub.subscriptions.add((NAME, "file:///y"), lambda: None), NotConnected)
    await kept.until(lambda: len(kept.links) == 2 and kept.server_status.state == "ready")
    await kept.until(lambda: kept.links[1].asked == [("resources/subscribe", {"uri": "file:///x"})])
    assert kept.server_status.state == "ready"


async def test_an_update_is_notified_and_drops_the_cached_result(kept: Kept) -> None:
    link = await kept.ready()
    received: list[str] = []
    await kept.hub.subscriptions.add((NAME, "file:///x"), lambda: received.append("told"))
    forgotten: list[tuple[str, str | None]] = []
    kept.hub.result_cache.forget = lambda server, name=None: forgotten.append((server, name))  # type: ignore[method-assign]
    link.on_updated("file:///x")
    assert (received, forgotten) == (["told"], [(NAME, "file:///x")])


async def test_a_line_that_is_no_callers_is_the_operators_without_secrets_and_not_for_ever(kept: Kept) -> None:
    link = await kept.ready()
    for number in range(450):
        link.on_log(LogMessage("error", {"data": raw(f"{number} hunter22 " + "x" * 1000)}))
    received = kept.hub.server_queues[NAME].log_lines
    assert len(received) == LOG_LINES_MAX
    assert received[-1].level == "error"
    assert received[-1].text.startswith('"449 *** xxx')
    assert len(received[-1].text) == 500


# -- links that are not shared -------------------------------------------------------------------------------------


async def test_a_server_with_a_link_for_each_caller_is_listed_on_one_of_its_own(kept: Kept) -> None:
    own = await kept.ready(isolation="caller")
    inflight, _ = kept.start()
    await kept.until(lambda: len(kept.links) == 2)
    await kept.until(lambda: kept.links[1].sent == [inflight])
    assert own.sent == []
    assert kept.links[1].greeted_as == ["modern"]
    finish(inflight)
    assert kept.hub.running() == 0


async def test_a_link_for_a_caller_logs_as_much_as_is_wanted_and_one_that_cannot_be_greeted_is_closed(
    kept: Kept,
) -> None:
    def earlier(link: Scripted) -> None:
        link.is_modern = False
        if len(kept.links) == 2:
            link.refusal = Lost(NAME, "hunter22 is wrong", executed="no")

    kept.prepare = earlier
    kept.hub.levels.want("somebody", "info")
    await kept.ready(isolation="call")
    inflight, _ = kept.start()
    await kept.until(lambda: len(kept.links) == 2 and kept.links[1].sent == [inflight])
    assert kept.links[1].asked == [("logging/setLevel", {"level": "info"})]
    refused, listener = kept.start()
    await kept.until(lambda: refused.outcome is not None)
    assert kept.links[2].is_closed
    assert isinstance(listener.fault, NotConnected)
    assert listener.fault.why == "*** is wrong"
    finish(inflight)
    await kept.until(lambda: kept.links[1].is_closed)


async def test_calls_on_single_callers_links_end_for_the_pool_though_the_server_has_come_to_need_none(
    kept: Kept,
) -> None:
    def earlier_at_first(link: Scripted) -> None:
        link.is_modern = len(kept.links) > 2
        link.refusal = Lost(NAME, "another starts in its place", executed="no") if len(kept.links) == 2 else None

    kept.prepare = earlier_at_first
    first, asked = await kept.ready(), call(client_caps=frozenset({"roots"}))
    before, _ = kept.start(asked)
    await kept.until(lambda: len(kept.links) == 2 and kept.links[1].sent == [before])
    first.die("gone")
    await kept.until(lambda: len(kept.links) == 4 and kept.server_status.state == "ready")
    after, _ = kept.start(asked)
    finish(before)
    pool = kept.hub.server_queues[NAME].pool
    assert isinstance(pool, LinkPool)
    assert (kept.links[3].sent, pool._member_of) == ([after], {})
    finish(after)


async def test_a_change_of_how_many_calls_there_may_be_is_one_of_how_many_links(kept: Kept) -> None:
    await kept.ready(isolation="call", max_calls=1, max_queued=0)
    one, _ = kept.start()
    assert kept.start()[1].fault.reason == "overloaded"
    kept.supervisor.change(settings(isolation="call", max_calls=2, max_queued=0))
    two, _ = kept.start()
    await kept.until(lambda: [link.sent for link in kept.links[1:]] == [[one], [two]])
    finish(one)
    finish(two)


async def test_links_of_callers_are_closed_with_the_server(kept: Kept) -> None:
    await kept.ready(isolation="caller")
    inflight, _ = kept.start()
    await kept.until(lambda: len(kept.links) == 2 and kept.links[1].sent == [inflight])
    finish(inflight)
    assert not kept.links[1].is_closed
    kept.supervisor.remove(NAME)
    await kept.until(lambda: all(link.is_closed for link in kept.links) and len(kept.background) == 0)


async def test_after_a_loss_followers_of_a_resource_are_notified_once(kept: Kept) -> None:
    link = await kept.ready()
    received: list[str] = []
    for uri in ("file:///x", "file:///x/y"):
        assert await kept.hub.subscriptions.add((NAME, uri), lambda uri=uri: received.append(uri)) is None  # type: ignore[misc]
    assert received == []
    link.die("gone")
    await kept.until(lambda: len(kept.links) == 2 and len(received) == 2)
    assert sorted(received) == ["file:///x", "file:///x/y"]
    assert kept.links[1]._modern_subscriptions.wanted == {"file:///x", "file:///x/y"}


async def test_a_server_that_forgot_subscriptions_is_asked_again_and_followers_are_notified_once(kept: Kept) -> None:
    kept.prepare = lambda link: setattr(link, "is_modern", False)
    link = await kept.ready()
    received: list[str] = []
    await kept.hub.subscriptions.add((NAME, "file:///x"), lambda: received.append("told"))
    link.on_renewed()
    await kept.until(lambda: received == ["told"])
    assert [method for method, _ in link.asked] == ["resources/subscribe"] * 2


async def test_a_caller_with_its_own_link_gets_updates_while_the_reconnector_has_none(kept: Kept) -> None:
    common = await kept.ready(isolation="caller")
    received: list[str] = []
    assert (
        await kept.hub.subscriptions.add((NAME, "file:///x"), lambda: received.append("told"), Subscriber(ANYONE))
        is None
    )
    inflight, _ = kept.start()
    await kept.until(lambda: len(kept.links) == 2 and kept.links[1].sent == [inflight])
    assert kept.links[1]._modern_subscriptions.wanted == {"file:///x"}
    common.on_updated("file:///x")
    assert received == []
    kept.refuse("away")
    common.die("gone")
    kept.links[1].on_updated("file:///x")
    assert received == ["told"]
    finish(inflight)


async def test_after_a_change_of_the_server_followers_get_updates_from_the_new_links(kept: Kept) -> None:
    await kept.ready(isolation="shared")
    received: list[str] = []
    await kept.hub.subscriptions.add((NAME, "file:///x"), lambda: received.append("told"), Subscriber(ANYONE))
    kept.supervisor.change(settings(isolation="caller"))
    await kept.until(lambda: received == ["told"])  # what it knew may be out of date
    inflight, _ = kept.start()
    await kept.until(lambda: len(kept.links) == 3 and kept.links[2].sent == [inflight])
    kept.links[2].on_updated("file:///x")
    kept.links[1].on_updated("file:///x")
    assert received == ["told"] * 2
    finish(inflight)


async def test_after_a_gap_everything_is_read_and_followers_are_notified_once(kept: Kept) -> None:
    link = await kept.ready()
    received: list[str] = []
    await kept.hub.subscriptions.add((NAME, "file:///x"), lambda: received.append("told"))
    link.names.append("write")
    link.on_gap()
    assert received == ["told"]
    await kept.until(lambda: len(kept.server_status.tools) == 2)
    assert link.listings[1] == {"tools", "prompts", "resources"}


async def test_the_first_announcement_after_a_look_of_the_hubs_own_is_followed_at_once(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paces, "RELIST_SECONDS", 600.0)
    link = await kept.ready()
    reconnector = kept.supervisor.reconnectors[NAME]
    reconnector._relist_at = 0.0
    reconnector._wake()  # it looks when its time has come
    await kept.until(lambda: len(link.listings) == 2)
    link.names.append("write")
    link.on_changed("tools")
    await kept.until(lambda: len(kept.server_status.tools) == 2)


async def test_a_list_that_changes_does_not_wait_for_another_that_changed_before(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paces, "RELIST_SECONDS", 600.0)
    link = await kept.ready()
    link.on_changed("tools")
    await kept.until(lambda: len(link.listings) == 2)
    link.on_changed("tools")  # which rests now
    link.on_changed("prompts")
    await kept.until(lambda: len(link.listings) == 3)
    assert link.listings[1:] == [{"tools"}, {"prompts"}]


# -- hubs as servers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "why"), [(0, "it is this hub itself"), (1, "it leads back to this hub"), (7, "it leads back to this hub")]
)
async def test_a_hub_that_leads_back_to_this_one_is_not_listed(kept: Kept, steps: int, why: str) -> None:
    kept.prepare = lambda link: setattr(link, "hubs", {kept.hub.id: steps})
    kept.keep()
    await kept.until(lambda: kept.server_status.state == "retrying")
    assert (kept.server_status.reason, kept.server_status.tools, kept.server_status.hubs) == (why, (), {})
    assert kept.links[0].listings == []


@pytest.mark.parametrize(("steps", "notes"), [(6, 0), (7, 1), (100, 1)])
async def test_more_than_eight_hubs_in_a_row_are_noted_and_cost_nothing(kept: Kept, steps: int, notes: int) -> None:
    kept.prepare = lambda link: setattr(link, "hubs", {"near": 0, "far": steps})
    kept.keep()
    await kept.until(lambda: kept.server_status.state != "starting")
    assert kept.server_status.state == "ready"
    assert len([note for note in kept.server_status.notes if "more than 8 hubs in a row" in note]) == notes


async def test_a_hub_is_looked_at_before_it_is_listed_again_and_given_up_if_it_has_come_to_lead_back(
    kept: Kept,
) -> None:
    kept.prepare = lambda link: setattr(link, "hubs", {"another": 0})
    link = await kept.ready()
    assert kept.server_status.hubs == {"another": 0}
    link.answers["server/discover"] = {
        "supportedVersions": ["2026-07-28"],
        "_meta": {"isthmus/hubs": {"another": 0, kept.hub.id: 1}},
    }
    kept.refuse("away")
    link.on_changed("tools")
    await kept.until(lambda: link.is_closed)
    assert (kept.server_status.tools, kept.server_status.hubs, kept.server_status.abilities) == ((), {}, frozenset())
    assert len(link.listings) == 1


def guard(link: Scripted, mode: Pinning) -> ToolGuard:
    return ToolGuard(link, Review(Pins({}, lambda _: mode, lambda _: None)), Listing)


async def test_a_tool_that_is_withheld_there_is_not_called_and_all_else_is() -> None:
    stage = Stage.of(ready(tool("read"), tool("write"), prompts=[prompt("read")]))
    asked = (call("files.read"), call("files.write"), call("files.read", kind="prompt"))
    calls = [stage.start(each)[0] for each in asked]
    link = Scripted()
    looked = guard(link, "approve")
    await looked.read_tools()
    assert [looked.may_send(each) for each in calls] == [False, True, True], "it lists no write, and that is its affair"


async def test_where_nothing_is_withheld_it_is_not_even_asked() -> None:
    link = Scripted()
    looked = guard(link, "warn")
    await looked.read_tools()
    assert link.listings == []
    assert looked.may_send(Stage().start()[0])


def test_the_bound_doubles_up_to_half_a_minute_and_chance_chooses_below_it() -> None:
    backoff = Backoff()
    assert [backoff.next(1.0) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert backoff.next(0.0) == 0.0
    assert backoff.next(0.5) == 15.0


def test_a_server_that_was_well_is_tried_again_soon() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next(1.0)
    backoff.reset()
    assert backoff.next(1.0) == 0.5
