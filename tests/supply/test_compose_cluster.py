"""deploy/compose: the parts fit each other, and NATS, nginx and hubs run with their settings, without Docker."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml  # type: ignore[import-untyped]

from tests import databases
from tests.cluster.servers import PROGRAM, free_port
from tests.faults.watching import eventually
from tests.hubs import CHECKOUT, HubProcess, Raw, started
from tests.relay.peers import Manner, raw_server
from tests.supply.image import stages

FOLDER = CHECKOUT / "deploy" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "cluster.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
NODES = ("node1", "node2", "node3")
CONFIG = FOLDER / "config" / "isthmus.toml"
KEY = secrets.token_hex(16)
SECONDS = 60.0


def nginx() -> str:
    """The program; without it a test is skipped with the reason, and in CI it fails."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is not None:
        return found
    reason = "no nginx on this machine; install it: sudo apt-get install nginx-light"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def test_hubs_differ_only_in_name_address_and_state() -> None:
    own = ("hostname", "networks", "volumes")
    hubs = [{key: value for key, value in SERVICES[name].items() if key not in own} for name in NODES]
    assert hubs == [hubs[0]] * 3
    assert [SERVICES[name]["hostname"] for name in NODES] == list(NODES)
    states = [SERVICES[name]["volumes"][1] for name in NODES]
    assert len({volume.partition(":")[0] for volume in states} & COMPOSE["volumes"].keys()) == 3
    image = {step.word: step.rest for step in stages((CHECKOUT / "Dockerfile").read_text())["slim"]}
    assert hubs[0]["build"] == {"context": "../..", "target": "slim"}
    assert {volume.partition(":")[2] for volume in states} == {image["VOLUME"]}


def test_hubs_are_as_confined_as_in_the_compose_file_of_one_hub() -> None:
    single = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"]["hub"]
    for key in ("init", "restart", "stop_grace_period", "read_only", "tmpfs", "cap_drop", "security_opt"):
        assert {str(SERVICES[name][key]) for name in NODES} == {str(single[key])}, key
    assert all("no-new-privileges:true" in service["security_opt"] for service in SERVICES.values())


def test_every_mounted_file_and_named_service_is_there() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", ())]
    files = {mount.partition(":")[0] for mount in mounts if mount.startswith("./")}
    assert {path.name for path in FOLDER.iterdir() if path.name != ".env"} - {"cluster.yaml"} == {
        name.removeprefix("./") for name in files
    }
    volumes = {mount.partition(":")[0] for mount in mounts} - files
    assert volumes == COMPOSE["volumes"].keys()
    waits = {name for service in SERVICES.values() for name in service.get("depends_on", ())}
    assert waits <= SERVICES.keys()


def test_only_the_load_balancer_publishes_a_port_and_everything_has_a_health_check() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["balancer"]
    [port] = SERVICES["balancer"]["ports"]
    listen = re.search(r"listen (\d+);", (FOLDER / "nginx.conf").read_text())
    assert listen is not None
    assert port == f"127.0.0.1:8765:{listen[1]}"
    probes = {name: " ".join(service["healthcheck"]["test"]) for name, service in SERVICES.items()}
    assert all("/readyz" in probes[name] for name in (*NODES, "balancer"))


def test_every_secret_is_demanded_and_none_is_in_a_file() -> None:
    text = (FOLDER / "cluster.yaml").read_text()
    used = set(re.findall(r"\$\{(\w+)(?=:\?)", text))
    assert set(re.findall(r"\$\{(\w+)", text)) == used
    [made] = re.findall(r"^# for name in ([\w ]+);", text, re.MULTILINE)
    assert set(made.split()) == used
    given = SERVICES["node1"]["environment"].keys()
    assert set(re.findall(r'"env:(\w+)"', CONFIG.read_text())) == given


def test_the_load_balancer_knows_all_hubs_by_addresses_that_stay() -> None:
    servers = re.findall(r"^\s+server (\w+):8765 ", (FOLDER / "nginx.conf").read_text(), re.MULTILINE)
    assert servers == list(NODES)
    fixed = [f"{name}:{SERVICES[name]['networks']['default']['ipv4_address']}" for name in NODES]
    assert SERVICES["balancer"]["extra_hosts"] == fixed


@asynccontextmanager
async def balancer(folder: Path, ports: Sequence[int]) -> AsyncIterator[int]:
    """Run nginx with the configuration of the folder, in front of hubs on this machine; yields its port."""
    text, port = (FOLDER / "nginx.conf").read_text(), free_port()
    for name, hub in zip(NODES, ports, strict=True):
        text = text.replace(f"{name}:8765", f"127.0.0.1:{hub}")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}").replace("/tmp/", f"{folder}/")
    config = folder / "nginx.conf"
    config.write_text(text)
    command = [nginx(), "-p", str(folder), "-c", str(config)]
    tested = await asyncio.create_subprocess_exec(*command, "-t", stderr=asyncio.subprocess.PIPE)
    _, said = await tested.communicate()
    assert (tested.returncode, b"[warn]" in said) == (0, False), said.decode()
    process = await asyncio.create_subprocess_exec(*command, "-g", "daemon off;")
    try:
        await eventually((folder / "nginx.pid").exists, "nginx starts", SECONDS)
        yield port
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def hubs(folder: Path) -> AsyncIterator[list[HubProcess]]:
    """Three hubs, NATS and PostgreSQL with the files of the folder."""
    async with AsyncExitStack() as stack:
        database = stack.enter_context(databases.running())
        port, password = free_port(), secrets.token_hex(16)
        words = [re.sub(r"\$\{.*\}", password, word).replace("8222", "-1") for word in SERVICES["nats"]["command"]]
        nats = await asyncio.create_subprocess_exec(
            str(PROGRAM), "-a", "127.0.0.1", "-p", f"{port}", *words, stderr=asyncio.subprocess.DEVNULL
        )
        stack.callback(nats.kill)
        # The tests' servers make their tokens themselves, for agents that no hub has seen.
        relay = '[relay]\ncompatible_agents = "any"\n'
        file = folder / "isthmus.toml"
        file.write_text(CONFIG.read_text().replace("[relay]\n", relay))
        running = []
        for name in NODES:
            (folder / name).mkdir()
            env = {
                "NATS_URL": f"nats://hub:{password}@127.0.0.1:{port}",
                "DATABASE_URL": database.url(schema="shared"),
                "RELAY_KEY": "0123456789abcdef0123456789abcdef",
                "OPERATOR_KEY": KEY,
                "HOME": str(folder / name),
                "XDG_STATE_HOME": str(folder / name),
            }
            hub = started(folder / name, "--config", str(file), env=env)
            running.append(await stack.enter_async_context(hub))
        yield running
    await nats.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="the tests' NATS server is for Linux")
@pytest.mark.timeout(300)
async def test_calls_streams_and_websockets_pass_nginx_to_three_hubs(tmp_path: Path) -> None:
    nginx()
    async with hubs(tmp_path) as nodes, balancer(tmp_path, [node.port for node in nodes]) as port:
        url = f"http://127.0.0.1:{port}"
        headers = {"authorization": f"Bearer {KEY}"}
        async with (
            httpx2.AsyncClient(base_url=url, headers=headers, timeout=SECONDS) as rest,
            Raw(f"{url}/mcp", key=KEY) as caller,
            raw_server(port, "agent", "s1", manner=Manner(tools=("echo",))),
        ):
            nodes_seen = set()

            async def all_seen() -> bool:
                report = (await rest.get("/v1/cluster")).json()
                nodes_seen.add(report["node"])
                return len(nodes_seen) >= 2 and len(report["nodes"]) == 3  # the WebSocket keeps one hub busier

            await eventually(all_seen, "nginx uses the hubs, which see each other", SECONDS)

            async def can_call() -> bool:
                answers = [await caller.call("agent_s1.echo", {"text": "hello"}) for _ in range(6)]
                return all(answer.get("result", {}).get("content") for answer in answers)

            await eventually(can_call, "every hub calls the server that dialled in through nginx", SECONDS)
            async with rest.stream("GET", "/v1/activity", headers={"accept": "text/event-stream"}) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                async with asyncio.timeout(SECONDS):  # nginx would hold the first bytes back if it buffered them
                    await anext(stream.aiter_bytes())
            nodes[0].terminate()

            async def is_left_out() -> bool:
                return {(await rest.get("/readyz")).status_code for _ in range(6)} == {200}

            await eventually(is_left_out, "nginx leaves out a hub that has ended", SECONDS)
