"""The table of `reuse-density`: a class for each cell of a block, and a level for each class and age.

`Bounds` says how turns, uses, new blocks and times are put into buckets; the bucket of a value is the number of bounds
that are at most the value. A cell is numbered as experiments/reuse-density.md and policies/learned.py say. The
table has no ids and no text: it is counts, turned into small whole numbers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..._base.errors import InputError, MissingFileError, UsageError
from ..._base.input_files import read_object
from ..._base.output_files import write_atomically

FORMAT = 1  # version of the file
KEY = "kvtrace_reuse_density"
HINT = "Write one with kvtrace tune TRACE --save-table FILE."


@dataclass(frozen=True)
class Bounds:
    """The bounds of the buckets of each feature.

    >>> Bounds().cells
    684
    """

    turns: tuple[float, ...] = (2, 3, 4, 6, 10)
    uses: tuple[float, ...] = (3, 4, 6, 10, 20)  # of shared blocks, which have two uses or more
    new_blocks: tuple[float, ...] = (2, 4, 8, 16, 32, 64)
    gaps_ms: tuple[float, ...] = (15_000, 30_000, 60_000, 120_000, 240_000, 480_000)

    @property
    def tails(self) -> int:
        """Cells of tails, which come first."""
        return len(self.turns) + 1

    @property
    def shared(self) -> int:
        """Cells of shared blocks, which come next."""
        return len(self.uses) + 1

    @property
    def cells(self) -> int:
        """All cells: those of private blocks are turn x later x new blocks x (no gap, gap), the last one fastest."""
        return self.tails + self.shared + self.tails * 2 * (len(self.new_blocks) + 1) * (len(self.gaps_ms) + 2)


@dataclass(frozen=True)
class ReuseTable:
    """A table, checked when it is made; its file is JSON of a few kB."""

    bounds: Bounds
    ages_ms: tuple[float, ...]  # the bounds of the ages
    class_of_cell: tuple[int, ...]
    levels: tuple[tuple[int, ...], ...]  # class -> level of each age bucket; one that is evicted first is lower

    def __post_init__(self) -> None:
        for name, bounds in {**vars(self.bounds), "ages_ms": self.ages_ms}.items():
            if not all(low < high for low, high in pairwise(bounds)):
                raise InputError(f"{name} of the table must rise.")
        if len(self.class_of_cell) != self.bounds.cells:
            raise InputError(f"class_of_cell has {len(self.class_of_cell)} entries; it must have {self.bounds.cells}.")
        if not all(0 <= number < len(self.levels) for number in self.class_of_cell):
            raise InputError(f"class_of_cell must name the classes 0 to {len(self.levels) - 1}.")
        for row in self.levels:
            if len(row) != len(self.ages_ms) + 1 or any(old > young for young, old in pairwise(row)):
                raise InputError(f"each row of levels must have {len(self.ages_ms) + 1} entries that never rise.")

    def to_dict(self) -> dict[str, Any]:
        """The keys of the file."""
        return {
            KEY: FORMAT, **asdict(self.bounds), "ages_ms": self.ages_ms, "class_of_cell": self.class_of_cell,
            "levels": self.levels,
        }  # fmt: skip

    def write(self, path: str | Path) -> None:
        """Write the file."""
        with write_atomically(str(path)) as stream:
            stream.write(json.dumps(self.to_dict(), separators=(",", ":")).encode() + b"\n")


def read_table(path: str | Path) -> ReuseTable:
    """Read a table's file.

    Raises:
        InputError: The file does not exist, or is not a table.

    >>> read_table("none.json")
    Traceback (most recent call last):
    kvtrace._base.errors.MissingFileError: none.json: No such file or directory. Write one with kvtrace tune TRACE ...
    """
    wrong = InputError(f"{path} is not a table of reuse-density. {HINT}")
    try:
        values = read_object(path, InputError, HINT)
    except UsageError as error:  # the file does not exist
        raise (MissingFileError if isinstance(error, FileNotFoundError) else InputError)(str(error)) from None
    except InputError:
        raise wrong from None
    if values.pop(KEY, None) != FORMAT:
        raise wrong
    try:
        bounds = Bounds(**{field.name: _numbers(values[field.name]) for field in fields(Bounds)})
        levels = tuple(tuple(map(_whole, row)) for row in values["levels"])
        classes = tuple(map(_whole, values["class_of_cell"]))
        ages = _numbers(values["ages_ms"])
    except (KeyError, TypeError, ValueError):
        raise wrong from None
    return ReuseTable(bounds, ages, classes, levels)


@cache
def default_table() -> ReuseTable:
    """The table that kvtrace ships, trained on the first half of Mooncake's conversation trace.

    >>> len(default_table().levels)
    32
    """
    return read_table(Path(__file__).parents[1] / "policies" / "reuse_density.json")


def _numbers(values) -> tuple[float, ...]:
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise TypeError
    return tuple(values)


def _whole(value) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 30:
        raise TypeError
    return value
