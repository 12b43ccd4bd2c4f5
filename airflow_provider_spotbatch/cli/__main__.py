"""``python -m airflow_provider_spotbatch.cli``."""

from __future__ import annotations

import sys

from airflow_provider_spotbatch.cli import main

sys.exit(main())
