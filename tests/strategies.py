"""Random traces for laws: forests, with or without tails, sessions and outputs."""

import numpy as np
from hypothesis import strategies as st

from kvtrace.trace.columns import MEASURED, Columns, replace_columns
from kvtrace.trace.dependencies import RELATIONS, TRIGGERS, Dependencies
from kvtrace.trace.trace import Trace
from kvtrace.trace.unknown import UNKNOWN_LENGTH

paths = st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=12)


@st.composite
def traces(draw, outputs: bool | None = None, min_block_size: int = 1, unknown_outputs: bool = False):
    """A trace of random prompts over a small alphabet, so that they share prefixes; chained by construction.

    With `unknown_outputs`, half of the traces have some outputs of unknown length, or all.
    """
    block_size = draw(st.integers(min_block_size, 5))
    prompts = draw(paths)
    tails = [draw(st.integers(0, block_size - 1)) for _ in prompts]
    with_outputs = draw(st.booleans()) if outputs is None else outputs
    shares = [[False], [False], [True, False], [True]] if unknown_outputs else [[False]]
    is_unknown = st.sampled_from(draw(st.sampled_from(shares)))
    number: dict = {}

    def blocks(path, tail, first=0):
        """Ids of a path's full blocks from `first` on, and of its tail: one id a distinct prefix."""
        ids = [number.setdefault((tuple(path[: i + 1]), block_size), len(number)) for i in range(len(path))]
        if tail:
            ids.append(number.setdefault((tuple(path), tail), len(number)))
        return ids[first:]

    hash_ids, output_ids, lengths, output_lengths, output_blocks = [], [], [], [], []
    for path, tail in zip(prompts, tails, strict=True):
        hash_ids.append(blocks(path, tail))
        lengths.append(len(path) * block_size + tail)
        grown = draw(st.integers(0, 3 * block_size))
        grown = UNKNOWN_LENGTH if draw(is_unknown) else grown
        output_lengths.append(grown)
        whole, rest = divmod(lengths[-1] + grown, block_size)
        longer = path + [9] * (whole - len(path))
        if with_outputs and grown > 0:
            output_ids.append(blocks(longer, rest, first=len(path)))
        else:
            output_ids.append([])
        output_blocks.append(len(output_ids[-1]))
    gaps = draw(st.lists(st.integers(0, 5), min_size=len(prompts), max_size=len(prompts)))
    columns = Columns(
        np.cumsum(gaps).astype(float),
        np.array(lengths),
        np.array(output_lengths),
        np.array([i for ids in hash_ids for i in ids], dtype=np.int64),
        np.concatenate([[0], np.cumsum([len(ids) for ids in hash_ids])]),
    )
    if with_outputs:
        columns.output_ids = np.array([i for ids in output_ids for i in ids], dtype=np.int64)
        columns.output_offsets = np.concatenate([[0], np.cumsum(output_blocks)])
    if draw(st.booleans()):
        _add_sessions(draw, columns)
    return Trace.from_columns(columns, block_size=block_size)


@st.composite
def waiting_traces(draw, **options):
    """A trace of `traces` whose requests wait for up to three earlier ones; some service times are unknown."""
    trace = draw(traces(**options))
    waits = [
        [
            (draw(st.integers(0, row - 1)), draw(st.sampled_from(TRIGGERS)), draw(st.sampled_from(RELATIONS)),
             draw(st.sampled_from([0.0, 0.125, 7.0, 1e6])))
            for _ in range(draw(st.integers(0, 3)) if row else 0)
        ]
        for row in range(len(trace))
    ]  # fmt: skip
    service = draw(st.lists(st.sampled_from([np.nan, 0.0, 2.5]), min_size=len(trace), max_size=len(trace)))
    agent = draw(st.lists(st.integers(0, 2), min_size=len(trace), max_size=len(trace)))
    columns = replace_columns(trace, dependencies=Dependencies.of(waits), service_ms=service)
    columns.extra = {"agent": np.array(agent, dtype=np.int64)}
    return Trace.from_columns(columns, block_size=trace.block_size)


@st.composite
def measured_traces(draw, **options):
    """A trace of `traces` with some of the measured columns; some numbers are unknown, at least one is known."""
    trace = draw(traces(**options))
    rows, columns = len(trace), replace_columns(trace)
    for name in draw(st.sets(st.sampled_from(list(MEASURED)))):
        if name == "cached_tokens":
            values = [draw(st.integers(-1, int(tokens))) for tokens in trace.input_length]
        else:
            number = st.sampled_from([np.nan, 0.0, 0.1, 2.5, 7.0, 123456.789, 1e15])
            values = draw(st.lists(number, min_size=rows, max_size=rows))
        values[draw(st.integers(0, rows - 1))] = 0
        setattr(columns, name, np.array(values, dtype=MEASURED[name].dtype))
    return Trace.from_columns(columns, block_size=trace.block_size)


def _add_sessions(draw, columns):
    rows = len(columns)
    columns.session = np.array(draw(st.lists(st.integers(-1, 3), min_size=rows, max_size=rows)))
    columns.parent = np.full(rows, -1)
    for row in range(rows):
        earlier = np.flatnonzero((columns.session[:row] == columns.session[row]) & (columns.session[row] >= 0))
        if len(earlier):
            columns.parent[row] = earlier[-1]
