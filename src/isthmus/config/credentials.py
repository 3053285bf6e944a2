"""Read credentials: `oauth`, `callers` and `credentials` of a server, and the table `[credentials]` of the hub.

The values are checked by `model.credentials`; nothing is dialled. A broken value makes the server's whole entry broken:
a server that is called with fewer credentials than configured would look as if it worked. Called by `config.servers`
and `config.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

from isthmus.config import values
from isthmus.config.files import Document
from isthmus.config.findings import Finding
from isthmus.config.tables import accepted, read_table, resolve_secret
from isthmus.config.variables import Variables
from isthmus.credentials.client_assertion import check_private_key
from isthmus.credentials.vault import VaultSettings
from isthmus.model.credentials import OAuthSettings, OwnCredentials, ServerCredentials, subject_of
from isthmus.upstream.settings import check_headers

CREDENTIALS = "credentials"

SECRET_KEYS = frozenset({"client_secret", "private_key", "identity_token", "idp_client_secret"})
"""Keys of `oauth` that may be `env:NAME`, `file:PATH` or `keyring:NAME`."""

_OAUTH_TYPES = get_type_hints(OAuthSettings)
_OWN_KEYS = ("headers", "oauth")
_MODES = ("any", "caller")


def credentials_of(fields: Mapping[str, object]) -> ServerCredentials:
    """Return the credentials of one entry, whose variables are already replaced.

    Raises:
        ValueError: in the words "<key> must …".
    """
    if not fields.keys() & {"oauth", "callers", "credentials"}:
        return ServerCredentials()
    mode = fields.get("credentials", "any")
    if mode not in _MODES:
        raise ValueError(f"credentials must be one of {', '.join(_MODES)}, not {values.quoted(mode)}")
    own = {}
    for name, entry in values.table("callers", fields.get("callers", {})).items():
        subject = subject_of(name)
        if not subject.tenant.strip() or not subject.name.strip():
            raise ValueError(f"callers must be named NAME or TENANT/NAME, not {values.quoted(name)}")
        own[subject] = _own_credentials(f"callers.{name}", entry)
    return ServerCredentials(
        oauth=_oauth("oauth", fields["oauth"]) if "oauth" in fields else None,
        own=own,
        are_demanded=mode == "caller",
    )


def is_secret_at(key: str, below: tuple[str | int, ...]) -> bool:
    """Whether a text of an entry may refer to a secret, such as `env:NAME`."""
    if key == "oauth":
        return below[-1:] != () and below[-1] in SECRET_KEYS
    return key == "callers" and (below[1:2] == ("headers",) or (below[1:2] == ("oauth",) and below[-1] in SECRET_KEYS))


def _own_credentials(place: str, entry: object) -> OwnCredentials:
    table = values.table(place, entry)
    for key in table:
        if key not in _OWN_KEYS:
            raise ValueError(f"{place} must have only {' and '.join(_OWN_KEYS)}, not {values.quoted(key)}")
    headers = values.table_of_words(f"{place}.headers", table.get("headers", {}))
    try:
        check_headers(headers)
    except ValueError as error:
        raise ValueError(f"{place}.{error}") from error
    return OwnCredentials(headers, _oauth(f"{place}.oauth", table["oauth"]) if "oauth" in table else None)


def _oauth(place: str, entry: object) -> OAuthSettings:
    read: dict[str, Any] = {}
    for key, value in values.table(place, entry).items():
        path = f"{place}.{key}"
        if key not in _OAUTH_TYPES:
            raise ValueError(f"{place} must have only {', '.join(sorted(_OAUTH_TYPES))}, not {values.quoted(key)}")
        if key == "scope" and isinstance(value, list):
            read[key] = " ".join(values.texts(path, value))
        elif key in SECRET_KEYS and not isinstance(value, str):
            raise ValueError(f"{path} must be a text, not another value")
        else:
            read[key] = values.typed(path, _OAUTH_TYPES[key], value)
    try:
        settings = OAuthSettings(**read)
        if settings.private_key:
            check_private_key(settings.private_key)
    except ValueError as error:
        raise ValueError(f"{place}.{error}") from error
    return settings


def read_credentials(document: Document | None, variables: Variables) -> tuple[VaultSettings, tuple[Finding, ...]]:
    """Return the keys that encrypt stored logins, with findings.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return VaultSettings(), ()
    read, findings = read_table(document, CREDENTIALS, {"key": str, "old_keys": tuple[str, ...]})

    def vault() -> VaultSettings:
        old_keys = enumerate(read.get("old_keys", ()))
        return VaultSettings(
            resolve_secret("key", read.get("key", ""), variables),
            tuple(resolve_secret(f"old_keys.{position}", text, variables) for position, text in old_keys),
        )

    return accepted(document, CREDENTIALS, vault), findings
