"""Permissions that name a server which is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.codes import UNKNOWN_SERVER
from isthmus.config.load import load

FILE = """
[servers.files]
command = "x"
[tenants.acme]
deny = ["fils.delete"]
[callers.ann]
key = "a-key-of-ann-0123456789"
allow = ["*", "files.*", "files", "builtin.echo", "tag:fils", "agent:fils", "gadget.look"]
deny = ["FILES", "hint:destructive"]
[callers.ann.faces.rest]
allow = ["filez.read"]
[issuers.corp]
issuer = "https://login.example"
audience = "a"
allow = ["file"]
scopes = { "w" = ["flies.write"] }
"""
WRONG = {
    "callers.ann.deny.0": "files",
    "callers.ann.faces.rest.allow.0": "files.read",
    "tenants.acme.deny.0": "files.delete",
    "issuers.corp.allow.0": "files",
    "issuers.corp.scopes.w.0": "files.write",
}


def findings(folder: Path, text: str) -> dict[str, str]:
    file = folder / "isthmus.toml"
    file.write_text(text)
    told = load(file, {}, folder, folder).warnings
    return {each.path: each.advice for each in told if each.code is UNKNOWN_SERVER}


def test_a_name_that_is_nearly_a_servers_is_told_wherever_it_stands(tmp_path: Path) -> None:
    assert findings(tmp_path, FILE) == {path: f"did you mean {meant}?" for path, meant in WRONG.items()}


LIKE_LABELS = """
[servers.agent-fils]
command = "x"
[servers.tag-fils]
command = "x"
[servers.builtin2]
command = "x"
[callers.ann]
key = "a-key-of-ann-0123456789"
allow = ["agent:fils", "tag:fils", "builtin.echo", "bultin.echo"]
"""


def test_labels_agents_and_what_is_built_in_are_not_taken_for_servers_that_look_alike(tmp_path: Path) -> None:
    assert findings(tmp_path, LIKE_LABELS) == {"callers.ann.allow.3": "did you mean builtin.echo?"}


@pytest.mark.parametrize("said", ["deny = 5", "deny = [5, {}]", "faces = []", 'scopes = "x"', "faces = { rest = 1 }"])
def test_what_is_no_list_of_texts_is_for_others_to_tell(tmp_path: Path, said: str) -> None:
    callers = '[callers.ann]\nkey = "a-key-of-ann-0123456789"\nallow = ["*"]\n'
    assert findings(tmp_path, f"{callers}[callers.bob]\nkey = 'a-key-of-bob-0123456789'\n{said}\n") == {}
