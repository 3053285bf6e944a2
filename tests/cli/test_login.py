"""`isthmus login` as a person uses it: its output, the stored login, and its messages after a failure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.credentials.vault import Slot, Vault
from tests.fork_server import quick_isthmus
from tests.hubs import environment, write_config
from tests.security.authority import Authority, Protected, entry_of, visit


@pytest.mark.parametrize("is_device", [False, True])
async def test_a_login_prints_its_address_and_stores_the_token(tmp_path: Path, *, is_device: bool) -> None:
    async with Authority() as authority, Protected(authority) as server:
        config = write_config(tmp_path, {"my s": entry_of(server)})
        words = ["login", "my s", "--config", str(config), *(["--device"] if is_device else ["--scope", "more"])]
        process = await asyncio.create_subprocess_exec(
            *quick_isthmus(*words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
            cwd=tmp_path,
        )
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().strip()
        if not is_device:
            await visit(address)
        out, err = await asyncio.wait_for(process.communicate(), 20.0)
    said = err.decode()
    assert (process.returncode, out) == (0, b"")
    assert ("enter the code WDJB-MJHT" in said) is is_device
    assert said.splitlines()[-1].startswith("Logged in at my-s until ")
    assert "token-1" not in said + address
    assert b"token-1" in (Vault(tmp_path / "state").get(Slot("my-s")) or b"")
    assert main(["logout", "my s", "--config", str(config)]) == 0
    assert Vault(tmp_path / "state").get(Slot("my-s")) is None
    if not is_device:
        assert authority.asked[0]["scope"] == "more"


def test_a_server_without_login_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"grant": "client_credentials", "client_id": "x", "client_secret": "a secret of the hub"}
    servers = {"local": {"command": "true"}, "own": {"url": "https://a.example", "oauth": own}}
    config = write_config(tmp_path, servers)
    cases = [
        (["login", "gone"], 2, "there is no server 'gone' in the configuration"),
        (["login", "local"], 1, "no login at local: only servers over HTTP have a login"),
        (["login", "own"], 1, "client_credentials needs no login"),
        (["login", "own", "--caller", "bob"], 1, "add [servers.own.callers.bob.oauth]"),
        (["login", "own", "--caller", "acme/bob"], 1, 'add [servers.own.callers."acme/bob".oauth]'),
        (["logout", "own"], 2, "there is no login at own"),
    ]
    for words, code, received in cases:
        assert main([*words, "--config", str(config)]) == code
        said = capsys.readouterr().err
        assert received in said
        assert "a secret of the hub" not in said
    assert main(["login", "--config", str(config)]) == 2
