"""What is wrong with a configuration, in sentences that its author can act on.

A `Finding` names the file, the path in it and the value; code that makes one leaves secrets out, so it is safe to
print. A broken entry is skipped and leaves a finding; `ConfigError` refuses the whole file. All of `config` makes
findings, and the command line prints them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from isthmus.config.finding_codes import BAD_VALUE, UNKNOWN_KEY, FindingCode

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem; `str()` is the sentence for people."""

    file: Path | None
    path: str
    value: str
    """The value as a message may quote it; empty if it is absent or must stay hidden."""
    message: str
    advice: str = ""
    code: FindingCode = BAD_VALUE

    @property
    def fix(self) -> str:
        """What to do: the advice of this finding, else that of its code."""
        return self.advice or self.code.fix

    @property
    def problem(self) -> str:
        """The sentence without the advice."""
        where = f"{self.file.name}: " if self.file else ""
        subject = f"{self.path} " if self.path else ""
        value = f", not {self.value}" if self.value else ""
        return f"{where}{subject}{self.message}{value}"

    def __str__(self) -> str:
        return f"{self.problem} ({self.advice})" if self.advice else self.problem


class ConfigError(Exception):
    """A configuration that cannot be used at all."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


class CodedError(ValueError):
    """A rejected value whose finding has a code of its own; its text reads like that of every such error."""

    def __init__(self, code: FindingCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class UnknownKey(ValueError):
    """A rejected key of a table, and the known key that it probably means."""

    def __init__(self, text: str, meant: str | None) -> None:
        super().__init__(text)
        self.meant = meant


@dataclass(frozen=True, slots=True)
class Place:
    """A path in a file; it makes the findings about it."""

    file: Path | None
    path: str = ""

    def at(self, *keys: str | int) -> Place:
        """Return the place of a key below this one."""
        steps = [self.path] if self.path else []
        # Each key is written as TOML would write it.
        steps += [
            key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
            for key in (str(key) for key in keys)
        ]
        return Place(self.file, ".".join(steps))

    def finding(self, message: str, *, value: str = "", advice: str = "", code: FindingCode = BAD_VALUE) -> Finding:
        """Return a finding about this place."""
        return Finding(self.file, self.path, value, message, advice, code)

    def unknown(self, key: str, known: Iterable[str], *, code: FindingCode = UNKNOWN_KEY) -> Finding:
        """Return a finding about an unknown key below this place."""
        meant = closest_match(key, known)
        advice = f"did you mean {meant}?" if meant else ""
        return self.at(key).finding("is not known and has no effect", advice=advice, code=code)

    def mistake(self, error: ValueError, *, advice: str = "", code: FindingCode = BAD_VALUE) -> Finding:
        """Return a finding about a value at or below this place that a check rejected.

        Such errors read "<key> must <rule>, not <value>", or begin with "must" or "needs" if the place itself is wrong.
        Every settings class and `config.values` keep to that. A `CodedError` has its own code, and an `UnknownKey` its
        own advice.
        """
        if isinstance(error, UnknownKey) and error.meant is not None:
            advice = f"did you mean {error.meant}? {advice[:1].upper()}{advice[1:]}".rstrip()
        code = error.code if isinstance(error, CodedError) else code
        if str(error).startswith("needs "):
            return self.finding(str(error), advice=advice, code=code)
        key, _, rest = f" {error}".partition(" must ")
        rule, _, value = rest.partition(", not ")
        path = ".".join(part for part in (self.path, key.strip()) if part)
        return Finding(self.file, path, value, f"must {rule}", advice, code)


def fix_of(error: ValueError, fixes: Iterable[tuple[str, str]], consequence: str = "") -> str:
    """Return what to write instead, by the first text that is in the error, and what happens until then."""
    is_known = isinstance(error, UnknownKey) and error.meant is not None
    fix = "" if is_known else next((fix for part, fix in fixes if part in str(error)), "")
    if not consequence:
        return fix
    return f"{fix}; until then {consequence}" if fix else f"until it is fixed, {consequence}"


def closest_match(key: str, known: Iterable[str]) -> str | None:
    """Return the known key that a mistyped one probably means."""
    matches = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.7)
    return matches[0] if matches else None
