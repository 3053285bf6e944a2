"""The bytes of a file that a configuration is in or names, whatever turns out to be there.

A path may lead to a pipe that nobody writes to or to a device that never ends: only regular files are read, and only
so much of them. What the bytes mean is not known here. Called by `config.files`, `config.variables` and `config.lines`.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# Opening a pipe would wait for a writer without it; Windows has neither the flag nor the wait.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class TooLong(ValueError):
    """A file with more in it than it may have."""


def contents_of(file: Path, limit_bytes: int) -> bytes:
    """Return what is in a regular file.

    Raises:
        OSError: it cannot be read, or is no regular file.
        TooLong: there is more in it than `limit_bytes`.
        ValueError: no file can have such a path.
    """
    with open(os.open(file, _FLAGS), "rb") as stream:
        _check_kind(os.fstat(stream.fileno()).st_mode)
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise TooLong(f"over {limit_bytes} bytes")
    return content


def _check_kind(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file")
