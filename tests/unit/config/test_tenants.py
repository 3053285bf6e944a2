"""The tenants of a file: a mistake never widens access."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.dialects.clients import CODEX
from isthmus.config.dialects.dialect import OWN
from isthmus.config.files import Document
from isthmus.config.tenants import read_tenants
from isthmus.core.access.tenants import NO_TENANTS, Tenants, TenantSettings
from isthmus.model.callers import Grants

FILE = Path("/etc/hub/isthmus.toml")


def read(tenants: object) -> tuple[Tenants, list[str]]:
    found, findings = read_tenants(Document(FILE, {"tenants": tenants}, OWN))
    return found, [str(finding) for finding in findings]


def test_without_a_file_or_a_table_nobody_is_held_to_anything() -> None:
    assert read_tenants(None) == (NO_TENANTS, ())
    assert read_tenants(Document(FILE, {}, OWN)) == (NO_TENANTS, ())
    assert read_tenants(Document(FILE, {"tenants": {"acme": {"deny": ["*"]}}}, CODEX)) == (NO_TENANTS, ())


@pytest.mark.parametrize(
    ("entry", "settings"),
    [
        ({"allow": ["files.*"]}, TenantSettings(Grants(("files.*",)))),
        ({"deny": ["hint:destructive"]}, TenantSettings(Grants(("*",), ("hint:destructive",)))),
        ({"allow": []}, TenantSettings(Grants(()))),
        ({"max_calls": 20}, TenantSettings(None, 20)),
        ({}, TenantSettings()),
    ],
)
def test_an_entry_says_what_everybody_of_a_tenant_is_held_to(
    entry: dict[str, object], settings: TenantSettings
) -> None:
    assert read({"acme": entry}) == (Tenants({"acme": settings}), [])


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"denny": ["files"]}, "must have only allow, deny, max_calls, not 'denny'"),
        ({"allow": "files"}, ".allow must be a list of texts, not 'files'"),
        ({"deny": ["tag:"]}, "not 'tag:': it names no tag"),
        ({"max_calls": 0}, ".max_calls must be at least 1, not 0"),
        ("files", "must be a table, not another value"),
    ],
)
def test_of_an_entry_with_a_mistake_nobody_of_the_tenant_may_call_anything(entry: object, said: str) -> None:
    found, findings = read({"acme": entry, "other": {"deny": ["web"]}})
    assert found.known["acme"] == TenantSettings(Grants(()))
    assert found.known["other"] == TenantSettings(Grants(("*",), ("web",)))
    assert len(findings) == 1
    assert said in findings[0]
    assert "nobody of this tenant may call anything" in findings[0]
