"""SGLang's `bench_serving --dataset-name mooncake`: it keeps times, order and output lengths, not lengths of prompts.

Each id becomes its number and 128 words, whatever the block size, and `input_length` is not looked at; so prompts share
prefixes as the trace says, at lengths of their own. Only prompts of text would be faithful.
"""

from . import portable
from .portable import SIDECAR, check_name, write

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]


def adapt(trace):
    """The portable rows, and what SGLang will not look at."""
    adapted, losses = portable.adapt(trace)
    return adapted, [*losses, "SGLang ignores input_length and the block size: each id becomes about 128 words."]


def usage(trace, path) -> list[str]:
    """How to replay the file, one round a request."""
    return [
        f"python -m sglang.bench_serving --backend sglang --dataset-name mooncake --dataset-path {path} "
        f"--num-prompts {len(trace)} --mooncake-slowdown-factor 1 --mooncake-num-rounds 1"
    ]
