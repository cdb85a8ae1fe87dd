"""vLLM's `bench serve --dataset-name timed_trace`, which builds prompts from the ids alone.

Its chunk size defaults to 16 and its unit to the second, so both have to be said for a trace in milliseconds. It seeds
its prompts with Python's hash(), so PYTHONHASHSEED makes two runs send the same ones.
"""

from .portable import SIDECAR, adapt, check_name, write

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]


def usage(trace, path) -> list[str]:
    """How to replay the file; `--self-timed` keeps the times, `--ignore-eos` the output lengths."""
    return [
        f"PYTHONHASHSEED=0 vllm bench serve --dataset-name timed_trace --dataset-path {path} "
        f"--timed-trace-chunk-hash-size {trace.block_size} --timed-trace-sec-multiplier 0.001 "
        f"--self-timed --num-prompts {len(trace)} --ignore-eos"
    ]
