"""The prefix cache of Lin's report with LRU, one request at a time, over lists: the definition of a simulation.

Match the leading resident blocks and pin them. Allocate the missing blocks root first; if the cache is full, evict the
least recently released unpinned block. When the request ends, release its blocks tail first.
"""


def hits(prompts, capacity):
    """Leading resident blocks of each prompt, in a cache of `capacity` blocks."""
    released = []  # resident and unpinned, the next victim first
    counts = []
    for prompt in prompts:
        matched = 0
        while matched < len(prompt) and prompt[matched] in released:
            matched += 1
        counts.append(matched)
        for block in prompt[:matched]:
            released.remove(block)  # pinned
        pinned = list(prompt[:matched])
        for block in prompt[matched:]:
            if block in released:
                released.remove(block)  # resident below a gap: computed again in place
            elif len(released) + len(pinned) >= capacity:
                if not released:
                    break  # the other blocks are not cached
                released.pop(0)
            pinned.append(block)
        released.extend(reversed(pinned))
    return counts
