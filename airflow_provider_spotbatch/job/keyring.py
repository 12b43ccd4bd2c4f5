"""The keys at hand, and which of them signed what."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_spotbatch.job.errors import SignatureMismatch
from airflow_provider_spotbatch.job.keys import Generation
from airflow_provider_spotbatch.job.signing import Signer, Unchecked, derive, key_id


class Keyring:
    """Keys that may be read with: those of a connection, or none.

    Without any, nothing is checked: what is read may come from anybody who can write to the store, so
    it is good for showing and for nothing else.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = {key_id(key): key for key in keys}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def signer(self, generation: Generation, wanted: str) -> Signer:
        """The signer of a generation that was signed with the key ``wanted`` (its id).

        Raises SignatureMismatch where there are keys, and this is none of them.
        """
        if not self._keys:
            return Unchecked()
        if wanted not in self._keys:
            raise SignatureMismatch(
                f"job {generation.job} was signed with the key {wanted}, and the keys at hand are "
                f"{', '.join(self._keys)}: list the old one in the connection's 'old_keys'"
            )
        return Signer(derive(self._keys[wanted], generation), generation)
