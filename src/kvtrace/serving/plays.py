"""Session trees of a trace, and their plays in a closed loop, as arrays for the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import UsageError
from ..trace.building import concat
from ..trace.columns import Columns, replace_columns
from ..trace.dependencies import COMPLETION, Dependencies
from ..trace.session_trees import session_trees
from ..trace.trace import Trace
from .closed_loop import ClosedLoop


def require_dependencies(trace: Columns) -> None:
    """UsageError for a trace that cannot run in a closed loop."""
    if trace.dependencies is None or not len(trace.dependencies.row):
        raise UsageError(
            "The trace has no dependencies: it does not state what each request waits for, so it cannot run in a "
            "closed loop. Use a trace of agent sessions, or simulate it in the open loop."
        )


@dataclass(frozen=True, eq=False)
class PlayedTrace:
    """A trace as often as its trees can be played, and who waits for whom; rows are those of the longer trace."""

    trace: Trace
    row: np.ndarray  # row -> row of the trace that was given
    tree: np.ndarray  # play -> its tree
    arrays: dict[str, np.ndarray]  # of the kernel
    primers: np.ndarray  # rows that prepare the caches, with one output token
    primer_lane: np.ndarray


def played_trace(trace: Trace, loop: ClosedLoop, laps: int = 1) -> PlayedTrace:
    """The plays of all trees, `laps` times one after another; each lap has blocks of its own.

    Raises:
        UsageError: The trace has no dependencies, or fewer trees than there are lanes.
    """
    require_dependencies(trace)
    tree = session_trees(trace)
    trees = int(tree.max()) + 1
    if loop.lanes > trees * laps:
        raise UsageError(
            f"--lanes {loop.lanes:,} needs {loop.lanes:,} sessions; the trace has {trees:,}. Try --lanes {trees}, or a "
            "--duration: then sessions are played again."
        )
    rows = len(trace)
    recorded = np.tile(trace.timestamp, laps)
    play = (tree + trees * np.arange(laps)[:, None]).ravel()
    begin = np.full(trees * laps, np.inf)
    np.minimum.at(begin, play, recorded)
    if laps > 1:
        trace = concat([trace] * laps)
    primers, lanes = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    if loop.start == "inside":
        begin, play, primers, lanes = _cut(trace, loop, recorded, play, begin)
        output = trace.output_length.copy()
        output[primers] = 1
        columns = replace_columns(trace, output_length=output, output_ids=None, output_offsets=None)
        trace = Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail)
    arrays = _arrays(trace, loop, play, recorded - begin[np.maximum(play, 0)], trees * laps)
    return PlayedTrace(trace, np.tile(np.arange(rows), laps), np.tile(np.arange(trees), laps), arrays, primers, lanes)


def _cut(trace: Trace, loop: ClosedLoop, recorded: np.ndarray, play: np.ndarray, begin: np.ndarray):
    """Cut the first tree of each lane at a random moment: where each play begins, its rows, and the primers.

    The last request of each agent before that moment is a primer, if the agent has later ones.
    """
    last = np.zeros(len(begin))
    np.maximum.at(last, play, recorded)
    share = np.zeros(len(begin))
    share[: loop.lanes] = np.random.default_rng(loop.seed).uniform(*loop.start_range, loop.lanes)
    begin = begin + share * (last - begin)
    late = recorded >= begin[play]
    agent = trace.extra.get("agent", np.zeros(len(trace), dtype=np.int64))
    order = np.lexsort((recorded, agent, play))  # the requests of an agent one after another
    follows = (play[order][1:] == play[order][:-1]) & (agent[order][1:] == agent[order][:-1])
    crosses = follows & late[order][1:] & ~late[order][:-1]
    primers = np.sort(order[:-1][crosses])
    lanes = play[primers]
    return begin, np.where(late, play, -1), primers, lanes


def _arrays(trace: Trace, loop: ClosedLoop, play: np.ndarray, after_ms: np.ndarray, plays: int) -> dict[str, Any]:
    """The arrays of the kernel (core/instance.py)."""
    waits = trace.dependencies
    assert waits is not None
    request = waits.request
    kept = (play[request] >= 0) & (play[waits.row] >= 0)
    order = np.flatnonzero(kept)[np.argsort(waits.row[kept], kind="stable")]
    played = np.flatnonzero(play >= 0)
    return {
        "first": offsets_of(np.bincount(play[played], minlength=plays)),
        "rows": played[np.argsort(play[played], kind="stable")].astype(np.int32),
        "play": play.astype(np.int32),
        "offset": after_ms * (loop.think_scale / 1000),
        "waits": np.bincount(request[kept], minlength=len(play)),
        "start": offsets_of(np.bincount(waits.row[kept], minlength=len(play))),
        "waiting": request[order].astype(np.int32),
        "trigger": waits.trigger[order],
        "delay": waits.delay_ms[order] * (loop.think_scale / 1000),
        "lead": _leads(waits, kept, loop, len(play)),
    }


def _leads(waits: Dependencies, kept: np.ndarray, loop: ClosedLoop, rows: int) -> np.ndarray:
    """Row -> the least seconds from its end to an arrival that it can cause; 0 if it can be the last of its tree."""
    on_end = kept & (waits.trigger == COMPLETION)
    lead = np.full(rows, np.inf)
    np.minimum.at(lead, waits.row[on_end], waits.delay_ms[on_end] * (loop.think_scale / 1000))
    caps = [cap for cap in (loop.idle_cap_s, loop.tree_idle_cap_s) if cap is not None]
    return np.minimum(np.where(np.isinf(lead), 0.0, lead), min(caps, default=np.inf))
