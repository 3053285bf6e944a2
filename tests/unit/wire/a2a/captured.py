"""Recorded messages of real programs in `captured.json`: requests of clients, and answers of agents.

`sdk-1.3.0` and `sdk-0.3.26` are a2a-sdk of these versions, `agentvault-0.2.1` and `agentvault-1.0.0` the clients of
that name, `samples-0.1` the client and server that were published with A2A 0.1. Requests (`rpc`, `rest`) were taken
from the packages' own transports, each method called once with all that it can say, over an HTTP transport that kept
what it was given. Answers are those of the packages' servers, behind which an agent says a message, reports, makes an
artifact of four parts, asks and ends. Ids drawn at random are replaced by `r1` (requests) and `id-N` (answers).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import Raw

from isthmus.wire import jsonrpc

_ALL: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())


def request(package: str, name: str) -> jsonrpc.Request:
    """A client's request."""
    message = jsonrpc.decode(_ALL[package]["rpc"][name].encode())
    assert isinstance(message, jsonrpc.Request)
    return message


def requests(package: str) -> dict[str, jsonrpc.Request]:
    """All of a client's requests."""
    return {name: request(package, name) for name in _ALL[package]["rpc"]}


def rest(package: str, name: str) -> tuple[str, str, str, bytes]:
    """A client's request over plain HTTP: verb, path, query and body."""
    verb, target, body = _ALL[package]["rest"][name]
    path, _, query = target.partition("?")
    return verb, path, query, body.encode()


def result(package: str, name: str) -> Raw:
    """The result that a server answered with."""
    return _result(_ALL[package]["answers"][name])


def stream(package: str, name: str) -> list[Raw]:
    """The results of a server's stream."""
    return [_result(item) for item in _ALL[package]["answers"][name]]


def _result(text: str) -> Raw:
    message = jsonrpc.decode(text.encode())
    assert isinstance(message, jsonrpc.Response)
    return message.result


def error(package: str, name: str) -> jsonrpc.ErrorReply:
    """The error that a server answered with."""
    message = jsonrpc.decode(_ALL[package]["answers"][name].encode())
    assert isinstance(message, jsonrpc.ErrorReply)
    return message


def event(package: str, name: str) -> Any:
    """The data of an event."""
    return _ALL[package][name]
