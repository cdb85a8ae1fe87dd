"""The experiments' tables for a terminal, and the notes below them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from kvtrace.analysis.distribution import Distribution

from .eviction import Eviction
from .hit_rate import RATES, HitRates
from .identical import Identical
from .latency import Latency
from .measure import Pairs
from .prompts import Lengths, Mix
from .reported import LEFT_OPEN, REPORTED
from .settings import Serving
from .throughput import Spot, Throughput

MOVES_ON = (
    "A full block of the prompt always hits. A partial one hits only among requests that one step admits together: "
    "with the first output token its hash moves on, and no other request has that output."
)
SPREAD = "Means over the seeds ± standard deviation."
AS_ENGINES = 16  # tokens a block: what engines use


def hit_rates(result: HitRates) -> Iterator[Table]:
    """Figure 1: a probability a row; and the line through each rate."""
    shown = _table("Hit rate at the initial prompt", "p", *_rates())
    for point in result.points:
        shown.add_row(f"{point.p:g}", *(rate(point.rate(name)) for name in RATES))
    yield shown
    lines = _table("A straight line through the means", "", "slope", "intercept", "R^2")
    for name in RATES:
        fit = result.fit(name)
        lines.add_row(_plain(name), f"{fit.slope:.4f}", f"{fit.intercept:.4f}", f"{fit.r2:.4f}")
    yield lines


def identical(result: Identical) -> Iterator[Table]:
    """One repeated prompt: the block hit rate, a block size a row, a batch a column; beside the report's."""
    batches = list(dict.fromkeys(case.batch for case in result.cases))
    title = f"Block hit rate of one prompt of {result.prompt_length} tokens in {result.requests:,} requests"
    shown = _table(title, "block size", "full blocks", *(f"batch {batch}" for batch in batches))
    for size in dict.fromkeys(case.block_size for case in result.cases):
        cases = [case for case in result.cases if case.block_size == size]
        rates = [rate(case.rate("block_hit_rate")) for case in cases]
        shown.add_row(f"{size}", f"{result.prompt_length // size}", *rates)
    yield shown
    reported = _table("Beside Lin's report", "", "reported", "ours")
    ours = [
        (case, f"{case.rate('block_hit_rate').mean:.2%}")
        for case in result.cases
        if case.block_size > result.prompt_length and case.block_size == AS_ENGINES
    ]
    for case, rated in ours:
        name = f'"What is your name?", ours in blocks of {case.block_size}, batch {case.batch}'
        reported.add_row(name, f"{REPORTED['identical_prompt_hit_rate']:.2%}", rated)
    yield reported


def throughput(result: Throughput) -> Iterator[Table]:
    """Figure 2 and its continuation: over p, over prompt length, and the one repeated prompt beside the report's."""
    for length in result.prompt_lengths:
        yield _spots(f"Over p, prompts of {length:,} tokens", "p", [(f"{s.p:g}", s) for s in result.over_p(length)])
    for p in result.probabilities:
        spots = [(f"{spot.prompt_length:,}", spot) for spot in result.over_length(p)]
        yield _spots(f"Over prompt length, p = {p:g}", "prompt tokens", spots)
    if result.identical:
        spots = [(f"{spot.prompt_length:,}", spot) for spot in result.identical]
        yield _spots("One identical prompt", "prompt tokens", spots)
    reported = _table("Beside Lin's report", "items / s", "reported", "ours")
    for length in result.prompt_lengths[:1]:
        plain = [spot.pairs.items_per_second("without").median or 0.0 for spot in result.over_p(length)]
        same = [
            spot.pairs.items_per_second("with_cache").median
            for spot in result.identical
            if spot.prompt_length == length
        ]
        average, ours = f"{sum(plain) / len(plain):,.2f}", f"{same[0]:,.2f}" if same else "-"
        reported.add_row(f"without prefixing, the average over p, ours at {length} tokens",
                         f"{REPORTED['items_per_second_without_prefixing']:,.2f}", average)  # fmt: skip
        reported.add_row(f"with it, one identical prompt, ours of {length} tokens",
                         f"{REPORTED['items_per_second_identical_prompt']:,.2f}", ours)  # fmt: skip
    yield reported


def eviction(result: Eviction) -> Iterator[Table]:
    """Policies over K, a table for each number of pools."""
    for pools in result.pools:
        title = "one pool" if pools == 1 else f"{pools} pools in turn"
        shown = _table(f"Block hit rate, {title}", "K (idle blocks)", *result.policies)
        rows = zip(*(result.of(policy, pools) for policy in result.policies), strict=True)
        for cases in rows:
            shown.add_row(f"{cases[0].idle:,}", *(rate(case.rate("block_hit_rate")) for case in cases))
        yield shown


def latency(result: Latency) -> Iterator[Table]:
    """A workload a row: what was not computed, and the time to first token."""
    columns = (
        "not computed",
        "TTFT median (ms)",
        "with cache",
        "TTFT p90 (ms)",
        "with cache",
        "items / s gain",
        "pays",
    )
    shown = _table("With and without prefix caching, medians over the repeats", "workload", *columns)
    for row in result.measured:
        pairs = row.pairs
        times = [pairs.ttft_ms(arm, q).median for q in (0.5, 0.9) for arm in ("without", "with_cache")]
        ms = [f"{time:,.2f}" for time in times if time is not None]
        shown.add_row(row.workload, f"{pairs.saved.median:.1%}", *ms, _gain(pairs), pairs.pays)
    yield shown


def notes(result: HitRates | Identical | Throughput | Eviction | Latency) -> list[str]:
    """The notes below the tables."""
    if isinstance(result, Eviction):
        return [SPREAD, f"{_mix(result.mix)}, p = {result.mix.p:g}; {_serving(result.serving, 'block_size', 'batch')}."]
    left = f"The report does not state {'; '.join(LEFT_OPEN[:6])}."
    if isinstance(result, HitRates):
        return [
            SPREAD,
            f"{_mix(result.mix)}; {_serving(result.serving, 'block_size', 'idle', 'batch', 'policy')}.",
            left,
        ]
    if isinstance(result, Identical):
        return [SPREAD, f"Outputs of {_lengths(result.output_length)} tokens.", MOVES_ON, left]
    lines = [
        "items / s: medians; gain: with / without within a pair, median (quartiles). pays: yes if three of four "
        "repeats gain, no if three of four lose."
    ]
    if isinstance(result, Latency):
        return [f"{result.requests:,} requests, {_on(result.serving, result.about)}.", *lines]
    lines = [f"{result.mix.requests:,} requests, {_on(result.serving, result.about)}.", *lines]
    lines += [
        f"At p = {p:g}, caching pays " + ("nowhere." if at is None else f"from prompts of {at:,} tokens on.")
        for p, at in ((p, result.pays_from_length(p)) for p in result.probabilities)
    ]
    lines += [
        f"With prompts of {length:,} tokens, caching pays " + ("at no p." if at is None else f"from p = {at:g} on.")
        for length, at in ((length, result.pays_from_p(length)) for length in result.prompt_lengths)
    ]
    return [*lines, f"The report does not state {'; '.join(LEFT_OPEN)}."]


def rate(over: Distribution) -> str:
    """Mean and standard deviation over the seeds.

    >>> import numpy as np
    >>> rate(Distribution.of(np.array([0.1, 0.3])))
    '0.2000 ±0.1000'
    """
    return f"{over.mean:.4f} ±{over.std:.4f}"


def _spots(title: str, first: str, spots: list[tuple[str, Spot]]) -> Table:
    columns = ("items / s without", "items / s with", "gain", "not computed", "in the cache", "pays")
    shown = _table(title, first, *columns)
    for name, spot in spots:
        pairs = spot.pairs
        items = [f"{pairs.items_per_second(arm).median:,.1f}" for arm in ("without", "with_cache")]
        shares = f"{pairs.saved.median:.1%}", f"{pairs.cache_share.median:.1%}"
        shown.add_row(name, *items, _gain(pairs), *shares, pairs.pays)
    return shown


def _gain(pairs: Pairs) -> str:
    gain = pairs.gain
    return f"{gain.median:.2f} ({gain.p25:.2f}-{gain.p75:.2f})"


def _mix(mix: Mix) -> str:
    return (
        f"{mix.requests:,} requests; {mix.frequent} frequent sequences of {_lengths(mix.frequent_length)} tokens, "
        f"random ones of {mix.random_length}, outputs of {_lengths(mix.output_length)}"
    )


def _serving(serving: Serving, *names: str) -> str:
    phrases = {
        "block_size": f"blocks of {serving.block_size}", "idle": f"K = {serving.idle:,}",
        "batch": f"batch {serving.batch}", "policy": f"policy {serving.policy}",
    }  # fmt: skip
    return ", ".join(phrases[name] for name in names)


def _on(serving: Serving, about: dict[str, Any]) -> str:
    model, machine = about["model"], about["machine"]
    shape = f"{model['layers']} layers, {model['heads']} heads of {model['head_dim']}"
    threads = f"{machine['threads']} thread" + "s" * (machine["threads"] > 1)
    return f"{_serving(serving, 'block_size', 'batch')}; {shape}, on {machine['device']}, {threads}"


def _lengths(between: Lengths) -> str:
    low, high = between
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _rates():
    return [_plain(name) for name in RATES]


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _table(title: str, *columns: str) -> Table:
    shown = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0),
        show_header=any(columns),
    )  # fmt: skip
    for place, name in enumerate(columns):
        shown.add_column(name, justify="right" if place else "left", no_wrap=True)
    return shown
