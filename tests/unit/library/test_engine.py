"""The hub's log lines inside another program."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from isthmus.library.engine import use_standard_logging


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def test_the_hubs_lines_are_records_and_nothing_is_printed(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "isthmus.some.room")
    use_standard_logging()
    log = structlog.get_logger("isthmus.some.room")
    log.debug("unheard")
    log.info("server ready", server="files", tools=3)
    log.warning("odd", said="a\nforged line")
    try:
        raise OSError("broken pipe")
    except OSError:
        log.exception("server lost")
    received = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert received == [
        ("isthmus.some.room", "INFO", "server ready server='files' tools=3"),
        ("isthmus.some.room", "WARNING", r"odd said='a\nforged line'"),
        ("isthmus.some.room", "ERROR", "server lost"),
    ]
    assert "broken pipe" in caplog.text
    assert capsys.readouterr().out == ""


def test_the_programs_own_lines_stay_as_they_were(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    use_standard_logging()
    structlog.get_logger("their.module").info("theirs")
    structlog.get_logger().info("nameless")
    printed = capsys.readouterr().out
    assert "theirs" in printed
    assert "nameless" in printed
    assert caplog.records == []


def test_a_program_that_has_configured_structlog_is_left_alone() -> None:
    seen: list[str] = []

    def keep(_: object, __: str, event: structlog.types.EventDict) -> str:
        seen.append(event["event"])
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    use_standard_logging()
    structlog.get_logger("isthmus.some.room").info("ours")
    assert seen == ["ours"]


def test_long_values_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    use_standard_logging()
    structlog.get_logger("isthmus.some.room").error("flood", said="x" * 1_000_000)
    assert len(caplog.records[0].getMessage()) < 3_000
