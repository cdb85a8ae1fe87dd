"""Two exclusive LRU tiers over lists: the first tier's victims go to the second, and return to the first when used."""


def hits(prompts, first, second):
    """(leading hit blocks in tier one, in tier two) of each prompt, for tiers of `first` and `second` blocks."""
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
