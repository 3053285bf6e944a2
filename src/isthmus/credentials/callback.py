"""Where a browser comes back to after a login: one request on this machine's own address, and no more (RFC 8252)."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import parse_qsl, urlsplit

HOST = "127.0.0.1"
PATH = "/callback"
HEAD_BYTES_MAX = 16 * 1024
HEAD_SECONDS = 5.0

_PAGE = b"You may close this page and go back.\n"
_ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff\r\n"
    b"cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
    % (len(_PAGE), _PAGE)
)
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Callback:
    """Listens until somebody has come back; whoever opens it closes it."""

    def __init__(self, state: str) -> None:
        """`state` is what only whoever was sent to log in can know; nobody else is listened to."""
        self._state = state.encode()
        self._server: asyncio.Server | None = None
        self._answer: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self.port = 0

    @property
    def address(self) -> str:
        """What an authorization server is told."""
        return f"http://{HOST}:{self.port}{PATH}"

    async def open(self, port: int) -> None:
        """Listen on a port, or on a free one. Raises `OSError` if it is taken."""
        self._server = await asyncio.start_server(self._serve, HOST, port, limit=HEAD_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]

    async def answer(self, within: float) -> Mapping[str, str]:
        """What came back. Raises `TimeoutError`."""
        async with asyncio.timeout(within):
            return await self._answer

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    def _mine(self, answer: Mapping[str, str] | None) -> Mapping[str, str] | None:
        is_mine = answer is not None and hmac.compare_digest(answer["state"].encode(), self._state)
        return answer if is_mine else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                answer = self._mine(_read(head))
                writer.write(_NOT_FOUND if answer is None else _ANSWER)
                await writer.drain()
            if answer is not None and not self._answer.done():
                self._answer.set_result(answer)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it was no browser, or has left
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _read(head: bytes) -> Mapping[str, str] | None:
    """The fields of a request to the one place that there is; None for any other."""
    verb, _, rest = head.partition(b"\r\n")[0].partition(b" ")
    target, _, version = rest.partition(b" ")
    if verb != b"GET" or not version.startswith(b"HTTP/1."):
        return None
    parts = urlsplit(target.decode("latin-1"))
    fields = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=50) if parts.path == PATH else []
    if len({name for name, _ in fields}) != len(fields):
        return None  # said twice, it would be two answers
    return dict(fields) if "state" in dict(fields) else None
