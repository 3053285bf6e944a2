"""A paced caller in a process of its own: `python paced_caller.py PORT PID`.

It calls `builtin.echo` again and again, at its own pace, on one connection. For each line on its standard input it
writes a line with the seconds that each call took since the line before, and how many of them the process PID could
have run and the machine ran something else.

`python paced_caller.py control` is a process that answers such calls at once and does nothing else. It writes its port.
Another paced caller that calls it shows how long calls take because the machine is busy.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

PACE_SECONDS = 0.005
BODY = b'{"text":"hi"}'
REQUEST = (
    b"POST /v1/tools/builtin.echo HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


def delay(pid: str) -> float:
    """The seconds that the main thread of a process has waited for a processor so far."""
    with open(f"/proc/{pid}/task/{pid}/schedstat", "rb") as file:
        return int(file.read().split()[1]) / 1e9


def ask(connection: socket.socket, pid: str) -> tuple[float, float]:
    """Call once and return how long it took, and for how long of it the process waited for a processor."""
    waited, begun = delay(pid), time.perf_counter()
    connection.sendall(REQUEST)
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536)
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    took = time.perf_counter() - begun
    assert head.startswith(b"HTTP/1.1 200 "), head
    assert b'"hi"' in body, body
    return took, delay(pid) - waited


def control() -> None:
    """Answer calls on one connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while connection.recv(65536):
        connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"hi"')


def main() -> None:
    """Call until the input ends."""
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waits: list[tuple[float, float]] = []
    while True:
        waits.append(ask(connection, sys.argv[2]))
        if select.select([sys.stdin], [], [], PACE_SECONDS)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps(waits), flush=True)
            waits = []


if __name__ == "__main__":
    control() if sys.argv[1] == "control" else main()
