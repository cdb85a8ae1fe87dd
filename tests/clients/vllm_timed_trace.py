"""vLLM: its TimedTrace dataset makes the prompts; run in vLLM's environment as FILE BLOCK_SIZE TOKENIZER."""

import json
import sys

from transformers import PreTrainedTokenizerFast
from vllm.benchmarks.datasets.datasets import TimedTrace

path, block_size, tokenizer = sys.argv[1], sys.argv[2], PreTrainedTokenizerFast(tokenizer_file=sys.argv[3])
keys = {f"timed_trace_label_{key}": key for key in ("timestamp", "input_length", "output_length", "hash_ids")}
dataset = TimedTrace(
    dataset_path=path, random_seed=0, timed_trace_chunk_hash_size=block_size, timed_trace_sec_multiplier=0.001, **keys
)
samples = dataset.sample(tokenizer, num_requests=sys.maxsize)


def shared(a, b):
    """Leading tokens that two prompts share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


print(json.dumps({
    "requests": len(samples),
    "input_tokens": sum(len(sample.prompt) for sample in samples),
    "output_tokens": sum(sample.expected_output_len for sample in samples),
    "last_ms": round(samples[-1].timestamp * 1000),
    "shared": [shared(samples[row - 1].prompt, samples[row].prompt) for row in range(1, len(samples))],
}))  # fmt: skip
