from __future__ import annotations

import pytest

from airflow_provider_spotbatch.job.keys import Generation
from airflow_provider_spotbatch.job.signing import Signer, derive

KEY = bytes(range(32))


@pytest.fixture
def generation() -> Generation:
    return Generation("renders-frame-0123456789abcdef", 3)


@pytest.fixture
def signer(generation: Generation) -> Signer:
    return Signer(derive(KEY, generation), generation)
