"""Token requests (RFC 6749, client credentials) and their errors. Pure: `http` checks the credentials."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Mapping
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, unquote_plus

from msgspec import Struct

BODY_BYTES_MAX = 64 * 1024
PARAMETERS_MAX = 32
FORM = b"application/x-www-form-urlencoded"

_REPEATABLE = ("resource",)
"""RFC 8707 lets a client name several; RFC 6749 forbids to repeat anything else."""

Code: TypeAlias = Literal[
    "invalid_request",
    "invalid_client",
    "unsupported_grant_type",
    "invalid_target",
    "unsupported_response_type",
    "temporarily_unavailable",
]


Credentials: TypeAlias = tuple[tuple[str | None, str], ...]
"""A name, if one was given, and a key."""


class TokenError(Struct, frozen=True):
    """An error response of RFC 6749."""

    code: Code
    description: str
    status: int = 400
    retry_after: int = 0
    """Seconds to wait; 0 for none."""


class TokenRequest(Struct, frozen=True):
    """A token request."""

    credentials: Credentials
    """All possible readings of the credentials; one of them must be valid."""
    resources: tuple[str, ...]


def read_token_request(content_type: bytes, authorization: bytes | None, body: bytes) -> TokenRequest | TokenError:
    """Read a token request, or return what is wrong with it."""
    if content_type.partition(b";")[0].strip().lower() != FORM:
        return TokenError("invalid_request", f"The body must be {FORM.decode()}", 415)
    parameters = _parameters(body)
    if isinstance(parameters, TokenError):
        return parameters
    single = {name: values[0] for name, values in parameters.items()}
    if "grant_type" not in single:
        return TokenError("invalid_request", "There must be a grant_type")
    if single["grant_type"] != "client_credentials":
        return TokenError("unsupported_grant_type", "The grant_type must be client_credentials")
    credentials = _credentials(authorization, single)
    if isinstance(credentials, TokenError):
        return credentials
    return TokenRequest(credentials, tuple(parameters.get("resource", ())))


def _parameters(body: bytes) -> dict[str, list[str]] | TokenError:
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=PARAMETERS_MAX,
        )
    except ValueError:  # UnicodeDecodeError is one
        return TokenError("invalid_request", "The body is not a form")
    counts = Counter(name for name, _ in pairs if name not in _REPEATABLE)
    if any(count > 1 for count in counts.values()):
        return TokenError("invalid_request", "A parameter must not be there twice")
    parameters: dict[str, list[str]] = {}
    for name, value in pairs:
        if value:  # an empty parameter counts as absent
            parameters.setdefault(name, []).append(value)
    return parameters


def _credentials(authorization: bytes | None, parameters: Mapping[str, str]) -> Credentials | TokenError:
    name, key = parameters.get("client_id"), parameters.get("client_secret")
    if authorization is None:
        # The official MCP client (1.x) posts its secret without its id; the key alone identifies the caller.
        return TokenError("invalid_client", "There must be a client_secret", 401) if key is None else ((name, key),)
    if key is not None:
        return TokenError("invalid_request", "There must be one client_secret, in the header or in the body")
    found = _basic(authorization)
    if found is None:
        return TokenError("invalid_client", "Authorization must be Basic, with the client's id and secret", 401)
    if name is not None and all(name != each for each, _ in found):
        return TokenError("invalid_request", "The client_id must be the same in the header and in the body")
    return found


def _basic(authorization: bytes) -> Credentials | None:
    """The name and key of a Basic header: form-encoded, as in RFC 6749, and plain, as many clients write them."""
    scheme, _, text = authorization.strip().partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        name, colon, key = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    if not (name and colon and key):
        return None
    return tuple(dict.fromkeys(((unquote_plus(name), unquote_plus(key)), (name, key))))
