"""The callers of a file: their keys, how long these are good, and what they may call.

Permissions are compiled elsewhere (`core.access`) and keys compared elsewhere (`identity.keys`). The rule
here is that a mistake never widens access: an entry with anything wrong or unknown in it is left out whole.
Called by `config.load`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import cast

from isthmus.config import codes, values
from isthmus.config.files import Document
from isthmus.config.findings import CodedError, ConfigError, Finding, Place, closest_match
from isthmus.config.variables import UsedVariables, Variables
from isthmus.core.access.policy import check_pattern, is_of_agent, is_of_label
from isthmus.core.access.tenants import NO_TENANTS, Tenants, TenantSettings
from isthmus.identity.keys import KeyTooShort, parse_key
from isthmus.identity.settings import ALGORITHMS, Algorithm, Binding, IssuerSettings
from isthmus.model.callers import FACES, Caller, Face, Grants

CALLERS = "callers"
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
    place = Place(document.file, CALLERS)
    read: list[_Entry] = []
    findings: list[Finding] = []
    entries = document.section(CALLERS)
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
    if isinstance(error, CodedError) and error.code is codes.WEAK_KEY:
        advice += f"; {codes.WEAK_KEY.mend}"
    return place.mistake(error, advice=advice, code=codes.BAD_CALLER)


def _check_keys(fields: Mapping[str, object]) -> None:
    for key in fields:
        if key not in _KEYS:
            # It may be a mistyped `deny`.
            raise ValueError(f"must have only {', '.join(_KEYS)}, not {values.quoted(key)}")


def _named(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError(f"must have a printable name, not {values.quoted(name)}")
    return name


def _tenant(fields: Mapping[str, object], tenants: Tenants) -> str:
    tenant = values.text("tenant", fields.get("tenant", DEFAULT_TENANT))
    if not tenant.strip() or not tenant.isprintable():
        raise ValueError(f"tenant must be a printable text, not {values.quoted(tenant)}")
    if tenants.known and "tenant" in fields and tenant not in tenants.known:
        # Mistyped, it would be held to nothing.
        raise ValueError(f"tenant must be one of {', '.join(tenants.known)}, not {values.quoted(tenant)}")
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
    borrowed = UsedVariables()
    key = variables.secret(place, text, borrowed)
    if borrowed.unresolved:
        # Kept literally it would be a key that everybody can read in the file.
        raise ValueError(f"{place} must have only variables that are set, not {borrowed.unresolved[0]}")
    try:
        return parse_key(key)
    except KeyTooShort as error:
        raise CodedError(codes.WEAK_KEY, f"{place}{str(error).removeprefix('key')}") from None
    except ValueError as error:
        raise ValueError(f"{place}{str(error).removeprefix('key')}") from None


def _expiry(fields: Mapping[str, object]) -> float | None:
    """When the keys of a caller cease to be good, in seconds since 1970."""
    given = fields.get("expires")
    if given is None:
        return None
    moment = _moment(given)
    if moment is None:
        raise ValueError(f"expires must be a time with its zone, like 2027-01-01T00:00:00Z, not {values.quoted(given)}")
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
        raise ValueError(f"faces must be of {', '.join(FACES)}, not {values.quoted(name)}")
    return name


def _narrowing(key: str, value: object) -> Grants:
    fields = values.table(key, value)
    for name in fields:
        if name not in _FACE_KEYS:
            raise ValueError(f"{key} must have only {', '.join(_FACE_KEYS)}, not {values.quoted(name)}")
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


TENANTS = "tenants"

_TENANT_KEYS = ("allow", "deny", "max_calls")
_NOTHING_ALLOWED = TenantSettings(Grants(()))


def read_tenants(document: Document | None) -> tuple[Tenants, tuple[Finding, ...]]:
    """Return the tenants and what was wrong with some of them."""
    if document is None or not document.dialect.has_hub:
        return NO_TENANTS, ()
    place = Place(document.file, TENANTS)
    known: dict[str, TenantSettings] = {}
    findings: list[Finding] = []
    for name, fields in document.section(TENANTS).items():
        try:
            known[name] = _read_tenant(fields)
        except ValueError as error:
            known[name] = _NOTHING_ALLOWED
            advice = "until it is mended, nobody of this tenant may call anything"
            findings.append(place.at(name).mistake(error, advice=advice, code=codes.BAD_TENANT))
    return Tenants(known), tuple(findings)


def _read_tenant(fields: object) -> TenantSettings:
    if not isinstance(fields, dict):
        raise ValueError("must be a table, not another value")
    for key in fields:
        if key not in _TENANT_KEYS:
            # It may be a mistyped `deny`.
            raise ValueError(f"must have only {', '.join(_TENANT_KEYS)}, not {values.quoted(key)}")
    most = fields.get("max_calls")
    return TenantSettings(_bounds(fields), None if most is None else values.integer("max_calls", most))


def _bounds(fields: Mapping[str, object]) -> Grants | None:
    """What is not said of `allow` is not held against anybody; an empty list is."""
    if "allow" not in fields and "deny" not in fields:
        return None
    allow = patterns("allow", fields) if "allow" in fields else ("*",)
    return Grants(allow, patterns("deny", fields))


ISSUERS = "issuers"

_ISSUER_KEYS = (
    "issuer",
    "audience",
    "jwks",
    "token_url",
    "algorithms",
    "leeway",
    "tenant",
    "tenant_claim",
    "name_claim",
    "allow",
    "deny",
    "scopes",
    "dpop",
)


def read_issuers(
    document: Document | None, public_url: str | None, tenants: Tenants = NO_TENANTS
) -> tuple[tuple[IssuerSettings, ...], tuple[Finding, ...]]:
    """Return the issuers of a file and what was wrong with the others.

    Raises:
        ConfigError: issuers are configured and none of them is usable. Going on could leave the hub open to all.
    """
    if document is None or not document.dialect.has_hub:
        return (), ()
    place = Place(document.file, ISSUERS)
    entries = document.section(ISSUERS)
    issuers: dict[str, IssuerSettings] = {}
    findings: list[Finding] = []
    for name, fields in entries.items():
        try:
            settings = _read_issuer(name, fields, public_url)
            _check_is_new(settings, issuers)
            _check_tenant(settings, tenants, is_said=isinstance(fields, dict) and "tenant" in fields)
            _check_has_own_names(settings, document.section(CALLERS))
            issuers[settings.issuer] = settings
            findings += _idle_issuer(settings, place.at(name))
        except ValueError as error:
            left_out = "this issuer is left out"
            findings.append(place.at(name).mistake(error, advice=left_out, code=codes.BAD_ISSUER))
    if entries and not issuers:
        told = "are configured but none is usable, and the hub must not be open"
        raise ConfigError(*findings, place.finding(told, code=codes.BAD_ISSUER))
    return tuple(issuers.values()), tuple(findings)


def _read_issuer(name: str, fields: object, public_url: str | None) -> IssuerSettings:
    if not isinstance(fields, dict):
        raise ValueError("must be a table, not another value")
    for key in fields:
        if key not in _ISSUER_KEYS:
            # It may be a mistyped `deny` or `audience`.
            raise ValueError(f"must have only {', '.join(_ISSUER_KEYS)}, not {values.quoted(key)}")
    return IssuerSettings(
        name=name,
        issuer=_text("issuer", fields) or "",
        audience=_audience(fields.get("audience"), public_url),
        jwks=_text("jwks", fields),
        token_url=_text("token_url", fields),
        algorithms=_algorithms(fields),
        leeway=values.number("leeway", fields.get("leeway", 30.0)),
        tenant=_printable("tenant", _text("tenant", fields) or DEFAULT_TENANT),
        tenant_claim=_text("tenant_claim", fields),
        name_claim=_text("name_claim", fields) or "sub",
        grants=Grants(patterns("allow", fields), patterns("deny", fields)),
        scopes=_scopes(fields),
        dpop=cast("Binding", _text("dpop", fields) or "optional"),
    )


def _text(key: str, fields: Mapping[str, object]) -> str | None:
    return None if fields.get(key) is None else values.text(key, fields[key])


def _printable(key: str, text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"{key} must be a printable text, not {values.quoted(text)}")
    return text


def _audience(given: object, public_url: str | None) -> tuple[str, ...]:
    """Whom tokens must be made for: where the hub is, if nobody says otherwise and that is known."""
    if given is None:
        if public_url is None:
            raise ValueError("audience must be given where the hub has no public_url, not left out")
        base = public_url.rstrip("/")
        return base, f"{base}/", f"{base}/mcp"
    return values.texts("audience", given) if isinstance(given, list) else (values.text("audience", given),)


def _algorithms(fields: Mapping[str, object]) -> tuple[Algorithm, ...]:
    if fields.get("algorithms") is None:
        return ALGORITHMS
    # Whether these are any is for the settings to say.
    return cast("tuple[Algorithm, ...]", values.texts("algorithms", fields["algorithms"]))


def _scopes(fields: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    table = values.table("scopes", fields.get("scopes", {}))
    read: dict[str, tuple[str, ...]] = {}
    for scope in table:
        try:
            read[scope] = patterns(scope, table)
        except ValueError as error:
            raise ValueError(f"scopes.{error}") from error
    return read


def _check_is_new(settings: IssuerSettings, others: Mapping[str, IssuerSettings]) -> None:
    if (other := others.get(settings.issuer)) is not None:
        raise ValueError(f"issuer must be another than that of {other.name}, not {settings.issuer!r} too")


def _check_tenant(settings: IssuerSettings, tenants: Tenants, *, is_said: bool) -> None:
    """As for callers: mistyped, it would be one of which nobody may do anything."""
    if is_said and tenants.known and settings.tenant not in tenants.known:
        raise ValueError(f"tenant must be one of {', '.join(tenants.known)}, not {values.quoted(settings.tenant)}")


def _check_has_own_names(settings: IssuerSettings, callers: Iterable[str]) -> None:
    """Who comes by it is called like it, a slash and who they are: nobody else may be, or own what they do."""
    for name in callers:
        if name.startswith(f"{settings.name}/"):
            raise ValueError(f"must have another name than the caller {values.quoted(name)} begins with")


def _idle_issuer(settings: IssuerSettings, place: Place) -> list[Finding]:
    if settings.grants.allow or settings.scopes:
        return []
    advice = 'allow = ["*"] would allow everything, scopes say it scope by scope'
    return [place.finding("lets nobody call anything", advice=advice, code=codes.MAY_CALL_NOTHING)]


_LISTS = ("allow", "deny")


def misspelt_grants(document: Document | None, servers: Collection[str]) -> list[Finding]:
    """Tell of patterns whose server is probably another one of these."""
    if document is None or not document.dialect.has_hub:
        return []
    return [
        place.finding(
            "must name a server that is configured",
            value=repr(pattern),
            advice=f"did you mean {meant}?",
            code=codes.UNKNOWN_SERVER,
        )
        for place, pattern in _patterns(document)
        if (meant := _meant_server(pattern, servers)) is not None
    ]


def _meant_server(pattern: str, servers: Collection[str]) -> str | None:
    server, dot, name = pattern.partition(".")
    if not server or "*" in server or is_of_label(pattern) or is_of_agent(pattern) or server in servers:
        return None
    found = closest_match(server, servers)
    return None if found is None else f"{found}{dot}{name}"


def _patterns(document: Document) -> Iterator[tuple[Place, str]]:
    """Every text where a pattern stands, whatever else may be wrong with its entry."""
    for root in (CALLERS, TENANTS, ISSUERS):
        for name, fields in document.section(root).items():
            place = Place(document.file, root).at(name)
            yield from _patterns_below(place, fields, _LISTS)
            if isinstance(fields, dict):
                yield from _patterns_below(place.at("scopes"), fields.get("scopes"), None)
                for face, narrowed in _members_of(fields.get("faces")):
                    yield from _patterns_below(place.at("faces", face), narrowed, _LISTS)


def _patterns_below(place: Place, fields: object, keys: Collection[str] | None) -> Iterator[tuple[Place, str]]:
    """The texts in the lists of a table: in those of these keys, or in all of them."""
    for key, values in _members_of(fields):
        if (keys is None or key in keys) and isinstance(values, list):
            yield from ((place.at(key, at), each) for at, each in enumerate(values) if isinstance(each, str))


def _members_of(fields: object) -> Iterator[tuple[str, object]]:
    return iter(fields.items()) if isinstance(fields, dict) else iter(())
