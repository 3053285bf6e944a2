"""Resumable streams: every cut of a stream log, its limits, and the events that a session missed."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.frontends.http.request_cycle import CROWDED_BYTES, Peer
from isthmus.frontends.mcp import http_streams as module
from isthmus.frontends.mcp.http_streams import NotificationLog, StreamLog, StreamStore
from isthmus.wire.sse import SseDecoder, SseEvent
from tests.unit.frontends.mcp.doubles import Client

OWNER = "session"


class Speaker:
    """Records when its listener leaves and returns, and informs `stream_log` as an exchange does."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.stream_log: StreamLog | None = None

    def disconnected(self, peer: Peer) -> None:
        assert self.stream_log is not None
        self.events.append("left" if self.stream_log.disconnected(peer) else "left before")

    def reconnected(self) -> None:
        self.events.append("back")


def events(client: Client) -> list[SseEvent]:
    """The events that a client was sent, the first without content among them."""
    found = SseDecoder().feed(b"".join(client.pushed + client.ended))
    return [event for event in found if isinstance(event, SseEvent)]


def texts_of(client: Client) -> list[str]:
    return [event.data.decode() for event in events(client) if event.data]


def started(store: StreamStore, client: Client, *, is_primed: bool = True) -> StreamLog:
    stream_log = store.open(OWNER, speaker := Speaker())
    speaker.stream_log = stream_log
    stream_log.start(client, is_primed=is_primed)
    return stream_log


def resumed(store: StreamStore, last: str | None) -> Client:
    """A client that comes back with the id of the last event that it heard."""
    assert last is not None
    found = store.find(OWNER, last)
    assert found is not None
    client = Client()
    found[0].resume(client, found[1], lambda: None)
    return client


async def test_a_primed_stream_begins_with_an_event_without_content_and_says_when_to_come_back() -> None:
    client = Client()
    started(StreamStore(), client)
    (first,) = events(client)
    assert (first.data, first.retry) == (b"", module.RETRY_MS)
    assert first.id


async def test_a_stream_that_is_not_primed_has_ids_on_its_events_all_the_same() -> None:
    client = Client()
    stream_log = started(StreamStore(), client, is_primed=False)
    stream_log.send_report(b"1")
    stream_log.end(b"2")
    assert [event.data for event in events(client)] == [b"1", b"2"]
    assert all(event.id for event in events(client))


@pytest.mark.parametrize("cut", range(6))
@pytest.mark.parametrize("is_noticed", [True, False])
async def test_wherever_a_stream_is_cut_nothing_is_lost_and_nothing_is_sent_twice(
    *, cut: int, is_noticed: bool
) -> None:
    store, whole = StreamStore(), [b"0", b"1", b"2", b"3", b"4"]
    client = Client()
    stream_log = started(store, client)
    for message in whole[:cut]:
        stream_log.end(message) if message == whole[-1] else stream_log.send_report(message)
    received, last = texts_of(client), events(client)[-1].id
    if is_noticed:
        stream_log.disconnected(client)
    for message in whole[cut:-1]:
        stream_log.send(message)
    back = resumed(store, last)
    if not stream_log.is_done:
        stream_log.end(whole[-1])
    assert [*received, *texts_of(back)] == [message.decode() for message in whole]
    assert len(back.ended) == 1


async def test_a_client_that_missed_everything_resumes_with_the_first_event() -> None:
    store, client = StreamStore(), Client()
    stream_log = started(store, client)
    first = events(client)[0].id
    stream_log.disconnected(client)
    stream_log.end(b"answer")
    assert texts_of(resumed(store, first)) == ["answer"]


async def test_the_connection_that_comes_later_is_spoken_to_and_the_earlier_one_ends() -> None:
    store, old, released = StreamStore(), Client(), list[str]()
    stream_log = started(store, old)
    found = store.find(OWNER, events(old)[0].id or "")
    assert found is not None
    middle, new = Client(), Client()
    stream_log.resume(middle, 0, lambda: released.append("middle"))
    stream_log.resume(new, 0, lambda: released.append("new"))
    assert (len(old.ended), len(middle.ended), released) == (1, 1, ["middle"])
    stream_log.send(b"x")
    stream_log.end(b"y")
    assert (texts_of(old), texts_of(middle), texts_of(new), released) == ([], [], ["x", "y"], ["middle", "new"])


async def test_its_writer_learns_when_a_reader_leaves_and_returns() -> None:
    store, client = StreamStore(), Client()
    speaker = Speaker()
    stream_log = speaker.stream_log = store.open(OWNER, speaker)
    stream_log.start(client, is_primed=True)
    back, again = (resumed(store, events(client)[0].id) for _ in range(2))
    back.leave()
    again.leave()
    assert speaker.events == ["back", "back", "left before", "left"]


async def test_a_released_reader_learns_when_to_return_and_finds_the_rest() -> None:
    store, client = StreamStore(), Client()
    stream_log = started(store, client)
    assert stream_log.pause(250)
    assert client.ended == [b"retry: 250\n\n"]
    assert not stream_log.pause(250)
    stream_log.end(b"answer")
    assert texts_of(resumed(store, events(client)[0].id)) == ["answer"]


async def test_progress_is_skipped_for_slow_readers_but_kept_for_absent_ones() -> None:
    store, client = StreamStore(), Client()
    stream_log = started(store, client)
    client.unsent_bytes = CROWDED_BYTES + 1
    stream_log.send_report(b"skipped")
    stream_log.send(b"needed")
    stream_log.disconnected(client)
    stream_log.send_report(b"kept")
    assert texts_of(resumed(store, events(client)[0].id)) == ["needed", "kept"]


@pytest.mark.parametrize("limit", ["EVENTS_MAX", "EVENTS_BYTES"])
async def test_the_oldest_of_many_reports_are_dropped_and_questions_and_answers_stay(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    store, client = StreamStore(), Client()
    stream_log = started(store, client)
    stream_log.disconnected(client)
    stream_log.send_request(b"q", b"question")
    stream_log.send_report(b"%03d" % 0)
    monkeypatch.setattr(module, limit, 3 if limit == "EVENTS_MAX" else 3 * stream_log.size_bytes // 2)
    for number in range(1, 100):
        stream_log.send_report(b"%03d" % number)
    stream_log.end(b"answer")
    received = texts_of(resumed(store, events(client)[0].id))
    assert (received[0], received[-2:]) == ("question", ["099", "answer"])
    assert len(received) <= 5


# -- the store -------------------------------------------------------------------------------------------------------


async def test_an_event_is_known_to_its_own_session_only_and_made_up_ones_are_unknown() -> None:
    store, client = StreamStore(), Client()
    started(store, client)
    id = events(client)[0].id or ""
    name = id.rpartition(".")[0]
    assert store.find(OWNER, id) is not None
    assert store.find("another", id) is None
    for odd in ("", ".", "x.0", name, f"{name}.", f"{name}.-1", f"{name}.1e3", f"{name}.{'9' * 5_000}", f"{name}.٣"):
        assert store.find(OWNER, odd) is None


async def test_names_are_long_and_do_not_repeat() -> None:
    store = StreamStore()
    names = {store.open(OWNER, Speaker()).name for _ in range(100)}
    assert (len(names), min(map(len, names))) == (100, 16)


async def test_ended_streams_are_dropped_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_SECONDS", 0.01)
    store = StreamStore()
    for _ in range(2):
        started(store, Client()).end(b"answer")
        await asyncio.sleep(0)
    running = started(store, Client())
    async with asyncio.timeout(30):
        while len(store) > 1:  # noqa: ASYNC110 - a store has no notification
            await asyncio.sleep(0.001)
    running.end(b"answer")
    async with asyncio.timeout(30):
        while len(store):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_ended_streams_are_bounded_and_those_that_were_read_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    store = StreamStore()
    clients = [Client() for _ in range(3)]
    broken, received, later = (started(store, client) for client in clients)
    broken.disconnected(clients[0])
    broken.end(b"broken")
    received.end(b"heard")
    monkeypatch.setattr(module, "ANSWERS_BYTES", broken.size_bytes + received.size_bytes)
    later.end(b"later")
    assert [store.find(OWNER, f"{stream_log.name}.0") is not None for stream_log in (broken, received, later)] == [
        True,
        False,
        True,
    ]
    monkeypatch.setattr(module, "ANSWERS_BYTES", 0)
    last = started(store, Client())
    last.end(b"x" * 1_000)
    assert len(store) == 1
    assert store.find(OWNER, f"{last.name}.0") is not None


async def test_a_session_that_is_over_takes_its_streams_along_running_or_not() -> None:
    store = StreamStore()
    ended, running = started(store, Client()), started(store, Client())
    ended.end(b"x")
    kept = store.open("another", Speaker())
    store.forget(OWNER)
    running.end(b"y")
    assert len(store) == 1
    assert store.find("another", f"{kept.name}.0") is not None


# -- bulletins -------------------------------------------------------------------------------------------------------


def decoded(chunks: bytes | None) -> list[str]:
    assert chunks is not None
    return [event.data.decode() for event in SseDecoder().feed(chunks) if isinstance(event, SseEvent)]


def last_id(chunk: bytes) -> str:
    decoder = SseDecoder()
    decoder.feed(chunk)
    assert decoder.last_event_id is not None
    return decoder.last_event_id


def test_the_last_event_of_every_topic_is_sent_again_to_readers_that_missed_it() -> None:
    notifications = NotificationLog()
    start = last_id(notifications.mark())
    first = last_id(notifications.add("a", b"1"))
    notifications.add("b", b"2")
    last = last_id(notifications.add("a", b"3"))
    assert [decoded(notifications.after(id)) for id in (start, first, last)] == [["2", "3"], ["2", "3"], []]
    assert last_id(notifications.mark()) == last
    assert last_id(notifications.mark(first)) == first


def test_a_stream_that_is_marked_has_no_event_yet() -> None:
    assert SseDecoder().feed(NotificationLog().mark()) == []


def test_the_events_of_others_are_unknown() -> None:
    notifications, other = NotificationLog(), NotificationLog()
    id = last_id(notifications.add("a", b"1"))
    assert other.after(id) is None
    assert [notifications.after(odd) for odd in ("", "x.0", id.rpartition(".")[0], f"{id}x")] == [None] * 4


def test_a_topic_without_interest_is_not_sent_again() -> None:
    notifications = NotificationLog()
    start = last_id(notifications.mark())
    for matter in ("a", "b"):
        notifications.add(matter, matter.encode())
    notifications.forget("a")
    notifications.forget("never told")
    assert decoded(notifications.after(start)) == ["b"]


def test_only_so_many_matters_are_remembered_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    notifications = NotificationLog()
    start = last_id(notifications.mark())
    for matter in ("a", "b", "a", "c"):
        notifications.add(matter, matter.encode())
    assert decoded(notifications.after(start)) == ["a", "c"]


# -- questions -------------------------------------------------------------------------------------------------------


async def test_a_reader_that_resumes_gets_the_open_questions() -> None:
    store, client = StreamStore(), Client()
    stream_log = started(store, client)
    (first,) = events(client)
    for number in (b"1", b"2", b"3"):
        stream_log.send_request(number, b"question " + number)
    stream_log.settle_request(b"2")
    stream_log.settle_request(b"2")
    assert texts_of(client) == ["question 1", "question 2", "question 3"]
    assert texts_of(resumed(store, first.id)) == ["question 1", "question 3"]


async def test_answered_questions_free_their_room() -> None:
    store, client = StreamStore(), Client()
    stream_log = started(store, client)
    for number in range(100):
        stream_log.send_request(b"%d" % number, b"x" * 1_000_000)
        stream_log.settle_request(b"%d" % number)
    assert stream_log.size_bytes == 0
    stream_log.end(b"answer")
    stream_log.settle_request(b"99")
    assert 0 < stream_log.size_bytes < 100


async def test_open_questions_are_kept_up_to_a_size_and_the_newest_in_any_case() -> None:
    store, client = StreamStore(), Client()
    stream_log = started(store, client)
    (first,) = events(client)
    for number in range(8):
        stream_log.send_request(b"%d" % number, b"%d" % number * 1_000_000)
    assert stream_log.size_bytes < module.QUESTIONS_BYTES
    assert [text[:1] for text in texts_of(resumed(store, first.id))] == ["4", "5", "6", "7"]
    stream_log.send_request(b"long", b"x" * 2 * module.QUESTIONS_BYTES)
    assert [text[:1] for text in texts_of(resumed(store, first.id))] == ["x"]


async def test_other_events_beside_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 2)
    store, client = StreamStore(), Client()
    stream_log = started(store, client)
    (first,) = events(client)
    for number in (b"1", b"2", b"3"):
        stream_log.send(number)
    assert texts_of(client) == ["1", "2", "3"]
    assert texts_of(resumed(store, first.id)) == ["2", "3"]
