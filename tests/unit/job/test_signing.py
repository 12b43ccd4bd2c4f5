from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from airflow_provider_spotbatch.job.errors import FormatMismatch, SignatureMismatch
from airflow_provider_spotbatch.job.keys import Generation
from airflow_provider_spotbatch.job.signing import MAC_BYTES, Signer, derive, key_id, unverified_body

KEY = b"the connection's password"
GENERATION = Generation("job", 1)
SIGNER = Signer(derive(KEY, GENERATION), GENERATION)


def test_the_derived_key_is_hkdf_sha256_of_rfc_5869() -> None:
    reference = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"spotbatch/1/job/1")

    assert derive(KEY, GENERATION) == reference.derive(KEY)


@pytest.mark.parametrize(
    "other",
    [derive(KEY, Generation("job", 2)), derive(KEY, Generation("other", 1)), derive(b"another", GENERATION)],
    ids=["generation", "job", "key"],
)
def test_every_generation_and_key_derive_their_own(other: bytes) -> None:
    assert other != derive(KEY, GENERATION)


def test_a_mac_holds_in_its_place() -> None:
    mac = SIGNER.mac("item", "7", b"payload")

    assert len(mac) == MAC_BYTES
    SIGNER.check(mac, "item", "7", b"payload")


@pytest.mark.parametrize(
    ("signer", "kind", "name", "payload"),
    [
        (SIGNER, "result", "7", b"payload"),
        (SIGNER, "item", "8", b"payload"),
        (SIGNER, "item", "7", b"payloaD"),
        (SIGNER, "item", "7", b""),
        (SIGNER, "item\x007", "", b"payload"),
        (Signer(derive(KEY, GENERATION), Generation("job", 2)), "item", "7", b"payload"),
        (Signer(derive(KEY, GENERATION), Generation("other", 1)), "item", "7", b"payload"),
        (Signer(derive(b"another", GENERATION), GENERATION), "item", "7", b"payload"),
    ],
    ids=["kind", "name", "payload", "cut", "shifted", "generation", "job", "key"],
)
def test_a_mac_is_refused_anywhere_else(signer: Signer, kind: str, name: str, payload: bytes) -> None:
    mac = SIGNER.mac("item", "7", b"payload")

    with pytest.raises(SignatureMismatch):
        signer.check(mac, kind, name, payload)


@pytest.mark.parametrize("mac", [b"", b"\0" * MAC_BYTES, SIGNER.mac("item", "7", b"payload")[:-1]])
def test_a_forged_or_cut_mac_is_refused(mac: bytes) -> None:
    with pytest.raises(SignatureMismatch):
        SIGNER.check(mac, "item", "7", b"payload")


def test_the_refusal_names_the_object_and_the_cure() -> None:
    with pytest.raises(SignatureMismatch, match=r"spec 'spec\.json'.*old_keys"):
        SIGNER.check(b"", "spec", "spec.json", b"")


def test_a_signed_document_reads_back_and_is_readable_unchecked() -> None:
    body = {"name": "é", "list": [1, 2.5, None], "nested": {"a": True}}

    stored = SIGNER.sign_json("spec", "spec.json", body)

    assert SIGNER.open_json("spec", "spec.json", stored) == body
    assert unverified_body(stored) == body


def test_a_changed_document_is_refused() -> None:
    document = json.loads(SIGNER.sign_json("spec", "spec.json", {"budget": 1}))
    document["body"]["budget"] = 1000

    with pytest.raises(SignatureMismatch):
        SIGNER.open_json("spec", "spec.json", json.dumps(document).encode())


def test_a_document_is_refused_under_another_name() -> None:
    stored = SIGNER.sign_json("spec", "spec.json", {})

    with pytest.raises(SignatureMismatch):
        SIGNER.open_json("spec", "other.json", stored)


def test_a_document_of_an_unknown_format_is_refused() -> None:
    document = {**json.loads(SIGNER.sign_json("spec", "spec.json", {})), "format": 2}

    with pytest.raises(FormatMismatch, match="format 2"):
        SIGNER.open_json("spec", "spec.json", json.dumps(document).encode())


def test_a_key_id_names_a_key_without_holding_it() -> None:
    assert key_id(KEY) == key_id(bytes(KEY))
    assert key_id(KEY) != key_id(b"another")
    assert KEY.hex()[:12] not in key_id(KEY)
