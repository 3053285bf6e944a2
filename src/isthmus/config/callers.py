"""Read who may call: `[callers]`, `[tenants]` and `[issuers]`.

A mistake must never widen access: an entry with a wrong or unknown key is skipped whole, and a broken tenant may call
nothing. Permissions are compiled by `core.access`, keys are compared by `identity.keys`, tokens are checked by
`identity.jwt_callers`. Called by `config.load`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, get_type_hints

from isthmus.config import finding_codes, values
from isthmus.config.files import ParsedFile
from isthmus.config.findings import CodedError, ConfigError, Finding, Place, closest_match
from isthmus.config.variables import UsedVariables, Variables
from isthmus.core.access.policy import check_pattern, is_of_agent, is_of_label
from isthmus.core.access.tenants import NO_TENANTS, Tenants, TenantSettings
from isthmus.core.calls.result_cuts import check_result_limit
from isthmus.identity.keys import KeyTooShort, parse_key
from isthmus.identity.settings import IssuerSettings
from isthmus.model.callers import FRONTENDS, Caller, Exposure, FrontendName, Grants

CALLERS = "callers"
TENANTS = "tenants"
ISSUERS = "issuers"
SETS = "sets"
FLEETS = "fleets"
APPROVALS = "approvals"
BUDGETS = "budgets"
DEFAULT_TENANT = "default"

CALLER_KEYS: Mapping[str, str] = {
    "key": "Key that the caller sends, of 16 characters or more: literal, `env:NAME`, `file:PATH` or `sha256:HEX`; or a"
    " list of these, to replace one key by another without an interruption.",
    "expires": "When its keys stop working: a time with its zone, such as `2027-01-01T00:00:00Z`, or a day, which"
    " begins at midnight UTC. Never if not set.",
    "allow": 'What it may see and call: `"*"` is everything, `"server.*"` all of a server, `"server.tool"` one tool,'
    " prompt or resource. See [Permissions](permissions.md).",
    "deny": "What it may not see and call, whatever `allow` says.",
    "tenant": "The tenant that it belongs to; `default` if not set. Links, cached results and tasks are separate.",
    "targets": "Whether it may name servers that are not configured, at addresses that `[targets]` allows. Of such a"
    " server it may call everything.",
    "set": "The only [set](sets.md) that it sees, on every frontend; `allow` and `deny` still apply.",
    "expose": "Which tools it lists, as in `[hub]`; what its set or the hub says if not set.",
    "max_result_bytes": "Larger results are [cut](budgets.md#large-results), as in `[hub]`; what its set, the server or"
    " the hub says if not set.",
    "operator": "Whether it sees the state, the logs and the figures of every server, what every caller can reach, and"
    " the audit log over REST, and may restart, enable and disable servers, and forget those of the relay.",
    "frontends": "Restrictions on single frontends. See [Permissions](permissions.md).",
}
"""The keys of `[callers.NAME]`, with their sentence in the reference."""

_FRONTEND_KEYS = ("allow", "deny")
_TENANT_KEYS = ("allow", "deny", "max_calls")
_ISSUER_TYPES = {key: hint for key, hint in get_type_hints(IssuerSettings).items() if key not in ("name", "grants")}
_ISSUER_KEYS = (*_ISSUER_TYPES, "allow", "deny", "set")
_ISSUER_CODED = ("audience", "algorithms", "tenant", "scopes")
"""Keys that are read with code of their own; the others by the types of their fields."""
_DENY_TENANT = TenantSettings(Grants(()))

KnownCaller = tuple[bytes, Caller]
"""The digest of a key, and its caller."""


def patterns(key: str, fields: Mapping[str, object]) -> tuple[str, ...]:
    """Return a list of permissions.

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


def _tenant(fields: Mapping[str, object], tenants: Tenants) -> str:
    if "tenant" not in fields:
        return DEFAULT_TENANT
    tenant = values.text("tenant", fields["tenant"])
    if not tenant.strip() or not tenant.isprintable():
        raise ValueError(f"tenant must be a printable text, not {values.quoted(tenant)}")
    if tenants.known and tenant not in tenants.known:
        # A mistyped tenant would have no restrictions.
        raise ValueError(f"tenant must be one of {', '.join(tenants.known)}, not {values.quoted(tenant)}")
    return tenant


def _set_name(fields: Mapping[str, object]) -> str | None:
    """Return the set that a caller is bound to; an empty name would mean none, and is rejected."""
    if fields.get("set") is None:
        return None
    if not (name := values.text("set", fields["set"])):
        raise ValueError("set must be the name of a set, not empty")
    return name


def exposure(fields: Mapping[str, object]) -> Exposure | None:
    """Return which tools a caller or a set lists; None if the entry does not say.

    Raises:
        ValueError: there is no such exposure.
    """
    if (given := fields.get("expose")) is None:
        return None
    read: Exposure = values.typed("expose", Exposure, given)
    return read


def result_limit(fields: Mapping[str, object]) -> int | None:
    """Return the longest result of a caller or a set; None if the entry does not say.

    Raises:
        ValueError: it is too short.
    """
    if (given := fields.get("max_result_bytes")) is None:
        return None
    limit = values.integer("max_result_bytes", given)
    check_result_limit(limit)
    return limit


# -- [callers] -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _CallerEntry:
    """One caller of a file; it may have several keys."""

    digests: tuple[bytes, ...]
    caller: Caller
    expires_at: float | None


def read_callers(
    document: ParsedFile, variables: Variables, tenants: Tenants = NO_TENANTS
) -> tuple[tuple[KnownCaller, ...], dict[bytes, float], tuple[Finding, ...]]:
    """Return the callers of a file by the digests of their keys, when these expire, and findings.

    Each caller has the restrictions of its tenant.

    Raises:
        ConfigError: callers are configured and none is usable. Continuing would leave the hub open to all.
    """
    root = Place(document.file, CALLERS)
    read: list[_CallerEntry] = []
    findings: list[Finding] = []
    entries = document.section(CALLERS)
    for name, fields in entries.items():
        place = root.at(name)
        try:
            if isinstance(fields, dict) and "faces" in fields:
                raise ValueError("faces must be renamed to frontends")
            read.append(_read_caller(name, values.table("", fields, CALLER_KEYS), variables, tenants))
        except ValueError as error:
            advice = "this caller is left out"
            if isinstance(error, CodedError) and error.code is finding_codes.WEAK_KEY:
                advice += f"; {finding_codes.WEAK_KEY.fix}"
            findings.append(place.mistake(error, advice=advice, code=finding_codes.BAD_CALLER))
            continue
        assert isinstance(fields, dict)
        if not (fields.get("allow") or fields.get("targets") or fields.get("operator")):
            advice = 'allow = ["*"] would allow everything'
            findings.append(place.finding("may call nothing", advice=advice, code=finding_codes.MAY_CALL_NOTHING))
    # Callers that share a key cannot be distinguished, so all of them are left out.
    uses = Counter(digest for entry in read for digest in entry.digests)
    shared = [entry.caller.name for entry in read if any(uses[digest] > 1 for digest in entry.digests)]
    if shared:
        message = f"have the same key: {', '.join(shared)}"
        findings.append(root.finding(message, advice="these callers are left out", code=finding_codes.SHARED_KEY))
        read = [entry for entry in read if entry.caller.name not in shared]
    if entries and not read:
        message = "are configured but none is usable, and the hub must not be open"
        raise ConfigError(*findings, root.finding(message, code=finding_codes.NO_USABLE_CALLER))
    callers = tuple((digest, entry.caller) for entry in read for digest in entry.digests)
    expiries = {digest: entry.expires_at for entry in read for digest in entry.digests if entry.expires_at is not None}
    return callers, expiries, tuple(findings)


def _read_caller(name: str, fields: Mapping[str, object], variables: Variables, tenants: Tenants) -> _CallerEntry:
    digests = _digests(fields, variables)
    may_use_targets = values.flag("targets", fields.get("targets", False))
    tenant = _tenant(fields, tenants)
    is_operator = values.flag("operator", fields.get("operator", False))
    grants = Grants(patterns("allow", fields), patterns("deny", fields), set=_set_name(fields), expose=exposure(fields))
    if may_use_targets and grants.set is not None:
        raise ValueError("targets must be false for a caller of a set, not true")
    frontends = tuple(
        _frontend_grants(frontend, given)
        for frontend, given in values.table("frontends", fields.get("frontends", {})).items()
    )
    caller = Caller(
        parse_caller_name(name),
        tenant,
        grants,
        may_use_targets,
        frontends=frontends,
        is_operator=is_operator,
        max_result_bytes=result_limit(fields),
    )
    return _CallerEntry(digests, tenants.bound(caller), _expiry(fields.get("expires")))


def parse_caller_name(name: str) -> str:
    """Return a name.

    Raises:
        ValueError: it is empty, or has characters that cannot be printed.
    """
    if not name.strip() or not name.isprintable():
        raise ValueError(f"must have a printable name, not {values.quoted(name)}")
    return name


def _digests(fields: Mapping[str, object], variables: Variables) -> tuple[bytes, ...]:
    """Return the digests of a caller's keys, each once."""
    given = fields.get("key")
    if given is None:
        raise ValueError("key must be given, not left out")
    if given == []:
        raise ValueError("key must be a text or a list of texts, not empty")
    if isinstance(given, list):
        keys = {f"key.{position}": key for position, key in enumerate(values.texts("key", given))}
    else:
        keys = {"key": values.text("key", given)}
    digests: list[bytes] = []
    for place, text in keys.items():
        used = UsedVariables()
        key = variables.secret(place, text, used)
        if used.unresolved:
            # The literal placeholder would be a key that everybody can read in the file.
            raise ValueError(f"{place} must have only variables that are set, not {used.unresolved[0]}")
        try:
            digests.append(parse_key(key))
        except KeyTooShort as error:
            raise CodedError(finding_codes.WEAK_KEY, f"{place}{str(error).removeprefix('key')}") from None
        except ValueError as error:
            raise ValueError(f"{place}{str(error).removeprefix('key')}") from None
    return tuple(dict.fromkeys(digests))


def _expiry(given: object) -> float | None:
    """Return when keys expire, in seconds since 1970; a time without its zone is ambiguous and rejected."""
    if given is None:
        return None
    moment = given
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment) if len(moment) > len("2027-01-01") else date.fromisoformat(moment)
        except ValueError:
            moment = None
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        found = values.quoted(given)
        raise ValueError(f"expires must be a time with its zone, like 2027-01-01T00:00:00Z, not {found}")
    return moment.timestamp()


def _frontend_grants(name: str, value: object) -> tuple[FrontendName, Grants]:
    """Return the restrictions of a caller on one frontend; without `allow` there, everything it may do elsewhere."""
    if name not in FRONTENDS:
        raise ValueError(f"frontends must be of {', '.join(FRONTENDS)}, not {values.quoted(name)}")
    fields = values.table(f"frontends.{name}", value, _FRONTEND_KEYS)
    with values.below(f"frontends.{name}"):
        return name, Grants(patterns("allow", {"allow": ["*"], **fields}), patterns("deny", fields))


# -- [tenants] -----------------------------------------------------------------------------------------------


def read_tenants(document: ParsedFile | None) -> tuple[Tenants, tuple[Finding, ...]]:
    """Return the tenants with findings; a broken one may call nothing."""
    if document is None or not document.dialect.has_hub:
        return NO_TENANTS, ()
    place = Place(document.file, TENANTS)
    known: dict[str, TenantSettings] = {}
    findings: list[Finding] = []
    for name, entry in document.section(TENANTS).items():
        try:
            fields = values.table("", entry, _TENANT_KEYS)
            bounds = None
            # Without both keys the tenant has no restrictions; an empty list is one.
            if "allow" in fields or "deny" in fields:
                bounds = Grants(patterns("allow", {"allow": ["*"], **fields}), patterns("deny", fields))
            most = fields.get("max_calls")
            known[name] = TenantSettings(bounds, None if most is None else values.integer("max_calls", most))
        except ValueError as error:
            known[name] = _DENY_TENANT
            advice = "until it is fixed, callers of this tenant may call nothing"
            findings.append(place.at(name).mistake(error, advice=advice, code=finding_codes.BAD_TENANT))
    return Tenants(known), tuple(findings)


# -- [issuers] -----------------------------------------------------------------------------------------------


def read_issuers(
    document: ParsedFile | None, public_url: str | None, tenants: Tenants = NO_TENANTS
) -> tuple[tuple[IssuerSettings, ...], tuple[Finding, ...]]:
    """Return the issuers of a file, with findings about the others.

    Raises:
        ConfigError: issuers are configured and none is usable. Continuing could leave the hub open to all.
    """
    if document is None or not document.dialect.has_hub:
        return (), ()
    place = Place(document.file, ISSUERS)
    entries = document.section(ISSUERS)
    issuers: dict[str, IssuerSettings] = {}
    findings: list[Finding] = []
    for name, entry in entries.items():
        try:
            settings = _read_issuer(name, values.table("", entry, _ISSUER_KEYS), public_url, tenants)
            if (other := issuers.get(settings.issuer)) is not None:
                raise ValueError(f"issuer must be another than that of {other.name}, not {settings.issuer!r} too")
            for caller in document.section(CALLERS):
                # Callers with a token are named ISSUER/SUBJECT; no configured caller may have such a name.
                if caller.startswith(f"{name}/"):
                    raise ValueError(f"must have another name: it conflicts with the caller {values.quoted(caller)}")
        except ValueError as error:
            advice = "this issuer is left out"
            findings.append(place.at(name).mistake(error, advice=advice, code=finding_codes.BAD_ISSUER))
            continue
        issuers[settings.issuer] = settings
        if not (settings.grants.allow or settings.scopes):
            advice = 'allow = ["*"] would allow everything, scopes allow it scope by scope'
            finding = place.at(name).finding("allows no calls", advice=advice, code=finding_codes.MAY_CALL_NOTHING)
            findings.append(finding)
    if entries and not issuers:
        message = "are configured but none is usable, and the hub must not be open"
        raise ConfigError(*findings, place.finding(message, code=finding_codes.BAD_ISSUER))
    return tuple(issuers.values()), tuple(findings)


def _read_issuer(name: str, fields: Mapping[str, object], public_url: str | None, tenants: Tenants) -> IssuerSettings:
    given = {key: value for key, value in fields.items() if value is not None}
    read: dict[str, Any] = {
        key: values.typed(key, hint, given[key])
        for key, hint in _ISSUER_TYPES.items()
        if key in given and key not in _ISSUER_CODED
    }
    if "algorithms" in given:  # the settings check whether these are algorithms
        read["algorithms"] = values.texts("algorithms", given["algorithms"])
    audience = given.get("audience")
    if audience is not None:
        listed = isinstance(audience, list)
        read["audience"] = values.texts("audience", audience) if listed else (values.text("audience", audience),)
    elif public_url is None:
        raise ValueError("audience must be given where the hub has no public_url, not left out")
    else:  # the addresses of the hub
        base = public_url.rstrip("/")
        read["audience"] = (base, f"{base}/", f"{base}/mcp")
    table = values.table("scopes", fields.get("scopes", {}))
    with values.below("scopes"):
        read["scopes"] = {scope: patterns(scope, table) for scope in table}
    read["tenant"] = _tenant({"tenant": fields["tenant"]} if fields.get("tenant") else {}, tenants)
    read["grants"] = Grants(patterns("allow", fields), patterns("deny", fields), set=_set_name(fields))
    return IssuerSettings(**{"issuer": "", **read}, name=name)


# -- permissions that name an unknown server -----------------------------------------------------------------


def misspelt_grants(document: ParsedFile | None, servers: Collection[str]) -> list[Finding]:
    """Return findings about patterns whose server is unknown and is probably one of `servers`.

    A mistyped `deny` denies nothing, unnoticed. It is only a warning: a server that dials in may have
    any name.
    """
    if document is None or not document.dialect.has_hub:
        return []
    findings: list[Finding] = []
    for place, pattern in _all_patterns(document):
        if (meant := meant_pattern(pattern, servers)) is not None:
            finding = place.finding(
                "must name a server that is configured",
                value=repr(pattern),
                advice=f"did you mean {meant}?",
                code=finding_codes.UNKNOWN_SERVER,
            )
            findings.append(finding)
    return findings


def meant_pattern(pattern: str, servers: Collection[str]) -> str | None:
    """The pattern that was probably meant, if its server is unknown and resembles one of `servers`."""
    server, dot, name = pattern.partition(".")
    if not server or "*" in server or is_of_label(pattern) or is_of_agent(pattern) or server in servers:
        return None
    meant = closest_match(server, servers)
    return None if meant is None else f"{meant}{dot}{name}"


def _all_patterns(document: ParsedFile) -> Iterator[tuple[Place, str]]:
    """Yield every pattern of a file, also of broken entries."""
    for root in (CALLERS, TENANTS, ISSUERS):
        for name, entry in document.section(root).items():
            fields = entry if isinstance(entry, dict) else {}
            place = Place(document.file, root).at(name)
            yield from _patterns_in(place, fields, _FRONTEND_KEYS)
            yield from _patterns_in(place.at("scopes"), fields.get("scopes"), None)
            frontends = fields.get("frontends")
            for frontend, narrowed in frontends.items() if isinstance(frontends, dict) else ():
                yield from _patterns_in(place.at("frontends", frontend), narrowed, _FRONTEND_KEYS)
    for name, entry in document.section(APPROVALS).items():
        yield from _patterns_in(Place(document.file, APPROVALS).at(name), entry, ("tools",))
    for name, entry in document.section(BUDGETS).items():
        place = Place(document.file, BUDGETS).at(name)
        yield from _patterns_in(place, entry, ("tools",))
        costs = entry.get("costs") if isinstance(entry, dict) else None
        yield from ((place.at("costs", pattern), pattern) for pattern in (costs if isinstance(costs, dict) else ()))
    for name, entry in document.section(SETS).items():
        place = Place(document.file, SETS).at(name)
        yield from _patterns_in(place, entry, ("tools", "prompts", "resources", "exclude"))
        changed = entry.get("tool") if isinstance(entry, dict) else None
        yield from ((place.at("tool", tool), tool) for tool in (changed if isinstance(changed, dict) else ()))


def _patterns_in(place: Place, table: object, keys: Collection[str] | None) -> Iterator[tuple[Place, str]]:
    """Yield the texts in the lists of a table, of some keys or of all."""
    for key, listed in table.items() if isinstance(table, dict) else ():
        if (keys is None or key in keys) and isinstance(listed, list):
            yield from ((place.at(key, at), each) for at, each in enumerate(listed) if isinstance(each, str))
