"""T56: the disk, a backup of it or a file of the hub is stolen; no credential must be readable there.

Logins at servers are sealed by ChaCha20-Poly1305, one file each, under a key that has an id; what a file is of (its id,
tenant, caller, server and key) is bound to it. Files are 0600 in a folder that is 0700, the key may be kept elsewhere
(`[credentials] key`), and all are sealed anew while the hub runs. What callers prove themselves with is kept as
a digest, if at all.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.app.login import LoginOptions, log_in
from isthmus.cli.main import main
from isthmus.credentials.client_registration import OAuthClient
from isthmus.credentials.token_endpoint import StoredLogin, StoredToken
from isthmus.credentials.vault import KEY_FILE, Slot, Vault, VaultDamaged, VaultSettings
from tests.faults.scripted import hub_of
from tests.faults.watching import eventually
from tests.hubs import serving
from tests.security.authority import Authority, Protected, entry_of, visit

CANARY = "canary-5f0c1e7a9b"
TENANT_SLOT = Slot("search", "acme", "planner")


def found_in(folder: Path, canary: str = CANARY) -> list[str]:
    """What `grep -a` would find in a folder, in whichever spelling a file may have it."""
    plain = canary.encode()
    spellings = {plain, plain.hex().encode(), base64.b64encode(plain)[:-4], base64.b64encode(b"x" + plain)[4:-4]}
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    return [str(file) for file in files if any(spelling in file.read_bytes() for spelling in spellings)]


def modes_of(folder: Path) -> set[int]:
    return {stat.S_IMODE(os.stat(file).st_mode) for file in folder.iterdir()}


def test_stored_secrets_are_not_readable_on_the_disk(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    vault.put(Slot("search"), f"a {CANARY}".encode())
    vault.put(TENANT_SLOT, f"b {CANARY}".encode())
    vault.put(Slot("search"), f"c {CANARY}".encode())
    shutil.copytree(tmp_path, tmp_path / "backup")
    assert found_in(tmp_path) == []
    assert Vault(tmp_path).get(Slot("search")) == f"c {CANARY}".encode()
    assert modes_of(tmp_path / "credentials") == {0o600}
    assert stat.S_IMODE(os.stat(tmp_path / "credentials").st_mode) == 0o700
    assert len(list((tmp_path / "credentials").iterdir())) == 3, "no draft is left"


@pytest.mark.parametrize("member", ["server", "tenant", "caller", "key", "sealed", "id"])
def test_a_sealed_file_is_bound_to_its_login(tmp_path: Path, member: str) -> None:
    vault = Vault(tmp_path)
    vault.put(TENANT_SLOT, b"secret")
    file = tmp_path / "credentials" / f"{TENANT_SLOT.id}.sealed"
    row = json.loads(file.read_text())
    row[member] = {"sealed": row["sealed"][:-8] + "AAAAAAA="}.get(member, "x" + row[member])
    file.write_text(json.dumps(row))
    if member == "id":  # it is not believed, but made of the others
        assert vault.get(TENANT_SLOT) == b"secret"
        return
    with pytest.raises(VaultDamaged) as damaged:
        vault.get(TENANT_SLOT)
    assert "secret" not in str(damaged.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"5", b"[" * 100_000, b'[["a","!"]]', b'[["a","AAAA"]]', b"\xff"])
def test_a_damaged_key_file_is_reported_and_not_replaced(tmp_path: Path, content: bytes) -> None:
    Vault(tmp_path).put(TENANT_SLOT, b"secret")
    file = tmp_path / "credentials" / KEY_FILE
    file.write_bytes(content)
    with pytest.raises(VaultDamaged, match="contains no keys"):
        Vault(tmp_path).get(TENANT_SLOT)
    assert file.read_bytes() == content


def test_one_callers_login_put_in_anothers_place_opens_nothing(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    other = Slot("search", "acme", "other")
    vault.put(TENANT_SLOT, b"secret")
    folder = tmp_path / "credentials"
    shutil.copy(folder / f"{TENANT_SLOT.id}.sealed", folder / f"{other.id}.sealed")
    with pytest.raises(VaultDamaged):
        vault.get(other)
    row = json.loads((folder / f"{other.id}.sealed").read_text())
    (folder / f"{other.id}.sealed").write_text(json.dumps({**row, "caller": "other", "id": other.id}))
    with pytest.raises(VaultDamaged):
        vault.get(other)


def test_every_byte_of_a_sealed_login_counts(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    vault.put(Slot("s"), b"secret")
    file = tmp_path / "credentials" / f"{Slot('s').id}.sealed"
    row = json.loads(file.read_text())
    for place in range(len(row["sealed"]) - 2):
        letter = "A" if row["sealed"][place] != "A" else "B"
        changed = row["sealed"][:place] + letter + row["sealed"][place + 1 :]
        file.write_text(json.dumps({**row, "sealed": changed}))
        with pytest.raises(VaultDamaged):
            vault.get(Slot("s"))


def test_keys_are_changed_during_a_read(tmp_path: Path) -> None:
    """Another process, such as the hub, goes on reading with what it knows of the keys; the old key ends with it."""
    reader, writer = Vault(tmp_path), Vault(tmp_path)
    slots = [Slot(f"s{number}") for number in range(5)]
    for slot in slots:
        writer.put(slot, slot.server.encode())
    assert reader.get(slots[0]) == b"s0"
    before = {file.name: json.loads(file.read_text())["key"] for file in (tmp_path / "credentials").glob("*.sealed")}
    old_key = (tmp_path / "credentials" / "key").read_text()
    assert writer.rotate() == 5
    assert [reader.get(slot) for slot in slots] == [slot.server.encode() for slot in slots]
    after = {file.name: json.loads(file.read_text())["key"] for file in (tmp_path / "credentials").glob("*.sealed")}
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert json.loads(old_key)[0][1] not in (tmp_path / "credentials" / "key").read_text()
    assert modes_of(tmp_path / "credentials") == {0o600}


def test_keys_are_changed_during_a_write(tmp_path: Path) -> None:
    """Nothing is sealed under a key that is about to go, and nothing newer replaced by what was read before."""
    slot, kept = Slot("s"), []
    Vault(tmp_path).put(slot, b"old")
    writer = threading.Thread(target=lambda: kept.append(Vault(tmp_path).replace(slot, b"old", b"new")))

    class Rotating(Vault):
        def _write(self, slot: Slot, content: bytes) -> None:
            writer.start()  # when it has read what it is about to write
            writer.join(0.1)
            super()._write(slot, content)

    Rotating(tmp_path).rotate()
    writer.join()
    assert kept == [True]
    assert Vault(tmp_path).get(slot) == b"new"


def test_a_writer_with_an_old_version_does_not_replace_the_current_one(tmp_path: Path) -> None:
    vault, slot = Vault(tmp_path), Slot("s")
    assert not vault.replace(slot, b"old", b"new"), "somebody has logged out"
    assert vault.get(slot) is None
    vault.put(slot, b"another")
    assert not vault.replace(slot, b"old", b"new"), "somebody has logged in"
    assert vault.get(slot) == b"another"


def test_a_killed_writer_leaves_no_key_behind(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    vault.put(Slot("s"), b"secret")
    draft = tmp_path / "credentials" / ".key.0123"
    draft.write_bytes((tmp_path / "credentials" / "key").read_bytes())
    vault.rotate()
    assert not draft.exists()
    assert vault.get(Slot("s")) == b"secret"


@pytest.mark.parametrize("key", ["", "first-key-of-sixteen"])
def test_a_kill_anywhere_in_a_change_of_keys_loses_nothing(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = [Slot(f"s{number}") for number in range(3)]
    for slot in slots:
        Vault(tmp_path).put(slot, slot.server.encode())

    put, settings, left, cuts = os.replace, VaultSettings(key), 0, 0

    class Ended(BaseException):
        """As if by a signal."""

    def replace(*given: Any) -> None:
        nonlocal left
        if not (left := left - 1):
            raise Ended
        put(*given)

    monkeypatch.setattr(os, "replace", replace)
    for moment in range(1, 20):
        left = moment
        try:
            Vault(tmp_path, settings).rotate()
            break
        except Ended:
            cuts += 1
        left = 0
        assert [Vault(tmp_path, settings).get(slot) for slot in slots] == [slot.server.encode() for slot in slots]
    assert cuts == (3 if key else 5), "each file, and twice the keys if they are in one"
    assert [Vault(tmp_path, settings).get(slot) for slot in slots] == [slot.server.encode() for slot in slots]


def test_an_older_copy_under_another_name_does_not_replace_a_login(tmp_path: Path) -> None:
    vault, slot, folder = Vault(tmp_path), Slot("s"), tmp_path / "credentials"
    vault.put(slot, b"old")
    older = (folder / f"{slot.id}.sealed").read_bytes()
    vault.put(slot, b"new")
    (folder / "zz.sealed").write_bytes(older)
    assert list(vault.slots()) == [slot]
    with pytest.raises(VaultDamaged, match=r"zz\.sealed belongs to another login"):
        vault.rotate()
    assert vault.get(slot) == b"new"


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[" * 100_000, '[["a", "é"]]'.encode(), b'[["a", "AA=="]]', b'[["\xff", ""]]', b'{"x": ' * 30_000],
    ids=range(7),
)
@pytest.mark.parametrize("name", ["key", f"{Slot('s').id}.sealed"])
def test_a_file_that_is_broken_in_any_way_is_named_and_costs_no_other(
    tmp_path: Path, name: str, content: bytes
) -> None:
    Vault(tmp_path).put(Slot("s"), b"secret")
    (tmp_path / "credentials" / name).write_bytes(content)
    vault = Vault(tmp_path)
    for use in (lambda: vault.get(Slot("s")), vault.rotate):
        with pytest.raises(VaultDamaged, match=re.escape(name)):
            use()
    assert list(vault.slots()) == ([Slot("s")] if name == "key" else [])


def test_the_operators_own_key_takes_over_and_gives_way_to_the_next(tmp_path: Path) -> None:
    first, second = "first-key-of-sixteen", "second-key-of-sixteen"
    Vault(tmp_path).put(Slot("s"), b"secret")
    own = Vault(tmp_path, VaultSettings(first))
    assert own.get(Slot("s")) == b"secret"
    own.rotate()
    assert not (tmp_path / "credentials" / "key").exists(), "it would open what is in an older copy of the folder"
    with pytest.raises(VaultDamaged):
        Vault(tmp_path, VaultSettings(second)).get(Slot("s"))
    following = Vault(tmp_path, VaultSettings(second, (first,)))
    assert following.get(Slot("s")) == b"secret"
    following.rotate()
    assert Vault(tmp_path, VaultSettings(second)).get(Slot("s")) == b"secret"
    assert found_in(tmp_path, first) == found_in(tmp_path, second) == []


async def test_a_hub_that_logs_in_and_renews_leaves_no_token_anywhere(tmp_path: Path) -> None:
    people: list[asyncio.Task[int]] = []
    state = tmp_path / "state"
    async with Authority() as authority, Protected(authority) as server:
        authority.prefix = f"{CANARY}-"
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            settings = hub.running.configuration.servers[0]
            await eventually(lambda: hub.state("s") == "login", "the hub says that it requires a login")
            vault = Vault(state)
            show = lambda shown: people.append(asyncio.create_task(visit(shown.address)))  # noqa: E731
            kept = await log_in(LoginOptions(settings, within=5.0), vault, show)
            assert CANARY in kept.token.access
            await hub.ready("s")
            assert any(CANARY in shown for shown in server.shown)
            Vault(state).rotate()
            assert msgspec.json.decode(Vault(state).get(Slot("s")) or b"", type=StoredLogin).token == kept.token
            assert found_in(tmp_path) == []
        assert CANARY not in repr(kept)
        await asyncio.gather(*people)


class Anything(set[str]):
    """Holds every token."""

    def __contains__(self, token: object) -> bool:
        return isinstance(token, str) and bool(token) and "token" in token


async def test_credentials_of_callers_and_servers_are_in_no_file_of_a_hub(tmp_path: Path) -> None:
    """With a journal, a caller's key, a server's header and a variable that is a secret, and a copy of it all."""
    env = {"CALLER_KEY": f"{CANARY}-caller-key", "HEADER": f"Bearer {CANARY}-header"}
    state = tmp_path / "state"
    config = tmp_path / "config"
    config.mkdir()
    async with Authority() as authority, Protected(authority) as server:
        authority.good = Anything()
        entry = {**server.entry, "headers": {"Authorization": "env:HEADER"}}
        callers = {"c": {"key": "env:CALLER_KEY", "allow": ["*"]}}
        async with serving(config, {"s": entry}, env=env, callers=callers, hub={"state": str(state)}):
            pass
    for file in list(state.rglob("*.db")):
        copy = tmp_path / f"{file.name}.backup"
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    assert found_in(tmp_path) == []


def test_the_command_line_lists_logins_without_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`isthmus login --list`, `isthmus credentials rotate` and `isthmus logout`, one after the other."""
    token = StoredToken(f"{CANARY}-access", 4e9, 1.0, f"{CANARY}-refresh", "read")
    client = OAuthClient("id", f"{CANARY}-secret")
    kept = StoredLogin(
        token, client, "https://a.example", "https://a.example/t", "https://s.example", "https://s.example/mcp"
    )
    config = tmp_path / "isthmus.toml"
    config.write_text(f'[hub]\nstate = "{tmp_path / "state"}"\n[servers.search]\nurl = "https://s.example/mcp"\n')
    Vault(tmp_path / "state").put(Slot("search"), msgspec.json.encode(kept))

    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--config", str(config)])
        said = capsys.readouterr()
        assert CANARY not in said.out + said.err
        return code, said.out, said.err

    code, out, _ = run("login", "--list")
    assert code == 0
    assert re.search(r"search +- +https://a.example +2096-\S+ \S+ UTC +True +read", out)
    assert json.loads(run("login", "--list", "--json")[1])["logins"][0]["server"] == "search"
    assert run("credentials", "rotate") == (0, "", "Encrypted 1 login under a new key.\n")
    assert run("logout", "search")[0] == 0
    assert run("logout", "search")[0] == 2
    assert run("login", "--list") == (0, "", "There are no logins.\n")
    assert found_in(tmp_path) == []
