"""The data of a plot: panels of series over two axes, thinned to the size of a page.

Each plot module returns a `Plot`. `interactive` draws it with plotly, and `paper` draws it with matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...analysis.curves import HitCurve, hit_curve
from ...analysis.session_statistics import SessionValues, session_values
from ...analysis.sessions import SessionLinks, infer_sessions, recorded_turns
from ...analysis.summary import Summary, analyze
from ...cache.demand import Optimum
from ...cache.setup import CacheSetup
from ...cache.simulation import Simulation
from ...serving.misses.causes import causes_of
from ...serving.misses.explanation import Explanation
from ...serving.run import Run
from ...trace.domains import in_domains
from ...trace.hits import Hits, count_hits, unlimited_hits
from ...trace.trace import Trace
from ...trace.unknown import PREFIXES, unknown

POINTS = 400  # of a curve, more than a screen shows
BINS = 120  # of a time axis
OPTIMA = 12  # capacities at which the optimum is simulated
POLICIES = ("lru", "lfu", "s3fifo", "sieve")  # beside belady, unless the reader chooses
MAX_REFERENCES = 5_000_000  # largest number of blocks of a trace that is simulated by default
MAX_LINES = 8  # of one panel, as many as the palette has colours
LEAST_SHARES = 0.02  # length of an axis of shares
MAX_LINEAR_RATIO = 20  # largest ratio of values on a linear axis


class Study:
    """A trace, with the results that several plots share, each computed once."""

    trace: Trace
    name: str
    kv_bytes_per_token: int | None
    policies: tuple[str, ...]
    chosen_capacity: int | None
    with_domains: Trace  # the trace as recorded; `trace` has the ids of its domains apart

    def __init__(
        self, trace: Trace, name: str = "trace", kv_bytes_per_token: int | None = None, *,
        policies: Sequence[str] = (), capacity: int | None = None, explanation: Explanation | None = None,
        curve: HitCurve | None = None,
    ):  # fmt: skip
        self.trace, self.name, self.kv_bytes_per_token = in_domains(trace), name, kv_bytes_per_token
        self.policies, self.chosen_capacity = tuple(policies), capacity
        self.with_domains, self._explanation, self._curve = trace, explanation, curve

    @cached_property
    def unknown(self) -> dict[str, str]:
        """What the trace does not know, each with a sentence that says what makes it known."""
        return unknown(self.trace, self.trace.meta)

    @property
    def shown_policies(self) -> tuple[str, ...]:
        """The policies to compare, without belady, which is always compared."""
        return tuple(name for name in self.policies or POLICIES if name != "belady")

    @property
    def too_large(self) -> str:
        """Why policies are not simulated by default; empty if they are."""
        references = len(self.trace.hash_ids)
        if self.policies or references <= MAX_REFERENCES:
            return ""
        return f"prompts have {references:,} blocks, more than {MAX_REFERENCES:,}."

    @cached_property
    def capacity(self) -> int:
        """The capacity of the hit rate over time, in blocks."""
        return self.capacity_of_most_hits if self.chosen_capacity is None else self.chosen_capacity

    @cached_property
    def capacity_of_most_hits(self) -> int:
        """The smallest LRU cache with 90 % of the hit tokens of a cache that never evicts, in blocks."""
        return max(self.curve.longest, self.curve.least_capacity(0.9, "hit_tokens"))

    @property
    def run(self) -> Run:
        """LRU at the chosen capacity."""
        return Run(CacheSetup([self.capacity], gap=False))

    @cached_property
    def at_capacity(self) -> Simulation | None:
        """The simulation of the run; None for a large trace for which no capacity was chosen."""
        if self.chosen_capacity is None and len(self.trace.hash_ids) > MAX_REFERENCES:
            return None
        return self.run.simulate(self.trace).runs[0]

    @cached_property
    def explanation(self) -> Explanation | None:
        """The causes of the misses: those given, else of LRU at the chosen capacity; None if that is not simulated."""
        if self._explanation is not None or PREFIXES in self.unknown or self.at_capacity is None:
            return self._explanation
        causes = causes_of(self.at_capacity, self.with_domains)
        return Explanation(self.at_capacity, causes, self.with_domains, self.run)

    @cached_property
    def optimum(self) -> dict[int, Hits]:
        """Capacity -> the hits of the offline optimum, at a few capacities."""
        optimum = Optimum.of(self.trace, self.curve.segments)
        return {
            capacity: count_hits(self.trace, optimum.hit_blocks(capacity)) for capacity in self.curve.capacities(OPTIMA)
        }

    @cached_property
    def inferred_sessions(self) -> SessionLinks:
        """Sessions inferred from the blocks that requests share."""
        return infer_sessions(self.trace)

    @cached_property
    def recorded_turns(self) -> SessionLinks | None:
        """The recorded sessions; None if the trace has none."""
        return recorded_turns(self.trace)

    @cached_property
    def session_values(self) -> SessionValues | None:
        """The values of the recorded sessions; None if the trace has none."""
        return None if self.recorded_turns is None else session_values(self.trace, self.recorded_turns)

    @cached_property
    def summary(self) -> Summary:
        """All statistics; delivered hits stand beside those of the simulated cache."""
        summary = analyze(self.trace, kv_bytes_per_token=self.kv_bytes_per_token)
        if summary.delivered is None or self.explanation is None:
            return summary
        return replace(summary, delivered=self.explanation.delivered)

    @cached_property
    def hit_blocks(self) -> np.ndarray:
        """Hit blocks of each request without eviction."""
        return unlimited_hits(self.trace)

    @cached_property
    def curve(self) -> HitCurve:
        """The hit curve: the given one, if there is one."""
        return hit_curve(self.trace) if self._curve is None else self._curve


@dataclass(frozen=True)
class Axis:
    """An axis with its title and unit."""

    title: str
    log: bool = False
    percent: bool = False  # values are shares
    limits: tuple[float, float] | None = None  # None: from the data; (0, 0): from 0 to the end of the data
    ticks: dict[float, str] | None = None  # value -> label, in place of plain numbers
    unit: str = ""  # of the values that the page shows under the pointer; shares need none
    whole: bool = False  # values are whole numbers, as instances are


@dataclass(frozen=True, eq=False)
class Series:
    """One line or one set of bars."""

    name: str
    x: np.ndarray
    y: np.ndarray
    colour: int = 0  # index into the palette; -1 and below: into TONES
    style: str = "line"  # one of STYLES
    low: np.ndarray | None = None  # ends of an interval around each value
    high: np.ndarray | None = None
    opacity: float = 1.0  # of bars


# dots: a line with markers; points: markers alone; bars: upwards; across: to the right;
# stack: upwards, on those of the series before
STYLES = ("line", "dash", "step", "dots", "points", "bars", "across", "stack")


@dataclass(frozen=True, eq=False)
class Spans(Series):
    """Bars to the right that begin at x, in rows at the heights y."""

    length: np.ndarray = field(default_factory=lambda: np.zeros(0))
    height: float = 0.7  # of a bar; rows are 1 apart
    details: dict[str, np.ndarray] = field(default_factory=dict)  # name -> values that the pointer shows; real: shares
    shows_start: bool = True  # the pointer shows where a bar begins


@dataclass(frozen=True, eq=False)
class Density:
    """A share for each cell of a grid."""

    x: np.ndarray  # edges of the columns
    y: np.ndarray  # edges of the rows
    share: np.ndarray  # row, column -> share of requests


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes, or the reason for a missing drawing."""

    title: str
    x: Axis = Axis("")
    y: Axis = Axis("")
    series: list[Series] = field(default_factory=list)
    density: Density | None = None
    note: str = ""  # values that the drawing cannot show
    missing: str = ""  # reason, if there is nothing to draw
    legend: bool = True  # the names of several series are shown; False where ticks name them


LINES = ("line", "dash", "step", "dots", "points")


def fitted(panel: Panel) -> Axis:
    """The vertical axis of a panel. Lines that all lie in its upper half get an axis that begins near the lowest one.

    An axis of shares has at least 2 points, and the ends of one of whole numbers are whole.

    >>> rates = [Series("lru", np.array([1, 2]), np.array([0.8, 0.9]))]
    >>> fitted(Panel("", y=Axis("hit rate", percent=True, limits=(0, 1)), series=rates)).limits
    (0.79, 0.91)
    """
    axis = panel.y
    values = [part for series in panel.series for part in (series.y, series.low, series.high) if part is not None]
    if not values or not axis.limits or axis.limits[0] or any(series.style not in LINES for series in panel.series):
        return axis
    low, high = float(min(map(np.min, values))), float(max(map(np.max, values)))
    if not 0 < high < 2 * low:
        return axis
    least = LEAST_SHARES if axis.percent else 0.0
    beyond = max(0.1 * ((high - low) or high), (least - (high - low)) / 2)
    low, high = max(low - beyond, 0.0), min(high + beyond, axis.limits[1] or np.inf)
    if axis.whole:
        low, high = np.floor(low), np.ceil(high)
    return replace(axis, limits=(round(float(low), 6), round(float(high), 6)))


@dataclass(frozen=True, eq=False)
class Plot:
    """Panels that answer one question."""

    title: str
    explanation: str  # how to read the plot, in one or two sentences
    panels: list[Panel]


def unknown_plot(title: str, sentence: str) -> Plot:
    """A plot that is not drawn, because the trace does not know what it needs.

    >>> unknown_plot("Reuse", "the log has lengths only.").panels[0].missing
    'the log has lengths only.'
    """
    return Plot(title, "", [Panel(title, missing=sentence)])


def bars(title: str, axis: Axis, values: dict[str, float]) -> Panel:
    """One bar to the right for each name, the first on top, so that names of any length have room.

    >>> bars("Load", Axis("tokens"), {"0": 5.0, "1": 7.0}).y.ticks
    {0.0: '1', 1.0: '0'}
    """
    place = np.arange(len(values), dtype=float)
    names = Axis("", ticks=dict(zip(place.tolist(), [*values][::-1], strict=True)), limits=(-0.5, len(values) - 0.5))
    return Panel(title, axis, names, [Series(title, np.array([*values.values()][::-1]), place, 0, "across")])


def rate_axis(title: str, top: float) -> Axis:
    """An axis of hit rates, from 0 to a little above the highest."""
    return Axis(title, percent=True, limits=(0, min(1.0, top * 1.15) or 1.0))


def highest(series: list[Series]) -> float:
    """The highest value of some series."""
    return max(float(line.y.max(initial=0.0)) for line in series)


def cdf(
    title: str, axis: Axis, *samples: tuple[str, np.ndarray, np.ndarray | None], why: str = "", note: str = ""
) -> Panel:
    """The cumulative distributions of samples (name, values, counts).

    If the samples have no values, the panel shows `why` as the reason. It shows `note` below the curves.

    >>> panel = cdf("Lengths", Axis("tokens"), ("ISL", np.array([1, 2, 2, 3]), None))
    >>> panel.series[0].y.tolist()
    [0.0, 0.25, 0.75, 1.0, 1.0]
    """
    parts = [(name, *cumulative(values, counts)) for name, values, counts in samples if len(values)]
    if not parts:
        return Panel(title, missing=why or "the sample has no values.")
    if axis.log and not _needs_log_axis([value for _, value, _ in parts]):
        axis = replace(axis, log=False, limits=(0, 0))
    together = np.concatenate([value for _, value, _ in parts])
    low, high = float(together[together > 0].min()) if axis.log else 0.0, float(together.max())
    series, notes = [], [note] if note else []
    for colour, (name, value, share) in enumerate(parts):
        x, y = _across(value, share, low, high)
        series.append(Series(name, x, y, colour, "step"))
        if axis.log and value[0] <= 0:
            notes.append(f"{name}: {100 * share[value <= 0][-1]:.2g}% are 0 and not shown.")
    return Panel(title, axis, Axis("cumulative share", percent=True, limits=(0, 1)), series, note=" ".join(notes))


def _across(value, share, low, high):
    """Extend a cumulative distribution over the whole axis; it starts at the share of the values before the axis."""
    before = share[value < low][-1] if (value < low).any() else 0.0
    share, value = share[value >= low], value[value >= low]
    return np.concatenate([[low], value, [high]]), np.concatenate([[before], share, [1.0]])


def _needs_log_axis(values) -> bool:
    """Whether the ratio of the positive values is too large for a linear axis."""
    above = [part[part > 0] for part in values if (part > 0).any()]
    return bool(above) and max(part.max() for part in above) > MAX_LINEAR_RATIO * min(part.min() for part in above)


def cumulative(values: np.ndarray, counts: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values and the share of the sample up to each, thinned to a few hundred points that are even in share.

    >>> [part.tolist() for part in cumulative(np.array([5, 1]), np.array([1, 3]))]
    [[1, 5], [0.75, 1.0]]
    """
    if not len(values):
        return np.zeros(0), np.zeros(0)
    counts = np.ones(len(values), dtype=np.int64) if counts is None else counts
    order = np.argsort(values, kind="stable")
    value, cumulated = values[order], np.cumsum(counts[order])
    last = np.append(value[1:] != value[:-1], True)
    value, share = value[last], cumulated[last] / cumulated[-1]
    if len(value) > POINTS:
        at = np.searchsorted(share, np.linspace(share[0], 1, POINTS))
        at = np.unique(np.minimum(np.concatenate([[0], at]), len(value) - 1))
        value, share = value[at], share[at]
    return value, share


def time_bins(trace: Trace, bins: int = BINS) -> tuple[np.ndarray, np.ndarray, str, float]:
    """(bin of each request, middle of each bin, unit of the time axis, milliseconds of the unit).

    >>> from kvtrace.trace.building import toy
    >>> time_bins(toy("0", "1", "2", gap_ms=1000), 2)[0].tolist()
    [0, 1, 1]
    """
    duration = float(trace.timestamp[-1])
    unit, ms = time_unit(duration)
    which = np.minimum(trace.timestamp * (bins / duration), bins - 1).astype(np.int64)
    return which, (np.arange(bins) + 0.5) * duration / bins / ms, unit, ms


def time_unit(duration_ms: float) -> tuple[str, float]:
    """The unit of a duration on an axis, and its milliseconds.

    >>> time_unit(3_600_000)
    ('min', 60000.0)
    """
    for unit, ms in (("days", 86_400_000.0), ("h", 3_600_000.0), ("min", 60_000.0)):
        if duration_ms >= 3 * ms:
            return unit, ms
    return "s", 1000.0


NO_DURATION = "all requests arrive at the same time."


def log_edges(values: np.ndarray, per_decade: int = 20) -> np.ndarray:
    """Edges of logarithmic bins around all values, which are positive."""
    low, high = np.log10(values.min()), np.log10(values.max())
    first, last = np.floor(low * per_decade), np.floor(high * per_decade) + 1
    return 10 ** (np.arange(first, last + 1) / per_decade)


def log_ticks(low: float, high: float, steps: tuple[int, ...] | None = None) -> list[float]:
    """Ticks of a logarithmic axis: 1, 2, 5 times each power of ten on a short axis, else the powers of ten.

    >>> log_ticks(300, 40_000)
    [500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0]
    """
    decades = np.log10(high / low) if high > low else 0
    steps = steps or ((1,) if decades > 3 else (1, 2, 5))
    powers = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
    ticks = [float(step * 10.0**power) for power in powers for step in steps]
    inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    return inside if len(inside) >= 3 or high <= low else even_ticks(low, high)


def even_ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """Ticks in equal steps of 1, 2 or 5 times a power of ten, of at least `least`.

    >>> even_ticks(1, 4), even_ticks(0.00702, 0.0074), even_ticks(0, 2, least=1)
    ([1.0, 2.0, 3.0, 4.0], [0.0071, 0.0072, 0.0073, 0.0074], [0.0, 1.0, 2.0])
    """
    rough = (high - low) / 5
    power = 10.0 ** np.floor(np.log10(rough))
    step = max(least, next(power * part for part in (1, 2, 5, 10) if power * part >= rough * 0.999))
    places = np.arange(np.ceil(low / step - 1e-6), np.floor(high / step + 1e-6) + 1) * step + 0.0  # never -0
    return [float(f"{place:.6g}") for place in places]
