"""The model of a client that is faster or slower than the trace that its model was fitted to.

Time passes for the client as it passed in the trace: its windows have more or fewer requests, and between two uses of
a block it uses more or fewer other blocks. So reuse times stay, and a cache that all clients share hits as before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .._base.arrays import offsets_of
from .._native import numbering
from .bins import Bins
from .model import Model

if TYPE_CHECKING:
    from .tree import Tree

DISTANCES = ("distance", "fork_distance")  # in distinct blocks


def at_speed(model: Model | Tree, speed: float, rng: np.random.Generator) -> Model | Tree:
    """The model with `speed` times the requests in each window; windows without requests are left out.

    >>> from kvtrace.synthesis.fitting import fit
    >>> from kvtrace.trace.building import toy
    >>> model = fit(toy("0", "0 1", "0 2", "3"))
    >>> at_speed(model, 0.5, np.random.default_rng(1)).window_rows
    array([2])
    """
    if speed == 1 or not isinstance(model, Model):
        return model
    rows = np.diff(np.floor(offsets_of(model.window_rows) * speed + rng.random()).astype(np.int64))
    if not rows.any():
        rows[rng.integers(len(rows))] = 1
    kept = rows > 0
    sizes = np.diff(model.starts)[kept]
    records = numbering.ranges(model.starts[:-1][kept], sizes)
    return replace(
        model, records={name: column[records] for name, column in model.records.items()}, starts=offsets_of(sizes),
        window_rows=rows[kept], working_set=max(1, round(model.working_set * speed)),
        bins=model.bins | {name: _scaled(model.bins[name], speed) for name in DISTANCES},
    )  # fmt: skip


def _scaled(bins: Bins, factor: float) -> Bins:
    return Bins(np.rint(bins.low * factor).astype(np.int64), np.rint(bins.high * factor).astype(np.int64), bins.power)
