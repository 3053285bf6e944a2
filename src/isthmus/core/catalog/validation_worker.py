"""The worker process that validates arguments for the hub: `python -m isthmus.core.catalog.validation_worker`.

A request on stdin is a line with the lengths of schema and arguments, `{"schema": 12, "arguments": 34}`, followed by
both. The response on stdout is a line: `null` if the arguments are valid or the schema cannot be used, otherwise a
string that says what is wrong. `app.validation` starts the process and kills it if a response takes too long.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import BinaryIO

import msgspec

from isthmus.core.catalog.argument_validation import ArgumentCheck, UnusableSchema, compile_check

NICENESS = 10
"""Ordinary calls come first."""

SCHEMAS_KEPT = 64


class Lengths(msgspec.Struct):
    """The first line of a request."""

    schema: int
    arguments: int


@lru_cache(SCHEMAS_KEPT)
def _check_for(schema: bytes) -> ArgumentCheck | None:
    try:
        return compile_check(msgspec.Raw(schema), limit_bytes=len(schema), budget=None)
    except UnusableSchema:
        return None  # the server still checks


def answer(schema: bytes, arguments: bytes) -> bytes:
    """The response line of one request."""
    check = _check_for(schema)
    return msgspec.json.encode(None if check is None else check(msgspec.Raw(arguments))) + b"\n"


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the input ends."""
    while line := requests.readline():
        lengths = msgspec.json.decode(line, type=Lengths)
        answers.write(answer(requests.read(lengths.schema), requests.read(lengths.arguments)))
        answers.flush()


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    serve(sys.stdin.buffer, sys.stdout.buffer)
