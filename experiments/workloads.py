"""More kinds of prompts than Lin's report has (its future work 3): those that a prefix cache meets in practice.

Each maker takes a source of randomness, how many requests, and the vocabulary; a workload is one row of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .prompts import Mix, Request, lengths, repeated, tokens, with_outputs

Maker = Callable[[np.random.Generator, int, int], list[Request]]
OUTPUTS = (4, 16)  # tokens: short, so that prompts matter
PREAMBLE, QUESTION = 256, (8, 48)  # tokens
TURNS, TURN = 6, (16, 48)


def random(rng: np.random.Generator, requests: int, vocabulary: int) -> list[Request]:
    """Nothing is shared: the cost of the cache."""
    return with_outputs(rng, [tokens(rng, vocabulary, size) for size in lengths(rng, (32, 256), requests)], OUTPUTS)


def report(rng: np.random.Generator, requests: int, vocabulary: int) -> list[Request]:
    """The report's mix at p = 0.5, prompts of 15 tokens."""
    return Mix(p=0.5, requests=requests, output_length=OUTPUTS, vocabulary=vocabulary).draw(rng)


def identical(rng: np.random.Generator, requests: int, vocabulary: int) -> list[Request]:
    """The report's one prompt, of 6 tokens."""
    return repeated(6, requests, OUTPUTS, rng, vocabulary)


def preamble(rng: np.random.Generator, requests: int, vocabulary: int) -> list[Request]:
    """Two system prompts of 256 tokens, each request with a question of its own after one of them."""
    shared = [tokens(rng, vocabulary, PREAMBLE) for _ in range(2)]
    questions = [tokens(rng, vocabulary, size) for size in lengths(rng, QUESTION, requests)]
    return with_outputs(
        rng, [np.concatenate([shared[int(rng.integers(2))], question]) for question in questions], OUTPUTS
    )


def conversation(rng: np.random.Generator, requests: int, vocabulary: int) -> list[Request]:
    """Conversations of 6 turns, many at a time: each prompt is the one before it, an answer and a question more."""
    talks = -(-requests // TURNS)
    sizes = lengths(rng, TURN, (talks, TURNS)).cumsum(axis=1)
    texts = [tokens(rng, vocabulary, size[TURNS - 1]) for size in sizes]
    prompts = [texts[talk][: sizes[talk, turn]] for turn in range(TURNS) for talk in range(talks)]
    return with_outputs(rng, prompts[:requests], OUTPUTS)


@dataclass(frozen=True)
class Row:
    """A workload: the function that makes it, and the tokens of its longest request, output included."""

    make: Maker
    longest: int
    about: str


WORKLOADS: dict[str, Row] = {
    "random": Row(random, 256 + OUTPUTS[1], "nothing shared, 32 to 256 tokens"),
    "report": Row(report, 15 + OUTPUTS[1], "the report's mix, p = 0.5, 15 tokens"),
    "identical": Row(identical, 6 + OUTPUTS[1], "one prompt of 6 tokens"),
    "preamble": Row(preamble, PREAMBLE + QUESTION[1] + OUTPUTS[1], "two system prompts of 256 tokens, then a question"),
    "conversation": Row(conversation, TURNS * TURN[1] + OUTPUTS[1], "6 turns of 16 to 48 tokens, many talks at a time"),
}  # fmt: skip
