"""Hits of single requests: the share of hit blocks, and the number of hit tokens."""

from __future__ import annotations

import numpy as np

from ...trace.hits import leading_tokens
from .plot import Axis, Panel, Plot, Series, Study, cdf

BARS = 20


def plot(study: Study) -> Plot:
    """Distributions of per-request hit rate and hit length, without eviction.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0 1", "0 2"))).panels[0].series[0].y.tolist()[::10]
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
