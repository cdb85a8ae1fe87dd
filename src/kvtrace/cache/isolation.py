"""What isolation costs: the hits of one cache with the domains of a trace merged, split, and partly shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from .._base.results import Described, column
from ..trace.domains import MERGE, SPLIT
from ..trace.hits import Hits


class DomainsDict(TypedDict):
    """The object `domains` of `curve --json` and `analyze --json`, for a trace with domains."""

    domains: int  # requests without a domain are one together
    view: str


class MergedAndSplit(TypedDict):
    """The hits of one setting with all domains merged, and with all split."""

    merged_hit_tokens: int
    merged_token_hit_rate: float
    split_hit_tokens: int
    split_token_hit_rate: float
    isolation_cost_tokens: int


class IsolationCost(MergedAndSplit, total=False):
    """What isolation costs; these three keys are for `shared:N`."""

    shared_hit_tokens: int
    shared_token_hit_rate: float
    shared_saved_tokens: int


def cost_of(hits: Mapping[str, Hits]) -> IsolationCost:
    """What isolation costs, from the hits in each view."""
    merged, split = hits[MERGE], hits[SPLIT]
    cost: IsolationCost = {
        "merged_hit_tokens": merged.hit_tokens, "merged_token_hit_rate": merged.token_hit_rate,
        "split_hit_tokens": split.hit_tokens, "split_token_hit_rate": split.token_hit_rate,
        "isolation_cost_tokens": merged.hit_tokens - split.hit_tokens,
    }  # fmt: skip
    for shared in (hits[view] for view in hits if view not in (MERGE, SPLIT)):
        cost["shared_hit_tokens"], cost["shared_token_hit_rate"] = shared.hit_tokens, shared.token_hit_rate
        cost["shared_saved_tokens"] = shared.hit_tokens - split.hit_tokens
    return cost


@dataclass(frozen=True)
class Isolation(Described):
    """The hits of one setting in each view of the domains; docs/cache/simulate.md lists the keys.

    >>> merged, split = Hits(2, 4, 8, 16, 32, 1.0, 2), Hits(2, 2, 8, 8, 32, 0.5, 2)
    >>> print(Isolation(3, "split", {"merge": merged, "split": split}))
    isolation of 3 domains costs 8 hit tokens (25.0 points of token hit rate: 50.0 % merged, 25.0 % split)
    """

    domains: int  # requests without a domain are one together
    view: str  # of the simulation: "merge", "split" or "shared:N"
    hits: Mapping[str, Hits] = field(  # view -> hits; merge and split at least
        metadata=column(spread={}, value=cost_of)
    )

    def __str__(self) -> str:
        return sentence(self.to_dict())


def sentence(values: Mapping[str, Any]) -> str:
    """What isolation costs, and what sharing the first tokens saves, from the keys of `Isolation.to_dict`."""
    merged, split = values["merged_token_hit_rate"], values["split_token_hit_rate"]
    domains = f"{values['domains']:,} domain{'' if values['domains'] == 1 else 's'}"
    rates = f"{100 * merged:.1f} % merged, {100 * split:.1f} % split"
    cost = (
        f"isolation of {domains} costs {values['isolation_cost_tokens']:,} hit tokens "
        f"({100 * (merged - split):.1f} points of token hit rate: {rates})"
    )
    if "shared_saved_tokens" not in values:
        return cost
    saved, points = values["shared_saved_tokens"], 100 * (values["shared_token_hit_rate"] - split)
    tokens = int(values["view"].partition(":")[2])
    return f"{cost}; sharing the first {tokens:,} tokens saves {saved:,} of them ({points:.1f} points)"
