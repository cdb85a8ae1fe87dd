"""earlier_release: the trace shares no requests with an earlier release.

Two releases of the same requests, side by side, reveal what each of them hides. Rows match if their lengths are equal
and their times differ by one common offset. Both traces are rounded like the coarser one; pairs of rows with equal
lengths are counted by the difference of their times, and the most common difference is compared with its neighbours,
which show the matches by chance. Equal lists of ids show a key that was used twice, or ids that were not renumbered.
"""

from __future__ import annotations

import numpy as np

from ..profiles import declared
from ..steps import blocks_in_powers, cached_step, rounded_outputs
from .block_feed import IdNumbers, number_ids
from .evidence import Evidence
from .finding import Finding, failed, not_checked, passed

MAX_MATCHING = 0.05  # share of matching rows beyond chance above which the check fails
SIGMAS = 10.0  # ... and the matches must exceed chance by this many of its standard deviations
EXCESS = 0.5  # ... and by this share of it: arrival rates vary, so some time differences are more common than others
MIN_ROWS = 5  # ... and by this many rows
MIN_BLOCKS = 4  # shorter lists of ids are equal by chance
NEIGHBOURS = 5  # time differences on either side that estimate chance
ROWS = 20_000  # maximum rows of the trace to look for
PAIRS = 1 << 22  # maximum pairs of rows with equal lengths to compare


def check(evidence: Evidence) -> Finding:
    """Look for rows of the earlier release in this one."""
    old, new = evidence.previous, evidence.requests
    if old is None:
        return passed({"compared": False}, "no earlier release was given (--against), so none was compared.")
    if new is None:
        return not_checked("no row is a valid request")
    rules = [
        (profile, trace.block_size)
        for profile, trace in ((evidence.profile, new), (_declared(old.meta), old))
        if profile
    ]
    matching, chance, rows = matching_rows(old, new, rules)
    equal, long = equal_lists(lists(old.hash_ids, old.offsets), _lists_of(evidence))
    figure = {
        "compared": True, "rows": rows, "matching_rows": matching, "expected_by_chance": chance,
        "threshold": MAX_MATCHING, "equal_id_lists": equal, "id_lists": long,
    }  # fmt: skip
    beyond = matching - chance
    is_match = beyond >= max(MIN_ROWS, MAX_MATCHING * rows, EXCESS * chance) and beyond > SIGMAS * np.sqrt(chance)
    if is_match or equal >= max(MIN_ROWS, MAX_MATCHING * long):
        return failed(
            figure,
            f"{matching:,} of {rows:,} rows match the earlier release by lengths and time ({chance:,.0f} by chance), "
            f"{equal:,} by equal lists of ids: an observer can join the two releases.",
            "Release each request once. Other hours of the log, under another key, are another release.",
        )
    return passed(figure, f"{matching:,} of {rows:,} rows match the earlier release, about as many as by chance.")


def matching_rows(old, new, rules) -> tuple[int, float, int]:
    """Rows of `new` that match `old` at the most common time offset, those expected by chance, and rows searched."""
    step = max([1000, *(profile.time_step_ms for profile, _ in rules)])
    keys = [_coarse(trace, rules) for trace in (old, new)]
    order = np.lexsort((old.timestamp, keys[0]))
    sorted_keys, times = keys[0][order], old.timestamp[order]
    rows, first, count = _pairs(sorted_keys, keys[1])
    row = np.repeat(rows, count)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    offset = np.round((new.timestamp[row] - times[np.repeat(first, count) + place]) / step).astype(np.int64)
    if not len(offset):
        return 0, 0.0, len(rows)
    pairs = np.unique(np.stack([offset, row]), axis=1)[0]  # each row counts once for each offset
    offsets, hits = np.unique(pairs, return_counts=True)
    best = int(np.argmax(hits))
    return int(hits[best]), _chance(offsets, hits, best), len(rows)


def _pairs(sorted_keys, keys):
    """Rows to look for, evenly spaced, limited by PAIRS; the first equal key of each, and the number of equal keys."""
    max_rows = ROWS
    while True:
        rows = np.unique(np.linspace(0, len(keys) - 1, min(len(keys), max_rows)).astype(np.int64))
        first = np.searchsorted(sorted_keys, keys[rows], "left")
        count = np.searchsorted(sorted_keys, keys[rows], "right") - first
        if count.sum() <= PAIRS or max_rows == 1:
            return rows, first, count
        max_rows = max(1, int(len(rows) * PAIRS / count.sum() * 0.9))


def equal_lists(theirs: np.ndarray, mine: np.ndarray) -> tuple[int, int]:
    """The number of prompts with the same ids as an earlier one, and the number compared; both from `lists`."""
    return int(np.isin(mine, theirs).sum()), len(mine)


def lists(ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """A hash (uint64) of each prompt's list of ids, for lists of at least MIN_BLOCKS ids.

    Lists of consecutive new ids are left out: they are equal whenever their lengths are.

    >>> len(lists(np.array([0, 1, 2, 3, 0, 1, 2, 9]), np.array([0, 4, 8])))
    1
    """
    from ..._native import numbering

    blocks = np.diff(offsets)
    rows = np.flatnonzero(blocks >= MIN_BLOCKS)
    rows = rows[ids[offsets[rows + 1] - 1] - ids[offsets[rows]] + 1 != blocks[rows]]
    return numbering.hash_rows(ids, offsets)[rows]


def _lists_of(evidence) -> np.ndarray:
    """The hashes of all prompts' lists, with ids numbered by first appearance in time."""
    numbers, hashes = IdNumbers(), [np.empty(0, dtype=np.uint64)]

    def take(blocks):
        number_ids(blocks.columns(), numbers)
        hashes.append(lists(numbers.of(blocks.numbers), blocks.offsets))

    evidence.feed_in_time(take)
    return np.concatenate(hashes)


def _coarse(trace, rules) -> np.ndarray:
    """A number for each row's pair of lengths, rounded by all rules."""
    lengths, outputs = trace.input_length, trace.output_length
    for profile, block_size in rules:
        step = cached_step(profile.round_input, block_size)
        lengths = -(-lengths // step) * step
        if profile.round_input == "pow2":
            lengths = blocks_in_powers(lengths // step) * step
        outputs = rounded_outputs(outputs, profile.round_output)
    return lengths * (1 << 31) + outputs


def _chance(offsets, hits, best) -> float:
    """The mean number of matches at the differences on either side of the most common one."""
    near = np.abs(offsets - offsets[best])
    beside = (near > 1) & (
        near <= NEIGHBOURS + 1
    )  # the next difference has rows whose times were rounded the other way
    return float(hits[beside].sum() / (2 * NEIGHBOURS))


def _declared(meta):
    return declared(meta) if isinstance(meta.get("profile"), str) else None
