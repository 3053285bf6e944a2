"""T59: an imported file expands beyond its size, or brings settings that it must not set.

The answer: files are read by safe loaders, up to 32 MiB, 200 levels and 100,000 values with their aliases followed;
what is no regular file is not read. From another program's file come servers and nothing else: no callers, no keys, no
tenants, no settings of the hub. Commands come in by the operator's own hand, `isthmus import` on this machine; there is
no way to import over the network (T22). A backup is a copy of the state folder, which is restored by being put back: no
command reads one.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from isthmus.cli.edit_servers import ImportOptions, import_servers
from isthmus.cli.exits import Exit
from isthmus.config.client_file_reader import HostContext, read_client_files
from isthmus.config.files import FILE_BYTES_MAX, read_document
from isthmus.config.findings import ConfigError, Place
from isthmus.frontends.rest.operation_table import OPERATIONS
from tests.security.source import dotted, with_words

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
"""A few hundred bytes that stand for thirty billion values."""

BOMBS = {
    "laughs.yaml": LAUGHS,
    "quadratic.yaml": "a: &a [" + "x, " * 1_000 + "]\nb: [" + "*a, " * 1_000 + "]\n",
    "itself.yaml": "a: &a [*a]\n",
    "merged.yaml": "a: &a {x: &b {y: 1}}\nb: {<<: *a, <<: *a}\nservers: &s {s: *s}\n",
    "deep.yaml": "[" * 100_000,
    "deep.json": "[" * 100_000,
    "deep.toml": "a = " + "[" * 100_000,
    "number.json": '{"a": ' + "9" * 100_000 + "}",
    "object.yaml": "a: !!python/object/apply:os.system ['touch pwn']\n",
    "module.yaml": "a: !!python/module:os\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_stands_for_too_much_is_refused_with_its_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name
    file.write_text(BOMBS[name])
    with pytest.raises(ConfigError) as refused:
        read_document(file)
    assert all(finding.file == file for finding in refused.value.findings)
    assert not (tmp_path / "pwn").exists()


def test_a_file_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "huge.yaml"
    with file.open("wb") as stream:
        stream.truncate(1 << 30)
    assert FILE_BYTES_MAX == 32 << 20
    with pytest.raises(ConfigError, match="is longer than 32 MiB"):
        read_document(file)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_irregular_files_are_not_read(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "servers.json"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document(file)


FOREIGN = """
{
  "mcpServers": {"files": {"command": "files-server", "args": ["--root", "/srv"], "callers": {"eve": {"headers": {}}}}},
  "callers": {"eve": {"key": "eve-key-0123456789abcdef", "allow": ["*"], "tenant": "acme"}},
  "tenants": {"acme": {"allow": ["*"]}},
  "hub": {"host": "0.0.0.0", "pin": "off", "audit": "off"},
  "targets": {"allow": ["http://*"]},
  "issuers": {"eve": {"issuer": "https://eve.example"}},
  "plugins": {"identity": "eve"},
  "import": ["/etc/passwd", "all"]
}
"""


@pytest.mark.parametrize("dialect", [None, "claude-code", "isthmus"])
def test_only_servers_come_from_another_programs_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "theirs.json").write_text(FOREIGN)
    assert import_servers(ImportOptions(["./theirs.json"], dialect)) == Exit.SUCCESS
    written = tomllib.loads((tmp_path / "isthmus.toml").read_text())
    assert set(written) == {"servers"}
    assert set(written["servers"]) == {"files"}
    assert set(written["servers"]["files"]) - {"extra", "extra_json"} <= {"command", "args", "type"}


def test_a_file_that_cannot_be_read_costs_only_its_own_servers(tmp_path: Path) -> None:
    (tmp_path / "bomb.yaml").write_text(LAUGHS)
    (tmp_path / "good.json").write_text('{"mcpServers": {"files": {"command": "files-server"}}}')
    found = read_client_files(
        ["./bomb.yaml", "./good.json"], Place(None), tmp_path, HostContext({}, tmp_path, tmp_path)
    )
    assert [document.file.name for document in found.documents] == ["good.json"]
    assert [file.name for file in found.unread] == ["bomb.yaml"]


def test_nothing_is_imported_over_the_network() -> None:
    words = ("import", "restore", "config")
    changing = [each.id for each in OPERATIONS if each.method != "GET"]
    assert not [id for id in changing if any(word in id for word in words)]
    for name, found in with_words(r"yaml\.|pickle|marshal|shelve"):
        called = {dotted(node) for node in found}
        assert not called & {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.UnsafeLoader", "yaml.Loader"}, (
            name
        )
        # The reader of long messages is a child of the hub, which loads only classes of its own from its answers.
        modules = ("marshal.", "shelve.") if name == "app/parser_worker.py" else ("pickle.", "marshal.", "shelve.")
        assert not any(each.startswith(modules) for each in called), name
