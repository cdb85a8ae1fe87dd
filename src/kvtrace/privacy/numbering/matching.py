"""Match: for one shard of all ranges' entries, find the first appearances, and split blocks of few contributors."""

from __future__ import annotations

import numpy as np

from ..._base.offsets import offsets_of
from ..._native import numbering
from .task_plan import MANY, UNKNOWN, Plan, firsts_of, numbers_of

TAIL = 2**62  # in place of a contributor: unique tail blocks


def match(plan: Plan, shard: int) -> dict[str, int]:
    """Write `matched/<shard>`: for each entry, range by range, the first entry with the same id.

    `owner` is the first entry of the same block (itself if it is new); `is_first` marks a new digest.
    """
    digests, tails, contributors, members, sessions, bounds, session_bounds = [], [], [], [], [], [0], [0]
    in_prompts: list[np.ndarray] = []
    for number in range(plan.ranges):
        with plan.store.open(f"gathered/{number}") as rows:
            start, stop = rows["shards", shard : shard + 2].tolist()
            digests.append(rows["digest", start:stop])
            tails.append(rows["is_tail", start:stop])
            bounds.append(bounds[-1] + stop - start)
            if plan.has_outputs:
                in_prompts.append(rows["first_prompt", start:stop])
            if plan.counts != "none":
                contributors.append(rows["contributor", start:stop])
                members.append(rows["member", start:stop])
            if plan.has_sessions:
                start, stop = rows["session_shards", shard : shard + 2].tolist()
                in_range = {name: rows[f"session_{name}", start:stop] for name in ("digest", "last", "rows")}
                in_range["last"] += plan.rows_before[number]
                sessions.append(in_range)
                session_bounds.append(session_bounds[-1] + stop - start)
    digest = numbering.DigestIndex().add(np.concatenate(digests)).astype(np.int64)
    del digests
    firsts, is_tail = firsts_of(digest), np.concatenate(tails)
    name = np.zeros(len(digest), dtype=np.int64)  # distinguishes blocks with the same digest
    if contributors:
        who = np.concatenate(contributors), np.concatenate(members)
        name = _split_numbers(digest, is_tail, *who, plan.profile.k)
    name[is_tail] = TAIL
    block = numbers_of(digest, name)
    owner = firsts_of(block)[block]
    owner[is_tail] = np.flatnonzero(is_tail)  # each is a block of its own
    is_first = np.zeros(len(digest), dtype=bool)
    is_first[firsts] = True
    prompts = {}
    if plan.has_outputs:
        first_prompt = _in_order(in_prompts)
        is_first = _first_in_prompts(digest, first_prompt)
        prompts = {"is_first_block": _first_in_prompts(owner, first_prompt)}
    written = plan.store.write(
        f"matched/{shard}", bounds=np.array(bounds), owner=owner.astype(np.int32), is_first=is_first, **prompts,
        **(_linked(sessions, session_bounds) if plan.has_sessions else {}),
    )  # fmt: skip
    return {"bytes": written}


def _in_order(first_prompts: list[np.ndarray]) -> np.ndarray:
    """Entry -> place of the first row whose prompt has it, over all ranges; -1 = only outputs have it."""
    count = 1 + max((int(rows.max(initial=-1)) for rows in first_prompts), default=0)
    places = [np.where(rows < 0, -1, rows + number * count) for number, rows in enumerate(first_prompts)]
    return np.concatenate(places).astype(np.int64)


def _first_in_prompts(group: np.ndarray, first_prompt: np.ndarray) -> np.ndarray:
    """Whether each entry is the first of its group in any prompt.

    >>> _first_in_prompts(np.array([0, 0, 1]), np.array([5, 2, -1]))
    array([False,  True, False])
    """
    known = np.flatnonzero(first_prompt >= 0)
    order = known[np.lexsort((first_prompt[known], group[known]))]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = group[order][1:] != group[order][:-1]
    is_first = np.zeros(len(group), dtype=bool)
    is_first[order[begins]] = True
    return is_first


def _split_numbers(digest, is_tail, contributor, member, k) -> np.ndarray:
    """For each entry the number of the contributor, or of its member, that shares the block with no other; else 0.

    The rule is that of `RowBlocks.split`.
    """
    many = (contributor == MANY).all(axis=1)
    who, whose = (numbering.DigestIndex().add(tokens).astype(np.int64) for tokens in (contributor, member))
    contributors = _distinct(digest, who, ~is_tail)
    contributors[digest[many & ~is_tail]] = k  # or more
    few = contributors[digest] < k
    block = numbers_of(digest, who)  # one of each contributor
    members = _distinct(block, whose, ~is_tail)[block]
    is_unknown = (contributor == UNKNOWN).all(axis=1)
    apart = (members > 1) & ((members < k) | is_unknown)
    return np.where(few, np.where(apart, len(digest) + whose, who) + 1, 0)


def _distinct(group: np.ndarray, number: np.ndarray, is_counted: np.ndarray) -> np.ndarray:
    """Group -> its distinct numbers among the counted entries; groups count from 0."""
    firsts = firsts_of(numbers_of(group, number))
    return np.bincount(group[firsts[is_counted[firsts]]], minlength=int(group.max(initial=-1)) + 1)


def _linked(sessions, bounds) -> dict[str, np.ndarray]:
    """For the turns of a session in each range: the first range's entry, and the last row and turns before them."""
    whole = {name: np.concatenate([part[name] for part in sessions]) for name in sessions[0]}
    session = numbering.DigestIndex().add(whole["digest"]).astype(np.int64)
    by_session = np.argsort(session, kind="stable")
    goes_on = np.zeros(len(session), dtype=bool)
    goes_on[1:] = session[by_session][1:] == session[by_session][:-1]
    previous = np.full(len(session), -1, dtype=np.int64)
    previous[1:][goes_on[1:]] = whole["last"][by_session][:-1][goes_on[1:]]
    turns = offsets_of(whole["rows"][by_session])[:-1]
    starts = np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(session))))
    turns = turns - turns[starts] if len(session) else turns
    linked = {"session_owner": firsts_of(session)[session], "session_bounds": np.array(bounds)}
    for name, values in (("session_previous", previous), ("session_turns", turns)):
        linked[name] = np.empty_like(values)
        linked[name][by_session] = values
    return linked
