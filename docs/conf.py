"""The documentation site: ``make docs`` builds it into ``docs/_build``."""

from airflow_provider_spotbatch import __version__

project = "airflow-provider-spotbatch"
author = "The authors of airflow-provider-spotbatch"
release = __version__

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"airflow-provider-spotbatch {release}"
