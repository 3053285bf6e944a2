"""Completion as shells ask for it: names at once, no server started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from isthmus.app.key_files import KeyFile
from isthmus.cli.completion import FLAGS, KEYS_FILE, LISTS_FOLDER, client_names
from isthmus.cli.main import COMMANDS, cli, main
from isthmus.cli.token import token
from isthmus.config.client_formats import WRITTEN_FORMS
from isthmus.config.files import derived_state
from isthmus.storage.server_lists import FOLDER
from tests.cli.terminals import on_terminal
from tests.hubs import environment

TOOLS = [
    {"name": "read", "description": "Read a file.", "inputSchema": {"properties": {"path": {"description": "Which"}}}},
    {"name": "write", "description": "Write a file, or replace it.", "inputSchema": {"type": "object"}},
]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration whose hub has run."""
    for name in [name for name in os.environ if name.startswith(("ISTHMUS_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "isthmus.toml"
    file.write_text('[servers.files]\ncommand = "false"\n[servers.search]\nurl = "http://127.0.0.1:1/mcp"\n')
    lists = derived_state(file, os.environ, tmp_path / "home") / FOLDER
    lists.mkdir(parents=True)
    (lists / "a.json").write_text(json.dumps({"server": "files", "tools": TOOLS, "prompts": [{"name": "summary"}]}))
    (lists / "b.json").write_text(json.dumps({"server": "gone", "tools": [{"name": "old"}]}))
    (lists / "c.json").write_text("not JSON")
    return tmp_path


def asked(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str = "bash"
) -> list[str]:
    """What a shell gets for a line; its last word is being written."""
    monkeypatch.setenv("_ISTHMUS_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv(
        "COMP_CWORD", words.rsplit(" ", maxsplit=1)[-1] if shell == "fish" else str(len(words.split(" ")) - 1)
    )
    assert main([]) == 0
    return capsys.readouterr().out.splitlines()


def test_names_are_completed(work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def got(words: str) -> list[str]:
        return [line.removeprefix("plain,") for line in asked(words, monkeypatch, capsys)]

    assert got("isthmus ") == list(COMMANDS)
    assert got("isthmus dis") == ["disable"]
    assert got("isthmus call ") == ["files.read", "files.write"]
    assert got("isthmus call --json files.w") == ["files.write"]
    assert got("isthmus call files.read ") == ["path="]
    assert got("isthmus call files.read path=x ") == []
    assert got("isthmus prompt ") == ["files.summary"]
    assert got("isthmus remove files s") == ["search"]
    assert got("isthmus connect cur") == ["cursor"]
    assert got("isthmus serve --config isth") == ["file,isth"]
    assert asked("isthmus call files.r", monkeypatch, capsys, "zsh") == ["plain", "files.read", "Read a file."]
    assert asked("isthmus call files.r", monkeypatch, capsys, "fish") == ["plain,files.read\tRead a file."]
    (work / "isthmus.toml").write_text('[servers."my server"]\ncommand = "false"\n')
    assert got("isthmus logs ") == ["my-server"]
    (work / "isthmus.toml").write_text("nonsense")
    assert got("isthmus remove ") == []


def test_options_of_the_line_count(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def got(words: str) -> list[str]:
        return [line.removeprefix("plain,") for line in asked(words, monkeypatch, capsys)]

    with (work / "isthmus.toml").open("a") as file:
        file.write('[callers.reader]\nkey = "a-key-of-the-reader"\nallow = ["*"]\n')
    (work / "sub").mkdir()
    assert main(["token", "create", "planner", "--allow", "*"]) == 0
    assert main(["token", "create", "gone", "--allow", "*"]) == 0
    assert main(["token", "revoke", "gone"]) == 0
    capsys.readouterr()
    monkeypatch.chdir(work / "sub")
    file_there = f"--config {work}/isthmus.toml"
    assert got(f"isthmus call {file_there} files.") == ["files.read", "files.write"]
    assert got(f"isthmus call --config={work}/isthmus.toml files.read ") == ["path="]
    assert got(f"isthmus remove {file_there} s") == ["search"]
    monkeypatch.chdir(work)
    assert got("isthmus tools --server ") == ["files", "search"]
    assert got("isthmus tools search ") == []
    assert got("isthmus access ") == ["reader", "planner"]
    assert got("isthmus token revoke ") == ["planner"]
    assert got("isthmus call --hub https://hub.example ") == []
    assert got("isthmus call --hub http://127.0.0.1:8765 files.r") == ["files.read"]


def test_the_tables_agree() -> None:
    completed = "call tools prompt remove enable disable login logout logs restart connect import access"
    commands = [cli.get_command(click.Context(cli), name) for name in completed.split()]
    commands += [token.commands[name] for name in ("revoke", "rotate")]
    options = [each for command in commands if command for each in command.params if isinstance(each, click.Option)]
    assert {word for option in options if option.is_flag for word in option.opts} == FLAGS
    assert Path(KEYS_FILE) == KeyFile(Path()).path
    assert set(client_names()) == set(WRITTEN_FORMS)
    assert LISTS_FOLDER == FOLDER


def test_a_name_loads_no_hub(work: Path) -> None:
    program = "import sys; from isthmus.cli.main import main; main([]); print(*sys.modules, file=sys.stderr)"
    line = {"_ISTHMUS_COMPLETE": "bash_complete", "COMP_WORDS": "isthmus call ", "COMP_CWORD": "2"}
    env = environment({"HOME": str(work / "home"), **line})
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=work, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["plain,files.read", "plain,files.write"]
    loaded = set(done.stderr.split())
    assert not {"asyncio", "rich", "structlog", "isthmus.cli.call", "isthmus.app", "isthmus.config.load"} & loaded


def install(shell: str, work: Path, script: Path) -> dict[str, str]:
    """Install the script of a shell in a home of its own; returns the environment of that shell."""
    folder = work / "bin"
    folder.mkdir()
    program = folder / "isthmus"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m isthmus "$@"\n')
    program.chmod(0o755)
    if shutil.which(shell) is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing(f"no {shell} on this machine; install it: sudo apt-get install {shell}")
    env = environment({"HOME": str(work / "home"), "PATH": f"{folder}:{os.environ['PATH']}"})
    said = subprocess.run(
        [program, "completion", shell, "--install"], env=env, cwd=work, capture_output=True, text=True, check=True
    )
    assert said.stdout == f"Wrote {script}.\n"
    return env


def test_fish_completes_with_the_installed_script(work: Path) -> None:
    env = install("fish", work, work / "home/.config/fish/completions/isthmus.fish")
    env |= {"TERM": "xterm", "XDG_CONFIG_HOME": str(work / "home/.config")}

    def got(line: str) -> list[str]:
        done = subprocess.run(
            ["fish", "-c", f"complete -C '{line}'"], env=env, cwd=work, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    assert got("isthmus call files.") == ["files.read\tRead a file.", "files.write\tWrite a file, or replace it."]
    assert got("isthmus call files.read p") == ["path=\tWhich"]
    assert [line.partition("\t")[0] for line in got("isthmus serve --config isth")] == ["isthmus.toml"]


async def test_zsh_completes_with_the_installed_script(work: Path) -> None:
    env = install("zsh", work, work / "home/.zfunc/_isthmus")
    (work / "home/.zshrc").write_text("fpath+=(~/.zfunc); autoload -Uz compinit; compinit -u; PS1='ready> '\n")
    async with on_terminal(work, program=["zsh", "-o", "no_global_rcs", "-i"], env=env) as terminal:
        await terminal.until("ready> ")
        terminal.type(b"isthmus call files.\t")
        await terminal.until(r"files\.read +-- Read a file\..*files\.write +-- Write a file, or replace it\.")
        terminal.type(b"r\t")
        await terminal.until(r"ead.* ")
        terminal.type(b"p\t")
        await terminal.until(r"path=")
        terminal.type(b"x --config isth\t")
        await terminal.until(r"isthmus\.toml")
        terminal.type(b"\x01echo \r")  # a line is shown as a whole only if it is run
        await terminal.until(r"[\r\n](\x1b\[J)?isthmus call files\.read path=x --config isthmus\.toml")


def test_bash_completes_with_the_installed_script(work: Path) -> None:
    script = work / "home/.local/share/bash-completion/completions/isthmus"
    env = install("bash", work, script)
    line = f"source {script}; COMP_WORDS=(isthmus call files.); COMP_CWORD=2; _isthmus_completion isthmus"
    line += '; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", line], env=env, cwd=work, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["files.read", "files.write"], done.stderr


async def test_a_value_can_be_typed_after_a_completed_argument_in_bash(work: Path) -> None:
    script = work / "home/.local/share/bash-completion/completions/isthmus"
    env = install("bash", work, script)
    async with on_terminal(work, program=["bash", "--norc", "-i"], env=env) as terminal:
        terminal.type(f"PS1='rea''dy> '; source {script}\n".encode())
        await terminal.until("ready> ")
        terminal.type(b"isthmus call files.read p\t")
        await terminal.until("path=")
        terminal.type(b"x\x01echo \r")
        await terminal.until(r"[\r\n]isthmus call files\.read path=x\n")


@pytest.mark.parametrize(
    ("shell", "place", "begins"),
    [
        ("zsh", "home/.zfunc/_isthmus", "#compdef isthmus"),
        ("fish", "home/.config/fish/completions/isthmus.fish", "function _isthmus_completion"),
    ],
)
def test_scripts_are_written_where_shells_look(
    shell: str, place: str, begins: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell, "--install"]) == 0
    assert capsys.readouterr().out == f"Wrote {work / place}.\n"
    assert (work / place).read_text().lstrip().startswith(begins)
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out.lstrip().startswith(begins)
