"""Commands that print approvals, and secrets that they do not print."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from msgspec import Raw

from isthmus.cli.call_approvals import ApprovalRow, _print_list, _print_one, _span
from isthmus.cli.main import main


def test_a_rule_is_shown_without_the_address_of_its_webhook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "isthmus.toml"
    rule = (
        'tools = ["bank.*"]\narguments = { "to.iban" = { equals = "x" } }\nwebhook = "https://hooks.example/hush-hush"'
    )
    file.write_text(f"[approvals.pay]\n{rule}\n")
    assert main(["config", "show", "--config", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "approvals.pay.arguments" in printed
    assert '{"to.iban":{"equals":"x"}}' in printed
    assert "hush-hush" not in printed


def test_arguments_cannot_look_like_the_end_of_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = Raw(b'{"text": "x\\n}\\nstate: allowed", "wide": "\xe2\x80\xae"}')
    _print_one(ApprovalRow("ap_1", "pending", "a.b", arguments, ["token"], "d", "agent", "acme", None, "r", 0.0, 0.0))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("state:")] == ["state: pending"]
    assert "caller: agent (acme)" in lines
    assert "added by the hub: token" in lines
    assert "\u202e" not in "".join(lines)


@pytest.mark.parametrize(
    ("scope", "state", "brief"),
    [("once", "allowed once", "allowed once"), ("hour", "allowed for an hour", "allowed, 1 h")],
)
def test_a_decision_is_shown_with_its_scope(
    capsys: pytest.CaptureFixture[str], scope: str, state: str, brief: str
) -> None:
    row = ApprovalRow(
        "ap_1", "allowed", "a.b", Raw(b"{}"), [], "d", "ann", "default", None, "r", 0.0, 0.0, "boss", scope=scope
    )
    _print_one(row)
    _print_list([row], has_all=True)
    printed = capsys.readouterr().out
    assert f"state: {state} by boss\n" in printed
    assert f"ap_1  {brief}  a.b" in printed


@pytest.mark.parametrize(("seconds", "expected"), [(-1, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h")])
def test_a_duration_is_written_in_one_unit(seconds: float, expected: str) -> None:
    assert _span(seconds) == expected


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("has_all", [False, True])
def test_a_terminal_has_room_for_the_tool_and_its_arguments(monkeypatch: pytest.MonkeyPatch, *, has_all: bool) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    arguments = '{"path":"/srv/reports/quarterly.md","content":"Hello"}'
    rows = [
        ApprovalRow(
            *("ap_0123456789abcdef", "allowed", "files.write_file", Raw(arguments.encode()), [], "d", "accounting"),
            *("default", None, "r", 0.0, time.time() + 3000, "boss"),
            scope="hour",
        )
    ] * 2
    _print_list(rows, has_all=has_all)
    head, *lines = (re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in terminal.getvalue().splitlines())
    assert "ARGUMENTS" not in head
    assert len(lines) == 4
    assert all("files.write_file" in line and "min" in line for line in lines[::2])
    assert lines[1::2] == [f"  {arguments}"] * 2
