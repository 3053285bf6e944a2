"""Keys over a hub's life, with events in any order: exactly the valid keys are accepted."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from isthmus.app.caller_identity import KEYS_UNREADABLE, Identities
from isthmus.app.key_files import TRUST_SECONDS, KeyFile
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.identity.keys import digest_of
from isthmus.identity.minted_keys import current, keys_named, mint, renewed, replaced_key, revoked, without_old
from isthmus.model.callers import Caller, Grants

SOAK = bool(os.environ.get("ISTHMUS_SOAK"))
NAMES = st.sampled_from(["ann", "bob", "eve"])
SECONDS = st.sampled_from([0.0, 1.0, 20.0, 45.0])


class Keys(RuleBasedStateMachine):
    """One state folder, a hub that runs on it, and what ought to be true."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Path(tempfile.mkdtemp())
        self.file = KeyFile(self.state)
        self.now = 1_000.0
        self.ends: dict[str, float] = {}
        """By key: when it ends."""
        self.owners: dict[str, str] = {}
        self.kept: bytes | None = None
        """What the list held when it was taken away."""
        self.lost_at: float | None = None
        self.has_begun = False
        self.known: Identities

    def teardown(self) -> None:
        shutil.rmtree(self.state)

    @initialize()
    def start(self) -> None:
        configuration = Configuration(None, HubSettings(state=str(self.state)))
        self.known = Identities(configuration, now=lambda: self.now, clock=lambda: self.now)
        self.known.decide()

    @rule(name=NAMES, lives=st.one_of(st.none(), SECONDS))
    def create(self, name: str, lives: float | None) -> None:
        if self.kept is not None or (self.has_begun and current(self.file.read(), name, self.now)):
            return
        end = None if lives is None else self.now + lives
        key, made = mint(name, Grants(("*",)), "default", targets=False, now=self.now, expires_at=end)
        self.file.change(lambda keys: (*without_old(keys, self.now), made))
        self.has_begun = True
        self.owners[key], self.ends[key] = name, float("inf") if end is None else end

    @rule(name=NAMES, overlap=SECONDS)
    def rotate(self, name: str, overlap: float) -> None:
        if self.kept is not None or not self.has_begun or not (old := current(self.file.read(), name, self.now)):
            return
        key, made = renewed(old, self.now, None)
        self.file.change(
            lambda keys: (*(replaced_key(key, self.now, overlap) if key.id == old.id else key for key in keys), made)
        )
        for each, owner in self.owners.items():
            if owner == name and self._id_of(each) == old.id:
                self.ends[each] = min(self.ends[each], self.now + overlap)
        self.owners[key], self.ends[key] = name, float("inf")

    def _id_of(self, key: str) -> str | None:
        return next((each.id for each in self.file.read() if each.digest == digest_of(key).hex()), None)

    @rule(name=NAMES)
    def revoke(self, name: str) -> None:
        if self.kept is not None or not self.has_begun:
            return
        ids = {key.id for key in keys_named(self.file.read(), name)}
        self.file.change(lambda keys: tuple(revoked(each, self.now) if each.id in ids else each for each in keys))
        self.ends.update({key: min(self.ends[key], self.now) for key, owner in self.owners.items() if owner == name})

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(content=st.sampled_from([None, b"", b"{}"]))
    def lose(self, content: bytes | None) -> None:
        if self.kept is None and self.has_begun:
            self._look()
            self.kept, self.lost_at = self.file.path.read_bytes(), self.now
            self.file.path.unlink()
            if content is not None:
                self.file._write(self.file.path, content)

    @rule()
    def find(self) -> None:
        if self.kept is not None:
            self.file.path.unlink(missing_ok=True)
            self.file._write(self.file.path, self.kept)
            self.kept = self.lost_at = None

    @rule()
    def restart(self) -> None:
        if self.kept is None:
            self.start()
            return
        try:
            self.start()
        except ConfigError:
            return
        raise AssertionError("a hub started with a list that it cannot read")

    def _look(self) -> None:
        self.known._live_keys.reload()
        self.known.refresh()

    @invariant()
    def whoever_should_be_in_is(self) -> None:
        if not hasattr(self, "known"):
            return
        self._look()
        assert self.known.wants_proof is self.has_begun
        is_lost = self.lost_at is not None and self.now - self.lost_at > TRUST_SECONDS
        for key, name in self.owners.items():
            found = self.known.identify({b"x-api-key": key.encode()})
            if is_lost:
                assert found is KEYS_UNREADABLE
            elif self.now < self.ends[key]:
                assert isinstance(found, Caller)
                assert found.name == name
                assert found in self.known
            else:
                assert found is None
        if self.has_begun:
            assert not isinstance(self.known.identify({}), Caller)
            assert not isinstance(self.known.identify({b"x-api-key": b"nobody's-key-at-all"}), Caller)


TestKeys = Keys.TestCase
TestKeys.settings = settings(max_examples=5_000 if SOAK else 20, stateful_step_count=25, deadline=None)
