"""`isthmus call` as a person at a real terminal sees it, and as a script does without one."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fork_server import quick_isthmus
from tests.hubs import CHECKOUT, PATIENT, HubProcess, environment, serving, stdio, write_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 60.0
SERVERS = {"asking": stdio([sys.executable, str(CHECKOUT / "tests" / "cli" / "asking_server.py")])}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    async with serving(tmp_path_factory.mktemp("hub"), SERVERS, limits=PATIENT) as running:
        yield running


class TerminalRun:
    """A command on a terminal of 80 columns and 24 lines."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self._process = process
        self._master = master
        self.screen = ""

    @classmethod
    async def start(cls, *words: str, env: Mapping[str, str] | None = None) -> TerminalRun:
        master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = await asyncio.create_subprocess_exec(
            *quick_isthmus(*words),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment({"PAGER": "cat", **(env or {})}),
        )
        os.close(terminal)
        os.set_blocking(master, False)
        return cls(process, master)

    async def until(self, text: str) -> None:
        """Wait until this is on the screen."""
        async with asyncio.timeout(SECONDS):
            while text not in self.screen:
                assert await self._read(), f"{text!r} is not in {self.screen!r}"

    async def _read(self) -> bool:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._master, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            loop.remove_reader(self._master)
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            chunk = b""
        self.screen += chunk.decode().replace("\r\n", "\n")
        return bool(chunk)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    async def answer(self, prompt: str, text: str) -> None:
        """Wait for a prompt and type a line; only what follows is on the screen then."""
        await self.until(prompt)
        self.screen = ""
        self.type(f"{text}\n")

    async def end(self) -> int:
        async with asyncio.timeout(SECONDS):
            while await self._read():
                pass
            code = await self._process.wait()
        os.close(self._master)
        return code


async def call(hub: HubProcess, *words: str) -> TerminalRun:
    return await TerminalRun.start("call", "--hub", hub.url, *words)


async def piped(*words: str) -> tuple[int, str, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus(*words), stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment()
    )
    out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_form_is_filled_in_at_the_terminal(hub: HubProcess) -> None:
    run = await call(hub, "asking.book")
    await run.until("asking.book asks: Complete the booking.")
    await run.answer("Your name (text): ", "A")
    await run.until("Write at least 2 characters.")
    await run.answer("Your name (text): ", "Ada")
    await run.answer("guests (integer, optional) [2]: ", "9")
    await run.until("The most is 8.")
    await run.answer("guests (integer, optional) [2]: ", "")
    await run.answer("1  Small room\n    2  Large room\n  room (choice, optional): ", "2")
    await run.answer("extras (choices, such as 1,2, optional): ", "1, parking")
    await run.answer("letters (yes or no, optional): ", "y")
    await run.answer("Send? [Y/n] ", "")
    assert await run.end() == 0
    content = {"name": "Ada", "guests": 2, "room": "l", "extras": ["breakfast", "parking"], "letters": True}
    assert json.loads(run.screen.strip()) == {"action": "accept", "content": content}


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("y\n", {"action": "accept", "content": {}}), ("n\n", {"action": "decline"}), ("\x04", {"action": "cancel"})],
)
async def test_a_question_without_fields_is_yes_no_or_ctrl_d(
    hub: HubProcess, typed: str, answer: dict[str, str]
) -> None:
    run = await call(hub, "asking.confirm")
    await run.until("Delete 3 files?\n  Accept? [y/n] ")
    run.type(typed)
    assert await run.end() == 0
    assert run.screen.strip().endswith(json.dumps(answer))


async def test_a_page_is_shown_with_its_host_and_only_opened_on_consent(hub: HubProcess) -> None:
    run = await call(hub, "asking.login")
    await run.until(
        "https://\x1b[1mlogin.example\x1b[0m/go\n  Will you open it? Only if you trust login.example. [y/N] "
    )
    run.type("\n")
    assert await run.end() == 0
    assert run.screen.strip().endswith('{"action": "decline"}')


async def test_a_hub_of_the_command_starts_the_asking_server_once(tmp_path: Path) -> None:
    log = tmp_path / "started"
    words = ["-c", f"open({str(log)!r}, 'a').write('x'); import runpy, sys; runpy.run_path(sys.argv[1])"]
    entry = {"command": sys.executable, "args": [*words, str(CHECKOUT / "tests" / "cli" / "asking_server.py")]}
    config = write_config(tmp_path, {"asking": entry})
    run = await TerminalRun.start("call", "--config", str(config), "asking.confirm")
    await run.answer("Accept? [y/n] ", "y")
    assert await run.end() == 0
    assert run.screen.strip().endswith('{"action": "accept", "content": {}}')
    assert log.read_text() == "x"


async def test_progress_and_time_are_one_line_of_a_terminal_and_nothing_elsewhere(hub: HubProcess) -> None:
    run = await call(hub, "asking.steps")
    assert await run.end() == 0
    assert "━" * 12 + "╌" * 12 + "  50%  1/2  step 1  0:0" in run.screen
    assert run.screen.endswith("\r\x1b[Kdone\n")
    assert await piped("call", "--hub", hub.url, "asking.steps") == (0, "done\n", "")


async def test_a_long_result_is_paged_on_a_terminal(hub: HubProcess) -> None:
    pager = {"PAGER": "sed s/line/paged/"}
    run = await TerminalRun.start("call", "--hub", hub.url, "asking.long", env=pager)
    assert await run.end() == 0
    assert "paged 99" in run.screen
    run = await TerminalRun.start("call", "--hub", hub.url, "asking.long", "--no-pager", env=pager)
    assert await run.end() == 0
    assert "line 99" in run.screen


async def test_without_a_terminal_a_question_is_printed_with_the_way_to_answer_it(hub: HubProcess) -> None:
    code, out, err = await piped("call", "--hub", hub.url, "asking.book")
    assert (code, out) == (0, "{}\n")
    assert err.startswith("asking.book asked, and got no answer: Complete the booking.\n  name (text)\n")
    assert err.endswith("Call it in a terminal, or add --answer name=…\n")


ADA = {"name": "Ada", "guests": 2}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["asking.book", "--answer", "name=Ada", "--answer", "room=Large room"], {**ADA, "room": "l"}),
        (["asking.book", "--answer", "name=Ada", "--answer", 'extras:=["parking"]'], {**ADA, "extras": ["parking"]}),
        (["asking.confirm", "--answer", "accept"], {}),
        (["asking.login", "--answer", "accept"], None),
    ],
)  # fmt: skip
async def test_options_answer_without_a_terminal(hub: HubProcess, words: list[str], answer: object) -> None:
    code, out, _ = await piped("call", "--hub", hub.url, *words)
    assert code == 0
    assert json.loads(out) == {"action": "accept"} | ({} if answer is None else {"content": answer})


async def test_questions_that_options_do_not_answer_are_cancelled_and_reported(hub: HubProcess) -> None:
    for words in (["asking.confirm", "--answer", "name=Ada"], ["asking.login", "--answer", "name=Ada"]):
        _, out, err = await piped("call", "--hub", hub.url, *words)
        assert json.loads(out) == {"action": "cancel"}
        assert "add --answer accept" in err
    _, out, _ = await piped("call", "--hub", hub.url, "asking.book", "--answer", "decline")
    assert json.loads(out) == {"action": "decline"}
    assert (await piped("call", "--hub", hub.url, "asking.book", "--answer", "perhaps"))[0] == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("name=A", "--answer name: write at least 2 characters"),
        ("nme=Ada", "--answer: nme is not a field of this question; did you mean name?"),
        ("zzz=Ada", "--answer: zzz is not a field of this question"),
        ("guests=some", "--answer guests: write a whole number, not 'some'"),
        ('guests:="2"', '--answer guests: it must be integer, not "2"'),
        ("accept", "--answer: name must be given too: add --answer name=…"),
    ],
)
async def test_a_wrong_answer_is_cancelled_and_reported_and_ends_with_2(hub: HubProcess, given: str, said: str) -> None:
    code, out, err = await piped("call", "--hub", hub.url, "asking.book", "--answer", given)
    assert (code, json.loads(out), err.splitlines()[0]) == (2, {"action": "cancel"}, said)


async def test_an_answer_without_a_question_is_reported(hub: HubProcess) -> None:
    words = ["asking.book", "--answer", "name=Ada", "--answer", "zzz=1"]
    code, _, err = await piped("call", "--hub", hub.url, *words)
    assert (code, err) == (0, "--answer: no question had a field zzz\n")


async def test_images_and_files_are_saved_under_safe_new_names(hub: HubProcess, tmp_path: Path) -> None:
    code, out, err = await piped("call", "--hub", hub.url, "asking.chart", "--save", str(tmp_path))
    assert code == 0
    assert out.splitlines()[0] == "[image image/png, 7 bytes: --save writes it]"
    assert sorted(os.listdir(tmp_path)) == ["a_report.pdf", "asking.chart-2.png", "asking.chart.png"]
    assert (tmp_path / "a_report.pdf").read_bytes() == b"picture"
    assert "asking.chart-2.png (image, image/png, 7 bytes) (asking.chart.png exists already)" in err
    (tmp_path / "own.png").write_bytes(b"mine")
    await piped("call", "--hub", hub.url, "asking.chart", "--save", str(tmp_path / "own.png"))
    assert (tmp_path / "own.png").read_bytes() == b"mine"
    assert (tmp_path / "own-2.png").read_bytes() == b"picture"
    code, _, err = await piped("call", "--hub", hub.url, "asking.chart", "--save", str(tmp_path / "none" / "a.png"))
    assert (code, "there is no folder" in err) == (2, True)
    for folder in ("new", "v1.2/"):  # made on demand
        code, _, _ = await piped("call", "--hub", hub.url, "asking.chart", "--save", f"{tmp_path}/{folder}")
        assert code == 0
        assert sorted(os.listdir(tmp_path / folder)) == ["a_report.pdf", "asking.chart-2.png", "asking.chart.png"]
