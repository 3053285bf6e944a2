"""Output to a terminal contains no control sequences from others."""

from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.cli.budgets import _subject_text
from isthmus.cli.call_approvals import ApprovalRow, _caller
from isthmus.cli.output import (
    aligned,
    first_line,
    harmless,
    print_error,
    print_json,
    print_output,
    show_table,
    size_text,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stdout(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    return terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("naïve 日本 👩‍💻", "naïve 日本 👩‍💻"),
        ("\x1b]52;c;ZXZpbA==\x07", "\\u001b]52;c;ZXZpbA==\\u0007"),
        ("\x9b31m", "\\u009b31m"),
        ("over\rwritten", "over\\u000dwritten"),
        ("windows\r\nlines\n\ttab", "windows\nlines\n\ttab"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\x7f\b", "\\u007f\\u0008"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_written_as_escapes(text: str, shown: str) -> None:
    assert harmless(text) == shown


@given(st.text())
def test_nothing_harmful_is_left_of_any_text(text: str) -> None:
    shown = harmless(text, keep="")
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in shown)


@given(st.text())
def test_json_stays_the_same_json(text: str) -> None:
    written = json.dumps({"text": text}, ensure_ascii=False)
    assert json.loads(harmless(written)) == {"text": text}


def test_a_description_is_cut_to_its_first_line_that_says_something() -> None:
    assert first_line("\n  \n First.\x1b[2J\nSecond.") == "First.\\u001b[2J"
    assert first_line("") == ""


def test_output_to_a_terminal_is_made_harmless(stdout: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", stdout)
    print_output("\x1b[2J")
    assert stdout.getvalue() == "\\u001b[2J\n"


def test_output_to_anything_else_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_output("\x1b[2J\n")
    assert capsys.readouterr().out == "\x1b[2J\n"


def test_json_is_laid_out_and_keeps_every_digit(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(b'{"big":12345678901234567890123,"exact":1.10}')
    assert capsys.readouterr().out == '{\n  "big": 12345678901234567890123,\n  "exact": 1.10\n}\n'


def test_messages_on_stderr_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("\x1b[2J")
    assert capsys.readouterr().err == "\\u001b[2J\n"


def test_columns_begin_at_the_same_place() -> None:
    assert aligned([("a", "bb", "last"), ("longer", "b", "")]) == ["a       bb  last", "longer  b"]


def test_a_table_folds_names_and_cuts_only_descriptions(stdout: Terminal) -> None:
    rows = [("server.a_name_that_is_far_too_long", "[bold]x[/bold] " + "word " * 20), ("b\x1b", "short")]
    show_table(stdout, [("server", rows), ("other", [("c", "d")])], ("cyan", ""))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", stdout.getvalue()).splitlines()
    assert lines[0] == "server"
    assert lines[1].startswith("server.a_name_that_is_    [bold]x[")
    assert lines[1].endswith("…")
    assert lines[2].strip() == "far_too_long"
    assert lines[3].split() == ["b\\u001b", "short"]
    assert [line.rstrip() for line in lines[4:]] == ["", "other", "c" + " " * 25 + "d"]
    assert all(len(line) <= 40 for line in lines)


def test_names_are_folded_between_their_words_and_ids_are_whole(
    stdout: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = ("ap_0123456789abcdef", "payments-gateway.transfer-money", "accounting-agent", "59 min", '{"amount": 5000}')
    show_table(stdout, [("", [row])], ("", "", "", "", ""), is_wrapped=True)
    columns = [re.split(r" {2,}", line.strip()) for line in stdout.getvalue().splitlines()]
    assert columns[0][0] == row[0]
    assert [columns[0][1], *(line[0] for line in columns[1:])] == ["payments-", "gateway.", "transfer-money"]
    assert columns[0][2:] == list(row[2:])


@pytest.mark.parametrize(
    ("row", "whole"),
    [
        (
            (
                "ap_0123456789abcdef",
                "pending",
                "payments-gateway.transfer-money",
                "accounting-agent",
                "59 min",
                "{}" * 30,
            ),
            0,
        ),
        (("accounting-agent", "k3f8a2b1", "default", "expired", "2026-12-19T17:15:33+00:00", "files weather " * 4), 4),
    ],
)
def test_ids_and_times_are_whole_beside_a_long_last_column(
    row: tuple[str, ...], whole: int, stdout: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show_table(stdout, [("", [row])], ("",) * len(row), is_wrapped=True)
    lines = stdout.getvalue().splitlines()
    assert row[whole] in re.split(r" {2,}", lines[0].strip())
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1_200_000, "1.2 MB"), (999_960, "1.0 MB"), (5e12, "5.0 TB")],
)
def test_sizes_are_readable(size: float, text: str) -> None:
    assert size_text(size) == text


def test_names_are_not_folded_for_a_last_column_that_needs_less(
    stdout: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = ("kitchen_calculator_server", "ready", "dial-in", "MCP 2026-07-28 and more", "3 tools")
    show_table(stdout, [("", [row])], ("", "", "", "", ""))
    assert stdout.getvalue().rstrip() == "  ".join(row)


@pytest.mark.parametrize(
    ("caller", "tenant", "text"),
    [
        ("local", "local", "local"),
        ("ann", "default", "ann"),
        ("ann", "acme", "ann (acme)"),
        ("acme", "acme", "acme (acme)"),
    ],
)
def test_a_caller_has_its_tenant_unless_that_says_nothing(caller: str, tenant: str, text: str) -> None:
    row = ApprovalRow("ap_1", "pending", "a.b", Raw(b"{}"), [], "d", caller, tenant, None, "r", 0.0, 0.0)
    assert _caller(row) == text
    assert _subject_text({"caller": caller, "tenant": tenant}) == text
