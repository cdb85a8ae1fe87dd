"""Fit the attach model: one walk over the requests records how each attaches to earlier requests; then bins.

Recency: where each request finds its blocks in the recency list, in two segments, and the hits at a few capacities.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError
from .._base.step_work import report_work
from .._native import growth
from .._native.growth import CAPACITIES
from ..analysis.reuse import Segments, find_segments
from ..trace.building import with_whole_prompts
from ..trace.columns import require_trace
from ..trace.domains import in_domains
from ..trace.session_trees import previous_turn
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, PREFIXES, require_known
from .arrival_times import Pace, stratified_sample
from .attach_model import COLUMNS, TIME_STEPS_MS, Model
from .bins import Bins
from .fidelity import figures_of

WINDOW = 100  # requests whose records are drawn together; slower drift is kept
MAX_RECORDS = 100_000
TAIL_BINS = 16
GROUPS, GROUP_ROWS = 32, 50  # groups of input lengths that share output lengths: largest number, smallest size
MAX_TYPES = 64
MIN_TIMES = 10  # different times that a coarser step needs


def fit(trace: Trace) -> Model:
    """Fit the attach model to a trace. `sample` draws traces of any size from it.

    Raises:
        InputError: The trace has no prompts, or its ids do not form a forest.
        UnknownError: Shared prefixes or output lengths are unknown.

    >>> from kvtrace.trace.building import toy
    >>> model = fit(toy("0 1 2", "0 1 3", "0 1 3 4"))
    >>> model.bins["hits"].low[model.records["hits"]].tolist()
    [0, 2, 3]
    """
    require_trace(trace)
    require_known(trace, trace.meta, "the model of a trace", PREFIXES, OUTPUTS)
    trace = in_domains(with_whole_prompts(trace)).require_chained()
    if not trace.input_length.any():
        raise InputError("the trace has no prompts, so there is nothing to fit.")
    length = np.maximum(trace.input_length, 1)  # every path has at least one block
    recency = recency_of(trace)
    values, types = _values(trace, length, recency)
    bins = _bins(values, trace)
    records = {name: bins[name].codes(values[name]) if name in bins else values[name] for name in COLUMNS}
    report_work(1, 3)
    rows, starts, window_rows = _windows(records, len(trace))
    report_work(1, 3)
    edges, outputs = _outputs(length, bins["output"].codes(trace.output_length), values["type"], max(1, len(types)))
    return Model(
        rows=len(trace), block_size=trace.block_size, tail=trace.tail, duration_ms=float(trace.timestamp[-1]),
        records={name: column[rows] for name, column in records.items()}, starts=starts, window_rows=window_rows,
        bins=bins, edges=edges, outputs=outputs, pace=Pace.of(trace.timestamp), types=types,
        working_set=trace.distinct, correction=recency.correction, figures=figures_of(trace),
        time_step_ms=time_step(trace.timestamp),
    )  # fmt: skip


def _values(trace, length, recency):
    """The record of each request before binning, and the types."""
    size = trace.block_size
    blocks = -(-length // size)
    unseen = blocks - trace.prompt_blocks  # 1 where the partial block was dropped
    hits, kind, continues = growth.walk(trace.hash_ids, trace.offsets, unseen, _parents(trace), trace.distinct)
    partial = length % size > 0
    at_tail = (hits == blocks) & partial  # the partial block is hit too: its kind is one of three
    kind = np.where(at_tail, growth.FULL_KINDS + kind % 3, kind)
    types, which = _types(trace)
    return {
        "hits": hits, "new": blocks - hits, "distance": recency.distance, "fork": recency.fork,
        "fork_distance": recency.fork_distance, "kind": kind.astype(np.int64),
        "tail": np.where(partial, length % size, size) - 1, "continues": continues.astype(np.int64), "type": which,
    }, types  # fmt: skip


def _parents(trace):
    """Row -> row of the previous turn; None if the trace has no sessions."""
    return previous_turn(trace.session) if trace.parent is None and trace.session is not None else trace.parent


def time_step(timestamp: np.ndarray) -> int:
    """The step of coarsened times, in ms: an hour, a minute, a second; 1 if times are finer, or too few to tell."""
    if len(np.unique(timestamp)) >= MIN_TIMES:
        for step in TIME_STEPS_MS:
            if not (timestamp % step).any():
                return step
    return 1


def _types(trace):
    """The types, and the type of each request; no types if there are too many."""
    column = trace.extra.get("type")
    if column is not None and all(type(value) in (str, int) for value in set(column.tolist())):
        types = sorted(set(column.tolist()), key=lambda value: (str(type(value)), value))
        if len(types) <= MAX_TYPES:
            number_of = {value: number for number, value in enumerate(types)}
            return types, np.array([number_of[value] for value in column.tolist()], dtype=np.int64)
    return [], np.zeros(len(trace), dtype=np.int64)


def _bins(values, trace):
    size = trace.block_size
    return {
        **{name: Bins.of(values[name]) for name in ("hits", "new", "distance", "fork", "fork_distance")},
        "tail": Bins.of(values["tail"], width=max(1, size // TAIL_BINS), apart=(size - 1,)),
        "output": Bins.of(trace.output_length),
    }  # fmt: skip


def _windows(records, rows):
    """The rows whose records the model holds, by window; the first record of each window; and its number of requests.

    The records of a window are sorted by value. Above MAX_RECORDS, a stratified sample represents them.
    """
    windows = -(-min(rows, MAX_RECORDS) // WINDOW)
    ends = np.arange(windows + 1) * rows // windows
    max_records = max(WINDOW, MAX_RECORDS // windows)
    window = np.repeat(np.arange(windows), np.diff(ends))
    order = np.lexsort((*(records[name] for name in reversed(COLUMNS)), window))
    rng = np.random.default_rng(0)
    selected = [stratified_sample(order[start:stop], max_records, rng) for start, stop in pairwise(ends)]
    return np.concatenate(selected), offsets_of([len(part) for part in selected]), np.diff(ends)


def _outputs(length, output, which, types):
    """Input lengths that split the requests of a type into groups of equal size; output lengths of each group."""
    rarest = int(np.bincount(which, minlength=types).min())
    groups = int(np.clip(rarest // GROUP_ROWS, 1, GROUPS))
    edges, outputs = np.zeros((types, groups - 1), dtype=np.int64), []
    for kind in range(types):
        of_kind = np.flatnonzero(which == kind)
        edges[kind] = np.quantile(length[of_kind], np.arange(1, groups) / groups)
        group = np.searchsorted(edges[kind], length[of_kind], side="right")
        for number in range(groups):
            codes, counts = np.unique(output[of_kind[group == number]], return_counts=True)
            outputs.append(dict(zip(codes.tolist(), counts.tolist(), strict=True)))
    return edges, outputs


# shares of the working set; those of figures.py are among them
GRID = np.array([0.002, 0.004, 0.007, 0.012, 0.02, 0.03, 0.045, 0.07, 0.1, 0.14, 0.2, 0.28, 0.38, 0.5, 0.7, 1])


class RecencyRecords(NamedTuple):
    """What each request finds in the recency list: its deepest segment, and the segments before it as one."""

    distance: np.ndarray  # row -> distinct blocks used since the last use of its deepest hit block
    fork: np.ndarray  # row -> hit blocks before its deepest segment, which later requests used too
    fork_distance: np.ndarray  # row -> distinct blocks used since the last use of these; 0 without them
    correction: np.ndarray  # capacity of the grid -> hits of all segments / hits of the two


def recency_of(trace: Trace) -> RecencyRecords:
    """Find each request's hit blocks in the recency list.

    >>> from kvtrace.trace.building import toy
    >>> records = recency_of(toy("0 1", "2", "0 3", "0 1"))
    >>> records.distance.tolist(), records.fork.tolist(), records.fork_distance.tolist()
    ([0, 0, 1, 3], [0, 0, 0, 1], [0, 0, 0, 0])
    """
    segments = find_segments(trace)
    distance, fork, fork_distance = (np.zeros(len(trace), dtype=np.int64) for _ in range(3))
    last = np.flatnonzero(np.diff(segments.row, append=-1))  # the deepest segment of each row that hits
    row = segments.row[last]
    hits = np.bincount(segments.row, weights=segments.blocks, minlength=len(trace)).astype(np.int64)
    distance[row] = segments.rank[last] - 1
    fork[row] = hits[row] - segments.blocks[last]
    several = last[fork[row] > 0]
    fork_distance[segments.row[several]] = segments.rank[several - 1] - 1
    correction = _correction(trace, segments, hits, distance, fork, fork_distance)
    return RecencyRecords(distance, fork, fork_distance, correction)


def capacity_grid(working_set: int) -> np.ndarray:
    """The capacities in blocks at which the hits of a sample are compared with those of its trace.

    >>> capacity_grid(1000)[[0, -1]].tolist()
    [2.0, 1000.0]
    """
    return np.maximum(GRID * max(working_set, CAPACITIES), np.arange(1.0, CAPACITIES + 1))


def _correction(trace, segments: Segments, hits, distance, fork, fork_distance):
    """Hits of LRU at each capacity / hits if each path were two segments."""
    grid = capacity_grid(trace.distinct)
    exact = np.array([np.clip(c - segments.rank + 1, 0, segments.blocks).sum() for c in grid])
    two = np.array([(np.clip(c - distance, 0, hits - fork) + np.clip(c - fork_distance, 0, fork)).sum() for c in grid])
    return np.round(np.divide(exact, two, out=np.ones(CAPACITIES), where=two > 0), 4)
