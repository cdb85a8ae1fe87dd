"""SGLang's `bench_serving --output-details`: a JSON object a run with lists; the last run counts.

SGLang 0.5.23 does not save when it sent a request, so only a run that sent all at once can be read (no --request-rate).
"""

from __future__ import annotations

from pathlib import Path

from ...trace.trace import Trace
from .bench_lists import has_lists, read_lists
from .recording import Recording

HINT = (
    "Run sglang.bench_serving with --output-details and without --request-rate and --max-concurrency, or give the "
    "server's log of requests (--log-requests --log-requests-format json --enable-metrics)."
)


def matches(path: Path) -> bool:
    """Whether a file has this form."""
    return path.is_file() and has_lists(path, ("server_info", "sharegpt_output_len", "random_input_len"))


def read(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a benchmark's last run."""
    return read_lists(path, trace, "sglang-bench", HINT)
