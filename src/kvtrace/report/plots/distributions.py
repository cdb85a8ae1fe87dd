"""Distributions: hits of single requests, reuse of blocks, popularity of blocks, and input and output lengths."""

from __future__ import annotations

import numpy as np

from ...analysis.reuse import histogram, reuse_distances, reuse_times
from ...trace.hits import leading_tokens
from ...trace.unknown import OUTPUTS, UNKNOWN_LENGTH
from .plot import POINTS, Axis, Density, Panel, Plot, Series, Study, cdf, log_edges, time_unit

BARS = 20


def requests_plot(study: Study) -> Plot:
    """Distributions of per-request hit rate and hit length, without eviction.

    >>> from kvtrace.trace.building import toy
    >>> requests_plot(Study(toy("0 1", "0 2"))).panels[0].series[0].y.tolist()[::10]
    [0.5, 0.5]
    """
    trace = study.trace
    has_blocks = trace.prompt_blocks > 0
    rate = study.hit_blocks[has_blocks] / trace.prompt_blocks[has_blocks]
    share = np.histogram(rate, BARS, (0, 1))[0] / len(rate)
    rates = Panel(
        "Hit rate of each request",
        Axis("hit blocks / blocks of the request", percent=True, limits=(0, 1)),
        Axis("share of requests", percent=True, limits=(0, 0)),
        [Series("requests", (np.arange(BARS) + 0.5) / BARS, share, 0, "bars")],
    )
    tokens = leading_tokens(trace, study.hit_blocks)
    lengths = cdf(
        "Hit length of each request",
        Axis("hit tokens", log=True, unit="tokens"),
        ("hit lengths", tokens, None),
        why="no request has a hit.",
    )
    explanation = "Do a few requests hit nearly all of their blocks, or many requests a few? Without eviction."
    return Plot("Hits of single requests", explanation, [rates, lengths])


def reuse_plot(study: Study) -> Plot:
    """Cumulative distributions of reuse time and reuse distance.

    >>> from kvtrace.trace.building import toy
    >>> reuse_plot(Study(toy("0 1", "2", "0 1"))).panels[1].series[0].x.tolist()
    [0.0, 1.0, 2.0, 2.0]
    """
    why = "no block is used twice."
    times, counts = reuse_times(study.trace, study.curve.segments)
    unit, ms = time_unit(float(times.max(initial=0)))
    panels: list[Panel] = [
        cdf(
            "Reuse time",
            Axis(f"time since the last use ({unit})", log=True, unit=unit),
            ("reuse times", times / ms, counts),
            why=why,
        ),
        cdf(
            "Reuse distance",
            Axis("distinct blocks since the last use", log=True, unit="blocks"),
            ("reuse distances", *reuse_distances(study.trace, study.curve.segments)),
            why=why,
        ),
    ]
    explanation = (
        "How long must a cache keep blocks, in time and in blocks? Each use of a block except the first counts once."
    )
    return Plot("Reuse time and distance", explanation, panels)


def popularity_plot(study: Study) -> Plot:
    """Rank and frequency of blocks, and reuse by the top x % of them.

    >>> from kvtrace.trace.building import toy
    >>> popularity_plot(Study(toy("0 1", "0 2"))).panels[0].series[0].y.tolist()
    [2, 1, 1]
    """
    trace = study.trace
    blocks = histogram(np.bincount(trace.hash_ids))  # number of uses -> blocks
    uses = np.repeat(np.arange(len(blocks))[:0:-1], blocks[:0:-1])  # most used first; blocks of outputs have 0
    rank = np.unique(np.geomspace(1, len(uses), POINTS).round().astype(np.int64))
    frequency = Panel(
        "Uses by rank",
        Axis("rank of the block", log=True, unit=""),
        Axis("uses", log=True, unit="uses"),
        [Series("uses", rank, uses[rank - 1])],
    )
    reuse, title = np.cumsum(uses - 1), "Share of reuse by the most used blocks"
    if not reuse[-1]:
        shares = Panel(title, missing="no block is used twice.")
    else:
        shares = Panel(
            title,
            Axis("most used blocks, share of all blocks", log=True, percent=True),
            Axis("share of all reuse", percent=True, limits=(0, 1)),
            [Series("reuse", rank / len(uses), reuse[rank - 1] / reuse[-1])],
        )
    explanation = "The concentration of reuse: on a few shared system prompts, or over many separate conversations."
    return Plot("Block popularity", explanation, [frequency, shares])


TOKENS = Axis("tokens", log=True, unit="tokens")
SHARE = Axis("share of requests", percent=True, limits=(0, 0))


def lengths_plot(study: Study) -> Plot:
    """Distributions of input and output length, in logarithmic bins and cumulative, and their joint density.

    >>> from kvtrace.trace.building import toy
    >>> [panel.title for panel in lengths_plot(Study(toy("0 1", "2"))).panels]
    ['Input and output length', 'Cumulative', 'Joint density']
    """
    trace = study.trace
    outputs = trace.output_length[trace.output_length != UNKNOWN_LENGTH]
    lengths = {"input length (ISL)": trace.input_length, "output length (OSL)": outputs}
    series, notes = [], [study.unknown[OUTPUTS]] if OUTPUTS in study.unknown else []
    for colour, (name, tokens) in enumerate(lengths.items()):
        if len(tokens) and not tokens.all():
            notes.append(f"{name}: {100 * (tokens == 0).mean():.2g}% are 0 and not shown.")
        if tokens.any():
            series.append(_histogram(name, tokens[tokens > 0], len(trace), colour))
    return Plot(
        "Lengths",
        "Lengths of prompts and outputs, on logarithmic axes.",
        [
            Panel("Input and output length", TOKENS, SHARE, series, note=" ".join(notes)),
            cdf("Cumulative", TOKENS, *((name, tokens, None) for name, tokens in lengths.items())),
            _joint(trace),
        ],
    )


def _histogram(name, tokens, requests, colour):
    edges = log_edges(tokens)
    share = np.histogram(tokens, edges)[0] / requests
    return Series(name, np.repeat(edges, 2)[1:-1], np.repeat(share, 2), colour)  # the outline of the bars


def _joint(trace):
    both = (trace.input_length > 0) & (trace.output_length > 0)
    title = "Joint density"
    if not both.any():
        return Panel(title, missing="no request has both an input and an output length.")
    x, y = trace.input_length[both], trace.output_length[both]
    columns, rows = log_edges(x, 10), log_edges(y, 10)
    share = np.histogram2d(y, x, [rows, columns])[0] / len(trace)
    x_axis, y_axis = (Axis(f"{which} length (tokens)", log=True, unit="tokens") for which in ("input", "output"))
    return Panel(title, x_axis, y_axis, density=Density(columns, rows, share))
