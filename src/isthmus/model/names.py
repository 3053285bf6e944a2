"""Names of servers and tools inside the hub.

A tool's identity is the pair (server, tool), never one string. How a pair is shown on a surface (dotted, flattened for
a language model, bare) is decided by the catalog's tables. Server names from outside, chiefly from `config`, are parsed
once here and passed on as the checked type.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import NewType

ServerName = NewType("ServerName", str)
"""A server's name, checked by `parse_server_name`."""

FeatureName = NewType("FeatureName", str)
"""A server's own name for something it offers: a tool's or prompt's name (which may contain dots), a resource's URI, a
template of URIs."""

SERVER_NAME_LENGTH_MAX = 50

_SERVER_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{SERVER_NAME_LENGTH_MAX}}}")
_NOT_IN_SERVER_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_DIGITS = 6


def parse_server_name(text: str) -> ServerName:
    """Return `text` as a server's name.

    Raises:
        ValueError: it is not valid; because names contain no dot, `server.tool` splits at the first dot.
    """
    if _SERVER_NAME.fullmatch(text) is None:
        raise ValueError(f"a server name must be 1 to 50 of A-Z a-z 0-9 _ - (no dot), not {text!r}")
    return ServerName(text)


def legal_server_name(text: str) -> ServerName:
    """The name of a server that calls itself `text`: `My files` becomes `My-files`, `Café` becomes `Cafe`.

    A name that loses letters or its end gets digits of the whole text, because the rest may be meaningless or equal to
    others. `天气` becomes `server-` and digits, each time the same, whatever other servers there are.
    """
    if _SERVER_NAME.fullmatch(text) is not None:
        return ServerName(text)
    stem = _stem(text)
    is_whole = bool(stem) and len(stem) <= SERVER_NAME_LENGTH_MAX and not loses_letters(text)
    return ServerName(stem) if is_whole else server_name_with_digits(text)


def server_name_with_digits(text: str, *, stem: str | None = None) -> ServerName:
    """A legal name that ends in the digits of `text`.

    It begins with `stem`, or else with the legal letters of `text`.
    """
    stem = (_stem(text) if stem is None else stem)[: SERVER_NAME_LENGTH_MAX - _DIGITS - 1].rstrip("-") or "server"
    return ServerName(f"{stem}-{digits_of(text)[:_DIGITS]}")


def _stem(text: str) -> str:
    return _NOT_IN_SERVER_NAMES.sub("-", without_accents(text)).strip("-")


def without_accents(text: str) -> str:
    """`text` with plain letters instead of accented or wide ones."""
    if text.isascii():
        return text
    return "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))


def loses_letters(text: str) -> bool:
    """Whether `text` has letters or digits that ASCII does not have, even without accents."""
    return not text.isascii() and any(accent.isalnum() and not accent.isascii() for accent in without_accents(text))


def digits_of(*parts: str) -> str:
    """Hex digits that distinguish these texts from others, the same in every process."""
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, which a command of one request does without

    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def name_filter(pattern: str) -> Callable[[str], bool]:
    """Whether a text has the form of `pattern`, in which `*` stands for any characters. It takes linear time."""
    first, *rest = pattern.split("*")
    if not rest:
        return lambda text: text == pattern
    *middle, last = rest

    def fits(text: str) -> bool:
        at, end = len(first), len(text) - len(last)
        if not text.startswith(first) or not text.endswith(last) or at > end:
            return False
        for part in middle:
            found = text.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True

    return fits
