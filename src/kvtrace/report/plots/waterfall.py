"""Waterfall: from all prompt tokens down to those that hit, one step for each cause."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...serving.misses.explanation import Explanation
from .causes import IMPOSSIBLE, Part, not_simulated, parts, title_of
from .plot import Axis, Panel, Plot, Series, Spans, Study

TITLE = "From all tokens to the hits"
SUM = 5  # colour of the bars that begin at 0


def plot(study: Study) -> Plot:
    """The prompt tokens of each cause, each bar beginning where the one below it ends.

    >>> from kvtrace.trace.building import toy
    >>> panel = plot(Study(toy("0 1", "2 3", "0 1"), capacity=2)).panels[0]
    >>> list(panel.y.ticks.values())[::-1]
    ['all prompts 100%', 'first use 66.7%', 'possible 33.3%', 'evicted 33.3%', 'hit 0%']
    """
    text = (
        "What stands between all prompt tokens and the hits. Possible is what an earlier prompt had; each bar between "
        "it and the hits is a loss with one cause."
    )
    if study.explanation is None:
        return Plot("Where the hits go", text, [not_simulated(study, TITLE)])
    return Plot(f"Where the hits go, {title_of(study.explanation)}", text, [panel(study.explanation)])


def panel(explanation: Explanation) -> Panel:
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
