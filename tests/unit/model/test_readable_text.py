"""What people see of text that servers and programs wrote."""

from __future__ import annotations

import time

import pytest

from isthmus.model.fault_table import Lost, NotConnected
from isthmus.model.names import ServerName
from isthmus.model.readable_text import telling_line, without_locations

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


@pytest.mark.parametrize(("reason", "told"), REASONS.items())
def test_the_cause_is_shown_and_not_its_place(reason: str, told: str) -> None:
    assert without_locations(reason) == told


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


NODE = """node:internal/modules/cjs/loader:1210
  throw err;
  ^

Error: Cannot find module '/home/ada/proj/nope.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1207:15)
    at node:internal/main/run_main_module:28:49 {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v20.20.2
"""
NODE_ESM = "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod'\n    at x (node:1:1)\n\nNode.js v22.1.0"
PYTHON = "Traceback (most recent call last):\n  File 'x', line 1\nModuleNotFoundError: No module named 'mcp'\n"
NPM = """npm error code E404
npm error 404 Not Found - GET https://registry.example/nosuch - Not found
npm error 404
npm error 404  'nosuch@*' is not in this registry.
npm error A complete log of this run can be found in: /home/ada/.npm/_logs/x.log
"""
UV = """error: Failed to fetch: `https://packages.example/simple/mcp-server-time/`
  cause: invalid peer certificate: UnknownIssuer
hint: Consider enabling use of system TLS certificates with the `--system-certs` command-line flag
"""
UV_UNKNOWN = """  × No solution found when resolving tool dependencies:
  ╰─▶ Because nosuch was not found in the package registry and you require
      nosuch, we can conclude that your requirements are unsatisfiable.
"""
DOCKER = "docker: Error response from daemon: pull access denied for nosuch\nSee 'docker run --help'.\n"
GO = "panic: no such host\n\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:7 +0x18\nexit status 2\n"


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (NODE, "Error: Cannot find module '/home/ada/proj/nope.js'"),
        (NODE_ESM, "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod'"),
        (PYTHON, "ModuleNotFoundError: No module named 'mcp'"),
        (NPM, "npm error 404 Not Found - GET https://registry.example/nosuch - Not found"),
        (UV, "error: Failed to fetch: `https://packages.example/simple/mcp-server-time/`"),
        (UV_UNKNOWN, "Because nosuch was not found in the package registry and you require"),
        (DOCKER, "docker: Error response from daemon: pull access denied for nosuch"),
        (GO, "panic: no such host"),
        ("loading\nno licence\n", "no licence"),
        ("no key was given\nhint: set KEY\n", "no key was given"),
        ("error handling is on\nthe port is taken\n", "the port is taken"),
        ("hint: only this\n", "hint: only this"),
        ("\n \n", ""),
    ],
)
def test_the_line_with_the_error_is_found(output: str, line: str) -> None:
    assert telling_line(output) == line
