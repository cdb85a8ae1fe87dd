"""Attachment, the slow way: finds each request's attachment by search."""

from itertools import pairwise

FULL_KINDS = 15


def kind_of(distance, uses):
    """The kind of a full block: its distance from the end of the last path that used it, and its uses."""
    band = 0 if distance == 0 else 1 if distance == 1 else 2 if distance <= 3 else 3 if distance <= 10 else 4
    return 3 * band + min(uses, 3) - 1


def walk(prompts, unseen, parents=None):
    """(hits, kind, continues) of each prompt; `unseen`: 1 if a partial block is not among its ids."""
    attachments, users, follow = [], {}, {}
    for prompt in prompts:
        for block, after in pairwise(prompt):
            follow.setdefault(block, set()).add(after)
    for row, prompt in enumerate(prompts):
        hits = 0
        while hits < len(prompt) and prompt[hits] in users:
            hits += 1
        kind, continues = 0, 0
        if hits:
            block = prompt[hits - 1]
            last = users[block][-1]
            kind = kind_of(len(prompts[last]) + unseen[last] - hits, len(users[block]))
            more = len(prompt) + unseen[row] > hits
            continues = int(more and len(follow.get(block, ())) <= 3)
        if parents is not None:
            continues = int(parents[row] >= 0)
        attachments.append((hits, kind, continues))
        for block in prompt:
            users.setdefault(block, []).append(row)
    return attachments
