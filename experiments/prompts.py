"""Lin's report's prompts: a request is one of a few frequent sequences with probability p, else random tokens.

The report states 1,000 requests, random ones of 15 tokens, p from 0.1 to 1.0. It does not state how many frequent
sequences there are, how long they are, or how long outputs become: those defaults are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvtrace._base.errors import UsageError

Lengths = tuple[int, int]  # minimum and maximum; each length between them is equally likely
WHAT_IS_YOUR_NAME = 6  # tokens of "What is your name?", a start token before it


@dataclass(frozen=True, eq=False)
class Request:
    """One request: its prompt, the length of its output, and the seed of its output."""

    prompt: np.ndarray  # int32 tokens
    output_length: int
    seed: int


@dataclass(frozen=True)
class Mix:
    """The report's generator; UsageError where its numbers make no prompts.

    >>> [len(request.prompt) for request in Mix(p=0.5, requests=3).draw(np.random.default_rng(0))]
    [15, 15, 15]
    """

    p: float = 0.5  # probability that a request is a frequent sequence
    requests: int = 1000
    frequent: int = 10  # sequences in the pool, all equally likely
    pools: int = 1  # one after the other: the frequent sequences change pools - 1 times
    frequent_length: Lengths = (15, 15)  # tokens; as long as the random ones
    random_length: int = 15
    output_length: Lengths = (16, 128)
    vocabulary: int = 32_000  # tokens are drawn from 0 ... vocabulary - 1

    def __post_init__(self):
        if not 0 <= self.p <= 1:
            raise UsageError(f"probability {self.p:g} is not between 0 and 1.")
        for name in ("requests", "frequent", "pools", "random_length", "vocabulary"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        check_lengths("frequent_length", self.frequent_length)
        check_lengths("output_length", self.output_length)

    def draw(self, rng: np.random.Generator) -> list[Request]:
        """The requests; equal seeds give equal ones, and a greater p replaces random ones and leaves the rest."""
        sizes = lengths(rng, self.frequent_length, self.frequent * self.pools)
        pool = [tokens(rng, self.vocabulary, size) for size in sizes]
        which = np.arange(self.requests) * self.pools // self.requests * self.frequent  # the first of the pool in use
        which += rng.integers(self.frequent, size=self.requests)
        frequent = rng.random(self.requests) < self.p
        others = tokens(rng, self.vocabulary, (self.requests, self.random_length))
        prompts = [pool[which[row]] if frequent[row] else others[row] for row in range(self.requests)]
        return with_outputs(rng, prompts, self.output_length)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its output included."""
        return max(self.frequent_length[1], self.random_length) + self.output_length[1]


def repeated(
    prompt_length: int, requests: int, output_length: Lengths, rng: np.random.Generator, vocabulary: int = 32_000
) -> list[Request]:
    """The report's other prompt: the same one in all requests; the outputs differ.

    >>> one, other = repeated(3, 2, (1, 9), np.random.default_rng(0))
    >>> one.prompt.tolist() == other.prompt.tolist()
    True
    """
    if prompt_length < 1:
        raise UsageError(f"prompt_length is {prompt_length}; it must be at least 1.")
    return with_outputs(rng, [tokens(rng, vocabulary, prompt_length)] * requests, output_length)


def with_outputs(rng: np.random.Generator, prompts: list[np.ndarray], output_length: Lengths) -> list[Request]:
    """Requests of some prompts, with output lengths and seeds drawn."""
    outputs, seeds = lengths(rng, output_length, len(prompts)), rng.integers(1 << 62, size=len(prompts))
    return [
        Request(prompt, int(output), int(seed)) for prompt, output, seed in zip(prompts, outputs, seeds, strict=True)
    ]


def tokens(rng: np.random.Generator, vocabulary: int, size) -> np.ndarray:
    """Random tokens."""
    return rng.integers(vocabulary, size=size, dtype=np.int32)


def lengths(rng: np.random.Generator, between: Lengths, size: int | tuple[int, ...]) -> np.ndarray:
    """Lengths between two, both of which occur."""
    return rng.integers(between[0], between[1] + 1, size=size)


def check_lengths(name: str, between: Lengths) -> None:
    """UsageError for a range that is empty or begins below 1."""
    low, high = between
    if not 1 <= low <= high:
        raise UsageError(f"{name} is {low}:{high}; the minimum must be at least 1, the maximum not below it.")
