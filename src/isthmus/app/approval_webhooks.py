"""Announces calls that wait for approval at the webhooks of their rules. Used by `app.serve`.

The same client sends push notifications, with the same rules for retrying. Announcements are not stored: a request
waits whether or not anybody was told, and `isthmus approvals` lists it.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress

import msgspec
import structlog

from isthmus.app.hub import RunningHub
from isthmus.core.access.approval_rules import ApprovalRule
from isthmus.core.calls.approvals import Approval
from isthmus.core.tasks.push_delivery import host_of, is_delivered, is_hopeless, pause_after
from isthmus.transport.egress import Egress
from isthmus.transport.push_client import PushClient

log = structlog.get_logger(__name__)

AT_ONCE = 8
WAITING_MAX = 1_000
"""Announcements under way; further ones are dropped."""

ID_HEADER = "x-approval-id"
"""Has the id of the request; the same in every attempt."""


class ApprovalWebhooks:
    """Sends announcements. Its creator closes it after the hub."""

    def __init__(self, running: RunningHub) -> None:
        self._background = running.background
        # The operator wrote the addresses, so they may be private.
        self._client = PushClient(Egress(), running.background, lambda _: True)
        running.approvals.announce = self.announce
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    def announce(self, approval: Approval, rule: ApprovalRule) -> None:
        """Announce a stored request, if its rule has a webhook."""
        if rule.webhook is None:
            return
        if self._waiting >= WAITING_MAX:
            log.warning("a call that waits for approval is not announced: too many are", approval=approval.id)
            return
        sending = self._send(rule.webhook, approval, announcement(approval, rule))
        with suppress(RuntimeError):  # the hub has ended
            self._background.spawn(f"announcement of {approval.id}", sending, on_crash=lambda _: self._ended())
            self._waiting += 1

    def _ended(self) -> None:
        self._waiting -= 1

    async def _send(self, url: str, approval: Approval, body: bytes) -> None:
        headers = {"content-type": "application/json", ID_HEADER: approval.id}
        # Not the address: it may contain a secret.
        facts = {"approval": approval.id, "host": host_of(url)}
        attempts = 0
        while True:
            async with self._turns:
                receipt = await self._client.post(url, headers, body, is_trusted=True)
            attempts += 1
            if is_delivered(receipt):
                log.info("a call that waits for approval was announced", **facts)
                break
            reason = {"status": receipt.status, "reason": receipt.reason or None}
            if is_hopeless(receipt, attempts) or time.time() >= approval.expires:
                log.warning("a call that waits for approval could not be announced", **facts, **reason)
                break
            await asyncio.sleep(pause_after(receipt, attempts, random.random()))  # noqa: S311 - spread, not secrecy
        self._ended()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def announcement(approval: Approval, rule: ApprovalRule) -> bytes:
    """The body of an announcement; without the arguments, unless the operator wants them."""
    about: dict[str, object] = {
        "event": "approval.requested",
        "id": approval.id,
        "tool": approval.full_name,
        "caller": approval.caller,
        "tenant": approval.tenant,
        "set": approval.set,
        "rule": approval.rule,
        "digest": approval.digest,
        "requested": approval.requested,
        "expires": approval.expires,
    }
    if rule.webhook_arguments:
        about["arguments"] = approval.arguments
    return msgspec.json.encode(about)
