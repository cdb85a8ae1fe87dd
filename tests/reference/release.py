"""A release in plain Python: each step builds new lists of named blocks, and counts its hits anew."""

from tests.reference.sharing import count_contributors, infer


def release(trace, *, tail="kept", k=1, users=None, isolate=False):
    """Ids of each row's prompt and output after tails, isolation and k-sharing, and [(step, hit blocks)]."""
    rows = [(trace.prompt(row).tolist(), _output(trace, row)) for row in range(len(trace))]
    steps, kind = [("original", hits(rows))], trace.tail
    if ("kept", "unique", "dropped").index(tail) > ("kept", "unique", "dropped").index(trace.tail):
        rows, kind = [_with_tail(trace, row, *both, tail) for row, both in enumerate(rows)], tail
        steps.append((f"tails_{tail}", hits(rows)))
    if isolate:
        rows = _shared(trace, rows, kind, float("inf"), users)
        steps.append(("tenants_isolated", hits(rows)))
    if k > 1:
        rows = _shared(trace, rows, kind, k, users)
        steps.append(("k_sharing", hits(rows)))
    number = {}
    return [tuple([number.setdefault(block, len(number)) for block in part] for part in both) for both in rows], steps


def hits(rows):
    """Leading blocks of prompts that earlier prompts have."""
    seen, total = set(), 0
    for prompt, _ in rows:
        for block in prompt:
            if block not in seen:
                break
            total += 1
        seen.update(prompt)
    return total


def _output(trace, row):
    if trace.output_ids is None:
        return []
    return trace.output_ids[trace.output_offsets[row] : trace.output_offsets[row + 1]].tolist()


def _with_tail(trace, row, prompt, output, tail):
    length = int(trace.input_length[row])
    both = length + int(trace.output_length[row])
    changed = []
    for name, blocks, tokens in (("prompt", prompt, length), ("output", output, both)):
        if blocks and tokens % trace.block_size:
            blocks = [*blocks[:-1], *([(name, row)] if tail == "unique" else [])]
        changed.append(blocks)
    return tuple(changed)


def _shared(trace, rows, kind, k, users):
    """Split the blocks of 2 to k - 1 contributors, until none is left."""
    while True:
        whole = [prompt + output for prompt, output in rows]
        contributor, certain = _contributors(trace, rows, kind, users)
        number = {block: n for n, block in enumerate(dict.fromkeys(block for row in whole for block in row))}
        count = count_contributors([[number[block] for block in row] for row in whole], contributor, len(number))
        few = {block for block, n in number.items() if 1 < count[n] < k}
        rows = [
            tuple([(block, contributor[row]) if block in few else block for block in part] for part in both)
            for row, both in enumerate(rows)
        ]
        if certain or not few:
            return rows


def _contributors(trace, rows, kind, users):
    """Users, else sessions, else inferred conversations; and whether they stay the same after a split."""
    sessions = [-1] * len(trace) if trace.session is None else trace.session.tolist()
    users = [-1] * len(trace) if users is None else list(users)
    if max(users, default=-1) < 0 and max(sessions, default=-1) < 0:
        return infer([prompt for prompt, _ in rows], kind != "dropped"), False
    named = zip(users, sessions, range(len(trace)), strict=True)
    return [("user", u) if u >= 0 else ("session", s) if s >= 0 else ("row", r) for u, s, r in named], True
