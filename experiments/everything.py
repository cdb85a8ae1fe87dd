"""All experiments with their defaults: tables, a figure and a JSON file each. `make experiments` runs it.

With `requests`, all runs are that short, with few points and repeats: a check that everything works, not a measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .eviction import eviction
from .hit_rate import hit_rate
from .identical import identical_prompt
from .latency import latency
from .prompts import Mix
from .throughput import small_mix, throughput

NEED_TORCH = ("throughput", "latency")


def experiments(requests: int | None = None) -> dict[str, Callable[[], Any]]:
    """Each experiment under the name of its tables and its figure; short runs of `requests`, if given."""
    if requests is None:
        return {
            "hit_rates": hit_rate, "identical": identical_prompt, "eviction": eviction, "throughput": throughput,
            "latency": latency,
        }  # fmt: skip
    mix, small = Mix(requests=requests), replace(small_mix(), requests=min(requests, 8))
    return {
        "hit_rates": lambda: hit_rate(mix=mix, seeds=2),
        "identical": lambda: identical_prompt(requests=requests, seeds=2),
        "eviction": lambda: eviction(mix=mix, seeds=2),
        "throughput": lambda: throughput([0.1, 1.0], [15, 64], at_lengths=[15], mix=small, repeats=2),
        "latency": lambda: latency(requests=small.requests, repeats=2),
    }
