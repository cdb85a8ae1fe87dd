"""How faithful one trace is to another: figures side by side, and a score from 0 to 1 for each.

A score is 1 less a distance that docs/analysis/compare.md defines; the overall score is their mean. A figure that
only one of the traces has scores 0, and one that neither has is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .._base.errors import InputError
from .._base.tables import TextTable, html
from ..trace.hits import count_hits, unlimited_hits
from ..trace.trace import Trace
from .arrivals import WINDOWS_S, dispersion
from .comparison_tables import curves, errors, scores
from .curves import hit_curve
from .distances import Sample, distance, spearman
from .distribution import Distribution
from .exact_curve import HitCurve
from .figure_pairs import QUANTILES, Curves, Number, Values
from .reuse import reuse_distances, reuse_times
from .sessions import Turns, infer_sessions, recorded_sessions

SCHEMA = 1  # version of the keys of to_dict
POINTS = 400  # of a hit curve
HIT_RATES = ("block_hit_rate", "token_hit_rate", "request_hit_rate")


@dataclass(frozen=True)
class Comparison:
    """All figures of two traces side by side; `a` is the original where the order matters."""

    names: tuple[str, str]
    requests: tuple[int, int]
    block_sizes: tuple[int, int]
    working_sets: tuple[int, int]  # blocks
    duration_ms: tuple[float, float]
    sessions: str  # "recorded" in both traces, or "inferred" for both
    distributions: dict[str, Values]
    numbers: dict[str, Number]
    curves: dict[str, Curves]

    @property
    def scores(self) -> dict[str, float | None]:
        """The score of each figure, from 0 (nothing in common) to 1 (equal); None where neither trace has it."""
        return {name: found.score for name, found in (self.distributions | self.numbers | self.curves).items()}

    @property
    def overall(self) -> float:
        """The mean of the scores."""
        known = [score for score in self.scores.values() if score is not None]
        return sum(known) / len(known)

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures has to know."""
        return list(_notes(self))

    def tables(self) -> list[TextTable]:
        """Scores, the errors of each distribution, and the hit curves, as `kvtrace compare` prints them."""
        return [
            scores(self.names, self.overall, self.distributions, self.numbers, self.curves),
            errors(self.distributions),
            curves(self.curves),
        ]

    def _repr_html_(self) -> str:
        return html(self.tables())

    def to_dict(self) -> dict:
        """Keys as docs/analysis/compare.md lists them; `schema` is their version."""
        sides = ("requests", "block_sizes", "working_sets", "duration_ms")
        one, other = (
            {"name": self.names[side]}
            | {name.removesuffix("s") if name != "requests" else name: getattr(self, name)[side] for name in sides}
            for side in (0, 1)
        )
        return {
            "schema": SCHEMA, "a": one, "b": other, "sessions": self.sessions, "notes": self.notes,
            "overall": self.overall, "scores": self.scores,
            "distributions": {name: found.to_dict() for name, found in self.distributions.items()},
            "numbers": {name: found.to_dict() for name, found in self.numbers.items()},
            "curves": {name: found.to_dict() for name, found in self.curves.items()},
        }  # fmt: skip


class Side:
    """One of the traces, and what several figures need of it; `hit_blocks` and `curve` where they are known already."""

    def __init__(self, trace: Trace, hit_blocks: np.ndarray | None = None, curve: HitCurve | None = None):
        self.trace = trace
        if hit_blocks is not None:
            self.hit_blocks = hit_blocks
        if curve is not None:
            self.curve = curve

    @cached_property
    def hit_blocks(self) -> np.ndarray:
        """Hit blocks of each request, nothing ever evicted."""
        return unlimited_hits(self.trace)

    @cached_property
    def curve(self) -> HitCurve | None:
        """LRU at every capacity; None where the trace has no blocks."""
        return hit_curve(self.trace) if len(self.trace.hash_ids) else None

    @property
    def inferred(self) -> Turns:
        """Conversations by what requests share."""
        return infer_sessions(self.trace, None if self.curve is None else self.curve.found)


def compare(a: Trace, b: Trace, *, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare two traces figure by figure, and score how faithful b is to a.

    Args:
        a: The original trace.
        b: The other trace, for example a synthetic one.
        names: What notes and tables call the two.

    Returns:
        All figures side by side, a score from 0 to 1 for each, and their mean.

    Raises:
        InputError: A trace has no requests, or ids that do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> found = compare(toy("0 1", "0 2"), toy("0 1", "2 3"))
    >>> found.scores["input_length"], found.scores["block_hit_rate"]
    (1.0, 0.75)
    """
    return compare_sides(Side(a), Side(b), names)


def compare_sides(one: Side, other: Side, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """As `compare`, of traces of which something is known already."""
    sides = one, other
    for side, name in zip(sides, names, strict=True):
        if not len(side.trace):
            raise InputError(f"{name}: the trace has no requests, so there is nothing to compare.")
        side.trace.require_chained()
    turns = turns_of_both(one, other)
    in_blocks = one.trace.block_size == other.trace.block_size
    of_a, of_b = (samples(side, found, in_blocks=in_blocks) for side, found in zip(sides, turns, strict=True))
    return Comparison(
        names=names,
        requests=(len(one.trace), len(other.trace)),
        block_sizes=(one.trace.block_size, other.trace.block_size),
        working_sets=(one.trace.working_set, other.trace.working_set),
        duration_ms=(float(one.trace.timestamp[-1]), float(other.trace.timestamp[-1])),
        sessions="recorded" if turns[0].recorded else "inferred",
        distributions={name: _values(of_a[name], of_b[name]) for name in of_a},
        numbers=_numbers(sides, turns),
        curves={
            "curve_by_capacity": _curves(sides, in_blocks, by_share=False),
            "curve_by_share": _curves(sides, in_blocks, by_share=True),
        },
    )


# -- distributions -------------------------------------------------------------------------------------------------


def turns_of_both(one: Side, other: Side) -> tuple[Turns, Turns]:
    """Recorded conversations where both traces have them; else inferred ones of both, to compare like with like."""
    recorded = recorded_sessions(one.trace), recorded_sessions(other.trace)
    if recorded[0] is not None and recorded[1] is not None:
        return recorded[0], recorded[1]
    return one.inferred, other.inferred


def samples(side: Side, turns: Turns, *, in_blocks: bool) -> dict[str, Sample]:
    """What is compared as a distribution: values, and how many each stands for; distances in blocks or in tokens."""
    trace, none = side.trace, np.zeros(0)
    child = np.flatnonzero(turns.parent >= 0)
    before = turns.parent[child]
    found = None if side.curve is None else side.curve.found
    distances, counts = (none, none) if found is None else reuse_distances(trace, found)
    return {
        "input_length": (trace.input_length, None),
        "output_length": (trace.output_length, None),
        "hit_tokens": (np.minimum(side.hit_blocks * trace.block_size, trace.input_length), None),
        "gap_ms": (np.diff(trace.timestamp), None),
        "turns": (np.unique(turns.session[turns.session >= 0], return_counts=True)[1], None),
        "think_ms": (trace.timestamp[child] - trace.timestamp[before], None),
        "growth": (trace.input_length[child] - trace.input_length[before], None),
        "reuse_time_ms": (none, none) if found is None else reuse_times(trace, found),
        "reuse_distance": (distances * (1 if in_blocks else trace.block_size), counts),
    }


def _values(a: Sample, b: Sample) -> Values:
    one, other = _distribution(*a), _distribution(*b)
    if one.count and other.count:
        return Values(one, other, distance(a, b))
    return Values(one, other, 1.0 if one.count or other.count else None)


def _distribution(values, counts):
    return Distribution.of(values, QUANTILES) if counts is None else Distribution.of_counted(values, counts, QUANTILES)


def _numbers(sides, turns) -> dict[str, Number]:
    ranks = [spearman(side.trace.input_length, side.trace.output_length) for side in sides]
    numbers = {"length_correlation": _number(ranks, most=2.0)}  # from -1 to 1
    hits = [count_hits(side.trace, side.hit_blocks) for side in sides]
    for name in HIT_RATES:
        numbers[name] = _number([getattr(found, name) if found.blocks else None for found in hits])
    numbers["first_turns"] = _number([float((found.parent < 0).mean()) for found in turns])
    for window in WINDOWS_S:
        a, b = (dispersion(side.trace.timestamp, window * 1000) for side in sides)
        # a trace too short for two windows is no evidence of anything
        numbers[f"dispersion_{window}s"] = Number(a, b, None if a is None or b is None else _ratio_gap(a, b))
    return numbers


def _number(values: list[float | None], most: float = 1.0) -> Number:
    """A number of both traces; their distance is the difference / the most that it can be."""
    a, b = values
    if a is None or b is None:
        return Number(a, b, None if a is b else 1.0)
    return Number(a, b, abs(b - a) / most)


def _ratio_gap(a: float, b: float) -> float:
    """1 - smaller / larger."""
    return 1 - min(a, b) / max(a, b) if max(a, b) else 0.0


# -- hit curves ----------------------------------------------------------------------------------------------------


def _curves(sides, in_blocks: bool, *, by_share: bool) -> Curves:
    """Both hit curves at the same capacities, or at the same shares of each one's working set."""
    unit = "share" if by_share else "blocks" if in_blocks else "tokens"
    rate = "block_hit_rate" if in_blocks else "token_hit_rate"  # a block of another size is another thing to hit
    known = [side.curve for side in sides if side.curve is not None]
    if len(known) < 2:
        return Curves(unit, rate, None, None, 0, 1.0 if known else None, None, None)
    sizes = [_size_in(unit, curve) for curve in known]  # of a block, in the unit
    first = max(curve.longest * size for curve, size in zip(known, sizes, strict=True))
    last = max(curve.working_set * size for curve, size in zip(known, sizes, strict=True))
    at = _spread(first, last, whole=not by_share)
    gaps = np.abs(np.subtract(*(_rates(*pair, at, rate) for pair in zip(known, sizes, strict=True))))
    worst = int(gaps.argmax())
    return Curves(
        unit, rate, float(first), float(last), len(at), float(gaps[worst]), float(at[worst]), float(gaps.mean())
    )


def _size_in(unit, curve):
    return {"blocks": 1, "tokens": curve.block_size, "share": 1 / curve.working_set}[unit]


def _spread(first: float, last: float, *, whole: bool) -> np.ndarray:
    """Points from first to last, evenly on a log scale."""
    at = np.geomspace(first, last, POINTS) if last > first else np.array([float(first)])
    return np.unique(np.rint(at)) if whole else at


def _rates(curve: HitCurve, size: float, at: np.ndarray, rate: str) -> np.ndarray:
    capacities = np.floor(at / size + 1e-6).astype(np.int64)  # 3 / working set is not quite 3 blocks
    return np.array([getattr(hits, rate) for hits in curve.hits(capacities)])


# -- notes ---------------------------------------------------------------------------------------------------------


def _notes(found: Comparison):
    one, other = found.block_sizes
    if one != other:
        yield (
            f"The block sizes differ ({one:,} and {other:,} tokens): capacities and reuse distances are in tokens, hit "
            "curves are of tokens; the block and request hit rates are each of its own blocks."
        )
    if found.sessions == "inferred":
        yield (
            "Sessions are inferred for both traces from the blocks that requests share; "
            "docs/analysis/compare.md says how."
        )
    short = [f"{window} s" for window in WINDOWS_S if found.numbers[f"dispersion_{window}s"].distance is None]
    if short:
        yield f"Too short for two whole windows, so nothing is said of dispersion: {', '.join(short)}."
    alone = [name for name in found.scores if _in_one_only(found, name)]
    if alone:
        yield f"Only one of the traces has values, so the score is 0: {', '.join(alone)}."
    if missing := [name for name, score in found.scores.items() if score is None and not name.startswith("dispersion")]:
        yield f"Neither trace has values, so there is no score: {', '.join(missing)}."


def _in_one_only(found: Comparison, name: str) -> bool:
    if name in found.distributions:
        values = found.distributions[name]
        return (values.a.count > 0) != (values.b.count > 0)
    if name in found.numbers:
        number = found.numbers[name]
        return number.distance is not None and (number.a is None) != (number.b is None)
    return found.curves[name].distance == 1.0 and not found.curves[name].points
