"""Secrets are found by the names they go under, and blanked."""

from __future__ import annotations

import pytest

from isthmus.config.entry_secrets import any_secret, secrets_of, with_parts, without
from isthmus.config.findings import Place


def test_literal_secrets_are_found_wherever_people_put_them() -> None:
    fields: dict[str, object] = {
        "headers": {"Authorization": "Bearer in-header", "Accept": "text/plain", "X-Api-Key": 98765},
        "env": {"GITHUB_TOKEN": "in-env", "MODE": "fast", "PASSWORD": ""},
        "url": "https://a.example/mcp?team=blue&api_key=in%2Durl#top",
        "args": [
            *("-y", "server", "--access-token", "in-args", "--secret=in-option", 5, "-e", "API_KEY=in-setting"),
            *("--header", "Authorization: Bearer in-line", "--token"),
        ],
        "rpc": "https://a.example/rpc?token=in-rpc",
        "agent": "https://a.example/?token=in-agent",
        "defaults": {"read": {"password": "in-default", "depth": 5}, "list": 5},
    }
    assert secrets_of(fields) == {
        "Bearer in-header",
        "in-header",
        "98765",
        "in-env",
        "in%2Durl",
        "in-args",
        "in-option",
        "in-setting",
        "Bearer in-line",
        "in-line",
        "in-rpc",
        "in-agent",
        "in-default",
    }


def test_a_variable_that_is_not_set_is_no_secret() -> None:
    assert secrets_of({"env": {"TOKEN": "${TOKEN}"}, "headers": {"Authorization": "Bearer ${TOKEN}"}}) == {
        "Bearer ${TOKEN}"
    }


def test_entries_of_any_shape_have_no_secrets_rather_than_a_crash() -> None:
    assert secrets_of({"headers": [], "env": "TOKEN=a", "url": 5, "args": "--token a"}) == set()
    assert secrets_of({}) == set()


def test_a_secret_is_known_however_deep_it_is() -> None:
    assert any_secret({"auth": [{"CLIENT_SECRET": "x"}]})
    assert not any_secret({"auth": [{"CLIENT_SECRET": ""}], "tokens": 5, "mode": "fast"})


def test_a_finding_is_printed_without_its_secrets() -> None:
    finding = Place(None, "servers.a").finding("is hunter22", value="'hunter2-long hunter22'", advice="not hunter22")
    blanked = without({"hunter22", "hunter2-long", "a"}, finding)
    assert str(blanked) == "servers.a is ***, not '*** ***' (not ***)"


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("DB_PASS", True),
        ("PASS", True),
        ("dbPass", True),
        ("MYSQL_PWD", True),
        ("userPwd", True),
        ("GITHUB_PAT", True),
        ("PAT", True),
        ("SENTRY_DSN", True),
        ("PWD", False),
        ("OLDPWD", False),
        ("PATH", False),
        ("PATTERN", False),
        ("COMPASS", False),
    ],
)
def test_names_of_secrets_are_distinguished_from_others(name: str, *, is_secret: bool) -> None:
    assert secrets_of({"env": {name: "hunter22"}}) == ({"hunter22"} if is_secret else set())


def test_a_number_can_be_a_secret() -> None:
    assert secrets_of({"env": {"API_KEY": 9876543210, "TOKEN": True}, "args": ["--token", 12345678]}) == {
        "9876543210",
        "12345678",
    }
    assert any_secret({"nested": {"api_key": 9876543210}})


@pytest.mark.parametrize(
    ("address", "passwords"),
    [
        ("postgres://me:hunter22@db:5432/x", {"hunter22"}),
        ("redis://:hunter22@db/0", {"hunter22"}),
        ("mysql://me:hun%40ter@db/x", {"hun%40ter", "hun@ter"}),
        ("amqp://me:hun@ter@mq", {"hun", "hun@ter"}),
    ],
)
def test_the_password_of_an_address_is_a_secret_and_so_is_the_address(address: str, passwords: set[str]) -> None:
    assert secrets_of({"env": {"DATABASE_URL": address}}) == {address, *passwords}
    assert secrets_of({"args": ["run", f"--db={address}"]}) == {address, *passwords}
    assert any_secret({"nested": [address]})


def test_the_password_of_an_address_from_a_variable_is_a_secret_by_itself() -> None:
    assert with_parts({"x", "redis://:hunter22@db"}) == {"x", "redis://:hunter22@db", "hunter22"}


def test_an_address_without_a_password_is_no_secret() -> None:
    texts = ["http://db:5432/x", "https://npm.example:443/@scope/x", "postgres://db/x", "https://a.example:8080?to=a@b"]
    assert secrets_of({"env": dict(zip("ABCD", texts, strict=True)), "args": texts}) == set()


def test_a_line_of_settings_has_its_password_found() -> None:
    assert secrets_of({"env": {"DB": "Server=db;User Id=me;Password=hunter22;"}}) == {"hunter22"}


def test_looking_for_addresses_costs_no_more_than_a_text_is_long() -> None:
    assert secrets_of({"args": ["a://b:" * 100_000, "x" * 500_000]}) == set()
