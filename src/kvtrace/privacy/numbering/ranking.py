"""Rank: order the new blocks of one range by first appearance, and count its hits without eviction."""

from __future__ import annotations

import numpy as np

from ..release_steps import ReleaseStep
from .task_plan import Plan, offsets_of, tails_of


def rank(plan: Plan, number: int) -> dict[str, int]:
    """Write `ranked/<number>`; returns the numbers of new blocks and sessions in the range."""
    with plan.store.open(f"gathered/{number}") as rows:
        entry, first, by_shard, shards = rows["entry"], rows["first"], rows["by_shard"], rows["shards"]
        lengths, blocks = rows["input_length"], rows["blocks"]
        sessions = (rows["sessions_by_shard"], rows["session_shards"]) if plan.has_sessions else None
    is_new, is_first = (np.empty(len(first), dtype=bool) for _ in range(2))
    new_session = np.empty(0 if sessions is None else len(sessions[0]), dtype=bool)
    for shard in range(plan.shards):
        with plan.store.open(f"matched/{shard}") as matched:
            start, stop = matched["bounds", number : number + 2].tolist()
            place = by_shard[shards[shard] : shards[shard + 1]]
            is_new[place] = matched["owner", start:stop] == np.arange(start, stop)
            is_first[place] = matched["is_first", start:stop]
            if sessions is not None:
                start, stop = matched["session_bounds", number : number + 2].tolist()
                place = sessions[0][sessions[1][shard] : sessions[1][shard + 1]]
                new_session[place] = matched["session_owner", start:stop] == np.arange(start, stop)
    fresh, tails = fresh_references(plan, entry, first, is_new, lengths, blocks)
    ranks = (np.cumsum(fresh) - 1)[first]  # entry -> rank of its first reference among the new ones
    ranks[~is_new] = -1
    unseen = np.zeros(len(entry), dtype=bool)
    unseen[first[is_first]] = True
    offsets = offsets_of(blocks)
    hits = {ReleaseStep.ORIGINAL: _leading(~unseen, offsets)}
    if plan.tail == "unique":
        hits[ReleaseStep.TAILS_UNIQUE] = _leading(~(unseen | tails), offsets)
    if plan.counts != "none":
        hits[ReleaseStep.K_SHARING] = _leading(~fresh, offsets)
    session_ranks = np.where(new_session, np.cumsum(new_session) - 1, -1)
    written = plan.store.write(
        f"ranked/{number}", rank=ranks[by_shard].astype(np.int32), is_new=is_new,
        **{f"hits {step.value}": values.astype(np.int32) for step, values in hits.items()},
        **({} if sessions is None else {"session_rank": session_ranks[sessions[0]]}),
    )  # fmt: skip
    return {"blocks": int(fresh.sum()), "sessions": int(new_session.sum()), "bytes": written}


def fresh_references(plan: Plan, entry, first, is_new, input_length, blocks) -> tuple[np.ndarray, np.ndarray]:
    """Whether each reference gets a new id, and whether it is a unique tail block."""
    tails = tails_of(plan, input_length, offsets_of(blocks))
    fresh = np.zeros(len(entry), dtype=bool)
    fresh[first[is_new]] = True
    return fresh | tails, tails


def _leading(seen, offsets) -> np.ndarray:
    """The number of leading True values of each row."""
    misses = np.append(np.flatnonzero(~seen), len(seen))
    return np.minimum(misses[np.searchsorted(misses, offsets[:-1])] - offsets[:-1], np.diff(offsets))
