"""Sample a trace of any size from a fitted model: draw streams, stretch them, merge them, and number the blocks.

`scale` is the quantity that grows with the number of requests. `duration`, the default: one stream continues for
longer, so that the load stays (requests per second, and how unevenly they arrive). `rate`: several parallel streams,
each with its own forest, multiply the requests per second. Session trees have files of their own in `sessions/`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import InputError, UsageError
from .._base.offsets import offsets_of
from .._native import ids, ragged
from ..trace.columns import Columns
from ..trace.trace import Trace
from .draft import Draft
from .knobs import Knobs
from .limits import within

if TYPE_CHECKING:
    from .model import Model
    from .sessions.model import SessionModel
    from .tree import Tree

SCALES = ("duration", "rate")
COARSE_MS = 10  # above this mean gap, times are rounded to whole milliseconds


def sample(
    model: Model | Tree | SessionModel,
    n: int | None = None,
    *,
    sessions: int | None = None,
    seed: int = 0,
    scale: str = "duration",
    knobs: Knobs | None = None,
    workers: int | None = None,
) -> Trace:
    """Sample a trace from a model of `fit`, `fit_tree` or `fit_sessions`.

    The same model, size, seed, scale and knobs give the same trace, for any number of workers.

    Args:
        model: The fitted model.
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

    >>> from kvtrace.synthesis.fitting import fit
    >>> from kvtrace.trace.building import toy
    >>> len(sample(fit(toy("0 1", "0 1 2", "0 3", "0 1")), 10, seed=7))
    10
    """
    columns = _sample_columns(model, n, sessions, seed, scale, knobs or Knobs(), workers)
    return Trace.from_columns(columns, block_size=model.block_size, tail=_tail(model))


def write_sample(
    model: Model | Tree | SessionModel,
    n: int | None,
    path: str | Path,
    *,
    sessions: int | None = None,
    seed: int = 0,
    scale: str = "duration",
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
    >>> from kvtrace.synthesis.fitting import fit
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     names = write_sample(fit(toy("0 1", "0 1 2", "0 3")), 10, f"{folder}/more.jsonl")
    ...     [os.path.basename(name) for name in names]
    ['more.jsonl', 'more.jsonl.meta.json']
    """
    from ..formats import writing

    knobs = knobs or Knobs()
    n, sessions = _size(model, n, sessions)
    size = {"sessions": sessions} if n is None else {"requests": n}
    meta = {"synthetic": {"method": model.method} | size | {"seed": seed, "scale": scale} | knobs.to_dict()} | (
        meta or {}
    )
    format = writing.check_output(path, format)
    if n is None or format != "mooncake" or not _can_stream(model, scale, knobs):
        columns = _sample_columns(model, n, sessions, seed, scale, knobs, workers, on_progress)
        return writing.write(
            columns, path, format=format, block_size=model.block_size, tail=_tail(model), extra=extra, meta=meta
        )
    seeds = _seeds(model, n, seed, scale, knobs)
    own, _ = seeds[1].spawn(2)
    chunks = _columns(model, _reported(_stream(model, own, knobs).chunks(n), on_progress), knobs)
    return writing.write_chunks(chunks, path, block_size=model.block_size, tail=_tail(model), extra=extra, meta=meta)


def _reported(drafts: Iterator[Draft], on_progress) -> Iterator[Draft]:
    """The same drafts; the requests of each are reported."""
    for draft in drafts:
        if on_progress:
            on_progress(len(draft))
        yield draft


def _sample_columns(model, n, sessions, seed, scale, knobs, workers, on_progress=None) -> Columns:
    """The columns of a sample, which satisfy all invariants of a Trace."""
    n, sessions = _size(model, n, sessions)
    _require_seed(seed, scale)
    if model.method == "sessions":
        from .sessions.building import session_columns

        return session_columns(
            model, n, sessions, seed=seed, scale=scale, knobs=knobs, workers=workers, on_progress=on_progress
        )
    seeds = _seeds(model, n, seed, scale, knobs)
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:  # the kernels release the GIL

        def draw(part):
            return _draw_stream(model, part[0], part[1], knobs, on_progress)

        parts = list(pool.map(draw, _streams(model, n, seeds, scale)))
    return _merged(parts, model, knobs, np.random.default_rng(seeds[0]))


def _size(model, n, sessions):
    """The number of requests and of sessions: one of them is None."""
    if sessions is not None and model.method != "sessions":
        raise UsageError("only a model of fit_sessions draws a number of sessions. Give a number of requests.")
    if n is not None and sessions is not None:
        raise UsageError("give a number of requests or a number of sessions, not both.")
    if n is None and sessions is None:
        n, sessions = (None, model.sessions) if model.method == "sessions" else (model.rows, None)
    for number, name in ((n, "requests"), (sessions, "sessions")):
        if number is not None and number < 1:
            raise UsageError(f"the number of {name} is {number}; it must be at least 1.")
    return n, sessions


def _require_seed(seed, scale):
    if seed < 0:
        raise UsageError(f"the seed is {seed}; it must be at least 0.")
    if scale not in SCALES:
        raise UsageError(f"{scale!r} is not a scale. Use {' or '.join(SCALES)}.")


def _can_stream(model, scale, knobs):
    """Whether rows are drawn in their final order, with their final block numbers."""
    is_numbered = model.method != "sessions" and _tail(model) != "dropped"
    return is_numbered and scale == "duration" and not knobs.stretches and knobs.step_rates is None


def _seeds(model, n, seed, scale, knobs):
    """Validate the arguments; return one seed for the merge, then one for each stream."""
    _require_seed(seed, scale)
    if knobs.max_isl is not None and knobs.max_isl < model.smallest:
        raise InputError(
            f"--max-isl {knobs.max_isl:,} is below the shortest prompt of the model, {model.smallest:,} tokens."
        )
    return np.random.SeedSequence(seed).spawn(1 + _stream_count(model, n, scale))


def _stream_count(model, n, scale):
    """The number of streams: n / the fitted requests if the rate grows, else 1."""
    return max(1, round(n / model.rows)) if scale == "rate" and model.method == "attach" else 1


def _streams(model, n, seeds, scale):
    """(seed, rows) of each stream."""
    count = len(seeds) - 1
    return [(stream, n // count + (place < n % count)) for place, stream in enumerate(seeds[1:])]


def _stream(model, seeds, knobs):
    accept = knobs.accepts if knobs.limits_input else None
    if model.method == "tree":
        from .tree import TreeStream

        return TreeStream(model, seeds, accept=accept, max_rejections=knobs.max_rejections)
    from .attach import AttachStream

    return AttachStream(model, seeds, accept=accept)


def _draw_stream(model, seeds, rows, knobs, on_progress) -> Draft:
    """All rows of one stream, after stretching and limits."""
    own, others = seeds.spawn(2)
    draft = joined(list(_reported(_stream(model, own, knobs).chunks(rows), on_progress)))
    if knobs.stretches:
        from .stretch import StretchState, stretched

        core = np.bincount(draft.blocks) >= 2
        draft = stretched(
            draft, core, StretchState(model.block_size), prefix_len=knobs.prefix_len_multiplier,
            prompt_len=knobs.prompt_len_multiplier, roots=knobs.prefix_root_multiplier,
            rng=np.random.default_rng(others),
        )  # fmt: skip
    if knobs.limits_input:
        draft = within(draft, model.block_size, knobs.min_isl, knobs.max_isl)
    return draft


def joined(drafts: list[Draft]) -> Draft:
    """Concatenate consecutive chunks of one stream."""
    if len(drafts) == 1:
        return drafts[0]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(draft, name) for draft in drafts])
        for name in ("arrival", "blocks", "tail", "output_length", "session", "parent")
    }
    extra = {name: np.concatenate([draft.extra[name] for draft in drafts]) for name in drafts[0].extra}
    offsets = offsets_of(np.concatenate([draft.path_blocks for draft in drafts]))
    return Draft(**columns, offsets=offsets, extra=extra)


def _merged(parts: list[Draft], model, knobs, rng) -> Columns:
    """Merge parallel streams by arrival time."""
    rows, counts = offsets_of([len(part) for part in parts]), offsets_of([_block_count(part) for part in parts])
    sessions = offsets_of([int(part.session.max(initial=-1)) + 1 for part in parts])
    if counts[-1] >= 1 << 31:
        raise UsageError("a sample of this size has more than 2^31 blocks. Try fewer requests.")
    merged = joined([
        Draft(
            part.arrival, part.offsets, part.blocks + np.int32(first), part.tail, part.output_length,
            np.where(part.session < 0, -1, part.session + session),
            np.where(part.parent < 0, -1, part.parent + row), part.extra,
        )
        for part, first, session, row in zip(parts, counts, sessions, rows, strict=False)
    ])  # fmt: skip
    order = np.argsort(merged.arrival, kind="stable")
    blocks, offsets = ragged.take(merged.blocks, merged.offsets, order)
    ids.by_first_appearance(blocks, int(counts[-1]))
    place = np.empty_like(order)  # row of the streams -> row of the trace
    place[order] = np.arange(len(order))
    parent = np.where(merged.parent < 0, -1, place[merged.parent])[order]
    rows_in_order = Draft(
        merged.arrival[order], offsets, blocks, merged.tail[order],
        merged.output_length[order], merged.session[order], parent,
        {name: column[order] for name, column in merged.extra.items()},
    )  # fmt: skip
    if knobs.step_rates is not None:
        from .arrivals import step_arrivals

        rows_in_order.arrival = step_arrivals(knobs.step_rates, rng, len(rows_in_order))
        rows_in_order.arrival[:1] = 0.0  # a trace starts with its first request
    span_ms = model.duration_ms if knobs.step_rates is None else float(rows_in_order.arrival[-1])
    in_span = model.rows * len(parts) if knobs.step_rates is None else len(rows_in_order)
    return _final(
        rows_in_order,
        model,
        knobs,
        first_ms=float(rows_in_order.arrival[0]),
        unit=_unit(span_ms / in_span, model, knobs),
    )


def _columns(model, drafts: Iterator[Draft], knobs) -> Iterator[Columns]:
    """Chunks of one stream with final block numbers, as columns."""
    first, unit = None, _unit(model.duration_ms / model.rows, model, knobs)
    for draft in drafts:
        first = float(draft.arrival[0]) if first is None else first
        yield _final(draft, model, knobs, first, unit)


def _final(draft: Draft, model, knobs, first_ms, unit) -> Columns:
    times = (draft.arrival - first_ms) / knobs.speedup_ratio
    offsets, blocks, tokens = draft.offsets, draft.blocks, draft.input_length(model.block_size)
    if _tail(model) == "dropped":
        offsets, blocks = _without_tails(draft, model.block_size)
    has_sessions = bool((draft.session >= 0).any())
    return Columns(
        np.round(times / unit) * unit, tokens, knobs.outputs(draft.output_length),
        blocks.astype(np.int64, copy=False), offsets,
        session=draft.session if has_sessions else None, parent=draft.parent if has_sessions else None,
        extra=dict(draft.extra),
    )  # fmt: skip


def _without_tails(draft, block_size):
    """The offsets and blocks of all rows without partial blocks, numbered anew."""
    partial = draft.tail < block_size
    keep = np.ones(len(draft.blocks), dtype=bool)
    keep[draft.offsets[1:][partial] - 1] = False
    return offsets_of(draft.path_blocks - partial), ids.renumber(draft.blocks[keep])[0]


def _unit(gap_ms, model, knobs):
    """The time unit for rounding, in ms: the step of the fitted times, or so small that times stay apart."""
    if knobs.speedup_ratio == 1 and knobs.step_rates is None and model.time_step_ms > 1:
        return float(model.time_step_ms)
    return 1.0 if gap_ms / knobs.speedup_ratio >= COARSE_MS else 1e-3


def _block_count(draft):
    return int(draft.blocks.max(initial=-1)) + 1


def _tail(model):
    return "kept" if model.tail == "unique" else model.tail
