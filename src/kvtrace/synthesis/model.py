"""What the attach method keeps of a trace: records of how requests attach to each other, in bins, and no chain.

Saved as one small JSON file, packed where its name ends in .gz or .zst. It reveals: how often, how deep and after how
long about 100 requests at a time shared prefixes, and their lengths, to a bin; the output lengths of requests of
similar length, to a bin; when they arrived, by pieces of about 100. It holds no ids, and nothing of which request
followed which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .._base.errors import InputError
from .._base.files import name_of, open_read, write_atomically
from .._native.attach import KINDS
from .arrivals import Pace
from .bins import Bins

SCHEMA, KIND = 1, "kvtrace attach model"
COLUMNS = ("hits", "new", "age", "kind", "tail", "continues", "type")
BINNED = ("hits", "new", "age", "tail", "output")
TAILS = ("kept", "unique", "dropped")


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """How the requests of a trace attach to those before them.

    Records come in windows, in an order that says nothing; values are bins. `hits`: leading blocks seen before;
    `new`: the others; `age`: new blocks since the attachment's last use; `kind`: as in _kernels/attach.py; `tail`:
    tokens in the last block, less one; `continues`: 1 where the request is a further turn; `type`: place in `types`.
    """

    rows: int  # requests that it was fitted on
    block_size: int
    tail: str  # what the last, partial block was: kept, unique or dropped
    duration_ms: float
    records: dict[str, np.ndarray]  # name -> record -> bin or number
    starts: np.ndarray  # window -> its first record; one more: their number
    window_rows: np.ndarray  # window -> requests that it stands for
    bins: dict[str, Bins]
    edges: np.ndarray  # type, group -> the input length from which on outputs are of the next group
    outputs: list[dict[int, int]]  # type and group -> bin of the output length -> requests
    pace: Pace
    types: list  # names or numbers of the types; empty where the trace had none

    method = "attach"

    def __repr__(self) -> str:
        return f"Model({self.rows:,} requests, {len(self.starts) - 1:,} windows, block_size={self.block_size})"

    @property
    def smallest(self) -> int:
        """The least input length that it draws."""
        low = {name: self.bins[name].low[self.records[name]] for name in ("hits", "new", "tail")}
        return int(((low["hits"] + low["new"] - 1) * self.block_size + low["tail"] + 1).min())

    def to_dict(self) -> dict:
        """Keys as docs/synthesis/synthesize.md lists them; `schema` is their version."""
        return {
            "schema": SCHEMA, "what": KIND, "rows": self.rows, "block_size": self.block_size, "tail": self.tail,
            "duration_ms": self.duration_ms, "records": {name: self.records[name].tolist() for name in COLUMNS},
            "starts": self.starts.tolist(), "window_rows": self.window_rows.tolist(),
            "bins": {name: self.bins[name].to_dict() for name in BINNED}, "edges": self.edges.tolist(),
            "outputs": [[list(group), list(group.values())] for group in self.outputs], "pace": self.pace.to_dict(),
            "types": self.types,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, found: Mapping) -> Model:
        """The model of to_dict; ValueError, KeyError or TypeError where it is none."""
        if found["what"] != KIND:
            raise ValueError("something else")
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']!r}; this version reads {SCHEMA}")
        model = cls(
            rows=int(found["rows"]), block_size=int(found["block_size"]), tail=found["tail"],
            duration_ms=float(found["duration_ms"]),
            records={name: np.array(found["records"][name], dtype=np.int64) for name in COLUMNS},
            starts=np.array(found["starts"], dtype=np.int64),
            window_rows=np.array(found["window_rows"], dtype=np.int64),
            bins={name: Bins.from_dict(found["bins"][name]) for name in BINNED},
            edges=np.array(found["edges"], dtype=np.int64),
            outputs=[dict(zip(codes, counts, strict=True)) for codes, counts in found["outputs"]],
            pace=Pace.from_dict(found["pace"]), types=list(found["types"]),
        )  # fmt: skip
        model._verify()
        return model

    def save(self, path: str | Path) -> str:
        """Write it as JSON, packed if the name ends in .gz or .zst; the file's name. KvtraceError where that fails.

        >>> import tempfile
        >>> from kvtrace.synthesis.fitting import fit
        >>> from kvtrace.trace.building import toy
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = fit(toy("0 1", "0 2")).save(f"{folder}/model.json.gz")
        ...     Model.load(f"{folder}/model.json.gz").rows
        2
        """
        with write_atomically(path) as stream:
            stream.write(json.dumps(self.to_dict(), separators=(",", ":")).encode() + b"\n")
        return name_of(path)

    @staticmethod
    def is_model(path: str | Path) -> bool:
        """Whether a file begins as a saved model does; stdin is taken for a trace."""
        if str(path) == "-" or not Path(path).is_file():
            return False
        with open_read(path) as stream:
            return KIND.encode() in stream.read(200)

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Read what `save` wrote; InputError where the file holds something else."""
        with open_read(path) as stream:
            text = stream.read()
        try:
            return cls.from_dict(json.loads(text))
        except KeyError as error:
            reason = f"{error} is missing"
        except (ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            reason = str(error) if type(error) is ValueError and len(str(error)) < 60 else "its parts do not fit"
        raise InputError(f"{name_of(path)}: is no model of kvtrace ({reason}). Try fit(trace).save(...) again.")

    def _verify(self):
        count, kinds = len(self.records["hits"]), max(1, len(self.types))
        hits, new, kind = (self.records[name] for name in ("hits", "new", "kind"))
        groups = self.edges.shape[-1] + 1
        sound = (
            min(self.rows, self.block_size) > 0 and self.tail in TAILS and 0 <= self.duration_ms < float("inf")
            and count and all(len(self.records[name]) == count for name in COLUMNS)
            and len(self.starts) == len(self.window_rows) + 1 and self.starts[0] == 0 and self.starts[-1] == count
            and (np.diff(self.starts) > 0).all() and (self.window_rows > 0).all()
            and all(_within(self.records[name], len(self.bins[name])) for name in ("hits", "new", "age", "tail"))
            and _within(kind, KINDS) and _within(self.records["continues"], 2) and _within(self.records["type"], kinds)
            and (self.bins["hits"].low[hits] + self.bins["new"].low[new] > 0).all()
            and int(self.bins["tail"].high.max()) < self.block_size
            and self.edges.ndim == 2 and len(self.edges) == kinds and len(self.outputs) == kinds * groups
            and all(_is_deck(group, len(self.bins["output"])) for group in self.outputs)
            and all(isinstance(value, (str, int)) for value in self.types)
        )  # fmt: skip
        if not sound:
            raise ValueError("its parts do not fit together")


def _within(values, count):
    return values.min() >= 0 and values.max() < count


def _is_deck(group, bins):
    return all(isinstance(v, int) for pair in group.items() for v in pair) and all(
        0 <= code < bins and count > 0 for code, count in group.items()
    )
