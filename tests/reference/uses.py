"""Uses, hits and depths of blocks, with dictionaries and sets."""

from collections import Counter


def walk(prompts):
    """Uses of each block, hits of each prompt, and {band: (distinct blocks, references, blocks used twice or more)}."""
    uses = Counter(block for prompt in prompts for block in prompt)
    seen, hits = set(), []
    for prompt in prompts:
        fresh = [place for place, block in enumerate(prompt) if block not in seen]
        hits.append(fresh[0] if fresh else len(prompt))
        seen |= set(prompt)
    depth = {block: place + 1 for prompt in prompts for place, block in enumerate(prompt)}
    bands = {}
    for block, d in depth.items():
        band = next(b for b in range(64) if d <= 2**b)
        before = bands.get(band, (0, 0, 0))
        bands[band] = (before[0] + 1, before[1] + uses[block], before[2] + (uses[block] > 1))
    return uses, hits, bands


def context(prompts, lengths, block_size):
    """Tokens of each prompt in (position, id) pairs that occur more than once, as datagen defines it."""
    pairs = Counter(pair for prompt in prompts for pair in enumerate(prompt))
    context_tokens = []
    for prompt, length in zip(prompts, lengths, strict=True):
        repeated = sum(pairs[pair] > 1 for pair in enumerate(prompt))
        context_tokens.append(length if repeated == len(prompt) else repeated * block_size)
    return context_tokens
