"""What the clients beside this file have in common: JSON-RPC over HTTP, answers whole or as a stream of events.

Only the standard library, so that each client shows its generation of A2A as it is on the wire.
"""

import http.client
import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

HUB = "http://127.0.0.1:8765"
SECONDS = 60

ids = itertools.count(1)


def hub_address() -> str:
    """The hub's address: the first argument of the program, if there is one."""
    url = sys.argv[1] if len(sys.argv) > 1 else HUB
    if not url.startswith("http://"):
        raise SystemExit(f"usage: python3 {sys.argv[0]} [http://HOST:PORT]")
    return url


def get(url: str, path: str) -> Any:
    """A document of the hub."""
    with closing(_connection(url)) as connection:
        connection.request("GET", path)
        return json.load(connection.getresponse())


def ask(url: str, method: str, params: dict, **headers: str) -> Any:
    """The result of a request; an error ends the program with what it says."""
    with closing(_connection(url)) as connection:
        _post(connection, method, params, headers)
        return _result(json.load(connection.getresponse()))


def follow(url: str, method: str, params: dict, **headers: str) -> Iterator[Any]:
    """What a stream tells, each as soon as it is told."""
    with closing(_connection(url)) as connection:
        _post(connection, method, params, {"Accept": "text/event-stream", **headers})
        for line in connection.getresponse():
            if line.startswith(b"data:"):
                yield _result(json.loads(line[5:]))


def _connection(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)


def _post(connection: http.client.HTTPConnection, method: str, params: dict, headers: dict) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": next(ids), "method": method, "params": params})
    connection.request("POST", "/a2a", body, {"Content-Type": "application/json", **headers})


def _result(answer: dict) -> Any:
    if "error" in answer:
        raise SystemExit(f"the hub says: {answer['error']['message']}")
    return answer.get("result", answer)  # AgentVault's events are no answers, but what they tell
