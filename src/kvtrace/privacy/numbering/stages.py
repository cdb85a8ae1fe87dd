"""The stages that number blocks, each in tasks: gather, match, rank, resolve.

An entry is a digest, or a digest with one of its contributors if k-sharing may split it. Entries are in the order of
their first appearance in a range of time.

    gather    sort the rows of one range, and list the distinct digests of their blocks, sorted by shard
    match     for one shard of all ranges' entries, find the first appearances, and split blocks of few contributors
    rank      order the new blocks of one range by first appearance, and count its hits without eviction
    resolve   the final ids of one shard's entries, and the numbers of its sessions
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._base.arrays import numbers_of_digests, offsets_of
from ..._native import numbering
from ...trace.columns import MEASURED
from ..account import ReleaseStep
from ..trace_draft import RowBlocks
from .store import StoredArrays
from .task_plan import ALONE, DOMAINS, MANY, UNKNOWN, TaskPlan, by_time, firsts_of, numbers_of, shard_of

ROWS = ("time", "input_length", "output_length")
KEYS = ("session", "account", "user")  # columns of digests, zeros = unknown


def gather(plan: TaskPlan, number: int) -> dict[str, int]:
    """Write `gathered/<number>`; returns the numbers of rows and bytes."""
    rows, types, digests = _rows(plan, number)
    blocks, digests = _numbered(digests, rows["blocks"], rows.get("prompts"))
    digest = np.arange(blocks.distinct, dtype=np.int32)  # block -> its digest
    is_tail = np.zeros(blocks.distinct, dtype=bool)
    if plan.tail == "unique":
        tails = blocks.make_unique(blocks.tails(rows["input_length"], rows["output_length"], plan.block_size))
        digest, is_tail = np.append(digest, tails), np.append(is_tail, np.ones(len(tails), dtype=bool))
    many = is_tail  # block -> whether it is never split
    if plan.counts != "none":
        rows["row_contributor"], rows["row_member"] = _contributors(plan, rows, number)
        is_unknown = (rows["row_contributor"] == UNKNOWN).all(axis=1)
        named = blocks.contributors(_numbers(rows["row_contributor"])) - blocks.in_rows(is_unknown)
        many = is_tail | (named >= plan.profile.k)
        member = _numbers(rows["row_member"])
        copies = blocks.split_where(member, blocks.contributors(member), ~many)
        digest, is_tail, many = (np.append(values, values[copies]) for values in (digest, is_tail, many))
    entries = blocks.by_first_appearance()
    arrays = {"digest": digests[digest[entries]], "is_tail": is_tail[entries]}
    if plan.has_outputs:
        arrays["first_prompt"] = blocks.first_prompts()
    if plan.counts != "none":
        first_row, is_many = blocks.first_rows(), many[entries][:, None]
        for name in ("contributor", "member"):
            arrays[name] = np.where(is_many, MANY, rows[f"row_{name}"][first_row])
    shard = shard_of(arrays["digest"], plan.shards)
    by_shard = np.argsort(shard, kind="stable")
    sessions = _sessions(plan, rows)
    written = plan.store.write(
        f"gathered/{number}", {"types": types},
        **{name: values for name, values in rows.items() if name not in KEYS},
        entry=blocks.number, by_shard=by_shard, shards=_starts(shard[by_shard], plan.shards),
        **{name: values[by_shard] for name, values in arrays.items()}, **sessions,
    )  # fmt: skip
    unknown = int(is_unknown.sum()) if plan.counts != "none" else 0
    return {"rows": len(rows["blocks"]), "unknown": unknown, "bytes": written}


def entries_of(plan: TaskPlan, gathered: StoredArrays) -> RowBlocks:
    """The entries of each row of a range, as `gather` wrote them."""
    prompts = gathered["prompts"] if plan.has_outputs else None
    offsets = offsets_of(gathered["blocks"])
    return RowBlocks(gathered["entry"], offsets, distinct=len(gathered["by_shard"]), prompts=prompts)


def _numbered(digests: np.ndarray, lengths: np.ndarray, prompts: np.ndarray | None) -> tuple[RowBlocks, np.ndarray]:
    """The blocks of rows, and the digest of each."""
    index = numbering.DigestIndex()
    number = index.add(digests)
    blocks = RowBlocks(number, offsets_of(lengths), distinct=index.distinct, prompts=prompts)
    return blocks, digests[firsts_of(blocks.number)]


def _rows(plan: TaskPlan, number: int) -> tuple[dict[str, np.ndarray], list[str | None], np.ndarray]:
    """The columns of the range's rows in order of time, their types, and their digests."""
    since = plan.cuts[number - 1] if number else None
    until = plan.cuts[number] if number < len(plan.cuts) else None
    parts: list[dict[str, np.ndarray]] = []
    types: dict[str | None, int] = {}
    for part in range(plan.parts):
        with plan.store.open(f"{plan.rows}/{part}") as encoded:
            time = encoded["time"]
            start = 0 if since is None else int(np.searchsorted(time, since))
            stop = len(time) if until is None else int(np.searchsorted(time, until))
            if start == stop:
                continue
            rows: dict[str, Any] = {name: encoded[name, start:stop] for name in ROWS}
            offsets = encoded["offsets", start : stop + 1]
            rows["blocks"], rows["digests"] = np.diff(offsets), encoded["digests", int(offsets[0]) : int(offsets[-1])]
            if plan.has_outputs:
                rows["prompts"] = encoded["prompts", start:stop]
            for name in plan.carried:
                rows[f"carried {name}"] = _carried(plan, encoded, name, start, stop)
            if plan.has_service:
                rows["service"] = encoded["service", start:stop] if "service" in encoded else np.full(stop - start, -1)
            for name in KEYS:
                none = np.zeros((stop - start, 2), dtype=np.uint64)
                rows[name] = encoded[name, start:stop] if name in encoded else none
            if plan.has_types:
                code = np.array([types.setdefault(kind, len(types)) for kind in encoded.about["types"]], dtype=np.int32)
                rows["type"] = code[encoded["type", start:stop]]
            parts.append(rows)
    if not parts:
        return _no_rows(plan), [], np.empty((0, 2), dtype=np.uint64)
    whole = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    # parts are in the order of the log
    whole, digests, _ = by_time(whole, whole.pop("digests"), offsets_of(whole["blocks"]))
    return whole, list(types), digests


def _carried(plan: TaskPlan, encoded: StoredArrays, name: str, start: int, stop: int) -> np.ndarray:
    """A carried column of some rows; those of a part without a measured column have unknown numbers."""
    if name == "domain":
        return _domains(plan, encoded, start, stop)
    if name in MEASURED and f"carried {name}" not in encoded:
        return MEASURED[name].unknowns(stop - start)
    return encoded[f"carried {name}", start:stop]


def _domains(plan: TaskPlan, encoded: StoredArrays, start: int, stop: int) -> np.ndarray:
    """The domains of some rows, numbered as DOMAINS lists them; -1 = none."""
    index = numbering.DigestIndex()
    with plan.store.open(DOMAINS) as domains:
        index.add(domains["digest"])
    digests = encoded["domain", start:stop] if "domain" in encoded else None
    return numbers_of_digests(index.add, digests, stop - start)


def _no_rows(plan):
    names = (*ROWS, "blocks", *(["prompts"] if plan.has_outputs else []), *(["service"] if plan.has_service else []))
    numbers = {name: np.empty(0, dtype=np.int64) for name in names}
    words = {name: np.empty((0, 2), dtype=np.uint64) for name in KEYS}
    carried = {f"carried {name}": np.empty(0, dtype=MEASURED[name].dtype if name in MEASURED else np.int64)
               for name in plan.carried}  # fmt: skip
    return numbers | words | carried | ({"type": np.empty(0, dtype=np.int32)} if plan.has_types else {})


# -- contributors ------------------------------------------------------------------------------------------------


def _contributors(plan: TaskPlan, rows, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The contributor of each row and the member of it, as `privacy.contributors` gives them: 128 bits each."""
    count = len(rows["blocks"])
    member = np.stack([np.arange(count, dtype=np.uint64), np.full(count, ALONE, dtype=np.uint64)], axis=1)
    member[:, 0] |= np.uint64(number << 40)
    if plan.counts == "requests":
        return member, member
    column, members = {"accounts": ("account", ("account", "user")), "sessions": ("session", ("session",))}.get(
        plan.counts, ("user", ("user",))
    )
    has_contributor = rows[column].any(axis=1)
    for name, where in (("session", ~has_contributor), *((name, has_contributor) for name in members)):
        where = where & rows[name].any(axis=1)
        member[where] = rows[name][where]
    return np.where(has_contributor[:, None], rows[column], UNKNOWN), member


def is_unnamed(plan: TaskPlan, contributor: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Whether each member of an account is the account itself, as its requests name no user."""
    return (contributor == member).all(axis=1) & (plan.counts == "accounts")


def _numbers(tokens: np.ndarray) -> np.ndarray:
    """A number for each distinct pair of words, from 0."""
    return numbering.DigestIndex().add(tokens).astype(np.int64)


# -- sessions ----------------------------------------------------------------------------------------------------


def _sessions(plan: TaskPlan, rows) -> dict[str, np.ndarray]:
    """The range's sessions by shard: digest, last row, rows; and the session number of each row, -1 = none."""
    if not plan.has_sessions:
        return {}
    session = numbers_of_digests(numbering.DigestIndex().add, rows["session"], len(rows["session"]))
    in_session = np.flatnonzero(session >= 0)
    firsts = in_session[firsts_of(session[in_session])]
    last = np.empty(len(firsts), dtype=np.int64)
    last[session[in_session]] = in_session  # the last write wins
    digest = rows["session"][firsts]
    shard = shard_of(digest, plan.shards)
    by_shard = np.argsort(shard, kind="stable")
    return {
        "session": session, "sessions_by_shard": by_shard,
        "session_shards": _starts(shard[by_shard], plan.shards), "session_digest": digest[by_shard],
        "session_last": last[by_shard],
        "session_rows": np.bincount(session[in_session], minlength=len(firsts))[by_shard],
    }  # fmt: skip


def _starts(sorted_shards, shards) -> np.ndarray:
    """The start of each shard, and the end of the last one."""
    return np.searchsorted(sorted_shards, np.arange(shards + 1))


TAIL = 2**62  # in place of a contributor: unique tail blocks


def match(plan: TaskPlan, shard: int) -> dict[str, int]:
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
        name = _split_numbers(digest, is_tail, *who, plan)
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
    in_prompts = np.flatnonzero(first_prompt >= 0)
    order = in_prompts[np.lexsort((first_prompt[in_prompts], group[in_prompts]))]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = group[order][1:] != group[order][:-1]
    is_first = np.zeros(len(group), dtype=bool)
    is_first[order[begins]] = True
    return is_first


def _split_numbers(digest, is_tail, contributor, member, plan: TaskPlan) -> np.ndarray:
    """For each entry the number of the contributor, or of its member, that shares the block with no other; else 0.

    The rule is that of `RowBlocks.split`.
    """
    many, k = (contributor == MANY).all(axis=1), plan.profile.k
    is_unknown = (contributor == UNKNOWN).all(axis=1)
    who, whose = (numbering.DigestIndex().add(tokens).astype(np.int64) for tokens in (contributor, member))
    contributors = _distinct(digest, who, ~is_tail & ~is_unknown)
    contributors[digest[many & ~is_tail]] = k  # or more
    few = contributors[digest] < k
    block = numbers_of(digest, who)  # one of each contributor
    members = _distinct(block, whose, ~is_tail)[block]
    named = _distinct(block, whose, ~is_tail & ~is_unnamed(plan, contributor, member))[block]
    apart = (members > 1) & ((named < k) | is_unknown)
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


def rank(plan: TaskPlan, number: int) -> dict[str, int]:
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


def resolve(plan: TaskPlan, shard: int) -> dict[str, int]:
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
