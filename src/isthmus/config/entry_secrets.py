"""Which texts of an entry are secrets, and how to remove them from messages.

Values of variables are known to be secrets (`config.variables`); this module recognizes literal ones by their names. In
doubt it hides. Called by `config.entries_to_settings`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from urllib.parse import unquote

from isthmus.config import values
from isthmus.config.findings import Finding
from isthmus.upstream.server_settings import SECRET_LENGTH_MIN

_SECRET_NAME = re.compile(
    r"key|token|secret|passw|passphrase|credential|auth|cookie|dsn|connection_?string"
    # `PWD` alone is the working folder, and `compass` or `pattern` are ordinary words.
    r"|(?:^|[_.-])(?:pass|pat)(?:$|[_.-])|[_.-]pwd|(?-i:[a-z](?:Pass|Pwd|Pat)(?![a-z]))",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"\$\{[^{}]*\}")
# Each part has a maximum, since an entry may be long and is scanned at every start.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]{0,200}:(?!\d{1,5}(?:[/?#]|$))\S{0,1000}@\S*")
_PASSWORD = re.compile(r"://[^:@]*:([^@]+)@")
_PASSWORD_TO_LAST = re.compile(r"://[^:@]*:(.+)@")
_SETTING = re.compile(r"(?:passw(?:or)?d|pwd|accountkey|secret)\s*=\s*[\"']?([^;\s&\"']+)", re.IGNORECASE)


def secrets_of(fields: dict[str, object]) -> set[str]:
    """Return the literal secrets of a server entry, valid or not."""
    named = [*_pairs(fields.get("headers")), *_pairs(fields.get("env"))]
    named += [*_query(fields.get("url")), *_query(fields.get("rpc")), *_query(fields.get("agent"))]
    logins = [*_deep(fields.get("oauth")), *_deep(fields.get("callers"))]
    named += [(name, value) for name, value in logins if not name.endswith("_endpoint")]
    named += _options(fields.get("args"))
    defaults = fields.get("defaults")
    named += [
        pair for arguments in (defaults.values() if isinstance(defaults, dict) else ()) for pair in _pairs(arguments)
    ]
    secrets = {value for name, value in named if value and _SECRET_NAME.search(name)}
    texts = [text for key in ("env", "headers") for _, text in _pairs(fields.get(key))] + _words(fields.get("args"))
    secrets |= {secret for text in texts for secret in _within(text)}
    # In `Bearer abc`, the token alone is a secret too.
    secrets |= {value.split()[-1] for value in secrets if value.strip()}
    # An unresolved placeholder is not a secret: the operator must see its name.
    return {value for value in secrets if _PLACEHOLDER.fullmatch(value) is None}


def with_parts(secrets: Set[str]) -> set[str]:
    """Return secrets, and the passwords in addresses among them: a server may print one without the other."""
    return {*secrets, *(part for secret in secrets for part in _within(secret))}


def _within(text: str) -> Iterator[str]:
    """Yield the passwords in an address or a connection string, and the addresses themselves."""
    for address in _ADDRESS.findall(text):
        yield address
        # An `@` that is not escaped may be part of the password.
        for found in (_PASSWORD.search(address), _PASSWORD_TO_LAST.search(address)):
            yield from (found[1], unquote(found[1])) if found else ()
    yield from _SETTING.findall(text)


def _pairs(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield from ((str(name), text) for name, item in value.items() if (text := _word(item)))


def _deep(value: object) -> Iterator[tuple[str, str]]:
    """Yield the pairs of nested tables."""
    yield from _pairs(value)
    for inner in value.values() if isinstance(value, dict) else ():
        yield from _deep(inner)


def _words(value: object) -> list[str]:
    return [_word(item) for item in value] if isinstance(value, list) else []


def _word(value: object) -> str:
    """Return a value as text, empty if it cannot be a secret."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    try:
        return values.word("", value)
    except ValueError:
        return ""


def _query(url: object) -> Iterator[tuple[str, str]]:
    if isinstance(url, str):
        for part in url.partition("?")[2].partition("#")[0].split("&"):
            name, _, value = part.partition("=")
            yield name, value


def _options(args: object) -> Iterator[tuple[str, str]]:
    """Yield `--name=value` and `NAME=value`, `--name value` over two arguments, and `Name: value` of a header."""
    texts = _words(args)
    for text, following in zip(texts, [*texts[1:], ""], strict=False):
        name, mark, value = text.partition("=")
        yield name, value if mark else following if text.startswith("-") else ""
        header, _, line = text.partition(":")
        yield header, line.strip()


def any_secret(value: object) -> bool:
    """Whether a value contains something under the name of a secret, at any depth."""
    if isinstance(value, dict):
        # A short number is probably a count, such as of tokens.
        named = [
            name
            for name, inner in value.items()
            if len(_word(inner)) >= (1 if isinstance(inner, str) else SECRET_LENGTH_MIN)
        ]
        return any(_SECRET_NAME.search(str(name)) for name in named) or any(map(any_secret, value.values()))
    if isinstance(value, list):
        return any(any_secret(inner) for inner in value)
    return isinstance(value, str) and any(True for _ in _within(value))


def plain_secrets(value: object, path: str = "") -> Iterator[str]:
    """Yield the paths of secrets that are not references such as `env:NAME`; a secret is known by its name."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        below = f"{path}.{name}" if path else str(name)
        texts = inner if isinstance(inner, list) else [inner]
        is_named = _SECRET_NAME.search(str(name)) and any(isinstance(text, str) and _is_literal(text) for text in texts)
        if is_named or (name == "args" and any(map(_is_literal, secrets_of({"args": inner})))):
            yield below
        else:
            yield from plain_secrets(inner, below)


def _is_literal(text: str) -> bool:
    return not text.startswith(("env:", "file:", "sha256:")) and _PLACEHOLDER.search(text) is None and "://" not in text


def without(secrets: Set[str], finding: Finding) -> Finding:
    """Return a finding with these secrets replaced by `***`."""
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
