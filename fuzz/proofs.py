"""What proves who somebody is, and what says how: tokens, sets of keys, challenges, metadata. Called by `fuzz.targets`.

They come from callers and from servers on the network. Each is read, or refused in the way that its reader says.
"""

from __future__ import annotations

import base64
from contextlib import suppress

from isthmus.credentials.discovery import DiscoveryFailed, ResourceMetadata, ServerMetadata, _decoded, read_challenge
from isthmus.credentials.fetch import FetchFailed
from isthmus.credentials.interactive_login import LoginRefused, read_callback
from isthmus.credentials.interactive_login import read_device_login as read_device
from isthmus.credentials.token_endpoint import GrantRefused, read_refusal, read_token_response
from isthmus.frontends.oauth.http import FORM, read_token_request
from isthmus.identity.jwt import looks_signed, read_keys, read_proof, read_token
from isthmus.identity.keys import KeyRing, bound_of, credential_of
from isthmus.identity.settings import Algorithm
from isthmus.transport.http_client import HttpResponse

ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "PS256", "ES256", "ES384", "EdDSA")

KEYS = b"""{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"e",
"x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"""

_KNOWN = read_keys(KEYS, ("ES256",))
_RING = KeyRing(())


class Believed(AssertionError):
    """Something that nobody signed was taken for signed."""


def tokens(data: bytes) -> None:
    """A credential is no key of anybody, and no token that a key of ours has signed; nor is it read wrongly."""
    looks_signed(data)
    token = read_token(data)
    if not isinstance(token, str):
        for key in _KNOWN.for_token(token):
            if key.has_signed(token):
                raise Believed(repr(data))
    if _RING.caller_of(data) is not None:
        raise Believed(repr(data))
    credential_of({b"authorization": data, b"x-api-key": data})
    bound_of({b"authorization": b"DPoP " + data, b"dpop": data})
    read_proof(data, ALGORITHMS)
    for authorization in (None, data, b"Basic " + base64.b64encode(data)):
        read_token_request(FORM, authorization, data)
        read_token_request(FORM, authorization, b"grant_type=client_credentials&" + data)


def key_sets(data: bytes) -> None:
    """A set of keys is read, or refused with a `ValueError`."""
    with suppress(ValueError):
        if not len(read_keys(data, ALGORITHMS)):
            raise Believed("a set without keys")


def metadata(data: bytes) -> None:
    """What authorization servers and resources say of themselves, how they answer, and what a browser brings back."""
    read_challenge(data.decode("latin-1"))
    said = HttpResponse(200, {}, data)
    with suppress(DiscoveryFailed):
        _decoded(said, ResourceMetadata, "it")
    with suppress(DiscoveryFailed):
        _decoded(said, ServerMetadata, "it")
    with suppress(FetchFailed, GrantRefused):
        read_token_response(said)
    with suppress(LoginRefused):
        read_device(said)
    with suppress(ValueError):  # which ends the one connection
        read_callback(b"GET /callback?" + data + b" HTTP/1.1\r\n\r\n")
    read_refusal(HttpResponse(400, {}, data), ["s"])
