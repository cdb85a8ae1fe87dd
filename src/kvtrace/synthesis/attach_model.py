"""The attach model: binned records of how requests attach to earlier requests, without ids or chains.

A model is saved as one small JSON file, compressed if its name ends in .gz or .zst. For each window of about 100
requests, it reveals the depths and ages of shared prefixes and the input lengths, to a bin. It also reveals the output
lengths of requests of similar length, to a bin, and the arrivals by window. It does not reveal which request followed
which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._native.growth import CAPACITIES, KINDS
from .arrival_times import MAX_WINDOW_ROWS, Pace
from .bins import Bins, InvalidModelError, integers
from .fidelity import Fidelity, Figures
from .saved_model import SavedModel

SCHEMA, KIND = 2, "kvtrace attach model"
COLUMNS = ("hits", "new", "distance", "fork", "fork_distance", "kind", "tail", "continues", "type")
BINNED = ("hits", "new", "distance", "fork", "fork_distance", "tail", "output")
RECORDED = BINNED[:-1]  # columns of records
MAX_BLOCK_SIZE = 1 << 31
MAX_PATH = 1 << 24  # blocks of a prompt
MAX_BLOCKS = 1 << 40  # of a trace, and between two rows
TAILS = ("kept", "unique", "dropped")
TIME_STEPS_MS = (3_600_000, 60_000, 1000)  # of coarsened times


@dataclass(frozen=True, eq=False, repr=False)
class Model(SavedModel):
    """How the requests of a trace attach to earlier requests.

    Records are grouped by window and sorted by value, and their values are bins. `hits`: leading blocks seen before;
    `new`: the other blocks; `distance`, `fork`, `fork_distance`: see recency.py; `kind`: see _native/growth.py;
    `tail`: tokens in the last block, less one; `continues`: 1 for a further turn; `type`: index into `types`.
    """

    rows: int  # fitted requests
    block_size: int
    tail: str  # treatment of partial blocks: kept, unique or dropped
    duration_ms: float
    records: dict[str, np.ndarray]  # name -> record -> bin or number
    starts: np.ndarray  # window -> its first record; the last entry is the number of records
    window_rows: np.ndarray  # window -> number of requests
    bins: dict[str, Bins]
    edges: np.ndarray  # type, group -> smallest input length of the next group
    outputs: list[dict[int, int]]  # type and group -> {bin of the output length: requests}
    pace: Pace
    types: list[Any]  # names or numbers of the types; empty without types
    working_set: int  # distinct blocks of the trace
    correction: np.ndarray  # capacity of the grid -> see recency.py
    figures: Figures  # of the trace
    fidelity: Fidelity | None = None  # as checked
    time_step_ms: int = 1  # all times of the trace are multiples of it

    method = "attach"
    kind = KIND

    def _headline(self) -> str:
        return f"{self.rows:,} requests, {len(self.starts) - 1:,} windows, block_size={self.block_size}"

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each window: its fitted requests."""
        return {"window": np.arange(len(self.window_rows)), "requests": self.window_rows}

    @property
    def smallest(self) -> int:
        """The smallest input length that the model draws."""
        low = {name: self.bins[name].low[self.records[name]] for name in ("hits", "new", "tail")}
        return int(((low["hits"] + low["new"] - 1) * self.block_size + low["tail"] + 1).min())

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of https://github.com/kvtrace/kvtrace/blob/main/docs/synthesis/synthesize.md; `schema` is its
        version."""
        return {
            "schema": SCHEMA, "what": KIND, "rows": self.rows, "block_size": self.block_size, "tail": self.tail,
            "duration_ms": self.duration_ms, "records": {name: self.records[name].tolist() for name in COLUMNS},
            "starts": self.starts.tolist(), "window_rows": self.window_rows.tolist(),
            "bins": {name: self.bins[name].to_dict() for name in BINNED}, "edges": self.edges.tolist(),
            "outputs": [[list(group), list(group.values())] for group in self.outputs], "pace": self.pace.to_dict(),
            "types": self.types, "working_set": self.working_set, "correction": self.correction.tolist(),
            "time_step_ms": self.time_step_ms, **self._checks(),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Model:
        """The model of `to_dict`; ValueError, KeyError or TypeError if the values are not a model."""
        if values["what"] != KIND:
            raise InvalidModelError("not the JSON of a model")
        if values["schema"] != SCHEMA:
            raise InvalidModelError(f"its schema is not {SCHEMA}, which this version reads")
        model = cls(
            rows=int(values["rows"]), block_size=int(values["block_size"]), tail=values["tail"],
            duration_ms=float(values["duration_ms"]),
            records={name: integers(values["records"][name]) for name in COLUMNS},
            starts=integers(values["starts"]),
            window_rows=integers(values["window_rows"]),
            bins={name: Bins.from_dict(values["bins"][name]) for name in BINNED},
            edges=integers(values["edges"], 2),
            outputs=[dict(zip(codes, counts, strict=True)) for codes, counts in values["outputs"]],
            pace=Pace.from_dict(values["pace"]), types=list(values["types"]),
            working_set=int(values["working_set"]), correction=np.array(values["correction"], dtype=np.float64),
            time_step_ms=int(values["time_step_ms"]), **cls._checks_of(values),
        )  # fmt: skip
        model._verify()
        return model

    def _verify(self):
        count, kinds = len(self.records["hits"]), max(1, len(self.types))
        hits, new, kind = (self.records[name] for name in ("hits", "new", "kind"))
        groups = self.edges.shape[-1] + 1
        is_consistent = (
            0 < self.block_size < MAX_BLOCK_SIZE and self.rows == self.window_rows.sum()
            and self.tail in TAILS and 0 <= self.duration_ms < float("inf")
            and count and all(len(self.records[name]) == count for name in COLUMNS)
            and len(self.starts) == len(self.window_rows) + 1 and self.starts[0] == 0 and self.starts[-1] == count
            and (np.diff(self.starts) > 0).all()
            and self.window_rows.min() > 0 and self.window_rows.max() <= MAX_WINDOW_ROWS
            and all(_within(self.records[name], len(self.bins[name])) for name in RECORDED)
            and _within(kind, KINDS) and _within(self.records["continues"], 2) and _within(self.records["type"], kinds)
            and (self.bins["hits"].low[hits] + self.bins["new"].low[new] > 0).all()
            and int(self.bins["hits"].high.max()) + int(self.bins["new"].high.max()) <= MAX_PATH
            and all(int(bins.high.max()) < MAX_BLOCKS for bins in self.bins.values())
            and int(self.bins["tail"].high.max()) < self.block_size
            and self.edges.ndim == 2 and len(self.edges) == kinds and len(self.outputs) == kinds * groups
            and all(_is_deck(group, len(self.bins["output"]), self.rows) for group in self.outputs)
            and 0 < self.working_set < MAX_BLOCKS and self.correction.shape == (CAPACITIES,)
            and (self.correction >= 0).all() and (self.correction < 1e6).all()
            and all(isinstance(value, (str, int)) for value in self.types) and self.time_step_ms in (1, *TIME_STEPS_MS)
        )  # fmt: skip
        if not is_consistent:
            raise InvalidModelError("inconsistent values")


def _within(values, count):
    return values.min() >= 0 and values.max() < count


def _is_deck(group, bins, rows):
    return all(isinstance(v, int) for pair in group.items() for v in pair) and all(
        0 <= code < bins and 0 < count <= rows for code, count in group.items()
    )
