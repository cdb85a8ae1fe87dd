"""The live prefix cache: time a block and a token, beside one in plain Python."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from kvtrace.cache.live.prefix_cache import PrefixCache

from .measuring import Line, python_step

SLOTS, BLOCK, PROMPT, OUTPUT, REQUESTS = 100_000, 16, 64, 16, 1_000  # the latter four in tokens, blocks, blocks, times


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


def lines(folder: str, share: float) -> Iterator[Line]:
    """A block and a token beside plain Python's and a Python step, under both ways to hash."""
    requests = round(REQUESTS * share)
    for hashing in ("hierarchical", "direct"):
        new, hit, token = (blocks, requests, hashing), (blocks, requests, hashing, True), (appends, requests, hashing)
        after, promise = (*token, 4_096), hashing == "hierarchical"
        yield Line(
            f"PrefixCache, {hashing}, new blocks / plain Python", "ns", new, (plain, requests), 0.2 if promise else None
        )
        yield Line("... a new block / Python step", "ns", new, (python_step,), 5 if promise else None)
        yield Line("... a block, 4 of 5 hit / Python step", "ns", hit, (python_step,))
        yield Line("... a token appended / Python step", "ns", token, (python_step,), 3 if promise else None)
        yield Line("... a token after a prompt of 4,096 / Python step", "ns", after, (python_step,))


def blocks(requests: int, hashing: str, hit: bool = False) -> float:
    """Seconds a block of allocate, append_many and free in a full cache; with `hit` all prompts are cached."""
    cache = PrefixCache(SLOTS, BLOCK, hashing=hashing)
    warm, measured = prompts(7, 2 * SLOTS // PROMPT), prompts(8, requests)
    outputs = prompts(9, requests, OUTPUT)
    for prompt in [*warm, *(measured if hit else [])]:
        cache.free(cache.allocate(prompt))
    start = time.process_time()
    for prompt, output in zip(measured, outputs, strict=True):
        sequence = cache.allocate(prompt)
        cache.append_many(sequence, output)
        cache.free(sequence)
    return (time.process_time() - start) / (requests * (PROMPT + OUTPUT))


def appends(requests: int, hashing: str, prompt_tokens: int = 0) -> float:
    """Seconds a token of append, 256 at a time after a prompt."""
    cache, count = PrefixCache(SLOTS, BLOCK, hashing=hashing), 0
    seconds = 0.0
    append = cache.append
    for number in range(max(5, requests // 5)):
        sequence = cache.allocate(np.full(prompt_tokens, number, dtype=np.int32))
        start = time.process_time()
        for token in range(256 * number, 256 * number + 256):
            append(sequence, token)
        seconds += time.process_time() - start
        count += 256
        cache.free(sequence)
    return seconds / count


def plain(requests: int) -> float:
    """Seconds a block of the rival, in a cache that is full."""
    cache = Plain(SLOTS, BLOCK)
    for prompt in prompts(7, 2 * SLOTS // PROMPT):
        cache.free(cache.allocate(prompt.tolist()))
    measured = [prompt.tolist() for prompt in prompts(8, requests, PROMPT + OUTPUT)]
    start = time.process_time()
    for prompt in measured:
        cache.free(cache.allocate(prompt))
    return (time.process_time() - start) / (requests * (PROMPT + OUTPUT))


def prompts(seed: int, count: int, length: int = PROMPT) -> list[np.ndarray]:
    """Random prompts of so many blocks."""
    return list(np.random.default_rng(seed).integers(0, 100_000, (count, length * BLOCK), dtype=np.int32))
