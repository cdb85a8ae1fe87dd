"""Conversations inferred by looking: who used a block last, and how many ways lead on from it."""


def parents(prompts, most_ways=2):
    """The row that each request follows, -1 where it begins a conversation."""
    ways = {}  # block -> what follows it in prompts, an end being one of a kind
    for row, prompt in enumerate(prompts):
        for place, block in enumerate(prompt):
            ends = place + 1 == len(prompt)
            ways.setdefault(block, set()).add(("end", row) if ends else prompt[place + 1])
    last_user, found = {}, []
    for row, prompt in enumerate(prompts):
        seen = [block for block in prompt if block in last_user]
        found.append(last_user[seen[-1]] if seen and len(ways[seen[-1]]) <= most_ways else -1)
        last_user.update(dict.fromkeys(prompt, row))
    return found


def sessions(prompts):
    """The conversation of each request: its parent's, or the next new number."""
    found, count = [], 0
    for parent in parents(prompts):
        found.append(count if parent < 0 else found[parent])
        count += parent < 0
    return found
