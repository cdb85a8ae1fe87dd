"""Sample a trace of any size from a fitted model: draw streams, stretch them, merge them, and number the blocks.

`scale` is the quantity that grows with the number of requests. `duration`, the default: one stream continues for
longer, so that the load stays (requests per second, and how unevenly they arrive). `rate`: several parallel streams,
each with its own forest, multiply the requests per second. `session_columns.py` samples session trees.

`check_fidelity` draws samples as large as the trace, and compares their figures with those of the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import numpy as np

from .._base.errors import InputError, UsageError
from .._base.options import record_of
from .._base.workers import thread_map
from ..trace.columns import MAX_TIME, Columns
from ..trace.trace import Trace
from .attach_model import Model
from .clients import request_counts, streams_of
from .drawing import chunks_of, draw_stream, merged, one_by_one, reported
from .fidelity import MAX_SEEDS, Fidelity, figures_of
from .knobs import Knobs, SampleOptions, Scale
from .mixture import Mixture, effective_tail, mix
from .session_model import SessionModel
from .tree import Tree

SCALES = get_args(Scale)


@dataclass(frozen=True)
class Synthesized:
    """What `kvtrace synthesize` wrote, and what its samples keep of the trace, if that was checked."""

    files: list[str]
    fidelity: Fidelity | None = None
    trace: Trace | None = None  # in Python, of a check that writes no file


MAX_REQUESTS = 500_000_000


def sample(
    model: Model | Tree | SessionModel | Mixture,
    n: int | None = None,
    *,
    sessions: int | None = None,
    seed: int = 0,
    scale: Scale = "duration",
    knobs: Knobs | None = None,
    workers: int | None = None,
) -> Trace:
    """Sample a trace from a model of `fit`, `fit_tree` or `fit_sessions`, or from a mixture of `mix`.

    The same model, size, seed, scale and knobs give the same trace, for any number of workers.

    Args:
        model: The fitted model, or the mixture.
        n: The number of requests. Default: as many as were fitted; of a session model, as many sessions.
        sessions: The number of sessions, of a session model, in place of n.
        seed: Seed of all random draws.
        scale: The quantity that grows with n: `duration` (the load stays) or `rate`.
        knobs: Multipliers and limits.
        workers: Streams drawn at a time. Default: one per core.

    Returns:
        The trace.

    Raises:
        UsageError: An argument is out of range.
        InputError: No prompt of the model is within the limits on input lengths.

    >>> from kvtrace.synthesis.attach_fitting import fit
    >>> from kvtrace.trace.building import toy
    >>> len(sample(fit(toy("0 1", "0 1 2", "0 3", "0 1")), 10, seed=7))
    10
    """
    options = record_of(SampleOptions, locals() | {"knobs": knobs or Knobs()})
    columns, _ = _sample_columns(model, _sized(model, options))
    return Trace.from_columns(columns, block_size=model.block_size, tail=effective_tail(model))


def write_sample(
    model: Model | Tree | SessionModel | Mixture,
    n: int | None,
    path: str | Path,
    *,
    sessions: int | None = None,
    seed: int = 0,
    scale: Scale = "duration",
    knobs: Knobs | None = None,
    format: str | None = None,
    workers: int | None = None,
    meta: dict[str, Any] | None = None,
    extra: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> list[str]:
    """Write a sample and its sidecar, and return the names of the files.

    With scale `duration`, the Mooncake format and no stretching, rows are written as they are drawn, and memory does
    not grow with n. The bytes are the same as those of `sample`, written to a file.

    Args:
        model, n, sessions, seed, scale, knobs, workers: As in `sample`.
        path, format: As in `write`.
        meta: Additional JSON values for the sidecar.
        extra: Also write other columns of the model to formats that do not define them.
        on_progress: Receives the number of requests drawn since its last call, from any thread.

    Returns:
        The names of the files.

    Raises:
        UsageError: An argument is out of range, or the file is not writable.
        InputError: No prompt of the model is within the limits on input lengths.

    >>> import os, tempfile
    >>> from kvtrace.synthesis.attach_fitting import fit
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     names = write_sample(fit(toy("0 1", "0 1 2", "0 3")), 10, f"{folder}/more.jsonl")
    ...     [os.path.basename(name) for name in names]
    ['more.jsonl', 'more.jsonl.meta.json']
    """
    options = record_of(SampleOptions, locals() | {"knobs": knobs or Knobs()})
    return write_drawn(model, options, path, format=format, meta=meta, extra=extra, on_progress=on_progress)


def write_drawn(
    model: Model | Tree | SessionModel | Mixture,
    options: SampleOptions,
    path: str | Path,
    *,
    format: str | None = None,
    meta: dict[str, Any] | None = None,
    extra: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> list[str]:
    """As `write_sample`."""
    from ..formats import writing

    options = _sized(model, options)
    size = {"sessions": options.sessions} if options.n is None else {"requests": options.n}
    synthetic = {
        "method": model.method, **size, "seed": options.seed, "scale": options.scale, **options.knobs.to_dict()
    }  # fmt: skip
    if model.fidelity is not None:
        synthetic["fidelity"] = model.fidelity.to_dict()
    format = writing.check_output(path, format)
    form: Any = {"block_size": model.block_size, "tail": effective_tail(model), "extra": extra}
    if options.n is None or format != "mooncake" or not _can_stream(model, options):
        columns, parts = _sample_columns(model, options, on_progress)
        meta = {"synthetic": _stated(synthetic | parts)} | (meta or {})
        return writing.write(columns, path, format=format, meta=meta, **form)
    _require_arguments(model, options)
    (stream,) = streams_of(_as_mixture(model), options.n, options.seed, options.scale)
    own, _ = stream.seeds.spawn(2)
    chunks = one_by_one(model, reported(chunks_of(stream, own, options.knobs), on_progress), options.knobs)
    meta = {"synthetic": _stated(synthetic)} | (meta or {})
    return writing.write_chunks(map(_within_time, chunks), path, meta=meta, **form)


def _stated(value: Any) -> Any:
    """What a sidecar states: fractions to six significant digits, because more of them could hide a number.

    >>> _stated({"seed": 12345678, "rates": [0.4155550123]})
    {'seed': 12345678, 'rates': [0.415555]}
    """
    if isinstance(value, dict):
        return {name: _stated(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_stated(part) for part in value]
    return float(f"{value:.6g}") if type(value) is float else value


def _sample_columns(
    model, options: SampleOptions, on_progress: Callable[[int], None] | None = None
) -> tuple[Columns, dict[str, Any]]:
    """The columns of a sample, which satisfy all invariants of a Trace; what a sidecar states of a mixture."""
    _require_arguments(model, options)
    if model.method == "sessions":
        from .session_columns import session_columns

        return _within_time(session_columns(model, options, on_progress)), {}
    assert options.n is not None  # only a session model draws a number of sessions
    mixture, seed, knobs = _as_mixture(model), options.seed, options.knobs
    streams = streams_of(mixture, options.n, seed, options.scale, knobs.rates)
    parts = list(thread_map(lambda stream: draw_stream(stream, knobs, on_progress), streams, options.workers))
    merge_rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
    columns = _within_time(merged(parts, streams, model, knobs, merge_rng))
    return columns, request_counts(model, streams) if model is mixture else {}


def _within_time(columns: Columns) -> Columns:
    """The columns; InputError if they have times that a trace does not hold."""
    time = columns.timestamp
    if len(time) and not 0 <= time.min() <= time.max() <= MAX_TIME:
        raise InputError(
            "the sample lasts more than 2^53 ms (285,000 years). Draw fewer requests, or fit the model again."
        )
    return columns


def _as_mixture(model) -> Mixture:
    return model if isinstance(model, Mixture) else mix([model])


def _sized(model, options: SampleOptions) -> SampleOptions:
    """The options with a number of requests or of sessions: the other is None."""
    n, sessions = options.n, options.sessions
    if sessions is not None and model.method != "sessions":
        raise UsageError("only a model of fit_sessions draws a number of sessions. Give a number of requests.")
    if n is not None and sessions is not None:
        raise UsageError("give a number of requests or a number of sessions, not both.")
    if n is None and sessions is None:
        n, sessions = (None, model.sessions) if model.method == "sessions" else (model.rows, None)
    for number, name in ((n, "requests"), (sessions, "sessions")):
        if number is not None and number < 1:
            raise UsageError(f"the number of {name} is {number}; it must be at least 1.")
        if number is not None and number > MAX_REQUESTS:
            raise UsageError(f"the number of {name} is {number:,}; it must be at most {MAX_REQUESTS:,}.")
    return replace(options, n=n, sessions=sessions)


def _require_arguments(model, options: SampleOptions) -> None:
    if options.seed < 0:
        raise UsageError(f"the seed is {options.seed}; it must be at least 0.")
    if options.scale not in SCALES:
        raise UsageError(f"{options.scale!r} is not a scale. Use {' or '.join(SCALES)}.")
    max_isl = options.knobs.max_isl
    if model.method != "sessions" and max_isl is not None and max_isl < model.smallest:
        raise InputError(f"--max-isl {max_isl:,} is below the shortest prompt of the model, {model.smallest:,} tokens.")


def _can_stream(model, options: SampleOptions) -> bool:
    """Whether rows are drawn in their final order, with their final block numbers."""
    knobs = options.knobs
    is_numbered = model.method in ("attach", "tree") and model.tail != "dropped"
    return is_numbered and options.scale == "duration" and not knobs.stretches and not knobs.replaces_rates


SEEDS = 5


def check_fidelity(model: Model | Tree | SessionModel, *, seeds: int = SEEDS, workers: int | None = None) -> Fidelity:
    """Compare samples of a model, as large as the trace that it was fitted to, with the figures of that trace.

    Args:
        model: The fitted model.
        seeds: The number of samples, whose figures are averaged.
        workers: As in `sample`.

    Raises:
        UsageError: `seeds` is not from 1 to 1000.

    >>> from kvtrace.synthesis.attach_fitting import fit
    >>> from kvtrace.trace.building import toy
    >>> check_fidelity(fit(toy("0 1", "0 1 2", "0 1", "3")), seeds=2).original["block_hit_rate"]
    0.5
    """
    if not 0 < seeds <= MAX_SEEDS:
        raise UsageError(f"the number of samples is {seeds}; it must be from 1 to {MAX_SEEDS:,}.")
    original = model.figures
    working_set = int(original["working_set"] or 1)
    sample_figures = [figures_of(sample(model, seed=seed, workers=workers), working_set) for seed in range(seeds)]
    means = {name: _mean([figures[name] for figures in sample_figures]) for name in original}
    return Fidelity(model.rows, seeds, original, means)


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return mean(numbers) if numbers else None
