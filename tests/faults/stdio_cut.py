"""A wrapper that stands between the hub and a stdio server, and cuts the pipes after so many bytes.

`python stdio_cut.py [--after N --direction up|down] [--how kill|close] [--arm FILE] -- COMMAND…`

`kill` ends the server by SIGKILL, and itself with it; `close` closes the pipe of that direction and leaves
the server running. With `--arm` nothing is counted from the start: whenever FILE appears it is taken away,
and what it says (`{"after": N, "direction": …, "how": …}`, written by `arm`) holds from the next byte on,
once. Everything else passes unchanged. It needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Direction = Literal["up", "down"]
How = Literal["kill", "close"]

CHUNK_BYTES = 64 * 1024


@dataclass(slots=True)
class Cut:
    """How many bytes may still pass, which way, and what happens then."""

    after: int
    direction: Direction
    how: How


def command(server: list[str], *options: str) -> list[str]:
    """The words that start `server` behind this wrapper."""
    return [sys.executable, str(Path(__file__).resolve()), *options, "--", *server]


def arm(path: Path, after: int, direction: Direction, how: How = "kill") -> None:
    """Tell a wrapper that was started with `--arm PATH` to cut once, `after` bytes from now."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"after": after, "direction": direction, "how": how}))
    draft.replace(path)


class Wrapper:
    """Pumps bytes between this process's pipes and the server's until the server has nothing more to say."""

    def __init__(self, server: list[str], cut: Cut | None, order: str | None) -> None:
        self._cut = cut
        self._order = order
        self._lock = threading.Lock()
        # The same process group: ending the wrapper's group ends the server as well.
        self._server = subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def run(self) -> int:
        """Pump to the end; the server's exit status is ours.

        A thread each way: with one, a server that writes before it has read everything would stand still.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        up = threading.Thread(target=self._pump, args=("up", 0, self._server.stdin.fileno()), daemon=True)
        up.start()
        self._pump("down", self._server.stdout.fileno(), 1)
        return self._server.wait()

    def _pump(self, way: Direction, source: int, target: int) -> None:
        while data := os.read(source, CHUNK_BYTES):
            allowed, how = self._allow(way, len(data))
            _write(target, data[:allowed])
            if how == "kill":
                self._kill()
            elif how == "close":
                # The rest goes nowhere; it must still be read, or its writer would stand still.
                os.close(target)
                target = os.open(os.devnull, os.O_WRONLY)
        os.close(target)

    def _allow(self, way: Direction, size: int) -> tuple[int, How | None]:
        """How many of the next `size` bytes pass, and what happens after them, if anything does."""
        with self._lock:
            self._take_order()
            cut = self._cut
            if cut is None or cut.direction != way:
                return size, None
            allowed = min(size, cut.after)
            cut.after -= allowed
            if cut.after:
                return allowed, None
            self._cut = None
            return allowed, cut.how

    def _take_order(self) -> None:
        """Arm what the order file says; taking it away is what makes it hold once."""
        if self._order is not None:
            with suppress(FileNotFoundError):
                mine = Path(f"{self._order}.{os.getpid()}")
                Path(self._order).rename(mine)
                self._cut = Cut(**json.loads(mine.read_text()))
                mine.unlink()

    def _kill(self) -> None:
        self._server.kill()
        self._server.wait()
        os.kill(os.getpid(), signal.SIGKILL)


def _write(target: int, data: bytes) -> None:
    rest = memoryview(data)
    with suppress(BrokenPipeError):  # the reader has left, and its end is seen where it is read from
        while rest:
            rest = rest[os.write(target, rest) :]


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--after", type=int)
    parser.add_argument("--direction", choices=("up", "down"), default="down")
    parser.add_argument("--how", choices=("kill", "close"), default="kill")
    parser.add_argument("--arm")
    parser.add_argument("server", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    cut = None if given.after is None else Cut(given.after, given.direction, given.how)
    server = given.server[1:] if given.server[:1] == ["--"] else given.server
    return Wrapper(server, cut, given.arm).run()


if __name__ == "__main__":
    sys.exit(main())
