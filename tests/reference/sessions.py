"""Conversations inferred by search: the last request that used a block, and the blocks that follow it."""


def parents(prompts, most_ways=2):
    """The row that each request follows, -1 if it begins a conversation."""
    ways = {}  # block -> the blocks that follow it in prompts; each end of a prompt is a follower of its own
    for row, prompt in enumerate(prompts):
        for place, block in enumerate(prompt):
            ends = place + 1 == len(prompt)
            ways.setdefault(block, set()).add(("end", row) if ends else prompt[place + 1])
    last_user, parent_of = {}, []
    for row, prompt in enumerate(prompts):
        seen = [block for block in prompt if block in last_user]
        parent_of.append(last_user[seen[-1]] if seen and len(ways[seen[-1]]) <= most_ways else -1)
        last_user.update(dict.fromkeys(prompt, row))
    return parent_of


def sessions(prompts):
    """The conversation of each request: its parent's, or the next new number."""
    session_of, count = [], 0
    for parent in parents(prompts):
        session_of.append(count if parent < 0 else session_of[parent])
        count += parent < 0
    return session_of
