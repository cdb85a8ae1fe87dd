"""A cure of misses, one change of a run, and the baseline with which it is compared.

The baseline is the explained simulation: its tokens, seconds of prefill, and USD. The worth of a cure is the prompt
tokens that would then be hits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._base.results import Described, column
from ..._base.units import duration
from ...cache.layout import CacheLayout
from ...cache.simulation import Simulation
from ...trace.hits import leading_tokens
from ..hardware.gpus import Prices
from ..hardware.roofline import Roofline
from ..run import Run
from .causes import lifetime_ms
from .explanation import Explanation, simulate_one

GIB = 1 << 30
BASES = {
    "simulated": "the same trace simulated with this change",
    "estimated": "computed from the explained simulation",
    "bound": "no more than this is possible",
}


@dataclass(frozen=True)
class Amount(Described):
    """How much of a cure reaches a share of what its cause costs: blocks of each instance, or a time to live."""

    share: float  # of the tokens of the cause, that was to be reached
    tokens: int  # that it makes hits
    blocks: int | None = field(default=None, metadata=column(optional=True))
    gib: float | None = field(default=None, metadata=column(optional=True))  # if the bytes of a token are known
    ttl_ms: float | None = field(default=None, metadata=column(optional=True))


@dataclass(frozen=True)
class Cure(Described):
    """One change, the prompt tokens that it makes hits, and what these are worth."""

    name: str
    tokens: int = field(metadata=column("tokens", ",", rank=0))  # more hit tokens than now
    share: float = field(metadata=column("share", ".1%", rank=0))  # of all prompt tokens
    basis: str = field(metadata=column("basis", rank=3, place=101))  # a key of BASES
    advice: str = field(  # what to change, and what it brings, in one sentence
        metadata=column("change", note=True, rank=0, place=102, key="sentence")
    )
    prefill_s: float | None = field(  # seconds of prefill that it saves on one instance's GPUs
        default=None, metadata=column("prefill", duration)
    )
    usd: float | None = field(default=None, metadata=column("GPU USD", ",.2f", rank=2))  # of these GPUs
    provider_usd: float | None = field(  # that it saves on the bill of a provider
        default=None, metadata=column("bill USD", ",.2f", rank=2)
    )
    amounts: tuple[Amount, ...] = ()

    @property
    def sentence(self) -> str:
        """The advice with its figures.

        >>> Cure("merged_domains", 1200, 0.03, "simulated", "Share equal blocks.", prefill_s=90, usd=0.05).sentence
        'Share equal blocks. Gain: 1,200 prompt tokens (3.0 %), 1.5 min of prefill, 0.05 USD of GPUs.'
        """
        at_most = "at most " if self.basis == "bound" else ""
        worth = [f"{at_most}{self.tokens:,} prompt tokens ({100 * self.share:.1f} %)"]
        if self.prefill_s is not None:
            worth.append(f"{duration(self.prefill_s)} of prefill")
        if self.usd is not None:
            worth.append(f"{self.usd:,.2f} USD of GPUs")
        if self.provider_usd is not None:
            worth.append(f"{self.provider_usd:,.2f} USD on a provider's bill")
        return f"{self.advice} Gain: {', '.join(worth)}."

    def to_dict(self) -> dict[str, Any]:
        """Keys as https://github.com/kvtrace/kvtrace/blob/main/docs/serving/explain.md lists them."""
        return super().to_dict() | {"sentence": self.sentence}


def percent(part: float, whole: float) -> str:
    """A share of a whole as people write it, from 0 to 100 %.

    >>> percent(1, 3), percent(-1, 3), percent(4, 3)
    ('33 %', '0 %', '100 %')
    """
    return f"{100 * min(max(part / whole, 0), 1):.0f} %"


@dataclass(frozen=True, eq=False)
class Baseline:
    """An explanation, and what its tokens are worth."""

    explanation: Explanation
    roofline: Roofline | None = None
    kv_bytes_per_token: int | None = None
    prices: Prices | None = None
    tier_bytes_per_s: float = 25e9
    on_start: Callable[[int], None] | None = None
    on_progress: Callable[[int], None] | None = None

    @property
    def run(self) -> Run:
        """What was simulated."""
        return self.explanation.run

    @property
    def layout(self) -> CacheLayout | None:
        """The cache groups of the model; None for full attention."""
        return next(iter((self.run.cache.layouts or {}).values()), None)

    @property
    def rows(self) -> slice:
        """The requests that count."""
        return slice(self.explanation.simulation.warm_up, None)

    def cost_of(self, cause: str) -> int:
        """The prompt tokens of a cause."""
        return self.explanation.totals[cause]

    def simulate(self, **changed: Any) -> Simulation:
        """The simulation of the same trace with some options changed."""
        return self.simulate_run(self.run.changed(**changed))

    def simulate_run(self, run: Run) -> Simulation:
        """The simulation of the same trace with another run."""
        if self.on_start:
            self.on_start(len(self.explanation.trace))
        return simulate_one(self.explanation.trace, run, self.on_progress)

    def gain_of(self, simulation: Simulation) -> int:
        """The hit tokens of a simulation less those of the explained one.

        Closed loops of one duration can serve other requests: then at the prompt tokens of the explained one.
        """
        before, after = self.explanation.totals["hit"], simulation.hits
        if after.tokens == self.explanation.tokens:
            return after.hit_tokens - before
        return round(after.token_hit_rate * self.explanation.tokens) - before

    def rise(self, simulation: Simulation) -> str:
        """How the token hit rate changes, in words."""
        before = self.explanation.totals["hit"] / max(self.explanation.tokens, 1)
        after = simulation.hits.token_hit_rate
        verb = "rises" if after >= before else "falls"
        return f"the token hit rate {verb} from {100 * before:.1f} to {100 * after:.1f} %"

    def simulated(self, name: str, simulation: Simulation, advice: str, amounts: tuple[Amount, ...] = ()) -> Cure:
        """The cure whose simulation this is."""
        seconds = None
        if self.roofline is not None:
            before, after = self._computed(self.explanation.simulation), self._computed(simulation)
            seconds = (before - after) * self.explanation.tokens
        policy = simulation.setting.policy
        return self.cure(name, self.gain_of(simulation), "simulated", advice, seconds, amounts, policy=policy)

    def bound(self, name: str, cause: str, advice: str) -> Cure:
        """The cure that makes at most the tokens of a cause hits."""
        tokens = self.explanation.causes.tokens
        own = tokens[cause]
        before = tokens["hit"]
        if cause == "rounding":  # behind all that an engine could hit
            before = before + sum(
                tokens[earlier] for earlier in ("in_flight", "other_tier", "evicted", "expired", "other_instance")
            )
        return self.cure(name, self.cost_of(cause), "bound", advice, self.seconds(own, before))

    def cure(
        self, name: str, tokens: int, basis: str, advice: str, seconds: float | None,
        amounts: tuple[Amount, ...] = (), policy: str | None = None,
    ) -> Cure:  # fmt: skip
        """A cure with its share and its USD; `policy` is that with the cure, which can have another time to live."""
        usd = None if self.roofline is None or seconds is None else seconds * float(self.roofline.usd(1.0))
        share = tokens / max(self.explanation.tokens, 1)
        provider_usd = self._provider_usd(tokens, policy or self.explanation.simulation.setting.policy)
        return Cure(name, tokens, share, basis, advice, seconds, usd, provider_usd, amounts)

    def seconds(self, tokens: np.ndarray, cached: np.ndarray) -> float | None:
        """Seconds of prefill of so many tokens of each request, after the cached ones; None without a roofline."""
        if self.roofline is None:
            return None
        return float(np.sum(self.roofline.compute_s(tokens[self.rows], cached[self.rows])))

    def gib(self, blocks: int) -> float | None:
        """The size of so many blocks of the simulated cache; None if the bytes of a token are not known."""
        layout = self.layout
        if layout is not None:
            return blocks * layout.block_bytes / GIB
        if self.kv_bytes_per_token is None:
            return None
        return blocks * self.explanation.simulation.trace.block_size * self.kv_bytes_per_token / GIB

    def _provider_usd(self, tokens: int, policy: str) -> float | None:
        """What so many hit tokens more save on a provider's bill; None without prices."""
        if self.prices is None:
            return None
        hit, every = self.explanation.totals["hit"], self.explanation.tokens
        now = self.explanation.simulation.setting.policy
        if np.isinf(lifetime_ms(now)):
            policy = now = "ttl:5m"  # no provider keeps prefixes for ever
        before, after = (
            self.prices.cost(hits, every, ttl="1h" if lifetime_ms(name) > 300_000 else "5m")
            for hits, name in ((hit, now), (hit + tokens, policy))
        )
        return float(before - after)

    def _computed(self, simulation: Simulation) -> float:
        """Seconds of prefill for each prompt token of a simulation: of the tokens that were not hits."""
        assert self.roofline is not None
        rows = slice(simulation.warm_up, None)
        prompts = simulation.trace.input_length[rows]
        cached = leading_tokens(simulation.trace, simulation.hit_blocks[rows].astype(np.int64), rows)
        return float(np.sum(self.roofline.compute_s(prompts - cached, cached))) / max(int(prompts.sum()), 1)


def prefill_by_cause(explanation: Explanation, roofline: Roofline) -> dict[str, float]:
    """Cause -> seconds of prefill of its tokens, on the GPUs of an instance; 0 for those that were not computed.

    >>> from kvtrace.serving.deployment import Deployment
    >>> from kvtrace.serving.hardware import roofline_of
    >>> from kvtrace.serving.misses.explanation import explain
    >>> from kvtrace.trace.building import toy
    >>> explained = explain(toy("0 1", "2 3", "0 1", block_size=512), 2)
    >>> seconds = prefill_by_cause(explained, roofline_of(Deployment("llama-3.1-8b", gpu="h100")))
    >>> {cause: round(value, 3) for cause, value in seconds.items() if value}
    {'evicted': 0.02, 'first_use': 0.041}
    """
    baseline, tokens = Baseline(explanation, roofline), explanation.causes.tokens
    seconds, before = {}, np.zeros_like(tokens["hit"])
    for cause, own in tokens.items():  # in this order along a prompt
        computed = cause not in ("hit", "not_served")
        seconds[cause] = (baseline.seconds(own, before) or 0.0) if computed else 0.0
        before = before + own
    return seconds
