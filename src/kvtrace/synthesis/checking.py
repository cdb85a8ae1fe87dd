"""How faithful a model is: samples as large as its trace, beside that trace."""

from __future__ import annotations

from statistics import mean

from .._base.errors import UsageError
from .fidelity import MAX_SEEDS, Fidelity
from .figures import figures_of
from .model import Model
from .sampling import sample
from .sessions.model import SessionModel
from .tree import Tree

SEEDS = 5


def check_fidelity(model: Model | Tree | SessionModel, *, seeds: int = SEEDS, workers: int | None = None) -> Fidelity:
    """Compare samples of a model, as large as the trace that it was fitted to, with the figures of that trace.

    Args:
        model: The fitted model.
        seeds: The number of samples, whose figures are averaged.
        workers: As in `sample`.

    Raises:
        UsageError: `seeds` is not from 1 to 1000.

    >>> from kvtrace.synthesis.fitting import fit
    >>> from kvtrace.trace.building import toy
    >>> check_fidelity(fit(toy("0 1", "0 1 2", "0 1", "3")), seeds=2).original["block_hit_rate"]
    0.5
    """
    if not 0 < seeds <= MAX_SEEDS:
        raise UsageError(f"the number of samples is {seeds}; it must be from 1 to {MAX_SEEDS:,}.")
    original = model.figures
    working_set = int(original["working_set"] or 1)
    found = [figures_of(sample(model, seed=seed, workers=workers), working_set) for seed in range(seeds)]
    return Fidelity(model.rows, seeds, original, {name: _mean([one[name] for one in found]) for name in original})


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
