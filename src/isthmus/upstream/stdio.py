"""A link to a server that the hub starts as a child process; one line per message on its standard streams."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.transport.process import ProcessChannel, SpawnFailed, child_environment
from isthmus.upstream.duplex import DuplexLink
from isthmus.upstream.link import ConnectFailed
from isthmus.upstream.settings import StdioSettings
from isthmus.wire import lines
from isthmus.wire.lines import Oversized
from isthmus.wire.mcp.messages import Implementation

LAST_WORDS_LENGTH = 600
"""How much of a lost process's standard error the operator sees: the end of a traceback."""


class StdioLink(DuplexLink):
    """One child process. Many requests share its pipe; responses are matched by id."""

    carrier = "stdio"
    start_seconds = 60.0

    def __init__(self, server: ServerName, me: Implementation, limits: Limits) -> None:
        super().__init__(server, me, limits)
        self._decoder = lines.LineDecoder(limits.reply_bytes)
        self._process: ProcessChannel | None = None

    async def start(self, reach: StdioSettings, parent: Mapping[str, str], program: str | None = None) -> None:
        """Start the process, from `program` if that file was checked. Raises `ConnectFailed`."""
        try:
            self._process = await ProcessChannel.spawn(
                [reach.command, *reach.args],
                env=child_environment(reach.env, parent),
                cwd=reach.cwd,
                program=program,
                on_bytes=self._received,
                on_lost=self._on_broken,
                on_drained=self.flush,
                limits=reach.limits,
            )
        except SpawnFailed as failed:
            raise ConnectFailed(str(failed)) from failed
        self._channel = self._process

    @property
    def pid(self) -> int | None:
        """The process id."""
        return None if self._process is None else self._process.pid

    @property
    def last_output(self) -> str | None:
        """The end of the process's standard error."""
        tail = "" if self._process is None else self._process.stderr_tail.strip()
        return tail[-LAST_WORDS_LENGTH:] or None

    def _frame(self, message: bytes) -> bytes:
        return lines.frame(message)

    def _received(self, chunk: bytes) -> None:
        for line in self._decoder.feed(chunk):
            if isinstance(line, Oversized):
                self._fail(f"it sent a line of over {line.limit_bytes} bytes")
                return
            self.read(line)
