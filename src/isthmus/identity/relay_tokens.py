"""The relay's tokens: made, read and checked here, and nowhere else.

There are two kinds. The original's are an agent's id under AES, for both ends and for ever. Ours (`isr1.`) are signed
and say for whom, for which end and until when. Neither is ever put into a message: why a token is refused is told in
the original's words, with which its socket is closed. The face asks `RelayTokens`, the command line mints.

The original's tokens have no MAC: every block of 16 bytes is encrypted for itself, so blocks of two tokens can be
joined to a third. `RelayTokens` therefore accepts only spellings that the original programs write, only for known
agents, and only tokens with a block that no other known agent's token has.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import itertools
import json
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args
from urllib.parse import quote, quote_plus

import msgspec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.padding import PKCS7

from isthmus.identity.keys import digest_of
from isthmus.model.relay import DEFAULT_TENANT, Claim, Role

PREFIX = "isr1."
"""How our own tokens begin; the original's cannot, since base64 has no dot."""

NONE_SHOWN = "缺少token参数"
NOT_DECRYPTED = "token解密失败"
NOT_READ = "token数据格式错误"
NO_AGENT = "无对应agentId"
NOT_COMPATIBLE = "不接受兼容token"
UNKNOWN_AGENT = "未登记的agentId"
SPLICEABLE = "token可由其他token拼成"
FORGED = "token无效"
EXPIRED = "token已过期"
REVOKED = "token已撤销"

TOKEN_LENGTH_MAX = 4096
"""Several times what the longest agent's token takes."""

ID_RULE = "16 to 18 digits and letters from a to f"
"""What ids look like, for people."""

NAME_LENGTH_MAX = 128
"""Of an agent's and of a tenant's name."""

_ID_BYTES = 8
_ATTEMPTS = 48
"""Of which all but one in hundreds succeed, unless the agent's name itself is in the way."""
_ID_FORM = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES},{2 * _ID_BYTES + 2}}}")
_AES_SIZES = (16, 24, 32)
_BLOCK_BITS = 128
_BLOCK_BYTES = 16
_MD5_FORM = re.compile(r"[0-9a-f]{32}")
_REFUSED_WORDS = ("key", "call")

CompatibleAgents: TypeAlias = Literal["known", "md5", "any"]
"""Whose tokens of the original kind are accepted. `known`: agents that are configured, or that the command line made
such a token for. `md5`: those, and ids as a manager makes them. `any`: every agent, so that tokens can be spliced."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """How tokens are made and read."""

    key: str | None = field(default=None, repr=False)
    """Makes and checks tokens; None has one made and kept in the state folder."""
    compatible: bool = True
    """Whether the original's tokens are accepted, which have no role, no expiry and no proof of who made them."""
    compatible_agents: CompatibleAgents = "known"
    revoked: tuple[str, ...] = ()
    """Ids of tokens that are good no more."""

    def __post_init__(self) -> None:
        if self.compatible_agents not in get_args(CompatibleAgents):
            choices = ", ".join(get_args(CompatibleAgents))
            raise ValueError(f"compatible_agents must be one of {choices}, not {str(self.compatible_agents)[:40]!r}")
        if self.key is not None:
            _check_key(self.key)
        for position, id in enumerate(self.revoked):
            if not is_id(id):
                # Not quoted: it may be the token itself.
                raise ValueError(f"revoked.{position} must be the id of a token, {ID_RULE}, not another text (hidden)")


def _check_key(key: str) -> None:
    if not key.strip():
        raise ValueError("key must be a text, not empty")
    if key.lower().startswith("sha256:"):
        raise ValueError("key must be the key itself, not its digest: tokens are made with it")
    if not _is_encodable(key):
        raise ValueError("key must be a text of Unicode, not what it is (hidden)")


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def is_id(text: str) -> bool:
    """Whether this can be the id of a token: who revokes anything else believes that something was revoked."""
    return _ID_FORM.fullmatch(text) is not None


def check_name(what: str, name: str) -> None:
    """Accept the name of an agent or of a tenant.

    Raises:
        ValueError: it cannot be one. A slash stands between the two where both are shown.
    """
    if not (name.strip() and len(name) <= NAME_LENGTH_MAX and name.isprintable()) or "/" in name:
        rule = f"1 to {NAME_LENGTH_MAX} printable characters without a slash"
        raise ValueError(f"{what} must be {rule}, not {name[:NAME_LENGTH_MAX]!r}")


def is_clean(text: str) -> bool:
    """Whether devices take an address with this in it: they refuse `key` and `call` anywhere, in any case."""
    spellings = (text, quote(text), quote_plus(text))
    return not any(word in spelling.lower() for spelling in spellings for word in _REFUSED_WORDS)


class _Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """What our own token says, spelt shortly because it is pasted into addresses."""

    i: str
    a: str
    t: str = DEFAULT_TENANT
    r: Role | None = None
    e: float | None = None


class _TokenPayload(msgspec.Struct, frozen=True):
    """What the original's token says."""

    agentId: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815 - as the original spells it


class RelayTokens:
    """Makes tokens under one key, and reads those made under it. No text, whatever it holds, makes `read` raise."""

    def __init__(
        self,
        key: str,
        settings: TokenSettings,
        now: Callable[[], float],
        is_revoked: Callable[[str], bool],
        known_agents: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """`known_agents` gives the agents that the original's tokens may name; it is asked for each such token."""
        _check_key(key)
        raw = key.encode()
        self._cipher = Cipher(algorithms.AES(_aes_key(raw)), modes.ECB())  # noqa: S305 - the original's choice
        # Signing has a key of its own: whatever becomes known of the other, which encrypts block by block.
        self._signing = _derived(raw, b"isthmus relay: signing of tokens")
        self._mark = _derived(raw, b"isthmus relay: mark of the key")[:8].hex()
        self._digest = digest_of(key)
        self._settings = settings
        self._now = now
        self._is_revoked = is_revoked
        self._known_agents = known_agents
        self._owners_of: frozenset[str] = frozenset()
        self._owners: dict[bytes, str | None] = {}
        self._minted_before: dict[str, bytes] = {}

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, token: str) -> Claim | str:
        """What a token proves, or why it proves nothing, in the words with which its socket is closed."""
        claim = self.prove(token)
        return claim if isinstance(claim, str) else self._ended(claim) or claim

    def prove(self, token: str) -> Claim | str:
        """What a token says and its maker vouches for, whether or not it is still good."""
        if not token:
            return NONE_SHOWN
        if token.startswith(PREFIX):
            return self._prove_own(token)
        return self._prove_compatible(token) if self._settings.compatible else NOT_COMPATIBLE

    def is_valid(self, claim: Claim) -> bool:
        """Whether a token that was good is still: neither expired nor revoked, nor of a key or a kind given up."""
        is_taken = bool(claim.id) or (self._settings.compatible and self._is_known(claim.agent))
        return is_taken and claim.under == self._mark and self._ended(claim) is None

    def is_key(self, text: str) -> bool:
        """Whether this is the key itself; compared in constant time."""
        return hmac.compare_digest(digest_of(text), self._digest)

    def _ended(self, claim: Claim) -> str | None:
        """Why a claim that was proven once is good no more."""
        if claim.expires_at is not None and self._now() >= claim.expires_at:
            return EXPIRED
        return REVOKED if claim.id and self._is_revoked(claim.id) else None

    def _prove_own(self, token: str) -> Claim | str:
        signed, _, signature = token.rpartition(".")
        if len(token) > TOKEN_LENGTH_MAX or not token.isascii():
            return FORGED
        # Compared as text: a signature has one spelling only.
        if not hmac.compare_digest(self._signature(signed), signature):
            return FORGED
        try:
            payload = msgspec.json.decode(_from_base64(signed.removeprefix(PREFIX)), type=_Payload)
            check_name("agent", payload.a)
            check_name("tenant", payload.t)
        except (ValueError, RecursionError):
            return NOT_READ
        if not is_id(payload.i):
            return NOT_READ
        return Claim(payload.a, payload.t, payload.r, payload.i, payload.e, self._mark)

    def _prove_compatible(self, token: str) -> Claim | str:
        try:
            document = self._decrypted(token)
        except ValueError:
            return NOT_DECRYPTED
        try:
            agent = msgspec.json.decode(document, type=_TokenPayload).agentId
            name = msgspec.json.decode(agent, type=str | None) or ""
            if name:
                check_name("agentId", name)
        except (ValueError, RecursionError):
            return NOT_READ
        if not name:
            return NO_AGENT
        return self._unfit(name, document.encode()) or Claim(name, under=self._mark)

    def _decrypted(self, token: str) -> str:
        """The text of an original's token. Raises: ValueError."""
        if len(token) > TOKEN_LENGTH_MAX:
            raise ValueError("too long")
        decryptor = self._cipher.decryptor()
        # In a query a bare plus is a space, and nearly half of all tokens have one.
        padded = decryptor.update(_from_base64(token.strip("\r\n\t").replace(" ", "+"))) + decryptor.finalize()
        remover = PKCS7(_BLOCK_BITS).unpadder()
        return (remover.update(padded) + remover.finalize()).decode()

    # -- splicing ----------------------------------------------------------------------------------------------------

    def _unfit(self, agent: str, document: bytes) -> str | None:
        """Why a document is refused though the key decrypts it: its token may be made of other tokens' blocks."""
        if document not in _documents(agent) and document != self._minted(agent):
            return NOT_READ
        mode = self._settings.compatible_agents
        if mode == "any":
            return None
        if mode == "md5" and _is_md5(agent) and document == _java_document(agent):
            return None  # another agent's id is out of reach: its middle block is 64 bits of a hash
        if agent not in self._known_agents():
            return UNKNOWN_AGENT
        return None if self._has_own_block(agent, document) else SPLICEABLE

    def _is_known(self, agent: str) -> bool:
        mode = self._settings.compatible_agents
        return mode == "any" or (mode == "md5" and _is_md5(agent)) or agent in self._known_agents()

    def spliceable(self) -> list[str]:
        """Known agents whose token is refused, because tokens of other known agents have all its blocks."""
        if self._settings.compatible_agents == "any":
            return []
        return sorted(agent for agent in self._known_agents() if not self._has_own_block(agent, self._minted(agent)))

    def _has_own_block(self, agent: str, document: bytes) -> bool:
        """Whether a block of this document is in no token of another known agent: it cannot be made of those then."""
        known = self._known_agents() | {agent}
        if known != self._owners_of:
            self._owners = {}
            for each in known:
                spellings = (*_documents(each), self._minted(each))
                for block in {block for spelling in spellings for block in _blocks(spelling)}:
                    self._owners[block] = None if block in self._owners else each
            self._owners_of = known
        return any(self._owners[block] == agent for block in _blocks(document))

    def _minted(self, agent: str) -> bytes:
        """The document to give out: as Python writes it, with as many blanks as its token needs for devices."""
        if (known := self._minted_before.get(agent)) is not None:
            return known
        plain = _documents(agent)[0]
        # Blanks before the document change every block of it, blanks behind it the last one.
        blanked = (b" " * (n % 16) + plain + b" " * (n // 16) for n in itertools.count())
        minted = next(document for document in blanked if is_clean(f"?token={self._encrypted(document)}&"))
        if agent in self._known_agents():
            self._minted_before[agent] = minted
        return minted

    # -- making ------------------------------------------------------------------------------------------------------

    def mint(self, claim: Claim) -> str:
        """Make a token of ours that proves a claim, with an id of its own; devices take an address with it.

        Raises:
            ValueError: the agent or the tenant cannot be one.
        """
        check_name("agent", claim.agent)
        check_name("tenant", claim.tenant)
        for attempt in range(_ATTEMPTS):
            # Base64 spells what follows the id in another way with each of three lengths.
            id = secrets.token_hex(_ID_BYTES + 1)[: 2 * _ID_BYTES + attempt % 3]
            token = self._signed(_Payload(id, claim.agent, claim.tenant, claim.role, claim.expires_at))
            if is_clean(f"?token={token}&"):
                return token
        raise ValueError(f"agent must have a name that devices take in a token, not {claim.agent!r}: choose another")

    def _signed(self, payload: _Payload) -> str:
        signed = PREFIX + _to_base64(msgspec.json.encode(payload))
        return f"{signed}.{self._signature(signed)}"

    def mint_compatible(self, agent: str) -> str:
        """Make a token as the original does, always the same for one agent; devices take an address with it.

        Raises:
            ValueError: the agent cannot be one, or its token could be made of other agents' tokens.
        """
        check_name("agent", agent)
        document = self._minted(agent)
        if self._settings.compatible_agents != "any" and not self._has_own_block(agent, document):
            raise ValueError(f"agent must have a name whose token cannot be made of other agents', not {agent!r}")
        return self._encrypted(document)

    def _encrypted(self, document: bytes) -> str:
        encryptor = self._cipher.encryptor()
        return base64.b64encode(encryptor.update(_padded(document)) + encryptor.finalize()).decode()

    def _signature(self, signed: str) -> str:
        return _to_base64(hmac.digest(self._signing, signed.encode(), hashlib.sha256))


def _documents(agent: str) -> tuple[bytes, ...]:
    """What tokens of this agent say, as the original programs write it: with a blank or not, escaped or not."""
    plain, escaped = msgspec.json.encode(agent), json.dumps(agent).encode()
    return b'{"agentId":%s}' % plain, _java_document(agent), b'{"agentId":%s}' % escaped, b'{"agentId": %s}' % escaped


def _java_document(agent: str) -> bytes:
    return b'{"agentId": %s}' % msgspec.json.encode(agent)


def _padded(document: bytes) -> bytes:
    padder = PKCS7(_BLOCK_BITS).padder()
    return padder.update(document) + padder.finalize()


def _is_md5(agent: str) -> bool:
    return _MD5_FORM.fullmatch(agent) is not None


def _blocks(document: bytes) -> Iterator[bytes]:
    """What is encrypted at a time; the same key makes the same of the same."""
    padded = _padded(document)
    return (padded[at : at + _BLOCK_BYTES] for at in range(0, len(padded), _BLOCK_BYTES))


def _aes_key(raw: bytes) -> bytes:
    """The key as the original uses it: as it is if AES takes it, else cut or filled up to 32 bytes."""
    return raw if len(raw) in _AES_SIZES else raw[:32].ljust(32, b"\0")


def _derived(raw: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(raw)


def _to_base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _from_base64(text: str) -> bytes:
    """The bytes of either alphabet, padded or not. Raises: ValueError."""
    if not text.isascii():
        raise ValueError("not base64")
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
