"""How servers prove who they are. The egress guard dials by these settings, and `config` reads certificates by them."""

from __future__ import annotations

import re
import ssl
from typing import Final

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII)


def tls_settings(authority: str = "") -> ssl.SSLContext:
    """The settings for connections to servers: of the system's roots, or of one `authority` (PEM) alone.

    Nothing skips the proof. Older than TLS 1.2 is not spoken, whatever the system allows, and unlike Python's own
    default these write no session keys to where the environment says.

    Raises:
        ValueError: the authority is no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not authority:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context
    try:
        # What stands between certificates is for people, in any language.
        context.load_verify_locations(cadata="\n".join(_CERTIFICATE.findall(authority)))
    except (ssl.SSLError, ValueError):
        raise ValueError("it holds no certificate in PEM form") from None
    # A server's own certificate may be named instead of an authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
