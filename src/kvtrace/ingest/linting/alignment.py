"""Align two prompts: the chunks that both have in the same order, and the spans between in which they differ."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from .chunks import BLANK

LARGE = 1 << 25  # cells of a comparison; above, frequent chunks are left out of it (difflib's autojunk)


class Span(NamedTuple):
    """A place where two prompts differ, and the chunks after it that they share again."""

    a0: int  # the earlier prompt's chunks a0:a1
    a1: int
    b0: int  # became the later prompt's chunks b0:b1
    b1: int
    end: int  # chunks b1:end of the later prompt are in the earlier one, too


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """The number of leading chunks that two prompts share."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


def spans(a: np.ndarray, b: np.ndarray, keys: np.ndarray) -> list[Span]:
    """The spans in which two prompts differ, in order.

    Args:
        a, b: chunks of the earlier and the later prompt.
        keys: chunk -> key; chunks with equal keys are aligned, and differ in white space only.

    >>> keys = np.arange(9)
    >>> spans(np.array([1, 2, 3, 4, 5]), np.array([1, 7, 3, 4, 5, 6]), keys)
    [Span(a0=1, a1=2, b0=1, b1=2, end=5), Span(a0=5, a1=5, b0=5, b1=6, end=6)]
    """
    start = common_prefix(a, b)
    differing: list[Span] = []
    at_a = at_b = start
    for i, j, size in [*_blocks(a, b, keys, start), (len(a), len(b), 0)]:
        same = a[i : i + size] == b[j : j + size]
        if at_a < i or at_b < j:
            differing.append(Span(at_a, i, at_b, j, j))
        for step in np.flatnonzero(~same).tolist():  # equal but for white space
            _extend_last(differing, j + step)
            differing.append(Span(i + step, i + step + 1, j + step, j + step + 1, j + step + 1))
        _extend_last(differing, j + size)
        at_a, at_b = i + size, j + size
    return differing


def _extend_last(differing: list[Span], end: int) -> None:
    """Let the chunks after the last span, which both prompts have, reach `end`."""
    if differing and differing[-1].end < end:
        differing[-1] = differing[-1]._replace(end=end)


def _blocks(a: np.ndarray, b: np.ndarray, keys: np.ndarray, start: int) -> list[tuple[int, int, int]]:
    """(place in a, place in b, length) of runs of chunks with equal keys, after the common prefix."""
    places_a, places_b = _worded(a, keys, start), _worded(b, keys, start)
    keys_a, keys_b = keys[a[places_a]], keys[b[places_b]]
    size = min(len(keys_a), len(keys_b))
    differ = np.flatnonzero(keys_a[::-1][:size] != keys_b[::-1][:size])
    tail = int(differ[0]) if len(differ) else size  # the common suffix
    head_a, head_b = len(keys_a) - tail, len(keys_b) - tail
    matcher = SequenceMatcher(
        None, keys_a[:head_a].tolist(), keys_b[:head_b].tolist(), autojunk=head_a * head_b > LARGE
    )
    pairs = [(i + step, j + step) for i, j, n in matcher.get_matching_blocks() for step in range(n)]
    pairs += [(head_a + step, head_b + step) for step in range(tail)]
    blocks: list[tuple[int, int, int]] = []
    for i, j in pairs:
        at_a, at_b = int(places_a[i]), int(places_b[j])
        if blocks and blocks[-1][0] + blocks[-1][2] == at_a and blocks[-1][1] + blocks[-1][2] == at_b:
            blocks[-1] = (blocks[-1][0], blocks[-1][1], blocks[-1][2] + 1)
        else:
            blocks.append((at_a, at_b, 1))
    return blocks


def _worded(chunks: np.ndarray, keys: np.ndarray, start: int) -> np.ndarray:
    """The places of the chunks from `start` that hold more than white space."""
    return start + np.flatnonzero(keys[chunks[start:]] != BLANK)
