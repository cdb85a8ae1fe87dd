"""Who shares which block, by sets: contributors counted, blocks split, conversations inferred request by request."""


def count_contributors(rows, contributor, distinct):
    """Different contributors of each block; `rows` are all ids of each request."""
    users = [set() for _ in range(distinct)]
    for row, ids in enumerate(rows):
        for block in ids:
            users[block].add(contributor[row])
    return [len(found) for found in users]


def split(rows, contributor, is_split):
    """Each request's ids, named so that a block that is split is another one for each contributor."""
    return [
        [(block, contributor[row]) if is_split[block] else (block, None) for block in ids]
        for row, ids in enumerate(rows)
    ]


def infer(prompts, tails, several=3):
    """The conversation of each request: that of the last request that used its deepest block seen before."""
    last, users, found = {}, {}, []
    for row, prompt in enumerate(prompts):
        depth = 0
        while depth < len(prompt) and prompt[depth] in last:
            depth += 1
        session = max(found, default=-1) + 1
        if depth:
            before = last[prompt[depth - 1]]
            if depth >= len(prompts[before]) - tails and len(users[prompt[depth - 1]]) < several:
                session = found[before]
        found.append(session)
        for block in prompt:
            last[block] = row
            users.setdefault(block, set()).add(session)
    return found


def release_by_k(trace, contributor, k):
    """Ids of prompts and outputs, a list a request, after blocks of 2 to k - 1 contributors were split."""
    rows = [trace.prompt(row).tolist() for row in range(len(trace))]
    if trace.output_ids is not None:
        for row, ids in enumerate(rows):
            ids += trace.output_ids[trace.output_offsets[row] : trace.output_offsets[row + 1]].tolist()
    count = count_contributors(rows, contributor, trace.distinct)
    named, number = split(rows, contributor, [1 < users < k for users in count]), {}
    return [[number.setdefault(name, len(number)) for name in ids] for ids in named]
