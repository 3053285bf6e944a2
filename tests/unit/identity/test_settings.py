"""Settings of an issuer are checked when they are created."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.identity.settings import IssuerSettings

ISSUER = "https://login.example"
HUB = "https://hub.example"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"name": "a b"}, "must have a name"),
        ({"issuer": "http://login.example"}, "issuer must be an https address, or http on this machine"),
        ({"issuer": "login.example"}, "issuer must be an https address"),
        ({"issuer": "https://u:p@login.example"}, "without a user"),
        ({"issuer": "https://login.example?x=1"}, "without a user, a query"),
        ({"issuer": "https://login.example:99999"}, "issuer must be an https address"),
        ({"issuer": "file:///etc/passwd"}, "issuer must be an https address"),
        ({"issuer": "https://login.example /x"}, "issuer must be an https address"),
        ({"jwks": "http://login.example/keys"}, "jwks must be an https address"),
        ({"audience": ()}, "audience must name"),
        ({"audience": (" ",)}, "audience must name"),
        ({"algorithms": ()}, "algorithms must name"),
        ({"algorithms": ("HS256",)}, "algorithms.0 must be one of"),
        ({"algorithms": ("none",)}, "algorithms.0 must be one of"),
        ({"leeway": 61}, "leeway must be 0 to 60 seconds, not 61"),
        ({"leeway": -1}, "leeway must be"),
        ({"dpop": "sometimes"}, "dpop must be one of optional, required, nonce"),
        ({"scopes": {"a b": ("x",)}}, "scopes must have names"),
        ({"scopes": {'"': ("x",)}}, "scopes must have names"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], expected: str) -> None:
    given = {"name": "corp", "issuer": ISSUER, "audience": (HUB,), **wrong}
    with pytest.raises(ValueError, match=expected):
        IssuerSettings(**given)


@pytest.mark.parametrize("issuer", ["https://u:pa55word@login.example", "https://u:pa55word@login.example:99999"])
def test_a_password_in_an_address_is_not_repeated(issuer: str) -> None:
    with pytest.raises(ValueError, match="not an address with a user in it") as received:
        IssuerSettings("corp", issuer, (HUB,))
    assert "pa55word" not in str(received.value)


def test_an_issuer_on_this_machine_needs_no_tls() -> None:
    for host in ("localhost:9", "127.0.0.1:9", "[::1]:9"):
        IssuerSettings("corp", f"http://{host}", (HUB,), jwks=f"http://{host}/keys?v=1")
