"""Commands that show a running hub on a terminal of 80 columns: log, tools, servers and figures."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.screens import PAGE, SCREEN, commands_of, comparable, screens
from tests.cli.terminals import COLUMNS, on_terminal, run
from tests.faults import light_server
from tests.hubs import PATIENT, Raw, serving, stdio, write_config
from tests.hubs import run as run_command

pytestmark = pytest.mark.usefixtures("no_leftovers")


# -- the log -----------------------------------------------------------------------------------------------------------

SERVERS = {
    "well": stdio(light_server.command("well")),
    "broken": stdio(["/bin/sh", "-c", "echo 'no licence' >&2; exit 3"]),
}


async def test_the_log_has_times_first_and_fits_the_terminal(tmp_path: Path) -> None:
    config = write_config(tmp_path, SERVERS)
    async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", "0", env={"NO_COLOR": "1"}) as hub:
        await hub.until(r"server ready +server=well")
        await hub.until(r'server not connected +server=broken reason="exited with code 3"\s+detail="no licence"')
        hub.process.terminate()
        assert await hub.ended() == 0
    lines = hub.text.splitlines()
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert [
        line for line in lines if not re.match(r"\d\d:\d\d:\d\d (info|warning) +[^ ]|                 [^ ]", line)
    ] == []
    assert "None" not in hub.text
    assert "\x1b" not in hub.text


async def test_quiet_logs_warnings_and_verbose_logs_each_call(tmp_path: Path) -> None:
    config = write_config(tmp_path, SERVERS)
    async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", "0", "-q") as hub:
        await hub.until("server not connected")
    assert "listening" not in hub.text
    assert "\x1b[33mwarning\x1b[0m" in hub.text
    async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", "0", "-v") as hub:
        url = (await hub.until(r"url=(http://\S+)/mcp"))[1]
        async with on_terminal(tmp_path, "call", "--hub", url, "builtin.echo", "text=hello") as call:
            assert await call.ended() == 0
        await hub.until(r"call +tool=builtin.echo caller=local ms=[0-9.]+ outcome=result")


async def test_findings_of_a_configuration_break_between_words(tmp_path: Path) -> None:
    config = tmp_path / "isthmus.toml"
    config.write_text('[servers.files]\ncomand = "files"\n')
    code, text = await run(tmp_path, "config", "check", "--config", str(config))
    piped = await run_command("config", "check", "--config", str(config), folder=tmp_path)
    assert (code, piped.code) == (3, 3)
    lines = text.splitlines()
    assert [line for line in lines if len(line) > COLUMNS and " " in line.strip()] == []
    assert len(lines) > len((piped.out + piped.err).splitlines())
    assert text.split() == (piped.out + piped.err).split()


async def test_errors_break_between_words(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with serving(tmp_path) as hub:
        config = write_config(tmp_path / "other", {})
        words = ("serve", "--config", str(config), "--port", str(hub.port), "--log-level", "INFO")
        code, text = await run(tmp_path, *words)
    assert code != 0
    lines = text.splitlines()
    assert [line for line in lines if len(line) > COLUMNS and " " in line.strip()] == [], text
    assert any(line.startswith("  ") for line in lines), text


# -- tools, logs, restart, top -----------------------------------------------------------------------------------------

TALKATIVE = stdio(["/bin/sh", "-c", 'echo "opening the store" >&2; exec "$@"', "sh", *light_server.command("well")])
OPERATOR = "k3y-of-the-operator-0123456789"
CALLER = "k3y-of-a-caller-0123456789"


async def test_the_ids_of_keys_are_not_broken_to_fit_the_terminal(tmp_path: Path) -> None:
    config = str(write_config(tmp_path, {}))
    for name, *words in (("planner", "--expires", "90d"), ("admin", "--operator")):
        made = await run_command("token", "create", name, "--allow", "*", *words, "--config", config, folder=tmp_path)
        assert made.code == 0, made.err
    _, text = await run(tmp_path, "token", "list", "--config", config)
    assert len(re.findall(r"k[0-9a-f]{12} ", text)) == 2, text
    assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ", text)
    assert [line for line in text.splitlines() if len(line) > COLUMNS] == []


async def test_a_tool_is_found_shown_and_called_as_shown(tmp_path: Path) -> None:
    config = str(write_config(tmp_path, {}))
    code, found = await run(tmp_path, "tools", "search", "current", "times", "--config", config)
    assert code == 0
    assert [line.split()[0] for line in found.splitlines()[:2]] == ["TOOL", "builtin.timestamp"]
    code, shown = await run(tmp_path, "tools", "echo", "--config", config)
    assert code == 0
    assert re.search(r"^  NAME +TYPE +NEEDED +DESCRIPTION\n  text +string +yes +What to say back$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= COLUMNS
    _, *example = shlex.split(shown.splitlines()[-1])
    assert await run(tmp_path, *example, "--config", config) == (0, "TEXT\n")
    code, refused = await run(tmp_path, "tools", "--server", "nobody", "--config", config)
    assert (code, refused.splitlines()) == (2, ["isthmus: there is no server 'nobody'", "Servers: builtin."])


async def test_following_a_log_goes_on_after_a_restart_of_the_hub(tmp_path: Path) -> None:
    words = " ".join(["word"] * 20)
    wordy = stdio(["/bin/sh", "-c", f'echo "{words}" >&2; exec "$@"', "sh", *light_server.command("well")])
    config = write_config(tmp_path, {"shelf": wordy})
    async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", "0") as first:
        port = (await first.until(r"url=http://127.0.0.1:(\d+)/mcp"))[1]
        at_hub = {"ISTHMUS_HUB": f"http://127.0.0.1:{port}"}
        async with on_terminal(tmp_path, "logs", "shelf", "-f", env=at_hub) as following:
            await following.until(r"stderr  (word ){11}word\n {17}(word ){7}word\n.*ready: \d+ tools")
            first.process.terminate()
            assert await first.ended() == 0
            await following.until(r"The hub is away; waiting for it\.\n")
            async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", port):
                await following.until(r"waiting for it\.\n.*ready: \d+ tools")


async def test_an_operator_reads_logs_restarts_and_watches_and_others_do_not(tmp_path: Path) -> None:
    callers = {"boss": {"key": OPERATOR, "allow": ["*"], "operator": True}, "me": {"key": CALLER, "allow": ["*"]}}
    servers = {"shelf": TALKATIVE, "my store": TALKATIVE, "broken": SERVERS["broken"]}
    async with serving(tmp_path, servers, callers=callers, limits=PATIENT) as hub:
        me = {"ISTHMUS_HUB": f"http://127.0.0.1:{hub.port}", "ISTHMUS_KEY": CALLER}
        boss = {**me, "ISTHMUS_KEY": OPERATOR}
        for words in (["logs", "shelf"], ["restart", "shelf"], ["top"]):
            code, said = await run(tmp_path, *words, env=me)
            assert (code, "Only operators may" in said) == (5, True), said
        async with on_terminal(tmp_path, "logs", "shelf", "-f", env=boss) as following:
            await following.until(r"\d\d:\d\d:\d\d stderr  opening the store\n.*ready: \d+ tools")
            code, said = await run(tmp_path, "restart", "shelf", env=boss)
            assert (code, said.startswith("shelf is ready: ")) == (0, True), said
            await following.until(r"restarting.*opening the store.*ready: \d+ tools")
        for words in (["logs", "shelv"], ["restart", "shelv"]):
            code, said = await run(tmp_path, *words, env=boss)
            lines = ["isthmus: the hub has no server 'shelv'", "Did you mean shelf?"]
            assert (code, said.splitlines()) == (2, lines)
        code, said = await run(tmp_path, "logs", "my store", env=boss)
        assert (code, "opening the store" in said) == (0, True), said
        code, said = await run(tmp_path, "restart", "broken", env=boss)
        reason = "isthmus: broken is not connected: exited with code 3; its last output: no licence"
        assert (code, " ".join(said.split()).startswith(reason)) == (1, True), said
        async with on_terminal(tmp_path, "top", env=boss) as top:
            await top.until("SERVER +STATE +CALLS")
            async with Raw(hub.url, key=CALLER) as caller:
                await caller.call("builtin.echo", {"text": "hello"})
            await top.until(r"builtin +ready +1 +[0-9.]+ +0 +0 +[0-9.]+ ms +[0-9.]+ ms +0")
            top.type(b"q")
            assert await top.ended() == 0
        async with on_terminal(tmp_path, "servers", "--watch", env=boss) as watching:
            await watching.until(r"SERVER.*STATE.*OFFERS.*shelf")
            watching.type(b"\x03")
            assert await watching.ended() == 0
        assert "^C" not in watching.text, "it would move the last table"


# -- the page ----------------------------------------------------------------------------------------------------------


async def test_the_screens_of_the_page_match_the_commands(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    taken = await screens(commands_of(page), tmp_path)
    for found in SCREEN.finditer(page):
        assert comparable(found[3]) == comparable(f"$ {found[2]}\n{taken[found[2]]}"), "run python -m tests.cli.screens"
        assert max(map(len, found[3].splitlines())) <= COLUMNS, found[2]
