"""Rank: the blocks that are new in one range, ranked by first appearance, and what its prompts hit without eviction."""

from __future__ import annotations

import numpy as np

from .task_plan import Plan, offsets_of, tails_of


def rank(plan: Plan, number: int) -> dict[str, int]:
    """Make `ranked/<number>`; gives how many blocks and sessions are new in the range."""
    with plan.store.open(f"gathered/{number}") as held:
        entry, first, by_shard, shards = held["entry"], held["first"], held["by_shard"], held["shards"]
        lengths, blocks = held["input_length"], held["blocks"]
        sessions = (held["sessions_by_shard"], held["session_shards"]) if plan.has_sessions else None
    is_new, is_first = (np.empty(len(first), dtype=bool) for _ in range(2))
    new_session = np.empty(0 if sessions is None else len(sessions[0]), dtype=bool)
    for shard in range(plan.shards):
        with plan.store.open(f"matched/{shard}") as held:
            start, stop = held["bounds", number : number + 2].tolist()
            place = by_shard[shards[shard] : shards[shard + 1]]
            is_new[place] = held["owner", start:stop] == np.arange(start, stop)
            is_first[place] = held["is_first", start:stop]
            if sessions is not None:
                start, stop = held["session_bounds", number : number + 2].tolist()
                place = sessions[0][sessions[1][shard] : sessions[1][shard + 1]]
                new_session[place] = held["session_owner", start:stop] == np.arange(start, stop)
    fresh, tails = fresh_references(plan, entry, first, is_new, lengths, blocks)
    ranks = (np.cumsum(fresh) - 1)[first]  # entry -> rank of its first reference among the new ones, where it is new
    ranks[~is_new] = -1
    unseen = np.zeros(len(entry), dtype=bool)
    unseen[first[is_first]] = True
    offsets = offsets_of(blocks)
    hits = {"as it was": _run(~unseen, offsets)}
    if plan.tail == "unique":
        hits["tails unique"] = _run(~(unseen | tails), offsets)
    if plan.counts != "none":
        hits["k-sharing"] = _run(~fresh, offsets)
    session_ranks = np.where(new_session, np.cumsum(new_session) - 1, -1)
    written = plan.store.write(
        f"ranked/{number}", rank=ranks[by_shard].astype(np.int32), is_new=is_new,
        **{f"hits {name}": values.astype(np.int32) for name, values in hits.items()},
        **({} if sessions is None else {"session_rank": session_ranks[sessions[0]]}),
    )  # fmt: skip
    return {"blocks": int(fresh.sum()), "sessions": int(new_session.sum()), "bytes": written}


def fresh_references(plan: Plan, entry, first, is_new, input_length, blocks) -> tuple[np.ndarray, np.ndarray]:
    """Which references get a new id, and which are tails that share none."""
    tails = tails_of(plan, input_length, offsets_of(blocks))
    fresh = np.zeros(len(entry), dtype=bool)
    fresh[first[is_new]] = True
    return fresh | tails, tails


def _run(seen, offsets) -> np.ndarray:
    """Leading True values of each row."""
    misses = np.append(np.flatnonzero(~seen), len(seen))
    return np.minimum(misses[np.searchsorted(misses, offsets[:-1])] - offsets[:-1], np.diff(offsets))
