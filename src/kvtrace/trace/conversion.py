"""Convert a trace: select requests, fold blocks, change the speed. Each step takes a Trace and returns a Trace.

`convert` applies the steps in a fixed order: chain, window, sample (sessions, then rows), limit, assume outputs, fold,
speed up. Selection comes before folding: the result is the same, and there is less to fold.

Folding gives the same trace in blocks that are larger by a whole factor. It is exact on a chained trace, where an id
identifies a block and its whole prefix: each group of blocks, also a partial group at the end of a prompt, takes its
LAST id. Splitting blocks would not be exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import UsageError
from .._base.options import record_of
from .columns import STATED, replace_columns, require_trace
from .conversion_options import ConvertOptions
from .invariants import MAX_BLOCK_SIZE, MAX_LENGTH, expected_blocks, expected_output_blocks
from .meta import ConvertedSection, merge, without_claims, without_stale
from .normalise import normalise
from .trace import Trace
from .unknown import known_outputs


def convert(
    trace: Trace,
    *,
    chain: bool = False,
    start_ms: float = 0.0,
    stop_ms: float = np.inf,
    session_share: float = 1.0,
    row_share: float = 1.0,
    seed: int = 0,
    limit: int | None = None,
    assume_output: int | None = None,
    factor: int = 1,
    ratio: float = 1.0,
) -> Trace:
    """Convert a trace: re-chain, select, assume outputs, fold and speed up, in this order.

    Args:
        trace: The trace.
        chain: Re-chain ids that do not form a forest.
        start_ms: Keep requests that arrive at this time or later.
        stop_ms: Keep requests that arrive before this time.
        session_share: Share of the sessions to draw, each whole: above 0, at most 1.
        row_share: Share of the requests to draw: above 0, at most 1.
        seed: Seed of both draws.
        limit: Number of requests to keep, from the first.
        assume_output: Tokens of each output whose length is unknown.
        factor: Number of blocks that become one.
        ratio: Divide times by this.

    Returns:
        The converted trace.

    Raises:
        UsageError: An argument is out of range, or no request is left.
        InputError: Blocks are folded and the ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> convert(toy("0 1", "0 2", "3 4", gap_ms=100.0), start_ms=100.0, factor=2, ratio=4.0).timestamp
    array([ 0., 25.])
    """
    return converted(trace, record_of(ConvertOptions, locals()))


def converted(trace: Trace, steps: ConvertOptions) -> Trace:
    """As `convert`."""
    require_trace(trace)
    trace = trace.chained() if steps.chain else trace
    if steps.start_ms > 0 or steps.stop_ms != np.inf:
        trace = window(trace, steps.start_ms, steps.stop_ms)
    sessions_rng, rows_rng = np.random.default_rng(steps.seed).spawn(2)
    if steps.session_share != 1:
        trace = sample_sessions(trace, steps.session_share, sessions_rng)
    if steps.row_share != 1:
        trace = sample_rows(trace, steps.row_share, rows_rng)
    trace = trace if steps.limit is None else first(trace, steps.limit)
    trace = trace if steps.assume_output is None else assume_outputs(trace, steps.assume_output)
    trace = trace if steps.factor == 1 else fold(trace, steps.factor)
    return trace if steps.ratio == 1 else speed_up(trace, steps.ratio)


def window(trace: Trace, start_ms: float, stop_ms: float = np.inf) -> Trace:
    """The requests that arrive at start_ms or later, and before stop_ms; UsageError if there are none.

    >>> from kvtrace.trace.building import toy
    >>> len(window(toy("0", "1", "2", gap_ms=100.0), 100.0))
    2
    """
    if not 0 <= start_ms < stop_ms:
        raise UsageError(f"--start must be at least 0 and less than --stop, not {start_ms:,g} and {stop_ms:,g} ms.")
    return _require_requests(trace.window(start_ms, stop_ms), trace, "the window")


def sample_rows(trace: Trace, share: float, rng: np.random.Generator) -> Trace:
    """Draw requests, each with probability `share`; a larger share keeps the same ones and more.

    Args:
        trace: The trace.
        share: Above 0, at most 1.
        rng: Randomness of the draw.

    Raises:
        UsageError: The share is out of range, or no request is left.

    >>> from kvtrace.trace.building import toy
    >>> sample_rows(toy("0", "0 1", "0 2", "0 3"), 0.5, np.random.default_rng(7)).prompt_blocks
    array([2])
    """
    require_trace(trace)
    return _require_requests(trace[rng.random(len(trace)) < _share(share)], trace, "the sample")


def sample_sessions(trace: Trace, share: float, rng: np.random.Generator) -> Trace:
    """Draw sessions, each whole, with probability `share`; a request without a session is a session by itself.

    Args:
        trace: A trace with sessions.
        share: Above 0, at most 1.
        rng: Randomness of the draw.

    Raises:
        UsageError: The trace has no sessions, the share is out of range, or no request is left.

    >>> from kvtrace.trace.columns import Columns
    >>> columns = Columns([0, 1, 2], [1, 1, 1], [1, 1, 1], [0, 1, 0], [0, 1, 2, 3], session=[0, 1, 0])
    >>> trace = Trace.from_columns(columns, block_size=1)
    >>> sample_sessions(trace, 0.5, np.random.default_rng(8)).session
    array([0, 0])
    """
    require_trace(trace)
    if trace.session is None:
        raise UsageError("the trace has no sessions to sample. Sample requests instead: sample_rows, or `--sample`.")
    alone = np.flatnonzero(trace.session < 0)
    session = trace.session.copy()
    session[alone] = trace.session.max() + 1 + np.arange(len(alone))
    is_sampled = rng.random(int(session.max()) + 1 if len(session) else 0) < _share(share)
    return _require_requests(trace[is_sampled[session]], trace, "the sample")


def first(trace: Trace, limit: int) -> Trace:
    """The first `limit` requests.

    >>> from kvtrace.trace.building import toy
    >>> first(toy("0 1", "0 2", "3"), 2).hash_ids
    array([0, 1, 0, 2])
    """
    if limit < 1:
        raise UsageError(f"the limit must be at least 1 request, not {limit:,}.")
    return trace if limit >= len(trace) else trace[:limit]


def assume_outputs(trace: Trace, tokens: int) -> Trace:
    """Give each output of unknown length an assumed one; the trace's `meta` states it.

    Args:
        trace: The trace.
        tokens: The length to assume, at least 0.

    >>> trace = Trace([0, 1], [2, 2], [-1, 5], [0, 1], [0, 1, 2], block_size=2)
    >>> assumed = assume_outputs(trace, 100)
    >>> assumed.output_length, assumed.meta
    (array([100,   5]), {'converted': {'assumed_output': 100}})
    """
    require_trace(trace)
    if not 0 <= tokens <= MAX_LENGTH:
        raise UsageError(f"--assume-output must be from 0 to {MAX_LENGTH:,} tokens, not {tokens:,}.")
    has_length = known_outputs(trace)
    if has_length.all():
        return trace
    columns = replace_columns(trace, output_length=np.where(has_length, trace.output_length, tokens))
    converted: ConvertedSection = {**trace.meta.get("converted", {}), "assumed_output": int(tokens)}
    meta = merge(without_stale(trace.meta), {"converted": converted})
    return Trace(**vars(columns), block_size=trace.block_size, tail=trace.tail, meta=meta)


def speed_up(trace: Trace, ratio: float) -> Trace:
    """Divide the times of a trace by `ratio`; they keep their fractions of a millisecond.

    >>> from kvtrace.trace.building import toy
    >>> speed_up(toy("0", "1", "2", gap_ms=5.0), 4).timestamp
    array([0.  , 1.25, 2.5 ])
    """
    require_trace(trace)
    columns = replace_columns(trace, timestamp=trace.timestamp / checked_ratio(ratio))
    return Trace(**vars(columns), block_size=trace.block_size, tail=trace.tail, meta=trace.meta)


def meta_of(trace: Trace, whole: Trace, *, ratio: float = 1.0, requests: int | None = None) -> dict[str, Any]:
    """The sidecar values of a converted trace: those of the whole without its counts, and the conversion.

    `requests` is the number of written requests, if not all. The share of a sample is not included, because it would
    reveal the size of the whole. Nor is the release profile, because the result was not audited.
    """
    converted: ConvertedSection = {}
    if trace.is_chained and not whole.is_chained:
        converted["chained"] = True
    if whole.block_size != trace.block_size:
        converted["folded_from"] = whole.block_size
    if ratio != 1:
        converted["speedup_ratio"] = ratio
    if (assumed := trace.meta.get("converted", {}).get("assumed_output")) is not None:
        converted["assumed_output"] = assumed
    if (len(trace) if requests is None else requests) != len(whole):
        converted["part"] = True
    return merge(without_claims(without_stale(whole.meta)), {"converted": converted})


# -- helpers -----------------------------------------------------------------------------------------------------


def _share(share: float) -> float:
    if not 0 < share <= 1:
        raise UsageError(f"the share must be above 0 and at most 1, not {share:g}.")
    return share


def checked_ratio(ratio: float) -> float:
    if not 0 < ratio < np.inf:
        raise UsageError(f"--speedup-ratio must be above 0, not {ratio:g}.")
    return ratio


def _require_requests(part: Trace, whole: Trace, what: str) -> Trace:
    if not len(part):
        raise UsageError(f"{what} contains none of the {len(whole):,} requests, which arrive in {_duration(whole)}.")
    return part


def _duration(trace) -> str:
    return f"{trace.timestamp[-1] / 1000:,.3f} s" if len(trace) else "0 s"


def fold(trace: Trace, factor: int) -> Trace:
    """Fold a trace into blocks that are `factor` times as large.

    Tails stay what they were: kept, unique (a full block that becomes a tail gets an id of its own), or dropped. Of
    stated blocks, an incomplete group at the end is dropped.

    Raises:
        UsageError: The factor is not a whole number of 1 or more.
        InputError: The ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> fold(toy("0 1 2", "0 1 2 3", "0 1 4 5"), 2).hash_ids
    array([0, 1, 0, 2, 0, 3])
    """
    require_trace(trace)
    if isinstance(factor, bool) or not isinstance(factor, (int, np.integer)) or factor < 1:
        raise UsageError(f"the fold factor is {factor!r}; it must be a whole number of at least 1.")
    if factor == 1:
        return trace
    if factor * trace.block_size > MAX_BLOCK_SIZE:
        raise UsageError(f"the fold factor is {factor:,}; blocks can have at most {MAX_BLOCK_SIZE:,} tokens.")
    size, columns = trace.block_size * int(factor), replace_columns(trace.require_chained())
    blocks = expected_blocks(trace.input_length, size, trace.tail)
    if trace.tail == STATED:
        blocks = trace.prompt_blocks // int(factor)
    columns.hash_ids, columns.offsets = _last_ids(trace.hash_ids, trace.offsets, blocks, 0, int(factor))
    if trace.output_ids is not None and trace.output_offsets is not None:
        blocks, within = _output_blocks(trace, size, int(factor))
        columns.output_ids, columns.output_offsets = _last_ids(
            trace.output_ids, trace.output_offsets, blocks, within, int(factor)
        )
    if trace.tail == "unique":
        _number_new_tails(columns, trace, size)
    folded, _ = normalise(columns)
    return Trace(**vars(folded), block_size=size, tail=trace.tail, meta=trace.meta)


def _output_blocks(trace, size, factor):
    """Blocks of each output at the larger size, and the smaller blocks in its first one that belong to the prompt.

    A prompt and its output are one chain; the output's blocks start after the prompt's last full block.
    """
    if trace.tail == STATED:
        rest = trace.prompt_blocks % factor + np.diff(trace.output_offsets)
        return rest // factor, trace.prompt_blocks % factor
    expected = expected_output_blocks(trace.input_length, trace.output_length, size, trace.tail)
    blocks = np.where(np.diff(trace.output_offsets) > 0, expected, 0)
    return blocks, trace.full_blocks % factor


def _last_ids(ids, offsets, blocks, within, factor):
    """The last id of each group, and their offsets; `within` blocks of a row's first group are in another column."""
    folded = offsets_of(blocks)
    group = np.arange(folded[-1]) - np.repeat(folded[:-1], blocks)  # reference -> its group in the row, from 0
    last = np.repeat(offsets[:-1] - within, blocks) + (group + 1) * factor - 1
    return ids[np.minimum(last, np.repeat(offsets[1:], blocks) - 1)], folded


def _number_new_tails(columns, trace, size):
    """Give new ids to tail blocks that are full blocks of the smaller size, because other requests may share them."""
    fresh = trace.distinct
    both = trace.input_length + trace.output_length
    for ids, offsets, tokens in (
        (columns.hash_ids, columns.offsets, trace.input_length),
        (columns.output_ids, columns.output_offsets, both),
    ):
        if ids is None:
            continue
        new = (np.diff(offsets) > 0) & (tokens % size != 0) & (tokens % trace.block_size == 0)
        ids[offsets[1:][new] - 1] = fresh + np.arange(new.sum())
        fresh += int(new.sum())
