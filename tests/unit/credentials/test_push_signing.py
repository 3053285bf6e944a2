"""Signatures on push notifications."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import jwt
import pytest
from jwt import PyJWKSet

from isthmus.credentials.push_signing import KEY_FILE, PushSigner

NOW = 1_800_000_000.5
BODY = '{"id": "t",  "n": 1.50, "text": "\\u00e9 \u00e9"}'.encode()


def test_a_body_is_signed_as_its_listener_reads_it(tmp_path: Path) -> None:
    token = PushSigner(tmp_path / "state").token_for(BODY, NOW)
    keys = PyJWKSet.from_dict(json.loads(PushSigner(tmp_path / "state").key_set()))
    key = keys[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, key, algorithms=["RS256"], options={"verify_iat": False})
    read = '{"id":"t","n":1.5,"text":"\u00e9 \u00e9"}'.encode()
    assert claims == {"iat": int(NOW), "request_body_sha256": hashlib.sha256(read).hexdigest()}


def test_the_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert PushSigner(state).key_set() == PushSigner(state).key_set()
    assert [file.name for file in state.iterdir()] == [KEY_FILE]
    assert stat.S_IMODE((state / KEY_FILE).stat().st_mode) == 0o600
    assert b'"d"' not in PushSigner(state).key_set()


@pytest.mark.parametrize("body", [b'{"n": 1e400}', b'{"text": "\\ud800"}'])
def test_what_its_listener_cannot_write_again_is_not_signed(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever Python says of it
        PushSigner(tmp_path).token_for(body, NOW)


def test_a_damaged_key_is_no_key(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_text("abcd")
    with pytest.raises(ValueError, match="does not contain an RSA key"):
        PushSigner(tmp_path).key_set()
