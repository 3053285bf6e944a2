"""Which journal a hub has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.app import serve
from isthmus.app.hub import RunningHub
from isthmus.app.serve import open_journal
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.tasks.record import TaskOwner
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.storage import postgres
from isthmus.storage.memory import DOCUMENTS_BYTES, MemoryJournal
from isthmus.storage.settings import StorageSettings
from isthmus.storage.sqlite import SqliteJournal

FILE = Path("/etc/hub/isthmus.toml")


def configured(state: Path, url: str | None = None) -> Configuration:
    return Configuration(FILE, HubSettings(state=str(state)), storage=StorageSettings(url))


async def test_it_is_a_file_in_the_folder_that_was_configured(tmp_path: Path) -> None:
    journal = await open_journal(configured(tmp_path / "state"))
    assert isinstance(journal, SqliteJournal)
    await journal.aclose()
    assert (tmp_path / "state" / "journal.db").exists()


async def test_a_folder_that_was_configured_and_cannot_be_used_refuses_the_start(tmp_path: Path) -> None:
    held = await open_journal(configured(tmp_path))
    with pytest.raises(ConfigError) as refused:
        await open_journal(configured(tmp_path))
    await held.aclose()
    advice = "give this one a [hub] state of its own"
    assert str(refused.value) == f"hub.state cannot be used: another hub is using {tmp_path}; {advice}"


async def test_where_the_usual_folder_is_in_use_tasks_are_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    usual = replace(configured(tmp_path / ".local/state/isthmus"), file=None)
    held = await open_journal(usual)
    journal = await open_journal(usual)
    assert isinstance(journal, MemoryJournal)
    await journal.aclose()
    await held.aclose()


async def test_how_much_is_kept_of_a_callers_tasks_is_as_configured_but_in_memory_less(tmp_path: Path) -> None:
    configuration = replace(configured(tmp_path), a2a=A2aSettings(keep_bytes=DOCUMENTS_BYTES))
    journal = await open_journal(configuration)
    for kept_in, most in ((journal, DOCUMENTS_BYTES), (MemoryJournal(), DOCUMENTS_BYTES // 2)):
        running = RunningHub(configuration, {}, kept_in)
        assert running.tasks.storage_quota.most(TaskOwner("default", "anyone")) == most
        running.apply(replace(configuration, a2a=A2aSettings(keep_bytes=100_000)))
        assert running.tasks.storage_quota.most(TaskOwner("default", "anyone")) == 100_000, "also while it runs"
        await running.aclose()
    await journal.aclose()


async def test_a_database_that_cannot_be_used_refuses_the_start_and_nothing_else_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "OPEN_SECONDS", 0.0)
    url = f"postgresql://u:hunter22@/d?host={tmp_path}"
    with pytest.raises(ConfigError) as refused:
        await open_journal(configured(tmp_path, url))
    shown = f"postgresql://u:***@/d?host={tmp_path}"
    assert str(refused.value).startswith(f"isthmus.toml: storage.url cannot be used: {shown}: [Errno 2] No such file")
    assert not (tmp_path / "journal.db").exists()


async def test_without_the_library_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as refused:
        await open_journal(configured(tmp_path, "postgresql://h/d"))
    said = "storage.url needs a library that is not installed (get it with: pip install 'isthmus[postgres]')"
    assert str(refused.value) == f"isthmus.toml: {said}"
