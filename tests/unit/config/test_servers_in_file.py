"""One key of a server is switched in a file, and everything else stays byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.files import read_document
from isthmus.config.servers_in_file import ServerFile


def file_of(folder: Path, name: str, text: str) -> ServerFile:
    file = folder / name
    file.write_text(text)
    return ServerFile(file, text, read_document(file))


@pytest.mark.parametrize(
    ("name", "on", "off"),
    [
        ("isthmus.toml", '[servers.a]\ncommand = "a"  # me\n', '[servers.a]\ndisabled = true\ncommand = "a"  # me\n'),
        ("mcp.json", '{"mcpServers": {"a": {"command": "a"}}}',
         '{"mcpServers": {"a": {"command": "a", "disabled": true}}}'),
        ("isthmus.yaml", "servers:\n  a:\n    command: a\n", "servers:\n  a:\n    command: a\n    disabled: true\n"),
    ],
)  # fmt: skip
def test_a_server_is_disabled_and_enabled_again(name: str, on: str, off: str, tmp_path: Path) -> None:
    enabled = file_of(tmp_path, name, on)
    path = enabled.find("a")
    assert path is not None
    assert enabled.is_on(path)
    assert enabled.switched(path, is_on=False) == off
    disabled = file_of(tmp_path, name, off)
    assert not disabled.is_on(path)
    assert disabled.switched(path, is_on=True) == on


def test_a_key_that_is_there_is_the_one_that_changes(tmp_path: Path) -> None:
    file = file_of(tmp_path, "isthmus.toml", '[servers.a]\nenabled = false\ncommand = "a"\n')
    assert file.switched(("servers", "a"), is_on=True) == '[servers.a]\nenabled = true\ncommand = "a"\n'


def test_a_server_is_found_by_its_name_in_the_file_and_in_the_hub(tmp_path: Path) -> None:
    file = file_of(tmp_path, "mcp.json", '{"mcpServers": {"my notes": {"command": "a"}}}')
    assert file.find("my notes") == file.find("my-notes") == ("mcpServers", "my notes")
    assert file.find("others") is None
    assert file.names() == ["my notes"]
