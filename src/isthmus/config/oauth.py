"""What files say of logins: of a server `oauth`, `callers` and `credentials`, and the table `[credentials]`.

`callers` are those that have credentials of their own; the table has the key that logins are sealed with. Whether the
values make sense is checked by `model.credentials`; nothing is dialled. A broken entry costs its server, as any other
does: one that was shown less than was meant would look as if it had been left alone. Called by `config.servers` and
`config.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as fields_of
from typing import Any

from isthmus.config import codes, values
from isthmus.config.files import Document
from isthmus.config.findings import Finding, Mistake
from isthmus.config.tables import Reader, accepted, read_table
from isthmus.config.variables import Borrowed, Variables
from isthmus.credentials.signing import check_private_key
from isthmus.credentials.vault import VaultSettings
from isthmus.model.credentials import OAuthSettings, OwnCredentials, ServerCredentials, Subject, subject_of
from isthmus.upstream.settings import check_headers

ROOT = "credentials"
KEYS = frozenset({"oauth", "callers", "credentials"})
"""The keys of a server's entry that are read here."""

SECRET_KEYS = frozenset({"client_secret", "private_key", "identity_token", "idp_client_secret"})
"""What may be `env:NAME`, `file:PATH` or `keyring:NAME` in a login."""

_READERS: Mapping[str, Reader] = {"key": values.text, "old_keys": values.texts}
_OWN_KEYS = ("headers", "oauth")
_WHOSE = ("any", "caller")


def credentials_of(fields: Mapping[str, object]) -> ServerCredentials:
    """Return what an entry says, variables replaced.

    Raises:
        ValueError: in the words "<key> must …".
    """
    if not fields.keys() & KEYS:
        return ServerCredentials()
    whose = fields.get("credentials", "any")
    if whose not in _WHOSE:
        raise ValueError(f"credentials must be one of {', '.join(_WHOSE)}, not {values.shown(whose)}")
    callers = values.table("callers", fields.get("callers", {}))
    return ServerCredentials(
        oauth=_oauth("oauth", fields["oauth"]) if "oauth" in fields else None,
        own={_subject(name): _own(f"callers.{name}", entry) for name, entry in callers.items()},
        are_demanded=whose == "caller",
    )


def is_secret_at(key: str, below: tuple[str | int, ...]) -> bool:
    """Whether a text of an entry may refer to a secret."""
    if key == "oauth":
        return below[-1:] != () and below[-1] in SECRET_KEYS
    return key == "callers" and (below[1:2] == ("headers",) or (below[1:2] == ("oauth",) and below[-1] in SECRET_KEYS))


def _subject(name: str) -> Subject:
    subject = subject_of(name)
    if not subject.tenant.strip() or not subject.name.strip():
        raise ValueError(f"callers must be named NAME or TENANT/NAME, not {values.shown(name)}")
    return subject


def _own(place: str, entry: object) -> OwnCredentials:
    table = values.table(place, entry)
    for key in table:
        if key not in _OWN_KEYS:
            raise ValueError(f"{place} must have only {' and '.join(_OWN_KEYS)}, not {values.shown(key)}")
    headers = values.table_of_words(f"{place}.headers", table.get("headers", {}))
    try:
        check_headers(headers)
    except ValueError as error:
        raise ValueError(f"{place}.{error}") from error
    return OwnCredentials(headers, _oauth(f"{place}.oauth", table["oauth"]) if "oauth" in table else None)


def _oauth(place: str, entry: object) -> OAuthSettings:
    table = values.table(place, entry)
    known = {field.name: field for field in fields_of(OAuthSettings)}
    for key in table:
        if key not in known:
            raise ValueError(f"{place} must have only {', '.join(sorted(known))}, not {values.shown(key)}")
    read: dict[str, Any] = {key: _value(f"{place}.{key}", key, value) for key, value in table.items()}
    try:
        settings = OAuthSettings(**read)
        if settings.private_key:
            check_private_key(settings.private_key)
    except ValueError as error:
        raise ValueError(f"{place}.{error}") from error
    return settings


def _value(place: str, key: str, value: object) -> object:
    match key:
        case "origins":
            return values.texts(place, value)
        case "redirect_port":
            return values.integer(place, value)
        case "scope" if isinstance(value, list):
            return " ".join(values.texts(place, value))
        case _ if key in SECRET_KEYS and not isinstance(value, str):
            raise ValueError(f"{place} must be a text, not another value")
        case _:
            return values.text(place, value)


def read_credentials(document: Document | None, variables: Variables) -> tuple[VaultSettings, tuple[Finding, ...]]:
    """Return with what logins are sealed, and what is odd about it.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return VaultSettings(), ()
    read, told = read_table(document, ROOT, _READERS)
    return accepted(document, ROOT, lambda: _vault(read, variables)), told


def _vault(read: Mapping[str, Any], variables: Variables) -> VaultSettings:
    key = _lent("key", read.get("key", ""), variables)
    old = tuple(_lent(f"old_keys.{i}", text, variables) for i, text in enumerate(read.get("old_keys", ())))
    return VaultSettings(key, old)


def _lent(key: str, text: str, variables: Variables) -> str:
    borrowed = Borrowed()
    lent = variables.secret(key, text, borrowed)
    if borrowed.unresolved:
        found = borrowed.unresolved[0]
        raise Mistake(codes.UNRESOLVED_VARIABLE, f"{key} must have only variables that are set, not {found}")
    return lent
