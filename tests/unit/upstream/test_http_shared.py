"""What replies over HTTP say of themselves."""

from __future__ import annotations

import pytest

from isthmus.upstream.replies import URL_LENGTH_MAX, login_place, media_type

PLACE = "https://bank.example/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    "challenge",
    [
        f'Bearer resource_metadata="{PLACE}"',
        f'Bearer realm="x", error="invalid_token", resource_metadata="{PLACE}", scope="a b"',
        f'Basic realm="x", Bearer Resource_Metadata = "{PLACE}"',
        f"Bearer resource_metadata={PLACE}, realm=x",
    ],
)
def test_a_challenge_says_where_to_prove_who_one_is(challenge: str) -> None:
    assert login_place(401, {"www-authenticate": challenge}) == PLACE


@pytest.mark.parametrize(
    "challenge",
    [
        "",
        "Bearer",
        'Bearer realm="resource_metadata"',
        'Bearer resource_metadata=""',
        'Bearer resource_metadata="javascript:alert(1)"',
        'Bearer resource_metadata="file:///etc/passwd"',
        'Bearer resource_metadata="https://a\x07b"',
        f'Bearer resource_metadata="https://{"a" * URL_LENGTH_MAX}"',
    ],
)
def test_what_is_no_address_of_a_page_is_none(challenge: str) -> None:
    assert login_place(401, {"www-authenticate": challenge}) is None


def test_only_who_is_not_known_is_told() -> None:
    assert login_place(401, {}) is None
    assert login_place(403, {"www-authenticate": f'Bearer resource_metadata="{PLACE}"'}) is None


def test_a_media_type_is_what_stands_before_its_parameters() -> None:
    assert media_type({"content-type": "Text/Event-Stream; charset=utf-8"}) == "text/event-stream"
    assert media_type({}) == ""
