"""Keys of callers at the command line: printed once, kept as digests, rotated and revoked without a hub that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from isthmus.app.key_files import KeyFile
from isthmus.cli import token as module
from isthmus.cli.exits import Exit
from isthmus.cli.main import main
from isthmus.identity.keys import digest_of

KEY = re.compile(r"isk_[A-Za-z0-9_-]{43}")
NOW = 1_900_000_000.0


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("ISTHMUS_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("isthmus.cli.token.time.time", lambda: NOW)
    (tmp_path / "isthmus.toml").write_text('[hub]\nstate = "state"\n')
    return tmp_path


class Said:
    """What a command printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        self.code = main(["token", *words])
        captured = capsys.readouterr()
        self.out, self.err = captured.out, captured.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    keys: list[dict[str, Any]] = Said(capsys, "list", "--json").json["keys"]
    return keys


def create(capsys: pytest.CaptureFixture[str], name: str = "planner", *more: str) -> dict[str, Any]:
    said = Said(capsys, "create", name, "--allow", "*", "--json", *more)
    assert said.code == Exit.SUCCESS, said.err
    made: dict[str, Any] = said.json
    return made


def test_a_key_is_printed_once_and_only_its_digest_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "create", "planner", "--allow", "files.*", "--deny", "files.delete", "--tenant", "acme")
    assert said.code == Exit.SUCCESS
    rows = dict(line.split("  ", 1) for line in said.out.splitlines())
    key = rows["key"].strip()
    assert KEY.fullmatch(key)
    assert rows["may call"].strip() == "files.* but not files.delete"
    assert "cannot be shown again" in said.err
    (kept,) = KeyFile(folder / "state").read()
    assert bytes.fromhex(kept.digest) == digest_of(key)
    assert (kept.name, kept.tenant, kept.allow, kept.deny) == ("planner", "acme", ("files.*",), ("files.delete",))
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert key.encode() not in everything
    shown = Said(capsys, "list")
    assert key not in shown.out + shown.err + said.err


def test_a_pattern_that_resembles_a_server_is_questioned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "isthmus.toml").open("a") as file:
        file.write('[servers.notes]\ncommand = "notes"\n')
    said = Said(capsys, "create", "planner", "--allow", "nots.*", "--deny", "notes.add", "--allow", "other.*")
    assert said.code == Exit.SUCCESS
    questioned = "'nots.*' names no server of the configuration; did you mean 'notes.*'?"
    assert [line for line in said.err.splitlines() if "did you mean" in line] == [
        f"{questioned} `isthmus token revoke planner` deletes the key."
    ]


def test_programs_get_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    made = create(capsys, "planner", "--expires", "90d", "--targets", "--operator")
    assert KEY.fullmatch(made.pop("key"))
    assert made == {
        "name": "planner", "id": made["id"], "tenant": "default", "state": "good", "made": "2030-03-17T17:46:40+00:00",
        "expires": "2030-06-15T17:46:40+00:00", "allow": ["*"], "deny": [], "targets": True,
        "operator": True, "source": "state", "set": None,
    }  # fmt: skip
    assert listed(capsys) == [made]


def test_people_see_the_owner_of_each_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "list")
    assert (said.code, said.out) == (Exit.SUCCESS, "")
    assert "There are no keys" in said.err
    with (folder / "isthmus.toml").open("a") as file:
        file.write('[callers.reader]\nkey = "a-key-of-the-reader"\nexpires = 2020-01-01\nallow = ["files.read"]\n')
    made = create(capsys)
    planner, reader = Said(capsys, "list").out.splitlines()  # no head without a terminal
    assert planner.split() == ["planner", made["id"], "default", "good", "never", "*"]
    assert reader.split() == ["reader", "-", "default", "expired", "2020-01-01T00:00Z", "files.read"]


def test_a_rotated_key_has_a_successor_and_is_good_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    old = create(capsys, "planner", "--expires", "90d")
    said = Said(capsys, "rotate", "planner", "--json")
    new = said.json
    assert said.code == Exit.SUCCESS
    assert "stays valid for 24h" in said.err
    assert new["key"] != old["key"]
    assert new["expires"] == old["expires"], "it lasts as long as the one before"
    before, after = sorted(listed(capsys), key=lambda key: key["state"] == "good")
    assert (before["id"], before["state"], before["expires"]) == (old["id"], "rotated", "2030-03-18T17:46:40+00:00")
    assert (after["id"], after["state"]) == (new["id"], "good")


def test_the_old_key_can_end_at_once_and_the_new_one_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys)
    said = Said(capsys, "rotate", "planner", "--overlap", "0s", "--expires", "1d", "--json")
    assert said.json["expires"] == "2030-03-18T17:46:40+00:00"
    assert "is no longer valid" in said.err
    assert sorted(key["state"] for key in listed(capsys)) == ["expired", "good"]


def test_a_caller_is_revoked_with_all_its_keys_or_one_key_alone(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys)
    old = create(capsys, "reader")
    new = Said(capsys, "rotate", "reader", "--json").json
    assert Said(capsys, "revoke", old["id"]).out == f"revoked {old['id']}\n"
    states = {key["id"]: key["state"] for key in listed(capsys)}
    assert (states[old["id"]], states[new["id"]]) == ("revoked", "good")
    assert Said(capsys, "revoke", "reader").out == f"revoked {new['id']}\n"
    assert Said(capsys, "revoke", "reader").out == "reader had no valid key\n"
    assert [key["state"] for key in listed(capsys) if key["name"] == "planner"] == ["good"]
    create(capsys, "reader")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create", "planner"), "--allow is missing"),
        (("create", "planner", "--allow", "f*"), "--allow must be *, server.*, server.tool"),
        (("create", "planner", "--allow", "*", "--deny", ""), "--deny must be *, server.*"),
        (("create", "", "--allow", "*"), "the name must be 1 to 128 printable characters"),
        (("create", "0a1b0a1b0a1b0a1b", "--allow", "*"), "must not look like the id"),
        (("create", "planner", "--allow", "*", "--tenant", "a\nb"), "--tenant must be 1 to 128 printable"),
        (("create", "planner", "--allow", "*", "--expires", "soon"), "--expires must be a time like 12h"),
        (("create", "planner", "--allow", "*", "--expires", "0d"), "--expires must be a time like 12h"),
        (("rotate", "planner"), "planner has no valid key"),
        (("rotate", "planner", "--overlap", "-1h"), "--overlap must be a time like 12h"),
        (("revoke", "planner"), "no key has that name or id"),
    ],
)
def test_an_impossible_command_is_reported_and_creates_no_list(
    words: tuple[str, ...], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Said(capsys, *words)
    assert (output.code, output.out) == (Exit.USAGE, "")
    assert said in output.err
    assert not (folder / "state").exists(), "a list closes a hub that was open"


def test_making_a_key_gives_no_caller_a_second_one(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys)
    said = Said(capsys, "create", "planner", "--allow", "*")
    assert (said.code, said.out) == (Exit.USAGE, "")
    assert "isthmus token rotate planner" in said.err
    assert len(listed(capsys)) == 1


@pytest.mark.parametrize("words", [("create", "reader", "--allow", "*"), ("rotate", "reader"), ("revoke", "reader")])
def test_callers_of_the_file_are_changed_there(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "isthmus.toml").open("a") as file:
        file.write('[callers.reader]\nkey = "a-key-of-the-reader"\nallow = ["*"]\n')
    said = Said(capsys, *words)
    assert said.code == Exit.USAGE
    assert "reader is a caller of" in said.err
    assert "key = [" in said.err


def test_a_tenant_is_one_that_is_configured_where_any_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "isthmus.toml").open("a") as file:
        file.write('[tenants.acme]\nallow = ["files"]\n')
    said = Said(capsys, "create", "planner", "--allow", "*", "--tenant", "acne")
    assert said.code == Exit.USAGE
    assert "--tenant must be one of acme, got 'acne'" in said.err
    create(capsys, "planner", "--tenant", "acme")


@pytest.mark.parametrize("words", [("create", "x", "--allow", "*"), ("rotate", "x"), ("revoke", "x"), ("list",)])
def test_an_unusable_list_is_reported_and_left_alone(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(capsys)
    file = KeyFile(folder / "state").path
    file.write_text("{")
    said = Said(capsys, *words)
    assert (said.code, said.out) == (Exit.CONFIGURATION, "")
    assert "keys.json cannot be used: it is not a list of keys, or it is truncated" in said.err
    assert file.read_text() == "{"


def test_a_folder_that_cannot_be_written_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "state").write_text("a file")
    said = Said(capsys, "create", "planner", "--allow", "*")
    assert (said.code, said.out) == (Exit.CONFIGURATION, "")
    assert "[hub] state" in said.err


def test_there_is_an_end_to_the_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "KEYS_MAX", 1)
    create(capsys)
    said = Said(capsys, "create", "reader", "--allow", "*")
    assert said.code == Exit.CONFIGURATION
    assert "issuer" in said.err


HUBS_OWN = """
[callers.reader]
key = "env:NOBODY_SET_THIS"
allow = ["*"]
[storage]
url = "env:NOBODY_SET_THIS_EITHER"
"""


def test_keys_are_made_and_revoked_without_the_hubs_variables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any operator must be able to revoke a key, in a shell without the hub's variables."""
    with (folder / "isthmus.toml").open("a") as file:
        file.write(HUBS_OWN)
    made = create(capsys)
    said = Said(capsys, "list")
    assert said.code == Exit.SUCCESS
    assert made["id"] in said.out
    assert "are not listed" in said.err
    assert "NOBODY_SET_THIS_EITHER" in said.err
    said = Said(capsys, "create", "reader", "--allow", "*")
    assert said.code == Exit.USAGE
    assert "reader is a caller of" in said.err
    said = Said(capsys, "revoke", "planner")
    assert (said.code, said.out) == (Exit.SUCCESS, f"revoked {made['id']}\n")
    assert KeyFile(folder / "state").read()[0].revoked_at == NOW
    assert Said(capsys, "revoke", "0123456789abcdef").out == "revoked 0123456789abcdef\n", "a token of the relay, too"


def test_a_key_whose_name_the_file_took_can_be_revoked_by_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = create(capsys, "reader")
    with (folder / "isthmus.toml").open("a") as file:
        file.write('[callers.reader]\nkey = "a-key-0123456789abcdef"\nallow = ["*"]\n')
    assert Said(capsys, "revoke", "reader").out == f"revoked {made['id']}\n"


def test_no_key_is_called_like_a_caller_of_an_issuer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "create", "corp/alice", "--allow", "*")
    assert (said.code, said.out) == (Exit.USAGE, "")
    assert "must not contain a slash, which marks callers of issuers, got 'corp/alice'" in said.err
    assert not (folder / "state").exists()


def test_revoking_the_last_key_warns_that_the_hub_opens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Said(capsys, "create", "planner", "--allow", "*")
    assert f"From now on the hub of {folder / 'isthmus.toml'} requires a key" in first.err
    assert "No hub that uses this key runs now" in first.err
    assert "From now on" not in Said(capsys, "create", "reader", "--allow", "*").err
    assert Said(capsys, "revoke", "reader").err == ""
    last = Said(capsys, "revoke", "planner")
    assert (last.code, "isthmus token revoke planner --open" in last.err) == (Exit.SUCCESS, True)
    opened = Said(capsys, "revoke", "planner", "--open")
    assert (opened.code, opened.out, "is open" in opened.err) == (Exit.SUCCESS, "planner had no valid key\n", True)
    assert KeyFile(folder / "state").is_open()
    assert "stays closed" not in Said(capsys, "revoke", "planner").err
    assert "From now on" in Said(capsys, "create", "planner", "--allow", "*").err
    assert not KeyFile(folder / "state").is_open()


@pytest.mark.parametrize(
    ("file", "word", "code", "said"),
    [
        (
            '[callers.ann]\nkey = "k3y-of-the-planner-0123456789"\nallow = ["*"]\n',
            "planner",
            Exit.USAGE,
            "callers or issuers",
        ),
        ('[hub]\nhost = "0.0.0.0"\n', "planner", Exit.CONFIGURATION, "must be loopback"),
        ("", "0123456789abcdef", Exit.USAGE, "a relay token does not open"),
    ],
)
def test_a_hub_that_would_not_be_open_is_not_opened(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, word: str, code: Exit, said: str
) -> None:
    create(capsys)
    (folder / "isthmus.toml").write_text(
        f'{file}[hub]\nstate = "state"\n' if "[hub]" not in file else f'{file}state = "state"\n'
    )
    refused = Said(capsys, "revoke", word, "--open")
    assert (refused.code, said in refused.err) == (code, True)
    assert not KeyFile(folder / "state").is_open()
