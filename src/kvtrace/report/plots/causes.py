"""The causes of prompt tokens as the plots show them: their names, in the order of a stack, and their colours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...serving.misses.causes import CAUSES
from ...serving.misses.explanation import Explanation
from .plot import Panel, Study

COLOURS = {
    "hit": 0, "in_flight": -1, "evicted": 1, "expired": -2, "other_instance": -3, "rounding": -4, "other_domain": -5,
    "first_use": -6, "not_served": 5,
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
    setting, setup = explanation.simulation.setting, explanation.setup
    names = [*([] if setting.engine == "reference" else [setting.engine]), setting.policy]
    sizes = dict(setup.tiers or {}) or {"": setting.capacity} | {tier.name: tier.capacity for tier in setup.lower}
    size = " + ".join(f"{size:,} {tier}".strip() for tier, size in sizes.items())
    routed = [f"{setup.instances:,} instances", setup.router or "round-robin"] if setup.is_routed else []
    return ", ".join([*names, f"{size} blocks", *routed])


def not_simulated(study: Study, title: str) -> Panel:
    """The panel of a trace that is too large to be simulated by default."""
    references = len(study.trace.hash_ids)
    return Panel(title, missing=f"prompts have {references:,} blocks. Add --capacity 50% to simulate a cache.")
