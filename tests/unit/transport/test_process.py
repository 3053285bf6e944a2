from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from isthmus.transport.process import ProcessChannel, SpawnFailed, child_environment
from isthmus.transport.process_limits import ProcessLimits, Unbounded, bound

CAT = "import sys\nfor line in sys.stdin.buffer:\n    sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
"""A child that echoes, and leaves at the end of its input."""

DEAF = "import time\nprint('up', flush=True)\ntime.sleep(600)"
"""A child that never reads, writes `up` when it runs, and stays."""

STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + DEAF


class ChannelOutput:
    """What a channel's owner output of it."""

    def __init__(self) -> None:
        self.output = b""
        self.losses: list[str] = []
        self._news = asyncio.Event()

    def on_bytes(self, data: bytes) -> None:
        self.output += data
        self._news.set()

    def on_lost(self, reason: str) -> None:
        self.losses.append(reason)
        self._news.set()

    async def until(self, output: bytes) -> bytes:
        async with asyncio.timeout(30):
            while output not in self.output:
                self._news.clear()
                await self._news.wait()
        return self.output

    async def loss(self) -> str:
        async with asyncio.timeout(30):
            while not self.losses:
                self._news.clear()
                await self._news.wait()
        return self.losses[0]


@pytest.fixture
def output() -> ChannelOutput:
    return ChannelOutput()


@pytest_asyncio.fixture
async def channels() -> AsyncIterator[list[ProcessChannel]]:
    opened: list[ProcessChannel] = []
    yield opened
    for channel in opened:
        channel.kill()
        await channel.aclose()


async def start(
    output: ChannelOutput, channels: list[ProcessChannel], script: str, *, env: dict[str, str] | None = None
) -> ProcessChannel:
    channel = await ProcessChannel.spawn(
        [sys.executable, "-c", script],
        env=child_environment(env or {}, os.environ),
        cwd=None,
        on_bytes=output.on_bytes,
        on_lost=output.on_lost,
    )
    channels.append(channel)
    return channel


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody of ours must reap does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def our_children() -> dict[int, str]:
    """The state of every process whose parent we are."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text("ascii", "replace").rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == os.getpid():
            found[int(stat.parent.name)] = state
    return found


@pytest.fixture
def others() -> set[int]:
    """Children that were there before the test: what others of this process started is theirs."""
    return set(our_children())


def zombies(others: set[int]) -> list[int]:
    """Our own children that have ended and were not reaped."""
    return [pid for pid, state in our_children().items() if state == "Z" and pid not in others]


async def until_dead(pid: int) -> None:
    async with asyncio.timeout(30):
        while is_alive(pid):  # noqa: ASYNC110 - nobody tells us of another's child
            await asyncio.sleep(0.005)


async def test_a_childs_input_and_output_are_piped(output: ChannelOutput, channels: list[ProcessChannel]) -> None:
    channel = await start(output, channels, CAT)
    assert channel.write(b"hello\n") == 6
    assert channel.write(b"again\n") == 12
    assert await output.until(b"again\n") == b"hello\nagain\n"
    assert channel.has_left(12)
    assert is_alive(channel.pid)
    await channel.aclose(grace=30)
    assert output.losses == ["exited with code 0"]
    assert channel.returncode == 0
    assert not is_alive(channel.pid)


async def test_closing_twice_or_at_once_is_harmless(output: ChannelOutput, channels: list[ProcessChannel]) -> None:
    channel = await start(output, channels, CAT)
    await asyncio.gather(channel.aclose(), channel.aclose())
    await channel.aclose()
    channel.kill()
    assert len(output.losses) == 1


async def test_a_childs_last_output_is_read_before_its_end(
    output: ChannelOutput, channels: list[ProcessChannel]
) -> None:
    script = "import os, sys\nos.write(1, b'x' * 60000)\nos.write(2, b'sorry')\nos._exit(3)"
    channel = await start(output, channels, script)
    assert not output.losses
    assert await output.loss() == "exited with code 3"
    assert len(output.output) == 60000
    assert channel.stderr_tail == "sorry"
    assert channel.returncode == 3


async def test_nothing_is_read_before_the_channel_is_returned() -> None:
    channel: ProcessChannel | None = None
    seen: list[bool] = []
    received = ChannelOutput()

    def on_bytes(data: bytes) -> None:
        seen.append(channel is not None)

    def on_lost(reason: str) -> None:
        seen.append(channel is not None)
        received.on_lost(reason)

    channel = await ProcessChannel.spawn(["/bin/echo", "x"], env={}, cwd=None, on_bytes=on_bytes, on_lost=on_lost)
    await received.loss()
    assert seen == [True, True]
    await channel.aclose()


@pytest.mark.parametrize("turns", range(6))
async def test_a_child_whose_start_is_cancelled_is_ended_without_being_read(
    turns: int, tmp_path: Path, others: set[int]
) -> None:
    received = ChannelOutput()
    pid_file = tmp_path / "pid"
    starting = asyncio.create_task(
        ProcessChannel.spawn(
            ["/bin/sh", "-c", f"echo $$ > {pid_file}; exec cat"],
            env={},
            cwd=None,
            on_bytes=received.on_bytes,
            on_lost=received.on_lost,
        )
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    if not starting.cancel():
        await (await starting).aclose()
        return
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with asyncio.timeout(30):
        while our_children().keys() - others:  # noqa: ASYNC110 - its channel is nobody's
            await asyncio.sleep(0.005)
    for _ in range(20):
        await asyncio.sleep(0)  # the pipes are closed once they are connected, and that nobody tells either
    assert not received.losses


async def test_where_processes_cannot_be_watched_by_descriptor_a_thread_waits(
    output: ChannelOutput, channels: list[ProcessChannel], monkeypatch: pytest.MonkeyPatch, others: set[int]
) -> None:
    def forbidden(pid: int, flags: int = 0) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    channel = await start(output, channels, FORKS.format(escape="", then="os.read(0, 1)"))
    grandchild = int((await output.until(b"\n")).split()[1])
    channel.kill()
    assert await output.loss() == "killed by signal 9 (SIGKILL)"
    await until_dead(grandchild)
    assert zombies(others) == []


async def test_a_signal_without_a_name_is_reported_by_its_number(
    output: ChannelOutput, channels: list[ProcessChannel]
) -> None:
    channel = await start(output, channels, "import os\nos.kill(os.getpid(), 42)")
    assert await output.loss() == "killed by signal 42"
    assert channel.returncode == -42


async def test_a_killed_child_is_reported_by_its_signal(output: ChannelOutput, channels: list[ProcessChannel]) -> None:
    channel = await start(output, channels, DEAF)
    channel.kill()
    assert await output.loss() == "killed by signal 9 (SIGKILL)"
    assert channel.returncode == -9


async def test_after_its_death_a_child_is_written_nothing(
    output: ChannelOutput, channels: list[ProcessChannel]
) -> None:
    channel = await start(output, channels, CAT)
    before = channel.write(b"first\n")
    await output.until(b"first\n")
    channel.kill()
    await output.loss()
    after = channel.write(b"second\n")
    assert after == before + 7
    assert channel.has_left(before)
    assert not channel.has_left(after)
    assert channel.buffered_bytes() == 0


async def test_bytes_that_the_child_did_not_take_are_known_not_to_have_left(
    output: ChannelOutput, channels: list[ProcessChannel]
) -> None:
    channel = await start(output, channels, DEAF)
    await output.until(b"up")
    small = channel.write(b"x" * 1000)
    assert channel.has_left(small)
    big = channel.write(b"y" * 8_000_000)
    last = channel.write(b"z\n")
    for _ in range(3):
        assert channel.has_left(small)
        assert not channel.has_left(big)
        assert not channel.has_left(last)
        assert 7_000_000 < channel.buffered_bytes() < 8_000_002
        await asyncio.sleep(0)
    channel.kill()
    await output.loss()
    assert channel.has_left(small)


async def test_bytes_in_the_buffer_leave_when_the_child_reads(
    output: ChannelOutput, channels: list[ProcessChannel]
) -> None:
    script = (
        "import sys\nprint('up', flush=True)\nwanted = 8000001\n"
        "while wanted: wanted -= len(sys.stdin.buffer.raw.read(min(wanted, 65536)))\n"
        "print('done', flush=True)\nsys.stdin.read()"
    )
    channel = await start(output, channels, script)
    await output.until(b"up")
    offset = channel.write(b"y" * 8_000_001)
    await output.until(b"done")
    assert channel.has_left(offset)
    assert not channel.has_left(offset + 1)


async def test_a_child_that_closes_its_output_is_ended(output: ChannelOutput, channels: list[ProcessChannel]) -> None:
    channel = await start(output, channels, "import os, time\nos.close(1)\ntime.sleep(600)")
    assert await output.loss() == "closed its output"
    await until_dead(channel.pid)


async def test_a_child_that_closes_its_input_is_ended(output: ChannelOutput, channels: list[ProcessChannel]) -> None:
    channel = await start(output, channels, "import os, time\nos.close(0)\ntime.sleep(600)")
    channel.write(b"x" * 1000)
    channel.write(b"x" * 8_000_000)
    assert await output.loss() == "closed its input"
    await until_dead(channel.pid)


async def test_a_child_that_leaves_when_its_input_ends_is_not_hurried(
    output: ChannelOutput, channels: list[ProcessChannel]
) -> None:
    tidying = "os.close(1)\ntime.sleep(0.6)\nos.write(2, b'tidied')\nos._exit(7)"
    script = f"import os, sys, time\nsys.stdin.read()\n{tidying}"
    channel = await start(output, channels, script)
    await channel.aclose(grace=30)
    assert output.losses == ["exited with code 7"]
    assert channel.stderr_tail == "tidied"


async def test_a_child_that_ignores_the_end_of_input_is_terminated(
    output: ChannelOutput, channels: list[ProcessChannel]
) -> None:
    channel = await start(output, channels, DEAF)
    await output.until(b"up")
    channel.write(b"x" * 8_000_000)
    await channel.aclose(grace=2.0)  # it dies of the first signal, but on a busy machine not at once
    assert output.losses == ["killed by signal 15 (SIGTERM)"]


async def test_a_child_that_ignores_sigterm_is_killed(output: ChannelOutput, channels: list[ProcessChannel]) -> None:
    channel = await start(output, channels, STUBBORN)
    await output.until(b"up")
    await channel.aclose(grace=0.05)
    assert output.losses == ["killed by signal 9 (SIGKILL)"]
    assert not is_alive(channel.pid)


async def test_a_cancelled_close_still_ends_the_child(output: ChannelOutput, channels: list[ProcessChannel]) -> None:
    channel = await start(output, channels, STUBBORN)
    await output.until(b"up")
    closing = asyncio.create_task(channel.aclose(grace=60))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert await output.loss() == "killed by signal 9 (SIGKILL)"


FORKS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready, ring = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        {escape}
        os.write(1, b'grandchild %d\\n' % os.getpid())
        os.write(ring, b'!')
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(ready, 1)
{then}
"""


@pytest.mark.parametrize("then", ["sys.stdin.read()", "time.sleep(600)"], ids=["polite", "stubborn"])
async def test_a_child_that_forks_twice_leaves_no_process_behind(
    output: ChannelOutput, channels: list[ProcessChannel], then: str
) -> None:
    channel = await start(output, channels, FORKS.format(escape="", then=then))
    grandchild = int((await output.until(b"\n")).split()[1])
    assert is_alive(grandchild)
    await channel.aclose(grace=0.1)
    await until_dead(grandchild)
    assert not is_alive(channel.pid)


async def test_the_group_goes_with_a_child_that_was_killed_by_others(
    output: ChannelOutput, channels: list[ProcessChannel]
) -> None:
    channel = await start(output, channels, FORKS.format(escape="", then="time.sleep(600)"))
    grandchild = int((await output.until(b"\n")).split()[1])
    os.kill(channel.pid, signal.SIGKILL)
    assert await output.loss() == "killed by signal 9 (SIGKILL)"
    await until_dead(grandchild)


async def test_a_grandchild_that_escapes_with_the_pipe_does_not_hide_the_death(
    output: ChannelOutput, channels: list[ProcessChannel]
) -> None:
    channel = await start(output, channels, FORKS.format(escape="os.setsid()", then="os._exit(4)"))
    grandchild = int((await output.until(b"\n")).split()[1])
    assert await output.loss() == "exited with code 4"
    assert channel.returncode == 4
    await channel.aclose()
    await until_dead(grandchild)


async def test_a_hundred_killed_children_leave_no_zombie(others: set[int]) -> None:
    for _ in range(100):
        received = ChannelOutput()
        channel = await ProcessChannel.spawn(
            ["/bin/cat"], env={}, cwd=None, on_bytes=received.on_bytes, on_lost=received.on_lost
        )
        channel.write(b"x\n")
        os.kill(channel.pid, signal.SIGKILL)
        assert await received.loss() == "killed by signal 9 (SIGKILL)"
        await channel.aclose()
        assert len(received.losses) == 1
    assert zombies(others) == []


async def test_a_flood_on_stderr_is_read_and_forgotten(output: ChannelOutput, channels: list[ProcessChannel]) -> None:
    script = (
        "import os\nfor _ in range(64): os.write(2, b'x' * (1 << 20))\n"
        "os.write(2, 'the end \u20ac'.encode() + b'\\xff')\nos.write(1, b'done')\nos.read(0, 1)"
    )
    channel = await start(output, channels, script)
    await output.until(b"done")
    await channel.aclose(grace=30)
    assert channel.stderr_tail.endswith("the end \u20ac\ufffd")
    assert len(channel.stderr_tail) <= 64 * 1024
    assert len(channel._stderr) <= 128 * 1024


async def test_a_child_has_only_declared_variables_and_descriptors(
    output: ChannelOutput, channels: list[ProcessChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    told_by = "sorted(os.environ.items()), sorted(os.listdir('/proc/self/fd'))"
    listing = f"import os\nprint({told_by}, flush=True)\nos.read(0, 1)"
    inheritable = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        await start(output, channels, listing, env={"TOKEN": "t", "PATH": "/nowhere"})
        response = (await output.until(b"\n")).decode()
    finally:
        os.close(inheritable)
    assert "hunter2" not in response
    assert "('TOKEN', 't')" in response
    assert "('PATH', '/nowhere')" in response
    # The fourth is the descriptor of the directory that is being listed.
    assert response.strip().endswith("['0', '1', '2', '3']")


async def test_a_child_leads_its_own_session(output: ChannelOutput, channels: list[ProcessChannel]) -> None:
    channel = await start(output, channels, CAT)
    assert os.getpgid(channel.pid) == os.getsid(channel.pid) == channel.pid


async def test_a_child_starts_in_the_given_folder(
    output: ChannelOutput, channels: list[ProcessChannel], tmp_path: Path
) -> None:
    (tmp_path / "server").symlink_to("/bin/pwd")
    channel = await ProcessChannel.spawn(
        ["./server"], env={}, cwd=str(tmp_path), on_bytes=output.on_bytes, on_lost=output.on_lost
    )
    channels.append(channel)
    await output.loss()
    assert output.output.decode().strip() == str(tmp_path)


@pytest.mark.parametrize("name", ["pwd -P", "./pwd -P"])
async def test_a_program_may_have_blanks_in_its_name(
    output: ChannelOutput, channels: list[ProcessChannel], tmp_path: Path, name: str
) -> None:
    (tmp_path / "pwd -P").symlink_to("/bin/pwd")
    env = {"PATH": f"/bin:{tmp_path}"}
    channel = await ProcessChannel.spawn(
        [name], env=env, cwd=str(tmp_path), on_bytes=output.on_bytes, on_lost=output.on_lost
    )
    channels.append(channel)
    await output.loss()
    assert output.output.decode().strip() == str(tmp_path)


@pytest.mark.parametrize(
    ("command", "cwd", "reason"),
    [
        (["no-such-command-anywhere"], None, "no such command on PATH; install it or give its full path"),
        (["/no/such/file"], None, "there is no such file"),
        (["cat -u"], None, "no such command; if this is a line for a shell, put all but its first word into args"),
        (["/bin/cat /etc/passwd"], None, "no such command; if this is a line for a shell"),
        (["no-such-command -u"], None, "no such command on PATH; install it or give its full path"),
        (["  "], None, "no such command on PATH"),
        (["/etc/passwd"], None, "may not be executed"),
        (["cat"], "/no/such/directory", "working directory '/no/such/directory' does not exist"),
        ([], None, "the command is empty"),
        (["cat", "a\0b"], None, "null byte"),
    ],
)
async def test_a_command_that_cannot_be_started_is_reported_in_words(
    output: ChannelOutput, command: list[str], cwd: str | None, reason: str
) -> None:
    with pytest.raises(SpawnFailed, match=reason) as caught:
        await ProcessChannel.spawn(
            command, env={"PATH": "/bin"}, cwd=cwd, on_bytes=output.on_bytes, on_lost=output.on_lost
        )
    assert caught.value.command == (command[0] if command else "")
    assert not output.losses


async def test_a_file_that_is_not_a_program_is_reported_in_words(output: ChannelOutput, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("hello")
    file.chmod(0o755)
    with pytest.raises(SpawnFailed, match="neither a program nor a script"):
        await ProcessChannel.spawn([str(file)], env={}, cwd=None, on_bytes=output.on_bytes, on_lost=output.on_lost)


def test_a_childs_environment_has_declared_variables_and_a_few_others() -> None:
    parent = {"PATH": "/bin", "HOME": "/h", "SECRET": "s", "SHELL": "() { evil; }", "LC_ALL": "C"}
    assert child_environment({"A": "1", "HOME": "/elsewhere"}, parent) == {
        "PATH": "/bin",
        "HOME": "/elsewhere",
        "LC_ALL": "C",
        "A": "1",
    }


SHOWS = (
    "import resource, sys\nsys.stdin.readline()\n"
    "print([resource.getrlimit(getattr(resource, 'RLIMIT_' + each))[1] for each in sys.argv[1:]], flush=True)\n"
    "sys.stdin.readline()"
)
"""Tells its limits when it is asked to."""


async def shown_limits(limits: ProcessLimits, *names: str) -> list[int]:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    channel = await ProcessChannel.spawn(
        [sys.executable, "-c", SHOWS, *names],
        env={},
        cwd=None,
        on_bytes=received.set_result,
        on_lost=lambda why: None if received.done() else received.set_exception(AssertionError(why)),
        limits=limits,
    )
    try:
        channel.write(b"tell\n")
        answer = await asyncio.wait_for(received, 30)
        return [int(each) for each in answer.decode().strip("[]\n").split(",")]
    finally:
        await channel.aclose()


async def test_a_child_is_held_to_its_limits() -> None:
    limits = ProcessLimits(memory_bytes=1 << 30, files=100, processes=50, cpu_seconds=60)
    names = ("AS", "NOFILE", "NPROC", "CPU", "CORE")
    assert await shown_limits(limits, *names) == [1 << 30, 100, 50, 60, 0]


async def test_without_limits_a_child_has_the_hubs_own_but_dumps_no_core() -> None:
    own = [resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)]
    assert await shown_limits(ProcessLimits(), "AS", "NOFILE", "CORE") == [*own, 0]


async def test_a_limit_above_the_hubs_own_is_the_hubs_own() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert await shown_limits(ProcessLimits(files=hard + 1), "NOFILE") == [hard]


@pytest.mark.parametrize("bad", [{"files": 0}, {"memory_bytes": 1024}, {"cpu_seconds": -1}])
def test_limits_with_which_nothing_runs_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be at least"):
        ProcessLimits(**bad)


def test_a_child_that_has_ended_already_is_not_missed() -> None:
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    os.waitpid(child, 0)
    bound(child, ProcessLimits(files=10))


@pytest.mark.parametrize("why", [errno.EPERM, errno.ENOSYS])
def test_a_forbidden_resource_limit_fails_only_if_it_is_configured(monkeypatch: pytest.MonkeyPatch, why: int) -> None:
    def not_allowed(*_: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr("resource.prlimit", not_allowed)
    bound(os.getpid(), ProcessLimits())
    with pytest.raises(Unbounded):
        bound(os.getpid(), ProcessLimits(files=10))


async def test_where_there_is_no_way_to_limit_a_child_one_with_limits_is_not_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    bound(os.getpid(), ProcessLimits())
    with pytest.raises(SpawnFailed, match="on Linux only"):
        await ProcessChannel.spawn(
            ["/bin/cat"],
            env={},
            cwd=str(tmp_path),
            on_bytes=print,
            on_lost=print,
            limits=ProcessLimits(cpu_seconds=1),
        )
