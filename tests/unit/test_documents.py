"""What the documents say holds: their code makes a DAG, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


def test_the_readmes_dag_can_be_parsed(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    file = tmp_path / "nightly.py"
    file.write_text(code.replace("\nnightly()", "\nmade = nightly()"))
    namespace: dict[str, Any] = {"__name__": "nightly", "__file__": str(file)}

    exec(compile(file.read_text(), str(file), "exec"), namespace)

    assert namespace["made"].task_ids == ["list_scans", "render", "report"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())

    assert [link for link in links if not (document.parent / link).exists()] == []
