"""T25: a server that the hub started leaves processes behind, does not go, or takes the machine's resources.

Answer: the child leads a group of its own, which is ended with it, within five seconds whatever it does; so is what
left the group, a daemon that forked twice into a session of its own and emptied its environment included: all that a
server starts has its mark. (In a program with the hub inside, what a server starts in its first milliseconds may have
none.) It is reaped always. `[servers.NAME.limits]` bounds its memory, files, processes and processor time
(`setrlimit`), and of its standard error only the end is kept. What lowers its mark on purpose, which takes code written
against this hub, is to be run in a container or by `bwrap --unshare-pid`.

`tests/unit/transport/test_process.py` shows double forks, deafness to SIGTERM and a hundred deaths without a zombie.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path

import pytest

from isthmus.transport import process_tree
from isthmus.transport.process import ProcessChannel
from isthmus.transport.process_limits import ProcessLimits
from tests.conftest import zombies
from tests.faults.watching import eventually, is_alive, resident_bytes
from tests.hubs import Raw, environment, serving, stdio
from tests.security.child_process import Child, running

CLOSE_SECONDS = 5.0
RLIMIT_LOCKS = 10
"""By which a server's processes are known."""

STUBBORN_FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
there, ready = os.pipe()
first = os.fork()
if not first:  # left the group, and its parent lives
    os.setsid()
    os.write(ready, b'!')
    time.sleep(600)
second = os.fork()
if not second:  # a double fork within the group
    grandchild = os.fork()
    if not grandchild:
        os.write(ready, b'!')
        time.sleep(600)
    os.write(ready, b'%d!' % grandchild)
    os._exit(0)
os.waitpid(second, 0)
told = b''
while told.count(b'!') < 3:
    told += os.read(there, 64)
print(first, int(told.replace(b'!', b' ').split()[0]), flush=True)
time.sleep(600)
"""

DAEMON = """
import os, sys
there, ready = os.pipe()
os.set_inheritable(ready, True)
if not os.fork():
    os.setsid()
    if not os.fork():  # its parent ends, and nothing of what it was given stays with it
        os.chdir('/')
        rest = 'import os, time; os.write(%d, b"%%d!" %% os.getpid()); os.closerange(0, 99); time.sleep(600)' % ready
        os.execve(sys.executable, [sys.executable, '-c', rest], {})
    os._exit(0)
told = b''
while b'!' not in told:
    told += os.read(there, 64)
print(int(told[:-1]), flush=True)
sys.stdin.read()
"""


async def test_a_family_that_will_not_go_is_gone_within_five_seconds() -> None:
    async with running(STUBBORN_FAMILY) as child:
        family = [child.channel.pid, *map(int, (await child.line()).split())]
        assert all(is_alive(pid) for pid in family)
        began = time.monotonic()
        await child.channel.aclose(grace=0.2)
        await eventually(lambda: not any(map(is_alive, family)), "all of it is gone", CLOSE_SECONDS)
        assert time.monotonic() - began < CLOSE_SECONDS
    assert child.channel.pid not in zombies(os.getpid())


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a hub's alone, as that of `isthmus serve` is."""
    monkeypatch.setattr(process_tree, "_is_claimed", False)
    process_tree.claim_process()


@pytest.mark.usefixtures("claimed")
@pytest.mark.parametrize("way", ["left", "closed", "killed"])
async def test_a_daemon_does_not_outlive_its_server(way: str) -> None:
    async with running(DAEMON) as child:
        daemon = int(await child.line())
        assert is_alive(daemon)
        assert os.getsid(daemon) not in (child.channel.pid, os.getsid(0))
        match way:
            case "left":
                await child.channel.aclose()
                assert child.channel.returncode == 0, "it was given its time, and has ended by itself"
            case "closed":
                child.channel.kill()
            case _:
                os.kill(child.channel.pid, signal.SIGKILL)
                await child.loss()
        await eventually(lambda: not is_alive(daemon), "it is gone", CLOSE_SECONDS)


@pytest.mark.usefixtures("claimed")
async def test_a_hub_as_first_process_reaps_orphans() -> None:
    """In a container; here it takes in orphans as such a process does."""
    with taking_in_orphans():
        async with running(DAEMON) as child:
            daemon = int(await child.line())
            await child.channel.aclose()
            await eventually(lambda: not is_known(daemon), "it is no zombie either", CLOSE_SECONDS)


def is_known(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@contextmanager
def taking_in_orphans() -> Iterator[None]:
    """Have orphans below this process become its children (`PR_SET_CHILD_SUBREAPER`)."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(36, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(36, 0, 0, 0, 0)


QUICK = "setsid env -i /bin/sh -c 'sleep 600 & echo $!'; exec cat"
"""A shell that has let its daemon go before the hub could have looked at it."""


@pytest.mark.usefixtures("claimed")
async def test_a_daemon_of_the_first_moment_is_found_as_well() -> None:
    own = resource.getrlimit(RLIMIT_LOCKS)
    child = Child()
    child.channel = await ProcessChannel.spawn(
        ["/bin/sh", "-c", QUICK], env={"PATH": os.defpath}, cwd=None, on_bytes=child.on_bytes, on_lost=child.ended
    )
    assert resource.getrlimit(RLIMIT_LOCKS) == own, "the hub itself has no mark"
    daemon = int(await child.line())
    child.channel.kill()
    await child.loss()
    await eventually(lambda: not is_alive(daemon), "it is gone", CLOSE_SECONDS)


def test_a_hub_that_has_a_mark_itself_gives_others_to_its_children() -> None:
    most = 1_000_000_000 + os.getpid()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as outer:
        process_tree.settle_mark(outer.pid, most)
        script = (
            "import subprocess; from isthmus.transport import process_tree\n"
            "with process_tree.marking() as mark, subprocess.Popen(['/bin/cat'], stdin=subprocess.PIPE) as child:\n"
            "    process_tree.settle_mark(child.pid, mark)\n"
            f"    assert 0 < mark <= {most} and process_tree.marked(mark) == [child.pid], mark\n"
        )
        limited = f"import resource; resource.setrlimit({RLIMIT_LOCKS}, ({most}, {most}))\n{script}"
        ran = subprocess.run([sys.executable, "-c", limited], check=False, capture_output=True, env=environment())
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert process_tree.marked(most) == [outer.pid]


@pytest.mark.parametrize("most", [0, 1])
def test_a_hub_that_may_give_no_mark_but_its_own_gives_none_and_starts_servers_all_the_same(most: int) -> None:
    script = (
        f"import resource; resource.setrlimit({RLIMIT_LOCKS}, ({most}, {most}))\n"
        "from isthmus.transport import process_tree\n"
        "process_tree.claim_process()\n"
        "with process_tree.marking() as mark:\n    assert process_tree.marked(mark) == [], mark\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, env=environment())
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_the_grace_that_a_server_has_is_less_than_five_seconds() -> None:
    """Both waits of `aclose` at their defaults, without waiting for them here."""
    assert 2 * signature(ProcessChannel.aclose).parameters["grace"].default < CLOSE_SECONDS


async def test_memory_beyond_the_limit_is_refused_by_the_system() -> None:
    script = "import sys\nsys.stdin.readline()\nx = bytearray(4 << 30)\nprint('had it', flush=True)"
    async with running(script, limits=ProcessLimits(memory_bytes=1 << 30)) as child:
        child.channel.write(b"go\n")
        assert await child.loss() == "exited with code 1"
        assert "MemoryError" in child.channel.stderr_tail


async def test_files_beyond_the_limit_are_refused_by_the_system() -> None:
    script = (
        "import os, sys\nsys.stdin.readline()\nopened = []\n"
        "try:\n    opened += [os.open('/dev/null', 0) for _ in range(10_000)]\n"
        "except OSError as error:\n    print(error.errno, flush=True)\n"
    )
    async with running(script, limits=ProcessLimits(files=64)) as child:
        child.channel.write(b"go\n")
        assert await child.line() == b"24"


async def test_a_child_that_would_fork_for_ever_is_held_to_a_number() -> None:
    """That it is set: the system counts the processes of a user, who has others here, and never those of root."""
    script = (
        "import os, resource, sys\nsys.stdin.readline()\n"
        "print(resource.getrlimit(resource.RLIMIT_NPROC)[0], flush=True)\nsys.stdin.readline()\n"
    )
    async with running(script, limits=ProcessLimits(processes=4000)) as child:
        child.channel.write(b"go\n")
        assert int(await child.line()) == min(4000, *[n for n in resource.getrlimit(resource.RLIMIT_NPROC) if n > 0])


async def test_a_flood_of_errors_costs_the_hub_no_memory() -> None:
    script = (
        "import os\nfor _ in range(256): os.write(2, b'x' * (1 << 20))\n"
        "os.write(2, b'the end')\nos.write(1, b'done\\n')\nos.read(0, 1)"
    )
    before = resident_bytes(os.getpid())
    async with running(script) as child:
        await child.line()
        await child.channel.aclose(grace=10)
        assert child.channel.stderr_tail.endswith("the end")
        assert len(child.channel.stderr_tail) <= 64 * 1024
    assert resident_bytes(os.getpid()) - before < 32 << 20


async def test_limits_of_an_entry_hold_for_the_server_that_runs(tmp_path: Path) -> None:
    server = tmp_path / "hungry.py"
    server.write_text(
        "import json, resource, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    limits = [resource.getrlimit(getattr(resource, 'RLIMIT_' + n))[0] for n in ('AS', 'NOFILE', 'CORE')]\n"
        "    said = {'initialize': {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}},\n"
        "             'serverInfo': {'name': 'h', 'version': '1'}},\n"
        "            'tools/list': {'tools': [{'name': 'limits', 'inputSchema': {'type': 'object'}}]},\n"
        "            'tools/call': {'content': [{'type': 'text', 'text': json.dumps(limits)}]}}\n"
        "    if 'id' in asked:\n"
        "        known = asked['method'] in said\n"
        "        end = {'result': said[asked['method']]} if known else {'error': {'code': -32601, 'message': 'no'}}\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], **end}), flush=True)\n"
    )
    limits = {"memory": "2GiB", "files": 128}
    servers = {"hungry": stdio([sys.executable, str(server)], limits=limits)}
    async with serving(tmp_path, servers, limits={"listing_seconds": 30.0}) as hub, Raw(hub.url) as caller:
        assert "hungry.limits" in await caller.names()
        answer = await caller.call("hungry.limits")
        assert answer["result"]["content"][0]["text"] == f"[{2 << 30}, 128, 0]"
