"""Creates, reads and checks the relay's tokens.

There are two kinds. Tokens of the original relay are an agent's id, encrypted with AES; they have no role and never
expire. The hub's own tokens (`isr1.`) are signed and name the agent, the role and the expiry. No message quotes a
token. Refused sockets are closed with the original relay's texts. The relay frontend reads tokens, the command line
creates them.

The original tokens have no MAC: each block of 16 bytes is encrypted separately, so blocks of two tokens can be
spliced into a third. `RelayTokens` therefore accepts only the JSON spellings of the original programs, only known
agents, and only tokens with a block that no other known agent's token contains.
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
from collections.abc import Callable, Iterator, Mapping
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
"""The start of the hub's own tokens. Original tokens cannot start like this: base64 has no dot."""

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

WHY: Mapping[str, str] = {
    NONE_SHOWN: "there is no token",
    NOT_DECRYPTED: "it was not made with this hub's key, or is damaged",
    NOT_READ: "it was made with this hub's key, but its claims cannot be read",
    NO_AGENT: "it names no agent",
    NOT_COMPATIBLE: "it is in the original relay's format, which [relay] compatible = false refuses",
    UNKNOWN_AGENT: "it is in the original relay's format, for an agent that is not configured and"
    " has no such token from this hub (see [relay] compatible_agents)",
    SPLICEABLE: "it can be assembled from tokens of other agents",
    FORGED: "it was not made with this hub's key, or was changed",
    EXPIRED: "it has expired",
    REVOKED: "it was revoked",
}
"""Why a token is refused, for people. Sockets are closed with the original relay's messages."""

TOKEN_LENGTH_MAX = 4096
"""Several times the length of the longest real token."""

ID_RULE = "16 to 18 digits and letters from a to f"
"""The form of token ids, for error messages."""

NAME_LENGTH_MAX = 128
"""The maximum length of agent and tenant names."""

_ID_BYTES = 8
_ATTEMPTS = 48
"""How often minting is tried. Nearly every attempt succeeds, unless the agent's name itself has a refused word."""
_ID_FORM = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES},{2 * _ID_BYTES + 2}}}")
_AES_SIZES = (16, 24, 32)
_BLOCK_BITS = 128
_BLOCK_BYTES = 16
_MD5_FORM = re.compile(r"[0-9a-f]{32}")
_REFUSED_WORDS = ("key", "call")

CompatibleAgents: TypeAlias = Literal["known", "md5", "any"]
"""The agents whose original tokens are accepted. `known`: configured agents and those that the command line created a
token for. `md5`: also ids in the original manager's form. `any`: every agent; tokens can then be spliced."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Settings for creating and reading tokens."""

    key: str | None = field(default=None, repr=False)
    """Creates and checks tokens; if None, a key is generated in the state folder."""
    compatible: bool = True
    """Whether original tokens are accepted; they have no role, no expiry and no signature."""
    compatible_agents: CompatibleAgents = "known"
    revoked: tuple[str, ...] = ()
    """Ids of revoked tokens."""

    def __post_init__(self) -> None:
        if self.compatible_agents not in get_args(CompatibleAgents):
            choices = ", ".join(get_args(CompatibleAgents))
            raise ValueError(f"compatible_agents must be one of {choices}, not {str(self.compatible_agents)[:40]!r}")
        if self.key is not None:
            _check_key(self.key)
        for position, id in enumerate(self.revoked):
            if not is_id(id):
                # Not quoted: it may be the token itself.
                raise ValueError(f"revoked.{position} must be the id of a token, {ID_RULE} (value hidden)")


def _check_key(key: str) -> None:
    if not key.strip():
        raise ValueError("key must not be empty")
    if key.lower().startswith("sha256:"):
        raise ValueError("key must be the key itself, not its digest: tokens are made with it")
    if any("\ud800" <= character <= "\udfff" for character in key):
        raise ValueError("key must be valid Unicode (value hidden)")


def is_id(text: str) -> bool:
    """Whether a text has the form of a token id. Revoking anything else would silently revoke nothing."""
    return _ID_FORM.fullmatch(text) is not None


def check_name(what: str, name: str) -> None:
    """Check the name of an agent or a tenant.

    Raises:
        ValueError: the name is invalid. A slash is not allowed because it separates tenant and agent.
    """
    if not (name.strip() and len(name) <= NAME_LENGTH_MAX and name.isprintable()) or "/" in name:
        rule = f"1 to {NAME_LENGTH_MAX} printable characters without a slash"
        raise ValueError(f"{what} must be {rule}, not {name[:NAME_LENGTH_MAX]!r}")


def is_clean(text: str) -> bool:
    """Whether devices accept an address with this text: they refuse `key` and `call`, in upper or lower case."""
    spellings = (text, quote(text), quote_plus(text))
    return not any(word in spelling.lower() for spelling in spellings for word in _REFUSED_WORDS)


class _Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of the hub's own tokens. The names are short because tokens are pasted into addresses."""

    i: str
    a: str
    t: str = DEFAULT_TENANT
    r: Role | None = None
    e: float | None = None


class _TokenPayload(msgspec.Struct, frozen=True):
    """The payload of original tokens."""

    agentId: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815 - the original's spelling


class RelayTokens:
    """Creates and reads tokens with one key. `read` never raises, whatever the text."""

    def __init__(
        self,
        key: str,
        settings: TokenSettings,
        now: Callable[[], float],
        is_revoked: Callable[[str], bool],
        known_agents: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """`known_agents` returns the agents that original tokens may name; it is called for each such token."""
        _check_key(key)
        raw = key.encode()
        # As in the original: unchanged if AES accepts the key's length, else cut or padded to 32 bytes.
        aes_key = raw if len(raw) in _AES_SIZES else raw[:32].ljust(32, b"\0")
        self._cipher = Cipher(algorithms.AES(aes_key), modes.ECB())  # noqa: S305 - the original's choice
        # Signing has a separate key, because ECB encryption may leak something about the other.
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
        """The claim of a valid token, or the reason with which its socket is closed."""
        claim = self.prove(token)
        return claim if isinstance(claim, str) else self._why_invalid(claim) or claim

    def prove(self, token: str) -> Claim | str:
        """The claim of a genuine token, even if it is expired or revoked; else the reason for refusal."""
        if not token:
            return NONE_SHOWN
        if token.startswith(PREFIX):
            return self._prove_own(token)
        return self._prove_compatible(token) if self._settings.compatible else NOT_COMPATIBLE

    def is_valid(self, claim: Claim) -> bool:
        """Whether a token that was accepted is still valid: not expired, not revoked, same key, kind still accepted."""
        mode = self._settings.compatible_agents
        is_accepted = bool(claim.id) or (
            self._settings.compatible
            and (mode == "any" or (mode == "md5" and _is_md5(claim.agent)) or claim.agent in self._known_agents())
        )
        return is_accepted and claim.under == self._mark and self._why_invalid(claim) is None

    def is_key(self, text: str) -> bool:
        """Whether this is the key itself; compared in constant time."""
        return hmac.compare_digest(digest_of(text), self._digest)

    def _why_invalid(self, claim: Claim) -> str | None:
        """Why a genuine claim is no longer valid; None if it is."""
        if claim.expires_at is not None and self._now() >= claim.expires_at:
            return EXPIRED
        return REVOKED if claim.id and self._is_revoked(claim.id) else None

    def _prove_own(self, token: str) -> Claim | str:
        signed, _, signature = token.rpartition(".")
        if len(token) > TOKEN_LENGTH_MAX or not token.isascii():
            return FORGED
        # Compared as text, because a signature has only one spelling.
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
        if len(token) > TOKEN_LENGTH_MAX:
            return NOT_DECRYPTED
        decryptor, remover = self._cipher.decryptor(), PKCS7(_BLOCK_BITS).unpadder()
        try:
            # In a query a plain plus means a space, and nearly half of all tokens contain one.
            padded = decryptor.update(_from_base64(token.strip("\r\n\t").replace(" ", "+"))) + decryptor.finalize()
            document = (remover.update(padded) + remover.finalize()).decode()
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
        return self._why_spliceable(name, document.encode()) or Claim(name, under=self._mark)

    # -- splicing ----------------------------------------------------------------------------------------------------

    def _why_spliceable(self, agent: str, document: bytes) -> str | None:
        """Why a decrypted document is refused: its token may be spliced from other tokens' blocks."""
        if document not in _documents(agent) and document != self._minted(agent):
            return NOT_READ
        mode = self._settings.compatible_agents
        if mode == "any":
            return None
        if mode == "md5" and _is_md5(agent) and document == _java_document(agent):
            return None  # splicing cannot reach another agent's id: its middle block has 64 bits of a hash
        if agent not in self._known_agents():
            return UNKNOWN_AGENT
        return None if self._has_own_block(agent, document) else SPLICEABLE

    def spliceable(self) -> list[str]:
        """Known agents whose tokens are refused because other known agents' tokens contain all their blocks."""
        if self._settings.compatible_agents == "any":
            return []
        return sorted(agent for agent in self._known_agents() if not self._has_own_block(agent, self._minted(agent)))

    def _has_own_block(self, agent: str, document: bytes) -> bool:
        """Whether this document has a block that no other known agent's token has, so that it cannot be spliced."""
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
        """The document of a new token: Python's JSON, padded with spaces until devices accept its token."""
        if (known := self._minted_before.get(agent)) is not None:
            return known
        plain = _documents(agent)[0]
        # Spaces before the document change every block; spaces after it change the last one.
        blanked = (b" " * (n % 16) + plain + b" " * (n // 16) for n in itertools.count())
        minted = next(document for document in blanked if is_clean(f"?token={self._encrypted(document)}&"))
        if agent in self._known_agents():
            self._minted_before[agent] = minted
        return minted

    # -- creating ----------------------------------------------------------------------------------------------------

    def mint(self, claim: Claim) -> str:
        """Create a signed token for a claim, with a new id, in a form that devices accept in an address.

        Raises:
            ValueError: the name of the agent or tenant is invalid.
        """
        check_name("agent", claim.agent)
        check_name("tenant", claim.tenant)
        for attempt in range(_ATTEMPTS):
            # Three id lengths give three base64 spellings of the text after the id.
            id = secrets.token_hex(_ID_BYTES + 1)[: 2 * _ID_BYTES + attempt % 3]
            payload = _Payload(id, claim.agent, claim.tenant, claim.role, claim.expires_at)
            signed = PREFIX + _to_base64(msgspec.json.encode(payload))
            token = f"{signed}.{self._signature(signed)}"
            if is_clean(f"?token={token}&"):
                return token
        raise ValueError(f"agent {claim.agent!r} has a name that devices refuse in a token: choose another name")

    def mint_compatible(self, agent: str) -> str:
        """Create an original token, always the same for one agent, in a form that devices accept in an address.

        Raises:
            ValueError: the agent's name is invalid, or its token could be spliced from other agents' tokens.
        """
        check_name("agent", agent)
        document = self._minted(agent)
        if self._settings.compatible_agents != "any" and not self._has_own_block(agent, document):
            raise ValueError(f"agent {agent!r} needs another name: its token could be spliced from others")
        return self._encrypted(document)

    def _encrypted(self, document: bytes) -> str:
        encryptor = self._cipher.encryptor()
        return base64.b64encode(encryptor.update(_padded(document)) + encryptor.finalize()).decode()

    def _signature(self, signed: str) -> str:
        return _to_base64(hmac.digest(self._signing, signed.encode(), hashlib.sha256))


def _documents(agent: str) -> tuple[bytes, ...]:
    """The spellings of an agent's document in the original programs: with or without a space, escaped or not."""
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
    """The blocks that are encrypted separately; equal blocks have equal ciphertexts."""
    padded = _padded(document)
    return (padded[at : at + _BLOCK_BYTES] for at in range(0, len(padded), _BLOCK_BYTES))


def _derived(raw: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(raw)


def _to_base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _from_base64(text: str) -> bytes:
    """Decode base64 in either alphabet, padded or not. Raises: ValueError."""
    if not text.isascii():
        raise ValueError("not base64")
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
