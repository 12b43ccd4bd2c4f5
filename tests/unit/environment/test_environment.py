"""What an Environment accepts, how it is templated, and where its packages may be written."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_spotbatch.environment.environment import Environment
from airflow_provider_spotbatch.environment.requirements import requirement_lines
from airflow_provider_spotbatch.job.errors import InvalidInput


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"python": 3.12}, "python must be a minor version in quotes"),
        ({"python": "3.12.1"}, "python must be a minor version"),
        ({"packages": [1]}, "packages must be a list of strings, but holds 1"),
        ({"packages": {"a": 1}}, "packages must be a list of strings"),
        ({"code": "lib"}, "code must be a list of strings, not 'lib'"),
        ({"files": ["a"]}, "files must be a dictionary"),
        ({"files": {"../a": "b"}}, "leaves it"),
        ({"files": {"/a": "b"}}, "leaves it"),
        ({"env": {"A": 1}}, "env must map strings to strings"),
        ({"env": {"A-B": "1"}}, "'A-B' is no name of an environment variable"),
        ({"env": {"A": "1"}, "secrets": {"A": "arn:x"}}, "'A' is given in env and in secrets"),
        ({"setup": ""}, "setup must be the text"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Environment(**arguments)


def test_it_is_rendered_into_a_copy_that_is_checked_again() -> None:
    template = Environment(python="{{ v }}", packages=["a=={{ v }}"], env={"A": "{{ v }}"})

    def render(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("{{ v }}", "3.12")
        if isinstance(value, list):
            return [render(element) for element in value]
        return {k: render(e) for k, e in value.items()} if isinstance(value, dict) else value

    assert template.render(render) == Environment(python="3.12", packages=["a==3.12"], env={"A": "3.12"})
    assert template.python == "{{ v }}"
    with pytest.raises(InvalidInput, match="python"):
        template.render(lambda value: "x" if isinstance(value, str) else value)


def test_it_can_be_pickled_and_compared() -> None:
    environment = Environment(packages=["a"], env={"B": "c"})
    assert pickle.loads(pickle.dumps(environment)) == environment


def lines(text: str, path: Path, name: str = "requirements.txt") -> tuple[str, ...]:
    (path / name).write_text(text)
    return requirement_lines(name, lambda found: str(path / found))


def test_a_requirements_file_is_read_with_those_it_includes(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("numpy>=1 # arrays\n\n")
    text = (
        "# all\n-r base.txt\npandas \\\n  ==2.2\nrich; python_version < '4'\n--extra-index-url https://x/y\n"
    )
    assert lines(text, tmp_path) == (
        "numpy>=1",
        "pandas    ==2.2",
        "rich; python_version < '4'",
        "--extra-index-url https://x/y",
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-e .", "not a requirement that a machine could install"),
        ("./lib", "a path of this machine"),
        ("-c constraints.txt", "not a requirement"),
        ("-r gone.txt", "includes 'gone.txt', which is not there"),
        ("-r requirements.txt", "includes itself"),
    ],
)
def test_lines_that_mean_something_here_only_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=reason):
        lines(text, tmp_path)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the standard library reads TOML from 3.11 on")
def test_a_pyproject_gives_its_dependencies(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\ndependencies = ["numpy", "rich>13"]\n'
    assert lines(text, tmp_path, "pyproject.toml") == ("numpy", "rich>13")
    with pytest.raises(InvalidInput, match="dynamic"):
        lines('[project]\ndynamic = ["dependencies"]\n', tmp_path, "pyproject.toml")
    with pytest.raises(InvalidInput, match="not valid TOML"):
        lines("[project", tmp_path, "pyproject.toml")


def test_a_list_is_taken_as_it_is() -> None:
    assert requirement_lines([" numpy ", ""], os.path.abspath) == ("numpy",)
