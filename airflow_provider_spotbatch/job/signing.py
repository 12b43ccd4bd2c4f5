"""Signatures: who wrote a stored object, and that it stands where it was written for.

The connection's key never leaves the Airflow side. Machines hold a key derived for their
generation (HKDF-SHA256, RFC 5869, with an empty salt). Every MAC covers the job, the generation,
the kind of object and its name, so that nothing signed can stand in another's place.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from airflow_provider_spotbatch.job.errors import FormatMismatch, SignatureMismatch
from airflow_provider_spotbatch.job.keys import Generation

MAC_BYTES = 16
"""Length of a MAC in bytes: HMAC-SHA256 truncated to 128 bits (RFC 2104, section 5)."""


def key_id(key: bytes) -> str:
    """A name for the key that tells nothing about it."""
    return hmac.digest(key, b"spotbatch key id", "sha256").hex()[:12]


def derive(key: bytes, generation: Generation) -> bytes:
    """The key of one generation, which its machines receive: 32 bytes."""
    pseudo_random = hmac.digest(b"\0" * 32, key, "sha256")
    info = f"spotbatch/1/{generation.job}/{generation.number}".encode()
    return hmac.digest(pseudo_random, info + b"\x01", "sha256")


class Signer:
    """Makes and checks the MACs of one generation, with its derived key."""

    def __init__(self, generation_key: bytes, generation: Generation) -> None:
        self._key = generation_key
        self._context = f"{generation.job}\0{generation.number}\0".encode()

    def mac(self, kind: str, name: str, payload: bytes) -> bytes:
        """MAC of ``payload`` as the object ``name`` of this ``kind``: 16 bytes."""
        place = self._context + f"{kind}\0{name}\0".encode()
        return hmac.digest(self._key, place + hashlib.sha256(payload).digest(), "sha256")[:MAC_BYTES]

    def check(self, mac: bytes, kind: str, name: str, payload: bytes) -> None:
        """Raise :class:`SignatureMismatch` unless ``mac`` is right for this place."""
        if not hmac.compare_digest(mac, self.mac(kind, name, payload)):
            raise SignatureMismatch(
                f"the stored {kind} {name!r} is not signed with this connection's key. "
                "If the key was changed, list the old one in the connection's 'old_keys'."
            )

    def sign_json(self, kind: str, name: str, body: dict[str, Any]) -> bytes:
        """``body`` as a signed JSON document that people can read."""
        text = json.dumps(body, sort_keys=True)
        mac = self.mac(kind, name, text.encode()).hex()
        return json.dumps({"format": 1, "mac": mac, "body": body}, sort_keys=True, indent=1).encode()

    def open_json(self, kind: str, name: str, stored: bytes) -> dict[str, Any]:
        """The body of a document made by :meth:`sign_json`, once its MAC is found right."""
        document = json.loads(stored)
        if document.get("format") != 1:
            raise FormatMismatch(
                f"the stored {kind} {name!r} has format {document.get('format')!r}; this release reads 1"
            )
        body: dict[str, Any] = document["body"]
        text = json.dumps(body, sort_keys=True)
        self.check(bytes.fromhex(document["mac"]), kind, name, text.encode())
        return body


class Unchecked(Signer):
    """Stands for a signer where there is no key: what it opens is believed, and it signs nothing."""

    def __init__(self) -> None:
        """It belongs to no generation."""

    def mac(self, kind: str, name: str, payload: bytes) -> bytes:
        raise TypeError(f"there is no key to sign the {kind} {name!r} with")

    def check(self, mac: bytes, kind: str, name: str, payload: bytes) -> None:
        """Every MAC passes."""


def unverified_body(stored: bytes) -> dict[str, Any]:
    """The body of a signed document, unchecked: for lists and for finding which key signed it."""
    body: dict[str, Any] = json.loads(stored)["body"]
    return body
