"""The steps from a client's entry to ours, each for one habit that several clients have.

A step changes a `Draft` and never fails: what has an unexpected shape it leaves alone, and the checks that
every entry goes through name it. Run by `config.entries` in the order of `COMMON`, after a client's own steps.
"""

from __future__ import annotations

from isthmus.config import values
from isthmus.config.codes import CODE_NOT_RUN
from isthmus.config.dialects.draft import Draft

RENAMED = {
    "serverUrl": "url",
    "server_url": "url",
    "uri": "url",
    "endpoint": "url",
    "cmd": "command",
    "envs": "env",
    "environment": "env",
    "working_dir": "cwd",
    "workingDirectory": "cwd",
    "working_directory": "cwd",
    "envFile": "env_file",
    "http_headers": "headers",
    "userHeaders": "user_headers",
    "protocol": "type",
    "includeTools": "include_tools",
    "enabled_tools": "include_tools",
    "available_tools": "include_tools",
    "excludeTools": "exclude_tools",
    "disabled_tools": "exclude_tools",
    "disabledTools": "exclude_tools",
}
_HELPERS = ("headersHelper", "http_headers_helper")


def drop_nothings(draft: Draft) -> None:
    """Take out what is null: several programs write all their keys, with nothing in most."""
    draft.fields = {key: value for key, value in draft.fields.items() if value is not None}


def open_transport(draft: Draft) -> None:
    """Bring the parts of a `transport` table up beside it."""
    _open(draft, "transport")


def _open(draft: Draft, outer: str) -> None:
    nested = draft.fields.get(outer)
    if isinstance(nested, dict):
        del draft.fields[outer]
        for key, value in nested.items():
            if key not in draft.fields:
                draft.move(str(key), value, outer, str(key))


def rename_keys(draft: Draft) -> None:
    """Give every key of another name its own."""
    if "httpUrl" in draft.fields:
        # Where both are written it is the newer one, and the other is for older versions of the client.
        draft.fields.pop("url", None)
        draft.fields.setdefault("type", "http")
    draft.rename("httpUrl", "url")
    for theirs, ours in RENAMED.items():
        draft.rename(theirs, ours)


def split_command(draft: Draft) -> None:
    """Take a command apart that is a list, or a table with a path in it."""
    match draft.fields.get("command"):
        case [str() as program, *arguments]:
            draft.fields["command"] = program
            spelt = draft.spelt.get("command", ("command",))
            others = draft.fields.get("args")
            draft.move("args", [*arguments, *(others if isinstance(others, list) else [])], *spelt)
        case {"path": path, **members}:
            draft.move("command", path, "command", "path")
            for key, value in members.items():
                if key not in draft.fields:
                    draft.move(str(key), value, "command", str(key))
        case _:
            pass


def list_headers(draft: Draft) -> None:
    """Make a table of headers that are written as lines."""
    lines = draft.fields.get("headers")
    if isinstance(lines, list) and all(isinstance(line, str) and ":" in line for line in lines):
        pairs = (line.partition(":") for line in lines)
        draft.fields["headers"] = {name.strip(): value.strip() for name, _, value in pairs}


def borrow_from_environment(draft: Draft) -> None:
    """Write the keys that only name variables as the placeholders they stand for."""
    _borrow_env(draft, "env_vars")
    _borrow_env(draft, "env_keys")
    named = draft.fields.get("env_http_headers")
    if isinstance(named, dict) and all(isinstance(name, str) for name in named.values()):
        del draft.fields["env_http_headers"]
        draft.merge("headers", {header: f"${{{name}}}" for header, name in named.items()}, "env_http_headers")
    token = draft.fields.get("bearer_token_env_var")
    if isinstance(token, str):
        del draft.fields["bearer_token_env_var"]
        draft.merge("headers", {"Authorization": f"Bearer ${{{token}}}"}, "bearer_token_env_var")


def _borrow_env(draft: Draft, key: str) -> None:
    listed = draft.fields.get(key)
    if not isinstance(listed, list):
        return
    names = [item.get("name") if isinstance(item, dict) else item for item in listed]
    if all(isinstance(name, str) for name in names):
        del draft.fields[key]
        draft.merge("env", {str(name): f"${{{name}}}" for name in names}, key)


def tell_of_helpers(draft: Draft) -> None:
    """Say that programs which would print headers are not run: a file must not be able to start anything."""
    for key in _HELPERS:
        if key in draft.fields:
            text = "is a program that prints headers, and reading a file runs none"
            draft.findings.append(draft.at(key).finding(text, code=CODE_NOT_RUN))


COMMON = (
    drop_nothings, open_transport, rename_keys, split_command, list_headers, borrow_from_environment, tell_of_helpers
)  # fmt: skip


# -- what one or two clients do ------------------------------------------------------------------------------


def take_tools_for_a_filter(draft: Draft) -> None:
    """Read a list under `tools` as the tools that are shown."""
    if isinstance(draft.fields.get("tools"), list):
        draft.rename("tools", "include_tools")


def take_tool_timeout(draft: Draft) -> None:
    """Read the seconds that a tool may take."""
    draft.rename("tool_timeout_sec", "timeout")


def take_request_timeout(draft: Draft) -> None:
    """Read the part of a `timeout` table that is about calls."""
    parts = draft.fields.get("timeout")
    if isinstance(parts, dict):
        del draft.fields["timeout"]
        draft.fields.update({f"timeout.{key}": value for key, value in parts.items() if key != "request"})
        if "request" in parts:
            draft.move("timeout", parts["request"], "timeout", "request")


def take_quarantine_for_off(draft: Draft) -> None:
    """Leave a server off that its owner has not looked at yet."""
    if values.plain(draft.fields.get("quarantined")) is True:
        draft.move("disabled", True, "quarantined")


def open_config(draft: Draft) -> None:
    """Bring the parts of a `config` table up beside it."""
    _open(draft, "config")


def take_token(draft: Draft) -> None:
    """Read `auth` as a token, unless it is the word for a login that needs a browser."""
    given = draft.fields.get("auth")
    if isinstance(given, str) and given != "oauth":
        del draft.fields["auth"]
        draft.merge("headers", {"Authorization": f"Bearer {given}"}, "auth")
