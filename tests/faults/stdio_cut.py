"""A wrapper that stands between the hub and a stdio server, and cuts the pipes after so many bytes.

`python stdio_cut.py [--after N --direction up|down] [--how kill|close] [--arm FILE] -- COMMAND…`

`kill` ends the server by SIGKILL, and itself with it; `close` closes the pipe of that direction and leaves the server
running. With `--arm` the cut is not counted from the start: whenever FILE appears it is taken away and what it says
(`{"after": N, "direction": …, "how": …}`, written by `arm`) holds from the next byte on, once. It passes everything
else through unchanged, and needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
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
    """Pumps bytes between this process's pipes and the server's until either side ends or is cut."""

    def __init__(self, server: list[str], cut: Cut | None, order: str | None) -> None:
        self._cut = cut
        self._order = order
        # The same process group: whoever ends the wrapper by its group ends the server as well.
        self._server = subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._ways: dict[int, tuple[Direction, int]] = {
            0: ("up", self._server.stdin.fileno()),
            self._server.stdout.fileno(): ("down", 1),
        }

    def run(self) -> int:
        """Pump to the end; the server's exit status is ours."""
        while self._ways:
            ready, _, _ = select.select([*self._ways], [], [])
            for source in ready:
                self._pump(source)
            if all(way == "up" for way, _ in self._ways.values()):
                break  # the server will say nothing more
        return self._server.wait()

    def _pump(self, source: int) -> None:
        data = os.read(source, CHUNK_BYTES)
        way, target = self._ways[source]
        self._take_order()
        if not data:
            self._close(source)
            return
        cut = self._cut
        if cut is None or cut.direction != way:
            _write(target, data)
            return
        _write(target, data[: cut.after])
        cut.after -= len(data)
        if cut.after <= 0:
            self._cut = None
            self._make(cut, source)

    def _take_order(self) -> None:
        """Arm what the order file says; taking it away is what makes it hold once."""
        if self._order is not None:
            with suppress(FileNotFoundError):
                mine = f"{self._order}.{os.getpid()}"
                Path(self._order).rename(mine)
                self._cut = Cut(**json.loads(Path(mine).read_text()))
                Path(mine).unlink()

    def _make(self, cut: Cut, source: int) -> None:
        if cut.how == "close":
            self._close(source)
            return
        self._server.kill()
        self._server.wait()
        os.kill(os.getpid(), signal.SIGKILL)

    def _close(self, source: int) -> None:
        _, target = self._ways.pop(source)
        os.close(target)


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
