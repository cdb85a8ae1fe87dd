"""Better criteria than items per second (the report's future work 3): time to first token, prompt tokens computed.

Tokens not computed depend on prompts and cache alone, so they are the same on every machine; time to first token is the
user's wait. The load is closed (serving.py), so time to first token contains no queueing: it runs from a place in the
batch becoming free, over the prompts of all requests admitted in the same step, to the request's first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvtrace._base.errors import UsageError

from .hit_rate import SCHEMA, report_progress
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
        """Keys as experiments/README.md lists them."""
        return {
            "schema": SCHEMA, "experiment": "latency", "requests": self.requests, "serving": asdict(self.serving),
            **self.about, "seed": self.seed, "workloads": [row.to_dict() for row in self.measured],
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
            raise UsageError(f"{name!r} is not a workload. Choose from {', '.join(WORKLOADS)}.")
    if requests < 1 or not workloads:
        raise UsageError("nothing to measure: name at least one workload and one request.")
    check_repeats(repeats)
    serving = serving or Serving(block_size=16)  # that of the engines
    pairs: dict[str, list] = {name: [] for name in workloads}
    with Bench(shape, machine).running() as bench:
        for repeat in range(repeats):
            for place, name in enumerate(pairs):
                report_progress(progress, repeat * len(pairs) + place, repeats * len(pairs), name)
                row = WORKLOADS[name]
                requested = row.make(np.random.default_rng(seed + repeat), requests, bench.model.shape.vocabulary)
                pairs[name].append(bench.pair(requested, serving, row.longest, repeat))
        about = bench.to_dict()
    report_progress(progress, repeats * len(pairs), repeats * len(pairs), "")
    measured = tuple(Measured(name, Pairs(tuple(runs))) for name, runs in pairs.items())
    return Latency(requests, serving, about, seed, measured)
