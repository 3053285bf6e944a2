"""Sealed text opens unchanged, with its own context, in this process, and in no other way."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.credentials.sealing import NONCE_BYTES, ProcessSealer

SEALER = ProcessSealer()
CONTENT, OWNER = b'{"until": 1}', b"caller\0tool"
SEALED = SEALER.seal(CONTENT, OWNER)


@given(st.binary(max_size=300), st.binary(max_size=100))
def test_sealed_text_opens_with_its_context(content: bytes, bound_to: bytes) -> None:
    assert SEALER.open(SEALER.seal(content, bound_to), bound_to) == content


@pytest.mark.parametrize("bit", range(8))
def test_with_any_bit_flipped_it_does_not_open(bit: int) -> None:
    raw = base64.urlsafe_b64decode(SEALED)
    for at in range(len(raw)):
        changed = raw[:at] + bytes([raw[at] ^ (1 << bit)]) + raw[at + 1 :]
        assert SEALER.open(base64.urlsafe_b64encode(changed).decode(), OWNER) is None


def test_with_any_character_changed_it_does_not_open() -> None:
    for at, was in enumerate(SEALED):
        for other in "Aa0-_=+/ \n\0é":
            if other != was:
                assert SEALER.open(SEALED[:at] + other + SEALED[at + 1 :], OWNER) is None, (at, other)


def test_with_anything_cut_off_or_added_it_does_not_open() -> None:
    for at in range(len(SEALED)):
        assert SEALER.open(SEALED[:at], OWNER) is None
        assert SEALER.open(SEALED[at + 1 :], OWNER) is None
    for more in ("A", "=", "\n", "AAAA"):
        assert SEALER.open(SEALED + more, OWNER) is None
        assert SEALER.open(more + SEALED, OWNER) is None


@given(st.text(max_size=200))
def test_a_made_up_text_does_not_open(text: str) -> None:
    assert SEALER.open(text, OWNER) is None


@given(st.binary(max_size=100))
def test_for_anything_else_it_does_not_open(bound_to: bytes) -> None:
    assert SEALER.open(SEALED, bound_to) == (CONTENT if bound_to == OWNER else None)


def test_another_process_could_not_open_it() -> None:
    assert ProcessSealer().open(SEALED, OWNER) is None


def test_the_same_content_is_never_sealed_to_the_same_text() -> None:
    texts = {SEALER.seal(CONTENT, OWNER) for _ in range(1000)}
    assert len({text[: NONCE_BYTES * 4 // 3] for text in texts}) == 1000
    assert not any("until" in text for text in texts)
