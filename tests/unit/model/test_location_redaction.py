"""Text of servers and programs as people see it."""

from __future__ import annotations

import time

import pytest

from isthmus.model.fault_table import Lost, NotConnected
from isthmus.model.location_redaction import without_locations
from isthmus.model.names import ServerName

LONG_SECONDS = 5.0
"""A hundred times what a megabyte takes; whatever goes through it again for every letter takes hours."""

REASONS = {
    "connection refused by 10.1.2.3:9": "connection refused by its address",
    "connection refused by [fd00::1]:9; no answer from 10.1.2.3:9 within 1.0 s": (
        "connection refused by its address; no answer from its address within 1.0 s"
    ),
    "connection refused by [fd00::1]:9": "connection refused by its address",
    "no address for host db.corp.example": "no address for host",
    "no address for host db": "no address for host",
    "db.corp.example was not resolved within 5 s": "its host was not resolved within 5 s",
    "db was not resolved within 5 s": "its host was not resolved within 5 s",
    "'/opt/acme/bin/prog' could not be started: there is no such file": (
        "'…/prog' could not be started: there is no such file"
    ),
    "its working directory '/srv/acme/data' does not exist": "its working directory '…/data' does not exist",
    "'npx' could not be started: there is no such command on PATH": (
        "'npx' could not be started: there is no such command on PATH"
    ),
    "TLS: certificate verify failed: Hostname mismatch, certificate is not valid for 'db.corp.example'.": (
        "TLS: certificate verify failed: Hostname mismatch, certificate is not valid for its host."
    ),
    "it redirects to https://b.example, which is not http://db.corp.example:81; configure that address": (
        "it redirects to another address than its own; configure that address"
    ),
    "https://b.corp.example is not where its card is; if it is to be trusted": (
        "another address is not where its card is; if it is to be trusted"
    ),
    "it requires the extension 'urn:x', which the hub does not support": (
        "it requires the extension 'urn:x', which the hub does not support"
    ),
    "it speaks version 1.10.1.2.3": "it speaks version 1.10.1.2.3",
    "it answered HTTP 404 with application/json": "it answered HTTP 404 with application/json",
    "exited with code 3": "exited with code 3",
    "it requires a login: see https://login.example/a/b": "it requires a login: see https://login.example/a/b",
    "": "",
}


@pytest.mark.parametrize(("reason", "expected"), REASONS.items())
def test_the_cause_is_shown_and_not_its_place(reason: str, expected: str) -> None:
    assert without_locations(reason) == expected


@pytest.mark.parametrize("said", ["x.", "/x", "://", "1.", "[::"])
def test_however_much_a_server_says_it_is_soon_gone_through(said: str) -> None:
    long = said * (1_000_000 // len(said))
    began = time.process_time()
    assert without_locations(long)
    assert time.process_time() - began < LONG_SECONDS


def test_faults_say_no_more_than_that_and_keep_the_rest_for_operators() -> None:
    reason = "connection refused by 10.1.2.3:9"
    for fault in (NotConnected(ServerName("a"), reason), Lost(ServerName("a"), reason, executed="no")):
        assert "10.1.2.3" not in fault.message
        assert fault.message.endswith("connection refused by its address")
        assert fault.why == reason
