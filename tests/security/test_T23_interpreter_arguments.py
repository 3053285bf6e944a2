"""T23: a command that is allowed is made to run something else, by its arguments, its environment or its folder.

Answer: there is no list of allowed commands to get around. Each word of a command is the operator's, from a file of
theirs, and reaches the program as it is written there, without a shell. What makes interpreters and loaders run other
code is not inherited from the hub's own environment; a server that needs such a variable has it declared in its entry.
An entry may have the digests of its program, of its words and of its scripts (`sha256`), without which it is not
started. A program or folder that everybody can write to is told of, by `isthmus doctor` too, or with `[hub]
open_programs = "refuse"` not started. That no caller can add a word is T22.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from isthmus.config.load import load
from isthmus.model.names import ServerName
from isthmus.transport.process import INHERITED, INHERITED_ON_WINDOWS, child_environment
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.server_settings import StdioSettings
from isthmus.upstream.stdio import Programs
from tests.hubs import CHECKOUT, Raw, environment, isthmus, serving, stdio, write_config
from tests.peers.launch import command
from tests.security.child_process import running

A = ServerName("a")

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


def test_a_command_is_started_as_written_without_splitting(tmp_path: Path) -> None:
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


# -- what a command leads to -------------------------------------------------------------------------------------------


def entry_of(folder: Path, sha256: object, **more: object) -> StdioSettings:
    """A server that runs a script by a program on PATH, as its entry in a file says."""
    for name in ("runner", "server.py"):
        (folder / name).write_text(f"#!/bin/sh\necho {name}\n")
        (folder / name).chmod(0o755)
    entry = {"command": "runner", "args": ["server.py", "${WORD}"], "env": {"PATH": str(folder)}, "cwd": str(folder)}
    config = write_config(folder, {"a": {**entry, "sha256": sha256}}, **more)
    configuration = load(config, {"WORD": "-q"}, folder, folder)
    assert configuration.servers, configuration.warnings
    reach = configuration.servers[0].reach
    assert isinstance(reach, StdioSettings)
    return reach


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


async def refused(reach: StdioSettings) -> str:
    with pytest.raises(ConnectFailed) as failed:
        await Programs().check(A, reach, {})
    return str(failed.value)


async def test_a_program_is_started_only_with_the_digest_that_its_entry_has(tmp_path: Path) -> None:
    reach = entry_of(tmp_path, "0" * 64)
    found = digest(tmp_path / "runner")
    assert await refused(reach) == (
        f"'runner' could not be started: sha256 is {found} and not {'0' * 64}, of {tmp_path / 'runner'};"
        " if that is right, write it into the entry"
    )
    reach = entry_of(tmp_path, found.upper())
    assert await Programs().check(A, reach, {}) == str(tmp_path / "runner"), "and no other is executed"
    (tmp_path / "runner").write_text("#!/bin/sh\necho pwned\n")
    assert digest(tmp_path / "runner") in await refused(reach)
    (tmp_path / "runner").unlink()
    assert "it was not found, and so not checked" in await refused(reach)


async def test_so_are_the_words_once_their_variables_are_in_and_scripts_among_them(tmp_path: Path) -> None:
    words = hashlib.sha256(b'["runner","server.py","-q"]').hexdigest()
    reach = entry_of(tmp_path, {"argv": words, "server.py": "1" * 64})
    assert f"sha256 is {digest(tmp_path / 'server.py')} and not" in await refused(reach)
    reach = entry_of(tmp_path, {"argv": words, "server.py": digest(tmp_path / "server.py")})
    await Programs().check(A, reach, {})
    assert f"sha256 is {words} and not" in await refused(replace(reach, sha256={"argv": "2" * 64}))
    assert f"not {words}, of its command" in await refused(replace(reach, args=("server.py", "-c", "evil")))
    (tmp_path / "server.py").unlink()
    assert "cannot be read to have its sha256 checked" in await refused(reach)


@pytest.mark.parametrize("digest", ["", "abc", "g" * 64, {"program": "0" * 63}, ["0" * 64], 5])
def test_an_entry_with_an_invalid_digest_is_refused(tmp_path: Path, digest: object) -> None:
    configuration = load(write_config(tmp_path, {"a": {"command": "x", "sha256": digest}}), {}, tmp_path, tmp_path)
    assert configuration.servers == ()
    assert "sha256" in str(configuration.warnings[0])


async def test_a_world_writable_program_is_reported_once_or_not_started(tmp_path: Path) -> None:
    reach = entry_of(tmp_path, {})
    strict = entry_of(tmp_path, {}, hub={"open_programs": "refuse"})
    programs = Programs()
    with structlog.testing.capture_logs() as logs:
        await programs.check(A, strict, {})
        for path in (tmp_path / "runner", tmp_path):
            path.chmod(0o777)
            for _ in range(2):
                await programs.check(A, reach, {})
            assert f"everybody on this machine can write to {path}" in await refused(strict)
            path.chmod(0o755)
    assert [line["path"] for line in logs] == [str(tmp_path / "runner"), str(tmp_path)]


async def test_a_program_with_another_digest_is_not_started_and_reported(tmp_path: Path) -> None:
    """In the server's state; one beside it that has the right one runs."""
    words = command("raw_server")
    program = digest(Path(words[0]))
    servers = {"good": stdio(words, sha256=program), "bad": stdio(words, sha256="0" * 64)}
    async with serving(tmp_path, servers, limits={"listing_seconds": 30.0}) as hub, Raw(hub.url) as raw:
        assert {name.partition(".")[0] for name in await raw.names()} >= {"good"}
        state = (await raw.http.get(f"http://127.0.0.1:{hub.port}/v1/servers/bad")).json()
        assert program in state["reason"]
        assert state["tools"] == 0


async def test_the_doctor_reports_a_world_writable_folder(tmp_path: Path) -> None:
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
    response = json.loads(out)["findings"]
    assert [(found["code"], found["server"]) for found in response] == [("ISD-202", "open")]
    assert str(open_folder) in response[0]["fix"]
