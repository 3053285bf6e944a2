"""Tokens for the relay as the programs of its world make them, without the hub's own code."""

from __future__ import annotations

import base64
from urllib.parse import quote

import msgspec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

RELAY_KEY = "a bench secret that guards none."
"""Thirty-two characters, as they are the key's bytes."""


def token_for(agent: str) -> str:
    """The token of an agent, ready to stand in an address."""
    padder = PKCS7(algorithms.AES.block_size).padder()
    padded = padder.update(msgspec.json.encode({"agentId": agent})) + padder.finalize()
    # What the original does, and so what its clients bring: a block cipher without chaining.
    cipher = Cipher(algorithms.AES(RELAY_KEY.encode()), modes.ECB()).encryptor()
    return quote(base64.b64encode(cipher.update(padded) + cipher.finalize()))
