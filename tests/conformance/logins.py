"""The conformance client in scenarios of authorisation acts like a person who operates the hub.

The hub is started, and says that its server wants a login; `isthmus login` is run, the address that it prints is
visited, and the hub takes the login up by itself. If the server then turns a call away because it wants more, the hub
says so, with the command to run, and that is run. Where a hub logs in by itself, nobody does anything.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from tests.hubs import TRUSTED, HubProcess, environment, isthmus

LOGINS_MAX = 3
"""A person who has logged in so often gives up."""

SECONDS = 10.0
CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"
"""What the suite expects of clients that are described by a document; it is never fetched."""

CONNECTED = ("server ready", "not connected")
NOTICED = ("login changed", *CONNECTED)
"""What the hub says after a login."""

_COMMAND = re.compile(r"run isthmus login (\S+)(?: --scope '([^']*)')?")


def is_login(scenario: str) -> bool:
    """Whether a scenario is about authorisation."""
    return scenario.startswith("auth/")


def oauth_of(scenario: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator configures for a scenario: that all is on this machine, and what the suite gave beforehand."""
    settings: dict[str, Any] = {"origins": ["http://localhost:*", "http://127.0.0.1:*"]}
    if scenario in ("auth/basic-cimd", "auth/offline-access-scope"):
        settings["client_metadata"] = CLIENT_METADATA
    known = {"client_id": "client_id", "client_secret": "client_secret", "private_key_pem": "private_key"}
    settings |= {ours: given[theirs] for theirs, ours in known.items() if theirs in given}
    if scenario.startswith("auth/client-credentials"):
        settings["grant"] = "client_credentials"
    elif scenario == "auth/wif-jwt-bearer":
        settings |= {"grant": "jwt_bearer", "identity_token": given["valid_jwt"]}
    elif scenario == "auth/enterprise-managed-authorization":
        settings |= {"grant": "enterprise_managed", "identity_token": given["idp_id_token"]}
        settings |= {key: given[key] for key in ("idp_issuer", "idp_token_endpoint", "idp_client_id")}
    return settings


class Operator:
    """The operator of the hub: reads the state of its server, and logs in where it is required."""

    def __init__(self, hub: HubProcess, config: Path, server: str) -> None:
        self._hub = hub
        self._config = config
        self._server = server
        self._logins = 0

    async def use(self) -> None:
        """Have every tool of the server called, with as many logins as that takes."""
        async with httpx2.AsyncClient(timeout=SECONDS, verify=TRUSTED) as http:
            while (wish := await self._try(http)) is not None:
                self._logins += 1
                if self._logins > LOGINS_MAX:
                    raise SystemExit(f"after {LOGINS_MAX} logins the server still says: {wish}")
                found = _COMMAND.search(wish)
                if found is None:
                    raise SystemExit(wish)
                said = len(self._hub.said)  # the hub may be quicker than who logs in is done
                await self._log_in(http, found[2] or "")
                await self._settled(http, said)

    async def _try(self, http: httpx2.AsyncClient) -> str | None:
        """Why the server cannot be used; None once every tool was called."""
        listed = (await http.get(self._url("/v1/tools"))).json()
        if self._server in listed["missing"]:
            return str(listed["missing"][self._server]["reason"])
        for tool in [tool["name"] for tool in listed["tools"] if tool["name"].startswith(f"{self._server}.")]:
            answer = await http.post(self._url(f"/v1/tools/{tool}"), json={})
            if answer.status_code != 200:
                return str(answer.json()["detail"])
        return None

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._hub.port}{path}"

    async def _log_in(self, http: httpx2.AsyncClient, scope: str) -> None:
        words = ["login", self._server, "--config", str(self._config), "--seconds", "5"]
        process = await asyncio.create_subprocess_exec(
            *isthmus(*words, *(["--scope", scope] if scope else [])),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
            cwd=self._config.parent,
        )
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().strip()
        if address:
            print("visits", address)
            await http.get(address, follow_redirects=True)
        _, said = await process.communicate()
        print("$ isthmus", shlex.join(words), scope, said.decode())
        if process.returncode:
            raise SystemExit(f"isthmus login ended with {process.returncode}: {said.decode()}")

    async def _settled(self, http: httpx2.AsyncClient, said: int) -> None:
        """Wait until the hub has noticed the login, and says how it went; it had said so much before.

        A call that is made before that still has the old token, and would only ask for one more login.
        """
        async with asyncio.timeout(SECONDS):
            while not any(word in line for line in self._hub.said[said:] for word in NOTICED):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while not any(word in line for line in self._hub.said[said:] for word in CONNECTED):
                listed = (await http.get(self._url("/v1/tools"))).json()
                if self._server not in listed["missing"]:
                    return
                await asyncio.sleep(0.05)
