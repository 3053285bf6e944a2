"""Finding and reading files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config.files import (
    FileTooLong,
    derived_state,
    find_file,
    read_document,
    read_regular_file,
    resolve_path,
    state_folder,
)
from isthmus.config.findings import ConfigError
from isthmus.config.formats import strict_json

# -- Which file is read, and what a broken one says ---------------------------------------------------------

LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    return _folder(tmp_path / "cwd")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return _folder(tmp_path / "home")


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _written(file: Path, text: str = "{}") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_the_usual_places_are_searched_in_order(cwd: Path, home: Path) -> None:
    places = [
        cwd / "isthmus.toml",
        cwd / "mcp.json",
        home / ".config/isthmus/isthmus.toml",
        home / ".isthmus/mcp.json",
    ]
    assert find_file(None, {}, cwd, home) is None
    for place in reversed(places):
        _written(place)
        assert find_file(None, {}, cwd, home) == place


def test_the_folders_of_xdg_come_first_where_they_are_absolute(cwd: Path, home: Path, tmp_path: Path) -> None:
    usual = _written(home / ".config/isthmus/isthmus.toml")
    variables = {"XDG_CONFIG_HOME": str(tmp_path / "configs"), "XDG_STATE_HOME": str(tmp_path / "states")}
    assert find_file(None, variables, cwd, home) == usual
    named = _written(tmp_path / "configs/isthmus/isthmus.toml")
    assert find_file(None, variables, cwd, home) == named
    for file in (None, usual, named):
        assert derived_state(file, variables, home) == tmp_path / "states/isthmus"
    relative = {"XDG_CONFIG_HOME": "configs", "XDG_STATE_HOME": "states"}
    assert find_file(None, relative, cwd, home) == usual
    assert derived_state(usual, relative, home) == home / ".local/state/isthmus"


def test_each_file_has_a_state_folder_that_people_recognize(cwd: Path, home: Path, tmp_path: Path) -> None:
    shop = _written(tmp_path / "my shop" / "mcp.json", '{"hub": {}}')
    (tmp_path / "link").symlink_to(shop.parent)
    folder = derived_state(shop, {}, home)
    assert folder.parent == home / ".local/state/isthmus/hubs"
    assert re.fullmatch("my-shop-mcp-[0-9a-f]{8}", folder.name)
    assert derived_state(tmp_path / "link" / "mcp.json", {}, home) == folder
    assert state_folder(read_document(shop), {}, home) == folder
    assert derived_state(shop.with_name("mcp.toml"), {}, home) != folder
    goal = _written(tmp_path / "volume-1" / "mcp.json")
    (cwd / "mcp.json").symlink_to(goal)
    assert derived_state(cwd / "mcp.json", {}, home).name.startswith("cwd-mcp-"), "not that of its goal, which changes"
    assert re.fullmatch("hub-[0-9a-f]{8}", derived_state(Path("/店/店.json"), {}, home).name)
    named = _written(tmp_path / "named" / "mcp.json", '{"hub": {"state": "here"}}')
    assert state_folder(read_document(named), {}, home) == named.parent / "here"


def test_a_named_file_goes_before_the_variable_and_that_before_the_usual_places(cwd: Path, home: Path) -> None:
    _written(cwd / "isthmus.toml")
    by_variable, by_name = _written(home / "other.toml"), _written(cwd / "named.json")
    environment = {"ISTHMUS_CONFIG": "~/other.toml"}
    assert find_file(None, environment, cwd, home) == by_variable
    assert find_file(Path("named.json"), environment, cwd, home) == by_name
    assert find_file(None, {"ISTHMUS_CONFIG": ""}, cwd, home) == cwd / "isthmus.toml"


def test_a_named_file_that_is_missing_is_an_error(cwd: Path, home: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{cwd}/gone.toml does not exist")):
        find_file(Path("gone.toml"), {}, cwd, home)
    with pytest.raises(ConfigError, match="is not a file"):
        find_file(None, {"ISTHMUS_CONFIG": str(home)}, cwd, home)


def test_a_path_is_seen_from_its_folder_with_the_given_home() -> None:
    folder, home = Path("/etc/hub"), Path("/home/me")
    assert resolve_path("~", folder, home) == home
    assert resolve_path("~/a", folder, home) == home / "a"
    assert resolve_path("~you/a", folder, home) == folder / "~you/a"
    assert resolve_path("a", folder, home) == folder / "a"
    assert resolve_path("/a", folder, home) == Path("/a")


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("isthmus.toml", True),
        ("any.TOML", True),
        ("isthmus.json", True),
        ("mcp.json", False),
        (".mcp.json", False),
    ],
)
def test_a_file_is_ours_by_its_name(tmp_path: Path, name: str, *, is_own: bool) -> None:
    text = "a = 1" if name.lower().endswith("toml") else '{"a": 1}'
    document = read_document(_written(tmp_path / name, "\ufeff" + text))
    assert (document.table, document.dialect.is_own, document.warnings) == ({"a": 1}, is_own, ())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "isthmus.toml",
            "[hub]\nport 1",
            "line 2, column 6 is not TOML: ",
        ),
        ("isthmus.toml", "a = [1,\n", "line 2, column 1 is not TOML: "),
        ("isthmus.toml", "[hub]\n[hub]", "line 2, column 5 is not TOML: "),
        ("mcp.json", '{\n "a" 1}', "line 2, column 6 is not JSON: "),
        ("mcp.json", '{// mine\n /* too\n */ "a" 1}', "line 3, column 9 is not JSON: "),
        ("mcp.json", '{"a": [1,, 2]}', "line 1, column 10 is not JSON: "),
        ("mcp.json", '{"a": /* open', "line 1, column 14 is not JSON: "),
        ("isthmus.yaml", "a: 1\n b: 2", "line 2, column 3 is not YAML: "),
        ("isthmus.yaml", "a: [1\nb: 2", "is not YAML: "),
        ("isthmus.yaml", "- a", "must hold a YAML object, not another value"),
        ("isthmus.yaml", "a: !!python/name:os.system x", "line 1, column 4 is not YAML: "),
        ("isthmus.yaml", "a: &a [*a]", "cannot be read as YAML: its aliases refer to themselves or stand for too much"),
        pytest.param("isthmus.yaml", LAUGHS, "its aliases refer to themselves or stand for too much", id="laughs"),
        pytest.param("isthmus.yaml", f"a: {'[' * 100_000}", "YAML", id="deep-yaml"),
        pytest.param("isthmus.yaml", f"a: {'9' * 5000}", "cannot be read as YAML", id="long-yaml"),
        ("mcp.json", "", "line 1, column 1 is not JSON: "),
        ("mcp.json", "[1]", "must hold a JSON object, not another value"),
        pytest.param("mcp.json", "[" * 100_000, "cannot be read as JSON", id="deep-json"),
        pytest.param("mcp.json", f'{{"a": {"9" * 5000}}}', "cannot be read as JSON", id="long-json"),
        pytest.param("isthmus.toml", f"a = {'[' * 100_000}", "cannot be read as TOML", id="deep-toml"),
        pytest.param("isthmus.toml", f"a = {'9' * 5000}", "cannot be read as TOML", id="long-toml"),
        ("isthmus.ini", "a: 1", "must be a .toml, .yaml or .json file, not '.ini'"),
        ("isthmus", "a: 1", "must be a .toml, .yaml or .json file, not ''"),
    ],
)
def test_a_file_that_cannot_be_parsed_says_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_document(_written(tmp_path / name, text))
    assert str(refused.value).startswith(f"{name}: ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ('{// mine\n"a": 1}', {"a": 1}),
        ('{"a": /* 1, */ 2, // and\n}', {"a": 2}),
        ('{"a": [1, 2,\n ],}', {"a": [1, 2]}),
        ('{"a": "http://x/*y*/", "b": "a,]"}', {"a": "http://x/*y*/", "b": "a,]"}),
        ('{"a": "\\\\", /* " */ "b": "\\","}', {"a": "\\", "b": '",'}),
    ],
)
def test_json_may_have_comments_and_last_commas(tmp_path: Path, text: str, table: dict[str, object]) -> None:
    assert read_document(_written(tmp_path / "mcp.json", text)).table == table
    assert read_document(_written(tmp_path / "mcp.jsonc", text)).table == table


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("a: 1\nb: [x, 'y']\n", {"a": 1, "b": ["x", "y"]}),
        ("on: true\n1: one\n", {"on": True, "1": "one"}),
        ("base: &b {x: 1}\na:\n  <<: *b\n  y: 2\n", {"base": {"x": 1}, "a": {"x": 1, "y": 2}}),
    ],
)
def test_yaml_is_read_with_names_as_texts(tmp_path: Path, text: str, table: dict[str, object]) -> None:
    assert read_document(_written(tmp_path / "isthmus.yaml", text)).table == table


def test_a_duplicate_key_in_yaml_is_reported(tmp_path: Path) -> None:
    document = read_document(_written(tmp_path / "isthmus.yml", "a: 1\na: 2\n"))
    assert document.table == {"a": 2}
    assert [str(warning) for warning in document.warnings] == [
        "isthmus.yml: a is written twice in one object; the last one counts"
    ]


@given(st.text(alphabet='{}[]",:/*\\ \na1', max_size=40))
def test_making_json_strict_moves_nothing(text: str) -> None:
    made = strict_json(text)
    assert len(made) == len(text)
    assert [at for at, c in enumerate(made) if c == "\n"] == [at for at, c in enumerate(text) if c == "\n"]


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.config.files.FILE_BYTES_MAX", 3)
    assert read_document(_written(tmp_path / "a.json", "{ }")).table == {}
    with pytest.raises(ConfigError, match=r"^a.json: is longer than 32 MiB$"):
        read_document(_written(tmp_path / "a.json", "{  }"))


def test_a_file_that_is_no_text_says_in_which_line(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(b"{\n\xff}")
    with pytest.raises(ConfigError, match=r"^mcp.json: line 2 is not UTF-8 text$"):
        read_document(file)


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^folder.json: cannot be read: Is a directory$"):
        read_document(_folder(tmp_path / "folder.json"))


def test_a_duplicate_key_in_json_is_reported(tmp_path: Path) -> None:
    document = read_document(_written(tmp_path / "mcp.json", '{"mcpServers": {"a": 1, "a": 2}}'))
    assert document.table == {"mcpServers": {"a": 2}}
    assert [str(warning) for warning in document.warnings] == [
        "mcp.json: mcpServers.a is written twice in one object; the last one counts"
    ]


def test_a_section_is_a_table_or_absent(tmp_path: Path) -> None:
    document = read_document(_written(tmp_path / "mcp.json", '{"hub": {"port": 1}, "callers": []}'))
    assert document.section("hub") == {"port": 1}
    assert document.section("limits") == {}
    with pytest.raises(ConfigError, match=r"^mcp.json: callers must be a table, not a list$"):
        document.section("callers")


# -- Only regular files are read, and only so much of them --------------------------------------------------


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12345")
    assert read_regular_file(file, 5) == b"12345"
    with pytest.raises(FileTooLong):
        read_regular_file(file, 4)


def test_a_pipe_without_a_writer_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a regular file"):
        read_regular_file(tmp_path / "pipe", 5)


@pytest.mark.parametrize(
    ("path", "why"), [("/dev/zero", "Not a regular file"), ("/dev", "Is a directory"), ("/no/such", "No such file")]
)
def test_an_irregular_file_is_refused(path: str, why: str) -> None:
    with pytest.raises(OSError, match=why):
        read_regular_file(Path(path), 5)
