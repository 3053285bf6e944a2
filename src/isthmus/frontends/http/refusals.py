"""What cannot be read of a request, and how it is refused. Raised and caught around a connection's parser."""

from __future__ import annotations

from typing import NamedTuple, NoReturn
from urllib.parse import unquote

import httptools
import structlog

log = structlog.get_logger(__name__)


class Refused(Exception):
    """What arrives is not to be served; raised in parser callbacks, because that stops the parser at once."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def refuse_now(status: int, sentence: str) -> NoReturn:
    """Stop reading."""
    raise Refused(status, sentence)


def refusal_for(error: httptools.HttpParserError) -> Refused:
    """What to answer when the parser stopped: what our callback said, or that this is not HTTP."""
    cause = error.__context__
    if isinstance(cause, Refused):
        return cause
    # What was read again without its wish for another protocol fails within that wish.
    if cause is not None and not isinstance(cause, httptools.HttpParserUpgrade):
        log.error("the door failed to read a request", exc_info=cause)
    return Refused(400, "This is not a valid HTTP request.")


class Target(NamedTuple):
    """What a request is for, taken apart."""

    whole: bytes
    path: str
    raw_path: bytes
    query: bytes


NO_TARGET = Target(b"", "/", b"/", b"")


def split_target(target: bytes) -> Target:
    """Take apart what a request is for; raises what the parser stops at."""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        refuse_now(400, "The request's target is not a path.")
    raw_path = url.path or b"/"
    path = raw_path.decode("ascii")
    return Target(target, unquote(path) if "%" in path else path, raw_path, url.query or b"")
