"""What agents say while they work."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace

from isthmus.model.conversation import Data, Part, Status, Text
from isthmus.model.events import Event, Log, Progress
from isthmus.upstream.agent.reports import WORDS_LENGTH_MAX, Reports
from tests.unit.core.doubles import Stage, call
from tests.unit.upstream.agent.scripted import says


class Telling:
    """Reports of a call, and what its caller heard."""

    def __init__(self, *, wants_progress: bool = True) -> None:
        asked = replace(call(), wants_progress=wants_progress)
        inflight, self.listener = Stage().start(asked)
        self.reports = Reports(inflight)

    def tell(self, *parts: Part, id: str = "m") -> None:
        self.reports.tell(Status("working", 1.0, says(*parts, id=id)))

    @property
    def heard(self) -> list[Event]:
        return self.listener.events


async def test_each_new_word_is_one_step() -> None:
    telling = Telling()
    telling.tell(Text("one"), Text("more"))
    telling.tell(Text("one"), Text("more"))
    telling.tell(Text("x" * (WORDS_LENGTH_MAX + 1)), id="n")
    first, second = telling.heard
    assert isinstance(first, Progress)
    assert isinstance(second, Progress)
    assert {key: bytes(value) for key, value in first.members.items()} == {"progress": b"1", "message": b'"one\\nmore"'}
    assert len(second.members["message"]) == WORDS_LENGTH_MAX + 2


async def test_who_wants_no_progress_hears_a_line_of_the_log() -> None:
    telling = Telling(wants_progress=False)
    telling.tell(Text("one"))
    telling.tell(Data(Raw(b'{"progress":1}')), id="n")
    (line,) = telling.heard
    assert isinstance(line, Log)


@pytest.mark.parametrize("part", [Data(Raw(b"[1]")), Data(Raw(b'{"progress":"x"}')), Data(Raw(b'{"level":"x"}'))])
async def test_what_says_nothing_is_not_told(part: Part) -> None:
    telling = Telling()
    telling.tell(part)
    telling.reports.tell(Status("working", 1.0))
    assert telling.heard == []


async def test_a_question_is_no_report() -> None:
    telling = Telling()
    telling.reports.tell(Status("input_required", 1.0, says(Text("Which?"))))
    assert telling.heard == []


async def test_a_hubs_report_is_passed_on_without_what_belongs_to_its_hop() -> None:
    telling = Telling()
    telling.tell(Data(Raw(b'{"progress":0.50,"total":1,"progressToken":7,"_meta":{}}')))
    (report,) = telling.heard
    assert isinstance(report, Progress)
    assert {key: bytes(value) for key, value in report.members.items()} == {"progress": b"0.50", "total": b"1"}
