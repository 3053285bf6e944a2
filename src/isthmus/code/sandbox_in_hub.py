"""The hub's side of the sandbox: starts the process in which scripts run, and exchanges messages with it.

One process serves a hub; it starts with the first script, and again after it has died, which ends the scripts that ran.
`code.sandbox_in_child` is what runs in it, and the messages. `code.scripts` is the only user.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Protocol, TypeAlias

import msgspec
import structlog

from isthmus.code.sandbox_in_child import (
    LENGTH_BYTES,
    AnswerCall,
    CancelScript,
    PrepareSpare,
    SandboxRequest,
    SandboxResponse,
    ScriptEnd,
    ScriptSource,
    ScriptStop,
    SpareReady,
    StartScript,
    frame,
)
from isthmus.core.background import BackgroundTasks
from isthmus.transport.process import ProcessChannel

log = structlog.get_logger(__name__)

EXTRA = "Code mode needs a library that is not installed; get it with: pip install 'isthmus[code]'"

PROCESS = "isthmus.code.sandbox_in_child"

PASSED = ("PATH", "MONTY_BIN")
"""What the process gets of the hub's environment: where the library looks for its program."""

STDERR_LENGTH_MAX = 4_000

_decode = msgspec.msgpack.Decoder(SandboxResponse).decode


@cache
def is_installed() -> bool:
    """Whether the library of the sandbox is installed."""
    return find_spec("pydantic_monty") is not None


@cache
def library_version() -> str:
    """The version of the library: a snapshot can be loaded by the version that wrote it only."""
    return version("pydantic-monty-client")


class ToolFailure(msgspec.Struct, frozen=True):
    """Why a call failed, as the exception in the script says it."""

    message: str


CallAnswer: TypeAlias = str | ToolFailure
"""What a call returns to a script: JSON, or why it failed."""


class ScriptHost(Protocol):
    """What the sandbox reports of a script."""

    def stopped(self, at: ScriptStop) -> None:
        """The script waits. Answers go to `SandboxedScript.answer`."""

    def ended(self, end: ScriptEnd) -> None:
        """The script has ended; called exactly once, at last."""


class Sandbox:
    """The process of one hub in which its scripts run."""

    def __init__(self, background: BackgroundTasks, environment: Mapping[str, str]) -> None:
        self._background = background
        self._environment = environment
        self._channel: ProcessChannel | None = None
        self._opened: asyncio.Future[None] | None = None
        self._lost = asyncio.Event()
        self._received = bytearray()
        self._hosts: dict[int, ScriptHost] = {}
        self._count = 0
        self.has_spare = False
        """Whether the next script finds a worker that is warm."""

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._channel is None else self._channel.pid

    async def start(self, source: ScriptSource, host: ScriptHost) -> SandboxedScript:
        """Run a script.

        Raises:
            SpawnFailed: the process cannot be started.
        """
        await self._open()
        self._count += 1
        self._hosts[self._count] = host
        self.has_spare = False
        self.send(StartScript(self._count, source))
        return SandboxedScript(self, self._count)

    async def prepare(self, cpu_seconds: float) -> None:
        """Have the process started, and a warm worker for a script that may compute for so long.

        Raises:
            SpawnFailed: the process cannot be started.
        """
        await self._open()
        self.send(PrepareSpare(cpu_seconds))

    async def _open(self) -> None:
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._background.spawn("sandbox", self._run(self._opened))
        await asyncio.shield(self._opened)

    def send(self, request: SandboxRequest) -> None:
        """Send a request; one about a script that has ended changes nothing."""
        if self._channel is not None:
            self._channel.write(frame(request))

    async def _run(self, opened: asyncio.Future[None]) -> None:
        """Start the process, and end it with the hub."""
        self._lost.clear()
        paths = os.pathsep.join(each for each in sys.path if each)
        passed = {name: self._environment[name] for name in PASSED if name in self._environment}
        try:
            self._channel = channel = await ProcessChannel.spawn(
                [sys.executable or "python3", "-P", "-m", PROCESS],
                env={**passed, "PYTHONPATH": paths},
                cwd=None,
                on_bytes=self._on_bytes,
                on_lost=self._on_lost,
                over_sockets=True,
                own_session=False,
            )
        except BaseException as error:
            self._opened = None
            if isinstance(error, Exception):
                opened.set_exception(error)
                return
            opened.cancel()
            raise
        channel.watch_stderr(_log_stderr)
        opened.set_result(None)
        try:
            await self._lost.wait()
        finally:
            channel.kill()
            await channel.aclose(0.0)

    def _on_bytes(self, data: bytes) -> None:
        self._received += data
        while len(received := self._received) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES], "big")
            if len(received) < end:
                return
            with memoryview(received) as view:
                response: SandboxResponse = _decode(view[LENGTH_BYTES:end])
            del received[:end]
            match response:
                case SpareReady():
                    self.has_spare = True
                case ScriptStop():
                    if (host := self._hosts.get(response.script)) is not None:
                        host.stopped(response)
                case ScriptEnd():
                    if (host := self._hosts.pop(response.script, None)) is not None:
                        host.ended(response)

    def _on_lost(self, why: str) -> None:
        """The process has ended, and all scripts with it. The next script starts another one."""
        self._channel = self._opened = None
        self.has_spare = False
        self._received.clear()
        self._lost.set()
        hosts, self._hosts = self._hosts, {}
        if hosts:
            log.warning("the script process ended", reason=why, scripts=len(hosts))
        for number, host in hosts.items():
            host.ended(ScriptEnd(number, "crashed", message=f"The process of the sandbox ended: {why}"))


class SandboxedScript:
    """A script that runs in the sandbox."""

    __slots__ = ("_number", "_sandbox")

    def __init__(self, sandbox: Sandbox, number: int) -> None:
        self._sandbox = sandbox
        self._number = number

    def answer(self, call: int, answer: CallAnswer) -> None:
        """Answer a call that the script waits for."""
        if isinstance(answer, ToolFailure):
            self._sandbox.send(AnswerCall(self._number, call, failure=answer.message))
        else:
            self._sandbox.send(AnswerCall(self._number, call, answer))

    def cancel(self) -> None:
        """End the script at the next point where it waits."""
        self._sandbox.send(CancelScript(self._number))


def _log_stderr(data: bytes) -> None:
    if text := data.decode("utf-8", "replace").strip():
        log.error("the script process wrote to standard error", text=text[-STDERR_LENGTH_MAX:])
