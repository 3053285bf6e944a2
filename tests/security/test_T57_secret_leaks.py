"""T57: a secret gets into a log, an error, a list, a command line, a database or a file.

Answer: secrets are known as such from where they come in, and are redacted or never passed on. Shown by a hub with a
canary in each place that a secret can be in, which is used well and badly at the level `debug`; then everything that it
has said, answered, listed and kept is looked through. There is no `/metrics` and there are no traces to look through.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from isthmus.config.findings import ConfigError
from isthmus.config.load import load
from tests.faults.scripted import Scripted
from tests.frontends.wire import until
from tests.hubs import TRUSTED, HubProcess, environment, serving, stdio, write_config
from tests.issuer import issuing
from tests.peers.launch import command
from tests.security.authority import Authority, Protected, entry_of
from tests.security.canaries import Canaries

V1 = {"a2a-version": "1.0"}
DEAD = "http://127.0.0.1:9"
TELLS_ALL = "import os, sys; sys.stderr.write(os.environ['API_TOKEN'] + chr(10)); sys.exit(os.environ['API_TOKEN'])"
"""A server that says its secret when it fails, as many do."""

SHOWN = ("/v1/servers", "/v1/tools", "/openapi.json", "/.well-known/agent-card.json", "/.well-known/ai-catalog.json")
OWN = (
    "/",
    "/livez",
    "/readyz",
    "/healthz",
    "/metrics",
    "/mcp_endpoint/health",
    "/.well-known/oauth-protected-resource",
)
COMMANDS = (
    ("config", "show"),
    ("config", "show", "--json", "--origin"),
    ("config", "check"),
    ("doctor",),
    ("token", "list", "--json"),
    ("audit", "export"),
    ("access", "planner"),
    ("servers", "--wait", "3"),
    ("approve", "--changes"),
    ("logs", "telling"),
)


DIVIDER = "\n-- and the next --\n"
RUN_ALL = f"""
import json, sys
from isthmus.cli.main import main
for words in json.loads(sys.argv[1]):
    main([*words, "--config", sys.argv[2]])
    sys.stderr.flush()
    print({DIVIDER!r}, flush=True, end="")
"""


class Scene:
    """A hub with canaries, and everything that it has told anybody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canaries = Canaries()
        self.outputs: dict[str, str] = {}

    @property
    def config(self) -> Path:
        return self.folder / "isthmus.json"

    def keep_answer(self, who: str, answer: httpx2.Response) -> None:
        self.outputs[who] = f"{answer.status_code}\n{answer.headers}\n{answer.text}"

    async def run(self, *commands: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """What commands say; all in one process, which takes a fraction of the time."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", RUN_ALL, json.dumps(commands), str(self.config)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment({**self.environment, **(env or {})}),
            cwd=self.folder,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 60)
        received = said.decode(errors="replace").split(DIVIDER)[:-1]
        assert len(received) == len(commands), said
        return received

    @property
    def environment(self) -> dict[str, str]:
        canary = self.canaries
        return {
            "PLANNER_KEY": canary["the key of a caller"],
            "CLIENT_SECRET": canary["the secret of an OAuth client"],
            "CHILD_TOKEN": canary["the environment of a server"],
            "TELLING_TOKEN": canary["the environment of a server that tells it"],
            "HEADER": f"Bearer {canary['a header for a server']}",
            "RELAY_KEY": canary["the key of the relay"],
            "VAULT_KEY": canary["the key of logins"],
        }

    def file_with_a_secret(self) -> Path:
        file = self.folder / "secret"
        file.write_text(f"{self.canaries['a file for a server']}\n")
        return file

    def servers(self, web: Mapping[str, str], protected: Protected) -> dict[str, Any]:
        canary = self.canaries
        query = f"?token={canary['the address of a server']}"
        literal = {"X-Api-Key": canary["a header that is written out"]}
        client = {"grant": "client_credentials", "client_id": "hub", "client_secret": "env:CLIENT_SECRET"}
        own = {"planner": {"headers": {"X-Own": canary["a header of one caller"]}}}
        return {
            "web": {
                **web,
                "url": web["url"] + query,
                "headers": {"Authorization": "env:HEADER", "X-File": f"file:{self.file_with_a_secret()}", **literal},
                "callers": own,
            },
            "dead": {"url": f"{DEAD}/mcp?api_key={canary['the address of a dead server']}", "headers": literal},
            "child": stdio(command("raw_server"), env={"API_TOKEN": "env:CHILD_TOKEN"}),
            "telling": stdio([sys.executable, "-c", TELLS_ALL], env={"API_TOKEN": "env:TELLING_TOKEN"}),
            "protected": entry_of(protected, **client),
        }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """All that happens; each test looks through one kind of what is left of it."""
    made = Scene(tmp_path_factory.mktemp("canaries"))
    async with AsyncExitStack() as held:
        issuer = held.enter_context(issuing())
        authority = await held.enter_async_context(Authority())
        authority.prefix = made.canaries["a token that a server takes"]
        protected = await held.enter_async_context(Protected(authority))
        web = await held.enter_async_context(Scripted())
        tables = {
            "log": {"level": "debug", "format": "json", "file": str(made.folder / "hub.log")},
            "callers": {"planner": {"key": "env:PLANNER_KEY", "allow": ["*"], "targets": True}},
            "issuers": {"corp": {"issuer": issuer.url, "audience": "https://hub.example", "allow": ["*"]}},
            "relay": {"key": "env:RELAY_KEY"},
            "credentials": {"key": "env:VAULT_KEY"},
            "targets": {"allow": [DEAD], "headers": ["X-Target"]},
            "hub": {"audit": "strict", "public_url": "http://localhost:8765"},
        }
        servers = made.servers(web.entry, protected)
        async with serving(made.folder, servers, env=made.environment, **tables) as hub:
            token = issuer.token(aud="https://hub.example")
            await _use(made, hub, made.canaries.watch("a token of an issuer", token))
            said = await made.run(*COMMANDS)
            made.outputs |= {" ".join(words): each for words, each in zip(COMMANDS, said, strict=True)}
            made.outputs["what the hub said"] = "".join(hub.said)
            assert authority.count("client_credentials"), "the hub has a token for its server"
    return made


async def _use(scene: Scene, hub: HubProcess, token: str) -> None:
    """Call well and badly, by every way in, and show each secret where it is to be shown."""
    canary = scene.canaries
    planner = {"authorization": f"Bearer {canary['the key of a caller']}"}
    base = f"http://127.0.0.1:{hub.port}"
    (minted,) = await scene.run(("token", "create", "made", "--allow", "*", "--json"))
    key = minted.partition('"key": "')[2].partition('"')[0]
    canary.watch("a key that was made", key)
    async with httpx2.AsyncClient(verify=TRUSTED, base_url=base, timeout=30) as http:

        async def are_there() -> bool:
            listed = (await http.get("/v1/tools", headers=_bearer(key))).text
            return all(f'"{server}.' in listed for server in ("web", "child", "protected"))

        await until(are_there)
        scene.outputs["the command lines"] = await asyncio.to_thread(_argv, hub.pid)
        form = {
            "grant_type": "client_credentials",
            "client_id": "planner",
            "client_secret": canary["the key of a caller"],
        }
        given = (await http.post("/oauth/token", data=form)).json()["access_token"]
        canary.watch("an access token", given)
        wrong = {**form, "client_secret": canary["a wrong secret of a client"]}
        for shown in (planner, _bearer(key), _bearer(token), _bearer(given), {"x-api-key": key}):
            answer = await http.post("/v1/tools/web.t", json={"text": "well"}, headers=shown)
            assert answer.status_code == 200, answer.text
            scene.keep_answer(f"a call by {len(scene.outputs)}", answer)
        asked = {
            "a wrong key": http.get("/v1/tools", headers=_bearer(canary["a wrong key"])),
            "a wrong token": http.get("/v1/tools", headers=_bearer(f"{token[:-30]}{canary['a wrong token']}")),
            "a wrong access token": http.get(
                "/v1/tools", headers=_bearer(given[:-24] + canary["a wrong access token"])
            ),
            "a key in the address": http.get("/v1/tools", params={"key": canary["a key in the address"]}),
            "a wrong client": http.post("/oauth/token", data=wrong),
            "a dead server": http.post("/v1/tools/dead.echo", json={"text": "x"}, headers=planner),
            "bad arguments": http.post("/v1/tools/child.echo", json={"text": 5}, headers=planner),
            "a call that is lost": http.post(
                "/v1/tools/child.echo", json={"text": "x", "mode": "drop"}, headers=planner
            ),
            "the relay": http.get("/mcp_endpoint/health", params={"key": canary["the key of the relay"]}),
            "the relay, wrongly": http.get("/mcp_endpoint/health", params={"key": canary["a wrong key of the relay"]}),
            "a server that dials in": http.get(
                "/mcp_endpoint/mcp/", params={"token": canary["a token in the address of a socket"]}, headers=_UPGRADE
            ),
            "a target": http.post("/a2a", json=_target(canary["a header for a target"]), headers={**planner, **V1}),
            "a push": http.post(
                "/a2a",
                json=_push(
                    canary["the address of a push"], canary["the token of a push"], canary["the credentials of a push"]
                ),
                headers={**planner, **V1},
            ),
            **{page: http.get(page, headers=planner) for page in SHOWN},
            **{f"{page} to a stranger": http.get(page) for page in (*SHOWN, *OWN)},
        }
        for who, answer in zip(asked, await asyncio.gather(*asked.values()), strict=True):
            scene.keep_answer(who, answer)
    assert '"error"' not in scene.outputs["a push"], scene.outputs["a push"]


_UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def _bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def _message(id: str, data: Any) -> dict[str, Any]:
    return {"messageId": id, "role": "ROLE_USER", "parts": [{"data": data}]}


def _sent(message: Any, **configuration: Any) -> dict[str, Any]:
    params = {"message": message, "configuration": configuration}
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}


def _target(header: str) -> dict[str, Any]:
    named = {"mcp_target_url": DEAD, "mcp_method": "ping", "mcp_params": {}, "mcp_headers": {"X-Target": header}}
    return _sent(_message("m-target", named))


def _push(address: str, token: str, credentials: str) -> dict[str, Any]:
    named = {"tool": "builtin.echo", "arguments": {"text": "x"}}
    proof = {"scheme": "Bearer", "credentials": credentials}
    config = {"url": f"https://push.example/hook?key={address}", "token": token, "authentication": proof}
    return _sent(_message("m-push", named), taskPushNotificationConfig=config)


def _argv(hub: int) -> str:
    """The command lines of a hub and of all that it has started, as everybody on the machine can read them."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) == hub or _parent_of(process) == hub:
                lines.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except (OSError, ValueError, IndexError):
            continue
    assert len(lines) > 1
    return "\n".join(lines)


def _parent_of(process: Path) -> int:
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


# -- what is left of it ----------------------------------------------------------------------------------------------


async def test_no_answer_no_command_and_no_command_line_has_a_secret(scene: Scene) -> None:
    # Who has a token made, or asks for it, is told it: that alone is left out here.
    assert {who: found for who, said in scene.outputs.items() if (found := scene.canaries.found_in(said))} == {}
    assert len(scene.outputs) > len(COMMANDS) + len(SHOWN)
    assert "stderr  ***" in scene.outputs["logs telling"]


async def test_no_line_of_the_log_has_a_secret(scene: Scene) -> None:
    lines = (scene.folder / "hub.log").read_text().splitlines()
    assert len(lines) > 10
    assert [line for line in lines if scene.canaries.found_in(line)] == []


async def test_no_file_of_the_state_folder_has_a_secret(scene: Scene) -> None:
    assert scene.canaries.found_under(scene.folder / "state") == {}
    assert (scene.folder / "state" / "journal.db").stat().st_size


async def test_there_is_a_canary_in_every_place(scene: Scene) -> None:
    assert len(scene.canaries) >= 27


C = "canary-of-a-mistake-0123456789abcdef"
URL = "https://s.example/mcp"
MISTAKES: tuple[dict[str, Any], ...] = (
    *({"callers": each} for each in (C, {"p": C}, {"p": {"key": [C]}}, {"p": {"key": {"x": C}}}, {"p": {"keys": C}})),
    *({"servers": {"s": {"url": URL, "headers": each}}} for each in (C, {"A": [C]}, {f"A: {C}": ""}, {"A": f"{C}\n"})),
    *({"servers": {"s": {"url": URL, "oauth": each}}} for each in (C, {"client_secret": C}, {"client_secret": [C]})),
    *({"servers": {"s": {"url": URL, "oauth": {key: f"https://u:{C}@a"}}}} for key in ("issuer", "token_endpoint")),
    {"servers": {"s": {"url": URL, "oauth": {"origins": [f"https://u:{C}@a"]}}}},
    {"servers": {"s": {"url": URL, "oauth": {"client_id": "x", "private_key": f"-----BEGIN {C}"}}}},
    *({"servers": {"s": {"url": URL, "callers": each}}} for each in (C, {"p": C}, {"p": {"headers": {"A": [C]}}})),
    *({"servers": {"s": {"url": each}}} for each in (f"https://u:{C}@a", f"x://u:{C}@a", [f"https://a?t={C}"])),
    *({"servers": {"s": {"command": "x", "env": each}}} for each in (C, {"A": [C]}, {"A": f"{C}\0"})),
    *({"credentials": each} for each in (C, {"key": [C]}, {"key": {"x": C}}, {"old_keys": [C]}, {"kei": C})),
    *({"relay": {"key": each}} for each in ([C], {"x": C})),
    *(
        {"storage": {"url": each}}
        for each in (f"mysql://u:{C}@a", [f"postgresql://u:{C}@a"], f"postgresql://u:{C}@a/ b")
    ),
    *({"issuers": {"c": {"issuer": each, "audience": "x"}}} for each in (f"https://u:{C}@a", f"https://u:{C}@a:x")),
    {"issuers": {"c": {"issuer": "https://a", "jwks": f"https://u:{C}@a", "audience": "x"}}},
    {"targets": {"allow": [f"https://u:{C}@a"]}},
    *({"extensions": {"settings": each}} for each in (C, {"x": C}, {"x": {"secret": C}})),
)


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_errors_of_a_file_are_reported_without_the_secret_in_the_wrong_place(tmp_path: Path, number: int) -> None:
    file = tmp_path / "isthmus.json"
    wrong = MISTAKES[number]
    named = {"identity": ["x"], **wrong["extensions"]} if "extensions" in wrong else None
    file.write_text(json.dumps({**wrong, **({"extensions": named} if named else {})}))
    try:
        findings = load(file, {}, tmp_path, tmp_path).warnings
    except ConfigError as error:
        findings = error.findings
    assert findings, "that it is wrong is told"
    assert C not in "".join(map(repr, findings))


async def test_no_output_has_the_password_of_a_database(tmp_path: Path) -> None:
    made = Scene(tmp_path)
    url = f"postgresql://hub:{made.canaries['the password of a database']}@127.0.0.1:9/x"
    write_config(tmp_path, {}, storage={"url": "env:DATABASE"}, log={"level": "debug"})
    words = [("config", "show", "--json"), ("doctor",), ("audit", "verify"), ("audit", "export")]
    response = await made.run(*words, env={"DATABASE": url})
    assert not made.canaries.found_in("\n".join(response))
    assert "127.0.0.1:9" in response[0]
    write_config(tmp_path, {}, storage={"url": f"{url}?sslmode=bad mode"})
    assert not made.canaries.found_in((await made.run(("config", "check")))[0])
