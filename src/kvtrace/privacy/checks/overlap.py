"""Check 12: two releases of the same requests can be laid side by side, and what each hides is then seen.

Rows are the same where lengths are equal and their times differ by one and the same offset. Both traces are rounded as
the coarser of the two was; pairs of rows with equal lengths are counted by the difference of their times, and the
commonest difference against those beside it, which is what chance gives. Equal lists of ids are a key used twice, or
numbering that was not done anew.
"""

from __future__ import annotations

import numpy as np

from ..profiles import declared
from .evidence import Evidence, see
from .finding import Finding, failed, not_made, passed
from .mix import of_rows
from .numbers import Numbers
from .source import Piece

MOST = 0.05  # share of rows found again, beyond chance, from which on the check fails
SIGMAS = 10.0  # how far beyond chance, in its standard deviations
EXCESS = 0.5  # and how far in shares of it: rates rise and fall, so that some differences of times are commoner
LEAST = 5  # rows
LONG = 4  # blocks: shorter lists of ids are equal by chance
NEIGHBOURS = 5  # differences on either side that tell what chance gives
ROWS = 20_000  # of the trace that are looked for, at most
PAIRS = 1 << 22  # pairs of rows with equal lengths that are looked at, at most


def check(there: Evidence) -> Finding:
    """Rows of the earlier release that are in this one."""
    old, new = there.previous, there.requests
    if old is None:
        return passed({"compared": False}, "nothing was compared: no earlier release was given (--against).")
    if new is None:
        return not_made("its rows make no trace")
    rules = [
        (profile, trace.block_size) for profile, trace in ((there.profile, new), (_declared(old.meta), old)) if profile
    ]
    found, chance, rows = found_again(old, new, rules)
    equal, long = equal_lists(lists(old.hash_ids, old.offsets), _lists_of(there))
    figure = {
        "compared": True, "rows": rows, "found_again": found, "by_chance": chance, "threshold": MOST,
        "equal_id_lists": equal, "id_lists": long,
    }  # fmt: skip
    beyond = found - chance
    again = beyond >= max(LEAST, MOST * rows, EXCESS * chance) and beyond > SIGMAS * np.sqrt(chance)
    if again or equal >= max(LEAST, MOST * long):
        return failed(
            figure,
            f"{found:,} of {rows:,} rows are found again in the earlier release by lengths and time ({chance:,.0f} by "
            f"chance), {equal:,} by equal lists of ids: the two can be laid side by side.",
            "Release requests once; other hours of the log, under another key, are another release.",
        )
    return passed(
        figure, f"{found:,} of {rows:,} rows are found again in the earlier release, about what chance gives."
    )


def found_again(old, new, rules) -> tuple[int, float, int]:
    """Rows of `new` with one of `old` at the commonest offset, how many chance gives, and how many were looked for."""
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
    pairs = np.unique(np.stack([offset, row]), axis=1)[0]  # a row counts once an offset
    offsets, hits = np.unique(pairs, return_counts=True)
    best = int(np.argmax(hits))
    return int(hits[best]), _beside(offsets, hits, best), len(rows)


def _pairs(sorted_keys, keys):
    """Rows to look for, as many as the pairs allow, evenly over the trace; where their equals begin, and how many."""
    wanted = ROWS
    while True:
        rows = np.unique(np.linspace(0, len(keys) - 1, min(len(keys), wanted)).astype(np.int64))
        first = np.searchsorted(sorted_keys, keys[rows], "left")
        count = np.searchsorted(sorted_keys, keys[rows], "right") - first
        if count.sum() <= PAIRS or wanted == 1:
            return rows, first, count
        wanted = max(1, int(len(rows) * PAIRS / count.sum() * 0.9))


def equal_lists(theirs: np.ndarray, mine: np.ndarray) -> tuple[int, int]:
    """How many prompts have the very ids of an earlier one, and how many could have; both by the numbers of `lists`."""
    return int(np.isin(mine, theirs).sum()), len(mine)


def lists(ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """A number (uint64) for each prompt's list of ids that is of LONG blocks or more, and no mere run of new numbers.

    Such runs are equal wherever lengths are.

    >>> len(lists(np.array([0, 1, 2, 3, 0, 1, 2, 9]), np.array([0, 4, 8])))
    1
    """
    blocks = np.diff(offsets)
    rows = np.flatnonzero(blocks >= LONG)
    rows = rows[ids[offsets[rows + 1] - 1] - ids[offsets[rows]] + 1 != blocks[rows]]
    return of_rows(ids, offsets)[rows]


def _lists_of(there) -> np.ndarray:
    """The lists of all prompts, ids numbered by first appearance in time."""
    numbers, found = Numbers(), [np.empty(0, dtype=np.uint64)]

    def take(blocks):
        see(Piece(0, blocks.numbers, blocks.offsets, blocks.output_numbers, blocks.output_offsets), numbers)
        found.append(lists(numbers.of(blocks.numbers), blocks.offsets))

    there.feed_in_time(take)
    return np.concatenate(found)


def _coarse(trace, rules) -> np.ndarray:
    """A number for each row's lengths, rounded as all rules say."""
    lengths, outputs = trace.input_length, trace.output_length
    for profile, block_size in rules:
        step = {"exact": 1, "block": block_size}.get(profile.round_input, profile.round_input)
        lengths = -(-lengths // step) * step
        if profile.round_output == "pow2":
            outputs = np.where(outputs > 0, 2 ** np.round(np.log2(np.maximum(outputs, 1))).astype(np.int64), 0)
        elif profile.round_output != "exact":
            outputs = -(-outputs // profile.round_output) * profile.round_output
    return lengths * (1 << 31) + outputs


def _beside(offsets, hits, best) -> float:
    """Rows found at the differences on either side of the commonest, on average."""
    near = np.abs(offsets - offsets[best])
    beside = (near > 1) & (near <= NEIGHBOURS + 1)  # the next one holds rows whose times were rounded another way
    return float(hits[beside].sum() / (2 * NEIGHBOURS))


def _declared(meta):
    return declared(meta) if isinstance(meta.get("profile"), str) else None
