"""The issuers of a file; a mistake in one costs only that one, and never opens the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config.dialects.clients import CODEX
from isthmus.config.dialects.dialect import OWN
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError
from isthmus.config.issuers import read_issuers
from isthmus.config.load import load
from isthmus.core.access.tenants import Tenants, TenantSettings
from isthmus.identity.settings import ALGORITHMS, IssuerSettings
from isthmus.model.callers import Grants

FILE = Path("/etc/hub/isthmus.toml")
TEAM = "https://team.example"
GOOD = {"issuer": "https://login.example", "audience": "https://hub.example", "allow": ["files.*"]}


def read(issuers: object, public_url: str | None = None) -> tuple[tuple[IssuerSettings, ...], list[str]]:
    found, told = read_issuers(Document(FILE, {"issuers": issuers}, OWN), public_url)
    return found, [str(finding) for finding in told]


def test_without_a_file_or_a_table_there_are_none() -> None:
    assert read_issuers(None, None) == ((), ())
    assert read({}) == ((), [])
    assert read_issuers(Document(FILE, {"issuers": {"corp": GOOD}}, CODEX), None) == ((), ())


def test_an_entry_fills_the_settings() -> None:
    entry = {
        **GOOD,
        "audience": ["https://hub.example", "api://hub"],
        "jwks": "https://login.example/keys",
        "algorithms": ["RS256"],
        "leeway": 5,
        "tenant": "acme",
        "tenant_claim": "org",
        "name_claim": "client_id",
        "deny": ["files.delete"],
        "scopes": {"files:write": ["files.write"]},
    }
    expected = IssuerSettings(
        name="corp",
        issuer="https://login.example",
        audience=("https://hub.example", "api://hub"),
        jwks="https://login.example/keys",
        algorithms=("RS256",),
        leeway=5,
        tenant="acme",
        tenant_claim="org",
        name_claim="client_id",
        grants=Grants(("files.*",), ("files.delete",)),
        scopes={"files:write": ("files.write",)},
    )
    assert read({"corp": entry}) == ((expected,), [])


def test_what_is_not_said_has_a_safe_default() -> None:
    [settings], _ = read({"corp": GOOD})
    assert settings.algorithms == ALGORITHMS
    assert (settings.tenant, settings.name_claim, settings.jwks) == ("default", "sub", None)
    entry = {key: value for key, value in GOOD.items() if key != "audience"}
    [settings], _ = read({"corp": entry}, "https://hub.example/")
    assert settings.audience == ("https://hub.example", "https://hub.example/", "https://hub.example/mcp")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"audience": None}, "issuers.bad.audience must be given where the hub has no public_url, not left out"),
        ({"audience": 1}, "issuers.bad.audience must be a text, not 1"),
        ({"issuer": None}, "issuers.bad.issuer must be an https address"),
        ({"issuer": "https://login.example"}, "issuers.bad.issuer must be another than that of good"),
        ({"algorithms": ["HS256"]}, "issuers.bad.algorithms.0 must be one of RS256"),
        ({"leeway": 600}, "issuers.bad.leeway must be 0 to 60 seconds, not 600"),
        ({"allow": ["a.b.*"]}, "issuers.bad.allow.0 must"),
        ({"denny": ["files.delete"]}, "issuers.bad must have only issuer, audience"),
        ({"scopes": {"files:read": ["*.*"]}}, "issuers.bad.scopes.files:read.0 must"),
        ({"scopes": ["files:read"]}, "issuers.bad.scopes must be a table"),
        ({"tenant": " "}, "issuers.bad.tenant must be a printable text"),
    ],
)
def test_a_mistake_costs_its_own_entry(change: dict[str, Any], told: str) -> None:
    bad = {**GOOD, "issuer": "https://bad.example", **change}
    found, findings = read({"good": GOOD, "bad": {key: value for key, value in bad.items() if value is not None}})
    assert [settings.name for settings in found] == ["good"]
    assert len(findings) == 1
    assert f"isthmus.toml: {told}" in findings[0]
    assert findings[0].endswith("(this issuer is left out)")


def test_an_issuer_whose_tokens_allow_nothing_is_told() -> None:
    found, [told] = read({"corp": {**GOOD, "allow": []}})
    assert len(found) == 1
    assert "lets nobody call anything" in told


def test_if_none_is_usable_the_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="issuers are configured but none is usable, and the hub must not be open"):
        read({"corp": 1})


def test_a_mistyped_table_refuses_the_file(tmp_path: Path) -> None:
    file = tmp_path / "isthmus.toml"
    file.write_text('[isuers.corp]\nissuer = "https://login.example"\n')
    with pytest.raises(ConfigError, match="isuers is not known and has no effect"):
        load(file, {}, tmp_path, tmp_path)


def test_a_file_with_issuers_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "isthmus.toml"
    file.write_text(
        '[issuers.corp]\nissuer = "https://login.example"\naudience = "https://hub.example"\nallow = ["*"]\n'
    )
    configuration = load(file, {}, tmp_path, tmp_path)
    assert [settings.name for settings in configuration.issuers] == ["corp"]
    assert configuration.warnings == ()


def test_an_issuer_whose_callers_would_be_called_like_one_of_the_file_is_left_out() -> None:
    """They would own each other's tasks."""
    table = {"issuers": {"corp": GOOD, "team": {**GOOD, "issuer": TEAM}}}
    found, told = read_issuers(Document(FILE, {**table, "callers": {"corp/alice": {}, "team": {}}}, OWN), None)
    assert [issuer.name for issuer in found] == ["team"]
    assert "issuers.corp must have another name than the caller 'corp/alice' begins with" in str(told[0])


def test_a_tenant_is_one_that_is_configured_where_any_are() -> None:
    document = Document(FILE, {"issuers": {"corp": {**GOOD, "tenant": "acne"}, "team": {**GOOD, "issuer": TEAM}}}, OWN)
    found, told = read_issuers(document, None, Tenants({"acme": TenantSettings()}))
    assert [issuer.name for issuer in found] == ["team"]
    assert "issuers.corp.tenant must be one of acme, not 'acne'" in str(told[0])
    assert len(read_issuers(document, None)[0]) == 2, "where none are, any will do"
