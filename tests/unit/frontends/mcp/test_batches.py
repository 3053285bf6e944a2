"""Batches: the answers become one array, one stream, or nothing."""

from __future__ import annotations

from isthmus.frontends.http.request_cycle import JSON, STREAM
from isthmus.frontends.mcp.batches import BatchPart, BatchReply
from tests.unit.frontends.mcp.doubles import Client


def batch(client: Client, parts: int) -> tuple[BatchReply, list[BatchPart], list[str]]:
    over: list[str] = []
    reply = BatchReply(client, lambda: over.append("over"))
    return reply, [reply.part() for _ in range(parts)], over


def test_whole_answers_become_one_array_once_all_are_there() -> None:
    client = Client()
    reply, (first, second), over = batch(client, 2)
    second.answer(200, JSON, b"2")
    reply.add(b"3")
    reply.close()
    assert (client.answers, over) == ([], [])
    first.answer(400, JSON, b"1")
    first.answer(200, JSON, b"4")
    assert (client.answers, over) == ([(200, b"[2,3,1]")], ["over"])


def test_a_batch_that_nothing_is_answered_to_is_accepted() -> None:
    client = Client()
    reply, (part,), over = batch(client, 1)
    part.answer(202, b"", b"")
    reply.close()
    assert (client.answers, over) == ([(202, b"")], ["over"])


def test_the_first_part_that_streams_makes_the_whole_a_stream() -> None:
    client = Client()
    reply, (first, second, third), over = batch(client, 3)
    reply.close()
    first.answer(200, JSON, b"1")
    for part in (second, third):
        part.begin(200, STREAM)
    second.push(b"data: 2\n\n")
    third.end(b"data: 3\n\n")
    second.end(b"data: 4\n\n")
    second.push(b"late")
    second.end(b"later")
    assert (client.events, client.ended, over) == ([1, 2, 3, 4], [b""], ["over"])
    assert len(client.begun) == 1


def test_a_client_that_leaves_leaves_every_part_that_has_not_ended() -> None:
    client, left = Client(), list[int]()
    _, parts, _ = batch(client, 2)
    for number, part in enumerate(parts):
        part.on_disconnect(lambda number=number: left.append(number))  # type: ignore[misc]
    parts[0].answer(200, JSON, b"1")
    client.leave()
    assert left == [1]


def test_a_batch_whose_client_has_left_is_over_though_its_parts_go_on_elsewhere() -> None:
    client = Client()
    reply, (first, second), over = batch(client, 2)
    reply.close()
    first.begin(200, STREAM)
    first.on_disconnect(lambda: None)
    second.on_disconnect(lambda: second.answer(200, JSON, b"2"))
    client.leave()
    assert over == ["over"]
    first.end(b"late")
    assert (client.events, over) == ([2], ["over"])


def test_a_part_has_no_body_of_its_own_and_shares_its_connection() -> None:
    client = Client()
    _, (part,), _ = batch(client, 1)
    client.unsent_bytes = 7
    assert (part.take_body(), part.buffered_bytes()) == (None, 7)


def test_answers_after_the_stream_began_use_the_stream_and_an_abort_ends_all() -> None:
    class Cut(Client):
        aborts = 0

        def abort(self) -> None:
            self.aborts += 1

    client = Cut()
    reply, (part,), _ = batch(client, 1)
    part.begin(200, STREAM)
    reply.add(b"1")
    part.abort()
    assert (client.events, client.aborts) == ([1], 1)
