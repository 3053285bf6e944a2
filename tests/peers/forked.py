"""Become a peer that `forking` forks: `python -S -E forked.py SOCKET SCRIPT OPTION…`.

It hands over its standard streams, its environment and its folder, waits for the peer and ends as it ends. It is
started instead of a peer because it loads next to nothing.
"""

from __future__ import annotations

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
    asking.connect(sys.argv[1])
    request = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(asking, [request], [0, 1, 2])
    os.close(0)
    os.close(1)
    code = int(asking.recv(16) or b"1")
sys.exit(code)
