"""The experiments as figures: data for the page's plotly and the paper's matplotlib alike; a file in three formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvtrace._base.errors import InputError, UsageError
from kvtrace.report.plots.plot import Axis, Panel, Plot, Series, cdf

from .eviction import Eviction
from .hit_rate import HitRates
from .identical import Identical
from .latency import Latency
from .throughput import Spot, Throughput

SUFFIXES = (".png", ".svg", ".pdf")
P = "probability of a frequent sequence"


def hit_rates(result: HitRates) -> Plot:
    """Figure 1: two of the rates over p, means and extremes of the seeds, and the line through the block hit rate."""
    p, series = np.array([point.p for point in result.points]), []
    names = ("block_hit_rate", "token_hit_rate")
    for colour, name in enumerate(names):
        rates = [point.rate(name) for point in result.points]
        label = name.replace("_", " ")
        series.append(Series(label, p, np.array([rate.mean for rate in rates]), colour, "dots"))
        series.append(_between("its minimum and maximum", p, [(rate.min, rate.max) for rate in rates], colour))
    fit = result.fit()
    series.append(Series(f"line, R² = {fit.r2:.4f}", p, fit.intercept + fit.slope * p, 2, "dash"))
    panel = Panel(
        f"Hit rate, blocks of {result.serving.block_size} tokens",
        Axis(P, limits=(0, 0)),
        Axis("hit rate at the initial prompt", percent=True, limits=(0, 0)),
        series,
    )
    return Plot("Hit rate against sampling probability", "Figure 1 of Lin's report.", [panel])


def identical(result: Identical) -> Plot:
    """The repeated prompt: block hit rate against block size, a line a batch."""
    series = []
    for colour, batch in enumerate(dict.fromkeys(case.batch for case in result.cases)):
        cases = sorted((case for case in result.cases if case.batch == batch), key=lambda case: case.block_size)
        sizes = np.array([case.block_size for case in cases])
        rates = np.array([case.rate("block_hit_rate").mean for case in cases])
        series.append(Series(f"batch {batch}", sizes, rates, colour, "dots"))
    ticks = {float(case.block_size): f"{case.block_size}" for case in result.cases}
    panel = Panel(
        f"One prompt of {result.prompt_length} tokens in all requests",
        Axis("block size (tokens)", log=True, ticks=ticks),
        Axis("block hit rate", percent=True, limits=(0, 1.02)),
        series,
    )
    subtitle = "Full blocks of the prompt always hit; a partial one only among requests that the same step admits."
    return Plot("The identical prompt", subtitle, [panel])


def throughput(result: Throughput) -> Plot:
    """Figure 2: items per second over p at each prompt length, and the gain over prompt length."""
    panels = [
        Panel(
            f"Prompts of {length:,} tokens",
            Axis(P, limits=(0, 0)),
            Axis("items / s", limits=(0, 0)),
            _arms([(spot.p or 0.0, spot) for spot in result.over_p(length)]),
        )
        for length in result.prompt_lengths
    ]
    if result.probabilities:
        panels.append(_gains(result))
    return Plot("Items per second", "Figure 2 of Lin's report, and the effect of prompt length.", panels)


def eviction(result: Eviction) -> Plot:
    """Block hit rate over K, a panel for each number of pools."""
    panels = []
    for pools in result.pools:
        series = []
        for colour, policy in enumerate(result.policies):
            cases = [case for case in result.of(policy, pools) if case.idle]  # a logarithmic axis has no 0
            rates = np.array([case.rate("block_hit_rate").mean for case in cases])
            series.append(Series(policy, np.array([case.idle for case in cases]), rates, colour, "dots"))
        title = "One pool of frequent sequences" if pools == 1 else f"{pools} pools, one after the other"
        y = Axis("block hit rate", percent=True, limits=(0, 0))
        panels.append(Panel(title, Axis("K (idle blocks)", log=True), y, series))
    return Plot(
        "Eviction by frequency and by recency",
        "Block hit rate over K, the number of idle blocks that the cache keeps.",
        panels,
    )


def latency(result: Latency) -> Plot:
    """The times to first token of each workload with and without caching, and the prompt tokens not computed."""
    panels = []
    for row in result.measured:
        arms = ("without caching", "without"), ("with caching", "with_cache")
        samples = [
            (name, np.concatenate([getattr(pair, arm).ttft_ms for pair in row.pairs.pairs])) for name, arm in arms
        ]
        panels.append(cdf(row.workload, Axis("time to first token (ms)", log=True), *((*one, None) for one in samples)))
    at = np.arange(len(result.measured), dtype=np.float64)
    ticks = {float(place): _hyphened(row.workload) for place, row in enumerate(result.measured)}
    saved = Series("not computed", at, np.array([row.pairs.saved.median for row in result.measured]), 2, "bars")
    x = Axis("", ticks=ticks, limits=(-0.5, len(result.measured) - 0.5))
    panels.append(Panel("Prompt tokens not computed", x, Axis("share", percent=True, limits=(0, 1)), [saved]))
    return Plot("Time to first token", "With and without prefix caching, and the prompt tokens not computed.", panels)


def _hyphened(name: str) -> str:
    """A name that fits under a bar."""
    return name if len(name) <= 8 else f"{name[:6]}-\n{name[6:]}"


def write_figure(plot: Plot, path: str | Path) -> Path:
    """Draw a figure into a file whose name ends in .png, .svg or .pdf; the file written.

    UsageError for another ending, or where matplotlib is not installed; InputError where the file can't be written.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path.name}: a figure is a {', '.join(SUFFIXES)} file. Try figure{SUFFIXES[0]}.")
    try:
        import matplotlib
        from matplotlib.figure import Figure

        from kvtrace.report.paper import DPI, STYLE, draw
    except ImportError:
        raise UsageError("a figure needs matplotlib. Try `pip install 'kvtrace[paper]'`.") from None
    undated = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "kvtrace"}):  # the same figure gives the same bytes
        drawn = draw(Figure, [panel for panel in plot.panels if not panel.missing])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            drawn.savefig(path, dpi=DPI, metadata=undated[path.suffix])
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or 'cannot be written to'}.") from None
    return path


def _arms(spots: list[tuple[float, Spot]]) -> list[Series]:
    """Items per second with and without caching: medians, and dotted the quartiles of the repeats."""
    x, series = np.array([at for at, _ in spots]), []
    for colour, (arm, name) in enumerate((("without", "without caching"), ("with_cache", "with caching"))):
        items = [spot.pairs.items_per_second(arm) for _, spot in spots]
        series.append(Series(name, x, np.array([item.median for item in items]), colour, "dots"))
        series.append(_between("its quartiles", x, [(item.p25, item.p75) for item in items], colour))
    return series


def _between(name: str, x: np.ndarray, ends: list[tuple[float | None, float | None]], colour: int) -> Series:
    """Two dotted lines, a gap between them, the ends of a range."""
    low, high = np.array(ends, dtype=np.float64).T
    gap = [np.nan]
    return Series(name, np.concatenate([x, gap, x]), np.concatenate([low, gap, high]), colour, "dash")


def _gains(result: Throughput) -> Panel:
    series = []
    for colour, p in enumerate(result.probabilities):
        spots = result.over_length(p)
        x = np.array([spot.prompt_length for spot in spots])
        series.append(Series(f"p = {p:g}", x, np.array([spot.pairs.gain.median for spot in spots]), colour, "dots"))
    x = series[0].x[[0, -1]]
    series.append(Series("no gain", x, np.ones(2), len(series), "dash"))
    ticks = {float(length): f"{length:,}" for length in series[0].x}
    return Panel(
        "Gain of caching", Axis("prompt length (tokens)", log=True, ticks=ticks), Axis("with / without", limits=(0, 0)),
        series,
    )  # fmt: skip
