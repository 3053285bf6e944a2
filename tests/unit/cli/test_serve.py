"""Serving: messages before the start, and reasons not to start."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from isthmus.app.serve import serve
from isthmus.cli import serve as module
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.serve import serve_hub, take_stdout


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """A hub that has ended keeps SIGTERM to itself, and the process that runs the tests must not."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ISTHMUS_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "configure", lambda *_, **__: None)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))


def test_a_used_address_is_reported_with_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CommandFailed) as failed:
        serve_hub(None, None, taken.getsockname()[1])
    assert failed.value.exit == Exit.CONFIGURATION
    assert "in use" in failed.value.message
    assert "--port" in failed.value.advice[0]


def test_a_hub_without_callers_is_not_opened_to_a_network() -> None:
    with pytest.raises(CommandFailed) as failed:
        serve_hub(None, "0.0.0.0", 0)
    assert failed.value.exit == Exit.CONFIGURATION
    assert "loopback" in failed.value.message
    assert "isthmus token create" in failed.value.message


def test_a_hub_is_opened_to_a_network_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_when_open(monkeypatch)
    with structlog.testing.capture_logs() as logs:
        assert serve_hub(None, "0.0.0.0", 0, is_insecure=True) == Exit.SUCCESS
    assert any(entry["event"].startswith("INSECURE: everybody who can reach") for entry in logs)


def test_the_address_and_every_finding_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "isthmus.toml").write_text("[hub]\nodd = 1\n")
    ends_when_open(monkeypatch)
    with structlog.testing.capture_logs() as logs:
        assert serve_hub(None, None, 0) == Exit.SUCCESS
    assert "hub.odd is not known" in logs[0]["finding"]
    listening = next(entry for entry in logs if entry["event"] == "listening")
    assert listening["url"].startswith("http://127.0.0.1:")
    assert f"{listening['console']}mcp" == listening["url"]
    assert listening["file"] == "isthmus.toml"
    assert any(entry["event"].startswith("open: every program on this machine") for entry in logs)


def test_it_is_said_that_there_is_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_when_open(monkeypatch)
    with structlog.testing.capture_logs() as logs:
        assert serve_hub(None, None, 0) == Exit.SUCCESS
    assert "no configuration file found" in logs[0]["event"]


def test_a_second_signal_does_not_spoil_the_end_and_no_child_inherits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_when_open(monkeypatch)
    assert serve_hub(None, None, 0) == Exit.SUCCESS
    os.kill(os.getpid(), signal.SIGTERM)
    script = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "True\n"


def ends_when_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the hub a signal as soon as it is open."""

    def ending(*given: Any, on_open: Any, **options: Any) -> Coroutine[Any, Any, None]:
        def opened(origin: str) -> None:
            on_open(origin)
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)

        return serve(*given, on_open=opened, **options)

    monkeypatch.setattr(module, "serve", ending)


# -- stdio ---------------------------------------------------------------------------------------------------------


def test_stray_prints_go_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (from_out, out), (from_err, err) = os.pipe(), os.pipe()
    monkeypatch.setattr(module, "STDOUT", out)
    monkeypatch.setattr(module, "STDERR", err)
    ours = take_stdout()
    os.write(ours, b"protocol")
    os.write(out, b"a stray print")
    assert os.read(from_out, 100) == b"protocol"
    assert os.read(from_err, 100) == b"a stray print"
    for descriptor in (from_out, out, from_err, err, ours):
        os.close(descriptor)
