"""Joins code mode to a hub: its tools, and its durable scripts. Used by `app.hub` and `app.serve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from isthmus.code.sandbox_in_hub import EXTRA, is_installed
from isthmus.code.scripts import Scripts
from isthmus.code.settings import CodeSettings
from isthmus.code.virtual_tools import RunCode, ToolSignatures
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.config.tables import HUB
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.journal import Journal
from isthmus.core.ports import Sealer
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.live_task import TaskWork
from isthmus.core.tasks.record import TaskRecord
from isthmus.frontends.mcp.hub_tasks import HubTasks


def check_code(configuration: Configuration, is_there: Callable[[], bool] = is_installed) -> None:
    """Raises: ConfigError if tools are to be exposed as code and the sandbox is not installed."""
    exposures = [
        configuration.hub.expose,
        *(each.expose for each in configuration.sets.values()),
        *(caller.grants.expose for _, caller in configuration.callers),
    ]
    if "code" in exposures and not is_there():
        raise ConfigError(Place(configuration.file, HUB).mistake(ValueError(f'expose = "code": {EXTRA}')))


def open_scripts(
    hub: Hub,
    tasks: TaskEngine,
    hub_tasks: HubTasks,
    background: BackgroundTasks,
    settings: CodeSettings,
    journal: Journal,
    sealer: Callable[[], Sealer],
    environment: Mapping[str, str],
) -> Scripts:
    """Add code mode to a hub; no process starts before the first script."""
    scripts = Scripts(hub, background, settings, tasks.now, journal, sealer, environment)
    run_code = RunCode(scripts)
    hub.add_virtual_tools("code", ToolSignatures(scripts), run_code)
    hub_tasks.durable_tool = run_code

    def work_of(record: TaskRecord) -> TaskWork | None:
        find_caller = tasks.offline_queue.find_caller
        caller = None if find_caller is None else find_caller(record.owner)
        return None if caller is None or not is_installed() else scripts.continued(caller, record.id)

    tasks.work_of = work_of
    return scripts
