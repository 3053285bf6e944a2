"""Reports of a caller's access with reasons, and of the changes by another configuration."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from isthmus.app.access import callers_of, places_of
from isthmus.cli.access import OPERATOR, TARGETS, AccessQuery, show_access, show_difference
from isthmus.cli.config import configuration_of
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.find_hub import LocalSource
from isthmus.cli.main import main
from isthmus.cli.rest_client import RemoteSource
from isthmus.model.callers import FrontendName
from isthmus.storage.definition_store import FILE, DefinitionStore, SeenDefinition
from tests.hubs import PATIENT, serving, write_config
from tests.security.permitted import key_of, server

ALPHA, GAMMA = server("alpha"), server("gamma")
CALLERS: dict[str, Any] = {
    "planner": {
        "key": key_of("planner"),
        "tenant": "acme",
        "allow": ["alpha", "tag:safe", "tag:ours"],
        "frontends": {"rest": {"allow": ["alpha.look"]}},
    },
    "root": {"key": key_of("root"), "allow": ["*"]},
}
TENANTS = {"acme": {"deny": ["alpha.drop"]}}
SERVERS = {"alpha": ALPHA, "gamma": GAMMA}


def config(folder: Path, servers: dict[str, Any] | None = None, **tables: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return write_config(
        folder, SERVERS if servers is None else servers, **{"callers": CALLERS, "tenants": TENANTS} | tables
    )


async def printed(
    file: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
    frontend: FrontendName | None = None,
    *,
    is_json: bool = False,
) -> str:
    assert await show_access(LocalSource(file), file, AccessQuery(name, frontend, is_json), wait=20) == Exit.SUCCESS
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


async def test_reachable_tools_are_shown_with_the_pattern_and_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = await printed(config(tmp_path), "planner", capsys)
    assert out.splitlines() == [
        "planner (tenant acme)",
        "",
        "tools that it can reach:",
        "  alpha.look  alpha.* in callers.planner.allow",
        "  alpha.tell  alpha.* in callers.planner.allow",
        "  gamma.drop  tag:ours in callers.planner.allow",
        "",
        "prompts that it can reach:",
        "  alpha.greet  alpha.* in callers.planner.allow",
        "  alpha.scold  alpha.* in callers.planner.allow",
        "  gamma.scold  tag:ours in callers.planner.allow",
        "",
        "resources that it can reach:",
        "  alpha:open  alpha.* in callers.planner.allow",
        "  alpha:shut  alpha.* in callers.planner.allow",
        "",
        "templates that it can reach:",
        "  alpha:open/{n}  alpha.* in callers.planner.allow",
        "  alpha:shut/{n}  alpha.* in callers.planner.allow",
        "",
        'denied (the caller sees "unknown tool"):',
        "  alpha.drop         alpha.drop in tenants.acme.deny",
        "  builtin.chat_log   not in callers.planner.allow",
        "  builtin.echo       not in callers.planner.allow",
        "  builtin.timestamp  not in callers.planner.allow",
        "  gamma.look         not in callers.planner.allow",
        "  gamma.tell         not in callers.planner.allow",
        "  gamma.greet        not in callers.planner.allow",
        "  gamma:open         not in callers.planner.allow",
        "  gamma:shut         not in callers.planner.allow",
        "  gamma:open/{n}     not in callers.planner.allow",
        "  gamma:shut/{n}     not in callers.planner.allow",
        "",
        "gamma labels its tools tag:safe;",
        "that counts only with servers.gamma.trusted = true.",
        "",
        "Some frontends allow it less: see --frontend rest.",
    ]
    assert max(map(len, out.splitlines())) <= 80


async def test_a_denial_that_matches_nothing_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be mistyped, and what was meant is then not denied."""
    caller = {"key": key_of("one"), "tenant": "acme", "allow": ["*"], "deny": ["alpha.dorp", "alpha.look", "other.x"]}
    out = await printed(
        config(tmp_path, {"alpha": ALPHA}, callers={"one": caller}, tenants={"acme": {"deny": ["alpha.alpha:shot"]}}),
        "one",
        capsys,
    )
    assert [line for line in out.splitlines() if line.endswith("has nothing of that name.")] == [
        "alpha.dorp in callers.one.deny: alpha has nothing of that name.",
        "alpha.alpha:shot in tenants.acme.deny: alpha has nothing of that name.",
    ]


async def test_on_a_frontend_both_that_allow_it_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (await printed(config(tmp_path), "planner", capsys, "rest")).splitlines()
    assert lines[:5] == [
        "planner (tenant acme, on rest)",
        "",
        "tools that it can reach:",
        "  alpha.look  alpha.look in callers.planner.frontends.rest.allow",
        "              alpha.* in callers.planner.allow",
    ]
    assert "  alpha.tell         not in callers.planner.frontends.rest.allow" in lines
    assert not [line for line in lines if "allow it less" in line]


async def test_programs_get_everything_with_its_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (caller,) = json.loads(await printed(config(tmp_path), "planner", capsys, is_json=True))
    assert (caller["caller"], caller["tenant"], caller["frontends"]) == ("planner", "acme", ["rest"])
    by_name = {(each["list"], each["name"]): each for each in caller["features"]}
    look = by_name["tools", "gamma.look"]
    assert (look["reached"], look["labels"]) == (False, [])
    assert {"tag:safe", "hint:read-only", "hint:destructive"} <= set(look["claimed"])
    assert by_name["tools", "alpha.drop"]["why"] == [{"list": "deny", "place": "tenants.acme", "pattern": "alpha.drop"}]


async def test_a_long_name_stands_alone_and_a_caller_without_tools_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "a-server-with-a-name-of-nearly-fifty-letters-here"
    nothing = {"nobody": {"key": key_of("nobody"), "allow": []}, **CALLERS}
    out = await printed(config(tmp_path, {long: {**ALPHA, "tags": []}}, callers=nothing), "nobody", capsys)
    assert "It can reach nothing." in out
    assert f"  {long}.look\n" in out


async def test_servers_that_did_not_come_are_named_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path, {"gone": {"command": "/no/such/program"}})
    await show_access(LocalSource(file), file, AccessQuery("root", None, is_json=False), wait=20)
    said = capsys.readouterr()
    assert "builtin.echo       * in callers.root.allow" in said.out
    assert said.err.startswith("gone is retrying: '/no/such/program'")
    assert said.err.endswith("Tools of servers that are not connected may be missing above.\n")


async def test_an_unknown_caller_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    file = config(tmp_path)
    with pytest.raises(CommandFailed) as failed:
        await show_access(LocalSource(file), file, AccessQuery("plannner", None, is_json=False), wait=20)
    assert failed.value.exit == Exit.USAGE
    assert (failed.value.message, failed.value.advice) == (
        "there is no caller 'plannner'",
        ("Callers: planner, root.",),
    )


async def test_without_callers_it_is_the_local_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = config(tmp_path, {}, callers={}, tenants={})
    with pytest.raises(CommandFailed) as failed:
        await show_access(LocalSource(file), file, AccessQuery("me", None, is_json=False), wait=20)
    assert failed.value.advice == ("No callers are configured: every program on this machine is local.",)
    assert "builtin.echo       * in callers.local.allow" in await printed(file, "local", capsys)


async def test_a_running_hub_provides_the_tools_and_the_file_the_permissions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path / "here")
    (tmp_path / "there").mkdir()
    async with serving(tmp_path / "there", SERVERS, callers=CALLERS, tenants=TENANTS, limits=PATIENT) as hub:
        source = RemoteSource(hub.url, {"Authorization": f"Bearer {key_of('root')}"})
        assert await show_access(source, file, AccessQuery("planner", None, is_json=False), wait=20) == Exit.SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:6] == [
        "  alpha.look  alpha.* in callers.planner.allow",
        "  alpha.tell  alpha.* in callers.planner.allow",
        "  gamma.drop  tag:ours in callers.planner.allow",
    ]
    assert "  alpha.drop         alpha.drop in tenants.acme.deny" in lines


def test_a_caller_with_a_token_is_shown_by_issuer_and_scope(tmp_path: Path) -> None:
    issuer = {
        "issuer": "https://login.example", "audience": "https://hub.example", "jwks": "https://login.example/keys",
        "tenant": "acme", "allow": ["alpha.look"], "scopes": {"write": ["alpha.drop"]},
    }  # fmt: skip
    configuration = configuration_of(config(tmp_path, issuers={"corp": issuer}))
    found = {caller.name: caller for caller in callers_of(configuration)}
    assert list(found) == ["corp/*", "corp/* write", "planner", "root"]
    assert found["corp/* write"].grants.allow == ("alpha.look", "alpha.drop")
    assert found["corp/*"].grants.within is not None
    assert places_of(found["corp/*"])[:2] == ("issuers.corp", "tenants.acme")


# -- two configurations ------------------------------------------------------------------------------------------------


async def differences(
    old: Path, new: Path, capsys: pytest.CaptureFixture[str], *, is_json: bool = False
) -> tuple[Exit, str]:
    code = await show_difference(old, new, wait=20, is_json=is_json)
    return code, capsys.readouterr().out


async def test_added_removed_and_changed_tools_are_shown_for_each_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = config(tmp_path / "old")
    callers = {
        "planner": {**CALLERS["planner"], "allow": ["alpha.drop", "gamma.look"]},
        "new": {"key": key_of("new"), "allow": ["gamma.tell"]},
    }
    new = config(
        tmp_path / "new", {"alpha": {**ALPHA, "timeout": 60}, "gamma": GAMMA}, callers=callers, tenants={"acme": {}}
    )
    code, out = await differences(old, new, capsys)
    assert code == Exit.CALL_FAILED
    parts = {part.splitlines()[0]: part.splitlines()[1:] for part in out.strip().split("\n\n")}
    assert list(parts) == [
        "new (tenant default)",
        "planner (tenant acme)",
        "planner (tenant acme, on rest)",
        "root (tenant default)",
    ]
    assert parts["new (tenant default)"] == ["  + gamma.tell"]
    assert parts["planner (tenant acme)"][:5] == [
        "  + alpha.drop", "  + gamma.look", "  - alpha.look", "  - alpha.tell", "  - gamma.drop",
    ]  # fmt: skip
    assert "  - alpha:open/{n} (template)" in parts["planner (tenant acme)"]
    assert parts["planner (tenant acme, on rest)"] == ["  - alpha.look"]
    assert parts["root (tenant default)"][0] == "  - alpha.drop"


async def test_differences_of_a_frontend_are_shown_for_that_frontend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only one of the two configurations holds the caller to less there; the other is what it is compared with."""
    free = {"one": {"key": key_of("one"), "allow": ["alpha.look", "alpha.drop"]}}
    held = {"one": {**free["one"], "frontends": {"rest": {"deny": ["alpha.drop"]}}}}
    old = config(tmp_path / "old", {"alpha": ALPHA}, callers=free)
    new = config(tmp_path / "new", {"alpha": ALPHA}, callers=held)
    assert await differences(old, new, capsys) == (
        Exit.CALL_FAILED,
        "one (tenant default, on rest)\n  - alpha.drop\n",
    )
    assert await differences(new, old, capsys) == (
        Exit.CALL_FAILED,
        "one (tenant default, on rest)\n  + alpha.drop\n",
    )


@pytest.mark.parametrize(("key", "right"), [("targets", TARGETS), ("operator", OPERATOR)])
async def test_a_right_that_is_not_a_tool_is_shown_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, right: str
) -> None:
    caller = {"key": key_of("one"), "allow": ["builtin.echo"]}
    old = config(tmp_path / "old", {}, callers={"one": caller})
    new = config(tmp_path / "new", {}, callers={"one": {**caller, key: True}})
    code, out = await differences(old, new, capsys)
    assert code == Exit.CALL_FAILED
    assert out.splitlines()[1:] == [f"  + {right}"]
    (told_of,) = json.loads((await differences(new, old, capsys, is_json=True))[1])
    assert (told_of[key], told_of["appear"], told_of["vanish"]) == ("vanish", [], [])


async def test_limits_labels_and_definitions_that_change_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callers = {"one": {"key": key_of("one"), "allow": ["alpha.look"]}}
    old = config(tmp_path / "old", {"alpha": ALPHA}, callers=callers)
    changed = {
        **ALPHA,
        "trusted": False,
        "timeout": 60,
        "pin": "strict",
        "defaults": {"look": {"x": 1}},
        "cache": {"tools": ["look"]},
    }
    new = config(tmp_path / "new", {"alpha": changed}, callers=callers)
    code, out = await differences(old, new, capsys)
    assert code == Exit.CALL_FAILED
    assert out.splitlines()[0] == "one (tenant default)"
    for word in ("cache 0 → 60 s", "tags or hints", "timeout 240 → 60", "pin warn → strict"):
        assert word in out.splitlines()[1]
    code, document = await differences(old, new, capsys, is_json=True)
    (told_of,) = json.loads(document)
    assert (told_of["caller"], told_of["appear"], told_of["vanish"]) == ("one", [], [])
    assert told_of["change"][0]["name"] == "alpha.look"


async def test_without_a_difference_nothing_is_printed_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path)
    assert await show_difference(file, file, wait=20, is_json=False) == Exit.SUCCESS
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "Nothing changes for any caller.\n")


def test_a_new_file_keeps_the_keys_of_the_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    for file in (old, new):
        file.write_text("")
    assert main(["token", "create", "bot", "--allow", "builtin.*", "--config", str(old)]) == Exit.SUCCESS
    capsys.readouterr()
    assert main(["access", "--config", str(old), "--diff", str(new)]) == Exit.SUCCESS
    assert capsys.readouterr().err == "Nothing changes for any caller.\n"


async def test_a_server_that_does_not_start_is_named_with_its_missing_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = config(tmp_path / "old"), config(tmp_path / "new", {"alpha": ALPHA, "gamma": {"command": "/no/such"}})
    assert await show_difference(old, new, wait=20, is_json=False) == Exit.CALL_FAILED
    said = capsys.readouterr()
    assert "  - gamma.drop\n" in said.out
    assert said.err.startswith("gamma of the new configuration is retrying: '/no/such'")
    assert said.err.endswith("Tools of servers that are not connected may be missing above.\n")


async def test_a_caller_left_out_because_of_a_mistake_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callers = {**CALLERS, "planner": {**CALLERS["planner"], "key": "short"}}
    old = config(tmp_path / "old", {"alpha": ALPHA})
    new = config(tmp_path / "new", {"alpha": ALPHA}, callers=callers, tenants={"acme": {"x": 1}})
    assert await show_difference(old, new, wait=20, is_json=False) == Exit.CALL_FAILED
    said = capsys.readouterr()
    assert "  - alpha.look\n" in said.out
    assert ["callers.planner" in said.err, "tenants.acme" in said.err] == [True, True]
    with pytest.raises(CommandFailed) as failed:
        await show_access(LocalSource(new), new, AccessQuery("planner", None, is_json=False), wait=20)
    assert failed.value.advice == (
        "The configuration has it, but the entry is ignored: `isthmus config check` says why.",
    )


async def test_tools_that_wait_for_approval_are_unreachable_and_nothing_is_recorded_as_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    file = config(tmp_path, {"alpha": ALPHA}, hub={"pin": "strict", "state": str(state)})
    assert "  alpha.look  " in await printed(file, "root", capsys)
    assert not (state / FILE).exists()
    with closing(DefinitionStore(state)) as kept:
        kept.store([(SeenDefinition("alpha", "", "look", b"another", b"{}", 0.0), False)])
    await show_access(LocalSource(file), file, AccessQuery("root", None, is_json=False), wait=20)
    said = capsys.readouterr()
    assert ["alpha.look" in said.out, "alpha.drop" in said.out] == [False, True]
    assert said.err == "alpha.look is withheld from everybody: isthmus approve alpha.look\n"
    with closing(DefinitionStore(state)) as kept:
        assert [row[2] for row in kept.known()] == ["look"]


@pytest.mark.parametrize(
    "words",
    [
        ["access"],
        ["access", "planner", "--diff", "new.toml"],
        ["access", "--diff", "new.toml", "--hub", "http://127.0.0.1:1"],
        ["access", "--diff", "new.toml", "--frontend", "rest"],
        ["access", "planner", "--frontend", "http"],
    ],
)
def test_contradictory_options_are_refused(words: list[str]) -> None:
    assert main(words) == Exit.USAGE
