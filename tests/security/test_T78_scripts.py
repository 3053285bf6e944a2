"""T78: a script of a model tries to reach the host, to exhaust it, or to call a tool that its caller may not."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio

from isthmus.code.sandbox_in_child import CALL, prelude
from isthmus.code.signatures import python_names, signatures
from isthmus.transport.process_tree import descendants
from tests.code.script_server import command
from tests.conftest import Ledger, children
from tests.hubs import PATIENT, HubProcess, Raw, serving, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("scripts")]

CANARY = "canary-7f3a91c2"
MEMORY = 32 * 1024 * 1024
SECONDS = 30.0


class Field(NamedTuple):
    hub: HubProcess
    ledger: Ledger
    canary: Path

    @property
    def raw(self) -> Raw:
        return Raw(self.hub.url)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def field(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    folder = tmp_path_factory.mktemp("T78")
    canary = folder / "canary.txt"
    canary.write_text(CANARY)
    ledger = Ledger(folder / "ledger")
    code = {"workers": 2, "cpu_seconds": 1.0, "memory_bytes": MEMORY, "output_bytes": 10_000, "calls": 20}
    env = {"CANARY": CANARY}
    servers = {"shop": stdio(command(ledger.path))}
    async with serving(folder, servers, env=env, hub={"expose": "code"}, code=code, limits=PATIENT) as hub:
        yield Field(hub, ledger, canary)


async def run(field: Field, code: str) -> dict[str, Any]:
    async with field.raw as raw, asyncio.timeout(SECONDS):
        answer = await raw.call("run_code", {"code": code})
    result: dict[str, Any] = answer["result"]
    return result


async def untyped(field: Field, code: str) -> dict[str, Any]:
    """Run code that the type checker would refuse: in `exec`, it sees a text only."""
    return await run(field, f"exec({code!r})")


def ignored(code: str) -> str:
    """The same code, ignored by the type checker."""
    lines = code.split("\n")
    return "\n".join(line if line.endswith(":") else f"{line}  # type: ignore" for line in lines)


ESCAPES = {
    "files": "print(open({file!r}).read())",
    "files by path": "import pathlib\nprint(pathlib.Path({file!r}).read_text())",
    "folders": "import os\nprint(os.listdir({folder!r}))",
    "writing": "open({file!r}, 'w').write('changed')",
    "the environment": "import os\nprint(os.environ)\nprint(os.getenv('CANARY'))",
    "programs": "import os\nos.system('cat {file}')",
    "subprocesses": "import subprocess\nprint(subprocess.check_output(['cat', {file!r}]))",
    "sockets": "import socket\nsocket.create_connection(('127.0.0.1', {port}))",
    "web": "import urllib.request\nprint(urllib.request.urlopen('http://127.0.0.1:{port}/').read())",
    "importlib": "import importlib\nprint(importlib.import_module('os').environ)",
    "__import__": "print(__import__('os').environ)",
    "ctypes": "import ctypes\nctypes.string_at(0)",
    "subclasses": "print(().__class__.__bases__[0].__subclasses__())",
    "frames": "import sys\nprint(sys._getframe().f_back.f_globals)",
    "a function's globals": "async def f() -> None: ...\nprint(f.__globals__, shop_add.__globals__)",
    "a coroutine's frame": "async def f() -> None: ...\nprint(f().cr_frame.f_builtins)",
    "an exception's frames": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n"
    "    print(e.__traceback__.tb_frame.f_globals)",
    "formats": "print('{{0.__class__.__init__.__globals__}}'.format(print))",
    "attributes": "print(getattr(print, '__self__').__dict__)",
    "pickles": "import pickle\npickle.loads(b'cos\\nsystem\\n(S\"cat {file}\"\\ntR.')",
    "marshal": "import marshal\nmarshal.loads(b'x')",
    "the debugger": "breakpoint()",
    "input": "print(input())",
    "the hub's own function": "print(await {call}('shop.pay', 'not json'))",
    "the hub's own function without arguments": "print(await {call}())",
    "the hub's own function with an object": "print(await {call}(print, [print]))",
    "another function of the host": "print(await _host('x'))",
}


@pytest.mark.parametrize("attempt", ESCAPES)
async def test_a_script_reaches_nothing_of_the_host(field: Field, attempt: str) -> None:
    folder, port, before = str(field.canary.parent), field.hub.port, len(field.ledger.lines())
    code = ESCAPES[attempt].format(file=str(field.canary), folder=folder, port=port, call=CALL)
    results = [await run(field, code), await untyped(field, code), await run(field, ignored(code))]
    # The type checker refuses most of it, which is no border: one at least was really tried.
    assert any(result["structuredContent"]["error"] != "refused" for result in results), results
    for result in results:
        text = json.dumps(result)
        assert CANARY not in text
        assert "journal.key" not in text
        assert "/src/isthmus" not in text
        assert "site-packages" not in text
        assert result["isError"], f"{attempt}: {text}"
    assert field.canary.read_text() == CANARY
    assert len(field.ledger.lines()) == before


BOMBS = {
    "an endless loop": "while True:\n    pass",
    "an endless loop that catches everything": "while True:\n    try:\n        while True:\n            pass\n"
    "    except BaseException:\n        pass",
    "memory": "x = [0]\nwhile True:\n    x = x + x",
    "a long text": "x = 'x' * 10**10",
    "a large number": "x = 10 ** 10 ** 8",
    "recursion": "def f(n: int) -> int:\n    return f(n + 1)\nf(0)",
    "deep lists": "x: list = []\nfor _ in range(10**6):\n    x = [x]\nx",
    "a list that contains another many times": "a = [0] * 1000\nb = [a] * 1000\nc = [b] * 1000\nc",
    "a dictionary of keys that are alike": "{i * 2**61: i for i in range(10**7)}",
    "endless sleep": "import time\nwhile True:\n    time.sleep(0)",
    "many tasks": "import asyncio\nasync def f() -> None:\n    await asyncio.sleep(10)\n"
    "await asyncio.gather(*[f() for _ in range(10**6)])",
    "many calls": "while True:\n    await shop_add(a=1, b=1)",
    "a long argument": "await shop_pay(nonce='x' * 6_000_000)",
    "an argument that contains another many times": "a = [0] * 1000\nb = [a] * 1000\nc = [b] * 1000\n"
    "await shop_order(orders=c)  # type: ignore",
    "deep source": "(" * 5_000 + ")" * 5_000,
    "deep unary source": "-" * 20_000 + "1",
    "an exception that is long": "raise ValueError('x' * 1_000_000)",
}


@pytest.mark.parametrize("attempt", BOMBS)
async def test_a_script_exhausts_only_itself(field: Field, attempt: str) -> None:
    result = await run(field, BOMBS[attempt])
    text = json.dumps(result)
    assert result["isError"], text[:500]
    assert len(text) < 60_000
    assert (result["structuredContent"]["error"] == "refused") == ("source" in attempt), text[:500]
    # The next script, and every other call, find the hub as it was.
    assert not (await run(field, "(await shop_add(a=1, b=2))['sum']"))["isError"]
    assert max(map(resident, children(field.hub.pid)), default=0) < 4 * MEMORY


def resident(pid: int) -> int:
    """The memory of a process, in bytes; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


async def test_the_processes_of_scripts_have_nothing_of_the_hubs_environment(field: Field) -> None:
    assert not (await run(field, "await shop_add(a=1, b=1)"))["isError"]
    names = {variable.partition("=")[0] for pid in sandbox_processes(field.hub.pid) for variable in of(pid, "environ")}
    assert "PATH" in names
    assert names <= {"PATH", "MONTY_BIN", "PYTHONPATH"}


def sandbox_processes(hub: int) -> list[int]:
    return [pid for pid in descendants(hub) if {"isthmus.code.sandbox_in_child", "subprocess"} & {*of(pid, "cmdline")}]


def of(pid: int, file: str) -> list[str]:
    """The texts in a file of a process; none if it has ended."""
    try:
        return [each for each in Path(f"/proc/{pid}/{file}").read_text().split("\0") if each]
    except (FileNotFoundError, ProcessLookupError):
        return []


async def test_other_callers_are_served_while_scripts_compute(field: Field) -> None:
    async with field.raw as raw, asyncio.timeout(SECONDS):
        busy = [asyncio.ensure_future(run(field, "while True:\n    pass")) for _ in range(4)]
        for _ in range(20):
            answer = await raw.call("shop.add", {"a": 1, "b": 2})
            assert answer["result"]["structuredContent"] == {"sum": 3}
        assert not all(each.done() for each in busy)
        for result in await asyncio.gather(*busy):
            assert result["isError"]


@pytest.mark.parametrize("walk", ["__cause__", "__context__", "__traceback__", "__class__", "__dict__", "__reduce__()"])
async def test_the_exception_of_a_failed_call_carries_only_text(field: Field, walk: str) -> None:
    call = "try:\n    await shop_fail(why='no')\nexcept RuntimeError as e:\n    found = {}  # type: ignore\nfound"
    response = await run(field, call.format("[type(each).__name__ for each in e.args]"))
    assert response["structuredContent"]["result"] == ["str"]
    walked = await run(field, call.format(f"str(e.{walk})"))
    assert walked["isError"] or walked["structuredContent"]["result"] == "None"
    assert "isthmus" not in json.dumps(walked)


async def test_a_scripts_output_and_result_are_bounded(field: Field) -> None:
    printed = await run(field, "for _ in range(100_000):\n    print('x' * 100)")
    assert len(json.dumps(printed)) < 60_000
    assert "output_bytes" in printed["structuredContent"]["printed"]
    returned = await run(field, "'x' * 1_000_000")
    assert returned["isError"]
    assert "output_bytes" in returned["structuredContent"]["message"]


async def test_text_of_servers_does_not_become_code() -> None:
    evil = '"""\nimport os\nos.system("x")\n"""'
    schema = {
        "type": "object",
        "properties": {
            "fine": {"enum": ["a'b", '"""', "\n]\nimport os\n#", "\\"]},
            "a) -> None: ...\nimport os\n#": {"type": "string"},
            "nested": {"type": "object", "properties": {"x: int\nimport os": {"const": "\u2028"}}},
        },
    }
    definition = {"description": raw_json(evil), "inputSchema": raw_json(schema)}
    names = [evil, "class", "a.b\nimport os", "__import__", "print"]
    for exposed, name in python_names(names).items():
        assert name.isidentifier()
        assert name not in ("class", "print", "__import__")
        stub = signatures([(name, exposed, definition)])
        # It compiles, and imports nothing but the header's own names.
        tree = compile(stub, "stub", "exec", dont_inherit=True)
        assert "os" not in tree.co_names
        assert "os" not in compile(prelude({name: exposed}, ""), "prelude", "exec").co_names


def raw_json(value: object) -> Any:
    return msgspec.Raw(msgspec.json.encode(value))
