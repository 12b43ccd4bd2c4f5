from __future__ import annotations

import json

import pytest

from airflow_provider_spotbatch.job.control import Control
from airflow_provider_spotbatch.job.errors import FormatMismatch


@pytest.mark.parametrize("control", [Control(1), Control(7, report_every=30.0, spend_for=12.5, drain=True)])
def test_it_reads_back(control: Control) -> None:
    assert Control.from_bytes(control.to_bytes()) == control


@pytest.mark.parametrize("version", [0, 2, None])
def test_an_unknown_format_is_refused(version: int | None) -> None:
    stored = {**json.loads(Control(1).to_bytes()), "format": version}

    with pytest.raises(FormatMismatch, match=r"control\.json"):
        Control.from_bytes(json.dumps(stored).encode())
