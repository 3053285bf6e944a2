"""The line of a program's output that says why it ended."""

from __future__ import annotations

import pytest

from isthmus.model.stderr_summary import telling_line

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
