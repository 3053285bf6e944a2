"""T65: blocks of two relay tokens of the original kind make a token of a third agent.

These tokens are AES-ECB without a MAC: each block of 16 bytes stands for itself, so the blocks of valid tokens can be
put together anew. The hub accepts such a token only in a spelling that the original programs write, for an agent that
the operator configured or issued a token for, and only if a block of it is in no other known agent's token.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.faults.watching import eventually, watches_files
from tests.hubs import HubProcess, run, serving
from tests.relay.peers import device, device_url, raw_server, wired
from tests.relay.tokens import KEY, java_agent, java_quoted, java_token, python_quoted, python_token

pytestmark = pytest.mark.asyncio

WARNING = "accepts original tokens"
DEFAULT = {"key": KEY, "compatible_agents": "known"}


def blocks(token: str) -> list[bytes]:
    sealed = base64.b64decode(token)
    return [sealed[at : at + 16] for at in range(0, len(sealed), 16)]


def joined(*parts: bytes) -> str:
    return base64.b64encode(b"".join(parts)).decode()


async def refusal(hub: HubProcess, token: str) -> str | None:
    """Why a device with this token is turned away."""
    async with wired(device_url(hub.port, java_quoted(token))) as socket:
        ending = await socket.ended()
        assert ending.code == 1008
        return ending.reason


async def test_blocks_of_valid_tokens_open_no_third_agent(tmp_path: Path) -> None:
    agents: dict[str, object] = {"home": {}, "homestead": {}, "barn": {}}
    async with serving(tmp_path, relay={**DEFAULT, "agents": agents}) as hub:
        assert [line for line in hub.said if "relay tokens are refused" in line and "'home'" in line.replace('"', "'")]
        spliced = joined(blocks(python_token("homestead"))[0], blocks(python_token("barn"))[1])
        assert spliced == python_token("home")  # to the byte: no re-encryption tells them apart
        assert await refusal(hub, spliced) == "token可由其他token拼成"
        for agent in ("homestead", "barn"):
            async with raw_server(hub.port, agent), device(hub.port, agent) as it:
                await it.ready()
        stranger = joined(*blocks(python_token("homestead"))[:1], blocks(python_token("kitchenette"))[1])
        assert await refusal(hub, stranger) == "未登记的agentId"


async def test_an_agent_without_an_issued_token_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, relay=DEFAULT) as hub:
        await eventually(lambda: watches_files(hub.pid), "it has read its configuration")
        assert await refusal(hub, python_token("kitchen")) == "未登记的agentId"
        assert await refusal(hub, java_token("42")) == "未登记的agentId"
        config = ("--config", str(tmp_path / "isthmus.json"))
        assert (await run("token", "relay", "kitchen", "--compatible", *config, folder=tmp_path)).code == 0
        async with device(hub.port, "", url=device_url(hub.port, python_quoted(python_token("kitchen")))) as it:
            await it.ready()  # a running hub knows it from now on
    assert not [line for line in hub.said if WARNING in line]
    async with serving(tmp_path, relay=DEFAULT) as hub, device(hub.port, "kitchen") as it:
        await it.ready()
    assert [line for line in hub.said if WARNING in line and "warning" in line.lower()]


async def test_the_agents_of_a_manager_need_a_setting(tmp_path: Path) -> None:
    async with serving(tmp_path, relay={**DEFAULT, "compatible_agents": "md5"}) as hub:
        async with device(hub.port, "", url=device_url(hub.port, java_quoted(java_token("42")))) as it:
            await it.ready()
        assert await refusal(hub, python_token("kitchen")) == "未登记的agentId"
        # The manager writes a blank after the colon: the other spelling has other blocks.
        assert await refusal(hub, python_token(java_agent("42"))) == "未登记的agentId"
    assert [line for line in hub.said if WARNING in line]
