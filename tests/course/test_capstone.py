"""Exercise 13: a point is for a part that is the learner's, and for nothing else."""

import pytest

from course.grader import TaskResult
from course.grader.grading import grade_papers
from course.grader.paper import Paper, paper_in
from course.manifest import load
from course.stubs import make_stub

pytestmark = pytest.mark.proof

CHAPTER = load().chapter(13)
SOLUTION = load().chapter("04").solution_path.read_text(encoding="utf-8")
TEXTS = {
    "solution": SOLUTION,
    "stub": make_stub(SOLUTION, "ex04_free_list.py"),
    "half": SOLUTION.replace(
        "def share(self, block_id: int) -> None:",
        "def share(self, block_id: int) -> None:\n"
        '        raise NotImplementedError("exercise 4.2: one holder more")\n',
    ),
    "ours": "from paged_attention.allocator import BlockAllocator as FreeListAllocator",
    "ours by another door": (
        "import paged_attention.engine as e\nFreeListAllocator = e.BlockAllocator"
    ),
    "ours when called": (
        "def FreeListAllocator(num_blocks):\n"
        "    import paged_attention\n"
        "    return paged_attention.BlockAllocator(num_blocks)\n"
    ),
    "ours inside": (
        "class FreeListAllocator:\n"
        "    def __init__(self, num_blocks):\n"
        "        from importlib import import_module\n"
        "        pool = import_module('paged_attention.allocator')\n"
        "        self.pool = pool.BlockAllocator(num_blocks)\n"
    ),
    "leaks": SOLUTION.replace("def free_many(self", "def _free_many(self")
    + "\n\nFreeListAllocator.free_many = lambda self, block_ids: None\n",
    "raises": SOLUTION.replace(
        "def share(self, block_id: int) -> None:",
        'def share(self, block_id: int) -> None:\n        raise KeyError("no share")\n',
    ),
    "shares nothing": SOLUTION
    + "\n\ndef share(self, block_id):\n    pass\n\n\nFreeListAllocator.share = share\n",
    "no python": "class FreeListAllocator(:\n",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TaskResult]:
    """The verdict on task 13.2, for each of these files in the place of exercise 04."""
    needs = paper_in(CHAPTER.solution_path, CHAPTER, load()).needs
    papers: list[Paper] = []
    for name, text in TEXTS.items():
        path = tmp_path_factory.mktemp("answers") / "ex04_free_list.py"
        path.write_text(text, encoding="utf-8")
        files = {**needs, "ex04_free_list": path}
        only = frozenset(["13.2"])
        papers.append(Paper(CHAPTER, CHAPTER.solution_path, files, name, only))
    graded, _ = grade_papers(papers)
    return {name: result.tasks[0] for name, result in zip(TEXTS, graded, strict=True)}


def words(result: TaskResult) -> str:
    assert result.failure is not None
    return f"{result.failure.claim} {result.failure.got} {result.failure.message}"


def test_the_learners_part_has_its_point(results):
    assert results["solution"].points == 1, results["solution"].failure


@pytest.mark.parametrize("name", ["stub", "half"])
def test_a_part_that_is_not_solved_is_told_by_name(results, name):
    assert results[name].points == 0
    assert "exercise 4 is not solved yet (exercise 4." in words(results[name])


@pytest.mark.parametrize("name", [name for name in TEXTS if name.startswith("ours")])
def test_the_packages_part_has_none(results, name):
    assert results[name].points == 0
    assert "is refused: it is the package's own answer" in words(results[name])


def test_a_leak_is_seen(results):
    assert results["leaks"].points == 0


def test_an_error_in_the_part_names_its_line_and_the_exercise_to_grade(results):
    failure = results["raises"].failure
    assert failure is not None and failure.got == "KeyError: no share"
    assert "ex04_free_list.py:" in failure.location
    assert 'raise KeyError("no share"); course grade 4 may show' in failure.message


def test_a_part_that_serves_wrongly_names_the_exercise_to_grade(results):
    assert results["shares nothing"].points == 0
    assert "course grade 4 may show a smaller case" in words(results["shares nothing"])


def test_a_file_that_is_no_python_is_told_by_name(results):
    assert results["no python"].points == 0
    assert "SyntaxError" in words(results["no python"])
    assert "ex04_free_list.py" in words(results["no python"])
