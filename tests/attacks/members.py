"""Attacks on membership: whether a session, a request or a document is in the log behind a release; a trial at a time.

The attacker of a session has a copy of it, and of many others that are surely not in the log. A score is high where the
release has what the session has; the answer is yes if it is higher than the scores of most of these others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.privacy.profiles import PROFILES
from kvtrace.privacy.release_options import Profile
from kvtrace.privacy.releases import release
from kvtrace.privacy.resampling import class_of, reused_blocks
from kvtrace.privacy.steps import rounded_outputs
from kvtrace.privacy.trace_draft import RowBlocks
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace

BLOCK, SYSTEM = 16, 6  # tokens of a block; blocks of the system prompt
SESSIONS = 160  # half of them are in the log
OTHERS = 40  # sessions that are surely not in it, whose scores the attacker compares
MINUTE = 60_000  # ms
Rows = np.ndarray  # one line a request: blocks, new blocks, output tokens; blocks of the request before it, and pause
Files = dict[str, str]


@lru_cache(1)
def sessions(seed: int, count: int = SESSIONS) -> Trace:
    """Sessions that start with a system prompt, or one of its variants, and grow with each turn."""
    rng, rows, ids = np.random.default_rng(seed), [], 10 * SYSTEM
    for session in range(count):
        growth = rng.lognormal(2.5, 0.8)
        variant = int(rng.integers(3)) * SYSTEM
        path = [*range(variant, variant + SYSTEM), *range(ids, ids := ids + 4000)]
        blocks, time = SYSTEM + int(rng.lognormal(4, 0.8)) + 1, float(rng.integers(3_600_000))
        for _ in range(1 + rng.geometric(0.06)):
            tokens = blocks * BLOCK - int(rng.integers(BLOCK))
            rows.append((time, tokens, 1 + int(rng.lognormal(4, 1)), path[:blocks], session))
            blocks, time = min(4000, blocks + 1 + int(rng.exponential(growth))), time + float(rng.integers(60_000))
    rows.sort(key=lambda row: row[0])
    time, tokens, output, paths, session = zip(*rows, strict=True)
    offsets = np.cumsum([0, *map(len, paths)])
    columns = Columns(time, tokens, output, np.concatenate(paths), offsets, session=session)
    columns.timestamp -= columns.timestamp[0]
    return Trace.from_columns(columns, block_size=BLOCK)


def released(
    trace: Trace, profile: str | Profile, seed: int | list[int], users: np.ndarray | None = None
) -> tuple[Trace | None, Files]:
    """A release, None if the profile finds too little in common; and what tells it from another one."""
    try:
        chosen = PROFILES[profile] if isinstance(profile, str) else profile
        done = release(trace, chosen, users=users, rng=np.random.default_rng(seed)).trace
    except UsageError as error:
        return None, {"refusal": str(error)}
    columns = done.timestamp, done.input_length, done.output_length, done.hash_ids
    return done, {"trace": sha256(b"".join(column.tobytes() for column in columns)).hexdigest()}


def shapes(trace: Trace, session: np.ndarray | None = None) -> Rows:
    """Blocks, new blocks (of those of its session, if it is given) and output tokens of each request, and its chain.

    The chain is the number of blocks of the request before it in its session, and the pause between them in minutes;
    -1 for none. Without sessions, the request before it is the last one that has its deepest reused block.
    """
    reused = kvtrace.trace.unlimited_hits(trace) if session is None else reused_blocks(RowBlocks.of(trace), session)
    before = _extended(trace, reused) if session is None else _preceding(session)
    has = before >= 0
    pause = trace.timestamp // MINUTE - trace.timestamp[before] // MINUTE
    return np.stack(
        [trace.prompt_blocks, trace.prompt_blocks - reused, trace.output_length,
         np.where(has, trace.prompt_blocks[before], -1), np.where(has, pause, -1)], axis=1,
    ).astype(np.int64)  # fmt: skip


def _preceding(session: np.ndarray) -> np.ndarray:
    order, before = np.argsort(session, kind="stable"), np.full(len(session), -1)
    is_same = np.diff(session[order]) == 0
    before[order[1:][is_same]] = order[:-1][is_same]
    return before


def _extended(trace: Trace, reused: np.ndarray) -> np.ndarray:
    last, before = np.full(trace.distinct, -1), np.full(len(trace), -1)
    for row, (start, end) in enumerate(zip(trace.offsets[:-1], trace.offsets[1:], strict=True)):
        if reused[row]:
            before[row] = last[trace.hash_ids[start + reused[row] - 1]]
        last[trace.hash_ids[start:end]] = row
    return before


def by_set(own: Rows, released: Rows, others: Rows) -> float:
    """The share of the session's rounded lengths that the release has."""
    pairs = [np.unique(rows[:, 0] * (1 << 32) + rounded_outputs(rows[:, 2], "pow2")) for rows in (own, released)]
    return float(np.isin(*pairs).mean())


def cells(rows: Rows) -> np.ndarray:
    """The cell of each request on the finest grid of the resampling, without its prefix."""
    return class_of(rows[:, 0], 2) * 10_000 + class_of(rows[:, 1], 2) * 100 + class_of(rows[:, 2], 4)


def by_chains(own: Rows, released: Rows, others: Rows) -> float:
    """The share of the session's steps (blocks of two requests in turn, and the pause) that the release has."""
    steps = [rows[rows[:, 3] >= 0] for rows in (own, released)]
    if not len(steps[0]):
        return 0.0
    mine, seen = ((rows[:, 0] * 10_000 + rows[:, 3]) * 10_000 + rows[:, 4] for rows in steps)
    return float((np.isin(mine, seen) | np.isin(mine + 1, seen) | np.isin(mine - 1, seen)).mean())


def by_counts(own: Rows, released: Rows, others: Rows) -> float:
    """How many more rows the release has in the session's cells than sessions that are not in it would give."""
    numbers = [cells(rows) for rows in (own, released, others)]
    names = np.unique(np.concatenate(numbers))
    mine, seen, usual = (np.bincount(np.searchsorted(names, rows), minlength=len(names)) for rows in numbers)
    expected = (usual + 0.5) / (len(others) + 0.5 * len(names))
    return float(((seen / len(released) - expected) / expected * mine / len(own)).sum())


def member(score: Callable[[Rows, Rows, Rows], float], reaches: float, whole: Callable[[int], Trace] = sessions):
    """A trial on the membership of a session, which must reach this share of others; `whole` gives all, from a seed."""

    def trial(profile: str, folder: Path, seed: int, truth: bool) -> tuple[bool, Files]:
        trace = whole(seed)
        ids = np.random.default_rng([seed, 1]).permutation(np.unique(trace.session[trace.session >= 0]))
        half = len(ids) // 2
        victim, inside, stand_in, outside = ids[0], ids[1:half], ids[half], ids[half + 1 :]
        log = trace[np.isin(trace.session, [*inside, victim if truth else stand_in])]
        done, files = released(log, profile, 2 * seed + truth)
        if done is None:
            return False, files
        rows = shapes(done)
        copies = shapes(trace, trace.session)
        others = copies[np.isin(trace.session, outside)]
        scores = [score(copies[trace.session == one], rows, others) for one in (victim, *outside[:OTHERS])]
        return scores[0] >= float(np.quantile(scores[1:], reaches)), files

    return trial


def single_request(profile: str, folder: Path, seed: int, truth: bool) -> tuple[bool, Files]:
    """The attacker knows the time and lengths of a request, and looks for a row that has them."""
    trace = sessions(seed)
    row = int(np.random.default_rng([seed, 1]).integers(1, len(trace)))
    log = trace[np.arange(len(trace)) != row] if not truth else trace
    done, files = released(log, profile, 2 * seed + truth)
    if done is None:
        return False, files
    settings = PROFILES[profile]
    step = max(1, settings.time_step_ms)
    tokens = (
        trace.input_length[row] if settings.round_input == "exact" else -(-trace.input_length[row] // BLOCK) * BLOCK
    )
    output = rounded_outputs(trace.output_length[[row]], settings.round_output)[0]
    is_near = np.abs(done.timestamp - trace.timestamp[row] // step * step) < step
    return bool((is_near & (done.input_length == tokens) & (done.output_length == output)).any()), files


def document(accounts: Callable[[int], int]):
    """A trial on a guessed document, which as many accounts of one attacker send as `accounts` gives for k.

    The answer is yes if any two rows share the document, beside those of the attacker where these can be told apart.
    """

    def trial(profile: str, folder: Path, seed: int, truth: bool) -> tuple[bool, Files]:
        rng, rows = np.random.default_rng(seed), []
        senders = accounts(PROFILES[profile].k)
        secret, other = range(100, 104), range(200, 204)
        for user in range(120):
            own = 1000 + user * 500
            for turn in range(1, 4):
                rows.append((user, [*range(SYSTEM), *range(own, own + 3 * turn + int(rng.integers(3)))]))
        rows.append((120, [*range(SYSTEM), *(secret if truth else other)]))
        rows += [(121 + sender, [*range(SYSTEM), *secret]) for sender in range(senders)]
        users, paths = zip(*(rows[at] for at in rng.permutation(len(rows))), strict=True)
        lengths = np.array(list(map(len, paths)))
        columns = Columns(
            np.arange(len(rows)) * 1000.0, lengths * BLOCK, 20 + 0 * lengths, np.concatenate(paths),
            np.cumsum([0, *lengths]),
        )  # fmt: skip
        trace = Trace.from_columns(columns, block_size=BLOCK)
        done, files = released(trace, profile, 2 * seed + truth, np.array(users))
        if done is None:
            return False, files
        starts = done.offsets[:-1][done.prompt_blocks == SYSTEM + 4]
        _, count = np.unique(done.hash_ids[starts + SYSTEM + 3], return_counts=True)
        return bool((count > (1 if PROFILES[profile].resample else senders)).any()), files

    return trial
