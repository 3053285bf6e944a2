"""Keep the process's logs out of the captured output."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    # Commands set logging up for the whole process, which here is everybody's.
    monkeypatch.setattr("isthmus.telemetry.logs.configure", lambda *_: None)
    yield
    structlog.reset_defaults()
