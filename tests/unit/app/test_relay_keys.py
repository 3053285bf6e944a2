"""The relay's key and the tokens that were revoked, in the state folder."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from isthmus.app.dial import HubConnectionLost, permanent_refusal
from isthmus.app.relay_keys import (
    CHECK_SECONDS,
    TRUST_SECONDS,
    KeyDamaged,
    Keys,
    KnownAgents,
    NoTokens,
    Revocations,
    issued_file,
    note_issued,
    relay_key,
    revoke,
    revoked_file,
)
from isthmus.config.findings import ConfigError
from isthmus.model.relay import Claim

pytestmark = pytest.mark.usefixtures("plain_logs")

NOTED, OTHER = "0123456789abcdef", "fedcba98765432100"


@pytest.fixture
def plain_logs() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += CHECK_SECONDS
        return self.now


# -- the key -------------------------------------------------------------------------------------------------------


def test_a_configured_key_is_taken_and_nothing_written(tmp_path: Path) -> None:
    assert relay_key("configured", tmp_path / "state") == "configured"
    assert not (tmp_path / "state").exists()


def test_a_key_is_made_once_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    key = relay_key(None, state)
    assert len(key) == 32
    assert relay_key(None, state) == key
    assert stat.S_IMODE(os.stat(state / "relay").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(state / "relay" / "key").st_mode) == 0o600
    assert os.listdir(state / "relay") == ["key"]
    assert relay_key(None, tmp_path / OTHER) != key


def test_all_that_start_at_once_have_one_key(tmp_path: Path) -> None:
    keys: list[str] = []
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait()
        keys.append(relay_key(None, tmp_path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40, b"x" * 5000])
def test_a_damaged_file_is_reported_without_its_content(tmp_path: Path, content: bytes) -> None:
    relay_key(None, tmp_path)
    (tmp_path / "relay" / "key").write_bytes(content)
    with pytest.raises(KeyDamaged, match="delete it to create a new one") as received:
        relay_key(None, tmp_path)
    assert "short\n" not in str(received.value)


def test_a_folder_that_cannot_be_made_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(OSError, match="state"):
        relay_key(None, tmp_path / "state")


def test_a_hub_that_can_keep_no_key_runs_on_without_one(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    keys = Keys(tmp_path / "state")
    with capture_logs() as logs:
        assert [keys.key(None), keys.key("configured"), keys.key(None)] == [None, "configured", None]
    assert [entry["event"] for entry in logs] == ["the relay refuses everybody: its key cannot be stored"]
    (tmp_path / "state").unlink()
    assert keys.key(None) == relay_key(None, tmp_path / "state")


def test_the_key_that_was_read_stays_while_its_file_cannot_be(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    key, file = keys.key(None), tmp_path / "relay" / "key"
    file.rename(tmp_path / "aside")
    file.mkdir()
    with capture_logs() as logs:
        assert [keys.key(None), keys.key(None)] == [key, key]
    assert [entry["event"] for entry in logs] == ["the relay keeps its current key: the key file cannot be read"]
    file.rmdir()
    assert keys.key(None) not in (None, key)


def test_a_rejection_for_a_missing_key_does_not_mention_the_token() -> None:
    received = NoTokens().read("any")
    assert permanent_refusal(HubConnectionLost("closed", 1008, received)) is None
    assert not NoTokens().is_key("")
    assert not NoTokens().is_valid(Claim("kitchen"))


def test_a_hub_with_a_damaged_key_reports_it(tmp_path: Path) -> None:
    key = Keys(tmp_path).key(None)
    assert Keys(tmp_path).key(None) == key
    (tmp_path / "relay" / "key").write_text("cut")
    with pytest.raises(ConfigError, match=r"hub\.state cannot be used: .*delete it"):
        Keys(tmp_path).key(None)


# -- revocations ---------------------------------------------------------------------------------------------------


def test_nothing_is_revoked_without_a_command(tmp_path: Path) -> None:
    revocations = Revocations(tmp_path, ("configured",), Clock())
    assert [revocations.has(id) for id in ("configured", NOTED, "")] == [True, False, False]
    revoke(NOTED, tmp_path)
    assert [revocations.has(id) for id in ("configured", NOTED, OTHER, "")] == [True, True, False, False]
    revoke(OTHER, tmp_path)
    assert revocations.has(OTHER)
    assert stat.S_IMODE(os.stat(revoked_file(tmp_path)).st_mode) == 0o600


def test_a_line_cut_short_costs_only_itself(tmp_path: Path) -> None:
    revoke(NOTED, tmp_path)
    with revoked_file(tmp_path).open("a") as stream:
        stream.write("cut")
    revoke(OTHER, tmp_path)
    revocations = Revocations(tmp_path, (), Clock())
    assert all(revocations.has(id) for id in (NOTED, OTHER))


def test_the_file_is_looked_at_now_and_then_and_not_for_every_question(tmp_path: Path) -> None:
    now = [0.0]
    revocations = Revocations(tmp_path, (), lambda: now[0])
    assert not revocations.has(NOTED)
    revoke(NOTED, tmp_path)
    assert not revocations.has(NOTED)
    now[0] += CHECK_SECONDS
    assert revocations.has(NOTED)


def test_known_revocations_stay_while_the_file_is_unreadable(tmp_path: Path) -> None:
    revoke(NOTED, tmp_path)
    revocations = Revocations(tmp_path, (), Clock())
    assert revocations.has(NOTED)
    revoked_file(tmp_path).unlink()
    revoked_file(tmp_path).mkdir()
    with capture_logs() as logs:
        assert [revocations.has(id) for id in (NOTED, OTHER)] == [True, False]
    assert [entry["event"] for entry in logs] == ["the list of revoked tokens cannot be read"]


def test_a_missing_list_revives_no_token_and_then_accepts_none(tmp_path: Path) -> None:
    now = [0.0]
    revoke(NOTED, tmp_path)
    revocations = Revocations(tmp_path, (), lambda: now[0])
    assert [revocations.has(id) for id in (NOTED, OTHER)] == [True, False]
    kept = revoked_file(tmp_path).read_bytes()
    revoked_file(tmp_path).unlink()
    now[0] += TRUST_SECONDS
    assert [revocations.has(id) for id in (NOTED, OTHER)] == [True, False]
    now[0] += CHECK_SECONDS
    assert [revocations.has(id) for id in (NOTED, OTHER)] == [True, True]
    revoked_file(tmp_path).write_bytes(kept)
    now[0] += CHECK_SECONDS
    assert [revocations.has(id) for id in (NOTED, OTHER)] == [True, False]


def test_configured_revocations_change_and_stored_ones_stay(tmp_path: Path) -> None:
    revocations = Revocations(tmp_path, (NOTED,), Clock())
    assert [revocations.has(id) for id in (NOTED, OTHER)] == [True, False]
    revoked_file(tmp_path).mkdir(parents=True)
    revocations.change((OTHER,))
    assert [revocations.has(id) for id in (NOTED, OTHER)] == [False, True]


def test_a_list_that_was_never_read_accepts_no_token(tmp_path: Path) -> None:
    revoked_file(tmp_path).mkdir(parents=True)
    revocations = Revocations(tmp_path, (), Clock())
    assert revocations.has("any")
    revoked_file(tmp_path).rmdir()
    assert not revocations.has("any")


@pytest.mark.parametrize("id", ["", "a b", "../x", "isr1.eyJpIjoi.x", "isr1", "a" * 65, "a\nb"])
def test_only_ids_are_noted(tmp_path: Path, id: str) -> None:
    with pytest.raises(ValueError, match="an id must be as") as received:
        revoke(id, tmp_path)
    assert "eyJ" not in str(received.value)
    assert not revoked_file(tmp_path).exists()


# -- agents with tokens of the original kind -----------------------------------------------------------------------


def test_agents_are_known_from_the_configuration_and_from_the_file(tmp_path: Path) -> None:
    known = KnownAgents(tmp_path, ["kitchen"], Clock())
    assert known() == {"kitchen"}
    note_issued("厨房", tmp_path)
    note_issued("a b", tmp_path)
    with open(issued_file(tmp_path), "ab") as file:
        file.write(b'"cut sho')
    assert known() == {"kitchen", "厨房", "a b"}
    note_issued("garden", tmp_path)
    assert known() == {"kitchen", "厨房", "a b", "garden"}
    assert stat.S_IMODE(os.stat(issued_file(tmp_path)).st_mode) == 0o600
    issued_file(tmp_path).unlink()
    assert known() == {"kitchen"}


def test_agents_stay_known_while_the_file_cannot_be_read(tmp_path: Path) -> None:
    clock = Clock()
    known = KnownAgents(tmp_path, [], clock)
    note_issued("garden", tmp_path)
    assert known() == {"garden"}
    issued_file(tmp_path).unlink()
    issued_file(tmp_path).mkdir()
    with capture_logs() as logs:
        assert [known() for _ in range(3)] == [{"garden"}] * 3
    assert [line["event"] for line in logs] == ["the list of issued relay agents cannot be read"]
    issued_file(tmp_path).rmdir()
    clock.now += TRUST_SECONDS
    assert known() == set()
