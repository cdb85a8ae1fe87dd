"""Runs of the engine with and without prefix caching, taken in turns so that noise of the machine hits both.

One pair is the same requests served twice, each time by a fresh engine; pairs alternate in which comes first, and each
repeat has prompts of its own seed. What caching gains is the ratio within a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvtrace._base.errors import UsageError
from kvtrace.analysis.distribution import Distribution
from kvtrace.trace.hits import Hits

from .engine import Engine
from .model import Shape, Transformer
from .prompts import Request
from .pytorch import torch
from .settings import Serving

ARMS = ("without", "with_cache")


@dataclass(frozen=True)
class Machine:
    """What the model runs on; one thread is the steadier choice for a model as small as this."""

    threads: int = 1
    device: str | None = None  # None: a GPU if there is one, else the CPU

    def __post_init__(self):
        if self.threads < 1:
            raise UsageError(f"threads is {self.threads}; it must be at least 1.")


@dataclass(frozen=True)
class Run:
    """One run of the engine: counts and seconds."""

    hits: Hits
    output_tokens: int
    computed_tokens: int  # of prompts, that went through the model
    seconds: float
    cache_seconds: float  # in the cache's own calls, its callbacks among them
    ttft_ms: np.ndarray  # of each request, from its place becoming free to its first token

    @property
    def items_per_second(self) -> float:
        """Requests a second, the report's metric."""
        return self.hits.requests / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Counts, seconds, and the figures that follow; `ttft_ms` over the requests."""
        return {
            "items_per_second": self.items_per_second, "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds, "cache_seconds": self.cache_seconds, "output_tokens": self.output_tokens,
            "computed_tokens": self.computed_tokens, "ttft_ms": Distribution.of(self.ttft_ms, [0.9]).to_dict(),
            "hits": self.hits.to_dict(),
        }  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """The same requests served without prefix caching, and with it."""

    without: Run
    with_cache: Run

    @property
    def gain(self) -> float:
        """Items per second with caching / without."""
        return self.without.seconds / self.with_cache.seconds

    @property
    def saved(self) -> float:
        """The share of prompt tokens that were not computed."""
        return 1 - self.with_cache.computed_tokens / self.without.computed_tokens

    def to_dict(self) -> dict[str, Any]:
        """`gain`, `saved`, and both runs."""
        runs = {arm: getattr(self, arm).to_dict() for arm in ARMS}
        return {"gain": self.gain, "saved": self.saved, **runs}


@dataclass(frozen=True)
class Pairs:
    """One pair for each repeat."""

    pairs: tuple[Pair, ...]

    def items_per_second(self, arm: str) -> Distribution:
        """Of one arm (`without`, `with_cache`), over the repeats."""
        return self._over(lambda pair: getattr(pair, arm).items_per_second)

    @property
    def gain(self) -> Distribution:
        """Items per second with caching / without, over the repeats."""
        return self._over(lambda pair: pair.gain)

    @property
    def saved(self) -> Distribution:
        """The share of prompt tokens that were not computed, over the repeats."""
        return self._over(lambda pair: pair.saved)

    @property
    def cache_share(self) -> Distribution:
        """The share of its time that the cached run spends in the cache's own calls, over the repeats."""
        return self._over(lambda pair: pair.with_cache.cache_seconds / pair.with_cache.seconds)

    def ttft_ms(self, arm: str, quantile: float) -> Distribution:
        """A quantile of one arm's times to first token, over the repeats."""
        return self._over(lambda pair: float(np.quantile(getattr(pair, arm).ttft_ms, quantile)))

    @property
    def pays(self) -> str:
        """`yes` if at least three of four repeats gain, `no` if three of four lose, else `even`."""
        low, high = self.gain.p25 or 0.0, self.gain.p75 or 0.0
        return "yes" if low > 1 else "no" if high < 1 else "even"

    def to_dict(self) -> dict[str, Any]:
        """The figures over the repeats, and the pairs."""
        arms = {f"items_per_second_{arm}": self.items_per_second(arm).to_dict() for arm in ARMS}
        shares = {"gain": self.gain.to_dict(), "saved": self.saved.to_dict(), "cache_share": self.cache_share.to_dict()}
        return arms | shares | {"pays": self.pays, "pairs": [pair.to_dict() for pair in self.pairs]}

    def _over(self, figure: Callable[[Pair], float]) -> Distribution:
        return Distribution.of(np.array([figure(pair) for pair in self.pairs]))


class Bench:
    """A model, and pairs of runs of it."""

    def __init__(self, shape: Shape | None = None, machine: Machine | None = None, *, seed: int = 0):
        self.machine = machine or Machine()
        self.model = Transformer(shape, seed=seed, device=self.machine.device)

    @contextmanager
    def running(self) -> Iterator[Bench]:
        """Within: so many threads, and a model that has run once, since the first run of all is slow."""
        module = torch()
        before = module.get_num_threads()
        module.set_num_threads(self.machine.threads)
        try:
            warm = [Request(np.zeros(32, dtype=np.int32), 4, 0)] * 8
            for arm in ARMS:
                self.run(warm, Serving(), 36, arm)
            yield self
        finally:
            module.set_num_threads(before)

    def pair(self, requests: list[Request], serving: Serving, longest: int, repeat: int) -> Pair:
        """Both arms on the same requests; which is first changes with the repeat."""
        order = ARMS if repeat % 2 == 0 else ARMS[::-1]
        return Pair(**{arm: self.run(requests, serving, longest, arm) for arm in order})

    def run(self, requests: list[Request], serving: Serving, longest: int, arm: str) -> Run:
        """One arm, in a fresh engine with empty blocks."""
        engine = Engine(self.model, serving, longest, caching=arm == "with_cache")
        served = engine.serve(requests)
        return Run(
            hits=served.hits(serving.block_size),
            output_tokens=sum(len(one.output) for one in served.requests),
            computed_tokens=engine.computed_tokens,
            seconds=served.seconds,
            cache_seconds=served.cache_seconds,
            ttft_ms=np.array([1000 * one.ttft for one in served.requests]),
        )

    def to_dict(self) -> dict[str, Any]:
        """The model's shape, and what it ran on."""
        on = {"device": self.model.device, "torch": self.model.torch.__version__}
        return {"model": asdict(self.model.shape), "machine": asdict(self.machine) | on}


def check_repeats(repeats: int) -> None:
    """UsageError for less than one repeat."""
    if repeats < 1:
        raise UsageError(f"repeats is {repeats}; it must be at least 1.")


def check_vocabulary(vocabulary: int, shape: Shape) -> None:
    """UsageError for prompts with tokens outside the model's vocabulary."""
    if vocabulary > shape.vocabulary:
        raise UsageError(
            f"the prompts' vocabulary ({vocabulary:,} tokens) is larger than the model's "
            f"({shape.vocabulary:,}). Use equal sizes."
        )
