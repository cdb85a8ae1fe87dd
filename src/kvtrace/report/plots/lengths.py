"""Input and output lengths: their distributions, and their joint density."""

from __future__ import annotations

import numpy as np

from ...trace.unknown import OUTPUTS, UNKNOWN_LENGTH
from .plot import Axis, Density, Panel, Plot, Series, Study, cdf, log_edges

TOKENS = Axis("tokens", log=True, unit="tokens")
SHARE = Axis("share of requests", percent=True, limits=(0, 0))


def plot(study: Study) -> Plot:
    """Distributions of input and output length, in logarithmic bins and cumulative, and their joint density.

    >>> from kvtrace.trace.building import toy
    >>> [panel.title for panel in plot(Study(toy("0 1", "2"))).panels]
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
