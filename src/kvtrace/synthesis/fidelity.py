"""The figures of a trace that its model promises to keep, those of samples beside them, and which are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._base.results import Result
from .._base.tables import TextTable
from ..analysis.arrivals import dispersion
from ..analysis.curves import hit_curve
from ..analysis.distribution import spearman
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


MAX_SEEDS = 1000


@dataclass(frozen=True, repr=False)
class Fidelity(Result):
    """The figures of a trace, and their means over samples of as many requests.

    >>> Fidelity(5000, 5, {"lru_2": 0.41}, {"lru_2": 0.45}).lost
    ['LRU block hit rate, 2 % of the working set: 0.4500 for 0.4100 (bound 0.0100)']
    """

    requests: int  # of the trace
    seeds: int  # samples
    original: Figures
    sample: Figures

    def _headline(self) -> str:
        checked = sum(self.is_kept(name) is not None for name in BOUNDS)
        return f"{checked - len(self.lost)} of {checked} figures kept, {self.requests:,} requests, {self.seeds} samples"

    def _columns(self) -> dict[str, list[Any]]:
        """One row for each figure."""
        return {
            "figure": list(BOUNDS), "original": [self.original.get(name) for name in BOUNDS],
            "sample": [self.sample.get(name) for name in BOUNDS], "error": [self.error(name) for name in BOUNDS],
            "limit": [self.limit(name) for name in BOUNDS], "kept": [self.is_kept(name) for name in BOUNDS],
        }  # fmt: skip

    def limit(self, name: str) -> float:
        """How far a figure may be off: twice as far for a small trace."""
        return BOUNDS[name].limit * (2 if self.requests < SMALL else 1)

    def error(self, name: str) -> float | None:
        """Sample less original, relative where the bound is; None if one of them does not have the figure."""
        original, sample = self.original.get(name), self.sample.get(name)
        if original is None or sample is None or (BOUNDS[name].is_relative and not original):
            return None
        return sample / original - 1 if BOUNDS[name].is_relative else sample - original

    def is_kept(self, name: str) -> bool | None:
        """Whether a figure is within its bound; None if it cannot be compared."""
        error = self.error(name)
        return None if error is None else abs(error) <= self.limit(name)

    @property
    def lost(self) -> list[str]:
        """A sentence for each figure that is not kept."""
        return [
            f"{BOUNDS[name].title}: {self.sample[name]:.4f} for {self.original[name]:.4f} (bound {self._bound(name)})"
            for name in BOUNDS
            if self.is_kept(name) is False
        ]

    def to_dict(self) -> dict[str, Any]:
        """The figures and whether each is kept, by name."""
        return {
            "requests": self.requests, "seeds": self.seeds, "original": self.original, "sample": self.sample,
            "kept": {name: self.is_kept(name) for name in BOUNDS},
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Fidelity:
        """The fidelity of `to_dict`; InvalidModelError if the values are inconsistent."""
        requests, seeds = values["requests"], values["seeds"]
        if type(requests) is not int or type(seeds) is not int or requests < 1 or not 0 < seeds <= MAX_SEEDS:
            raise InvalidModelError("an inconsistent fidelity")
        return cls(requests, seeds, figures_from(values["original"]), figures_from(values["sample"]))

    def tables(self) -> list[TextTable]:
        """One row for each figure."""
        table = TextTable(f"Fidelity: means of {self.seeds} samples of {self.requests:,} requests")
        table.add_column()
        table.add_columns(["original", "samples", "off", "bound"], right=True)
        table.add_column("kept")
        for name, bound in BOUNDS.items():
            error, kept = self.error(name), self.is_kept(name)
            off = "" if error is None else f"{100 * error:+.2f} %" if bound.is_relative else f"{error:+.4f}"
            table.add_row(
                bound.title, _shown(self.original.get(name)), _shown(self.sample.get(name)), off, self._bound(name),
                {True: "yes", False: "NO", None: "unknown"}[kept],
            )  # fmt: skip
        return [table]

    def _bound(self, name: str) -> str:
        limit = self.limit(name)
        return f"{100 * limit:g} %" if BOUNDS[name].is_relative else f"{limit:.4f}"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}" if value >= 10 else f"{value:.4f}"
