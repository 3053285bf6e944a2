"""Configuration files of any shape never crash the reader, and findings name their place and disclose no secret."""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.config.client_file_reader import HostContext
from isthmus.config.client_formats import CLIENTS, DIALECTS, OWN, SHARED_ROOTS, ClientDialect
from isthmus.config.files import ParsedFile
from isthmus.config.finding_codes import CODES
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.importing import ImportPlan, load_servers
from isthmus.config.load import load
from tests.choices import IS_FULL

SECRET = "hunter22-s3cret"
ENVIRONMENT = {"TOKEN": SECRET, "ISTHMUS_INPUT_TOKEN": SECRET}
HOME = Path("/home/me")
steady = settings(deadline=None, derandomize=True, max_examples=200 if IS_FULL else 66)
"""The same examples every time, however busy the machine is."""

KEYS = st.sampled_from([
    "command", "args", "env", "cwd", "url", "headers", "era", "timeout", "max_calls", "disabled", "enabled", "type",
    "transport", "transportType", "protocol", "rpc", "agent", "origins", "python", "path", "tools", "defaults", "cache",
    "isolation",
    "include_tools", "excludeTools", "disabledTools", "available_tools", "env_file", "envFile", "extra", "serverUrl",
    "httpUrl", "uri", "cmd", "envs", "env_keys", "env_vars", "environment", "http_headers", "env_http_headers",
    "bearer_token_env_var", "tool_timeout_sec", "working_dir", "quarantined", "auth", "config", "headersHelper",
])  # fmt: skip
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from([
        "${TOKEN}", "${env:TOKEN}", "$TOKEN", "{env:TOKEN}", "${input:token}", "${GONE}", "stdio",
        "env:TOKEN", "file:/nowhere", "${file:/nowhere}", "http", "sse", "rpc", "https://a.example/mcp", "ws://a", "[",
        "package.module:function", "caller", "5", "true",
    ]),
)  # fmt: skip
# Names are for everybody to see, so no secret is one.
MEMBERS = st.one_of(st.text(max_size=8), st.sampled_from(["Authorization", "API_KEY", "name", "type", "url"]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 10**6), st.floats(), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=3),
    max_leaves=6,
)
LIKELY = st.sampled_from(
    [{"command": "npx"}, {"url": "https://a.example/mcp"}, {"rpc": "http://a"}, {"agent": "http://a"}, {}]
)
# A literal is known for a secret by where it stands; through a variable it may stand anywhere.
SECRETS = st.sampled_from([
    {},
    {"headers": {"Authorization": f"Bearer {SECRET}"}},
    {"env": {"API_KEY": SECRET}},
    {"args": [f"--token={SECRET}", "-e", f"PASSWORD={SECRET}", "--header", f"Authorization: Bearer {SECRET}"]},
    {"url": f"https://a.example/?api_key={SECRET}"},
    {"defaults": {"read": {"token": SECRET}}},
])  # fmt: skip
ENTRIES = st.one_of(
    VALUES,
    st.builds(
        lambda some, way, secret: {**some, **way, **secret}, st.dictionaries(KEYS, VALUES, max_size=6), LIKELY, SECRETS
    ),
)
NAMES = st.one_of(st.sampled_from(["a", "b", "A", "my server", "builtin", "a.b", ""]), st.text(max_size=60))
SERVERS = st.one_of(st.dictionaries(NAMES, ENTRIES, max_size=4), st.lists(ENTRIES, max_size=3), VALUES)
ROOTS = st.sampled_from([*SHARED_ROOTS, ("projects",), ("inputs",), ("hub",), ("callers",), ("import",), ("nothing",)])


def nested(root: tuple[str, ...], value: object) -> dict[str, object]:
    for key in reversed(root):
        value = {key: value}
    assert isinstance(value, dict)
    return value


TABLES = st.one_of(
    st.builds(nested, ROOTS, SERVERS),
    st.builds(lambda one, two: {**one, **two}, st.builds(nested, ROOTS, SERVERS), st.builds(nested, ROOTS, SERVERS)),
    st.dictionaries(NAMES, ENTRIES, max_size=3),
)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def findings_of(file: Path, dialect: ClientDialect | None = None) -> Sequence[Finding]:
    """Return what is said of a file, whether it is refused or not."""
    try:
        return load(file, ENVIRONMENT, file.parent, HOME, dialect=dialect).warnings
    except ConfigError as error:
        return error.findings


def check(finding: Finding, file: Path) -> None:
    assert finding.code in CODES
    assert finding.fix
    assert finding.file in (file, None) or finding.file.name == ".env"
    assert SECRET not in str(finding)


@given(TABLES, st.sampled_from(list(DIALECTS.values())))
@steady
def test_a_file_of_any_shape_is_read_or_refused_with_findings(table: dict[str, object], dialect: ClientDialect) -> None:
    with folder() as place:
        file = place / "mcp.json"
        file.write_text(json.dumps(table))
        for finding in findings_of(file, dialect):
            check(finding, file)


@given(st.dictionaries(NAMES, ENTRIES, max_size=4), st.sampled_from(list(CLIENTS.values())))
@steady
def test_every_entry_becomes_a_server_or_a_finding_that_names_it(
    entries: dict[str, Any], dialect: ClientDialect
) -> None:
    document = ParsedFile(Path("/etc/x.json"), nested(dialect.roots[0], entries), dialect)
    try:
        roster = load_servers(document, HostContext(ENVIRONMENT, Path("/work"), HOME))
    except ConfigError:
        return
    for name in roster.entries.keys() - roster.servers.keys():
        path = roster.entries[name].place.path
        assert any(finding.path == path or finding.path.startswith(f"{path}.") for finding in roster.findings)


@given(st.dictionaries(NAMES, ENTRIES, max_size=4), st.sampled_from(list(CLIENTS.values())))
@steady
def test_imported_entries_mean_the_same_and_keep_unknown_keys(entries: dict[str, Any], dialect: ClientDialect) -> None:
    context = HostContext(ENVIRONMENT, Path("/work"), HOME)
    document = ParsedFile(Path("/srv/x.json"), nested(dialect.roots[0], entries), dialect)
    merging = ImportPlan(Path("/srv/isthmus.toml"), context, may_replace=False)
    merging.begin(None)
    merging.add([document])
    text = merging.merged_into("# mine\n")
    assert text.startswith("# mine\n")
    again = load_servers(ParsedFile(merging.file, tomllib.loads(text), OWN), context)
    for candidate in merging.candidates:
        if candidate.is_taken:
            assert candidate.server is not None
            server = again.servers[candidate.name]
            assert replace(server, secrets=frozenset(), extra={}) == replace(
                candidate.server, secrets=frozenset(), extra={}
            )
            assert as_json(server.extra) == as_json(candidate.server.extra)
            theirs = entries[candidate.entry.name]
            same = {key: value for key, value in server.extra.items() if key in theirs}
            assert as_json(same) == as_json({key: theirs[key] for key in same})


def as_json(table: Any) -> str:
    """In letters, `2.0` is not `2`, and what is no number is itself."""
    return json.dumps(table, sort_keys=True)


@given(st.binary(max_size=200), st.sampled_from([".json", ".jsonc", ".toml", ".yaml"]))
@steady
def test_bytes_of_any_kind_are_read_or_refused(content: bytes, suffix: str) -> None:
    with folder() as place:
        file = place / f"x{suffix}"
        file.write_bytes(content)
        assert all(finding.file == file for finding in findings_of(file))


@given(st.text(alphabet="&*a: -[]{},\n<|>!#'\"", max_size=60))
@steady
def test_yaml_of_any_shape_is_read_or_refused(text: str) -> None:
    with folder() as place:
        file = place / "isthmus.yaml"
        file.write_text(text)
        for finding in findings_of(file):
            check(finding, file)


@pytest.mark.parametrize("dialect", CLIENTS.values(), ids=lambda dialect: dialect.name)
def test_an_entry_that_is_not_a_table_is_reported_in_every_dialect(dialect: ClientDialect) -> None:
    document = ParsedFile(Path("/etc/x.json"), nested(dialect.roots[0], {"a": "npx"}), dialect)
    roster = load_servers(document, HostContext({}, Path("/work"), HOME))
    assert [finding.path for finding in roster.findings] == [".".join((*dialect.roots[0], "a"))]
