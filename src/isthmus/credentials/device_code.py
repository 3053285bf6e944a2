"""The device flow: a person enters a code on another device while the hub polls the token endpoint (RFC 8628)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from isthmus.credentials.authorization_code import LoginRefused
from isthmus.credentials.clients import proof_of
from isthmus.credentials.fetch import Fetched, FetchFailed
from isthmus.credentials.grants import GrantRefused, TokenEndpoint
from isthmus.credentials.tokens import StoredToken

OK = 200
INTERVAL_SECONDS = 5.0
INTERVAL_SECONDS_MAX = 60.0
CODE_LENGTH_MAX = 64


class DeviceLogin(msgspec.Struct, frozen=True):
    """The address to visit and the code to enter there."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""
    expires_in: float = 600.0
    interval: float = INTERVAL_SECONDS

    def __repr__(self) -> str:
        return f"Device(verification_uri={self.verification_uri!r})"


async def begin(endpoint: TokenEndpoint, scope: str) -> DeviceLogin:
    """Request a code. Raises `LoginRefused`, `FetchFailed` or `UrlRefused`."""
    place = endpoint.server.device_authorization_endpoint
    if not place:
        raise LoginRefused("the authorization server does not support the device flow; try without --device")
    fields, headers = proof_of(endpoint.client, endpoint.settings, endpoint.server)
    form = {"client_id": endpoint.client.id, "resource": endpoint.resource, **fields}
    said = await endpoint.fetcher.post("its device endpoint", place, {**form, **_scope(scope)}, headers)
    device = _read(said)
    for name in ("verification_uri", "verification_uri_complete"):
        if url := getattr(device, name):
            await endpoint.fetcher.check_place(f"its {name}", url)
    return device


def _scope(scope: str) -> dict[str, str]:
    return {"scope": scope} if scope else {}


def _read(said: Fetched) -> DeviceLogin:
    if said.status != OK:
        raise LoginRefused(f"the device endpoint answered HTTP {said.status}")
    try:
        device = msgspec.json.decode(said.body, type=DeviceLogin)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise LoginRefused("the device endpoint's response is malformed") from None
    if not (0 < len(device.user_code) <= CODE_LENGTH_MAX and device.user_code.isprintable()):
        raise LoginRefused("the device endpoint sent no usable code")
    return device


async def wait_for(
    endpoint: TokenEndpoint,
    device: DeviceLogin,
    within: float,
    sleep: Callable[[float], asyncio.Future[None]] | None = None,
) -> StoredToken:
    """Poll until the person has agreed. Raises like `begin`, or `TimeoutError`."""
    interval = min(max(device.interval, 1.0), INTERVAL_SECONDS_MAX)
    async with asyncio.timeout(min(within, device.expires_in)):
        while True:
            await (asyncio.sleep(interval) if sleep is None else sleep(interval))
            try:
                return await endpoint.by_device(device.device_code)
            except FetchFailed:
                interval = min(interval * 2, INTERVAL_SECONDS_MAX)  # it may be unreachable only for a moment
            except GrantRefused as refused:
                if refused.code == "slow_down":
                    interval = min(interval + 5.0, INTERVAL_SECONDS_MAX)
                elif refused.code != "authorization_pending":
                    raise LoginRefused(f"the authorization server says {refused}") from refused
