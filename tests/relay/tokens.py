"""Tokens as the two programs make them that give them out: by AES over a document that names the agent.

The hub's own are made by `isthmus token`; these are made apart from it, so that a mistake is not made twice.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from urllib.parse import quote, quote_plus

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

KEY = "0123456789abcdef0123456789abcdef"
"""What the tests' hubs are given; 32 characters, as the original makes it."""


shown: set[str] = set()
"""Every token that a peer put into an address, good or bad, as it was written there."""


def key_bytes(key: str) -> bytes:
    """What AES is given: the key as it is if that fits, otherwise 32 bytes of it."""
    raw = key.encode()
    return raw if len(raw) in {16, 24, 32} else raw[:32].ljust(32, b"\0")


def sealed(document: bytes, key: str = KEY) -> str:
    """A document as a token."""
    padder = PKCS7(128).padder()
    encryptor = Cipher(algorithms.AES(key_bytes(key)), modes.ECB()).encryptor()
    text = encryptor.update(padder.update(document) + padder.finalize()) + encryptor.finalize()
    return base64.b64encode(text).decode()


def python_token(agent: str, key: str = KEY) -> str:
    """As the relay itself makes them."""
    return sealed(b'{"agentId":"%s"}' % agent.encode(), key)


def java_agent(agent_id: str) -> str:
    """What the manager calls an agent towards the relay."""
    return hashlib.md5(agent_id.encode()).hexdigest()


def java_token(agent_id: str, key: str = KEY) -> str:
    """As the manager makes them; mind the space."""
    return sealed(b'{"agentId": "%s"}' % java_agent(agent_id).encode(), key)


def python_quoted(token: str) -> str:
    """As the relay writes it into an address: `/` stays."""
    return quote(token)


def java_quoted(token: str) -> str:
    """As the manager writes it into an address."""
    return quote_plus(token)


def agent_with_plus(prefix: str) -> str:
    """An agent whose token has a `+`, as nearly half of all have."""
    return next(name for n in itertools.count() if "+" in python_token(name := f"{prefix}{n}"))
