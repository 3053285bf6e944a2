"""The issuers of a file: whose signed tokens let somebody in, and what these may call.

As with callers, a mistake never widens access: an entry with anything wrong or unknown in it is left out whole. Tokens
are checked elsewhere (`identity.issuers`). Called by `config.load`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from isthmus.config import codes, values
from isthmus.config.callers import DEFAULT_TENANT, patterns
from isthmus.config.callers import ROOT as CALLERS
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.core.access.tenants import NO_TENANTS, Tenants
from isthmus.identity.settings import ALGORITHMS, Algorithm, Binding, IssuerSettings
from isthmus.model.callers import Grants

ROOT = "issuers"

_KEYS = (
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
    place = Place(document.file, ROOT)
    entries = document.section(ROOT)
    issuers: dict[str, IssuerSettings] = {}
    findings: list[Finding] = []
    for name, fields in entries.items():
        try:
            settings = _read_issuer(name, fields, public_url)
            _check_is_new(settings, issuers)
            _check_tenant(settings, tenants, is_said=isinstance(fields, dict) and "tenant" in fields)
            _check_has_own_names(settings, document.section(CALLERS))
            issuers[settings.issuer] = settings
            findings += _idle(settings, place.at(name))
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
        if key not in _KEYS:
            # It may be a mistyped `deny` or `audience`.
            raise ValueError(f"must have only {', '.join(_KEYS)}, not {values.shown(key)}")
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
        raise ValueError(f"{key} must be a printable text, not {values.shown(text)}")
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
        raise ValueError(f"tenant must be one of {', '.join(tenants.known)}, not {values.shown(settings.tenant)}")


def _check_has_own_names(settings: IssuerSettings, callers: Iterable[str]) -> None:
    """Who comes by it is called like it, a slash and who they are: nobody else may be, or own what they do."""
    for name in callers:
        if name.startswith(f"{settings.name}/"):
            raise ValueError(f"must have another name than the caller {values.shown(name)} begins with")


def _idle(settings: IssuerSettings, place: Place) -> list[Finding]:
    if settings.grants.allow or settings.scopes:
        return []
    advice = 'allow = ["*"] would allow everything, scopes say it scope by scope'
    return [place.finding("lets nobody call anything", advice=advice, code=codes.MAY_CALL_NOTHING)]
