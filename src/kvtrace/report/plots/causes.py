"""The causes of prompt tokens: names and colours in a stack, the waterfall down to the hits, and causes over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...cache.tiers import Tier, as_tiers
from ...serving.misses.causes import CAUSES
from ...serving.misses.explanation import Explanation
from .plot import NO_DURATION, Axis, Panel, Plot, Series, Spans, Study, time_unit

COLOURS = {
    "hit": 0, "in_flight": -1, "evicted": 1, "expired": -2, "other_instance": -3, "other_tier": -7, "rounding": -4,
    "other_domain": -5, "first_use": -6, "not_served": 5,
}  # fmt: skip
IMPOSSIBLE = ("first_use", "not_served")  # no cache could have had these tokens
FAINTER = 0.62  # opacity of a tier's hits / that of the tier above


@dataclass(frozen=True, eq=False)
class Part:
    """The tokens of one cause, or of the hits in one tier."""

    cause: str
    name: str  # for people
    tokens: np.ndarray  # request -> prompt tokens
    opacity: float = 1.0

    @property
    def colour(self) -> int:
        return COLOURS[self.cause]


def parts(explanation: Explanation) -> list[Part]:
    """The parts of the prompt tokens that are not empty, hits first, by tier where there are several.

    >>> from kvtrace.serving.misses.explanation import explain
    >>> from kvtrace.trace.building import toy
    >>> [part.name for part in parts(explain(toy("0 1", "2 3", "0 1"), 2))]
    ['hit', 'evicted', 'first use']
    """
    return [part for part in _parts(explanation) if part.cause == "hit" or part.tokens.any()]


def _parts(explanation: Explanation) -> Iterator[Part]:
    tiers = explanation.causes.tiers
    for cause in CAUSES:
        if cause == "hit" and len(tiers) > 1:
            for number, (tier, tokens) in enumerate(tiers.items()):
                yield Part(cause, f"hit in {tier}", tokens, FAINTER**number)
        else:
            yield Part(cause, cause.replace("_", " "), explanation.causes.tokens[cause])


def title_of(explanation: Explanation) -> str:
    """The setting that was simulated, for titles and sentences.

    >>> from kvtrace.serving.misses.explanation import explain
    >>> from kvtrace.trace.building import toy
    >>> title_of(explain(toy("0 1", "2 3", "0 1"), 2))
    'lru, 2 blocks'
    >>> title_of(explain(toy("0 1", "2 3", "0 1"), tiers={"hbm": 2, "dram": 8}))
    'lru, 2 hbm + 8 dram blocks'
    >>> title_of(explain(toy("0 1", "2 3", "0 1"), 6, engine="vllm", instances=2))
    'vllm, lru, 6 blocks, 2 instances, round-robin'
    """
    setting, run = explanation.simulation.setting, explanation.run
    instances = run.instances
    names = [*([] if setting.engine == "reference" else [setting.engine]), setting.policy]
    tiers = as_tiers(run.cache.tiers) or (Tier("", setting.capacity), *instances.lower)
    sizes = {tier.name: tier.capacity for tier in tiers}
    size = " + ".join(f"{size:,} {tier}".strip() for tier, size in sizes.items())
    routed = (
        [f"{instances.instances:,} instances", *(instances.routers or ["round-robin"])] if instances.is_routed else []
    )
    return ", ".join([*names, f"{size} blocks", *routed])


def not_simulated(study: Study, title: str) -> Panel:
    """The panel of a trace that is too large to be simulated by default."""
    references = len(study.trace.hash_ids)
    return Panel(title, missing=f"prompts have {references:,} blocks. Add --capacity 50% to simulate a cache.")


TITLE = "From all tokens to the hits"
SUM = 5  # colour of the bars that begin at 0


def waterfall_plot(study: Study) -> Plot:
    """The prompt tokens of each cause, each bar beginning where the one below it ends.

    >>> from kvtrace.trace.building import toy
    >>> panel = waterfall_plot(Study(toy("0 1", "2 3", "0 1"), capacity=2)).panels[0]
    >>> list(panel.y.ticks.values())[::-1]
    ['all prompts 100%', 'first use 66.7%', 'possible 33.3%', 'evicted 33.3%', 'hit 0%']
    """
    text = (
        "What stands between all prompt tokens and the hits. Possible is what an earlier prompt had; each bar between "
        "it and the hits is a loss with one cause."
    )
    if study.explanation is None:
        return Plot("Where the hits go", text, [not_simulated(study, TITLE)])
    return Plot(f"Where the hits go, {title_of(study.explanation)}", text, [waterfall_panel(study.explanation)])


def waterfall_panel(explanation: Explanation) -> Panel:
    """One bar to the right for each step, the first on top."""
    steps = list(_steps(explanation))
    total = max(1, explanation.tokens)
    rows = [float(row) for row in range(len(steps))][::-1]
    series: list[Series] = [
        Spans(
            "prompt tokens", np.array([start]), np.array([row]), colour, opacity=opacity, length=np.array([tokens]),
            details={"share of prompt tokens": np.array([tokens / total])}, shows_start=False,
        )
        for row, (_, start, tokens, colour, opacity) in zip(rows, steps, strict=True)
    ]  # fmt: skip
    labels = [f"{name} {_percent(tokens / total)}" for name, _, tokens, _, _ in steps]
    names = Axis("", ticks=dict(zip(rows[::-1], labels[::-1], strict=True)), limits=(-0.5, len(steps) - 0.5))
    axis = Axis("prompt tokens", limits=(0, 0), unit="prompt tokens")
    return Panel(TITLE, axis, names, series, legend=False)


def _steps(explanation: Explanation) -> Iterator[tuple[str, int, int, int, float]]:
    """Name, start, tokens, colour and opacity of each bar, from all prompt tokens to simulated and delivered hits."""
    left, possible = explanation.tokens, explanation.possible_tokens
    every = parts(explanation)
    yield "all prompts", 0, left, SUM, 1.0
    for part in [part for part in every[::-1] if part.cause in IMPOSSIBLE]:
        left -= (tokens := _after_warm_up(part, explanation))
        yield part.name, left, tokens, part.colour, part.opacity
    yield "possible", 0, possible, SUM, 1.0
    for part in [part for part in every[::-1] if part.cause not in (*IMPOSSIBLE, "hit")]:
        left -= (tokens := _after_warm_up(part, explanation))
        yield part.name, left, tokens, part.colour, part.opacity
    start = 0
    for part in [part for part in every if part.cause == "hit"]:
        tokens = _after_warm_up(part, explanation)
        yield part.name, start, tokens, part.colour, part.opacity
        start += tokens
    delivered = explanation.delivered
    if delivered is not None and delivered.is_known.all():  # else of some requests only
        yield "delivered", 0, delivered.totals["delivered_tokens"], SUM, 1.0


def _after_warm_up(part: Part, explanation: Explanation) -> int:
    return int(part.tokens[explanation.simulation.warm_up :].sum())


def _percent(share: float) -> str:
    """A share with three digits.

    >>> _percent(0.12345), _percent(1.0), _percent(0.0)
    ('12.3%', '100%', '0%')
    """
    return f"{100 * share:.3g}%"


WINDOWS = 60  # at most, so that a bar has a few pixels on a phone
_TIMES = {1000.0: (1, 2, 5, 10, 15, 30), 60_000.0: (1, 2, 5, 10, 15, 30), 3_600_000.0: (1, 2, 3, 6, 12)}
ROUND_MS = (
    *(float(step * 10**power) for power in range(3) for step in (1, 2, 5)),
    *(count * unit for unit, counts in _TIMES.items() for count in counts),
    *(days * 86_400_000.0 for days in (1, 2, 7, 14, 28)),
)  # lengths of windows that people use
TITLES = ("Share of prompt tokens by cause", "Prompt tokens by cause")
EXPLANATION = (
    "When a cache misses, and why: each prompt token has one cause. Only the grey part, first use, is beyond the reach "
    "of every cache."
)


def causes_over_time_plot(study: Study) -> Plot:
    """The share and the number of prompt tokens of each cause in each window of time.

    >>> from kvtrace.trace.building import toy
    >>> shown = causes_over_time_plot(Study(toy("0 1", "2 3", "0 1", gap_ms=60_000), capacity=2))
    >>> {series.name: series.y[series.y > 0].tolist() for series in shown.panels[1].series}
    {'hit': [], 'evicted': [2], 'first use': [2, 2]}
    """
    explanation = study.explanation
    if explanation is None:
        return Plot("Causes of misses over time", EXPLANATION, [not_simulated(study, title) for title in TITLES])
    return Plot(f"Causes of misses over time, {title_of(explanation)}", EXPLANATION, panels_over_time(explanation))


def panels_over_time(explanation: Explanation) -> list[Panel]:
    """The share of each cause, and its tokens; both are bars on one another."""
    trace = explanation.simulation.trace
    duration = float(trace.timestamp[-1]) if len(trace) else 0.0
    if not duration:
        return [Panel(title, missing=NO_DURATION) for title in TITLES]
    window_ms, (unit, ms) = round_window(duration), time_unit(duration)
    which = (trace.timestamp // window_ms).astype(np.int64)
    windows = int(which[-1]) + 1
    middle = (np.arange(windows) + 0.5) * window_ms / ms
    total = np.bincount(which, trace.input_length, windows)
    shares, counts = [], []
    for part in parts(explanation):
        tokens = np.bincount(which, part.tokens, windows).astype(np.int64)
        share = np.divide(tokens, total, out=np.zeros(windows), where=total > 0)
        shares.append(Series(part.name, middle, share, part.colour, "stack", opacity=part.opacity))
        counts.append(Series(part.name, middle, tokens, part.colour, "stack", opacity=part.opacity))
    time, length = Axis(f"time ({unit})", limits=(0, 0), unit=unit), named(window_ms)
    share_axis = Axis(f"share of prompt tokens in {length}", percent=True, limits=(0, 1))
    token_axis = Axis(f"prompt tokens in {length}", limits=(0, 0), unit="prompt tokens")
    note = warm_up_note(explanation.simulation.warm_up)
    return [
        Panel(TITLES[0], time, share_axis, shares, note=note), Panel(TITLES[1], time, token_axis, counts, note=note),
    ]  # fmt: skip


def warm_up_note(requests: int) -> str:
    """A sentence on the warm-up; empty without one."""
    return f"The first {requests:,} requests are the warm-up, which totals leave out." if requests else ""


def round_window(duration_ms: float) -> float:
    """The shortest round length of a window of which at most `WINDOWS` cover a duration.

    >>> round_window(3_000_000) / 60_000, round_window(250), round_window(86_400_000 * 7) / 3_600_000
    (1.0, 5.0, 3.0)
    """
    return next((length for length in ROUND_MS if duration_ms < WINDOWS * length), duration_ms / (WINDOWS - 1))


def named(duration_ms: float) -> str:
    """A round duration for people.

    >>> named(300_000), named(20), named(1000), named(86_400_000 * 7)
    ('5 min', '20 ms', '1 s', '7 days')
    """
    units = ((86_400_000.0, "days"), (3_600_000.0, "h"), (60_000.0, "min"), (1000.0, "s"))
    ms, unit = next(((ms, unit) for ms, unit in units if duration_ms >= ms), (1.0, "ms"))
    count = f"{duration_ms / ms:.3g}"
    return "1 day" if (count, unit) == ("1", "days") else f"{count} {unit}"
