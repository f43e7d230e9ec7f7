"""A real model: the short form of `make soak`'s comparison with transformers."""

import pytest
from smollm2 import WAYS, Comparison

from paged_attention import model_files
from paged_attention.engine import Engine
from paged_attention.params import SamplingParams

pytest.importorskip("transformers", reason="not verified: transformers is missing")


def is_here() -> bool:
    try:
        model_files.model_path("smollm2")
    except model_files.ModelMissingError:
        return False
    return True


pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(
        not is_here(),
        reason="not verified: no model file; run: course get-model",
    ),
]


@pytest.fixture(scope="module")
def comparison():
    return Comparison(num_prompts=4, num_tokens=10, num_sentences=3)


@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_are_those_of_transformers(comparison, way):
    comparison.check(way, token_budget=60)
    assert comparison.excuses == []


def test_a_question_is_answered(comparison):
    engine = Engine(comparison.ours, comparison.tokenizer)
    (output,) = engine.generate("What is the capital of France?", SamplingParams(24))
    assert "Paris" in output.text
    assert output.finish_reason == "stop"
