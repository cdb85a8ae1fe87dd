"""Eviction policies beside each other: their hits at the same capacities, and their share of the optimum's hits."""

from __future__ import annotations

import numpy as np

from ...cache.simulation import settings_of, simulate_settings
from .plot import Axis, Panel, Plot, Series, Study, highest, rate_axis

TITLES = ("Block hit rate of each policy", "Token hit rate of each policy", "Hit blocks / hit blocks of belady")


def plot(study: Study) -> Plot:
    """Block hit rate, token hit rate and share of the optimum's hits, for each policy.

    >>> from kvtrace.trace.building import toy
    >>> shown = plot(Study(toy("0 1", "2", "0 1"), policies=("lru", "mru")))
    >>> [series.name for series in shown.panels[2].series]
    ['lru', 'mru']
    """
    explanation = (
        "Does another eviction order pay? One request at a time, in a flat pool: any idle block can be evicted. "
        "belady knows the future and is the optimum of all eviction orders."
    )
    if study.too_large:
        missing = f"{study.too_large} Add --policy lru,sieve to simulate them."
        return Plot("Eviction policies", explanation, [Panel(title, missing=missing) for title in TITLES])
    capacities = list(study.optimum)
    runs = simulate_settings(study.trace, settings_of(capacities, study.shown_policies))
    by_policy = {name: [one.hits for one in runs if one.setting.policy == name] for name in study.shown_policies}
    by_policy["belady"] = list(study.optimum.values())
    x, best = Axis("capacity (blocks)", log=True, unit="blocks"), by_policy["belady"]
    at = np.array(capacities)

    def lines(rate, *, bound: bool) -> list[Series]:
        return [
            Series(name, at, np.array([rate(one, optimum) for one, optimum in zip(hits, best, strict=True)]), colour)
            for colour, (name, hits) in enumerate(by_policy.items())
            if bound or name != "belady"
        ]

    block = lines(lambda one, _: one.block_hit_rate, bound=True)
    token = lines(lambda one, _: one.token_hit_rate, bound=True)
    share = lines(lambda one, most: one.hit_blocks / most.hit_blocks if most.hit_blocks else 1.0, bound=False)
    panels = [
        Panel(TITLES[0], x, rate_axis("block hit rate", highest(block)), block),
        Panel(TITLES[1], x, rate_axis("token hit rate", highest(token)), token),
        Panel(TITLES[2], x, Axis("share of the optimum's hits", percent=True), share)
        if share else Panel(TITLES[2], missing="no policy but belady was chosen."),
    ]  # fmt: skip
    return Plot("Eviction policies", explanation, panels)
