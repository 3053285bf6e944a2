"""What `isthmus dial` shows of a moment."""

from __future__ import annotations

import pytest

from isthmus.app.dial import ServerShown
from isthmus.app.dial_line import LineShown, Refusal
from isthmus.cli.dial_view import duration, line_in_words, lines_in_words, server_row
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.model.names import ServerName

NOW = 1000.0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (LineShown("starting", 990), "waiting for a server"),
        (LineShown("connecting", 990), "connecting"),
        (LineShown("connecting", 990, "it went"), "connecting; it went"),
        (LineShown("connected", 877, is_muxed=True), "connected for 2 min 3 s, one connection for all"),
        (LineShown("connected", 995), "connected for 5 s, one connection"),
        (LineShown("pausing", 990, "connection refused", 1003.2), "reconnecting in 3 s: connection refused"),
        (LineShown("pausing", 990, "connection refused", 900), "reconnecting in 0 s: connection refused"),
    ],
)
def test_a_connection_in_words(line: LineShown, words: str) -> None:
    assert line_in_words(line, NOW) == words
    assert lines_in_words([line], NOW) == [words]


def test_several_connections_are_counted_and_what_is_wrong_is_told_once() -> None:
    well, ill = LineShown("connected", 990), LineShown("pausing", 990, "refused", 1001.0)
    assert lines_in_words([], NOW) == ["waiting for a server"]
    assert lines_in_words([well, ill, ill], NOW) == ["1 of 3 connections", "reconnecting in 1 s: refused"]


def test_a_server_in_a_row() -> None:
    server_status = ServerStatus(ServerName("calc"), "ready")
    assert server_row(ServerShown("calc", server_status, "robot_calc", 2, 7), NOW) == (
        "calc",
        "ready",
        "0 tools",
        "7 calls, 2 now",
        "as robot_calc",
    )
    ill = ServerStatus(ServerName("calc"), "retrying", reason="exited with code 1\nand more \x1b[31m")
    assert server_row(ServerShown("calc", ill, None, 0, 0), NOW)[1:] == (
        "retrying",
        "0 tools",
        "0 calls",
        "exited with code 1",
    )


def test_a_server_that_the_hub_refused_is_not_shown_as_one_that_is_there() -> None:
    refusal = Refusal("its agent has 32 servers", 1057.0)
    shown = ServerShown("calc", ServerStatus(ServerName("calc"), "ready"), None, 0, 7, refusal)
    assert server_row(shown, NOW)[1:] == (
        "refused",
        "0 tools",
        "7 calls",
        "again in 57 s: its agent has 32 servers",
    )


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (7384, "2 h 3 min")])
def test_a_length_of_time(seconds: float, text: str) -> None:
    assert duration(seconds) == text
