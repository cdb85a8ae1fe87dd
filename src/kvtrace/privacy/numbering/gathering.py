"""Gather: sort the rows of one range of time, and list the distinct digests of their blocks, sorted by shard.

An entry is a digest, or a digest with one of its contributors if k-sharing may split it. Entries are in the order of
their first appearance in the range.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._base.offsets import offsets_of
from ..._native import numbering
from ...trace.measured import MEASURED
from ..row_blocks import RowBlocks
from .store import StoredArrays
from .task_plan import ALONE, DOMAINS, MANY, UNKNOWN, Plan, digests_of_rows, firsts_of, shard_of

ROWS = ("time", "input_length", "output_length")
KEYS = ("session", "account", "user")  # columns of digests, zeros = unknown


def gather(plan: Plan, number: int) -> dict[str, int]:
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
        many = is_tail | (blocks.contributors(_numbers(rows["row_contributor"])) >= plan.profile.k)
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
    unknown = 0
    if plan.counts != "none":
        unknown = int((rows["row_contributor"] == UNKNOWN).all(axis=1).sum())
    return {"rows": len(rows["blocks"]), "unknown": unknown, "bytes": written}


def entries_of(plan: Plan, gathered: StoredArrays) -> RowBlocks:
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


def _rows(plan: Plan, number: int) -> tuple[dict[str, np.ndarray], list[str | None], np.ndarray]:
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
    order = np.argsort(whole["time"], kind="stable")  # parts are in the order of the log
    digests, blocks = whole.pop("digests"), whole["blocks"]
    if not (order[1:] > order[:-1]).all():
        digests, _ = digests_of_rows(digests, offsets_of(blocks), order)
        whole = {name: values[order] for name, values in whole.items()}
    return whole, list(types), digests


def _carried(plan: Plan, encoded: StoredArrays, name: str, start: int, stop: int) -> np.ndarray:
    """A carried column of some rows; those of a part without a measured column have unknown numbers."""
    if name == "domain":
        return _domains(plan, encoded, start, stop)
    if name in MEASURED and f"carried {name}" not in encoded:
        return np.full(stop - start, MEASURED[name].unknown, MEASURED[name].dtype)
    return encoded[f"carried {name}", start:stop]


def _domains(plan: Plan, encoded: StoredArrays, start: int, stop: int) -> np.ndarray:
    """The domains of some rows, numbered as DOMAINS lists them; -1 = none."""
    numbers = np.full(stop - start, -1, dtype=np.int64)
    if "domain" in encoded:
        digests, index = encoded["domain", start:stop], numbering.DigestIndex()
        with plan.store.open(DOMAINS) as known:
            index.add(known["digest"])
        has_one = digests.any(axis=1)
        numbers[has_one] = index.add(digests[has_one])
    return numbers


def _no_rows(plan):
    names = (*ROWS, "blocks", *(["prompts"] if plan.has_outputs else []), *(["service"] if plan.has_service else []))
    numbers = {name: np.empty(0, dtype=np.int64) for name in names}
    words = {name: np.empty((0, 2), dtype=np.uint64) for name in KEYS}
    carried = {f"carried {name}": np.empty(0, dtype=MEASURED[name].dtype if name in MEASURED else np.int64)
               for name in plan.carried}  # fmt: skip
    return numbers | words | carried | ({"type": np.empty(0, dtype=np.int32)} if plan.has_types else {})


# -- contributors ------------------------------------------------------------------------------------------------


def _contributors(plan: Plan, rows, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The contributor of each row and the member of it, as `privacy.contributors` gives them: 128 bits each."""
    count = len(rows["blocks"])
    member = np.stack([np.arange(count, dtype=np.uint64), np.full(count, ALONE, dtype=np.uint64)], axis=1)
    member[:, 0] |= np.uint64(number << 40)
    if plan.counts == "requests":
        return member, member
    column, members = {"accounts": ("account", ("account", "user")), "sessions": ("session", ("session",))}.get(
        plan.counts, ("user", ("user",))
    )
    known = rows[column].any(axis=1)
    for name, where in (("session", ~known), *((name, known) for name in members)):
        where = where & rows[name].any(axis=1)
        member[where] = rows[name][where]
    return np.where(known[:, None], rows[column], UNKNOWN), member


def _numbers(tokens: np.ndarray) -> np.ndarray:
    """A number for each distinct pair of words, from 0."""
    return numbering.DigestIndex().add(tokens).astype(np.int64)


# -- sessions ----------------------------------------------------------------------------------------------------


def _sessions(plan: Plan, rows) -> dict[str, np.ndarray]:
    """The range's sessions by shard: digest, last row, rows; and the session number of each row, -1 = none."""
    if not plan.has_sessions:
        return {}
    known = np.flatnonzero(rows["session"].any(axis=1))
    session = np.full(len(rows["session"]), -1, dtype=np.int64)
    session[known] = numbering.DigestIndex().add(rows["session"][known])
    firsts = known[firsts_of(session[known])]
    last = np.empty(len(firsts), dtype=np.int64)
    last[session[known]] = known  # the last write wins
    digest = rows["session"][firsts]
    shard = shard_of(digest, plan.shards)
    by_shard = np.argsort(shard, kind="stable")
    return {
        "session": session, "sessions_by_shard": by_shard,
        "session_shards": _starts(shard[by_shard], plan.shards), "session_digest": digest[by_shard],
        "session_last": last[by_shard], "session_rows": np.bincount(session[known], minlength=len(firsts))[by_shard],
    }  # fmt: skip


def _starts(sorted_shards, shards) -> np.ndarray:
    """The start of each shard, and the end of the last one."""
    return np.searchsorted(sorted_shards, np.arange(shards + 1))
