"""Variables and files that a configuration refers to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config.variables import ENV_FILE_BYTES, UsedVariables, Variables, parse_env, variables_of

VALUES = {"TOKEN": "hunter22", "EMPTY": "", "HOME": "/home/me", "NESTED": "${TOKEN}", "PADDED": " key\n"}


@pytest.fixture
def variables(tmp_path: Path) -> Variables:
    return Variables(VALUES, tmp_path, tmp_path / "home")


@pytest.mark.parametrize(
    ("text", "result", "secrets", "unresolved"),
    [
        ("plain $TOKEN {TOKEN}", "plain $TOKEN {TOKEN}", set(), []),
        ("Bearer ${TOKEN}", "Bearer hunter22", {"hunter22"}, []),
        ("${TOKEN}${TOKEN:-x}", "hunter22hunter22", {"hunter22"}, []),
        ("${GONE:-fall back}", "fall back", set(), []),
        ("${GONE:-}", "", set(), []),
        ("${EMPTY:-fall back}", "fall back", set(), []),
        ("[${EMPTY}]", "[]", set(), []),
        ("${GONE} ${ALSO}", "${GONE} ${ALSO}", set(), ["${GONE}", "${ALSO}"]),
        ("${input:token}", "${input:token}", set(), ["${input:token}"]),
        ("${}", "${}", set(), ["${}"]),
        ("${HOME}/x", "/home/me/x", set(), []),
        ("${NESTED}", "${TOKEN}", {"${TOKEN}"}, []),
        ("${TOKEN", "${TOKEN", set(), []),
        ("${env:TOKEN} ${env:GONE:-x}", "hunter22 x", {"hunter22"}, []),
        ("${env:GONE}", "${env:GONE}", set(), ["${env:GONE}"]),
        ("${file:near} ${file:gone}", "in a file ${file:gone}", {"in a file"}, ["${file:gone}"]),
        ("${:-file:near}", "file:near", set(), []),
    ],
)
def test_placeholders_are_replaced_or_stay_literal(
    variables: Variables, tmp_path: Path, text: str, result: str, secrets: set[str], unresolved: list[str]
) -> None:
    borrowed = UsedVariables()
    (tmp_path / "near").write_text("in a file\n")
    assert variables.expand(text, borrowed) == result
    assert (borrowed.secrets, borrowed.unresolved) == (secrets, unresolved)


@given(st.text(alphabet="${}:-AB \\"))
def test_no_text_is_too_odd_to_expand(text: str) -> None:
    Variables({"A": "1"}, Path("/"), Path("/")).expand(text, UsedVariables())


def test_a_secret_comes_from_where_it_says(variables: Variables, tmp_path: Path) -> None:
    borrowed = UsedVariables()
    (tmp_path / "home").mkdir()
    (tmp_path / "near").write_text("from a file\n")
    (tmp_path / "home" / "far").write_text("from home\n")
    assert variables.secret("key", "literal:key", borrowed) == "literal:key"
    assert borrowed.secrets == set()
    assert variables.secret("key", "env:PADDED", borrowed) == "key"
    assert variables.secret("key", "file:near", borrowed) == "from a file"
    assert variables.secret("key", "file:~/far", borrowed) == "from home"
    assert variables.secret("key", "a-${TOKEN}", borrowed) == "a-hunter22"
    assert variables.secret("key", "${GONE:-file:near}", borrowed) == "file:near"
    assert borrowed.secrets == {"key", "from a file", "from home", "hunter22"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env:GONE", "key must name a variable that is set, not env:GONE"),
        ("file:gone", "key must name a readable file, not file:gone (No such file or directory)"),
        ("file:.", "key must name a readable file, not file:. (Is a directory)"),
        ("file:large", "key must name a short text file, not file:large"),
        ("file:binary", "key must name a short text file, not file:binary"),
        ("file:a\0b", "key must name a short text file, not file:a\0b"),
        ("keyring:", "key must be keyring:NAME or keyring:SERVICE/NAME, not keyring:"),
    ],
)
def test_a_secret_that_is_not_there_is_refused(variables: Variables, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "large").write_bytes(b"x" * 65537)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="key must") as refused:
        variables.secret("key", text, UsedVariables())
    assert str(refused.value) == message


class Keyring:
    """Stands in for the package of that name."""

    def __init__(self, **entries: str) -> None:
        self.entries = entries
        self.is_locked = False

    def get_password(self, service: str, name: str) -> str | None:
        if self.is_locked:
            raise RuntimeError("no")
        return self.entries.get(f"{service}/{name}".replace("/", "_"))


def test_a_secret_may_be_in_the_systems_keyring(variables: Variables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", Keyring(isthmus_search="one", corp_it_search="two"))
    borrowed = UsedVariables()
    assert variables.secret("key", "keyring:search", borrowed) == "one"
    assert variables.secret("key", "keyring:corp/it/search", borrowed) == "two"
    assert borrowed.secrets == {"one", "two"}


def test_a_value_missing_from_the_keyring_is_reported_with_how_to_put_it_there(
    variables: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = Keyring()
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    with pytest.raises(
        ValueError, match=r"in the keyring \(put it there with: keyring set isthmus search\), not keyring"
    ):
        variables.secret("key", "keyring:search", UsedVariables())
    keyring.is_locked = True
    with pytest.raises(ValueError, match=r"in a keyring that opens, not keyring:search \(RuntimeError\)"):
        variables.secret("key", "keyring:search", UsedVariables())


def test_without_the_package_the_keyring_is_reported_as_an_extra(
    variables: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(
        ValueError, match=r"without the package keyring \(isthmus\[keyring\] has it\), not keyring:search"
    ):
        variables.secret("key", "keyring:search", UsedVariables())


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=plain", "plain"),
        ("A = spaced out  ", "spaced out"),
        ("export A=exported", "exported"),
        ("A=", ""),
        ("A=with # a comment", "with"),
        ("A=with#no comment", "with#no comment"),
        ("A=# only a comment", ""),
        ("A='single # $quoted \\n'", "single # $quoted \\n"),
        ('A="double # \\"quoted\\"" # comment', 'double # "quoted"'),
        ('A="two\\nlines\\t\\\\n"', "two\nlines\t\\n"),
        ("A=a=b", "a=b"),
        ("  A=indented\r", "indented"),
    ],
)
def test_a_line_of_env_is_read_as_a_shell_would(line: str, value: str) -> None:
    assert parse_env(f"# comment\n\n{line}\n") == ({"A": value}, ())


@pytest.mark.parametrize("line", ["A", "=a", "1A=b", 'A="open', "A='open", "A='a' b", "two words=1"])
def test_a_line_of_env_that_makes_no_sense_is_named_by_number(line: str) -> None:
    assert parse_env(f"B=1\n{line}\nC=2") == ({"B": "1", "C": "2"}, (2,))


@given(st.text())
def test_no_env_file_is_too_odd_to_read(text: str) -> None:
    parse_env(text)


@given(st.text(st.characters(exclude_characters="\n'", exclude_categories=["Cs"])))
def test_single_quotes_keep_any_value(value: str) -> None:
    assert parse_env(f"A='{value}'") == ({"A": value}, ())


def test_the_real_environment_wins_over_the_file_beside(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=file\nB=file\nhunter22\n")
    seen, findings = variables_of(tmp_path / "mcp.json", {"A": "real"})
    assert seen == {"A": "real", "B": "file"}
    assert [str(finding) for finding in findings] == [".env: line 3 is not NAME=value and is skipped"]


def test_a_missing_file_beside_is_not_reported(tmp_path: Path) -> None:
    assert variables_of(tmp_path / "mcp.json", {"A": "real"}) == ({"A": "real"}, ())


def test_an_env_file_that_is_a_pipe_or_too_long_is_reported_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".env")
    _, [received] = variables_of(tmp_path / "mcp.json", {})
    assert str(received) == ".env: cannot be read (Not a regular file) and is skipped"
    (tmp_path / ".env").unlink()
    (tmp_path / ".env").write_bytes(b"A=" + b"x" * ENV_FILE_BYTES)
    _, [received] = variables_of(tmp_path / "mcp.json", {})
    assert str(received) == ".env: is longer than 1 MiB and is skipped"


def test_an_env_file_that_is_not_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xff")
    seen, findings = variables_of(tmp_path / "mcp.json", {"A": "real"})
    assert seen == {"A": "real"}
    assert [str(finding) for finding in findings] == [".env: cannot be read as text and is skipped"]
