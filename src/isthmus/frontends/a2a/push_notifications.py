"""Where changes of tasks are sent: what callers say of that, and what is written to those they named.

A recipient is its caller's own as its task is. Its address is looked at when it is named and again whenever something
is sent there. Used by the desk and its faces; the outbox sends what is written here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog
from msgspec.structs import replace

from isthmus.core.ports import PushSender, Sealer, Signer
from isthmus.core.tasks.delivery import host_of
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.live_task import LiveTask
from isthmus.core.tasks.outbox import PushRequest
from isthmus.core.tasks.record import PushRecipient, TaskRecord, owner_of
from isthmus.frontends.a2a.task_stream import is_settled
from isthmus.frontends.a2a.task_view import artifacts_of, brief_of, shown
from isthmus.model.callers import Caller
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
"""Of one task."""

URL_LENGTH_MAX = 2048
SECRET_LENGTH_MAX = 4096
"""Of a token, and of credentials: each is one line of a request's head, of which servers take 8 KiB at most."""

ID_LENGTH_SHOWN = 256

ID_HEADER = "x-a2a-notification-id"
"""The same whenever the same thing is sent, so that who gets it twice can tell."""

TIME_HEADER = "x-a2a-notification-time"
"""When that happened which is told, so that who gets it can refuse what is old."""

AUTHORIZATION = "authorization"

TOKEN_HEADER = "x-a2a-notification-token"  # noqa: S105 - the name of a header

SEALED = "sealed:"
"""How an address or a proof begins that is not kept as it is; no address that may be named does."""

_SCHEME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_SECRET = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", re.ASCII)


class PushNotifications:
    """The recipients of callers' tasks. `trusts` says who may name private addresses, if the operator listed them."""

    def __init__(
        self,
        engine: TaskEngine,
        courier: PushSender,
        trusts: Callable[[Caller], bool],
        sealer: Sealer | None = None,
        signer: Signer | None = None,
    ) -> None:
        """With a `sealer`, addresses are kept sealed and bound to their tasks, proofs to the addresses they are for.

        An address, too, is often a secret: whoever has it can speak for the hub there. The `signer` is for recipients
        of the first generation.
        """
        self._engine = engine
        self._courier = courier
        self._trusts = trusts
        self._sealer = sealer
        self._signer = signer

    async def key_set(self) -> bytes:
        """The keys with which notifications are signed; none if they cannot be had."""
        if self._signer is not None:
            try:
                return await asyncio.to_thread(self._signer.key_set)
            except (OSError, ValueError) as error:
                log.warning("push notifications are not signed: the key cannot be had", reason=str(error))
        return b'{"keys": []}'

    def letters(self, recipient: PushRecipient, record: TaskRecord, mark: str, now: float) -> Sequence[PushRequest]:
        """What a recipient is told of a change; in the first generation, signed."""
        opened = self.opened(recipient, record.id)
        return [self._signed(letter, opened, now) for letter in write_letters(opened, record, mark)]

    def _signed(self, letter: PushRequest, recipient: PushRecipient, now: float) -> PushRequest:
        """The same as its listener wants it, unless its caller gave credentials of its own."""
        if recipient.form != "0.1" or self._signer is None or AUTHORIZATION in letter.headers:
            return letter
        try:
            token = self._signer.token_for(letter.body, now)
        except (OSError, ValueError) as error:
            log.warning("a push notification is not signed", task=recipient.id, reason=str(error))
            return letter
        return replace(letter, headers={**letter.headers, AUTHORIZATION: f"Bearer {token}"})

    async def check(self, caller: Caller, form: DialectName, target: PushConfig) -> A2aProblem | None:
        """Why nothing can be sent there for this caller."""
        if form == "0.1":
            await self.key_set()  # which may have to be made first, aside
        wrong = flaw_in(target) or await self._courier.refusal(target.url, is_trusted=self._trusts(caller))
        return (
            None if wrong is None else A2aProblem("invalid_params", f"Push notifications cannot be sent there: {wrong}")
        )

    async def set(self, caller: Caller, form: DialectName, asked: CreatePushConfig) -> PushConfig | A2aProblem:
        """Have a task's changes sent somewhere."""
        live = await self._task(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        if (problem := await self.check(caller, form, asked.target)) is not None:
            return problem
        # A look at an address takes its time, in which a task is forgotten and called back as another.
        live = await self._task(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        recipient = self.recipient(caller, form, asked.target, live.record.id)
        if (problem := self.add(live, recipient)) is not None:
            return problem
        await self._engine.wait_stored(live)
        # One whose place another took meanwhile was set all the same.
        if recipient in live.record.recipients and recipient not in _kept(live):
            return A2aProblem("internal", "The push notification config could not be written down; is the disk full?")
        return _target(self.opened(recipient, live.record.id))

    def recipient(self, caller: Caller, form: DialectName, target: PushConfig, task: str) -> PushRecipient:
        """What is kept of where something is to be sent; who gives it no id knows it by the task's."""
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
        """A recipient of a task with its address and its proofs as they are sent; what cannot be opened is empty."""
        url = self._open(recipient.url, task)
        token, credentials = (self._open(each, url) for each in (recipient.token, recipient.credentials))
        return replace(recipient, url=url, token=token, credentials=credentials)

    def _open(self, kept: str, bound_to: str) -> str:
        if self._sealer is None or not kept.startswith(SEALED):
            return kept  # an earlier hub kept it as it was
        opened = self._sealer.open(kept.removeprefix(SEALED), _bytes(bound_to))
        if opened is None:
            log.error("what a push is sent with cannot be opened: it was kept under another key, or changed")
        return "" if opened is None else opened.decode(errors="surrogatepass")

    def add(self, live: LiveTask, recipient: PushRecipient) -> A2aProblem | None:
        """Put a recipient on a task's list, or in the place of the one of its id; it is kept with the next write."""
        others = tuple(each for each in live.record.recipients if each.id != recipient.id)
        if len(others) >= RECIPIENTS_MAX:
            return A2aProblem("invalid_params", f"A task has at most {RECIPIENTS_MAX} push notification configs")
        if recipient not in live.record.recipients:
            self._engine.set_recipients(live, (*others, recipient))
        return None

    async def get(self, caller: Caller, asked: GetPushConfig) -> PushConfig | A2aProblem:
        """One of them; without an id, the first."""
        live = await self._task(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        for recipient in _kept(live):
            if asked.id in (None, recipient.id):
                return _target(self.opened(recipient, live.record.id))
        return A2aProblem("task_not_found", f"Push notification config not found: {_shown(asked.id or asked.task)}")

    async def list(self, caller: Caller, asked: ListPushConfigs) -> PushConfigPage | A2aProblem:
        """All of them; a page goes on at the place that its token says."""
        live = await self._task(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        targets = [_target(self.opened(recipient, live.record.id)) for recipient in _kept(live)]
        start = _start(asked.page_token)
        if start is None:
            return A2aProblem("invalid_params", "pageToken is not one that was given")
        end = start + max(1, asked.page_size)
        return PushConfigPage(asked.task, tuple(targets[start:end]), str(end) if end < len(targets) else "")

    async def delete(self, caller: Caller, asked: DeletePushConfig) -> A2aProblem | None:
        """Send nothing there any more, not even what is due; nothing is wrong with one that is not there."""
        live = await self._task(caller, asked.task)
        if isinstance(live, A2aProblem):
            return live
        left = tuple(each for each in live.record.recipients if each.id != asked.id)
        if left != live.record.recipients:
            self._engine.set_recipients(live, left)
            await self._engine.wait_stored(live)
        return None

    async def _task(self, caller: Caller, id: str) -> LiveTask | A2aProblem:
        live = await self._engine.find(owner_of(caller), id)
        return live or A2aProblem("task_not_found", f"Task not found: {_shown(id)}")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _kept(live: LiveTask) -> tuple[PushRecipient, ...]:
    return () if live.stored is None else live.stored.recipients


def _target(kept: PushRecipient) -> PushConfig:
    return PushConfig(kept.url, kept.id, kept.token or None, kept.scheme or None, kept.credentials or None)


def flaw_in(target: PushConfig) -> str | None:
    """What cannot be sent as it is; secrets are told by their name alone."""
    if len(target.url) > URL_LENGTH_MAX:
        return f"the url is longer than {URL_LENGTH_MAX} characters"
    if target.scheme is not None and not _SCHEME.fullmatch(target.scheme):
        return "the authentication scheme is not the name of one"
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


# -- what is sent ----------------------------------------------------------------------------------------------------


def write_letters(recipient: PushRecipient, record: TaskRecord, mark: str) -> Sequence[PushRequest]:
    """What a recipient is told of a change, in its own words."""
    if recipient.form == "1.0":
        kind = "application/a2a+json"
        bodies = [bytes(DIALECTS["1.0"].write_update(update)) for update in updates_of(record)]
    else:
        # Earlier generations do not say what is sent; their own implementations send the whole task.
        kind = "application/json"
        dialect = next((DIALECTS[name] for name in DIALECTS if name == recipient.form), DIALECTS["0.3"])
        bodies = [bytes(dialect.write_task(shown(record), None))]
    told = datetime.fromtimestamp(record.updated, UTC).isoformat(timespec="milliseconds")
    headers = (_headers(recipient, kind, f"{mark}-{at}", told) for at in range(len(bodies)))
    return [PushRequest(recipient.url, *each) for each in zip(headers, bodies, strict=True)]


def updates_of(record: TaskRecord) -> list[Update]:
    """A task that has just begun, whole; else what it brought forth, and then how it stands."""
    task = shown(record)
    if record.version == 1:
        return [task]
    made = [
        TaskArtifactUpdate(record.id, record.context, artifact, index=index, at=record.updated)
        for index, artifact in enumerate(artifacts_of(record, brief_of(record)))
    ]
    return [*made, TaskStatusUpdate(record.id, record.context, task.status, is_settled(record))]


def _headers(recipient: PushRecipient, kind: str, id: str, time: str) -> dict[str, str]:
    """What goes before a letter; a scheme without credentials proves nothing, and is left out."""
    headers = {"content-type": kind, ID_HEADER: id, TIME_HEADER: time}
    if recipient.token:
        headers[TOKEN_HEADER] = recipient.token
    if recipient.scheme and recipient.credentials:
        headers[AUTHORIZATION] = f"{recipient.scheme} {recipient.credentials}"
    return headers
