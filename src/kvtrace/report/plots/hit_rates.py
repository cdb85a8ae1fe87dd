"""Hit rates by capacity, by eviction policy and by block size; and two traces compared.

The hit curve is that of LRU at every capacity, with the offline optimum at some, and the upper bound. Policies are
compared at the same capacities, and by their share of the optimum's hits. Blocks are 2, 4, 8, ... times as large.
Two traces are compared by their hit curves and distributions, with the distances.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..._base.units import short
from ...analysis.block_sizes import each_block_size
from ...analysis.curves import HitCurve, SampledCurve
from ...analysis.distribution import WeightedValues, distance
from ...cache.setup import CacheSetup
from ...cache.simulation import simulate_settings
from .plot import Axis, Panel, Plot, Series, Study, cdf, highest, log_ticks, rate_axis

if TYPE_CHECKING:
    from ...analysis.comparison import PreparedTrace

POINTS = 200  # capacities of the drawn curve


def hit_curve_plot(study: Study) -> Plot:
    """The exact hit curve, block and token hit rate, beside the offline optimum.

    >>> from kvtrace.trace.building import toy
    >>> [series.name for series in hit_curve_plot(Study(toy("0 1", "2", "0 1"))).panels[0].series]
    ['block hit rate, LRU', 'token hit rate, LRU', 'block, belady', 'block, unlimited', 'token, unlimited']
    """
    rates = np.array([hits.block_hit_rate for hits in study.optimum.values()])
    belady = Series("block, belady", np.array(list(study.optimum)), rates, 2)
    drawn = curve_plot(study.curve, study.kv_bytes_per_token, belady)
    return replace(drawn, explanation=f"{drawn.explanation} belady is the optimum of all eviction orders.")


def curve_plot(curve: HitCurve, kv_bytes_per_token: int | None = None, *others: Series) -> Plot:
    """A hit curve, block and token hit rate, with the rates of a cache that never evicts as dotted lines.

    A sampled curve has its 95 % confidence interval around it.

    >>> from kvtrace import toy
    >>> from kvtrace.analysis import hit_curve
    >>> [series.name for series in curve_plot(hit_curve(toy("0 1", "2", "0 1"))).panels[0].series]
    ['block hit rate, LRU', 'token hit rate, LRU', 'block, unlimited', 'token, unlimited']
    """
    capacity = np.array(curve.capacities(POINTS))
    hits, unlimited = curve.hits(capacity), curve.at(curve.working_set)
    names = {"block": "block_hit_rate", "token": "token_hit_rate"}
    rates = {short_name: np.array([getattr(counts, rate) for counts in hits]) for short_name, rate in names.items()}
    limits = {short_name: getattr(unlimited, rate) for short_name, rate in names.items()}
    series = [
        Series(f"{name} hit rate, LRU", capacity, rate, colour) for colour, (name, rate) in enumerate(rates.items())
    ]
    if isinstance(curve, SampledCurve):
        error = curve.errors(capacity)["block_hit_rate"]
        series += [
            Series(f"block, {name}", capacity, np.clip(rates["block"] + sign * error, 0, 1), 0, "dash")
            for name, sign in (("upper end of 95 %", 1), ("lower end of 95 %", -1))
        ]
    series += [*others]
    series += [
        Series(f"{name}, unlimited", capacity[[0, -1]], np.full(2, rate), colour, "dash")
        for colour, (name, rate) in enumerate(limits.items())
    ]
    units = ["blocks", "share of the working set"] + ["GiB"] * bool(kv_bytes_per_token)
    ticks = {tick: _label(curve, kv_bytes_per_token, tick) for tick in log_ticks(capacity[0], capacity[-1], (1, 3))}
    longest = f"exact at every capacity that holds the longest prompt ({curve.longest:,} blocks)"
    how = "estimated from a sample of the blocks" if curve.sample else longest
    return Plot(
        "Hit rate by capacity",
        f"Required cache size. LRU eviction, one request at a time; {how}.",
        [
            Panel(
                "Hit rate by capacity",
                Axis(f"capacity ({', '.join(units)})", log=True, ticks=ticks, unit="blocks"),
                rate_axis("hit rate", max(limits.values())),
                series,
            )
        ],
    )


def _label(curve, kv_bytes_per_token, capacity):
    lines = [short(capacity), f"{100 * capacity / curve.working_set:.2g}%"]
    if kv_bytes_per_token:
        lines.append(short(capacity * curve.block_size * kv_bytes_per_token / 2**30))
    return "\n".join(lines)


TITLES = ("Block hit rate of each policy", "Token hit rate of each policy", "Hit blocks / hit blocks of belady")


def policies_plot(study: Study) -> Plot:
    """Block hit rate, token hit rate and share of the optimum's hits, for each policy.

    >>> from kvtrace.trace.building import toy
    >>> shown = policies_plot(Study(toy("0 1", "2", "0 1"), policies=("lru", "mru")))
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
    runs = simulate_settings(study.trace, CacheSetup(capacities, study.shown_policies).settings())
    by_policy = {name: [run.hits for run in runs if run.setting.policy == name] for name in study.shown_policies}
    by_policy["belady"] = list(study.optimum.values())
    x, best = Axis("capacity (blocks)", log=True, unit="blocks"), by_policy["belady"]
    at = np.array(capacities)

    def lines(rate, *, bound: bool) -> list[Series]:
        return [
            Series(name, at, np.array([rate(own, optimum) for own, optimum in zip(hits, best, strict=True)]), colour)
            for colour, (name, hits) in enumerate(by_policy.items())
            if bound or name != "belady"
        ]

    block = lines(lambda hits, _: hits.block_hit_rate, bound=True)
    token = lines(lambda hits, _: hits.token_hit_rate, bound=True)
    share = lines(
        lambda hits, optimum: hits.hit_blocks / optimum.hit_blocks if optimum.hit_blocks else 1.0, bound=False
    )
    panels = [
        Panel(TITLES[0], x, rate_axis("block hit rate", highest(block)), block),
        Panel(TITLES[1], x, rate_axis("token hit rate", highest(token)), token),
        Panel(TITLES[2], x, rate_axis("share of the optimum's hits", highest(share)), share)
        if share else Panel(TITLES[2], missing="no policy but belady was chosen."),
    ]  # fmt: skip
    return Plot("Eviction policies", explanation, panels)


MAX_DOUBLINGS = 10


def block_size_plot(study: Study) -> Plot:
    """Block and token hit rates at the trace's block size and its multiples, without eviction.

    >>> from kvtrace.trace.building import toy
    >>> block_size_plot(Study(toy("0 1 2 3", "0 1 2 3"))).panels[0].series[0].x.tolist()
    [1, 2, 4]
    """
    title, trace = "Block and token hit rate", study.trace
    longest = int(trace.prompt_blocks.max())
    if longest < 2:
        return _block_size_plot(Panel(title, missing="no prompt is longer than one block."))
    factors = [2**power for power in range(MAX_DOUBLINGS + 1) if 2**power < 2 * longest]
    sizes, blocks, tokens = [], [], []
    for folded in each_block_size(trace, factors):
        if not folded.blocks:  # partial blocks are dropped, and no prompt fills a block of this size
            break
        sizes.append(folded.block_size)
        blocks.append(folded.hits.block_hit_rate)
        tokens.append(folded.hits.token_hit_rate)
    at = np.array(sizes)
    series = [
        Series("block hit rate", at, np.array(blocks), 0, "dots"),
        Series("token hit rate", at, np.array(tokens), 1, "dots"),
    ]
    ticks = {float(size): f"{size // 1024}k" if size % 1024 == 0 else f"{size}" for size in sizes}
    x = Axis("tokens per block", log=True, ticks=ticks, unit="tokens per block")
    return _block_size_plot(Panel(title, x, rate_axis("hit rate", highest(series)), series))


def _block_size_plot(panel):
    explanation = "The cost of larger blocks: requests share a prefix in whole blocks only. Without eviction."
    return Plot("Hit rate by block size", explanation, [panel])


SHAPE = {  # figures of single requests
    "Input length": ("input_length", "tokens"),
    "Output length": ("output_length", "tokens"),
    "Gap": ("gap_ms", "ms"),
    "Hit tokens": ("hit_tokens", "tokens"),
    "Reuse distance": ("reuse_distance", "tokens"),
}
BEHAVIOUR = {  # figures of request sequences
    "Reuse time": ("reuse_time_ms", "ms"),
    "Turns": ("turns", "requests of a session"),
    "Time to the next turn": ("turn_gap_ms", "ms"),
}
AGENTS = {  # of sessions, where both traces tell
    "Think time": ("think_ms", "ms"),
    "Service time": ("service_ms", "ms"),
    "Context growth": ("growth", "tokens"),
}


def compared_plot(first: Study, second: Study) -> Plot:
    """Hit curves and distributions of two traces; the titles name their Kolmogorov-Smirnov distances.

    >>> from kvtrace.trace.building import toy
    >>> compared_plot(Study(toy("0 1", "0 2"), "a"), Study(toy("0 1", "0 2"), "b")).panels[1].title
    'Input length: distance 0.000'
    """
    both = _samples(first, second)
    panels = [_curves(first, second), *(_panel(name, *SHAPE[name], first, second, *both) for name in SHAPE)]
    explanation = (
        "The distance is the largest vertical gap between two cumulative distributions (Kolmogorov-Smirnov): 0 if they "
        "are equal, 1 if they have no overlap."
    )
    return Plot("The two traces compared", explanation, panels)


def behaviour_plot(first: Study, second: Study) -> Plot | None:
    """Reuse times and sessions of two traces; None if they are equal.

    >>> from kvtrace.trace.building import toy
    >>> behaviour_plot(Study(toy("0", "0 1"), "a"), Study(toy("0", "0 1"), "b")) is None
    True
    """
    a, b = _samples(first, second)
    if not any(_differ(a[key], b[key]) for key, _ in BEHAVIOUR.values()):
        return None
    of_agents = AGENTS if all(key in a for key, _ in AGENTS.values()) else {}
    panels = [_panel(name, *figure, first, second, a, b) for name, figure in (BEHAVIOUR | of_agents).items()]
    explanation = (
        "When blocks are used again, and how sessions continue. Sessions are inferred unless both traces record them."
    )
    return Plot("Reuse and sessions compared", explanation, panels)


def prepared(study: Study) -> PreparedTrace:
    """A study as `compare` takes it, with its hits and its curve."""
    from ...analysis.comparison import PreparedTrace, require_comparable

    require_comparable(study.trace, study.name)
    return PreparedTrace(study.trace, study.hit_blocks, study.curve)


def _samples(*studies: Study) -> tuple[dict[str, WeightedValues], dict[str, WeightedValues]]:
    """The values of both traces. Reuse distances are in tokens, because the block sizes may differ."""
    from ...analysis.comparison import samples_of_both, sessions_of_both

    first, second = (prepared(study) for study in studies)
    sessions = sessions_of_both(first, second)
    return samples_of_both(first, second, sessions, in_blocks=False)


def _panel(name, key, unit, first, second, a, b):
    gap = _distance(a[key], b[key])
    axis = Axis(f"{name.lower()} ({unit})", log=True, unit=unit)
    title = name if gap is None else f"{name}: distance {gap:.3f}"
    return cdf(title, axis, (first.name, *a[key]), (second.name, *b[key]), why="a trace has no values.")


def _distance(a: WeightedValues, b: WeightedValues) -> float | None:
    """The distance of two samples; None if one has no values."""
    return distance(a, b) if len(a[0]) and len(b[0]) else None


def _differ(a: WeightedValues, b: WeightedValues) -> bool:
    return len(a[0]) > 0 if not len(b[0]) else _distance(a, b) != 0


def _curves(*studies):
    series = []
    for colour, study in enumerate(studies):
        at = np.array(study.curve.capacities(POINTS))
        rates = np.array([hits.token_hit_rate for hits in study.curve.hits(at)])
        series.append(Series(study.name, at * study.trace.block_size, rates, colour))
    y = rate_axis("token hit rate", highest(series))
    return Panel("Hit rate of an LRU cache", Axis("capacity (tokens)", log=True, unit="tokens"), y, series)
