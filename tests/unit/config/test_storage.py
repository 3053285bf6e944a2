"""The table that says where tasks are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.dialects.clients import CODEX
from isthmus.config.dialects.dialect import OWN
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError
from isthmus.config.load import load
from isthmus.config.storage import read_storage
from isthmus.config.variables import Variables
from isthmus.storage.settings import StorageSettings

FILE = Path("/etc/hub/isthmus.toml")
SECRET = "hunter22"


def variables(folder: Path = Path("/etc/hub")) -> Variables:
    return Variables({"SECRET": SECRET, "DATABASE_URL": f"postgresql://u:{SECRET}@h/d"}, folder, folder)


def document(storage: object) -> Document:
    return Document(FILE, {"storage": storage}, OWN)


def test_without_a_file_or_a_table_there_is_no_database() -> None:
    assert read_storage(None, variables()) == (StorageSettings(), ())
    assert read_storage(Document(FILE, {}, OWN), variables()) == (StorageSettings(), ())
    assert read_storage(Document(FILE, {"storage": 5}, CODEX), variables()) == (StorageSettings(), ())


@pytest.mark.parametrize(
    "url", [f"postgresql://u:{SECRET}@h/d", "postgresql://u:${SECRET}@h/d", "env:DATABASE_URL", "${DATABASE_URL}"]
)
def test_the_password_may_come_from_a_variable(url: str) -> None:
    assert read_storage(document({"url": url}), variables()) == (StorageSettings(f"postgresql://u:{SECRET}@h/d"), ())


def test_the_address_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://h/d\n")
    assert read_storage(document({"url": "file:url"}), variables(tmp_path))[0].url == "postgresql://h/d"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"url": 5}, "isthmus.toml: storage.url must be a text, not a number"),
        ({"url": "mysql://u:hunter22@h/d"}, "isthmus.toml: storage.url must start with postgresql://, not 'mysql'"),
        (
            {"url": "postgresql://u:${MISSING}@h/d"},
            "isthmus.toml: storage.url must have only variables that are set, not ${MISSING}",
        ),
        ({"url": "env:MISSING"}, "isthmus.toml: storage.url must name a variable that is set, not env:MISSING"),
        (5, "isthmus.toml: storage must be a table, not 5"),
    ],
)
def test_a_bad_value_refuses_the_file_and_is_not_quoted(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_storage(document(table), variables())
    assert str(refused.value) == message
    assert SECRET not in message


def test_an_unknown_key_is_told_of() -> None:
    _, (finding,) = read_storage(document({"ulr": "postgresql://h/d"}), variables())
    assert str(finding) == "isthmus.toml: storage.ulr is not known and has no effect"


def test_it_is_read_with_the_rest_of_the_file_and_its_variables_are_named(tmp_path: Path) -> None:
    (tmp_path / "isthmus.toml").write_text('[storage]\nurl = "postgresql://u:${PG_PASSWORD}@h/d"\n')
    (tmp_path / ".env").write_text(f"PG_PASSWORD={SECRET}\n")
    found = load(None, {}, tmp_path, tmp_path)
    assert found.storage.url == f"postgresql://u:{SECRET}@h/d"
    assert found.origins["storage.url"].borrowed == ("PG_PASSWORD",)
    assert SECRET not in repr(found)
    assert found.warnings == ()
