"""environment.yml and pyproject.toml must ask for the same things."""

import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from course.manifest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
FROM_CONDA = [entry for entry in CONDA["dependencies"] if isinstance(entry, str)]
(FROM_PIP,) = [e["pip"] for e in CONDA["dependencies"] if isinstance(e, dict)]


def test_conda_has_no_prefix_and_no_builds():
    """Both name one machine: the path of an environment, a compiled variant."""
    assert set(CONDA) == {"name", "channels", "dependencies"}
    for entry in FROM_CONDA:
        assert "==" not in entry and entry.count("=") == entry.count(">="), entry


def test_the_python_of_conda_is_one_that_pyproject_accepts():
    (python,) = [Requirement(e) for e in FROM_CONDA if e.startswith("python>")]
    wanted = SpecifierSet(PROJECT["requires-python"])
    for minor in range(30):
        version = Version(f"3.{minor}.0")
        assert version not in python.specifier or version in wanted, version


def test_conda_brings_what_pip_cannot_and_pins_only_python():
    by_conda = {r.name: str(r.specifier) for r in map(Requirement, FROM_CONDA)}
    assert by_conda.pop("python")
    assert by_conda == {"pip": "", "graphviz": "", "make": ""}


def test_everything_else_comes_through_the_project_itself():
    assert FROM_PIP == ["-e .[all]"]
    assert "all" in PROJECT["optional-dependencies"]
