"""The assumptions of a plan: time to first token and the number of instances if one assumption changes.

Each change is one simulation at the planned number of instances, and a bisection for the number that the target needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..._base.step_work import part_of_work
from ...trace.trace import Trace
from .plan_result import RouterPlan, Sensitivity
from .sizing import InstanceRuns, changed

FACTORS = (0.6, 0.8, 1.2, 1.4)
EXPECTED_RUNS = 3  # simulations of a row, for its progress


def sensitivity(runs: InstanceRuns, best: RouterPlan) -> list[Sensitivity]:
    """The time to first token with the planned number of instances, and the fewest instances, for each change.

    Args:
        runs: The simulations of the planned router.
        best: Its plan.

    Returns:
        A row for each assumption and factor; the factor 1 is the plan itself.
    """
    rows = []
    for what, factor, change in CASES:
        with part_of_work(1 / len(CASES), EXPECTED_RUNS * len(runs.trace)):
            rows.append(_row(what, factor, change(runs, factor), best.instances))
    return rows


def replace_times(trace: Trace, factor: float) -> Trace:
    """The trace with the time between arrivals multiplied by `factor`."""
    from ...trace.columns import replace_columns

    columns = replace_columns(trace, timestamp=trace.timestamp * factor)
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta)


def with_unshared(trace: Trace, share: float, *, seed: int = 0) -> Trace:
    """The trace in which a random share of the requests has blocks of its own: these requests cannot hit.

    >>> from kvtrace.trace.building import toy
    >>> with_unshared(toy("0 1", "0 1", "0 1"), 0.34).working_set
    4
    """
    from ...trace.columns import replace_columns

    alone = np.random.default_rng(seed).permutation(len(trace)) < round(share * len(trace))
    columns = {}
    next_id = trace.distinct
    for name, offsets in (("hash_ids", trace.offsets), ("output_ids", trace.output_offsets)):
        if offsets is None:
            continue
        ids = getattr(trace, name).copy()
        own = np.repeat(alone, np.diff(offsets))
        ids[own] = next_id + np.arange(own.sum())
        next_id += int(own.sum())
        columns[name] = ids
    return Trace.from_columns(
        replace_columns(trace, **columns), block_size=trace.block_size, tail=trace.tail, meta=trace.meta
    )


def _row(what: str, factor: float, runs: InstanceRuns, planned: int) -> Sensitivity:
    point, fewest = runs.at(planned), runs.fewest(planned)
    return Sensitivity(
        what, factor, fewest, None if fewest is None else runs.at(fewest).usd, point.ttft_s, point.ttft_low,
        point.ttft_high,
    )  # fmt: skip


def _arrivals(runs: InstanceRuns, factor: float) -> InstanceRuns:
    return changed(runs, trace=replace_times(runs.trace, 1 / factor))


def _sharing(runs: InstanceRuns, factor: float) -> InstanceRuns:
    return changed(runs, trace=with_unshared(runs.trace, 1 - factor))


def _memory(runs: InstanceRuns, factor: float) -> InstanceRuns:
    longest = int(runs.trace.prompt_blocks.max(initial=1))
    return changed(runs, blocks=max(longest, int(runs.blocks * factor)))


def _gpu(name: str) -> Callable[[InstanceRuns, float], InstanceRuns]:
    """A change of the GPU's peak arithmetic or bandwidth."""

    def change(runs: InstanceRuns, factor: float) -> InstanceRuns:
        gpu = runs.roofline.gpu
        return changed(runs, roofline=replace(runs.roofline, gpu=replace(gpu, **{name: getattr(gpu, name) * factor})))

    return change


CHANGES: dict[str, tuple[tuple[float, ...], Callable[[InstanceRuns, float], InstanceRuns]]] = {
    "load": (FACTORS, _arrivals),
    "shared prompts": (FACTORS[:2], _sharing),
    "KV memory": (FACTORS, _memory),
    "compute": (FACTORS, _gpu("flops")),
    "bandwidth": (FACTORS, _gpu("bandwidth")),
}
CASES = [("plan", 1.0, lambda runs, factor: runs)]
CASES += [(what, factor, change) for what, (factors, change) in CHANGES.items() for factor in factors]
