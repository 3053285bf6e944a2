"""Log lines: to standard error or a file, one an event, and nothing in them that could drive a terminal."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from isthmus.telemetry import logs
from isthmus.telemetry.logs import VALUE_LENGTH_MAX, configure, reopen
from tests.conftest import descriptors
from tests.hubs import environment

NASTY = "\x1b[2J\x1b]0;title\x07\u202e\u200b\U000e0041\x9b1m\r\nforged line"


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    configure()  # stop writing to a test's file
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.reset_defaults()


def test_a_line_is_one_json_object_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    structlog.get_logger().info("server ready", server="files", tools=3)
    output = capsys.readouterr()
    line = json.loads(output.err)
    assert (line["event"], line["level"], line["server"], line["tools"]) == ("server ready", "info", "files", 3)
    assert line["ts"].endswith("Z")
    assert output.out == ""


@pytest.mark.parametrize("format", ["json", "console"])
def test_text_of_a_peer_cannot_forge_a_line_or_drive_a_terminal(
    format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("info", "json" if format == "json" else "console")
    structlog.get_logger().warning("server said", text=NASTY)
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    text = json.loads(output)["text"] if format == "json" else output.rstrip("\n")
    assert text.isprintable(), repr(text)
    assert "forged line" in text


def test_a_long_value_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    structlog.get_logger().error("server said", text="x" * 1_000_000)
    assert len(json.loads(capsys.readouterr().err)["text"]) == VALUE_LENGTH_MAX


def test_lines_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
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
    output = capsys.readouterr().err
    assert "ZeroDivisionError" in output
    assert "\x1b" not in output


def test_no_line_of_an_exception_looks_like_a_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "console")
    try:
        raise ValueError("bad\n2026-01-01T00:00:00Z [info     ] caller admitted\r\u2028forged")
    except ValueError:
        structlog.get_logger().exception("a defect")
    first, *more = capsys.readouterr().err.splitlines()
    assert "a defect" in first
    assert any("caller admitted" in line for line in more)
    assert [line for line in more if not line.startswith("    ")] == []


def test_libraries_log_warnings_in_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers.clear()  # nothing is done where somebody else has made arrangements
    configure()
    configure()
    logging.getLogger("uvicorn").info("chatter")
    logging.getLogger("uvicorn").warning("trouble with %s", NASTY)
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"]) == ("warning", "uvicorn")
    assert line["event"].isprintable()


def test_arrangements_of_others_are_left_alone() -> None:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    assert before[0], "pytest has its own"
    configure("error")
    assert (logging.getLogger().handlers, logging.getLogger().level) == before


def test_a_change_holds_for_loggers_that_are_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    log = structlog.get_logger()
    configure("warning", "json")
    log.info("not this")
    configure("info", "console")
    log.info("but this")
    assert "but this" in capsys.readouterr().err


class Closed(io.StringIO):
    """A terminal that went away."""

    def write(self, _: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_standard_error_that_accepts_nothing_affects_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Closed()
    monkeypatch.setattr("sys.stderr", stream)
    configure()
    structlog.get_logger().error("nobody hears this")
    stream.close()
    structlog.get_logger().error("nor this")


# -- a file --------------------------------------------------------------------------------------------------


def events(file: Path) -> list[str]:
    return [json.loads(line)["event"] for line in file.read_text().splitlines()]


def test_a_file_gets_the_lines_and_is_for_its_owner_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "logs" / "hub.log"
    for text in ("first", "second"):
        configure("info", "auto", str(file))
        structlog.get_logger().info(text)
    assert events(file) == ["first", "second"], "JSON, and what was there stays"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert capsys.readouterr().err == ""


def test_a_file_can_be_readable_for_people(tmp_path: Path) -> None:
    file = tmp_path / "hub.log"
    configure("info", "console", str(file))
    structlog.get_logger().info("server ready", server="files")
    text = file.read_text()
    assert "server ready" in text
    assert "server=files" in text
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CHECK_SECONDS", 0.0)
    file, moved = tmp_path / "hub.log", tmp_path / "hub.log.1"
    configure("info", "json", str(file))
    structlog.get_logger().info("before")
    file.rename(moved)
    structlog.get_logger().info("after")
    assert (events(moved), events(file)) == (["before"], ["after"])
    file.unlink()
    structlog.get_logger().info("once more")
    assert events(file) == ["once more"]


def test_a_given_setting_saves_the_detection(tmp_path: Path) -> None:
    file = tmp_path / "hub.log"
    reopen()
    configure("info", "json", str(file))
    file.rename(tmp_path / "hub.log.1")
    reopen()
    structlog.get_logger().info("after")
    assert events(file) == ["after"]


def test_where_the_file_cannot_be_made_anew_the_old_one_is_written_on(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    configure("info", "json", str(folder / "hub.log"))
    folder.rename(tmp_path / "moved")
    folder.write_text("in the way")
    reopen()
    structlog.get_logger().info("after")
    assert events(tmp_path / "moved" / "hub.log") == ["after"]


def test_a_file_that_cannot_be_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    with pytest.raises(IsADirectoryError):
        configure("debug", "json", str(tmp_path))
    structlog.get_logger().info("as before")
    assert json.loads(capsys.readouterr().err)["event"] == "as before"


def test_a_pipe_without_a_reader_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        configure("info", "json", str(tmp_path / "pipe"))


def test_descriptors_of_unused_log_files_are_closed(tmp_path: Path) -> None:
    configure("info", "json")
    before = descriptors()
    for number in range(5):
        configure("info", "json", str(tmp_path / f"{number}.log"))
        reopen()
    configure("info", "json")
    assert descriptors() == before


FULL = """
import resource, signal, structlog, sys
from isthmus.telemetry.logs import configure
configure("info", "json", sys.argv[1])
log = structlog.get_logger()
log.info("short")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
log.info("the first that does not fit", text="x" * 100)
log.info("the second that does not fit", text="x" * 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.info("there is room again")
print("went on")
"""


def test_a_full_disk_costs_lines_and_not_the_hub(tmp_path: Path) -> None:
    file = tmp_path / "hub.log"
    words = [sys.executable, "-c", FULL, str(file)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60, env=environment())
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == [
        "the first that does not fit",
        "the second that does not fit",
    ]
    lines = file.read_text().splitlines()
    assert json.loads(lines[0])["event"] == "short"
    assert json.loads(lines[-1])["event"] == "there is room again"
