"""Credentials of servers, and the key that encrypts logins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config.findings import ConfigError
from isthmus.config.load import load
from isthmus.config.settings import Configuration
from isthmus.model.credentials import OAuthSettings, OwnCredentials, Subject, subject_of
from tests.hubs import write_config

URL = "https://search.example/mcp"
SECRET = "hunter2-is-the-secret"


def loaded(folder: Path, entry: dict[str, Any], env: dict[str, str] | None = None, **tables: Any) -> Configuration:
    return load(write_config(folder, {"search": entry}, **tables), env or {}, folder, folder)


def test_a_login_is_read_with_its_secrets_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}-file\n")
    entry = {
        "url": URL,
        "oauth": {"grant": "client_credentials", "client_id": "hub", "client_secret": "env:S", "scope": ["a", "b"]},
        "callers": {
            "planner": {"headers": {"Authorization": "file:secret"}},
            "acme/bob": {"oauth": {"client_id": "x", "client_secret": "env:S"}},
        },
        "credentials": "caller",
    }
    configuration = loaded(tmp_path, entry, {"S": SECRET})
    assert not configuration.warnings
    (server,) = configuration.servers
    credentials = server.credentials
    assert credentials.oauth == OAuthSettings("client_credentials", client_id="hub", client_secret=SECRET, scope="a b")
    assert credentials.are_demanded
    assert credentials.own == {
        Subject("default", "planner"): OwnCredentials({"Authorization": f"{SECRET}-file"}),
        Subject("acme", "bob"): OwnCredentials({}, OAuthSettings(client_id="x", client_secret=SECRET)),
    }
    assert SECRET not in repr(configuration)
    assert server.redact(f"it says {SECRET}-file and {SECRET}") == "it says *** and ***"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"oauth": "yes"}, "oauth must be a table"),
        ({"oauth": {"grant": "password"}}, "oauth.grant must be one of authorization_code, device"),
        ({"oauth": {"clientId": "x"}}, "oauth must have only audience, authorization_endpoint"),
        (
            {"oauth": {"grant": "client_credentials"}},
            "oauth.client_secret must be set, or private_key, for client_cre",
        ),
        ({"oauth": {"client_secret": SECRET}}, "oauth.client_id must be set beside client_secret"),
        ({"oauth": {"client_id": "x", "private_key": SECRET}}, "oauth.private_key must be an unencrypted PEM"),
        ({"oauth": {"issuer": "javascript:alert(1)"}}, "oauth.issuer must be a URL with http or https://"),
        (
            {"oauth": {"client_metadata": "http://a.example/c"}},
            "oauth.client_metadata must be a URL with https://",
        ),
        ({"oauth": {"token_endpoint": "https://u:p@a.example"}}, "oauth.token_endpoint must be a URL"),
        ({"oauth": {"scope": "a  b"}}, "oauth.scope must be words separated by single spaces"),
        ({"oauth": {"origins": ["localhost:9"]}}, "oauth.origins.0 must be like http://localhost:9000"),
        ({"oauth": {"dpop": "yes"}}, "oauth.dpop must be one of auto, always, never"),
        ({"oauth": {"grant": "jwt_bearer"}}, "oauth.identity_token_file must be set, or identity_token"),
        ({"oauth": {"identity_token": SECRET}}, "oauth.identity_token must not be set for authorization_code"),
        (
            {"oauth": {"grant": "jwt_bearer", "identity_token_file": "token"}},
            "oauth.identity_token_file must be an absolute path",
        ),
        (
            {"oauth": {"grant": "jwt_bearer", "identity_token_file": "/token", "identity_token": SECRET}},
            "oauth.identity_token must not be set beside identity_token_file",
        ),
        ({"oauth": {"grant": "jwt_bearer", "identity_token": f"{SECRET} x"}}, "oauth.identity_token must be one word"),
        ({"oauth": {"grant": "enterprise_managed"}}, "oauth.idp_issuer must be set, or idp_token_endpoint"),
        (
            {"oauth": {"grant": "enterprise_managed", "idp_issuer": "https://a.example"}},
            "oauth.idp_client_id must be set",
        ),
        (
            {"oauth": {"grant": "enterprise_managed", "idp_issuer": "https://a.example", "idp_client_id": "x"}},
            "oauth.client_secret must be set where callers' own tokens are exchanged",
        ),
        ({"oauth": {"redirect_port": 70000}}, "oauth.redirect_port must be 0 to 65535"),
        ({"oauth": {"client_id": "x", "client_secret": 5}}, "oauth.client_secret must be a text"),
        ({"oauth": {"client_id": "x", "client_secret": "env:GONE"}}, "oauth.client_secret must name a variable"),
        ({"callers": {"p": {"header": {}}}}, "callers.p must have only headers, oauth"),
        ({"callers": {"p": {"headers": {"a b": "x"}}}}, "callers.p.headers must have names that HTTP allows"),
        ({"callers": {"/p": {}}}, "callers must be named NAME or TENANT/NAME"),
        ({"callers": {"p": {"headers": {"A": "env:GONE"}}}}, "callers.p.headers.A must name a variable"),
        ({"credentials": "each"}, "credentials must be one of any, caller"),
    ],
)
def test_a_broken_login_costs_its_server_with_the_error(tmp_path: Path, more: dict[str, Any], expected: str) -> None:
    configuration = loaded(tmp_path, {"url": URL, **more})
    assert configuration.servers == ()
    (finding,) = configuration.warnings
    assert f"servers.search.{expected}" in str(finding)
    assert SECRET not in str(finding)


def test_a_login_at_a_program_has_no_effect_and_is_reported(tmp_path: Path) -> None:
    configuration = loaded(tmp_path, {"command": "true", "oauth": {}})
    assert [str(finding) for finding in configuration.warnings] == [
        "isthmus.json: servers.search.oauth has no effect beside command"
    ]


def test_a_login_that_changes_starts_its_server_anew(tmp_path: Path) -> None:
    (one,) = loaded(tmp_path, {"url": URL, "oauth": {"scope": "a"}}).servers
    (two,) = loaded(tmp_path, {"url": URL, "oauth": {"scope": "b"}}).servers
    assert one != two


def test_the_key_that_logins_are_sealed_with_may_be_elsewhere(tmp_path: Path) -> None:
    keys = {"key": "env:NEW", "old_keys": ["env:OLD"]}
    env = {"NEW": "a-new-key-of-sixteen", "OLD": "an-old-key-of-sixteen"}
    settings = loaded(tmp_path, {"url": URL}, env, credentials=keys).credentials
    assert (settings.key, settings.old_keys) == (env["NEW"], (env["OLD"],))
    assert env["NEW"] not in repr(settings)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"key": "short"}, "credentials.key must have 16 characters or more, not 5"),
        ({"old_keys": ["an-old-key-of-sixteen"]}, "credentials.old_keys must come with key"),
        ({"key": "env:GONE"}, "credentials.key must name a variable that is set"),
        ({"key": "${GONE}-and-some-more-of-it"}, "credentials.key must have only variables that are set"),
    ],
)
def test_a_key_that_cannot_be_used_refuses_the_file(tmp_path: Path, table: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        loaded(tmp_path, {"url": URL}, credentials=table)


@pytest.mark.parametrize(
    ("place", "is_there"),
    [
        (("http", "localhost", 9000), True),
        (("http", "localhost", 9001), False),
        (("https", "localhost", 9000), False),
        (("http", "127.0.0.1", 1), True),
        (("http", "127.0.0.1", 65535), True),
        (("https", "login.example", 443), True),
        (("https", "login.example", 444), False),
        (("https", "evil.example", 443), False),
        (("http", "::1", 80), True),
    ],
)
def test_a_login_leads_only_where_the_operator_says(place: tuple[str, str, int], is_there: bool) -> None:  # noqa: FBT001
    origins = ("http://localhost:9000", "http://127.0.0.1:*", "http://[::1]")
    settings = OAuthSettings(issuer="https://login.example/tenant", origins=origins)
    assert settings.allows(*place) is is_there


def test_a_caller_is_named_by_itself_or_with_its_tenant() -> None:
    assert subject_of("bob") == Subject("default", "bob")
    assert subject_of("acme/corp/bob") == Subject("acme", "corp/bob")
