"""The fidelity of one trace to another: both values of each figure, and a score from 0 to 1 for each figure.

A score is 1 - distance; docs/analysis/compare.md defines each distance. The overall score is the mean of the scores. A
figure that only one trace has scores 0. A figure that neither trace has is left out. The figures of agents' sessions
(SESSION_FIGURES) are left out unless both traces have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from .._base.errors import InputError, docs_page
from .._base.results import Described, PlottedResult, columns_of, headed
from .._base.tables import TextTable, csv_text, html, printable
from ..trace.domains import in_domains
from ..trace.hits import RATES, count_hits, leading_tokens, unlimited_hits
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, PREFIXES, require_known
from .arrivals import WINDOWS_S, dispersion
from .compared_figures import (
    QUANTILES,
    CurvePair,
    DistributionPair,
    NumberPair,
    Unit,
    curve_table,
    error_table,
    score_table,
)
from .curves import HitCurve, hit_curve
from .distribution import Distribution, WeightedValues, distance, spearman
from .reuse import reuse_distances, reuse_times
from .session_statistics import SessionValues, session_values
from .sessions import SessionLinks, infer_sessions, own_session_blocks, recorded_turns

SCHEMA = 2  # version of the keys of to_dict
POINTS = 400  # compared capacities of a hit curve
SESSION_FIGURES = (  # which are left out unless both traces have them
    "compactions", "think_ms", "service_ms", "subagents", "spawn_width", "session_hit_tokens",
    "cross_session_hit_tokens", "session_block_hit_rate", "cross_session_block_hit_rate",
)  # fmt: skip


@dataclass(frozen=True)
class ComparedTrace(Described):
    """One of the two traces."""

    name: str
    requests: int
    block_size: int
    working_set: int  # blocks
    duration_ms: float


@dataclass(frozen=True, repr=False)
class Comparison(Described, PlottedResult):
    """All figures of two traces. Where the order matters, `a` is the original."""

    _keys = ("a", "b", "sessions", "notes", "overall", "scores", "distributions", "numbers", "curves")
    _schema = SCHEMA

    names: tuple[str, str]
    requests: tuple[int, int]
    block_sizes: tuple[int, int]
    working_sets: tuple[int, int]  # blocks
    duration_ms: tuple[float, float]
    sessions: Literal["recorded", "inferred"]  # in both traces
    distributions: dict[str, DistributionPair]
    numbers: dict[str, NumberPair]
    curves: dict[str, CurvePair]

    @property
    def a(self) -> ComparedTrace:
        """The first trace."""
        return self._side(0)

    @property
    def b(self) -> ComparedTrace:
        """The second trace."""
        return self._side(1)

    def _side(self, side: int) -> ComparedTrace:
        values = (self.names, self.requests, self.block_sizes, self.working_sets, self.duration_ms)
        return ComparedTrace(*(pair[side] for pair in values))  # type: ignore[arg-type]

    @property
    def scores(self) -> dict[str, float | None]:
        """The score of each figure, from 0 (nothing in common) to 1 (equal); None if neither trace has the figure."""
        return {name: pair.score for name, pair in (self.distributions | self.numbers | self.curves).items()}

    @property
    def overall(self) -> float:
        """The mean of the scores."""
        scores = [score for score in self.scores.values() if score is not None]
        return sum(scores) / len(scores)

    @property
    def notes(self) -> list[str]:
        """Sentences on how to read the figures."""
        return list(_notes(self))

    def tables(self) -> list[TextTable]:
        """The tables of `kvtrace compare`: scores, relative errors, and hit curves."""
        return [
            score_table(self.names, self.overall, self.distributions, self.numbers, self.curves),
            error_table(self.distributions),
            curve_table(self.curves),
        ]

    def _headline(self) -> str:
        figures = [score for score in self.scores.values() if score is not None]
        names = f"{printable(self.names[0])}, {printable(self.names[1])}"
        return f"{names}, overall={self.overall:.4f}, {len(figures)} figures, lowest={min(figures):.4f}"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of(self.to_rows())

    def _repr_html_(self) -> str:
        return headed(self, html(self.tables()))

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each figure, the overall score first; only distributions have relative errors."""
        return [{"figure": "overall", "score": self.overall}] + [
            {"figure": name} | pair.to_row() for name, pair in (self.distributions | self.numbers | self.curves).items()
        ]


class PreparedTrace:
    """A trace with the values that several figures need; `hit_blocks` and `curve` are computed unless given."""

    def __init__(self, trace: Trace, hit_blocks: np.ndarray | None = None, curve: HitCurve | None = None):
        self.trace = trace
        if hit_blocks is not None:
            self.hit_blocks = hit_blocks
        if curve is not None:
            self.curve = curve

    @cached_property
    def hit_blocks(self) -> np.ndarray:
        """Hit blocks of each request without eviction."""
        return unlimited_hits(self.trace)

    @cached_property
    def curve(self) -> HitCurve | None:
        """The hit curve; None if the trace has no blocks."""
        return hit_curve(self.trace) if len(self.trace.hash_ids) else None

    @cached_property
    def own_blocks(self) -> np.ndarray:
        """Hit blocks of each request that its recorded session used before."""
        session = self.trace.session
        return own_session_blocks(self.trace, np.full(len(self.trace), -1) if session is None else session)

    @property
    def inferred_sessions(self) -> SessionLinks:
        """The sessions, inferred from shared blocks."""
        return infer_sessions(self.trace)


def compare(a: Trace, b: Trace, *, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare two traces: the fidelity of b to a.

    Args:
        a: The original trace.
        b: The trace to compare with it.
        names: The names of the traces in tables and errors.

    Returns:
        Both values and a score from 0 to 1 for each figure, and the mean of the scores.

    Raises:
        InputError: A trace has no requests, or its ids do not form a forest.
        UnknownError: Shared prefixes or output lengths of a trace are unknown.

    >>> from kvtrace.trace.building import toy
    >>> comparison = compare(toy("0 1", "0 2"), toy("0 1", "2 3"))
    >>> comparison.scores["input_length"], comparison.scores["block_hit_rate"]
    (1.0, 0.75)
    """
    return compare_prepared(PreparedTrace(in_domains(a)), PreparedTrace(in_domains(b)), names)


def compare_prepared(first: PreparedTrace, second: PreparedTrace, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """`compare` for traces whose hits or curves are known already."""
    traces = first, second
    for prepared, name in zip(traces, names, strict=True):
        if not len(prepared.trace):
            raise InputError(f"{name}: the trace has no requests, so there is nothing to compare.")
        require_comparable(prepared.trace, name)
        prepared.trace.require_chained()
    sessions = sessions_of_both(first, second)
    in_blocks = first.trace.block_size == second.trace.block_size
    of_a, of_b = samples_of_both(first, second, sessions, in_blocks=in_blocks)
    return Comparison(
        names=names,
        requests=(len(first.trace), len(second.trace)),
        block_sizes=(first.trace.block_size, second.trace.block_size),
        working_sets=(first.trace.working_set, second.trace.working_set),
        duration_ms=(float(first.trace.timestamp[-1]), float(second.trace.timestamp[-1])),
        sessions="recorded" if sessions[0].recorded else "inferred",
        distributions={name: _distribution_pair(of_a[name], of_b[name]) for name in of_a},
        numbers=_number_pairs(traces, sessions),
        curves={
            "curve_by_capacity": _curve_pair(traces, in_blocks, by_share=False),
            "curve_by_share": _curve_pair(traces, in_blocks, by_share=True),
        },
    )


def require_comparable(trace: Trace, name: str) -> None:
    """UnknownError if a trace does not hold what a comparison needs."""
    require_known(trace, trace.meta, f"{name}: the fidelity", PREFIXES, OUTPUTS)


# -- distributions -------------------------------------------------------------------------------------------------


def sessions_of_both(first: PreparedTrace, second: PreparedTrace) -> tuple[SessionLinks, SessionLinks]:
    """The recorded sessions if both traces have them, else the inferred sessions of both."""
    recorded = recorded_turns(first.trace), recorded_turns(second.trace)
    if recorded[0] is not None and recorded[1] is not None:
        return recorded[0], recorded[1]
    return first.inferred_sessions, second.inferred_sessions


def samples_of_both(
    first: PreparedTrace, second: PreparedTrace, sessions: tuple[SessionLinks, SessionLinks], *, in_blocks: bool
) -> tuple[dict[str, WeightedValues], dict[str, WeightedValues]]:
    """The values of each figure that is compared as a distribution, of both traces; the same names in one order."""
    values = session_values(first.trace, sessions[0]), session_values(second.trace, sessions[1])
    a, b = (
        _samples(trace, links, of_sessions, in_blocks=in_blocks)
        for trace, links, of_sessions in zip((first, second), sessions, values, strict=True)
    )
    more_a, more_b = (
        session_samples(trace, links, of_sessions)
        for trace, links, of_sessions in zip((first, second), sessions, values, strict=True)
    )
    names = [name for name in more_a if name in more_b]
    return a | {name: (more_a[name], None) for name in names}, b | {name: (more_b[name], None) for name in names}


def session_samples(prepared: PreparedTrace, sessions: SessionLinks, values: SessionValues) -> dict[str, np.ndarray]:
    """The values of agents' sessions that are known; none for inferred sessions."""
    if not sessions.recorded:
        return {}
    trace, agents = prepared.trace, values.subagents
    own = leading_tokens(trace, prepared.own_blocks)
    every = leading_tokens(trace, prepared.hit_blocks)
    samples = {
        "compactions": values.compactions,
        "think_ms": values.think_ms, "service_ms": values.service_ms,
        "subagents": None if agents is None else agents.subagents,
        "spawn_width": None if agents is None else agents.width,
        "session_hit_tokens": own, "cross_session_hit_tokens": every - own,
    }  # fmt: skip
    return {name: of_it for name, of_it in samples.items() if of_it is not None and len(of_it)}


def _samples(
    prepared: PreparedTrace, sessions: SessionLinks, values: SessionValues, *, in_blocks: bool
) -> dict[str, WeightedValues]:
    """The values of a trace that every trace can have; reuse distances in blocks or in tokens."""
    trace, none = prepared.trace, np.zeros(0)
    segments = None if prepared.curve is None else prepared.curve.segments
    distances, counts = (none, none) if segments is None else reuse_distances(trace, segments)
    return {
        "input_length": (trace.input_length, None),
        "output_length": (trace.output_length, None),
        "hit_tokens": (leading_tokens(trace, prepared.hit_blocks), None),
        "gap_ms": (np.diff(trace.timestamp), None),
        "turns": (values.turns, None),
        "turn_gap_ms": (values.turn_gap_ms, None),
        "growth": (values.growth, None),
        "reuse_time_ms": (none, none) if segments is None else reuse_times(trace, segments),
        "reuse_distance": (distances * (1 if in_blocks else trace.block_size), counts),
    }


def _distribution_pair(a: WeightedValues, b: WeightedValues) -> DistributionPair:
    of_a, of_b = _distribution(*a), _distribution(*b)
    if of_a.count and of_b.count:
        return DistributionPair(distance(a, b), of_a, of_b)
    return DistributionPair(1.0 if of_a.count or of_b.count else None, of_a, of_b)


def _distribution(values, counts):
    return Distribution.of(values, QUANTILES) if counts is None else Distribution.of_counted(values, counts, QUANTILES)


def _number_pairs(traces, sessions) -> dict[str, NumberPair]:
    correlations = [spearman(prepared.trace.input_length, prepared.trace.output_length) for prepared in traces]
    numbers = {"length_correlation": _number_pair(correlations, max_difference=2.0)}  # from -1 to 1
    hits = [count_hits(prepared.trace, prepared.hit_blocks) for prepared in traces]
    for name in RATES:
        numbers[name] = _number_pair([getattr(counts, name) if counts.blocks else None for counts in hits])
    if all(links.recorded for links in sessions):
        own = [count_hits(prepared.trace, prepared.own_blocks) for prepared in traces]
        across = [every.hit_blocks - same.hit_blocks for every, same in zip(hits, own, strict=True)]
        has_blocks = all(counts.blocks for counts in hits)
        for name, blocks in (("session", [same.hit_blocks for same in own]), ("cross_session", across)):
            shares = [part / counts.blocks for part, counts in zip(blocks, hits, strict=True)] if has_blocks else []
            numbers |= {f"{name}_block_hit_rate": _number_pair([*shares])} if shares else {}
    numbers["first_turns"] = _number_pair([float((links.parent < 0).mean()) for links in sessions])
    for window in WINDOWS_S:
        a, b = (dispersion(prepared.trace.timestamp, window * 1000) for prepared in traces)
        # no score if a trace is shorter than two windows
        numbers[f"dispersion_{window}s"] = NumberPair(a, b, None if a is None or b is None else _relative_gap(a, b))
    return numbers


def _number_pair(values: list[float | None], max_difference: float = 1.0) -> NumberPair:
    """A pair of numbers; the distance is the difference / the largest possible difference."""
    a, b = values
    if a is None or b is None:
        return NumberPair(a, b, None if a is b else 1.0)
    return NumberPair(a, b, abs(b - a) / max_difference)


def _relative_gap(a: float, b: float) -> float:
    """1 - smaller / larger."""
    return 1 - min(a, b) / max(a, b) if max(a, b) else 0.0


# -- hit curves ----------------------------------------------------------------------------------------------------


def _curve_pair(traces, in_blocks: bool, *, by_share: bool) -> CurvePair:
    """Both hit curves at the same capacities, or at the same shares of each working set."""
    unit: Unit = "share" if by_share else "blocks" if in_blocks else "tokens"
    rate = "block_hit_rate" if in_blocks else "token_hit_rate"  # hits in blocks of different sizes are not comparable
    curves = [prepared.curve for prepared in traces if prepared.curve is not None]
    if len(curves) < 2:
        return CurvePair(unit, rate, None, None, 0, 1.0 if curves else None, None, None)
    sizes = [_block_size_in(unit, curve) for curve in curves]
    first = max(curve.longest * size for curve, size in zip(curves, sizes, strict=True))
    last = max(curve.working_set * size for curve, size in zip(curves, sizes, strict=True))
    at = _log_spaced(first, last, whole=not by_share)
    gaps = np.abs(np.subtract(*(_rates(*pair, at, rate) for pair in zip(curves, sizes, strict=True))))
    worst = int(gaps.argmax())
    return CurvePair(
        unit, rate, float(first), float(last), len(at), float(gaps[worst]), float(at[worst]), float(gaps.mean())
    )


def _block_size_in(unit, curve):
    """The size of a block in the unit of the axis."""
    return {"blocks": 1, "tokens": curve.block_size, "share": 1 / curve.working_set}[unit]


def _log_spaced(first: float, last: float, *, whole: bool) -> np.ndarray:
    """Points from first to last, evenly spaced on a log scale."""
    at = np.geomspace(first, last, POINTS) if last > first else np.array([float(first)])
    return np.unique(np.rint(at)) if whole else at


def _rates(curve: HitCurve, size: float, at: np.ndarray, rate: str) -> np.ndarray:
    capacities = np.floor(at / size + 1e-6).astype(
        np.int64
    )  # rounding: 3 / working set * working set may be just below 3
    return np.array([getattr(hits, rate) for hits in curve.hits(capacities)])


# -- notes ---------------------------------------------------------------------------------------------------------


def _notes(comparison: Comparison):
    size_a, size_b = comparison.block_sizes
    if size_a != size_b:
        yield (
            f"The block sizes differ ({size_a:,} and {size_b:,} tokens): capacities and reuse distances are in tokens, "
            "and the hit curves show token hit rates. Block and request hit rates use each trace's own blocks."
        )
    if comparison.sessions == "inferred":
        yield (
            "The sessions of both traces are inferred from the blocks that requests share; "
            f"{docs_page('analysis/compare.md')} explains how."
        )
    short = [f"{window} s" for window in WINDOWS_S if comparison.numbers[f"dispersion_{window}s"].distance is None]
    if short:
        yield f"No dispersion, because a trace is shorter than two whole windows: {', '.join(short)}."
    in_one_only = [name for name in comparison.scores if _in_one_only(comparison, name)]
    if in_one_only:
        yield f"Only one of the traces has values, so the score is 0: {', '.join(in_one_only)}."
    scores = comparison.scores.items()
    missing = [name for name, score in scores if score is None and not name.startswith("dispersion")]
    if missing:
        yield f"Neither trace has values, so there is no score: {', '.join(missing)}."
    if comparison.overall < 1:
        yield "To learn which score is good, compare the two halves of a trace: two days of one service do not score 1."


def _in_one_only(comparison: Comparison, name: str) -> bool:
    if name in comparison.distributions:
        values = comparison.distributions[name]
        return (values.a.count > 0) != (values.b.count > 0)
    if name in comparison.numbers:
        number = comparison.numbers[name]
        return number.distance is not None and (number.a is None) != (number.b is None)
    return comparison.curves[name].distance == 1.0 and not comparison.curves[name].points


def comparison_csv(comparison: Comparison) -> str:
    """A header, and one line for each figure. Only distributions have relative errors."""
    return csv_text(comparison.to_rows(), ["figure", "score", "distance", "a", "b"])
