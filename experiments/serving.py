"""Continuous batching: so many active requests, one token each a step; a finished one makes room for a waiting one.

A step admits the requests that fit, computes their prompts and takes their first token, then feeds every active
request's last token back for the next one. A request's last token is never fed back, so it has no place in the cache.
The load is closed: as many clients as the batch holds, each of which sends its next request after its answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvtrace._base.errors import UsageError
from kvtrace.trace.hits import Hits

from .prompts import Request


@dataclass(eq=False)
class Live:
    """A request while it is served, and its measurements afterwards."""

    request: Request
    row: int  # its place in the list of requests
    sequence: Any  # the cache's
    ttft: float = 0.0  # seconds from its place becoming free to its first token
    output: list[int] = field(default_factory=list)


class Model(Protocol):
    """The source of tokens: the engine, or random numbers."""

    def prefill(self, admitted: list[Live]) -> Sequence[int]:
        """The first token of each request that was just admitted."""

    def decode(self, live: list[Live]) -> Sequence[int]:
        """The next token of each live request, whose last one was just appended in the cache."""


@dataclass(frozen=True, eq=False)
class ServingRun:
    """The result of a run, requests in their order."""

    requests: list[Live]
    seconds: float
    steps: int
    admissions: list[int]  # how many requests each step admitted
    cache_seconds: float  # of those, spent in the cache's own calls

    def hits(self, block_size: int) -> Hits:
        """Hits of the prompts, each counted once, when its request was admitted."""
        sequences = [live.sequence for live in self.requests]
        tokens = [len(live.request.prompt) for live in self.requests]
        blocks = [-(-count // block_size) for count in tokens]
        return Hits(
            requests=len(sequences),
            hit_blocks=sum(sequence.hit_blocks for sequence in sequences),
            blocks=sum(blocks),
            hit_tokens=sum(sequence.hit_tokens for sequence in sequences),
            tokens=sum(tokens),
            request_hits=sum(sequence.hit_blocks / count for sequence, count in zip(sequences, blocks, strict=True)),
            requests_with_blocks=len(sequences),
        )


def serve(
    requests: list[Request], cache: Any, model: Model, *, batch: int, clock: Callable[[], float] = time.perf_counter
) -> ServingRun:
    """Serve requests in their order, `batch` of them live at once, their blocks in `cache`.

    UsageError if the cache cannot hold a single request.
    """
    waiting = deque(enumerate(requests))
    live: list[Live] = []
    done: list[Live] = []
    admissions: list[int] = []
    in_cache = 0.0
    start = now = clock()
    while waiting or live:
        admitted = _admit(waiting, cache, batch - len(live))
        if not admitted and not live:
            raise UsageError(
                f"a prompt of {len(waiting[0][1].prompt):,} tokens does not fit the cache. Give it more blocks."
            )
        in_cache += clock() - now
        if admitted:
            _take(admitted, model.prefill(admitted))
            for one in admitted:
                one.ttft = clock() - now
        admissions.append(len(admitted))
        live = _keep(live + admitted, cache, done)
        if live:
            before = clock()
            for one in live:
                cache.append(one.sequence, one.output[len(one.output) - 1])
            in_cache += clock() - before
            _take(live, model.decode(live))
            live = _keep(live, cache, done)
        now = clock()
    done.sort(key=lambda one: one.row)
    return ServingRun(done, now - start, len(admissions), admissions, in_cache)


def _admit(waiting, cache, places):
    """The requests that get a place, first come first; one that finds no blocks waits with all behind it."""
    from kvtrace.cache.live.prefix_cache import OutOfBlocks

    admitted = []
    while waiting and len(admitted) < places:
        row, request = waiting[0]
        try:
            sequence = cache.allocate(request.prompt)
        except OutOfBlocks:
            break
        waiting.popleft()
        admitted.append(Live(request, row, sequence))
    return admitted


def _take(live, tokens):
    for one, token in zip(live, tokens, strict=True):
        one.output.append(token)


def _keep(live, cache, done):
    """The unfinished requests; the blocks of the others are freed."""
    going = []
    for one in live:
        if len(one.output) < one.request.output_length:
            going.append(one)
        else:
            cache.free(one.sequence)
            done.append(one)
    return going
