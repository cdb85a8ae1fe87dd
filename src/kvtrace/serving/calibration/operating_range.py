"""How far a run of an engine goes: the most tokens of a step, requests at once, and tokens of context."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from ..serving_run import ServingRun

LABELS = {"step_tokens": "tokens a step", "batch": "requests at once", "context": "tokens of context at once",
          "request_tokens": "tokens of a request"}  # fmt: skip


@dataclass(frozen=True)
class OperatingRange:
    """The largest values of a run; times outside this range are extrapolated."""

    step_tokens: int  # prompt tokens of a step
    batch: int  # requests that run at once
    context: int  # tokens of all requests that run at once
    request_tokens: int  # prompt and output of one request

    def beyond(self, seen: OperatingRange) -> dict[str, float]:
        """The values that are larger than those of another range, as multiples of them.

        >>> OperatingRange(2048, 90, 100, 10).beyond(OperatingRange(2048, 60, 100, 10))
        {'batch': 1.5}
        """
        mine, theirs = asdict(self), asdict(seen)
        return {name: mine[name] / max(theirs[name], 1) for name in LABELS if mine[name] > theirs[name]}


def range_of(
    started: np.ndarray,
    first: np.ndarray,
    ended: np.ndarray,
    computed: np.ndarray,
    tokens: np.ndarray,
    *,
    step_tokens: int,
) -> OperatingRange:
    """The range of requests that were served.

    Args:
        started: When each request was admitted, in seconds.
        first: When it had its first token.
        ended: When it ended.
        computed: The tokens of its prompt that were not cached.
        tokens: The tokens of its prompt and output.
        step_tokens: The limit of the scheduler.

    >>> times = [np.array(one) for one in ([0.0, 0.0, 5.0], [1.0, 1.0, 6.0], [4.0, 3.0, 7.0])]
    >>> range_of(*times, np.array([10, 20, 5]), np.array([12, 22, 9]), step_tokens=512)
    OperatingRange(step_tokens=30, batch=2, context=34, request_tokens=22)
    """
    served = ~np.isnan(ended)
    started, first, ended, computed, tokens = (one[served] for one in (started, first, ended, computed, tokens))
    if not len(ended):
        return OperatingRange(0, 0, 0, 0)
    _, step = np.unique(first, return_inverse=True)  # request -> the step that completed its prompt
    prompts = np.bincount(step, weights=computed)
    return OperatingRange(
        int(min(prompts.max(), step_tokens)), _most(started, ended, np.ones(len(ended))),
        _most(started, ended, tokens), int(tokens.max()),
    )  # fmt: skip


def range_of_run(run: ServingRun) -> OperatingRange:
    """The range of a simulated run; of several instances, the largest values of any."""
    limit = run.scheduler.limits.step_tokens if run.scheduler else 1 << 62
    trace = run.trace
    ranges = []
    for instance in range(run.instances):
        rows = run.instance == instance
        columns = (run.started_s, run.first_s, run.ended_s, trace.input_length - run.cached_tokens,
                   trace.input_length + trace.output_length)  # fmt: skip
        ranges.append(asdict(range_of(*(column[rows] for column in columns), step_tokens=limit)))
    return OperatingRange(**{name: max(one[name] for one in ranges) for name in LABELS})


def active_at(started: np.ndarray, ended: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """How many requests have started and not ended at each moment.

    >>> active_at(np.array([0.0, 1.0]), np.array([2.0, 3.0]), np.array([0.5, 1.5, 2.5])).tolist()
    [1, 2, 1]
    """
    return np.searchsorted(np.sort(started), moments, "right") - np.searchsorted(np.sort(ended), moments, "right")


def _most(started: np.ndarray, ended: np.ndarray, weights: np.ndarray) -> int:
    """The largest sum of weights at a time."""
    times = np.concatenate([ended, started])  # an end before a start at the same time
    changes = np.concatenate([-weights, weights])
    return int(np.cumsum(changes[np.argsort(times, kind="stable")]).max())
