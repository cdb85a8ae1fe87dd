"""Results of the benchmarks of vLLM, SGLang and AIPerf, in the client's clock: network and front end are in the times.

`vllm bench serve --save-result --save-detailed` and SGLang's `bench_serving --output-details` write a JSON object with
a list per quantity (SGLang one object a run; the last run counts). `ttfts` and `itls` are seconds; the last token is
there after the first one and all gaps (`itls`). SGLang 0.5.23 does not save when it sent a request, so only a run that
sent all at once can be read (no --request-rate).

AIPerf's profile_export.jsonl has a row per request with `metadata` (times in ns) and `metrics` (value and unit).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.errors import InputError
from ...cache.engines import EngineName
from ...trace.trace import Trace
from .recording import (
    NAN,
    EngineSettings,
    Recording,
    RequestTimes,
    column,
    lists,
    number_of,
    object_of,
    read_json,
    read_rows,
    recording_of,
    whole,
)
from .settings import part, sglang_settings

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
    gaps = np.array([_sum_of(values) for values in itls])
    first = np.where(failed | (ttft == 0), NAN, arrival + ttft)  # a request that failed has a TTFT of 0
    prompts, tokens = (whole(np.array([number_of(value) for value in values])) for values in (inputs, outputs))
    times = RequestTimes(arrival, first, first + gaps, prompts, tokens, cached_tokens=_cached(described, len(starts)))
    return recording_of(
        times, name=str(path), trace=trace, settings=_bench_settings(described, path, format), format=format
    )


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


def _sum_of(values: Any) -> float:
    return float(sum(number_of(value) for value in values)) if isinstance(values, list) else NAN


def _cached(described: Mapping[str, Any], rows: int) -> np.ndarray | None:
    """SGLang's `cached_tokens`, which its option --cache-report adds."""
    values = described.get("cached_tokens")
    if not isinstance(values, list) or len(values) != rows:
        return None
    return whole(np.array([number_of(value) for value in values]))


def _bench_settings(described: Mapping[str, Any], path: Path, format: str) -> EngineSettings:
    """The model, and what SGLang's server says of itself."""
    server, model = described.get("server_info"), described.get("model_id")
    settings = sglang_settings(server, path) if isinstance(server, dict) else EngineSettings()
    engine: EngineName = "sglang" if format == "sglang-bench" else "vllm"
    model = model if isinstance(model, str) else settings.deployment.model
    return replace(settings, deployment=replace(settings.deployment, model=model, engine=engine))


VLLM_BENCH_HINT = "Run vllm bench serve with --save-result --save-detailed, in a version that saves start_times."


def matches_vllm_bench(path: Path) -> bool:
    """Whether a file has this form."""
    return path.is_file() and has_lists(path, ("endpoint_type", "backend", "model_id"))


def read_vllm_bench(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a benchmark's result."""
    return read_lists(path, trace, "vllm-bench", VLLM_BENCH_HINT)


SGLANG_BENCH_HINT = (
    "Run sglang.bench_serving with --output-details and without --request-rate and --max-concurrency, or give the "
    "server's log of requests (--log-requests --log-requests-format json --enable-metrics)."
)


def matches_sglang_bench(path: Path) -> bool:
    """Whether a file has this form."""
    return path.is_file() and has_lists(path, ("server_info", "sharegpt_output_len", "random_input_len"))


def read_sglang_bench(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a benchmark's last run."""
    return read_lists(path, trace, "sglang-bench", SGLANG_BENCH_HINT)


UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def matches_aiperf(path: Path) -> bool:
    """Whether the first row has this form."""
    row = read_rows(path)[0] if path.is_file() else {}
    return isinstance(row.get("metadata"), dict) and isinstance(row.get("metrics"), dict)


def read_aiperf(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of the profiling phase."""
    rows = [row for row in read_rows(path) if part(row, "metadata").get("benchmark_phase") != "warmup"]
    starts = column(rows, lambda row: part(row, "metadata").get("request_start_ns"), "request_start_ns", path)
    arrival = (starts - np.nanmin(starts)) * 1e-9
    failed = np.array([bool(row.get("error") or part(row, "metadata").get("was_cancelled")) for row in rows])

    def metric(name: str) -> np.ndarray:
        return column(rows, lambda row: _metric(row, name), name, path)

    first = np.where(failed, NAN, arrival + metric("time_to_first_token"))
    ended = np.where(failed, NAN, arrival + metric("request_latency"))
    outputs = whole(metric("output_sequence_length"))
    times = RequestTimes(arrival, first, ended, whole(metric("input_sequence_length")), outputs)
    return recording_of(times, name=str(path), trace=trace, format="aiperf")


def _metric(row: Mapping[str, Any], name: str) -> float:
    """A metric of a row; a time in seconds."""
    metric = part(row, "metrics").get(name)
    if not isinstance(metric, Mapping):
        return NAN
    unit = metric.get("unit")
    return number_of(metric.get("value")) * (UNIT_SECONDS.get(unit, 1.0) if isinstance(unit, str) else 1.0)
