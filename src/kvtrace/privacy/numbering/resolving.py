"""Resolve: the final ids of one shard's entries, and the numbers of its sessions."""

from __future__ import annotations

import numpy as np

from .task_plan import Plan


def resolve(plan: Plan, shard: int) -> dict[str, int]:
    """Write `resolved/<shard>`: the id of each entry, range by range."""
    ranks, sessions = [], []
    for number in range(plan.ranges):
        with plan.store.open(f"gathered/{number}") as rows:
            start, stop = rows["shards", shard : shard + 2].tolist()
            session_bounds = rows["session_shards", shard : shard + 2].tolist() if plan.has_sessions else (0, 0)
        with plan.store.open(f"ranked/{number}") as ranked:
            ranks.append(ranked["rank", start:stop].astype(np.int64) + plan.blocks_before[number])
            if plan.has_sessions:
                sessions.append(ranked["session_rank", slice(*session_bounds)] + plan.sessions_before[number])
    with plan.store.open(f"matched/{shard}") as matched:
        arrays = {"id": np.concatenate(ranks)[matched["owner"]], "bounds": matched["bounds"]}
        if plan.has_sessions:
            arrays["session"] = np.concatenate(sessions)[matched["session_owner"]]
            arrays |= {name: matched[name] for name in ("session_bounds", "session_previous", "session_turns")}
    return {"bytes": plan.store.write(f"resolved/{shard}", **arrays)}
