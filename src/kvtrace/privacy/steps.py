"""The steps of a release that cost no hits but those of tails, each to what shows less.

docs/privacy/privacy.md says what each is for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.errors import UsageError
from ..trace.columns import Columns, replace_columns
from ..trace.normalise import renumber
from ..trace.trace import Trace
from .allowed_fields import EXTRA, TYPES
from .profiles import Profile

ORDER = ("kept", "unique", "dropped")  # each shows less than the one before


def with_tail(trace: Trace, tail: str) -> Trace:
    """The trace with its tail blocks kept, unique or dropped; what shows less already stays as it is.

    >>> from kvtrace.trace.columns import Columns
    >>> columns = Columns([0, 0], [3, 3], [1, 1], [0, 1, 0, 1], [0, 2, 4])
    >>> with_tail(Trace.from_columns(columns, block_size=2), "unique").hash_ids
    array([0, 1, 0, 2])
    """
    if ORDER.index(tail) <= ORDER.index(trace.tail):
        return trace
    columns = tails_of(trace, trace.tail, tail, trace.block_size)
    return Trace.from_columns(columns, block_size=trace.block_size, tail=tail, meta=trace.meta)


def tails_of(columns: Columns, tail: str, wanted: str, block_size: int) -> Columns:
    """Columns in any order, numbered anew, after their tails were made unique or left out."""
    if ORDER.index(wanted) <= ORDER.index(tail):
        return columns
    both = columns.input_length + columns.output_length
    parts = [_part(columns.hash_ids, columns.offsets, columns.input_length % block_size)]
    if columns.output_ids is not None:
        parts.append(_part(columns.output_ids, columns.output_offsets, both % block_size))
    change = _drop if wanted == "dropped" else _number_apart
    parts = change(parts, 1 + max((int(ids.max(initial=-1)) for ids, _, _ in parts), default=-1))
    changed: dict[str, Any] = dict(hash_ids=parts[0][0], offsets=parts[0][1])
    if len(parts) > 1:
        changed |= dict(output_ids=parts[1][0], output_offsets=parts[1][1])
    changed_columns = replace_columns(columns, **changed)
    renumber(changed_columns)
    return changed_columns


def coarsened(columns: Columns, profile: Profile, block_size: int, tail: str) -> tuple[Columns, list[str]]:
    """The columns of a trace, or of some of its rows, with what costs no hits done to lengths, times, links and fields.

    Also the names of the extra columns that were left out.
    """
    columns = round_lengths(columns, profile.round_input, profile.round_output, block_size=block_size, tail=tail)
    columns = step_times(columns, profile.time_step_ms)
    if profile.drop_sessions:
        columns = drop_sessions(columns)
    return keep_allowed(columns) if profile.coarsens else (columns, [])


def round_lengths(
    columns: Columns, round_input: str | int, round_output: str | int, *, block_size: int, tail: str
) -> Columns:
    """The columns with lengths rounded as a profile says; blocks of outputs, which would show them, are left out.

    >>> from kvtrace.trace.building import toy
    >>> round_lengths(toy("0 1"), "exact", 8, block_size=1, tail="kept").output_length
    array([8])
    """
    if (round_input, round_output) == ("exact", "exact"):
        return columns
    return replace_columns(
        columns,
        input_length=_rounded_input(columns.input_length, round_input, block_size, tail),
        output_length=_rounded_output(columns.output_length, round_output),
        output_ids=None,
        output_offsets=None,
    )


def step_times(columns: Columns, step_ms: int) -> Columns:
    """The columns with times rounded down to whole steps: who came when is told to the step, who came first to the row.

    >>> from kvtrace.trace.building import toy
    >>> step_times(toy("0", "1", "2", gap_ms=700.0), 1000).timestamp
    array([   0.,    0., 1000.])
    """
    return columns if step_ms <= 1 else replace_columns(columns, timestamp=columns.timestamp // step_ms * step_ms)


def drop_sessions(columns: Columns) -> Columns:
    """The columns without anything that links the requests of a conversation, other than their blocks."""
    extra = {name: values for name, values in columns.extra.items() if name != "turn"}
    return replace_columns(columns, session=None, parent=None, extra=extra)


def keep_allowed(columns: Columns) -> tuple[Columns, list[str]]:
    """The columns with no extra ones but those of a closed list, and the names of those left out."""
    extra = {name: values for name, values in columns.extra.items() if name in EXTRA}
    if "type" in extra:
        known = np.isin(extra["type"].astype(str), TYPES)
        extra["type"] = np.where(known, extra["type"], "other").astype(object)
    if "turn" in extra and extra["turn"].dtype.kind not in "iu":
        del extra["turn"]
    return replace_columns(columns, extra=extra), [name for name in columns.extra if name not in extra]


def _part(ids, offsets, over):
    """Ids, their offsets, and where among them partial blocks are."""
    held = np.flatnonzero((over > 0) & (np.diff(offsets) > 0))
    return ids, offsets, offsets[1:][held] - 1


def _number_apart(parts, distinct):
    done = []
    for ids, offsets, tails in parts:
        ids = ids.copy()
        ids[tails] = distinct + np.arange(len(tails))
        done.append((ids, offsets))
        distinct += len(tails)
    return done


def _drop(parts, _):
    done = []
    for ids, offsets, tails in parts:
        kept = np.ones(len(ids), dtype=bool)
        kept[tails] = False
        done.append((ids[kept], np.concatenate([[0], np.cumsum(kept)])[offsets]))
    return done


def _rounded_input(length, to, block_size, tail):
    if to == "exact":
        return length
    step = block_size if to == "block" else int(to)
    if block_size % step:
        raise UsageError(
            f"input lengths can't be rounded to {step:,} tokens: prompts would not have the blocks they have. It is "
            f"`block`, or divides the block size of {block_size:,}."
        )
    if tail == "dropped":  # up to a block would be one more
        return np.maximum(length // step * step, np.minimum(1, length))
    return -(-length // step) * step


def _rounded_output(length, to):
    if to == "exact":
        return length
    if to != "pow2":
        return -(-length // int(to)) * int(to)
    return np.where(length > 0, 2 ** np.round(np.log2(np.maximum(length, 1))).astype(np.int64), 0)
