"""T36: a hub with keys that are guessable, or that came with it.

No key comes with the hub, and none is in its documentation: what it needs for itself it makes at random, in a folder
of its own. A key below 16 characters is refused wherever the hub listens; its caller is left out, and a hub all of
whose callers are left out does not start. That a key is long enough is all that is asked of it.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from isthmus.app.caller_identity import Identities
from isthmus.app.relay_keys import relay_key
from isthmus.app.tokens import TokenService, secret_in
from isthmus.cli.main import main
from isthmus.config.finding_codes import NO_USABLE_CALLER, OPEN_TO_NETWORK, WEAK_KEY
from isthmus.config.load import load
from isthmus.identity.keys import digest_of
from tests.fork_server import quick_isthmus
from tests.hubs import CHECKOUT, Raw, environment, started, write_config

REFUSED = 3
SHORT = {"changeme": "changeme", "eight": "8letters", "fifteen": "fifteen-letters", "empty": "", "admin": "admin"}


async def refused(folder: Path, **tables: object) -> tuple[int | None, str]:
    """How `isthmus serve` ends, and what it says."""
    config = write_config(folder, {}, **tables)
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("serve", "--config", str(config), "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, said.decode()


async def test_a_hub_with_a_short_key_does_not_start_not_even_on_loopback(tmp_path: Path) -> None:
    code, said = await refused(tmp_path, callers={"planner": {"key": SHORT["changeme"], "allow": ["*"]}})
    assert code == REFUSED
    assert "callers.planner.key must have 16 characters or more, not 8" in said
    assert "changeme" not in said


def test_a_short_key_admits_no_caller_though_the_file_has_its_digest(tmp_path: Path) -> None:
    """A digest does not reveal the length of its key; the key itself does."""
    key = SHORT["changeme"]
    callers = {"planner": {"key": f"sha256:{digest_of(key).hex()}", "allow": ["*"]}}
    configuration = load(write_config(tmp_path, {}, callers=callers), {}, tmp_path, tmp_path)
    identities = Identities(configuration)
    identities.decide()
    assert identities.callers()
    assert identities.identify({b"x-api-key": key.encode()}) is None
    assert TokenService(configuration, identities).token_for("planner", key) is None


async def test_a_hub_without_callers_does_not_start_where_others_can_reach_it(tmp_path: Path) -> None:
    code, said = await refused(tmp_path, hub={"host": "0.0.0.0"})
    assert code == REFUSED
    for way in ("isthmus token create", "[callers.NAME]", "127.0.0.1", "--insecure"):
        assert way in said


async def test_unless_configured_which_it_logs_loudly(tmp_path: Path) -> None:
    config = write_config(tmp_path, {})
    async with (
        started(tmp_path, "--config", str(config), "--host", "0.0.0.0", "--insecure") as hub,
        Raw(hub.url) as nobody,
    ):
        assert await nobody.names()
        assert any("INSECURE: everybody who can reach this address" in line for line in hub.said)
        assert not (tmp_path / "state" / "keys").exists()


def checked(folder: Path, key: str, capsys: pytest.CaptureFixture[str], **more: object) -> tuple[int, str, list[str]]:
    """What `isthmus config check` says of a caller's key: its exit code, its words, and the codes in them."""
    file = write_config(folder, {}, callers={"planner": {"key": key, "allow": ["*"]}}, **more)
    code = main(["config", "check", str(file), "--json"])
    out = capsys.readouterr().out
    return code, out, [finding["code"] for finding in json.loads(out)["findings"]]


@pytest.mark.parametrize("key", SHORT.values(), ids=SHORT)
def test_every_short_key_is_refused_and_not_quoted(
    tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, codes = checked(tmp_path, key, capsys)
    assert code == REFUSED
    assert NO_USABLE_CALLER.number in codes
    assert WEAK_KEY.number in codes or not key
    assert not key or f'"{key}"' not in said


@pytest.mark.parametrize("key", ["a" * 16, "changeme-changeme", "sixteen-letters."])
def test_a_key_that_is_long_enough_is_taken(tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, key, capsys)[0] == 0


def test_a_short_key_of_the_relay_refuses_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, codes = checked(tmp_path, "a" * 16, capsys, relay={"key": "hunter22"})
    assert (code, codes) == (REFUSED, [WEAK_KEY.number])
    assert "hunter22" not in said


def test_one_caller_with_a_short_key_costs_only_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callers = {"a": {"key": "a" * 16, "allow": ["*"]}, "b": {"key": "b" * 15, "allow": ["*"]}}
    file = write_config(tmp_path, {}, callers=callers, hub={"host": "0.0.0.0"})
    assert main(["config", "check", str(file), "--json"]) == REFUSED
    output = json.loads(capsys.readouterr().out)
    assert output["usable"]
    assert [finding["code"] for finding in output["findings"]] == [WEAK_KEY.number]
    assert OPEN_TO_NETWORK.number not in str(output)


def test_the_hubs_own_secrets_are_random(tmp_path: Path) -> None:
    for make in (lambda state: relay_key(None, state), secret_in):
        one, other = make(tmp_path / "one"), make(tmp_path / "other")
        assert one != other
        assert one == make(tmp_path / "one")
        assert len(one) >= 32
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_no_key_is_in_an_example(tmp_path: Path) -> None:
    """A copied example needs a key of its own: the examples name variables, not keys."""
    files = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "examples").rglob("*.toml")]
    written = re.compile(r"^\s*key\s*=\s*\[?\s*\"([^\"]*)\"", re.MULTILINE)
    keys = {key for file in files for key in written.findall(file.read_text())}
    assert keys
    assert not [key for key in keys if not key.startswith(("env:", "file:", "keyring:", "mounted:", "sha256:", "${"))]
