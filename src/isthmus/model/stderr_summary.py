"""The line of a program's standard error that says most about why the program ended.

A traceback of Python ends with the error, but other programs go on after it: Node.js with its version, npm with the
place of its log, uv with a hint. The log and the command line have room for one line.
"""

from __future__ import annotations

import re
from typing import Final

_ERROR: Final = re.compile(
    r"[\w.]*(?:Error|Exception)(?: \[\w+\])?:|(?:[\w./-]+: )?(?:error|fatal|panic)(?:\[\w+\])?:"
    r"|docker: Error |Exception in thread |╰─▶ ",
    re.IGNORECASE,
)
_NPM: Final = re.compile(r"npm (?:error|ERR!) (?!code |errno |A complete log |$)", re.IGNORECASE)
_NOISE: Final = re.compile(r"Node\.js v\d|note: |hint: |help: |See '|For more information|npm (?:error|ERR!)|[\W_]*$")


def telling_line(output: str) -> str:
    """The line that says most about why a program ended: its last error, else its last line; empty if it has none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # npm explains the error in the lines after the first.
    for line in lines:
        if _NPM.match(line):
            return line
    for line in reversed(lines):
        if _ERROR.match(line):
            return line.removeprefix("╰─▶ ")
    return next((line for line in reversed(lines) if not _NOISE.match(line)), lines[-1] if lines else "")
