"""Trace -> Model: one walk over the requests, noting how each attaches to those before it, and then bins."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from .._base.errors import InputError
from .._native import attach
from ..trace.trace import Trace
from .arrivals import Pace, spread
from .bins import Bins
from .model import COLUMNS, Model

WINDOW = 100  # requests whose records are drawn together: what drifts over more is kept
MOST_RECORDS = 100_000
TAIL_BINS = 16
GROUPS, GROUP_ROWS = 32, 200  # of input lengths, within which output lengths are exchanged: at most, and of at least
MOST_TYPES = 64


def fit(trace: Trace) -> Model:
    """Fit the `attach` model to a trace, to `sample` traces of any size from it.

    Raises:
        InputError: The trace has no prompts, or ids that do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> model = fit(toy("0 1 2", "0 1 3", "0 1 3 4"))
    >>> model.bins["hits"].low[model.records["hits"]].tolist()
    [0, 2, 3]
    """
    trace.require_chained()
    if not trace.input_length.any():
        raise InputError("the trace holds no prompts, so there is nothing to fit.")
    length = np.maximum(trace.input_length, 1)  # every path has a block
    values, types = _values(trace, length)
    bins = _bins(values, trace)
    records = {name: bins[name].codes(values[name]) if name in bins else values[name] for name in COLUMNS}
    kept, starts, window_rows = _windows(records, len(trace))
    edges, outputs = _outputs(length, bins["output"].codes(trace.output_length), values["type"], max(1, len(types)))
    return Model(
        rows=len(trace), block_size=trace.block_size, tail=trace.tail, duration_ms=float(trace.timestamp[-1]),
        records={name: column[kept] for name, column in records.items()}, starts=starts, window_rows=window_rows,
        bins=bins, edges=edges, outputs=outputs, pace=Pace.of(trace.timestamp), types=types,
    )  # fmt: skip


def _values(trace, length):
    """Each request's record, not yet in bins, and the types."""
    size = trace.block_size
    blocks = -(-length // size)
    unseen = blocks - trace.prompt_blocks  # 1 where the partial block was dropped
    hits, age, kind, continues = attach.walk(trace.hash_ids, trace.offsets, unseen, _parents(trace), trace.distinct)
    partial = length % size > 0
    at_tail = (hits == blocks) & partial  # the partial block was seen, too: its kind is one of three
    kind = np.where(at_tail, attach.FULL_KINDS + kind % 3, kind)
    types, which = _types(trace)
    return {
        "hits": hits, "new": blocks - hits, "age": age, "kind": kind.astype(np.int64),
        "tail": np.where(partial, length % size, size) - 1, "continues": continues.astype(np.int64), "type": which,
    }, types  # fmt: skip


def _parents(trace):
    """Row -> its previous turn; None where the trace says nothing of sessions."""
    if trace.parent is not None or trace.session is None:
        return trace.parent
    parent = np.full(len(trace), -1, dtype=np.int64)
    order = np.argsort(trace.session, kind="stable")
    same = (np.diff(trace.session[order]) == 0) & (trace.session[order[1:]] >= 0)
    parent[order[1:][same]] = order[:-1][same]
    return parent


def _types(trace):
    """The types of requests, where the trace names a few, and each request's."""
    column = trace.extra.get("type")
    if column is not None and all(type(value) in (str, int) for value in set(column.tolist())):
        found = sorted(set(column.tolist()), key=lambda value: (str(type(value)), value))
        if len(found) <= MOST_TYPES:
            place = {value: number for number, value in enumerate(found)}
            return found, np.array([place[value] for value in column.tolist()], dtype=np.int64)
    return [], np.zeros(len(trace), dtype=np.int64)


def _bins(values, trace):
    size = trace.block_size
    return {
        "hits": Bins.of(values["hits"]), "new": Bins.of(values["new"]), "age": Bins.of(values["age"]),
        "tail": Bins.of(values["tail"], width=max(1, size // TAIL_BINS), apart=(size - 1,)),
        "output": Bins.of(trace.output_length),
    }  # fmt: skip


def _windows(records, rows):
    """The rows whose records are kept, window by window; where each window begins, and the rows that it stands for.

    Within a window records are sorted by what they say. Where there are more than a model holds, one of each so many
    neighbours stands for them.
    """
    windows = -(-min(rows, MOST_RECORDS) // WINDOW)
    ends = np.arange(windows + 1) * rows // windows
    most = max(WINDOW, MOST_RECORDS // windows)
    window = np.repeat(np.arange(windows), np.diff(ends))
    order = np.lexsort((*(records[name] for name in reversed(COLUMNS)), window))
    rng = np.random.default_rng(0)
    kept = [spread(order[start:stop], most, rng) for start, stop in pairwise(ends)]
    return np.concatenate(kept), np.cumsum([0] + [len(part) for part in kept]), np.diff(ends)


def _outputs(length, output, which, types):
    """Input lengths that part each type's requests into groups of equal size, and each group's output lengths."""
    rarest = int(np.bincount(which, minlength=types).min())
    groups = int(np.clip(rarest // GROUP_ROWS, 1, GROUPS))
    edges, outputs = np.zeros((types, groups - 1), dtype=np.int64), []
    for kind in range(types):
        mine = np.flatnonzero(which == kind)
        edges[kind] = np.quantile(length[mine], np.arange(1, groups) / groups)
        group = np.searchsorted(edges[kind], length[mine], side="right")
        for number in range(groups):
            codes, counts = np.unique(output[mine[group == number]], return_counts=True)
            outputs.append(dict(zip(codes.tolist(), counts.tolist(), strict=True)))
    return edges, outputs
