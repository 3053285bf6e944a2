"""When lists are read again: the first time at once, then not too often, and each by itself."""

from __future__ import annotations

from isthmus.model.features import TOPICS
from isthmus.upstream.pace import LOOK_AGAIN_SECONDS, Pace


def test_what_is_fresh_is_not_read() -> None:
    pace = Pace()
    assert not pace
    assert pace.wait(5.0) is None
    assert pace.take(5.0) == {}


def test_the_first_announcement_is_followed_at_once_and_the_next_in_a_second() -> None:
    pace = Pace()
    assert pace.announce(["tools"])
    assert pace.wait(5.0) == 0.0
    assert pace.take(5.0) == {"tools": True}
    pace.rest(["tools"], 5.25)
    assert pace.announce(["tools"])
    assert pace.take(5.5) == {}
    assert pace.wait(5.5) == LOOK_AGAIN_SECONDS - 0.25
    assert pace.take(6.25) == {"tools": True}


def test_saying_it_again_is_no_news() -> None:
    pace = Pace()
    assert pace.announce(["tools"])
    assert not pace.announce(["tools"])
    assert pace.announce(["tools", "prompts"])
    assert pace.take(5.0) == {"tools": True, "prompts": True}
    assert pace.announce(["tools"])


def test_a_list_does_not_wait_for_another() -> None:
    pace = Pace()
    pace.rest(["tools"], 5.0)
    pace.announce(["tools", "prompts"])
    assert pace.wait(5.5) == 0.0
    assert pace.take(5.5) == {"prompts": True}
    assert pace.wait(5.5) == LOOK_AGAIN_SECONDS - 0.5
    assert pace


def test_a_doubt_takes_nothing_from_an_announcement() -> None:
    pace = Pace()
    pace.announce(["tools"])
    pace.doubt(TOPICS)
    assert pace.announce(["prompts"])
    assert pace.take(5.0) == {"tools": True, "prompts": True, "resources": False}


def test_after_everything_was_read_the_next_announcement_is_the_first() -> None:
    pace = Pace()
    pace.rest(["tools"], 5.0)
    pace.announce(["tools"])
    pace.clear()
    assert not pace
    pace.announce(["tools"])
    assert pace.wait(5.0) == 0.0
