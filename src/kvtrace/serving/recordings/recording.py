"""A recording: what an engine or a benchmark measured, request by request, in seconds from the first arrival.

It may have the engine's gauges over time: requests that run and wait, and the share of the KV cache in use. The file
timeseries.csv of LLMServingSim's benchmark has the columns t (seconds), running, waiting and kv_cache_pct.

The readers of all formats share what reads JSON rows and columns of numbers; errors name a field and show no value.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

from ..._base.arrays import offsets_of
from ..._base.errors import InputError, UsageError, wrong_word
from ..._base.input_files import open_read
from ..._base.results import DescribedResult
from ...cache.engines import EngineName
from ...cache.simulation import Setting
from ...trace.columns import Columns
from ...trace.invariants import MAX_LENGTH, require_own_blocks
from ...trace.meta import PREFIXES_UNKNOWN, shares_prefixes
from ...trace.trace import Trace
from ...trace.unknown import PREFIXES, require_known
from ..schedulers import Scheduler, SglangScheduler, VllmScheduler
from .settings import EngineSettings as EngineSettings

COLUMNS = ("t", "running", "waiting")
KV_COLUMN = "kv_cache_pct"
MAX_MORE = 10_000  # moments after the last one


@dataclass(frozen=True, eq=False)
class Gauges:
    """One value per moment."""

    seconds: np.ndarray  # from the first arrival
    running: np.ndarray  # requests
    waiting: np.ndarray  # requests
    kv_use: np.ndarray | None = None  # share of the blocks of the KV cache; None if it was not measured

    def until(self, end: float) -> Gauges:
        """The gauges up to a time: after the last request, they stay at 0. Unchanged if they end while requests run.

        >>> Gauges(np.array([0.0, 1.0]), np.array([1, 0]), np.array([0, 0])).until(2.5).seconds.tolist()
        [0.0, 1.0, 2.0, 3.0]
        """
        if len(self.seconds) < 2 or self.running[-1] or self.waiting[-1] or self.seconds[-1] >= end:
            return self
        gap = float(np.median(np.diff(self.seconds)))
        more = min(int(np.ceil((end - self.seconds[-1]) / gap)), MAX_MORE)
        nothing, use = np.zeros(more, dtype=np.int64), self.kv_use
        return Gauges(
            np.append(self.seconds, self.seconds[-1] + gap * np.arange(1, more + 1)),
            np.append(self.running, nothing), np.append(self.waiting, nothing),
            None if use is None else np.append(use, np.zeros(more)),
        )  # fmt: skip


def read_gauges(path: str | Path) -> Gauges:
    """Read a CSV file of gauges. A KV use of 0 while requests ran is a gauge that did not work, and is left out.

    Raises:
        InputError: A column is missing, or a value is not a number.
    """
    with open_read(path) as file:
        text = file.read(MAX_BYTES).decode("utf-8", "replace")
    rows: list[dict[str, str]] = []
    with suppress(csv.Error):
        rows = list(csv.DictReader(io.StringIO(text)))
    if not rows or not {*COLUMNS} <= {*rows[0]}:
        raise InputError(f"{path}: lacks one of the columns {', '.join(COLUMNS)}.")
    seconds, running, waiting = (_column(rows, name, path) for name in COLUMNS)
    if (np.diff(seconds) <= 0).any():
        raise InputError(f"{path}: the times in column t do not rise.")
    kv_use = _column(rows, KV_COLUMN, path) / 100 if KV_COLUMN in rows[0] else None
    if kv_use is not None and running.any() and not kv_use.any():
        kv_use = None
    return Gauges(seconds, running, waiting, kv_use)


def _column(rows: list[dict[str, str]], name: str, path: str | Path) -> np.ndarray:
    try:
        values = np.array([float(row[name]) for row in rows])
    except (TypeError, ValueError):
        values = np.array([-1.0])
    if not (np.isfinite(values) & (values >= 0)).all():
        raise InputError(f"{path}: column {name} has values that are not numbers from 0 on.")
    return values


MIN_REQUESTS = 20  # fewer do not show how times depend on load
MAX_RATE = 20_000  # output tokens a second of one request; no engine is so fast
MAX_SECONDS = 30 * 86400.0  # of a request; a longer one has times of another unit
BLOCK_SIZE = 16  # vLLM's default
MEAN_BLOCKS = 512  # of a request, at most, where no two share any: a fit simulates each of them thousands of times
BLOCKS = 1 << 20  # where the cache's size is unknown: nothing is preempted


# engine -> its scheduler, with its names of the limits of a deployment
SCHEDULERS: dict[str, tuple[type[Scheduler], dict[str, str]]] = {
    "vllm": (VllmScheduler, {"max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_num_batched_tokens"}),
    "sglang": (
        SglangScheduler,
        {"max_num_seqs": "max_running_requests", "max_num_batched_tokens": "chunked_prefill_size"},
    ),
}


@dataclass(frozen=True, eq=False)
class RequestTimes:
    """One value per request, in any order; times in seconds of one clock.

    A request that failed has NaN as its first or last time.
    """

    arrival: np.ndarray
    first: np.ndarray  # when the first token was there
    ended: np.ndarray  # when the last token was there
    input_length: np.ndarray
    output_length: np.ndarray
    scheduled: np.ndarray | None = None
    cached_tokens: np.ndarray | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Recording(DescribedResult):
    """Requests in order of arrival with their measured times, and the settings of the engine.

    The times are seconds from the first arrival; `trace` holds the arrivals, the lengths and the blocks.
    """

    _keys = ("format", "requests", "left_out", "seconds", "model")
    trace: Trace
    first_s: np.ndarray  # request -> when its first token was there
    ended_s: np.ndarray  # request -> when its last token was there
    settings: EngineSettings = field(default_factory=EngineSettings)
    format: str = ""
    left_out: int = 0  # requests that failed
    scheduled_s: np.ndarray | None = None
    cached_tokens: np.ndarray | None = None
    file_row: np.ndarray | None = None  # request -> its row of the file, from 0
    gauges: Gauges | None = None  # of the engine, over time

    def _headline(self) -> str:
        return f"{len(self.trace):,} requests in {self.ended_s.max():.4g} s, {self.left_out:,} left out"

    def _columns(self) -> dict[str, np.ndarray]:
        trace = self.trace
        return {
            "arrival_s": self.arrival_s, "first_s": self.first_s, "ended_s": self.ended_s,
            "input_length": trace.input_length, "output_length": trace.output_length,
        }  # fmt: skip

    def __len__(self) -> int:
        return len(self.trace)

    @property
    def arrival_s(self) -> np.ndarray:
        """When each request arrived."""
        return self.trace.timestamp / 1000

    @property
    def requests(self) -> int:
        """The requests that did not fail."""
        return len(self)

    @property
    def seconds(self) -> float:
        """When the last request ended."""
        return float(self.ended_s.max())

    @property
    def model(self) -> str | None:
        """The model that was served, if the recording states it."""
        return cast(str | None, self.settings.deployment.model)

    @property
    def states_blocks(self) -> bool:
        """Whether it is known which requests share blocks: a trace was given."""
        return shares_prefixes(self.trace.meta)

    @property
    def simulated_trace(self) -> Trace:
        """The trace that is simulated: where it is unknown which requests share blocks, none do."""
        trace = copy(self.trace)
        trace.meta = {name: value for name, value in trace.meta.items() if name != "prefixes"}
        return trace

    def scheduler(self, engine: EngineName | None = None) -> Scheduler:
        """The engine's scheduler with the settings of the recording, and the engine's defaults where it states none.

        Args:
            engine: vllm or sglang, if it is not the one that the recording's format implies.

        Raises:
            UsageError: The engine is another one.
        """
        recorded = self.settings.deployment
        engine = engine or recorded.engine
        if engine not in SCHEDULERS:
            raise wrong_word(engine, "an --engine with a scheduler", SCHEDULERS)
        kind, names = SCHEDULERS[engine]
        options = {option: getattr(recorded, name) for name, option in names.items()}
        options |= self.settings.scheduler if engine == recorded.engine else {}
        return kind(**{option: value for option, value in options.items() if value is not None})

    def setting(self, scheduler: Scheduler | None = None) -> Setting:
        """The cache of a data-parallel rank of the engine that was measured; vLLM keeps one of its blocks free."""
        engine = cast(EngineName, (scheduler or self.scheduler()).name)
        blocks = self.settings.blocks_of(self.trace.block_size)
        capacity = max(1, blocks - (engine == "vllm")) if blocks else BLOCKS
        return Setting(capacity, engine=engine, drafting=self.settings.drafting(engine))


def recording_of(
    times: RequestTimes,
    *,
    name: str,
    trace: Trace | None = None,
    settings: EngineSettings | None = None,
    format: str = "",
    gauges: Gauges | None = None,
) -> Recording:
    """A recording of measured times; requests that failed are left out and counted.

    Args:
        times: The times of each request.
        name: Of the file, for errors.
        trace: The same requests in the same order, with the ids of their blocks. Without it, no blocks are shared.
        settings: Of the engine.
        format: The format of the file.
        gauges: Of the engine, in seconds from the first arrival.

    Raises:
        InputError: Times contradict each other, or too few requests are left.
        UsageError: The trace has other requests.

    >>> seconds = np.arange(30.0)
    >>> times = RequestTimes(seconds + 5, seconds + 6, seconds + 7, np.full(30, 16), np.full(30, 2))
    >>> recording_of(times, name="log").first_s[:3].tolist()
    [1.0, 2.0, 3.0]
    """
    settings = settings or EngineSettings()
    served = ~np.isnan(np.column_stack([times.arrival, times.first, times.ended])).any(axis=1)
    served &= times.output_length > 0
    rows = np.flatnonzero(served)
    rows = rows[np.argsort(times.arrival[rows], kind="stable")]
    _require_times(times, rows, name)
    start = times.arrival[rows[0]]
    return Recording(
        _trace_of(times, rows, settings, trace, name), times.first[rows] - start, times.ended[rows] - start,
        settings, format, len(served) - len(rows),
        None if times.scheduled is None else times.scheduled[rows] - start,
        None if times.cached_tokens is None else times.cached_tokens[rows],
        rows, gauges,
    )  # fmt: skip


def _require_times(times: RequestTimes, rows: np.ndarray, name: str) -> None:
    """InputError unless enough requests are left, and each arrives, starts to answer, and ends in this order."""
    if len(rows) < MIN_REQUESTS:
        failed = len(times.arrival) - len(rows)
        raise InputError(
            f"{name}: {len(rows):,} requests with times, {failed:,} that failed; at least {MIN_REQUESTS} are needed."
        )
    tokens = np.concatenate([times.input_length[rows], times.output_length[rows]])
    if tokens.min() < 0 or tokens.max() > MAX_LENGTH:
        raise InputError(f"{name}: a prompt or an output has fewer than 0 or more than {MAX_LENGTH:,} tokens.")
    arrival, first, ended = (column[rows] for column in (times.arrival, times.first, times.ended))
    early, late = int((first < arrival).sum()), int((ended < first).sum())
    if early:
        raise InputError(
            f"{name}: {early:,} requests have their first token before their arrival. "
            "The times are of different clocks or units."
        )
    if late:
        raise InputError(f"{name}: {late:,} requests end before their first token. The times are of different units.")
    if times.output_length[rows].sum() > MAX_RATE * max(1.0, float((ended - arrival).sum())):
        raise InputError(
            f"{name}: a request has more than {MAX_RATE:,} output tokens a second on average. "
            "The lengths or the times are of different units."
        )
    if np.ptp(arrival) > MAX_SECONDS:
        raise InputError(f"{name}: the arrivals span more than 30 days. The times are of different clocks or units.")
    if (ended - arrival).max() > MAX_SECONDS:
        raise InputError(f"{name}: a request takes more than 30 days. The times are of different clocks or units.")


def _trace_of(times, rows, settings, trace, name) -> Trace:
    """The trace of these rows: its blocks are those of the given trace, or the request's own."""
    if trace is not None:
        require_known(trace, trace.meta, f"{name}: which requests hit", PREFIXES)
        _require_same(times, trace, name)
    if trace is not None and settings.prefix_caching:
        block_size = trace.block_size
        taken = trace.take(rows)
        hash_ids, offsets, tail, meta = taken.hash_ids, taken.offsets, trace.tail, {}
    else:  # no two requests share a block; without prefix caching that is known
        tokens, tail = (times.input_length + times.output_length)[rows], "unique"
        block_size = trace.block_size if trace is not None else _block_size(settings, tokens)
        meta = {} if not settings.prefix_caching else {"prefixes": PREFIXES_UNKNOWN}
        require_own_blocks(times.input_length[rows], block_size, f"prompts of {name}")
        offsets = offsets_of(-(-times.input_length[rows] // block_size))
        hash_ids = np.arange(offsets[-1])
    arrival_ms = (times.arrival[rows] - times.arrival[rows[0]]) * 1000
    columns = Columns(arrival_ms, times.input_length[rows], times.output_length[rows], hash_ids, offsets)
    return Trace.from_columns(columns, block_size=block_size, tail=tail, meta=meta)


def _block_size(settings: EngineSettings, tokens: np.ndarray) -> int:
    """The engine's own block size; of small ones, as SGLang's pages of one token, as many as make `BLOCK_SIZE`.

    Requests of many blocks have larger ones, twice as large or more, so that the mean has at most `MEAN_BLOCKS`.
    """
    size = settings.deployment.block_size or BLOCK_SIZE
    size *= max(1, BLOCK_SIZE // size)
    return size << max(0, math.ceil(math.log2(max(1.0, float(tokens.mean())) / (size * MEAN_BLOCKS))))


def _require_same(times: RequestTimes, trace: Trace, name: str) -> None:
    if len(trace) != len(times.arrival):
        raise UsageError(
            f"{name}: {len(times.arrival):,} requests, but the trace has {len(trace):,}. "
            "--trace needs the same requests in the same order."
        )
    has_length = times.input_length >= 0
    differing = int((trace.input_length != times.input_length)[has_length].sum())
    if differing > len(trace) // 100:  # a benchmark may count special tokens otherwise
        raise UsageError(
            f"{name}: {differing:,} prompts have another length in the trace. "
            "--trace needs the same requests in the same order."
        )


MAX_BYTES = 1 << 31
NAN = float("nan")


def read_json(path: str | Path) -> Any:
    """The JSON value of a file; the last one, if each line holds one, as benchmarks append their runs."""
    with open_read(path) as file:
        text = file.read(MAX_BYTES)
    for part in (text, text.strip().rpartition(b"\n")[2]):
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(part)
        with suppress(ValueError, RecursionError):  # a benchmark without a limit on its rate writes Infinity
            return json.loads(part)
    raise InputError(f"{path}: not valid JSON.")


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line, or of one JSON array."""
    rows: list[Any] = []
    with open_read(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                rows.append(_row(line, path, number))
    if len(rows) == 1 and isinstance(rows[0], list):
        rows = rows[0]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: holds no rows of JSON objects.")
    return rows


def _row(line: bytes, path: str | Path, number: int) -> Any:
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(line)
    raise InputError(f"{path}:{number}: not valid JSON.")


def column(
    rows: Iterable[Mapping[str, Any]], get: Callable[[Mapping[str, Any]], Any], name: str, path: str | Path
) -> np.ndarray:
    """A number of each row, NaN where it is missing; InputError if no row has one.

    >>> column([{"a": 1}, {}], lambda row: row.get("a"), "a", "log").tolist()
    [1.0, nan]
    """
    values = np.array([number_of(get(row)) for row in rows])
    if np.isnan(values).all():
        raise InputError(f"{path}: lacks {name}, which a recording needs.")
    return values


def number_of(value: Any) -> float:
    """A number, or a time in ISO 8601 as seconds since 1970; NaN for anything else, infinity too.

    >>> number_of(3), number_of("1970-01-01T00:00:02Z"), number_of(None), number_of(10**400)
    (3.0, 2.0, nan, nan)
    """
    with suppress(TypeError, ValueError, OverflowError):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value) if math.isfinite(value) else NAN
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return NAN


def lists(described: Mapping[str, Any], names: Sequence[str], path: str | Path, hint: str) -> list[list[Any]]:
    """The named lists of a benchmark's result, all of one length; InputError names those that are missing."""
    missing = [name for name in names if not isinstance(described.get(name), list) or not described[name]]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}. {hint}")
    columns = [described[name] for name in names]
    if len({len(values) for values in columns}) > 1:
        raise InputError(f"{path}: {', '.join(names)} have different lengths.")
    return columns


def object_of(value: Any, path: str | Path) -> dict[str, Any]:
    """The value of a file, which must be a JSON object."""
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object.")
    return value


def whole(values: np.ndarray) -> np.ndarray:
    """Token counts as whole numbers, 0 where one is missing; numbers that no count can be stay invalid."""
    return np.clip(np.nan_to_num(values), -1, MAX_LENGTH + 1).astype(np.int64)
