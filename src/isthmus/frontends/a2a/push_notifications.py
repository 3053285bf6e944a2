"""Push notifications of A2A tasks: the configs of callers, and the requests that the outbox sends.

A caller only sees configs of its own tasks. The URL is checked when it is configured and again before each request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog
from msgspec.structs import replace

from isthmus.core.ports import PushSender, Sealer, Signer
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.live_task import LiveTask
from isthmus.core.tasks.push_delivery import host_of
from isthmus.core.tasks.push_outbox import PushRequest
from isthmus.core.tasks.record import PushRecipient, TaskRecord, owner_of
from isthmus.frontends.a2a.task_stream import is_settled
from isthmus.frontends.a2a.task_view import artifacts_of, brief_of, whole_task
from isthmus.model.callers import Caller
from isthmus.model.fault_table import Fault, TaskElsewhere
from isthmus.model.tasks import TaskArtifactUpdate, TaskStatusUpdate, Update
from isthmus.wire.a2a.negotiate import DIALECTS
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CreatePushConfig,
    DeletePushConfig,
    DialectName,
    GetPushConfig,
    ListPushConfigs,
    PushConfig,
    PushConfigPage,
)

log = structlog.get_logger(__name__)

RECIPIENTS_MAX = 10
"""Push notification configs of one task."""

URL_LENGTH_MAX = 2048
SECRET_LENGTH_MAX = 4096
"""Length of a token or of credentials: each is one header, and servers accept 8 KiB of headers."""

ID_LENGTH_SHOWN = 256

ID_HEADER = "x-a2a-notification-id"
"""The same for every retry of a notification, so that the receiver can detect duplicates."""

TIME_HEADER = "x-a2a-notification-time"
"""The time of the change, so that the receiver can reject old notifications."""

AUTHORIZATION = "authorization"

TOKEN_HEADER = "x-a2a-notification-token"  # noqa: S105 - the name of a header

SEALED = "sealed:"
"""Prefix of a URL or secret that is stored sealed; no valid URL begins so."""

_SCHEME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_SECRET = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", re.ASCII)


class PushNotifications:
    """The push notification configs of tasks. `trusts` decides which callers may use private addresses."""

    def __init__(
        self,
        engine: TaskEngine,
        courier: PushSender,
        trusts: Callable[[Caller], bool],
        sealer: Sealer | None = None,
        signer: Signer | None = None,
    ) -> None:
        """With a `sealer`, URLs are stored sealed and bound to their tasks, secrets bound to their URLs.

        A URL is often a secret, too: anyone who knows it can post as the hub. The `signer` is for receivers of 0.1.
        """
        self._engine = engine
        self._courier = courier
        self._trusts = trusts
        self._sealer = sealer
        self._signer = signer

    async def key_set(self) -> bytes:
        """The public keys that sign notifications; empty if they are not available."""
        if self._signer is not None:
            try:
                return await asyncio.to_thread(self._signer.key_set)
            except (OSError, ValueError) as error:
                log.warning("push notifications are not signed: key not available", reason=str(error))
        return b'{"keys": []}'

    def letters(self, recipient: PushRecipient, record: TaskRecord, mark: str, now: float) -> Sequence[PushRequest]:
        """The requests for a change of a task; signed for receivers of 0.1."""
        opened = self.opened(recipient, record.id)
        return [self._signed(letter, opened, now) for letter in write_letters(opened, record, mark)]

    def _signed(self, letter: PushRequest, recipient: PushRecipient, now: float) -> PushRequest:
        """Sign a request for 0.1, unless the caller gave its own credentials."""
        if recipient.form != "0.1" or self._signer is None or AUTHORIZATION in letter.headers:
            return letter
        try:
            token = self._signer.token_for(letter.body, now)
        except (OSError, ValueError) as error:
            log.warning("push notification is not signed", task=recipient.id, reason=str(error))
            return letter
        return replace(letter, headers={**letter.headers, AUTHORIZATION: f"Bearer {token}"})

    async def check(self, caller: Caller, form: DialectName, target: PushConfig) -> A2aProblem | None:
        """Why the hub cannot send to this config; None if it can."""
        if form == "0.1":
            await self.key_set()  # creates a missing key in advance
        wrong = flaw_in(target) or await self._courier.refusal(target.url, is_trusted=self._trusts(caller))
        return (
            None if wrong is None else A2aProblem("invalid_params", f"Push notifications cannot be sent there: {wrong}")
        )

    async def set(self, caller: Caller, form: DialectName, asked: CreatePushConfig) -> PushConfig | A2aProblem:
        """Create or replace a push notification config."""
        live = await self._task(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        if (problem := await self.check(caller, form, asked.target)) is not None:
            return problem
        # The check takes time, in which the task may be unloaded and loaded again.
        live = await self._task(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        recipient = self.recipient(caller, form, asked.target, live.record.id)
        if (problem := self.add(live, recipient)) is not None:
            return problem
        await self._engine.wait_stored(live)
        # A config that was replaced meanwhile counts as created.
        if recipient in live.record.recipients and recipient not in _kept(live):
            return A2aProblem("internal", "The push notification config could not be stored; check the disk of the hub")
        return _target(self.opened(recipient, live.record.id))

    def recipient(self, caller: Caller, form: DialectName, target: PushConfig, task: str) -> PushRecipient:
        """The stored form of a config. Without an id it gets the id of the task."""
        url = self._sealed(target.url, task)
        proofs = (self._sealed(target.token, target.url), target.scheme or "")
        credentials = self._sealed(target.credentials, target.url)
        host = "" if url == target.url else host_of(target.url)
        trusted = self._trusts(caller)
        return PushRecipient(target.id or task, url, form, *proofs, credentials, trusted, caller.key, host)

    def _sealed(self, secret: str | None, bound_to: str) -> str:
        if not secret or self._sealer is None:
            return secret or ""
        return SEALED + self._sealer.seal(_bytes(secret), _bytes(bound_to))

    def opened(self, recipient: PushRecipient, task: str) -> PushRecipient:
        """A recipient with its URL and secrets in plain text; empty if they cannot be opened."""
        url = self._open(recipient.url, task)
        token, credentials = (self._open(each, url) for each in (recipient.token, recipient.credentials))
        return replace(recipient, url=url, token=token, credentials=credentials)

    def _open(self, kept: str, bound_to: str) -> str:
        if self._sealer is None or not kept.startswith(SEALED):
            return kept  # stored in plain text by an earlier hub
        opened = self._sealer.open(kept.removeprefix(SEALED), _bytes(bound_to))
        if opened is None:
            log.error("push notification config cannot be opened: sealed with another key, or altered")
        return "" if opened is None else opened.decode(errors="surrogatepass")

    def add(self, live: LiveTask, recipient: PushRecipient) -> A2aProblem | None:
        """Add a recipient to a task, or replace the one with its id. The next write stores it."""
        if live.holder:
            return fault_problem(TaskElsewhere(live.record.id))
        others = tuple(each for each in live.record.recipients if each.id != recipient.id)
        if len(others) >= RECIPIENTS_MAX:
            return A2aProblem("invalid_params", f"A task has at most {RECIPIENTS_MAX} push notification configs")
        if recipient not in live.record.recipients:
            self._engine.set_recipients(live, (*others, recipient))
        return None

    async def get(self, caller: Caller, asked: GetPushConfig) -> PushConfig | A2aProblem:
        """A push notification config; without an id, the first."""
        live = await self._task(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        for recipient in _kept(live):
            if asked.id in (None, recipient.id):
                return _target(self.opened(recipient, live.record.id))
        return A2aProblem("task_not_found", f"Push notification config not found: {_shown(asked.id or asked.task)}")

    async def list(self, caller: Caller, asked: ListPushConfigs) -> PushConfigPage | A2aProblem:
        """A page of the push notification configs of a task."""
        live = await self._task(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        targets = [_target(self.opened(recipient, live.record.id)) for recipient in _kept(live)]
        start = _start(asked.page_token)
        if start is None:
            return A2aProblem("invalid_params", "pageToken is invalid: use the nextPageToken of a result")
        end = start + max(1, asked.page_size)
        return PushConfigPage(asked.task, tuple(targets[start:end]), str(end) if end < len(targets) else "")

    async def delete(self, caller: Caller, asked: DeletePushConfig) -> A2aProblem | None:
        """Delete a config and its pending notifications; a missing one is not an error."""
        live = await self._task(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        if live.holder:
            return fault_problem(TaskElsewhere(live.record.id))
        left = tuple(each for each in live.record.recipients if each.id != asked.id)
        if left != live.record.recipients:
            self._engine.set_recipients(live, left)
            await self._engine.wait_stored(live)
        return None

    async def _task(self, caller: Caller, id: str) -> LiveTask | A2aProblem:
        live = await self._engine.find(owner_of(caller), id)
        return live or A2aProblem("task_not_found", f"Task not found: {_shown(id)}")


def fault_problem(fault: Fault) -> A2aProblem:
    """The problem of a fault that the next attempt may not meet."""
    # Metadata of an `ErrorInfo` are texts.
    metadata = {"executed": fault.executed, "retryAfter": f"{fault.retry_after or 1.0:g}"}
    return A2aProblem("internal", fault.message, metadata)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _kept(live: LiveTask) -> tuple[PushRecipient, ...]:
    return () if live.stored is None else live.stored.recipients


def _target(kept: PushRecipient) -> PushConfig:
    return PushConfig(kept.url, kept.id, kept.token or None, kept.scheme or None, kept.credentials or None)


def flaw_in(target: PushConfig) -> str | None:
    """What is wrong with a config; secrets are never quoted."""
    if len(target.url) > URL_LENGTH_MAX:
        return f"the url is longer than {URL_LENGTH_MAX} characters"
    if target.scheme is not None and not _SCHEME.fullmatch(target.scheme):
        return "the authentication scheme is not a valid name"
    for name, secret in (("token", target.token), ("credentials", target.credentials)):
        if secret is not None and len(secret) > SECRET_LENGTH_MAX:
            return f"the {name} is longer than {SECRET_LENGTH_MAX} characters"
        if secret is not None and not _SECRET.fullmatch(secret):
            return f"the {name} has characters that a header cannot carry"
    return None


def _start(token: str) -> int | None:
    if not token:
        return 0
    return int(token) if token.isascii() and token.isdecimal() and len(token) <= 2 else None


def _shown(id: str) -> str:
    return id[:ID_LENGTH_SHOWN]


# -- requests ----------------------------------------------------------------------------------------------------


def write_letters(recipient: PushRecipient, record: TaskRecord, mark: str) -> Sequence[PushRequest]:
    """The requests for a change of a task, in the receiver's dialect."""
    if recipient.form == "1.0":
        kind = "application/a2a+json"
        bodies = [bytes(DIALECTS["1.0"].write_update(update)) for update in updates_of(record)]
    else:
        # Earlier generations do not specify the body; their reference implementations send the whole task.
        kind = "application/json"
        dialect = next((DIALECTS[name] for name in DIALECTS if name == recipient.form), DIALECTS["0.3"])
        bodies = [bytes(dialect.write_task(whole_task(record), None))]
    updated = datetime.fromtimestamp(record.updated, UTC).isoformat(timespec="milliseconds")
    headers = (_headers(recipient, kind, f"{mark}-{at}", updated) for at in range(len(bodies)))
    return [PushRequest(recipient.url, *each) for each in zip(headers, bodies, strict=True)]


def updates_of(record: TaskRecord) -> list[Update]:
    """A new task as a whole; otherwise its artifacts and its status."""
    task = whole_task(record)
    if record.version == 1:
        return [task]
    made = [
        TaskArtifactUpdate(record.id, record.context, artifact, index=index, at=record.updated)
        for index, artifact in enumerate(artifacts_of(record, brief_of(record)))
    ]
    return [*made, TaskStatusUpdate(record.id, record.context, task.status, is_settled(record))]


def _headers(recipient: PushRecipient, kind: str, id: str, time: str) -> dict[str, str]:
    """The headers of a request. A scheme without credentials is left out."""
    headers = {"content-type": kind, ID_HEADER: id, TIME_HEADER: time}
    if recipient.token:
        headers[TOKEN_HEADER] = recipient.token
    if recipient.scheme and recipient.credentials:
        headers[AUTHORIZATION] = f"{recipient.scheme} {recipient.credentials}"
    return headers
