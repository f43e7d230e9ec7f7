"""SmolLM2 in full: 32 prompts of mixed length, each way of running them, cold and warm.

Part of `make soak`. It takes some minutes; what is compared is said in `smollm2`.
"""

import sys
import time

from smollm2 import WAYS, Comparison

from paged_attention import model_files

NUM_PROMPTS, NUM_TOKENS = 32, 64


def main() -> int:
    try:
        model_files.model_path("smollm2")
    except model_files.ModelMissingError as error:
        print(f"not verified: {error}")
        return 0
    num_prompts = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_PROMPTS
    print(f"transformers makes {num_prompts} times {NUM_TOKENS} tokens …", flush=True)
    comparison = Comparison(num_prompts, NUM_TOKENS, num_sentences=16)
    for way in WAYS:
        start = time.perf_counter()
        stats = comparison.check(way).stats
        print(
            f"{way}: the same, cold and warm; {stats.num_preemptions} preemptions, "
            f"{stats.num_hit_tokens} tokens found, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    print(
        f"{comparison.num_compared} texts compared, {len(comparison.excuses)} excused"
    )
    print("\n".join(comparison.excuses))
    return 0


if __name__ == "__main__":
    sys.exit(main())
