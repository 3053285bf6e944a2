"""The address that a person is shown."""

from __future__ import annotations

import pytest

from isthmus.cli.serve import address


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "http://127.0.0.1:1/mcp"),
        ("0.0.0.0", "http://127.0.0.1:1/mcp"),
        ("::", "http://127.0.0.1:1/mcp"),
        ("::1", "http://[::1]:1/mcp"),
        ("[::1]", "http://[::1]:1/mcp"),
        ("hub.example", "http://hub.example:1/mcp"),
    ],
)
def test_the_address_shown_can_be_given_to_a_client(host: str, shown: str) -> None:
    assert address(host, 1) == shown
