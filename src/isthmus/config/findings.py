"""What is wrong with a configuration, said so that its author can mend it.

A `Finding` names the file, the path in it and the value, and is harmless to print: whoever makes one leaves
secrets out. Entries that are broken cost only themselves and leave a finding; `ConfigError` is for what
refuses the whole file. Every module of this room makes findings; the command line prints them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from isthmus.config.codes import BAD_VALUE, UNKNOWN_KEY, FindingCode

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend; `str()` is the sentence for people."""

    file: Path | None
    path: str
    value: str
    """The value as it may be shown; empty if there is none or it must stay hidden."""
    message: str
    advice: str = ""
    code: FindingCode = BAD_VALUE

    @property
    def fix(self) -> str:
        """What to do: the advice on this very spot, or else what helps with this kind of finding."""
        return self.advice or self.code.fix

    def __str__(self) -> str:
        where = f"{self.file.name}: " if self.file else ""
        subject = f"{self.path} " if self.path else ""
        value = f", not {self.value}" if self.value else ""
        advice = f" ({self.advice})" if self.advice else ""
        return f"{where}{subject}{self.message}{value}{advice}"


class ConfigError(Exception):
    """A configuration that cannot be used at all."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = findings


class CodedError(ValueError):
    """A refused value that has a kind of its own; its text reads like that of every such error."""

    def __init__(self, code: FindingCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Place:
    """A spot in a file, from which findings are made."""

    file: Path | None
    path: str = ""

    def at(self, *keys: str | int) -> Place:
        """Return the place below this one."""
        steps = [self.path] if self.path else []
        steps += [_step(key) for key in keys]
        return Place(self.file, ".".join(steps))

    def finding(self, message: str, *, value: str = "", advice: str = "", code: FindingCode = BAD_VALUE) -> Finding:
        """Say something of this place."""
        return Finding(self.file, self.path, value, message, advice, code)

    def unknown(self, key: str, known: Iterable[str], *, code: FindingCode = UNKNOWN_KEY) -> Finding:
        """Tell of a key below this place that nobody reads."""
        meant = closest_match(key, known)
        advice = f"did you mean {meant}?" if meant else ""
        return self.at(key).finding("is not known and has no effect", advice=advice, code=code)

    def mistake(self, error: ValueError, *, advice: str = "", code: FindingCode = BAD_VALUE) -> Finding:
        """Tell of a value at or below this place that a check refused.

        Such errors read "<key> must <rule>, not <value>", or begin with "must" when the place itself is
        wrong; that is the contract of every settings class and of `config.values`. A `CodedError` has its own code.
        """
        key, _, rest = f" {error}".partition(" must ")
        rule, _, value = rest.partition(", not ")
        path = ".".join(part for part in (self.path, key.strip()) if part)
        kind = error.code if isinstance(error, CodedError) else code
        return Finding(self.file, path, value, f"must {rule}", advice, kind)


def closest_match(key: str, known: Iterable[str]) -> str | None:
    """Return the known key that a mistyped one was probably meant to be."""
    matches = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.7)
    return matches[0] if matches else None


def _step(key: str | int) -> str:
    """Write one key of a path as TOML would."""
    text = str(key)
    return text if _BARE_KEY.fullmatch(text) else json.dumps(text, ensure_ascii=False)
