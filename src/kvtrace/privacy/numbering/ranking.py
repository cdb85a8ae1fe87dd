"""Rank: order the new blocks of one range by first appearance, and count its hits without eviction."""

from __future__ import annotations

import numpy as np

from ..release_steps import ReleaseStep
from .gathering import entries_of
from .task_plan import Plan


def rank(plan: Plan, number: int) -> dict[str, int]:
    """Write `ranked/<number>`; returns the numbers of new blocks and sessions in the range."""
    with plan.store.open(f"gathered/{number}") as rows:
        by_shard, shards, is_tail = rows["by_shard"], rows["shards"], rows["is_tail"]
        blocks = entries_of(plan, rows)
        sessions = (rows["sessions_by_shard"], rows["session_shards"]) if plan.has_sessions else None
    is_new, is_first, is_first_block, tails = (np.empty(len(by_shard), dtype=bool) for _ in range(4))
    tails[by_shard] = is_tail
    new_session = np.empty(0 if sessions is None else len(sessions[0]), dtype=bool)
    for shard in range(plan.shards):
        with plan.store.open(f"matched/{shard}") as matched:
            start, stop = matched["bounds", number : number + 2].tolist()
            place = by_shard[shards[shard] : shards[shard + 1]]
            is_new[place] = matched["owner", start:stop] == np.arange(start, stop)
            is_first[place] = matched["is_first", start:stop]
            is_first_block[place] = matched["is_first_block", start:stop] if plan.has_outputs else is_new[place]
            if sessions is not None:
                start, stop = matched["session_bounds", number : number + 2].tolist()
                place = sessions[0][sessions[1][shard] : sessions[1][shard + 1]]
                new_session[place] = matched["session_owner", start:stop] == np.arange(start, stop)
    hits = {ReleaseStep.ORIGINAL: blocks.hits(is_first)}
    if plan.tail == "unique":
        hits[ReleaseStep.TAILS_UNIQUE] = blocks.hits(is_first | tails)
    if plan.counts != "none":
        hits[ReleaseStep.K_SHARING] = blocks.hits(is_first_block)
    ranks = np.where(is_new, np.cumsum(is_new) - 1, -1)
    session_ranks = np.where(new_session, np.cumsum(new_session) - 1, -1)
    written = plan.store.write(
        f"ranked/{number}", rank=ranks[by_shard].astype(np.int32),
        **{f"hits {step.value}": values for step, values in hits.items()},
        **({"hits with outputs": blocks.hits(is_new, outputs=True)} if plan.has_outputs else {}),
        **({} if sessions is None else {"session_rank": session_ranks[sessions[0]]}),
    )  # fmt: skip
    return {"blocks": int(is_new.sum()), "sessions": int(new_session.sum()), "bytes": written}
