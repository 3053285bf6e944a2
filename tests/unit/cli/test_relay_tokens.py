"""Tokens at the command line: made, read and revoked without a hub that runs."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from isthmus.app.relay_keys import Revocations, relay_key
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.main import main
from isthmus.cli.relay_tokens import configured_origin, device_address, relay_base, server_address
from isthmus.config.settings import HubSettings, local_origin
from isthmus.identity import relay_tokens as identity
from isthmus.identity.relay_tokens import WHY, RelayTokens, TokenSettings
from isthmus.model.relay import DEFAULT_TENANT, Claim
from tests.relay.tokens import KEY, python_token


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("ISTHMUS_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RELAY_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    configure(tmp_path)
    return tmp_path


def configure(folder: Path, relay: str = 'key = "env:RELAY_KEY"', hub: str = "") -> None:
    (folder / "isthmus.toml").write_text(f'[hub]\nstate = "state"\n{hub}\n[relay]\n{relay}\n')


def tokens(key: str = KEY) -> RelayTokens:
    return RelayTokens(key, TokenSettings(compatible_agents="any"), time.time, lambda _: False)


def claim_in(address: str) -> Claim:
    claim = tokens().read(parse_qs(urlsplit(address).query)["token"][0])
    assert isinstance(claim, Claim), claim
    return claim


class Said:
    """What a command printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        self.code = main(list(words))
        captured = capsys.readouterr()
        self.out, self.err = captured.out, captured.err

    @property
    def rows(self) -> dict[str, str]:
        return dict(line.split(maxsplit=1) for line in self.out.splitlines())

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def give(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


# -- making --------------------------------------------------------------------------------------------------------


def test_both_addresses_are_ready_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "token", "relay", "kitchen")
    assert said.code == Exit.SUCCESS
    assert said.rows["server"].startswith("ws://127.0.0.1:8765/mcp_endpoint/mcp/?token=isr1.")
    assert said.rows["device"].startswith("ws://127.0.0.1:8765/mcp_endpoint/call/?token=isr1.")
    claim = claim_in(said.rows["server"])
    assert (claim.agent, claim.tenant, claim.role, claim.id) == ("kitchen", "default", None, said.rows["id"])
    assert claim_in(said.rows["device"]) == claim
    assert said.rows["expires"] == "never"
    assert is_taken_by_xiaozhi(said.rows["xiaozhi"])
    assert said.rows["xiaozhi"].replace("/mcp/", "/call/") == said.rows["device"]  # as its devices do
    assert said.rows["health"] == "http://127.0.0.1:8765/mcp_endpoint/health?key=KEY"
    assert "is in [relay] key; --health prints it" in said.err
    assert KEY not in said.out + said.err


def is_taken_by_xiaozhi(address: str) -> bool:
    """The check of its server's configuration."""
    return (
        address.startswith("ws") and "/mcp/" in address and not any(word in address.lower() for word in ("key", "call"))
    )


def test_the_health_address_has_the_key_only_if_it_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("token", "relay", "kitchen", "--url", "wss://hub.example/x")
    said = Said(capsys, *words, "--health")
    assert said.rows["health"] == f"https://hub.example/x/mcp_endpoint/health?key={KEY}"
    assert "keep it secret" in said.err
    assert Said(capsys, *words, "--health", "--json").json["health"] == said.rows["health"]
    assert Said(capsys, *words, "--json").json["health"] is None
    configure(folder, relay="")
    said = Said(capsys, *words)
    assert f"is in {folder / 'state' / 'relay' / 'key'};" in said.err
    assert relay_key(None, folder / "state") not in said.out + said.err


def test_everything_that_a_token_can_say(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "--tenant",
        "acme",
        "--role",
        "server",
        "--expires",
        "2h",
        "--server-id",
        "the oven",
        "--url",
        "https://h/x",
    )
    said = Said(capsys, "token", "relay", "kitchen", *words, "--json")
    received = said.json
    assert received["device"] is None
    assert received["server"].startswith("wss://h/x/mcp_endpoint/mcp/?token=")
    assert received["server"].endswith("&server_id=the%20oven")
    claim = claim_in(received["server"])
    assert (claim.agent, claim.tenant, claim.role) == ("kitchen", "acme", "server")
    assert claim.expires_at is not None
    assert 7100 < claim.expires_at - time.time() <= 7201
    assert (received["agent"], received["tenant"], received["role"], received["id"]) == (
        "kitchen",
        "acme",
        "server",
        claim.id,
    )


def test_a_device_of_its_own_has_an_address_that_xiaozhi_takes(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "token", "relay", "kitchen", "--role", "device")
    assert said.rows.keys() == {"device", "xiaozhi", "id", "expires"}
    assert is_taken_by_xiaozhi(said.rows["xiaozhi"])
    assert claim_in(said.rows["device"]).role == "device"


def test_one_as_the_original_makes_it(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "token", "relay", "single_module", "--compatible", "--json")
    assert said.json["token"] == python_token("single_module")
    assert claim_in(said.json["server"]) == claim_in(said.json["device"])
    assert "for ever" in said.err
    again = Said(capsys, "token", "relay", "single_module", "--compatible", "--json")
    assert again.json["token"] == said.json["token"]


def test_one_that_others_could_make_is_refused_and_older_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for agent in ("homestead", "home"):
        assert "Refused from now on" not in Said(capsys, "token", "relay", agent, "--compatible").err
    assert "Tokens of home are refused from now on" in Said(capsys, "token", "relay", "barn", "--compatible").err
    assert "its token could be spliced from others" in Said(capsys, "token", "relay", "home", "--compatible").err


def test_the_address_is_the_published_one_if_there_is_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(folder, hub='public_url = "https://hub.example/isthmus"\nhost = "0.0.0.0"')
    said = Said(capsys, "token", "relay", "kitchen")
    assert said.rows["device"].startswith("wss://hub.example/isthmus/mcp_endpoint/call/?token=")
    assert "--url" not in said.err
    configure(folder, hub='host = "0.0.0.0"')
    said = Said(capsys, "token", "relay", "kitchen")
    assert said.rows["device"].startswith("ws://127.0.0.1:8765/")
    assert "name the hub's public address with --url" in said.err


def test_without_a_configured_key_one_is_made_and_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(folder, relay="")
    token = Said(capsys, "token", "relay", "kitchen", "--json").json["token"]
    key = relay_key(None, folder / "state")
    assert isinstance(tokens(key).read(token), Claim)


def test_tokens_that_devices_would_refuse_are_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = "A xiaozhi server rejects its address"
    assert refused in Said(capsys, "token", "relay", "a", "--url", "ws://callhub").err
    assert refused not in Said(capsys, "token", "relay", "a", "--server-id", "monKEY").err  # that is for servers alone
    assert refused not in Said(capsys, "token", "relay", "a", "--url", "ws://callhub", "--role", "server").err
    configure(folder, relay="enabled = false")
    assert 'need [relay] compatible_agents = "md5"' in Said(capsys, "token", "relay", "a", "--health").err
    assert "switched off" in Said(capsys, "token", "relay", "a").err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a/b"], "the agent must be 1 to 128 printable characters"),
        (["a/b", "--compatible"], "the agent must be 1 to 128 printable characters"),
        (["a", "--tenant", "x/y"], "the tenant must be"),
        (["a", "--expires", "3x"], "--expires must be a time like 12h, 30d or 52w, got '3x'"),
        (["a", "--expires", "0d"], "--expires must be a time"),
        (["a", "--expires", "999999w"], "--expires must be a time"),
        (["a", "--url", "hub"], "--url must be the hub's address"),
        (["a", "--compatible", "--expires", "1d"], "--compatible excludes"),
        (["a", "--server-id", "x" * 65], "--server-id must be 1 to 64 printable characters"),
        (["a", "--server-id", "x", "--role", "device"], "--server-id is for servers"),
        (["a", "--role", "robot"], "Invalid value for '--role'"),
    ],
)
def test_an_impossible_token_is_reported_with_advice(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = Said(capsys, "token", "relay", *words)
    assert (said.code, said.out) == (Exit.USAGE, "")
    assert expected in said.err


def test_a_configuration_that_stands_in_the_way(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(folder, relay="compatible = false")
    assert Said(capsys, "token", "relay", "a", "--compatible").code == Exit.CONFIGURATION
    configure(folder, relay="")
    (folder / "state" / "relay").mkdir(parents=True, exist_ok=True)
    (folder / "state" / "relay" / "key").write_text("cut")
    damaged = Said(capsys, "token", "relay", "a")
    assert (damaged.code, "delete it to create a new one" in damaged.err) == (Exit.CONFIGURATION, True)
    configure(folder, relay="", hub="port = 0")
    assert "the configuration has port 0" in Said(capsys, "token", "relay", "a").err
    (folder / "isthmus.toml").write_text('[hub]\nstate = "isthmus.toml"')
    unusable = Said(capsys, "token", "relay", "a")
    assert (unusable.code, "cannot be used" in unusable.err) == (Exit.CONFIGURATION, True)
    assert Said(capsys, "token", "revoke", "0a1b" * 4).code == Exit.CONFIGURATION


# -- revoking and reading ------------------------------------------------------------------------------------------


def test_a_revoked_token_is_rejected(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Said(capsys, "token", "relay", "kitchen", "--json").json
    give(monkeypatch, made["token"] + "\n")
    assert Said(capsys, "token", "read").rows["state"] == "good"
    said = Said(capsys, "token", "revoke", made["id"])
    assert (said.code, said.out) == (Exit.SUCCESS, f"revoked {made['id']}\n")
    assert Revocations(folder / "state", ()).has(made["id"])
    give(monkeypatch, made["token"])
    read = Said(capsys, "token", "read", "--json")
    assert read.code == Exit.NOT_ALLOWED
    assert read.json == {
        "agent": "kitchen", "tenant": "default", "role": "both", "id": made["id"], "expires": None, "good": False,
        "reason": "it was revoked",
    }  # fmt: skip


def test_a_token_itself_is_no_id_and_is_not_quoted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tokens().mint(Claim("kitchen"))
    said = Said(capsys, "token", "revoke", token)
    assert said.code == Exit.USAGE
    assert token not in said.err + said.out
    assert not (folder / "state").exists()


@pytest.mark.parametrize("id", ["kitchen", "0a1b", "nothex", "0a1b" * 5, "0A1B" * 4, "g" * 16])
def test_an_invalid_id_revokes_nothing_and_is_reported(
    id: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = Said(capsys, "token", "revoke", id)
    assert (said.code, said.out) == (Exit.USAGE, "")
    assert "16 to 18 digits and letters from a to f" in said.err
    assert not (folder / "state").exists()


@pytest.mark.parametrize("given", ["token", "device"])
def test_the_claims_of_a_token_are_shown_also_from_an_address(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Said(capsys, "token", "relay", "厨房", "--role", "device", "--expires", "1d", "--json").json
    give(monkeypatch, made[given])
    rows = Said(capsys, "token", "read").rows
    assert (rows["agent"], rows["role"], rows["id"], rows["state"]) == ("厨房", "device", made["id"], "good")
    assert rows["expires"] == made["expires"]


def test_an_ended_one_is_shown_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    give(monkeypatch, tokens().mint(Claim("kitchen", expires_at=1.0)))
    said = Said(capsys, "token", "read")
    assert (said.code, said.rows["state"]) == (Exit.NOT_ALLOWED, "it has expired")


@pytest.mark.parametrize(
    "text", ["", "nonsense", "isr1.x.y", "http://[", python_token("a", "another key of any length")]
)
def test_a_foreign_token_is_refused_and_not_quoted(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give(monkeypatch, text)
    said = Said(capsys, "token", "read")
    assert (said.code, said.out) == (Exit.NOT_ALLOWED, "")
    assert not text or text not in said.err


def test_the_prompt_for_a_token_hides_the_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, bool]] = []

    def prompt(text: str, *, hide_input: bool, err: bool) -> str:
        asked.append((text, hide_input and err))
        return tokens().mint(Claim("kitchen"))

    monkeypatch.setattr("sys.stdin", Keyboard())
    monkeypatch.setattr("click.prompt", prompt)
    assert Said(capsys, "token", "read").rows["agent"] == "kitchen"
    assert asked == [("Token", True)]


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_every_reason_has_words_for_a_person() -> None:
    reasons = {value for name, value in vars(identity).items() if name.isupper() and isinstance(value, str)}
    assert set(WHY) == reasons - {identity.PREFIX, identity.ID_RULE, DEFAULT_TENANT}


# -- addresses


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1"),
        ("[::1]", "http://[::1]:1"),
        ("hub.example", "http://hub.example:1"),
    ],
)
def test_a_hub_is_found_from_this_machine(host: str, origin: str) -> None:
    assert local_origin(host, 1) == origin
    assert configured_origin(HubSettings(host=host, port=1)) == origin


def test_an_open_port_is_unknown_to_others() -> None:
    with pytest.raises(CommandFailed, match="the configuration has port 0") as failed:
        configured_origin(HubSettings(port=0))
    assert failed.value.exit is Exit.USAGE


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("ws://hub:1", "ws://hub:1"),
        ("wss://hub/", "wss://hub"),
        ("http://hub:1", "ws://hub:1"),
        ("https://hub/under/", "wss://hub/under"),
        ("wss://hub/under/mcp_endpoint/mcp/", "wss://hub/under"),
        ("ws://[::1]:1", "ws://[::1]:1"),
    ],
)
def test_any_address_of_the_hub_will_do(url: str, base: str) -> None:
    assert relay_base(url) == base


@pytest.mark.parametrize(
    "url",
    ["", "hub", "hub:1", "ftp://hub", "ws://", "ws://hub:x", "ws://hub?token=a", "ws://u:p@hub", "ws://[", "ws://h u"],
)
def test_an_invalid_address_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(CommandFailed, match="--url must be the hub's address") as failed:
        relay_base(url)
    assert failed.value.exit is Exit.USAGE
    assert "token" not in failed.value.message


def test_the_two_ends_of_the_relay() -> None:
    assert server_address("ws://h", "a+b/c=") == "ws://h/mcp_endpoint/mcp/?token=a%2Bb%2Fc%3D"
    assert server_address("ws://h", "t", "the oven") == "ws://h/mcp_endpoint/mcp/?token=t&server_id=the%20oven"
    assert device_address("ws://h", "t") == "ws://h/mcp_endpoint/call/?token=t"
