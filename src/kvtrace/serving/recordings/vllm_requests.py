"""vLLM's request metrics: a folder with requests.jsonl and meta.json, as LLMServingSim's benchmark writes it.

Each row has input_toks, output_toks, queued_ts, scheduled_ts, first_token_ts and last_token_ts, in seconds of the
engine's monotonic clock. Its arrival_time is of another clock, so a request arrives when it is queued. A row may have
cached_toks, the prompt tokens that the cache had; timeseries.csv has the engine's gauges.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...trace.trace import Trace
from .gauges import read_gauges
from .recording import EngineSettings, Recording, RequestTimes, recording_of
from .rows import column, object_of, read_json, read_rows, whole, whole_setting


def matches(path: Path) -> bool:
    """Whether the path is a folder of this form, or its file of requests."""
    if path.is_dir():
        return (path / "requests.jsonl").is_file()
    return {"queued_ts", "first_token_ts"} <= read_rows(path)[0].keys()


def read(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a folder, or of its file of requests and the files beside it."""
    file = path / "requests.jsonl" if path.is_dir() else path
    path = file.parent
    rows = read_rows(file)

    def times(name: str):
        return column(rows, lambda row: row.get(name), name, file)

    measured = RequestTimes(
        times("queued_ts"), times("first_token_ts"), times("last_token_ts"), whole(times("input_toks")),
        whole(times("output_toks")), times("scheduled_ts") if "scheduled_ts" in rows[0] else None,
        whole(times("cached_toks")) if "cached_toks" in rows[0] else None,
    )  # fmt: skip
    meta, series = path / "meta.json", path / "timeseries.csv"
    settings = settings_of(object_of(read_json(meta), meta), meta) if meta.is_file() else EngineSettings()
    gauges = read_gauges(series) if series.is_file() else None
    return recording_of(measured, name=str(file), trace=trace, settings=settings, format="vllm-requests", gauges=gauges)


def settings_of(meta: Mapping[str, Any], path: str | Path = "meta.json") -> EngineSettings:
    """The engine's settings: its resolved configuration, else its arguments.

    Raises:
        InputError: A setting is not a number from 1 on.

    >>> settings_of({"model": "m", "engine_kwargs": {"max_num_seqs": 128}}).max_num_seqs
    128
    """
    resolved = _part(meta, "resolved_config")
    cache = _part(resolved, "cache_config") or _part(meta, "kv_cache")
    given = {**_part(meta, "engine_kwargs"), **_part(resolved, "scheduler_config")}
    model, overlap = meta.get("model"), given.get("async_scheduling")
    return EngineSettings(
        model if isinstance(model, str) else None, whole_setting(given, "max_num_seqs", path),
        whole_setting(given, "max_num_batched_tokens", path), overlap if isinstance(overlap, bool) else None,
        whole_setting(cache, "num_gpu_blocks", path), whole_setting(cache, "block_size", path),
        whole_setting(given, "tensor_parallel_size", path) or 1,
    )  # fmt: skip


def _part(described: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside another one; empty if it is missing."""
    part = described.get(name)
    return part if isinstance(part, dict) else {}
