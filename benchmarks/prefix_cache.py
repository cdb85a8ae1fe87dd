"""The live prefix cache: time a block and a token, beside one in plain Python; run alone, it prints the docs' table."""

from __future__ import annotations

import time
from collections import OrderedDict

import numpy as np

from kvtrace.cache.live.prefix_cache import PrefixCache

from .apart import apart, medians
from .table import Claim, show

SLOTS, BLOCK, PROMPT, OUTPUT, REQUESTS = 100_000, 16, 64, 16, 1_000  # the latter four in tokens, blocks, blocks, times
PROMISED = {"block": 1_000, "token": 500}  # ns: 1 M blocks and 2 M appended tokens a second


class Plain:
    """A prefix cache of full blocks as one writes it in an afternoon: a dictionary, and an ordered one for the pool."""

    def __init__(self, slots, block_size):
        self.block_size, self.slot_of, self.pool = block_size, {}, OrderedDict()
        self.references, self.unused = [0] * slots, list(range(slots))

    def allocate(self, tokens):
        """The names of the blocks, each (hash of the one before, own tokens)."""
        names, before = [], None
        for start in range(0, len(tokens), self.block_size):
            name = (before, tuple(tokens[start : start + self.block_size]))
            before = hash(name)
            if name not in self.slot_of:
                if not self.unused:
                    self.unused.append(self.slot_of.pop(self.pool.popitem(last=False)[0]))
                self.slot_of[name] = self.unused.pop()
            self.pool.pop(name, None)
            self.references[self.slot_of[name]] += 1
            names.append(name)
        return names

    def free(self, names):
        """Put what nobody holds into the pool, tail first."""
        for name in reversed(names):
            self.references[self.slot_of[name]] -= 1
            if self.references[self.slot_of[name]] == 0:
                self.pool[name] = None


def claims(rounds: int) -> list[Claim]:
    """Nanoseconds a block and a token beside plain Python's, and beside what was promised."""
    taken = medians(
        {"blocks": (blocks, "hierarchical"), "tokens": (appends, "hierarchical"), "plain": (plain,)}, rounds
    )
    return [
        Claim("PrefixCache / plain Python, allocate and free", taken["blocks"], taken["plain"], "ns/block", 0.2),
        Claim("allocate, append_many, free / promised", taken["blocks"], PROMISED["block"], "ns/block", 1),
        Claim("append / promised", taken["tokens"], PROMISED["token"], "ns/token", 1),
    ]


def blocks(hashing: str, hit: bool = False) -> float:
    """ns a block of allocate, append_many and free together, in a full cache; with `hit` all prompts are cached."""
    cache = PrefixCache(SLOTS, BLOCK, hashing=hashing)
    warm, measured = prompts(7, 2 * SLOTS // PROMPT), prompts(8, REQUESTS)
    outputs = prompts(9, REQUESTS, OUTPUT)
    for prompt in [*warm, *(measured if hit else [])]:
        cache.free(cache.allocate(prompt))
    start = time.perf_counter()
    for prompt, output in zip(measured, outputs, strict=True):
        sequence = cache.allocate(prompt)
        cache.append_many(sequence, output)
        cache.free(sequence)
    return 1e9 * (time.perf_counter() - start) / (REQUESTS * (PROMPT + OUTPUT))


def appends(hashing: str, prompt_tokens: int = 0) -> float:
    """ns a token of append, 256 at a time after a prompt."""
    cache, count = PrefixCache(SLOTS, BLOCK, hashing=hashing), 0
    seconds = 0.0
    append = cache.append
    for number in range(200):
        sequence = cache.allocate(np.full(prompt_tokens, number, dtype=np.int32))
        start = time.perf_counter()
        for token in range(256 * number, 256 * number + 256):
            append(sequence, token)
        seconds += time.perf_counter() - start
        count += 256
        cache.free(sequence)
    return 1e9 * seconds / count


def plain() -> float:
    """ns a block of the rival, in a cache that is full."""
    cache = Plain(SLOTS, BLOCK)
    for prompt in prompts(7, 2 * SLOTS // PROMPT):
        cache.free(cache.allocate(prompt.tolist()))
    measured = [prompt.tolist() for prompt in prompts(8, REQUESTS, PROMPT + OUTPUT)]
    start = time.perf_counter()
    for prompt in measured:
        cache.free(cache.allocate(prompt))
    return 1e9 * (time.perf_counter() - start) / (REQUESTS * (PROMPT + OUTPUT))


def prompts(seed: int, count: int, length: int = PROMPT) -> list[np.ndarray]:
    """Random prompts of so many blocks."""
    return list(np.random.default_rng(seed).integers(0, 100_000, (count, length * BLOCK), dtype=np.int32))


def costs() -> None:
    """Print the table of docs/cache/prefix-cache.md."""
    rows = {
        "a new block: allocate or append_many, an eviction, free": (blocks,),
        "a block, 4 of 5 hit": (blocks, True),
        "a token appended": (appends,),
        "a token appended after a prompt of 4,096": (appends, 4_096),
    }
    for name, (function, *arguments) in rows.items():
        both = (apart(function, hashing, *arguments) for hashing in ("hierarchical", "direct"))
        print(f"| {name} | {' | '.join(f'{ns:,.0f} ns' for ns in both)} |")


if __name__ == "__main__":
    costs()
    show(claims(3))
