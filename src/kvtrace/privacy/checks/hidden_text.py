"""hidden_text: the bytes hold no words but fields and types; no hidden text was found in lengths, times and turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...formats.seen_words import Words
from ...trace.unknown import known_outputs
from ..allowed_values import TYPES
from ..steps import durations_of
from .evidence import Evidence
from .fields import ALLOWED
from .finding import Finding, failed, passed, warned

REMEDY = "Make the trace with `kvtrace anonymize --profile standard`; it writes no other words."
MAX_INPUT, MAX_OUTPUT = 1 << 24, 1 << 20  # tokens; no service has longer ones
TEXT = np.zeros(256, dtype=bool)  # byte -> whether plain text has it
TEXT[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,;:!?'()-@/_\n"]] = True
SHARE = 0.9  # of the numbers that spell text
DISTINCT = 5  # different numbers
MIN_LETTERS, MIN_SPACES, MIN_ROWS = 0.6, 0.08, 16  # a number a letter
WRONG_TURNS, MIN_TURNS = 0.1, 10
MIN_TYPES, EVEN = 5, 0.85  # kinds of requests, and their entropy as a share of the greatest one


def check(evidence: Evidence) -> Finding:
    """Look for text in the bytes of numbers, and for numbers and turns that no service has."""
    columns = evidence.columns
    marks = [
        {"field": name, "kind": "bytes that encode text"}
        for name, values in _numbers(evidence)
        if len(values) and spells_text(values)
    ]
    if (columns.input_length > MAX_INPUT).any():
        marks.append({"field": "input_length", "kind": "lengths that no service has"})
    if (columns.output_length > MAX_OUTPUT).any():
        marks.append({"field": "output_length", "kind": "lengths that no service has"})
    if _even_types(evidence):
        marks.append({"field": "type", "kind": "types that are as frequent as letters of a code"})
    if _odd_turns(evidence):
        marks.append({"field": "turn", "kind": "turns that no conversations have"})
    figure: dict[str, Any] = {"marks": marks, "unknown_words": (unknown := _unknown_words(evidence))}
    if unknown:
        words = "1 word that is" if unknown == 1 else f"{unknown:,} words that are"
        return failed(figure, f"the rows hold {words} neither a field nor a request type.", REMEDY)
    if not marks:
        return passed(figure, "no hidden text was found in lengths, times and turns.")
    listed = "; ".join(f"{mark['field']}: {mark['kind']}" for mark in marks)
    remedy = "Compare the trace with its log; release it again with --round-input block --round-output pow2."
    return warned(figure, f"{listed}.", remedy)


def _unknown_words(evidence: Evidence) -> int:
    """The number of distinct words in the bytes of JSON rows that no trace has. Parquet is compared byte by byte."""
    allowed = Words()  # `e2e_ms` has the word `e_ms`
    allowed.write(" ".join((*ALLOWED.get(evidence.read_result.format, ()), *TYPES, "true", "false", "null")).encode())
    return 0 if evidence.read_result.format == "parquet" else len(evidence.source.seen.words - allowed.words)


def spells_text(values: np.ndarray) -> bool:
    """Whether the bytes of most numbers are letters, digits and spaces.

    >>> spells_text(np.frombuffer(b"the patient has a fever", dtype=np.uint8)[:21].astype(np.int64))
    True
    >>> spells_text(np.array([int.from_bytes(pair) for pair in (b"th", b"e ", b"pa", b"ti", b"en")]))
    True
    >>> spells_text(np.array([120, 700, 8224, 9000, 15000, 30000]))
    False
    """
    large = values[values > 255]
    if len(large) > len(values) // 2:
        return bool(np.mean(_are_text(large)) >= SHARE) and len(np.unique(large)) >= DISTINCT
    small = values[(values >= 0) & (values < 256)]
    if len(small) < max(MIN_ROWS, SHARE * len(values)) or not np.mean(TEXT[small]) >= SHARE:
        return False
    letters, spaces = np.mean((small >= ord("a")) & (small <= ord("z"))), np.mean(small == ord(" "))
    return bool(letters >= MIN_LETTERS and spaces >= MIN_SPACES)


def _are_text(values: np.ndarray) -> np.ndarray:
    """Whether all bytes of each number are text, without its leading zeros."""
    are_text, rest = np.ones(len(values), dtype=bool), values.copy()
    while (left := rest > 0).any():
        are_text &= ~left | TEXT[rest & 255]
        rest >>= 8
    return are_text


def _numbers(evidence: Evidence) -> Iterator[tuple[str, np.ndarray]]:
    """The numbers that a file's maker may choose."""
    columns = evidence.columns
    yield "input_length", columns.input_length
    yield "output_length", columns.output_length[known_outputs(columns)]
    if evidence.block_size:
        yield "input_length", columns.input_length % evidence.block_size
    if (cached := columns.cached_tokens) is not None:
        size = evidence.block_size or 1
        for values in (cached, cached // size, cached % size):
            yield "cached_tokens", values[cached >= 0]
    if np.isfinite(columns.timestamp).all() and np.ptp(columns.timestamp) < 2**52:
        step = max(1, evidence.profile.time_step_ms)
        yield "timestamp", (np.diff(columns.timestamp) // step).astype(np.int64)
        yield from _durations(columns, step)
    if (turn := _turns(evidence)) is not None:
        yield "turn", turn[turn >= 0]


def _durations(columns, step: int) -> Iterator[tuple[str, np.ndarray]]:
    """Service times, delays and other measured times, in steps."""
    waits = columns.dependencies
    delays = {} if waits is None else {"delay_ms": waits.delay_ms}
    for name, values in (durations_of(columns) | delays).items():
        measured = values[np.isfinite(values) & (np.abs(values) < 2**52)]
        yield name, (measured // step).astype(np.int64)


def _turns(evidence: Evidence) -> np.ndarray | None:
    """Request -> turn, -1 = unknown."""
    values = evidence.fields.get("turn")
    if values is None:
        return None
    turns = [value if type(value) is int and 0 <= value < 2**31 else -1 for value in values.tolist()]
    return np.array(turns, dtype=np.int64)


def _even_types(evidence: Evidence) -> bool:
    """Whether many request types are almost equally frequent: those of a service are not."""
    values = evidence.fields.get("type")
    if values is None or values.dtype != object:
        return False
    count = np.array(list(Counter(value for value in values.tolist() if type(value) is str).values()))
    if len(count) < MIN_TYPES or count.sum() < 2 * MIN_ROWS:
        return False
    share = count / count.sum()
    return bool(-(share * np.log2(share)).sum() >= EVEN * np.log2(len(count)))


def _odd_turns(evidence: Evidence) -> bool:
    """Whether turns do not grow along the links of conversations, or later turns are the more frequent ones."""
    turn, parent = _turns(evidence), evidence.columns.parent
    if turn is None:
        return False
    if parent is not None:
        row = np.flatnonzero((parent >= 0) & (parent < len(turn)) & (turn >= 0))
        wrong = int((turn[row] <= turn[parent[row]]).sum())
        if wrong >= max(3, WRONG_TURNS * len(row)):
            return True
    number, count = np.unique(turn[turn > 0], return_counts=True)  # sparse: one turn may be any number
    before = np.where(
        np.diff(number, prepend=0) == 1, np.concatenate([[0], count[:-1]]), 0
    )  # requests of the turn before
    more = int(np.maximum(count - before, 0)[number > 1].sum())
    return more >= max(MIN_TURNS, WRONG_TURNS * count.sum())
