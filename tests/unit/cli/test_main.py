"""The words and options of the command, and how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from isthmus import __version__
from isthmus.app import process_setup
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.main import COLLECT, TRACEBACK_VARIABLE, WithoutRich, cli, main
from tests.hubs import environment


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ISTHMUS_CONFIG", "ISTHMUS_HUB", "ISTHMUS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_help_and_a_wrong_word_load_nothing_but_click() -> None:
    script = (
        "import sys; from isthmus.cli.main import main; main(['--help']); main(['nonsense']);"
        "print(sorted(sys.modules.keys() & {'asyncio', 'msgspec', 'structlog', 'rich', 'uvicorn', 'uvloop'}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env=environment(),
    )
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_version_is_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == Exit.SUCCESS
    assert capsys.readouterr().out == f"isthmus {__version__}\n"


@pytest.mark.parametrize("name", ["serve", "tools", "call", "doctor", "config", "stdio", "version"])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == Exit.SUCCESS
    assert f"Usage: isthmus {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["tools", "--nonsense"],
        ["call"],
        ["serve", "--port", "70000"],
        ["config", "check", "a", "--config", "b"],
        ["tools", "--hub", "http://hub", "--config", "b"],
    ],
)
def test_wrong_usage_ends_with_2_and_says_so_on_stderr(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == Exit.USAGE
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err


def test_a_misspelt_command_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tols"]) == Exit.USAGE
    assert "No such command 'tols'. Did you mean tools?" in capsys.readouterr().err


def test_a_missing_configuration_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["tools"], ["serve"], ["doctor"], ["stdio"], ["call", "echo"]):
        assert main([*words, "--config", "nowhere.toml"]) == Exit.CONFIGURATION
        assert "nowhere.toml does not exist" in capsys.readouterr().err


def test_config_check_takes_its_file_either_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text("")
    assert main(["config", "check", "a.toml"]) == Exit.SUCCESS
    assert main(["config", "check", "--config", "a.toml", "--json"]) == Exit.SUCCESS


def ending_with(error: BaseException) -> Callable[..., object]:
    def run(*_: object, **__: object) -> object:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "exit", "said"),
    [
        (
            CommandFailed(Exit.UNREACHABLE, "no\x1b way", "Try this.", "Or that."),
            4,
            "no\\u001b way\nTry this.\nOr that.\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_every_ending_has_its_code_and_words(
    error: BaseException,
    exit: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "main", ending_with(error))
    assert main([]) == exit
    assert capsys.readouterr().err.endswith(said)


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by its full name, the groups included."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command
        for each in command.commands.values() if isinstance(command, click.Group) else ():
            yield f"{name} {each.name}", each


def test_the_key_is_never_an_option() -> None:
    assert not [
        (name, option.name)
        for name, each in all_commands()
        for option in each.params
        if option.name in ("key", "token")
    ]


def test_help_shows_each_command_on_one_line_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    groups = ["", *(name for name, command in all_commands() if isinstance(command, click.Group))]
    for group in groups:
        assert main([*group.split(), "--help"]) == Exit.SUCCESS
        help = capsys.readouterr().out
        names = [name for name, _ in all_commands() if name.rpartition(" ")[0] == group]
        lines = [re.search(rf"^  {re.escape(name.split()[-1])}  +[A-Z].*\.$", help, re.MULTILINE) for name in names]
        assert None not in lines, help
        assert max(map(len, help.splitlines())) <= 80


# -- lean ----------------------------------------------------------------------------------------------------------

LOADED = "print('structlog' in sys.modules, 'rich' in sys.modules); import rich; print(structlog.dev.rich)"


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (
            "import isthmus.cli.main as m; m.main = lambda: 1; m.program(); import isthmus.cli.serve",
            ["True False", "None"],
        ),
        ("import isthmus.cli.serve", ["True True", "<module"]),  # another program
    ],
)
def test_a_hub_starts_without_loading_rich(first: str, said: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; {first}; import structlog; {LOADED}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment(),
    )
    assert [line[: len(expected)] for line, expected in zip(ran.stdout.splitlines(), said, strict=True)] == said


def test_the_collector_looks_as_seldom_as_that_of_a_hub() -> None:
    assert COLLECT == (process_setup.COLLECT_AFTER, process_setup.COLLECT_OLD_AFTER, process_setup.COLLECT_OLD_AFTER)


def test_once_structlog_is_there_rich_is_found() -> None:
    assert WithoutRich().find_spec("rich") is None
    assert WithoutRich().find_spec("structlog.dev") is None


# -- what is not foreseen --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (OSError(36, "File name too long", "x" * 999), Exit.CONFIGURATION, "File name too long"),
        (PermissionError(13, "Permission denied", "/secret"), Exit.CONFIGURATION, "cannot use '/secret': Permission"),
        (ValueError("odd"), Exit.CALL_FAILED, "this is a defect of isthmus: ValueError: odd"),
    ],
)
def test_no_failure_is_a_traceback(
    raised: Exception, code: Exit, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(cli, "main", fail)
    assert main(["version"]) == code
    output = capsys.readouterr().err
    assert said in output
    assert max(map(len, output.splitlines())) < 300


def test_a_reporter_of_a_defect_sees_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(cli, "main", fail)
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    with pytest.raises(ValueError, match="odd"):
        main(["version"])


def test_words_that_are_not_utf_8_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "--config", "\udcff"]) == Exit.USAGE
    assert "is not valid UTF-8" in capsys.readouterr().err
