"""Signatures on push notifications of the first A2A version: a JWT over the body's digest, in `Authorization`.

The receiver fetches the public key from `/.well-known/jwks.json` and drops unsigned notifications. The key is stored
in the state folder, so that it survives restarts. `app.pushes` owns the signer.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

KEY_FILE = "push.key"
KEY_BITS = 2048


class PushSigner:
    """Signs with the key of a state folder. `load` creates a missing key, which takes a fraction of a second."""

    def __init__(self, state: Path) -> None:
        self._file = state / KEY_FILE
        self._key: RSAPrivateKey | None = None
        self._id = ""

    def load(self) -> None:
        """Load the key, or create it.

        Raises:
            OSError: the key can neither be read nor created.
            ValueError: the file does not contain a key.
        """
        if self._key is None:
            key = _kept(self._file)
            numbers = key.public_key().public_numbers()
            self._id = sha256(_octets(numbers.n)).hexdigest()[:32]
            self._key = key

    def key_set(self) -> bytes:
        """The public key as a JSON Web Key Set; raises like `load`."""
        self.load()
        assert self._key is not None
        numbers = self._key.public_key().public_numbers()
        own = {"n": _base64(_octets(numbers.n)), "e": _base64(_octets(numbers.e))}
        return json.dumps({"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self._id, **own}]}).encode()

    def token_for(self, body: bytes, now: float) -> str:
        """Create the token for a body; receivers refuse tokens older than five minutes.

        Raises:
            OSError: the key cannot be read.
            ValueError: the key cannot be used, or the receiver could not encode this body in the same way.
        """
        self.load()
        assert self._key is not None
        # The receiver hashes the JSON as Python encodes it again, not the bytes it received.
        again = json.dumps(json.loads(body), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        claims = {"iat": int(now), "request_body_sha256": sha256(again.encode()).hexdigest()}
        header = {"alg": "RS256", "kid": self._id, "typ": "JWT"}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{_base64(self._key.sign(signed.encode(), PKCS1v15(), SHA256()))}"


def _kept(file: Path) -> RSAPrivateKey:
    with suppress(FileNotFoundError):
        return _read(file)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    draft = file.with_name(f"{KEY_FILE}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):
            os.link(draft, file)  # another hub created the key first
    finally:
        draft.unlink()
    return _read(file)


def _read(file: Path) -> RSAPrivateKey:
    with suppress(ValueError, TypeError):  # not a PEM file, or an encrypted one
        if isinstance(key := load_pem_private_key(file.read_bytes(), None), RSAPrivateKey):
            return key
    raise ValueError(f"{file} does not contain an RSA key; move the file away")


def _octets(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
