"""State folders and running hubs, as people meet them: several hubs of one user, keys, and commands that find a hub."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from isthmus.storage import audit_sqlite
from tests.faults.watching import eventually
from tests.hubs import PATIENT, TRUSTED, Ended, run, serving, started, stdio
from tests.peers.launch import command

pytestmark = pytest.mark.usefixtures("no_leftovers")


class User:
    """A user with a clean home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {"HOME": str(home), "XDG_STATE_HOME": "", "XDG_CONFIG_HOME": "", "ISTHMUS_DEBUGGABLE": "1"}

    @property
    def state(self) -> Path:
        return self.home / ".local" / "state" / "isthmus"

    def project(self, name: str, servers: Mapping[str, Any] | None = None) -> Path:
        """A folder with an mcp.json."""
        folder = self.home / name
        folder.mkdir()
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers or {}, "limits": PATIENT}))
        return folder

    async def run(self, folder: Path, *words: str) -> Ended:
        return await run(*words, folder=folder, env=self.environment)

    def serving(self, folder: Path, *options: str) -> Any:
        return started(folder, *options, env=self.environment)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


async def status(url: str, key: str | None = None) -> int:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(verify=TRUSTED) as client:
        return (await client.get(url.removesuffix("/mcp") + "/v1/tools", headers=headers)).status_code


async def until(url: str, code: int) -> None:
    async def holds() -> bool:
        return await status(url) == code

    await eventually(holds, f"{url} answers {code}")


def noting_starts(file: Path) -> dict[str, Any]:
    """A server that adds a line to a file whenever it is started."""
    return stdio(["sh", "-c", 'echo started >> "$0"; exec "$@"', str(file), *command("raw_server")])


# -- one state folder for each configuration -------------------------------------------------------------------------


async def test_a_key_closes_the_hub_of_its_configuration_and_no_other(user: User) -> None:
    shop, blog = user.project("shop"), user.project("blog")
    async with user.serving(shop) as first, user.serving(blog) as second:
        assert not any("will not survive a restart" in line for line in (*first.said, *second.said))
        made = await user.run(shop, "token", "create", "ann", "--allow", "*", "--json")
        assert f"the hub of {shop / 'mcp.json'} requires a key" in made.err
        await until(first.url, 401)
        assert await status(first.url, json.loads(made.out)["key"]) == 200
        assert await status(second.url) == 200
        revoked = await user.run(shop, "token", "revoke", "ann")
        assert "stays closed" in revoked.err
        assert "isthmus token revoke ann --open" in revoked.err
        assert await status(first.url) == 401
        opened = await user.run(shop, "token", "revoke", "ann", "--open")
        assert (opened.code, "is open" in opened.err) == (0, True)
        await until(first.url, 200)
        again = await user.run(shop, "token", "create", "bob", "--allow", "*")
        assert again.code == 0
        await until(first.url, 401)
    folders = {folder.name.rpartition("-")[0] for folder in (user.state / "hubs").iterdir()}
    assert folders == {"shop-mcp", "blog-mcp"}
    assert {path.stat().st_mode & 0o077 for path in (user.state, *user.state.glob("hubs/*"))} == {0}
    async with user.serving(shop) as hub:
        assert await status(hub.url) == 401


async def test_a_hub_stays_closed_where_open_would_mean_more_than_its_machine(user: User) -> None:
    shop = user.project("shop")
    (shop / "isthmus.toml").write_text('[hub]\nhost = "0.0.0.0"\n')
    for name in ("ann", "bob"):
        await user.run(shop, "token", "create", name, "--allow", "*")
    refused = await user.run(shop, "token", "revoke", "ann", "--open")
    assert (refused.code, "must be loopback" in refused.err) == (3, True)
    (shop / "isthmus.toml").write_text("")
    others = await user.run(shop, "token", "revoke", "ann", "--open")
    assert (others.code, "others are valid: bob" in others.err) == (2, True)
    listed = await user.run(shop, "token", "list")
    assert [line.split()[3] for line in listed.out.splitlines()] == ["good", "good"]


async def test_the_default_hub_and_the_users_own_file_have_the_usual_folder(user: User) -> None:
    elsewhere = user.home / "elsewhere"
    elsewhere.mkdir()
    await user.run(elsewhere, "token", "create", "ann", "--allow", "*")
    assert (user.state / "keys").is_dir()
    own = user.home / ".config" / "isthmus"
    own.mkdir(parents=True)
    (own / "isthmus.toml").write_text("")
    assert "ann" in (await user.run(elsewhere, "token", "list")).out
    assert "ann" in (await user.run(own, "token", "list")).out
    named = await user.run(elsewhere, "token", "list", "--config", str(own / "isthmus.toml"))
    assert "ann" in named.out


async def test_the_folders_of_xdg_are_used(user: User) -> None:
    shop = user.project("shop")
    configs, states = user.home / "configs", user.home / "states"
    user.environment |= {"XDG_CONFIG_HOME": str(configs), "XDG_STATE_HOME": str(states)}
    (configs / "isthmus").mkdir(parents=True)
    (configs / "isthmus" / "isthmus.toml").write_text("[hub]\nport = 7\n")
    assert "listening on 127.0.0.1:7" in (await user.run(user.home, "config", "check")).out
    await user.run(user.home, "token", "create", "ann", "--allow", "*")
    await user.run(shop, "token", "create", "ann", "--allow", "*")
    assert (states / "isthmus" / "keys").is_dir()
    assert [folder.name[:9] for folder in (states / "isthmus" / "hubs").iterdir()] == ["shop-mcp-"]
    assert not user.state.exists()


async def test_a_home_that_is_no_folder_is_named(user: User) -> None:
    file = user.home / "file"
    file.write_text("")
    user.environment["HOME"] = str(file)
    ended = await user.run(user.home, "token", "create", "ann", "--allow", "*")
    assert ended.code == 3
    assert f"cannot be used: {file} is not a folder" in ended.err
    assert "Set HOME or XDG_STATE_HOME to a folder that you may write" in ended.err


async def test_state_of_an_earlier_version_is_not_silently_lost(user: User) -> None:
    shop = user.project("shop")
    made = await user.run(user.home, "token", "create", "ann", "--allow", "*", "--json")
    (user.state / "configuration").unlink()  # an earlier version did not say whose folder it is
    assert "An earlier version kept the keys" in (await user.run(shop, "token", "list")).err
    refused = await user.run(shop, "serve", "--port", "0")
    assert refused.code == 3
    assert f'set [hub] state = "{user.state}"' in refused.err
    (shop / "mcp.json").write_text(json.dumps({"mcpServers": {}, "hub": {"state": str(user.state)}}))
    async with user.serving(shop) as hub:
        assert (await status(hub.url), await status(hub.url, json.loads(made.out)["key"])) == (401, 200)
    (shop / "mcp.json").write_text(json.dumps({"mcpServers": {}}))
    async with user.serving(shop, "--insecure") as hub:
        assert await status(hub.url) == 200
        assert any("keys, tasks of an earlier version are in" in line for line in hub.said)
    async with user.serving(shop) as hub:
        assert await status(hub.url) == 200
        assert not any("earlier version" in line for line in hub.said)
    async with user.serving(user.home) as hub:
        assert await status(hub.url) == 401
    assert (await user.run(user.project("blog"), "serve", "--port", "0")).code == 3, "it may still be everybody's"
    (user.state / "configuration").write_text("")
    async with user.serving(user.home / "blog") as hub:
        assert await status(hub.url) == 200


# -- commands and a running hub --------------------------------------------------------------------------------------


async def test_commands_use_the_running_hub_of_their_configuration(user: User) -> None:
    starts = user.home / "starts"
    shop = user.project("shop", {"raw": noting_starts(starts)})
    async with user.serving(shop) as hub:
        await user.run(shop, "token", "create", "ann", "--allow", "nothing")
        await until(hub.url, 401)
        origin = hub.url.removesuffix("/mcp")
        for words in (("tools",), ("servers",), ("call", "raw.echo", "text=hi"), ("tools", "--config", "mcp.json")):
            used = await user.run(shop, *words)
            assert (used.code, used.err) == (0, f"Using the hub that runs at {origin}; --private starts another.\n")
        assert starts.read_text().count("started") == 1
        own = await user.run(shop, "call", "raw.echo", "text=hi", "--private")
        assert (own.code, own.out, own.err) == (0, "hi\n", "")
        assert starts.read_text().count("started") == 2
        operated = [["logs", "raw"], ["restart", "raw"], ["top"], ["relay", "status"]]
        for command_line in operated:
            used = await user.run(shop, *command_line)
            assert (used.code, used.err.splitlines()[0]) == (0, f"Using the hub that runs at {origin}.")
        user.environment["ISTHMUS_KEY"] = "key-of-ann-0123456789"
        keyed = await user.run(shop, "call", "raw.echo", "text=hi")
        del user.environment["ISTHMUS_KEY"]
        assert (keyed.code, keyed.err.splitlines()[1:]) == (
            0,
            ["ISTHMUS_KEY is not used: the command has a key of that hub. To use yours, add --hub URL."],
        )
        relayed = await user.run(shop, "token", "relay", "kitchen")
        assert f"ws://127.0.0.1:{hub.port}/mcp_endpoint/call/" in relayed.out, "the port of the running hub"
        blog = user.project("blog")
        (blog / "isthmus.toml").write_text(f"[hub]\nport = {hub.port}\n")
        for command_line in operated:
            none = await user.run(blog, *command_line)
            assert (none.code, none.err.splitlines()[0]) == (4, f"isthmus: no hub runs for {blog / 'isthmus.toml'}")
        other = await user.run(blog, "tools")
        assert (other.code, other.err) == (0, "")
        from_afar = await user.run(shop, "tools", "--hub", origin)
        assert from_afar.code == 5
        assert "isthmus token create NAME" in from_afar.err
        both = await user.run(shop, "tools", "--hub", origin, "--private")
        assert both.code == 2
    state = next(folder for folder in (user.state / "hubs").iterdir() if folder.name.startswith("shop"))
    assert not (state / "running.json").exists()
    async with audit_sqlite.open_reader(state / "journal.db") as log:
        received = [json.loads(row.content) async for row in log.rows()]
    calls = [(each["caller"], each["frontend"], each["name"]) for each in received if each["event"] == "call"]
    assert calls == [("local", "rest", "raw.echo")] * 2


async def test_the_hint_for_an_open_hub_is_right_from_where_the_hub_was_started(user: User) -> None:
    project = user.project("proj")
    for folder, named in ((project, ""), (user.home, f" --config {project / 'mcp.json'}")):
        async with started(folder, "--config", str(project / "mcp.json"), env=user.environment) as hub:
            (hint,) = [json.loads(line)["run"] for line in hub.said if "create a key" in line]
        assert hint == f"isthmus token create NAME --allow '*'{named}"


async def test_a_hub_that_commands_cannot_find_says_so(user: User) -> None:
    shop = user.project("shop")
    (user.home / "file").touch()
    user.environment["XDG_STATE_HOME"] = str(user.home / "file")  # also root cannot write there
    async with user.serving(shop) as hub:
        assert sum("commands cannot find this hub: use --hub" in line for line in hub.said) == 1
        assert (await user.run(shop, "logs", "builtin")).code == 4
        assert (await user.run(shop, "tools", "--hub", hub.url)).code == 0


async def test_leftovers_of_a_killed_hub_are_harmless(user: User) -> None:
    shop = user.project("shop")
    with pytest.raises(AssertionError, match="ended with -9"):
        async with user.serving(shop) as hub:
            os.kill(hub.pid, signal.SIGKILL)
    (left,) = user.state.glob("hubs/shop-*/running.json")
    assert left.stat().st_mode & 0o777 == 0o600
    alone = await user.run(shop, "tools")
    assert (alone.code, alone.err) == (0, "")
    async with user.serving(shop) as hub:
        assert hub.url.removesuffix("/mcp") in (await user.run(shop, "tools")).err


# -- a port in use ---------------------------------------------------------------------------------------------------


async def test_a_port_in_use_is_one_line_and_leaves_no_trace(user: User) -> None:
    starts = user.home / "starts"
    shop = user.project("shop", {"raw": noting_starts(starts)})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = await user.run(shop, "serve", "--port", str(port))
        assert refused.code == 3
        said = refused.err.splitlines()
        (shop / "mcp.json").write_text((shop / "mcp.json").read_text()[:-1] + f', "a2a": {{"grpc_port": {port}}}}}')
        grpc = await user.run(shop, "serve", "--port", "0")
    assert said[0] == f"isthmus: cannot listen on 127.0.0.1:{port}: the address is in use"
    assert len(said) == 2
    assert "--port" in said[1]
    assert grpc.err.splitlines() == [said[0], "Choose another grpc_port under [a2a] of the configuration."]
    assert not starts.exists()
    assert not list(user.state.rglob("*.db"))


async def test_a_second_hub_of_a_configuration_says_where_the_first_is(user: User) -> None:
    shop = user.project("shop")
    async with user.serving(shop) as hub:
        refused = await user.run(shop, "serve", "--port", str(hub.port))
        said = refused.err.splitlines()
        assert (refused.code, len(said)) == (3, 2)
        assert said[0] == f"isthmus: this hub already runs at http://127.0.0.1:{hub.port} (process {hub.pid})"


async def test_a_call_waits_for_a_server_that_the_running_hub_still_starts(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = stdio(["sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.02; done; exec "$@"', str(gate), *command("raw_server")])
    async with serving(tmp_path, {"raw": slow}, limits={"listing_seconds": 0.1}) as hub:

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                if b"it has not answered yet" in data:
                    gate.touch()  # the command knows now that the server is starting
                writer.write(data)
            writer.close()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hub_reader, hub_writer = await asyncio.open_connection("127.0.0.1", hub.port)
            await asyncio.gather(pump(reader, hub_writer), pump(hub_reader, writer))

        early = await run("call", "--hub", hub.url, "raw.echo", "text=hi", "--wait", "0", folder=tmp_path)
        assert (early.code, "it has not answered yet" in early.err) == (1, True)
        async with await asyncio.start_server(relay, "127.0.0.1", 0) as between:
            address = f"http://127.0.0.1:{between.sockets[0].getsockname()[1]}/mcp"
            ended = await run("call", "--hub", address, "raw.echo", "text=hi", folder=tmp_path)
        assert (ended.code, ended.out) == (0, "hi\n")
