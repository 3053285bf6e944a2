"""What servers have to prove, whatever is named as their authority; by whom they are believed is T21's."""

from __future__ import annotations

import ssl

import pytest
import trustme

from isthmus.transport.tls import tls_settings


def pem() -> str:
    return trustme.CA().cert_pem.bytes().decode()


def test_the_systems_roots_count_unless_an_authority_is_named() -> None:
    for context in (tls_settings(), tls_settings(pem())):
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert len(tls_settings(pem()).get_ca_certs()) == 1


def test_several_certificates_may_be_in_a_text_that_says_more_than_these() -> None:
    assert len(tls_settings(f"Unsere: {pem()}\nIhre: für alle\n{pem()}").get_ca_certs()) == 2


@pytest.mark.parametrize("text", ["x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "\0"])
def test_what_is_no_certificate_is_no_authority(text: str) -> None:
    with pytest.raises(ValueError, match="no certificate in PEM form"):
        tls_settings(text)
