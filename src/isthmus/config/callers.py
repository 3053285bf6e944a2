"""The callers of a file: their keys and what they may call.

Permissions are compiled elsewhere (`core.access`) and keys compared elsewhere (`identity.keys`). The rule
here is that a mistake never widens access: an entry with anything wrong or unknown in it is left out whole.
Called by `config.load`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from isthmus.config import codes, values
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.variables import Borrowed, Variables
from isthmus.core.access.policy import check_pattern
from isthmus.identity.keys import parse_key, weakness_of
from isthmus.model.callers import Caller, Grants

ROOT = "callers"
DEFAULT_TENANT = "default"

_KEYS = ("key", "allow", "deny", "tenant", "targets")

KnownCaller = tuple[bytes, Caller]
"""The digest of a key, and whose it is."""


def read_callers(
    document: Document, variables: Variables, *, is_loopback: bool
) -> tuple[tuple[KnownCaller, ...], tuple[Finding, ...]]:
    """Return the callers of a file and what was wrong with the others.

    Raises:
        ConfigError: callers are configured and none of them is usable. Going on would leave the hub open to
            all.
    """
    place = Place(document.file, ROOT)
    callers: list[KnownCaller] = []
    findings: list[Finding] = []
    entries = document.section(ROOT)
    for name, fields in entries.items():
        caller, told = _read_caller(name, fields, place.at(name), variables, is_loopback=is_loopback)
        findings += told
        callers += [caller] if caller else []
    callers, told = _with_own_keys(callers, place)
    findings += told
    if entries and not callers:
        told_of_none = "are configured but none is usable, and the hub must not be open"
        raise ConfigError(*findings, place.finding(told_of_none, code=codes.NO_USABLE_CALLER))
    return tuple(callers), tuple(findings)


def _read_caller(
    name: str, fields: object, place: Place, variables: Variables, *, is_loopback: bool
) -> tuple[KnownCaller | None, list[Finding]]:
    findings: list[Finding] = []
    try:
        if not isinstance(fields, dict):
            raise ValueError("must be a table, not another value")
        _check_keys(fields)
        key = _key(fields, variables)
        findings += _weakness(key, place, is_loopback=is_loopback)
        may_name = values.flag("targets", fields.get("targets", False))
        caller = Caller(_named(name), _tenant(fields), _grants(fields), may_name)
        findings += _idle(fields, place)
        return (parse_key(key), caller), findings
    except ValueError as error:
        return None, [*findings, place.mistake(error, advice="this caller is left out", code=codes.BAD_CALLER)]


def _check_keys(fields: Mapping[str, object]) -> None:
    for key in fields:
        if key not in _KEYS:
            # It may be a mistyped `deny`.
            raise ValueError(f"must have only {', '.join(_KEYS)}, not {values.shown(key)}")


def _named(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError(f"must have a printable name, not {values.shown(name)}")
    return name


def _tenant(fields: Mapping[str, object]) -> str:
    tenant = values.text("tenant", fields.get("tenant", DEFAULT_TENANT))
    if not tenant.strip() or not tenant.isprintable():
        raise ValueError(f"tenant must be a printable text, not {values.shown(tenant)}")
    return tenant


def _key(fields: Mapping[str, object], variables: Variables) -> str:
    if fields.get("key") is None:
        raise ValueError("key must be given, not left out")
    borrowed = Borrowed()
    key = variables.secret("key", values.text("key", fields["key"]), borrowed)
    if borrowed.unresolved:
        # Kept literally it would be a key that everybody can read in the file.
        raise ValueError(f"key must have only variables that are set, not {borrowed.unresolved[0]}")
    parse_key(key)
    return key


def _weakness(key: str, place: Place, *, is_loopback: bool) -> list[Finding]:
    weakness = weakness_of(key)
    if weakness is None:
        return []
    advice = "make one with: openssl rand -hex 32"
    if not is_loopback:
        raise ValueError(f"key must be strong where others can reach the hub, not weak: it {weakness}; {advice}")
    return [place.at("key").finding(f"{weakness}; it will do only on loopback", advice=advice, code=codes.WEAK_KEY)]


def _grants(fields: Mapping[str, object]) -> Grants:
    return Grants(allow=patterns("allow", fields), deny=patterns("deny", fields))


def patterns(key: str, fields: Mapping[str, object]) -> tuple[str, ...]:
    """Return a list of grants.

    Raises:
        ValueError: one is malformed.
    """
    read = values.texts(key, fields.get(key, []))
    for position, pattern in enumerate(read):
        try:
            check_pattern(pattern)
        except ValueError as error:
            raise ValueError(f"{key}.{position} must {str(error).partition(' must ')[2]}") from error
    return read


def _idle(fields: Mapping[str, object], place: Place) -> list[Finding]:
    if fields.get("allow") or fields.get("targets"):
        return []
    advice = 'allow = ["*"] would allow everything'
    return [place.finding("may call nothing", advice=advice, code=codes.MAY_CALL_NOTHING)]


def _with_own_keys(callers: list[KnownCaller], place: Place) -> tuple[list[KnownCaller], list[Finding]]:
    """Leave out all callers of a shared key: nobody can say which of them is calling."""
    uses = Counter(digest for digest, _ in callers)
    shared = [caller.name for digest, caller in callers if uses[digest] > 1]
    advice = "these callers are left out"
    text = f"have the same key: {', '.join(shared)}"
    told = [place.finding(text, advice=advice, code=codes.SHARED_KEY)] if shared else []
    return [known for known in callers if uses[known[0]] == 1], told
