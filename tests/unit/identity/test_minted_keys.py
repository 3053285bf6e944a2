"""Minted keys: their stored form, their life, and damaged lists."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.identity.keys import KEY_LENGTH_MIN, digest_of
from isthmus.identity.minted_keys import (
    MEMORY_SECONDS,
    MintedKey,
    StoreDamaged,
    check_name,
    current,
    keys_named,
    mint,
    read_keys,
    renewed,
    replaced_key,
    revoked,
    without_old,
    write_keys,
)
from isthmus.model.callers import Caller, Grants

NOW = 1_000.0
GRANTS = Grants(("files.*",), ("files.delete",))


def made(name: str = "planner", expires_at: float | None = None) -> MintedKey:
    return mint(name, GRANTS, "acme", targets=False, now=NOW, expires_at=expires_at)[1]


def test_a_key_is_made_for_a_caller_and_only_its_digest_is_kept() -> None:
    key, kept = mint("planner", GRANTS, "acme", targets=True, operator=True, now=NOW, expires_at=2_000.0)
    assert key.startswith("isk_")
    assert len(key) > 2 * KEY_LENGTH_MIN
    assert bytes.fromhex(kept.digest) == digest_of(key)
    assert kept.caller == Caller("planner", "acme", GRANTS, may_name_targets=True, key=kept.id, is_operator=True)
    assert key not in write_keys([kept]).decode()


def test_neither_key_nor_id_is_ever_the_same() -> None:
    both = [mint("a", GRANTS, "t", targets=False, now=NOW, expires_at=None) for _ in range(2)]
    assert both[0][0] != both[1][0]
    assert both[0][1].id != both[1][1].id


def test_a_list_is_read_as_it_was_written() -> None:
    keys = (made(), made("reader", 5_000.0), revoked(made("third"), NOW), replaced_key(made("fourth"), NOW, 60))
    assert read_keys(write_keys(keys)) == keys
    assert read_keys(write_keys(())) == ()


def _with(**members: object) -> bytes:
    received = msgspec.json.decode(write_keys([made()]))
    received["keys"][0] |= members
    return msgspec.json.encode(received)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        write_keys([made()])[:-20],
        write_keys([made()]).replace(b'"version":1', b'"version":2'),
        _with(id="planner"),
        _with(digest="00"),
        _with(name=""),
        _with(tenant="a\nb"),
        _with(allow=["files.*", "f*"]),
        _with(deny=["*.x"]),
        _with(deny="files"),
        _with(narrowed_to="something newer"),
        _with(expires_at="never"),
    ],
)
def test_a_damaged_list_is_rejected(content: bytes) -> None:
    with pytest.raises(StoreDamaged):
        read_keys(content)


def test_two_keys_of_one_id_damage_the_list() -> None:
    key = made()
    with pytest.raises(StoreDamaged):
        read_keys(write_keys([key, key]))


@given(st.data())
def test_a_list_cut_anywhere_or_changed_in_a_byte_never_lets_in_another_key(data: st.DataObject) -> None:
    keys = (made(), made("reader"))
    content = bytearray(write_keys(keys))
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] = data.draw(st.integers(0, 255))
    try:
        read = read_keys(bytes(content))
    except StoreDamaged:
        return
    assert len(read) == len(keys)


def test_a_key_that_was_rotated_out_is_good_for_a_while_and_never_longer_than_before() -> None:
    old = replaced_key(made(), NOW, 60.0)
    assert [old.state(at) for at in (NOW, NOW + 59, NOW + 60)] == ["rotated", "rotated", "expired"]
    assert replaced_key(made(expires_at=NOW + 10), NOW, 60.0).expires_at == NOW + 10
    assert not replaced_key(made(), NOW, 0.0).is_good(NOW)


def test_the_new_key_has_the_permissions_of_the_old_one() -> None:
    old = made(expires_at=NOW + 10)
    key, new = renewed(old, NOW + 5, None)
    assert (new.name, new.tenant, new.allow, new.deny) == (old.name, old.tenant, old.allow, old.deny)
    assert (new.made_at, new.expires_at, new.state(NOW + 99)) == (NOW + 5, None, "good")
    assert (new.id, new.digest) != (old.id, old.digest)
    assert bytes.fromhex(new.digest) == digest_of(key)


def test_revoking_is_for_good_and_keeps_its_time() -> None:
    key = revoked(made(), NOW)
    assert key.state(NOW) == "revoked"
    assert revoked(key, NOW + 5) is key


def test_the_current_key_is_the_one_that_was_not_replaced() -> None:
    old, new = replaced_key(made(), NOW, 60.0), made()
    assert current((old, new, made("reader")), "planner", NOW) is new
    assert current((old, revoked(new, NOW)), "planner", NOW) is None
    assert current((), "planner", NOW) is None


def test_a_key_is_meant_by_its_id_or_all_by_their_name() -> None:
    first, second, other = made(), made(), made("reader")
    keys = (first, second, other)
    assert keys_named(keys, "planner") == (first, second)
    assert keys_named(keys, second.id) == (second,)
    assert keys_named(keys, "nobody") == ()


def test_long_expired_keys_are_forgotten() -> None:
    ended, live = revoked(made(), NOW), made("reader")
    assert without_old((ended, live), NOW + MEMORY_SECONDS - 1) == (ended, live)
    assert without_old((ended, live), NOW + MEMORY_SECONDS) == (live,)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 129, "k0123456789ab", "0a1b0a1b0a1b0a1b"])
def test_names_that_are_unprintable_or_look_like_an_id_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name must"):
        check_name("name", name)
