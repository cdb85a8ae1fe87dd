"""Better criteria than items per second (the report's future work 3): time to first token, prompt tokens computed.

Tokens not computed are a fact of prompts and cache, the same on every machine; time to first token is what a user waits
for. The load is closed (serving.py), so that time to first token holds no queue: it is a place in the batch becoming
free, the prompts of all requests that were admitted with this one, and its first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvtrace._base.errors import UsageError

from .hit_rate import SCHEMA, tell
from .measure import Bench, Machine, Pairs, check_repeats
from .model import Shape
from .settings import Progress, Serving
from .throughput import REPEATS, REQUESTS
from .workloads import WORKLOADS


@dataclass(frozen=True)
class Measured:
    """The pairs of one workload."""

    workload: str
    pairs: Pairs

    def to_dict(self) -> dict[str, Any]:
        """`workload`, `about`, and the figures."""
        return {"workload": self.workload, "about": WORKLOADS[self.workload].about, **self.pairs.to_dict()}


@dataclass(frozen=True)
class Latency:
    """Workloads with and without prefix caching."""

    requests: int
    serving: Serving
    about: dict[str, Any]  # the model and the machine
    seed: int
    measured: tuple[Measured, ...]

    def to_dict(self) -> dict[str, Any]:
        """Keys as docs/experiments.md lists them."""
        return {
            "schema": SCHEMA, "experiment": "latency", "requests": self.requests, "serving": asdict(self.serving),
            **self.about, "seed": self.seed, "workloads": [found.to_dict() for found in self.measured],
        }  # fmt: skip


def latency(
    workloads: Sequence[str] = tuple(WORKLOADS),
    *,
    requests: int = REQUESTS,
    serving: Serving | None = None,
    shape: Shape | None = None,
    machine: Machine | None = None,
    repeats: int = REPEATS,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Latency:
    """Time to first token and computed tokens of some workloads (rows of WORKLOADS), with and without caching.

    UsageError for an unknown workload, or where PyTorch is missing.
    """
    for name in workloads:
        if name not in WORKLOADS:
            raise UsageError(f"there is no workload {name!r}. Try {', '.join(WORKLOADS)}.")
    if requests < 1 or not workloads:
        raise UsageError("there is nothing to measure. Name a workload, and 1 request or more.")
    check_repeats(repeats)
    serving = serving or Serving(block_size=16)  # that of the engines
    pairs: dict[str, list] = {name: [] for name in workloads}
    with Bench(shape, machine).running() as bench:
        for repeat in range(repeats):
            for place, name in enumerate(pairs):
                tell(progress, repeat * len(pairs) + place, repeats * len(pairs), name)
                row = WORKLOADS[name]
                asked = row.make(np.random.default_rng(seed + repeat), requests, bench.model.shape.vocabulary)
                pairs[name].append(bench.pair(asked, serving, row.longest, repeat))
        about = bench.to_dict()
    tell(progress, repeats * len(pairs), repeats * len(pairs), "")
    measured = tuple(Measured(name, Pairs(tuple(found))) for name, found in pairs.items())
    return Latency(requests, serving, about, seed, measured)
