"""Extensions in a file's `[extensions]`: loaded with their settings, or refused by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.config.extensions import GROUPS, Extension, Extensions
from isthmus.config.findings import ConfigError
from isthmus.config.load import load
from isthmus.config.settings import Configuration
from isthmus.identity.keys import digest_of
from tests.packages import install, on_path

SOURCE = """
from pathlib import Path

made = []

class Thing:
    title = "Odd"
    def __init__(self, settings):
        made.append(dict(settings))
    def caller_of(self, credential): return None
    def knows(self, caller): return False
    def allows(self, tenant, caller, server, tool): return True
    def __call__(self, name):
        if name == "gone":
            raise LookupError("the words hold s3cret")
        return {"empty": "", "odd": 7}.get(name, f"{name}-of-the-vault-0123456789")
    def places(self, home, cwd, environment): return [cwd / "odd.conf"]
    def servers(self, content):
        name, command = content.decode().split()
        return {name: {"command": command}}

def picky(settings): raise ValueError("word must be given")
def broken(settings): raise RuntimeError("the words hold s3cret")
def nothing(settings): return None
number = 7
"""
NAMES = {
    "thing": "odd:Thing",
    "picky": "odd:picky",
    "broken": "odd:broken",
    "nothing": "odd:nothing",
    "number": "odd:number",
}


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "packages"
    install(folder, "odd", SOURCE, {f"isthmus.{group}": NAMES for group in GROUPS})
    yield from on_path(folder, monkeypatch)


def read(folder: Path, text: str, name: str = "isthmus.toml") -> Configuration:
    (folder / name).write_text(text)
    return load(folder / name, {"VAULT": "of-the-vault"}, folder, folder / "home")


def refusal(folder: Path, text: str, name: str = "isthmus.toml") -> str:
    with pytest.raises(ConfigError) as refused:
        read(folder, text, name)
    return str(refused.value)


def test_nothing_is_loaded_unless_it_is_used(tmp_path: Path) -> None:
    assert read(tmp_path, "").extensions == Extensions()
    named = read(tmp_path, '[extensions]\nidentity = ["thing"]\nsecrets = ["thing"]\nimporters = ["thing"]')
    assert [(each.group, each.name) for each in named.extensions.named] == [
        ("identity", "thing"), ("secrets", "thing"), ("importers", "thing"),
    ]  # fmt: skip
    assert "odd" not in sys.modules


def test_settings_are_reported_with_their_variables_and_shown_to_no_caller(tmp_path: Path) -> None:
    text = '[extensions]\nidentity = ["thing"]\n[extensions.settings.thing]\nkey = "env:VAULT"\nlist = ["env:VAULT", 2]'
    (extension,) = read(tmp_path, text).extensions.named
    assert "vault" not in repr(extension)
    extension.make("caller_of")
    assert extension.make("caller_of") is extension.make("caller_of")
    assert sys.modules["odd"].made == [{"key": "of-the-vault", "list": ["env:VAULT", 2]}]


def test_a_secret_may_come_from_an_extension(tmp_path: Path) -> None:
    text = '[extensions]\nsecrets = ["thing"]\n[callers.a]\nkey = "thing:planner"\nallow = ["*"]\n'
    configuration = read(tmp_path, text + '[servers.s]\ncommand = "x"\nenv = { K = "thing:token" }')
    assert [digest for digest, _ in configuration.callers] == [digest_of("planner-of-the-vault-0123456789")]
    (server,) = configuration.servers
    assert "token-of-the-vault-0123456789" in server.secrets  # and is blanked out wherever that server is spoken of


@pytest.mark.parametrize("name", ["gone", "empty", "odd"])
def test_a_missing_secret_costs_its_server_and_the_error_is_not_quoted(tmp_path: Path, name: str) -> None:
    text = f'[extensions]\nsecrets = ["thing"]\n[servers.s]\ncommand = "x"\nenv = {{ K = "thing:{name}" }}'
    configuration = read(tmp_path, text)
    assert configuration.servers == ()
    received = " ".join(map(str, configuration.warnings))
    assert f"thing:{name}" in received
    assert "s3cret" not in received


def test_without_being_named_it_is_no_source_of_secrets(tmp_path: Path) -> None:
    configuration = read(tmp_path, '[callers.a]\nkey = "thing:planner-0123456789"\nallow = ["*"]')
    assert [digest for digest, _ in configuration.callers] == [digest_of("thing:planner-0123456789")]


def test_another_clients_file_cannot_have_secrets_looked_up(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"mcpServers": {"s": {"command": "x", "env": {"K": "thing:token"}}}}')
    configuration = read(tmp_path, 'import = ["./other.json"]\n[extensions]\nsecrets = ["thing"]')
    (server,) = configuration.servers
    assert "token-of-the-vault-0123456789" not in server.secrets


def test_another_programs_file_is_read_by_an_extension(tmp_path: Path) -> None:
    (tmp_path / "odd.conf").write_text("files run-files")
    configuration = read(tmp_path, 'import = ["thing"]\n[extensions]\nimporters = ["thing"]')
    assert [server.name for server in configuration.servers] == ["files"]
    assert tmp_path / "odd.conf" in configuration.files  # and watched
    (tmp_path / "odd.conf").write_text("nonsense")
    configuration = read(tmp_path, 'import = ["thing"]\n[extensions]\nimporters = ["thing"]')
    assert "cannot be read as a file of Odd: ValueError" in str(configuration.warnings[0])
    assert configuration.unread == (tmp_path / "odd.conf",)


@pytest.mark.parametrize(
    ("places", "expected"),
    [(None, "raised TypeError"), ("/etc", "must return paths, not str"), (["odd.conf"], "must return paths, not str")],
)
def test_an_importer_that_names_no_places_refuses_the_file_by_its_name(
    tmp_path: Path, places: object, expected: str
) -> None:
    text = 'import = ["thing"]\n[extensions]\nimporters = ["thing"]'
    read(tmp_path, text)
    sys.modules["odd"].Thing.places = lambda *_: places
    said = refusal(tmp_path, text)
    assert "extensions.importers.thing cannot be used: " in said
    assert expected in said


@pytest.mark.parametrize("group", GROUPS)
def test_an_extension_that_is_not_installed_refuses_the_file(tmp_path: Path, group: str) -> None:
    received = refusal(tmp_path, f'[extensions]\n{group} = ["thin"]')
    assert (
        f"extensions.{group}.thin must be an entry point of isthmus.{group} that is installed, not 'thin'" in received
    )
    assert "thing" in received


def test_an_extension_of_two_packages_is_refused(tmp_path: Path, packages: Path) -> None:
    install(packages, "other", SOURCE, {"isthmus.identity": {"thing": "other:Thing"}})
    assert "odd:Thing and other:Thing" in refusal(tmp_path, '[extensions]\nidentity = ["thing"]')


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("picky", "odd:picky raised ValueError: word must be given"),
        ("broken", "odd:broken raised RuntimeError"),
        ("nothing", "odd:nothing makes has no allows"),
        ("number", "odd:number raised TypeError"),
    ],
)
def test_an_extension_that_cannot_be_created_refuses_the_file_and_is_named(
    tmp_path: Path, name: str, said: str
) -> None:
    received = refusal(tmp_path, f'[extensions]\npolicy = ["{name}"]')
    assert f"extensions.policy.{name} cannot be used" in received
    assert said in received
    assert "s3cret" not in received


def test_a_module_that_is_not_there_is_named(tmp_path: Path, packages: Path) -> None:
    install(packages, "hollow", "", {"isthmus.policy": {"hollow": "gone_module:x"}})
    assert "raised ModuleNotFoundError: No module named 'gone_module'" in refusal(
        tmp_path, '[extensions]\npolicy = ["hollow"]'
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'identitty = ["thing"]',
            "must have only identity, policy, storage, secrets, importers, settings, not 'identitty'",
        ),
        ('identity = "thing"', "extensions.identity must be a list of texts"),
        ('identity = ["thing", "thing"]', "extensions.identity.1 must be another one"),
        ('secrets = ["env"]', "extensions.secrets.0 must be the name of an extension, not 'env'"),
        ('storage = ["postgresql"]', "extensions.storage.0 must be the name of an extension"),
        ('secrets = ["Thing"]', "extensions.secrets.0 must be the name of an extension"),
        ("[extensions.settings.thing]\na = 1", "settings.thing must be of an extension that is named"),
        ('identity = ["thing"]\n[extensions.settings.thing]\na = "env:GONE"', "settings.thing.a must name a variable"),
        (
            'identity = ["thing"]\n[extensions.settings.thing]\na = "${GONE}"',
            "settings.thing.a must have only variables",
        ),
    ],
)
def test_a_mistake_refuses_the_file(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, f"[extensions]\n{text}")


def test_a_mistyped_table_refuses_the_file(tmp_path: Path) -> None:
    assert "extension" in refusal(tmp_path, '[extension]\npolicy = ["thing"]')


def test_only_a_file_of_the_hubs_own_has_code_loaded(tmp_path: Path) -> None:
    received = refusal(tmp_path, '{"mcpServers": {}, "extensions": {"policy": ["thing"]}}', "mcp.json")
    assert "must be in a file that was written for the hub" in received
    theirs = '{"extensions": {"files": {"type": "stdio", "cmd": "run"}}}'
    assert read(tmp_path, theirs, "mcp.json").extensions == Extensions()
    assert "odd" not in sys.modules


def test_the_storage_of_an_extension_is_at_an_address_of_its_own(tmp_path: Path) -> None:
    storage = read(tmp_path, '[extensions]\nstorage = ["thing"]\n[storage]\nurl = "thing:pass/w@rd"').storage
    assert (storage.is_foreign, storage.scheme, storage.shown) == (True, "thing", "thing:***")
    assert "postgresql" in refusal(tmp_path, '[storage]\nurl = "thing:pass/w@rd"')


def test_extensions_are_compared_by_their_settings() -> None:
    assert Extension("policy", "a", {"x": 1}) == Extension("policy", "a", {"x": 1})
    assert Extension("policy", "a", {"x": 1}) != Extension("policy", "a", {"x": 2})
