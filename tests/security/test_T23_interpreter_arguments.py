"""T23: a command that is allowed is made to run something else, by its arguments, its environment or its folder.

Answer: there is no list of allowed commands to get around. Each word of a command is the operator's, from a file of
theirs, and reaches the program as it is written there, without a shell. What makes interpreters and loaders run other
code is not inherited from the hub's own environment; a server that needs such a variable has it declared in its entry.
A folder into which everybody can write is told by `isthmus doctor`. That no caller can add a word is T22.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from isthmus.config.load import load
from isthmus.transport.process import INHERITED, INHERITED_ON_WINDOWS, child_environment
from isthmus.upstream.settings import StdioSettings
from tests.hubs import CHECKOUT, environment, isthmus, stdio, write_config
from tests.peers.launch import command
from tests.security.offspring import running

LOADING = (
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH", "NODE_OPTIONS",
    "NODE_PATH", "NODE_EXTRA_CA_CERTS", "PYTHONSTARTUP", "PYTHONPATH", "PYTHONHOME", "PYTHONINSPECT", "PYTHONUSERBASE",
    "PERL5LIB", "PERL5OPT", "RUBYLIB", "RUBYOPT", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "PS4", "PROMPT_COMMAND",
    "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "DOTNET_STARTUP_HOOKS", "GIT_SSH_COMMAND", "EDITOR", "PAGER",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSLKEYLOGFILE", "UV_INDEX_URL", "PIP_INDEX_URL", "NPM_CONFIG_REGISTRY",
)  # fmt: skip
"""What changes which code a program runs, or where it fetches that from."""

WORDS = (
    "-c",
    "--eval",
    "; touch {0}",
    "$(touch {0})",
    "`touch {0}`",
    "| touch {0}",
    "&& touch {0}",
    "\n touch {0}",
    "*",
)


def test_nothing_that_loads_other_code_is_inherited() -> None:
    assert not set(LOADING) & {*INHERITED, *INHERITED_ON_WINDOWS}
    parent = dict.fromkeys(LOADING, "evil") | {"PATH": "/bin"}
    assert child_environment({}, parent) == {"PATH": "/bin"}


def test_functions_that_a_shell_would_run_are_not_inherited() -> None:
    assert child_environment({}, {"TERM": "() { :; }; touch /tmp/pwned", "LANG": "C"}) == {"LANG": "C"}


async def test_words_reach_the_program_as_they_are_written(tmp_path: Path) -> None:
    pwned = tmp_path / "pwned"
    words = [word.format(pwned) for word in WORDS]
    async with running("import json, sys\nprint(json.dumps(sys.argv[1:]), flush=True)", *words) as child:
        assert json.loads(await child.line()) == words
    assert not pwned.exists()


def test_what_an_entry_says_is_what_is_started_and_nothing_is_split(tmp_path: Path) -> None:
    entry = {"command": "/bin/true; touch pwned", "args": ["-y evil", "${HOME}"], "env": {"A": "1"}}
    configuration = load(write_config(tmp_path, {"a": entry}), {"HOME": "/h", "LD_PRELOAD": "x"}, tmp_path, tmp_path)
    (server,) = configuration.servers
    assert isinstance(server.reach, StdioSettings)
    assert (server.reach.command, server.reach.args) == ("/bin/true; touch pwned", ("-y evil", "/h"))
    assert dict(server.reach.env) == {"A": "1"}


def test_no_source_file_asks_for_a_shell() -> None:
    sources = {path: path.read_text("utf-8") for path in (CHECKOUT / "src").rglob("*.py")}
    words = ("shell=True", "create_subprocess_shell", "subprocess_shell", "os.system", "os.popen", "shell = True")
    assert [(path.name, word) for path, text in sources.items() for word in words if word in text] == []


async def test_the_doctor_tells_of_a_folder_into_which_everybody_can_write(tmp_path: Path) -> None:
    open_folder, own_folder = tmp_path / "open", tmp_path / "own"
    open_folder.mkdir()
    own_folder.mkdir()
    open_folder.chmod(0o777)
    servers = {
        "open": stdio(command("raw_server"), cwd=str(open_folder)),
        "own": stdio(command("raw_server"), cwd=str(own_folder)),
    }
    words = isthmus("doctor", "--json", "--config", str(write_config(tmp_path, servers)))
    doctor = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, env=environment())
    out, _ = await doctor.communicate()
    told = json.loads(out)["findings"]
    assert [(found["code"], found["server"]) for found in told] == [("ISD-202", "open")]
    assert str(open_folder) in told[0]["mend"]
