"""Results of serving benchmarks that keep one list per quantity: `vllm bench serve`, SGLang's `bench_serving`.

`ttfts` and `itls` are seconds; the last token is there after the first one and all gaps (`itls`). `start_times` are of
the client's clock, so times include the network and the server's front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.errors import InputError
from ...trace.trace import Trace
from .recording import EngineSettings, Recording, RequestTimes, recording_of
from .rows import NAN, lists, number_of, object_of, read_json, whole, whole_setting

NAMES = ("start_times", "ttfts", "itls", "input_lens", "output_lens")


def has_lists(path: Path, others: tuple[str, ...]) -> bool:
    """Whether a file is one JSON object with `ttfts` and one of the other keys."""
    described = read_json(path)
    return isinstance(described, dict) and "ttfts" in described and any(name in described for name in others)


def read_lists(path: Path, trace: Trace | None, format: str, hint: str) -> Recording:
    """The recording of a benchmark's result."""
    described = object_of(read_json(path), path)
    described |= _starts(described)
    starts, ttfts, itls, inputs, outputs = lists(described, NAMES, path, hint)
    failed = _failed(described.get("errors"), len(starts), path)
    arrival, ttft = (np.array([number_of(value) for value in values]) for values in (starts, ttfts))
    gaps = np.array([_sum(values) for values in itls])
    first = np.where(failed | (ttft == 0), NAN, arrival + ttft)  # a request that failed has a TTFT of 0
    prompts, tokens = (whole(np.array([number_of(value) for value in values])) for values in (inputs, outputs))
    times = RequestTimes(arrival, first, first + gaps, prompts, tokens, cached_tokens=_cached(described, len(starts)))
    return recording_of(times, name=str(path), trace=trace, settings=_settings(described, path, format), format=format)


def _starts(described: Mapping[str, Any]) -> dict[str, Any]:
    """Start times of a benchmark that does not save them, if it sent all requests at once."""
    at_once = described.get("request_rate") in ("inf", float("inf")) and described.get("max_concurrency") is None
    ttfts = described.get("ttfts")
    if "start_times" in described or not at_once or not isinstance(ttfts, list):
        return {}
    return {"start_times": [0.0] * len(ttfts)}


def _failed(errors: Any, rows: int, path: Path) -> np.ndarray:
    """Whether each request has an error."""
    if errors and (not isinstance(errors, list) or len(errors) != rows):
        raise InputError(f"{path}: errors and start_times have different lengths.")
    return np.array([bool(error) for error in errors or [""] * rows])


def _sum(values: Any) -> float:
    return float(sum(number_of(value) for value in values)) if isinstance(values, list) else NAN


def _cached(described: Mapping[str, Any], rows: int) -> np.ndarray | None:
    """SGLang's `cached_tokens`, which its option --cache-report adds."""
    values = described.get("cached_tokens")
    if not isinstance(values, list) or len(values) != rows:
        return None
    return whole(np.array([number_of(value) for value in values]))


def _settings(described: Mapping[str, Any], path: Path, format: str) -> EngineSettings:
    """The model, and what SGLang's server says of itself."""
    server = described.get("server_info")
    server = server if isinstance(server, dict) else {}
    model = described.get("model_id") or server.get("model_path")
    chunk = server if server.get("chunked_prefill_size") != -1 else {}  # -1: prompts are not divided
    return EngineSettings(
        model if isinstance(model, str) else None, whole_setting(server, "max_running_requests", path),
        whole_setting(chunk, "chunked_prefill_size", path),
        tensor_parallel=whole_setting(server, "tp_size", path) or 1,
        engine="sglang" if format == "sglang-bench" else "vllm",
    )  # fmt: skip
