"""The callers of a file: their keys, how long these are good, and what they may call.

Permissions are compiled elsewhere (`core.access`) and keys compared elsewhere (`identity.keys`). The rule
here is that a mistake never widens access: an entry with anything wrong or unknown in it is left out whole.
Called by `config.load`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime

from isthmus.config import codes, values
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding, Mistake, Place
from isthmus.config.variables import Borrowed, Variables
from isthmus.core.access.policy import check_pattern
from isthmus.core.access.tenants import NO_TENANTS, Tenants
from isthmus.identity.keys import KeyTooShort, parse_key
from isthmus.model.callers import FACES, Caller, Face, Grants

ROOT = "callers"
DEFAULT_TENANT = "default"

_KEYS = ("key", "expires", "allow", "deny", "tenant", "targets", "operator", "faces")
_FACE_KEYS = ("allow", "deny")

KnownCaller = tuple[bytes, Caller]
"""The digest of a key, and whose it is."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One caller of a file; it may have several keys, so that one can take another's place."""

    digests: tuple[bytes, ...]
    caller: Caller
    expires_at: float | None


def read_callers(
    document: Document, variables: Variables, tenants: Tenants = NO_TENANTS
) -> tuple[tuple[KnownCaller, ...], dict[bytes, float], tuple[Finding, ...]]:
    """Return the callers of a file by their keys, when keys of these expire, and what was wrong with the others.

    Each is held to what its tenant is.

    Raises:
        ConfigError: callers are configured and none of them is usable. Going on would leave the hub open to
            all.
    """
    place = Place(document.file, ROOT)
    read: list[_Entry] = []
    findings: list[Finding] = []
    entries = document.section(ROOT)
    for name, fields in entries.items():
        entry, told = _read_caller(name, fields, place.at(name), variables, tenants)
        findings += told
        read += [entry] if entry else []
    read, told = _with_own_keys(read, place)
    findings += told
    if entries and not read:
        told_of_none = "are configured but none is usable, and the hub must not be open"
        raise ConfigError(*findings, place.finding(told_of_none, code=codes.NO_USABLE_CALLER))
    callers = tuple((digest, entry.caller) for entry in read for digest in entry.digests)
    expiries = {digest: entry.expires_at for entry in read for digest in entry.digests if entry.expires_at is not None}
    return callers, expiries, tuple(findings)


def _read_caller(
    name: str, fields: object, place: Place, variables: Variables, tenants: Tenants
) -> tuple[_Entry | None, list[Finding]]:
    try:
        if not isinstance(fields, dict):
            raise ValueError("must be a table, not another value")
        _check_keys(fields)
        digests = _digests(fields, variables)
        may_name = values.flag("targets", fields.get("targets", False))
        tenant = _tenant(fields, tenants)
        is_operator = values.flag("operator", fields.get("operator", False))
        made = Caller(_named(name), tenant, _grants(fields), may_name, faces=_faces(fields), is_operator=is_operator)
        caller = tenants.bound(made)
        return _Entry(digests, caller, _expiry(fields)), _idle(fields, place)
    except ValueError as error:
        return None, [_left_out(error, place)]


def _left_out(error: ValueError, place: Place) -> Finding:
    advice = "this caller is left out"
    if isinstance(error, Mistake) and error.code is codes.WEAK_KEY:
        advice += f"; {codes.WEAK_KEY.mend}"
    return place.mistake(error, advice=advice, code=codes.BAD_CALLER)


def _check_keys(fields: Mapping[str, object]) -> None:
    for key in fields:
        if key not in _KEYS:
            # It may be a mistyped `deny`.
            raise ValueError(f"must have only {', '.join(_KEYS)}, not {values.shown(key)}")


def _named(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError(f"must have a printable name, not {values.shown(name)}")
    return name


def _tenant(fields: Mapping[str, object], tenants: Tenants) -> str:
    tenant = values.text("tenant", fields.get("tenant", DEFAULT_TENANT))
    if not tenant.strip() or not tenant.isprintable():
        raise ValueError(f"tenant must be a printable text, not {values.shown(tenant)}")
    if tenants.known and "tenant" in fields and tenant not in tenants.known:
        # Mistyped, it would be held to nothing.
        raise ValueError(f"tenant must be one of {', '.join(tenants.known)}, not {values.shown(tenant)}")
    return tenant


def _digests(fields: Mapping[str, object], variables: Variables) -> tuple[bytes, ...]:
    """The digests of all keys of a caller; one that is written twice is one."""
    given = fields.get("key")
    if given is None:
        raise ValueError("key must be given, not left out")
    if given == []:
        raise ValueError("key must be a text or a list of texts, not empty")
    keys = values.texts("key", given) if isinstance(given, list) else (values.text("key", given),)
    places = [f"key.{position}" for position in range(len(keys))] if isinstance(given, list) else ["key"]
    return tuple(dict.fromkeys(_digest(place, key, variables) for place, key in zip(places, keys, strict=True)))


def _digest(place: str, text: str, variables: Variables) -> bytes:
    borrowed = Borrowed()
    key = variables.secret(place, text, borrowed)
    if borrowed.unresolved:
        # Kept literally it would be a key that everybody can read in the file.
        raise ValueError(f"{place} must have only variables that are set, not {borrowed.unresolved[0]}")
    try:
        return parse_key(key)
    except KeyTooShort as error:
        raise Mistake(codes.WEAK_KEY, f"{place}{str(error).removeprefix('key')}") from None
    except ValueError as error:
        raise ValueError(f"{place}{str(error).removeprefix('key')}") from None


def _expiry(fields: Mapping[str, object]) -> float | None:
    """When the keys of a caller cease to be good, in seconds since 1970."""
    given = fields.get("expires")
    if given is None:
        return None
    moment = _moment(given)
    if moment is None:
        raise ValueError(f"expires must be a time with its zone, like 2027-01-01T00:00:00Z, not {values.shown(given)}")
    return moment.timestamp()


def _moment(given: object) -> datetime | None:
    """A time that is the same everywhere: a day begins at midnight UTC, any other has to say its zone."""
    if isinstance(given, str):
        try:
            given = datetime.fromisoformat(given) if len(given) > len("2027-01-01") else date.fromisoformat(given)
        except ValueError:
            return None
    if isinstance(given, date) and not isinstance(given, datetime):
        return datetime(given.year, given.month, given.day, tzinfo=UTC)
    return given if isinstance(given, datetime) and given.tzinfo is not None else None


def _grants(fields: Mapping[str, object]) -> Grants:
    return Grants(allow=patterns("allow", fields), deny=patterns("deny", fields))


def _faces(fields: Mapping[str, object]) -> tuple[tuple[Face, Grants], ...]:
    """What a caller is held to on single faces; what is not said of `allow` there is as it is everywhere."""
    given = values.table("faces", fields.get("faces", {}))
    return tuple((_face(name), _narrowing(f"faces.{name}", value)) for name, value in given.items())


def _face(name: str) -> Face:
    if name not in FACES:
        raise ValueError(f"faces must be of {', '.join(FACES)}, not {values.shown(name)}")
    return name


def _narrowing(key: str, value: object) -> Grants:
    fields = values.table(key, value)
    for name in fields:
        if name not in _FACE_KEYS:
            raise ValueError(f"{key} must have only {', '.join(_FACE_KEYS)}, not {values.shown(name)}")
    named = {f"{key}.{name}": given for name, given in fields.items()}
    allow = patterns(f"{key}.allow", named) if "allow" in fields else ("*",)
    return Grants(allow, patterns(f"{key}.deny", named))


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
    if fields.get("allow") or fields.get("targets") or fields.get("operator"):
        return []
    advice = 'allow = ["*"] would allow everything'
    return [place.finding("may call nothing", advice=advice, code=codes.MAY_CALL_NOTHING)]


def _with_own_keys(read: list[_Entry], place: Place) -> tuple[list[_Entry], list[Finding]]:
    """Leave out all callers of a shared key: nobody can say which of them is calling."""
    uses = Counter(digest for entry in read for digest in entry.digests)
    shared = [entry.caller.name for entry in read if any(uses[digest] > 1 for digest in entry.digests)]
    advice = "these callers are left out"
    text = f"have the same key: {', '.join(shared)}"
    told = [place.finding(text, advice=advice, code=codes.SHARED_KEY)] if shared else []
    return [entry for entry in read if entry.caller.name not in shared], told
