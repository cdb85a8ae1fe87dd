"""Two LRU tiers that never hold a block twice, over lists: what leaves the first goes to the second, and may return."""


def hits(prompts, first, second):
    """(leading blocks found in tier one, in tier two) of each prompt, for tiers of so many blocks."""
    upper, lower = [], []  # the next victim first
    counts = []
    for prompt in prompts:
        matched = 0
        while matched < len(prompt) and prompt[matched] in upper + lower:
            matched += 1
        above = sum(block in upper for block in prompt[:matched])
        counts.append((above, matched - above))
        upper = [block for block in upper if block not in prompt]
        lower = [block for block in lower if block not in prompt]
        while upper and len(upper) + len(prompt) > first:
            lower.append(upper.pop(0))
        lower = lower[max(0, len(lower) - second) :]
        upper += reversed(prompt)
    return counts
