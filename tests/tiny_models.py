"""Models small enough to run in milliseconds, of each architecture that is served.

The weights are random and wide apart, so that the most likely token leads by far more
than rounding: a wrong key or value changes what is generated.
"""

from typing import Any

import torch

VOCAB = 128
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}


def config_of(architecture: str, **changes: Any) -> Any:
    import transformers as t

    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "llama": (t.LlamaConfig, {}),
        "qwen2": (t.Qwen2Config, {}),
        "qwen3": (t.Qwen3Config, {"head_dim": 16}),
        "mistral": (t.MistralConfig, {"sliding_window": 7}),
        "gemma3": (
            t.Gemma3TextConfig,
            {
                "head_dim": 16,
                "sliding_window": 6,
                "query_pre_attn_scalar": 24,
                "layer_types": [
                    "sliding_attention",
                    "full_attention",
                    "sliding_attention",
                ],
            },
        ),
        "phi3": (t.Phi3Config, {}),
        "gpt2": (t.GPT2Config, {}),
        "gemma2": (t.Gemma2Config, {"head_dim": 16, "sliding_window": 6}),
        "gpt_oss": (
            t.GptOssConfig,
            {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1},
        ),
    }
    config_class, special = kinds[architecture]
    if architecture == "gpt2":
        names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"}
        names |= {"num_attention_heads": "n_head"}
        names |= {"max_position_embeddings": "n_positions"}
        common = {names.get(key, key): value for key, value in COMMON.items()}
        for absent in ("num_key_value_heads", "intermediate_size"):
            del common[absent]
    else:
        common = COMMON
    return config_class(**{**common, **special, **changes})


def make_model(architecture: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A fresh model; the same seed gives the same weights."""
    from transformers import AutoModelForCausalLM

    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(config_of(architecture, **changes))
    finally:
        torch.set_rng_state(state)
    return model.eval()


def generate(
    model: Any, prompt: list[int], num_tokens: int, **options: Any
) -> list[int]:
    """transformers' own greedy tokens, alone, with every prompt token seen."""
    ids = torch.tensor([prompt])
    made = model.generate(
        ids,
        # Left out, a pad token inside the prompt would be hidden from the model.
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        **options,
    )
    return made[0, len(prompt) :].tolist()
