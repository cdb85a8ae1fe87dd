"""Request logs of engines and gateways with times: vLLM's request metrics, SGLang's request log, LiteLLM's logs.

vLLM: a folder with requests.jsonl and meta.json, as LLMServingSim's benchmark writes it. Each row has input_toks,
output_toks, queued_ts, scheduled_ts, first_token_ts and last_token_ts, in seconds of the engine's monotonic clock. Its
arrival_time is of another clock, so a request arrives when it is queued. A row may have cached_toks, the prompt tokens
that the cache had; timeseries.csv has the engine's gauges.

SGLang: `--log-requests --log-requests-format json --enable-metrics`. A line with the event `request.finished` has
`out.meta_info`: request_received_ts (seconds since 1970), first_token_latency and e2e_latency (seconds), prompt_tokens,
completion_tokens, and where known cached_tokens and queue_time.

LiteLLM's call log or spend logs: startTime, completionStartTime and endTime, in seconds or ISO 8601. Calls that failed,
did not stream (their first token is not known) or came from LiteLLM's own cache are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.errors import InputError
from ...trace.trace import Trace
from ..deployment import Deployment
from .recording import (
    NAN,
    EngineSettings,
    Recording,
    RequestTimes,
    column,
    number_of,
    object_of,
    read_gauges,
    read_json,
    read_rows,
    recording_of,
    whole,
)
from .settings import vllm_settings

VLLM_REQUESTS = ("queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")


def matches_vllm_requests(path: Path) -> bool:
    """Whether the path is a folder of this form, or its file of requests."""
    if path.is_dir():
        return (path / "requests.jsonl").is_file()
    return {"queued_ts", "first_token_ts"} <= read_rows(path)[0].keys()


def read_vllm_requests(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a folder, or of its file of requests and the files beside it."""
    file = path / "requests.jsonl" if path.is_dir() else path
    path = file.parent
    rows = read_rows(file)
    if lacking := [name for name in VLLM_REQUESTS if not any(name in row for row in rows)]:
        raise InputError(
            f"{file}: lacks {', '.join(lacking)}. Its rows must have {', '.join(VLLM_REQUESTS)}, with "
            "times in seconds of one clock."
        )

    def times(name: str):
        return column(rows, lambda row: row.get(name), name, file)

    measured = RequestTimes(
        times("queued_ts"), times("first_token_ts"), times("last_token_ts"), whole(times("input_toks")),
        whole(times("output_toks")), times("scheduled_ts") if "scheduled_ts" in rows[0] else None,
        whole(times("cached_toks")) if "cached_toks" in rows[0] else None,
    )  # fmt: skip
    meta, series = path / "meta.json", path / "timeseries.csv"
    settings = vllm_settings(object_of(read_json(meta), meta), meta) if meta.is_file() else EngineSettings()
    gauges = read_gauges(series) if series.is_file() else None
    return recording_of(measured, name=str(file), trace=trace, settings=settings, format="vllm-requests", gauges=gauges)


EVENT = "request.finished"
MOST_RANKS = 1 << 12
SGLANG_REQUESTS_HINT = "Start the server with --log-requests --log-requests-format json --enable-metrics."


def matches_sglang_requests(path: Path) -> bool:
    """Whether the first row has this form."""
    event = read_rows(path)[0].get("event") if path.is_file() else None
    return isinstance(event, str) and event.startswith("request.")


def read_sglang_requests(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a server's log."""
    rows = [_meta_info(row) for row in read_rows(path) if row.get("event") == EVENT]
    if not rows:
        raise InputError(f"{path}: no event {EVENT}. {SGLANG_REQUESTS_HINT}")
    for name in ("request_received_ts", "first_token_latency"):
        if not any(name in row for row in rows):
            raise InputError(f"{path}: lacks {name}, which a recording needs. {SGLANG_REQUESTS_HINT}")

    def values(name: str) -> np.ndarray:
        return column(rows, lambda row: row.get(name), name, path)

    arrival = values("request_received_ts")
    failed = np.array([_is_aborted(row) for row in rows])
    first = np.where(failed, NAN, arrival + values("first_token_latency"))
    queued = np.array([number_of(row.get("queue_time")) for row in rows])
    times = RequestTimes(
        arrival, first, arrival + values("e2e_latency"), whole(values("prompt_tokens")),
        whole(values("completion_tokens")), None if np.isnan(queued).any() else arrival + queued,
        whole(values("cached_tokens")) if any("cached_tokens" in row for row in rows) else None,
    )  # fmt: skip
    served_by = [rank for row in rows if type(rank := row.get("dp_rank")) is int and 0 <= rank < MOST_RANKS]
    settings = EngineSettings(Deployment(engine="sglang", data_parallel_size=max(served_by, default=0) + 1))
    return recording_of(times, name=str(path), trace=trace, settings=settings, format="sglang-requests")


def _meta_info(row: Mapping[str, Any]) -> Mapping[str, Any]:
    out = row.get("out")
    meta_info = out.get("meta_info") if isinstance(out, dict) else None
    return meta_info if isinstance(meta_info, dict) else {}


def _is_aborted(row: Mapping[str, Any]) -> bool:
    reason = row.get("finish_reason")
    return isinstance(reason, dict) and reason.get("type") == "abort"


TIMES = ("startTime", "completionStartTime", "endTime")


def matches_litellm(path: Path) -> bool:
    """Whether the first row has this form."""
    return path.is_file() and "startTime" in read_rows(path)[0]


def read_litellm(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a log of calls."""
    rows = read_rows(path)

    def values(name: str) -> np.ndarray:
        return column(rows, lambda row: row.get(name), name, path)

    arrival, first, ended = map(values, TIMES)
    first = np.where([_left_out(row) for row in rows], NAN, first)
    # where the answer did not stream, LiteLLM writes the end as the first token
    first = np.where((first >= ended) & (values("completion_tokens") > 1), NAN, first)
    prompts, outputs = whole(values("prompt_tokens")), whole(values("completion_tokens"))
    times = RequestTimes(arrival, first, ended, prompts, outputs)
    return recording_of(times, name=str(path), trace=trace, format="litellm")


def _left_out(row: Mapping[str, Any]) -> bool:
    return row.get("status") == "failure" or row.get("stream") is False or str(row.get("cache_hit")).lower() == "true"
