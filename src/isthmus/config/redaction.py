"""Which texts of an entry are secrets, and how to speak without them.

Values borrowed from variables are known to be secrets (`config.variables`); this is about the literal ones,
found by the names they go under. It errs towards hiding. Called by `config.servers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace

from isthmus.config.findings import Finding
from isthmus.upstream.settings import SECRET_LENGTH_MIN

_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\$\{[^{}]*\}")


def secrets_of(fields: dict[str, object]) -> set[str]:
    """Return the literal secrets of a server entry, whatever shape it is in."""
    named = [*_pairs(fields.get("headers")), *_pairs(fields.get("env"))]
    named += [*_query(fields.get("url")), *_query(fields.get("rpc")), *_options(fields.get("args"))]
    defaults = fields.get("defaults")
    named += [
        pair for arguments in (defaults.values() if isinstance(defaults, dict) else ()) for pair in _pairs(arguments)
    ]
    secrets = {str(value) for name, value in named if value and _SECRET_NAME.search(name)}
    # Of `Bearer abc` the token alone is secret as well, however it is quoted elsewhere.
    secrets |= {value.split()[-1] for value in secrets if value.strip()}
    # A variable that could not be replaced is no secret, and whoever has to set it must see its name.
    return {value for value in secrets if _PLACEHOLDER.fullmatch(value) is None}


def _pairs(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield from ((name, text) for name, text in value.items() if isinstance(text, str))


def _query(url: object) -> Iterator[tuple[str, str]]:
    if isinstance(url, str):
        for part in url.partition("?")[2].partition("#")[0].split("&"):
            name, _, value = part.partition("=")
            yield name, value


def _options(args: object) -> Iterator[tuple[str, str]]:
    """Yield `--name=value` and `NAME=value`, `--name value` over two arguments, and `Name: value` of a header."""
    texts = [text for text in args if isinstance(text, str)] if isinstance(args, list) else []
    for text, following in zip(texts, [*texts[1:], ""], strict=False):
        name, mark, value = text.partition("=")
        yield name, value if mark else following if text.startswith("-") else ""
        header, _, line = text.partition(":")
        yield header, line.strip()


def any_secret(value: object) -> bool:
    """Tell whether anything in a value goes under the name of a secret, however deep."""
    if isinstance(value, dict):
        return any(_is_secret(name, inner) or any_secret(inner) for name, inner in value.items())
    return isinstance(value, list) and any(any_secret(inner) for inner in value)


def _is_secret(name: object, value: object) -> bool:
    return isinstance(value, str) and bool(value) and bool(_SECRET_NAME.search(str(name)))


def without(secrets: Set[str], finding: Finding) -> Finding:
    """Return a finding with these secrets blanked out."""
    return replace(
        finding,
        value=_blanked(finding.value, secrets),
        message=_blanked(finding.message, secrets),
        advice=_blanked(finding.advice, secrets),
    )


def _blanked(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_LENGTH_MIN:
            text = text.replace(secret, "***")
    return text
