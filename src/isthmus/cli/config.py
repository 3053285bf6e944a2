"""`isthmus config check`: what is wrong with a configuration, without starting anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from isthmus.app.key_file import minted_keys
from isthmus.cli.exits import Exit
from isthmus.cli.output import say, write, write_json
from isthmus.cli.sources import home
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.load import AccessMode, access_mode, load
from isthmus.config.settings import Configuration

Weight: TypeAlias = Literal["error", "warning"]
"""An error refuses the whole file; a warning costs one entry or has no effect."""


def check_configuration(file: Path | None, *, is_json: bool) -> Exit:
    """Print every finding; anything found is worth a failing check."""
    configuration, findings = _look(file)
    if is_json:
        write_json(_as_json(configuration, findings))
    else:
        _show(configuration, findings)
    return Exit.CONFIGURATION if findings else Exit.WELL


def _look(file: Path | None) -> tuple[Configuration | None, list[tuple[Weight, Finding]]]:
    """Read the configuration as the hub would; None if it would refuse."""
    warnings: tuple[Finding, ...] = ()
    try:
        configuration = load(file, os.environ, Path.cwd(), home())
        warnings = configuration.warnings
        access_of(configuration)
    except ConfigError as error:
        return None, [*(("error", found) for found in error.findings), *_weighed(warnings)]
    return configuration, _weighed(warnings)


def access_of(configuration: Configuration) -> AccessMode:
    """Say who may call the hub that has this configuration.

    Raises:
        ConfigError: it would refuse to start: it would be open to a network, or its keys cannot be read.
    """
    has_keys = minted_keys(Path(configuration.hub.state)) is not None
    has_others = has_keys or bool(configuration.issuers) or bool(configuration.extensions.of("identity"))
    return access_mode(configuration.hub, configuration.callers, has_others=has_others, targets=configuration.targets)


def _weighed(warnings: Sequence[Finding]) -> list[tuple[Weight, Finding]]:
    return [("warning", finding) for finding in warnings]


def finding_as_json(finding: Finding, weight: Weight) -> dict[str, str | None]:
    """Return a finding for programs."""
    return {
        "weight": weight,
        "file": None if finding.file is None else str(finding.file),
        "path": finding.path,
        "value": finding.value,
        "message": finding.message,
        "advice": finding.advice,
        "code": finding.code.number,
        "kind": finding.code.name,
        "mend": finding.mend,
    }


def _as_json(configuration: Configuration | None, findings: Sequence[tuple[Weight, Finding]]) -> bytes:
    file = None if configuration is None else configuration.file
    return msgspec.json.encode(
        {
            "file": None if file is None else str(file),
            "usable": configuration is not None,
            "findings": [finding_as_json(finding, weight) for weight, finding in findings],
        }
    )


def _show(configuration: Configuration | None, findings: Sequence[tuple[Weight, Finding]]) -> None:
    for weight, finding in findings:
        write(f"{weight}: {finding} [{finding.code}]")
    if configuration is None:
        say("The hub would refuse to start with this configuration: mend the errors above.")
    elif configuration.file is None:
        write("no configuration file found: the hub would serve the built-in tools only")
    else:
        write(f"{configuration.file}: {_summary(configuration)}")
    if configuration is not None and findings:
        say("The hub would start without what the warnings name: mend them above.")


def _summary(configuration: Configuration) -> str:
    servers = _counted(len(configuration.servers), "server")
    callers = _counted(len({caller.name for _, caller in configuration.callers}), "caller")
    issuers = f"{_counted(len(configuration.issuers), 'issuer')}, " if configuration.issuers else ""
    return f"{servers}, {callers}, {issuers}listening on {configuration.hub.host}:{configuration.hub.port}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
