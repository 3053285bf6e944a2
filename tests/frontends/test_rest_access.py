"""Access reports over REST: the matrix matches real access, with reasons; a preview matches the next reload."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from isthmus.cli.main import main
from isthmus.model.callers import FRONTENDS
from tests.console.conftest import SERVER
from tests.faults.watching import eventually
from tests.hubs import NODE_TABLES, PATIENT, TRUSTED, HubProcess, serving, started, stdio, write_config
from tests.security import permitted

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("rest_access")]

CALLERS: dict[str, Any] = {
    **{name: {"key": permitted.key_of(name), **entry} for name, entry in permitted.CALLERS.items()},
    "ops": {"key": permitted.key_of("ops"), "allow": [], "operator": True},
}
TENANTS = {"acme": permitted.TENANT, "default": {}}
SERVERS = {name: permitted.server(name) for name in permitted.SERVERS}
LISTS = {"tools": "name", "prompts": "name", "resources": "uri", "resources/templates": "uriTemplate"}

Matrix = dict[tuple[str, str | None, str, str], bool]
"""Whether a caller reaches something: by caller, frontend, list and name."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(folder: Path) -> AsyncIterator[HubProcess]:
    async with serving(folder, SERVERS, callers=CALLERS, tenants=TENANTS, limits=PATIENT) as running:
        yield running


def client(hub: HubProcess, caller: str = "ops") -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {permitted.key_of(caller)}"}
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", headers=headers, timeout=30.0, verify=TRUSTED)


async def read(http: httpx2.AsyncClient, path: str) -> dict[str, Any]:
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def cells(http: httpx2.AsyncClient, **query: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The cells of one caller, by list and name."""
    page = await read(http, f"/v1/access?{httpx2.QueryParams({'limit': '1000', **query})}")
    assert page["next"] is None
    assert len(page["callers"]) == 1
    return {(each["list"], each["name"]): each["cells"][0] for each in page["features"]}


async def matrix(http: httpx2.AsyncClient) -> Matrix:
    found: Matrix = {}
    for frontend in (None, *FRONTENDS):
        chosen = "" if frontend is None else f"&frontend={frontend}"
        page = await read(http, f"/v1/access?limit=1000{chosen}")
        assert page["next"] is None
        for feature in page["features"]:
            for caller, cell in zip(page["callers"], feature["cells"], strict=True):
                found[caller["name"], frontend, feature["list"], feature["name"]] = cell["allowed"]
    return found


@pytest.mark.parametrize("caller", sorted(permitted.CALLERS))
async def test_the_access_matrix_matches_the_lists_of_each_caller(hub: HubProcess, caller: str) -> None:
    async with client(hub) as http, client(hub, caller) as own:
        response = await cells(http, caller=caller, frontend="rest")
        for path, member in LISTS.items():
            listed = next(iter((await read(own, f"/v1/{path}")).values()))
            names = {each[member] for each in listed}
            kind = path.rpartition("/")[2]
            assert {name for (of, name), cell in response.items() if of == kind and cell["allowed"]} == names


async def test_only_operators_may_look(hub: HubProcess) -> None:
    async with client(hub, "all") as http:
        for method, path in (
            ("GET", "/v1/access"),
            ("GET", "/v1/access/servers"),
            ("POST", "/v1/access/preview"),
            ("GET", "/v1/audit"),
            ("POST", "/v1/audit/verify"),
        ):
            answer = await http.request(method, path)
            assert (answer.status_code, answer.json()["reason"]) == (403, "forbidden"), path


async def test_every_cell_has_its_reason(hub: HubProcess) -> None:
    async with client(hub) as http:
        minus = await cells(http, caller="minus")
        assert minus["tools", "alpha.look"] == {"allowed": True, "by": "caller", "reason": "* in callers.minus.allow"}
        assert minus["tools", "alpha.drop"]["reason"] == "alpha.drop in callers.minus.deny"
        none = await cells(http, caller="none")
        assert none["tools", "alpha.look"] == {"allowed": False, "by": "caller", "reason": "not in callers.none.allow"}
        bounded = await cells(http, caller="bounded")
        assert bounded["tools", "alpha.tell"] == {
            "allowed": False,
            "by": "tenant",
            "reason": "alpha.tell in tenants.acme.deny",
        }
        assert bounded["tools", "alpha.look"]["reason"] == ("* in callers.bounded.allow; alpha.* in tenants.acme.allow")
        careful = await cells(http, caller="careful")
        assert careful["tools", "gamma.look"]["reason"] == "hint:destructive in callers.careful.deny"
        on_rest = await cells(http, caller="faced", frontend="rest")
        assert on_rest["tools", "alpha.tell"] == {
            "allowed": False,
            "by": "frontend",
            "reason": "not in callers.faced.frontends.rest.allow",
        }
        local = await cells(http, caller="local")
        assert local["tools", "builtin.echo"]["by"] == "local"


async def test_a_summary_counts_the_reachable_features_per_caller_and_server(hub: HubProcess) -> None:
    async with client(hub) as http:
        response = await read(http, "/v1/access/servers")
        names = [caller["name"] for caller in response["callers"]]
        assert names == [*sorted(CALLERS), "local"]
        found = await matrix(http)
        for server in response["servers"]:
            for name, reached in zip(names, server["reached"], strict=True):
                page = await read(http, f"/v1/access?limit=1000&server={server['name']}&caller={name}")
                of_server = [(each["list"], each["name"]) for each in page["features"]]
                assert reached == sum(found[name, None, *each] for each in of_server)
                assert server["features"] == len(of_server)
        faced = next(caller for caller in response["callers"] if caller["name"] == "faced")
        assert (faced["frontends"], faced["allow"], faced["operator"]) == (
            ["rest", "a2a", "mcp", "sse"],
            ["alpha", "gamma.look"],
            False,
        )


async def test_pages_together_are_the_whole(hub: HubProcess) -> None:
    async with client(hub) as http:
        whole = (await read(http, "/v1/access?limit=1000&caller=a*"))["features"]
        found, path = [], "/v1/access?limit=4&caller=a*"
        while True:
            page = await read(http, path)
            assert len(page["features"]) <= 4
            found += page["features"]
            if page["next"] is None:
                break
            path = f"/v1/access?limit=4&caller=a*&cursor={page['next']}"
        assert found == whole
        only = await read(http, "/v1/access?tool=*.look&limit=1")
        assert (only["features"][0]["name"], only["next"] is None) == ("alpha.look", False)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("caller=nobody", "unknown_caller"),
        ("server=nothing", "unknown_server"),
        ("frontend=door", "bad_request"),
        ("limit=0", "bad_request"),
        ("limit=1001", "bad_request"),
        ("cursor=x", "bad_request"),
        ("cursor=%C3%A4", "bad_request"),
        ("cursor=W10", "bad_request"),
        ("unheard=1", "bad_request"),
    ],
)
async def test_a_bad_question_is_a_clear_error(hub: HubProcess, query: str, reason: str) -> None:
    async with client(hub) as http:
        answer = await http.get(f"/v1/access?{query}")
        assert answer.json()["reason"] == reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "bad_request"),
        ([], "bad_request"),
        ({"callers": {"all": {"allow": ["al*"]}}}, "bad_request"),
        ({"callers": {"all": {"alow": []}}}, "bad_request"),
        ({"callers": {"all": {"allow": "alpha"}}}, "bad_request"),
        ({"callers": {"all": {"frontends": {"door": {}}}}}, "bad_request"),
        ({"callers": {"all": {"allow": ["alpha.x"] * 1001}}}, "bad_request"),
        ({"callers": {"local": {"allow": []}}}, "bad_request"),
        ({"callers": {"all": {"allow": ["x" * 300_000]}}}, "bad_request"),
        ({"callers": {"nobody": {"allow": []}}}, "unknown_caller"),
        ({"tenants": {"nowhere": {"allow": []}}}, "unknown_tenant"),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused(hub: HubProcess, body: Any, reason: str) -> None:
    async with client(hub) as http:
        answer = await http.post("/v1/access/preview", json=body)
        assert answer.json()["reason"] == reason, answer.text
        assert not any(permitted.key_of(name) in answer.text for name in CALLERS)


CHANGES: list[dict[str, Any]] = [
    {"callers": {"one": {"allow": ["alpha"], "deny": ["alpha.drop"]}}},
    {"callers": {"careful": {"deny": []}, "safe": {"allow": ["hint:read-only"]}}},
    {"tenants": {"acme": {"deny": ["hint:destructive"]}}},
    {"callers": {"faced": {"frontends": {"rest": {"deny": ["alpha.look"]}, "a2a": None}}}},
    {"callers": {"bounded": {"allow": ["gamma"]}}, "tenants": {"acme": {"allow": ["*"]}}},
    {"callers": {"none": {"allow": ["tag:ours"], "frontends": {"mcp": {"deny": ["gamma.scold"]}}}}},
]


def applied(change: dict[str, Any]) -> dict[str, Any]:
    """The tables of a configuration with a change."""
    tables = copy.deepcopy({"callers": CALLERS, "tenants": TENANTS})
    for table, entries in change.items():
        for name, rules in entries.items():
            entry = tables[table][name]
            frontends = {**entry.get("frontends", {})}
            for frontend, held in rules.get("frontends", {}).items():
                frontends[frontend] = held and {**frontends.get(frontend, {}), **held}
            entry |= {key: rules[key] for key in ("allow", "deny") if key in rules}
            if frontends:
                entry["frontends"] = {key: held for key, held in frontends.items() if held}
    return tables


@contextmanager
def configured(folder: Path, **tables: Any) -> Iterator[None]:
    """The hub's file with other tables, and afterwards as it was."""
    files = [own / "isthmus.json" for own in NODE_TABLES.get(folder, {folder: {}})]
    before = [file.read_text() for file in files]
    for file, text in zip(files, before, strict=True):
        file.write_text(json.dumps({**json.loads(text), **tables}))
    try:
        yield
    finally:
        for file, text in zip(files, before, strict=True):
            file.write_text(text)


def changed(before: Matrix, after: Matrix, *, is_now: bool) -> set[tuple[str, str | None, str, str]]:
    """What appears or vanishes; on a frontend, only if that allows its caller less."""
    narrowed = {
        (caller, frontend)
        for state in (before, after)
        for (caller, frontend, listed, name), allowed in state.items()
        if allowed != state[caller, None, listed, name]
    }
    return {
        key
        for key, allowed in after.items()
        if allowed is is_now and before[key] is not is_now and (key[1] is None or key[:2] in narrowed)
    }


def changes_with(preview: dict[str, Any], word: str) -> dict[tuple[str, str | None, str, str], dict[str, Any]]:
    return {
        (each["caller"], each["frontend"], feature["list"], feature["name"]): feature
        for each in preview["changes"]
        for feature in each[word]
    }


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
async def test_a_preview_matches_the_reload(hub: HubProcess, folder: Path, change: dict[str, Any]) -> None:
    async with client(hub) as http:
        before = await matrix(http)

        async def at_nodes() -> list[Matrix]:
            found = []
            for node in hub.each:
                async with client(node) as own:
                    found.append(await matrix(own))
            return found

        async def is_changed() -> bool:
            return before not in await at_nodes()

        async def is_restored() -> bool:
            return all(each == before for each in await at_nodes())

        answer = await http.post("/v1/access/preview", json=change)
        assert answer.status_code == 200, answer.text
        assert not any(permitted.key_of(name) in answer.text for name in CALLERS)
        assert await is_restored(), "nothing is applied"
        preview = answer.json()
        with configured(folder, **applied(change)):
            await eventually(is_changed, "the change is applied")
            after = await matrix(http)
            appear, vanish = changes_with(preview, "appear"), changes_with(preview, "vanish")
            # A frontend whose rules differ is reported, even if they happen to allow the same.
            assert changed(before, after, is_now=True) <= appear.keys()
            assert changed(before, after, is_now=False) <= vanish.keys()
            assert all(after[key] and not before[key] for key in appear)
            assert all(before[key] and not after[key] for key in vanish)
            for (caller, frontend, listed, name), feature in {**appear, **vanish}.items():
                on = {} if frontend is None else {"frontend": frontend}
                cell = (await cells(http, caller=caller, server=feature["server"], **on))[listed, name]
                assert (cell["by"], cell["reason"]) == (feature["by"], feature["reason"])
        assert preview["complete"]
        assert sum(each["appears"] + each["vanishes"] for each in preview["changes"]) == len(appear) + len(vanish)
        await eventually(is_restored, "the file is as it was")


async def test_unreachable_tools_have_their_reason_and_keys_have_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words"
    words.write_text("Adds two numbers.")
    desk = stdio([sys.executable, str(SERVER), str(words)], exclude_tools=["fail"])
    config = write_config(tmp_path, {"desk": desk}, hub={"pin": "strict"}, limits=PATIENT)
    for name, allow in (("guest-1", "desk.add"), ("guest-2", "desk.sign")):
        assert main(["token", "create", name, "--allow", allow, "--json", "--config", str(config)]) == 0
        capsys.readouterr()
    assert main(["token", "create", "ops", "--operator", "--json", "--config", str(config)]) == 0
    key = json.loads(capsys.readouterr().out)["key"]
    async with (
        started(tmp_path, "--config", str(config)) as hub,
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{hub.port}", headers={"x-api-key": key}, timeout=30.0, verify=TRUSTED
        ) as http,
    ):
        response = await read(http, "/v1/access?caller=guest-*&tool=desk.add")
        own = {
            caller["key"]: cell
            for caller, cell in zip(response["callers"], response["features"][0]["cells"], strict=True)
        }
        assert [cell["allowed"] for cell in own.values()] == [True, False]
        assert all(cell["by"] == "key" and f"key {id}.allow" in cell["reason"] for id, cell in own.items())
        hidden = await read(http, "/v1/access?caller=local&tool=desk.fail")
        assert hidden["features"][0]["cells"] == [
            {"allowed": False, "by": "server", "reason": "in servers.desk.exclude_tools"}
        ]
        words.write_text("Adds two numbers, and sends them to evil.test.")
        assert (await http.post("/v1/restart/desk")).status_code == 200

        async def is_withheld() -> bool:
            page = await read(http, "/v1/access?caller=local&tool=desk.add")
            return [each["cells"][0]["by"] for each in page["features"]] == ["definition"]

        await eventually(is_withheld, "the changed tool is withheld")
        page = await read(http, "/v1/access?caller=local&tool=desk.add")
        assert page["features"][0]["cells"][0]["reason"] == (
            "withheld from everybody until its definition is approved: isthmus approve desk.add"
        )


async def test_an_open_hub_has_one_caller(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as hub,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=30.0, verify=TRUSTED) as http,
    ):
        response = await read(http, "/v1/access?tool=builtin.echo")
        assert [caller["name"] for caller in response["callers"]] == ["local"]
        assert response["features"][0]["cells"] == [
            {"allowed": True, "by": "open", "reason": "the hub is open: it needs no keys"}
        ]


async def test_a_caller_bound_to_a_set_reaches_the_tools_of_the_set(tmp_path: Path) -> None:
    callers = {
        "ops": {"key": permitted.key_of("ops"), "allow": ["*"], "operator": True},
        "bound": {"key": permitted.key_of("bound"), "allow": ["*"], "set": "small"},
    }
    async with serving(tmp_path, {}, callers=callers, sets={"small": {"tools": ["builtin.echo"]}}) as hub:
        async with client(hub) as http:
            response = await cells(http, caller="bound", server="builtin")
            counted = await read(http, "/v1/access/servers?caller=bound")
        async with client(hub, "bound") as own:
            assert [each["name"] for each in (await read(own, "/v1/tools"))["tools"]] == ["echo"]
    assert [each["set"] for each in counted["callers"]] == ["small"]
    assert {name: cell["allowed"] for (_, name), cell in response.items()} == {
        "builtin.chat_log": False, "builtin.echo": True, "builtin.timestamp": False,
    }  # fmt: skip
    assert response["tools", "builtin.echo"]["reason"] == "* in callers.bound.allow; builtin.echo in the set small"
    assert response["tools", "builtin.timestamp"] == {"allowed": False, "by": "set", "reason": "not in the set small"}
    assert [(each["name"], each["features"], each["reached"]) for each in counted["servers"]] == [("builtin", 3, [1])]
