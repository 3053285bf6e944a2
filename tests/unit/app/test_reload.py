"""From changed files to a changed hub: accepted and refused changes, and their log lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from isthmus.app.hub import RunningHub
from isthmus.app.reload import ConfigurationSource, Reloader
from isthmus.app.reload_diff import ConfigDiff
from isthmus.config.settings import Configuration
from isthmus.model.names import ServerName

PATIENCE_SECONDS = 20.0
OFF = {"command": "true", "disabled": True}
"""A server that costs nothing: what is done with it is for the supervisor's tests."""


class ReloadingHub:
    """A hub, the folder of its files, and a reloader."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *, has_file: bool = True) -> None:
        self.folder = folder
        self.file = folder / "mcp.json"
        self.source = ConfigurationSource(None, environment, folder, folder / "home")
        if has_file:
            self.write({})
        self.running = RunningHub(self.source.load(), environment)
        self.usable: list[Configuration] = []
        self.objection: Exception | None = None
        self.reloader = Reloader(self.running, self.source, self._take)

    def _take(self, configuration: Configuration) -> None:
        if self.objection is not None:
            raise self.objection
        self.usable.append(configuration)

    def write(self, servers: Mapping[str, Any], **tables: Any) -> None:
        self.file.write_text(json.dumps({"mcpServers": servers, **tables}))

    @property
    def servers(self) -> set[str]:
        return {str(name) for name in self.running.hub.server_queues if name != "builtin"}

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():  # noqa: ASYNC110 - files are watched by a thread of the system
                await asyncio.sleep(0.01)


@pytest.fixture
async def reloading(tmp_path: Path) -> AsyncIterator[ReloadingHub]:
    made = ReloadingHub(tmp_path, {})
    yield made
    await made.running.aclose()


@pytest.fixture
async def bare_desk(tmp_path: Path) -> AsyncIterator[ReloadingHub]:
    """A hub that was started without a file."""
    made = ReloadingHub(tmp_path, {}, has_file=False)
    yield made
    await made.running.aclose()


async def test_servers_come_change_and_go(reloading: ReloadingHub) -> None:
    reloading.write({"a": OFF, "b": OFF})
    first = await reloading.reloader.reload()
    assert first is not None
    assert [server.name for server in first.added] == ["a", "b"]

    reloading.write({"b": {**OFF, "timeout": 5}, "c": OFF})
    second = await reloading.reloader.reload()
    assert second is not None
    assert [server.name for server in second.added] == ["c"]
    assert [server.name for server in second.changed] == ["b"]
    assert second.removed == ("a",)
    assert reloading.servers == {"b", "c"}


async def test_the_same_once_more_is_no_difference(reloading: ReloadingHub) -> None:
    reloading.write({"a": OFF})
    await reloading.reloader.reload()
    with structlog.testing.capture_logs() as logs:
        assert await reloading.reloader.reload() == ConfigDiff()
    assert logs == []


async def test_a_file_that_cannot_be_used_is_refused_and_the_old_one_stays(reloading: ReloadingHub) -> None:
    reloading.write({"a": OFF})
    await reloading.reloader.reload()
    before = reloading.running.configuration
    reloading.file.write_text('{"mcpServers": {')
    with structlog.testing.capture_logs() as logs:
        assert await reloading.reloader.reload() is None
    assert reloading.running.configuration is before
    assert reloading.servers == {"a"}
    assert logs[0]["event"] == "configuration refused; the previous one stays in use"
    assert "mcp.json: line 1" in logs[0]["findings"]


@pytest.mark.parametrize("text", ["allowed_hosts must be hosts", "log.file cannot be written"])
async def test_any_part_may_refuse_the_new_configuration(reloading: ReloadingHub, text: str) -> None:
    reloading.write({"a": OFF})
    reloading.objection = ValueError(text)
    with structlog.testing.capture_logs() as logs:
        assert await reloading.reloader.reload() is None
    assert reloading.servers == set()
    assert logs[0]["findings"] == text


async def test_a_broken_entry_costs_only_itself_and_keeps_its_old_form(reloading: ReloadingHub) -> None:
    reloading.write({"a": {**OFF, "timeout": 5}, "b": OFF})
    await reloading.reloader.reload()
    reloading.write({"a": {"url": 5}, "c": OFF})
    with structlog.testing.capture_logs() as logs:
        await reloading.reloader.reload()
    kept = next(server for server in reloading.running.configuration.servers if server.name == "a")
    assert kept.timeout == 5
    assert reloading.servers == {"a", "c"}
    assert "mcpServers.a.url must be" in logs[0]["finding"]
    received = {"event": "configuration reloaded", "log_level": "info", "added": ["c"], "removed": ["b"]}
    assert logs[1] == received


async def test_an_entry_whose_variable_is_no_longer_set_keeps_its_old_form(reloading: ReloadingHub) -> None:
    hidden = reloading.folder / ".env"
    hidden.write_text("PROGRAM=first\n")
    borrowing = {"command": "${PROGRAM}", "disabled": True}
    reloading.write({"a": borrowing})
    await reloading.reloader.reload()
    (before,) = reloading.running.configuration.servers

    hidden.unlink()
    with structlog.testing.capture_logs() as logs:
        assert await reloading.reloader.reload() == ConfigDiff()
        assert await reloading.reloader.reload() == ConfigDiff()
    assert reloading.running.configuration.servers == (before,)
    received = [line["finding"] for line in logs]
    assert received[1:] == ["mcp.json: mcpServers.a keeps its earlier settings: ${PROGRAM} is no longer set"]

    hidden.write_text("PROGRAM=second\n")
    await reloading.reloader.reload()
    assert "'second'" in repr(reloading.running.configuration.servers)


async def test_repeated_findings_are_not_logged_again(reloading: ReloadingHub) -> None:
    reloading.write({"a": {"url": 5}})
    await reloading.reloader.reload()
    reloading.write({"a": {"url": 5}, "b": OFF})
    with structlog.testing.capture_logs() as logs:
        await reloading.reloader.reload()
    assert [line["event"] for line in logs] == ["configuration reloaded"]


async def test_a_setting_that_needs_a_restart_is_named_and_not_taken(reloading: ReloadingHub) -> None:
    reloading.write({}, hub={"host": "localhost", "port": 1}, limits={"call_seconds": 5})
    with structlog.testing.capture_logs() as logs:
        await reloading.reloader.reload()
    assert (reloading.running.configuration.hub.host, reloading.running.configuration.hub.port) == ("127.0.0.1", 8765)
    assert reloading.running.hub.limits.call_seconds == 5
    assert reloading.running._client_input.limits.call_seconds == 5
    assert logs[0]["needs_a_restart"] == ["hub.host", "hub.port"]
    assert logs[0]["settings"] == ["limits.call_seconds"]


async def test_a_defect_met_in_one_version_does_not_keep_the_next_from_being_read(reloading: ReloadingHub) -> None:
    reloading.objection = ZeroDivisionError("a defect")
    with structlog.testing.capture_logs() as logs:
        reloading.reloader.start()
        await reloading.until(lambda: any(line["log_level"] == "error" for line in logs))
    reloading.objection = None
    reloading.write({"a": OFF})
    await reloading.until(lambda: reloading.servers == {"a"})


# -- watched -------------------------------------------------------------------------------------------------


async def test_a_file_that_comes_and_changes_is_followed_but_its_state_needs_a_restart(bare_desk: ReloadingHub) -> None:
    reloading = bare_desk
    reloading.reloader.start()
    with structlog.testing.capture_logs() as logs:
        reloading.write({"a": OFF})
        await reloading.until(lambda: reloading.servers == {"a"})
    assert logs[-1]["needs_a_restart"] == ["hub.state"]
    (warning,) = [line for line in logs if line["log_level"] == "warning"]
    assert warning["fix"] == "stop this hub and start it again with the same command"
    assert '[hub] state = "' in warning["keep"]
    assert warning["file"] == str(reloading.file)
    beside = reloading.file.with_suffix(".tmp")
    beside.write_text(json.dumps({"mcpServers": {"b": OFF}}))
    beside.rename(reloading.file)
    await reloading.until(lambda: reloading.servers == {"b"})


async def test_the_file_that_a_hub_runs_with_is_followed_though_another_comes_first(reloading: ReloadingHub) -> None:
    reloading.write({"a": OFF})
    await reloading.reloader.reload()
    reloading.reloader.start()
    with structlog.testing.capture_logs() as logs:
        (reloading.folder / "isthmus.toml").write_text('[servers.c]\ncommand = "true"\ndisabled = true\n')
        await reloading.until(lambda: any(line["log_level"] == "warning" for line in logs))
    assert logs[0]["event"] == "another file takes precedence but is not used until a restart"
    assert (logs[0]["file"], logs[0]["followed"]) == (str(reloading.folder / "isthmus.toml"), str(reloading.file))
    reloading.write({"b": OFF})
    await reloading.until(lambda: reloading.servers == {"b"})


async def test_a_file_that_takes_precedence_is_reported_once(reloading: ReloadingHub) -> None:
    first = reloading.folder / "isthmus.toml"
    reloading.write({"a": OFF})
    await reloading.reloader.reload()
    first.write_text("")
    with structlog.testing.capture_logs() as logs:
        await reloading.reloader.reload()
        await reloading.reloader.reload()
        first.unlink()
        await reloading.reloader.reload()
        first.write_text("")
        await reloading.reloader.reload()
    assert [line["log_level"] for line in logs] == ["warning", "warning"]
    assert reloading.servers == {"a"}


async def test_a_file_that_is_gone_is_refused_and_followed_when_it_is_back(reloading: ReloadingHub) -> None:
    reloading.write({"a": OFF})
    await reloading.reloader.reload()
    reloading.reloader.start()
    with structlog.testing.capture_logs() as logs:
        reloading.file.unlink()
        await reloading.until(lambda: bool(logs))
    assert logs[0]["event"] == "configuration refused; the previous one stays in use"
    assert "mcp.json is gone (restart the hub to run without it)" in logs[0]["findings"]
    assert reloading.servers == {"a"}
    reloading.write({"b": OFF})
    await reloading.until(lambda: reloading.servers == {"b"})


async def test_no_file_of_a_later_place_stands_in_for_one_that_is_gone(bare_desk: ReloadingHub) -> None:
    reloading = bare_desk
    own = reloading.folder / "isthmus.toml"
    own.write_text('[servers.a]\ncommand = "true"\ndisabled = true\n')
    await reloading.reloader.reload()
    reloading.write({"b": OFF})
    own.unlink()
    assert await reloading.reloader.reload() is None
    assert reloading.servers == {"a"}


async def test_variables_and_imported_files_are_followed_too(bare_desk: ReloadingHub) -> None:
    reloading = bare_desk
    own = reloading.folder / "isthmus.toml"
    own.write_text('import = ["other/mcp.json"]\n[servers.a]\ncommand = "${PROGRAM}"\ndisabled = true\n')
    await reloading.reloader.reload()
    reloading.reloader.start()
    (reloading.folder / ".env").write_text("PROGRAM=first\n")
    await reloading.until(lambda: "'first'" in repr(reloading.running.configuration.servers))
    (reloading.folder / "other").mkdir()
    (reloading.folder / "other" / "mcp.json").write_text(json.dumps({"mcpServers": {"b": OFF}}))
    await reloading.until(lambda: reloading.servers == {"a", "b"})
    (reloading.folder / "other" / "mcp.json").write_text("{")
    (reloading.folder / ".env").write_text("PROGRAM=second\n")
    await reloading.until(lambda: "'second'" in repr(reloading.running.configuration.servers))
    assert reloading.servers == {"a", "b"}, "a file that is broken for a moment costs no server"


async def test_a_wish_to_read_is_answered_even_if_nothing_changed(reloading: ReloadingHub) -> None:
    reloading.reloader.start()
    await reloading.until(lambda: len(reloading.usable) == 1)
    with structlog.testing.capture_logs() as logs:
        reloading.reloader.reload_now()
        await reloading.until(lambda: bool(logs))
    assert logs == [{"event": "configuration reloaded", "log_level": "info"}]


async def test_a_stopped_reloader_takes_nothing_more(reloading: ReloadingHub) -> None:
    reloading.reloader.start()
    await reloading.until(lambda: len(reloading.usable) == 1)
    tasks = len(reloading.running.background)
    reloading.reloader.stop()
    await reloading.until(lambda: len(reloading.running.background) == tasks - 2)


# -- the hub itself ------------------------------------------------------------------------------------------


async def test_no_caller_waits_for_a_server_that_joins_a_running_hub(reloading: ReloadingHub) -> None:
    reloading.write({"slow": {"url": "http://127.0.0.1:9/mcp"}})
    await reloading.reloader.reload()
    assert reloading.running.hub.snapshot.server_statuses[ServerName("slow")].state == "starting"
    assert not reloading.running.hub.settling
