"""Secrets are found by the names they go under, and blanked."""

from __future__ import annotations

from isthmus.config.findings import Place
from isthmus.config.redaction import any_secret, secrets_of, without


def test_literal_secrets_are_found_wherever_people_put_them() -> None:
    fields: dict[str, object] = {
        "headers": {"Authorization": "Bearer in-header", "Accept": "text/plain", "X-Api-Key": 5},
        "env": {"GITHUB_TOKEN": "in-env", "MODE": "fast", "PASSWORD": ""},
        "url": "https://a.example/mcp?team=blue&api_key=in%2Durl#top",
        "args": [
            *("-y", "server", "--access-token", "in-args", "--secret=in-option", 5, "-e", "API_KEY=in-setting"),
            *("--header", "Authorization: Bearer in-line", "--token"),
        ],
        "rpc": "https://a.example/rpc?token=in-rpc",
        "defaults": {"read": {"password": "in-default", "depth": 5}, "list": 5},
    }
    assert secrets_of(fields) == {
        "Bearer in-header",
        "in-header",
        "in-env",
        "in%2Durl",
        "in-args",
        "in-option",
        "in-setting",
        "Bearer in-line",
        "in-line",
        "in-rpc",
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


def test_a_finding_is_told_without_its_secrets() -> None:
    finding = Place(None, "servers.a").finding("is hunter22", value="'hunter2-long hunter22'", advice="not hunter22")
    blanked = without({"hunter22", "hunter2-long", "a"}, finding)
    assert str(blanked) == "servers.a is ***, not '*** ***' (not ***)"
