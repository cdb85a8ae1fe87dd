"""The figures of a trace that its model promises to keep, and how far a sample may be off."""

from __future__ import annotations

from typing import NamedTuple

from ..analysis.arrivals import dispersion
from ..analysis.curves import hit_curve
from ..analysis.distances import spearman
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, require_known
from .bins import InvalidModelError

SHARES = {"lru_2": 0.02, "lru_10": 0.1, "lru_50": 0.5}  # of the working set: capacities of an LRU cache
SMALL = 2000  # a trace with fewer requests may be off by twice as much
WINDOW_MS = 60_000  # of the dispersion

Figures = dict[str, float | None]  # name -> value; None = the trace does not show it


class Bound(NamedTuple):
    """How far the mean of samples may be off."""

    title: str
    limit: float
    is_relative: bool = False


BOUNDS = {
    "input_length": Bound("Input length (ISL), tokens", 0.01, is_relative=True),
    "output_length": Bound("Output length (OSL), tokens", 0.01, is_relative=True),
    "length_correlation": Bound("ISL-OSL rank correlation", 0.02),
    "block_hit_rate": Bound("Block hit rate, unlimited", 0.005),
    "token_hit_rate": Bound("Token hit rate, unlimited", 0.005),
    "request_hit_rate": Bound("Request hit rate, unlimited", 0.005),
    "lru_2": Bound("LRU block hit rate, 2 % of the working set", 0.01),
    "lru_10": Bound("LRU block hit rate, 10 % of it", 0.01),
    "lru_50": Bound("LRU block hit rate, 50 % of it", 0.01),
    "dispersion_60s": Bound("Dispersion of the rate, 60 s", 0.2, is_relative=True),
}


def figures_of(trace: Trace, working_set: int | None = None) -> Figures:
    """The figures of a trace, by name.

    Args:
        trace: The trace; its ids form a forest.
        working_set: Blocks of which the capacities are shares. Default: those of the trace.

    >>> from kvtrace.trace.building import toy
    >>> figures = figures_of(toy("0 1", "0 2", "0 1"))
    >>> figures["block_hit_rate"], round(figures["lru_50"], 2), figures["working_set"]
    (0.5, 0.33, 3)
    """
    require_known(trace, trace.meta, "what a synthetic trace is compared with", OUTPUTS)
    curve, lengths, outputs = hit_curve(trace), trace.input_length, trace.output_length
    unlimited = curve.at(max(1, curve.working_set))
    blocks = working_set or curve.working_set
    return {
        "working_set": blocks, "input_length": float(lengths.mean()), "output_length": float(outputs.mean()),
        "length_correlation": spearman(lengths, outputs), "block_hit_rate": unlimited.block_hit_rate,
        "token_hit_rate": unlimited.token_hit_rate, "request_hit_rate": unlimited.request_hit_rate,
        **{name: curve.at(max(1, round(share * blocks))).block_hit_rate for name, share in SHARES.items()},
        "dispersion_60s": dispersion(trace.timestamp, WINDOW_MS),
    }  # fmt: skip


def figures_from(values: object) -> Figures:
    """The figures in the JSON of a model; InvalidModelError if they are not figures."""
    names = {"working_set", *BOUNDS}
    if type(values) is not dict or set(values) != names:
        raise InvalidModelError("inconsistent figures")
    if not all(value is None or (type(value) in (int, float) and abs(value) < 1 << 60) for value in values.values()):
        raise InvalidModelError("inconsistent figures")
    return dict(values)
