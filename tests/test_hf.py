"""Transformers' models compute on our blocks what they compute on their own."""

from dataclasses import dataclass, field, replace
from functools import cache

import pytest
import torch
from tiny_models import VOCAB, make_model

from course.get_model import model_dir
from paged_attention import hf, model_files
from paged_attention.kv_cache import KVCache
from paged_attention.model_checks import UnsupportedModelError

pytest.importorskip("transformers", reason="not verified: transformers is missing")

ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "phi3", "gpt2"]
# Of the largest logit: the sums of attention are made in another order.
ROUNDING = 1e-5


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads would cost a tiny model more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def decoder(architecture):
    return hf.Decoder(make_model(architecture))


@cache
def logits_of_transformers(architecture):
    """For each of the three texts, [num_tokens, vocab_size]."""
    model = make_model(architecture)
    with torch.inference_mode():
        # A pad token inside a text would be hidden, had the mask to be guessed.
        return [
            model(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)).long()
            ).logits[0]
            for ids in TEXTS
        ]


def random_text(length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (length,), generator=generator).tolist()


TEXTS = [random_text(length, seed) for seed, length in enumerate((23, 17, 9))]

# Chunks and single tokens mixed; text 2 comes late, text 1 pauses in between.
STEPS = [
    [(0, 11), (1, 5)],
    [(0, 1), (1, 7)],
    [(0, 1), (2, 8)],
    [(0, 1), (1, 1), (2, 1)],
    [(1, 4), (0, 9)],
]


@dataclass
class Plan:
    token_ids: list = field(default_factory=list)
    positions: list = field(default_factory=list)
    slot_mapping: list = field(default_factory=list)
    query_start_loc: list = field(default_factory=lambda: [0])
    seq_lens: list = field(default_factory=list)
    block_tables: list = field(default_factory=list)


def plans(block_size, num_blocks):
    """The steps as plans; the blocks of the texts lie scattered among each other."""
    generator = torch.Generator().manual_seed(9)
    ids = iter(torch.randperm(num_blocks, generator=generator).tolist())
    blocks = [[next(ids) for _ in range(-(-len(t) // block_size))] for t in TEXTS]
    done = [0] * len(TEXTS)
    for step in STEPS:
        plan = Plan()
        for i, query_len in step:
            positions = range(done[i], done[i] + query_len)
            done[i] += query_len
            plan.token_ids += [TEXTS[i][p] for p in positions]
            plan.positions += positions
            plan.slot_mapping += [
                blocks[i][p // block_size] * block_size + p % block_size
                for p in positions
            ]
            plan.query_start_loc.append(len(plan.token_ids))
            plan.seq_lens.append(done[i])
            plan.block_tables.append(blocks[i][: -(-done[i] // block_size)])
        yield step, plan
    assert done == [len(text) for text in TEXTS]


def largest_difference(architecture, block_size, change=lambda step, plan: None):
    """Between our logits and those of transformers, per size of the largest."""
    ours, theirs = decoder(architecture), logits_of_transformers(architecture)
    num_blocks = 2 * sum(len(text) for text in TEXTS)
    config = replace(ours.shape, num_blocks=num_blocks, block_size=block_size)
    kv_cache = KVCache(config)
    # What nobody has written must not be read.
    for layer in range(config.num_layers):
        kv_cache.key_cache(layer).fill_(float("nan"))
        kv_cache.value_cache(layer).fill_(float("nan"))
    done = [0] * len(TEXTS)
    worst = 0.0
    for number, (step, plan) in enumerate(plans(block_size, num_blocks)):
        change(number, plan)
        logits = ours.forward(plan, kv_cache, range(len(plan.token_ids)))
        for (i, query_len), rows in zip(
            step, logits.split([n for _, n in step]), strict=True
        ):
            expected = theirs[i][done[i] : done[i] + query_len]
            done[i] += query_len
            difference = (rows - expected).abs().max()
            # max(0.0, nan) would be 0.0
            worst = max(worst, float(difference.nan_to_num(nan=float("inf"))))
    return worst / max(float(t.abs().max()) for t in theirs)


@pytest.mark.parametrize("block_size", [1, 5, 16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_mixed_with_single_tokens_give_the_logits_of_transformers(
    architecture, block_size
):
    assert largest_difference(architecture, block_size) <= ROUNDING


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_slot_written_wrong_is_seen(architecture):
    def misplace(step, plan):
        if step == 0:  # a token of the first chunk takes its neighbour's place
            plan.slot_mapping[8] = plan.slot_mapping[9]

    assert largest_difference(architecture, 4, misplace) > 100 * ROUNDING


def test_only_the_rows_that_are_asked_for_get_logits():
    ours = decoder("llama")
    _, plan = next(plans(4, 30))
    kv_cache = KVCache(replace(ours.shape, num_blocks=30, block_size=4))
    every = ours.forward(plan, kv_cache, range(16))
    some = ours.forward(plan, kv_cache, [15, 10])
    torch.testing.assert_close(some, every[[15, 10]])
    assert ours.forward(plan, kv_cache, []).shape == (0, VOCAB)


def test_a_step_of_single_tokens_comes_without_starts():
    """So that a decode kernel, which knows nothing of chunks, can be dropped in."""
    seen = []

    def attention(query, *args, query_start_loc, scale, window):
        seen.append(query_start_loc is None)
        return torch.zeros_like(query)

    model = hf.Decoder(make_model("llama", num_hidden_layers=1), attention)
    kv_cache = KVCache(replace(model.shape, num_blocks=80, block_size=4))
    for _, plan in plans(4, 60):
        model.forward(plan, kv_cache, [])
    assert seen == [False, False, False, True, False]


def test_the_shape_of_the_cache_is_read_off_the_layers():
    shape = decoder("gemma3").shape
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (3, 2, 16)
    assert decoder("gpt2").shape.num_kv_heads == 6
    half = hf.Decoder(make_model("llama").to(torch.bfloat16))
    assert half.shape.dtype == "bfloat16"


def test_each_layer_has_its_own_window():
    assert decoder("gemma3").windows == [6, None, 6]
    assert decoder("mistral").windows == [7, 7, 7]
    assert decoder("llama").windows == [None, None, None]


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("gemma2", {}, "soft-capped"),
        ("gpt_oss", {}, "sinks"),
        ("llama", {"rope": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        (
            "phi3",
            {
                "rope": {
                    "rope_type": "longrope",
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                },
                "original_max_position_embeddings": 256,
            },
            "'longrope'",
        ),
    ],
)
def test_what_is_not_implemented_is_refused(architecture, changes, reason):
    changes = dict(changes)
    if rope := changes.pop("rope", None):
        changes["rope_parameters"] = {"rope_theta": 10_000.0, **rope}
    with pytest.raises(UnsupportedModelError, match=reason):
        hf.Decoder(make_model(architecture, **changes))


def test_a_refused_model_is_left_to_transformers_as_it_was():
    ids = torch.tensor([[3, 5, 8]])
    model = make_model("gemma2")
    with torch.inference_mode():
        expected = model(ids).logits
        with pytest.raises(UnsupportedModelError):
            hf.Decoder(model)
        assert torch.equal(model(ids).logits, expected)


def test_a_model_that_keeps_its_keywords_to_itself_is_refused():
    import transformers as t

    config = t.StableLmConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=16,
    )
    with pytest.raises(UnsupportedModelError, match="hands no keywords on"):
        hf.Decoder(t.StableLmForCausalLM(config))


def test_models_of_another_kind_are_refused():
    import transformers as t

    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "intermediate_size": 16}
    others = {
        "encoder": t.T5ForConditionalGeneration(
            t.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1)
        ),
        "not causal": t.BertLMHeadModel(t.BertConfig(**small, **heads)),
        "linear_attention": t.MambaForCausalLM(t.MambaConfig(**small, state_size=4)),
        "position_ids": t.BloomForCausalLM(
            t.BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2)
        ),
    }
    for reason, model in others.items():
        with pytest.raises(UnsupportedModelError, match=reason):
            hf.Decoder(model)


def test_a_layer_kind_that_only_a_mask_would_tell_is_refused():
    model = make_model("llama")
    model.config.layer_types = ["chunked_attention"] * 3
    with pytest.raises(UnsupportedModelError, match="chunked_attention"):
        hf.Decoder(model)


def test_a_window_that_is_not_handed_on_is_refused():
    model = make_model("llama")
    model.config.sliding_window = 8  # llama's layers say nothing of it
    with pytest.raises(UnsupportedModelError, match="window of None"):
        hf.Decoder(model)


@pytest.mark.parametrize(
    ("keyword", "reason"),
    [
        ({"softcap": 30.0}, "soft-capped"),
        ({"s_aux": torch.zeros(6)}, "sinks"),
        ({"position_bias": torch.zeros(1)}, "bias"),
        ({"is_causal": False}, "not causal"),
        ({"never_heard_of": 3}, "never_heard_of=3"),
    ],
)
def test_a_call_that_asks_for_more_is_refused(keyword, reason):
    module = torch.nn.Module()
    module.layer_idx = 0
    rows = torch.zeros(1, 6, 2, 8)
    hf.attend_in_blocks(module, rows, rows, rows, None, paged_step=hf._Probe())
    with pytest.raises(UnsupportedModelError, match=reason):
        hf.attend_in_blocks(
            module, rows, rows, rows, None, paged_step=hf._Probe(), **keyword
        )


def test_a_mask_of_its_own_is_refused():
    rows = torch.zeros(1, 6, 2, 8)
    with pytest.raises(UnsupportedModelError, match="mask of its own"):
        hf.attend_in_blocks(
            torch.nn.Module(), rows, rows, rows, rows, paged_step=hf._Probe()
        )


def test_the_model_cannot_be_called_beside_the_engine():
    with pytest.raises(RuntimeError, match="another copy"):
        decoder("llama").model(torch.tensor([[3, 4]]))


def test_attention_that_was_changed_behind_our_back_is_seen():
    model = hf.Decoder(make_model("llama"))
    kv_cache = KVCache(replace(model.shape, num_blocks=10, block_size=4))
    plan = Plan([3, 4], [0, 1], [0, 1], [0, 2], [2], [[0]])
    model.forward(plan, kv_cache, [1])
    model.model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="0 of 3 layers attended over the blocks"):
        model.forward(plan, kv_cache, [1])


def test_dropout_rests_whoever_has_set_the_model_to_training():
    model = hf.Decoder(make_model("gpt2", attn_pdrop=0.0, resid_pdrop=0.9))
    kv_cache = KVCache(replace(model.shape, num_blocks=10, block_size=4))
    plan = Plan([3, 4], [0, 1], [0, 1], [0, 2], [2], [[0]])
    expected = model.forward(plan, kv_cache, [1])
    model.model.train()
    assert torch.equal(model.forward(plan, kv_cache, [1]), expected)


@pytest.mark.parametrize("slot", [-1, 40])
def test_a_slot_outside_the_cache_is_refused_before_anything_is_written(slot):
    kv_cache = KVCache(replace(decoder("llama").shape, num_blocks=10, block_size=4))
    plan = Plan([3, 4], [0, 1], [0, slot], [0, 2], [2], [[0]])
    with pytest.raises(ValueError, match=r"slot_mapping must lie in 0 … 39"):
        decoder("llama").forward(plan, kv_cache, [1])
    assert not kv_cache.key_cache(0).any()


def test_smollm2_lies_where_the_course_puts_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(model_files.ModelMissingError, match="course get-model"):
        model_files.load("smollm2")
    model_dir().mkdir(parents=True)
    (model_dir() / "config.json").write_text("{}")
    assert model_files.model_path("smollm2") == str(model_dir())


def test_a_model_is_loaded_from_a_folder(tmp_path):
    make_model("qwen2").save_pretrained(tmp_path)
    model, tokenizer = model_files.load(str(tmp_path), device="cpu")
    assert tokenizer is None and model.dtype == torch.float32
    assert hf.Decoder(model).shape == decoder("qwen2").shape


def test_a_checkpoint_that_lacks_a_weight_is_not_filled_at_random(tmp_path):
    from safetensors.torch import load_file, save_file

    make_model("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    message = r"lack 1 weights, such as model\.layers\.1\.mlp\.up_proj\.weight"
    with pytest.raises(model_files.ModelLoadError, match=message):
        model_files.load(str(tmp_path), device="cpu")


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
def test_a_tied_output_layer_is_no_missing_weight(tmp_path, architecture):
    make_model(architecture, tie_word_embeddings=True).save_pretrained(tmp_path)
    model, _ = model_files.load(str(tmp_path), device="cpu")
    tied = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight is tied


def test_a_model_that_is_nowhere_is_said_to_be_missing(tmp_path):
    with pytest.raises(model_files.ModelMissingError, match="no-such-folder"):
        model_files.load(str(tmp_path / "no-such-folder"))
