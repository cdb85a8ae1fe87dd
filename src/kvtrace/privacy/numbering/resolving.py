"""Resolve: the final ids of one shard's entries, and the numbers of its sessions."""

from __future__ import annotations

import numpy as np

from .task_plan import Plan


def resolve(plan: Plan, shard: int) -> dict[str, int]:
    """Make `resolved/<shard>`: the id of each entry, range after range."""
    ranks, sessions = [], []
    for number in range(plan.ranges):
        with plan.store.open(f"gathered/{number}") as held:
            start, stop = held["shards", shard : shard + 2].tolist()
            session_bounds = held["session_shards", shard : shard + 2].tolist() if plan.has_sessions else (0, 0)
        with plan.store.open(f"ranked/{number}") as held:
            ranks.append(held["rank", start:stop].astype(np.int64) + plan.blocks_before[number])
            if plan.has_sessions:
                sessions.append(held["session_rank", slice(*session_bounds)] + plan.sessions_before[number])
    with plan.store.open(f"matched/{shard}") as held:
        found = {"id": np.concatenate(ranks)[held["owner"]], "bounds": held["bounds"]}
        if plan.has_sessions:
            found["session"] = np.concatenate(sessions)[held["session_owner"]]
            found |= {name: held[name] for name in ("session_bounds", "session_previous", "session_turns")}
    return {"bytes": plan.store.write(f"resolved/{shard}", **found)}
