"""vLLM's request metrics: a folder with requests.jsonl and meta.json, as LLMServingSim's benchmark writes it.

Each row has input_toks, output_toks, queued_ts, scheduled_ts, first_token_ts and last_token_ts, in seconds of the
engine's monotonic clock. Its arrival_time is of another clock, so a request arrives when it is queued.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...trace.trace import Trace
from .recording import EngineSettings, Recording, RequestTimes, recording_of
from .rows import column, read_json, read_rows, whole


def matches(path: Path) -> bool:
    """Whether the path is a folder of this form."""
    return (path / "requests.jsonl").is_file()


def read(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a folder."""
    file = path / "requests.jsonl"
    rows = read_rows(file)

    def times(name: str):
        return column(rows, lambda row: row.get(name), name, file)

    measured = RequestTimes(
        times("queued_ts"), times("first_token_ts"), times("last_token_ts"), whole(times("input_toks")),
        whole(times("output_toks")), times("scheduled_ts") if "scheduled_ts" in rows[0] else None,
    )  # fmt: skip
    meta = path / "meta.json"
    settings = settings_of(read_json(meta)) if meta.is_file() else EngineSettings()
    return recording_of(measured, name=str(file), trace=trace, settings=settings, format="vllm-requests")


def settings_of(meta: Mapping[str, Any]) -> EngineSettings:
    """The engine's settings: its resolved configuration, else its arguments.

    >>> settings_of({"model": "m", "engine_kwargs": {"max_num_seqs": 128}}).max_num_seqs
    128
    """
    resolved = meta.get("resolved_config") or {}
    scheduler, cache = (
        resolved.get("scheduler_config") or {},
        resolved.get("cache_config") or meta.get("kv_cache") or {},
    )
    given = {**(meta.get("engine_kwargs") or {}), **scheduler}
    return EngineSettings(
        meta.get("model"), given.get("max_num_seqs"), given.get("max_num_batched_tokens"),
        given.get("async_scheduling"), cache.get("num_gpu_blocks"), cache.get("block_size"),
        given.get("tensor_parallel_size") or 1,
    )  # fmt: skip
