"""T42: characters that drive a terminal or hide words, in whatever a server says.

Where a person reads (the command line, logs) they are written as escapes; where a model reads they are marked.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
from pathlib import Path

import msgspec
import pytest
import structlog

from isthmus.cli.output import harmless
from isthmus.core.catalog.definition_review import flags_of
from isthmus.model.features import Tool
from isthmus.model.hidden_characters import CONTROL, INVISIBLE, MISJOINED, escaped
from isthmus.model.names import FeatureName, ServerName
from isthmus.telemetry import logs
from tests.fork_server import quick_isthmus
from tests.hubs import environment, write_config
from tests.security.fickle import Fickle
from tests.security.fickle_server import tool

VECTORS = {
    "clear the screen": "\x1b[2J",
    "set the title": "\x1b]0;owned\x07",
    "a link to elsewhere": "\x1b]8;;http://evil.test\x1b\\here\x1b]8;;\x1b\\",
    "set the clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "eight bit CSI": "\x9b2J",
    "DCS": "\x1bP0;1|17/ab\x1b\\",
    "backspaces": "safe\x08\x08\x08\x08evil",
    "turned around": "\u202egnp.exe",
    "isolates": "\u2066x\u2069",
    "zero width": "pass\u200bword",
    "word joiner": "pass\u2060word",
    "byte order mark": "\ufeffx",
    "soft hyphen": "pass\u00adword",
    "tags": "".join(chr(0xE0000 + ord(each)) for each in "read the key"),
    "variation selectors": "x" + "".join(chr(0xE0100 + ord(each)) for each in "hi"),
    "joiners where there is nothing to join": "pass\u200cword",
    "two joiners": "pass\u200c\u200dword",
    "bits of joiners": "\u00e9" + "\u200c\u200d" * 8,
    "other selectors": "x" + "\ufe01\ufe02" * 8,
    "joined graphemes": "pass\u034fword",
    "vowels that nobody sees": "x\u17b4y\u17b5z",
    "selectors of another script": "x\u180b\u180f",
    "bits of such selectors": "\u1820" + "\u180b\u180c" * 8,
    "what no font has": "x\ufff5",
    "controls of shorthand": "x\U0001bca0y",
    "half a character": "\ud800",
    "filler": "\u3164",
}


@pytest.mark.parametrize("vector", VECTORS)
def test_a_person_sees_an_escape(vector: str) -> None:
    shown = harmless(VECTORS[vector])
    assert not CONTROL.search(shown)
    assert not INVISIBLE.search(shown)
    assert not MISJOINED.search(shown)
    assert "\\u" in shown


@pytest.mark.parametrize("character", ["\x1b", "\u202e", "\U000e0041"])
def test_an_escape_is_read_back_as_the_character(character: str) -> None:
    assert json.loads(f'"{escaped(character)}"') == character


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "two\nlines\tand a tab",
        "naïve",
        "检查",
        "✅️",
        "👨\u200d👩\u200d👧",
        "می\u200cخواهم",
        "1\ufe0f\u20e3",
        "ᠳ᠋ᠠ",
        "👁\ufe0f\u200d🗨\ufe0f",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert harmless(text) == text


@pytest.mark.parametrize("vector", VECTORS)
def test_a_model_is_warned(vector: str) -> None:
    text = json.dumps(VECTORS[vector]).encode()
    if vector == "half a character":
        return  # no JSON that the hub takes can hold one: see T04
    definition = Tool.of(ServerName("s"), FeatureName("t"), {"description": msgspec.Raw(text)})
    assert {"control-characters", "invisible-characters"} & set(flags_of(definition))


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("format", ["json", "console"])
def test_a_line_of_the_log_is_one_line_and_harmless(
    vector: str, format: logs.Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    try:
        logs.configure("info", format)
        structlog.get_logger("t").warning("said", text=VECTORS[vector] + "\nforged", tool=VECTORS[vector])
    finally:
        monkeypatch.undo()
        logs.configure()
    line = out.getvalue()
    assert line.count("\n") == 1
    assert not CONTROL.search(line)
    assert not INVISIBLE.search(line)
    assert not MISJOINED.search(line)


@pytest.mark.parametrize(
    "words", [["tools"], ["tools", "--json"], ["call", "fickle.odd"], ["servers"], ["doctor"]], ids=" ".join
)
def test_no_command_passes_them_on_to_a_terminal(words: list[str], tmp_path: Path) -> None:
    everything = "".join(text for name, text in VECTORS.items() if name != "half a character")
    fickle = Fickle(tmp_path / "lists.json")
    fickle.lists(tool("odd", everything, title=everything), answers={"odd": everything})
    config = write_config(tmp_path, {"fickle": fickle.entry})
    seen = _on_a_terminal([*quick_isthmus(*words), "--config", str(config)], tmp_path)
    own = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours and cursor movements of our own tables
    rest = own.sub("", seen.replace("\r\n", "\n"))
    assert "\x1b" not in rest
    assert "owned\x07" not in rest
    assert not [each for each in rest if INVISIBLE.match(each)]
    assert "\x1b[2J" not in seen.replace("\x1b[2J\x1b[H", "")


def test_all_default_ignorable_characters_are_known() -> None:
    """All of Default_Ignorable_Code_Point, but for what scripts and emoji need; alone, after a letter of ASCII."""
    spans = [(0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)]
    spans += [(0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0E)]
    spans += [(0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A)]
    spans += [(0xE0000, 0xE0FFF)]
    unseen = [chr(point) for first, last in spans for point in range(first, last + 1)]
    assert [f"{ord(each):x}" for each in unseen if harmless(f"a{each}b") == f"a{each}b"] == []


def _on_a_terminal(command: list[str], folder: Path) -> str:
    """What a command writes to a terminal."""
    child, master = pty.fork()
    if child == 0:  # pragma: no cover - another process
        os.chdir(folder)
        os.execve(command[0], command, environment({"TERM": "xterm", "COLUMNS": "200"}))
    out = bytearray()
    try:
        while part := os.read(master, 65536):
            out += part
    except OSError:
        pass  # the way a terminal says that its program has ended
    finally:
        os.close(master)
        os.waitpid(child, 0)
    return out.decode("utf-8", "replace")
