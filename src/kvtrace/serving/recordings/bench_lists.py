"""Results of serving benchmarks that keep one list per quantity: `vllm bench serve`, SGLang's `bench_serving`.

`ttfts` and `itls` are seconds; the last token is there after the first one and all gaps (`itls`). `start_times` are of
the client's clock, so times include the network and the server's front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...trace.trace import Trace
from .recording import EngineSettings, Recording, RequestTimes, recording_of
from .rows import NAN, lists, number_of, read_json

NAMES = ("start_times", "ttfts", "itls", "input_lens", "output_lens")


def has_lists(path: Path, others: tuple[str, ...]) -> bool:
    """Whether a file is one JSON object with `ttfts` and one of the other keys."""
    described = read_json(path)
    return isinstance(described, dict) and "ttfts" in described and any(name in described for name in others)


def read_lists(path: Path, trace: Trace | None, format: str, hint: str) -> Recording:
    """The recording of a benchmark's result."""
    described = read_json(path)
    starts, ttfts, itls, inputs, outputs = lists(described, NAMES, path, hint)
    failed = np.array([bool(error) for error in described.get("errors") or [""] * len(starts)])
    arrival, ttft = (np.array([number_of(value) for value in values]) for values in (starts, ttfts))
    gaps = np.array([_sum(values) for values in itls])
    first = np.where(failed | (ttft <= 0), NAN, arrival + ttft)  # a request that failed has a TTFT of 0
    times = RequestTimes(arrival, first, first + gaps, np.array(inputs, np.int64), np.array(outputs, np.int64))
    return recording_of(times, name=str(path), trace=trace, settings=_settings(described), format=format)


def _sum(values: Any) -> float:
    return float(sum(number_of(value) for value in values)) if isinstance(values, list) else NAN


def _settings(described: Mapping[str, Any]) -> EngineSettings:
    """The model, and what SGLang's server says of itself."""
    server = described.get("server_info") or {}
    model = described.get("model_id") or server.get("model_path")
    return EngineSettings(
        model, server.get("max_running_requests"), server.get("chunked_prefill_size"),
        tensor_parallel=server.get("tp_size") or 1,
    )  # fmt: skip
