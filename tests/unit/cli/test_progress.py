"""Progress is one changing line on a terminal and a line a report elsewhere."""

from __future__ import annotations

import io

import msgspec
import pytest

from isthmus.cli.progress import CLEAR, ProgressLine, in_words
from isthmus.model.events import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(**members: str) -> Progress:
    return Progress({key: msgspec.Raw(text.encode()) for key, text in members.items()})


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (report(progress="3", total="10", message='"half\\u001b[2J"'), "3/10 half\\u001b[2J"),
        (report(progress="0.50"), "0.50"),
        (report(progress="1", total="null"), "1"),
        (report(message='"only words"'), "only words"),
        (report(), ""),
    ],
)
def test_a_report_is_told_with_whatever_it_has(event: Progress, words: str) -> None:
    assert in_words(event) == words


def test_a_terminal_has_one_line_which_is_cut_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    terminal = Terminal()
    line = ProgressLine(terminal)
    line.clear()
    line.show(report(progress="1", message='"' + "x" * 50 + '"'))
    line.clear()
    assert terminal.getvalue() == f"{CLEAR}1 xxxxxxx{CLEAR}"


def test_elsewhere_each_report_is_a_line() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.show(report(progress="1", total="2"))
    line.clear()
    assert stream.getvalue() == "progress: 1/2\n"
