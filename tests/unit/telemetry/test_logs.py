"""Log lines: to standard error, one an event, and nothing in them that could drive a terminal."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from isthmus.telemetry.logs import VALUE_LENGTH_MAX, configure

NASTY = "\x1b[2J\x1b]0;title\x07\u202e\u200b\U000e0041\x9b1m\r\nforged line"


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.reset_defaults()


def test_a_line_is_one_json_object_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    structlog.get_logger().info("server ready", server="files", tools=3)
    told = capsys.readouterr()
    line = json.loads(told.err)
    assert (line["event"], line["level"], line["server"], line["tools"]) == ("server ready", "info", "files", 3)
    assert line["ts"].endswith("Z")
    assert told.out == ""


@pytest.mark.parametrize("format", ["json", "console"])
def test_what_a_peer_said_cannot_forge_a_line_or_drive_a_terminal(
    format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("info", "json" if format == "json" else "console")
    structlog.get_logger().warning("server said", text=NASTY)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    text = json.loads(told)["text"] if format == "json" else told.rstrip("\n")
    assert text.isprintable(), repr(text)
    assert "forged line" in text


def test_a_long_value_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    structlog.get_logger().error("server said", text="x" * 1_000_000)
    assert len(json.loads(capsys.readouterr().err)["text"]) == VALUE_LENGTH_MAX


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure("warning", "json")
    structlog.get_logger().info("not this")
    structlog.get_logger().warning("but this")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["but this"]


@pytest.mark.parametrize("format", ["json", "console"])
def test_a_traceback_is_in_the_log_and_bounded(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json" if format == "json" else "console")
    try:
        raise ZeroDivisionError("\x1b[2Jforged")
    except ZeroDivisionError:
        structlog.get_logger().exception("a defect")
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "\x1b" not in told


def test_libraries_say_only_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers.clear()  # basicConfig does nothing where somebody else has configured
    configure()
    logging.getLogger("uvicorn").info("chatter")
    logging.getLogger("uvicorn").warning("trouble")
    assert capsys.readouterr().err == "WARNING uvicorn trouble\n"
