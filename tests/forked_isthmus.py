"""Become an `isthmus` that `fork_server` forks: `python -S -E forked_isthmus.py SOCKET WORD…`.

It hands over its standard streams, its environment and its folder, passes signals on, waits and ends as the command
ends. Pages and scripts start it instead of the real command, because it loads next to nothing.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH)

early: list[int] = []
for number in PASSED_ON:
    signal.signal(number, lambda number, _: early.append(number))
asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking.connect(sys.argv[1])
request = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(asking, [request], [2, 0, 1])
os.close(0)
os.close(1)
pid = int(asking.recv(16) or b"0")
if not pid:
    sys.exit("the process that forks has ended")


def pass_on(number: int, _: object) -> None:
    try:  # noqa: SIM105 (contextlib would be the only thing that is loaded for it)
        os.kill(pid, number)
    except ProcessLookupError:  # it has ended, and how comes next
        pass


for number in PASSED_ON:
    signal.signal(number, pass_on)
for each in early:
    pass_on(each, None)
code = int(asking.recv(16) or b"1")
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
