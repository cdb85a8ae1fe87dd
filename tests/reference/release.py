"""A release in plain Python: each step builds new lists of named blocks, and counts its hits anew."""

from tests.reference.sharing import infer


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
    """Split the blocks of fewer than k contributors, until none is left to split."""
    while True:
        contributor, member, certain = _contributors(trace, rows, kind, users)
        of_block: dict = {}  # block -> contributor -> its members
        for row, (prompt, output) in enumerate(rows):
            for block in prompt + output:
                of_block.setdefault(block, {}).setdefault(contributor[row], set()).add(member[row])
        who = list(zip(contributor, member, strict=True))
        new = [
            tuple([_copy(block, of_block[block], *who[row], k) for block in part] for part in both)
            for row, both in enumerate(rows)
        ]
        if certain or new == rows:
            return new
        rows = new


def _copy(block, contributors, contributor, member, k):
    """The block, or a copy for one contributor, or for one member of it."""
    members = contributors[contributor]
    if len(contributors.keys() - {"unknown"}) >= k:
        return block
    if len(members) > 1 and len([one for one in members if one[0] == "known" and one[2] >= 0]) < k:
        return block, member  # requests without a user are one member of their account, and none counts them
    return (block, contributor) if len(contributors) > 1 else block


def _contributors(trace, rows, kind, users):
    """Users, else sessions, else inferred conversations; their members; and whether they stay the same after a split.

    `users` are numbers, -1 = unknown, or pairs of an account and its user.
    """
    sessions = [-1] * len(trace) if trace.session is None else trace.session.tolist()
    pairs = [
        user if isinstance(user, tuple) else (int(user), -1) for user in ([-1] * len(trace) if users is None else users)
    ]
    if max(account for account, _ in pairs) < 0:
        if max(sessions) < 0:
            found = infer([prompt for prompt, _ in rows], kind != "dropped")
            return found, found, False
        pairs, sessions = [(session, -1) for session in sessions], [-1] * len(trace)
    contributor = ["unknown" if account < 0 else ("known", account) for account, _ in pairs]
    member = [
        ("known", *pair) if pair[0] >= 0 else ("session", session) if session >= 0 else ("row", row)
        for row, (pair, session) in enumerate(zip(pairs, sessions, strict=True))
    ]
    return contributor, member, True
