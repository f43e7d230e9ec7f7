"""environment.yml and pyproject.toml must ask for the same things.

The versions of Python that they promise are those on which the tests run.
"""

import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from course import bootstrap
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


def accepted(specifier):
    return [m for m in range(30) if Version(f"3.{m}.0") in SpecifierSet(specifier)]


PROMISED = accepted(PROJECT["requires-python"])


def test_conda_and_set_up_take_each_python_that_pyproject_accepts_and_no_other():
    (python,) = [Requirement(e) for e in FROM_CONDA if e.startswith("python>")]
    assert accepted(str(python.specifier)) == PROMISED
    assert (3, PROMISED[0]) == bootstrap.OLDEST
    assert (3, PROMISED[-1]) == bootstrap.NEWEST


def test_the_tests_run_on_each_python_that_is_promised():
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert matrix == [f"3.{minor}" for minor in PROMISED]
    ours = " ".join(map(str, PROMISED))
    assert f"for minor in {ours}; do" in (ROOT / ".ci/run").read_text()


def test_the_readme_names_each_python_that_is_promised():
    *others, last = (f"3.{minor}" for minor in PROMISED)
    text = f"with Python {', '.join(others)} or {last}"
    assert text in (ROOT / "README.md").read_text()


def test_conda_brings_what_pip_cannot_and_pins_only_python():
    by_conda = {r.name: str(r.specifier) for r in map(Requirement, FROM_CONDA)}
    assert by_conda.pop("python")
    assert by_conda == {"pip": "", "graphviz": "", "make": ""}


def test_everything_else_comes_through_the_project_itself():
    assert FROM_PIP == ["-e .[all]"]
    assert "all" in PROJECT["optional-dependencies"]
