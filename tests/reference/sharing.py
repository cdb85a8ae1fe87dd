"""Sharing of blocks, with sets: counts contributors, splits blocks, infers conversations request by request."""


def count_contributors(rows, contributor, distinct):
    """Number of different contributors of each block; `rows` has all ids of each request."""
    users = [set() for _ in range(distinct)]
    for row, ids in enumerate(rows):
        for block in ids:
            users[block].add(contributor[row])
    return [len(contributors) for contributors in users]


def split(rows, contributor, is_split):
    """Each request's ids as pairs: a split block is a different pair for each contributor."""
    return [
        [(block, contributor[row]) if is_split[block] else (block, None) for block in ids]
        for row, ids in enumerate(rows)
    ]


def runs(rows, is_alone):
    """Each request's blocks, joined where the same requests have them; a last block in `is_alone` joins no other."""
    users = {}
    for row, ids in enumerate(rows):
        for block in ids:
            users.setdefault(block, set()).add(row)
    alone, joined = {ids[-1] for ids, is_last in zip(rows, is_alone, strict=True) if is_last and ids}, []
    for ids in rows:
        parts = []
        for before, block in zip([None, *ids], ids, strict=False):
            is_joined = before is not None and users[before] == users[block] and not {before, block} & alone
            parts = [*parts[:-1], [*parts[-1], block]] if is_joined else [*parts, [block]]
        joined.append(parts)
    return joined


def infer(prompts, tails, several=3):
    """The conversation of each request: that of the last request that used its deepest block seen before."""
    last, users, session_of = {}, {}, []
    for row, prompt in enumerate(prompts):
        depth = 0
        while depth < len(prompt) and prompt[depth] in last:
            depth += 1
        session = max(session_of, default=-1) + 1
        if depth:
            before = last[prompt[depth - 1]]
            if depth >= len(prompts[before]) - tails and len(users[prompt[depth - 1]]) < several:
                session = session_of[before]
        session_of.append(session)
        for block in prompt:
            last[block] = row
            users.setdefault(block, set()).add(session)
    return session_of


def unsettled(rows, count, k):
    """The place in each row from which a split of blocks of 2 to k - 1 conversations may lead to more splits."""
    split_here = {block for row in rows for block in row if 1 < count[block] < k}
    changes, is_safe, starts = set(), set(), []
    for row in rows:
        changes |= {block for at, block in enumerate(row) if split_here & set(row[at:])}
    for row in rows:
        is_safe |= {block for at, block in enumerate(row) if any(count[b] >= k for b in set(row[at:]) - changes)}
    for row in rows:
        at = next((at for at, block in enumerate(row) if block not in is_safe), len(row))
        starts.append(at if row[at:] and row[at] in changes else len(row))
    return starts


def release_by_k(trace, contributor, k, unknown=-1):
    """Ids of prompt and output, one list per request, after splitting blocks of fewer than k known contributors."""
    rows = [trace.prompt(row).tolist() for row in range(len(trace))]
    if trace.output_ids is not None:
        for row, ids in enumerate(rows):
            ids += trace.output_ids[trace.output_offsets[row] : trace.output_offsets[row + 1]].tolist()
    users = [set() for _ in range(trace.distinct)]
    for row, ids in enumerate(rows):
        for block in ids:
            users[block].add(int(contributor[row]))
    named, number = split(rows, contributor, [len(found - {unknown}) < k for found in users]), {}
    return [[number.setdefault(name, len(number)) for name in ids] for ids in named]
