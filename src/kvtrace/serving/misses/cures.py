"""What would help: each cure of a simulation's misses, with what it is worth, the best first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..._base.errors import UsageError
from ..._base.results import Result, columns_of
from ..hardware.prices import Prices
from ..hardware.roofline import Roofline
from .baseline import Baseline
from .bounds import one_after_another, smaller_blocks
from .cure import Cure, CureDict
from .explanation import Explanation
from .more_blocks import more_blocks
from .other_options import aware_routing, longer_ttl, merged_domains, other_policies, sticky_routing

CURES = (
    more_blocks, sticky_routing, aware_routing, longer_ttl, smaller_blocks, merged_domains, other_policies,
    one_after_another,
)  # fmt: skip
TOGETHER = (
    "Do not add these figures up: cures can make the same tokens hits, and one cure can change what another one brings."
)


@dataclass(frozen=True, eq=False, repr=False)
class Cures(Result):
    """The cures that would make more prompt tokens hits, the best first, and those that were tried in vain."""

    cures: tuple[Cure, ...]
    in_vain: tuple[Cure, ...] = ()  # simulated, without a gain
    refused: tuple[str, ...] = ()  # changes that cannot be simulated, with the reason

    def __iter__(self) -> Iterator[Cure]:
        return iter(self.cures)

    def __len__(self) -> int:
        return len(self.cures)

    def __getitem__(self, name: str) -> Cure:
        """The cure of a name; KeyError if it was not tried.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.serving.misses.explaining import explain
        >>> cures_of(explain(toy("0 1", "2 3", "0 1"), 2))["more_blocks"].tokens
        2
        """
        return {cure.name: cure for cure in (*self.cures, *self.in_vain)}[name]

    def _headline(self) -> str:
        best = ", ".join(f"{cure.name}={cure.tokens:,}" for cure in self.cures[:3])
        return f"{len(self.cures)} cures, in prompt tokens: {best}" if self.cures else "no cure"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of(cure.to_dict() for cure in self.cures)

    def to_dict(self) -> list[CureDict]:
        """The cures; keys as docs/serving/explain.md lists them."""
        return [cure.to_dict() for cure in (*self.cures, *self.in_vain)]


def cures_of(
    explanation: Explanation,
    *,
    roofline: Roofline | None = None,
    kv_bytes_per_token: int | None = None,
    prices: Prices | None = None,
    tier_bytes_per_s: float = 25e9,
    on_start: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Cures:
    """What would make more prompt tokens of an explained simulation hits, sorted by value; bounds come last.

    Args:
        explanation: The explanation, from `explain`.
        roofline: The model on the GPUs of an instance: adds seconds of prefill, and USD of the GPUs.
        kv_bytes_per_token: Bytes of KV cache per token, for sizes in GiB; the default is that of the roofline.
        prices: Of a provider that bills tokens: adds what a cure saves on its bill. Writes cost what they do for 5
            minutes, or for an hour if the time to live is or becomes longer than 5 minutes.
        tier_bytes_per_s: Bytes per second of a tier below the cache.
        on_start: Receives the requests of each simulation before it starts.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The cures, those with the most tokens first, and then the bounds. docs/serving/explain.md says how each is
        computed.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.serving.misses.explaining import explain
    >>> for cure in cures_of(explain(toy("0 1", "2 3", "0 1"), 2)):
    ...     print(cure.sentence)
    Add 2 blocks to the cache: 100 % of the evicted tokens become hits; 50 % with 1 block. Gain: 2 prompt tokens \
(33.3 %).
    Add a tier of 2 blocks, such as DRAM, below the cache: the same hits as in a larger cache. They are fetched and \
not computed. Gain: 2 prompt tokens (33.3 %).
    Try other eviction policies at this capacity with kvtrace simulate: this is the gain of belady, the best possible \
one, which knows the future. Gain: at most 2 prompt tokens (33.3 %).
    """
    if kv_bytes_per_token is None and roofline is not None:
        kv_bytes_per_token = roofline.model.kv_bytes_per_token
    baseline = Baseline(explanation, roofline, kv_bytes_per_token, prices, tier_bytes_per_s, on_start, on_progress)
    tried: list[Cure] = []
    refused: list[str] = []
    for cures in CURES:
        try:
            tried.extend(cures(baseline))
        except UsageError as error:  # with another router, for example, requests can overlap that do not fit
            refused.append(f"{cures.__name__.replace('_', ' ')}: {error}")
    tried.sort(key=lambda cure: (cure.basis == "bound", -cure.tokens))  # a bound may be out of reach
    helpful = tuple(cure for cure in tried if cure.tokens > 0)
    return Cures(helpful, tuple(cure for cure in tried if cure.tokens <= 0), tuple(refused))
